//! Any number of ranks: why a partition may be used again, as an inductive invariant that z3 checks.
//!
//! [`model`] holds the protocol at the level of ranks, slots and operators: its state, its steps with named
//! guards, the invariant, and what safe means, all as SMT-LIB text over *uninterpreted* sorts of ranks and
//! slots. [`obligation`] turns it into proof obligations, one per step. [`schedule`] says which operators use a
//! slot again; [`timeline`] finds a run of a few ranks that goes wrong where the premise of the theorem does
//! not hold. [`trace`] says the same guards in Rust, so that runs of the real machines can be held against the
//! model; a test asks z3 whether the two say the same. [`slots`] and [`relay`] say what their slots are. `smt/README.md` tells it in words.

pub mod ground;
pub mod layout;
pub mod model;
pub mod obligation;
pub mod relay;
pub mod schedule;
pub mod slots;
pub mod timeline;
pub mod trace;
pub mod z3;
