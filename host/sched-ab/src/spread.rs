// SPDX-License-Identifier: GPL-2.0

//! Work on several threads.

use std::{
    panic::resume_unwind,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::Result;

/// A panic of another thread ends the run anyway.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `work` for each item and its index, `at_once` of them side by side. Once one has failed, no
/// other is begun.
pub fn spread<T: Sync>(
    at_once: usize,
    items: &[T],
    work: impl Fn(usize, &T) -> Result<()> + Sync,
) -> Result<()> {
    let queue = Mutex::new(items.iter().enumerate());
    let worker = || {
        loop {
            let Some((n, item)) = lock(&queue).next() else {
                return Ok(());
            };
            if let Err(error) = work(n, item) {
                lock(&queue).by_ref().for_each(drop);
                return Err(error);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        let results = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        });
        results.fold(Ok(()), Result::and)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use anyhow::ensure;

    use super::*;

    #[test]
    fn work_is_spread_until_some_fails() {
        let done = Mutex::new(Vec::new());
        let work = |n: usize, item: &u32| {
            ensure!(*item != 0, "item {n}");
            lock(&done).push(*item);
            Ok(())
        };
        // Nobody gets past it alone.
        let both = Barrier::new(2);
        let meet = |n: usize, item: &u32| {
            if n < 2 {
                both.wait();
            }
            work(n, item)
        };
        spread(2, &[1, 2, 3, 4, 5], meet).unwrap();
        lock(&done).sort_unstable();
        assert_eq!(*lock(&done), [1, 2, 3, 4, 5]);
        lock(&done).clear();
        spread(2, &[], work).unwrap();
        let error = spread(1, &[1, 0, 3], work).unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), &**lock(&done)),
            ("item 1", &[1][..])
        );
    }
}
