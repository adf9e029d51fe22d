/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _LINUX_SCHED_SIS_FILTER_H
#define _LINUX_SCHED_SIS_FILTER_H

#include <linux/cache.h>

/**
 * struct sis_filter - the overloaded CPUs of an LLC
 * @any: 1 if a CPU is in @cpus; may be 1 if none is
 * @cpus: a bit for each possible CPU, of which those of the LLC are used
 *
 * Part of &struct sched_domain_shared, from which it keeps a cache line's
 * distance: its writers are other CPUs at other times. The bit of a CPU is
 * written atomically and under the lock of its runqueue. Readers take no lock.
 */
struct sis_filter {
	unsigned long	any;
	unsigned long	cpus[];
} ____cacheline_aligned_in_smp;

#endif /* _LINUX_SCHED_SIS_FILTER_H */
