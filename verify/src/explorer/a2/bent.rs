//! Defects of A2's memory and fabric: a layer between a machine and its view, which bends what the machine asks for or what
//! it sees. Without a defect every call goes through unchanged.

use super::super::protocol::{self, first_word};
use super::memory::{Flying, Piece, Scene, WORD};
use super::view::View;
use crate::defects::Defect;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::a2_message::doorbell;
use veriep_core::layout::a2_window::{FLAG, buffer_chosen};
use veriep_core::place::{Place, Region};
use veriep_core::protocol::Operator;
use veriep_core::units::RankId;

impl Scene<'_> {
    /// The half of the message area that an operator uses.
    pub(super) fn message_half(&self, op: u32) -> usize {
        if self.setup.model.defect == Defect::OneMessageSlot { 0 } else { self.half(op) }
    }

    /// The next piece of a transfer.
    pub(super) fn piece(&self, flying: &Flying) -> Piece {
        let &Flying { len, done, .. } = flying;
        match self.setup.model.defect {
            // It is half done for as long as the rest has not come.
            Defect::LastWordFirst if done == 0 && len > WORD => {
                Piece { bytes: len - WORD..len, done: Some(len - WORD) }
            }
            Defect::LastWordFirst if done == len - WORD => Piece { bytes: 0..len - WORD, done: None },
            _ => self.piece_in_order(flying),
        }
    }
}

/// A core's view, bent as the model's defect says.
pub(super) struct Bent<'v, 'a> {
    pub(super) view: View<'v, 'a>,
}

impl Bent<'_, '_> {
    fn defect(&self) -> Defect {
        self.view.scene.setup.model.defect
    }

    fn is_buffer_chosen(&self, at: Place) -> bool {
        at == buffer_chosen(self.view.scene.setup.shape)
    }

    /// Where a core comes to that goes to `at`.
    fn folded(&self, at: Place) -> Place {
        let is_core_word = at.region == Region::State && self.view.core_word_at(at).is_ok();
        if self.defect() == Defect::OneBarrierWord && is_core_word { first_word(at) } else { at }
    }

    /// The word that a core takes for the one at `at`, without a look at the memory; `None` if it looks.
    fn assumed_word(&self, at: Place) -> Result<Option<u64>, Fault> {
        match (self.defect(), at.region) {
            (Defect::NoBarrier | Defect::BarrierOfLowerCores, Region::State) if at != doorbell() => {
                self.assumed_core_word(at)
            }
            (Defect::PartialWait, Region::Window) if !self.is_buffer_chosen(at) => self.assumed_flag(at),
            _ => Ok(None),
        }
    }

    /// The barrier word of a core that is not waited for: as if it had arrived together with this one.
    fn assumed_core_word(&self, at: Place) -> Result<Option<u64>, Fault> {
        let view = &self.view;
        let (other, parity) = view.core_word_at(at)?;
        let skips = match self.defect() {
            Defect::BarrierOfLowerCores => other > view.step.at.core,
            _ => other != view.step.at.core,
        };
        if !skips {
            return Ok(None);
        }
        view.step.touch(at)?;
        Ok(Some(view.memory.core_words[view.number(view.step.at.core)][parity].newest()))
    }

    /// The flag of a window without rows, in combine.
    fn assumed_flag(&self, at: Place) -> Result<Option<u64>, Fault> {
        let view = &self.view;
        let (spot, start) = view.spot(at, 8)?;
        view.look(at, spot)?;
        let source = view.peer_of(spot);
        let nothing_owed = view.step.at.operator == Operator::Combine && view.rows_from(source) == Some(0);
        Ok((nothing_owed && view.tail(source) == Some(start)).then_some(FLAG.into()))
    }

    /// Whether a word of a window is never cleared.
    fn forgets(&self, at: Place) -> Result<bool, Fault> {
        let (spot, start) = self.view.spot(at, 8)?;
        Ok(match self.defect() {
            Defect::NoClear => true,
            Defect::SeedClears => !self.view.is_awaited(self.view.peer_of(spot), start),
            _ => false,
        })
    }
}

impl<'v, 'a> Middleware for Bent<'v, 'a> {
    veriep_core::around! { view: View<'v, 'a>, its capabilities }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let at = self.folded(at);
        self.view.publish(to, at, word)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        if self.defect() == Defect::NoQuiet {
            self.view.note_quiet();
            return Ok(true);
        }
        let quiet = self.view.quiet()?;
        if quiet && self.defect() == Defect::EarlyFlip && self.view.step.at.core.0 == 0 {
            let next = u64::from(self.view.step.at.op + 1) % 2;
            self.view.memory.chosen[self.view.rank].landed = next;
        }
        Ok(quiet)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let at = self.folded(at);
        if let Some(word) = self.assumed_word(at)? {
            return Ok(word);
        }
        if self.defect() == Defect::NoQuiet && at.region == Region::Window && !self.is_buffer_chosen(at) {
            // What has not landed is looked for in rows.
            return self.view.word(at, false);
        }
        self.view.observe(at)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        if at.region == Region::Window && !self.is_buffer_chosen(at) && self.forgets(at)? {
            self.view.say_clear();
            return Ok(());
        }
        self.view.store(at, word)
    }
}

impl protocol::View for Bent<'_, '_> {}
