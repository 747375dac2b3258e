//! Mapped addresses as a fabric, with calls for caches that do not see each other.

use crate::codes::{Said, VERIEP_E_ARGUMENT, VERIEP_E_NULL, VERIEP_TENSORS};
use crate::given::{read, slice};
use crate::types::{veriep_mapped, veriep_peer, veriep_segment};
use core::cell::Cell;
use core::ffi::c_void;
use kernel_core::fabric::middleware::Middleware;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, Segment};
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::place::{Place, Region};
use kernel_core::units::RankId;

const _: () = {
    assert!(size_of::<veriep_segment>() == size_of::<Segment>());
    assert!(size_of::<veriep_peer>() == size_of::<Peer>() && align_of::<veriep_peer>() == align_of::<Peer>());
    assert!(core::mem::offset_of!(veriep_peer, state) == core::mem::offset_of!(Peer, state));
    assert!(core::mem::offset_of!(veriep_peer, window) == core::mem::offset_of!(Peer, window));
    assert!(core::mem::offset_of!(veriep_peer, window_out) == core::mem::offset_of!(Peer, window_out));
};

/// A core's mapped memory, or its agent's.
pub(crate) struct Mapped<'a, F> {
    inner: F,
    given: &'a veriep_mapped,
    peers: &'a [Peer],
    tp: &'a [Peer],
    own: RankId,
    own_tp: RankId,
}

/// Refuses a segment that is no memory of aligned words.
fn check(segment: &veriep_segment) -> Said<()> {
    if segment.len == 0 {
        return Ok(());
    }
    if segment.base.is_null() {
        return Err(VERIEP_E_NULL);
    }
    let fits = isize::try_from(segment.len).is_ok() && segment.base.addr().is_multiple_of(8);
    if fits { Ok(()) } else { Err(VERIEP_E_ARGUMENT) }
}

/// # Safety
/// As of [`slice`].
unsafe fn peers<'a>(data: *const veriep_peer, len: usize) -> Said<&'a [Peer]> {
    // SAFETY: the caller's.
    let given = unsafe { slice(data, len) }?;
    given.iter().try_for_each(|peer| {
        check(&peer.state).and_then(|()| check(&peer.window)).and_then(|()| check(&peer.window_out))
    })?;
    // SAFETY: the two types have the same fields in the same places, as is checked above and by a test.
    Ok(unsafe { core::slice::from_raw_parts(given.as_ptr().cast(), given.len()) })
}

fn segment(given: &veriep_segment) -> Segment {
    if given.len == 0 { Segment::EMPTY } else { Segment::new(given.base, given.len) }
}

impl<'a, F> Mapped<'a, F> {
    /// Creates what `inner` makes of the memory of the ranks and of the TP domain, and of the outputs.
    ///
    /// # Safety
    /// `given` says the truth about memory, as of [`RawFabric::new`].
    pub(crate) unsafe fn new(
        given: *const veriep_mapped,
        own: RankId,
        own_tp: RankId,
        inner: impl FnOnce(&'a [Peer], &'a [Peer], Outputs) -> F,
    ) -> Said<Self> {
        // SAFETY: the caller's.
        let given = unsafe { read(given) }?;
        given.outputs.iter().try_for_each(check)?;
        // SAFETY: the caller's.
        let (peers, tp) = unsafe { (peers(given.peers, given.peers_len)?, peers(given.tp, given.tp_len)?) };
        let mut outputs = [Segment::EMPTY; VERIEP_TENSORS];
        outputs.iter_mut().zip(&given.outputs).for_each(|(to, from)| *to = segment(from));
        Ok(Self { inner: inner(peers, tp, outputs), given, peers, tp, own, own_tp })
    }

    /// Whether caches must be told.
    fn has_caches(&self) -> bool {
        self.given.clean.is_some() || self.given.invalidate.is_some()
    }

    /// The address of a place that the memory holds.
    fn address(&self, rank: RankId, at: Place) -> *const c_void {
        let peer = if at.region.is_of_tp() { self.tp } else { self.peers }.get(rank.index());
        let segment = match at.region {
            Region::State | Region::TpState => peer.map(|peer| peer.state),
            Region::Window | Region::TpWindow => peer.map(|peer| peer.window),
            Region::WindowOut => peer.map(|peer| peer.window_out),
            Region::Output(tensor) => self.given.outputs.get(tensor as usize).map(segment),
        };
        segment.unwrap_or(Segment::EMPTY).base().wrapping_add(at.offset as usize).cast()
    }

    fn own(&self, at: Place) -> RankId {
        if at.region.is_of_tp() { self.own_tp } else { self.own }
    }

    /// After a write that the memory took.
    fn clean(&self, rank: RankId, at: Place, len: usize) {
        if let Some(clean) = self.given.clean {
            // SAFETY: the function is the caller's, and is given a range of the caller's.
            unsafe { clean(self.given.cache_context, self.address(rank, at), len) };
        }
    }

    /// Before a read.
    fn invalidate(&self, from: *const c_void, len: usize) {
        if let Some(invalidate) = self.given.invalidate {
            // SAFETY: as of `clean`.
            unsafe { invalidate(self.given.cache_context, from, len) };
        }
    }
}

impl<'a> Middleware for Mapped<'a, RawFabric<'a>> {
    kernel_core::around! { inner: RawFabric<'a> }

    /// What is lent is written behind the back of caches, and what is announced would be kept by them.
    fn capabilities(&self) -> Capabilities {
        let silent = if self.has_caches() {
            Capabilities::LEND.union(Capabilities::PREFETCH)
        } else {
            Capabilities::empty()
        };
        self.inner.capabilities().difference(silent)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.inner.put(to, at, row, tail)?;
        self.clean(to, at, row.len() + tail.len());
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.publish(to, at, word)?;
        self.clean(to, at, 8);
        Ok(())
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.inner.send(to, at, message)?;
        self.clean(to, at, message.len());
        Ok(())
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        // Refused places are not told of.
        if self.given.invalidate.is_some() && self.inner.observe(at).is_ok() {
            self.invalidate(self.address(self.own(at), at), 8);
        }
        self.inner.observe(at)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.store(at, word)?;
        self.clean(self.own(at), at, 8);
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let bytes = self.inner.bytes(at, len)?;
        self.invalidate(bytes.as_ptr().cast(), bytes.len());
        Ok(bytes)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.inner.write(at, bytes)?;
        self.clean(self.own, at, bytes.len());
        Ok(())
    }

    fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]> {
        if self.has_caches() { None } else { self.inner.lend(output, len) }
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        // What caches have to forget of it `bytes` tells.
        Middleware::bytes(self, from, len)?;
        self.inner.deliver(output, from, len)?;
        self.clean(self.own, output, len as usize);
        Ok(())
    }

    /// Ranks keep their names; here caches are told what is read at a peer's.
    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        let bytes = self.inner.peer_bytes(rank, at, len)?;
        self.invalidate(bytes.as_ptr().cast(), bytes.len());
        Ok(rank)
    }
}

impl Nic for Mapped<'_, RawNic<'_>> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if self.given.invalidate.is_some() && self.inner.observe(at).is_ok() {
            self.invalidate(self.address(self.own, at), 8);
        }
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        self.invalidate(self.address(self.own, from), len as usize);
        let posted = self.inner.post(transfer)?;
        self.clean(to, at, len as usize);
        Ok(posted)
    }
}
