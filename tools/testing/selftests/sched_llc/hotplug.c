// SPDX-License-Identifier: GPL-2.0
/* A CPU goes off and on again while it pushes and pulls. */
#include "sched_llc.h"

/* Times off and on. */
#define CYCLES 10

FIXTURE(hotplug)
{
	int was_on;
	/* Of the CPU that goes. */
	char online[64];
};

FIXTURE_SETUP(hotplug)
{
	cpu_set_t online;

	setup(_metadata, &self->was_on);
	skip_without_llc(_metadata);
	if (_metadata->exit_code)
		return;
	ASSERT_TRUE(read_cpus("/sys/devices/system/cpu/online", &online));
	snprintf(self->online, sizeof(self->online),
		 "/sys/devices/system/cpu/cpu%d/online", last_cpu(&online));
	if (access(self->online, W_OK))
		SKIP(return, "no %s", self->online);
}

FIXTURE_TEARDOWN_PARENT(hotplug)
{
	/* It is on already unless the test failed. */
	write_file(self->online, "1");
	restore(_metadata, self->was_on);
}

TEST_F_TIMEOUT(hotplug, off_and_on_under_load, TIMEOUT)
{
	char before[65536], after[65536];
	struct load load;
	cpu_set_t online;
	int cpu;

	ASSERT_TRUE(read_cpus("/sys/devices/system/cpu/online", &online));
	cpu = last_cpu(&online);
	ASSERT_LT(0, read_file(LAYOUT, before, sizeof(before)));
	ASSERT_EQ(0, set_feature(true));
	ASSERT_TRUE(load_usual(&load));
	for (int i = 0; i < CYCLES; i++) {
		unsigned long long pushed = sum_stats().pushed;

		ASSERT_TRUE(poll_until(sum_stats().pushed > pushed));
		ASSERT_EQ(0, write_file(self->online, "0"));
		EXPECT_EQ(0, shards_of(cpu));
		ASSERT_EQ(0, write_file(self->online, "1"));
		ASSERT_LT(0, read_file(LAYOUT, after, sizeof(after)));
		EXPECT_STREQ(before, after);
	}
	expect_off_leaves_nothing(_metadata);
	expect_finished(_metadata, &load);
}

TEST_HARNESS_MAIN
