//! Feature `conformance`: the contracts of [`Fabric`] and [`Nic`] as litmus programs, a few operations on each of a few cores and
//! agents, and what must come of them. They need neither std nor an allocator, so that a firmware can run them on its device.
//!
//! With a processor for each core, call [`Run::to_end`] on each. With one processor, call [`Litmus::by_turns`]. The programs need
//! [`STRIDE`] bytes of zeros for each repetition, in the state and the window of three ranks, for [`NIC_SUITE`] also in
//! WindowsOut, and for [`FAR_SUITE`] of four.
//!
//! A memory that states a [line](crate::fabric::Fabric::line) longer than a word runs them in extents with that
//! [line](Extent::with_line), which need [`Extent::state_stride`] bytes of state.
//!
//! **A memory may treat long rows, or far places, in another way than short and near ones.** So each program is to be run in
//! several [`Extent`]s: with the default one, with rows as long as the shape's, and with rows of [`ROW_MAX`] in the whole window.

mod again_suite;
#[cfg(test)]
mod exam;
mod extent;
mod far_suite;
mod nic_suite;
mod run;
mod suite;

pub use again_suite::AGAIN_SUITE;
pub use extent::{Extent, ROW_MAX};
pub use far_suite::FAR_SUITE;
pub use nic_suite::NIC_SUITE;
pub use run::Run;
pub use suite::SUITE;

/// Every suite, and how many ranks of a group are a server for it, if it has servers.
pub const SUITES: [(&[Litmus], u32); 4] = [(SUITE, 0), (AGAIN_SUITE, 0), (NIC_SUITE, 0), (FAR_SUITE, 2)];

use crate::fabric::nic::{Nic, Transfer};
use crate::fabric::{Capabilities, Fabric, Fault};
use crate::place::Place;
use core::{array, fmt};

/// Bytes between two repetitions of a program in one memory: its places are below. With longer rows [`Extent::stride`] is that
/// of windows.
pub const STRIDE: u64 = 512;
/// Cores and agents of a litmus at most.
const PROGRAMS_MAX: usize = 5;

/// One operation of a core; an agent posts, and observes words. Lengths and places in windows are those of the default
/// [`Extent`]. A *row* of a byte begins with the next byte, its bytes count up, and rows of two bytes differ everywhere.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls")]
pub enum Op {
    /// Puts a row of `byte`, half of it as the tail.
    Put { to: u32, at: Place, byte: u8, len: usize },
    /// The same by so many puts, each with a tail of 4 bytes.
    PutParts { to: u32, at: Place, byte: u8, len: usize, parts: u32 },
    /// Puts 16 times `byte` there, and 16 bytes at each distance from there that is a power of two.
    PutApart { to: u32, at: Place, byte: u8 },
    /// Publishes `word` there and, as in [`PutApart`](Self::PutApart), at all powers of two.
    PublishApart { to: u32, at: Place, word: u64 },
    /// Sends one message: `word` if `len` is 8, otherwise a row of the byte that `word` repeats.
    Send { to: u32, at: Place, word: u64, len: usize },
    /// Publishes a word.
    Publish { to: u32, at: Place, word: u64 },
    /// Stores a word.
    Store { at: Place, word: u64 },
    /// Writes a row of `byte` into WindowsOut.
    Write { at: Place, byte: u8, len: usize },
    /// An agent: posts a transfer, as soon as there is room.
    Post(Transfer),
    /// Goes on when everything before has landed.
    Quiet,
    /// Goes on when the word is there; in a window, if the word repeats a byte, those 8 bytes of its row.
    Await { at: Place, word: u64 },
    /// Observes now: it must be one of these.
    Expect { at: Place, words: &'static [u64] },
    /// Observes now: if it is the word, leaves out the next `ops` operations.
    SkipIf { at: Place, word: u64, ops: usize },
    /// Observes so many times: it must always be this one.
    Stays { at: Place, word: u64, times: u32 },
    /// Reads now: it must be a row of `byte`.
    ExpectBytes { at: Place, byte: u8, len: usize },
    /// Reads so many times: it must always be a row of `byte`.
    StaysBytes { at: Place, byte: u8, len: usize, times: u32 },
    /// Reads what [`PutApart`](Self::PutApart) has put.
    ExpectApart { at: Place, byte: u8 },
    /// Goes on when each word of [`PublishApart`](Self::PublishApart) is there.
    AwaitApart { at: Place, word: u64 },
    /// Does the `ops` operations before it again, so many times.
    Again { ops: usize, times: u32 },
    /// Reads at that rank now: it must be a row of `byte`.
    ExpectPeerBytes { rank: u32, at: Place, byte: u8, len: usize },
    /// Reads now: it must be one row, or zeros.
    ExpectWhole { at: Place, len: usize },
}

/// An actor of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The core of this number.
    Core(u32),
    /// The rank's agent.
    Agent,
}

