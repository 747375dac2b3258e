//! Sharing between threads: processors, many items of work, and locks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Processors that this process may use.
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Locks it, also if a thread that held it has panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `work` on every item with its number, on a thread per processor.
pub fn each<T: Send>(items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
    each_on(processors(), items, work);
}

/// Like [`each`], on at most `threads` threads. They take the items in order.
pub fn each_on<T: Send>(threads: usize, items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
    let threads = threads.min(items.len());
    let left = Mutex::new(items.iter_mut().enumerate());
    let next = || lock(&left).next();
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
