//! Group membership and progress: what the process that drives some ranks has to know of those that drive the others. A
//! process is alone, or has [joined](join) others.
//!
//! The protocol needs none of this. It is for the driver's own questions: have all ranks ended an operator, does anybody
//! move, must the group end.

mod board;
mod calls;
#[cfg(target_os = "linux")]
mod joined;
mod patience;

pub use calls::{ANY_TENSORS, Announced, Call, Called, Calls};
#[cfg(target_os = "linux")]
pub use joined::*;
pub use patience::Patience;

use crate::interrupt;
use board::{Board, OfGroup, OfProcess, OfWorker};
use core::sync::atomic::{AtomicU64, Ordering};
use veriep_core::sync::join::{come, has_come};
use veriep_core::units::RankId;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Makes ready.
    Starts,
    /// Waits for the others before a unit.
    Meets,
    /// Polls its cores.
    Drives,
    /// Compares results with the reference.
    Checks,
    /// Has done all that it was asked for, and may be asked for more.
    Idle,
    /// Has left the group.
    Ended,
    /// Has ended, since the group cannot go on.
    GivenUp,
}

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// What it does.
    pub phase: Phase,
    /// The unit that it is in.
    pub unit: usize,
    /// Operators that all its ranks have ended since the group began, experts included.
    pub operators: usize,
    /// Whether experts run.
    pub experts: bool,
    /// The batch of the unit that it compares.
    pub batch: usize,
}

/// One process's part of a group, and its view of the others. But for meetings, orders and phases it orders nothing: between
/// ranks the protocol alone must do that, and ThreadSanitizer would not see that it does if these counts helped.
#[derive(Debug)]
pub struct World {
    board: Board,
    /// The number of this process; that of all where it only watches.
    me: usize,
    /// No process watches the group: its only process is this one.
    alone: bool,
    /// There are more workers than processors.
    crowded: bool,
    /// All ranks of the group.
    ranks: u32,
    /// Units and their operators that ended before this one.
    units: AtomicU64,
    operators: AtomicU64,
    /// Meetings until now.
    meetings: AtomicU64,
    /// To the others, if it has joined.
    #[cfg(target_os = "linux")]
    links: Links,
}

impl World {
    /// The only process of a group of so many ranks and workers.
    #[must_use]
    pub fn alone(ranks: u32, workers: usize) -> Self {
        Self { alone: true, ..Self::of(Board::alone(workers), 0, ranks) }
    }

