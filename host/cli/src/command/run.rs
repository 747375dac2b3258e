//! `veriep run`

use super::record::{self, Subject};
use super::source::{inputs, keep_apart, open_case};
use crate::cli::{BackendArg, Faults, RowCopyArg, RunArgs, name_of};
use crate::report::{Progress, Report, note, progress};
use core::sync::atomic::AtomicU64;
use core::time::Duration;
use std::sync::{Arc, OnceLock};
use veriep_case::atomic_file::check_writable;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::config::FILE_NAME;
use veriep_case::dump;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_case::parallel::processors;
use veriep_case::store::refuse_numpy_name;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::protocol::{Choices, Flags};
use veriep_core::shape::{Product, Protocol, Shape};
use veriep_core::vector::Any;
use veriep_group::backend::inject::{Inject, Killed};
use veriep_group::backend::lockstep::{Lockstep, Memory};
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer, Layered};
use veriep_group::driver::schedule::{Schedule, Units};
use veriep_group::driver::threads::{Times, Workers};
use veriep_group::driver::{self, Options, RankState};
use veriep_group::dump::{Dump, Mapped};
use veriep_group::group::{self, Costs, Plan};
use veriep_group::roofline::{self, Roofline};
use veriep_group::traffic as bytes;
#[cfg(target_os = "linux")]
use veriep_group::world::Invited;
use veriep_group::world::World;
use veriep_plan::mode::Mode;
use veriep_trace::events::Unit;
use veriep_trace::events::log::Log;
use veriep_trace::events::page::About;
use veriep_trace::events::recorder::Recording;

#[cfg(target_os = "linux")]
mod mpi;
mod output;
#[cfg(target_os = "linux")]
mod processes;
mod summary;

/// Memory that a lockstep unit of several rounds may take for inputs and outputs, about.
const UNIT_BYTES_MAX: u64 = 1 << 28;
/// What one may take that is asked for: every round of it has inputs and outputs of its own.
const CHAIN_BYTES_MAX: u64 = 4 << 30;

/// Long enough for a cold start on a busy machine.
const DEADLINE_SECONDS: f64 = 60.0;

/// A checked request.
struct Job<'a> {
    args: &'a RunArgs,
    source: String,
    case: Case,
    plan: Plan,
    /// Processes; one where it is this one.
    processes: usize,
    /// Threads of each.
    workers: Workers,
    faults: Faults,
    /// How rows are copied, once that is known.
    row_copy: OnceLock<RowCopy>,
    /// For how many of the first rounds memory was committed before they began, once that is known.
    committed: OnceLock<usize>,
}

/// What a run that ended well has cost.
struct Ran {
    costs: Costs,
    /// Only where time is real.
    roofline: Option<Roofline>,
}

/// Whether all files that are asked for can be written, and nothing that is read is lost.
fn keep_files(args: &RunArgs) -> Result<(), Error> {
    let [events, trace, html] = args.record.files();
    let config = args.dump.as_ref().map(|folder| folder.join(FILE_NAME));
    args.dump.iter().try_for_each(|folder| dump::make(folder))?;
    // Not after an hour of running.
    args.out.iter().try_for_each(|path| refuse_numpy_name(path).and_then(|()| check_writable(path)))?;
    keep_apart(
        &inputs(&args.config),
        &[("--out", args.out.as_deref()), events, trace, html, ("--dump", config.as_deref())],
    )
}

