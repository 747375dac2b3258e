//! Exhaustive search over the real machines: every order of their visible steps, every landing of their late
//! effects, every traffic.
//!
//! A **state** is all machines, all memory and all effects in flight. A **move** is one step of one core that
//! others can see (or in which it looks at what others do), or one effect that lands. Steps that nobody else
//! can see are taken at once. What makes the graph finite, even for endless rounds:
//!
//! - traffic is chosen when a rank begins a round and forgotten when all have ended it;
//! - experts that read rows in the window, or leave results there, do so in one move, just before combine;
//! - payload is one small number that tells rounds apart modulo 4 (8 with batches in flight), and a row is
//!   forgotten when its reader has read it for the last time: a row that lands on an unread one is an error;
//! - outputs are compared with the oracle as they are written and not kept;
//! - a state counts rounds from its slowest core.
//!
//! # Weak memory without landings
//! Over weak memory an effect in flight may land now, later, or when somebody's quiet or observed flag forces
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
//! Each such error is an execution of the explicit memory; that an execution without one goes the same way in
//! both is argued, not proved. The tests compare the two where both finish: the protocol and all twins over DC.

mod a2;
mod experts;
mod fabric;
mod hierarchy;
mod model;
mod oracle;
mod search;
mod state;
mod step;
mod timeline;
mod violation;

pub use model::{Kind, Memory, Model, Operator, Product, Traffic, Twin};
pub use timeline::Timeline;
pub use violation::Violation;

use model::Setup;
use state::State;
use std::collections::{HashMap, VecDeque};
use step::{Known, Move};

/// What a search found.
#[derive(Clone, Debug)]
pub struct Report {
    /// States visited.
    pub states: usize,
    /// Moves taken.
    pub moves: usize,
    /// Different traffic matrices that some round had.
    pub traffic_matrices: usize,
    /// Whether every reachable state was visited.
    pub complete: bool,
    /// The shortest way into trouble.
    pub counterexample: Option<Timeline>,
}

/// How a state was reached first.
#[derive(Clone, Copy)]
struct Origin {
    parent: u32,
    what: Option<Move>,
    /// Which of the move's successors.
    branch: u16,
}

/// Explores all states of a model, breadth first, so that a counterexample is a shortest one.
///
/// # Panics
/// A model of A2 asks for what only A3 has here: several tokens or experts, or every landing explicit with more cores
/// than one or for ever.
#[must_use]
pub fn explore(model: &Model) -> Report {
    let shape = model.shape();
    if model.product == Product::A2 {
        let explicit = model.memory == Memory::WeakExplicit;
        let fits = (model.experts, model.tokens, model.k) == (1, 1, 1);
        let few = model.cores == 1 && model.units.is_some();
        assert!(fits && (few || !explicit), "no such model of A2: {model:?}");
        return a2::explore(model, &shape);
    }
    if model.product == Product::Hierarchy {
        return hierarchy::explore(model, &shape);
    }
    let mut known = Known::new(Setup::new(model, &shape));
    let mut search = Search::default();
    for (branch, next) in (0..).zip(known.initial(false)) {
        let origin = Origin { parent: u32::MAX, what: None, branch };
        if let Some(report) = search.meet(&mut known, next, origin) {
            return report;
        }
    }
    while let Some((id, state)) = search.frontier.pop_front() {
        let mut stuck = true;
        for what in known.moves(&state) {
            for (branch, next) in (0..).zip(known.after(&state, what)) {
                stuck = false;
                search.moves += 1;
                if let Some(report) =
                    search.meet(&mut known, next, Origin { parent: id, what: Some(what), branch })
                {
                    return report;
                }
            }
        }
        let done = state.cores.iter().all(|core| known.setup.ended(core.op));
        if stuck && !done {
            return search.trouble(&mut known, id, None, Violation::Deadlock);
        }
        if search.origins.len() > model.states_max {
            return search.report(&known, false, None);
        }
    }
    search.report(&known, true, None)
}

#[derive(Default)]
struct Search {
    visited: HashMap<u128, u32, Identity>,
    origins: Vec<Origin>,
    frontier: VecDeque<(u32, State)>,
    moves: usize,
}

impl Search {
    /// Takes in a successor. A report ends the search.
    fn meet(
        &mut self,
        known: &mut Known<'_>,
        next: Result<State, Violation>,
        origin: Origin,
    ) -> Option<Report> {
        let state = match next {
            Ok(state) => state,
            Err(violation) => return Some(self.trouble(known, origin.parent, Some(origin), violation)),
        };
        let id = self.origins.len() as u32;
        if let std::collections::hash_map::Entry::Vacant(entry) =
            self.visited.entry(state.fingerprint(&known.setup))
        {
            entry.insert(id);
            self.origins.push(origin);
            self.frontier.push_back((id, state));
        }
        None
    }

    fn report(&self, known: &Known<'_>, complete: bool, counterexample: Option<Timeline>) -> Report {
        Report {
            states: self.origins.len(),
            moves: self.moves,
            traffic_matrices: known.oracle.matrices(),
            complete,
            counterexample,
        }
    }

    /// The way to state `id`, then the last move into trouble.
    fn trouble(
        &self,
        known: &mut Known<'_>,
        mut id: u32,
        last: Option<Origin>,
        violation: Violation,
    ) -> Report {
        let mut way: Vec<Origin> = last.into_iter().collect();
        while let Some(&origin) = self.origins.get(id as usize) {
            way.push(origin);
            id = origin.parent;
        }
        way.reverse();
        let timeline = timeline::replay(known, &way, violation);
        self.report(known, false, Some(timeline))
    }
}

/// Fingerprints are hashes already.
#[derive(Clone, Default)]
struct Identity;

impl core::hash::BuildHasher for Identity {
    type Hasher = LowBits;

    fn build_hasher(&self) -> LowBits {
        LowBits(0)
    }
}

struct LowBits(u64);

impl core::hash::Hasher for LowBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.first_chunk().map_or(0, |low| u64::from_le_bytes(*low));
    }
}
