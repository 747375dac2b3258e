//! A chooser whose decisions are a tape's: who steps, and what lands of all that is in flight.

use crate::tape::Tape;
use core::cell::RefCell;
use std::rc::Rc;
use veriep_core::place::Place;
use veriep_core::sim::chooser::{Actor, Choice, Chooser};
use veriep_core::sim::flight::{Flight, FlightId, FlightKind};

/// The most effects that may land before one must.
const FLIGHT_MAX: usize = 256;
/// How many of the effects that landed last are remembered.
const RECENT: usize = 8;

/// Takes offers as a tape decides.
#[derive(Debug)]
pub struct Taped<'t> {
    /// Decisions. What watches the run takes some, too.
    pub tape: Rc<RefCell<Tape<'t>>>,
    /// What may land, with what is left of it.
    landable: Vec<(FlightId, FlightKind, u64)>,
    ready: Vec<Actor>,
    /// Of 256, how likely something lands.
    landing: usize,
    /// Who goes on for so many steps.
    burst: Option<(Actor, u8)>,
    /// What has landed last: where, and how many bytes.
    pub recent: Vec<(usize, Place, usize)>,
    /// How often so much was in flight that some of it had to land.
    pub full: usize,
}

impl<'t> Taped<'t> {
    pub fn new(tape: Tape<'t>) -> Self {
        Self {
            tape: Rc::new(RefCell::new(tape)),
            landable: Vec::new(),
            ready: Vec::new(),
            landing: 64,
            burst: None,
            recent: Vec::new(),
            full: 0,
        }
    }
}

impl Chooser for Taped<'_> {
    fn next(&mut self) -> Option<Choice> {
        if let Some((actor, left)) = self.burst.take()
            && left > 0
            && self.ready.last() == Some(&actor)
        {
            self.ready.pop();
            self.burst = Some((actor, left - 1));
            return Some(Choice::Step(actor));
        }
        let mut tape = self.tape.borrow_mut();
        let choice = tape.byte();
        if choice == 0 {
            // Now and then effects lag, or land at once.
            self.landing = [4, 64, 200][tape.below(3)];
        }
        let is_full = self.landable.len() >= FLIGHT_MAX;
        let lands = usize::from(choice) < self.landing;
        self.full += usize::from(is_full && !lands);
        if !self.landable.is_empty() && (lands || is_full || self.ready.is_empty()) {
            let i = tape.below(self.landable.len());
            let (flight, kind, left) = self.landable.swap_remove(i);
            let bytes = match kind {
                FlightKind::Transfer(_) => 8 + 8 * tape.below((left / 4) as usize) as u64,
                FlightKind::Put if left > 1 && tape.one_in(4) => 1 + tape.below(left as usize - 1) as u64,
                _ => left,
            };
            return Some(Choice::Land(flight, bytes));
        }
        if self.ready.is_empty() {
            return None;
        }
        let i = tape.below(self.ready.len());
        let actor = self.ready.swap_remove(i);
        self.burst = Some((actor, choice & 15));
        Some(Choice::Step(actor))
    }

    /// Messages word by word, in any order.
    fn cut(&mut self, kind: FlightKind, len: u64, cuts: &mut Vec<u64>) {
        if let FlightKind::Message(_) = kind {
            cuts.extend((8..len).step_by(8));
        }
    }

    fn may_land(&mut self, flight: FlightId, what: &Flight) {
        self.landable.push((flight, what.kind, what.left));
    }

    fn landed(&mut self, _: FlightId, what: &Flight, at: Place, bytes: u64, _: bool) {
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push((what.to.index(), at, bytes as usize));
    }

    fn may_step(&mut self, actor: Actor) {
        self.ready.push(actor);
    }
}
