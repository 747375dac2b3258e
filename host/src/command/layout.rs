//! `veriep layout`

use super::export::PLACES;
use super::source::{Source, choices, resolve};
use crate::case;
use crate::cli::LayoutArgs;
use crate::config::Config;
use crate::error::{Error, Problem, one_line};
use crate::global_rank;
use crate::hints;
use crate::report::{Report, cell, items, objects, pairs};
use serde_json::{Value, json};
use std::path::Path;
use veriep_core::layout::map;
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
    let mut layout = draw(&shape, choices, &name, rank);
    layout["rank"] = named.0.into();
    report.emit(&layout, table)
}

fn draw(shape: &Shape, choices: Choices, config: &str, rank: RankId) -> Value {
    let ep_rank = global_rank::ep_rank(shape, rank);
    let areas = map::areas(shape, choices.mode(), ep_rank).map(|area| {
        json!({
            "region": area.start.region.name(),
            "partition": area.partition.map(veriep_core::layout::state::Partition::index),
            "name": area.name,
            "offset": area.start.offset,
            "size": area.size(),
            "count": area.count,
            "stride": area.stride,
            "slot": area.slot,
        })
    });
    // Rows that are placed directly travel in neither record.
    let field = |field: map::Field| {
        let map::Field { name, offset, size } = field;
        (!choices.receive.is_direct()).then(|| json!({"name": name, "offset": offset, "size": size}))
    };
    let output = |(tensor, capacity): (Tensor, u64)| {
        let has = capacity > 0 && (choices.receive.keeps_rows() || !IN_PLACE.contains(&tensor));
        has.then(|| json!({"tensor": tensor.name(), "capacity": capacity}))
    };
    json!({
        "ok": true,
        "config": config,
        "places": "veriep",
        "areas": areas.collect::<Vec<_>>(),
        "record": map::record_fields(shape).filter_map(field).collect::<Vec<_>>(),
        "combine_row": map::combine_fields(shape).filter_map(field).collect::<Vec<_>>(),
        "outputs": map::outputs(shape, ep_rank).filter_map(output).collect::<Vec<_>>(),
    })
}

fn table(layout: &Value) -> String {
    let fields = |title: &str, field: &str| match items(layout, field) {
        [] => String::new(),
        fields => format!("{title}\n{}\n\n", objects(&["field=name", "offset", "size"], fields)),
    };
    // In blocks there are flags between the bytes of a field.
    let record = if items(layout, "record").iter().any(|field| field["name"] == "block") {
        "token record: a stream that blocks cut; offsets are in memory, sizes count its bytes"
    } else {
        "token record"
    };
    let outputs = items(layout, "outputs").iter();
    let outputs: Vec<_> = outputs
        .map(|output| (output["tensor"].as_str().unwrap_or_default(), cell(output, "capacity")))
        .collect();
    let columns = ["region", "partition", "area=name", "offset", "size", "count", "stride", "slot"];
    format!(
        "rank {} of {}, in bytes; {PLACES}\n\n{}\n\n{}{}outputs, capacity\n{}",
        layout["rank"],
        one_line(&cell(layout, "config")),
        objects(&columns, items(layout, "areas")),
        fields(record, "record"),
        fields("combine row", "combine_row"),
        pairs(&outputs)
    )
}
