//! The memory of all ranks as loom objects: words are atomics, stretches of bytes are watched.
//!
//! A stretch is watched by a loom cell without content, so that a racing access is a failure, while its bytes lie
//! beside it: loom runs its threads one at a time, and reading them needs no unsafe code. What one put writes
//! is one stretch on A3, however many pieces of it are read; on A2, whose transfers arrive word by word, each word is one.

use super::places::Places;
use ::loom::cell::UnsafeCell;
use ::loom::sync::atomic::{AtomicU64, Ordering};
use core::cell::RefCell;
use core::ops::{Bound, Range};
use std::collections::BTreeMap;
use veriep_core::layout::outputs::capacity;
use veriep_core::layout::record::Triple;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// A rank, by its number in the memory, and its ranks in the domains: without a TP domain all ranks are of one EP domain. The
/// reference numbers ranks in the same way.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub number: RankId,
    pub ep: RankId,
    pub tp: RankId,
    /// Ranks of a TP domain; 1 without one.
    tp_ranks: u32,
}

impl Member {
    pub fn of(shape: &Shape, number: RankId) -> Self {
        let tp_ranks = shape.tp_world_size();
        Self { number, ep: RankId(number.0 / tp_ranks), tp: RankId(number.0 % tp_ranks), tp_ranks }
    }

    /// Its rank in the domain that has the region of `at`.
    pub(super) const fn own(&self, at: Place) -> RankId {
        if at.region.is_of_tp() { self.tp } else { self.ep }
    }

    /// The number of the one that it calls `to` in that domain.
    pub(super) const fn reached(&self, to: RankId, at: Place) -> RankId {
        RankId(if at.region.is_of_tp() {
            self.ep.0 * self.tp_ranks + to.0
        } else {
            to.0 * self.tp_ranks + self.tp.0
        })
    }
}

/// How a piece of memory may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// While others write it.
    Atomic,
    /// Not while others write it.
    Watched,
}

/// A piece of memory.
#[derive(Debug)]
pub(super) enum Piece {
    Atomic(AtomicU64),
    Watched(UnsafeCell<()>, RefCell<Vec<u8>>),
}

impl Piece {
    fn new(access: Access, len: u64) -> Self {
        match access {
            Access::Atomic => Self::Atomic(AtomicU64::new(0)),
            Access::Watched => Self::Watched(UnsafeCell::new(()), RefCell::new(vec![0; len as usize])),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Atomic(_) => 8,
            Self::Watched(_, bytes) => bytes.borrow().len() as u64,
        }
    }

    /// Loads a piece of 8 bytes.
    pub(super) fn load(&self, ordering: Ordering) -> u64 {
        match self {
            Self::Atomic(word) => word.load(ordering),
            Self::Watched(watch, bytes) => {
                watch.with(|_| ());
                bytes.borrow().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            }
        }
    }

