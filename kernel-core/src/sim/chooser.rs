//! The source of decisions: a chooser picks the next event.

use super::flight::{Flight, FlightId, FlightKind};
use crate::fabric::Awaited;
use crate::place::Place;
use crate::units::{CoreId, RankId};
use alloc::vec::Vec;

/// Someone who takes steps: a core of a member, or a member's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor {
    /// The member of the group.
    pub member: RankId,
    /// The core; [`AGENT`] is the agent.
    pub core: CoreId,
}

/// The core number of an agent.
pub const AGENT: CoreId = CoreId(u32::MAX);

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// The actor takes a step.
    Step(Actor),
    /// So many bytes of what is left of the flight land, at least one piece that cannot be divided, at most all.
    Land(FlightId, u64),
}

/// When an effect lands that has just been issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lands {
    /// When the chooser says so.
    Later,
    /// At once, after everything that must land before it.
    Now,
}

/// What a core is told that asks for quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// The truth.
    Honest,
    /// No, whatever has landed. The core stays among those that can step, since nothing would wake it.
    NotYet,
    /// Yes: everything that the core has in flight lands now.
    Flush,
}

/// Decides in which order the steps and the landings of a group happen.
///
/// A chooser is *told* what becomes possible, one offer at a time, and is *asked* for the next choice. Nothing lists what is
/// possible: a chooser that wants a list keeps it. Each call of [`may_step`](Self::may_step) and
/// [`may_land`](Self::may_land) is an offer that [`next`](Self::next) may take once. An actor that can go on after its step
/// is offered again, and so is a flight of which a part has landed.
pub trait Chooser {
    /// The next choice among the offers that have not been taken; `None` to stop.
    fn next(&mut self) -> Option<Choice>;

    /// An effect was issued. [`Lands::Now`] has it land at once; else it is offered when it may land.
    fn issued(&mut self, _flight: FlightId, _what: &Flight) -> Lands {
        Lands::Later
    }

    /// Where to cut an effect into pieces that land by themselves, in bytes from its start, in any order. Cuts inside a
    /// message are at multiples of 8. Only [`Put`](FlightKind::Put)s and messages are cut.
    fn cut(&mut self, _kind: FlightKind, _len: u64, _cuts: &mut Vec<u64>) {}

    /// The flight may land from now on.
    fn may_land(&mut self, _flight: FlightId, _what: &Flight) {}

    /// Bytes of a flight have landed, from `at` on. It is over if `end`.
    fn landed(&mut self, _flight: FlightId, _what: &Flight, _at: Place, _bytes: u64, _end: bool) {}

    /// A core asks whether everything it did has landed, which is so if `all`.
    fn quiet(&mut self, _core: Actor, _all: bool) -> Quiet {
        Quiet::Honest
    }

    /// The actor may take one step from now on: it has just begun an operator, moved, or been woken.
    fn may_step(&mut self, _actor: Actor) {}

    /// The actor's step has changed nothing. It is offered again as soon as any of this changes, which is all that the step has
    /// looked at.
    fn sleeps(&mut self, _actor: Actor, _on: &[Awaited]) {}
}

/// Pseudo-random numbers that a seed repeats (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Any word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.word() >> 32) * n as u128) >> 32) as usize
    }

    /// One of some.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Removes an element in constant time. The last one takes its place.
    pub fn draw<T>(&mut self, all: &mut Vec<T>) -> Option<T> {
        if all.is_empty() { None } else { Some(all.swap_remove(self.below(all.len()))) }
    }
}
