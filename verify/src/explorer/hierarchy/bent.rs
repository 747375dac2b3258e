//! Defects of the hierarchy's memory and fabric: a layer between a machine and its view, which bends what the machine asks for or what
//! it sees. Without a defect every call goes through unchanged.

use super::super::model::Model;
use super::super::protocol;
use super::memory::{Area, Part, Scene, Spot};
use super::view::View;
use crate::defects::Defect;
use core::cell::Cell;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::order::{Issued, Kind};
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::{a2_message, relay};
use veriep_core::place::Place;
use veriep_core::plan::relay as plan;
use veriep_core::protocol::Operator;
use veriep_core::units::{RankId, Token};

impl Scene<'_> {
    /// Whether an effect that is seen says that an earlier one has landed.
    pub(super) fn lands_behind(&self, effect: &Issued, earlier: &Issued) -> bool {
        let is_overtaken = match self.setup.model.defect {
            Defect::UnorderedMessages | Defect::LastWordFirst => matches!(earlier.kind, Kind::Message(_)),
            Defect::RelaxedPublish => earlier.kind == Kind::Put,
            _ => false,
        };
        !is_overtaken && self.follows(effect, earlier)
    }

    /// Slots of the message area: operator N + this writes its tasks where operator N did.
    pub(super) fn message_slots(&self) -> u32 {
        let Model { defect, partitions, .. } = self.setup.model;
        if *defect == Defect::OneMessageSlot { 1 } else { partitions[0] }
    }

    /// Whether an operator ends only with what is written there. Who does not wait for it goes on, and what comes of that is
    /// looked for elsewhere.
    pub(super) fn is_awaited(&self, spot: Spot) -> bool {
        match self.setup.model.defect {
            Defect::PartialWait => spot.area != Area::End,
            Defect::NoEntered => spot.area != Area::Entered,
            Defect::NoThirdEntered => (spot.area, spot.number) != (Area::Entered, 2),
            _ => true,
        }
    }
}

/// A core's view, bent as the model's defect says.
pub(super) struct Bent<'v, 'a> {
    view: View<'v, 'a>,
    /// The operator that a near rank was last seen in.
    in_step: Cell<Option<u32>>,
}

impl<'v, 'a> Bent<'v, 'a> {
    pub(super) fn new(view: View<'v, 'a>) -> Self {
        Self { view, in_step: Cell::default() }
    }

    pub(super) fn into_view(self) -> View<'v, 'a> {
        self.view
    }

    fn defect(&self) -> Defect {
        self.view.scene.setup.model.defect
    }

    /// What is at a place that cores of this operator share, and how far behind its beginning.
    fn spot(&self, at: Place) -> Option<(Spot, u64)> {
        let is_own = at == relay::epoch(self.view.step.at.core) || at == a2_message::doorbell();
        if is_own { None } else { self.view.scene.spot(at, self.view.step.at.op) }
    }

    /// The word that a core takes for the one at a spot, without a look at the memory; `None` if it looks.
    fn assumed_word(&self, spot: Spot) -> Option<u64> {
        let (step, own_epoch) = (&self.view.step, self.view.own_epoch());
        match (self.defect(), spot.area) {
            (Defect::NoBarrier | Defect::BarrierOfLowerCores, Area::Barrier) => {
                let (core, parity) = (u32::from(spot.number) / 2, u32::from(spot.number) % 2);
                let skips = match self.defect() {
                    Defect::NoBarrier => core != step.at.core.0,
                    _ => core > step.at.core.0,
                };
                let is_used = parity != step.at.op % 2;
                (skips && is_used).then(|| self.view.barrier_word(step.at.op))
            }
            (Defect::NoEntered, Area::Entered) | (Defect::NoRowsDone, Area::RowsDone) => Some(own_epoch),
            (Defect::NoThirdEntered, Area::Entered) => (spot.number == 2).then_some(own_epoch),
            (Defect::NoStreams | Defect::PartialWait, Area::End) => {
                let needs_nothing = match (self.defect(), step.at.operator) {
                    (Defect::NoStreams, Operator::Dispatch) => true,
                    (Defect::PartialWait, Operator::Combine) => !self.has_experts_on(spot.number.into()),
                    _ => false,
                };
                needs_nothing.then(|| relay::mark(own_epoch, 0))
            }
            _ => None,
        }
    }

    /// Whether a token of this rank has an expert on a server.
    fn has_experts_on(&self, server: u32) -> bool {
        let (step, shape) = (&self.view.step, self.view.scene.setup.shape);
        let inputs = step.at.round.tensors[step.at.rank.index()].inputs();
        let goes = |token| plan::pairs(shape, inputs.ids(shape, Token(token)), server) > 0;
        (0..shape.bs(step.at.rank)).any(goes)
    }

    /// The front flag of a record as the one before it has come, of which another word is looked at.
    fn front(&self, at: Place, spot: Spot) -> Option<Result<u64, Fault>> {
        let part = match self.defect() {
            Defect::OwnFront => Part::Front,
            Defect::FlagAtEnd => Part::End,
            _ => return None,
        };
        let is_first = u32::from(spot.number).is_multiple_of(self.view.scene.setup.shape.bs_max());
        let before = Spot { number: spot.number.wrapping_sub(1), ..spot };
        (!is_first).then(|| self.view.front(at, before, part))
    }

    /// Whether a word that counts the operators of a near rank passes for one that has not come.
    fn is_overlooked(&self, area: Area, word: u64) -> bool {
        if word == 0 {
            return false;
        }
        let op = self.view.of_machine(word);
        match (self.defect(), area) {
            (Defect::Equal, Area::Entered | Area::RowsDone) => op > self.view.step.at.op,
            (Defect::InStep, Area::Entered) => {
                self.in_step.replace(Some(op)).is_some_and(|other| other != op)
            }
            _ => false,
        }
    }
}

impl<'v, 'a> Middleware for Bent<'v, 'a> {
    veriep_core::around! { view: View<'v, 'a>, its capabilities }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let is_nothing = relay::unmark(word).1 == 0;
        if self.defect() == Defect::NoFlagOfNothing
            && is_nothing
            && self.spot(at).is_some_and(|(spot, _)| spot.area == Area::Count)
        {
            return Ok(());
        }
        self.view.publish(to, at, word)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let skips = match self.defect() {
            Defect::NoQuiet => true,
            Defect::QuietOfFirstCore => self.view.step.at.core.0 > 0,
            _ => false,
        };
        if skips { Ok(true) } else { self.view.quiet() }
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if self.defect() == Defect::None {
            return self.view.observe(at);
        }
        let Some((spot, inside)) = self.spot(at) else { return self.view.observe(at) };
        if let Some(word) = self.assumed_word(spot) {
            return Ok(word);
        }
        if spot.area == Area::Record
            && inside == 0
            && let Some(word) = self.front(at, spot)
        {
            return word;
        }
        let word = self.view.observe(at)?;
        Ok(if self.is_overlooked(spot.area, word) { 0 } else { word })
    }
}

impl protocol::View for Bent<'_, '_> {}
