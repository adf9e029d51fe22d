// SPDX-License-Identifier: GPL-2.0
/* The mask of overloaded CPUs, and what a search makes of it. */
#define FEATURE "SIS_FILTER"
#include "sched_llc.h"

#define SIS_STATS	DEBUGFS "sis_filter/stats"
#define CGROUP		"/sys/fs/cgroup/"
#define CHURN		CGROUP "sched_llc_churn/"

/* Times on and off under load; times that a CPU goes off and on. */
#define TOGGLES 20
#define CYCLES 5
/*
 * Timer interrupts of a CPU in which it has ticked at least twice: there are
 * others than ticks, from a hrtimer of the load, but far fewer.
 */
#define TWO_TICKS 4
/* Times that tasks leave a CPU, now and then while it is kept idle. */
#define MOVES 20
/* Wakeups that a test looks at. */
#define WAKEUPS 300

static bool mask_has(const cpu_set_t *wanted)
{
	cpu_set_t cpus, overloaded;

	if (!read_mask(&cpus, &overloaded))
		return false;
	CPU_AND(&overloaded, &overloaded, wanted);
	return CPU_EQUAL(&overloaded, wanted);
}

enum {
	SEARCHES, FILTERED, CANDIDATES, LEFT, NONE_LEFT, FEW_LEFT, VISITED,
	FOUND, CHANGES, NR_COUNTERS
};

static const char * const names[NR_COUNTERS] = {
	"searches", "filtered", "candidates", "left", "none_left", "few_left",
	"visited", "found", "changes",
};

/* Reads the counters, summed over the LLCs; all are 0 if the file cannot be read. */
static void read_counters(unsigned long long *sums)
{
	char buf[65536], name[64], *line, *save;
	unsigned long long value;

	memset(sums, 0, NR_COUNTERS * sizeof(*sums));
	if (read_file(SIS_STATS, buf, sizeof(buf)) < 0)
		return;
	for (line = strtok_r(buf, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		if (sscanf(line, " %63[a-z_] %llu", name, &value) != 2)
			continue;
		for (int i = 0; i < NR_COUNTERS; i++) {
			if (!strcmp(name, names[i]))
				sums[i] += value;
		}
	}
}

static unsigned long long nr_changes(void)
{
	unsigned long long sums[NR_COUNTERS];

	read_counters(sums);
	return sums[CHANGES];
}

/* How often the local timer interrupted @cpu; 0 if that is not to be had. */
static unsigned long timer_interrupts(int cpu)
{
	char buf[262144], *word, *save, *counts;
	unsigned long count = 0;

	if (read_file("/proc/interrupts", buf, sizeof(buf)) < 0)
		return 0;
	counts = strstr(buf, "LOC:");
	if (!counts)
		return 0;
	counts += strlen("LOC:");
	/* A column for each online CPU, which the first line names. */
	*strchr(buf, '\n') = '\0';
	for (word = strtok_r(buf, " ", &save); word;
	     word = strtok_r(NULL, " ", &save)) {
		count = strtoul(counts, &counts, 10);
		if (atoi(word + strlen("CPU")) == cpu)
			return count;
	}
	return 0;
}

/* Spins on a CPU. */
static void hog(struct load *load, int cpu)
{
	if (pin(0, cpu))
		_exit(1);
	atomic_fetch_add(&load->shared->rounds, 1);
	while (!load_stopped(load))
		;
}

/* The same as a task of idle policy. */
static void idle_hog(struct load *load, int cpu)
{
	struct sched_param param = { };

	if (sched_setscheduler(0, SCHED_IDLE, &param))
		_exit(1);
	hog(load, cpu);
}

/* Adds @nr of @fn to each of @cpus. */
static bool add_hogs(struct load *load, const cpu_set_t *cpus, int nr,
		     void (*fn)(struct load *load, int cpu))
{
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		for (int i = 0; CPU_ISSET(cpu, cpus) && i < nr; i++) {
			if (!load_add(load, fn, cpu))
				return false;
		}
	}
	return true;
}

/* All hogs are on their CPUs. */
static bool hogs_run(struct load *load)
{
	return poll_until(atomic_load(&load->shared->rounds) ==
			  (unsigned long)load->nr);
}

