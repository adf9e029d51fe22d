// SPDX-License-Identifier: GPL-2.0
/*
 * Documentation/scheduler/sched-shared-runq.rst
 * Documentation/scheduler/sched-sis-filter.rst
 *
 * /sys/kernel/debug/sched/{shared_runq,sis_filter}: layout, mask and counters.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "../sched.h"

/* Calls @show for each LLC, with hotplug and domain rebuilds held off. */
static void show_llcs(struct seq_file *m,
		      void (*show)(struct seq_file *, struct sched_domain *))
{
	struct sched_domain *llc;
	int cpu;

	cpus_read_lock();
	sched_domains_mutex_lock();
	scoped_guard(rcu) {
		for_each_online_cpu(cpu) {
			llc = rcu_dereference(per_cpu(sd_llc, cpu));
			if (llc && cpu == cpumask_first(sched_domain_span(llc)))
				show(m, llc);
		}
	}
	sched_domains_mutex_unlock();
	cpus_read_unlock();
}

static void show_counters(struct seq_file *m, const struct cpumask *llc,
			  const char * const *names, const u64 *sum, int nr)
{
	int i;

	seq_printf(m, "llc %u cpus %*pbl\n", cpumask_first(llc),
		   cpumask_pr_args(llc));
	for (i = 0; i < nr; i++)
		seq_printf(m, " %s %llu\n", names[i], sum[i]);
}

#ifdef CONFIG_SCHED_SHARED_RUNQ

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

static void show_shards(struct seq_file *m, struct sched_domain *sd)
{
	const struct cpumask *llc = sched_domain_span(sd);
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

static void show_stats(struct seq_file *m, struct sched_domain *sd)
{
	const struct cpumask *llc = sched_domain_span(sd);
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

	show_counters(m, llc, stat_names, sum, SHARED_RUNQ_NR_STATS);
	seq_printf(m, " linked %u\n", linked);
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

static void __init shared_runq_debugfs(struct dentry *parent)
{
	struct dentry *dir = debugfs_create_dir("shared_runq", parent);

	debugfs_create_file("layout", 0444, dir, NULL, &layout_fops);
	debugfs_create_file("stats", 0444, dir, NULL, &stats_fops);
}

#else /* !CONFIG_SCHED_SHARED_RUNQ: */
static inline void shared_runq_debugfs(struct dentry *parent) { }
#endif /* !CONFIG_SCHED_SHARED_RUNQ */

#ifdef CONFIG_SCHED_SIS_FILTER

static const char * const sis_names[] = {
	[SIS_FILTER_SEARCHES] = "searches",
	[SIS_FILTER_FILTERED] = "filtered",
	[SIS_FILTER_CANDIDATES] = "candidates",
	[SIS_FILTER_LEFT] = "left",
	[SIS_FILTER_NONE_LEFT] = "none_left",
	[SIS_FILTER_FEW_LEFT] = "few_left",
	[SIS_FILTER_VISITED] = "visited",
	[SIS_FILTER_FOUND] = "found",
	[SIS_FILTER_CHANGES] = "changes",
};

static_assert(ARRAY_SIZE(sis_names) == SIS_FILTER_NR_STATS);

static void show_mask(struct seq_file *m, struct sched_domain *llc)
{
	const struct cpumask *span = sched_domain_span(llc);

	seq_printf(m, "llc %u cpus %*pbl overloaded %*pbl\n",
		   cpumask_first(span), cpumask_pr_args(span),
		   nr_cpumask_bits, llc->shared->filter.cpus);
}

static void show_sis_stats(struct seq_file *m, struct sched_domain *llc)
{
	const struct cpumask *span = sched_domain_span(llc);
	u64 sum[SIS_FILTER_NR_STATS] = { };
	int cpu, i;

	for_each_cpu(cpu, span) {
		for (i = 0; i < SIS_FILTER_NR_STATS; i++)
			sum[i] += READ_ONCE(per_cpu(sis_filter_stats, cpu).nr[i]);
	}
	show_counters(m, span, sis_names, sum, SIS_FILTER_NR_STATS);
}

static int mask_show(struct seq_file *m, void *v)
{
	show_llcs(m, show_mask);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(mask);

static int sis_stats_show(struct seq_file *m, void *v)
{
	show_llcs(m, show_sis_stats);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(sis_stats);

static void __init sis_filter_debugfs(struct dentry *parent)
{
	struct dentry *dir = debugfs_create_dir("sis_filter", parent);

	debugfs_create_file("mask", 0444, dir, NULL, &mask_fops);
	debugfs_create_file("stats", 0444, dir, NULL, &sis_stats_fops);
}

#else /* !CONFIG_SCHED_SIS_FILTER: */
static inline void sis_filter_debugfs(struct dentry *parent) { }
#endif /* !CONFIG_SCHED_SIS_FILTER */

void __init sched_llc_debugfs(struct dentry *parent)
{
	shared_runq_debugfs(parent);
	sis_filter_debugfs(parent);
}
