//! `veriep plan`: who sends what, where and in which order. This asks and prints; `veriep_plan::plans` has the answers.

mod a2;
mod one_core;
mod ports;
mod servers;
mod summary;

use super::source;
use crate::cli::PlanArgs;
use crate::report::{Cell, Report as Out, pairs};
use serde::Serialize;
use veriep_case::case::RankTensors;
use veriep_case::config::Config;
use veriep_case::error::Error;
use veriep_case::generate::{MaskKind, Options, generate};
use veriep_case::global_rank;
use veriep_case::hints;
use veriep_core::shape::{Given, Limits, Product, Protocol, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_plan::plans::lists::Traffic;
use veriep_plan::plans::{self, Asked, Ends};
use veriep_spread::shared::SharedSplit;

/// The beginning of every plan.
#[derive(Debug, Serialize)]
struct Head {
    ok: bool,
    source: String,
    set: Vec<String>,
    experts_known: bool,
}

/// That a plan is of all ranks.
#[derive(Debug, Serialize)]
struct OfAll {
    ranks: usize,
    /// Of each rank.
    cores: u32,
}

/// The rank and the core of a plan.
#[derive(Debug, Serialize)]
struct OfRank {
    rank: u32,
    /// Null for all cores of the rank.
    core: Option<u32>,
}

pub(super) fn run(args: &PlanArgs, report: &mut Out) -> Result<(), Error> {
    let (traffic, source) = traffic(args)?;
    let (shape, choices) = (&traffic.shape, traffic.choices);
    if choices.receive.is_direct() && args.shared == SharedSplit::Even {
        return Err(Error::Request("--shared even: only --receive copy and in-place plan it".to_owned()));
    }
    let on_a2 = shape.product() == Product::A2;
    let has_servers = shape.protocol() == Protocol::Hierarchy;
    let head = Head { ok: true, source, set: args.config.set.clone(), experts_known: traffic.known };
    let asked = Asked { order: args.order, shared: args.shared, step: args.step };
    let (Some(rank), core) = (args.rank, args.core) else {
        let of = OfAll { ranks: traffic.ranks.len(), cores: shape.aiv_num() };
        return match on_a2 {
            true if has_servers => {
                emit(report, head, of, plans::servers::summary(&traffic), servers::summary_table)
            }
            true => emit(report, head, of, plans::a2::summary(&traffic), a2::summary_table),
            false => emit(report, head, of, plans::summary::of(&traffic, asked), summary::table),
        };
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
    let of = OfRank { rank: traffic.name(own), core };
    match core {
        _ if has_servers => {
            emit(report, head, of, plans::servers::of(&traffic, args.order, own, cores()), servers::table)
        }
        _ if on_a2 => emit(report, head, of, plans::a2::of(&traffic, args.order, own, cores()), a2::table),
        Some(core) => {
            emit(report, head, of, plans::one_core::of(&traffic, asked, own, CoreId(core)), one_core::table)
        }
        None => Err(Error::Request("missing argument: --core: on A3 --rank needs it".to_owned())),
    }
}

#[derive(Debug, Serialize)]
struct Report<S, P> {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    of: S,
    #[serde(flatten)]
    plan: P,
}

fn emit<S: Serialize, P: Serialize>(
    out: &mut Out,
    head: Head,
    of: S,
    plan: P,
    table: fn(&Head, &S, &P) -> String,
) -> Result<(), Error> {
    out.emit(&Report { head, of, plan }, |report| table(&report.head, &report.of, &report.plan))
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
        let choices = args.mode.mode().choices(&case.shape)?;
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
    let choices = args.mode.mode().choices(&shape)?;
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

/// The page of a rank's plan: whose it is, more about it, then its lists.
fn page<const N: usize>(
    head: &Head,
    of: &OfRank,
    more: [(&'static str, String); N],
    lists: impl IntoIterator<Item = String>,
) -> String {
    let whose = of
        .core
        .map_or_else(|| format!("rank {}", of.rank), |core| format!("core {core} of rank {}", of.rank));
    let mut about = vec![("source", head.source.clone()), ("plan of", whose), ("experts", known(head))];
    about.extend(more);
    let parts: Vec<_> = core::iter::once(pairs(&about)).chain(lists).collect();
    parts.join("\n\n")
}

fn known(head: &Head) -> String {
    if head.experts_known { "known" } else { "not known: see --seed" }.to_owned()
}

fn experts(head: &Head) -> String {
    if head.experts_known { "known" } else { "not known: shared experts only" }.to_owned()
}

/// The range for people; `none` if it is empty.
fn or_none(range: Ends) -> String {
    let Ends([start, end]) = range;
    if start == end { "none".to_owned() } else { range.cell() }
}

impl Cell for Ends {
    fn cell(&self) -> String {
        format!("{}..{}", self.0[0], self.0[1])
    }
}
