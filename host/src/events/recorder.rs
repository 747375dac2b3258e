//! A fabric and an interface whose calls are recorded, and the layer that stands with them in front of a memory.

use super::log::Log;
use super::{Kind, What};
use crate::backend::Layer;
use std::sync::Arc;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::{Answer, Planned};
use veriep_core::units::{CoreId, RankId};

/// What stands in front of `inner`, of one core or agent; it records if there is a log.
#[derive(Debug)]
pub struct Recorder<'l, F> {
    /// What is behind.
    pub inner: F,
    /// Whose calls these are.
    pub actor: Actor,
    /// Where they are recorded.
    pub log: Option<&'l Log>,
}

impl<F> Recorder<'_, F> {
    /// Records a call that was carried out.
    fn did(&self, result: Result<(), Fault>, kind: Kind, what: impl FnOnce() -> What) -> Result<(), Fault> {
        if let (Some(log), Ok(())) = (self.log, &result) {
            log.record(self.actor, kind, what());
        }
        result
    }

    /// Records that bytes were read.
    fn reads(&self, peer: Option<RankId>, at: Place, length: u64) {
        if let Some(log) = self.log {
            log.record(self.actor, Kind::Deliver, bytes(peer, at, length as usize));
        }
    }
}

/// Bytes at a place, perhaps of a peer.
fn bytes(peer: Option<RankId>, at: Place, length: usize) -> What {
    What { peer, at: Some(at), length: Some(length as u64), ..What::default() }
}

impl<F: Fabric> Middleware for Recorder<'_, F> {
    type Inner = F;

    fn inner(&self) -> &F {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut F {
        &mut self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let all = self.inner.capabilities();
        // Nobody sees what is written through bytes that were lent.
        if self.log.is_some() { all.difference(Capabilities::LEND) } else { all }
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let done = self.inner.put(to, at, row, tail);
        self.did(done, Kind::Put, || bytes(Some(to), at, row.len() + tail.len()))
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let done = self.inner.publish(to, at, word);
        self.did(done, Kind::Publish, || What { word: Some(word), ..bytes(Some(to), at, 8) })
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let done = self.inner.send(to, at, message);
        let word = <[u8; 8]>::try_from(message).ok().map(u64::from_le_bytes);
        self.did(done, Kind::Send, || What { word, ..bytes(Some(to), at, message.len()) })
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let quiet = self.inner.quiet()?;
        if let (Some(log), true) = (self.log, quiet) {
            log.record(self.actor, Kind::Quiet, What::default());
        }
        Ok(quiet)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let word = self.inner.observe(at)?;
        if let Some(log) = self.log {
            log.observes(self.actor, at, word);
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let done = self.inner.store(at, word);
        self.did(done, Kind::Store, || What { word: Some(word), ..bytes(None, at, 8) })
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let read = self.inner.bytes(at, len)?;
        self.reads(None, at, len);
        Ok(read)
    }

    // Called just before a peer's bytes are read.
    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        self.reads(Some(rank), at, len);
        Ok(rank)
    }

    fn write(&mut self, at: Place, written: &[u8]) -> Result<(), Fault> {
        let done = self.inner.write(at, written);
        self.did(done, Kind::Write, || bytes(None, at, written.len()))
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let done = self.inner.deliver(output, from, len);
        self.did(done, Kind::Deliver, || bytes(None, from, len as usize))
    }
}

impl<N: Nic> Nic for Recorder<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let word = self.inner.observe(at)?;
        if let Some(log) = self.log {
            log.observes(self.actor, at, word);
        }
        Ok(word)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let post = self.inner.post(transfer)?;
        if let (Some(log), Post::Posted) = (self.log, post) {
            log.record(self.actor, Kind::Post, bytes(Some(transfer.to), transfer.at, transfer.len as usize));
        }
        Ok(post)
    }
}

/// The layer that records, if there is anything to record it in.
#[derive(Debug)]
pub struct Recording(pub Option<Arc<Log>>);

impl Recording {
    fn log(&self) -> Option<&Log> {
        self.0.as_deref()
    }
}

impl Layer for Recording {
    type Fabric<'b, F: Fabric + 'b> = Recorder<'b, F>;

    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, core: CoreId, inner: F) -> Recorder<'b, F> {
        Recorder { inner, actor: Actor { member: rank, core }, log: self.log() }
    }

    type Nic<'b, N: Nic + 'b> = Recorder<'b, N>;

    fn nic<'b, N: Nic + 'b>(&'b self, rank: RankId, inner: N) -> Recorder<'b, N> {
        Recorder { inner, actor: Actor { member: rank, core: AGENT }, log: self.log() }
    }

    fn steps(&self, rank: RankId, core: CoreId, planned: Planned, phase: &'static str) {
        if let Some(log) = self.log() {
            log.steps(Actor { member: rank, core }, planned, phase);
        }
    }

    fn stepped(&self, rank: RankId, core: CoreId, answer: &Answer) {
        if let Some(log) = self.log() {
            log.stepped(Actor { member: rank, core }, answer);
            log.settle(u64::MAX);
        }
    }
}
