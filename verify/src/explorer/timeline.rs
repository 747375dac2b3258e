//! A counterexample as a story: what happened, in order, and what must never have.

use super::fabric::Violation;
use super::model::Kind;
use super::state::{Machine, State, Value};
use super::step::{Known, Move};
use super::{Origin, state::Effect};
use core::fmt;
use kernel_core::fabric::order;

/// The shortest way into trouble.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// One line per event.
    pub events: Vec<String>,
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
pub(super) fn replay(known: &mut Known<'_>, way: &[Origin], violation: Violation) -> Timeline {
    let mut events = Vec::new();
    let mut state: Option<State> = None;
    for origin in way {
        let next = match (&state, origin.what) {
            (Some(before), Some(what)) => {
                let next = known.after(before, what).into_iter().nth(origin.branch.into());
                events.push(tell(known, before, what, next.as_ref().and_then(|next| next.as_ref().ok())));
                next
            }
            _ => known.initial().into_iter().nth(origin.branch.into()),
        };
        if let Some(Ok(next)) = &next {
            tell_traffic(state.as_ref(), next, &mut events);
        }
        state = next.and_then(Result::ok).or(state);
    }
    if violation == Violation::Deadlock
        && let Some(state) = &state
    {
        tell_waits(known, state, &mut events);
    }
    Timeline { events, violation }
}

/// What ranks have chosen since the state before.
fn tell_traffic(before: Option<&State>, after: &State, events: &mut Vec<String>) {
    for (batch, round) in (after.first_round..).zip(&after.rounds) {
        let old = before.and_then(|b| b.rounds.get(batch.checked_sub(b.first_round)? as usize));
        for (rank, choice) in round.choices.iter().enumerate() {
            if let Some(choice) = choice
                && old.is_none_or(|old| old.choices[rank].is_none())
            {
                let to = choice.map_or_else(|| "nobody".to_owned(), |e| format!("rank {e}"));
                events.push(format!("rank {rank} begins round {batch}: sends to {to}"));
            }
        }
    }
}

fn tell_waits(known: &mut Known<'_>, state: &State, events: &mut Vec<String>) {
    let cores = known.setup.model.cores as usize;
    for i in 0..state.cores.len() {
        if state.cores[i].machine != Machine::Between
            && let Some(wait) = known.waits_for(state, i)
        {
            events.push(format!("{}: {wait}", who(known, state, i, cores)));
        }
    }
}

fn who(known: &Known<'_>, state: &State, i: usize, cores: usize) -> String {
    let (kind, batch, _) = known.setup.operator(state.cores[i].op);
    let kind = match kind {
        Kind::Dispatch => "dispatch",
        Kind::Combine => "combine",
    };
    let core = if cores > 1 { format!(" core {}", i % cores) } else { String::new() };
    format!("rank {}{core}, {kind} {batch}", i / cores)
}

fn tell(known: &Known<'_>, before: &State, what: Move, after: Option<&State>) -> String {
    let cores = known.setup.model.cores as usize;
    match what {
        Move::Land(i) => {
            let effect = &before.shared.flight[i];
            let (rank, core) = effect.issued.from;
            let core = if cores > 1 { format!(" core {core}") } else { String::new() };
            format!("        lands: {} of rank {rank}{core} at rank {}", of(effect), effect.issued.to)
        }
        Move::Step(i) => {
            let me = who(known, before, i, cores);
            let did = after.map_or_else(|| "takes its next step".to_owned(), |after| did(before, after, i));
            format!("{me}: {did}")
        }
    }
}

fn of(effect: &Effect) -> String {
    let what = match (effect.issued.kind, effect.value) {
        (order::Kind::Put, _) => "row".to_owned(),
        (order::Kind::Publish, Value::Word(word)) => format!("flag {word:#x}"),
        (_, Value::Word(0)) => "clear".to_owned(),
        (_, value) => format!("store {value:?}"),
    };
    format!("{what} ({})", effect.issued.at)
}

/// What a core's step changed for others.
fn did(before: &State, after: &State, i: usize) -> String {
    let new = |effect: &&Effect| !before.shared.flight.contains(effect);
    if let Some(effect) = after.shared.flight.iter().find(new) {
        let verb = match effect.issued.kind {
            order::Kind::Put => "puts",
            order::Kind::Publish => "publishes",
            order::Kind::Store => "issues",
        };
        return format!("{verb} {} to rank {}", of(effect), effect.issued.to);
    }
    if after.shared.rows.len() > before.shared.rows.len() {
        return "puts a row".to_owned();
    }
    if after.shared.rows.len() < before.shared.rows.len() {
        return "reads a row for the last time".to_owned();
    }
    let words = |state: &State| state.shared.words.clone();
    if words(before) != words(after) {
        let fewer = after.shared.words.len() < before.shared.words.len();
        return if fewer { "sees a flag and clears it" } else { "publishes a flag" }.to_owned();
    }
    if after.cores[i].op != before.cores[i].op {
        return "ends".to_owned();
    }
    "looks and goes on".to_owned()
}
