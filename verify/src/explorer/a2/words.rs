//! The words between the cores of an A2 rank: barrier words and `bufferChosen`.

use super::super::model::Memory as Landing;
use super::super::violation::Violation;
use super::view::View;
use crate::order::Order;
use veriep_core::fabric::Fault;
use veriep_core::layout::state::{CORE_RECORD, CORE_WORDS, LINE};
use veriep_core::place::Place;
use veriep_core::units::CoreId;

impl View<'_, '_> {
    /// A barrier word as this core observes it.
    pub(super) fn core_word(&self, at: Place) -> Result<u64, Fault> {
        let (other, parity) = self.core_word_at(at)?;
        let landing = self.scene.setup.model.memory;
        let own = &self.memory.core_words[self.number(self.step.at.core)][parity];
        if other == self.step.at.core {
            if landing == Landing::Weak && own.late.is_some() {
                self.step.found.blame(Violation::OwnNotLanded { rank: self.me(), at });
            }
            return Ok(own.landed);
        }
        self.step.touch(at)?;
        let number = self.number(other);
        let word = &self.memory.core_words[number][parity];
        if word.late.is_some() {
            if self.scene.is_explicit() || !self.step.search.tape.borrow_mut().choose(()) {
                return Ok(word.landed);
            }
            self.landed.borrow_mut().push((number, parity));
            self.scene.setup.relies_on(Order::Hearsay);
        }
        self.step.account.say(|| format!("sees core {} at the barrier", other.0));
        Ok(word.newest())
    }

    /// Whose barrier word is at a place, and which of the two.
    pub(super) fn core_word_at(&self, at: Place) -> Result<(CoreId, usize), Fault> {
        let offset = at.offset.wrapping_sub(CORE_WORDS);
        let core = offset / CORE_RECORD;
        if core >= self.scene.setup.model.cores.into() {
            return Err(Fault::new(self.me(), at, 8));
        }
        Ok((CoreId(core as u32), (offset / LINE % 2) as usize))
    }

    /// `bufferChosen` as this core observes it.
    pub(super) fn buffer_chosen(&self, at: Place) -> Result<u64, Fault> {
        let chosen = &self.memory.chosen[self.rank];
        if self.step.at.core.0 == 0 {
            return Ok(chosen.newest());
        }
        self.step.touch(at)?;
        if chosen.late.is_some() && self.scene.setup.model.memory == Landing::Weak {
            self.step.found.blame(Violation::NotLanded { rank: self.me(), at });
        }
        Ok(chosen.landed)
    }

    pub(super) fn flip(&mut self, word: u64) {
        let chosen = &mut self.memory.chosen[self.rank];
        let alone = self.scene.setup.model.cores == 1;
        if alone || self.scene.setup.model.memory == Landing::Strong {
            // Only the core itself ever looks at it, or all see it at once.
            chosen.landed = word;
        } else {
            chosen.late = Some(word);
        }
    }
}
