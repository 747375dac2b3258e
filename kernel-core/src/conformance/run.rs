//! A program under way: one call after the other.

use super::{Actor, Extent, Failure, Op, Program, Step, Why};
use crate::fabric::nic::{Post, Transfer};
use crate::fabric::{Fabric, Fault};
use crate::place::Place;
use crate::units::RankId;
use core::ops::Range;

/// A program under way.
#[derive(Clone, Debug)]
pub struct Run {
    /// The program.
    pub program: Program,
    next: usize,
    /// The calls that the next operation has made, if it makes several.
    done: u32,
    /// The number of times that `Again` has gone back.
    rounds: u32,
    repetition: u64,
    extent: Extent,
}

impl Run {
    /// Creates the program before its first operation, `repetition` strides into the memory.
    #[must_use]
    pub const fn new(program: Program, repetition: u64) -> Self {
        Self { program, next: 0, done: 0, rounds: 0, repetition, extent: Extent::SHORT }
    }

    /// Sets the length of its rows, and of the windows.
    #[must_use]
    pub const fn in_extent(self, extent: Extent) -> Self {
        Self { extent, ..self }
    }

    /// Returns a failure in its next operation.
    #[must_use]
    pub const fn failed(&self, why: Why) -> Failure {
        Failure { program: self.program, operation: self.next, why }
    }

    /// Does all operations. Whenever one waits, `waits` says whether to go on.
    ///
    /// # Errors
    /// The program cannot go on, or `waits` says no.
    pub fn to_end(mut self, actor: &mut Actor<'_>, mut waits: impl FnMut() -> bool) -> Result<(), Failure> {
        loop {
            match self.step(actor)? {
                Step::Moved => {}
                Step::Waits if waits() => {}
                Step::Waits => return Err(self.failed(Why::Stuck)),
                Step::Done => return Ok(()),
            }
        }
    }

    /// Does one operation, or one call of an operation that makes several.
    ///
    /// # Errors
    /// The program cannot go on.
    pub fn step(&mut self, actor: &mut Actor<'_>) -> Result<Step, Failure> {
        let Some(&op) = self.program.ops.get(self.next) else { return Ok(Step::Done) };
        let done = match self.does(op, actor) {
            Err(Why::Refused(fault)) if fault.is_busy() => Done::Not,
            done => done.map_err(|why| self.failed(why))?,
        };
        match done {
            Done::Not => return Ok(Step::Waits),
            Done::Partly => self.done += 1,
            Done::Then(skipped) => (self.next, self.done) = (self.next + 1 + skipped, 0),
            Done::Back(ops) => (self.next, self.rounds) = (self.next.saturating_sub(ops), self.rounds + 1),
        }
        Ok(Step::Moved)
    }

    fn does(&self, op: Op, actor: &mut Actor<'_>) -> Result<Done, Why> {
        let word_at = |at, word| self.extent.word(at, word);
        match (op, actor) {
            (Op::Await { at, word }, actor) => {
                Ok(if self.observe(actor, at)? == word_at(at, word) { NEXT } else { Done::Not })
            }
            (Op::Expect { at, words }, actor) => {
                let seen = self.observe(actor, at)?;
                let is_one = words.iter().any(|&word| word_at(at, word) == seen);
                if is_one { Ok(NEXT) } else { Err(Why::Seen(seen)) }
            }
            (Op::SkipIf { at, word, ops }, actor) => {
                Ok(Done::Then(if self.observe(actor, at)? == word_at(at, word) { ops } else { 0 }))
            }
            (Op::Stays { at, word, times }, actor) => {
                let seen = self.observe(actor, at)?;
                if seen == word_at(at, word) { Ok(self.one_of(times)) } else { Err(Why::Seen(seen)) }
            }
            (Op::Again { ops, times }, _) => Ok(if self.rounds < times { Done::Back(ops) } else { NEXT }),
            (Op::Post(transfer), Actor::Agent(nic)) => {
                let (from, at) = (self.place(transfer.from), self.place(transfer.at));
                let len = if transfer.len == 8 { 8 } else { self.len(transfer.len as usize)? as u64 };
                let posted = nic.post(&Transfer { from, at, len, ..transfer })?;
                Ok(if posted == Post::Posted { NEXT } else { Done::Not })
            }
            (op, Actor::Core(fabric)) => self.core_does(op, &mut **fabric),
            (_, Actor::Agent(_)) => Err(Why::Unfit),
        }
    }

