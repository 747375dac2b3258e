//! The memory as cores and agents see it.

use super::fault::{Fault, Kind};
use super::memory::Zoo;
use crate::fabric::nic::{Nic, Post, Transfer};
use crate::fabric::{Capabilities, Fabric, Fault as Refusal};
use crate::place::{Place, Region};
use crate::sim::chooser::Actor;
use crate::units::RankId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::RefCell;

/// One core's view. `inner` is the memory behind, in which everything lands at once.
pub(super) struct ZooFabric<'a> {
    pub(super) zoo: &'a RefCell<Zoo>,
    pub(super) inner: &'a mut dyn Fabric,
    pub(super) core: Actor,
}

impl ZooFabric<'_> {
    fn issues(&self, to: RankId, at: Place, len: usize, issue: impl FnOnce(&mut Zoo)) -> Result<(), Refusal> {
        self.find_room(to, at, len)?;
        let mut zoo = self.zoo.borrow_mut();
        zoo.calls += 1;
        issue(&mut zoo);
        Ok(())
    }

    fn find_room(&self, to: RankId, at: Place, len: usize) -> Result<(), Refusal> {
        let has_room = self.zoo.borrow_mut().has_room(self.core);
        if has_room { Ok(()) } else { Err(Refusal::busy(to, at, len as u64)) }
    }

    fn seen(&self, at: Place, fresh: &[u8], observes: bool) -> Vec<u8> {
        let line_at = |place, len| self.inner.bytes(place, len).ok().map(<[u8]>::to_vec);
        self.zoo.borrow_mut().seen(self.core, at, fresh, observes, line_at)
    }
}

impl Fabric for ZooFabric<'_> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn line(&self) -> u64 {
        self.zoo.borrow().animal.line
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Refusal> {
        let len = row.len() + tail.len();
        self.issues(to, at, len, |zoo| zoo.put(self.core, zoo.member(self.core, to, at), at, row, tail))
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Refusal> {
        self.issues(to, at, 8, |zoo| {
            let member = zoo.member(self.core, to, at);
            zoo.word(self.core, member, at, Kind::Publish, &word.to_le_bytes());
        })
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Refusal> {
        let send = |zoo: &mut Zoo| zoo.send(self.core, zoo.member(self.core, to, at), at, message);
        self.issues(to, at, message.len(), send)
    }

    fn quiet(&mut self) -> Result<bool, Refusal> {
        let mut zoo = self.zoo.borrow_mut();
        zoo.calls += 1;
        Ok(zoo.quiet(self.core))
    }

    fn observe(&self, at: Place) -> Result<u64, Refusal> {
        let read_at = self.zoo.borrow().read_at(at);
        let landed = self.inner.observe(read_at)?;
        self.zoo.borrow_mut().calls += 1;
        let seen = self.seen(at, &landed.to_le_bytes(), true);
        let seen = seen.first_chunk().copied().map_or(landed, u64::from_le_bytes);
        Ok(self.zoo.borrow().forwarded(self.core, at).unwrap_or(seen))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Refusal> {
        let own = self.core.member;
        self.issues(own, at, 8, |zoo| zoo.word(self.core, own, at, Kind::Store, &word.to_le_bytes()))
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Refusal> {
        let read_at = self.zoo.borrow().read_at(at);
        let fresh = self.inner.bytes(read_at, len)?;
        self.zoo.borrow_mut().calls += 1;
        let seen = self.seen(at, fresh, false);
        // A test leaks a few rows.
        Ok(if seen == fresh { fresh } else { Box::leak(seen.into_boxed_slice()) })
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Refusal> {
        let own = self.core.member;
        if matches!(at.region, Region::Output(_)) {
            self.find_room(own, at, bytes.len())?;
            return self.inner.write(at, bytes);
        }
        self.issues(own, at, bytes.len(), |zoo| zoo.word(self.core, own, at, Kind::Write, bytes))
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Refusal> {
        self.find_room(self.core.member, output, len as usize)?;
        let bytes = self.bytes(from, len)?.to_vec();
        self.inner.write(output, &bytes)
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Refusal> {
        self.zoo.borrow_mut().calls += 1;
        self.inner.peer_bytes(rank, at, len)
    }
}

/// An agent's view.
pub(super) struct ZooNic<'a> {
    pub(super) zoo: &'a RefCell<Zoo>,
    pub(super) inner: &'a mut dyn Nic,
    pub(super) agent: Actor,
}

impl Nic for ZooNic<'_> {
    fn observe(&self, at: Place) -> Result<u64, Refusal> {
        let landed = self.inner.observe(at)?;
        let mut zoo = self.zoo.borrow_mut();
        zoo.calls += 1;
        let peeked = matches!(zoo.animal.fault, Some(Fault::Peeks)).then(|| zoo.forwarded(self.agent, at));
        Ok(peeked.flatten().unwrap_or(landed))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Refusal> {
        transfer.check(self.agent.member)?;
        let mut zoo = self.zoo.borrow_mut();
        zoo.calls += 1;
        Ok(zoo.post(self.agent, transfer))
    }
}
