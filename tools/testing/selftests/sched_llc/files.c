// SPDX-License-Identifier: GPL-2.0
/* The layout and the statistics in debugfs. */
#include "sched_llc.h"

/* Times on and off while a task reads. */
#define TOGGLES 10
/* The most CPUs that a shard serves when each core has one. */
#define CPUS_PER_SHARD 6

FIXTURE(files)
{
	int was_on;
};

FIXTURE_SETUP(files)
{
	setup(_metadata, &self->was_on);
}

FIXTURE_TEARDOWN_PARENT(files)
{
	restore(_metadata, self->was_on);
}

TEST_F(files, cannot_be_written)
{
	static const char * const paths[] = { LAYOUT, STATS };
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
		ASSERT_EQ(0, stat(paths[i], &st));
		EXPECT_EQ(S_IFREG | 0444, st.st_mode);
		/* Root may open it all the same. */
		EXPECT_EQ(-1, write_file(paths[i], "0"));
	}
}

TEST_F(files, shards_partition_each_llc)
{
	struct shard shards[MAX_LINES];
	struct llc llcs[MAX_LINES];
	int nr_shards, nr_llcs, used = 0;

	nr_llcs = read_stats(llcs);
	nr_shards = read_layout(shards);
	ASSERT_LE(0, nr_llcs);
	ASSERT_LE(0, nr_shards);
	for (int l = 0; l < nr_llcs; l++) {
		int cpus = CPU_COUNT(&llcs[l].cpus);
		unsigned int nr = 0;
		cpu_set_t seen;

		EXPECT_EQ(first_cpu(&llcs[l].cpus), llcs[l].first);
		CPU_ZERO(&seen);
		for (int s = 0; s < nr_shards; s++) {
			cpu_set_t both;

			if (shards[s].llc != llcs[l].first)
				continue;
			EXPECT_EQ(nr, shards[s].nr);
			nr++;
			CPU_AND(&both, &seen, &shards[s].cpus);
			EXPECT_EQ(0, CPU_COUNT(&both));
			CPU_OR(&seen, &seen, &shards[s].cpus);
		}
		EXPECT_TRUE(CPU_EQUAL(&seen, &llcs[l].cpus));
		EXPECT_LE(1, nr);
		EXPECT_GE((cpus + CPUS_PER_SHARD - 1) / CPUS_PER_SHARD, nr);
		used += nr;
	}
	/* No shard belongs to an LLC that is not there. */
	EXPECT_EQ(nr_shards, used);
}

TEST_F(files, a_cpu_has_a_shard_if_it_shares_a_cache)
{
	cpu_set_t online;
	int highest;

	/* These have no domains; partitions made later are not looked for. */
	if (read_cpus("/sys/devices/system/cpu/isolated", &online))
		SKIP(return, "some CPUs are isolated");
	ASSERT_TRUE(read_cpus("/sys/devices/system/cpu/online", &online));
	highest = last_cpu(&online);
	for (int cpu = 0; cpu <= highest; cpu++) {
		cpu_set_t sharing;
		bool shares = false;
		char path[128];

		if (!CPU_ISSET(cpu, &online))
			continue;
		for (int i = 0; ; i++) {
			snprintf(path, sizeof(path),
				 "/sys/devices/system/cpu/cpu%d/cache/index%d/shared_cpu_list",
				 cpu, i);
			if (!read_cpus(path, &sharing))
				break;
			shares |= CPU_COUNT(&sharing) > 1;
		}
		EXPECT_EQ(shares, shards_of(cpu))
			TH_LOG("CPU %d", cpu);
	}
}

/* Reads both until told to stop, and checks that each line is as it should. */
static void reader(struct load *load, int unused)
{
	struct shard shards[MAX_LINES];
	struct llc llcs[MAX_LINES];
	int nr;

	while (!load_stopped(load)) {
		if (read_layout(shards) < 0)
			load_wrong(load, "the layout cannot be parsed");
		nr = read_stats(llcs);
		if (nr < 0)
			load_wrong(load, "the statistics cannot be parsed");
		for (int i = 1; i < nr; i++) {
			if (llcs[i].counters != llcs[0].counters)
				load_wrong(load, "LLC %u lacks counters",
					   llcs[i].first);
		}
		atomic_fetch_add(&load->shared->rounds, 1);
	}
}

TEST_F_TIMEOUT(files, can_be_read_while_toggling, TIMEOUT)
{
	struct load load;
	unsigned long rounds;

	ASSERT_TRUE(load_init(&load));
	ASSERT_LT(0, load_add(&load, reader, 0));
	load_start(&load);
	for (int i = 0; i < 2 * TOGGLES; i++) {
		rounds = atomic_load(&load.shared->rounds);
		ASSERT_EQ(0, set_feature(i % 2 == 0));
		ASSERT_TRUE(poll_until(atomic_load(&load.shared->rounds) >
				       rounds));
	}
	expect_finished(_metadata, &load);
	expect_off_leaves_nothing(_metadata);
}

TEST_HARNESS_MAIN
