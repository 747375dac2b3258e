//! A2's full mesh: the same search over its machines and agents. Movers are cores, agents and transfers.
//!
//! A **move** is a step of a core that reads what others write, is quiet or rings; a step of an agent; or a piece of
//! a transfer that arrives, up to a word at which a flag could be looked for. What a core puts, writes and stores is
//! *issued, perhaps landed* until its quiet: whoever else meets it meanwhile, reading or writing, is an error
//! at once. So is a piece that comes to a half whose reader has not ended the operator before with that half, and a
//! write to what a transfer has still to read. There is no slower memory to compare this with yet: both weak ones
//! mean this one.
//!
//! Unlike on A3 nothing is forgotten: windows keep all bytes, since payload of one operator lies where flags
//! of another are looked for. Element 16 on of every row is half a flag. Payload tells two rounds (DC) or four apart.

mod memory;
mod step;

use super::model::{Model, Setup};
use super::{Identity, Report, Timeline, Violation};
use kernel_core::shape::Shape;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use step::{Group, Known, Move};

/// How a state was reached first.
#[derive(Clone, Copy)]
struct Origin {
    parent: u32,
    what: Option<Move>,
    branch: u16,
}

/// Explores all states of a model of A2, breadth first.
pub(super) fn explore(model: &Model, shape: &Shape) -> Report {
    let mut known = Known::new(Setup::new(model, shape));
    let mut visited: HashMap<u128, (), Identity> = HashMap::default();
    let mut origins: Vec<Origin> = Vec::new();
    let mut frontier: VecDeque<(u32, Group)> = VecDeque::new();
    let mut moves = 0;
    let report = |known: &Known<'_>, states, moves, complete, counterexample| Report {
        states,
        moves,
        traffic_matrices: known.oracle.matrices(),
        complete,
        counterexample,
    };
    let mut found: Vec<(Origin, step::Next)> = Vec::new();
    let first = Group::new(&known.setup);
    for (branch, next) in (0..).zip(known.settle(first)) {
        found.push((Origin { parent: u32::MAX, what: None, branch }, next));
    }
    loop {
        for (origin, next) in found.drain(..) {
            match next {
                Err(violation) => {
                    let timeline = tell(&mut known, &origins, origin, violation);
                    return report(&known, origins.len(), moves, false, Some(timeline));
                }
                Ok(state) => {
                    let id = origins.len() as u32;
                    if let Entry::Vacant(entry) = visited.entry(state.fingerprint(&known.setup)) {
                        entry.insert(());
                        origins.push(origin);
                        frontier.push_back((id, state));
                    }
                }
            }
        }
        if origins.len() > model.states_max {
            return report(&known, origins.len(), moves, false, None);
        }
        let Some((id, state)) = frontier.pop_front() else {
            return report(&known, origins.len(), moves, true, None);
        };
        for what in state.moves() {
            for (branch, next) in (0..).zip(known.after(&state, what)) {
                found.push((Origin { parent: id, what: Some(what), branch }, next));
            }
        }
        moves += found.len();
        if found.is_empty() && !state.is_over(&known.setup) {
            let origin = Origin { parent: id, what: None, branch: 0 };
            let timeline = tell(&mut known, &origins, origin, Violation::Deadlock);
            return report(&known, origins.len(), moves, false, Some(timeline));
        }
    }
}

/// The way to `last`, told again move by move.
fn tell(known: &mut Known<'_>, origins: &[Origin], last: Origin, violation: Violation) -> Timeline {
    let mut way = vec![last];
    let mut id = last.parent;
    while let Some(&origin) = origins.get(id as usize) {
        way.push(origin);
        id = origin.parent;
    }
    let mut events = Vec::new();
    let mut traffic = Vec::new();
    let mut state: Option<Group> = None;
    for origin in way.into_iter().rev() {
        let next = match (&state, origin.what) {
            (Some(before), Some(what)) => {
                events.push(before.tell(&known.setup, what));
                known.after(before, what)
            }
            (None, _) => {
                let first = Group::new(&known.setup);
                known.settle(first)
            }
            (Some(_), None) => Vec::new(),
        };
        if let Some(Ok(next)) = next.into_iter().nth(origin.branch.into()) {
            next.tell_traffic(&mut traffic);
            state = Some(next);
        }
    }
    Timeline { events, steps: Vec::new(), traffic, violation }
}
