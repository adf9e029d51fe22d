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

TEST_HARNESS_MAIN
