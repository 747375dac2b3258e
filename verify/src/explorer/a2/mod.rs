//! A2's full mesh: the same search over its machines, agents and transfers.
//!
//! A **move** is a step of a core that reads what others write, is quiet, or ends an operator; or a piece of a transfer
//! that arrives, up to a word at which its reader could look for a flag. What a core puts, writes and stores is *issued,
//! perhaps landed* until its quiet: whoever else meets it meanwhile, reading or writing, is an error at once. So is
//!
//! - a piece that comes to a half whose reader has not ended the operator before with that half. Hence a window that
//!   has come whole stays as it is until its reader ends the operator: its reads are nobody's business, the end is a move;
//! - a write to what a transfer has still to read;
//! - a write to a task whose transfer has not begun. Hence agents post as soon as they are rung: one that looks later,
//!   or whose interface is busy, is a transfer that begins later.
//!
//! # What is forgotten
//! A window in when its rank has ended the operator; a piece of a window out when it was delivered; a task when it was
//! posted. Forgotten bytes hold what is no count, no task and nobody's row, so to read one of them shows. **What stays are
//! flags**: a word of a window in at which anybody could look for a flag keeps being one or not being one. In a window out
//! every word becomes a flag at which this group could look for one, since what was sent there once may have been any row;
//! whatever is sent along between the named parts is as bad as it can be.
//!
//! Element 16 on of every row is half a flag. Payload tells the batches of a unit apart, or two rounds.
//!
//! [`Memory::WeakExplicit`](super::Memory::WeakExplicit) forgets nothing, lets every effect land by a move of its own,
//! has a piece for every word of either operator, and takes every read for a move. Then only what really goes wrong is an
//! error: one core a rank, and a few operators, are all that is within reach.

mod memory;
mod state;
mod step;
mod view;
mod words;

use super::model::{Memory as Landing, Model, Setup, Twin};
use super::{Identity, Report, Timeline, Violation};
use kernel_core::shape::Shape;
use state::{Group, Move};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use step::Known;

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
    for (branch, next) in (0..).zip(known.initial(false)) {
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
                    if let Entry::Vacant(entry) = visited.entry(state.fingerprint(&known.scene.setup)) {
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
        for what in known.moves(&state) {
            for (branch, next) in (0..).zip(known.after(&state, what)) {
                found.push((Origin { parent: id, what: Some(what), branch }, next));
            }
        }
        moves += found.len();
        if found.is_empty() && !known.is_over(&state) {
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
    let mut traffic = Vec::new();
    let mut state: Option<Group> = None;
    for origin in way.into_iter().rev() {
        let next = match (&mut state, origin.what) {
            (Some(before), Some(what)) => {
                known.tell(before, what);
                known.after(before, what)
            }
            (None, _) => known.initial(true),
            (Some(_), None) => Vec::new(),
        };
        if let Some(Ok(next)) = next.into_iter().nth(origin.branch.into()) {
            next.tell_traffic(&mut traffic);
            state = Some(next);
        } else if let (Some(Move::Core(core)), Some(state)) = (origin.what, &mut state) {
            known.tell_last(state, core);
        }
    }
    let mut events = state.as_mut().and_then(|state| state.story.take()).unwrap_or_default();
    if violation == Violation::Deadlock
        && let Some(state) = &state
    {
        known.tell_waits(state, &mut events);
    }
    Timeline { events, steps: Vec::new(), traffic, violation }
}
