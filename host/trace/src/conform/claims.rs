//! Claims of a header about its run that the record does not bear out. Such a thing is not known, so that no answer
//! may depend on it.

use super::parts::{self, Part};
use super::{Line, Trace};
use std::collections::BTreeMap;
use veriep_case::global_rank::{self, ep_rank};
use veriep_core::layout::affine::{Index, Mode, Named};
use veriep_core::layout::quantity::Memory;
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
    let lost = (2..).zip(&trace.events).find(|(_, event)| {
        let is_row =
            event.kind == "put" && event.region == "window" && event.operator.as_deref() == Some("dispatch");
        event.peer.is_some_and(|peer| is_row && !is_of_record(shape, event, peer))
    });
    let (line, _) = lost?;
    Some(format!("line {line} puts a row where this configuration has none: is its bs right?"))
}

/// Whether an event puts a record for `peer`, or with fullmesh_v2 a block of one, where rows of its rank lie.
fn is_of_record(shape: &Shape, event: &Line, peer: u32) -> bool {
    let [source, rank] = [event.rank, peer].map(|rank| ep_rank(shape, RankId(rank)));
    let memory = Memory { shape, mode: Mode::default(), rank };
    let Some(record) = Named::DispatchRecords.find(&memory, event.offset) else { return false };
    let is_own = record.index(Index::Source) == Some(source.0)
        && record.index(Index::Slot).is_some_and(|slot| slot < shape.bs(source));
    is_own && (record.inside == 0 || shape.protocol() == Protocol::FullmeshV2)
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
