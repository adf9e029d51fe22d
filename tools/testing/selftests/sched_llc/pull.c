// SPDX-License-Identifier: GPL-2.0
/* What is pulled, what is pushed, and what never is. */
#include <sys/resource.h>

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

/* Times that a CPU pulls one of two tasks, at most. */
#define TRIES 50

/*
 * Times that tasks are made to wait, and looked for in the shards. Without a push
 * for a task whose dequeue is delayed, it would be missed in half of them.
 */
#define WAITS 25

FIXTURE(pull)
{
	int was_on;
	bool warned;
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
	if (self->warned)
		EXPECT_EQ(0, write_file(FEATURES, DOUBLE_CLOCK));
	restore(_metadata, self->was_on);
}

/* Runs for so many microseconds of its own time. */
static void burn(long us)
{
	struct timespec ts;
	long long end;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	end = ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 + us;
	do {
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	} while (ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 < end);
}

static void sleeper(struct load *load, int seed)
{
	unsigned int random = seed;

	while (!load_stopped(load)) {
		long us = 1000 + rand_r(&random) % 4000;

		burn(us);
		usleep(us);
	}
}

/* Runs sleepers on some CPUs of an LLC and waits for pulls there. */
static void expect_pulls(struct __test_metadata *_metadata,
			 const cpu_set_t *cpus)
{
	int tasks = TASKS_PER_CPU * CPU_COUNT(cpus), cpu = first_cpu(cpus);
	unsigned long long before;
	struct load load;

	/* The load inherits it: nothing waits elsewhere. */
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(*cpus), cpus));
	ASSERT_TRUE(load_init(&load));
	for (int i = 0; i < tasks && i < MAX_TASKS; i++)
		ASSERT_LT(0, load_add(&load, sleeper, i));
	before = stats_of(cpu).pulled;
	load_start(&load);
	EXPECT_TRUE(poll_until(stats_of(cpu).pulled >= before + PULLS))
		TH_LOG("%llu pulls", stats_of(cpu).pulled - before);
	expect_finished(_metadata, &load);
}

TEST_F_TIMEOUT(pull, tasks_that_wait_are_pulled, TIMEOUT)
{
	ASSERT_EQ(0, set_feature(true));
	for (int i = 0; i < self->nr; i++)
		expect_pulls(_metadata, &self->llcs[i].cpus);
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
		expect_pulls(_metadata, &two);
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
			if (!CPU_ISSET(cpu, &self->llcs[i].cpus) ||
			    load.nr + 4 > MAX_TASKS)
				continue;
			ASSERT_EQ(0, pin(0, cpu));
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

/* Sleeps, and is the only one that wants its CPU when it wakes up. */
static void napper(struct load *load, int unused)
{
	while (!load_stopped(load)) {
		usleep(1000);
		atomic_fetch_add(&load->shared->rounds, 1);
	}
}

/* Each wakeup would push if that did not matter. */
TEST_F_TIMEOUT(pull, tasks_alone_are_not_pushed, TIMEOUT)
{
	unsigned long long before, pushed;
	unsigned long rounds;
	struct load load;

	ASSERT_EQ(0, set_feature(true));
	ASSERT_TRUE(load_init(&load));
	for (int i = 0; i < self->nr; i++) {
		ASSERT_EQ(0, sched_setaffinity(0, sizeof(cpu_set_t),
					       &self->llcs[i].cpus));
		ASSERT_LT(0, load_add(&load, napper, 0));
	}
	before = sum_stats().pushed;
	load_start(&load);
	EXPECT_TRUE(poll_until(atomic_load(&load.shared->rounds) >= ROUNDS));
	rounds = atomic_load(&load.shared->rounds);
	pushed = sum_stats().pushed - before;
	EXPECT_GT(rounds / 2, pushed)
		TH_LOG("%lu rounds, %llu pushes", rounds, pushed);
	expect_finished(_metadata, &load);
	expect_off_leaves_nothing(_metadata);
}

/*
 * SCHED_IDLE tasks next to ones that spin wait nearly all the time, linked, and
 * a CPU that none of them may use goes idle again and again.
 */
TEST_F_TIMEOUT(pull, refusals_are_counted_by_reason, TIMEOUT)
{
	const cpu_set_t *llc = &self->llcs[self->nr - 1].cpus;
	cpu_set_t two, others;
	struct llc before, after;
	struct load load;

	if (CPU_COUNT(llc) < 3)
		return;
	CPU_ZERO(&two);
	CPU_SET(first_cpu(llc), &two);
	CPU_SET(last_cpu(llc), &two);
	CPU_XOR(&others, llc, &two);
	ASSERT_EQ(0, set_feature(true));
	ASSERT_TRUE(load_init(&load));
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(two), &two));
	for (int i = 0; i < 4; i++) {
		ASSERT_LT(0, load_add(&load, load_spinner,
				      i < 2 ? SCHED_OTHER : SCHED_IDLE));
	}
	ASSERT_EQ(0, pin(0, first_cpu(&others)));
	ASSERT_LT(0, load_add(&load, napper, 0));
	load_start(&load);
	ASSERT_TRUE(poll_until(stats_of(first_cpu(llc)).linked == 2));
	before = sum_stats();
	EXPECT_TRUE(poll_until(atomic_load(&load.shared->rounds) >= ROUNDS));
	after = sum_stats();
	after.refused_affinity -= before.refused_affinity;
	/* Anything else that waits now and then may be refused as well. */
	EXPECT_LT(ROUNDS / 2, after.refused_affinity);
	EXPECT_LT((after.scanned - before.scanned) / 2, after.refused_affinity);
	expect_finished(_metadata, &load);
	expect_off_leaves_nothing(_metadata);
}

