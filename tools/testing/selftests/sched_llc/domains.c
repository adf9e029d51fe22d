// SPDX-License-Identifier: GPL-2.0
/* Partitions of cpusets rebuild the domains while tasks are pushed. */
#include "sched_llc.h"

#define CGROUP		"/sys/fs/cgroup/"
#define PARTITION	CGROUP "sched_llc_test/"

/* Times that a partition is made and unmade. */
#define CYCLES 5

FIXTURE(domains)
{
	int was_on;
	/* The test enabled the cpuset controller. */
	bool enabled;
	/* The last two CPUs of an LLC with more than that. */
	cpu_set_t two;
	char list[32];
};

FIXTURE_SETUP(domains)
{
	struct llc llcs[MAX_LINES];
	int nr;

	setup(_metadata, &self->was_on);
	if (_metadata->exit_code)
		return;
	if (!has_word(CGROUP "cgroup.controllers", "cpuset"))
		SKIP(return, "no cpuset controller in " CGROUP);
	nr = read_stats(llcs);
	ASSERT_LE(0, nr);
	while (nr-- && CPU_COUNT(&llcs[nr].cpus) < 3)
		;
	if (nr < 0)
		SKIP(return, "no LLC with three CPUs");
	CPU_ZERO(&self->two);
	for (int i = 0; i < 2; i++) {
		int cpu = last_cpu(&llcs[nr].cpus);

		CPU_CLR(cpu, &llcs[nr].cpus);
		CPU_SET(cpu, &self->two);
	}
	snprintf(self->list, sizeof(self->list), "%d,%d",
		 first_cpu(&self->two), last_cpu(&self->two));
	if (!has_word(CGROUP "cgroup.subtree_control", "cpuset")) {
		ASSERT_EQ(0, write_file(CGROUP "cgroup.subtree_control",
					"+cpuset"));
		self->enabled = true;
	}
	ASSERT_EQ(0, mkdir(PARTITION, 0755));
	ASSERT_EQ(0, write_file(PARTITION "cpuset.cpus", self->list));
}

FIXTURE_TEARDOWN_PARENT(domains)
{
	/* After a failed test, what runs inside is just being killed. */
	EXPECT_TRUE(poll_until(!rmdir(PARTITION)));
	if (self->enabled)
		EXPECT_EQ(0, write_file(CGROUP "cgroup.subtree_control",
					"-cpuset"));
	restore(_metadata, self->was_on);
}

/* A partition that cannot be made says so only when it is read. */
static bool set_partition(const char *kind)
{
	char buf[128], want[32];

	snprintf(want, sizeof(want), "%s\n", kind);
	return !write_file(PARTITION "cpuset.cpus.partition", kind) &&
	       read_file(PARTITION "cpuset.cpus.partition", buf,
			 sizeof(buf)) > 0 &&
	       !strcmp(buf, want);
}

/* Makes and unmakes a partition under load; @check looks at it. */
static void cycle(struct __test_metadata *_metadata, const char *kind,
		  const cpu_set_t *two,
		  void (*check)(struct __test_metadata *_metadata,
				const cpu_set_t *two))
{
	char before[65536], after[65536], pid[16];
	bool filter = !access(MASK, R_OK);
	cpu_set_t cpus, overloaded;
	struct load load;

	ASSERT_LT(0, read_file(LAYOUT, before, sizeof(before)));
	ASSERT_EQ(0, set_feature(true));
	if (filter)
		ASSERT_EQ(0, write_file(FEATURES, "SIS_FILTER"));
	ASSERT_TRUE(load_usual(&load));
	/* A pair that runs inside. */
	for (int i = 0; i < 2; i++) {
		snprintf(pid, sizeof(pid), "%d", load.pids[i]);
		ASSERT_EQ(0, write_file(PARTITION "cgroup.procs", pid));
	}
	for (int i = 0; i < CYCLES; i++) {
		unsigned long long pushed = sum_stats().pushed;

		ASSERT_TRUE(poll_until(sum_stats().pushed > pushed));
		ASSERT_TRUE(set_partition(kind));
		check(_metadata, two);
		EXPECT_TRUE(!filter || read_mask(&cpus, &overloaded));
		ASSERT_TRUE(set_partition("member"));
		ASSERT_LT(0, read_file(LAYOUT, after, sizeof(after)));
		EXPECT_STREQ(before, after);
	}
	expect_off_leaves_nothing(_metadata);
	expect_finished(_metadata, &load);
	if (filter) {
		EXPECT_TRUE(poll_until(mask_is_empty()));
		EXPECT_EQ(0, write_file(FEATURES, "NO_SIS_FILTER"));
	}
}

static void in_no_shard(struct __test_metadata *_metadata,
			const cpu_set_t *two)
{
	EXPECT_EQ(0, shards_of(first_cpu(two)));
	EXPECT_EQ(0, shards_of(last_cpu(two)));
}

TEST_F_TIMEOUT(domains, isolated_cpus_are_in_no_shard, TIMEOUT)
{
	cycle(_metadata, "isolated", &self->two, in_no_shard);
}

static void in_their_own_shard(struct __test_metadata *_metadata,
			       const cpu_set_t *two)
{
	struct shard shards[MAX_LINES];
	int nr = read_layout(shards), found = 0;

	ASSERT_LT(0, nr);
	for (int i = 0; i < nr; i++) {
		cpu_set_t both;

		CPU_AND(&both, two, &shards[i].cpus);
		if (!CPU_COUNT(&both))
			continue;
		found++;
		EXPECT_EQ(first_cpu(two), shards[i].llc);
		EXPECT_TRUE(CPU_EQUAL(two, &shards[i].cpus));
	}
	EXPECT_EQ(1, found);
}

TEST_F_TIMEOUT(domains, a_partition_has_its_own_shards, TIMEOUT)
{
	cycle(_metadata, "root", &self->two, in_their_own_shard);
}

/*
 * What waits on the CPUs of a partition leaves the shard that it was in before.
 * SCHED_IDLE tasks next to ones that spin wait for so long that they would still
 * be linked there.
 */
TEST_F_TIMEOUT(domains, a_rebuild_unlinks_what_waits, TIMEOUT)
{
	unsigned long long left = 0;
	cpu_set_t beside = stats_of(first_cpu(&self->two)).cpus;
	struct load load;
	char pid[16];
	int cpu;

	CPU_XOR(&beside, &beside, &self->two);
	cpu = first_cpu(&beside);
	ASSERT_EQ(0, set_feature(true));
	ASSERT_TRUE(load_init(&load));
	for (int i = 0; i < 4; i++) {
		snprintf(pid, sizeof(pid), "%d",
			 load_add(&load, load_spinner,
				  i < 2 ? SCHED_OTHER : SCHED_IDLE));
		ASSERT_EQ(0, write_file(PARTITION "cgroup.procs", pid));
	}
	load_start(&load);
	for (int i = 0; i < 2 * CYCLES; i++) {
		ASSERT_TRUE(poll_until(stats_of(cpu).linked >= 2));
		ASSERT_TRUE(set_partition("root"));
		left += stats_of(cpu).linked;
		ASSERT_TRUE(set_partition("member"));
	}
	/* Up to twice as many would be. Others may have waited there at times. */
	EXPECT_GT(CYCLES, left);
	expect_off_leaves_nothing(_metadata);
	expect_finished(_metadata, &load);
}

TEST_HARNESS_MAIN
