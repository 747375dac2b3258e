//! One thread drives all cores, one step at a time; a seeded scheduler chooses who is next. The same seed
//! gives the same run.

use super::task::run_agent;
use super::{Failure, Hang, Missing, Stop, Task, Unit};
use crate::backend::Backend;
use crate::member;
use core::time::Duration;
use kernel_core::units::RankId;
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// What a lockstep driver needs to know of its memory beyond [`Backend`].
pub trait Clockwork: Backend {
    /// Time passes.
    fn tick(&self);
    /// Lands one effect in flight; `false` when there is none.
    fn land_one(&self) -> bool;
}

impl Clockwork for crate::backend::lockstep::Lockstep {
    fn tick(&self) {
        self.tick();
    }

    fn land_one(&self) -> bool {
        self.land_one()
    }
}

impl<B: Clockwork> Clockwork for crate::backend::inject::Inject<B> {
    fn tick(&self) {
        self.inner.tick();
    }

    fn land_one(&self) -> bool {
        self.inner.land_one()
    }
}

impl<B: Clockwork> Clockwork for crate::backend::count::Counted<B> {
    fn tick(&self) {
        self.inner.tick();
    }

    fn land_one(&self) -> bool {
        self.inner.land_one()
    }
}

impl<B: Clockwork> Clockwork for crate::backend::survivors::Survivors<B> {
    fn tick(&self) {
        self.inner.tick();
    }

    fn land_one(&self) -> bool {
        self.inner.land_one()
    }
}

/// Steps per task, about, between two draws of who sleeps: more than a short operator takes.
const NAP: usize = 64;

/// Runs a unit to its end. Returns the number of steps.
///
/// # Errors
/// A machine's error, or a group in which nobody can move and nothing is in flight.
pub fn run<B: Clockwork>(unit: &Unit<'_, B>, rng: &mut ChaCha8Rng) -> Result<u64, Failure> {
    unit.check()?;
    // Both kinds of steps in a group; whoever is to stop stops behind any effect.
    let is_finer = |rank: RankId| unit.options.stopped.is_some() || !rank.0.is_multiple_of(2);
    let tasks = member::all(unit.shape).flat_map(|rank| unit.tasks_of(rank));
    let mut tasks: Vec<_> =
        tasks.map(|task| if is_finer(task.rank) { task.one_by_one() } else { task }).collect();
    let mut steps = 0;
    // Tasks in `live[..awake]` may be chosen; the others sleep, so that their peers run ahead of them.
    let mut live: Vec<usize> = (0..tasks.len()).collect();
    let mut awake = live.len();
    let mut idle = 0;
    let mut agents = Agents { ranks: unit.agents().collect(), awake: usize::MAX };
    while !live.is_empty() {
        if rng.random_ratio(1, (NAP * live.len()) as u32) {
            awake = put_some_to_sleep(&tasks, &mut live, rng);
            agents.put_some_to_sleep(rng);
        }
        idle = if agents.step_one(unit, rng)? { 0 } else { idle };
        let pick = rng.random_range(0..awake);
        unit.backend.tick();
        let (done, stop) = step(unit, &mut tasks[live[pick]])?;
        steps += u64::from(done);
        idle = if done > 0 { 0 } else { idle + 1 };
        if stop == Some(Stop::End) {
            live.remove(pick);
            awake = live.len();
        } else if idle > 2 * awake {
            idle = 0;
            // Those awake are stuck: either the others wake up, or something lands.
            if awake < live.len() && rng.random() {
                awake = live.len();
            } else if unit.backend.land_one() {
                // To find out that many are stuck took long: more lands for them than for a few.
                let more = rng.random_range(0..=live.len() / 4);
                for _ in 0..more {
                    unit.backend.land_one();
                }
            } else {
                awake = live.len();
                agents.awake = usize::MAX;
                steps += everyone_once(unit, &mut tasks, &live)?;
            }
        }
    }
    // A rank may end before its agent has told itself that all is served.
    while agents.step_all(unit)?.0 > 0 || unit.backend.land_one() {}
    Ok(steps)
}