/// The operations of one core or agent.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// On this rank.
    pub rank: u32,
    /// The core or agent that runs it.
    pub who: Who,
    /// In this order.
    pub ops: &'static [Op],
}

/// What the contract says about a litmus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// On every fabric, always: every expectation holds and every core comes to its end.
    Required,
    /// The contract leaves it open: a fabric may break an expectation, and a weak one that never does is not
    /// weak enough to test protocols on.
    Open,
    /// The contract leaves it open, and no machine relies on it. A runner reports whether it broke.
    Reported,
}

/// Programs that run side by side.
#[derive(Clone, Copy, Debug)]
pub struct Litmus {
    /// A sentence.
    pub name: &'static str,
    /// What the contract says about it.
    pub claim: Claim,
    /// Reads what no flag covers: undefined on memory that is really concurrent, so not tried there.
    pub racy: bool,
    /// The cores and agents, at most five.
    pub programs: &'static [Program],
}

/// The view through which a program acts.
pub enum Actor<'a> {
    /// A core's view.
    Core(&'a mut dyn Fabric),
    /// An agent's.
    Agent(&'a mut dyn Nic),
}

impl Actor<'_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        match self {
            Self::Core(fabric) => fabric.observe(at),
            Self::Agent(nic) => nic.observe(at),
        }
    }
}

impl fmt::Debug for Actor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core(_) => "a core",
            Self::Agent(_) => "an agent",
        })
    }
}

impl Litmus {
    /// Returns the optional calls that its cores make.
    #[must_use]
    pub fn calls(&self) -> Capabilities {
        let ops = self.programs.iter().flat_map(|program| program.ops);
        ops.fold(Capabilities::empty(), |calls, op| match op {
            Op::Send { .. } => calls | Capabilities::SEND,
            Op::ExpectPeerBytes { .. } => calls | Capabilities::PEER_BYTES,
            _ => calls,
        })
    }

    /// Runs it on one processor. Each program takes one to eight steps in its turn, forwards or backwards: the number of the
    /// repetition says which of 16 ways. `step` lets a program take a step over the fabric or agent of its rank.
    ///
    /// # Errors
    /// A program cannot go on, or all that are left have waited for `patience` turns in a row.
    pub fn by_turns(
        &self,
        repetition: u64,
        patience: u32,
        step: impl FnMut(&mut Run) -> Result<Step, Failure>,
    ) -> Result<(), Failure> {
        self.by_turns_in(Extent::default(), repetition, patience, step)
    }

    /// The same with rows of that length, in windows of that length.
    ///
    /// # Errors
    /// As [`by_turns`](Self::by_turns).
    pub fn by_turns_in(
        &self,
        extent: Extent,
        repetition: u64,
        patience: u32,
        mut step: impl FnMut(&mut Run) -> Result<Step, Failure>,
    ) -> Result<(), Failure> {
        let mut runs: [_; PROGRAMS_MAX] = array::from_fn(|nth| {
            self.programs.get(nth).map(|&program| Run::new(program, repetition).in_extent(extent))
        });
        if repetition.is_multiple_of(2) {
            runs.reverse();
        }
        let mut idle = 0;
        while let Some(waiting) = runs.iter().flatten().next() {
            if idle == patience {
                return Err(waiting.failed(Why::Stuck));
            }
            idle += 1;
            for slot in &mut runs {
                for _ in 0..=repetition / 2 % 8 {
                    let Some(run) = slot else { break };
                    match step(run)? {
                        Step::Moved => idle = 0,
                        Step::Waits => {}
                        Step::Done => *slot = None,
                    }
                }
            }
        }
        Ok(())
    }
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has done an operation.
    Moved,
    /// It waits: nothing has changed.
    Waits,
    /// It has come to its end.
    Done,
}

/// The reason why a program cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// An expectation does not hold: the word that was seen instead, or the first byte.
    Seen(u64),
    /// An access was refused.
    Refused(Fault),
    /// It waits for what does not come.
    Stuck,
    /// An agent would do what only cores can, or a row is too long.
    Unfit,
}

/// A program that cannot go on, and in which operation.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// The program.
    pub program: Program,
    /// The number of the operation.
    pub operation: usize,
    /// The reason.
    pub why: Why,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Program { rank, who, ops }, operation) = (self.program, self.operation);
        write!(f, "rank {rank} {who:?}, operation {operation}: {:?}: ", ops.get(operation))?;
        match self.why {
            Why::Seen(word) => write!(f, "seen {word:#x}"),
            Why::Refused(fault) => write!(f, "{fault}"),
            Why::Stuck => f.write_str("stuck"),
            Why::Unfit => f.write_str("not an operation of this core or agent"),
        }
    }
}

impl From<Fault> for Why {
    fn from(fault: Fault) -> Self {
        Self::Refused(fault)
    }
}
