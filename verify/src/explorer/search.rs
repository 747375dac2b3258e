//! A search over all states that can be reached, breadth first.
//!
//! Behind a search that found nothing bad and visited everything comes the question of **liveness**: from every state that
//! was visited there must be a way to one in which a core ends an operator. A group that goes round in circles, because a
//! core polls by stepping for a flag that was lost, is never without a move and still never ends.

use super::protocol::Protocol;
use super::state::StateOf;
use super::step::{Known, Move};
use super::timeline::tell;
use super::{Model, Report, Violation};
use core::hash::{BuildHasher, Hasher};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

/// How a state was reached first.
#[derive(Clone, Copy)]
pub(super) struct Origin<E> {
    pub(super) parent: u32,
    /// Nothing leads to an initial state, nor on from one that is stuck.
    pub(super) what: Option<Move<E>>,
    /// Which of the move's successors.
    pub(super) branch: u16,
}

/// Visits all states, up to about `states_max` and until it is told to stop.
pub(super) fn search<P: Protocol>(mut known: Known<'_, P>) -> Report {
    let setup = known.setup;
    let Model { states_max, stop, .. } = *setup.model;
    let mut visited: HashMap<u128, u32, Identity> = HashMap::default();
    let mut origins: Vec<Origin<P::Event>> = Vec::new();
    let mut frontier: VecDeque<(u32, StateOf<P>)> = VecDeque::new();
    let mut graph = Graph::default();
    let report = |known: &Known<'_, P>, states, moves, complete, counterexample| Report {
        states,
        moves,
        traffic_matrices: known.oracle.matrices(),
        orders: known.protocol.orders(),
        complete,
        counterexample,
    };
    let ended_in = |state: &StateOf<P>| state.cores.iter().map(|core| core.op).sum::<u32>();
    let mut found = Vec::new();
    for (branch, next) in (0..).zip(known.initial(false)) {
        found.push((Origin { parent: u32::MAX, what: None, branch }, next));
    }
    let mut ended = 0;
    loop {
        for (origin, next) in found.drain(..) {
            match next {
                Err(violation) => {
                    let timeline = tell(&mut known, &origins, origin, violation);
                    return report(&known, origins.len(), graph.moves.len(), false, Some(timeline));
                }
                Ok(state) => {
                    let new = origins.len() as u32;
                    let ends = ended_in(&state) > ended;
                    let id = match visited.entry(state.fingerprint(setup, &known.protocol)) {
                        Entry::Occupied(entry) => *entry.get(),
                        Entry::Vacant(entry) => {
                            origins.push(origin);
                            frontier.push_back((new, state));
                            *entry.insert(new)
                        }
                    };
                    graph.add(origin.parent, id, ends);
                }
            }
        }
        if origins.len() > states_max || stop() {
            return report(&known, origins.len(), graph.moves.len(), false, None);
        }
        let Some((id, state)) = frontier.pop_front() else {
            let dead = graph.last_dead(origins.len());
            let timeline = dead.map(|id| {
                let stuck = Origin { parent: id, what: None, branch: 0 };
                tell(&mut known, &origins, stuck, Violation::Livelock)
            });
            return report(&known, origins.len(), graph.moves.len(), timeline.is_none(), timeline);
        };
        for (what, after) in known.expand(&state) {
            for (branch, next) in (0..).zip(after) {
                found.push((Origin { parent: id, what: Some(what), branch }, next));
            }
        }
        ended = ended_in(&state);
        if state.cores.iter().all(|core| setup.ended(core.op)) {
            graph.good.push(id);
        } else if found.is_empty() {
            let origin = Origin { parent: id, what: None, branch: 0 };
            let timeline = tell(&mut known, &origins, origin, Violation::Deadlock);
            return report(&known, origins.len(), graph.moves.len(), false, Some(timeline));
        }
    }
}

/// The moves of a search, by the numbers of their states.
#[derive(Default)]
struct Graph {
    moves: Vec<(u32, u32)>,
    /// States from which a move ends an operator, and those in which all is over.
    good: Vec<u32>,
}

impl Graph {
    fn add(&mut self, from: u32, to: u32, ends: bool) {
        if from == u32::MAX {
            return;
        }
        self.moves.push((to, from));
        if ends {
            self.good.push(from);
        }
    }

    /// The last of `states` from which no way leads to the end of an operator: there everybody has come to wait.
    fn last_dead(&mut self, states: usize) -> Option<u32> {
        self.moves.sort_unstable();
        let mut live = vec![false; states];
        while let Some(id) = self.good.pop() {
            if core::mem::replace(&mut live[id as usize], true) {
                continue;
            }
            let first = self.moves.partition_point(|(to, _)| *to < id);
            let into = self.moves[first..].iter().take_while(|(to, _)| *to == id);
            self.good.extend(into.map(|(_, from)| from).filter(|&&from| !live[from as usize]));
        }
        live.iter().rposition(|live| !live).map(|id| id as u32)
    }
}

/// Fingerprints are hashes already.
#[derive(Clone, Default)]
pub(super) struct Identity;

impl BuildHasher for Identity {
    type Hasher = LowBits;

    fn build_hasher(&self) -> LowBits {
        LowBits(0)
    }
}

pub(super) struct LowBits(u64);

impl Hasher for LowBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.first_chunk().map_or(0, |low| u64::from_le_bytes(*low));
    }
}
