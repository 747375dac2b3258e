//! The view that one core or agent has of a [`Memory`].

use super::chooser::{Actor, Chooser};
use super::flight::FlightKind;
use super::memory::{Effect, Memory};
use super::storage::{Spot, Storage};
use crate::fabric::nic::{Nic, Post, Transfer};
use crate::fabric::{Awaited, Capabilities, Fabric, Fault};
use crate::place::{Place, Region};
use crate::units::RankId;
use core::marker::PhantomData;
use core::ops::DerefMut;

/// The fabric of one core. `M` is a reference to a memory, or a lock that is held.
#[derive(Debug)]
pub struct View<'m, M, S, C> {
    memory: M,
    actor: Actor,
    batch: usize,
    of: PhantomData<&'m Memory<S, C>>,
}

impl<M, S, C> View<'_, M, S, C> {
    /// The view of an actor on the outputs of a batch.
    pub const fn new(memory: M, actor: Actor, batch: usize) -> Self {
        Self { memory, actor, batch, of: PhantomData }
    }
}

impl<M: DerefMut<Target = Memory<S, C>>, S: Storage, C: Chooser> View<'_, M, S, C> {
    fn own(&self, at: Place) -> Spot {
        let batch = if matches!(at.region, Region::Output(_)) { self.batch } else { 0 };
        Spot { member: self.actor.member, batch, at }
    }

    /// The member that this actor calls `to`: the region chooses the domain.
    fn reached(&self, to: RankId, at: Place) -> RankId {
        let tp = self.memory.tp_world_size;
        let (ep, tp_rank) = (self.actor.member.0 / tp, self.actor.member.0 % tp);
        if at.region.is_of_tp() {
            RankId(ep * tp + to.0)
        } else {
            RankId(to.0.saturating_mul(tp).saturating_add(tp_rank))
        }
    }

    fn is_far(&self, to: RankId) -> bool {
        self.memory.server_ranks.is_some_and(|ranks| to.0 / ranks != self.actor.member.0 / ranks)
    }

    /// The member at `to`, if it has `len` bytes there that others may write.
    fn target(&self, to: RankId, at: Place, len: u64, far: bool) -> Result<RankId, Fault> {
        let member = self.reached(to, at);
        let fault = Fault::new(member, at, len);
        let allowed = !matches!(at.region, Region::Output(_)) && self.is_far(member) == far;
        let there = self.memory.storage.holds(Spot { member, batch: 0, at }, len);
        if allowed && there { Ok(member) } else { Err(fault) }
    }

    fn aligned(&self, member: RankId, at: Place, len: u64) -> Result<(), Fault> {
        let whole = at.offset.is_multiple_of(8) && len.is_multiple_of(8);
        if whole { Ok(()) } else { Err(Fault::new(member, at, len)) }
    }

    fn reads(&self, what: Awaited) {
        self.memory.read.borrow_mut().push(what);
    }

    fn observed(&self, at: Place) -> Result<u64, Fault> {
        let member = self.actor.member;
        self.aligned(member, at, 8)?;
        self.reads(Awaited::Word(at));
        let bytes = self.memory.read(self.own(at), 8)?;
        let landed = bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
        Ok(self.memory.own_store(self.actor, at).unwrap_or(landed))
    }

    fn written(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.memory.read(self.own(at), bytes.len() as u64)?;
        match at.region {
            Region::WindowOut => {
                let (from, to) = (self.actor, self.actor.member);
                self.memory.issue(from, to, at, FlightKind::Write, bytes);
                Ok(())
            }
            // With direct placement experts write their results into the window.
            Region::Output(_) | Region::Window => {
                let spot = self.own(at);
                self.memory.write_now(spot, bytes)
            }
            _ => Err(Fault::new(self.actor.member, at, bytes.len() as u64)),
        }
    }
}

impl<M: DerefMut<Target = Memory<S, C>>, S: Storage, C: Chooser> Fabric for View<'_, M, S, C> {
    fn capabilities(&self) -> Capabilities {
        match self.memory.server_ranks {
            Some(_) => Capabilities::PEER_BYTES.union(Capabilities::SEND),
            None => Capabilities::PEER_BYTES,
        }
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let member = self.target(to, at, (row.len() + tail.len()) as u64, false)?;
        self.memory.effects.push(Effect::Put { to, at, row: row.len(), tail: tail.len() });
        let from = self.actor;
        self.memory.put(from, member, at, row, tail);
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let member = self.target(to, at, 8, false)?;
        self.aligned(member, at, 8)?;
        self.memory.effects.push(Effect::Publish { to, at, word });
        let from = self.actor;
        self.memory.issue(from, member, at, FlightKind::Publish, &word.to_le_bytes());
        Ok(())
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let member = self.target(to, at, message.len() as u64, true)?;
        self.aligned(member, at, message.len() as u64)?;
        self.memory.effects.push(Effect::Send { to, at, len: message.len() });
        let (from, kind) = (self.actor, self.memory.message(message.len()));
        self.memory.issue(from, member, at, kind, message);
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let core = self.actor;
        Ok(self.memory.is_quiet(core))
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.observed(at)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let (from, member) = (self.actor, self.actor.member);
        self.aligned(member, at, 8)?;
        self.memory.read(self.own(at), 8)?;
        if matches!(at.region, Region::Output(_)) {
            return Err(Fault::new(member, at, 8));
        }
        self.memory.effects.push(Effect::Store { at, word });
        self.memory.issue(from, member, at, FlightKind::Store, &word.to_le_bytes());
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.reads(Awaited::Bytes(at, len));
        self.memory.read(self.own(at), len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.written(at, bytes)?;
        self.memory.effects.push(Effect::Write { at, len: bytes.len() });
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.memory.read(self.own(from), len)?;
        if self.memory.leaves_out(output, len) && self.memory.rewrites {
            self.memory.read(self.own(output), len)?;
        } else {
            let bytes = bytes.to_vec();
            self.written(output, &bytes)?;
        }
        self.memory.effects.push(Effect::Deliver { at: output, from, len });
        Ok(())
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        let member = self.reached(rank, at);
        self.memory.read(Spot { member, batch: 0, at }, len)
    }
}

/// The interface of one agent, over its view.
#[derive(Debug)]
pub struct NicView<'m, M, S, C>(pub View<'m, M, S, C>);

impl<M: DerefMut<Target = Memory<S, C>>, S: Storage, C: Chooser> Nic for NicView<'_, M, S, C> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        match at.region {
            Region::State => self.0.observed(at),
            _ => Err(Fault::new(self.0.actor.member, at, 8)),
        }
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let own = self.0.actor.member;
        transfer.check(own)?;
        self.0.memory.read(self.0.own(from), len)?;
        self.0.memory.read(Spot { member: to, batch: 0, at }, len)?;
        if !self.0.memory.post(own, to, at, from, len) {
            return Ok(Post::Busy);
        }
        self.0.memory.effects.push(Effect::Post { to });
        Ok(Post::Posted)
    }
}
