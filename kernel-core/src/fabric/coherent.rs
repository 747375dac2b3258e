//! The requirements of the contract on memory with coherent caches: the orderings of word accesses, and the fences of rows
//! that bypass the caches. They stand here once. [`raw`](super::raw) follows them, and so do loom's models, which fail if
//! an ordering is weaker than required or a fence is missing.

use core::mem;
use core::sync::atomic::Ordering;

/// The ordering of a publish, and of each word of a message: it comes after everything that its core did before.
pub const PUBLISH: Ordering = Ordering::Release;

/// The ordering of an observe, also an agent's: the core's next actions come after everything that the seen word covers.
pub const OBSERVE: Ordering = Ordering::Acquire;

/// The ordering of a store, which covers nothing: the next publisher to its word is released by a later publish.
pub const STORE: Ordering = Ordering::Relaxed;

/// The ordering of each word that a transfer writes: it comes after the words before it.
pub const TRANSFER: Ordering = Ordering::Release;

/// The ordering of each word that a transfer reads: the doorbell covers it.
pub const SOURCE: Ordering = Ordering::Relaxed;

/// A fence for stores that bypass the caches.
pub trait Fence {
    /// Orders all earlier stores that bypassed the caches before all later stores.
    fn fence(&mut self);
}

/// The fences of a core whose rows bypass the caches. Such stores are unordered with all others, even release stores; so a
/// fence precedes a publish, a message and quiet, and the end of the core's fabric.
#[derive(Debug)]
pub struct Streamed<F: Fence> {
    fence: F,
    due: bool,
}

impl<F: Fence> Streamed<F> {
    /// Creates the state in which no row has bypassed the caches.
    pub const fn new(fence: F) -> Self {
        Self { fence, due: false }
    }

    /// Records that a row bypasses the caches.
    #[inline]
    pub fn row(&mut self) -> &mut F {
        self.due = true;
        &mut self.fence
    }

    /// Issues a fence, if a row has bypassed the caches since the last one.
    #[inline]
    pub fn fence(&mut self) {
        if mem::take(&mut self.due) {
            self.fence.fence();
        }
    }
}

impl<F: Fence> Drop for Streamed<F> {
    #[inline]
    fn drop(&mut self) {
        self.fence();
    }
}
