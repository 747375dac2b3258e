//! The join of a rank's cores between two operators, which no machine checks and the driver owes; and the meeting of processes
//! that share memory. Drivers keep the words; which of them is accessed with which ordering is here once, over any atomics,
//! so loom's models run the code that drivers run.

use crate::fabric::coherent::{ARRIVE, JOINED, OPEN};
#[cfg(target_has_atomic = "64")]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

/// An atomic word that several threads or processes share. It decides on no ordering.
pub trait Atomic {
    /// Returns the word.
    fn load(&self, ordering: Ordering) -> u64;

    /// Replaces the word.
    fn store(&self, word: u64, ordering: Ordering);

    /// Adds one, and returns the word before.
    fn count(&self, ordering: Ordering) -> u64;
}

#[cfg(target_has_atomic = "64")]
impl Atomic for AtomicU64 {
    #[inline]
    fn load(&self, ordering: Ordering) -> u64 {
        self.load(ordering)
    }

    #[inline]
    fn store(&self, word: u64, ordering: Ordering) {
        self.store(word, ordering);
    }

    #[inline]
    fn count(&self, ordering: Ordering) -> u64 {
        self.fetch_add(1, ordering)
    }
}

/// A number that only grows: how many of several threads have come. Each sees what those before it did, and who finds that a
/// number [has come](Self::have_come) sees what they did.
#[derive(Debug, Default)]
pub struct Arrivals<A>(A);

impl<A: Atomic> Arrivals<A> {
    /// Creates the count in a word that is 0.
    pub const fn new(count: A) -> Self {
        Self(count)
    }

    /// Counts the caller, and returns how many have come with it.
    #[inline]
    pub fn arrive(&self) -> u64 {
        self.0.count(ARRIVE).wrapping_add(1)
    }

    /// Returns whether so many have come.
    #[inline]
    pub fn have_come(&self, count: u64) -> bool {
        self.0.load(JOINED) >= count
    }
}

/// The end of one operator on one rank.
#[derive(Debug, Default)]
pub struct Join<A> {
    /// Cores that have ended it.
    ended: Arrivals<A>,
    /// Not 0: all have, and its experts have run.
    open: A,
}

impl<A: Atomic> Join<A> {
    /// Creates the join of two words that are 0.
    pub const fn new(ended: A, open: A) -> Self {
        Self { ended: Arrivals::new(ended), open }
    }

    /// Notes that one of `cores` cores has ended the operator. Returns whether it was the last one: that one runs the experts,
    /// who see what all cores have put out, and then [opens](Self::open) the join.
    #[inline]
    pub fn arrive(&self, cores: u32) -> bool {
        self.ended.arrive() == u64::from(cores)
    }

    /// Lets all cores of the rank go on.
    #[inline]
    pub fn open(&self) {
        self.open.store(1, OPEN);
    }

    /// Returns whether the cores may go on: then they see what all cores and the experts have done.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.load(JOINED) != 0
    }
}

/// Says in a process's word that it has come to meeting number `nth`, from 1 on. Who finds that it [has come](has_come) sees what
/// it did before.
#[inline]
pub fn come(own: &impl Atomic, nth: u64) {
    own.store(nth, OPEN);
}

/// Returns whether the process whose word that is has come to meeting number `nth`.
#[inline]
pub fn has_come(of: &impl Atomic, nth: u64) -> bool {
    of.load(JOINED) >= nth
}

/// Says in a process's word that it is about to make call number `nth`; `calls` counts the calls of all processes. Of two
/// processes that make calls of one number the later one finds that the other [has announced](has_announced) it.
#[inline]
pub fn announce(own: &impl Atomic, calls: &impl Atomic, nth: u64) {
    own.store(nth, OPEN);
    calls.count(ARRIVE);
}

/// Returns whether the process whose word that is has announced call number `nth`: then what it wrote about the call is seen,
/// as long as the word stays at that number.
#[inline]
pub fn has_announced(of: &impl Atomic, nth: u64) -> bool {
    of.load(JOINED) == nth
}