pub(super) fn run(args: &RunArgs, report: &mut Report) -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    if args.backend == BackendArg::Mpi {
        return mpi::run(args, report);
    }
    #[cfg(target_os = "linux")]
    if let Some(invited) = Invited::of_parent().map_err(|e| Error::Request(e.to_string()))? {
        processes::take_part(args, &invited);
    }
    keep_files(args)?;
    let (job, schedule) = job(args, None)?;
    if args.deadline.is_some() && !args.backend.is_timed() {
        let backend = name_of(args.backend);
        note(&format!("note: --deadline: --backend {backend} needs none: a hang is seen at once"));
    }
    let bar = match job.plan.check {
        Some(_) => checking(&job),
        None => progress(0, "running"),
    };
    let ran = match args.backend {
        BackendArg::Threads => on_threads(&job, &|| bar.inc(1)),
        BackendArg::Lockstep => in_lockstep(&job, Memory::Strong, &|| bar.inc(1)),
        BackendArg::Weak => in_lockstep(&job, Memory::Weak, &|| bar.inc(1)),
        #[cfg(target_os = "linux")]
        BackendArg::Processes => processes::run(&job, &|| bar.inc(1)),
        #[cfg(not(target_os = "linux"))]
        BackendArg::Processes => Err(only_linux(args)),
        // On Linux it has been run.
        BackendArg::Mpi => Err(only_linux(args)),
    };
    drop(bar);
    summary::emit(report, &job, &ran.map_err(|error| hinted(error, &job, &schedule))?)
}

/// The progress of a run that compares all rounds of all ranks.
fn checking(job: &Job<'_>) -> Progress {
    progress(job.plan.rounds() as u64 * u64::from(global_rank::count(&job.case.shape)), "ranks checked")
}

fn only_linux(args: &RunArgs) -> Error {
    Error::Request(format!("--backend {}: only Linux has it", name_of(args.backend)))
}

/// An error with what may have led to it.
fn hinted(error: Error, job: &Job<'_>, schedule: &Schedule) -> Error {
    match schedule.in_flight() {
        in_flight @ 3.. if job.case.shape.product() == Product::A3 => {
            let asked = asked_of_schedule(&job.args.schedule, &job.case.shape, &job.plan.options.choices);
            error.with(&format!("; {in_flight} batches in flight: {asked} tells whether that is safe"))
        }
        _ => error,
    }
}

/// The request, checked; of a launcher that has started so many processes, if one has.
fn job(args: &RunArgs, started: Option<usize>) -> Result<(Job<'_>, Schedule), Error> {
    let schedule = Schedule::parse(&args.schedule)?;
    let backend = name_of(args.backend);
    let timed = "--backend threads, processes and mpi have";
    let is_mpi = args.backend == BackendArg::Mpi;
    for (wrong, option, who) in [
        (args.threads.is_some() && !args.backend.is_timed(), "--threads", timed),
        (args.row_copy.is_some() && !args.backend.is_timed(), "--row-copy", timed),
        (args.spread.is_some() && !args.backend.is_timed(), "--spread", timed),
        (
            args.processes.is_some() && args.backend != BackendArg::Processes && !is_mpi,
            "--processes",
            "--backend processes and mpi have",
        ),
        (args.all_far && !is_mpi, "--all-far", "--backend mpi has"),
    ] {
        if wrong {
            return Err(Error::Request(format!("{option}: only {who} it, not {backend}")));
        }
    }
    if matches!(args.backend, BackendArg::Processes | BackendArg::Mpi) && record::is_asked(&args.record) {
        let wrong = "--events, --trace, --html: only --backend threads, lockstep and weak have them, not";
        return Err(Error::Request(format!("{wrong} {backend}")));
    }
    let (case, source) =
        open_case(&args.config, &args.tensors, args.seed, (args.mode.port_offset, u64::MAX))?;
    let mode = Mode { checked: !args.unchecked, ..args.mode.mode() };
    let choices = mode.ordered(&case.shape, schedule.in_flight(), args.order)?;
    let faults = args.faults(&case)?;
    let processes = processes(args, &case.shape, started)?;
    let mut plan = plan(args, &case.shape, &schedule, processes, (choices, args.vector.find()?))?;
    let Options { skips, wrong_batch, stopped, .. } = &mut plan.options;
    (*skips, *wrong_batch, *stopped) = (faults.skips, faults.wrong_batch, faults.absent_core);
    check_order(args, &case.shape, &schedule, &plan)?;
    let workers = workers(args, processes);
    let (row_copy, committed) = Default::default();
    Ok((Job { args, source, case, plan, processes, workers, faults, row_copy, committed }, schedule))
}

