//! Places that are modelled of a rank's memory: words that are accessed while others write them, and stretches that are not.

use super::memory::Access;
use std::collections::BTreeMap;
use veriep_core::layout::a2_message::{Task, doorbell, task_word};
use veriep_core::layout::a2_window::{FLAG1, buffer_chosen, record, row, tail_flag, window};
use veriep_core::layout::block;
use veriep_core::layout::data::{combine_row, dispatch_record};
use veriep_core::layout::direct::{Area, INFO, Parts};
use veriep_core::layout::record::sent_bytes;
use veriep_core::layout::state::{Direct, Operator, Partition, Slots, combine_slot, core_sums, core_word};
use veriep_core::layout::tp;
use veriep_core::place::Place;
use veriep_core::placement::Home;
use veriep_core::protocol::{Choices, Flags, Receive};
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, Offset, RankId, Token};

/// Where the pieces of a rank's memory lie, with their bytes: only those that its shape uses.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub(super) pieces: BTreeMap<Place, (Access, u64)>,
}

impl Places {
    /// The places of EP rank `rank` of A3.
    pub fn of_a3(shape: &Shape, rank: RankId, choices: Choices) -> Self {
        let mut places = Self::default();
        if choices.receive.is_direct() {
            places.direct(shape, rank, choices.receive);
        } else {
            places.records(shape, rank, choices.flags);
        }
        if shape.tp_world_size() > 1 {
            places.of_tp(shape, rank);
        }
        places.core_words(shape);
        places
    }

    /// The places of records, returned rows, and their flags.
    fn records(&mut self, shape: &Shape, rank: RankId, flags: Flags) {
        let places = self;
        let local_experts = shape.local_experts(rank);
        for partition in [Partition::P0, Partition::P1] {
            let slots = 0..local_experts * shape.ep_world_size();
            for slot in slots {
                places.word(Slots::Shipped.dispatch_status(partition, slot));
                if flags == Flags::Separate {
                    places.word(Slots::Shipped.token_flag(partition, slot));
                }
            }
            for (token, k) in pairs(shape.bs_max(), shape.combine_columns()) {
                places.word(Slots::Shipped.combine_status(partition, combine_slot(shape, Token(token), k)));
                places.row(combine_row(shape, partition, Token(token), k), shape.row_bytes());
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
                Direct::ALL.into_iter().for_each(|word| self.word(word.word(shape, partition, source)));
                // Where pull combine tells that results are ready.
                self.word(Slots::Shipped.combine_status(partition, source.0));
                for word in [Direct::Counts, Direct::Grants] {
                    self.row(word.entry(shape, partition, source, 0), table);
                }
            }
        }
        (0..shape.aiv_num()).for_each(|core| self.row(core_sums(shape, CoreId(core)), table));
        for number in 0..receive.areas() {
            let parts = Parts::of(shape, rank, Area { number, overwritten: receive.overwrites() });
            for row in 0..shape.rows_max(rank) as u32 {
                self.row(parts.row(row), shape.payload_bytes());
                self.row(parts.info(row), INFO);
                if !receive.overwrites() {
                    self.row(parts.result(row), shape.row_bytes());
                }
            }
        }
    }

    /// The places of what a TP peer lends, core by core.
    fn of_tp(&mut self, shape: &Shape, rank: RankId) {
        for partition in [Partition::P0, Partition::P1] {
            for kind in [Operator::Dispatch, Operator::Combine] {
                for slot in (0..shape.aiv_num()).map(|core| tp::slot(kind, partition, CoreId(core))) {
                    self.word(slot);
                    self.row(tp::first_row(slot), 4);
                }
            }
            for row in 0..shape.rows_max(rank) as u32 {
                self.row(tp::record(shape, rank, partition, row), sent_bytes(shape));
                self.row(tp::result(shape, rank, partition, row), shape.row_bytes());
            }
        }
    }

    fn record(&mut self, shape: &Shape, record: Place) {
        if shape.protocol() != Protocol::FullmeshV2 {
            self.row(record, sent_bytes(shape));
            return;
        }
        for b in 0..block::count(shape) {
            let stream = block::stream(b, sent_bytes(shape));
            self.row(block::block(record, b), stream.end - stream.start);
            self.word(block::flag(record, b));
        }
    }

    /// The places of a rank of A2.
    pub fn of_a2(shape: &Shape, rank: RankId) -> Self {
        let mut places = Self::default();
        places.word(doorbell());
        if shape.aiv_num() > 1 {
            places.row(buffer_chosen(shape), 8);
        }
        places.core_words(shape);
        for half in [Partition::P0, Partition::P1] {
            for peer in (0..shape.ep_world_size()).map(RankId) {
                if peer != rank {
                    (0..Task::WORDS).for_each(|i| places.row(task_word(half, peer, i), 8));
                }
                let start = window(shape, half, peer);
                for (at, access) in window_words(shape) {
                    places.insert(Place::window(start + at), access, 8);
                    places.row(Place::window_out(start + at), 8);
                }
            }
        }
        places
    }

    /// The words by which the cores of a rank meet. A single core has none to meet.
    fn core_words(&mut self, shape: &Shape) {
        let cores = if shape.aiv_num() > 1 { shape.aiv_num() } else { 0 };
        pairs(cores, 2).for_each(|(core, epoch)| self.word(core_word(CoreId(core), epoch)));
    }

    /// Adds a word that others write or read meanwhile.
    pub(super) fn word(&mut self, at: Place) {
        self.insert(at, Access::Atomic, 8);
    }

    /// Adds a stretch that is written as one.
    pub(super) fn row(&mut self, at: Place, len: u64) {
        self.insert(at, Access::Watched, len);
    }

    fn insert(&mut self, at: Place, access: Access, len: u64) {
        let before = self.pieces.insert(at, (access, len));
        assert!(before.is_none(), "two pieces at {at}");
    }
}

/// What is meant in a window of any number of rows, by either operator.
fn window_words(shape: &Shape) -> BTreeMap<Offset, Access> {
    let rows = 0..shape.bs_max() * shape.k().min(shape.local_expert_num());
    let counts = (0..u64::from(shape.local_expert_num()) * 4).step_by(8);
    let payload = rows.clone().flat_map(|n| {
        let record = record(shape, n);
        let row = row(shape, n);
        let records = (record..record + shape.window_record()).step_by(8);
        records.chain((row..row + shape.row_bytes()).step_by(8))
    });
    let flags = (0..=rows.end)
        .flat_map(|n| [Operator::Dispatch, Operator::Combine].map(|kind| tail_flag(shape, kind, n)));
    let watched = counts.chain(payload).map(|at| (at, Access::Watched));
    // A place of a flag is one in whatever operator it is payload.
    watched.chain(flags.chain([FLAG1]).map(|at| (at, Access::Atomic))).collect()
}

fn pairs(a: u32, b: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..a).flat_map(move |i| (0..b).map(move |j| (i, j)))
}
