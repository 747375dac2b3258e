//! All systems in one job of an MPI: every process measures the same ones by the same turns, and the first reports. What runs in
//! one process alone is measured by the first, while the others sleep.

use crate::against::Programs;
use crate::arguments::{Baseline, BenchArgs, LiveArg};
use crate::blocks::System;
use crate::entry::{self, Subject};
use crate::exchanged::Exchanged;
use crate::live::{self, Group};
use crate::measure::{Contender, Samples};
use core::cell::Cell;
use core::time::Duration;
use std::process::exit;
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use veriep::cli::RowCopyArg;
use veriep::report::{Format, Report};
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::protocol::Receive;
use veriep_core::units::RankId;
use veriep_core::vector::Any;
use veriep_group::backend::Pages;
use veriep_group::backend::far::Wire;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::traffic;
use veriep_group::world::{Cluster, GroupMemory};
use veriep_mpi::launcher::Launched;
use veriep_mpi::start::{self, Alike, of_mpi};
use veriep_mpi::wire::{Exchange, MpiWire};

/// Looks without a pause before a process that has nothing to do sleeps between two.
const LOOKS: u32 = 1000;
const NAP: Duration = Duration::from_millis(1);
/// The time that the first process has to report that no process moves, and all processes to end.
const SAYS: Duration = Duration::from_secs(1);
const LEAVES: Duration = Duration::from_secs(5);

/// The processes that a launcher has started.
pub(crate) struct Job {
    launched: Launched,
    wire: MpiWire,
    format: Format,
}

impl Job {
    pub(crate) fn start(args: &BenchArgs, format: Format) -> Result<Self, Error> {
        let (launched, wire) = start::start("bench")?;
        let job = Self { launched, wire, format };
        let kinds = [
            args.receive.len(),
            args.experts.len(),
            args.row_copy.len(),
            args.quant_mode.len(),
            args.aiv_num.len(),
        ];
        let one =
            "--receive, --experts, --row-copy, --quant-mode, --aiv-num: with --backend mpi one value each";
        let is_one = kinds.iter().all(|&values| values <= 1);
        job.of_first(is_one.then_some(()).ok_or_else(|| Error::Request(one.to_owned())))?;
        Ok(job)
    }

    /// Whether this process reports.
    pub(crate) const fn is_first(&self) -> bool {
        self.launched.process == 0
    }

