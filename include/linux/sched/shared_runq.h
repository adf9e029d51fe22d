/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _LINUX_SCHED_SHARED_RUNQ_H
#define _LINUX_SCHED_SHARED_RUNQ_H

#include <linux/types.h>

struct shared_runq_shard;

/**
 * struct shared_runq_node - a task's place in a shared runqueue
 * @list: links the task in @shard; points at itself when it is in no shard
 * @shard: the shard that the task is linked in, or NULL
 *
 * Both members change under the lock of the shard only, and are set with the
 * lock of the task's runqueue held as well. See kernel/sched/llc/sched_llc.rs.
 */
struct shared_runq_node {
	struct list_head		list;
	struct shared_runq_shard	*shard;
};

#endif /* _LINUX_SCHED_SHARED_RUNQ_H */
