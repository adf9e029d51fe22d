// SPDX-License-Identifier: GPL-2.0
/* SHARED_RUNQ goes on and off under load: no task is lost, none stays linked. */
#include "sched_llc.h"

/* Times on and off: the races of a switch are narrow and need many tries. */
#define TOGGLES 200

FIXTURE(toggle)
{
	int was_on;
};

FIXTURE_SETUP(toggle)
{
	setup(_metadata, &self->was_on);
	skip_without_llc(_metadata);
}

FIXTURE_TEARDOWN_PARENT(toggle)
{
	restore(_metadata, self->was_on);
}

TEST_F_TIMEOUT(toggle, under_load, TIMEOUT)
{
	unsigned long long pushed;
	struct load load;
	int i;

	ASSERT_EQ(0, set_feature(false));
	ASSERT_TRUE(load_usual(&load));
	for (i = 0; i < TOGGLES; i++) {
		pushed = sum_stats().pushed;
		ASSERT_EQ(0, set_feature(true));
		/* A drain of nothing would prove nothing. */
		ASSERT_TRUE(poll_until(sum_stats().pushed > pushed))
			TH_LOG("nothing is pushed in round %d", i);
		ASSERT_EQ(0, set_feature(false));
		ASSERT_EQ(0, sum_stats().linked)
			TH_LOG("linked after disable in round %d", i);
	}
	expect_finished(_metadata, &load);
	/* Nor did any of the tasks that ended come back. */
	EXPECT_EQ(0, sum_stats().linked);
}

static void spinner(struct load *load, int policy)
{
	const struct sched_param param = { };

	if (policy != SCHED_OTHER && sched_setscheduler(0, policy, &param))
		_exit(1);
	atomic_fetch_add(&load->shared->rounds, 1);
	while (!load_stopped(load))
		;
}

/*
 * A drain seldom finds a task of the usual load: it waits for less than a grace
 * period. A SCHED_IDLE task next to one that spins waits for 300 times as long
 * as it runs.
 */
TEST_F_TIMEOUT(toggle, drains_what_waits_long, TIMEOUT)
{
	const int cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct load load;
	int i;

	ASSERT_EQ(0, set_feature(true));
	ASSERT_TRUE(load_init(&load));
	for (i = 0; i < 2 * cpus; i++) {
		ASSERT_LT(0, load_add(&load, spinner,
				      i < cpus ? SCHED_OTHER : SCHED_IDLE));
	}
	load_start(&load);
	/* All have their policy, and most of the idle ones wait. */
	ASSERT_TRUE(poll_until(atomic_load(&load.shared->rounds) == 2 * cpus &&
			       sum_stats().linked > cpus / 2));
	ASSERT_EQ(0, set_feature(false));
	EXPECT_EQ(0, sum_stats().linked);
	expect_finished(_metadata, &load);
}

TEST_HARNESS_MAIN
