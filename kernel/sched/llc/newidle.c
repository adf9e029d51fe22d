// SPDX-License-Identifier: GPL-2.0
/*
 * Documentation/scheduler/sched-shared-runq.rst
 *
 * Pulling from a shared runqueue when a CPU is about to go idle.
 */
#include "../sched.h"

/*
 * Tries to lock the runqueue that @node waits on for @this_rq. Returns
 * SHARED_RUNQ_PULLED with that lock held, else the reason why not, without.
 *
 * Runs under the lock of the shard that @node is linked in: the task cannot
 * leave its runqueue without being unlinked first, so task_rq() is stable, and
 * so is the task. Shard locks nest inside runqueue locks; a trylock is the only
 * way to take these two in the other order.
 */
enum shared_runq_stat shared_runq_try_source(struct shared_runq_node *node,
					     struct rq *this_rq)
{
	struct task_struct *p = container_of(node, struct task_struct,
					     shared_runq);
	struct rq *src = task_rq(p);
	enum shared_runq_stat verdict;

	/* Somebody queued it here since the lock was dropped. */
	if (src == this_rq)
		return SHARED_RUNQ_REFUSED_OWN;

	/* Cheap and checked again under the lock. */
	if (!cpumask_test_cpu(cpu_of(this_rq), p->cpus_ptr))
		return SHARED_RUNQ_REFUSED_AFFINITY;
	if (task_on_cpu(src, p))
		return SHARED_RUNQ_REFUSED_RUNNING;

	/* A busy lock often means that its CPU is about to pick. */
	if (!raw_spin_rq_trylock(src))
		return SHARED_RUNQ_REFUSED_RQ_LOCK;

	verdict = shared_runq_can_pull(p, src, this_rq);
	if (verdict != SHARED_RUNQ_PULLED)
		raw_spin_rq_unlock(src);
	return verdict;
}

/* May this CPU pull inside its LLC at all? As the load balancer asks. */
static bool may_pull(struct rq *rq)
{
	struct sched_domain *llc;

	llc = rcu_dereference_all(per_cpu(sd_llc, cpu_of(rq)));
	if (!llc || !(llc->flags & SD_BALANCE_NEWIDLE))
		return false;

	/* Under EAS, placement at wakeup decides until a CPU is overutilized. */
	return !sched_energy_enabled() || READ_ONCE(rq->rd->overutilized) ||
	       !rcu_dereference_all(rq->rd->pd);
}

/* Moves the task of @node to @cpu, and releases the lock of its runqueue. */
static struct task_struct *detach(struct shared_runq_node *node, int cpu)
{
	struct task_struct *p = container_of(node, struct task_struct,
					     shared_runq);
	struct rq *src = task_rq(p);
	struct rq_flags rf;

	rq_pin_lock(src, &rf);
	update_rq_clock(src);
	deactivate_task(src, p, DEQUEUE_NOCLOCK);
	set_task_cpu(p, cpu);
	sis_filter_update(src);
	rq_unlock(src, &rf);
	return p;
}

/*
 * Runs where sched_balance_newidle() may drop the lock of @this_rq. Never holds
 * two runqueue locks, and from the attach on keeps that of @this_rq, so that
 * the task cannot be stolen before the return value says that it is there.
 */
int __shared_runq_newidle(struct rq *this_rq)
{
	struct shared_runq_shard *home = this_rq->shared_runq;
	struct shared_runq_node *node;
	struct task_struct *p = NULL;
	struct rq_flags rf;

	lockdep_assert_rq_held(this_rq);

	if (!home || !atomic_read(&READ_ONCE(home->llc)->nr_busy) ||
	    !may_pull(this_rq))
		return 0;

	rq_modified_begin(this_rq, &fair_sched_class);
	raw_spin_rq_unlock(this_rq);

	node = shared_runq_pull(home, this_rq);
	if (node)
		p = detach(node, cpu_of(this_rq));

	/*
	 * Others may have had the lock meanwhile and left the clock stale. The
	 * balancer, which goes on if nothing is pulled, relies on it as well.
	 */
	rq_lock(this_rq, &rf);
	update_rq_clock(this_rq);
	if (p)
		attach_task(this_rq, p);
	rq_unpin_lock(this_rq, &rf);

	/* A task of a higher class came meanwhile: restart the pick. */
	if (rq_modified_above(this_rq, &fair_sched_class))
		return -1;

	/* Pulled, or woken here meanwhile: in both cases, do not go idle. */
	return this_rq->cfs.h_nr_queued > 0;
}
