//! The processes of a group on one machine watch each other. The first that sees a death writes it on the board for all.

use super::board::OfProcess;
use super::join::{Identity, MemberTable};
use super::pidfd::{Pidfd, next_end};
use super::watch::{host, how};
use super::{At, Departed, How, Phase, World};
use core::sync::atomic::Ordering;
use core::time::Duration;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, getpid};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// How often this process says that it runs. A process is silent after five times as long at the earliest.
const BEAT: Duration = Duration::from_millis(50);
/// A process that has shown no sign of life for so long does not run.
const SILENT: Duration = Duration::from_millis(1000);

/// Other processes of a group on this machine, as far as they live.
#[derive(Debug, Default)]
pub struct Peers(Vec<(Peer, Pidfd)>);

/// The number of a process in its group, and who it is.
type Peer = (usize, Identity);

impl Peers {
    /// Those of `all` that live. Of the others it is written that they have died.
    pub(super) fn of(world: &World, all: impl Iterator<Item = Peer>) -> io::Result<Self> {
        let mut living = Vec::new();
        for (process, who) in all.filter(|&(process, _)| process != world.me) {
            match Pidfd::of(u32::try_from(who.pid).unwrap_or(0))? {
                // Else it is another one of that number.
                Some(pidfd) if who.runs() => living.push(((process, who), pidfd)),
                _ => world.died(process, end_of(who, None)),
            }
        }
        Ok(Self(living))
    }

    /// Takes those out that have ended, and tells how.
    pub(super) fn look(&mut self, mut ended: impl FnMut(usize, How)) {
        let told = |(process, who), pidfd: &Pidfd| ended(process, end_of(who, Some(pidfd)));
        next_end(&mut self.0, None, Duration::ZERO, told);
    }

    /// Whether a process has ended, as of the last look.
    pub(super) fn has_ended(&self, process: usize) -> bool {
        self.0.iter().all(|((other, _), _)| *other != process)
    }

    /// Whether all have.
    pub(super) fn have_ended(&self) -> bool {
        self.0.is_empty()
    }

    /// Watches them by a thread of this process, which also says that this one runs.
    ///
    /// # Errors
    /// The system has no more file descriptors, or no more threads.
    pub fn watch(self, world: &Arc<World>) -> io::Result<PeerWatch> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (Self(mut living), world, stopped) = (self, world.clone(), stop.clone());
        let watch = move || {
            let died = |(process, who), pidfd: &Pidfd| world.died(process, end_of(who, Some(pidfd)));
            world.beat();
            while next_end(&mut living, Some(&stopped), BEAT, died) {
                world.beat();
            }
        };
        let watching = thread::Builder::new().name("veriep-peers".to_owned()).spawn(watch)?;
        Ok(PeerWatch { stop, watching: Some(watching), pid: getpid() })
    }
}

/// How a process has ended: as its parent would be told, or else where the system tells others.
fn end_of(who: Identity, pidfd: Option<&Pidfd>) -> How {
    let code = who.exit_code().or_else(|| pidfd?.exit_code());
    code.map_or(How::Ended, |code| how(ExitStatus::from_raw(code)))
}

/// The thread that watches other processes, as long as this value lives.
#[derive(Debug)]
pub struct PeerWatch {
    stop: Arc<OwnedFd>,
    watching: Option<JoinHandle<()>>,
    /// Whose it is: a copy of this process has no such thread.
    pid: Pid,
}

impl Drop for PeerWatch {
    fn drop(&mut self) {
        if getpid() == self.pid
            && let Some(watching) = self.watching.take()
        {
            // Written, it is seen; if it is not, the thread ends with the process.
            if rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).is_ok() {
                let _ = watching.join();
            }
        }
    }
}

impl World {
    /// Says that this process runs.
    pub(super) fn beat(&self) {
        self.own(OfProcess::Beat).fetch_add(1, Ordering::Relaxed);
    }

