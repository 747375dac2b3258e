//! The memory of all ranks as loom objects: words are atomics, rows are bytes that loom watches.
//!
//! A row is watched by a loom cell without content, so that a racing access is a failure, while its bytes lie
//! beside it: loom runs its threads one at a time, and reading them needs no unsafe code. What one put writes
//! is one row, however many pieces of it are read.

use ::loom::cell::UnsafeCell;
use ::loom::sync::atomic::AtomicU64;
use core::cell::RefCell;
use core::ops::Range;
use veriep_core::layout::block;
use veriep_core::layout::data::{combine_row, dispatch_record};
use veriep_core::layout::direct::{Area, INFO, Parts};
use veriep_core::layout::outputs::capacity;
use veriep_core::layout::record::{Triple, sent_bytes};
use veriep_core::layout::state::{
    Direct, Operator, Partition, combine_slot, combine_status, core_sums, core_word, dispatch_status,
    token_flag,
};
use veriep_core::layout::tp;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::placement::Home;
use veriep_core::protocol::{Choices, Flags, Receive};
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, Offset, RankId, Token};

/// A rank, by its number in the memory, and its ranks in the domains: without a TP domain all ranks are of one EP domain. The
/// oracle numbers ranks in the same way.
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

/// Where the words and the rows of a rank lie: only those that its shape uses.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Words of the state regions that others than their owner write or read.
    pub words: Vec<Place>,
    /// Stretches of the data region that are written as one.
    pub rows: Vec<Range<Offset>>,
    /// The same of the state region.
    pub tables: Vec<Range<Offset>>,
    /// The same of the TP window.
    pub lent: Vec<Range<Offset>>,
    /// The same of the TP state region.
    pub first_rows: Vec<Range<Offset>>,
}

impl Places {
    /// The places of EP rank `rank`.
    pub fn of(shape: &Shape, rank: RankId, choices: Choices) -> Self {
        let mut places = Self::default();
        if choices.receive.is_direct() {
            places.direct(shape, rank, choices.receive);
        } else {
            places.records(shape, rank, choices.flags);
        }
        if shape.tp_world_size() > 1 {
            places.of_tp(shape, rank);
        }
        // The only core of a rank has nobody to meet.
        let cores = if shape.aiv_num() > 1 { shape.aiv_num() } else { 0 };
        places.words.extend(pairs(cores, 2).map(|(core, epoch)| core_word(CoreId(core), epoch)));
        places.words.sort_unstable();
        for stretches in [&mut places.rows, &mut places.tables, &mut places.lent, &mut places.first_rows] {
            stretches.sort_unstable_by_key(|row| row.start);
        }
        places
    }

    /// The places of records, returned rows, and their flags.
    fn records(&mut self, shape: &Shape, rank: RankId, flags: Flags) {
        let places = self;
        let local_experts = shape.local_experts(rank);
        for partition in [Partition::P0, Partition::P1] {
            let slots = 0..local_experts * shape.ep_world_size();
            places.words.extend(slots.clone().map(|slot| dispatch_status(partition, slot)));
            if flags == Flags::Separate {
                places.words.extend(slots.map(|slot| token_flag(partition, slot)));
            }
            for (token, k) in pairs(shape.bs_max(), shape.combine_columns()) {
                places.words.push(combine_status(partition, combine_slot(shape, Token(token), k)));
                let start = combine_row(shape, partition, Token(token), k).offset;
                places.rows.push(start..start + shape.row_bytes());
            }
            for (source, local_expert) in pairs(shape.ep_world_size(), local_experts) {
                let home = Home { rank, local_expert };
                for slot in 0..shape.bs_max() {
                    places.record(shape, dispatch_record(shape, partition, home, RankId(source), slot));
                }
            }
        }
    }

    /// The places of directly placed rows, their tables and their words.
    fn direct(&mut self, shape: &Shape, rank: RankId, receive: Receive) {
        let table = 4 * u64::from(shape.local_expert_num());
        for partition in [Partition::P0, Partition::P1] {
            for source in (0..shape.ep_world_size()).map(RankId) {
                self.words.extend(Direct::ALL.map(|word| word.word(shape, partition, source)));
                // Where pull combine tells that results are ready.
                self.words.push(combine_status(partition, source.0));
                let of = |word: Direct| word.entry(shape, partition, source, 0).offset;
                let tables = [Direct::Counts, Direct::Grants].map(of);
                self.tables.extend(tables.map(|start| start..start + table));
            }
        }
        let cores = (0..shape.aiv_num()).map(|core| core_sums(shape, CoreId(core)).offset);
        self.tables.extend(cores.map(|start| start..start + table));
        for number in 0..receive.areas() {
            let parts = Parts::of(shape, rank, Area { number, overwritten: receive.overwrites() });
            for row in 0..shape.rows_max(rank) as u32 {
                let mut stretch = |at: Place, len| self.rows.push(at.offset..at.offset + len);
                stretch(parts.row(row), shape.payload_bytes());
                stretch(parts.info(row), INFO);
                if !receive.overwrites() {
                    stretch(parts.result(row), shape.row_bytes());
                }
            }
        }
    }

