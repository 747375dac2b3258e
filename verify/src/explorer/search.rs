//! A search over all states that can be reached, breadth first, and the way into trouble told again.

use super::{Identity, Report, Timeline, Violation};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

/// What is searched: states, and where their moves lead.
pub(super) trait Space: Sized {
    /// A state; it can tell what has happened.
    type State;
    /// What can be done in a state; several states may follow.
    type Move: Copy;

    /// All initial states; `told`: they keep their story.
    fn initial(&mut self, told: bool) -> Vec<Result<Self::State, Violation>>;
    /// The moves that must be followed, and where they lead.
    fn expand(&mut self, state: &Self::State) -> Vec<Found<Self>>;
    /// Where a move leads; nothing if it cannot be done now.
    fn after(&mut self, state: &Self::State, what: Self::Move) -> Vec<Result<Self::State, Violation>>;
    /// Whether nothing is left to do.
    fn is_over(&self, state: &Self::State) -> bool;
    /// Equal for states that need not be told apart.
    fn fingerprint(&self, state: &Self::State) -> u128;
    /// Traffic matrices met.
    fn matrices(&self) -> usize;

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

/// A move and its successors.
pub(super) type Found<S> = (<S as Space>::Move, Vec<Result<<S as Space>::State, Violation>>);

/// How a state was reached first.
#[derive(Clone, Copy)]
struct Origin<M> {
    parent: u32,
    what: Option<M>,
    /// Which of the move's successors.
    branch: u16,
}

/// Visits all states, up to about `states_max`.
pub(super) fn search<S: Space>(space: &mut S, states_max: usize) -> Report {
    let mut visited: HashMap<u128, (), Identity> = HashMap::default();
    let mut origins: Vec<Origin<S::Move>> = Vec::new();
    let mut frontier: VecDeque<(u32, S::State)> = VecDeque::new();
    let mut moves = 0;
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
    loop {
        for (origin, next) in found.drain(..) {
            match next {
                Err(violation) => {
                    let timeline = tell(space, &origins, origin, violation);
                    return report(space, origins.len(), moves, false, Some(timeline));
                }
                Ok(state) => {
                    let id = origins.len() as u32;
                    if let Entry::Vacant(entry) = visited.entry(space.fingerprint(&state)) {
                        entry.insert(());
                        origins.push(origin);
                        frontier.push_back((id, state));
                    }
                }
            }
        }
        if origins.len() > states_max {
            return report(space, origins.len(), moves, false, None);
        }
        let Some((id, state)) = frontier.pop_front() else {
            return report(space, origins.len(), moves, true, None);
        };
        for (what, after) in space.expand(&state) {
            for (branch, next) in (0..).zip(after) {
                found.push((Origin { parent: id, what: Some(what), branch }, next));
            }
        }
        moves += found.len();
        if found.is_empty() && !space.is_over(&state) {
            let origin = Origin { parent: id, what: None, branch: 0 };
            let timeline = tell(space, &origins, origin, Violation::Deadlock);
            return report(space, origins.len(), moves, false, Some(timeline));
        }
    }
}

/// The way to `last`, told again move by move.
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
    let mut traffic = Vec::new();
    let mut state: Option<S::State> = None;
    for origin in way.into_iter().rev() {
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
        if violation == Violation::Deadlock {
            space.tell_waits(state);
        }
        events = space.story(state);
    }
    Timeline { events, steps: Vec::new(), traffic, violation }
}
