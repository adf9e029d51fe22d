/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Documentation/scheduler/sched-shared-runq.rst
 * Documentation/scheduler/sched-sis-filter.rst
 *
 * What C and Rust know of each other. bindgen reads this file; it must not
 * include kernel/sched/sched.h.
 */
#ifndef _KERNEL_SCHED_LLC_EXPORT_H
#define _KERNEL_SCHED_LLC_EXPORT_H

#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/sched/shared_runq.h>
#include <linux/sched/sis_filter.h>

struct rq;

/*
 * The counters of a shard. Each counts events since boot, and is written with
 * the lock of the shard held. debugfs shows them by their names in lower case.
 *
 * SHARED_RUNQ_REFUSED_* are also the verdicts on a task that a CPU wants to
 * pull: the first reason that holds against it, or else SHARED_RUNQ_PULLED.
 */
enum shared_runq_stat {
	SHARED_RUNQ_PUSHED,
	SHARED_RUNQ_PULLED,
	SHARED_RUNQ_SCANNED,
	SHARED_RUNQ_SCAN_LIMIT,
	SHARED_RUNQ_LOCK_CONTENDED,
	SHARED_RUNQ_REFUSED_OWN,
	SHARED_RUNQ_REFUSED_AFFINITY,
	SHARED_RUNQ_REFUSED_MIGRATION_DISABLED,
	SHARED_RUNQ_REFUSED_RUNNING,
	SHARED_RUNQ_REFUSED_RQ_LOCK,
	SHARED_RUNQ_REFUSED_ROOT_DOMAIN,
	SHARED_RUNQ_REFUSED_ALONE,
	SHARED_RUNQ_REFUSED_THROTTLED,
	SHARED_RUNQ_REFUSED_BLOCKED,
	SHARED_RUNQ_REFUSED_CAPACITY,
	SHARED_RUNQ_REFUSED_COOKIE,
	SHARED_RUNQ_NR_STATS,
};

/**
 * struct shared_runq_llc - what the shards of one LLC have in common
 * @nr_busy: how many of the shards have a task linked
 * @nr_shards: how many shards the LLC has
 *
 * One for each possible CPU, never freed; an LLC uses that of its first CPU.
 */
struct shared_runq_llc {
	atomic_t	nr_busy;
	unsigned int	nr_shards;
};

/**
 * struct shared_runq_shard - a FIFO of runnable tasks that wait for a CPU
 * @lock: protects all of the shard; taken with interrupts disabled, inside the
 *	lock of a runqueue or alone
 * @nr: number of linked tasks; read without the lock as a hint
 * @tasks: the linked tasks, by &struct shared_runq_node.list
 * @llc: the LLC that the shard belongs to, never NULL
 * @next: the next shard of the LLC, in a ring; never NULL, read without the lock
 * @stats: indexed by &enum shared_runq_stat; read without the lock
 *
 * One for each possible CPU, never freed. A shard of an LLC is that of the
 * first CPU among those that it serves.
 */
struct shared_runq_shard {
	raw_spinlock_t			lock;
	unsigned int			nr;
	struct list_head		tasks;
	struct shared_runq_llc		*llc;
	struct shared_runq_shard	*next;
	u64				stats[SHARED_RUNQ_NR_STATS];
};

/* Rust, called by C. */
struct shared_runq_shard *shared_runq_place(unsigned int cpu,
					    const struct cpumask *llc);
void shared_runq_push(struct shared_runq_shard *shard,
		      struct shared_runq_node *node);
void shared_runq_unlink(struct shared_runq_node *node);
struct shared_runq_node *shared_runq_pull(struct shared_runq_shard *home,
					  struct rq *this_rq);
bool shared_runq_drain(struct shared_runq_shard *shard);

/* C, called by Rust. */
struct shared_runq_shard *shared_runq_shard_of(unsigned int cpu);
struct shared_runq_llc *shared_runq_llc_of(unsigned int cpu);
unsigned int shared_runq_next_cpu(int cpu, const struct cpumask *llc);
unsigned int shared_runq_core_of(unsigned int cpu, const struct cpumask *llc);
enum shared_runq_stat shared_runq_try_source(struct shared_runq_node *node,
					     struct rq *this_rq);

/**
 * struct sis_filter_counts - the CPUs of a search
 * @candidates: CPUs of the LLC that the task may use
 * @left: those of them that are not overloaded
 * @few: whether these are too few to look for an idle one
 */
struct sis_filter_counts {
	unsigned int	candidates;
	unsigned int	left;
	bool		few;
};

/* Rust, called by C. */
bool sis_filter_overloaded(unsigned int running, unsigned int queued,
			   unsigned int runnable, unsigned int idle);
void sis_filter_set(struct sis_filter *filter, unsigned int cpu,
		    bool overloaded);
struct sis_filter_counts sis_filter_narrow(struct sis_filter *filter,
					   const struct cpumask *span,
					   const struct cpumask *allowed,
					   struct cpumask *cpus);

#endif /* _KERNEL_SCHED_LLC_EXPORT_H */
