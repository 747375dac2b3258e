//! A core as a warp. All lanes step the same machine, each with a state of its own: what a lane observes, lane 0 has read for all,
//! so that all take the same way. Rows are written in pieces, one for each lane; words are written by lane 0, behind all lanes.

use crate::LANES;
use core::arch::asm;
use core::cell::Cell;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::raw::RawFabric;
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::units::RankId;

/// Waits for all lanes; what they wrote before is before what any of them does next.
fn meet() {
    // SAFETY: all lanes come here: they take the same way through the machine.
    unsafe { asm!("bar.warp.sync 0xffffffff;") };
}

/// The place so many bytes further on.
fn plus(at: Place, bytes: u64) -> Place {
    Place { offset: at.offset.saturating_add(bytes), ..at }
}

/// Lane 0's number, in all lanes.
fn of_first(number: u32) -> u32 {
    let out: u32;
    // SAFETY: as of `meet`.
    unsafe { asm!("shfl.sync.idx.b32 {}, {}, 0, 31, 0xffffffff;", out(reg32) out, in(reg32) number) };
    out
}

/// Lane 0's word, in all lanes.
fn word_of_first(word: u64) -> u64 {
    u64::from(of_first(word as u32)) | u64::from(of_first((word >> 32) as u32)) << 32
}

/// One lane's view of raw memory.
pub(crate) struct Warp<'a> {
    pub(crate) inner: RawFabric<'a>,
    /// Lanes that copy rows: all of them, but in the twin.
    pub(crate) copy: u32,
    pub(crate) lane: u32,
}

impl Warp<'_> {
    /// The bytes of `len` that this lane copies. Pieces begin at multiples of 16.
    fn piece(&self, len: usize) -> core::ops::Range<usize> {
        if self.lane >= self.copy {
            return 0..0;
        }
        let each = len.div_ceil(LANES as usize).next_multiple_of(16);
        let first = (each * self.lane as usize).min(len);
        first..(first + each).min(len)
    }

    /// Has lane 0 do what only one may do, behind what all lanes have written.
    fn once<T: Default>(&mut self, does: impl FnOnce(&mut RawFabric<'_>) -> T) -> T {
        meet();
        let did = if self.lane == 0 { does(&mut self.inner) } else { T::default() };
        meet();
        did
    }
}

/// What lane 0 is told, as all others are told it.
#[derive(Default)]
struct Told(Option<Fault>);

impl Told {
    fn all(self) -> Result<(), Fault> {
        // Another lane than 0 cannot know the place; that there is a fault is enough to stop.
        let failed = of_first(u32::from(self.0.is_some())) != 0;
        let unknown = || Fault::new(RankId(u32::MAX), Place::state(0), 0);
        if failed { Err(self.0.unwrap_or_else(unknown)) } else { Ok(()) }
    }
}

impl<'a> Middleware for Warp<'a> {
    veriep_core::around! { inner: RawFabric<'a> }

    /// No lane may be lent what the others write.
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().difference(Capabilities::LEND | Capabilities::PREFETCH)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let piece = self.piece(row.len());
        let (first, part) = (piece.start as u64, row.get(piece).unwrap_or(&[]));
        self.inner.put(to, plus(at, first), part, &[])?;
        if self.lane == 0 && !tail.is_empty() {
            self.inner.put(to, plus(at, row.len() as u64), tail, &[])?;
        }
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.once(|inner| Told(inner.publish(to, at, word).err())).all()
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.once(|inner| Told(inner.send(to, at, message).err())).all()
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        meet();
        self.inner.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let word = if self.lane == 0 { self.inner.observe(at) } else { Ok(0) };
        // Lane 0's acquire load is before what the others do next, too.
        let failed = of_first(u32::from(word.is_err())) != 0;
        let seen = word_of_first(*word.as_ref().unwrap_or(&0));
        meet();
        match word {
            Err(fault) => Err(fault),
            Ok(_) if failed => Err(Fault::new(RankId(u32::MAX), at, 8)),
            Ok(_) => Ok(seen),
        }
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.once(|inner| Told(inner.store(at, word).err())).all()
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let piece = self.piece(bytes.len());
        let (first, part) = (piece.start as u64, bytes.get(piece).unwrap_or(&[]));
        self.inner.write(plus(at, first), part)
    }

    fn lend(&self, _output: Place, _len: u64) -> Option<&[Cell<u8>]> {
        None
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let piece = self.piece(len as usize);
        let (first, len) = (piece.start as u64, piece.len() as u64);
        self.inner.deliver(plus(output, first), plus(from, first), len)
    }
}
