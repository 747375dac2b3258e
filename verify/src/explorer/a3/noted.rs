//! Translation of events on flags and rows to steps of the theorem's model.

use super::super::refine::{At, Noted};
use super::view::View;
use crate::smt::model::Step;
use core::ops::Range;
use veriep_core::layout::block;
use veriep_core::layout::data::partition_start;
use veriep_core::layout::state::{Direct, Partition};
use veriep_core::place::{Place, Region};

impl View<'_, '_> {
    /// Notes what the core does, as the theorem's model has it.
    pub(super) fn note(&self, step: Step, at: Place) {
        let by = (self.step.at.rank, self.step.at.core);
        self.noted(Noted { step, rank: self.step.at.rank, at: At::Place(at), by });
    }

    /// Notes that a core has seen words which it clears only later, when it has read what they cover. Of a record it looks at
    /// the flag of the first block last, and has then seen them all. A TokenFlag also tells that its rank's grant has come,
    /// for which only a core that sends there waits.
    pub(super) fn note_seen(&self, at: Place) {
        let (shape, seen) = (self.scene.setup.shape, self.virtually(at));
        let words = |apart: u64, words: Range<i64>| {
            for word in words {
                let offset = seen.offset.wrapping_add_signed(word * apart as i64);
                self.note(Step::Take, Place { offset, ..seen });
            }
        };
        match self.direct_word(at) {
            Some(Direct::TokenFlags) => words(8, -1..1),
            Some(_) => words(8, 0..1),
            None if at.region == Region::Window => {
                let inside = at.offset % partition_start(shape, Partition::P1) - shape.combine_area();
                if inside % shape.record_pitch() == block::PAYLOAD {
                    words(block::block(at, 1).offset - at.offset, 0..block::count(shape).into());
                }
            }
            None => {}
        }
    }

    pub(super) fn noted(&self, noted: Noted) {
        if self.scene.setup.model.refined {
            self.step.found.noted.borrow_mut().push(noted);
        }
    }
}
