//! The model's steps as Rust, so that a run of anything can be held against it.
//!
//! Each guard of [`Step::guards`] has its counterpart in [`Run::holds`] under the same name, each harm of
//! [`Harm::absent`] in [`Run::is_harm`]; a test has z3 compare both texts with both functions on thousands of
//! states. What the real machines do becomes events so:
//!
//! | event | machine, driver, fabric |
//! |---|---|
//! | begin | the driver lets the first core of the rank take its first step of the operator |
//! | quiet | [`Fabric::quiet`] has answered ready to the last core of the rank |
//! | write | a put into the slot's rows, or a piece of it, lands |
//! | land | a publish to the slot's status word lands |
//! | take | a core stores 0 to the status word: it has observed the flag |
//! | read | a core asks for bytes of the slot's rows |
//! | clear | that store lands |
//! | end | the last core of the rank is done |
//!
//! [`Fabric::quiet`]: veriep_core::fabric::Fabric::quiet

use super::model::{Harm, Step};
use super::obligation::Clears;
use super::schedule::Schedule;
use core::fmt;
use std::collections::BTreeSet;

/// A step that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    pub step: Step,
    /// Whose operator, or whose slot.
    pub rank: usize,
    /// Which slot; 0 for steps of the whole rank.
    pub slot: usize,
    pub n: u32,
}

/// Which earlier operators have used a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reuse {
    /// Those of the same partition.
    #[default]
    Partition,
    /// All.
    Every,
    /// None: a word that counts on loses nothing when it goes on.
    Never,
}

/// A flag that a rank expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Expected {
    pub source: usize,
    /// Whether rows come with it.
    pub carries: bool,
    /// Whether its sender is quiet before it sends it.
    pub quiets: bool,
    /// The slots of its sender, as bits, whose flags that takes in the same operator before it sends this one or its rows.
    pub behind: u64,
    pub reuse: Reuse,
}

/// A finite instance of what is rigid in the model: operators in an order, and who expects what of whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The operators and their partitions.
    pub schedule: Schedule,
    pub clears: Clears,
    /// By operator, rank, slot.
    pub expected: Vec<Vec<Vec<Option<Expected>>>>,
}

impl Instance {
    /// What `rank` expects in `slot` in operator `n`.
    pub fn expected(&self, rank: usize, slot: usize, n: u32) -> Option<Expected> {
        *self.slots(rank, n).get(slot)?
    }

    /// The slots of `rank` in operator `n`.
    pub fn slots(&self, rank: usize, n: u32) -> &[Option<Expected>] {
        self.expected.get(n as usize).and_then(|ranks| ranks.get(rank)).map_or(&[], Vec::as_slice)
    }

    pub fn ranks(&self) -> usize {
        self.expected.first().map_or(0, Vec::len)
    }

    pub fn operators(&self) -> u32 {
        self.expected.len() as u32
    }

    /// All flags: rank, slot, operator.
    fn flags(&self) -> impl Iterator<Item = (usize, usize, u32, Expected)> + '_ {
        let all = (0..self.operators()).flat_map(|n| (0..self.ranks()).map(move |rank| (n, rank)));
        all.flat_map(|(n, rank)| {
            let slots = (0..).zip(self.slots(rank, n));
            slots.filter_map(move |(slot, expected)| Some((rank, slot, n, (*expected)?)))
        })
    }

    /// Whether operator `n` uses a slot of the earlier operator `m`.
    pub fn reuse(&self, (rank, slot): (usize, usize), m: u32, n: u32) -> bool {
        m < n
            && match self.expected(rank, slot, n).map(|expected| expected.reuse) {
                Some(Reuse::Partition) => self.schedule.reuse(m, n),
                Some(Reuse::Every) => true,
                Some(Reuse::Never) | None => false,
            }
    }

    /// The premise of the theorem, for this traffic: between two uses of a slot its next writer has waited
    /// for a flag before which the owner was quiet. Returns the first use without.
    pub fn ungated(&self) -> Option<Event> {
        let is_ungated = |&(rank, slot, n, e): &(usize, usize, u32, Expected)| {
            let told = |w: u32, (i, told): (usize, &Option<Expected>)| {
                let tells =
                    |told: Expected| told.source == rank && (told.quiets || self.clears != Clears::Late);
                told.is_some_and(tells) && (w < n || e.behind >> i & 1 == 1)
            };
            let gate = |m: u32| {
                (m + 1..=n).any(|w| self.slots(e.source, w).iter().enumerate().any(|slot| told(w, slot)))
            };
            (0..n).any(|m| self.reuse((rank, slot), m, n) && !gate(m))
        };
        let (rank, slot, n, _) = self.flags().find(is_ungated)?;
        Some(Event { step: Step::Write, rank, slot, n })
    }

    /// What progress needs: what a flag is behind is expected, and is not after that flag in turn. Returns a flag that can never
    /// be sent.
    pub fn unsent(&self) -> Option<Event> {
        let mut left: Vec<_> = self.flags().collect();
        let mut sent = BTreeSet::new();
        loop {
            let is_free = |&(_, _, n, e): &(usize, usize, u32, Expected)| {
                bits(e.behind).all(|i| sent.contains(&(e.source, i, n)))
            };
            let (free, others): (Vec<_>, Vec<_>) = left.into_iter().partition(is_free);
            if free.is_empty() {
                let (rank, slot, n, _) = *others.first()?;
                return Some(Event { step: Step::Land, rank, slot, n });
            }
            sent.extend(free.into_iter().map(|(rank, slot, n, _)| (rank, slot, n)));
            left = others;
        }
    }
}

