//! Exhaustive search over the real machines: every order of their visible steps, every landing of their late
//! effects, every traffic.
//!
//! A **state** is all machines, all memory and all effects in flight. A **move** is one step of one core that
//! others can see (or in which it looks at what others do), or one effect that lands. Steps that no other core
//! can see are taken at once. What makes the graph finite, even for endless rounds:
//!
//! - traffic is chosen when a rank begins a round and forgotten when all have ended it;
//! - experts that read rows in the window, or leave results there, do so in one move, just before combine;
//! - payload is one small number that tells rounds apart modulo 4 (8 with batches in flight), and a row is
//!   forgotten when its reader has read it for the last time: a row that lands on an unread one is an error;
//! - outputs are compared with the reference as they are written and not kept;
//! - a state counts rounds from its slowest core.
//!
//! # Weak memory without landings
//! Over weak memory an effect in flight may land now, later, or when a core's quiet or observed flag forces
//! it to. Exploring every landing ([`Memory::WeakExplicit`]) is sound and dear. [`Memory::Weak`] keeps an effect
//! as *issued, perhaps landed* until a flag that must follow it is observed, or its core is quiet, and turns
//! what either choice could break into an error at once:
//!
//! - a put to a place with an unread row, landed or not: it may land first ([`Violation::Overwritten`]);
//! - a publish on a flag that is set, or whose clear is still in flight, or the reverse: one of the two orders
//!   loses the flag ([`Violation::LostFlag`]);
//! - a read of a row that has perhaps not landed ([`Violation::NotLanded`]), or of an own published word
//!   ([`Violation::OwnNotLanded`]).
//!
//! A core that looks at a word of which a publish, or another core's clear, is in flight goes both ways: it has landed, or not
//! yet; the same of quiet. If it waits on, what it has seen stays landed.
//!
//! Each such error is an execution of the explicit memory; that an execution without one goes the same way in
//! both is argued, not proved. The tests compare the two where both finish: `tests/explorer/agreement.rs`.

mod a2;
mod a3;
mod defects;
mod expand;
mod hierarchy;
mod liveness;
mod memory;
mod model;
mod moves;
mod numbers;
mod oracle;
mod phase;
mod plan;
mod protocol;
mod refine;
mod search;
mod setup;
mod state;
mod step;
mod story;
mod tape;
mod timeline;
mod violation;
mod witness;

pub use model::{Memory, Model, Product, Traffic};
pub use story::{Line, Told, Who};
pub use timeline::Timeline;
pub use violation::Violation;
pub use witness::{Taken, Witness};

use crate::order::Order;
use moves::Known;
use search::search;
use setup::Setup;
pub(crate) use setup::searches;
use std::collections::BTreeSet;
use veriep_core::protocol::Receive;

/// What a search found.
#[derive(Clone, Debug)]
pub struct Report {
    pub states: usize,
    pub moves: usize,
    /// Different traffic matrices that some round had.
    pub traffic_matrices: usize,
    /// The orders for which effects landed, or had landed where that was asked. If every landing is a move of its own, there are none.
    pub orders: BTreeSet<Order>,
    /// Whether every reachable state was visited.
    pub complete: bool,
    /// Parts of the graph in which the group can go round without the end of an operator.
    pub circles: usize,
    /// The shortest way into trouble; into a livelock, to the last of its states that was found.
    pub counterexample: Option<Timeline>,
}

/// Explores all states of a model, breadth first, so that a counterexample is a shortest one.
///
/// # Panics
/// A model of A2 asks for what only A3 has here: several tokens or experts, or every landing explicit for any number of rounds. Or a model is to
/// be held against that of the theorem, which has no such group. Or a memory is busy that is not A3's. Or its defect is none that a
/// model here can have.
pub fn explore(model: &Model) -> Report {
    explore_before(model, None)
}

/// The same before a witness of the counterexample, if there is one.
pub(crate) fn explore_before(model: &Model, witness: Option<&dyn Witness>) -> Report {
    let is_seen = model.defect.row().is_none_or(|row| !row.explorer.is_empty());
    assert!(is_seen, "no model of the explorer has this defect: {model:?}");
    let shape = model.shape();
    let setup = &Setup::new(model, &shape, witness);
    if model.refined {
        assert!(setup.is_whole(), "the theorem's model has no halves: {model:?}");
        let other = model.choices.receive == Receive::InPlace || model.units.is_none();
        let other = other || model.tp || model.elastic || model.shared_ranks > 0 || model.busy;
        assert!(!other, "the theorem's model has no such group: {model:?}");
    }
    assert!(model.product == Product::A3 || !model.busy, "no such memory of this protocol: {model:?}");
    match model.product {
        _ if !setup.is_searchable() => panic!("no such orders of this protocol: {model:?}"),
        Product::A3 => search(Known::new(setup, a3::Scene::new(setup))),
        Product::A2 => {
            let endless = model.memory == Memory::WeakExplicit && model.units.is_none();
            let fits = (model.experts, model.tokens, model.k) == (1, 1, 1);
            assert!(fits && !endless, "no such model of A2: {model:?}");
            search(Known::new(setup, a2::Scene::new(setup)))
        }
        Product::Hierarchy => search(Known::new(setup, hierarchy::Scene::new(setup))),
    }
}
