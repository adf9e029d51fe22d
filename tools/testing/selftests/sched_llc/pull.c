// SPDX-License-Identifier: GPL-2.0
/* What is pulled, and what is never pushed. */
#include "sched_llc.h"

/*
 * Pulls to wait for. One would prove that it works, as only a pull counts one;
 * this many come from more than the first moment of a load.
 */
#define PULLS 100

/*
 * Tasks for each CPU that burn and sleep for as long, 1 to 5 ms at random. All
 * three of a CPU sleep for an eighth of the time, and then it is likely that
 * two are awake on another one. Load balancing alone leaves them there.
 */
#define TASKS_PER_CPU 3

/*
 * Exchanges to wait for in the pinned load. Each wakes two tasks whose CPU is
 * busy with others, and if these were pushed, each exchange would push several
 * times. What else wakes up on such a CPU meanwhile, a worker now and then,
 * was seen to push once in hundreds of exchanges.
 */
#define ROUNDS 2000

FIXTURE(pull)
{
	int was_on;
	int nr;
	struct llc llcs[MAX_LINES];
};

FIXTURE_SETUP(pull)
{
	int cpus = 0;

	setup(_metadata, &self->was_on);
	skip_without_llc(_metadata);
	if (_metadata->exit_code)
		return;
	self->nr = read_stats(self->llcs);
	for (int i = 0; i < self->nr; i++)
		cpus += CPU_COUNT(&self->llcs[i].cpus);
	ASSERT_LT(1, cpus);
}

FIXTURE_TEARDOWN_PARENT(pull)
{
	restore(_metadata, self->was_on);
}

static void sleeper(struct load *load, int seed)
{
	unsigned int random = seed;

	while (!load_stopped(load)) {
		long us = 1000 + rand_r(&random) % 4000;
		struct timespec ts;
		long long end;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
		end = ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 + us;
		do {
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
		} while (ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 < end);
		usleep(us);
	}
}

static unsigned long long pulled(int llc)
{
	struct llc llcs[MAX_LINES];

	return read_stats(llcs) > llc ? llcs[llc].pulled : 0;
}

/* Runs sleepers on some CPUs of an LLC and waits for pulls there. */
static void expect_pulls(struct __test_metadata *_metadata, int llc,
			 const cpu_set_t *cpus)
{
	int tasks = TASKS_PER_CPU * CPU_COUNT(cpus);
	unsigned long long before;
	struct load load;

	/* The load inherits it: nothing waits elsewhere. */
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(*cpus), cpus));
	ASSERT_TRUE(load_init(&load));
	for (int i = 0; i < tasks && i < MAX_TASKS; i++)
		ASSERT_LT(0, load_add(&load, sleeper, i));
	before = pulled(llc);
	load_start(&load);
	EXPECT_TRUE(poll_until(pulled(llc) >= before + PULLS))
		TH_LOG("%llu pulls", pulled(llc) - before);
	expect_finished(_metadata, &load);
}

TEST_F_TIMEOUT(pull, tasks_that_wait_are_pulled, TIMEOUT)
{
	ASSERT_EQ(0, set_feature(true));
	for (int i = 0; i < self->nr; i++)
		expect_pulls(_metadata, i, &self->llcs[i].cpus);
	expect_off_leaves_nothing(_metadata);
}

/*
 * The first and the last CPU of an LLC have different shards if there are two.
 * None but the other of the two may run what one of them pushes.
 */
TEST_F_TIMEOUT(pull, the_other_shards_are_searched, TIMEOUT)
{
	ASSERT_EQ(0, set_feature(true));
	for (int i = 0; i < self->nr; i++) {
		cpu_set_t two;

		CPU_ZERO(&two);
		CPU_SET(first_cpu(&self->llcs[i].cpus), &two);
		CPU_SET(last_cpu(&self->llcs[i].cpus), &two);
		expect_pulls(_metadata, i, &two);
	}
	expect_off_leaves_nothing(_metadata);
}

TEST_F_TIMEOUT(pull, pinned_tasks_are_not_pushed, TIMEOUT)
{
	unsigned long long before, pushed;
	unsigned long rounds;
	struct load load;

	ASSERT_EQ(0, set_feature(true));
	ASSERT_TRUE(load_init(&load));
	for (int i = 0; i < self->nr; i++) {
		for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
			cpu_set_t pin;

			if (!CPU_ISSET(cpu, &self->llcs[i].cpus) ||
			    load.nr + 4 > MAX_TASKS)
				continue;
			CPU_ZERO(&pin);
			CPU_SET(cpu, &pin);
			ASSERT_EQ(0, sched_setaffinity(0, sizeof(pin), &pin));
			ASSERT_TRUE(load_add_pair(&load));
			ASSERT_TRUE(load_add_pair(&load));
		}
	}
	before = sum_stats().pushed;
	load_start(&load);
	EXPECT_TRUE(poll_until(atomic_load(&load.shared->rounds) >= ROUNDS));
	rounds = atomic_load(&load.shared->rounds);
	pushed = sum_stats().pushed - before;
	EXPECT_GT(rounds / 2, pushed);
	expect_finished(_metadata, &load);
	expect_off_leaves_nothing(_metadata);
}

TEST_HARNESS_MAIN
