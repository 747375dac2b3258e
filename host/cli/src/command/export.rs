//! `veriep export`

use super::source::{opened, resolve};
use crate::cli::ExportArgs;
use crate::report::{Report, pairs};
use serde::Serialize;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_core::shape::Shape;
use veriep_core::sync::event::events;
use veriep_core::units::RankId;
use veriep_plan::export::{Exported, routing};

pub(super) fn run(args: &ExportArgs, report: &mut Report) -> Result<(), Error> {
    let source = resolve(&args.config)?;
    let port_offset = args.mode.port_offset;
    let case = opened(&args.config)?.map(|(mut opened, folder)| {
        opened.config.port_offset = port_offset;
        opened.load(folder)
    });
    let case = case.transpose()?;
    let exported = Exported::of(source.config, &args.mode.mode(), &source.name)?;
    let ranks = ranks(&exported.shape, &args.ranks)?;
    let mut files = Vec::from(exported.write(&args.out, &args.prefix, &ranks)?);
    if let Some(case) = &case {
        files.push(routing::write(&args.out, case, &|rank| ranks.contains(&rank))?.to_owned());
    }
    let written = Written {
        ok: true,
        config: source.name,
        folder: args.out.display().to_string(),
        files,
        maps: exported.maps(),
        events: events(&exported.shape, exported.choices.mode()).count(),
    };
    report.emit(&written, Written::table)
}

/// The files that were written.
#[derive(Debug, Serialize)]
struct Written {
    ok: bool,
    config: String,
    folder: String,
    files: Vec<String>,
    maps: usize,
    events: usize,
}

impl Written {
    fn table(&self) -> String {
        pairs(&[
            ("source", self.config.clone()),
            ("folder", self.folder.clone()),
            ("files", self.files.join(", ")),
            ("maps", self.maps.to_string()),
            ("events", self.events.to_string()),
        ])
    }
}

fn ranks(shape: &Shape, asked: &str) -> Result<Vec<RankId>, Error> {
    if asked == "all" {
        return Ok(global_rank::all(shape).collect());
    }
    let count = global_rank::count(shape);
    let rank = |word: &str| match word.parse() {
        Ok(rank) if rank < count => Ok(RankId(rank)),
        _ => Err(Error::Request(format!("--ranks {word}: must be all, or ranks in [0, {}]", count - 1))),
    };
    asked.split(',').map(rank).collect()
}
