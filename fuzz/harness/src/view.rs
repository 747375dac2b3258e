//! What a core or an agent can reach, and what it is held to.

use crate::guard::{Access, Spot};
use crate::law::{self, Lie};
use crate::memory::{Effect, Flying, World};
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::order::{Issued, Kind};
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::place::{Place, Region};
use kernel_core::units::{CoreId, RankId};

/// Transfers that an agent can have in flight.
const TRANSFERS_MAX: usize = 5;

/// One core's view of a [`World`], or an agent's. Members of the EP domain go by their physical ranks.
#[derive(Debug)]
pub struct View<'w, 't> {
    world: &'w mut World<'t>,
    member: usize,
    core: CoreId,
}

impl<'w, 't> View<'w, 't> {
    pub(crate) const fn new(world: &'w mut World<'t>, member: usize, core: CoreId) -> Self {
        Self { world, member, core }
    }

    /// Guards an access to another member or the own one.
    fn guarded(&self, access: Access, to: usize, at: Place, len: u64) -> Result<(), Fault> {
        let by = (self.world.member(self.member).ep, self.core);
        let memory = self.world.member(to);
        memory.guard.check(access, by, at, len);
        match memory.get(at, len) {
            Some(_) => Ok(()),
            None => panic!("{len} bytes at {at} lie in an area, but not in the region"),
        }
    }

    fn word(&self, access: Access, to: usize, at: Place) -> Result<(), Fault> {
        assert!(at.offset.is_multiple_of(8), "the word at {at} is not aligned");
        self.guarded(access, to, at, 8)
    }

    /// Whom a core means by `to`: the region chooses the domain.
    fn named(&self, to: RankId, at: Place) -> usize {
        let tp = self.world.tp_world_size as usize;
        let (ep, of_tp) = (self.member / tp, self.member % tp);
        if at.region.is_of_tp() { ep * tp + to.index() } else { to.index() * tp + of_tp }
    }

    fn issue(&mut self, to: usize, at: Place, kind: Kind, mut bytes: Vec<u8>) {
        self.world.lie_of(self.member, &mut bytes);
        let from = (RankId(self.member as u32), self.core);
        self.world.effects += 1;
        self.world.flight.push(Effect { issued: Issued { from, to: RankId(to as u32), at, kind }, bytes });
    }
}

impl View<'_, '_> {
    /// Remembers what must be refused of what has just been seen.
    fn judge(&self, at: Place, lie: impl Fn(&Spot) -> Option<Lie>) {
        let guard = &self.world.member(self.member).guard;
        if let Some(lie) = guard.find(at).and_then(|spot| lie(&spot)) {
            self.world.lie.set(Some(lie));
        }
    }
}

impl Fabric for View<'_, '_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::PEER_BYTES | Capabilities::SEND
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.guarded(Access::Pull, rank.index(), at, len)?;
        Ok(self.world.member(rank.index()).get(at, len).unwrap_or(&[]))
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let to = self.named(to, at);
        self.guarded(Access::Send, to, at, (row.len() + tail.len()) as u64)?;
        self.issue(to, at, Kind::Put, [row, tail].concat());
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let to = self.named(to, at);
        self.word(Access::Send, to, at)?;
        self.issue(to, at, Kind::Publish, word.to_le_bytes().into());
        Ok(())
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        assert!(
            message.len().is_multiple_of(8) && at.offset.is_multiple_of(8),
            "{} bytes at {at}",
            message.len()
        );
        self.guarded(Access::Message, to.index(), at, message.len() as u64)?;
        let mut message = message.to_vec();
        self.world.lie_of(self.member, &mut message);
        let (from, kind) = ((RankId(self.member as u32), self.core), Kind::Message(self.world.messages));
        self.world.messages += 1;
        self.world.effects += 1;
        // Word by word, in any order.
        for (i, word) in message.as_chunks::<8>().0.iter().enumerate() {
            let at = Place { offset: at.offset + 8 * i as u64, ..at };
            self.world.flight.push(Effect { issued: Issued { from, to, at, kind }, bytes: word.to_vec() });
        }
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let me = (RankId(self.member as u32), self.core);
        let own = |effect: &&Effect| effect.issued.from == me;
        Ok(self.world.flight.iter().filter(own).all(|effect| matches!(effect.issued.kind, Kind::Message(_))))
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.word(Access::Read, self.member, at)?;
        let me = (RankId(self.member as u32), self.core);
        let own = self.world.flight.iter().rev().find(|effect| {
            effect.issued.from == me
                && effect.issued.to == me.0
                && effect.issued.at == at
                && effect.issued.kind == Kind::Store
        });
        let own = own.and_then(|effect| effect.bytes.first_chunk()).copied().map(u64::from_le_bytes);
        let word = own.unwrap_or_else(|| self.world.peek(self.member, at));
        let guard = &self.world.member(self.member).guard;
        self.judge(at, |spot| law::of_word(guard, spot, word, self.world.when));
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.word(Access::Own, self.member, at)?;
        self.issue(self.member, at, Kind::Store, word.to_le_bytes().into());
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.guarded(Access::Read, self.member, at, len)?;
        let memory = self.world.member(self.member);
        let bytes = memory.get(at, len).unwrap_or(&[]);
        self.judge(at, |spot| law::of_bytes(&memory.guard, spot, bytes));
        Ok(bytes)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.guarded(Access::Own, self.member, at, bytes.len() as u64)?;
        if at.region == Region::WindowOut {
            self.issue(self.member, at, Kind::Store, bytes.into());
            return Ok(());
        }
        assert!(
            matches!(at.region, Region::Output(_)),
            "a write that is neither output nor WindowsOut: {at}"
        );
        let fresh = self.world.member_mut(self.member).written.insert(at);
        assert!(fresh || self.world.forgiving, "{at} of member {} is written twice", self.member);
        self.world.effects += 1;
        self.world.poke(self.member, at, bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.write(output, &bytes)
    }
}

impl Nic for View<'_, '_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        assert_eq!(at.region, Region::State, "an agent reads its state region alone");
        Fabric::observe(self, at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        assert!(from.region == Region::WindowOut && at.region == Region::Window, "{transfer:?}");
        assert!([from.offset, at.offset, len].iter().all(|n| n.is_multiple_of(8)), "{transfer:?}");
        self.guarded(Access::Read, self.member, from, len)?;
        self.guarded(Access::Send, to.index(), at, len)?;
        let own = self.world.transfers.iter().filter(|flying| flying.from == self.member).count();
        if own >= TRANSFERS_MAX {
            return Ok(Post::Busy);
        }
        self.world.effects += 1;
        self.world.tasks += 1;
        self.world.transfers.push(Flying { from: self.member, transfer: *transfer, done: 0 });
        Ok(Post::Posted)
    }
}
