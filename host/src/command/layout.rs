//! `veriep layout`

use super::export::PLACES;
use super::source::{Source, choices, resolve};
use crate::case;
use crate::cli::LayoutArgs;
use crate::config::Config;
use crate::error::{Error, Problem, one_line};
use crate::global_rank;
use crate::hints;
use crate::report::{Report, columns_of, pairs, table_of};
use serde::Serialize;
use std::path::Path;
use veriep_core::layout::map;
use veriep_core::layout::state::Partition;
use veriep_core::place::Tensor;
use veriep_core::protocol::Choices;
use veriep_core::shape::{Given, Limits, Shape};
use veriep_core::units::RankId;

/// What only rows received in another way than by copying have.
const IN_PLACE: [Tensor; 2] = [Tensor::RowTable, Tensor::SentRows];

pub(super) fn run(args: &LayoutArgs, report: &mut Report) -> Result<(), Error> {
    let Source { config, name, .. } = resolve(&args.config)?;
    let config = Config { port_offset: args.mode.port_offset, ..config };
    // A case may be of an elastic domain; its tensors play no part otherwise.
    let folder = args.config.path.as_deref().filter(|path| case::is_case(path));
    let info = folder.map(case::open).transpose()?.and_then(|opened| opened.elastic_info);
    let mut given = Given::empty();
    given.set(Given::ELASTIC_INFO, info.is_some());
    let whole = hints::shape(&config, given, Limits::Product, &name)?;
    let last = global_rank::count(&whole) - 1;
    let (shape, elastic) = case::elastic::survivors(whole, info).map_err(|found| Error::Invalid {
        place: folder.unwrap_or(Path::new("")).join(case::TENSORS_NAME).display().to_string(),
        problems: found.iter().map(Problem::from).collect(),
    })?;
    let named = RankId(args.rank);
    let rank = match &elastic {
        None => Some(named).filter(|rank| rank.0 <= last),
        Some(elastic) => elastic.left.new_id(named),
    };
    let rank = rank.ok_or_else(|| {
        let more = if elastic.is_some() { ", not one that is gone" } else { "" };
        Error::Request(format!("--rank {named}: must be in [0, {last}]{more}"))
    })?;
    let choices = choices(&shape, &args.mode)?;
    report.emit(&layout(&shape, choices, name, Ranks { named, now: rank }), table)
}

/// The memory of a rank. Offsets and sizes are bytes.
#[derive(Debug, Serialize)]
struct Layout {
    ok: bool,
    config: String,
    rank: u32,
    places: &'static str,
    areas: Vec<Area>,
    record: Vec<Field>,
    combine_row: Vec<Field>,
    outputs: Vec<Output>,
}

#[derive(Debug, Serialize)]
struct Area {
    region: &'static str,
    partition: Option<u32>,
    name: &'static str,
    offset: u64,
    size: u64,
    count: u64,
    stride: u64,
    slot: u64,
}

#[derive(Debug, Serialize)]
struct Field {
    name: &'static str,
    offset: u64,
    size: u64,
}

#[derive(Debug, Serialize)]
struct Output {
    tensor: &'static str,
    capacity: u64,
}

/// A rank by its name, and by its number among those that are left.
#[derive(Clone, Copy)]
struct Ranks {
    named: RankId,
    now: RankId,
}

fn layout(shape: &Shape, choices: Choices, config: String, rank: Ranks) -> Layout {
    let ep_rank = global_rank::ep_rank(shape, rank.now);
    let areas = map::areas(shape, choices.mode(), ep_rank).map(|area| Area {
        region: area.start.region.name(),
        partition: area.partition.map(Partition::index),
        name: area.name,
        offset: area.start.offset,
        size: area.size(),
        count: area.count,
        stride: area.stride,
        slot: area.slot,
    });
    // Rows that are placed directly travel in neither record.
    let field = |field: map::Field| {
        let map::Field { name, offset, size } = field;
        (!choices.receive.is_direct()).then_some(Field { name, offset, size })
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

fn table(layout: &Layout) -> String {
    // In blocks there are flags between the bytes of a field.
    let record = if layout.record.iter().any(|field| field.name == "block") {
        "token record: a stream that blocks cut; offsets are in memory, sizes count its bytes"
    } else {
        "token record"
    };
    let outputs = layout.outputs.iter().map(|output| (output.tensor, output.capacity.to_string()));
    format!(
        "rank {} of {}, in bytes; {PLACES}\n\n{}\n\n{}{}outputs, capacity\n{}",
        layout.rank,
        one_line(&layout.config),
        of_areas(&layout.areas),
        of_fields(record, &layout.record),
        of_fields("combine row", &layout.combine_row),
        pairs(&outputs.collect::<Vec<_>>())
    )
}

fn of_areas(areas: &[Area]) -> String {
    table_of(
        &columns_of![Area;
            "region" => region, "partition" => partition, "area" => name, "offset" => offset, "size" => size,
            "count" => count, "stride" => stride, "slot" => slot,
        ],
        areas,
    )
}

fn of_fields(title: &str, fields: &[Field]) -> String {
    if fields.is_empty() {
        return String::new();
    }
    let table = table_of(&columns_of![Field; "field" => name, "offset" => offset, "size" => size], fields);
    format!("{title}\n{table}\n\n")
}
