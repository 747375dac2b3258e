//! The batched writes of a [`World`]: delivered as late, in as many pieces and in as bad an order as the contract of
//! [`Nic`] allows, by whoever calls [`World::deliver`]. And the ways to break the contract or a duty.

use super::fake::{Kind, Late, World};
use super::messages::Loose;
use crate::fabric::Fault;
use crate::fabric::nic::{Nic, Post, Transfer};
use crate::layout::a2_message::{DOORBELL, MESSAGE_SLOT};
use crate::layout::state::{CORE_RECORD, CORE_WORDS};
use crate::place::{Place, Region};
use crate::sync::flag::WINDOW_FLAG;
use crate::units::{CoreId, RankId};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A transfer on its way.
#[derive(Clone, Debug)]
pub(crate) struct Flying {
    from: RankId,
    transfer: Transfer,
    /// Bytes delivered.
    done: u64,
    /// The source when it was posted.
    posted: Vec<u8>,
}

/// A duty left out, or a rule of the contract. `None` leaves out nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bend {
    None,
    /// Only the flags that were waited for are cleared, as in the seed: these places of these ranks.
    SeedClears(BTreeSet<(RankId, u64)>),
    /// Nothing is cleared.
    NoClears,
    /// Both halves of the message area are one.
    OneMessageSlot,
    /// Both halves of the windows are one, each so long.
    OneHalf(u64),
    /// Clears land an operator too late.
    LateClears,
    /// The flip of `bufferChosen` does.
    LateFlips,
    /// What is written to WindowsOut does.
    LateWrites,
    /// A core sees its own barrier word in place of the others'.
    OpenBarrier,
    /// The last word of a transfer is delivered first.
    LastWordFirst,
    /// Of a hierarchy.
    Servers(Loose),
    /// A word of a rank is another one than was written there.
    Lie(RankId, Place, u64),
    /// These words of WindowsIn of these ranks pass for flags before they have come: nobody is waited for there.
    Unawaited(BTreeSet<(RankId, u64)>),
}

impl Bend {
    pub(crate) fn place(&self, at: Place) -> Place {
        let folded = match (self, at.region) {
            (Self::OneMessageSlot, Region::State) if at.offset < DOORBELL => at.offset % MESSAGE_SLOT,
            (Self::OneHalf(half), Region::Window | Region::WindowOut) => at.offset % half,
            (Self::Servers(Loose::OnePartition), Region::Window) => Loose::first_partition(at.offset),
            _ => at.offset,
        };
        Place { offset: folded, ..at }
    }

    pub(super) fn observed(&self, at: Place, core: CoreId) -> Place {
        if let Self::Servers(loose) = self {
            return Place { offset: loose.looked_at(at.offset), ..at };
        }
        let is_core_word = at.region == Region::State && at.offset >= CORE_WORDS;
        if *self != Self::OpenBarrier || !is_core_word {
            return at;
        }
        let word = (at.offset - CORE_WORDS) % CORE_RECORD;
        Place::state(CORE_WORDS + u64::from(core.0) * CORE_RECORD + word)
    }

    /// What a word holds for an observer.
    pub(super) fn word(&self, rank: RankId, at: Place, word: u64) -> u64 {
        match self {
            Self::Unawaited(places) if at.region == Region::Window && places.contains(&(rank, at.offset)) => {
                WINDOW_FLAG.into()
            }
            Self::Servers(Loose::Unentered) if Loose::is_entered(at) => u64::MAX,
            _ => word,
        }
    }

    /// Whether such an effect happens at all.
    pub(super) fn keeps(&self, late: &Late, chosen: Place) -> bool {
        match self {
            Self::SeedClears(places) => {
                !is_clear(late, chosen) || places.contains(&(late.to, late.at.offset))
            }
            Self::NoClears => !is_clear(late, chosen),
            _ => true,
        }
    }

    pub(super) fn outlives_quiet(&self, late: &Late, chosen: Place) -> bool {
        // Core 0 is quiet twice in an operator.
        late.quiets < 3
            && match self {
                Self::LateClears => is_clear(late, chosen),
                Self::LateFlips => late.at == chosen,
                Self::LateWrites => late.kind == Kind::Write,
                _ => false,
            }
    }
}

fn is_clear(late: &Late, chosen: Place) -> bool {
    late.kind == Kind::Store && late.at.region == Region::Window && late.at != chosen
}

impl World {
    /// The view of a rank's agent, with room for so many transfers in flight.
    pub(crate) fn nic(&mut self, rank: RankId, room: usize) -> FakeNic<'_> {
        FakeNic { world: self, rank, room }
    }

    /// Transfers in flight.
    pub(crate) fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Who receives transfer number `i`.
    pub(crate) fn receiver(&self, i: usize) -> RankId {
        self.flying[i].transfer.to
    }

    /// Words of transfer number `i` that have not been delivered.
    pub(crate) fn words_left(&self, i: usize) -> u32 {
        ((self.flying[i].transfer.len - self.flying[i].done) / 8) as u32
    }

    /// Delivers up to `words` more words of transfer number `i`.
    pub(crate) fn deliver(&mut self, i: usize, words: u64) {
        let Flying { from, transfer, done, posted } = self.flying[i].clone();
        let Transfer { to, from: source, at, len } = transfer;
        if self.bend == Bend::LastWordFirst && done == 0 {
            self.copy(from, to, source, at, len - 8, len);
        }
        let end = len.min(done + words * 8);
        let left =
            self.check(from, self.bend.place(Place { offset: source.offset + done, ..source }), len - done);
        self.rewritten |= left.unwrap() != &posted[done as usize..];
        self.copy(from, to, source, at, done, end);
        self.flying[i].done = end;
        if end == len {
            self.flying.swap_remove(i);
        }
    }

    /// Delivers everything.
    pub(crate) fn deliver_all(&mut self) {
        while self.flying() > 0 {
            self.deliver(0, u64::MAX / 16);
        }
    }

    fn copy(&mut self, from: RankId, to: RankId, source: Place, at: Place, start: u64, end: u64) {
        let shift = |at: Place| self.bend.place(Place { offset: at.offset + start, ..at });
        let (source, at) = (shift(source), shift(at));
        let bytes: Vec<u8> = self.check(from, source, end - start).unwrap().to_vec();
        self.poke(to, at, &bytes);
    }
}

/// One agent's view of a [`World`].
#[derive(Debug)]
pub(crate) struct FakeNic<'a> {
    world: &'a mut World,
    rank: RankId,
    room: usize,
}

impl Nic for FakeNic<'_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let at = self.world.bend.place(at);
        self.world.check(self.rank, at, 8)?;
        assert!(at.region == Region::State && at.offset.is_multiple_of(8), "{at}");
        Ok(self.world.peek_word(self.rank, at))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        assert!(from.region == Region::WindowOut && at.region == Region::Window, "{transfer:?}");
        assert!([from.offset, at.offset, len].iter().all(|n| n.is_multiple_of(8)), "{transfer:?}");
        self.world.check(self.rank, from, len)?;
        self.world.check(to, at, len)?;
        if self.world.flying.len() >= self.room {
            return Ok(Post::Busy);
        }
        let posted = self.world.check(self.rank, self.world.bend.place(from), len)?.to_vec();
        self.world.flying.push(Flying { from: self.rank, transfer: *transfer, done: 0, posted });
        Ok(Post::Posted)
    }
}
