//! What the contract asks of memory with coherent caches: how words are accessed, and when rows that went past the caches
//! are fenced. It stands here once. [`raw`](super::raw) goes by it, and so do loom's models, which fail where an ordering is
//! weaker than they need or a fence is left out.

use core::mem;
use core::sync::atomic::Ordering;

/// Of a publish, and of each word of a message: it comes after all that its core did before.
pub const PUBLISH: Ordering = Ordering::Release;

/// Of an observe, an agent's too: what its core does next comes after all that the seen word speaks for.
pub const OBSERVE: Ordering = Ordering::Acquire;

/// Of a store, which speaks for nothing: who may publish to its word next has been told so by a publish that comes after.
pub const STORE: Ordering = Ordering::Relaxed;

/// Of each word that a transfer writes: it comes after those before it.
pub const TRANSFER: Ordering = Ordering::Release;

/// Of each word that a transfer reads: the doorbell has spoken for it.
pub const SOURCE: Ordering = Ordering::Relaxed;

/// What brings stores that went past the caches before all later ones.
pub trait Fence {
    /// Orders all earlier stores that went past the caches before all later stores.
    fn fence(&mut self);
}

/// The duty of a core whose rows go past the caches. Such stores are in no order with others, a release store's too; so
/// before a publish, a message and quiet there is a fence, and one before the core's fabric is gone.
#[derive(Debug)]
pub struct Streamed<F: Fence> {
    fence: F,
    due: bool,
}

impl<F: Fence> Streamed<F> {
    /// Nothing has gone past the caches.
    pub const fn new(fence: F) -> Self {
        Self { fence, due: false }
    }

    /// A row goes past the caches.
    #[inline]
    pub fn row(&mut self) -> &mut F {
        self.due = true;
        &mut self.fence
    }

    /// A fence, if a row has gone past the caches since the last one.
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
