//! The machines in processes over one mapping, alive while other systems are measured: the parent orders, all answer.

use crate::arguments::BenchArgs;
use crate::blocks::System;
use crate::live::{self, Group};
use crate::measure::{Samples, grid, source, ways};
use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;
use veriep::cli::RowCopyArg;
use veriep_case::case::Case;
use veriep_case::error::{Error, Gone};
use veriep_case::generate::{Options, generate};
use veriep_case::global_rank;
use veriep_case::parallel;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::protocol::{Choices, Fingerprints, Receive};
use veriep_core::units::RankId;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::world::join::{Alike, GroupSpec, Joined};
use veriep_group::world::{Children, GroupSize, Invited, Outcome, Phase, Task, World, watch};

/// What the parent orders, a line each.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Check,
    Single { warm_up: u32, iterations: u32 },
    Chain { rounds: u32 },
}

/// What a process answers to an order.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    samples: Samples,
    round: Duration,
    /// Exit status and line.
    error: Option<(u8, String)>,
}

/// A live group of processes.
pub(crate) struct Processes<'c> {
    case: &'c Case,
    world: Arc<World>,
    children: Children,
    pub(crate) row_copy: RowCopy,
    deadline: Duration,
}

impl<'c> Processes<'c> {
    /// Starts the processes of group number `group`, as [`take_part`] counts them.
    pub(crate) fn new(
        case: &'c Case,
        args: &BenchArgs,
        (receive, row_copy): (Receive, RowCopyArg),
        group: usize,
    ) -> Result<Self, Error> {
        let ranks = global_rank::count(&case.shape);
        let processes = parallel::processors().min(ranks as usize);
        let workers = live::threads(args).div_ceil(processes);
        let founded = spec(case, GroupSize { processes, workers, ranks })?.found();
        let founded = Arc::new(founded.map_err(Error::of_memory)?);
        let memory = &founded.memory;
        let world = World::observer(memory);
        let shared = SharedMemory::within(memory.map(), memory.start(), case, 1).map_err(Error::of_memory)?;
        let row_copy = live::copying(shared, case, (receive, row_copy), processes * workers)?.row_copy();
        let children = Children::start(founded, world.clone(), Task::new(group, row_copy))
            .map_err(|e| Error::Request(format!("cannot start a process: {e}")))?;
        Ok(Self { case, world, children, row_copy, deadline: live::deadline(args) })
    }

    /// Gives an order and waits for all answers.
    fn ask(&mut self, order: &Order) -> Result<Vec<Answer>, Error> {
        // A process that hears no more is gone, or has said why.
        let _ = self.children.tell(&serde_json::to_string(order).unwrap_or_default());
        let mut answers: Vec<Option<Answer>> = (0..self.world.processes()).map(|_| None).collect();
        let mut is_done = |children: &mut Children| {
            for (process, answer) in answers.iter_mut().enumerate() {
                let mut said = || children.has_said(process);
                *answer = answer.take().or_else(|| serde_json::from_slice(&said()?).ok());
            }
            // The others may wait for one that has failed.
            let has_failed = answers.iter().flatten().any(|answer| answer.error.is_some());
            has_failed || answers.iter().all(Option::is_some)
        };
        let outcome = watch(&self.world, &mut self.children, self.deadline, |_, _| false, &mut is_done);
        let at = live::of_sizes(self.case);
        match outcome {
            Outcome::Well => {}
            Outcome::Gone(departed) => {
                let name = |rank: RankId| rank;
                let gone: Vec<_> =
                    departed.iter().map(|one| one.told(&self.world, &name, (None, None))).collect();
                let all = gone.iter().map(Gone::line).collect::<Vec<_>>().join("; ");
                return Err(Error::Gone { line: format!("{at}: {all}"), gone, missing: Vec::new() });
            }
            Outcome::Failed | Outcome::Stuck(_) => {
                let line = format!("{at}: no progress for {} s", self.deadline.as_secs_f64());
                return Err(Error::NoProgress { line, missing: Vec::new() });
            }
        }
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        match answers.iter().find_map(|answer| answer.error.clone()) {
            Some((1, line)) => Err(Error::Wrong(line)),
            Some((_, line)) => Err(Error::Request(line)),
            None => Ok(answers),
        }
    }
}

