//! The machines over worker threads: one group, alive while other systems are measured.

use crate::arguments::BenchArgs;
use crate::blocks::System;
use crate::measure::Samples;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;
use veriep::cli::RowCopyArg;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_case::memory::memory_bytes;
use veriep_case::parallel;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::protocol::{Choices, Receive};
use veriep_core::shape::Protocol;
use veriep_core::vector::Any;
use veriep_group::backend::no_payload::{NoPayload, PIECE_MAX};
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer, Pages};
use veriep_group::compare;
use veriep_group::driver::schedule::Schedule;
use veriep_group::driver::threads::{Times, Workers};
use veriep_group::driver::{Options, RankState};
use veriep_group::group;
use veriep_group::roofline::Traffic;
use veriep_group::traffic;
use veriep_group::world::World;

/// Long enough for a cold start on a busy machine.
const DEADLINE_SECONDS: f64 = 60.0;
/// Varied rounds, each checked: both partitions, and what stood in them before.
const CHECKED: usize = 3;
/// One in so many bytes of memory all groups together may take.
const MEMORY_SHARE: u64 = 3;

/// Worker threads of a request.
pub(crate) fn threads(args: &BenchArgs) -> usize {
    args.threads.map_or_else(parallel::processors, |threads| threads as usize)
}

/// What all processes of a group must have alike.
#[cfg(target_os = "linux")]
pub(crate) fn fingerprint(case: &Case) -> u64 {
    veriep_core::protocol::Fingerprints::new(&case.shape, Choices::default()).whole()
}

/// So many of a group, each with a processor of its own.
pub(crate) fn workers(args: &BenchArgs, count: usize) -> Workers {
    Workers { count, deadline: deadline(args), pinned: true, ..Workers::default() }
}

/// How long to wait for a group or a baseline.
pub(crate) fn deadline(args: &BenchArgs) -> Duration {
    Duration::from_secs_f64(args.deadline.unwrap_or(DEADLINE_SECONDS))
}

/// Huge ones, if the windows of all groups could be committed at once and leave most memory to others. Where rows are
/// placed directly they are one behind the other, and little of the window is touched.
pub(crate) fn pages<'c>(groups: impl Iterator<Item = (&'c Case, Receive)>) -> Pages {
    let touched = |case: &Case| {
        u64::from(global_rank::count(&case.shape))
            * (case.shape.window_bytes() + case.shape.window_out_bytes())
    };
    let all: u64 = groups.filter(|(_, receive)| !receive.is_direct()).map(|(case, _)| touched(case)).sum();
    if all < memory_bytes("MemTotal").unwrap_or_default() / MEMORY_SHARE { Pages::Huge } else { Pages::Small }
}

/// A live group of one batch.
pub(crate) struct Group<'c, B = SharedMemory> {
    case: &'c Case,
    memory: B,
    world: Arc<World>,
    ranks: Vec<RankState>,
    workers: Workers,
    choices: Choices,
    vector: Any,
    /// Of a group in this process alone.
    copies: Option<Traffic<'c>>,
}

/// What machines do when rows weigh nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Of a round.
    pub(crate) steps: u64,
    /// Steps, if each has at most one effect.
    pub(crate) effects: u64,
    /// Flags of a round that a worker publishes to a rank of another one.
    pub(crate) crossing: u64,
}

impl<'c> Group<'c> {
    pub(crate) fn new(
        case: &'c Case,
        args: &BenchArgs,
        (receive, row_copy, vector): (Receive, RowCopyArg, Any),
        pages: Pages,
    ) -> Result<Self, Error> {
        let workers = workers(args, threads(args));
        let memory = SharedMemory::with_pages(case, 1, pages).map_err(Error::of_memory)?;
        let world = Arc::new(World::alone(global_rank::count(&case.shape), workers.count));
        let mut copies = Traffic::new(case, choices(receive))?;
        let mut memory = memory.with_row_copy(traffic::unmeasured(case, receive, row_copy.named()));
        if row_copy == RowCopyArg::Auto {
            memory = copies.fastest(memory, workers.count)?;
        }
        let group = Self::over((memory, world), case, (receive, vector), workers);
        Ok(Self { copies: Some(copies), ..group })
    }

    /// How rows are copied.
    pub(crate) const fn row_copy(&self) -> RowCopy {
        self.memory.row_copy()
    }
}

impl<'c, B: Backend> Group<'c, B> {
    /// A group over memory that there is, in a world.
    pub(crate) fn over(
        (memory, world): (B, Arc<World>),
        case: &'c Case,
        (receive, vector): (Receive, Any),
        workers: Workers,
    ) -> Self {
        let ranks = global_rank::all(&case.shape).map(|_| RankState::new(1)).collect();
        Self { case, memory, world, ranks, workers, choices: choices(receive), vector, copies: None }
    }

    fn options(&self) -> Options {
        Options { choices: self.choices, vector: self.vector, ..Options::default() }
    }

