/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Documentation/scheduler/sched-shared-runq.rst
 * Documentation/scheduler/sched-sis-filter.rst
 *
 * The hooks that the scheduler calls. Each is an inline gate, a NOP while its
 * feature is off, and nothing at all without the option of the feature.
 */
#ifndef _KERNEL_SCHED_LLC_H
#define _KERNEL_SCHED_LLC_H

#include "export.h"

#ifdef CONFIG_SCHED_SHARED_RUNQ

/*
 * True whenever a task may be linked: switched on before SHARED_RUNQ is, and
 * off after it is and all shards are drained. Gates all that unlinks.
 */
DECLARE_STATIC_KEY_FALSE(shared_runq_live);

void __shared_runq_enqueue(struct rq *rq, struct task_struct *p);
int __shared_runq_newidle(struct rq *this_rq);
enum shared_runq_stat shared_runq_can_pull(struct task_struct *p,
					   struct rq *src, struct rq *dst);
void shared_runq_attach(int cpu, struct sched_domain *llc);
void shared_runq_offline(struct rq *rq);
void shared_runq_toggle(bool enable);

static inline void shared_runq_init_task(struct task_struct *p)
{
	INIT_LIST_HEAD(&p->shared_runq.list);
	p->shared_runq.shard = NULL;
}

/* @p waits on @rq now. Runs under the lock of @rq. */
static __always_inline void
shared_runq_enqueue(struct rq *rq, struct task_struct *p)
{
	if (sched_feat(SHARED_RUNQ))
		__shared_runq_enqueue(rq, p);
}

/* @p stops waiting: it leaves its runqueue or runs. Runs under the rq lock. */
static __always_inline void shared_runq_dequeue(struct task_struct *p)
{
	/*
	 * Only a drain can clear the pointer meanwhile, and then there is
	 * nothing left to do; only the holder of the rq lock sets it.
	 */
	if (static_branch_unlikely(&shared_runq_live) &&
	    READ_ONCE(p->shared_runq.shard))
		shared_runq_unlink(&p->shared_runq);
}

/* No task is linked that is dead or of another class. */
static __always_inline void shared_runq_assert_unlinked(struct task_struct *p)
{
	if (static_branch_unlikely(&shared_runq_live))
		WARN_ON_ONCE(READ_ONCE(p->shared_runq.shard));
}

/*
 * @this_rq is about to go idle. Returns as sched_balance_newidle() does; unless
 * it returns 0, there is no need to search further.
 */
static __always_inline int shared_runq_newidle(struct rq *this_rq)
{
	if (sched_feat(SHARED_RUNQ))
		return __shared_runq_newidle(this_rq);
	return 0;
}

#else /* !CONFIG_SCHED_SHARED_RUNQ: */

static inline void shared_runq_init_task(struct task_struct *p) { }
static inline void shared_runq_enqueue(struct rq *rq, struct task_struct *p) { }
static inline void shared_runq_dequeue(struct task_struct *p) { }
static inline void shared_runq_assert_unlinked(struct task_struct *p) { }
static inline int shared_runq_newidle(struct rq *this_rq) { return 0; }
static inline void shared_runq_attach(int cpu, struct sched_domain *llc) { }
static inline void shared_runq_offline(struct rq *rq) { }

#endif /* !CONFIG_SCHED_SHARED_RUNQ */

#ifdef CONFIG_SCHED_SIS_FILTER

/* Gates the updates: switched on before SIS_FILTER is, and off after it is. */
DECLARE_STATIC_KEY_FALSE(sis_filter_live);

/*
 * The counters of the filter, of searches without an idle core while SIS_FILTER
 * is on. debugfs shows them by their names in lower case.
 *
 * SEARCHES of select_idle_cpu(), and FILTERED ones, while a CPU of the LLC was
 * overloaded; in those, CANDIDATES that the task may use, and LEFT of them after
 * the filter; searches with NONE_LEFT or else only a FEW_LEFT; CPUs that were
 * VISITED in all searches, and how many searches FOUND one; CHANGES of a CPU to
 * or from overloaded.
 */
