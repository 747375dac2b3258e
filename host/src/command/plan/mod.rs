//! `veriep plan`: what every core does, as data of `veriep_core::plan`; this only asks and prints.

mod a2;
mod direct;
mod lists;
mod one_core;
mod ports;
mod servers;
mod summary;
mod tp;

pub(super) use one_core::ranges;

use super::source;
use crate::case::RankTensors;
use crate::cli::{PlanArgs, SharedArg};
use crate::config::Config;
use crate::error::Error;
use crate::generate::{MaskKind, Options, generate};
use crate::global_rank;
use crate::hints;
use crate::report::{self, Report, cell, pairs};
use core::ops::Range;
use lists::Traffic;
use serde_json::{Value, json};
use veriep_core::shape::{Given, Limits, Product, Protocol, Shape};
use veriep_core::units::{CoreId, RankId};

pub(super) fn run(args: &PlanArgs, report: &mut Report) -> Result<(), Error> {
    let (traffic, source) = traffic(args)?;
    let (shape, choices) = (&traffic.shape, traffic.choices);
    if choices.receive.is_direct() && args.shared == SharedArg::Even {
        return Err(Error::Request("--shared even: only --receive copy and in-place plan it".to_owned()));
    }
    let on_a2 = shape.product() == Product::A2;
    let has_servers = shape.protocol() == Protocol::Hierarchy;
    let all = json!({"ok": true, "source": source, "set": args.config.set, "experts_known": traffic.known});
    let tell = |head, (plan, table): (Value, fn(&Value) -> String)| {
        report.emit(&report::with(report::with(all, head), plan), table)
    };
    let (Some(rank), core) = (args.rank, args.core) else {
        let summary: (_, fn(&Value) -> _) = match on_a2 {
            true if has_servers => (servers::summary(&traffic), servers::summary_table),
            true => (a2::summary(&traffic), a2::summary_table),
            false => (summary::of(&traffic, args), summary::table),
        };
        return tell(json!({"ranks": traffic.ranks.len(), "cores": shape.aiv_num()}), summary);
    };
    let out_of = |option, seen, end: u32, more| {
        Error::Request(format!("{option} {seen}: must be in [0, {}]{more}", end - 1))
    };
    let Some(own) = traffic.named(rank) else {
        let last = traffic.names.iter().map(|name| name.0).max().unwrap_or(0);
        let more = if rank < last { ", not one that is gone" } else { "" };
        return Err(out_of("--rank", rank, last + 1, more));
    };
    if let Some(core) = core.filter(|&core| core >= shape.aiv_num()) {
        return Err(out_of("--core", core, shape.aiv_num(), ""));
    }
    let cores = || core.map_or_else(|| traffic.cores().collect(), |core| vec![CoreId(core)]);
    let plan: (_, fn(&Value) -> _) = match core {
        _ if has_servers => (servers::of(&traffic, args.order, own, cores()), servers::table),
        _ if on_a2 => (a2::of(&traffic, args.order, own, cores()), a2::table),
        Some(core) => (one_core::of(&traffic, args, own, CoreId(core)), one_core::table),
        None => return Err(Error::Request("missing argument: --core: on A3 --rank needs it".to_owned())),
    };
    // `core` is null for all cores of the rank.
    tell(json!({"rank": traffic.name(own), "core": core}), plan)
}

/// The routing that the arguments name, and its name.
fn traffic(args: &PlanArgs) -> Result<(Traffic, String), Error> {
    if let Some((mut opened, folder)) = source::opened(&args.config)? {
        if let Some(seed) = args.seed {
            return Err(Error::Request(format!("--seed {seed}: {} has its own experts", folder.display())));
        }
        opened.config.port_offset = args.mode.port_offset;
        let given = opened.given()?;
        let case = opened.load(folder)?;
        let plain = without_offset(&case.config, given, folder.display())?;
        let plain = case.elastic.as_ref().map_or(plain.clone(), |elastic| plain.survivors(&elastic.left));
        let names = global_rank::all(&case.shape).map(|rank| case.name(rank)).collect();
        let choices = source::choices(&case.shape, &args.mode)?;
        let traffic = Traffic::new([case.shape, plain], choices, true, case.ranks, names);
        return Ok((traffic, folder.display().to_string()));
    }
    let mut source = source::resolve(&args.config)?;
    source.config.port_offset = args.mode.port_offset;
    let given = match args.mask {
        MaskKind::None => Given::empty(),
        MaskKind::Tokens => Given::MASK_1D,
        MaskKind::Pairs => Given::MASK_2D,
    };
    let shape = hints::shape(&source.config, given, Limits::Product, &source.name)?;
    let plain = without_offset(&source.config, given, &source.name)?;
    let ranks = match args.seed {
        None => {
            global_rank::all(&shape).map(|rank| unknown(&shape, global_rank::ep_rank(&shape, rank))).collect()
        }
        Some(seed) => {
            // Tokens are drawn last: short ones leave the choice of experts as it is.
            let short = Config { h: 8, ..source.config.clone() };
            let routing = args.routing.unwrap_or(source.routing);
            let options =
                Options { routing, seed, mask: args.mask, limits: Limits::None, ..Options::default() };
            generate(short, options, &source.name)?.ranks
        }
    };
    let names = global_rank::all(&shape).collect();
    let choices = source::choices(&shape, &args.mode)?;
    Ok((Traffic::new([shape, plain], choices, args.seed.is_some(), ranks, names), source.name))
}

fn without_offset(config: &Config, given: Given, place: impl core::fmt::Display) -> Result<Shape, Error> {
    let plain = Config { port_offset: 0, ..config.clone() };
    hints::shape(&plain, given, Limits::Product, place)
}

/// All tokens active, with ids that name no expert: what goes to shared experts is known all the same.
fn unknown(shape: &Shape, rank: RankId) -> RankTensors {
    RankTensors { expert_ids: vec![-1; (shape.bs(rank) * shape.k()) as usize], ..RankTensors::default() }
}

/// What every plan of a rank begins with, and more of the plan, for people: then its lists.
fn page<const N: usize>(
    plan: &Value,
    more: [(&'static str, String); N],
    of: &[(&str, &str, &[&str])],
) -> String {
    let rank = cell(plan, "rank");
    let whose = plan["core"]
        .as_u64()
        .map_or_else(|| format!("rank {rank}"), |core| format!("core {core} of rank {rank}"));
    let mut about = vec![("source", cell(plan, "source")), ("plan of", whose), ("experts", known(plan))];
    about.extend(more);
    let mut parts = vec![pairs(&about)];
    parts.extend(report::lists(plan, of));
    parts.join("\n\n")
}

fn known(plan: &Value) -> String {
    if plan["experts_known"] == true { "known" } else { "not known: see --seed" }.to_owned()
}

fn experts(plan: &Value) -> String {
    if plan["experts_known"] == true { "known" } else { "not known: shared experts only" }.to_owned()
}

/// Bounds of a range, as reports have them.
pub(super) const fn ends(range: &Range<u32>) -> [u32; 2] {
    [range.start, range.end]
}
