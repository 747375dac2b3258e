//! Memory of A3: words and rows that have landed, and effects that have not.

use super::super::memory::{Flight, InFlight, Sparse};
use super::super::numbers::Numbers;
use super::super::protocol::{VIRTUAL, spot};
use super::super::refine::{At, Noted};
use super::super::setup::Setup;
use super::super::state::clone_in_place;
use super::super::violation::Violation;
use crate::smt::model::Step;
use core::fmt;
use veriep_core::fabric::order::{Issued, Kind};
use veriep_core::layout::data::partition_start;
use veriep_core::layout::state::{DISPATCH_SELECTORS, PARTITION, Partition};
use veriep_core::place::{Place, Region};
use veriep_core::units::RankId;

/// A model, with numbers for places and rows, so that states stay small.
pub(in super::super) struct Scene<'a> {
    pub(super) setup: &'a Setup<'a>,
    pub(super) places: Numbers<(RankId, Place)>,
    pub(super) rows: Numbers<Vec<u8>>,
}

/// What an effect does when it lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Value {
    /// Bytes, by their number.
    Row(u32),
    Word(u64),
}

/// An effect in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Effect {
    pub(super) issued: Issued,
    pub(super) value: Value,
}

impl InFlight for Effect {
    fn issued(&self) -> &Issued {
        &self.issued
    }
}

impl Effect {
    /// Its landing, as the theorem's model has it.
    pub(super) const fn landing(&self) -> Noted {
        let Issued { from, to, at, kind } = self.issued;
        let step = match kind {
            Kind::Put => Step::Write,
            Kind::Publish => Step::Land,
            _ => Step::Clear,
        };
        Noted { step, rank: to, at: At::Place(at), by: from }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.issued.kind, self.value) {
            (Kind::Put, _) => f.write_str("row")?,
            (Kind::Publish, Value::Word(word)) => write!(f, "word {word:#x}")?,
            (_, Value::Word(0)) => f.write_str("clear")?,
            (_, value) => write!(f, "store {value:?}")?,
        }
        write!(f, " for {} of rank {}", spot(self.issued.at), self.issued.to)
    }
}

/// Sparse memory: what is not there is zero.
#[derive(Debug, Default)]
pub(in super::super) struct Memory {
    /// Words that are not zero, by the number of their place.
    pub(super) words: Sparse<u32, u64>,
    /// Rows that have landed and that no core has read, by the number of their place.
    pub(super) rows: Sparse<u32, u32>,
    pub(super) flight: Flight<Effect>,
}

clone_in_place!(Memory { words, rows, flight });

impl Memory {
    pub(super) fn word(&self, at: u32) -> u64 {
        self.words.get(at).copied().unwrap_or(0)
    }

    pub(super) fn set_word(&mut self, at: u32, word: u64) {
        self.words.set(at, (word != 0).then_some(word));
    }

    pub(super) fn has_row(&self, at: u32) -> bool {
        self.rows.get(at).is_some()
    }

    pub(super) fn set_row(&mut self, at: u32, row: Option<u32>) {
        self.rows.set(at, row);
    }

    /// Writes the value of an effect at the place of that number.
    pub(super) fn write(&mut self, at: u32, value: Value) {
        match value {
            Value::Row(row) => self.set_row(at, Some(row)),
            Value::Word(word) => self.set_word(at, word),
        }
    }
}

impl<'a> Scene<'a> {
    pub(in super::super) fn new(setup: &'a Setup<'a>) -> Self {
        Self { setup, places: Numbers::default(), rows: Numbers::default() }
    }

    /// Bytes of a partition of a region that is partitioned there, alike on all ranks.
    pub(super) fn partition_bytes(&self, at: Place) -> Option<u64> {
        match at.region {
            Region::State | Region::TpState => (at.offset < DISPATCH_SELECTORS).then_some(PARTITION),
            // Areas are the machines' own.
            Region::Window if self.setup.model.choices.receive.is_direct() => None,
            Region::Window => Some(partition_start(self.setup.shape, Partition::P1)),
            // A3 has none of A2's windows.
            Region::TpWindow | Region::WindowOut | Region::Output(_) => None,
        }
    }

    /// Lets an effect land.
    pub(super) fn land(&mut self, memory: &mut Memory, effect: &Effect) -> Option<Violation> {
        let Issued { to: rank, at, kind, .. } = effect.issued;
        let place = self.places.number(&(rank, at));
        match effect.value {
            Value::Row(row) => {
                let unread = memory.has_row(place);
                memory.set_row(place, Some(row));
                unread.then_some(Violation::Overwritten { rank, at })
            }
            Value::Word(word) => {
                let lost = kind == Kind::Publish && is_flag(at) && memory.word(place) != 0;
                memory.set_word(place, word);
                lost.then_some(Violation::LostFlag { rank, at })
            }
        }
    }

    /// What the effect breaks if it lands at once, or if something in flight lands after it.
    pub(super) fn conflict(&mut self, memory: &Memory, effect: &Effect) -> Option<Violation> {
        let Issued { to: rank, at, kind, .. } = effect.issued;
        let place = self.places.number(&(rank, at));
        let mut in_flight = memory.flight.iter().filter(|e| e.issued.to == rank && e.issued.at == at);
        match effect.value {
            Value::Row(_) => (memory.has_row(place) || in_flight.next().is_some())
                .then_some(Violation::Overwritten { rank, at }),
            Value::Word(_) => {
                let set = kind == Kind::Publish && is_flag(at) && memory.word(place) != 0;
                let unordered = in_flight.any(|earlier| !self.follows(&effect.issued, &earlier.issued));
                (set || unordered).then_some(Violation::LostFlag { rank, at })
            }
        }
    }
}

/// Whether a word at `at` is a flag: a status word, or in the window that of a block.
pub(super) fn is_flag(at: Place) -> bool {
    at.region == Region::Window || at.offset % VIRTUAL < DISPATCH_SELECTORS
}
