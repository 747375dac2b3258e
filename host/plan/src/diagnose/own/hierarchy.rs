//! The hierarchy of A2: its words grow with the number of the operator, and none is cleared.

use super::super::evidence::{Seen, at_position};
use super::{Group, LastOperator, Refused, partition};
use veriep_core::fabric::{Flag, Wait};
use veriep_core::layout::affine::{INDICES_MAX, Named};
use veriep_core::layout::field::FieldName;
use veriep_core::layout::relay::unmark;
use veriep_core::layout::state::Operator;
use veriep_core::place::Region;
use veriep_core::plan::split;
use veriep_core::protocol::Stage;
use veriep_core::protocol::hierarchy::Begun;
use veriep_core::sync::call::Tag;
use veriep_core::units::{CoreId, RankId};

/// The levels of words in an operator. A rank tells of counts and of returned rows when all near ranks have entered, of counts
/// also when streams have come; it ends streams of combine when all rows have been returned to it.
const FIRST: u32 = 0;
const FORWARDED: u32 = 1;
const SUMMED: u32 = 2;

/// A map and the field of its word.
type Field = (Named, Option<FieldName>);
/// A word by its field and indices, and whether it has a number beside its epoch.
type Word = (Field, [u32; INDICES_MAX], bool);

const ENTERED: Field = (Named::Entered, Some(FieldName::Word));
const COUNTS: Field = (Named::Counts, Some(FieldName::Word));

pub(super) fn read(group: &Group<'_>) -> Result<Vec<Option<Seen>>, Refused> {
    group.each(Region::Window, |member, _| rank(group, member))
}

fn rank(group: &Group<'_>, member: u32) -> Result<Seen, String> {
    let shape = group.shape;
    let epochs: Vec<_> = (0..shape.aiv_num())
        .map(|core| group.word(member, (Named::Epochs, None), [core, 0, 0, 0, 0]).unwrap_or(0))
        .collect();
    let last = epochs.iter().copied().max().unwrap_or(0);
    if epochs.iter().any(|epoch| epoch.abs_diff(last) > 1) {
        return Err(format!("epochs of its cores: {epochs:?}: cannot be more than one apart"));
    }
    let behind = (0..).zip(&epochs).filter(|(_, epoch)| **epoch < last).map(|(core, _)| core).collect();
    let seen = Seen { is_numbered: true, behind, ..Seen::at(last, group.in_flight) };
    let Some(mut own) = LastOperator::of(group, member, seen) else {
        return Ok(Seen { is_numbered: true, ..Seen::default() });
    };
    let is_dispatch = own.operator == Operator::Dispatch;
    let (server, near) = shape.server_of(RankId(member));
    let half = partition(last).index();
    // The word by which it has entered the operator has the number of its own call.
    let entered = group.word(member, ENTERED, [near, 0, 0, 0, 0]).unwrap_or(0);
    let begun = |number| Begun::of(number, Tag::of(entered), group.choices.checked);
    let is_known = epochs[0] == last && begun(last).is_reached(entered, Wait::IDLE) == Ok(true);
    let mut awaits = |(core, level): (u32, u32), (place, indices, is_mark): Word, wait| {
        let seen = group.word(member, place, indices).unwrap_or(0);
        let judged = begun(last).is_reached(if is_mark { unmark(seen).0 } else { seen }, wait);
        if !(if is_known { own.judged(judged) } else { judged != Ok(false) }) {
            own.note_wait(core, level, wait);
        }
    };
    for near in 0..shape.server_ranks() {
        let wait = Wait::new(Flag::Entered, shape.rank_on(server, near), &[]);
        awaits((0, FIRST), (ENTERED, [near, 0, 0, 0, 0], false), wait);
    }
    let end = match group.choices.stage {
        Stage::Two => (Named::StreamsIn, Some(FieldName::EndFlag)),
        Stage::Three => (Named::EndFlags, Some(FieldName::Word)),
    };
    for from in (0..shape.servers()).filter(|from| *from != server) {
        let level = if is_dispatch { FIRST } else { SUMMED };
        let wait = Wait::new(Flag::Record, shape.relay(RankId(member), from), &[0]);
        awaits((0, level), (end, [half, from, 0, 0, 0], true), wait);
    }
    for core in 0..shape.aiv_num() {
        for slot in split::slots(shape, RankId(member), CoreId(core)).filter(|_| is_dispatch) {
            let (expert, source) = (slot / shape.ep_world_size(), slot % shape.ep_world_size());
            let relay = shape.relay(RankId(source), server);
            let wait = Wait::new(Flag::RelayedCount, relay, &[source, expert]);
            awaits((core, FORWARDED), (COUNTS, [half, expert, source, 0, 0], true), wait);
        }
        for near in (0..shape.server_ranks()).filter(|_| !is_dispatch) {
            let wait = Wait::new(Flag::RowsDone, shape.rank_on(server, near), &[core]);
            let rows_done = (Named::RowsDone, Some(FieldName::Word));
            awaits((0, FORWARDED), (rows_done, [near, core, 0, 0, 0], false), wait);
        }
    }
    // Words of counts stay, so a rank that has left a dispatch has them all.
    let (before, number) = at_position(last - 1, group.in_flight);
    if last > 1 && before == Operator::Dispatch {
        let half = partition(last - 1).index();
        let all = (0..shape.local_expert_num())
            .flat_map(|expert| (0..shape.ep_world_size()).map(move |source| (expert, source)));
        let mut lost = all.filter(|(expert, source)| {
            let at = [half, *expert, *source, 0, 0];
            let word = group.word(member, COUNTS, at);
            word.is_some_and(|word| begun(last - 1).is_reached(unmark(word).0, Wait::IDLE) == Ok(false))
        });
        own.seen.contradictions.extend(lost.next().map(|(expert, source)| {
            format!("it has left dispatch {number}, and lacks its word how many rows rank {source} has for local expert {expert}")
        }));
    }
    own.seen.lacks_own_flags = own.lacks_own(|flag| flag == Flag::RelayedCount);
    if own.seen.waits.is_empty() {
        own.seen.phase = Some("has all words");
    }
    Ok(own.seen)
}