/// The agents of all ranks, if there are any.
struct Agents {
    ranks: Vec<RankId>,
    /// How many of them may be chosen.
    awake: usize,
}

impl Agents {
    fn put_some_to_sleep(&mut self, rng: &mut ChaCha8Rng) {
        if self.ranks.is_empty() {
            return;
        }
        self.ranks.shuffle(rng);
        self.awake = rng.random_range(0..=self.ranks.len());
    }

    /// Sometimes a step of one that is awake. Whether it moved.
    fn step_one<B: Backend>(&self, unit: &Unit<'_, B>, rng: &mut ChaCha8Rng) -> Result<bool, Failure> {
        let awake = self.awake.min(self.ranks.len());
        if awake == 0 || rng.random_ratio(3, 4) {
            return Ok(false);
        }
        let rank = self.ranks[rng.random_range(0..awake)];
        Ok(run_agent(unit, rank, 1)?.0 > 0)
    }

    /// A step of each. How many moved, and what the others wait for but for doorbells.
    fn step_all<B: Backend>(&self, unit: &Unit<'_, B>) -> Result<(u32, Vec<Missing>), Failure> {
        let (mut moved, mut missing) = (0, Vec::new());
        for &rank in &self.ranks {
            let (steps, wait) = run_agent(unit, rank, 1)?;
            moved += steps;
            missing.extend(wait.and_then(|wait| Missing::of_agent(rank, wait)));
        }
        Ok((moved, missing))
    }
}

fn step<B: Backend>(unit: &Unit<'_, B>, task: &mut Task) -> Result<(u32, Option<Stop>), Failure> {
    let (rank, core) = (task.rank, task.core);
    task.run(unit, 1).map_err(|error| Failure::Protocol { rank, core, error })
}

/// Steps the given cores, rank-major numbers in order, then everybody in turn to the end of the unit.
///
/// # Errors
/// As [`run`]; a core that cannot take its step is a group that hangs.
pub fn replay<B: Clockwork>(unit: &Unit<'_, B>, cores: &[usize]) -> Result<(), Failure> {
    let mut tasks: Vec<_> =
        member::all(unit.shape).flat_map(|rank| unit.tasks_of(rank)).map(Task::one_by_one).collect();
    for &core in cores {
        step(unit, &mut tasks[core])?;
    }
    loop {
        let live: Vec<usize> = (0..tasks.len()).filter(|&i| tasks[i].current(unit).is_some()).collect();
        if live.is_empty() {
            return Ok(());
        }
        everyone_once(unit, &mut tasks, &live)?;
    }
}

/// Shuffles the tasks, by rank or one by one, and lets a random part of them sleep.
fn put_some_to_sleep(tasks: &[Task], live: &mut [usize], rng: &mut ChaCha8Rng) -> usize {
    let by_rank: bool = rng.random();
    let keys: Vec<u32> = tasks.iter().map(|_| rng.random()).collect();
    live.sort_by_key(|&i| keys[if by_rank { tasks[i].rank.index() } else { i }]);
    rng.random_range(1..=live.len())
}

/// Gives every task a step with nothing in flight. If nobody moves, nobody ever will.
fn everyone_once<B: Clockwork>(
    unit: &Unit<'_, B>,
    tasks: &mut [Task],
    live: &[usize],
) -> Result<u64, Failure> {
    let (mut missing, mut steps, mut moved) = (Vec::new(), 0, false);
    let agents = Agents { ranks: unit.agents().collect(), awake: usize::MAX };
    let (agents_moved, of_agents) = agents.step_all(unit)?;
    missing.extend(of_agents);
    moved |= agents_moved > 0;
    for &i in live {
        let task = &mut tasks[i];
        let (done, stop) = step(unit, task)?;
        steps += u64::from(done);
        missing.extend(stop.and_then(|stop| Missing::of(task, stop)));
        moved |= done > 0 || stop == Some(Stop::End);
    }
    if moved { Ok(steps) } else { Err(Failure::Hang(Hang { after: Duration::ZERO, missing })) }
}