FIXTURE(sis_filter)
{
	int was_on;
	bool had_util;
	bool had_cpu;
	bool warned;
	/* The CPUs that have an LLC, and as many of them as get two hogs. */
	cpu_set_t cpus, some;
};

FIXTURE_SETUP(sis_filter)
{
	cpu_set_t overloaded;

	setup(_metadata, &self->was_on);
	if (_metadata->exit_code)
		return;
	ASSERT_TRUE(read_mask(&self->cpus, &overloaded));
	if (CPU_COUNT(&self->cpus) < 2)
		SKIP(return, "no CPU shares its last-level cache");
	self->some = self->cpus;
	while (CPU_COUNT(&self->some) > MAX_TASKS / 2)
		CPU_CLR(last_cpu(&self->some), &self->some);
	self->had_util = has_word(FEATURES, "SIS_UTIL");
	self->had_cpu = has_word(CGROUP "cgroup.subtree_control", "cpu");
	ASSERT_EQ(0, set_feature(true));
}

FIXTURE_TEARDOWN_PARENT(sis_filter)
{
	if (self->had_util)
		EXPECT_EQ(0, write_file(FEATURES, "SIS_UTIL"));
	if (self->warned)
		EXPECT_EQ(0, write_file(FEATURES, DOUBLE_CLOCK));
	/* After a failed test, what runs inside is just being killed. */
	EXPECT_TRUE(poll_until(!rmdir(CHURN) || errno == ENOENT));
	if (!self->had_cpu)
		write_file(CGROUP "cgroup.subtree_control", "-cpu");
	restore(_metadata, self->was_on);
}

TEST_F(sis_filter, files_cannot_be_written)
{
	static const char * const paths[] = { MASK, SIS_STATS };
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
		ASSERT_EQ(0, stat(paths[i], &st));
		EXPECT_EQ(S_IFREG | 0444, st.st_mode);
		EXPECT_EQ(-1, write_file(paths[i], "0"));
	}
}

/* Who has an LLC to share is the same for both features. */
TEST_F(sis_filter, a_cpu_has_a_mask_if_it_has_a_shard)
{
	struct shard shards[MAX_LINES];
	cpu_set_t cpus;
	int nr;

	if (access(LAYOUT, R_OK))
		SKIP(return, "no " LAYOUT);
	nr = read_layout(shards);
	CPU_ZERO(&cpus);
	while (nr-- > 0)
		CPU_OR(&cpus, &cpus, &shards[nr].cpus);
	EXPECT_TRUE(CPU_EQUAL(&cpus, &self->cpus));
}

TEST_F_TIMEOUT(sis_filter, mask_has_the_cpus_with_two_hogs, TIMEOUT)
{
	unsigned long before[CPU_SETSIZE];
	struct load load;

	/* Half of them, then all. */
	for (int round = 0; round < 2; round++) {
		cpu_set_t hogged = self->some;

		for (int cpu = 0; !round && cpu < CPU_SETSIZE; cpu += 2)
			CPU_CLR(cpu, &hogged);
		EXPECT_TRUE(poll_until(mask_is_empty()));
		ASSERT_TRUE(load_init(&load));
		ASSERT_TRUE(add_hogs(&load, &hogged, 2, hog));
		load_start(&load);
		ASSERT_TRUE(hogs_run(&load));
		/* From here on, two ticks must do. */
		for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
			before[cpu] = CPU_ISSET(cpu, &hogged) ?
				      timer_interrupts(cpu) : 0;
		}
		for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
			/* Not all architectures say. */
			ASSERT_TRUE(!before[cpu] ||
				    poll_until(timer_interrupts(cpu) -
					       before[cpu] >= TWO_TICKS));
		}
		EXPECT_TRUE(mask_has(&hogged));
		/* Others may be busy for a moment, with this test or the kernel. */
		EXPECT_TRUE(poll_until(mask_is(&hogged)));
		for (int i = 0; i < 100; i++)
			EXPECT_TRUE(mask_has(&hogged));
		expect_finished(_metadata, &load);
	}
	EXPECT_TRUE(poll_until(mask_is_empty()));
}

