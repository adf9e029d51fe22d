// SPDX-License-Identifier: GPL-2.0
/* Tasks change affinity, nice value and policy while they are pushed. */
#include <sys/resource.h>

#include "sched_llc.h"

/* How often, in all, a task has moved itself and its partner. */
#define CHANGES 1000

FIXTURE(affinity)
{
	int was_on;
};

FIXTURE_SETUP(affinity)
{
	setup(_metadata, &self->was_on);
	skip_without_llc(_metadata);
}

FIXTURE_TEARDOWN_PARENT(affinity)
{
	restore(_metadata, self->was_on);
}

static cpu_set_t allowed;

/* One to all of the CPUs that the test may use. */
static void random_cpus(unsigned int *seed, cpu_set_t *cpus)
{
	int skip = rand_r(seed) % CPU_COUNT(&allowed), one = 0;
	int percent = rand_r(seed) % 100;

	CPU_ZERO(cpus);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		if (skip-- == 0)
			one = cpu;
		if (rand_r(seed) % 100 < percent)
			CPU_SET(cpu, cpus);
	}
	CPU_SET(one, cpus);
}

static void set_policy(struct load *load, pid_t pid, int policy, int nice)
{
	struct sched_param param = { .sched_priority = policy == SCHED_FIFO };

	if (sched_setscheduler(pid, policy, &param) ||
	    setpriority(PRIO_PROCESS, pid, nice))
		load_wrong(load, "cannot set policy %d: %d", policy, errno);
}

static int random_policy(unsigned int *seed)
{
	static const int policies[] = {
		SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, SCHED_FIFO,
	};

	return policies[rand_r(seed) % ARRAY_SIZE(policies)];
}

static void check_cpu(struct load *load, const char *who, const cpu_set_t *cpus)
{
	int cpu = sched_getcpu();

	if (!CPU_ISSET(cpu, cpus))
		load_wrong(load, "%s runs on CPU %d, which it may not use",
			   who, cpu);
}

/* The partner whose affinity the task below changes, and their socket. */
static pid_t partner;

/*
 * Nobody else changes the affinity of the two, and the partner says that it has
 * checked before the next change: where both may run is known at any time.
 */
static void changer(struct load *load, int fd)
{
	unsigned int seed = getpid();
	cpu_set_t own, other;
	char c;

	while (!load_stopped(load)) {
		random_cpus(&seed, &own);
		random_cpus(&seed, &other);
		if (sched_setaffinity(0, sizeof(own), &own))
			load_wrong(load, "cannot set my affinity: %d", errno);
		check_cpu(load, "a task that moved itself", &own);
		if (sched_setaffinity(partner, sizeof(other), &other))
			load_wrong(load, "cannot set affinity: %d", errno);
		set_policy(load, partner, random_policy(&seed),
			   rand_r(&seed) % 40 - 20);
		/* It is woken with that, and has it changed while it waits. */
		if (write(fd, &other, sizeof(other)) != sizeof(other))
			_exit(1);
		set_policy(load, partner, SCHED_OTHER, 0);
		if (read(fd, &c, 1) != 1)
			_exit(1);
		/* It slept and was woken, and maybe pulled. */
		check_cpu(load, "a task that was woken", &own);
		atomic_fetch_add(&load->shared->rounds, 1);
	}
	shutdown(fd, SHUT_RDWR);
}

static void changed(struct load *load, int fd)
{
	cpu_set_t cpus;
	ssize_t n;

	while ((n = recv(fd, &cpus, sizeof(cpus), MSG_WAITALL))) {
		if (n != sizeof(cpus))
			_exit(1);
		check_cpu(load, "a task that was moved", &cpus);
		sched_yield();
		check_cpu(load, "a task that yielded", &cpus);
		if (write(fd, "", 1) != 1)
			_exit(1);
	}
}

TEST_F_TIMEOUT(affinity, a_task_stays_where_it_may_run, TIMEOUT)
{
	struct load background, load;
	unsigned long long pushed;
	int fds[2];

	ASSERT_EQ(0, sched_getaffinity(0, sizeof(allowed), &allowed));
	ASSERT_EQ(0, set_feature(true));
	pushed = sum_stats().pushed;
	ASSERT_TRUE(load_usual(&background));
	ASSERT_TRUE(load_init(&load));
	for (int i = 0; i < CPU_COUNT(&allowed) && i < MAX_TASKS / 2; i++) {
		ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
		partner = load_add(&load, changed, fds[1]);
		ASSERT_LT(0, partner);
		close(fds[1]);
		ASSERT_LT(0, load_add(&load, changer, fds[0]));
		close(fds[0]);
	}
	load_start(&load);
	EXPECT_TRUE(poll_until(atomic_load(&load.shared->rounds) >= CHANGES))
		TH_LOG("%lu changes", atomic_load(&load.shared->rounds));
	EXPECT_LT(pushed, sum_stats().pushed);
	expect_off_leaves_nothing(_metadata);
	expect_finished(_metadata, &background);
	expect_finished(_metadata, &load);
}

TEST_HARNESS_MAIN