/// By number, the longest.
fn slowest(all: &mut Vec<Duration>, more: Vec<Duration>) {
    if all.is_empty() {
        *all = more;
        return;
    }
    all.iter_mut().zip(more).for_each(|(time, more)| *time = more.max(*time));
}

impl System for Processes<'_> {
    fn check(&mut self, _name: &str) -> Result<(), Error> {
        self.ask(&Order::Check).map(drop)
    }

    fn single(&mut self, warm_up: u32, iterations: u32) -> Result<Samples, Error> {
        let mut samples = Samples::default();
        for Answer { samples: more, .. } in self.ask(&Order::Single { warm_up, iterations })? {
            slowest(&mut samples.dispatch, more.dispatch);
            slowest(&mut samples.combine, more.combine);
        }
        Ok(samples)
    }

    fn chain(&mut self, rounds: u32) -> Result<Duration, Error> {
        let answers = self.ask(&Order::Chain { rounds })?;
        Ok(answers.iter().map(|answer| answer.round).max().unwrap_or_default())
    }
}

/// A process of a group: does what it is ordered until its parent ends it.
pub(crate) fn take_part(args: &BenchArgs, invited: &Invited) -> ! {
    let Err(error) = serve(args, invited);
    answer(&Answer { error: Some((error.status(), error.lines().join("; "))), ..Answer::default() });
    // The parent, which may not have asked yet, ends its children.
    loop {
        std::thread::park();
    }
}

/// The group of a case.
fn spec(case: &Case, size: GroupSize) -> Result<GroupSpec, Error> {
    let bytes = SharedMemory::bytes(case, 1).map_err(Error::of_memory)?;
    let layers = vec![Fingerprints::new(&case.shape, Choices::default())];
    Ok(GroupSpec { size, bytes, alike: Alike { layers, others: Vec::new() } })
}

fn answer(answer: &Answer) {
    let line = serde_json::to_vec(answer).unwrap_or_default();
    let mut stdout = std::io::stdout().lock();
    // Who does not hear it has ended this process.
    let _ = stdout.write_all(&line).and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush());
}

fn serve(args: &BenchArgs, invited: &Invited) -> Result<core::convert::Infallible, Error> {
    let (source, ways, vector) = (source(&args.config)?, ways(args)?, args.vector.find()?);
    let routing = args.routing.unwrap_or(source.routing);
    let options = Options { routing, seed: args.seed, ..Options::default() };
    let copies = args.row_copy.len();
    let number = invited.task.group;
    let (config, way) = (number / copies / ways.len(), number / copies % ways.len());
    let missing = || Error::Request(format!("group {number}: not one of this request"));
    let config = grid(args, &source).into_iter().flatten().nth(config).ok_or_else(missing)?;
    let case = generate(config, options, &source.name)?;
    let size = invited.size();
    let joined = invited.join(spec(&case, size)?);
    let Joined { memory, world, peers } =
        joined.map_err(|e| Error::Request(format!("{}: {e}", source.name)))?;
    let _watch = peers.watch(&world).map_err(|e| Error::Request(format!("peers of the group: {e}")))?;
    let shared = SharedMemory::within(memory.map(), memory.start(), &case, 1).map_err(Error::of_memory)?;
    let workers = live::workers(args, size.workers);
    let shared = shared.with_row_copy(invited.task.row_copy());
    let mut group = Group::over((shared, world.clone()), &case, (ways[way], vector), workers);
    for line in std::io::stdin().lines() {
        let order = line.ok().and_then(|line| serde_json::from_str(&line).ok()).ok_or_else(missing)?;
        let done = match order {
            Order::Check => group.check("").map(|()| Answer::default())?,
            Order::Single { warm_up, iterations } => {
                Answer { samples: group.single(warm_up, iterations)?, ..Answer::default() }
            }
            Order::Chain { rounds } => Answer { round: group.chain(rounds)?, ..Answer::default() },
        };
        world.enter(Phase::Idle);
        answer(&done);
    }
    Err(missing())
}
