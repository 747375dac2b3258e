//! `veriep layout`

use super::source::{Source, choices, resolve};
use crate::case;
use crate::cli::LayoutArgs;
use crate::config::Config;
use crate::error::{Error, Problem, one_line};
use crate::global_rank;
use crate::hints;
use crate::report::{Report, columns, pairs};
use serde::Serialize;
use std::path::Path;
use veriep_core::layout::map;
use veriep_core::place::Tensor;
use veriep_core::protocol::Choices;
use veriep_core::shape::{Given, Limits, Shape};
use veriep_core::units::RankId;

#[derive(Serialize)]
struct Layout {
    ok: bool,
    config: String,
    rank: u32,
    areas: Vec<Area>,
    record: Vec<Field>,
    combine_row: Vec<Field>,
    outputs: Vec<Output>,
}

#[derive(Serialize)]
struct Area {
    region: String,
    partition: Option<u32>,
    name: &'static str,
    offset: u64,
    size: u64,
    count: u64,
    stride: u64,
    slot: u64,
}

#[derive(Serialize)]
struct Field {
    name: &'static str,
    offset: u64,
    size: u64,
}

#[derive(Serialize)]
struct Output {
    tensor: &'static str,
    capacity: u64,
}

/// What only rows received in another way than by copying have.
const IN_PLACE: [Tensor; 2] = [Tensor::RowTable, Tensor::SentRows];

pub(super) fn run(args: &LayoutArgs, report: &mut Report) -> Result<(), Error> {
    let Source { config, name, .. } = resolve(&args.config)?;
    let config = Config { port_offset: args.mode.port.port_offset, ..config };
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
    let layout = Layout { rank: named.0, ..draw(&shape, choices, name, rank) };
    report.emit(&layout, table)
}

fn draw(shape: &Shape, choices: Choices, config: String, rank: RankId) -> Layout {
    let ep_rank = global_rank::ep_rank(shape, rank);
    let areas = map::areas(shape, choices.mode(), ep_rank).map(|area| Area {
        region: area.start.region.name().to_owned(),
        partition: area.partition.map(veriep_core::layout::state::Partition::index),
        name: area.name,
        offset: area.start.offset,
        size: area.size(),
        count: area.count,
        stride: area.stride,
        slot: area.slot,
    });
    let field = |f: map::Field| Field { name: f.name, offset: f.offset, size: f.size };
    // Rows that are placed directly travel in neither.
    let has_records = |_: &map::Field| !choices.receive.is_direct();
    Layout {
        ok: true,
        config,
        rank: rank.0,
        areas: areas.collect(),
        record: map::record_fields(shape).filter(has_records).map(field).collect(),
        combine_row: map::combine_fields(shape).filter(has_records).map(field).collect(),
        outputs: map::outputs(shape, ep_rank)
            .filter(|&(tensor, capacity)| {
                capacity > 0 && (choices.receive.keeps_rows() || !IN_PLACE.contains(&tensor))
            })
            .map(|(tensor, capacity)| Output { tensor: tensor.name(), capacity })
            .collect(),
    }
}

fn table(layout: &Layout) -> String {
    let number = |n: u64| n.to_string();
    let areas: Vec<_> = layout
        .areas
        .iter()
        .map(|a| {
            let partition = a.partition.map_or_else(|| "-".to_owned(), |p| p.to_string());
            let mut row = vec![a.region.clone(), partition, a.name.to_owned()];
            row.extend([a.offset, a.size, a.count, a.stride, a.slot].map(number));
            row
        })
        .collect();
    let fields = |title: &str, fields: &[Field]| {
        let row = |f: &Field| vec![f.name.to_owned(), number(f.offset), number(f.size)];
        let rows: Vec<_> = fields.iter().map(row).collect();
        if rows.is_empty() {
            return String::new();
        }
        format!("{title}\n{}\n\n", columns(&["field", "offset", "size"], &rows))
    };
    let outputs: Vec<_> = layout.outputs.iter().map(|o| (o.tensor, number(o.capacity))).collect();
    format!(
        "rank {} of {}, in bytes\n\n{}\n\n{}{}outputs, capacity\n{}",
        layout.rank,
        one_line(&layout.config),
        columns(&["region", "partition", "area", "offset", "size", "count", "stride", "slot"], &areas),
        fields("token record", &layout.record),
        fields("combine row", &layout.combine_row),
        pairs(&outputs)
    )
}
