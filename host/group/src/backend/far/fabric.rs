//! The fabric of a core and an agent whose memory is partly in other processes.

use super::stream::{Entry, Kind};
use super::{FarMemory, Wire};
use crate::backend::Backend;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::units::{CoreId, RankId};

/// A core's fabric over memory of which some is far, or an agent's interface to it.
#[derive(Debug)]
pub struct Far<'b, T, B, W> {
    pub(super) inner: T,
    pub(super) memory: &'b FarMemory<B, W>,
    pub(super) own: RankId,
    /// The core; of an agent [`AGENT`](veriep_core::sim::chooser::AGENT).
    pub(super) core: CoreId,
}

impl<F, B: Backend, W: Wire> Far<'_, F, B, W> {
    /// Sends the bytes of `parts` as one entry if the memory is far, and returns whether it is. Puts and publishes must stay
    /// inside a server, messages must leave it.
    fn sends(
        &self,
        kind: Kind,
        (to, at): (RankId, Place),
        parts: [&[u8]; 2],
        is_message: bool,
    ) -> Result<bool, Fault> {
        let Some((process, member)) = self.memory.far(self.own, to, at) else { return Ok(false) };
        let len = (parts[0].len() + parts[1].len()) as u64;
        if self.memory.is_of_other_server(self.own, to) != is_message {
            return Err(Fault::new(to, at, len));
        }
        // Quiet waits for all but messages.
        let core = (!is_message).then_some((self.own, self.core));
        self.memory.add(process, Entry { kind, member, at, len }, parts, core).map(|()| true)
    }
}

impl<F: Fabric, B: Backend, W: Wire> Middleware for Far<'_, F, B, W> {
    veriep_core::around! { inner: F }

    /// No core reads what is not mapped.
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().difference(Capabilities::PEER_BYTES)
    }

    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        Err(Fault::new(rank, at, len))
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let is_far = self.sends(Kind::Row, (to, at), [row, tail], false)?;
        if is_far { Ok(()) } else { self.inner.put(to, at, row, tail) }
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let is_far = self.sends(Kind::Words, (to, at), [&word.to_le_bytes(), &[]], false)?;
        if is_far { Ok(()) } else { self.inner.publish(to, at, word) }
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let is_far = self.sends(Kind::Words, (to, at), [message, &[]], true)?;
        if is_far { Ok(()) } else { self.inner.send(to, at, message) }
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        Ok(self.inner.quiet()? && self.memory.has_landed((self.own, self.core))?)
    }
}

impl<N: Nic, B: Backend, W: Wire> Nic for Far<'_, N, B, W> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    /// The source is read now: earlier than it might be, which the contract allows.
    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let Some((process, member)) = self.memory.far(self.own, to, at) else {
            return self.inner.post(transfer);
        };
        transfer.check(self.own)?;
        let fabric = self.memory.inner.fabric(self.own, CoreId(0), 0);
        let entry = Entry { kind: Kind::Words, member, at, len };
        self.memory.add(process, entry, [fabric.bytes(from, len)?, &[]], None).map(|()| Post::Posted)
    }
}
