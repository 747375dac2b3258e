//! The machines over worker threads: one group for all iterations.

use super::machine::Ticks;
use super::{Measured, Samples};
use crate::backend::shared::SharedMemory;
use crate::backend::{Backend, Pages};
use crate::batch::Batch;
use crate::case::Case;
use crate::cli::{BenchArgs, ReceiveArg};
use crate::driver::schedule::Schedule;
use crate::driver::threads::{self, Times, Workers};
use crate::driver::{Joined, Options, RankState, Unit};
use crate::error::Error;
use crate::group::of_failure;
use crate::member;
use crate::roofline;
use crate::verdict;
use core::time::Duration;
use kernel_core::a3::Choices;
use kernel_core::layout::outputs::capacity;
use kernel_core::place::Tensor;
use kernel_core::shape::Product;
use kernel_core::vector::Any;

/// Long enough for a cold start on a busy machine.
const DEADLINE_SECONDS: f64 = 60.0;
/// Varied rounds, each checked, before the measurement and after it: both partitions, and what stood in them before.
const CHECKED: usize = 3;
/// Measurements of rounds back to back; each of as many rounds as there are iterations.
const CHAINS: usize = 5;
/// One in so many bytes of memory a group may take.
const MEMORY_SHARE: u64 = 3;

/// Worker threads of a request.
pub(super) fn threads(args: &BenchArgs) -> usize {
    args.threads.map_or_else(super::machine::processors, |threads| threads as usize)
}

/// How long to wait for a group or a baseline.
pub(super) fn deadline(args: &BenchArgs) -> Duration {
    Duration::from_secs_f64(args.deadline.unwrap_or(DEADLINE_SECONDS))
}

/// Measures the machines on `case`.
pub(super) fn measure(
    case: &Case,
    args: &BenchArgs,
    (receive, vector): (ReceiveArg, Any),
) -> Result<Measured, Error> {
    let workers =
        Workers { count: threads(args), deadline: deadline(args), pinned: true, ..Workers::default() };
    let mut group = Group::new(case, workers, receive, vector)?;
    for distance in (0..CHECKED).rev() {
        group.check(distance)?;
    }
    let before = Ticks::now();
    let (warm_up, iterations, case_as_is) = (args.warm_up as usize, args.iters as usize, Batch::new(case));
    // The last check was of these inputs: the experts have returned their rows.
    let back_to_back = Options { returned_before: true, rows_unseen: true, ..Options::default() };
    let in_step = Options { in_step: true, ..back_to_back };
    let (unit, times) = group.rounds(&case_as_is, warm_up + iterations, in_step)?;
    let of = |dispatch| times.of(unit.operators(), dispatch).skip(warm_up).collect();
    let single = Samples { dispatch: of(true), combine: of(false) };
    let mut chain = |rounds: usize| {
        group.rounds(&case_as_is, rounds, back_to_back).map(|(_, times)| times.wall / rounds as u32)
    };
    chain(warm_up.max(1))?;
    let chained = (0..CHAINS).map(|_| chain(iterations)).collect::<Result<_, _>>()?;
    let stolen_share = Ticks::stolen_since(before);
    for distance in (0..CHECKED).rev() {
        group.check(distance)?;
    }
    // They overwrite the group's memory.
    let memcpy = (case.shape.product() == Product::A3).then(|| {
        let Group { memory, ranks, workers, .. } = &group;
        let rounds = args.iters.max(5) as usize;
        roofline::measure(
            memory,
            (&case.shape, receive.with(1)),
            &Batch::new(case),
            ranks,
            workers.count,
            rounds,
        )
    });
    Ok(Measured { single, chained, memcpy, stolen_share })
}

/// Huge ones, if all windows and outputs could be committed at once and leave most memory to others.
fn pages(case: &Case) -> Pages {
    let shape = &case.shape;
    let outputs = |rank| {
        Tensor::ALL.map(|tensor| capacity(shape, member::ep_rank(shape, rank), tensor)).iter().sum::<u64>()
    };
    let windows = u64::from(member::count(shape)) * (shape.window_bytes() + shape.window_out_bytes());
    let all = windows + member::all(shape).map(outputs).sum::<u64>();
    if all < super::machine::memory_bytes() / MEMORY_SHARE { Pages::Huge } else { Pages::Small }
}

/// A live group of one batch.
struct Group<'c> {
    case: &'c Case,
    memory: SharedMemory,
    ranks: Vec<RankState>,
    workers: Workers,
    choices: Choices,
    vector: Any,
}

impl<'c> Group<'c> {
    fn new(case: &'c Case, workers: Workers, receive: ReceiveArg, vector: Any) -> Result<Self, Error> {
        let memory =
            SharedMemory::with_pages(case, 1, pages(case)).map_err(|e| crate::command::of_memory(&e))?;
        let ranks = member::all(&case.shape).map(|_| RankState::new(1)).collect();
        // One batch is in flight.
        let choices = Choices { receive: receive.with(1), ..Choices::default() };
        Ok(Self { case, memory, ranks, workers, choices, vector })
    }

    /// Runs rounds on `batch`.
    fn rounds(
        &mut self,
        batch: &Batch<'_>,
        count: usize,
        options: Options,
    ) -> Result<(Schedule, Times), Error> {
        let unit = Schedule::parse("DC")?.again(count);
        self.ranks.iter_mut().for_each(|rank| rank.reset(unit.operators().len()));
        self.memory.reuse_outputs();
        let times = threads::run(
            &Unit {
                shape: &self.case.shape,
                options: Options { machines: self.choices, vector: self.vector, ..options },
                backend: &self.memory,
                batches: core::slice::from_ref(batch),
                ranks: &self.ranks,
                operators: unit.operators(),
                joined: Joined::default(),
            },
            &self.workers,
        )
        .map_err(|failure| of_failure(0, &unit, &failure))?;
        Ok((unit, times))
    }

    /// Runs the case varied by `distance`, and asks the oracle.
    fn check(&mut self, distance: usize) -> Result<(), Error> {
        let batch = Batch::varied(self.case, distance);
        self.rounds(&batch, 1, Options { in_step: true, ..Options::default() })?;
        verdict::check(&self.memory, &self.case.shape, &batch, 0, self.workers.count, &|| ())
            .map_err(|mismatch| Error::Wrong(format!("{}: {mismatch}", of_sizes(self.case))))
    }
}

/// The point of the grid, for an error.
pub(super) fn of_sizes(case: &Case) -> String {
    format!("ep_world_size = {}, bs = {}", case.shape.ep_world_size(), case.shape.bs_max())
}