TEST_F_TIMEOUT(sis_filter, one_hog_or_idle_ones_do_not_count, TIMEOUT)
{
	struct load load;
	cpu_set_t last;
	int clear = 0;

	CPU_ZERO(&last);
	CPU_SET(last_cpu(&self->cpus), &last);
	ASSERT_TRUE(load_init(&load));
	ASSERT_TRUE(add_hogs(&load, &last, 1, hog));
	ASSERT_TRUE(add_hogs(&load, &last, 2, idle_hog));
	load_start(&load);
	/* The idle ones get their turn as well. */
	ASSERT_TRUE(hogs_run(&load));
	EXPECT_TRUE(poll_until(mask_is_empty()));
	/* A kernel thread may run there now and then. */
	for (int i = 0; i < 100; i++) {
		clear += !mask_has(&last);
		usleep(1000);
	}
	EXPECT_LT(50, clear);
	expect_finished(_metadata, &load);
}

TEST_F_TIMEOUT(sis_filter, off_is_empty, TIMEOUT)
{
	struct load load;

	ASSERT_TRUE(load_usual(&load));
	for (int i = 0; i < TOGGLES; i++) {
		unsigned long long changes = nr_changes();

		ASSERT_EQ(0, set_feature(true));
		ASSERT_TRUE(poll_until(nr_changes() > changes));
		ASSERT_EQ(0, set_feature(false));
		EXPECT_TRUE(mask_is_empty());
		changes = nr_changes();
		usleep(1000);
		EXPECT_EQ(changes, nr_changes());
	}
	ASSERT_EQ(0, set_feature(true));
	expect_finished(_metadata, &load);
	EXPECT_TRUE(poll_until(mask_is_empty()));
}

/* What is overloaded already is seen when the feature is enabled. */
TEST_F_TIMEOUT(sis_filter, on_is_up_to_date, TIMEOUT)
{
	struct load load;

	ASSERT_EQ(0, set_feature(false));
	ASSERT_TRUE(load_init(&load));
	ASSERT_TRUE(add_hogs(&load, &self->some, 2, hog));
	load_start(&load);
	ASSERT_TRUE(hogs_run(&load));
	EXPECT_TRUE(mask_is_empty());
	for (int i = 0; i < CYCLES; i++) {
		ASSERT_EQ(0, set_feature(true));
		EXPECT_TRUE(mask_has(&self->some));
		ASSERT_EQ(0, set_feature(false));
		EXPECT_TRUE(mask_is_empty());
	}
	expect_finished(_metadata, &load);
}

/* A new mask, made when domains are rebuilt, gets the CPUs that the old one had. */
TEST_F_TIMEOUT(sis_filter, hotplug_keeps_the_mask_right, TIMEOUT)
{
	cpu_set_t cpus, overloaded, hogged = self->some;
	int cpu = last_cpu(&self->cpus);
	char online[64];
	struct load load;

	snprintf(online, sizeof(online),
		 "/sys/devices/system/cpu/cpu%d/online", cpu);
	if (access(online, W_OK))
		SKIP(return, "no %s", online);
	CPU_CLR(cpu, &hogged);
	ASSERT_TRUE(load_init(&load));
	ASSERT_TRUE(add_hogs(&load, &hogged, 2, hog));
	load_start(&load);
	ASSERT_TRUE(hogs_run(&load));
	for (int i = 0; i < CYCLES; i++) {
		EXPECT_EQ(0, write_file(online, "0"));
		EXPECT_TRUE(read_mask(&cpus, &overloaded));
		EXPECT_FALSE(CPU_ISSET(cpu, &cpus));
		EXPECT_TRUE(poll_until(mask_is(&hogged) ||
				       /* It had one CPU left. */
				       CPU_COUNT(&cpus) < CPU_COUNT(&self->cpus) - 1));
		EXPECT_EQ(0, write_file(online, "1"));
		EXPECT_TRUE(read_mask(&cpus, &overloaded));
		EXPECT_TRUE(CPU_EQUAL(&cpus, &self->cpus));
		EXPECT_TRUE(poll_until(mask_is(&hogged)));
	}
	expect_finished(_metadata, &load);
	EXPECT_TRUE(poll_until(mask_is_empty()));
}

