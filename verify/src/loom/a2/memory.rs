//! The memory of all ranks, word by word.

use ::loom::cell::UnsafeCell;
use ::loom::sync::atomic::{AtomicU64, Ordering};
use core::cell::Cell;
use core::ops::Range;
use std::collections::BTreeMap;
use veriep_core::layout::a2_message::{Task, doorbell, task_word};
use veriep_core::layout::a2_window::{FLAG1, buffer_chosen, record, row, tail_flag, window};
use veriep_core::layout::state::{Operator, Partition, core_word};
use veriep_core::place::{Place, Region};
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, Offset, RankId};

/// How a word may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// While others write it.
    Atomic,
    /// By nobody while others write it.
    Watched,
}

/// The words of a rank that are modelled.
#[derive(Clone, Debug, Default)]
pub struct Places {
    words: BTreeMap<Place, Access>,
}

impl Places {
    pub fn of(shape: &Shape, rank: RankId) -> Self {
        let mut words = BTreeMap::from([(doorbell(), Access::Atomic)]);
        if shape.aiv_num() > 1 {
            words.insert(buffer_chosen(shape), Access::Watched);
            for core in (0..shape.aiv_num()).map(CoreId) {
                words.extend([0, 1].map(|epoch| (core_word(core, epoch), Access::Atomic)));
            }
        }
        for half in [Partition::P0, Partition::P1] {
            for peer in (0..shape.ep_world_size()).map(RankId) {
                if peer != rank {
                    words.extend((0..Task::WORDS).map(|i| (task_word(half, peer, i), Access::Watched)));
                }
                let start = window(shape, half, peer);
                for (at, access) in window_words(shape) {
                    words.insert(Place::window(start + at), access);
                    words.insert(Place::window_out(start + at), Access::Watched);
                }
            }
        }
        Self { words }
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

/// A word. To be made inside a model.
#[derive(Debug)]
pub(super) enum Word {
    Atomic(AtomicU64),
    /// The value lies beside what loom watches: it runs its threads one at a time.
    Watched(UnsafeCell<()>, Cell<u64>),
}

impl Word {
    fn new(access: Access) -> Self {
        match access {
            Access::Atomic => Self::Atomic(AtomicU64::new(0)),
            Access::Watched => Self::Watched(UnsafeCell::new(()), Cell::new(0)),
        }
    }

    pub(super) fn load(&self, ordering: Ordering) -> u64 {
        match self {
            Self::Atomic(word) => word.load(ordering),
            Self::Watched(watch, value) => {
                watch.with(|_| ());
                value.get()
            }
        }
    }

    pub(super) fn store(&self, word: u64, ordering: Ordering) {
        match self {
            Self::Atomic(atomic) => atomic.store(word, ordering),
            Self::Watched(watch, value) => {
                watch.with_mut(|_| ());
                value.set(word);
            }
        }
    }
}

/// What the ranks share. To be made inside a model.
#[derive(Debug)]
pub struct Memory {
    ranks: Vec<BTreeMap<Place, Word>>,
    /// Bytes of a region.
    window: u64,
}

impl Memory {
    /// Zeroed memory at `places`, by rank.
    pub fn new(shape: &Shape, places: &[Places]) -> Self {
        let rank =
            |places: &Places| places.words.iter().map(|(&at, &access)| (at, Word::new(access))).collect();
        Self { ranks: places.iter().map(rank).collect(), window: shape.window_bytes() }
    }

    /// The word there; `None` if nothing is meant by it.
    pub(super) fn word(&self, rank: RankId, at: Place) -> Option<&Word> {
        self.ranks.get(rank.index())?.get(&at)
    }

    /// The words of a rank in `len` bytes from `at` on, each with its distance.
    pub(super) fn words(&self, rank: RankId, at: Place, len: u64) -> impl Iterator<Item = (u64, &Word)> {
        let end = Place { offset: at.offset + len, ..at };
        let words = self.ranks.get(rank.index()).into_iter().flat_map(move |words| words.range(at..end));
        words.map(move |(place, word)| (place.offset - at.offset, word))
    }

    /// Whether a window has these bytes.
    pub(super) fn has(&self, at: Place, bytes: Range<u64>) -> bool {
        let whole = bytes.start.is_multiple_of(8) && bytes.end.is_multiple_of(8);
        whole && bytes.end <= self.window && matches!(at.region, Region::Window | Region::WindowOut)
    }
}