/// Why a trace is not a run of the model, or not a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The model cannot take this step here: the guard of this name does not hold.
    #[error("not a step of the model ({1}): {0}")]
    Refused(Event, &'static str),
    /// The model can, and it does harm.
    #[error("{0}: {1}")]
    Harmful(Event, Harm),
}

/// A state of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Facts {
    /// By rank.
    pub begun: Vec<u32>,
    /// By rank.
    pub ended: Vec<u32>,
    /// By rank.
    pub hushed: Vec<u32>,
    /// (rank, slot, operator).
    pub landed: BTreeSet<(usize, usize, u32)>,
    /// (rank, slot, operator).
    pub taken: BTreeSet<(usize, usize, u32)>,
    /// (rank, slot, operator).
    pub cleared: BTreeSet<(usize, usize, u32)>,
}

impl Facts {
    /// The first state of so many ranks.
    pub fn new(ranks: usize) -> Self {
        let zeros = || vec![0; ranks];
        Self { begun: zeros(), ended: zeros(), hushed: zeros(), ..Self::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run<'i> {
    pub instance: &'i Instance,
    /// Guards that are left out, by name.
    pub dropped: &'i [&'static str],
    pub facts: Facts,
}

impl<'i> Run<'i> {
    pub fn new(instance: &'i Instance) -> Self {
        Self::from(instance, Facts::new(instance.ranks()))
    }

    /// A run that has come to this state.
    pub const fn from(instance: &'i Instance, facts: Facts) -> Self {
        Self { instance, dropped: &[], facts }
    }

    /// Takes a step.
    ///
    /// # Errors
    /// A guard does not hold, or the step does harm; the state is then as before.
    pub fn take(&mut self, event: Event) -> Result<(), Wrong> {
        self.may(event)?;
        self.apply(&event);
        Ok(())
    }

    /// Whether a step can be taken, and does no harm.
    ///
    /// # Errors
    /// A guard does not hold, or the step does harm.
    pub fn may(&self, event: Event) -> Result<(), Wrong> {
        for &(guard, _) in event.step.guards() {
            if !self.dropped.contains(&guard) && !self.holds(guard, &event) {
                return Err(Wrong::Refused(event, guard));
            }
        }
        // Slots of the hierarchy overlap, so that an idle one there must not be written either.
        let overlap = self.instance.clears == Clears::Epochs;
        for harm in Harm::ALL.into_iter().filter(|harm| *harm != Harm::InUse || overlap) {
            if self.is_harm(harm, &event) {
                return Err(Wrong::Harmful(event, harm));
            }
        }
        Ok(())
    }

