//! A chooser that a seed decides: strong memory, weak memory, and memory that is as late as a core lets it be.

use super::chooser::{AGENT, Actor, Choice, Chooser, Dice, Lands, Quiet};
use super::flight::{Flight, FlightId, FlightKind};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// How late effects land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Every effect lands at once.
    Strong,
    /// An effect lands when it must: a put when its core publishes to that rank, a store or write when its core is quiet,
    /// which it is told no sooner than it has asked twice. A publish lands at once. Messages and transfers are weak.
    Late,
    /// Effects land in pieces, as late and as disordered as the contract allows.
    Weak,
}

/// Draws steps and landings from a seed. Now and then it changes how likely each is: some effects are slow, and some actors
/// or ranks take no steps for a while, so that others run ahead of them.
#[derive(Clone, Debug)]
pub struct Seeded {
    /// How late effects land but for messages and transfers.
    near: Memory,
    /// How late those do.
    far: Memory,
    dice: Dice,
    bias: Bias,
    quick: Vec<FlightId>,
    /// Flights that land when nothing else is possible.
    slow: Vec<FlightId>,
    /// Transfers, with what is left of them in bytes.
    transfers: Vec<(FlightId, u64)>,
    ready: Vec<Actor>,
    napping: Vec<Actor>,
    nap: Nap,
    /// Cores that have asked for quiet and been put off.
    asked: BTreeSet<Actor>,
}

#[derive(Clone, Copy, Debug)]
struct Bias {
    /// How likely something lands before a step, of 256.
    eagerness: usize,
    /// How likely a put, message or transfer is slow, of 256.
    slow_rows: usize,
    /// How likely a word is.
    slow_words: usize,
}

impl Bias {
    fn drawn(dice: &mut Dice) -> Self {
        Self {
            eagerness: dice.one_of(&[2, 40, 128, 250]),
            slow_rows: dice.one_of(&[0, 16, 128, 240]),
            slow_words: dice.one_of(&[0, 16, 128]),
        }
    }
}

/// Who takes no steps for now.
#[derive(Clone, Copy, Debug, Default)]
struct Nap {
    salt: u64,
    /// Drawn by member, by actor or for agents alone.
    by: usize,
    /// Of 256.
    share: u64,
}

impl Nap {
    fn has(&self, actor: Actor) -> bool {
        let core = if self.by == 0 { 0 } else { u64::from(actor.core.0) + 1 };
        let draw = Dice(self.salt ^ u64::from(actor.member.0) << 32 ^ core).word() & 255;
        draw < self.share && (self.by < 2 || actor.core == AGENT)
    }
}

impl Seeded {
    /// The choices of a seed.
    #[must_use]
    pub fn new(memory: Memory, seed: u64) -> Self {
        Self::with(memory, memory, seed)
    }

    /// The choices of a seed, with messages and transfers that land as `far` says.
    #[must_use]
    pub fn with(near: Memory, far: Memory, seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut chooser = Self {
            near,
            far,
            bias: Bias::drawn(&mut dice),
            quick: Vec::new(),
            slow: Vec::new(),
            transfers: Vec::new(),
            ready: Vec::new(),
            napping: Vec::new(),
            nap: Nap::default(),
            asked: BTreeSet::new(),
            dice,
        };
        chooser.redraw_nap();
        chooser
    }

    /// Time passes: something in flight may land.
    pub fn tick(&mut self) -> Option<Choice> {
        if self.quick.is_empty() && self.transfers.is_empty() && self.slow.is_empty() {
            return None;
        }
        let Self { dice, bias, .. } = self;
        if dice.below(64) == 0 {
            *bias = Bias::drawn(dice);
        }
        if dice.below(256) < bias.eagerness { self.land_quick() } else { None }
    }

    /// A landing, a slow one only if there is no other. `None` if nothing is in flight that may land.
    pub fn land_any(&mut self) -> Option<Choice> {
        let whole = |flight| Choice::Land(flight, u64::MAX);
        self.land_quick().or_else(|| self.dice.draw(&mut self.slow).map(whole))
    }

    fn land_quick(&mut self) -> Option<Choice> {
        let transfer_first = self.quick.is_empty() || self.dice.below(2) == 0;
        if transfer_first && let Some((flight, left)) = self.dice.draw(&mut self.transfers) {
            // Often everything but the last word.
            let words = (left / 8) as usize;
            let words = match self.dice.below(8) {
                0 => 1,
                1 => 1 + self.dice.below(64),
                2 | 3 => 1 + self.dice.below(words),
                4 | 5 => words.saturating_sub(1).max(1),
                _ => words,
            };
            return Some(Choice::Land(flight, 8 * words as u64));
        }
        self.dice.draw(&mut self.quick).map(|flight| Choice::Land(flight, u64::MAX))
    }

    fn redraw_nap(&mut self) {
        let (salt, by) = (self.dice.word(), self.dice.below(3));
        self.nap = Nap { salt, by, share: self.dice.one_of(&[0, 64, 128, 256]) };
        while let Some(actor) = self.dice.draw(&mut self.napping) {
            self.ready.push(actor);
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
            match self.dice.draw(&mut self.ready) {
                Some(actor) if self.nap.has(actor) => self.napping.push(actor),
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
        let now = match what.kind {
            FlightKind::Message(_) | FlightKind::Transfer(_) => self.far == Memory::Strong,
            FlightKind::Publish => self.near != Memory::Weak,
            FlightKind::Put | FlightKind::Store | FlightKind::Write => self.near == Memory::Strong,
        };
        if now { Lands::Now } else { Lands::Later }
    }

    fn cut(&mut self, kind: FlightKind, len: u64, cuts: &mut Vec<u64>) {
        let len = len as usize;
        match kind {
            FlightKind::Message(_) if self.far != Memory::Strong => {
                // The first word, which may be a flag, always by itself.
                cuts.push(8.min(len) as u64);
                cuts.extend((0..3).map(|_| 8 * self.dice.below(len / 8 + 1) as u64));
            }
            FlightKind::Put if self.near == Memory::Weak => {
                cuts.extend((0..2).map(|_| self.dice.below(len + 1) as u64));
            }
            _ => {}
        }
    }

    fn may_land(&mut self, flight: FlightId, what: &Flight) {
        let slow = match what.kind {
            // These land by quiet or by a publish.
            FlightKind::Put | FlightKind::Publish | FlightKind::Store | FlightKind::Write
                if self.near != Memory::Weak =>
            {
                return;
            }
            FlightKind::Put | FlightKind::Message(_) | FlightKind::Transfer(_) => self.bias.slow_rows,
            FlightKind::Publish | FlightKind::Store | FlightKind::Write => self.bias.slow_words,
        };
        if slow > 0 && self.dice.below(256) < slow {
            self.slow.push(flight);
        } else if let FlightKind::Transfer(_) = what.kind {
            self.transfers.push((flight, what.left));
        } else {
            self.quick.push(flight);
        }
    }

    fn quiet(&mut self, core: Actor, _: bool) -> Quiet {
        match self.near {
            Memory::Late if core.core == AGENT || self.asked.remove(&core) => Quiet::Flush,
            Memory::Late => {
                self.asked.insert(core);
                Quiet::NotYet
            }
            Memory::Strong | Memory::Weak => Quiet::Honest,
        }
    }

    fn may_step(&mut self, actor: Actor) {
        self.ready.push(actor);
    }
}
