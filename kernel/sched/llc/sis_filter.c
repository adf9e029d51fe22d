// SPDX-License-Identifier: GPL-2.0
/*
 * Documentation/scheduler/sched-sis-filter.rst
 *
 * The C side of the filter of overloaded CPUs: what a runqueue knows of itself,
 * and when it says so to the LLC.
 */
#include "../sched.h"

DEFINE_STATIC_KEY_FALSE(sis_filter_live);

DEFINE_PER_CPU_SHARED_ALIGNED(struct sis_filter_stats, sis_filter_stats);

static void set_overloaded(struct rq *rq, bool overloaded)
{
	u64 *changes = &per_cpu(sis_filter_stats, cpu_of(rq)).nr[SIS_FILTER_CHANGES];

	if (rq->sis_overloaded == overloaded)
		return;

	rq->sis_overloaded = overloaded;
	sis_filter_set(rq->sis_filter, cpu_of(rq), overloaded);
	WRITE_ONCE(*changes, *changes + 1);
}

void __sis_filter_update(struct rq *rq)
{
	lockdep_assert_rq_held(rq);

	/* None: the CPU has no LLC domain. */
	if (rq->sis_filter)
		set_overloaded(rq, sis_filter_overloaded(rq->nr_running,
							 rq->cfs.h_nr_queued,
							 rq->cfs.h_nr_runnable,
							 rq->cfs.h_nr_idle));
}

/*
 * @cpu belongs to the LLC of @shared from now on, or to none. Runs with the
 * domains mutex, inside an RCU reader that keeps the filter of the LLC that it
 * leaves. In the new one it is entered by its next update.
 */
void sis_filter_attach(int cpu, struct sched_domain_shared *shared)
{
	struct rq *rq = cpu_rq(cpu);

	guard(rq_lock_irqsave)(rq);
	set_overloaded(rq, false);
	rq->sis_filter = shared ? &shared->filter : NULL;
}

/*
 * Runs before SIS_FILTER is enabled and after it is disabled, with CPU hotplug
 * held off. A runqueue updates itself while the gate is open, and is brought up
 * to date here, under its lock, after that has changed: what went idle before
 * the gate was open is seen as idle, and no bit is set behind a closed one.
 */
void sis_filter_toggle(bool enable)
{
	struct rq *rq;
	int cpu;

	if (enable)
		static_branch_enable_cpuslocked(&sis_filter_live);
	else
		static_branch_disable_cpuslocked(&sis_filter_live);
	synchronize_rcu();

	for_each_possible_cpu(cpu) {
		rq = cpu_rq(cpu);
		guard(rq_lock_irqsave)(rq);
		if (enable)
			__sis_filter_update(rq);
		else
			set_overloaded(rq, false);
	}
}