/* How often the group was throttled. */
static unsigned long throttled(void)
{
	char buf[4096], *at;

	if (read_file(CHURN "cpu.stat", buf, sizeof(buf)) < 0)
		return 0;
	at = strstr(buf, "nr_throttled ");
	return at ? strtoul(at + strlen("nr_throttled "), NULL, 10) : 0;
}

static bool join(const char *cgroup, const struct load *load)
{
	char path[128], pid[16];

	snprintf(path, sizeof(path), "%scgroup.procs", cgroup);
	for (int i = 0; i < load->nr; i++) {
		snprintf(pid, sizeof(pid), "%d", load->pids[i]);
		if (write_file(path, pid))
			return false;
	}
	return true;
}

/* Tasks change their group, which is throttled and of idle policy in turn. */
TEST_F_TIMEOUT(sis_filter, no_bit_outlives_cgroup_churn, TIMEOUT)
{
	struct load load;

	if (write_file(CGROUP "cgroup.subtree_control", "+cpu"))
		SKIP(return, "no cpu controller in " CGROUP);
	ASSERT_EQ(0, mkdir(CHURN, 0755));
	ASSERT_TRUE(load_init(&load));
	ASSERT_TRUE(add_hogs(&load, &self->some, 2, hog));
	load_start(&load);
	ASSERT_TRUE(hogs_run(&load));
	for (int i = 0; i < CYCLES; i++) {
		unsigned long times = throttled();

		EXPECT_TRUE(join(CHURN, &load));
		EXPECT_EQ(0, write_file(CHURN "cpu.max", "1000 10000"));
		EXPECT_TRUE(poll_until(throttled() > times));
		/* None of them counts, wherever it is queued. */
		EXPECT_EQ(0, write_file(CHURN "cpu.idle", "1"));
		EXPECT_EQ(0, write_file(CHURN "cpu.max", "max"));
		EXPECT_TRUE(poll_until(mask_is_empty()));
		EXPECT_EQ(0, write_file(CHURN "cpu.idle", "0"));
		EXPECT_TRUE(poll_until(mask_has(&self->some)));
		EXPECT_TRUE(join(CGROUP, &load));
	}
	expect_finished(_metadata, &load);
	EXPECT_TRUE(poll_until(mask_is_empty()));
}

/* A sibling of @cpu, or -1. */
static int sibling(int cpu)
{
	char path[128];
	cpu_set_t core;

	snprintf(path, sizeof(path),
		 "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
		 cpu);
	if (!read_cpus(path, &core))
		return -1;
	CPU_CLR(cpu, &core);
	return CPU_COUNT(&core) ? first_cpu(&core) : -1;
}

/*
 * Core scheduling keeps a CPU idle, whatever is queued there, while its sibling
 * runs a task with another cookie. Tasks that leave it meanwhile leave no bit.
 */
TEST_F_TIMEOUT(sis_filter, no_bit_stays_on_a_cpu_kept_idle, TIMEOUT)
{
	int cpu = last_cpu(&self->cpus), away = first_cpu(&self->cpus);
	int other = sibling(cpu);
	unsigned long long cookie;
	cpu_set_t one, rest;
	struct load load;

	if (prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, 0,
		  PR_SCHED_CORE_SCOPE_THREAD, &cookie)) {
		/* No core has siblings, or it is not configured. */
		ASSERT_TRUE(errno == ENODEV || errno == EINVAL);
		return;
	}
	ASSERT_LE(0, other);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	rest = self->cpus;
	CPU_CLR(cpu, &rest);
	CPU_CLR(other, &rest);
	CPU_CLR(away, &rest);
	CPU_CLR(sibling(away), &rest);
	ASSERT_LT(0, CPU_COUNT(&rest));
	self->warned = prepare_core_scheduling();
	/* What waits for its cookie's turn may wait long: not this test. */
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(rest), &rest));
	ASSERT_TRUE(load_init(&load));
	for (int i = 0; i < 3; i++) {
		ASSERT_LT(0, load_add(&load, load_spinner, SCHED_OTHER));
		ASSERT_EQ(0, prctl(PR_SCHED_CORE, PR_SCHED_CORE_CREATE,
				   load.pids[i], PR_SCHED_CORE_SCOPE_THREAD, 0));
	}
	load_start(&load);
	for (int i = 0; i < MOVES; i++) {
		ASSERT_EQ(0, pin(load.pids[2], away));
		ASSERT_EQ(0, pin(load.pids[0], cpu));
		ASSERT_EQ(0, pin(load.pids[1], cpu));
		ASSERT_TRUE(poll_until(mask_has(&one)));
		ASSERT_EQ(0, pin(load.pids[2], other));
		usleep(1000 * (i + 1));
		ASSERT_EQ(0, pin(load.pids[0], away));
		ASSERT_EQ(0, pin(load.pids[1], away));
		ASSERT_TRUE(poll_until(!mask_has(&one)));
	}
	expect_finished(_metadata, &load);
	EXPECT_TRUE(poll_until(mask_is_empty()));
}