    /// Stores a piece of 8 bytes.
    pub(super) fn store(&self, word: u64, ordering: Ordering) {
        match self {
            Self::Atomic(atomic) => atomic.store(word, ordering),
            Self::Watched(watch, bytes) => {
                watch.with_mut(|_| ());
                bytes.borrow_mut().copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// Reads a part of it. The barrier or the doorbell speaks for a word of others that is no flag here.
    fn read(&self, part: Range<usize>, to: &mut [u8]) -> Option<()> {
        match self {
            Self::Atomic(word) => {
                to.copy_from_slice(word.load(Ordering::Relaxed).to_le_bytes().get(part)?);
            }
            Self::Watched(watch, bytes) => {
                watch.with(|_| ());
                to.copy_from_slice(bytes.borrow().get(part)?);
            }
        }
        Some(())
    }

    /// Writes a part of it, or a whole word: no other core is there.
    fn write(&self, part: Range<usize>, from: &[u8]) -> Option<()> {
        match self {
            Self::Atomic(word) => word.store(u64::from_le_bytes(*from.first_chunk()?), Ordering::Relaxed),
            Self::Watched(watch, bytes) => {
                watch.with_mut(|_| ());
                bytes.borrow_mut().get_mut(part)?.copy_from_slice(from);
            }
        }
        Some(())
    }
}

/// What is between the pieces of a memory.
#[derive(Clone, Copy, Debug)]
enum Between {
    /// Nothing: an access there is a failure, and so is one to a word as if it were bytes.
    Nothing,
    /// Words of windows of so many bytes, which no test means: they can be written, and read as zero.
    Windows(u64),
}

/// Pieces of memory by where they begin.
#[derive(Debug)]
struct Pieces {
    pieces: BTreeMap<Place, Piece>,
    between: Between,
}

impl Pieces {
    fn new(places: &Places, between: Between) -> Self {
        let pieces = places.pieces.iter().map(|(&at, &(access, len))| (at, Piece::new(access, len)));
        Self { pieces: pieces.collect(), between }
    }

    /// The word there. Where words arrive one by one, a watched one is a word, too.
    fn word(&self, at: Place) -> Option<&Piece> {
        let piece = self.pieces.get(&at)?;
        let is_word = matches!((piece, self.between), (Piece::Atomic(_), _) | (_, Between::Windows(_)));
        is_word.then_some(piece)
    }

    /// Calls `f(piece, part of it, bytes passed before)` for every piece that `len` bytes from `at` on touch. `None` if a part of
    /// them may not be accessed.
    fn visit(
        &self,
        at: Place,
        len: u64,
        mut f: impl FnMut(&Piece, Range<usize>, usize) -> Option<()>,
    ) -> Option<()> {
        let (mut next, end) = (at.offset, at.offset.checked_add(len)?);
        let is_exact = matches!(self.between, Between::Nothing);
        if !is_exact && !self.between.covers(at, len) {
            return None;
        }
        if len == 0 {
            return Some(());
        }
        let before = self.pieces.range(..=at).next_back();
        let before = before
            .filter(|(place, piece)| place.region == at.region && place.offset + piece.len() > at.offset);
        let behind = (Bound::Excluded(at), Bound::Excluded(Place { offset: end, ..at }));
        for (place, piece) in before.into_iter().chain(self.pieces.range(behind)) {
            let (from, to) = (at.offset.max(place.offset), end.min(place.offset + piece.len()));
            if is_exact && (from > next || matches!(piece, Piece::Atomic(_))) {
                return None;
            }
            let part = (from - place.offset) as usize..(to - place.offset) as usize;
            f(piece, part, (from - at.offset) as usize)?;
            next = to;
        }
        (next == end || !is_exact).then_some(())
    }

    fn read(&self, at: Place, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.visit(at, len, |piece, part, passed| {
            let to = bytes.get_mut(passed..passed + part.len())?;
            piece.read(part, to)
        })?;
        Some(bytes)
    }

    fn write(&self, at: Place, bytes: &[u8]) -> Option<()> {
        self.visit(at, bytes.len() as u64, |piece, part, passed| {
            let from = bytes.get(passed..passed + part.len())?;
            piece.write(part, from)
        })
    }
}

impl Between {
    /// Whether a window has these bytes, whole words.
    fn covers(self, at: Place, len: u64) -> bool {
        let Self::Windows(bytes) = self else { return false };
        let end = at.offset.checked_add(len).filter(|&end| end <= bytes);
        let is_whole = at.offset.is_multiple_of(8) && len.is_multiple_of(8);
        is_whole && end.is_some() && matches!(at.region, Region::Window | Region::WindowOut)
    }
}

/// What the ranks share. To be made inside a model.
#[derive(Debug)]
pub struct Memory {
    ranks: Vec<Pieces>,
    between: Between,
}

impl Memory {
    /// Zeroed memory at `places`, by rank.
    pub fn new(places: &[Places]) -> Self {
        Self::with(places, Between::Nothing)
    }

    /// The same with windows, far larger than what is meant in them.
    pub fn with_windows(places: &[Places], shape: &Shape) -> Self {
        Self::with(places, Between::Windows(shape.window_bytes()))
    }

    fn with(places: &[Places], between: Between) -> Self {
        Self { ranks: places.iter().map(|places| Pieces::new(places, between)).collect(), between }
    }

    /// The word there; `None` if it is not modelled.
    pub(super) fn word(&self, rank: RankId, at: Place) -> Option<&Piece> {
        self.ranks.get(rank.index())?.word(at)
    }

    /// Whether these bytes of a window exist.
    pub(super) fn covers(&self, at: Place, len: u64) -> bool {
        self.between.covers(at, len)
    }

    /// Reads `len` bytes from `at` on. `None` if a part of them may not be read.
    pub(super) fn read(&self, rank: RankId, at: Place, len: u64) -> Option<Vec<u8>> {
        self.ranks.get(rank.index())?.read(at, len)
    }

    /// Writes `bytes` from `at` on. `None` if a part of them may not be written.
    pub(super) fn write(&self, rank: RankId, at: Place, bytes: &[u8]) -> Option<()> {
        self.ranks.get(rank.index())?.write(at, bytes)
    }
}

/// The output tensors of a rank for one batch. To be made inside a model; by default there are none.
#[derive(Debug)]
pub struct Outputs(Pieces);

impl Default for Outputs {
    fn default() -> Self {
        Self(Pieces::new(&Places::default(), Between::Nothing))
    }
}

impl Outputs {
    /// Zeroed outputs of EP rank `rank`: an element that two cores write is a failure.
    pub fn new(shape: &Shape, rank: RankId) -> Self {
        let mut places = Places::default();
        for tensor in Tensor::ALL {
            let element = match tensor {
                Tensor::ExpandX => shape.payload_bytes(),
                Tensor::XOut | Tensor::X | Tensor::Y => shape.row_bytes(),
                Tensor::AssistInfo => Triple::BYTES,
                Tensor::ExpertTokenNums | Tensor::RowTable => 8,
                Tensor::DynamicScales
                | Tensor::ExpandIdx
                | Tensor::EpRecvCounts
                | Tensor::TpRecvCounts
                | Tensor::ExpandScales
                | Tensor::SentRows
                | Tensor::Rstd => 4,
            };
            for offset in (0..capacity(shape, rank, tensor)).step_by(element as usize) {
                places.row(Place { region: Region::Output(tensor), offset }, element);
            }
        }
        Self(Pieces::new(&places, Between::Nothing))
    }

    /// Reads the first `len` bytes of a tensor. `None` if it has fewer.
    pub fn read(&self, tensor: Tensor, len: u64) -> Option<Vec<u8>> {
        self.read_at(Place { region: Region::Output(tensor), offset: 0 }, len)
    }

    pub(super) fn read_at(&self, at: Place, len: u64) -> Option<Vec<u8>> {
        self.0.read(at, len)
    }

    pub(super) fn write(&self, at: Place, bytes: &[u8]) -> Option<()> {
        self.0.write(at, bytes)
    }
}
