//! A counterexample as a story: what happened, in order, and what must never have.

use super::fabric::{is_shared, spot};
use super::phase::Phase;
use super::search::Origin;
use super::state::{Effect, Shared, State, Value};
use super::step::{Known, Move};
use super::violation::Violation;
use core::fmt;
use kernel_core::fabric::order;

/// The shortest way into trouble.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// One line per event.
    pub events: Vec<String>,
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
        for (i, event) in self.events.iter().enumerate() {
            writeln!(f, "{:>3}  {event}", i + 1)?;
        }
        write!(f, "  =  {}", self.violation)
    }
}

/// Tells the moves again, one by one.
pub(super) fn replay(known: &mut Known<'_>, way: &[Origin<Move>], violation: Violation) -> Timeline {
    let mut events = Vec::new();
    let mut traffic = Vec::new();
    let mut state: Option<State> = None;
    for origin in way {
        let next = match (&state, origin.what) {
            (Some(before), Some(what)) => {
                let next = known.after(before, what).into_iter().nth(origin.branch.into());
                events.push(tell(known, before, what, next.as_ref().and_then(|next| next.as_ref().ok())));
                next
            }
            (None, _) => known.initial(true).into_iter().nth(origin.branch.into()),
            (Some(_), None) => None,
        };
        if let Some(Ok(next)) = &next {
            tell_traffic(state.as_ref(), next, &mut events, &mut traffic);
        }
        state = next.and_then(Result::ok).or(state);
    }
    if violation.is_wait()
        && let Some(state) = &state
    {
        tell_waits(known, state, &mut events);
    }
    let mut steps = state.and_then(|state| state.log).unwrap_or_default();
    if let Some(Origin { what: Some(Move::Step(i)), .. }) = way.last() {
        steps.push(*i);
    }
    Timeline { events, steps, traffic, violation }
}

/// What ranks have chosen since the state before.
fn tell_traffic(
    before: Option<&State>,
    after: &State,
    events: &mut Vec<String>,
    traffic: &mut Vec<Vec<Option<i32>>>,
) {
    for (batch, round) in (after.first_round..).zip(&after.rounds) {
        let old = before.and_then(|b| b.rounds.get(batch.checked_sub(b.first_round)? as usize));
        for (rank, choice) in round.choices.iter().enumerate() {
            if let Some(choice) = choice
                && old.is_none_or(|old| old.choices[rank].is_none())
            {
                while traffic.len() <= batch as usize {
                    traffic.push(vec![None; round.choices.len()]);
                }
                traffic[batch as usize][rank] = *choice;
                let to = choice.map_or_else(|| "nobody".to_owned(), |e| format!("expert {e}"));
                events.push(format!("rank {rank} begins round {batch}: sends to {to}"));
            }
        }
    }
}

fn tell_waits(known: &mut Known<'_>, state: &State, events: &mut Vec<String>) {
    let cores = known.setup.model.cores as usize;
    for i in 0..state.cores.len() {
        if state.cores[i].phase != Phase::Between
            && let Some(wait) = known.waits_for(state, i)
        {
            events.push(format!("{}: {wait}", who(known, state, i, cores)));
        }
    }
}

fn who(known: &Known<'_>, state: &State, i: usize, cores: usize) -> String {
    let operator = known.setup.named(state.cores[i].op);
    let core = if cores > 1 { format!(" core {}", i % cores) } else { String::new() };
    format!("rank {}{core}, {operator}", i / cores)
}

fn tell(known: &Known<'_>, before: &State, what: Move, after: Option<&State>) -> String {
    let cores = known.setup.model.cores as usize;
    match what {
        Move::Land(i) => {
            let effect = &before.shared.flight[i];
            let (rank, core) = effect.issued.from;
            let core = if cores > 1 { format!(" core {core}") } else { String::new() };
            format!("        lands: the {}, issued by rank {rank}{core}", of(effect))
        }
        Move::Step(i) => {
            let me = who(known, before, i, cores);
            let did =
                after.map_or_else(|| "goes on".to_owned(), |after| did(known, &before.shared, &after.shared));
            format!("{me}: {did}")
        }
    }
}

fn of(effect: &Effect) -> String {
    let what = match (effect.issued.kind, effect.value) {
        (order::Kind::Put, _) => "row".to_owned(),
        (order::Kind::Publish, Value::Word(word)) => format!("word {word:#x}"),
        (_, Value::Word(0)) => "clear".to_owned(),
        (_, value) => format!("store {value:?}"),
    };
    format!("{what} for {} of rank {}", spot(effect.issued.at), effect.issued.to)
}

/// What a core's step changed for others.
fn did(known: &Known<'_>, before: &Shared, after: &Shared) -> String {
    let place = |number| {
        let (rank, at) = known.interner.place_of(number);
        format!("{} of rank {rank}", spot(at))
    };
    if let Some(effect) = after.flight.iter().find(|effect| !before.flight.contains(effect)) {
        return format!("issues a {}", of(effect));
    }
    if let Some((number, _)) = after.rows.iter().find(|row| !before.rows.contains(row)) {
        return format!("puts a row at {}", place(*number));
    }
    if let Some((number, _)) = before.rows.iter().find(|row| !after.rows.contains(row)) {
        return format!("reads the row at {} for the last time", place(*number));
    }
    // A selector is nobody else's business.
    let told = |(number, _): &&(u16, u64)| is_shared(known.interner.place_of(*number).1);
    if let Some((number, word)) = after.words.iter().filter(told).find(|word| !before.words.contains(word)) {
        return format!("publishes {word:#x} at {}", place(*number));
    }
    if let Some((number, _)) = before.words.iter().filter(told).find(|word| !after.words.contains(word)) {
        return format!("sees the flag at {} and clears it", place(*number));
    }
    "sees what it waited for".to_owned()
}