    /// Process 0 says why the job cannot begin; the others only end.
    pub(crate) fn of_first<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        start::of_first(&self.launched, result)
    }

    /// What the MPI calls itself.
    pub(crate) fn version(&self) -> &str {
        self.wire.version()
    }

    /// Whether there are ranks enough in a case.
    pub(crate) fn fits(&self, config: &veriep_case::config::Config) -> Result<(), Error> {
        let (processes, ranks) = (self.wire.processes(), config.ep_world_size);
        if i64::try_from(processes).is_ok_and(|processes| processes <= ranks) {
            return Ok(());
        }
        let line = format!(
            "{processes} processes have been started: must be at most {ranks}, the ranks of the group"
        );
        Err(Error::Request(line))
    }

    /// Meets the others at a point of the grid.
    fn meet(&self, case: &Case, args: &BenchArgs, receive: Receive) -> Result<Rc<Point>, Error> {
        let workers = args.threads.map(|threads| threads as usize);
        let alike = Alike { fingerprint: live::fingerprint(case), workers, receive };
        let (me, wire) = (self.launched.process, self.wire.of_another_group());
        let ((), introduced) = start::meet(&self.launched, wire, args.all_far, Ok(((), alike)))?;
        let map = |memory: &GroupMemory| SharedMemory::within(memory.map(), memory.start(), case, 1);
        let bytes = SharedMemory::bytes(case, 1).map_err(Error::of_memory)?;
        let members: Vec<Option<RankId>> = global_rank::all(&case.shape).map(Some).collect();
        let cluster =
            Cluster::begin(introduced, me, bytes, map, (&case.shape, &members)).map_err(Error::of_memory)?;
        let at = live::of_sizes(case);
        Ok(Rc::new(Point {
            cluster,
            me,
            at,
            deadline: live::deadline(args),
            format: self.format,
            fails: Cell::new(false),
        }))
    }

    /// All that is compared at a point of the grid.
    pub(crate) fn contenders<'c>(
        &self,
        args: &BenchArgs,
        (case, number): (&'c Case, usize),
        ((receive, copy), vector, pages): ((Receive, RowCopyArg), Any, Pages),
        programs: &Programs,
    ) -> Result<Vec<Contender<'c>>, Error> {
        let point = self.meet(case, args, receive)?;
        let way = (receive, copy, vector);
        let mut all: Vec<Contender<'c>> = Vec::new();
        for &on in &args.backend {
            let (inner, row_copy) = match on {
                LiveArg::Mpi => point.machines(case, args, way).map(|(inner, copy)| (Some(inner), copy))?,
                _ if !self.is_first() => (None, RowCopy::Plain),
                LiveArg::Threads | LiveArg::Processes => {
                    let (group, row_copy) = crate::measure::machines(on, args, (case, number), way, pages)?;
                    (Some(group), row_copy)
                }
            };
            let sent = (on == LiveArg::Mpi).then_some([0; 2]);
            let machines = entry::System::Machines(on, receive, copy);
            let subject = Subject { case, system: machines, row_copy: Some(row_copy) };
            all.push((subject, Box::new(InJob { inner, point: point.clone(), sent })));
        }
        for baseline in programs.fitting(&case.config) {
            let by = if baseline == Baseline::MpiIsend { Exchange::Messages } else { Exchange::Alltoallv };
            let exchanged = Exchanged::new(case, (point.clone(), by), vector)?;
            let subject = Subject { case, system: entry::System::Baseline(baseline), row_copy: None };
            let (inner, sent) = (Some(Box::new(exchanged) as Box<dyn System>), Some([0; 2]));
            all.push((subject, Box::new(InJob { inner, point: point.clone(), sent })));
        }
        Ok(all)
    }

    /// Leaves the MPI, once all is said: what it waits for may never come.
    pub(crate) fn leave(mut self) {
        let _unless_done = after(LEAVES, || exit(0));
        let _ = self.wire.finish();
    }
}

/// The processes at a point of the grid.
pub(crate) struct Point {
    pub(crate) cluster: Cluster<MpiWire>,
    me: usize,
    at: String,
    deadline: Duration,
    format: Format,
    /// In a turn that has not ended well.
    fails: Cell<bool>,
}

/// Does that after so long, unless what this returns is dropped before.
#[must_use]
fn after(limit: Duration, end: impl FnOnce() + Send + 'static) -> Sender<()> {
    let (keep, kept) = channel();
    let wait = move || {
        if kept.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            end();
        }
    };
    let _ = thread::Builder::new().spawn(wait);
    keep
}

impl Point {
    /// Does what all processes do at this time, and has them agree on the numbers that come out: of each the largest. A process that waits
    /// longer than the deadline ends the job.
    fn turn(&self, work: impl FnOnce() -> Result<Vec<u64>, Error>) -> Result<Vec<u64>, Error> {
        let (me, format, deadline) = (self.me, self.format, self.deadline);
        let line = format!("{}: no progress for {} s", self.at, deadline.as_secs_f64());
        let _unless_done = after(deadline, move || {
            let error = Error::NoProgress { line, missing: Vec::new() };
            if me > 0 {
                thread::sleep(SAYS);
                exit(error.status().into());
            }
            exit(Report::new(format).fail(&error).into());
        });
        self.fails.set(true);
        let own = work()?;
        self.fails.set(false);
        let mut agreement =
            self.cluster.far.with_wire(|introduced| introduced.wire().agree(own)).map_err(|e| of_mpi(&e))?;
        let mut looks = 0;
        loop {
            // Others may still wait for what this process has to say.
            self.cluster.far.poll();
            let agreed = self.cluster.far.with_wire(|introduced| introduced.wire().agreed(&mut agreement));
            if let Some(largest) = agreed.map_err(|e| of_mpi(&e))? {
                return Ok(largest);
            }
            looks += 1;
            if looks > LOOKS { thread::sleep(NAP) } else { thread::yield_now() }
        }
    }