/* Under core scheduling no CPU looks for what is pushed. */
TEST_F_TIMEOUT(pull, core_scheduling_pushes_nothing, TIMEOUT)
{
	unsigned long long before;
	struct load load;

	self->warned = prepare_core_scheduling();
	/* For this process and its children; it ends with the last of them. */
	if (prctl(PR_SCHED_CORE, PR_SCHED_CORE_CREATE, 0,
		  PR_SCHED_CORE_SCOPE_THREAD_GROUP, 0)) {
		/* No core has siblings, or it is not configured. */
		ASSERT_TRUE(errno == ENODEV || errno == EINVAL);
		return;
	}
	ASSERT_EQ(0, set_feature(true));
	before = sum_stats().pushed;
	ASSERT_TRUE(load_usual(&load));
	EXPECT_TRUE(poll_until(atomic_load(&load.shared->rounds) >= ROUNDS));
	EXPECT_EQ(before, sum_stats().pushed);
	expect_finished(_metadata, &load);
	expect_off_leaves_nothing(_metadata);
}

/*
 * Two CPUs that a task of a higher class can hold, so that all else waits there
 * until it lets go or, some tenths of a second later, the fair server runs.
 */
static struct held {
	int cpus[2];
	cpu_set_t set;
	/* A byte makes the holder of a CPU begin, or look whether to end. */
	int begin[2][2];
	/* The same for the task below. */
	int wake[2];
	atomic_bool hold;
	atomic_int holding;
	/* How often a CPU goes idle for a moment before it is held. */
	int naps;
	/* How often a CPU was held. */
	atomic_int times;
	/* The CPU that the task below blocks on, or -1. */
	atomic_int blocks;
	/* How often it was woken and has run. */
	atomic_int ran;
	/* Milliseconds that each of two workers has run. */
	atomic_int work[2];
} *held;

