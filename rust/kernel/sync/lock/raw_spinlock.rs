// SPDX-License-Identifier: GPL-2.0

//! A kernel raw spinlock.
//!
//! This module allows Rust code to use the kernel's `raw_spinlock_t`.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)

use super::*;

/// Creates a [`RawSpinLock`] initialiser with the given name and a newly-created lock class.
///
/// It uses the name if one is given, otherwise it generates one based on the file name and line
/// number.
#[macro_export]
macro_rules! new_raw_spinlock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::RawSpinLock::new(
            $inner, $crate::optional_name!($($name)?), $crate::static_lock_class!())
    };
}
pub use new_raw_spinlock;

/// A raw spinlock.
///
/// Exposes the kernel's [`raw_spinlock_t`], which spins also on `PREEMPT_RT`, where a
/// [`SpinLock`] sleeps. It may be taken inside other raw spinlocks, for example a runqueue lock,
/// and its critical sections must be short and bounded: no allocation, no printing and no sleeping
/// lock inside.
///
/// Taking the lock leaves the interrupt state as it is. A lock that is also taken in interrupt
/// context, or inside a lock that is, must only be taken with interrupts disabled.
///
/// # Examples
///
/// ```
/// use kernel::sync::{new_raw_spinlock, RawSpinLock};
///
/// #[pin_data]
/// struct Example {
///     #[pin]
///     count: RawSpinLock<u32>,
/// }
///
/// let e = KBox::pin_init(pin_init!(Example { count <- new_raw_spinlock!(1) }), GFP_KERNEL)?;
/// *e.count.lock() += 1;
/// assert_eq!(*e.count.lock(), 2);
/// # Ok::<(), Error>(())
/// ```
///
/// [`SpinLock`]: super::spinlock::SpinLock
/// [`raw_spinlock_t`]: srctree/include/linux/spinlock_types_raw.h
pub type RawSpinLock<T> = Lock<T, RawSpinLockBackend>;

/// A kernel `raw_spinlock_t` lock backend.
pub struct RawSpinLockBackend;

/// A [`Guard`] acquired from locking a [`RawSpinLock`].
///
/// It unlocks the [`RawSpinLock`] upon being dropped.
pub type RawSpinLockGuard<'a, T> = Guard<'a, T, RawSpinLockBackend>;

// SAFETY: The underlying kernel `raw_spinlock_t` object ensures mutual exclusion. `relock` uses the
// default implementation that always calls the same locking method.
unsafe impl Backend for RawSpinLockBackend {
    type State = bindings::raw_spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(
        ptr: *mut Self::State,
        name: *const crate::ffi::c_char,
        key: *mut bindings::lock_class_key,
    ) {
        // SAFETY: The safety requirements ensure that `ptr` is valid for writes, and `name` and
        // `key` are valid for read indefinitely.
        unsafe { bindings::raw_spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The safety requirements of this function ensure that `ptr` points to valid
        // memory, and that it has been initialised before.
        unsafe { bindings::raw_spin_lock(ptr) }
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &Self::GuardState) {
        // SAFETY: The safety requirements of this function ensure that `ptr` is valid and that the
        // caller is the owner of the lock.
        unsafe { bindings::raw_spin_unlock(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: The safety requirements of this function ensure that `ptr` points to valid
        // memory, and that it has been initialised before.
        let result = unsafe { bindings::raw_spin_trylock(ptr) };

        if result != 0 {
            Some(())
        } else {
            None
        }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The safety requirements of this function ensure that `ptr` points to valid
        // memory, and that it has been initialised before.
        unsafe { bindings::raw_spin_assert_is_held(ptr) }
    }
}

#[cfg(CONFIG_RUST_RAW_SPINLOCK_KUNIT_TEST)]
#[macros::kunit_tests(rust_raw_spinlock)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn guard_gives_access_and_unlocks() -> Result {
        let lock = KBox::pin_init(new_raw_spinlock!(1), GFP_KERNEL)?;
        *lock.lock() += 1;
        let guard = lock.try_lock().ok_or(EBUSY)?;
        assert_eq!(*guard, 2);
        Ok(())
    }

    #[test]
    fn try_lock_fails_while_held() -> Result {
        let lock = KBox::pin_init(new_raw_spinlock!(()), GFP_KERNEL)?;
        let guard = lock.lock();
        // Without SMP a raw spinlock is only a disabled preemption and can be taken again.
        assert_eq!(lock.try_lock().is_some(), !cfg!(CONFIG_SMP));
        drop(guard);
        assert!(lock.try_lock().is_some());
        Ok(())
    }

    #[test]
    fn wraps_a_lock_initialised_in_c() -> Result {
        let lock = KBox::pin_init(new_raw_spinlock!(()), GFP_KERNEL)?;
        // SAFETY: The state was initialised above and outlives the reference.
        let same = unsafe { RawSpinLock::<()>::from_raw(lock.state.get()) };
        let guard = same.lock();
        assert!(core::ptr::eq(guard.lock_ref(), &*lock));
        Ok(())
    }
}
