/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Documentation/scheduler/sched-shared-runq.rst
 *
 * The hooks that the scheduler calls. Each is an inline gate, a NOP while the
 * feature is off, and nothing at all without CONFIG_SCHED_SHARED_RUNQ.
 */
#ifndef _KERNEL_SCHED_LLC_H
#define _KERNEL_SCHED_LLC_H

#ifdef CONFIG_SCHED_SHARED_RUNQ

#include "export.h"

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
void shared_runq_debugfs(struct dentry *parent);

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
static inline void shared_runq_debugfs(struct dentry *parent) { }

#endif /* !CONFIG_SCHED_SHARED_RUNQ */

#endif /* _KERNEL_SCHED_LLC_H */
