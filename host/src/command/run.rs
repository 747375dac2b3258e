//! `veriep run`

use super::source::make_case;
use crate::backend::Backend;
use crate::backend::inject::Inject;
use crate::backend::lockstep::{Lockstep, Memory};
use crate::backend::shared::SharedMemory;
use crate::case::{self, Case, support};
use crate::cli::{BackendArg, RunArgs};
use crate::driver::schedule::Schedule;
use crate::driver::threads::{Times, Workers};
use crate::driver::{self, Batch, Options, RankState};
use crate::error::Error;
use crate::group::{self, Costs, Plan};
use crate::report::{Report, note, progress};
use crate::result::{self, RankResult};
use crate::roofline::{self, Roofline};
use core::time::Duration;
use kernel_core::layout::outputs::capacity;
use kernel_core::place::Tensor;
use kernel_core::shape::{QuantMode, Shape};
use kernel_core::units::RankId;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::path::Path;

mod summary;

/// Memory that a lockstep unit of several rounds may take for inputs and outputs.
const UNIT_BYTES_MAX: u64 = 1 << 30;
/// Repetitions of the bare copies, of which the median counts.
const ROOFLINE_ROUNDS: usize = 5;

pub(super) fn run(args: &RunArgs, report: &mut Report) -> Result<(), Error> {
    let schedule = Schedule::parse(&args.schedule)?;
    let (case, source) = open_case(args)?;
    support::runnable(&case.shape)?;
    let silent = args.silent(case.shape.ep_world_size())?;
    let plan = plan(args, &case.shape, &schedule);
    let bar = match plan.check {
        Some(_) => progress(plan.rounds() as u64 * u64::from(case.shape.ep_world_size()), "ranks checked"),
        None => progress(0, "running"),
    };
    let tick = || bar.inc(1);
    let batches = plan.unit.batches();
    let (costs, roofline) = match args.backend {
        BackendArg::Threads => {
            let memory = SharedMemory::new(&case.shape, batches)
                .map_err(|e| Error::Request(format!("memory of the group: {e}")))?;
            let backend = Inject { inner: memory, silent };
            let workers = workers(args);
            let drive = |unit: &driver::Unit<'_, _>| driver::threads::run(unit, &workers);
            let (costs, ranks) = group::run(&case, &plan, &backend, drive, &tick)?;
            write_result(args.out.as_deref(), &case, &backend, &ranks, batches)?;
            let last = Batch::new(&case, batches - 1);
            let roofline =
                roofline::measure(&backend.inner, &case.shape, &last, &ranks, workers.count, ROOFLINE_ROUNDS);
            (costs, Some(roofline))
        }
        BackendArg::Lockstep | BackendArg::Weak => {
            let memory = match args.backend {
                BackendArg::Weak => Memory::Weak,
                _ => Memory::Strong,
            };
            let lockstep = Lockstep::new(&case.shape, batches, memory, args.seed);
            let backend = Inject { inner: lockstep, silent };
            let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
            let drive = |unit: &driver::Unit<'_, _>| {
                let steps = driver::lockstep::run(unit, &mut rng)?;
                Ok(Times { steps, ..Times::default() })
            };
            let (costs, ranks) = group::run(&case, &plan, &backend, drive, &tick)?;
            write_result(args.out.as_deref(), &case, &backend, &ranks, batches)?;
            (costs, None)
        }
    };
    bar.finish_and_clear();
    summary::emit(report, &Outcome { args, source, case: &case, plan: &plan, costs, roofline })
}

/// What there is to say about a run that ended well.
struct Outcome<'a> {
    args: &'a RunArgs,
    source: String,
    case: &'a Case,
    plan: &'a Plan,
    costs: Costs,
    roofline: Option<Roofline>,
}

fn open_case(args: &RunArgs) -> Result<(Case, String), Error> {
    match &args.case {
        Some(folder) => Ok((case::load(folder)?, folder.display().to_string())),
        None => {
            let (case, source) = make_case(&args.config, &args.tensors, args.seed)?;
            Ok((case, source.name))
        }
    }
}

