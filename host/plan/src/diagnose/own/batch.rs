//! Decides whether a case is the batch of the rows that ranks have received: each row is at the place to which the case sends
//! it.

use super::super::evidence::Seen;
use super::results::counted_rows;
use super::{Group, Refused, partition};
use std::collections::HashMap;
use veriep_case::case::Case;
use veriep_case::global_rank::{all, ep_rank, named};
use veriep_core::layout::data;
use veriep_core::layout::record::{Triple, triple_of};
use veriep_core::layout::state::Operator;
use veriep_core::place::Region;
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::route::{self, Send, Sends};
use veriep_core::plan::split::{self, DispatchShare};
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId};

/// A row of a case.
struct Row {
    /// The member that sends it.
    from: RankId,
    source: RankId,
    send: Send,
}

/// Looks at the windows of the ranks in the earliest combine, which have all rows of its batch. Notes what they have counted
/// otherwise than the case has it.
///
/// # Errors
/// A row of the case is not there.
pub(super) fn check(group: &Group<'_>, seen: &mut [Option<Seen>]) -> Result<(), Refused> {
    let Some(case) = group.case else { return Ok(()) };
    let combine = |seen: &Seen| seen.last.filter(|(last, _)| *last == Operator::Combine);
    let Some((_, number)) = seen.iter().flatten().filter_map(combine).min_by_key(|(_, number)| *number)
    else {
        return Ok(());
    };
    // Of several batches in flight, rows of a later one may have taken the place.
    let is_over = |seen: &Option<Seen>| seen.as_ref().is_none_or(|seen| seen.begun[0] >= number + 2);
    if group.in_flight > 1 && seen.iter().any(is_over) {
        return Ok(());
    }
    let in_it =
        |member: u32| seen[member as usize].as_ref().and_then(combine).is_some_and(|of| of.1 == number);
    let shape = group.shape;
    let holder = |row: &Row| named(shape.tp_world_size(), row.from, row.send.home.rank, false).0;
    let rows = rows(shape, case);
    for row in &rows {
        let (Row { from, source, send: Send { pair, home, slot } }, holder) = (row, holder(row));
        let at = data::dispatch_record(shape, partition(number), *home, *source, *slot);
        let mut bytes = [0; Triple::BYTES as usize];
        let memory = group.memory(holder).filter(|_| in_it(holder));
        if !memory.is_some_and(|memory| memory.read(triple_of(shape, at), &mut bytes)) {
            continue;
        }
        let found = Triple::from_bytes(shape, &bytes);
        if found != Ok(Triple { source: *source, token: pair.token, k: pair.k }) {
            let found = found.map_or_else(
                |_| "no row".to_owned(),
                |Triple { source, token, k }| {
                    let rank = named(shape.tp_world_size(), *from, source, false).0;
                    format!("token {}, k {k} of rank {rank}", token.0)
                },
            );
            let why = format!(
                "has {found} where --case sends token {}, k {} of rank {}: the case is not the batch of these \
                 dumps; hint: leave out --case",
                pair.token.0, pair.k, from.0
            );
            return Err((Some((holder, Region::Window)), why));
        }
    }
    let mut expected = HashMap::<_, u32>::new();
    for row in &rows {
        let slot = row.send.home.local_expert * shape.ep_world_size() + row.source.0;
        *expected.entry((holder(row), slot)).or_default() += 1;
    }
    // Single cores count nothing, and what was counted in an earlier dispatch is gone.
    let counts = |member: u32| shape.aiv_num() > 1 && in_it(member);
    let has_counts: Vec<_> = (0..).zip(seen.iter()).map(|(member, _)| counts(member)).collect();
    for (member, seen) in (0..).zip(seen) {
        let Some(seen) = seen.as_mut().filter(|seen| has_counts[member as usize] && seen.begun[0] == number)
        else {
            continue;
        };
        let rank = ep_rank(shape, RankId(member));
        seen.contradictions.extend((0..shape.aiv_num()).find_map(|core| {
            let slots = split::slots(shape, rank, CoreId(core));
            let rows = slots.filter_map(|slot| expected.get(&(member, slot))).sum::<u32>();
            let counted = counted_rows(group, member, core);
            (counted != rows)
                .then(|| format!("core {core} has counted {counted} rows, and --case sends it {rows}"))
        }));
    }
    Ok(())
}

/// The rows that the members of a group send, by their case.
fn rows(shape: &Shape, case: &Case) -> Vec<Row> {
    let of = |from: RankId| {
        let (source, inputs) = (ep_rank(shape, from), case.inputs(from));
        let bs = shape.bs(source);
        let share = DispatchShare { moe: 0..bs * shape.k(), shared: 0..bs * shape.shared_expert_num() };
        let mut sent = vec![0; route::destinations(shape) as usize];
        let mut slots = vec![0; route::share_len(&share) as usize];
        route::walk(shape, source, &inputs, &share, &mut sent, &mut slots);
        let sends = Sends::new(shape, source, SendOrder::Plain, &share);
        sends.iter(&inputs, &slots).map(|send| Row { from, source, send }).collect::<Vec<_>>()
    };
    all(shape).flat_map(of).collect()
}
