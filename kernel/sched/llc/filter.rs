// SPDX-License-Identifier: GPL-2.0

//! The overloaded CPUs of an LLC.
//!
//! C header: [`kernel/sched/llc/export.h`](srctree/kernel/sched/llc/export.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

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
    }, //
};

use crate::overload::{
    self,
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
/// - It is valid for `'a`, and its `cpus` has `nr_cpu_ids` bits. That of a CPU is written with the
///   lock of its runqueue held.
/// - While nobody writes, `any` is 1 if a bit is set. It may be 1 if none is.
#[derive(Clone, Copy)]
struct Filter<'a>(NonNull<bindings::sis_filter>, PhantomData<&'a ()>);

impl Filter<'_> {
    /// The filter of an LLC.
    ///
    /// # Safety
    ///
    /// `filter` is part of a `struct sched_domain_shared` that stays valid while this is used.
    #[inline]
    unsafe fn new(filter: *mut bindings::sis_filter) -> Self {
        // SAFETY: It is not `NULL`, since it is valid.
        // INVARIANT: By the safety requirements.
        Self(unsafe { NonNull::new_unchecked(filter) }, PhantomData)
    }

    #[inline]
    fn cpus(&self) -> *mut usize {
        // SAFETY: The field is inside of the object.
        unsafe { (&raw mut (*self.0.as_ptr()).cpus).cast() }
    }

    /// Whether a bit is set, as a hint; C reads it with `READ_ONCE()`.
    #[inline]
    fn any(&self) -> &Atomic<usize> {
        // SAFETY: The field is valid for as long as `self` is, and all accesses are atomic.
        unsafe { Atomic::from_ptr(&raw mut (*self.0.as_ptr()).any) }
    }

    #[inline]
    fn words(&self) -> impl Iterator<Item = usize> + '_ {
        // SAFETY: By the type invariants; all writes are those of `set()`.
        unsafe { words(self.cpus()) }
    }

    /// Enters or removes a CPU.
    ///
    /// Who enters one writes its bit, then reads `any`. Who removes the last one writes `any`, then
    /// reads the bits again. The later of the two sees what both wrote, so that no bit is left
    /// under a hint that says empty. The barrier after a removal is for two that remove the last
    /// two bits: one of them must see that there is none.
    ///
    /// # Safety
    ///
    /// `cpu` is a possible CPU.
    unsafe fn set(&self, cpu: u32, overloaded: bool) {
        // SAFETY: By the safety requirements, it is inside the bitmap.
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
    // SAFETY: The filter stays valid during the call, and `cpu` has a runqueue, by the safety
    // requirements.
    unsafe { Filter::new(filter).set(cpu, overloaded) };
}

/// Writes to `cpus` the CPUs of `span` that `allowed` has and that are not overloaded, and counts
/// them with and without these.
///
/// # Safety
///
/// - `filter` is valid for the duration of the call.
/// - `span` and `allowed` are valid for reading, and `cpus` for writing by this CPU alone.
#[export]
pub(crate) unsafe extern "C" fn sis_filter_narrow(
    filter: *mut bindings::sis_filter,
    span: *const bindings::cpumask,
    allowed: *const bindings::cpumask,
    cpus: *mut bindings::cpumask,
) -> bindings::sis_filter_counts {
    // SAFETY: The three are valid for the duration of the call. The domain's span does not change,
    // and `allowed` does not while the task is being woken.
    let (filter, span, allowed) = unsafe {
        (
            Filter::new(filter),
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
            out.write(word);
            out = out.add(1);
        }
    });

    bindings::sis_filter_counts {
        candidates: counts.candidates,
        left: counts.left,
        few: counts.few(),
    }
}

#[cfg(CONFIG_SCHED_LLC_KUNIT_TEST)]
#[kunit_tests(sched_llc_filter)]
mod tests {
    use super::*;

    /// As many words as `CONFIG_NR_CPUS` can need.
    type Mask = [usize; 128];

    /// A filter with its mask, as it lies in `struct sched_domain_shared`.
    #[repr(C, align(64))]
    struct Fake {
        any: usize,
        cpus: Mask,
    }

    impl Fake {
        fn new() -> Result<KBox<Self>> {
            Ok(KBox::new(pin_init::zeroed(), GFP_KERNEL)?)
        }

        fn as_raw(&mut self) -> *mut bindings::sis_filter {
            (&raw mut *self).cast()
        }

        fn set(&mut self, cpu: u32, overloaded: bool) {
            // SAFETY: The filter is valid, and known to nobody else; the CPU exists.
            unsafe { sis_filter_set(self.as_raw(), cpu, overloaded) };
        }
    }

    // SAFETY: All fields are integers.
    unsafe impl Zeroable for Fake {}

    #[test]
    fn hint_says_whether_a_bit_is_set() -> Result {
        let mut fake = Fake::new()?;
        let last = nr_cpu_ids().wrapping_sub(1);
        let bits = |fake: &Fake| fake.cpus.iter().map(|word| word.count_ones()).sum::<u32>();
        for (other, left) in [(0, u32::from(last > 0)), (last, 0)] {
            assert_eq!((fake.any, bits(&fake)), (0, 0));
            fake.set(last, true);
            assert_eq!((fake.any, bits(&fake)), (1, 1));
            fake.set(other, true);
            assert_eq!(fake.any, 1);
            fake.set(other, false);
            // One is left, unless both are the same CPU.
            assert_eq!((fake.any as u32, bits(&fake)), (left, left));
            fake.set(last, false);
            assert_eq!((fake.any, bits(&fake)), (0, 0));
        }
        Ok(())
    }

    #[test]
    fn searches_are_narrowed_and_counted() -> Result {
        let mut fake = Fake::new()?;
        let mut span = KBox::new([0usize; 128], GFP_KERNEL)?;
        let mut allowed = KBox::new([usize::MAX; 128], GFP_KERNEL)?;
        let mut cpus = KBox::new([usize::MAX; 128], GFP_KERNEL)?;
        // The algebra does not ask whether these CPUs exist.
        span[0] = 0b1111_0000;
        allowed[0] = 0b0111_1110;
        for (overloaded, left, nr) in [
            (0b0011_0011, 0b0100_0000, 1),
            (0b0111_0000, 0b0000_0000, 0),
            (0b1000_1111, 0b0111_0000, 3),
        ] {
            fake.cpus[0] = overloaded;
            // SAFETY: All are valid, and known to nobody else.
            let counts = unsafe {
                sis_filter_narrow(
                    fake.as_raw(),
                    (&raw const *span).cast(),
                    (&raw const *allowed).cast(),
                    (&raw mut *cpus).cast(),
                )
            };
            assert_eq!((counts.candidates, counts.left, counts.few), (3, nr, false));
            assert_eq!(cpus[0], left);
        }
        Ok(())
    }
}
