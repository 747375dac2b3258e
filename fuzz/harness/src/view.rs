//! A layer between a core or an agent and its memory. It compares each access with the layout and the owner of the place, and
//! each value that is observed with the possible ones; it changes the effects of a Byzantine rank.

use crate::group::Scene;
use crate::guard::Access;
use crate::spec::{self, Impossible};
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::layout::locate::Spot;
use veriep_core::place::{Place, Region};
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;
use veriep_core::units::{CoreId, RankId};

/// The fabric of a core, or the interface of an agent, with all that it is held to. Members of the EP domain go by their
/// physical ranks.
pub(crate) struct Guarded<'f, 's, 't, F: ?Sized> {
    pub(crate) inner: &'f mut F,
    pub(crate) scene: &'s Scene<'t>,
    pub(crate) actor: Actor,
}

impl<F: ?Sized> Guarded<'_, '_, '_, F> {
    fn member(&self) -> usize {
        self.actor.member.index()
    }

    /// Guards an access to another member or its own; an agent counts as core 0.
    fn guarded(&self, access: Access, to: usize, at: Place, len: u64) {
        let core = if self.actor.core == AGENT { CoreId(0) } else { self.actor.core };
        let by = (self.scene.guard(self.member()).rank, core);
        self.scene.guard(to).check(access, by, at, len);
    }

    fn word(&self, access: Access, to: usize, at: Place) {
        assert!(at.offset.is_multiple_of(8), "the word at {at} is not aligned");
        self.guarded(access, to, at, 8);
    }

    /// Whom a core means by `to`: the region chooses the domain.
    fn named(&self, to: RankId, at: Place) -> usize {
        let tp = self.scene.domain.shape.tp_world_size() as usize;
        let (ep, of_tp) = (self.member() / tp, self.member() % tp);
        if at.region.is_of_tp() { ep * tp + to.index() } else { to.index() * tp + of_tp }
    }

    /// Remembers what must be refused of what has just been seen.
    fn judge(&self, at: Place, impossible: impl Fn(&Spot) -> Option<Impossible>) {
        if let Some(impossible) = self.scene.guard(self.member()).find(at).and_then(|spot| impossible(&spot))
        {
            self.scene.impossible.set(Some(impossible));
        }
    }

    /// What the core sends instead of `bytes`.
    fn told(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        self.scene.lie_of(self.member(), &mut bytes);
        bytes
    }

    fn told_word(&self, word: u64) -> u64 {
        let bytes = self.told(&word.to_le_bytes());
        bytes.first_chunk().map_or(word, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl Fabric for Guarded<'_, '_, '_, dyn Fabric + '_> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn line(&self) -> u64 {
        self.inner.line()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.guarded(Access::Send, self.named(to, at), at, (row.len() + tail.len()) as u64);
        let bytes = self.told(&[row, tail].concat());
        let (row, tail) = bytes.split_at(row.len());
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.word(Access::Send, self.named(to, at), at);
        let word = self.told_word(word);
        self.inner.publish(to, at, word)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.guarded(Access::Message, to.index(), at, message.len() as u64);
        let message = self.told(message);
        self.inner.send(to, at, &message)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.inner.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.word(Access::Read, self.member(), at);
        let word = self.inner.observe(at)?;
        let guard = self.scene.guard(self.member());
        self.judge(at, |spot| spec::of_word(guard, spot, word, self.scene.when[self.member()]));
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.word(Access::Own, self.member(), at);
        let word = self.told_word(word);
        self.inner.store(at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.guarded(Access::Read, self.member(), at, len);
        let bytes = self.inner.bytes(at, len)?;
        self.judge(at, |spot| spec::of_bytes(self.scene.guard(self.member()), spot, bytes));
        Ok(bytes)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.guarded(Access::Own, self.member(), at, bytes.len() as u64);
        let kind = at.region;
        assert!(matches!(kind, Region::WindowOut | Region::Output(_)), "a write to {at}");
        if kind == Region::WindowOut {
            let bytes = self.told(bytes);
            return self.inner.write(at, &bytes);
        }
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.bytes(from, len)?;
        self.guarded(Access::Own, self.member(), output, len);
        self.inner.deliver(output, from, len)
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.guarded(Access::Pull, rank.index(), at, len);
        self.inner.peer_bytes(rank, at, len)
    }
}

impl Nic for Guarded<'_, '_, '_, dyn Nic + '_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        assert_eq!(at.region, Region::State, "an agent reads its state region alone");
        self.word(Access::Read, self.member(), at);
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        assert!(from.region == Region::WindowOut && at.region == Region::Window, "{transfer:?}");
        assert!([from.offset, at.offset, len].iter().all(|n| n.is_multiple_of(8)), "{transfer:?}");
        self.guarded(Access::Read, self.member(), from, len);
        self.guarded(Access::Send, to.index(), at, len);
        self.inner.post(transfer)
    }
}