    /// Whether the guard of this name holds of a step. An unknown name does not.
    pub fn holds(&self, guard: &str, event: &Event) -> bool {
        let Event { step, rank, slot, n } = *event;
        let Facts { begun, ended, hushed, landed, taken, cleared } = &self.facts;
        let key = (rank, slot, n);
        let expected = self.instance.expected(rank, slot, n);
        match guard {
            "join" => n == ended[rank] && begun[rank] == n,
            "inside" => n == ended[rank] && begun[rank] == n + 1,
            "clears" => taken.iter().filter(|t| t.0 == rank && t.2 < n).all(|t| cleared.contains(t)),
            "expected" => expected.is_some(),
            "carries" => expected.is_some_and(|e| e.carries),
            "sent" => expected.is_some_and(|e| n < begun[e.source]),
            "behind" => expected.is_none_or(|e| bits(e.behind).all(|i| taken.contains(&(e.source, i, n)))),
            "hush" => expected.is_none_or(|e| !e.quiets || n < hushed[e.source]),
            "data before flag" => !landed.contains(&key),
            "flag" => landed.contains(&key),
            "covered" | "issued" => taken.contains(&key),
            "once" => match step {
                Step::Land => !landed.contains(&key),
                Step::Take => !taken.contains(&key),
                _ => !cleared.contains(&key),
            },
            "waits" => {
                let slots = self.instance.slots(rank, n).iter().enumerate();
                slots.filter(|(_, e)| e.is_some()).all(|(j, _)| taken.contains(&(rank, j, n)))
            }
            "speaks" => {
                let slots = (0..self.instance.ranks()).flat_map(|s| self.instance.slots(s, n));
                n < hushed[rank] || !slots.flatten().any(|e| e.source == rank && e.quiets)
            }
            _ => false,
        }
    }

    /// Whether a step does this harm.
    pub fn is_harm(&self, harm: Harm, event: &Event) -> bool {
        let Event { step, rank, slot, n } = *event;
        if step != harm.absent().0 {
            return false;
        }
        let Facts { ended, landed, taken, cleared, .. } = &self.facts;
        let earlier = || (0..n).filter(|&m| self.instance.reuse((rank, slot), m, n));
        let expected = |m| self.instance.expected(rank, slot, m);
        match harm {
            Harm::Overwritten => {
                earlier().any(|m| m >= ended[rank] && expected(m).is_some_and(|e| e.carries))
            }
            Harm::FlagLost => earlier().any(|m| expected(m).is_some() && !cleared.contains(&(rank, slot, m))),
            Harm::InUse => earlier().any(|m| m >= ended[rank]),
            Harm::Torn => taken.contains(&(rank, slot, n)),
            Harm::Uncovered => !landed.contains(&(rank, slot, n)),
        }
    }

    /// What the step changes.
    pub fn apply(&mut self, event: &Event) {
        let Event { step, rank, slot, n } = *event;
        let Facts { begun, ended, hushed, landed, taken, cleared } = &mut self.facts;
        match step {
            Step::Begin => begun[rank] += 1,
            Step::Quiet => hushed[rank] = begun[rank],
            Step::End => {
                ended[rank] += 1;
                if self.instance.clears == Clears::Epochs {
                    cleared.extend(taken.iter().filter(|flag| (flag.0, flag.2) == (rank, n)));
                }
            }
            Step::Land => drop(landed.insert((rank, slot, n))),
            Step::Take => {
                taken.insert((rank, slot, n));
                if self.instance.clears == Clears::Prompt {
                    cleared.insert((rank, slot, n));
                }
            }
            Step::Clear => drop(cleared.insert((rank, slot, n))),
            Step::Write | Step::Read => {}
        }
    }
}

/// The numbers of the bits that are set.
pub fn bits(set: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).filter(move |&i| set >> i & 1 == 1)
}

/// Takes all steps of a trace.
///
/// # Errors
/// The first that the model cannot take or that does harm.
pub fn check(instance: &Instance, trace: &[Event]) -> Result<(), Wrong> {
    let mut run = Run::new(instance);
    trace.iter().try_for_each(|&event| run.take(event))
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, rank, slot, n } = self;
        match step {
            Step::Begin => write!(f, "rank {rank} begins operator {n}"),
            Step::Quiet => write!(f, "rank {rank} is quiet in operator {n}"),
            Step::Write => write!(f, "a row of operator {n} lands in slot {slot} of rank {rank}"),
            Step::Land => write!(f, "the flag of operator {n} lands in slot {slot} of rank {rank}"),
            Step::Take => write!(f, "rank {rank} takes the flag of operator {n} from slot {slot}"),
            Step::Read => write!(f, "rank {rank} reads slot {slot} in operator {n}"),
            Step::Clear => {
                write!(f, "the clear of that flag lands: slot {slot} of rank {rank}, operator {n}")
            }
            Step::End => write!(f, "rank {rank} ends operator {n}"),
        }
    }
}
