// SPDX-License-Identifier: GPL-2.0
/*
 * Documentation/scheduler/sched-shared-runq.rst
 *
 * /sys/kernel/debug/sched/shared_runq: layout and counters.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "../sched.h"

static const char * const stat_names[] = {
	[SHARED_RUNQ_PUSHED] = "pushed",
	[SHARED_RUNQ_PULLED] = "pulled",
	[SHARED_RUNQ_SCANNED] = "scanned",
	[SHARED_RUNQ_SCAN_LIMIT] = "scan_limit",
	[SHARED_RUNQ_LOCK_CONTENDED] = "lock_contended",
	[SHARED_RUNQ_REFUSED_OWN] = "refused_own",
	[SHARED_RUNQ_REFUSED_AFFINITY] = "refused_affinity",
	[SHARED_RUNQ_REFUSED_MIGRATION_DISABLED] = "refused_migration_disabled",
	[SHARED_RUNQ_REFUSED_RUNNING] = "refused_running",
	[SHARED_RUNQ_REFUSED_RQ_LOCK] = "refused_rq_lock",
	[SHARED_RUNQ_REFUSED_ROOT_DOMAIN] = "refused_root_domain",
	[SHARED_RUNQ_REFUSED_ALONE] = "refused_alone",
	[SHARED_RUNQ_REFUSED_THROTTLED] = "refused_throttled",
	[SHARED_RUNQ_REFUSED_BLOCKED] = "refused_blocked",
	[SHARED_RUNQ_REFUSED_CAPACITY] = "refused_capacity",
	[SHARED_RUNQ_REFUSED_COOKIE] = "refused_cookie",
};

static_assert(ARRAY_SIZE(stat_names) == SHARED_RUNQ_NR_STATS);

/* Is @cpu the first CPU that its shard serves? */
static bool leads_shard(int cpu)
{
	return READ_ONCE(cpu_rq(cpu)->shared_runq) == shared_runq_shard_of(cpu);
}

static void show_shards(struct seq_file *m, const struct cpumask *llc)
{
	struct shared_runq_shard *shard;
	int leader, cpu, nr = 0;

	for_each_cpu(leader, llc) {
		if (!leads_shard(leader))
			continue;
		shard = shared_runq_shard_of(leader);
		seq_printf(m, "llc %u shard %d cpus", cpumask_first(llc), nr++);
		for_each_cpu(cpu, llc) {
			if (READ_ONCE(cpu_rq(cpu)->shared_runq) == shard)
				seq_printf(m, "%c%d", cpu == leader ? ' ' : ',',
					   cpu);
		}
		seq_putc(m, '\n');
	}
}

static void show_stats(struct seq_file *m, const struct cpumask *llc)
{
	u64 sum[SHARED_RUNQ_NR_STATS] = { };
	struct shared_runq_shard *shard;
	unsigned int linked = 0;
	int cpu, i;

	for_each_cpu(cpu, llc) {
		if (!leads_shard(cpu))
			continue;
		shard = shared_runq_shard_of(cpu);
		linked += READ_ONCE(shard->nr);
		for (i = 0; i < SHARED_RUNQ_NR_STATS; i++)
			sum[i] += READ_ONCE(shard->stats[i]);
	}

	seq_printf(m, "llc %u cpus %*pbl\n", cpumask_first(llc),
		   cpumask_pr_args(llc));
	for (i = 0; i < SHARED_RUNQ_NR_STATS; i++)
		seq_printf(m, " %s %llu\n", stat_names[i], sum[i]);
	seq_printf(m, " linked %u\n", linked);
}

/* Calls @show for each LLC, with hotplug and domain rebuilds held off. */
static void show_llcs(struct seq_file *m,
		      void (*show)(struct seq_file *, const struct cpumask *))
{
	struct sched_domain *llc;
	int cpu;

	cpus_read_lock();
	sched_domains_mutex_lock();
	scoped_guard(rcu) {
		for_each_online_cpu(cpu) {
			llc = rcu_dereference(per_cpu(sd_llc, cpu));
			if (llc && cpu == cpumask_first(sched_domain_span(llc)))
				show(m, sched_domain_span(llc));
		}
	}
	sched_domains_mutex_unlock();
	cpus_read_unlock();
}

static int layout_show(struct seq_file *m, void *v)
{
	show_llcs(m, show_shards);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(layout);

static int stats_show(struct seq_file *m, void *v)
{
	show_llcs(m, show_stats);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

void __init shared_runq_debugfs(struct dentry *parent)
{
	struct dentry *dir = debugfs_create_dir("shared_runq", parent);

	debugfs_create_file("layout", 0444, dir, NULL, &layout_fops);
	debugfs_create_file("stats", 0444, dir, NULL, &stats_fops);
}