    /// Runs rounds on `batch`.
    fn rounds(
        &mut self,
        batch: &Batch<'_>,
        count: usize,
        options: Options,
    ) -> Result<(Schedule, Times), Error> {
        let of = (&self.case.shape, batch, options);
        group::repeat(&self.memory, of, &mut self.ranks, (&self.world, &self.workers), count)
    }

    /// The experts do not run: what they returned in the check before stands.
    fn back_to_back(&self) -> Options {
        Options { returned_before: true, rows_unseen: true, ..self.options() }
    }
}

/// Those of a group with one batch in flight.
fn choices(receive: Receive) -> Choices {
    Choices { receive, ..Choices::default() }
}

/// New memory of a group of so many threads that copies rows as is asked.
#[cfg(target_os = "linux")]
pub(crate) fn copying(
    memory: SharedMemory,
    case: &Case,
    (receive, row_copy): (Receive, RowCopyArg),
    threads: usize,
) -> Result<SharedMemory, Error> {
    let memory = memory.with_row_copy(traffic::unmeasured(case, receive, row_copy.named()));
    if row_copy != RowCopyArg::Auto {
        return Ok(memory);
    }
    veriep_group::roofline::fastest(memory, (case, choices(receive)), threads)
}

/// The times of a unit by operator, without those to warm up.
fn samples(times: &Times, unit: &Schedule, warm_up: u32) -> Samples {
    let of = |dispatch| times.of(unit.operators(), dispatch).into_iter().skip(warm_up as usize).collect();
    Samples { dispatch: of(true), combine: of(false) }
}

impl<B: Backend> System for Group<'_, B> {
    fn check(&mut self, _name: &str) -> Result<(), Error> {
        for distance in (0..CHECKED).rev() {
            let batch = Batch::varied(self.case, distance);
            self.rounds(&batch, 1, Options { in_step: true, ..self.options() })?;
            self.world.checks(0);
            let tick = || self.world.count_checked();
            let backend = (&*self.world, &self.memory);
            compare::check(backend, &self.case.shape, &batch, 0, self.workers.count, &tick)
                .map_err(|mismatch| Error::Wrong(format!("{}: {mismatch}", of_sizes(self.case))))?;
        }
        Ok(())
    }

    fn single(&mut self, warm_up: u32, iterations: u32) -> Result<Samples, Error> {
        // The last check was of these inputs.
        let options = Options { in_step: true, ..self.back_to_back() };
        let (unit, times) = self.rounds(&Batch::new(self.case), (warm_up + iterations) as usize, options)?;
        Ok(samples(&times, &unit, warm_up))
    }

    fn chain(&mut self, rounds: u32) -> Result<Duration, Error> {
        let options = self.back_to_back();
        let (_, times) = self.rounds(&Batch::new(self.case), rounds as usize, options)?;
        Ok(times.wall / rounds)
    }

    fn is_here(&self) -> bool {
        true
    }

    fn bare(&mut self, warm_up: u32, iterations: u32) -> Result<Samples, Error> {
        let rounds = (warm_up + iterations) as usize;
        let Some(copies) = &mut self.copies else { return Ok(Samples::default()) };
        let times = copies.times(&self.memory, self.workers.count, rounds)?;
        // With fullmesh_v2, and on A2, flags are among the rows: the group must be able to go on.
        if self.case.shape.protocol() != Protocol::FullmeshV1 {
            copies.blank(&self.memory, self.workers.count)?;
        }
        let [dispatch, combine] = times.map(|times| times.into_iter().skip(warm_up as usize).collect());
        Ok(Samples { dispatch, combine })
    }

    fn without_rows(
        &mut self,
        workers: usize,
        (warm_up, iterations): (u32, u32),
    ) -> Result<Option<(Samples, Counts)>, Error> {
        let options = Options { in_step: true, rows_idle: true, ..self.back_to_back() };
        let (workers, batch) = (Workers { count: workers, ..self.workers }, Batch::new(self.case));
        let mut rounds = |count, crossing, options| {
            let backend = NoPayload { piece_max: PIECE_MAX, crossing }.over(&self.memory);
            let of = (&self.case.shape, &batch, options);
            group::repeat(&backend, of, &mut self.ranks, (&self.world, &workers), count)
        };
        let (unit, times) = rounds((warm_up + iterations) as usize, None, options)?;
        let steps = times.steps / u64::from(warm_up + iterations);
        // Once more to count: that takes time.
        let crossing = AtomicU64::new(0);
        let counted = Some((&crossing, workers.count as u32));
        let effects = rounds(1, counted, Options { one_by_one: true, ..options })?.1.steps;
        let counts = Counts { steps, effects, crossing: crossing.load(Ordering::Relaxed) };
        Ok(Some((samples(&times, &unit, warm_up), counts)))
    }
}

/// The point of the grid, for an error.
pub(crate) fn of_sizes(case: &Case) -> String {
    format!("ep_world_size = {}, bs = {}", case.shape.ep_world_size(), case.shape.bs_max())
}
