// SPDX-License-Identifier: GPL-2.0

//! The overloaded CPUs of an LLC.
//!
//! C header: [`kernel/sched/llc/export.h`](srctree/kernel/sched/llc/export.h)

use core::ptr;

use kernel::{
    bindings,
    cpu::nr_cpu_ids,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        barrier::{
            smp_mb,
            Full, //
        }, //
    },
    types::Opaque, //
};

use crate::overload::{
    self,
    Verdict,
    Word, //
};

/// The words of a `cpumask`, as far as there are CPUs.
///
/// # Safety
///
/// `mask` is the first word of a bitmap of `nr_cpu_ids` bits that is valid for `'a`, and is
/// written by atomic operations only.
#[inline]
unsafe fn words<'a>(mask: *const usize) -> impl Iterator<Item = usize> + 'a {
    let nr = nr_cpu_ids().div_ceil(usize::BITS) as usize;
    // SAFETY: The word is inside the bitmap, which is valid for `'a`.
    (0..nr).map(move |i| unsafe { Atomic::from_ptr(mask.add(i).cast_mut()) }.load(Relaxed))
}

/// The overloaded CPUs of an LLC.
///
/// # Invariants
///
/// - `cpus` has `nr_cpu_ids` bits. That of a CPU is written with the lock of its runqueue held.
/// - While nobody writes, `any` is 0 exactly if no bit is set.
#[repr(transparent)]
struct Filter(Opaque<bindings::sis_filter>);

impl Filter {
    /// Makes a reference to the filter of an LLC.
    ///
    /// # Safety
    ///
    /// `filter` is part of a `struct sched_domain_shared` that stays valid for `'a`.
    #[inline]
    unsafe fn from_raw<'a>(filter: *mut bindings::sis_filter) -> &'a Self {
        // SAFETY: The filter is valid for `'a`.
        // CAST: `Self` is a transparent wrapper.
        unsafe { &*filter.cast() }
    }

    #[inline]
    fn cpus(&self) -> *mut usize {
        // SAFETY: The field is inside of the object.
        unsafe { (&raw mut (*self.0.get()).cpus).cast() }
    }

    /// Whether a bit is set, as a hint; C reads it with `READ_ONCE()`.
    #[inline]
    fn any(&self) -> &Atomic<usize> {
        // SAFETY: The field is valid for as long as `self` is, and all accesses are atomic.
        unsafe { Atomic::from_ptr(&raw mut (*self.0.get()).any) }
    }

    #[inline]
    fn words(&self) -> impl Iterator<Item = usize> + '_ {
        // SAFETY: By the type invariants; all writes are those of `set()`.
        unsafe { words(self.cpus()) }
    }

    /// Enters or removes a CPU. Both sides write one of `cpus` and `any`, and then read the other,
    /// with a full barrier in between: at least the later one sees what both wrote.
    fn set(&self, cpu: u32, overloaded: bool) {
        // SAFETY: `cpu` is a possible CPU, and so inside the bitmap.
        unsafe {
            match overloaded {
                true => bindings::set_bit(cpu as usize, self.cpus()),
                false => bindings::clear_bit(cpu as usize, self.cpus()),
            }
        }
        smp_mb(Full);
        let any = |is: bool| self.any().store(is.into(), Relaxed);
        if overloaded {
            if self.any().load(Relaxed) == 0 {
                any(true);
            }
        } else if self.words().all(|word| word == 0) {
            any(false);
            smp_mb(Full);
            if self.words().any(|word| word != 0) {
                any(true);
            }
        }
    }
}

/// See [`overload::overloaded`].
///
/// # Safety
///
/// None is needed; it is `unsafe` as all declarations of C functions are.
#[export]
pub(crate) unsafe extern "C" fn sis_filter_overloaded(
    running: u32,
    queued: u32,
    runnable: u32,
    idle: u32,
) -> bool {
    overload::overloaded(running, queued, runnable, idle)
}

/// Enters `cpu` into `filter` or removes it.
///
/// # Safety
///
/// `filter` is that of the LLC of `cpu`, whose runqueue is locked.
#[export]
pub(crate) unsafe extern "C" fn sis_filter_set(
    filter: *mut bindings::sis_filter,
    cpu: u32,
    overloaded: bool,
) {
    // SAFETY: The filter stays valid during the call by the safety requirements.
    unsafe { Filter::from_raw(filter) }.set(cpu, overloaded);
}

/// Writes to `cpus` the CPUs of `span` that `allowed` has and that are not overloaded, and says
/// whether to search them.
///
/// # Safety
///
/// - `filter` is valid for the duration of the call.
/// - `span` and `allowed` are valid for reading, and `cpus` for writing.
/// - `stats` and `cpus` are those of this CPU, and interrupts are off.
#[export]
pub(crate) unsafe extern "C" fn sis_filter_narrow(
    filter: *mut bindings::sis_filter,
    span: *const bindings::cpumask,
    allowed: *const bindings::cpumask,
    cpus: *mut bindings::cpumask,
    stats: *mut bindings::sis_filter_stats,
) -> bindings::sis_filter_verdict {
    // SAFETY: The three are valid for the duration of the call. The domain's span does not change,
    // and `allowed` does not while the task is being woken.
    let (filter, span, allowed) = unsafe {
        (
            Filter::from_raw(filter),
            words(span.cast()),
            words(allowed.cast()),
        )
    };
    let words = filter.words().zip(span).zip(allowed);
    let words = words.map(|((overloaded, span), allowed)| Word {
        span,
        allowed,
        overloaded,
    });
    let mut out = cpus.cast::<usize>();
    let counts = overload::narrow(words, |word| {
        // SAFETY: `out` goes through the words of `cpus` as the others do, and stays inside it.
        unsafe {
            ptr::write(out, word);
            out = out.add(1);
        }
    });

    let (verdict, stat) = match counts.verdict() {
        Verdict::Search => (bindings::sis_filter_verdict_SIS_FILTER_SEARCH, None),
        Verdict::Few => (
            bindings::sis_filter_verdict_SIS_FILTER_FEW,
            Some(bindings::sis_filter_stat_SIS_FILTER_FEW_LEFT),
        ),
        Verdict::Nothing => (
            bindings::sis_filter_verdict_SIS_FILTER_NOTHING,
            Some(bindings::sis_filter_stat_SIS_FILTER_NONE_LEFT),
        ),
    };
    // SAFETY: The counters are valid, and only this CPU writes them.
    let stats = unsafe { &mut (*stats).nr };
    let mut count = |stat: bindings::sis_filter_stat, change: u32| {
        if let Some(nr) = stats.get_mut(stat as usize) {
            *nr = nr.wrapping_add(change.into());
        }
    };
    count(bindings::sis_filter_stat_SIS_FILTER_FILTERED, 1);
    count(
        bindings::sis_filter_stat_SIS_FILTER_CANDIDATES,
        counts.candidates,
    );
    count(bindings::sis_filter_stat_SIS_FILTER_LEFT, counts.left);
    if let Some(stat) = stat {
        count(stat, 1);
    }
    verdict
}
