//! Litmus programs: a few operations on each of a few cores and agents, and what must come of them. Programs without std run
//! them, too: `verify/boot` includes this file and the suites.

use core::fmt;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::units::RankId;

/// Bytes between two repetitions of a program in one memory: its places lie below.
pub const STRIDE: u64 = 512;
/// Bytes of a row or message at most.
const ROW_MAX: usize = 256;

/// One operation of a core; an agent posts, awaits and expects words.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Puts `len` times `byte`, half of them as the tail.
    Put {
        /// To that rank.
        to: u32,
        at: Place,
        byte: u8,
        /// How often.
        len: usize,
    },
    /// Sends `word`, again and again, as one message of `len` bytes.
    Send {
        /// To that rank.
        to: u32,
        at: Place,
        word: u64,
        /// Bytes.
        len: usize,
    },
    Publish {
        /// To that rank.
        to: u32,
        at: Place,
        word: u64,
    },
    Store {
        at: Place,
        word: u64,
    },
    /// Writes `len` times `byte` into WindowsOut.
    Write {
        at: Place,
        byte: u8,
        /// How often.
        len: usize,
    },
    /// An agent: posts a transfer, as soon as there is room.
    Post(Transfer),
    /// Goes on when everything before has landed.
    Quiet,
    /// Goes on when the word is there.
    Await {
        at: Place,
        word: u64,
    },
    /// Observes now: it must be one of these.
    Expect {
        at: Place,
        /// Any of them.
        words: &'static [u64],
    },
    /// Reads now: it must be `len` times `byte`.
    ExpectBytes {
        at: Place,
        byte: u8,
        /// How often.
        len: usize,
    },
    /// Reads at another rank now: it must be `len` times `byte`.
    ExpectPeerBytes {
        /// That rank's.
        rank: u32,
        at: Place,
        byte: u8,
        /// How often.
        len: usize,
    },
    /// Reads now: all bytes must be equal, whatever they are.
    ExpectWhole {
        at: Place,
        /// How many.
        len: usize,
    },
}

/// Who acts on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Core(u32),
    Agent,
}

/// What one core or agent does.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub rank: u32,
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
}

#[derive(Clone, Copy, Debug)]
pub struct Litmus {
    /// A sentence.
    pub name: &'static str,
    pub claim: Claim,
    /// Reads what no flag covers: undefined on memory that is really concurrent, so not tried there.
    pub racy: bool,
    /// The cores and agents.
    pub programs: &'static [Program],
}

/// What a program acts through.
pub enum Actor<'a> {
    Core(&'a mut dyn Fabric),
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
    /// Whether one of its cores reads another rank's window.
    pub fn reads_peers(&self) -> bool {
        let mut ops = self.programs.iter().flat_map(|program| program.ops);
        ops.any(|op| matches!(op, Op::ExpectPeerBytes { .. }))
    }
}

/// A program under way.
#[derive(Clone, Debug)]
pub struct Run {
    pub program: Program,
    next: usize,
    shift: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Moved,
    /// It waits: nothing has changed.
    Waits,
    /// It has come to its end.
    Done,
    /// An expectation does not hold: the word that was seen instead, or the first byte.
    Broken(u64),
}

impl Run {
    /// The program before its first operation, `repetition` strides into the memory.
    pub const fn new(program: Program, repetition: u64) -> Self {
        Self { program, next: 0, shift: repetition * STRIDE }
    }

    /// The next operation, and whose it is.
    pub fn position(&self) -> impl fmt::Display {
        let (Program { rank, who, ops }, next) = (self.program, self.next);
        fmt::from_fn(move |f| write!(f, "rank {rank} {who:?}, operation {next}: {:?}", ops.get(next)))
    }

    /// Does one operation.
    ///
    /// # Panics
    /// A program is wrong: an agent would do what only cores can, or a row is longer than 256 bytes.
    pub fn step(&mut self, mut actor: Actor<'_>) -> Result<Step, Fault> {
        let Some(&op) = self.program.ops.get(self.next) else { return Ok(Step::Done) };
        let moved = match (op, &mut actor) {
            (Op::Await { at, word }, actor) => actor.observe(self.place(at))? == word,
            (Op::Expect { at, words }, actor) => {
                let seen = actor.observe(self.place(at))?;
                if !words.contains(&seen) {
                    return Ok(Step::Broken(seen));
                }
                true
            }
            (Op::Post(transfer), Actor::Agent(nic)) => {
                let (from, at) = (self.place(transfer.from), self.place(transfer.at));
                nic.post(&Transfer { from, at, ..transfer })? == Post::Posted
            }
            (op, Actor::Core(fabric)) => return self.step_of_core(op, *fabric),
            (op, Actor::Agent(_)) => unreachable!("an agent cannot do that: {op:?}"),
        };
        Ok(self.moved(moved))
    }

    fn step_of_core(&mut self, op: Op, fabric: &mut dyn Fabric) -> Result<Step, Fault> {
        match op {
            Op::Put { to, at, byte, len } => {
                let bytes = [byte; ROW_MAX];
                let (row, tail) = bytes[..len].split_at(len / 2);
                fabric.put(RankId(to), self.place(at), row, tail)?;
            }
            Op::Send { to, at, word, len } => {
                let message = [word.to_le_bytes(); ROW_MAX / 8];
                fabric.send(RankId(to), self.place(at), &message.as_flattened()[..len])?;
            }
            Op::Publish { to, at, word } => fabric.publish(RankId(to), self.place(at), word)?,
            Op::Store { at, word } => fabric.store(self.place(at), word)?,
            Op::Write { at, byte, len } => fabric.write(self.place(at), &[byte; ROW_MAX][..len])?,
            Op::Quiet => {
                let quiet = fabric.quiet()?;
                return Ok(self.moved(quiet));
            }
            Op::ExpectBytes { at, byte, len } => {
                return Ok(self.all(byte, len, fabric.bytes(self.place(at), len as u64)?));
            }
            Op::ExpectPeerBytes { rank, at, byte, len } => {
                return Ok(self.all(byte, len, fabric.peer_bytes(RankId(rank), self.place(at), len as u64)?));
            }
            Op::ExpectWhole { at, len } => {
                let bytes = fabric.bytes(self.place(at), len as u64)?;
                return Ok(self.all(bytes.first().copied().unwrap_or(0), len, bytes));
            }
            Op::Post(_) | Op::Await { .. } | Op::Expect { .. } => {
                unreachable!("a core cannot do that: {op:?}")
            }
        }
        Ok(self.moved(true))
    }

    fn moved(&mut self, moved: bool) -> Step {
        self.next += usize::from(moved);
        if moved { Step::Moved } else { Step::Waits }
    }

    fn place(&self, at: Place) -> Place {
        Place { offset: at.offset + self.shift, ..at }
    }

    /// All `len` of the bytes must be this one.
    fn all(&mut self, byte: u8, len: usize, bytes: &[u8]) -> Step {
        match bytes.iter().find(|&&seen| seen != byte) {
            Some(&seen) => Step::Broken(seen.into()),
            None => self.moved(bytes.len() == len),
        }
    }
}
