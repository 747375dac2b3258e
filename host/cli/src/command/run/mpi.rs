//! `--backend mpi`: the processes that a launcher has started. Each drives its ranks and watches the others; the first that lives
//! reports for all.

use super::processes::{self, Told};
use super::{Job, Ran, hinted, output, summary};
use crate::cli::RunArgs;
use crate::report::Report;
use core::time::Duration;
use std::process::exit;
use std::thread;
use std::time::Instant;
use veriep_case::dump;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_core::place::Tensor;
use veriep_core::units::RankId;
use veriep_group::backend::Layer;
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::driver::schedule::Schedule;
use veriep_group::world::{Cluster, Outcome, Phase, watch};
use veriep_mpi::start::{self, Alike};
use veriep_mpi::wire::MpiWire;

/// What a process has that another one may begin with.
type Whole = Cluster<MpiWire>;

/// How long a launcher may take to pass a line on, and this process to hear of a death.
const HEARS: Duration = Duration::from_millis(150);
/// How often a process looks that waits for that.
const LOOK: Duration = Duration::from_millis(5);
/// How long a process that has nothing more to report waits for the end of all.
const ENDS: Duration = Duration::from_secs(3);

pub(super) fn run(args: &RunArgs, report: &mut Report) -> Result<(), Error> {
    let (launched, wire) = start::start("run")?;
    let (me, all) = (wire.process(), wire.processes());
    let asked = prepare(args, me, all).map(|(job, schedule)| {
        let fingerprint = processes::fingerprint(&job);
        let workers = args.threads.map(|threads| threads as usize);
        let receive = job.plan.options.choices.receive;
        ((job, schedule), Alike { fingerprint, workers, receive })
    });
    let ((mut job, schedule), introduced) = start::meet(&launched, wire, args.all_far, asked)?;
    job.workers.count = introduced.workers();
    let cluster = begin(&job, introduced, me).map_err(Error::of_memory)?;
    take_part(&job, &schedule, &cluster, me, report)
}

/// The request, checked.
fn prepare(args: &RunArgs, me: usize, processes: usize) -> Result<(Job<'_>, Schedule), Error> {
    match me {
        0 => super::keep_files(args)?,
        _ => args.dump.iter().try_for_each(|folder| dump::make(folder))?,
    }
    super::job(args, Some(processes))
}

fn begin(
    job: &Job<'_>,
    introduced: veriep_group::world::Introduced<MpiWire>,
    me: usize,
) -> std::io::Result<Whole> {
    let (case, batches) = (&job.case, job.plan.unit.batches());
    let bytes = SharedMemory::bytes(case, batches)?;
    let map = |memory: &_| processes::shared(memory, job).map_err(|e| std::io::Error::other(e.to_string()));
    Cluster::begin(introduced, me, bytes, map, (&case.shape, &members(job)))
}

/// Of every member of the group, also those that are gone, its rank.
fn members(job: &Job<'_>) -> Vec<Option<RankId>> {
    match &job.case.elastic {
        None => global_rank::all(&job.case.shape).map(Some).collect(),
        Some(elastic) => {
            (0..elastic.left.whole_world_size()).map(|rank| elastic.left.new_id(RankId(rank))).collect()
        }
    }
}

/// Drives the ranks of this process, watches the others, and ends as all end.
fn take_part(
    job: &Job<'_>,
    schedule: &Schedule,
    cluster: &Whole,
    me: usize,
    report: &mut Report,
) -> Result<(), Error> {
    let world = &cluster.world;
    let all = world.processes();
    let bar = (me == 0 && job.plan.check.is_some()).then(|| super::checking(job));
    thread::scope(|scope| {
        scope.spawn(|| drive(job, cluster, me));
        let mut ticked = 0;
        let mut is_done = |cluster: &mut &Whole| {
            let checked = world.checked();
            bar.iter().for_each(|bar| bar.inc(checked - ticked));
            ticked = checked;
            match me {
                0 => (0..all).all(|process| cluster.said(process).is_some()),
                _ => world.is_over(),
            }
        };
        let mut watched = cluster;
        let deadline = job.workers.deadline;
        let watched = || Ok(watch(world, &mut watched, deadline, |_, _| true, &mut is_done));
        let outcome = dumped(job, cluster, watched);
        drop(bar);
        let told = |process| cluster.said(process).and_then(|said| Told::read(&said)).unwrap_or_default();
        let told: Vec<_> = (0..all).map(told).collect();
        let gone: Vec<_> = match &outcome {
            Ok(Outcome::Gone(departed)) => departed.iter().map(|one| one.process).collect(),
            _ => Vec::new(),
        };
        let error = match outcome {
            Ok(Outcome::Well) if me == 0 => match ended(job, cluster, &told) {
                Ok(ran) => {
                    let said = summary::emit(report, job, &ran);
                    leave(cluster);
                    return said;
                }
                Err(error) => error,
            },
            Ok(Outcome::Well) => {
                leave(cluster);
                exit(0);
            }
            Ok(Outcome::Failed) => processes::failed(&told),
            Ok(Outcome::Stuck(after)) => processes::stuck(job, &told, after),
            Ok(Outcome::Gone(departed)) => processes::gone(job, world, &told, &departed),
            Err(of_dump) => of_dump,
        };
        let error = hinted(error, job, schedule);
        let first = (0..all).find(|process| !gone.contains(process));
        if first != Some(me) {
            // The process that reports ends all.
            let since = Instant::now();
            while !world.is_over() && since.elapsed() < ENDS {
                thread::sleep(LOOK);
            }
            exit(error.status().into());
        }
        if job.args.dump.is_some() {
            cluster.wait_for_dumps(ENDS);
        }
        let status = report.fail(&error);
        world.set_over();
        // The launcher passes the report on, and drops what it has not read when it ends the group.
        thread::sleep(HEARS);
        cluster.far.abort(status);
        exit(status.into())
    })
}

