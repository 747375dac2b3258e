//! `veriep layout`

use super::source::{Source, resolve};
use crate::cli::LayoutArgs;
use crate::report::{Report, columns_of, pairs, table_of};
use std::path::Path;
use veriep_case::case;
use veriep_case::config::Config;
use veriep_case::error::{Error, Problem, one_line};
use veriep_case::global_rank;
use veriep_case::hints;
use veriep_core::shape::{Given, Limits};
use veriep_core::units::RankId;
use veriep_plan::export::PLACES;
use veriep_plan::layout::{Area, Field, Layout, Ranks, layout};

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
    let choices = args.mode.mode().choices(&shape)?;
    report.emit(&layout(&shape, choices, name, Ranks { named, now: rank }), table)
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