static void holder(struct load *load, int i)
{
	const struct sched_param param = { .sched_priority = 1 };
	char c;

	if (pin(0, held->cpus[i]) ||
	    sched_setscheduler(0, SCHED_FIFO, &param))
		_exit(1);
	while (read(held->begin[i][0], &c, 1) == 1 && !load_stopped(load)) {
		for (int nap = 0; nap < held->naps; nap++)
			usleep(20);
		atomic_fetch_add(&held->holding, 1);
		atomic_fetch_add(&held->times, 1);
		while (atomic_load(&held->hold) && !load_stopped(load))
			;
		atomic_fetch_sub(&held->holding, 1);
	}
}

/* Has both held, and @cpu, where this runs, as the last one. */
static void begin_holding(int cpu)
{
	int own = cpu == held->cpus[1];

	atomic_store(&held->hold, true);
	if (write(held->begin[!own][1], "", 1) != 1 ||
	    write(held->begin[own][1], "", 1) != 1)
		_exit(1);
}

/* Runs for some time, more than its part, and blocks. */
static void blocker(struct load *load, int unused)
{
	char c;

	while (!load_stopped(load)) {
		burn(500);
		atomic_store(&held->blocks, sched_getcpu());
		if (read(held->wake[0], &c, 1) != 1)
			_exit(1);
		atomic_fetch_add(&held->ran, 1);
		while (atomic_load(&held->holding) && !load_stopped(load))
			usleep(1000);
	}
}

/*
 * Spins, and has the CPUs held once the blocker has left one to it. Next to this
 * weight, the blocker has run for more than its part within microseconds.
 */
static void trigger(struct load *load, int unused)
{
	if (setpriority(PRIO_PROCESS, 0, -20))
		_exit(1);
	while (!load_stopped(load)) {
		int cpu = sched_getcpu(), blocks = cpu;

		if (atomic_compare_exchange_strong(&held->blocks, &blocks, -1))
			begin_holding(cpu);
	}
}

static bool hold_init(struct load *load, const cpu_set_t *llc)
{
	held = mmap(NULL, sizeof(*held), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (held == MAP_FAILED || pipe(held->wake))
		return false;
	held->cpus[0] = first_cpu(llc);
	held->cpus[1] = last_cpu(llc);
	held->blocks = -1;
	CPU_ZERO(&held->set);
	for (int i = 0; i < 2; i++) {
		CPU_SET(held->cpus[i], &held->set);
		if (pipe(held->begin[i]) || !load_add(load, holder, i))
			return false;
	}
	return true;
}

static void hold_finish(struct __test_metadata *_metadata, struct load *load)
{
	atomic_store(&load->shared->stop, true);
	atomic_store(&held->hold, false);
	ASSERT_EQ(1, write(held->wake[1], "", 1));
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(1, write(held->begin[i][1], "", 1));
	expect_finished(_metadata, load);
}

/* Two for each of the two CPUs. */
#define TRIGGERS 4

/*
 * One task blocks while it is not eligible, so that its dequeue is delayed, and
 * is woken before that ends; if it is eligible, it is woken as usual. Those that
 * spin are put back when a task of a higher class comes. All of them wait then.
 */
TEST_F_TIMEOUT(pull, what_waits_is_linked, TIMEOUT)
{
	const cpu_set_t *llc = &self->llcs[self->nr - 1].cpus;
	int seen = 0;
	cpu_set_t others;
	struct load load;

	ASSERT_EQ(0, sched_getaffinity(0, sizeof(others), &others));
	ASSERT_EQ(0, set_feature(true));
	ASSERT_TRUE(load_init(&load));
	ASSERT_TRUE(hold_init(&load, llc));
	CPU_XOR(&others, &others, &held->set);
	if (!CPU_COUNT(&others))
		SKIP(return, "no CPUs but the two");
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(cpu_set_t), &held->set));
	ASSERT_LT(0, load_add(&load, blocker, 0));
	for (int i = 0; i < TRIGGERS; i++)
		ASSERT_LT(0, load_add(&load, trigger, 0));
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(others), &others));
	load_start(&load);
	for (int i = 0; i < WAITS; i++) {
		bool linked = false;

		ASSERT_TRUE(poll_until(atomic_load(&held->times) == 2 * i + 2));
		ASSERT_EQ(1, write(held->wake[1], "", 1));
		/* It runs if the fair server was faster than this. */
		ASSERT_TRUE(poll_until((linked = stats_of(first_cpu(llc)).linked ==
					     TRIGGERS + 1) ||
				       atomic_load(&held->ran) > i));
		seen += linked;
		atomic_store(&held->hold, false);
		ASSERT_TRUE(poll_until(atomic_load(&held->ran) > i));
	}
	EXPECT_LT(WAITS * 3 / 4, seen)
		TH_LOG("all were linked in %d of %d tries", seen, WAITS);
	hold_finish(_metadata, &load);
	expect_off_leaves_nothing(_metadata);
}