    /// Enters this process, which has not joined, as the member that the world is of.
    pub(crate) fn enter_member(&self) {
        MemberTable(&self.board).enter(self.me, Identity::own());
    }

    /// A process of one rank begins an operator of a round: its dispatch, which is number 0, or its combine.
    pub(crate) fn begin_operator(&self, round: usize, nth: usize) {
        self.own(OfProcess::Unit).store(round as u64, Ordering::Relaxed);
        self.own(OfProcess::Batch).store(nth as u64, Ordering::Relaxed);
        self.enter(Phase::Drives);
    }

    /// And has ended it.
    pub(crate) fn end_operator(&self) {
        self.rank_is_open();
        self.enter(Phase::Starts);
    }

    /// The round that such a process is in, and the operator; between dispatch and combine these are the experts.
    pub(crate) fn round_of(&self, process: usize) -> (Option<usize>, Option<&'static str>) {
        let At { phase, unit, operators, batch, .. } = self.place_of(process);
        match (phase, batch) {
            (Phase::Drives, 0) => (Some(unit), Some("dispatch")),
            (Phase::Drives, _) => (Some(unit), Some("combine")),
            _ if operators == 0 => (None, None),
            (Phase::Starts, 0) => (Some(unit), Some("experts")),
            _ => (Some(unit), None),
        }
    }

    /// A process runs no more. That is no death if it had left the group before.
    pub(super) fn died(&self, process: usize, how: How) {
        if !matches!(self.phase_of(process), Phase::Ended | Phase::GivenUp) {
            self.note_death(process, how);
        }
    }

    /// Writes a death on the board. Of several processes that have seen it, the one that knows more counts.
    pub(super) fn note_death(&self, process: usize, how: How) {
        self.board.of(process, OfProcess::Died).fetch_max(how.word(), Ordering::AcqRel);
        self.notify();
    }

    /// How a process has died, if it has.
    pub(super) fn how_died(&self, process: usize) -> Option<How> {
        How::of_word(self.board.of(process, OfProcess::Died).load(Ordering::Acquire))
    }

    /// A process that has left, as the group knows it.
    pub(super) fn departed(&self, process: usize, how: How) -> Departed {
        let pid = MemberTable(&self.board).of(process).map_or(0, |who| who.pid as u32);
        let host = self.links.hosts.get(process).cloned().unwrap_or_else(host);
        Departed { process, pid, host, how, at: self.place_of(process) }
    }

    /// Those without whom the operators up to that number, from 1 on, cannot end: the dead, or else those who have left
    /// before it. Who left because of others is not to blame.
    #[must_use]
    pub fn gone_before(&self, operator: u64) -> Vec<Departed> {
        let others = || (0..self.processes()).filter(|&process| process != self.me);
        let ended = |process: &usize| {
            let ranks = self.ranks_of(*process).count() as u64;
            self.board.of(*process, OfProcess::Open).load(Ordering::Acquire) >= operator * ranks
        };
        let has_left = |process: &usize| self.phase_of(*process) == Phase::Ended && !ended(process);
        // First: a process that left because of a death has written that down before.
        let left: Vec<_> =
            others().filter(has_left).map(|process| self.departed(process, How::Left)).collect();
        let died = |process| Some(self.departed(process, self.how_died(process)?));
        let dead: Vec<_> = others().filter_map(died).collect();
        if dead.is_empty() { left } else { dead }
    }

    /// Who shows no sign of life while the caller looks, for about a second.
    #[must_use]
    pub fn silent(&self) -> Vec<Departed> {
        let before: Vec<_> = self.beats().collect();
        thread::sleep(SILENT);
        let after: Vec<_> = self.beats().collect();
        let is_here = |&process: &usize| {
            process != self.me && !matches!(self.phase_of(process), Phase::Ended | Phase::GivenUp)
        };
        let is_silent = |process: &usize| before[*process] == after[*process];
        let silent = (0..self.processes()).filter(is_here).filter(is_silent);
        silent.map(|process| self.departed(process, How::Silent)).collect()
    }
}
