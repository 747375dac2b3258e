//! Translation of events in windows to steps of the theorem's model.

use super::super::refine::{At, Noted};
use super::super::step::Standing;
use super::memory::{Area, Flying, Memory, Scene};
use super::view::View;
use crate::smt::model::Step as SmtStep;
use crate::smt::slots;
use veriep_core::layout::a2_window::{FLAG, FLAG1};
use veriep_core::plan::split;
use veriep_core::protocol::Operator;
use veriep_core::units::{CoreId, RankId};

impl Memory {
    /// The arrival of the next piece of a transfer.
    pub(super) fn noted(scene: &Scene<'_>, flying: &Flying) -> Vec<Noted> {
        let (&Flying { from, to, op, len, .. }, piece) = (flying, scene.piece(flying).bytes);
        let (rank, by) = (RankId(to as u32), (RankId(from as u32), CoreId(0)));
        let all = slots::a2_arrival(scene.setup.operator(op).0, from, len, &piece).into_iter();
        all.map(|(step, slot)| Noted { step, rank, at: At::Slot(slot, op), by }).collect()
    }
}

impl View<'_, '_> {
    fn note(&self, step: SmtStep, at: At) {
        if self.scene.setup.model.refined {
            let Standing { rank, core, .. } = self.step.at;
            self.step.found.noted.borrow_mut().push(Noted { step, rank, at, by: (rank, core) });
        }
    }

    /// Bytes of a window are read.
    pub(super) fn note_read(&self, source: usize, at: usize) {
        let slot = slots::a2(self.step.at.operator, source, at);
        self.note(SmtStep::Read, At::Slot(slot, self.step.at.op));
    }

    /// A word is observed: one of counts, or a flag that is waited for.
    pub(super) fn note_observed(&self, source: usize, at: usize, word: u64) {
        if self.step.at.operator == Operator::Dispatch && at < FLAG1 as usize {
            self.note_read(source, at);
        } else if word as u32 == FLAG && self.is_awaited(source, at) {
            let slot = slots::a2(self.step.at.operator, source, at);
            self.note(SmtStep::Take, At::Slot(slot, self.step.at.op));
        }
    }

    /// The core is quiet: the windows of its share that came for the operator before are clear, if nothing in them is a flag
    /// to anybody.
    pub(super) fn note_quiet(&self) {
        let (setup, ranks) = (self.scene.setup, self.scene.setup.model.ranks as usize);
        for source in split::ranks(setup.shape, self.step.at.core) {
            let Some(before) = self.step.at.op.checked_sub(1) else { continue };
            let spot = self.scene.spot(Area::In, self.rank, before, source as usize);
            if !self.scene.holds_flags(self.memory.bytes(spot)) {
                let expected = slots::a2_window(setup.operator(before).0, ranks).into_iter().enumerate();
                let of_source = expected.filter(|(_, e)| e.is_some_and(|e| e.source == source as usize));
                of_source.for_each(|(slot, _)| self.note(SmtStep::Clear, At::Slot(slot, before)));
            }
        }
        self.note(SmtStep::Quiet, At::Slot(0, self.step.at.op));
    }
}