    /// The places of what a TP peer lends, core by core.
    fn of_tp(&mut self, shape: &Shape, rank: RankId) {
        let stretch = |at: Place, len| at.offset..at.offset + len;
        for partition in [Partition::P0, Partition::P1] {
            for kind in [Operator::Dispatch, Operator::Combine] {
                for slot in (0..shape.aiv_num()).map(|core| tp::slot(kind, partition, CoreId(core))) {
                    self.words.push(slot);
                    self.first_rows.push(stretch(tp::first_row(slot), 4));
                }
            }
            for row in 0..shape.rows_max(rank) as u32 {
                self.lent.push(stretch(tp::record(shape, rank, partition, row), sent_bytes(shape)));
                self.lent.push(stretch(tp::result(shape, rank, partition, row), shape.row_bytes()));
            }
        }
    }

    fn record(&mut self, shape: &Shape, record: Place) {
        if shape.protocol() != Protocol::FullmeshV2 {
            self.rows.push(record.offset..record.offset + sent_bytes(shape));
            return;
        }
        for b in 0..block::count(shape) {
            let (start, stream) = (block::block(record, b).offset, block::stream(b, sent_bytes(shape)));
            self.rows.push(start..start + (stream.end - stream.start));
            self.words.push(block::flag(record, b));
        }
    }
}

fn pairs(a: u32, b: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..a).flat_map(move |i| (0..b).map(move |j| (i, j)))
}

/// What the ranks share. To be made inside a model.
#[derive(Debug)]
pub struct Memory {
    ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Rank {
    words: Vec<(Place, AtomicU64)>,
    window: Rows,
    tables: Rows,
    lent: Rows,
    first_rows: Rows,
}

impl Memory {
    /// Zeroed memory at `places`, by rank.
    pub fn new(places: &[Places]) -> Self {
        let rank = |places: &Places| Rank {
            words: places.words.iter().map(|&at| (at, AtomicU64::new(0))).collect(),
            window: Rows::new(places.rows.iter().cloned()),
            tables: Rows::new(places.tables.iter().cloned()),
            lent: Rows::new(places.lent.iter().cloned()),
            first_rows: Rows::new(places.first_rows.iter().cloned()),
        };
        Self { ranks: places.iter().map(rank).collect() }
    }

    pub(super) fn word(&self, rank: RankId, at: Place) -> Option<&AtomicU64> {
        let words = &self.ranks.get(rank.index())?.words;
        let index = words.binary_search_by_key(&at, |(place, _)| *place).ok()?;
        Some(&words.get(index)?.1)
    }

    /// The rows of a region that ranks share.
    pub(super) fn rows(&self, rank: RankId, region: Region) -> Option<&Rows> {
        let rank = self.ranks.get(rank.index())?;
        match region {
            Region::State => Some(&rank.tables),
            Region::Window => Some(&rank.window),
            Region::TpState => Some(&rank.first_rows),
            Region::TpWindow => Some(&rank.lent),
            _ => None,
        }
    }
}

/// Stretches of memory, each of which loom watches for itself.
#[derive(Debug, Default)]
pub struct Rows {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    place: Range<Offset>,
    watch: UnsafeCell<()>,
    bytes: RefCell<Vec<u8>>,
}

impl Rows {
    fn new(places: impl Iterator<Item = Range<Offset>>) -> Self {
        let row = |place: Range<Offset>| Row {
            bytes: RefCell::new(vec![0; (place.end - place.start) as usize]),
            watch: UnsafeCell::new(()),
            place,
        };
        Self { rows: places.map(row).collect() }
    }

    /// Writes `bytes` from `at` on. `None` if a part of them has no row.
    pub(super) fn write(&self, at: Offset, bytes: &[u8]) -> Option<()> {
        self.visit(at, bytes.len() as u64, |row, own, passed| {
            row.watch.with_mut(|_| ());
            let from = bytes.get(passed..passed + own.len())?;
            row.bytes.borrow_mut().get_mut(own)?.copy_from_slice(from);
            Some(())
        })
    }

    /// Reads `len` bytes from `at` on. `None` if a part of them has no row.
    pub(super) fn read(&self, at: Offset, len: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len as usize);
        self.visit(at, len, |row, own, _| {
            row.watch.with(|_| ());
            bytes.extend_from_slice(row.bytes.borrow().get(own)?);
            Some(())
        })?;
        Some(bytes)
    }

    /// Calls `f(row, bytes of it, bytes passed before)` for every row that `at .. at + len` touches.
    fn visit(
        &self,
        at: Offset,
        len: u64,
        mut f: impl FnMut(&Row, Range<usize>, usize) -> Option<()>,
    ) -> Option<()> {
        let (mut next, end) = (at, at.checked_add(len)?);
        let first = self.rows.partition_point(|row| row.place.end <= at);
        for row in self.rows.get(first..)? {
            if next >= end {
                break;
            }
            let own = next.checked_sub(row.place.start)?..end.min(row.place.end) - row.place.start;
            f(row, own.start as usize..own.end as usize, (next - at) as usize)?;
            next = row.place.start + own.end;
        }
        (next == end).then_some(())
    }
}

/// The output tensors of a rank for one batch. To be made inside a model; by default there are none.
#[derive(Debug, Default)]
pub struct Outputs {
    tensors: [Rows; Tensor::ALL.len()],
}

impl Outputs {
    /// Zeroed outputs of EP rank `rank`: an element that two cores write is a failure.
    pub fn new(shape: &Shape, rank: RankId) -> Self {
        let tensors = Tensor::ALL.map(|tensor| {
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
            let starts = (0..capacity(shape, rank, tensor)).step_by(element as usize);
            Rows::new(starts.map(|start| start..start + element))
        });
        Self { tensors }
    }

    pub fn tensor(&self, tensor: Tensor) -> &Rows {
        &self.tensors[tensor as usize]
    }
}
