//! The memory of a rank: areas, records and outputs.

use serde::Serialize;
use veriep_case::global_rank;
use veriep_core::layout::map;
use veriep_core::layout::state::Partition;
use veriep_core::place::Tensor;
use veriep_core::protocol::Choices;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// The outputs that only groups have whose rows are not copied to experts.
const IN_PLACE: [Tensor; 2] = [Tensor::RowTable, Tensor::SentRows];

/// The memory of a rank. Offsets and sizes are bytes.
#[derive(Debug, Serialize)]
pub struct Layout {
    pub ok: bool,
    pub config: String,
    pub rank: u32,
    pub places: &'static str,
    pub areas: Vec<Area>,
    pub record: Vec<Field>,
    pub combine_row: Vec<Field>,
    pub outputs: Vec<Output>,
}

#[derive(Debug, Serialize)]
pub struct Area {
    pub region: &'static str,
    pub partition: Option<u32>,
    pub name: &'static str,
    pub offset: u64,
    pub size: u64,
    pub count: u64,
    pub stride: u64,
    pub slot: u64,
}

#[derive(Debug, Serialize)]
pub struct Field {
    pub name: &'static str,
    pub offset: u64,
    pub size: u64,
}

#[derive(Debug, Serialize)]
pub struct Output {
    pub tensor: &'static str,
    pub capacity: u64,
}

/// A rank by its name, and by its number among those that are left.
#[derive(Clone, Copy)]
pub struct Ranks {
    pub named: RankId,
    pub now: RankId,
}

/// Returns the memory of a rank of a group; `config` is its name.
#[must_use]
pub fn layout(shape: &Shape, choices: Choices, config: String, rank: Ranks) -> Layout {
    let ep_rank = global_rank::ep_rank(shape, rank.now);
    let areas = map::areas(shape, choices.mode(), ep_rank).map(|area| Area {
        region: area.start.region.name(),
        partition: area.partition.map(Partition::index),
        name: area.named.name(),
        offset: area.start.offset,
        size: area.size(),
        count: area.count,
        stride: area.stride,
        slot: area.slot,
    });
    // Rows that are placed directly travel in neither record.
    let field = |field: map::Field| {
        let map::Field { name, offset, size } = field;
        (!choices.receive.is_direct()).then_some(Field { name: name.name(), offset, size })
    };
    let output = |(tensor, capacity): (Tensor, u64)| {
        let has = capacity > 0 && (choices.receive.keeps_rows() || !IN_PLACE.contains(&tensor));
        has.then_some(Output { tensor: tensor.name(), capacity })
    };
    Layout {
        ok: true,
        config,
        rank: rank.named.0,
        places: "veriep",
        areas: areas.collect(),
        record: map::record_fields(shape).filter_map(field).collect(),
        combine_row: map::combine_fields(shape).filter_map(field).collect(),
        outputs: map::outputs(shape, ep_rank).filter_map(output).collect(),
    }
}
