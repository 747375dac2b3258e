//! The words that the processes of a group leave for each other: a few lines for each process, one more for each of its
//! workers. Every word has one writer, its owner, but for eventcounts; so a copy of a line in another machine's memory is the same
//! line a little later.
#![allow(unsafe_code)]
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "groups have one process there"))]

#[cfg(target_os = "linux")]
use super::joined::eventcount::Eventcount;
use core::sync::atomic::{AtomicU32, AtomicU64};
use memmap2::MmapRaw;
use std::sync::Arc;

/// Words on a line of their own, so that a store is no more than that for who does not read them.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Line {
    words: [AtomicU64; 15],
    /// The notifications of an eventcount, which waiters sleep on.
    notifications: AtomicU32,
    unused: AtomicU32,
}

/// Words about the whole group. The first process's parent writes them, or another process that watches.
#[derive(Clone, Copy, Debug)]
pub(super) enum OfGroup {
    /// Not 0: the group ends now; each core that waits says for what.
    Stop,
    /// Not 0: it ends between two units.
    Asked,
    /// Not 0: it has ended well, and what it has come to is written.
    Over,
    /// Of processes that joined: not like that of any other group.
    Nonce,
    /// Of those that met at a file, not 0: all have come.
    Complete,
    /// Calls that processes have announced.
    Calls,
    /// Not 0: two of them differ; which.
    Differ,
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
    /// Ranks that it has compared with the reference.
    Checked,
    /// The batch of the unit that it compares.
    Batch,
    /// Ranks whose experts run now.
    Experts,
    /// Grows as long as the process runs at all.
    Beat,
    /// Meetings that it has come to.
    Met,
    /// Units that the group runs, once the first process knows.
    Last,
    /// Of who joined: the system's number of it, and when it began, so that no other process is taken for it.
    Pid,
    Began,
    /// How it died, once a peer has seen that: the first one that did writes this word.
    Died,
    /// The number of the last call that it has announced.
    Called,
}

impl OfProcess {
    /// Those that its owner writes, in the order in which they are read to be sent: what was written before a meeting is at least
    /// as new as that.
    pub(super) const ROW: [Self; 10] = [
        Self::Met,
        Self::Last,
        Self::Ended,
        Self::Open,
        Self::Phase,
        Self::Unit,
        Self::Checked,
        Self::Batch,
        Self::Experts,
        Self::Beat,
    ];
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

impl OfWorker {
    pub(super) const ROW: [Self; 3] = [Self::Moved, Self::InVain, Self::Busy];
}

/// Words of a call that a process is about to carry out.
#[derive(Clone, Copy, Debug)]
pub(super) enum OfCall {
    /// Its number, from 1 on, written after the other words.
    Number,
    Operator,
    Group,
    Layer,
    Batch,
    H,
    K,
    Bs,
    /// Of tensors that all ranks must give alike.
    Common,
}

/// How many calls of a process can be read. A process that is so far ahead of another waits for it: one without tokens ends
/// its combines alone.
pub(super) const CALLS: usize = 32;
/// Lines of a process beside those of its workers: its own, its eventcount's, and those of its calls.
const OWN: usize = 2 + CALLS;

#[derive(Debug)]
enum Memory {
    Own(Box<[Line]>),
    Mapped(Arc<MmapRaw>),
}

/// All of them.
#[derive(Debug)]
pub(super) struct Board {
    memory: Memory,
    /// Of processes that do not map it, what they have sent of their lines.
    far: Option<Far>,
    processes: usize,
    workers: usize,
}

#[derive(Debug)]
struct Far {
    /// By process: it maps the board.
    near: Vec<bool>,
    lines: Box<[Line]>,
}

impl Board {
    const fn lines_of(processes: usize, workers: usize) -> usize {
        1 + processes * (OWN + workers)
    }

    /// A board of this process alone.
    pub(super) fn alone(workers: usize) -> Self {
        Self { memory: Memory::Own(Self::own_lines(1, workers)), far: None, processes: 1, workers }
    }

    fn own_lines(processes: usize, workers: usize) -> Box<[Line]> {
        (0..Self::lines_of(processes, workers)).map(|_| Line::default()).collect()
    }

    /// Bytes of a board.
    pub(super) const fn bytes(processes: usize, workers: usize) -> u64 {
        (Self::lines_of(processes, workers) * size_of::<Line>()) as u64
    }

    /// The board at the start of a mapping that the system has zeroed.
    ///
    /// # Panics
    /// The mapping is too short.
    pub(super) fn mapped(map: Arc<MmapRaw>, processes: usize, workers: usize) -> Self {
        assert!(Self::bytes(processes, workers) <= map.len() as u64, "the board does not fit");
        Self { memory: Memory::Mapped(map), far: None, processes, workers }
    }

    /// The same for processes of which only these map it.
    pub(super) fn with_near(self, near: Vec<bool>) -> Self {
        let lines = Self::own_lines(self.processes, self.workers);
        Self { far: near.contains(&false).then_some(Far { near, lines }), ..self }
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        match &self.memory {
            Memory::Own(lines) => lines,
            // SAFETY: the mapping begins on a page, is as long as `mapped` has asserted, was zeroed by the system, and stays as
            // long as `self`. All processes reach these bytes through boards alone: as the same atomic words.
            Memory::Mapped(map) => unsafe {
                core::slice::from_raw_parts(map.as_ptr().cast(), Self::lines_of(self.processes, self.workers))
            },
        }
    }

    /// Whether a process maps the board.
    pub(super) fn is_near(&self, process: usize) -> bool {
        self.far.as_ref().is_none_or(|far| far.near[process])
    }

    pub(super) const fn processes(&self) -> usize {
        self.processes
    }

    pub(super) const fn workers(&self) -> usize {
        self.workers
    }

    #[inline]
    fn line(&self, process: usize, nth: usize) -> &Line {
        let lines = match &self.far {
            Some(far) if !far.near[process] => &far.lines,
            _ => self.lines(),
        };
        &lines[1 + process * (OWN + self.workers) + nth]
    }

    #[inline]
    pub(super) fn group(&self, word: OfGroup) -> &AtomicU64 {
        &self.lines()[0].words[word as usize]
    }

    #[inline]
    pub(super) fn of(&self, process: usize, word: OfProcess) -> &AtomicU64 {
        &self.line(process, 0).words[word as usize]
    }

    /// What the workers of a process wait for.
    #[cfg(target_os = "linux")]
    pub(super) fn eventcount(&self, process: usize) -> Eventcount<'_> {
        let line = self.line(process, 1);
        Eventcount { waiters: &line.words[0], notifications: &line.notifications }
    }

    pub(super) fn call(&self, process: usize, number: u64, word: OfCall) -> &AtomicU64 {
        &self.line(process, 2 + number as usize % CALLS).words[word as usize]
    }

    #[inline]
    pub(super) fn worker(&self, process: usize, worker: usize, word: OfWorker) -> &AtomicU64 {
        debug_assert!(worker < self.workers, "worker {worker} of {}", self.workers);
        &self.line(process, OWN + worker).words[word as usize]
    }
}
