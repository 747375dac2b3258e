//! A chooser that keeps the list of what can happen, and leaves the choice to its caller.

use alloc::vec::Vec;
use veriep_core::sim::flight::{Flight, FlightId, FlightKind};
use veriep_core::sim::{Actor, Choice, Chooser};

/// What can happen next, in the order in which it became possible.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByHand {
    pub(crate) offers: Vec<Choice>,
}

impl Chooser for ByHand {
    fn next(&mut self) -> Option<Choice> {
        None
    }

    fn may_land(&mut self, flight: FlightId, what: &Flight) {
        // A transfer lands in halves, so that a reader can see one that is under way.
        let bytes = match what.kind {
            FlightKind::Transfer(_) => what.left.div_ceil(2),
            _ => what.left,
        };
        self.offers.push(Choice::Land(flight, bytes));
    }

    fn landed(&mut self, flight: FlightId, _: &Flight, _: veriep_core::place::Place, _: u64, _: bool) {
        self.offers.retain(|offer| !matches!(offer, Choice::Land(other, _) if *other == flight));
    }

    fn may_step(&mut self, actor: Actor) {
        self.offers.push(Choice::Step(actor));
    }
}
