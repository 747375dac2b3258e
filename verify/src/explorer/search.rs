//! A search over all states that can be reached, breadth first, and the way into trouble told again.
//!
//! Behind a search that found nothing bad and visited everything comes the question of **liveness**: from every state that
//! was visited there must be a way to one in which a core ends an operator. A group that goes round in circles, because a
//! core polls by stepping for a flag that was lost, is never without a move and still never ends.

use super::{Report, Timeline, Violation};
use core::hash::{BuildHasher, Hasher};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

/// What is searched: states, and where their moves lead.
pub(super) trait Space: Sized {
    /// A state.
    type State;
    /// What can be done in a state; several states may follow.
    type Move: Copy;

    /// All initial states; `told`: they keep their story.
    fn initial(&mut self, told: bool) -> Vec<Result<Self::State, Violation>>;
    /// The moves that must be followed, and where they lead.
    fn expand(&mut self, state: &Self::State) -> Vec<Found<Self>>;
    /// Whether nothing is left to do.
    fn is_over(&self, state: &Self::State) -> bool;
    /// Operators that all cores together have ended, from the beginning.
    fn ended(&self, state: &Self::State) -> u32;
    /// Equal for states that need not be told apart.
    fn fingerprint(&self, state: &Self::State) -> u128;
    /// Traffic matrices met.
    fn matrices(&self) -> usize;
    /// The moves of a way into trouble, from an initial state on, told one by one.
    fn retell(&mut self, way: &[Origin<Self::Move>], violation: Violation) -> Timeline;
}

/// A move and its successors.
pub(super) type Found<S> = (<S as Space>::Move, Vec<Result<<S as Space>::State, Violation>>);

/// How a state was reached first.
#[derive(Clone, Copy)]
pub(super) struct Origin<M> {
    parent: u32,
    /// Nothing leads to an initial state, nor on from one that is stuck.
    pub(super) what: Option<M>,
    /// Which of the move's successors.
    pub(super) branch: u16,
}

/// Visits all states, up to about `states_max`.
pub(super) fn search<S: Space>(space: &mut S, states_max: usize) -> Report {
    let mut visited: HashMap<u128, u32, Identity> = HashMap::default();
    let mut origins: Vec<Origin<S::Move>> = Vec::new();
    let mut frontier: VecDeque<(u32, S::State)> = VecDeque::new();
    let mut graph = Graph::default();
    let report = |space: &S, states, moves, complete, counterexample| Report {
        states,
        moves,
        traffic_matrices: space.matrices(),
        complete,
        counterexample,
    };
    let mut found = Vec::new();
    for (branch, next) in (0..).zip(space.initial(false)) {
        found.push((Origin { parent: u32::MAX, what: None, branch }, next));
    }
    let mut ended = 0;
    loop {
        for (origin, next) in found.drain(..) {
            match next {
                Err(violation) => {
                    let timeline = tell(space, &origins, origin, violation);
                    return report(space, origins.len(), graph.moves.len(), false, Some(timeline));
                }
                Ok(state) => {
                    let new = origins.len() as u32;
                    let ends = space.ended(&state) > ended;
                    let id = match visited.entry(space.fingerprint(&state)) {
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
        if origins.len() > states_max {
            return report(space, origins.len(), graph.moves.len(), false, None);
        }
        let Some((id, state)) = frontier.pop_front() else {
            let dead = graph.last_dead(origins.len());
            let timeline = dead.map(|id| {
                let stuck = Origin { parent: id, what: None, branch: 0 };
                tell(space, &origins, stuck, Violation::Livelock)
            });
            return report(space, origins.len(), graph.moves.len(), timeline.is_none(), timeline);
        };
        for (what, after) in space.expand(&state) {
            for (branch, next) in (0..).zip(after) {
                found.push((Origin { parent: id, what: Some(what), branch }, next));
            }
        }
        ended = space.ended(&state);
        if space.is_over(&state) {
            graph.good.push(id);
        } else if found.is_empty() {
            let origin = Origin { parent: id, what: None, branch: 0 };
            let timeline = tell(space, &origins, origin, Violation::Deadlock);
            return report(space, origins.len(), graph.moves.len(), false, Some(timeline));
        }
    }
}

/// The moves of a search, by the numbers of their states.
#[derive(Default)]
struct Graph {
    /// To and from.
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

/// The way to `last`, told again.
fn tell<S: Space>(
    space: &mut S,
    origins: &[Origin<S::Move>],
    last: Origin<S::Move>,
    violation: Violation,
) -> Timeline {
    let mut way = vec![last];
    let mut id = last.parent;
    while let Some(&origin) = origins.get(id as usize) {
        way.push(origin);
        id = origin.parent;
    }
    way.reverse();
    space.retell(&way, violation)
}

/// A space whose states keep their own story while a way is told again.
pub(super) trait Told: Space {
    /// Where a move leads; nothing if it cannot be done now.
    fn after(&mut self, state: &Self::State, what: Self::Move) -> Vec<Result<Self::State, Violation>>;
    /// Tells a move that is about to be done, unless it tells itself.
    fn tell(&self, state: &mut Self::State, what: Self::Move);
    /// Tells a move that went wrong.
    fn tell_last(&self, state: &mut Self::State, what: Self::Move);
    /// Tells what everybody waits for.
    fn tell_waits(&mut self, state: &mut Self::State);
    /// Adds the traffic of rounds that are not there yet.
    fn traffic(&self, state: &Self::State, traffic: &mut Vec<Vec<Option<i32>>>);
    /// The story, taken out.
    fn story(&self, state: &mut Self::State) -> Vec<String>;
}

/// A way, as its states tell it.
pub(super) fn retell<S: Told>(space: &mut S, way: &[Origin<S::Move>], violation: Violation) -> Timeline {
    let mut traffic = Vec::new();
    let mut state: Option<S::State> = None;
    for origin in way {
        let next = match (&mut state, origin.what) {
            (Some(before), Some(what)) => {
                space.tell(before, what);
                space.after(before, what)
            }
            (None, _) => space.initial(true),
            (Some(_), None) => Vec::new(),
        };
        if let Some(Ok(next)) = next.into_iter().nth(origin.branch.into()) {
            space.traffic(&next, &mut traffic);
            state = Some(next);
        } else if let (Some(what), Some(state)) = (origin.what, &mut state) {
            space.tell_last(state, what);
        }
    }
    let mut events = Vec::new();
    if let Some(state) = &mut state {
        if violation.is_wait() {
            space.tell_waits(state);
        }
        events = space.story(state);
    }
    Timeline { events, steps: Vec::new(), traffic, violation }
}

/// Fingerprints are hashes already.
#[derive(Clone, Default)]
struct Identity;

impl BuildHasher for Identity {
    type Hasher = LowBits;

    fn build_hasher(&self) -> LowBits {
        LowBits(0)
    }
}

struct LowBits(u64);

impl Hasher for LowBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.first_chunk().map_or(0, |low| u64::from_le_bytes(*low));
    }
}
