//! Groups simulated in one thread: memory whose effects land late, the cores and agents that act on it, and who decides what
//! happens next. Behind the feature `sim`; it allocates, and it is no part of the versioned interface: any release may change
//! it.
//!
//! # How it works
//! A [`Memory`] carries out what a core's [`Fabric`](crate::fabric::Fabric) and an agent's
//! [`Nic`](crate::fabric::nic::Nic) are asked for, exactly within their contracts. A put, a publish, a store, a write to
//! WindowsOut, a message or a transfer does not change memory: it becomes a [`Flight`], which lands later, whole or in
//! pieces. What must land before what is kept in order per core and rank, so nothing is ever searched.
//!
//! A [`Chooser`] decides. It is *told* what was issued, what may land from now on, who may take a step, who fell asleep on
//! which words, and what has landed; and it is *asked* for the next [`Choice`]. Each offer may be taken once. A chooser is a
//! weak memory if it draws from all offers ([`Seeded`]), a fuzzer if a tape of bytes decides, a recording if it writes down
//! what another one chose ([`Recorded`]), and a simulator in virtual time if it orders offers by the time at which they are
//! due.
//!
//! A [`Cluster`] is the cores and agents of a group over such a memory. It takes choices, lets the machines step, keeps the
//! join, runs the experts through a [`World`], wakes the cores that sleep, and reports the waits when no core can move. A
//! [`Faulty`] fabric between core and memory leaves out one [`Duty`].
//!
//! # Writing a chooser
//! Keep the offers of [`may_step`](Chooser::may_step) and [`may_land`](Chooser::may_land) in a list of your own, and return
//! one of them from [`next`](Chooser::next). An offer may be overtaken: a flight that another call has landed meanwhile is
//! ignored. Return `None` when nothing is left, and the run is over. Where the bytes are kept is independent of all this:
//! [`Dense`] keeps all of them, [`Sparse`] those that were written, and with [`Memory::kept`] the middle of rows is left
//! out, which no protocol looks at.

pub mod chooser;
pub mod cluster;
pub mod duty;
pub mod flight;
pub mod memory;
pub mod order;
pub mod recorded;
pub mod seeded;
mod sleepers;
pub mod storage;
mod view;
mod world;

pub use chooser::{Actor, Choice, Chooser};
pub use cluster::Cluster;
pub use duty::{Duty, Faulty};
pub use flight::{Flight, FlightId};
pub use memory::Memory;
pub use recorded::{Recorded, Replayed};
pub use seeded::Seeded;
pub use storage::{Dense, Sparse, Storage};
pub use view::{NicView, View};
pub use world::World;

#[cfg(test)]
mod tests;
