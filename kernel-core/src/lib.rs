//! Mixture-of-Experts dispatch and combine of Ascend A2/A3 as polled state machines over one [fabric].
//!
//! Nothing here waits, spins, allocates, panics or reads a clock. A [`Machine`](protocol::Machine) is a plain value of one
//! core and one operator; memory, inputs, scratch and identity are arguments of every step. So the same source runs on
//! firmware, on threads, in a model checker and in a simulator: each of them is a [`Fabric`](fabric::Fabric).
//!
//! The modules, each of which uses only those before it: [`units`], [`shape`] (a checked configuration), [`inputs`],
//! [`placement`], [`place`], [`layout`], [`plan`], [`fabric`] (the memory of all ranks, as one core sees it), [`vector`] (a
//! vector unit's operations on rows), [`sync`], [`protocol`] (the machines). Feature `conformance` has the memory's contract as
//! programs. Two features that allocate come on top: `reference`, the reference, which uses the shape alone, and `sim`, groups that
//! are simulated in one thread.
//!
//! "Seed 00n" is the source document of that number, which `docs/internals/sources.md` of the repository lists.
//!
//! There are no addresses outside [`fabric::raw`], no time, no randomness, no constant world size, no formula twice.
#![cfg_attr(feature = "sim", doc = "\n# Two ranks, one round\n```\n")]
#![cfg_attr(feature = "sim", doc = include_str!("../examples/two_ranks.rs"))]
#![cfg_attr(feature = "sim", doc = "```")]
#![no_std]
// Code that only a left-out protocol uses is dead in such a build.
#![cfg_attr(
    not(all(feature = "a3-v2", feature = "direct", feature = "tp", feature = "a2", feature = "hierarchy")),
    allow(dead_code, unused_imports)
)]

#[cfg(any(test, feature = "reference", feature = "sim"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

#[macro_use]
mod named;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod fabric;
pub mod inputs;
#[macro_use]
pub mod layout;
pub mod place;
pub mod placement;
pub mod plan;
pub mod protocol;
#[cfg(any(test, feature = "reference"))]
pub mod reference;
pub mod shape;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod sync;
#[cfg(test)]
#[path = "tests/mod.rs"]
mod testing;
pub mod units;
pub mod vector;

// Errors convert into any program's own error type and cross threads.
static_assertions::assert_impl_all!(fabric::Fault: core::error::Error, Send, Sync, Copy);
static_assertions::assert_impl_all!(fabric::ProtocolError: core::error::Error, Send, Sync, Copy);
static_assertions::assert_impl_all!(inputs::InputError: core::error::Error, Send, Sync, Copy);
static_assertions::assert_impl_all!(shape::Violation: core::error::Error, Send, Sync, Copy);
static_assertions::assert_impl_all!(vector::NotFinite: core::error::Error, Send, Sync, Copy);

// Programs in other languages access these values by their bytes.
static_assertions::assert_eq_size!(units::Pair, placement::Home, [u32; 2]);
static_assertions::assert_eq_size!(layout::record::Triple, [u32; 3]);
static_assertions::assert_eq_size!(plan::route::Send, [u32; 5]);
#[cfg(target_has_atomic = "64")]
static_assertions::assert_eq_size!(fabric::raw::Peer, [[u64; 2]; 3]);

// Fabrics can be chosen at run time, and a shape is shared by all cores of a group.
static_assertions::assert_obj_safe!(fabric::Fabric, fabric::nic::Nic);
static_assertions::assert_impl_all!(shape::Shape: Clone, Send, Sync, core::hash::Hash, Eq);
static_assertions::const_assert!(!core::mem::needs_drop::<shape::Shape>());
