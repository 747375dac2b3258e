//! A fabric and an interface whose calls are recorded, and the layer that stands with them in front of a memory.

use super::{Kind, What};
use core::cell::Cell;
use std::sync::Arc;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::Answer;
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::{Layer, Told};

/// Where calls are recorded.
pub trait Book: Sync {
    /// Something was done.
    fn record(&self, actor: Actor, kind: Kind, what: What);

    /// A word was read, which this actor may have seen there before.
    fn observes(&self, actor: Actor, at: Place, word: u64);

    /// A call begins that others can see the effect of. Returns when, for [`effect_ends`](Self::effect_ends).
    fn effect_begins(&self) -> u64 {
        0
    }

    /// A call has ended that began then, and has done that, if anything.
    fn effect_ends(&self, _begun: u64, actor: Actor, effect: Option<(Kind, What)>) {
        if let Some((kind, what)) = effect {
            self.record(actor, kind, what);
        }
    }

    /// What a step has come to that a scheduler has let a core or an agent take.
    fn stepped(&self, _actor: Actor, _answer: &Answer) {}

    /// A driver tells how a core goes along.
    fn hears(&self, _actor: Actor, _told: Told) {}
}

/// What is in front of `inner`, of one core or agent; it records if there is a book.
#[derive(Debug)]
pub struct Recorder<'l, F, B> {
    pub inner: F,
    pub actor: Actor,
    pub book: Option<&'l B>,
}

impl<F, B: Book> Recorder<'_, F, B> {
    /// Makes a call and records its effect, if it has one, from before the moment at which others can see it.
    #[inline]
    fn effect<T>(
        &mut self,
        kind: Kind,
        call: impl FnOnce(&mut F) -> Result<T, Fault>,
        what: impl FnOnce(&T) -> Option<What>,
    ) -> Result<T, Fault> {
        let Some(book) = self.book else { return call(&mut self.inner) };
        let begun = book.effect_begins();
        let done = call(&mut self.inner);
        let effect = done.as_ref().ok().and_then(what).map(|what| (kind, what));
        book.effect_ends(begun, self.actor, effect);
        done
    }

    /// Records what a core has come to know, which it does once it knows it.
    #[inline]
    fn knows(&self, kind: Kind, what: What) {
        if let Some(book) = self.book {
            book.record(self.actor, kind, what);
        }
    }

    /// Records that bytes were read.
    #[inline]
    fn reads(&self, peer: Option<RankId>, at: Place, length: u64) {
        self.knows(Kind::Deliver, bytes(peer, at, length as usize));
    }

    /// Records a word that was read.
    #[inline]
    fn saw(&self, at: Place, word: u64) -> u64 {
        if let Some(book) = self.book {
            book.observes(self.actor, at, word);
        }
        word
    }
}

/// Bytes at a place, perhaps of a peer.
fn bytes(peer: Option<RankId>, at: Place, length: usize) -> What {
    What { peer, at: Some(at), length: Some(length as u64), ..What::default() }
}

impl<F: Fabric, B: Book> Middleware for Recorder<'_, F, B> {
    veriep_core::around! { inner: F }

    fn capabilities(&self) -> Capabilities {
        let all = self.inner.capabilities();
        if self.book.is_some() { all.difference(Capabilities::LEND) } else { all }
    }

    /// Nothing is lent to a core that is recorded: what it writes there would not be seen.
    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]> {
        if self.book.is_some() { None } else { self.inner.lend(output, len) }
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let what = |_: &()| Some(bytes(Some(to), at, row.len() + tail.len()));
        self.effect(Kind::Put, |inner| inner.put(to, at, row, tail), what)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let what = |_: &()| Some(What { word: Some(word), ..bytes(Some(to), at, 8) });
        self.effect(Kind::Publish, |inner| inner.publish(to, at, word), what)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let word = <[u8; 8]>::try_from(message).ok().map(u64::from_le_bytes);
        let what = |_: &()| Some(What { word, ..bytes(Some(to), at, message.len()) });
        self.effect(Kind::Send, |inner| inner.send(to, at, message), what)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let quiet = self.inner.quiet()?;
        if quiet {
            self.knows(Kind::Quiet, What::default());
        }
        Ok(quiet)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        Ok(self.saw(at, self.inner.observe(at)?))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let what = |_: &()| Some(What { word: Some(word), ..bytes(None, at, 8) });
        self.effect(Kind::Store, |inner| inner.store(at, word), what)
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
        let what = |_: &()| Some(bytes(None, at, written.len()));
        self.effect(Kind::Write, |inner| inner.write(at, written), what)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.inner.deliver(output, from, len)?;
        self.reads(None, from, len);
        Ok(())
    }
}

impl<N: Nic, B: Book> Nic for Recorder<'_, N, B> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        Ok(self.saw(at, self.inner.observe(at)?))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let to = || bytes(Some(transfer.to), transfer.at, transfer.len as usize);
        let posted = || What { from: Some(transfer.from.offset), ..to() };
        let what = |post: &Post| (*post == Post::Posted).then(posted);
        self.effect(Kind::Post, |inner| inner.post(transfer), what)
    }
}

/// The layer that records, if there is anything to record it in.
#[derive(Debug)]
pub struct Recording<B>(pub Option<Arc<B>>);

impl<B> Recording<B> {
    fn book(&self) -> Option<&B> {
        self.0.as_deref()
    }
}

impl<B: Book + Send> Layer for Recording<B> {
    const STEPS: bool = true;

    #[inline]
    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, core: CoreId, inner: F) -> impl Fabric {
        Recorder { inner, actor: Actor { member: rank, core }, book: self.book() }
    }

    fn nic<'b, N: Nic + 'b>(&'b self, rank: RankId, inner: N) -> impl Nic {
        Recorder { inner, actor: Actor { member: rank, core: AGENT }, book: self.book() }
    }

    fn stepped(&self, rank: RankId, core: CoreId, answer: &Answer) {
        if let Some(book) = self.book() {
            book.stepped(Actor { member: rank, core }, answer);
        }
    }

    fn hears(&self, rank: RankId, core: CoreId, told: Told) {
        if let Some(book) = self.book() {
            book.hears(Actor { member: rank, core }, told);
        }
    }
}