/// Refuses an order that a rank's gates refuse, unless the request leaves all checks to the results.
fn check_order(args: &RunArgs, shape: &Shape, schedule: &Schedule, plan: &Plan) -> Result<(), Error> {
    let order = &args.schedule;
    if schedule.has_halves() && shape.tp_world_size() > 1 {
        return Err(Error::Request(format!(
            "--schedule {order}: operators of a TP domain have no halves: must be whole operators, such as DC"
        )));
    }
    if args.unchecked {
        return Ok(());
    }
    let Some((planned, error)) = plan.refused(shape) else { return Ok(()) };
    Err(Error::Request(format!(
        "--schedule {order}: {planned}: {error}: see {}, or run it with --unchecked",
        asked_of_schedule(order, shape, &plan.options.choices)
    )))
}

/// The command that asks whether an order is safe in a group of these choices. A shell reads the order as one argument.
fn asked_of_schedule(order: &str, shape: &Shape, choices: &Choices) -> String {
    let mut command = format!("veriep schedule {order}");
    if order.contains(' ') {
        command = format!("veriep schedule \"{order}\"");
    }
    match shape.protocol() {
        Protocol::Fullmesh => command.push_str(" --product a2"),
        Protocol::Hierarchy => command.push_str(" --product a2 --hierarchy"),
        _ => {}
    }
    let receive = choices.receive;
    if receive.keeps_rows() {
        command.push_str(&format!(" --receive {}", receive.name()));
    }
    if receive.overwrites() {
        command.push_str(" --experts overwrite");
    }
    if choices.flags == Flags::Separate {
        command.push_str(" --flags separate");
    }
    command
}

/// What is in front of a memory in every run.
fn layers<B>(job: &Job<'_>, memory: B) -> Layered<Inject, Layered<RankRemap, B>> {
    let case = &job.case;
    let Faults { silent, twice, killed, slow, late, .. } = job.faults;
    let inject = Inject {
        silent,
        twice,
        killed: killed.map(|(rank, at)| Killed { rank, at, made: AtomicU64::new(0) }),
        slow,
        late,
        shape: case.shape.clone(),
        choices: job.plan.options.choices,
    };
    inject.over(RankRemap::of(case).over(memory))
}

fn on_threads(job: &Job<'_>, tick: &(dyn Fn() + Sync)) -> Result<Ran, Error> {
    let Job { case, plan, workers, .. } = job;
    let memory = SharedMemory::new(case, plan.unit.batches()).map_err(Error::of_memory)?;
    let memory = prepared(job, memory.with_row_copy(unmeasured(job)), workers.count)?;
    let _ = job.row_copy.set(memory.row_copy());
    let mapped = memory.mapped();
    recorded(job, Unit::Ns, |log| match log {
        Some(_) => drive_threads(job, Recording(log.clone()).over(memory), mapped, &log, tick),
        // Machines compiled without a recorder take a tenth less instructions than those with one that is off.
        None => drive_threads(job, memory, mapped, &log, tick),
    })
}

fn drive_threads<B: Backend>(
    job: &Job<'_>,
    memory: B,
    mapped: Vec<Mapped>,
    log: &Option<Arc<Log>>,
    tick: &(dyn Fn() + Sync),
) -> Result<Ran, Error> {
    let Job { case, plan, workers, .. } = job;
    let world = World::alone(global_rank::count(&case.shape), workers.count);
    let backend = layers(job, memory);
    let drive = |unit: &driver::Unit<'_, _>| {
        log.iter().for_each(|log| log.begins_unit(unit.first_round));
        driver::threads::run(unit, workers)
    };
    let run = || group::run(&case.shape, plan, traffic(job), (&world, &backend), drive, tick);
    let (costs, ranks) = dumped(job, mapped, run)?;
    // The last round's result is the case's, and its rows are what bare copies copy.
    if costs.rounds < plan.rounds() {
        return Ok(Ran { costs, roofline: None });
    }
    if let Some(path) = &job.args.out {
        output::write(path, case, &backend, &rows(job, &ranks), plan.last_rounds() - 1)?;
    }
    // Times of recorded operators are compared with nothing: most of them is the recording.
    if log.is_some() {
        return Ok(Ran { costs, roofline: None });
    }
    // The bare copies overwrite the memory: they come last.
    let group = (case, plan.options.choices);
    let roofline = roofline::measure(&backend.inner, group, workers.count)?;
    Ok(Ran { costs, roofline: Some(roofline) })
}