    /// Of several numbers of each process, sums over all.
    fn sums(&self, own: [u64; 2]) -> Result<[u64; 2], Error> {
        let mut slots = vec![0; 2 * self.cluster.world.processes()];
        slots[2 * self.me..][..2].copy_from_slice(&own);
        let all = self.turn(|| Ok(slots))?;
        Ok([0, 1].map(|nth| all.iter().skip(nth).step_by(2).sum()))
    }

    /// A turn in which operators are timed.
    fn timed(&self, work: impl FnOnce() -> Result<Samples, Error>) -> Result<Samples, Error> {
        let ns = |time: &Duration| time.as_nanos() as u64;
        let all = self.turn(|| work().map(|s| s.dispatch.iter().chain(&s.combine).map(ns).collect()))?;
        let mut dispatch: Vec<_> = all.into_iter().map(Duration::from_nanos).collect();
        let combine = dispatch.split_off(dispatch.len() / 2);
        Ok(Samples { dispatch, combine })
    }

    /// A turn in which one time is taken.
    fn time(&self, work: impl FnOnce() -> Result<Duration, Error>) -> Result<Duration, Error> {
        let all = self.turn(|| work().map(|time| vec![time.as_nanos() as u64]))?;
        Ok(Duration::from_nanos(all.first().copied().unwrap_or_default()))
    }

    /// The machines of this process's ranks, and how they copy rows.
    fn machines<'c>(
        &self,
        case: &'c Case,
        args: &BenchArgs,
        (receive, row_copy, vector): (Receive, RowCopyArg, Any),
    ) -> Result<(Box<dyn System + 'c>, RowCopy), Error> {
        let Self { cluster, .. } = self;
        let way = traffic::unmeasured(case, receive, row_copy.named());
        let (world, workers) = (cluster.world.clone(), live::workers(args, cluster.workers()));
        let near = SharedMemory::within(cluster.memory.map(), cluster.memory.start(), case, 1)
            .map_err(Error::of_memory)?;
        let near = near.with_row_copy(way);
        let system: Box<dyn System> = if cluster.is_one_node() {
            Box::new(Group::over((near, world), case, (receive, vector), workers))
        } else {
            Box::new(Group::over((cluster.far.clone(), world), case, (receive, vector), workers))
        };
        Ok((system, way))
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // A process that has failed reports it, and does not wait for the others.
        if !self.fails.get() {
            let _ = self.cluster.leave(LEAVES);
        }
    }
}

/// A system in the job: all processes take its turns at the same times.
struct InJob<'c> {
    /// What this process does then; nothing while something runs in the first one alone.
    inner: Option<Box<dyn System + 'c>>,
    point: Rc<Point>,
    /// Messages of all processes, and their bytes; of what runs in all of them.
    sent: Option<[u64; 2]>,
}

impl System for InJob<'_> {
    fn check(&mut self, name: &str) -> Result<(), Error> {
        let Self { inner, point, .. } = self;
        point.turn(|| inner.iter_mut().try_for_each(|inner| inner.check(name)).map(|()| vec![0])).map(drop)
    }

    fn single(&mut self, warm_up: u32, iterations: u32) -> Result<Samples, Error> {
        let Self { inner, point, .. } = self;
        let asleep = || {
            let none = vec![Duration::ZERO; iterations as usize];
            Samples { dispatch: none.clone(), combine: none }
        };
        point.timed(|| inner.as_mut().map_or_else(|| Ok(asleep()), |inner| inner.single(warm_up, iterations)))
    }

    fn chain(&mut self, rounds: u32) -> Result<Duration, Error> {
        let Self { inner, point, sent } = self;
        let by_wire = || point.cluster.far.with_wire(|introduced| introduced.wire().sent());
        let before = by_wire();
        let time = point.time(|| inner.as_mut().map_or(Ok(Duration::ZERO), |inner| inner.chain(rounds)))?;
        if let Some(sent) = sent {
            let counted = || [0, 1].map(|nth| (by_wire()[nth] - before[nth]) / u64::from(rounds));
            let own = inner.as_ref().and_then(|inner| inner.sent());
            *sent = point.sums(own.unwrap_or_else(counted))?;
        }
        Ok(time)
    }

    fn sent(&self) -> Option<[u64; 2]> {
        self.sent
    }
}
