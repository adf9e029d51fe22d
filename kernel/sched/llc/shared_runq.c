// SPDX-License-Identifier: GPL-2.0
/*
 * Documentation/scheduler/sched-shared-runq.rst
 *
 * The C side of the shared runqueue: what is decided from the fields of a
 * runqueue, and the memory that Rust works on.
 */
#include "../sched.h"

DEFINE_STATIC_KEY_FALSE(shared_runq_live);

static DEFINE_PER_CPU_SHARED_ALIGNED(struct shared_runq_shard, shards);
static DEFINE_PER_CPU_SHARED_ALIGNED(struct shared_runq_llc, llcs);

struct shared_runq_shard *shared_runq_shard_of(unsigned int cpu)
{
	return per_cpu_ptr(&shards, cpu);
}

struct shared_runq_llc *shared_runq_llc_of(unsigned int cpu)
{
	return per_cpu_ptr(&llcs, cpu);
}

/* The first CPU of @llc above @cpu, or at least nr_cpu_ids. */
unsigned int shared_runq_next_cpu(int cpu, const struct cpumask *llc)
{
	return cpumask_next(cpu, llc);
}

/* The CPU that stands for the core of @cpu inside @llc: its first one. */
unsigned int shared_runq_core_of(unsigned int cpu, const struct cpumask *llc)
{
	return cpumask_first_and(cpu_smt_mask(cpu), llc);
}

/* Runs before the first domains are built: shards are permanent from here. */
static int __init shared_runq_init(void)
{
	struct shared_runq_shard *shard;
	int cpu;

	for_each_possible_cpu(cpu) {
		shard = shared_runq_shard_of(cpu);
		raw_spin_lock_init(&shard->lock);
		INIT_LIST_HEAD(&shard->tasks);
		shard->llc = shared_runq_llc_of(cpu);
		shard->next = shard;
	}
	/* Nothing is pushed before there are domains. */
	if (sched_feat(SHARED_RUNQ))
		static_branch_enable(&shared_runq_live);
	return 0;
}
early_initcall(shared_runq_init);

/*
 * Is @p worth a place on a shard? It waits, another CPU may run it, and its own
 * CPU has something else to do first.
 *
 * A throttled task is not on_rq here. Under core scheduling a CPU never gets to
 * newidle, so nobody would look. A CPU that is on the way off loses its tasks
 * anyway; see shared_runq_offline().
 */
static bool may_push(struct rq *rq, struct task_struct *p)
{
	unsigned int delayed = rq->cfs.h_nr_queued - rq->cfs.h_nr_runnable;

	return p->se.on_rq && !p->se.sched_delayed &&
	       rq->cfs.curr != &p->se &&
	       rq->nr_running - delayed > 1 &&
	       p->nr_cpus_allowed > 1 && !is_migration_disabled(p) &&
	       !kthread_is_per_cpu(p) && !task_is_blocked(p) &&
	       !sched_core_enabled(rq) && cpu_active(cpu_of(rq));
}

void __shared_runq_enqueue(struct rq *rq, struct task_struct *p)
{
	lockdep_assert_rq_held(rq);

	/* No home: the CPU has no LLC domain. */
	if (!rq->shared_runq || !may_push(rq, p))
		return;

	/* It was unlinked when it stopped waiting. */
	WARN_ON_ONCE(p->shared_runq.shard);
	shared_runq_push(rq->shared_runq, &p->shared_runq);
}

/*
 * Takes the tasks of @rq off their shards. Worst case: one short shard lock
 * section for each task queued on @rq; only domain rebuilds and hotplug pay it.
 */
static void unlink_all(struct rq *rq)
{
	struct task_struct *p;

	lockdep_assert_rq_held(rq);

	list_for_each_entry(p, &rq->cfs_tasks, se.group_node)
		shared_runq_dequeue(p);
}

/* @cpu belongs to @llc from now on, or to none. Runs with the domains mutex. */
void shared_runq_attach(int cpu, struct sched_domain *llc)
{
	struct shared_runq_shard *home = NULL;
	struct rq *rq = cpu_rq(cpu);

	if (llc)
		home = shared_runq_place(cpu, sched_domain_span(llc));

	guard(rq_lock_irqsave)(rq);
	unlink_all(rq);
	rq->shared_runq = home;
}

/*
 * @rq goes offline, for a rebuild of domains or since its CPU is on the way off.
 * In that case nothing has been pushed since a grace period ago, when the CPU
 * became inactive, so that nothing is linked from here on.
 */
void shared_runq_offline(struct rq *rq)
{
	if (!cpu_active(cpu_of(rq)))
		unlink_all(rq);
}

/*
 * Runs before SHARED_RUNQ is enabled and after it is disabled, with CPU hotplug
 * held off. The two gates and the grace periods make sure that
 *
 *  - no task is pushed while the gate of the unlink hooks is closed, and
 *  - none is pushed after the drain, so that the drain leaves nothing.
 *
 * All hooks run with interrupts off, that is inside an RCU reader.
 */
void shared_runq_toggle(bool enable)
{
	int cpu;

	if (enable) {
		static_branch_enable_cpuslocked(&shared_runq_live);
		synchronize_rcu();
		return;
	}

	synchronize_rcu();
	for_each_possible_cpu(cpu) {
		while (shared_runq_drain(shared_runq_shard_of(cpu)))
			cond_resched();
	}
	static_branch_disable_cpuslocked(&shared_runq_live);
}
