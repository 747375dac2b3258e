//! A few worker threads poll the cores of many ranks.

use super::pin;
use super::task::run_agent;
use super::{Failure, Hang, Missing, Rest, Stop, Task, Unit, meet};
use crate::backend::{Backend, Told};
use crate::world::{Patience, Phase};
use core::ops::Add;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;
use veriep_case::parallel::lock;
use veriep_core::fabric::Wait;
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::Planned;
use veriep_core::sync::join::{Arrivals, come, has_come};
use veriep_core::units::{CoreId, RankId, div_rem};

/// Steps that a core takes in a row before another one gets its turn.
const TURN: u32 = 256;
/// The operator that time between two operators is charged to.
const UNCHARGED: usize = usize::MAX;

/// How cores are assigned to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// All cores of a rank on the same worker.
    // The rank's rows stay in one cache.
    #[default]
    Ranks,
    /// The cores of a rank dealt out to all workers.
    // And then the agents, to exercise what the cores of a rank share. With as many workers each has one of its own.
    Cores,
}

impl Spread {
    /// Every way.
    pub const ALL: [Self; 2] = [Self::Ranks, Self::Cores];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::Cores => "cores",
        }
    }

    /// Returns one sentence about it.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Ranks => "All cores of a rank on the same worker",
            Self::Cores => "The cores of a rank dealt out to all workers",
        }
    }
}

/// How to drive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Workers {
    /// Threads.
    pub count: usize,
    /// Which core goes where.
    pub spread: Spread,
    /// Each keeps a processor, for who measures.
    pub pinned: bool,
    /// No core of the group moved for so long: give up.
    pub deadline: Duration,
}

impl Workers {
    /// Which worker polls a core of the `nth` rank of its process, or the rank's agent; `here` is how many ranks the process
    /// has, and cores of each.
    #[must_use]
    pub fn worker_of(&self, here: (u32, u32), nth: u32, core: Option<CoreId>) -> usize {
        let (ranks, cores) = here;
        let of = match (self.spread, core) {
            (Spread::Ranks, _) => nth,
            (Spread::Cores, Some(core)) => nth * cores + core.0,
            // They come after all cores.
            (Spread::Cores, None) => ranks * cores + nth,
        };
        div_rem(of, self.count as u32).1 as usize
    }
}

/// What a unit cost.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// By operator of the unit: the time that the slowest worker spent in it, working and waiting.
    pub operators: Vec<Duration>,
    /// From the begin to the end of the slowest worker, experts included.
    pub wall: Duration,
    /// Steps of all machines.
    pub steps: u64,
    /// By source rank: how long cores of other ranks waited for a flag of it, summed over cores.
    pub waited_for: Vec<Duration>,
}

/// What workers of this process tell each other. But for the begin it orders nothing.
struct Shared {
    /// Workers that are ready to begin.
    ready: Arrivals<AtomicU64>,
    /// Not 0: all processes are.
    go: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Shared {
    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        lock(&self.failure)
    }

    fn fail(&self, failure: Failure) {
        self.failure().get_or_insert(failure);
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs a unit to its end.
///
/// # Errors
/// A machine's error, or no progress before the deadline.
pub fn run<B: Backend>(unit: &Unit<'_, B>, workers: &Workers) -> Result<Times, Failure> {
    unit.check()?;
    let shared = Shared {
        ready: Arrivals::default(),
        go: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let all = thread::scope(|scope| {
        let spawn = |w| {
            let shared = &shared;
            let work = move || {
                if workers.pinned {
                    pin::pin(unit.world.nth_worker(w));
                }
                Worker::new(unit, workers, shared, w).run()
            };
            let started = thread::Builder::new().spawn_scoped(scope, work);
            // The workers that did start are waiting for this one.
            started.map_err(|e| shared.fail(Failure::Thread(e.to_string()))).ok()
        };
        let handles: Vec<_> = (0..workers.count).map_while(spawn).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Vec<_>>()
    });
    match shared.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(merge(&all)),
    }
}

fn merge(all: &[Times]) -> Times {
    let merged = |of: fn(&Times) -> &Vec<Duration>, merge: fn(Duration, Duration) -> Duration| {
        let lists = all.iter().map(|times| of(times).clone());
        let both = |a: Vec<_>, b: Vec<_>| a.into_iter().zip(b).map(|(a, b)| merge(a, b)).collect();
        lists.reduce(both).unwrap_or_default()
    };
    Times {
        operators: merged(|times| &times.operators, Duration::max),
        wall: all.iter().map(|times| times.wall).max().unwrap_or_default(),
        steps: all.iter().map(|times| times.steps).sum(),
        waited_for: merged(|times| &times.waited_for, Duration::add),
    }
}

struct Worker<'a, B> {
    unit: &'a Unit<'a, B>,
    workers: &'a Workers,
    shared: &'a Shared,
    number: usize,
    tasks: Vec<Polled>,
    agents: Vec<PolledAgent>,
    times: Times,
    /// The operator whose time is running, and since when.
    charged: usize,
    since: Instant,
}

/// The agent of a rank.
struct PolledAgent {
    rank: RankId,
    /// What the backend was told that it waits for.
    told: Option<Wait>,
}

struct Polled {
    task: Task,
    ended: bool,
    /// What the backend was told that it waits for.
    told: Option<Wait>,
    /// For whom it has been waiting since when.
    waiting: Option<(RankId, Instant)>,
}

impl<'a, B: Backend> Worker<'a, B> {
    fn new(unit: &'a Unit<'a, B>, workers: &'a Workers, shared: &'a Shared, w: usize) -> Self {
        let first = unit.world.ranks().next().unwrap_or(RankId(0));
        let here = (unit.world.ranks().count() as u32, unit.shape.aiv_num());
        let mine = |rank: RankId, core| workers.worker_of(here, rank.0 - first.0, core) == w;
        let cores =
            |rank| (0..unit.shape.aiv_num()).map(move |core| Task::new(unit.shape, rank, CoreId(core)));
        let tasks = unit
            .world
            .ranks()
            .flat_map(cores)
            .filter(|task| mine(task.rank, Some(task.core)))
            .map(|task| Polled { task, ended: false, told: None, waiting: None })
            .collect();
        let times = Times {
            operators: vec![Duration::ZERO; unit.operators.len()],
            waited_for: vec![Duration::ZERO; unit.ranks.len()],
            ..Times::default()
        };
        let has_agents = unit.options.choices.has_agents(unit.shape);
        let agents = unit.world.ranks().filter(|&rank| has_agents && mine(rank, None));
        let agents = agents.map(|rank| PolledAgent { rank, told: None }).collect();
        Self { unit, workers, shared, number: w, tasks, agents, times, charged: 0, since: Instant::now() }
    }

