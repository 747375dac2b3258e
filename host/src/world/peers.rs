//! Processes that joined watch each other: there is no parent to do so. Whoever sees a death first writes it down for all.

use super::beside::{Peer, next_end};
use super::board::OfProcess;
use super::join::{Identity, Seats};
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

/// How often this process says that it runs.
const BEAT: Duration = Duration::from_millis(100);
/// A process that has shown no sign of life for so long does not run.
const SILENT: Duration = Duration::from_millis(1000);

/// The thread that watches the other processes, as long as this value lives.
#[derive(Debug)]
pub struct Peers {
    stop: Arc<OwnedFd>,
    watching: Option<JoinHandle<()>>,
    /// Whose it is: a copy of this process has no such thread.
    pid: Pid,
}

impl Peers {
    /// Begins to watch all other processes of a group that have joined.
    ///
    /// # Errors
    /// The system has no more file descriptors, or no more threads.
    pub fn watch(world: &Arc<World>) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let mut living = Vec::new();
        for process in (0..world.processes()).filter(|&process| process != world.me) {
            let who = Identity::of(world, process);
            match Peer::new(u32::try_from(who.pid).unwrap_or(0))? {
                // Else it is another one of that number.
                Some(peer) if who.runs() => living.push(((process, who), peer)),
                _ => world.died(process, who),
            }
        }
        let (world, stopped) = (world.clone(), stop.clone());
        let watch = move || {
            let died = |(process, who), _: &Peer| world.died(process, who);
            while next_end(&mut living, &stopped, BEAT, died) {
                world.beat();
            }
        };
        let watching = thread::Builder::new().name("veriep-peers".to_owned()).spawn(watch)?;
        Ok(Self { stop, watching: Some(watching), pid: getpid() })
    }
}

impl Drop for Peers {
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
    /// This process, which has not joined, is nevertheless known by its number in the system.
    pub(crate) fn sit(&self) {
        // The seat is its own, whoever sat there.
        let _ = Seats(&self.board).take(self.me, |_| false);
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
    fn died(&self, process: usize, who: Identity) {
        if matches!(self.phase_of(process), Phase::Ended | Phase::GivenUp) {
            return;
        }
        let how = who.exit_code().map_or(How::Ended, |code| how(ExitStatus::from_raw(code)));
        // Another one may have seen more.
        let died = self.board.of(process, OfProcess::Died);
        let _ = died.compare_exchange(0, how.word(), Ordering::AcqRel, Ordering::Relaxed);
        self.notify();
    }

    fn departed(&self, process: usize, how: How) -> Departed {
        let pid = Identity::of(self, process).pid as u32;
        Departed { process, pid, host: host(), how, at: self.place_of(process) }
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
        // First: whoever left because of a death has written that down before.
        let left: Vec<_> =
            others().filter(has_left).map(|process| self.departed(process, How::Left)).collect();
        let died = |process| Some(self.departed(process, How::of_word(self.how_left(process))?));
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
