//! `veriep bench`

mod against;
mod live;
mod machine;
mod table;

use super::quantiles::Quantiles;
use super::source::{Source, resolve};
use super::traffic;
use crate::case::{Case, support};
use crate::cli::{BenchArgs, ConfigArgs, ReceiveArg};
use crate::config::{Bs, Config};
use crate::cures;
use crate::error::Error;
use crate::expected::Expected;
use crate::generate::{Options, generate};
use crate::report::{Report, progress};
use against::Programs;
use core::time::Duration;
use kernel_core::layout::landing;
use kernel_core::shape::{Buffer, Given, Limits, Shape};
use machine::{Machine, Versions};
use serde::Serialize;

/// What is asked when nothing is: the yardstick of the documents.
const EP: [i64; 2] = [2, 8];
const BS: [i64; 3] = [16, 64, 128];

#[derive(Serialize)]
struct Bench {
    ok: bool,
    machine: Machine,
    versions: Versions,
    source: String,
    set: Vec<String>,
    routing: &'static str,
    seed: u64,
    threads: usize,
    /// What works on rows.
    vector: &'static str,
    warm_up: u32,
    iterations: u32,
    results: Vec<Entry>,
}

/// One system at one point of the grid. Its outputs were the oracle's, before the measurement and after it.
#[derive(Serialize)]
struct Entry {
    system: &'static str,
    /// None of a baseline.
    receive: Option<&'static str>,
    ep_world_size: i64,
    bs: Bs,
    h: i64,
    k: i64,
    moe_expert_num: i64,
    quant_mode: i64,
    dtype: String,
    aiv_num: i64,
    hccl_buffsize_mb: i64,
    /// All ranks begin an operator together.
    dispatch_ms: Option<Quantiles>,
    combine_ms: Option<Quantiles>,
    /// Rounds back to back: ranks wait for each other only as the operators do.
    chained: Chained,
    /// Of the rows that dispatch sends, and of the results that combine returns.
    payload_bytes: u64,
    result_bytes: u64,
    moved_bytes: PerOperator<u64>,
    /// The bare copies of `moved_bytes`, where there are any.
    memcpy_ms: Option<PerOperator<f64>>,
    /// `memcpy_ms` by the median.
    of_memcpy: Option<PerOperator<f64>>,
    /// Of the processors' time while this was measured, what a virtual machine did not get.
    stolen_share: Option<f64>,
    /// Payload and results by the median.
    gb_per_s: PerOperator<Option<f64>>,
}

#[derive(Serialize)]
struct Chained {
    /// A dispatch and its combine; over the chains, of each its mean.
    round_ms: Option<Quantiles>,
    chains: usize,
    rounds: u32,
}

#[derive(Clone, Copy, Serialize)]
struct PerOperator<T> {
    dispatch: T,
    combine: T,
}

/// Times by iteration.
#[derive(Debug, Default)]
struct Samples {
    dispatch: Vec<Duration>,
    combine: Vec<Duration>,
}

/// What a system took.
#[derive(Debug, Default)]
struct Measured {
    single: Samples,
    /// By chain, the mean of its rounds.
    chained: Vec<Duration>,
    memcpy: Option<crate::roofline::Roofline>,
    stolen_share: Option<f64>,
}

