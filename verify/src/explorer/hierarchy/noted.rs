//! Translation of events on words, records and rows to steps of the theorem's model.

use super::super::refine::{At, Noted};
use super::memory::{Area, Effect, Scene, Spot};
use super::view::View;
use crate::smt::model::Step;
use crate::smt::relay::{self, Class};
use veriep_core::protocol::{Operator, Stage};

impl Scene<'_> {
    /// The slot to which a spot belongs in operator `op`.
    fn slot(&self, spot: Spot, op: u32) -> Option<usize> {
        let (shape, number) = (self.setup.shape, u32::from(spot.number));
        let (class, number) = match (spot.area, self.setup.operator(op).0) {
            (Area::Entered, _) => (Class::Entered, number),
            (Area::RowsDone, _) => (Class::RowsDone, number),
            (Area::End, _) => (Class::End, number),
            (Area::Record, _) => (Class::Record, number),
            (Area::Count, _) => (Class::Count, number),
            (Area::Row, Operator::Dispatch) => (Class::Rows, number / shape.bs_max()),
            (Area::Row | Area::Flag, _) => (Class::Returned, number),
            (Area::Out | Area::Task | Area::Barrier, _) => return None,
        };
        Some(relay::slot(shape, class, number))
    }

    /// What it is to slots that an effect lands, or that the front flag alone of a record is seen.
    fn arrival(&self, effect: &Effect, front: bool) -> Vec<(Step, usize)> {
        let Effect { spot, value, seen, .. } = *effect;
        let (Some(own), bs) = (self.slot(spot, value.op), self.setup.shape.bs_max()) else {
            return Vec::new();
        };
        let gathered = self.setup.model.choices.stage == Stage::Two;
        let record = |number: u32| relay::slot(self.setup.shape, Class::Record, number);
        match spot.area {
            Area::Row => vec![(Step::Write, own)],
            Area::Record => {
                // Its front flag tells that the record before is complete.
                let tells = !gathered && !u32::from(spot.number).is_multiple_of(bs) && !seen[0];
                let before = tells.then(|| (Step::Land, own - 1));
                (!front).then_some((Step::Write, own)).into_iter().chain(before).collect()
            }
            Area::End => {
                let first = u32::from(spot.number) * bs;
                let told = if gathered { 0 } else { value.number.saturating_sub(1) }..value.number;
                let complete = told.map(|number| (Step::Land, record(first + number)));
                complete.chain([(Step::Land, own)]).collect()
            }
            Area::Count => {
                let rows = relay::slot(self.setup.shape, Class::Rows, spot.number.into());
                vec![(Step::Land, own), (Step::Land, rows)]
            }
            _ => vec![(Step::Land, own)],
        }
    }
}

impl View<'_, '_> {
    fn note(&self, effect: &Effect, front: bool, at: fn(usize, u32) -> At) {
        if self.scene.setup.model.refined {
            let (rank, by, op) = (effect.issued.to, effect.issued.from, effect.value.op);
            let all = self.scene.arrival(effect, front).into_iter();
            let noted = all.map(|(step, slot)| Noted { step, rank, at: at(slot, op), by });
            self.step.found.noted.borrow_mut().extend(noted);
        }
    }

    /// An effect can land from now on.
    pub(super) fn note_issued(&self, effect: &Effect) {
        self.note(effect, false, At::Issued);
    }

    pub(super) fn note_landed(&self, effect: &Effect) {
        self.note(effect, false, At::Slot);
    }

    pub(super) fn note_front(&self, effect: &Effect) {
        self.note(effect, true, At::Slot);
    }

    /// What is at a spot is read.
    pub(super) fn note_read(&self, spot: Spot) {
        if self.scene.setup.model.refined {
            let (rank, by) = (self.step.at.rank, (self.step.at.rank, self.step.at.core));
            let read = |slot| Noted { step: Step::Read, rank, at: At::Slot(slot, self.step.at.op), by };
            self.step.found.noted.borrow_mut().extend(self.scene.slot(spot, self.step.at.op).map(read));
        }
    }
}
