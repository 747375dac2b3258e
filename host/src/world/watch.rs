//! Watches the processes of a group: who has ended, who has died, whether anybody moves.

use super::processes::Members;
use super::{At, Gone, Patience, World};
use crate::interrupt;
use core::fmt;
use core::time::Duration;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread;
use std::time::Instant;
use veriep_core::units::RankId;

/// Between two looks.
const TICK: Duration = Duration::from_millis(4);
/// A process that has not run at all for so long is silent, if nobody moves meanwhile.
const SILENT: Duration = Duration::from_millis(500);
/// Behind a death: nobody has moved for so long, and what is missing now is missing for good.
const SETTLED: Duration = Duration::from_millis(40);
/// How long that is waited for, and then for what the others say. Together with a tick less than half a second.
const SETTLES: Duration = Duration::from_millis(200);
const SAYS: Duration = Duration::from_millis(200);
/// How long others may take to their verdicts when one has failed, or to say what they miss when all are stuck.
const ENDS: Duration = Duration::from_secs(2);

/// How a process has left its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Killed by that signal.
    Signal(i32),
    /// Ended by itself with that status, without a word.
    Exit(i32),
    /// It does not run.
    Silent,
    /// By itself, before the others could go on without it.
    Left,
    /// It runs no more; how that came nobody has told.
    Ended,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Exit(status) => write!(f, "exit {status}"),
            Self::Silent => f.write_str("silent"),
            Self::Left => f.write_str("left"),
            Self::Ended => f.write_str("ended"),
        }
    }
}

/// Somebody who has left, and where it was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departed {
    /// Its number in the group.
    pub process: usize,
    /// And in the system.
    pub pid: u32,
    /// How.
    pub how: How,
    /// Where it was.
    pub at: At,
}

/// How a group has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should.
    Well,
    /// Some ended by themselves and said why; the others were stopped.
    Failed,
    /// Nobody moved for the deadline; each said what it misses.
    Stuck,
    /// Somebody died; the others said what they miss.
    Gone(Vec<Departed>),
}

/// Waits until a group `is_done`, or has ended in another way: then ends what is left of it. A process that ended by itself
/// with an error `has_told` of it in what it said, else it is gone.
pub fn watch(
    world: &World,
    members: &mut Members,
    deadline: Duration,
    has_told: impl FnMut(usize, &mut Members) -> bool,
    is_done: &mut dyn FnMut(&mut Members) -> bool,
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
        if patience.look(world) >= deadline {
            let silent = patience.silent(world, SILENT);
            if !silent.is_empty() {
                let gone = silent.into_iter().map(|process| watch.departed(process, How::Silent));
                break Outcome::Gone(gone.collect());
            }
            if patience.is_spent(world) {
                break Outcome::Stuck;
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
        let mut all = watch.members.0.iter().enumerate();
        if all.all(|(process, member)| member.end.is_some() || is_silent(process)) {
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
        let Self { process, pid, how, .. } = *self;
        let ranks = world.ranks_of(process).map(|rank| name(rank).0).collect();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Gone { process, pid, host, ranks, how: how.to_string(), round, operator }
    }
}

struct Watch<'w, F> {
    world: &'w World,
    members: &'w mut Members,
    has_told: F,
}

impl<F: FnMut(usize, &mut Members) -> bool> Watch<'_, F> {
    /// Those who died, and whether others failed and said why.
    fn ended_badly(&mut self) -> (Vec<Departed>, bool) {
        let (mut gone, mut failed) = (Vec::new(), false);
        for process in 0..self.members.0.len() {
            let Some(end) = self.members.0[process].end.filter(|end| !end.success()) else { continue };
            let how = how(end);
            if matches!(how, How::Exit(_)) && (self.has_told)(process, self.members) {
                failed = true;
            } else {
                gone.push(self.departed(process, how));
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

    fn departed(&self, process: usize, how: How) -> Departed {
        let at = self.world.place_of(process);
        Departed { process, pid: self.members.pid(process), how, at }
    }
}

pub(super) fn how(end: ExitStatus) -> How {
    match (end.signal(), end.code()) {
        (Some(signal), _) => How::Signal(signal),
        (None, status) => How::Exit(status.unwrap_or(-1)),
    }
}