/// Runs with a record of events in such units of time, if one is asked for. It is written even of a run that hangs.
fn recorded<T>(
    job: &Job<'_>,
    unit: Unit,
    run: impl FnOnce(Option<Arc<Log>>) -> Result<T, Error>,
) -> Result<T, Error> {
    let Job { args, case, plan, .. } = job;
    let asked = (args.schedule.as_str(), plan.rounds());
    let subject = Subject { chain: plan.chain(), ..Subject::of(case, unit, plan.options.choices, asked) };
    let log = record::begin(&args.record, &subject)?;
    let ran = run(log.clone());
    record::end(&args.record, log, |_| {
        let title = format!("{} on {}, seed {}", job.source, name_of(args.backend), args.seed);
        (Vec::new(), About { title, ..About::default() })
    })?;
    ran
}

/// A new group's memory that copies rows as is asked; else as is fastest here on so many threads, if the run is long enough to
/// gain by that. What the first rounds touch is committed.
fn prepared(job: &Job<'_>, mut memory: SharedMemory, threads: usize) -> Result<SharedMemory, Error> {
    let Job { case, plan, .. } = job;
    let group = (case, plan.options.choices);
    if asked(job) == RowCopyArg::Auto && plan.rounds() >= roofline::WORTH_MEASURING {
        memory = roofline::fastest(memory, group, threads)?;
    }
    let rounds = (plan.rounds(), plan.unit.batches());
    let committed = roofline::commit(&memory, group, rounds, traffic(job), threads)?;
    let _ = job.committed.set(committed);
    Ok(memory)
}

/// How a run copies rows where that is not measured.
fn unmeasured(job: &Job<'_>) -> RowCopy {
    bytes::unmeasured(&job.case, job.plan.options.choices.receive, asked(job).named())
}

fn asked(job: &Job<'_>) -> RowCopyArg {
    job.args.row_copy.unwrap_or(RowCopyArg::Auto)
}

fn in_lockstep(job: &Job<'_>, memory: Memory, tick: &(dyn Fn() + Sync)) -> Result<Ran, Error> {
    let Job { case, plan, args, .. } = job;
    let batches = plan.unit.batches();
    let lockstep = Lockstep::new(case, batches, memory, args.seed).map_err(Error::of_memory)?;
    let mapped = lockstep.mapped();
    let world = World::alone(global_rank::count(&case.shape), 0);
    recorded(job, Unit::Events, |log| {
        let backend = layers(job, Recording(log.clone()).over(lockstep));
        let drive = |unit: &driver::Unit<'_, _>| {
            log.iter().for_each(|log| log.begins_unit(unit.first_round));
            let steps = driver::lockstep::run(unit)?;
            Ok(Times { steps, ..Times::default() })
        };
        let run = || group::run(&case.shape, plan, traffic(job), (&world, &backend), drive, tick);
        let (costs, ranks) = dumped(job, mapped, run).map_err(|error| {
            error.with(&format!("; --backend {} --seed {} repeats it", name_of(args.backend), args.seed))
        })?;
        if let Some(path) = args.out.as_ref().filter(|_| costs.rounds == plan.rounds()) {
            output::write(path, case, &backend, &rows(job, &ranks), plan.last_rounds() - 1)?;
        }
        Ok(Ran { costs, roofline: None })
    })
}

/// Runs a group whose memory is mapped so, with dumps where they are asked for.
fn dumped<T>(job: &Job<'_>, mapped: Vec<Mapped>, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let Some(dump) = dump(job, mapped) else { return run() };
    dump.around(run)
}

/// The dump that is asked for, if one is.
fn dump<'a>(job: &'a Job<'_>, mapped: Vec<Mapped>) -> Option<Dump<'a>> {
    let Plan { unit, options, .. } = &job.plan;
    let folder = job.args.dump.as_ref()?;
    let port_offset = job.case.config.port_offset;
    let chosen = dump::Options::chosen(options.choices, port_offset, unit.in_flight() as u32);
    let options = dump::Options { halves: unit.has_halves(), ..chosen };
    Some(Dump::new(folder, &job.case, options, mapped))
}

