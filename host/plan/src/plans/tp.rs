//! The exchange of a core with the core of the same number on the TP peer.

use super::lists::Traffic;
use super::{Ends, ends};
use core::ops::Range;
use serde::Serialize;
use veriep_core::layout::record::sent_bytes;
use veriep_core::layout::state::{Operator, Partition};
use veriep_core::layout::tp;
use veriep_core::place::Place;
use veriep_core::plan::returns::Received;
use veriep_core::plan::split;
use veriep_core::units::{CoreId, RankId};

/// What a core puts at its TP peer and awaits of it.
#[derive(Debug, Serialize)]
pub struct Exchange {
    pub peer: u32,
    /// Rows that it puts, by their numbers at the peer's. In dispatch those that it has copied out itself; in combine a share
    /// of those that belong to the peer.
    pub rows: Option<Ends>,
    /// Of the first of them, in the TP window of the peer.
    pub offset: Option<u64>,
    pub stride: u64,
    pub bytes: u64,
    /// Of flag and number of rows, in the TP state of the peer; the core's own are at the same offset.
    pub slot_offset: u64,
    /// Of the first row's number, there.
    pub first_row_offset: u64,
    pub awaits_rows: Option<Ends>,
}

pub(super) fn dispatch(
    traffic: &Traffic,
    rank: RankId,
    core: CoreId,
    received: Option<&[Received]>,
) -> Option<Exchange> {
    let (shape, peer) = (&traffic.shape, traffic.peer(rank)?);
    // Rows are in the order of slots.
    let copied = |rows: &[Received]| {
        let slots = split::slots(shape, traffic.ep(rank), core);
        let slot = |row: &Received| row.local_expert * shape.ep_world_size() + row.source.0;
        let before = |end| rows.partition_point(|row| slot(row) < end) as u32;
        before(slots.start)..before(slots.end)
    };
    let known = received.map(|own| (copied(own), copied(&traffic.received(peer))));
    let at = |row| tp::record(shape, traffic.ep(rank), Partition::P0, row);
    Some(exchange(traffic, peer, Operator::Dispatch, core, known, &at, sent_bytes(shape)))
}

pub(super) fn combine(
    traffic: &Traffic,
    rank: RankId,
    core: CoreId,
    received: Option<&[Received]>,
) -> Option<Exchange> {
    let (shape, peer) = (&traffic.shape, traffic.peer(rank)?);
    let share = |rows: usize| split::rows(shape, rows as u32, core);
    let known = received.map(|own| (share(traffic.received(peer).len()), share(own.len())));
    let at = |row| tp::result(shape, traffic.ep(rank), Partition::P0, row);
    Some(exchange(traffic, peer, Operator::Combine, core, known, &at, shape.row_bytes()))
}

/// The core puts these rows, then their first number, then publishes flag and number of rows; and awaits as much.
fn exchange(
    traffic: &Traffic,
    peer: RankId,
    kind: Operator,
    core: CoreId,
    known: Option<(Range<u32>, Range<u32>)>,
    at: &dyn Fn(u32) -> Place,
    bytes: u64,
) -> Exchange {
    let slot = tp::slot(kind, Partition::P0, core);
    Exchange {
        peer: traffic.name(peer),
        rows: known.as_ref().map(|(puts, _)| ends(puts)),
        offset: known.as_ref().map(|(puts, _)| at(puts.start).offset),
        stride: at(1).offset - at(0).offset,
        bytes,
        slot_offset: slot.offset,
        first_row_offset: tp::first_row(slot).offset,
        awaits_rows: known.as_ref().map(|(_, awaits)| ends(awaits)),
    }
}
