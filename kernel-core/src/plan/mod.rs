//! The work of each core as data: the items it sends, their receivers and their order. Iterators and indices of small
//! `Copy` items; the machines interpret them, a kernel generator prints them. No memory of other ranks is accessed.

pub mod counts;
pub mod experts;
pub mod order;
pub mod permute;
pub mod relay;
pub mod returns;
pub mod route;
pub mod split;
pub mod table;

/// A count of the scalar unit's reads and writes of its scratch, for tests.
mod accesses {
    #[cfg(test)]
    pub(super) use counter::{add, take};

    #[cfg(not(test))]
    #[inline(always)]
    pub(super) const fn add(_: u64) {}

    #[cfg(test)]
    mod counter {
        extern crate std;
        use core::cell::Cell;

        std::thread_local! {
            static SEEN: Cell<u64> = const { Cell::new(0) };
        }

        pub(in crate::plan) fn add(accesses: u64) {
            SEEN.set(SEEN.get() + accesses);
        }

        /// Returns the accesses of this thread since the last call.
        pub(in crate::plan) fn take() -> u64 {
            SEEN.take()
        }
    }
}