    fn core_does(&self, op: Op, fabric: &mut dyn Fabric) -> Result<Done, Why> {
        match op {
            Op::Put { to, at, byte, len } => {
                let row = self.row(byte, len)?;
                let (row, tail) = row.split_at(row.len() / 2);
                fabric.put(RankId(to), self.place(at), row, tail)?;
            }
            Op::PutParts { to, at, byte, len, parts } => {
                let bytes = self.part(len, parts)?;
                let start = bytes.start;
                let part = self.row(byte, len)?.get(bytes).ok_or(Why::Unfit)?;
                let (row, tail) = part.split_at(part.len().saturating_sub(4));
                let at = self.place(at);
                fabric.put(RankId(to), Place { offset: at.offset + start as u64, ..at }, row, tail)?;
                return Ok(self.one_of(parts));
            }
            Op::PutApart { to, at, byte } => {
                let Some((at, last)) = self.apart(at) else { return Ok(NEXT) };
                fabric.put(RankId(to), at, &[byte.wrapping_add(self.done as u8); 16], &[])?;
                return Ok(if last { NEXT } else { Done::Partly });
            }
            Op::PublishApart { to, at, word } => {
                let Some((at, last)) = self.apart(at) else { return Ok(NEXT) };
                fabric.publish(RankId(to), at, word + u64::from(self.done))?;
                return Ok(if last { NEXT } else { Done::Partly });
            }
            Op::Send { to, at, word, len } => {
                let at = self.place(at);
                if len == 8 {
                    fabric.send(RankId(to), at, &word.to_le_bytes())?;
                } else {
                    fabric.send(RankId(to), at, self.row(word as u8, len)?)?;
                }
            }
            Op::Publish { to, at, word } => fabric.publish(RankId(to), self.place(at), word)?,
            Op::Store { at, word } => fabric.store(self.place(at), word)?,
            Op::Write { at, byte, len } => fabric.write(self.place(at), self.row(byte, len)?)?,
            Op::Quiet => return Ok(if fabric.quiet()? { NEXT } else { Done::Not }),
            Op::ExpectBytes { at, byte, len } => {
                self.all(byte, len, fabric.bytes(self.place(at), self.len(len)? as u64)?)?;
            }
            Op::StaysBytes { at, byte, len, times } => {
                self.all(byte, len, fabric.bytes(self.place(at), self.len(len)? as u64)?)?;
                return Ok(self.one_of(times));
            }
            Op::ExpectPeerBytes { rank, at, byte, len } => {
                self.all(byte, len, fabric.peer_bytes(RankId(rank), self.place(at), self.len(len)? as u64)?)?;
            }
            Op::ExpectWhole { at, len } => {
                let bytes = fabric.bytes(self.place(at), self.len(len)? as u64)?;
                let first = bytes.first().copied().unwrap_or(0);
                match first {
                    0 => same(bytes.iter().zip(core::iter::repeat(&0)))?,
                    // A row of byte b begins with b + 1.
                    _ => self.all(first - 1, len, bytes)?,
                }
            }
            Op::ExpectApart { at, byte } => {
                let Some((at, last)) = self.apart(at) else { return Ok(NEXT) };
                let want = [byte.wrapping_add(self.done as u8); 16];
                same(fabric.bytes(at, 16)?.iter().zip(&want))?;
                return Ok(if last { NEXT } else { Done::Partly });
            }
            Op::AwaitApart { at, word } => {
                let Some((at, last)) = self.apart(at) else { return Ok(NEXT) };
                let there = fabric.observe(at)? == word + u64::from(self.done);
                return Ok(match (there, last) {
                    (false, _) => Done::Not,
                    (true, true) => NEXT,
                    (true, false) => Done::Partly,
                });
            }
            Op::Post(_)
            | Op::Await { .. }
            | Op::Expect { .. }
            | Op::SkipIf { .. }
            | Op::Stays { .. }
            | Op::Again { .. } => {
                return Err(Why::Unfit);
            }
        }
        Ok(NEXT)
    }

    fn observe(&self, actor: &Actor<'_>, at: Place) -> Result<u64, Fault> {
        actor.observe(self.place(at))
    }

    /// Returns the outcome of one of `times` calls.
    const fn one_of(&self, times: u32) -> Done {
        if self.done + 1 < times { Done::Partly } else { NEXT }
    }

    /// Returns the bytes of a row that the next of its parts has.
    fn part(&self, len: usize, parts: u32) -> Result<Range<usize>, Why> {
        let (len, parts, done) = (self.len(len)?, parts as usize, self.done as usize);
        let end = |part: usize| (len * part).checked_div(parts).map(|end| end / 4 * 4).ok_or(Why::Unfit);
        Ok(end(done)?..if done + 1 == parts { len } else { end(done + 1)? })
    }

    /// The place of the next call of an operation whose places are apart, and whether it is the last; none if there is no place.
    fn apart(&self, at: Place) -> Option<(Place, bool)> {
        let nearest = self.extent.stride_of(at).next_power_of_two();
        let distance = |done: u32| if done == 0 { 0 } else { nearest << (done - 1) };
        let (place, end) = (self.place(at), self.extent.end_of(at));
        let fits = |done: u32| done == 0 || done < 40 && place.offset + distance(done) + 16 <= end;
        let at = Place { offset: place.offset + distance(self.done), ..place };
        fits(self.done).then(|| (at, !fits(self.done + 1)))
    }

    const fn place(&self, at: Place) -> Place {
        self.extent.place(at, self.repetition)
    }

    fn len(&self, len: usize) -> Result<usize, Why> {
        self.extent.len(len).ok_or(Why::Unfit)
    }

    fn row(&self, byte: u8, len: usize) -> Result<&'static [u8], Why> {
        self.extent.row(byte, self.len(len)?).ok_or(Why::Unfit)
    }

    /// Checks that the bytes are those of a row.
    fn all(&self, byte: u8, len: usize, seen: &[u8]) -> Result<(), Why> {
        let row = self.row(byte, len)?;
        if seen == row { Ok(()) } else { same(seen.iter().zip(row)) }
    }
}

/// The outcome of a call.
enum Done {
    /// It waits.
    Not,
    /// Some of its calls are left.
    Partly,
    /// It has ended, and the operation after so many others is next.
    Then(usize),
    /// The operation so many before it is next.
    Back(usize),
}

const NEXT: Done = Done::Then(0);

/// Checks that the bytes of each pair are equal.
fn same<'b>(mut bytes: impl Iterator<Item = (&'b u8, &'b u8)>) -> Result<(), Why> {
    match bytes.find(|(seen, want)| seen != want) {
        Some((&seen, _)) => Err(Why::Seen(seen.into())),
        None => Ok(()),
    }
}
