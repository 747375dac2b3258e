//! A search over all states that can be reached, breadth first.
//!
//! After a search that found nothing bad and visited everything comes the question of **liveness** (`liveness.rs`): from every
//! state that was visited there must be a way to one in which a core ends an operator, and a group in which no actor stops for
//! good must take such a way. A group that goes round in circles, because a core polls by stepping for a flag that was lost,
//! is never without a move and still never ends.
//!
//! Steps that no other core can see are not in the graph. They leave no core behind: each is taken to its end at once, which
//! would not come if they went round in circles, and then every core is tried. The hierarchy also lets some ranks wait while
//! others move; but a circle of its graph ends operators, on all ranks alike, since states count from the slowest core, so
//! no rank waits all the way round.

use super::liveness::{self, Graph, Mover};
use super::moves::{Known, Move};
use super::protocol::Explored;
use super::state::{Bytes, StateOf};
use super::timeline::tell;
use super::{Model, Report, Violation};
use foldhash::HashMap;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;

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
pub(super) fn search<P: Explored>(mut known: Known<'_, P>) -> Report {
    let setup = known.setup;
    let Model { states_max, stop, defect, .. } = *setup.model;
    let mut visited: HashMap<u128, u32> = HashMap::default();
    let mut origins: Vec<Origin<P::Event>> = Vec::new();
    let mut frontier: VecDeque<(u32, Box<StateOf<P>>)> = VecDeque::new();
    // By state, where it is held against the theorem's model: that one's.
    let mut abstractions: Vec<u64> = Vec::new();
    let mut graph = Graph::default();
    let report = |known: &Known<'_, P>, states, graph: &Graph, complete, counterexample| Report {
        states,
        moves: graph.len(),
        traffic_matrices: known.oracle.matrices(),
        orders: setup.orders.take(),
        complete,
        circles: 0,
        counterexample,
    };
    let ended_in = |state: &StateOf<P>| state.cores.iter().map(|core| core.op).sum::<u32>();
    let mut found = Vec::new();
    for (branch, next) in (0..).zip(known.initial(false)) {
        found.push((Origin { parent: u32::MAX, what: None, branch }, None, next));
    }
    let (mut ended, mut bytes) = (0, Bytes::default());
    loop {
        for (origin, mover, next) in found.drain(..) {
            match next {
                Err(violation) => {
                    let timeline = tell(&mut known, &origins, origin, violation);
                    return report(&known, origins.len(), &graph, false, Some(timeline));
                }
                Ok(state) => {
                    let new = origins.len() as u32;
                    let ends = ended_in(&state) > ended;
                    let beside = state.beside.as_ref().map(|beside| beside.number());
                    let fingerprint = state.fingerprint(setup, &known.protocol, &mut bytes);
                    let id = match visited.entry(fingerprint) {
                        Entry::Occupied(entry)
                            if beside.is_some_and(|it| it != abstractions[*entry.get() as usize]) =>
                        {
                            let timeline = tell(&mut known, &origins, origin, Violation::TwoAbstractions);
                            return report(&known, origins.len(), &graph, false, Some(timeline));
                        }
                        Entry::Occupied(entry) => {
                            known.give_back(state);
                            *entry.get()
                        }
                        Entry::Vacant(entry) => {
                            origins.push(origin);
                            abstractions.extend(beside);
                            frontier.push_back((new, state));
                            *entry.insert(new)
                        }
                    };
                    mover.into_iter().for_each(|mover| graph.add(mover, id, ends));
                }
            }
        }
        if origins.len() > states_max || stop() {
            return report(&known, origins.len(), &graph, false, None);
        }
        let Some((id, state)) = frontier.pop_front() else {
            let liveness::Found { dead, circle, parts } = graph.judge(defect);
            let dead = dead.map(|id| (id, Violation::Livelock));
            let bad = dead.or(circle.map(|id| (id, Violation::Circles)));
            let timeline = bad.map(|(parent, violation)| {
                tell(&mut known, &origins, Origin { parent, what: None, branch: 0 }, violation)
            });
            let report = report(&known, origins.len(), &graph, timeline.is_none(), timeline);
            return Report { circles: parts, ..report };
        };
        for (what, after) in known.expand(&state) {
            let mover = match what {
                Move::Core(core) => (Mover::Driver, core as u64),
                Move::Event(event) => known.protocol.mover(&state, event),
            };
            for (branch, next) in (0..).zip(after) {
                found.push((Origin { parent: id, what: Some(what), branch }, Some(mover), next));
            }
        }
        ended = ended_in(&state);
        let is_over =
            state.cores.iter().enumerate().all(|(core, of)| setup.ended(setup.rank_of_core(core), of.op));
        graph.next_state(is_over);
        if !is_over && found.is_empty() {
            let origin = Origin { parent: id, what: None, branch: 0 };
            let timeline = tell(&mut known, &origins, origin, Violation::Deadlock);
            return report(&known, origins.len(), &graph, false, Some(timeline));
        }
        known.give_back(state);
    }
}
