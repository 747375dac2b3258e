//! Claims of a header about its run that the record does not bear out. Such a thing is not known, so that no answer
//! may depend on it.

use super::{Line, Trace};
use std::collections::{BTreeMap, HashSet};
use veriep_case::global_rank::{self, ep_rank};
use veriep_core::layout::data::dispatch_record;
use veriep_core::layout::state::Partition;
use veriep_core::placement::Home;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::RankId;

/// All that the record does not bear out, or leaves out although no run can.
pub(super) fn unfounded(trace: &Trace, shape: &Shape) -> Vec<String> {
    let found = [operators(trace), dead(trace, shape), places(trace, shape), outputs(trace, shape)];
    found.into_iter().flatten().collect()
}

/// The operators that each core begins, in their order.
fn begun(trace: &Trace) -> BTreeMap<(u32, u32), Vec<&str>> {
    let (mut begun, mut last) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::new());
    for event in trace.events.iter().filter(|event| event.kind == "begin") {
        let (Some(core), Some(batch), Some(operator)) = (event.core, event.batch, event.operator.as_deref())
        else {
            continue;
        };
        let planned = (batch, operator);
        // A further begin is another phase.
        if last.insert((event.rank, core), planned) != Some(planned) {
            begun.entry((event.rank, core)).or_default().push(operator);
        }
    }
    begun
}

/// Schedule and rounds: each core begins these operators, no other ones and no more.
fn operators(trace: &Trace) -> Option<String> {
    let letter = |operator: &&str| if *operator == "dispatch" { 'D' } else { 'C' };
    begun(trace).into_iter().find_map(|((rank, core), operators)| {
        let order: String = operators.iter().map(letter).collect();
        let who = format!("rank {rank} core {core} begins");
        if let Some(schedule) = &trace.schedule {
            let planned: String = schedule.chars().cycle().take(order.len()).collect();
            if planned != order {
                let nth = planned.chars().zip(order.chars()).position(|(planned, seen)| planned != seen)?;
                let seen = operators.get(nth)?;
                return Some(format!(
                    "{who} a {seen} as operator {}: not by the header's schedule {schedule:?}",
                    nth + 1
                ));
            }
        }
        let dispatches = operators.iter().filter(|operator| **operator == "dispatch").count() as u64;
        // That a core has ended fewer than the schedule asks for is told without this.
        let is_told = |rounds: u64| trace.schedule.is_some() && dispatches < rounds;
        let rounds = trace.rounds.filter(|&rounds| rounds != dispatches && !is_told(rounds))?;
        Some(format!("{who} {dispatches} dispatches: the header has {rounds} rounds"))
    })
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
    if !is_a3 || trace.is_direct || trace.has_more_partitions {
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