fn workers(args: &RunArgs) -> Workers {
    let available = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    Workers {
        count: args.threads.map_or(available, |threads| threads as usize),
        spread: args.spread.into(),
        deadline: Duration::from_secs_f64(args.deadline),
    }
}

fn plan(args: &RunArgs, shape: &Shape, schedule: &Schedule) -> Plan {
    let repetitions = (args.rounds as usize).div_ceil(schedule.batches());
    let chain = match (args.chain, args.backend) {
        (Some(chain), _) => chain as usize,
        // A check stops the threads; their times are those of single rounds.
        (None, BackendArg::Threads) => 1,
        // Nothing is timed here: ranks may run ahead of each other as far as memory allows.
        (None, _) => (UNIT_BYTES_MAX / batch_bytes(shape).max(1)) as usize / schedule.batches(),
    };
    let chain = chain.clamp(1, repetitions);
    Plan {
        unit: schedule.repeat(chain),
        units: repetitions.div_ceil(chain),
        options: Options { order: args.order.into(), ..Options::default() },
        check: (!args.no_check)
            .then(|| std::thread::available_parallelism().map_or(1, core::num::NonZero::get)),
    }
}

/// What a batch's inputs and outputs take, about.
fn batch_bytes(shape: &Shape) -> u64 {
    let tokens = u64::from(shape.ep_world_size()) * u64::from(shape.bs_max());
    let rows = tokens * u64::from(shape.combine_columns());
    2 * tokens * shape.row_bytes() + rows * (shape.payload_bytes() + shape.row_bytes())
}

/// The tensors of one rank's result.
struct Owned {
    rows: usize,
    tensors: [Vec<u8>; Tensor::ALL.len()],
}

fn write_result<B: Backend>(
    out: Option<&Path>,
    case: &Case,
    backend: &B,
    ranks: &[RankState],
    batches: usize,
) -> Result<(), Error> {
    let Some(path) = out else { return Ok(()) };
    let (shape, batch) = (&case.shape, batches - 1);
    let owned: Vec<_> = (0..)
        .map(RankId)
        .zip(ranks)
        .map(|(rank, state)| {
            let rows = state.with_y(batch, |y| y.len() as u64 / shape.row_bytes());
            let tensors = Tensor::ALL.map(|tensor| {
                let all = capacity(shape, rank, tensor);
                let len = match tensor {
                    Tensor::ExpandX | Tensor::DynamicScales | Tensor::AssistInfo => {
                        all.checked_div(shape.rows_max(rank)).unwrap_or(0) * rows
                    }
                    _ => all,
                };
                let mut bytes = Vec::new();
                let read = &mut |seen: &[u8]| bytes.extend_from_slice(seen);
                backend.read_output(rank, batch, tensor, len as usize, read);
                bytes
            });
            Owned { rows: rows as usize, tensors }
        })
        .collect();
    let results: Vec<_> = (0..).zip(&owned).map(|(rank, owned)| rank_result(shape, rank, owned)).collect();
    result::write(path, shape, &results)?;
    note(&format!("wrote {}", path.display()));
    Ok(())
}

fn rank_result<'a>(shape: &Shape, rank: u32, owned: &'a Owned) -> RankResult<'a> {
    let tensor = |tensor: Tensor| owned.tensors[tensor as usize].as_slice();
    let quantised = shape.quant_mode() == QuantMode::Dynamic;
    RankResult {
        rank,
        rows: owned.rows,
        expand_x: tensor(Tensor::ExpandX),
        dynamic_scales: quantised.then(|| tensor(Tensor::DynamicScales)),
        assist_info_for_combine: Some(tensor(Tensor::AssistInfo)),
        expand_idx: tensor(Tensor::ExpandIdx),
        expert_token_nums: tensor(Tensor::ExpertTokenNums),
        ep_recv_counts: tensor(Tensor::EpRecvCounts),
        x_out: tensor(Tensor::XOut),
        ..RankResult::default()
    }
}
