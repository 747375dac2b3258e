//! A counterexample as a story: what happened, in order, and what must never have.

use super::moves::{Known, Move};
use super::protocol::{Explored, who};
use super::search::Origin;
use super::state::{State, StateOf, Story};
use super::story::{Line, Told};
use super::violation::Violation;
use super::witness::Taken;
use core::fmt;

/// The shortest way into trouble.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// One line per event, with who did what to whose memory.
    pub story: Vec<Line>,
    /// The steps of machines, if a witness has seen their calls.
    pub taken: Vec<Taken>,
    /// The cores whose machines stepped, rank-major numbers in order. With strong memory that is all it takes to
    /// replay it.
    pub steps: Vec<usize>,
    /// Each round's traffic: the expert of each rank's token, or none.
    pub traffic: Vec<Vec<Option<i32>>>,
    /// What must never happen.
    pub violation: Violation,
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, event) in self.story.iter().enumerate() {
            writeln!(f, "{:>3}  {event}", i + 1)?;
        }
        write!(f, "  =  {}", self.violation)
    }
}

/// The way to `last`, told again.
pub(super) fn tell<P: Explored>(
    known: &mut Known<'_, P>,
    origins: &[Origin<P::Event>],
    last: Origin<P::Event>,
    violation: Violation,
) -> Timeline {
    let mut way = vec![last];
    let mut id = last.parent;
    while let Some(&origin) = origins.get(id as usize) {
        way.push(origin);
        id = origin.parent;
    }
    known.setup.telling.set(true);
    let mut traffic = Vec::new();
    let mut state: Option<Box<StateOf<P>>> = None;
    for origin in way.into_iter().rev() {
        let next = match (&mut state, origin.what) {
            (Some(before), Some(what)) => {
                if let Move::Event(event) = what {
                    let event = known.protocol.describe(before, event);
                    before.story.iter_mut().for_each(|story| story.events.push(event.clone()));
                }
                known.failures.clear();
                known.after(before, what)
            }
            (None, _) => known.initial(true),
            (Some(_), None) => Vec::new(),
        };
        if let Some(Ok(next)) = next.into_iter().nth(origin.branch.into()) {
            tell_traffic(&next, &mut traffic);
            state = Some(next);
        } else if let (Some(Move::Core(core)), Some(state)) = (origin.what, &mut state) {
            state.tell(
                who(known.setup, core, known.setup.part_at(core, state.cores[core].op).planned),
                &[Told::of("goes on")],
            );
            state.story.iter_mut().for_each(|story| story.steps.push(core));
        }
    }
    known.setup.telling.set(false);
    // The last step is no part of a state; what it did is.
    let last = known.failures.drain(..).rfind(|(failure, _)| *failure == violation);
    let story = state.and_then(|mut state| {
        if violation.is_wait() {
            known.tell_waits(&mut state);
        }
        state.story
    });
    let Story { events: story, steps, taken } = story.unwrap_or_default();
    let taken = last.map_or(taken, |(_, story)| story.taken);
    Timeline { story, taken, steps, traffic, violation }
}

/// What ranks have chosen in live rounds.
fn tell_traffic<M, O>(state: &State<M, O>, traffic: &mut Vec<Vec<Option<i32>>>) {
    for (n, round) in (state.first_round as usize..).zip(&state.rounds) {
        traffic.resize(traffic.len().max(n + 1), Vec::new());
        traffic[n] = round.choices.iter().map(|choice| choice.flatten()).collect();
    }
}