pub(super) fn run(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let source = source(&args.config)?;
    let routing = args.routing.unwrap_or(source.routing);
    let options = Options { routing, seed: args.seed, ..Options::default() };
    let grid = grid(args, &source);
    // Whatever is wrong with the request is said before the first measurement.
    let (programs, vector) = (Programs::find(args)?, args.vector.find()?);
    for config in &grid {
        let shape = cures::shape(&config.as_core(Given::empty()), Limits::Product, &source.name)?;
        args.receive.iter().try_for_each(|receive| support::receives(&shape, receive.with(1)))?;
        programs.comparable(config)?;
    }
    let bar = progress((grid.len() * (args.receive.len() + args.against.len())) as u64, "systems measured");
    let mut results = Vec::new();
    for config in grid {
        let case = generate(config, options, &source.name)?;
        for &receive in &args.receive {
            results.push(entry(
                "veriep",
                Some(receive),
                &case,
                args.iters,
                &live::measure(&case, args, (receive, vector))?,
            ));
            bar.inc(1);
        }
        if args.against.is_empty() {
            continue;
        }
        let expected = Expected::of(&case);
        for &baseline in &args.against {
            let measured = programs.measure(baseline, args, &case, &expected)?;
            results.push(entry(baseline.name(), None, &case, args.iters, &measured));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let bench = Bench {
        ok: true,
        machine: Machine::here(),
        versions: Versions::new(&programs),
        source: source.name,
        set: args.config.set.clone(),
        routing: routing.name(),
        seed: args.seed,
        threads: live::threads(args),
        vector: vector.name(),
        warm_up: args.warm_up,
        iterations: args.iters,
        results,
    };
    report.emit(&bench, table::table)
}

/// The configuration that is named, else that of the yardstick.
fn source(args: &ConfigArgs) -> Result<Source, Error> {
    if args.preset.is_some() || args.config.is_some() {
        return resolve(args);
    }
    let mut config = Config::default();
    args.set.iter().try_for_each(|assignment| config.set(assignment))?;
    Ok(Source { config, routing: Default::default(), name: "defaults".to_owned() })
}

/// Every size asked for, with a window that suffices.
fn grid(args: &BenchArgs, source: &Source) -> Vec<Config> {
    let is_set = |key: &str| {
        args.config.set.iter().any(|set| set.split_once('=').is_some_and(|(name, _)| name.trim() == key))
    };
    let is_named = args.config.preset.is_some() || args.config.config.is_some();
    let base = &source.config;
    let ep: Vec<i64> = match args.ep.as_slice() {
        [] if is_named || is_set("ep_world_size") => vec![base.ep_world_size],
        [] => EP.to_vec(),
        given => given.iter().map(|&ranks| ranks.into()).collect(),
    };
    let bs: Vec<Bs> = match args.bs.as_slice() {
        [] if is_named || is_set("bs") => vec![base.bs.clone()],
        [] => BS.map(Bs::Uniform).to_vec(),
        given => given.iter().map(|&bs| Bs::Uniform(bs.into())).collect(),
    };
    let sizes = ep.iter().flat_map(|&ep_world_size| bs.iter().map(move |bs| (ep_world_size, bs.clone())));
    let with = |(ep_world_size, bs)| {
        let mut config = Config { ep_world_size, bs, ..base.clone() };
        if !is_set("hccl_buffsize_mb") {
            let required = Buffer::new(&config.as_core(Given::empty())).required_mb;
            config.hccl_buffsize_mb =
                config.hccl_buffsize_mb.max(i64::try_from(required).unwrap_or(i64::MAX));
            // What is wrong with it is said later.
            if args.receive.contains(&ReceiveArg::Direct)
                && let Ok(shape) = Shape::new(&config.as_core(Given::empty()), Limits::Product)
            {
                let required = landing::required_bytes(&shape, 1).div_ceil(1 << 20);
                config.hccl_buffsize_mb = config.hccl_buffsize_mb.max(required.cast_signed());
            }
        }
        config
    };
    sizes.map(with).collect()
}

fn entry(
    system: &'static str,
    receive: Option<ReceiveArg>,
    case: &Case,
    iterations: u32,
    measured: &Measured,
) -> Entry {
    let Measured { single, chained, memcpy, .. } = measured;
    let (config, bytes) = (&case.config, traffic::Bytes::of(case));
    let moved = match receive {
        Some(receive) => bytes.moved(receive),
        None => against::moved(system, &bytes),
    };
    let (dispatch_ms, combine_ms) = (Quantiles::of(&single.dispatch), Quantiles::of(&single.combine));
    let medians =
        PerOperator { dispatch: dispatch_ms.map(|q| q.median), combine: combine_ms.map(|q| q.median) };
    let memcpy_ms = memcpy.map(|copies| PerOperator {
        dispatch: super::quantiles::millis(copies.dispatch),
        combine: super::quantiles::millis(copies.combine),
    });
    let of_memcpy = memcpy_ms.map(|copies| PerOperator {
        dispatch: copies.dispatch / medians.dispatch.unwrap_or(f64::INFINITY),
        combine: copies.combine / medians.combine.unwrap_or(f64::INFINITY),
    });
    let gb_per_s = |bytes: u64, ms: Option<f64>| ms.filter(|&ms| ms > 0.0).map(|ms| bytes as f64 / ms / 1e6);
    Entry {
        system,
        receive: receive.map(ReceiveArg::name),
        ep_world_size: config.ep_world_size,
        bs: config.bs.clone(),
        h: config.h,
        k: config.k,
        moe_expert_num: config.moe_expert_num,
        quant_mode: config.quant_mode,
        dtype: config.dtype.clone(),
        aiv_num: config.aiv_num,
        hccl_buffsize_mb: config.hccl_buffsize_mb,
        dispatch_ms,
        combine_ms,
        chained: Chained { round_ms: Quantiles::of(chained), chains: chained.len(), rounds: iterations },
        payload_bytes: bytes.payload,
        result_bytes: bytes.results,
        moved_bytes: PerOperator { dispatch: moved.0, combine: moved.1 },
        memcpy_ms,
        of_memcpy,
        stolen_share: measured.stolen_share,
        gb_per_s: PerOperator {
            dispatch: gb_per_s(bytes.payload, medians.dispatch),
            combine: gb_per_s(bytes.results, medians.combine),
        },
    }
}
