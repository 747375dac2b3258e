//! A chooser that a seed decides: strong memory, weak memory, and memory that is as late as a core lets it be.

use super::chooser::{AGENT, Actor, Awaited, Choice, Chooser, Dice, Lands, Pool, Quiet};
use super::flight::{Flight, FlightId, FlightKind};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// How late effects land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Every effect lands at once.
    Strong,
    /// Effects land in pieces, as late and as disordered as the contract allows.
    Weak,
    /// An effect lands when it must: a put when its core publishes to that rank, everything else but a publish when its core
    /// is quiet, which it is told no sooner than it has asked twice. Messages and transfers are weak.
    Late,
    /// The same, but transfers land at once.
    LateButTransfers,
}

/// Draws steps and landings from a seed. Now and then it changes how likely each is: some effects are slow, and some actors
/// or ranks take no steps for a while, so that others run ahead of them.
#[derive(Clone, Debug)]
pub struct Seeded {
    /// How late effects land.
    pub memory: Memory,
    dice: Dice,
    mood: Mood,
    quick: Pool<FlightId>,
    /// Flights that land when nothing else is possible.
    slow: Pool<FlightId>,
    /// Transfers, with what is left of them in bytes.
    transfers: Pool<(FlightId, u64)>,
    ready: Pool<Actor>,
    napping: Pool<Actor>,
    nap: Nap,
    /// Cores that have asked for quiet and been put off.
    asked: BTreeSet<Actor>,
}

#[derive(Clone, Copy, Debug)]
struct Mood {
    /// How likely something lands before a step, of 256.
    eagerness: usize,
    /// How likely a put, message or transfer is slow, of 256.
    slow_rows: usize,
    /// How likely a word is.
    slow_words: usize,
}

/// Who takes no steps for now.
#[derive(Clone, Copy, Debug, Default)]
struct Nap {
    salt: u64,
    by_member: bool,
    /// Of 256.
    share: u64,
}

impl Nap {
    fn has(&self, actor: Actor) -> bool {
        let core = if self.by_member { 0 } else { u64::from(actor.core.0) + 1 };
        let draw = Dice(self.salt ^ u64::from(actor.member.0) << 32 ^ core).word() & 255;
        draw < self.share
    }
}

impl Seeded {
    /// The choices of a seed.
    #[must_use]
    pub fn new(memory: Memory, seed: u64) -> Self {
        Self {
            memory,
            dice: Dice(seed),
            mood: Mood { eagerness: 128, slow_rows: 16, slow_words: 16 },
            quick: Pool::default(),
            slow: Pool::default(),
            transfers: Pool::default(),
            ready: Pool::default(),
            napping: Pool::default(),
            nap: Nap::default(),
            asked: BTreeSet::new(),
        }
    }

    /// Time passes: something in flight may land.
    pub fn tick(&mut self) -> Option<Choice> {
        if self.quick.is_empty() && self.transfers.is_empty() && self.slow.is_empty() {
            return None;
        }
        let Self { dice, mood, .. } = self;
        if dice.below(64) == 0 {
            *mood = Mood {
                eagerness: dice.one_of(&[2, 40, 128, 250]),
                slow_rows: dice.one_of(&[0, 16, 128, 240]),
                slow_words: dice.one_of(&[0, 16, 128]),
            };
        }
        if dice.below(256) < mood.eagerness { self.land_quick() } else { None }
    }

    /// A landing, a slow one only if there is no other. `None` if nothing is in flight that may land.
    pub fn land_any(&mut self) -> Option<Choice> {
        let whole = |flight| Choice::Land(flight, u64::MAX);
        self.land_quick().or_else(|| self.slow.draw(&mut self.dice).map(whole))
    }

