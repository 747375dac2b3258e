//! Work on many items, shared among threads.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does `work` on every item with its number, on a thread per processor.
pub(crate) fn each<T: Send>(items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let left = Mutex::new(items.iter_mut().enumerate());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let share = || {
        while let Some((i, item)) = next() {
            work(i, item);
        }
    };
    thread::scope(|scope| {
        // If a thread cannot be spawned, this one does its share.
        (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, share)));
        share();
    });
}
