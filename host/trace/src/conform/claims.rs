//! Claims of a header about its run that the record does not bear out. Such a thing is not known, so that no answer
//! may depend on it.

use super::parts::{self, Part};
use super::{Line, Trace};
use std::collections::{BTreeMap, HashSet};
use veriep_case::global_rank::{self, ep_rank};
use veriep_core::layout::data::dispatch_record;
use veriep_core::layout::state::Partition;
use veriep_core::placement::Home;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::sim::order::{Half, Planned};
use veriep_core::units::RankId;
use veriep_group::driver::schedule::Schedule;

/// All that the record does not bear out, or leaves out although no run can.
pub(super) fn unfounded(trace: &Trace, shape: &Shape) -> Vec<String> {
    let found = [operators(trace), dead(trace, shape), places(trace, shape), outputs(trace, shape)];
    found.into_iter().flatten().collect()
}

/// Schedule and rounds: each core takes these operators and halves, no other ones and no more.
fn operators(trace: &Trace) -> Option<String> {
    parts::of_cores(trace).into_iter().find_map(|((rank, core), parts)| {
        let who = format!("rank {rank} core {core} begins");
        let begun = parts.iter().filter(|part| part.planned.is_dispatch() && part.planned.begins());
        let dispatches = begun.count() as u64;
        if let Some(schedule) = &trace.schedule {
            // Batches that come after so many parts are none of this core's: it has taken no more.
            let rounds = trace.rounds.unwrap_or(dispatches).min(parts.len() as u64 + 1);
            let planned = planned(Schedule::read(schedule).ok()?, rounds as usize, trace.chain);
            let astray = |(_, (part, planned)): &(usize, (&Part, Planned))| {
                let Planned { operator, half, .. } = part.planned;
                (operator, half) != (planned.operator, planned.half)
            };
            if let Some((nth, (Part { planned, .. }, _))) = (1..).zip(parts.iter().zip(planned)).find(astray)
            {
                let half = match planned.half {
                    Half::Whole => "",
                    Half::Send => "sending half of a ",
                    Half::Receive => "receiving half of a ",
                };
                let seen = planned.operator.name();
                return Some(format!(
                    "{who} a {half}{seen} as operator {nth}: not by the header's schedule {schedule:?}"
                ));
            }
        }
        // That a core has ended fewer than the schedule asks for is told without this.
        let is_told = |rounds: u64| trace.schedule.is_some() && dispatches < rounds;
        let rounds = trace.rounds.filter(|&rounds| rounds != dispatches && !is_told(rounds))?;
        Some(format!("{who} {dispatches} dispatches: the header has {rounds} rounds"))
    })
}

/// The operators and halves of a schedule for so many rounds, of which a loop is taken `chain` times in one go, or to its end.
fn planned(schedule: Schedule, rounds: usize, chain: Option<usize>) -> impl Iterator<Item = Planned> {
    let repetitions = schedule.times_for(rounds);
    let chain = if schedule.is_loop() { chain.unwrap_or(repetitions) } else { 1 };
    let units = schedule.in_units(rounds, chain.clamp(1, repetitions));
    units.operators().collect::<Vec<_>>().into_iter()
}

/// Dead ranks: they do nothing, and no rank sends them anything.
fn dead(trace: &Trace, shape: &Shape) -> Option<String> {
    let ranks = global_rank::count(shape);
    if let Some(rank) = trace.dead.iter().find(|rank| **rank >= ranks) {
        return Some(format!("the header has rank {rank} dead: there are {ranks} ranks"));
    }
    let is_dead = |rank: &u32| trace.dead.contains(rank);
    let event = (2..)
        .zip(&trace.events)
        .find(|(_, event)| is_dead(&event.rank) || event.peer.as_ref().is_some_and(is_dead));
    let (line, event) = event?;
    let rank = if is_dead(&event.rank) { event.rank } else { event.peer? };
    Some(format!("the header has rank {rank} dead, which takes part in line {line}"))
}

/// The configuration: A3 puts rows of dispatch where its bs, k and experts have them.
fn places(trace: &Trace, shape: &Shape) -> Option<String> {
    let is_a3 = matches!(shape.protocol(), Protocol::FullmeshV1 | Protocol::FullmeshV2);
    if !is_a3 || trace.receive.is_direct() || trace.has_more_partitions {
        return None;
    }
    if !trace.dead.is_empty() {
        let why = "the ids of those that are left, by which rows have their places, are in no record";
        return Some(format!("without dead ranks: {why}"));
    }
    let mut records = BTreeMap::<(u32, u32), HashSet<u64>>::new();
    let lost = (2..).zip(&trace.events).find(|(_, event)| {
        let is_row =
            event.kind == "put" && event.region == "window" && event.operator.as_deref() == Some("dispatch");
        let Some(peer) = event.peer.filter(|_| is_row) else { return false };
        let known = records.entry((event.rank, peer)).or_insert_with(|| places_of(shape, event.rank, peer));
        !known.contains(&event.offset) && !known.iter().any(|at| is_block(shape, *at, event))
    });
    let (line, _) = lost?;
    Some(format!("line {line} puts a row where this configuration has none: is its bs right?"))
}

/// Where a rank puts rows on another one.
fn places_of(shape: &Shape, from: u32, to: u32) -> HashSet<u64> {
    let (source, rank) = (ep_rank(shape, RankId(from)), ep_rank(shape, RankId(to)));
    let experts = 0..shape.local_experts(rank);
    let slots = experts.flat_map(|expert| (0..shape.bs(source)).map(move |slot| (expert, slot)));
    let at = |(local_expert, slot), partition| {
        dispatch_record(shape, partition, Home { rank, local_expert }, source, slot).offset
    };
    slots.flat_map(|slot| [Partition::P0, Partition::P1].map(|partition| at(slot, partition))).collect()
}

/// Whether an event puts a later block of the record that begins there.
fn is_block(shape: &Shape, record: u64, event: &Line) -> bool {
    let behind = event.offset.checked_sub(record);
    shape.protocol() == Protocol::FullmeshV2 && behind.is_some_and(|behind| behind < shape.record_pitch())
}

/// The results of a combine: a row of `x_out` for each token of the rank, also for one that takes no part.
fn outputs(trace: &Trace, shape: &Shape) -> Option<String> {
    let mut written = BTreeMap::<(u64, u32), Vec<(u64, u64)>>::new();
    for event in trace.events.iter().filter(|event| event.operator.as_deref() == Some("combine")) {
        let Some(batch) = event.batch.filter(|_| event.core.is_some()) else { continue };
        let rows = written.entry((batch, event.rank)).or_default();
        if event.kind == "write" && event.region == "x_out" {
            rows.push((event.offset, event.offset.saturating_add(event.length.unwrap_or(0))));
        }
    }
    written.into_iter().find_map(|((batch, rank), mut rows)| {
        rows.sort_unstable();
        let end = rows.iter().fold(0, |end, (start, until)| if *start <= end { end.max(*until) } else { end });
        let tokens = shape.bs(ep_rank(shape, RankId(rank)));
        (end != u64::from(tokens) * shape.row_bytes()).then(|| {
            let row = end / shape.row_bytes();
            format!("rank {rank} writes {row} rows of x_out without a gap in combine of batch {batch}: it has {tokens} tokens")
        })
    })
}