/// Runs, and writes what the ranks of this process have when that is asked for.
fn dumped<T>(job: &Job<'_>, cluster: &Whole, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    if job.args.dump.is_none() {
        return run();
    }
    let shared = processes::shared(&cluster.memory, job)?;
    let Some(dump) = super::dump(job, shared.mapped()) else { return run() };
    let dump = dump.of_file(cluster.memory.file(), cluster.memory.map().as_ptr() as usize);
    let ran = dump.of_ranks(|rank| cluster.dumps(rank)).around(run);
    cluster.world.enter(Phase::GivenUp);
    ran
}

/// Runs the rounds and says to others what became of them.
fn drive(job: &Job<'_>, cluster: &Whole, me: usize) {
    let world = &cluster.world;
    let mut told = Told::default();
    let _ = job.row_copy.set(super::unmeasured(job));
    let ran = match processes::shared(&cluster.memory, job) {
        Err(error) => Err(error),
        Ok(near) if cluster.is_one_node() => processes::rounds(job, world, near, &mut told),
        Ok(_) => processes::rounds(job, world, cluster.far.clone(), &mut told),
    };
    let status = ran.err().map_or(0, |error| {
        let error = match cluster.far.failed() {
            Some(why) => {
                // Perhaps because a process has died, which is the better report.
                thread::sleep(HEARS);
                Error::Wrong(format!("--backend mpi: {why}"))
            }
            None => error,
        };
        told.error = Some((error.status(), error.lines().join("; ")));
        error.status()
    });
    if status == 0 && me != 0 && job.args.out.is_some() && told.ran_all(job) {
        send_outputs(job, cluster, &told);
    }
    let said = serde_json::to_vec(&told).unwrap_or_default();
    match status {
        0 => cluster.say([0, me].into_iter().take(1 + usize::from(me != 0)), &said, status),
        _ => cluster.say(0..world.processes(), &said, status),
    }
}

/// This process's memory, by ranks.
fn view(job: &Job<'_>, cluster: &Whole) -> Result<impl veriep_group::backend::Backend, Error> {
    let shared = processes::shared(&cluster.memory, job)?;
    Ok(RankRemap::of(&job.case).over(shared))
}

fn send_outputs(job: &Job<'_>, cluster: &Whole, told: &Told) {
    let Ok(view) = view(job, cluster) else { return };
    for &(rank, rows) in &told.rows {
        let rank = RankId(rank);
        let tensors = output::read(&job.case, &view, (rank, rows), job.plan.last_rounds() - 1);
        for (tensor, bytes) in Tensor::ALL.into_iter().zip(tensors) {
            cluster.send_output(rank, tensor, &bytes);
        }
    }
}

/// All ended well: what they cost together, and the result.
fn ended(job: &Job<'_>, cluster: &Whole, told: &[Told]) -> Result<Ran, Error> {
    let (ran, rows) = processes::together(job, told);
    let Some(path) = job.args.out.as_ref().filter(|_| ran.costs.rounds == job.plan.rounds()) else {
        return Ok(ran);
    };
    let view = view(job, cluster)?;
    output::write_read(path, &job.case, &rows, |rank, rows| {
        if cluster.world.is_here(rank) {
            output::read(&job.case, &view, (rank, rows), job.plan.last_rounds() - 1)
        } else {
            Tensor::ALL.map(|tensor| cluster.output(rank, tensor))
        }
    })?;
    Ok(ran)
}

/// Leaves the MPI, but for no longer than that: what it waits for may never come.
fn leave(cluster: &Whole) {
    let _ = thread::Builder::new().spawn(|| {
        thread::sleep(2 * ENDS);
        exit(0)
    });
    // The results are there: what the MPI has to say of its end changes nothing.
    let _ = cluster.leave(ENDS);
}