/* A pair that sleeps and wakes each other. */
static void waker(struct load *load, int fd)
{
	char c;

	for (int i = 0; i < WAKEUPS; i++) {
		if (write(fd, &c, 1) != 1 || read(fd, &c, 1) != 1)
			_exit(1);
		usleep(10);
	}
}

static void wakee(struct load *load, int fd)
{
	char c;

	for (int i = 0; i < WAKEUPS; i++) {
		if (read(fd, &c, 1) != 1 || write(fd, &c, 1) != 1)
			_exit(1);
	}
}

/*
 * With hogs on all CPUs but one, a search that is filtered visits that one, or
 * none; and no counter contradicts another.
 */
TEST_F_TIMEOUT(sis_filter, a_search_visits_what_is_left, TIMEOUT)
{
	unsigned long long before[NR_COUNTERS], rise[NR_COUNTERS];
	cpu_set_t hogged = self->some;
	struct load hogs, pair;
	int fds[2], nr;

	nr = CPU_COUNT(&self->cpus);
	if (!CPU_EQUAL(&self->cpus, &self->some))
		SKIP(return, "more CPUs than this test can load");
	CPU_CLR(last_cpu(&hogged), &hogged);
	/* Otherwise a busy LLC is hardly searched at all. */
	ASSERT_EQ(0, write_file(FEATURES, "NO_SIS_UTIL"));
	ASSERT_TRUE(load_init(&hogs));
	ASSERT_TRUE(add_hogs(&hogs, &hogged, 2, hog));
	load_start(&hogs);
	ASSERT_TRUE(hogs_run(&hogs));
	/* While the feature is off, nothing counts: one moment for all. */
	ASSERT_EQ(0, set_feature(false));
	read_counters(before);
	ASSERT_EQ(0, set_feature(true));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	ASSERT_TRUE(load_init(&pair));
	ASSERT_LT(0, load_add(&pair, waker, fds[0]));
	ASSERT_LT(0, load_add(&pair, wakee, fds[1]));
	load_start(&pair);
	expect_finished(_metadata, &pair);
	EXPECT_TRUE(mask_has(&hogged));
	ASSERT_EQ(0, set_feature(false));
	read_counters(rise);
	for (int i = 0; i < NR_COUNTERS; i++) {
		rise[i] -= before[i];
		ksft_print_msg("%s %llu\n", names[i], rise[i]);
	}
	expect_finished(_metadata, &hogs);

	EXPECT_LT(0, rise[FILTERED]);
	EXPECT_LE(rise[FILTERED], rise[SEARCHES]);
	EXPECT_LT(rise[LEFT], rise[CANDIDATES]);
	EXPECT_LE(rise[NONE_LEFT] + rise[FEW_LEFT], rise[FILTERED]);
	EXPECT_LE(rise[FOUND], rise[VISITED]);
	/* One on each CPU may have begun while the feature was off. */
	EXPECT_LE(rise[FOUND], rise[SEARCHES] + nr);
	/* These, and the ones that were not filtered, may have visited every CPU. */
	EXPECT_LE(rise[VISITED],
		  rise[LEFT] + (rise[SEARCHES] - rise[FILTERED] + nr) * nr);
	/* The filtered ones alone would have come to more. */
	EXPECT_GT(rise[CANDIDATES], rise[VISITED]);
}

TEST_HARNESS_MAIN