    /// A function of its own in every build, so that counts and profiles by function have it.
    #[inline(never)]
    fn run(mut self) -> Times {
        let _stop_if_panicking = StopOnPanic(&self.shared.stop);
        if !self.begin_together() {
            return self.times;
        }
        let world = self.unit.world;
        let begin = Instant::now();
        self.since = begin;
        let mut rest = Rest::new(world);
        let mut patience = Patience::new(self.workers.deadline);
        loop {
            let has_moved = match self.pass() {
                Ok((_, true)) => {
                    world.set_busy(self.number, false);
                    rest.moved();
                    break;
                }
                Ok((moved, false)) => moved,
                Err(failure) => {
                    self.shared.fail(failure);
                    break;
                }
            };
            let has_come = world.carry();
            // In a world of several processes the process that watches all of them says when it is enough.
            if self.shared.stop.load(Ordering::Relaxed) {
                self.add_complaints();
                break;
            }
            let mut is_spent = || world.is_stopped() || world.is_alone() && patience.is_spent(world);
            if rest.passes() > 0 && is_spent() {
                self.shared.fail(Failure::Hang(Hang { after: patience.deadline(), missing: Vec::new() }));
                self.add_complaints();
                break;
            }
            if has_moved {
                rest.moved();
            } else if !has_come {
                world.count_pass_in_vain(self.number);
                rest.in_vain();
            }
        }
        self.charge(UNCHARGED);
        self.times.wall = begin.elapsed();
        self.times
    }

    /// Waits for all workers of all processes. `false` if one of them cannot begin.
    fn begin_together(&self) -> bool {
        let Shared { ready, go, stop, .. } = self.shared;
        self.unit.world.set_busy(self.number, true);
        ready.arrive();
        let all = self.workers.count as u64;
        while self.number > 0 && !has_come(go, 1) || !ready.have_come(all) {
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            thread::yield_now();
        }
        if self.number == 0 {
            if let Err(failure) = meet(self.unit.world) {
                self.shared.fail(failure);
                return false;
            }
            self.unit.world.enter(Phase::Drives);
            come(go, 1);
        }
        true
    }

