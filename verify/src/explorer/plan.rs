//! The parts of operators that a rank takes, from the first one on: those before a loop, then the loop.

use std::collections::{BTreeMap, BTreeSet};
use veriep_core::protocol::Operator;
use veriep_core::sim::order::{Half, Order, Planned};

/// A part that a rank takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// What it is; its round is the batch from the beginning.
    pub(super) planned: Planned,
    /// The number of its operator among those of its kind, in the order in which they begin.
    pub(super) nth: u32,
    /// The same among all operators.
    pub(super) number: u32,
    /// Of a receiving half: how many operators that are open then began before this one.
    pub(super) place: usize,
    /// All batches before this one have been combined by then.
    pub(super) over: u32,
}

impl Part {
    pub(super) const fn operator(&self) -> Operator {
        self.planned.operator
    }

    pub(super) const fn batch(&self) -> u32 {
        self.planned.round as u32
    }

    /// The whole operator, as it is told.
    pub(super) const fn named(&self) -> Planned {
        Planned::whole(self.planned.operator, self.planned.round)
    }
}

/// All parts of a rank.
pub(super) struct Plan {
    /// The first ones; all, if the group ends.
    before: Vec<Part>,
    /// A loop; empty if the group ends.
    body: Vec<Part>,
    /// Where operators begin in either, by number.
    begins: [Vec<u32>; 2],
    /// Batches, and operators of each kind, that begin in one time round.
    pub(super) batches: u32,
    kinds: [u32; 2],
    /// All batches before this one have been combined in the end.
    over: u32,
}

impl Plan {
    /// Takes an order so many times, or without end.
    pub(super) fn new(order: &Order, times: Option<u32>) -> Self {
        let (first, body) = match times {
            Some(times) => (order.times(times as usize), Vec::new()),
            None => (order.before(), order.body().to_vec()),
        };
        let taken = [&first[..], &body].concat();
        let (parts, over) = parts(&taken);
        let (before, body) = parts.split_at(first.len());
        let begin = |parts: &[Part]| {
            (0..).zip(parts).filter(|(_, part)| part.planned.begins()).map(|(at, _)| at).collect()
        };
        let kinds = [Operator::Dispatch, Operator::Combine].map(|kind| {
            body.iter().filter(|part| part.planned.begins() && part.operator() == kind).count() as u32
        });
        Self {
            before: before.to_vec(),
            body: body.to_vec(),
            begins: [begin(before), begin(body)],
            batches: order.batches() as u32,
            kinds,
            over,
        }
    }

    /// Part number `at`. After the last one there is none, but operators are counted on.
    pub(super) fn part(&self, at: u32) -> Option<Part> {
        let first = self.before.len() as u32;
        if at < first {
            return self.before.get(at as usize).copied();
        }
        let (times, at) =
            ((at - first).checked_div(self.body.len() as u32)?, (at - first) % self.body.len() as u32);
        let part = self.body.get(at as usize)?;
        let planned = Planned { round: part.planned.round + (times * self.batches) as usize, ..part.planned };
        let [dispatches, combines] = self.kinds;
        let of_kind = if part.planned.is_dispatch() { dispatches } else { combines };
        Some(Part {
            planned,
            nth: part.nth + times * of_kind,
            number: part.number + times * (dispatches + combines),
            over: part.over + times * self.batches,
            ..*part
        })
    }

    /// The first part of operator `number`; of a group that ends the numbers come again.
    pub(super) fn operator(&self, number: u32) -> Option<Part> {
        let [first, body] = &self.begins;
        if let Some(at) = first.get(number as usize) {
            return self.part(*at);
        }
        if body.is_empty() {
            return self.part(*first.get(number as usize % first.len().max(1))?);
        }
        let number = number - first.len() as u32;
        let (times, nth) = (number / body.len() as u32, number as usize % body.len());
        self.part(self.unit(times) + body[nth])
    }

    /// Where a time round begins.
    pub(super) fn unit(&self, times: u32) -> u32 {
        self.before.len() as u32 + times * self.body.len() as u32
    }

    /// How many times round lie whole before part number `at`.
    pub(super) fn unit_of(&self, at: u32) -> u32 {
        at.saturating_sub(self.before.len() as u32).checked_div(self.body.len() as u32).unwrap_or(0)
    }

    /// Whether part number `at` is behind the last one.
    pub(super) fn ended(&self, at: u32) -> bool {
        self.body.is_empty() && at >= self.before.len() as u32
    }

    /// Operators that begin in a group that ends.
    pub(super) fn operators(&self) -> u32 {
        self.begins[0].len() as u32
    }

    /// Operators that begin in one time round.
    pub(super) const fn in_unit(&self) -> u32 {
        let [dispatches, combines] = self.kinds;
        dispatches + combines
    }

    /// All batches before this one have been combined before part number `at`.
    pub(super) fn over(&self, at: u32) -> u32 {
        self.part(at).map_or(self.over, |part| part.over)
    }
}

/// All parts, and the first batch that has not been combined in the end.
fn parts(taken: &[Planned]) -> (Vec<Part>, u32) {
    let mut begun = [0; 2];
    let mut numbers = BTreeMap::new();
    for planned in taken.iter().filter(|planned| planned.begins()) {
        let of_kind = &mut begun[planned.operator as usize];
        let number = numbers.len() as u32;
        numbers.insert((planned.operator, planned.round), (*of_kind, number));
        *of_kind += 1;
    }
    let (mut open, mut combined, mut over) = (Vec::new(), BTreeSet::new(), 0);
    let mut part = |planned: &Planned| {
        let this = (planned.operator, planned.round);
        let (nth, number) = numbers.get(&this).copied().unwrap_or_default();
        let place = open.iter().position(|other| *other == this);
        let part = Part { planned: *planned, nth, number, place: place.unwrap_or(0), over };
        match (planned.half, place) {
            (Half::Send, _) => open.push(this),
            (Half::Receive, Some(place)) => _ = open.remove(place),
            _ => {}
        }
        if planned.operator == Operator::Combine && planned.ends() {
            combined.insert(planned.round);
            while combined.contains(&(over as usize)) {
                over += 1;
            }
        }
        part
    };
    let parts = taken.iter().map(&mut part).collect();
    (parts, over)
}