    fn land_quick(&mut self) -> Option<Choice> {
        let transfer_first = self.quick.is_empty() || self.dice.below(2) == 0;
        if transfer_first && let Some((flight, left)) = self.transfers.draw(&mut self.dice) {
            // Often everything but the last word, seldom everything.
            let words = (left / 8) as usize;
            let words = match self.dice.below(8) {
                0 => 1,
                1 => 1 + self.dice.below(words),
                2..5 => words.saturating_sub(1).max(1),
                _ => words,
            };
            return Some(Choice::Land(flight, 8 * words as u64));
        }
        self.quick.draw(&mut self.dice).map(|flight| Choice::Land(flight, u64::MAX))
    }

    fn redraw_nap(&mut self) {
        let (salt, by_member) = (self.dice.word(), self.dice.below(2) == 0);
        self.nap = Nap { salt, by_member, share: self.dice.one_of(&[0, 64, 128, 230]) };
        while let Some(actor) = self.napping.draw(&mut self.dice) {
            self.ready.add(actor);
        }
    }
}

impl Chooser for Seeded {
    fn next(&mut self) -> Option<Choice> {
        loop {
            if self.dice.below(64 * (self.ready.len() + self.napping.len() + 1)) == 0 {
                self.redraw_nap();
            }
            if let Some(landing) = self.tick() {
                return Some(landing);
            }
            match self.ready.draw(&mut self.dice) {
                Some(actor) if self.nap.has(actor) => self.napping.add(actor),
                Some(actor) => return Some(Choice::Step(actor)),
                None => {
                    let wakes_first = !self.napping.is_empty() && self.dice.below(2) == 0;
                    if !wakes_first && let Some(landing) = self.land_any() {
                        return Some(landing);
                    }
                    if self.napping.is_empty() {
                        return None;
                    }
                    self.redraw_nap();
                    self.nap.share = 0;
                }
            }
        }
    }

    fn issued(&mut self, _: FlightId, what: &Flight) -> Lands {
        let is_late = matches!(self.memory, Memory::Late | Memory::LateButTransfers);
        let now = match what.kind {
            FlightKind::Publish if is_late => true,
            FlightKind::Transfer(_) if self.memory == Memory::LateButTransfers => true,
            _ => self.memory == Memory::Strong,
        };
        if now { Lands::Now } else { Lands::Later }
    }

    fn cut(&mut self, kind: FlightKind, len: u64, cuts: &mut Vec<u64>) {
        let len = len as usize;
        match kind {
            FlightKind::Message(_) if self.memory != Memory::Strong => {
                // The first word, which may be a flag, always by itself.
                cuts.push(8.min(len) as u64);
                cuts.extend((0..3).map(|_| 8 * self.dice.below(len / 8 + 1) as u64));
            }
            FlightKind::Put if self.memory == Memory::Weak => {
                cuts.extend((0..2).map(|_| self.dice.below(len + 1) as u64));
            }
            _ => {}
        }
    }

    fn may_land(&mut self, flight: FlightId, what: &Flight) {
        let slow = match what.kind {
            // These land by quiet or by a publish.
            FlightKind::Put | FlightKind::Publish | FlightKind::Store | FlightKind::Write
                if self.memory != Memory::Weak =>
            {
                return;
            }
            FlightKind::Put | FlightKind::Message(_) | FlightKind::Transfer(_) => self.mood.slow_rows,
            FlightKind::Publish | FlightKind::Store | FlightKind::Write => self.mood.slow_words,
        };
        if slow > 0 && self.dice.below(256) < slow {
            self.slow.add(flight);
        } else if let FlightKind::Transfer(_) = what.kind {
            self.transfers.add((flight, what.left));
        } else {
            self.quick.add(flight);
        }
    }

    fn quiet(&mut self, core: Actor, _: bool) -> Quiet {
        match self.memory {
            Memory::Late | Memory::LateButTransfers if core.core == AGENT || self.asked.remove(&core) => {
                Quiet::Flush
            }
            Memory::Late | Memory::LateButTransfers => {
                self.asked.insert(core);
                Quiet::NotYet
            }
            _ => Quiet::Honest,
        }
    }

    fn may_step(&mut self, actor: Actor) {
        self.ready.add(actor);
    }

    fn sleeps(&mut self, _: Actor, _: &[Awaited]) {}
}
