//! The region map of a rank: every area with its place, size and stride, as data to print or check.
//! For shapes of A3.

use super::block;
use super::data::{dispatch_record, partition_start};
use super::record::{self, Triple};
use super::state::{
    self, CORE_RECORD, CORE_WORDS, Operator, Partition, STATUS_SLOT, combine_status, dispatch_status,
};
use super::tp;
use crate::place::{Place, Tensor};
use crate::placement::Home;
use crate::shape::sizes::SCALE_FIELD;
use crate::shape::{Protocol, Shape};
use crate::units::{CoreId, RankId};

/// Bytes of the flag of a block.
const FLAG: u64 = 8;

/// A row of equal slots in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Area {
    /// What lies there.
    pub name: &'static str,
    /// The partition it belongs to, if it has one.
    pub partition: Option<Partition>,
    /// Where it starts.
    pub start: Place,
    /// Slots.
    pub count: u64,
    /// Bytes between the starts of two slots.
    pub stride: u64,
    /// Bytes of a slot that are used.
    pub slot: u64,
}

impl Area {
    /// Bytes from the start to the end of the last stride.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.count * self.stride
    }
}

/// Every area of `rank`'s state and data regions, in address order; with a TP domain then those of its regions.
pub fn areas(shape: &Shape, rank: RankId) -> impl Iterator<Item = Area> {
    let status = both(move |p| status_areas(shape, rank, p));
    let data = both(move |p| data_areas(shape, rank, p));
    let (slots, lent) = (both(move |p| tp_slots(shape, p)), both(move |p| tp_rows(shape, rank, p)));
    let has_tp = shape.tp_world_size() > 1;
    let tp = slots.chain(tp_selectors(shape)).chain(lent).filter(move |_| has_tp);
    status.chain(core_areas(shape)).chain(data).chain(tp)
}

/// The areas of one partition, then of the other.
fn both<A: IntoIterator<Item = Area>>(areas: impl FnMut(Partition) -> A) -> impl Iterator<Item = Area> {
    [Partition::P0, Partition::P1].into_iter().flat_map(areas)
}

fn tp_slots(shape: &Shape, p: Partition) -> [Area; 2] {
    let area = |name, kind| Area {
        name,
        partition: Some(p),
        start: tp::slot(kind, p, CoreId(0)),
        count: u64::from(shape.aiv_num()),
        stride: STATUS_SLOT,
        slot: 12,
    };
    [area("tp dispatch slots", Operator::Dispatch), area("tp combine slots", Operator::Combine)]
}

fn tp_rows(shape: &Shape, rank: RankId, p: Partition) -> [Area; 2] {
    let rows = shape.rows_max(rank);
    let lent =
        |name, start, stride, slot| Area { name, partition: Some(p), start, count: rows, stride, slot };
    let record = record::triple_of(shape, Place::window(0)).offset + Triple::BYTES;
    [
        lent("tp records", tp::record(shape, rank, p, 0), shape.record_pitch(), record),
        lent("tp results", tp::result(shape, rank, p, 0), shape.combine_pitch(), shape.row_bytes()),
    ]
}

fn tp_selectors(shape: &Shape) -> [Area; 2] {
    let area = |name, kind| Area {
        name,
        partition: None,
        start: tp::selector(kind, CoreId(0)),
        count: u64::from(shape.aiv_num()),
        stride: CORE_RECORD,
        slot: 8,
    };
    [area("tp dispatch selectors", Operator::Dispatch), area("tp combine selectors", Operator::Combine)]
}

fn status_areas(shape: &Shape, rank: RankId, p: Partition) -> [Area; 2] {
    let slots = u64::from(shape.local_experts(rank)) * u64::from(shape.ep_world_size());
    let rows = u64::from(shape.bs_max()) * u64::from(shape.combine_columns());
    let area = |name, start, count| Area {
        name,
        partition: Some(p),
        start,
        count,
        stride: STATUS_SLOT,
        slot: STATUS_SLOT,
    };
    [
        area("dispatch status", dispatch_status(p, 0), slots),
        area("combine status", combine_status(p, 0), rows),
    ]
}

