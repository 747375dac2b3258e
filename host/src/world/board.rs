//! The words that the processes of a group leave for each other: a few lines for each process, one more for each of its
//! workers. Every word has one writer, its owner, but for the bells; so a copy of a board in another machine's memory would be
//! the same board a little later.
use core::sync::atomic::AtomicU64;

/// Words on a line of their own, so that a store is no more than that for who does not read them.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Line([AtomicU64; 16]);

/// Words about the whole group. The first process's parent writes them, or whoever else watches.
#[derive(Clone, Copy, Debug)]
pub(super) enum OfGroup {
    /// Not 0: the group ends now; whoever waits says for what.
    Stop,
    /// Not 0: it ends between two units.
    Asked,
}

/// Words of a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum OfProcess {
    /// Operators that its ranks' cores have ended, since the group began.
    Ended,
    /// The same, experts included.
    Open,
    /// What it does: a [`Phase`](super::Phase).
    Phase,
    /// The number of the unit that it is in.
    Unit,
    /// Ranks that it has compared with the oracle.
    Checked,
    /// The batch of the unit that it compares.
    Batch,
    /// Ranks whose experts run now.
    Experts,
    /// Meetings that it has come to.
    Met,
    /// Units that the group runs, once the first process knows.
    Last,
}

/// Words of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum OfWorker {
    /// How often cores of it have moved.
    Moved,
    /// Passes over all its cores in which none moved.
    InVain,
    /// Not 0: it has something to do in this unit.
    Busy,
}

/// Lines of a process beside those of its workers.
const OWN: usize = 1;

/// All of them.
#[derive(Debug)]
pub(super) struct Board {
    lines: Box<[Line]>,
    processes: usize,
    workers: usize,
}

impl Board {
    const fn lines_of(processes: usize, workers: usize) -> usize {
        1 + processes * (OWN + workers)
    }

    /// A board of this process alone.
    pub(super) fn alone(workers: usize) -> Self {
        let lines = (0..Self::lines_of(1, workers)).map(|_| Line::default()).collect();
        Self { lines, processes: 1, workers }
    }

    pub(super) const fn processes(&self) -> usize {
        self.processes
    }

    pub(super) const fn workers(&self) -> usize {
        self.workers
    }

    #[inline]
    fn line(&self, process: usize, nth: usize) -> &Line {
        &self.lines[1 + process * (OWN + self.workers) + nth]
    }

    #[inline]
    pub(super) fn group(&self, word: OfGroup) -> &AtomicU64 {
        &self.lines[0].0[word as usize]
    }

    #[inline]
    pub(super) fn of(&self, process: usize, word: OfProcess) -> &AtomicU64 {
        &self.line(process, 0).0[word as usize]
    }

    #[inline]
    pub(super) fn worker(&self, process: usize, worker: usize, word: OfWorker) -> &AtomicU64 {
        debug_assert!(worker < self.workers, "worker {worker} of {}", self.workers);
        &self.line(process, OWN + worker).0[word as usize]
    }
}
