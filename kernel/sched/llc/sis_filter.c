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
	u64 *changes;

	lockdep_assert_rq_held(rq);

	/* Without a filter, it never is. */
	if (rq->sis_overloaded == overloaded)
		return;

	rq->sis_overloaded = overloaded;
	sis_filter_set(rq->sis_filter, cpu_of(rq), overloaded);

	changes = &per_cpu(sis_filter_stats, cpu_of(rq)).nr[SIS_FILTER_CHANGES];
	WRITE_ONCE(*changes, *changes + 1);
}

/*
 * A CPU that is idle is not entered, whatever is queued on it: what is, may leave
 * before it is picked, and then nothing would remove the CPU again.
 */
void __sis_filter_update(struct rq *rq)
{
	/* None: the CPU has no LLC domain. */
	if (rq->sis_filter && !is_idle_task(rq->donor))
		set_overloaded(rq, sis_filter_overloaded(rq->nr_running,
							 rq->cfs.h_nr_queued,
							 rq->cfs.h_nr_runnable,
							 rq->cfs.h_nr_idle));
}

void __sis_filter_idle(struct rq *rq)
{
	set_overloaded(rq, false);
}

static void count(enum sis_filter_stat stat, unsigned int change)
{
	__this_cpu_add(sis_filter_stats.nr[stat], change);
}

bool __sis_filter_search(struct cpumask *cpus, struct sched_domain *llc,
			 const struct cpumask *allowed)
{
	struct sis_filter_counts counts;

	counts = sis_filter_narrow(&llc->shared->filter, sched_domain_span(llc),
				   allowed, cpus);
	count(SIS_FILTER_FILTERED, 1);
	count(SIS_FILTER_CANDIDATES, counts.candidates);
	count(SIS_FILTER_LEFT, counts.left);
	if (!counts.left)
		count(SIS_FILTER_NONE_LEFT, 1);
	else if (counts.few)
		count(SIS_FILTER_FEW_LEFT, 1);
	return counts.left && !counts.few;
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
	/* After a disable, no search counts any more. */
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

/* Before there are domains, there is no filter. */
static int __init sis_filter_init(void)
{
	if (sched_feat(SIS_FILTER))
		static_branch_enable(&sis_filter_live);
	return 0;
}
early_initcall(sis_filter_init);