    /// Polls every task once. Whether any moved, and whether all have ended.
    fn pass(&mut self) -> Result<(bool, bool), Failure> {
        let (mut steps, mut moved, mut all_ended) = (0, false, true);
        // Asked once in a pass: it is dear beside a look at a flag.
        let mut now = None;
        let mut clock = || *now.get_or_insert_with(Instant::now);
        for i in 0..self.tasks.len() {
            if self.tasks[i].ended {
                continue;
            }
            let task = &self.tasks[i].task;
            self.charge(if task.blocked(self.unit).is_some() { UNCHARGED } else { task.operator });
            let polled = &mut self.tasks[i];
            let (rank, core) = (polled.task.rank, polled.task.core);
            let (done, stop) =
                polled.task.run(self.unit, TURN).map_err(|error| Failure::Protocol { rank, core, error })?;
            polled.task.stepper.keeps_to_its_plan(rank, core)?;
            let experts = core::mem::take(&mut polled.task.experts);
            self.since += experts;
            // Experts are no steps, but they move on.
            let has_moved = done > 0 || !experts.is_zero();
            moved |= has_moved;
            if has_moved {
                // By task, not by pass: a pass over thousands of cores may take longer than a short deadline.
                self.unit.world.count_move(self.number);
                if let Some((source, since)) = polled.waiting.take() {
                    self.times.waited_for[source.index()] += clock() - since;
                }
            }
            polled.ended = stop == Some(Stop::End);
            let wait = if let Some(Stop::Wait(wait)) = stop { Some(wait) } else { None };
            tell_wait(self.unit, Actor { member: rank, core }, &mut polled.told, has_moved, wait);
            if let Some(wait) = wait
                && polled.waiting.is_none()
                && let Some(source) = wait.source()
                && source != rank
            {
                polled.waiting = Some((source, clock()));
            }
            all_ended &= polled.ended;
            steps += done;
        }
        for PolledAgent { rank, told } in &mut self.agents {
            let rank = *rank;
            // Before its step: what is rung until then is served by it.
            let has_ended = self.unit.has_ended(rank);
            let (done, wait) = run_agent(self.unit, rank, TURN)?;
            tell_wait(self.unit, Actor { member: rank, core: AGENT }, told, done > 0, wait);
            if done > 0 {
                self.unit.world.count_move(self.number);
            }
            all_ended &= has_ended && wait == Some(Wait::IDLE);
            moved |= done > 0;
            steps += done;
        }
        self.times.steps += u64::from(steps);
        Ok((moved, all_ended))
    }

    /// From now on time counts for `operator`.
    fn charge(&mut self, operator: usize) {
        if operator != self.charged {
            let now = Instant::now();
            if let Some(time) = self.times.operators.get_mut(self.charged) {
                *time += now - self.since;
            }
            (self.charged, self.since) = (operator, now);
        }
    }

    /// Adds what this worker's cores miss to the report of a hang.
    fn add_complaints(&mut self) {
        let is_hang = |failure: &Option<Failure>| matches!(failure, Some(Failure::Hang(_)));
        if !is_hang(&self.shared.failure()) {
            return;
        }
        let mut missing = Vec::new();
        for Polled { task, ended, .. } in &mut self.tasks {
            // Who waits for its own rank's other cores alone misses nothing.
            if !*ended && let Ok((_, Some(Stop::Wait(wait)))) = task.run(self.unit, 1) {
                let Task { rank, core, operator, .. } = *task;
                missing.push(Missing { rank, core, operator, wait });
            }
        }
        for &PolledAgent { rank, .. } in &self.agents {
            if let Ok((_, Some(wait))) = run_agent(self.unit, rank, 1) {
                missing.extend(Missing::of_agent(rank, wait));
            }
        }
        if let Some(Failure::Hang(hang)) = &mut *self.shared.failure() {
            hang.missing.extend(missing);
        }
    }
}

/// Tells a layer that asks what a core or agent waits for from now on: it has moved since it was `told`, or waits for something else.
fn tell_wait<B: Backend>(
    unit: &Unit<'_, B>,
    actor: Actor,
    told: &mut Option<Wait>,
    has_moved: bool,
    wait: Option<Wait>,
) {
    if !B::STEPS || !has_moved && wait == *told {
        return;
    }
    *told = wait;
    if let Some(wait) = wait {
        unit.backend.hears(actor.member, actor.core, Told::Waits(wait));
    }
}

/// A worker that panics takes the others with it, instead of leaving them to wait for it.
pub(crate) struct StopOnPanic<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Times {
    /// The times of all dispatches or of all combines, in order; of halves the sum.
    #[must_use]
    pub fn of(&self, operators: &[Planned], dispatch: bool) -> Vec<Duration> {
        let times = operators.iter().zip(&self.operators);
        let mut sums: Vec<(usize, Duration)> = Vec::new();
        for (planned, &time) in times.filter(|(planned, _)| planned.is_dispatch() == dispatch) {
            let begun = sums.iter_mut().rev().find(|(round, _)| *round == planned.round);
            match begun.filter(|_| !planned.begins()) {
                Some((_, sum)) => *sum += time,
                None => sums.push((planned.round, time)),
            }
        }
        sums.into_iter().map(|(_, sum)| sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_several_workers_are_summed_and_their_times_are_those_of_the_slowest() {
        let millis = |all: [u64; 2]| all.map(Duration::from_millis).to_vec();
        let times = |operators, waited_for, steps| Times {
            operators: millis(operators),
            wall: Duration::from_millis(steps),
            steps,
            waited_for: millis(waited_for),
        };
        let all = [times([5, 1], [1, 20], 7), times([2, 8], [300, 4], 9), times([3, 3], [0, 0], 1)];
        let merged = merge(&all);
        assert_eq!((merged.operators, merged.waited_for), (millis([5, 8]), millis([301, 24])));
        assert_eq!((merged.wall, merged.steps), (Duration::from_millis(9), 17));
    }
}