fn core_areas(shape: &Shape) -> [Area; 3] {
    let area = |name, start, slot| Area {
        name,
        partition: None,
        start,
        count: u64::from(shape.aiv_num()),
        stride: CORE_RECORD,
        slot,
    };
    [
        area("dispatch selectors", state::selector(Operator::Dispatch, CoreId(0)), 8),
        area("combine selectors", state::selector(Operator::Combine, CoreId(0)), 8),
        area("core words", Place::state(CORE_WORDS), 16),
    ]
}

/// The combine area, then the dispatch area: one row of records, or with a port offset one for each source.
fn data_areas(shape: &Shape, rank: RankId, p: Partition) -> impl Iterator<Item = Area> {
    let rows = u64::from(shape.bs_max()) * u64::from(shape.combine_columns());
    let combine = Area {
        name: "combine rows",
        partition: Some(p),
        start: Place::window(partition_start(shape, p)),
        count: rows,
        stride: shape.combine_pitch(),
        slot: shape.result_bytes(),
    };
    let first = Home { rank, local_expert: 0 };
    let records_of_source = u64::from(shape.local_experts(rank)) * u64::from(shape.bs_max());
    let ranks = shape.ep_world_size();
    let (areas, sources) = if shape.port_offset() == 0 { (1, ranks) } else { (ranks, 1) };
    let dispatch = (0..areas).map(RankId).map(move |source| Area {
        name: "dispatch records",
        partition: Some(p),
        start: dispatch_record(shape, p, first, source, 0),
        count: u64::from(sources) * records_of_source,
        stride: shape.record_pitch(),
        slot: used_bytes(shape),
    });
    core::iter::once(combine).chain(dispatch)
}

/// Bytes of a record in memory, to the end of what is last used.
const fn used_bytes(shape: &Shape) -> u64 {
    match shape.protocol() {
        Protocol::FullmeshV2 => block::flag(Place::window(0), block::count(shape) - 1).offset + FLAG,
        _ => record::sent_bytes(shape),
    }
}

/// One field of a token record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// What it holds.
    pub name: &'static str,
    /// Bytes from the start of the record.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// The fields of a token record. With fullmesh_v2 the data goes on behind the flag of each block, and there are
/// two fields of the first block more.
pub fn record_fields(shape: &Shape) -> impl Iterator<Item = Field> {
    let record = Place::window(0);
    let fields = [
        Field { name: "data", offset: 0, size: shape.payload_bytes() },
        Field { name: "scale", offset: record::scale_of(shape, record).offset, size: SCALE_FIELD },
        Field { name: "triple", offset: record::triple_of(shape, record).offset, size: Triple::BYTES },
    ];
    let of_block = [
        Field { name: "block", offset: 0, size: block::PAYLOAD },
        Field { name: "flag", offset: block::flag(record, 0).offset, size: FLAG },
    ];
    let of_block = of_block.into_iter().filter(|_| shape.protocol() == Protocol::FullmeshV2);
    fields.into_iter().chain(of_block)
}

/// The fields of a row of the combine area.
pub fn combine_fields(shape: &Shape) -> impl Iterator<Item = Field> {
    let format = shape.result_format();
    let scales = Field { name: "scales", offset: shape.comm_scales_at(), size: shape.comm_scales_bytes() };
    let data = Field { name: "data", offset: 0, size: format.payload_bytes };
    core::iter::once(data).chain(format.scale.map(|_| scales))
}

/// Every output tensor of `rank` with its capacity in bytes.
pub fn outputs(shape: &Shape, rank: RankId) -> impl Iterator<Item = (Tensor, u64)> {
    Tensor::ALL.map(|tensor| (tensor, super::outputs::capacity(shape, rank, tensor))).into_iter()
}