/// The case itself in the last round, varied before.
fn traffic<'a>(job: &'a Job<'_>) -> impl Fn(usize) -> Batch<'a> {
    |round| Batch::varied(&job.case, job.plan.rounds() - 1 - round)
}

fn workers(args: &RunArgs, processes: usize) -> Workers {
    Workers {
        count: args.threads.map_or_else(|| share(processes), |threads| threads as usize),
        spread: args.spread.unwrap_or_default(),
        pinned: false,
        deadline: Duration::from_secs_f64(args.deadline.unwrap_or(DEADLINE_SECONDS)),
    }
}

/// How many processes run a group of this shape.
fn processes(args: &RunArgs, shape: &Shape, started: Option<usize>) -> Result<usize, Error> {
    let ranks = global_rank::count(shape);
    if let Some(started) = started {
        let asked = args.processes.filter(|&asked| asked as usize != started);
        return match asked {
            Some(asked) => Err(Error::Request(format!(
                "--processes {asked}: must be {started}, the processes that the launcher has started, or be left out"
            ))),
            None if started > ranks as usize => Err(Error::Request(format!(
                "{started} processes have been started: must be at most {ranks}, the ranks of the group"
            ))),
            None => Ok(started),
        };
    }
    match args.processes {
        _ if args.backend != BackendArg::Processes => Ok(1),
        Some(more) if more > ranks => Err(Error::Request(format!(
            "--processes {more}: must be at most {ranks}, the ranks of the group"
        ))),
        Some(processes) => Ok(processes as usize),
        None => Ok(processors().min(ranks as usize)),
    }
}

/// Rows that each rank received in the last batch.
fn rows(job: &Job<'_>, ranks: &[RankState]) -> Vec<usize> {
    let (row, last) = (job.case.shape.row_bytes() as usize, job.plan.last_rounds() - 1);
    ranks.iter().map(|rank| rank.with_y(last, |y| y.len() / row)).collect()
}

/// A process's share of the processors, at least one.
fn share(processes: usize) -> usize {
    (processors() / processes).max(1)
}

fn plan(
    args: &RunArgs,
    shape: &Shape,
    schedule: &Schedule,
    processes: usize,
    (choices, vector): (Choices, Any),
) -> Result<Plan, Error> {
    let rounds = args.rounds as usize;
    let repetitions = schedule.times_for(rounds);
    let repetition_bytes = batch_bytes(shape).max(1).saturating_mul(schedule.batches() as u64);
    let chain_max = (CHAIN_BYTES_MAX / repetition_bytes).max(1);
    let chain = match (args.chain, args.backend) {
        (Some(chain), _) => chain as usize,
        // A check stops the workers; their times are those of single rounds. A loop would only be begun and ended.
        (None, backend) if backend.is_timed() && !schedule.is_loop() => 1,
        // Nothing is timed here: ranks may run ahead of each other as far as memory allows.
        (None, _) => (UNIT_BYTES_MAX / repetition_bytes) as usize,
    };
    let chain = chain.clamp(1, repetitions);
    if chain as u64 > chain_max {
        return Err(Error::Request(format!(
            "--chain {chain}: must be at most {chain_max}, or inputs and outputs of its rounds take more than {} MiB",
            CHAIN_BYTES_MAX >> 20
        )));
    }
    let Units { unit, count: units, last } = schedule.in_units(rounds, chain);
    Ok(Plan {
        unit,
        units,
        last,
        options: Options {
            choices,
            vector,
            rows_unseen: args.no_check && args.out.is_none(),
            in_step: args.backend.is_timed() && chain == 1,
            ..Options::default()
        },
        check: (!args.no_check).then(|| share(processes)),
    })
}

/// What a batch's inputs and outputs take, about.
fn batch_bytes(shape: &Shape) -> u64 {
    let tokens = u64::from(global_rank::count(shape)) * u64::from(shape.bs_max());
    let rows = tokens * u64::from(shape.combine_columns());
    2 * tokens * shape.row_bytes() + rows * (shape.payload_bytes() + shape.row_bytes())
}