static void worker(struct load *load, int i)
{
	while (!load_stopped(load)) {
		burn(1000);
		atomic_fetch_add(&held->work[i], 1);
	}
}

/* How much each of the two worked since @before, the lazier one first. */
static void worked(const int *before, int *since)
{
	int a = atomic_load(&held->work[0]) - before[0];
	int b = atomic_load(&held->work[1]) - before[1];

	since[0] = a < b ? a : b;
	since[1] = a < b ? b : a;
}

/*
 * Two tasks share a CPU while the other one that they may use is held. When that
 * is let go, it pulls one, and both run. It was idle for so short before that
 * load balancing would not begin to search.
 */
TEST_F_TIMEOUT(pull, what_is_pulled_runs, TIMEOUT)
{
	const cpu_set_t *llc = &self->llcs[self->nr - 1].cpus;
	int stuck = 0, pulls = 0;
	cpu_set_t others;
	struct load load;
	pid_t pids[2];

	ASSERT_EQ(0, sched_getaffinity(0, sizeof(others), &others));
	ASSERT_EQ(0, set_feature(true));
	ASSERT_TRUE(load_init(&load));
	ASSERT_TRUE(hold_init(&load, llc));
	CPU_XOR(&others, &others, &held->set);
	if (!CPU_COUNT(&others))
		SKIP(return, "no CPUs but the two");
	held->naps = 50;
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(others), &others));
	for (int i = 0; i < 2; i++) {
		pids[i] = load_add(&load, worker, i);
		ASSERT_LT(0, pids[i]);
	}
	load_start(&load);
	for (int i = 0; i < TRIES; i++) {
		int before[2], since[2];
		unsigned long long was;

		for (int j = 0; j < 2; j++)
			ASSERT_EQ(0, pin(pids[j], held->cpus[0]));
		atomic_store(&held->hold, true);
		ASSERT_EQ(1, write(held->begin[1][1], "", 1));
		ASSERT_TRUE(poll_until(atomic_load(&held->times) == i + 1));
		for (int j = 0; j < 2; j++)
			ASSERT_EQ(0, sched_setaffinity(pids[j],
						       sizeof(held->set),
						       &held->set));
		ASSERT_TRUE(poll_until(stats_of(first_cpu(llc)).linked));
		was = stats_of(first_cpu(llc)).pulled;
		atomic_store(&held->hold, false);
		ASSERT_TRUE(poll_until(!atomic_load(&held->holding)));
		for (int j = 0; j < 2; j++)
			before[j] = atomic_load(&held->work[j]);
		ASSERT_TRUE(poll_until((worked(before, since),
					since[1] >= 30)));
		pulls += stats_of(first_cpu(llc)).pulled > was;
		stuck += !since[0];
	}
	EXPECT_LT(TRIES / 4, pulls);
	EXPECT_GT(TRIES / 10, stuck)
		TH_LOG("one did not run after %d of %d pulls", stuck, pulls);
	hold_finish(_metadata, &load);
	expect_off_leaves_nothing(_metadata);
}

TEST_HARNESS_MAIN