enum sis_filter_stat {
	SIS_FILTER_SEARCHES,
	SIS_FILTER_FILTERED,
	SIS_FILTER_CANDIDATES,
	SIS_FILTER_LEFT,
	SIS_FILTER_NONE_LEFT,
	SIS_FILTER_FEW_LEFT,
	SIS_FILTER_VISITED,
	SIS_FILTER_FOUND,
	SIS_FILTER_CHANGES,
	SIS_FILTER_NR_STATS,
};

/* Of one CPU, by enum sis_filter_stat; written with interrupts off. */
struct sis_filter_stats {
	u64 nr[SIS_FILTER_NR_STATS];
};

DECLARE_PER_CPU_SHARED_ALIGNED(struct sis_filter_stats, sis_filter_stats);

void __sis_filter_update(struct rq *rq);
void __sis_filter_idle(struct rq *rq);
bool __sis_filter_search(struct cpumask *cpus, struct sched_domain *llc,
			 const struct cpumask *allowed);
void sis_filter_attach(int cpu, struct sched_domain_shared *shared);
void sis_filter_toggle(bool enable);

/* What an allocation of sched_domain_shared needs behind its end. */
static inline size_t sis_filter_size(void)
{
	return cpumask_size();
}

/* The tasks of @rq have changed. Runs under the lock of @rq. */
static __always_inline void sis_filter_update(struct rq *rq)
{
	if (static_branch_unlikely(&sis_filter_live))
		__sis_filter_update(rq);
}

/* @rq goes idle. Runs under the lock of @rq. */
static __always_inline void sis_filter_idle(struct rq *rq)
{
	if (static_branch_unlikely(&sis_filter_live) && rq->sis_overloaded)
		__sis_filter_idle(rq);
}

/*
 * Finds out in which @cpus of @llc to look for an idle one for @p; false if in
 * none. Runs with the pi_lock of @p, in place of cpumask_and(). A known idle core
 * is worth a full search, which ends when it is found.
 */
static __always_inline bool
sis_filter_search(struct cpumask *cpus, struct sched_domain *llc,
		  struct task_struct *p, bool has_idle_core)
{
	if (sched_feat(SIS_FILTER) && !has_idle_core) {
		__this_cpu_inc(sis_filter_stats.nr[SIS_FILTER_SEARCHES]);
		if (READ_ONCE(llc->shared->filter.any))
			return __sis_filter_search(cpus, llc, p->cpus_ptr);
	}
	return cpumask_and(cpus, sched_domain_span(llc), p->cpus_ptr);
}

/* A search looked at a CPU. */
static __always_inline void sis_filter_visit(bool found)
{
	if (sched_feat(SIS_FILTER)) {
		__this_cpu_inc(sis_filter_stats.nr[SIS_FILTER_VISITED]);
		if (found)
			__this_cpu_inc(sis_filter_stats.nr[SIS_FILTER_FOUND]);
	}
}

#else /* !CONFIG_SCHED_SIS_FILTER: */

static inline size_t sis_filter_size(void) { return 0; }
static inline void sis_filter_update(struct rq *rq) { }
static inline void sis_filter_idle(struct rq *rq) { }
static inline void sis_filter_visit(bool found) { }
static inline void
sis_filter_attach(int cpu, struct sched_domain_shared *shared) { }

static __always_inline bool
sis_filter_search(struct cpumask *cpus, struct sched_domain *llc,
		  struct task_struct *p, bool has_idle_core)
{
	return cpumask_and(cpus, sched_domain_span(llc), p->cpus_ptr);
}

#endif /* !CONFIG_SCHED_SIS_FILTER */

#ifdef CONFIG_SCHED_LLC
void sched_llc_debugfs(struct dentry *parent);
#else
static inline void sched_llc_debugfs(struct dentry *parent) { }
#endif

#endif /* _KERNEL_SCHED_LLC_H */
