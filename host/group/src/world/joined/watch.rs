//! Watches the processes of a group: who has ended, who has died, whether anybody moves.

use super::{At, How, Patience, World};
use crate::interrupt;
use core::time::Duration;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread;
use std::time::Instant;
use veriep_case::error::Gone;
use veriep_core::units::RankId;

/// Between two looks.
const TICK: Duration = Duration::from_millis(4);
/// A process that has not run at all for so long, and for the deadline, is silent, if no process moves meanwhile.
const SILENT: Duration = Duration::from_millis(500);
/// After a death: no process has moved for so long, and what is missing now is missing for good.
const SETTLED: Duration = Duration::from_millis(40);
/// How long that is waited for, and then for what the others say. Together with a tick less than half a second.
const SETTLES: Duration = Duration::from_millis(200);
const SAYS: Duration = Duration::from_millis(200);
/// How long others may take to their verdicts when one has failed, or to say what they miss when all are stuck.
const ENDS: Duration = Duration::from_secs(2);

/// A process that has left, and its last known place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    /// Its number in the group.
    pub process: usize,
    /// And in the system.
    pub pid: u32,
    /// The machine that it ran on.
    pub host: String,
    /// How.
    pub how: How,
    /// Where it was.
    pub at: At,
}

/// How a group has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All finished.
    Well,
    /// Some ended by themselves and said why; the others were stopped.
    Failed,
    /// No process moved for so long; each said what it misses.
    Stuck(Duration),
    /// A process died; the others said what they miss.
    Gone(Vec<Departed>),
}

/// The processes of a group as their watcher sees them.
pub trait Watched {
    /// Looks who has ended.
    fn reap(&mut self);
    /// How a process has ended, if it has and should not have.
    fn left(&self, process: usize) -> Option<How>;
    /// Whether nothing more is to be heard of a process.
    fn has_ended(&self, process: usize) -> bool;
    /// Ends those that have not ended, as far as that can be done from here.
    fn kill(&mut self);
}

/// Waits until a group `is_done`, or has ended in another way: then ends what is left of it. A process that ended by itself
/// with an error `has_told` of it in what it said, else it is gone.
pub fn watch<M: Watched>(
    world: &World,
    members: &mut M,
    deadline: Duration,
    has_told: impl FnMut(usize, &mut M) -> bool,
    is_done: &mut dyn FnMut(&mut M) -> bool,
) -> Outcome {
    let mut patience = Patience::new(deadline);
    let mut watch = Watch { world, members, has_told };
    let outcome = loop {
        thread::sleep(TICK);
        if interrupt::is_asked() {
            world.ask_for_the_end();
        }
        watch.members.reap();
        let (gone, failed) = watch.ended_badly();
        if !gone.is_empty() {
            break watch.settle(gone);
        }
        if failed {
            break Outcome::Failed;
        }
        if is_done(watch.members) {
            return Outcome::Well;
        }
        // Who is asked to end and cannot says at once who does not let it.
        let deadline = patience.deadline();
        let limit = if interrupt::is_asked() { SILENT.min(deadline) } else { deadline };
        let idle = patience.look(world);
        let silent = patience.silent(world, limit.max(SILENT));
        if idle >= limit {
            if !silent.is_empty() {
                let gone = silent.into_iter().map(|process| world.departed(process, How::Silent));
                break Outcome::Gone(gone.collect());
            }
            if idle >= deadline && (world.is_deaf() || patience.is_spent(world)) {
                break Outcome::Stuck(deadline);
            }
        }
    };
    world.stop();
    let limit = if matches!(outcome, Outcome::Gone(_)) { SAYS } else { ENDS };
    let since = Instant::now();
    let is_silent =
        |process| matches!(&outcome, Outcome::Gone(gone) if gone.iter().any(|d| d.process == process));
    while since.elapsed() < limit {
        watch.members.reap();
        if (0..world.processes()).all(|process| watch.members.has_ended(process) || is_silent(process)) {
            break;
        }
        thread::sleep(TICK);
    }
    watch.members.kill();
    outcome
}

impl Departed {
    /// For a report: its ranks by the names that `name` has for them, and what it did.
    #[must_use]
    pub fn told(
        &self,
        world: &World,
        name: &dyn Fn(RankId) -> RankId,
        (round, operator): (Option<usize>, Option<&'static str>),
    ) -> Gone {
        let Self { process, pid, host, how, .. } = self.clone();
        let ranks = world.ranks_of(process).map(|rank| name(rank).0).collect();
        Gone { process, pid, host, ranks, how: how.to_string(), round, operator }
    }
}

/// The name of this machine.
pub(super) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// How a process has ended, as the system tells it.
pub(super) fn how(end: ExitStatus) -> How {
    match (end.signal(), end.code()) {
        (Some(signal), _) => How::Signal(signal),
        (None, status) => How::Exit(status.unwrap_or(-1)),
    }
}

struct Watch<'w, M, F> {
    world: &'w World,
    members: &'w mut M,
    has_told: F,
}

impl<M: Watched, F: FnMut(usize, &mut M) -> bool> Watch<'_, M, F> {
    /// Those who died, and whether others failed and said why.
    fn ended_badly(&mut self) -> (Vec<Departed>, bool) {
        let (mut gone, mut failed) = (Vec::new(), false);
        for process in 0..self.world.processes() {
            let Some(how) = self.members.left(process) else { continue };
            if matches!(how, How::Exit(_)) && (self.has_told)(process, self.members) {
                failed = true;
            } else {
                gone.push(self.world.departed(process, how));
            }
        }
        (gone, failed)
    }

    /// Lets those who live go on until they wait for the dead.
    fn settle(&mut self, mut gone: Vec<Departed>) -> Outcome {
        let since = Instant::now();
        let mut patience = Patience::new(SETTLED);
        while since.elapsed() < SETTLES {
            if patience.look(self.world) >= SETTLED && patience.all_others_have_tried(self.world, &gone) {
                break;
            }
            thread::sleep(TICK);
            self.members.reap();
            gone = self.ended_badly().0;
        }
        Outcome::Gone(gone)
    }
}