    fn of(board: Board, me: usize, ranks: u32) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            board,
            me,
            alone: false,
            crowded: false,
            ranks,
            units: zero(),
            operators: zero(),
            meetings: zero(),
            #[cfg(target_os = "linux")]
            links: Links::default(),
        }
    }

    /// The number of this process.
    #[must_use]
    pub const fn process(&self) -> usize {
        self.me
    }

    /// How many processes there are.
    #[must_use]
    pub const fn processes(&self) -> usize {
        self.board.processes()
    }

    /// Whether this process is all there is: it decides by itself when to give up and when to end.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether processes outnumber processors: who waits must give its processor away.
    #[must_use]
    pub const fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// The number of a worker of this process among those of all.
    #[must_use]
    pub const fn nth_worker(&self, worker: usize) -> usize {
        self.me * self.board.workers() + worker
    }

    /// The process that drives a rank: neighbours stay together.
    #[must_use]
    pub const fn process_of(&self, rank: RankId) -> usize {
        Self::share_of(self.processes(), self.ranks, rank)
    }

    const fn share_of(processes: usize, ranks: u32, rank: RankId) -> usize {
        (rank.0 as u64 * processes as u64 / ranks as u64) as usize
    }

    /// The ranks of a process, before there is a world.
    pub fn split(processes: usize, ranks: u32, process: usize) -> impl Iterator<Item = RankId> {
        (0..ranks).map(RankId).filter(move |&rank| Self::share_of(processes, ranks, rank) == process)
    }

    /// The ranks of a process.
    pub fn ranks_of(&self, process: usize) -> impl Iterator<Item = RankId> + use<> {
        Self::split(self.processes(), self.ranks, process)
    }

    /// The ranks that this process drives.
    pub fn ranks(&self) -> impl Iterator<Item = RankId> + use<> {
        self.ranks_of(self.me)
    }

    /// Whether this process drives a rank.
    #[must_use]
    pub const fn is_here(&self, rank: RankId) -> bool {
        self.process_of(rank) == self.me
    }

    fn own(&self, word: OfProcess) -> &AtomicU64 {
        self.board.of(self.me, word)
    }

    #[inline]
    fn sum(&self, word: OfProcess) -> u64 {
        (0..self.processes()).map(|process| self.board.of(process, word).load(Ordering::Relaxed)).sum()
    }

    /// All ranks times the operators of the group before number `operator` of this unit.
    #[inline]
    fn before(&self, operator: usize) -> u64 {
        (self.operators.load(Ordering::Relaxed) + operator as u64) * u64::from(self.ranks)
    }

    /// The cores of a rank of this process have ended an operator.
    pub fn rank_has_ended(&self) {
        self.own(OfProcess::Ended).fetch_add(1, Ordering::Relaxed);
    }

    /// And its experts, if any were due.
    pub fn rank_is_open(&self) {
        self.own(OfProcess::Open).fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the cores of all ranks have ended the operators of the unit before number `operator`.
    #[inline]
    #[must_use]
    pub fn all_cores_ended(&self, operator: usize) -> bool {
        self.sum(OfProcess::Ended) >= self.before(operator)
    }

    /// The same, experts included.
    #[inline]
    #[must_use]
    pub fn all_ranks_ended(&self, operator: usize) -> bool {
        self.sum(OfProcess::Open) >= self.before(operator)
    }

    /// Runs a rank's experts, so that others can see that it does.
    pub fn with_experts<T>(&self, run: impl FnOnce() -> T) -> T {
        let running = self.own(OfProcess::Experts);
        running.fetch_add(1, Ordering::Relaxed);
        let ran = run();
        running.fetch_sub(1, Ordering::Relaxed);
        ran
    }

    /// A core of a worker has moved.
    #[inline]
    pub fn count_move(&self, worker: usize) {
        let moved = self.board.worker(self.me, worker, OfWorker::Moved);
        moved.store(moved.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A worker has tried all its cores, and none could move.
    pub fn count_pass_in_vain(&self, worker: usize) {
        let passes = self.board.worker(self.me, worker, OfWorker::InVain);
        passes.store(passes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A worker has something to do in this unit, or nothing any more.
    pub fn set_busy(&self, worker: usize, busy: bool) {
        self.board.worker(self.me, worker, OfWorker::Busy).store(busy.into(), Ordering::Release);
    }

    fn workers(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let workers = self.board.workers();
        (0..self.processes()).flat_map(move |process| (0..workers).map(move |worker| (process, worker)))
    }

    /// Grows whenever a core moves, or a rank is checked.
    #[must_use]
    pub fn progress(&self) -> u64 {
        let moved = |(process, worker)| self.board.worker(process, worker, OfWorker::Moved);
        let moves: u64 = self.workers().map(|worker| moved(worker).load(Ordering::Relaxed)).sum();
        moves + self.sum(OfProcess::Checked)
    }

    /// Passes in vain of all workers until now.
    fn count_in_vain(&self, counts: &mut Vec<u64>) {
        let passes = |(process, worker)| self.board.worker(process, worker, OfWorker::InVain);
        counts.clear();
        counts.extend(self.workers().map(|worker| passes(worker).load(Ordering::Relaxed)));
    }

    /// Whether every worker of such processes has tried all its cores since its passes in vain were so many, and none could
    /// move.
    fn have_tried(&self, since: &[u64], of: &dyn Fn(usize) -> bool) -> bool {
        let tried = |((process, worker), &since)| {
            let word = |word| self.board.worker(process, worker, word).load(Ordering::Relaxed);
            let met = |process| self.board.of(process, OfProcess::Met).load(Ordering::Acquire);
            match self.phase_of(process) {
                // Else it goes on as soon as it looks.
                Phase::Meets => !self.all_have_come(met(process)),
                Phase::Idle | Phase::Ended | Phase::GivenUp => true,
                // The first of the two passes may have begun before.
                Phase::Drives => word(OfWorker::Busy) == 0 || word(OfWorker::InVain) >= since + 2,
                Phase::Starts | Phase::Checks => false,
            }
        };
        self.workers().zip(since).filter(|((process, _), _)| of(*process)).all(tried)
    }

    /// Of all processes, what grows as long as they run at all.
    #[cfg(target_os = "linux")]
    fn beats(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.processes()).map(|process| self.board.of(process, OfProcess::Beat).load(Ordering::Acquire))
    }

    /// Where a process is, or was when it died.
    #[must_use]
    pub fn place_of(&self, process: usize) -> At {
        let word = |word| self.board.of(process, word).load(Ordering::Acquire) as usize;
        At {
            phase: self.phase_of(process),
            unit: word(OfProcess::Unit),
            operators: word(OfProcess::Open) / self.ranks_of(process).count().max(1),
            experts: word(OfProcess::Experts) > 0,
            batch: word(OfProcess::Batch),
        }
    }

    /// Whether some process does something in which none waits for another.
    fn is_between_units(&self) -> bool {
        let between = |process| matches!(self.phase_of(process), Phase::Starts | Phase::Checks);
        (0..self.processes()).any(between)
    }

    /// Sets this process's phase.
    pub fn enter(&self, phase: Phase) {
        self.own(OfProcess::Phase).store(phase as u64, Ordering::Release);
    }

    /// What a process does.
    #[must_use]
    pub fn phase_of(&self, process: usize) -> Phase {
        let seen = self.board.of(process, OfProcess::Phase).load(Ordering::Acquire);
        use Phase::{Checks, Drives, Ended, GivenUp, Idle, Meets, Starts};
        let all = [Starts, Meets, Drives, Checks, Idle, Ended, GivenUp];
        all.get(seen as usize).copied().unwrap_or(Starts)
    }

    /// The results of a batch of the unit are compared from now on.
    pub fn checks(&self, batch: usize) {
        self.own(OfProcess::Batch).store(batch as u64, Ordering::Relaxed);
        self.enter(Phase::Checks);
    }

    /// A rank has been compared.
    pub fn count_checked(&self) {
        self.own(OfProcess::Checked).fetch_add(1, Ordering::Relaxed);
    }

    /// The unit has ended here, which had so many operators.
    pub fn end_unit(&self, operators: usize) {
        self.operators.fetch_add(operators as u64, Ordering::Relaxed);
        let units = self.units.fetch_add(1, Ordering::Relaxed) + 1;
        self.own(OfProcess::Unit).store(units, Ordering::Release);
    }

    /// Comes to the next meeting of all processes, and returns its number. What was written before is seen after it.
    pub fn arrive(&self) -> u64 {
        let nth = self.meetings.fetch_add(1, Ordering::Relaxed) + 1;
        come(self.own(OfProcess::Met), nth);
        nth
    }

    /// Whether all processes have come to that meeting.
    #[must_use]
    pub fn all_have_come(&self, nth: u64) -> bool {
        (0..self.processes()).all(|process| has_come(self.board.of(process, OfProcess::Met), nth))
    }

    /// Before a meeting between two units: the first process says whether the caller has asked for the end.
    pub fn propose(&self) {
        let units = self.units.load(Ordering::Relaxed);
        let asked = match self.is_alone() {
            true => interrupt::is_asked(),
            false => self.board.group(OfGroup::Asked).load(Ordering::Relaxed) != 0,
        };
        if self.me == 0 && asked && units > 0 {
            self.own(OfProcess::Last).store(units, Ordering::Relaxed);
        }
    }

    /// After it: whether all go on with another unit.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let units = self.units.load(Ordering::Relaxed);
        units == 0 || self.board.of(0, OfProcess::Last).load(Ordering::Acquire) != units
    }

    /// Carries what is on its way to and from processes elsewhere. Whether something has come.
    #[inline]
    pub fn carry(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.links.carry();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Whether the group has been ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        !self.is_alone() && self.board.group(OfGroup::Stop).load(Ordering::Relaxed) != 0
    }
}
