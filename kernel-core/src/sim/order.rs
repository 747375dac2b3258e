//! Orders of operators and halves, as text: `DDCC`, `Ds1 Cs0 Dr1 Cr0`.
//!
//! `D` is a dispatch and `C` a combine; `s` is its sending half and `r` the rest. Without numbers, the operators of a kind, and their halves,
//! are of the batches 0, 1, 2, ... in order. With numbers the text is the body of a loop: each time round, every number grows by the
//! number of dispatches in the body. What the first and the last batches lack is taken before and after, as if the loop had begun earlier
//! and went on: `D2 C0`, twice, is `D0 D1 D2 C0 D3 C1 C2 C3`.

use crate::fabric::ProtocolError;
use crate::protocol::{Gates, Operator, Ticket};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// A part of an operator that a rank takes in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// All of it.
    #[default]
    Whole,
    /// Until everything is sent.
    Send,
    /// The rest.
    Receive,
}

/// An operator of a round, or one of its halves: a dispatch and the combine of its rows make one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Planned {
    /// Which of the two operators.
    pub operator: Operator,
    /// Of which round.
    pub round: usize,
    /// How much of it.
    pub half: Half,
}

impl Planned {
    /// A whole operator.
    #[must_use]
    pub const fn whole(operator: Operator, round: usize) -> Self {
        Self { operator, round, half: Half::Whole }
    }

    /// Whether it is a dispatch.
    #[must_use]
    pub fn is_dispatch(&self) -> bool {
        self.operator == Operator::Dispatch
    }

    /// Whether the operator begins with it.
    #[must_use]
    pub fn begins(&self) -> bool {
        self.half != Half::Receive
    }

    /// Whether the operator ends with it.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.half != Half::Send
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = match self.half {
            Half::Whole => "",
            Half::Send => "sending half of ",
            Half::Receive => "receiving half of ",
        };
        write!(f, "{half}{} {}", self.operator.name(), self.round)
    }
}

/// Most parts of an order's text: checking it takes time in the square of that.
const PARTS_MAX: usize = 4096;

/// The order in which a rank takes operators and halves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    body: Vec<Planned>,
    /// Batches that one time round begins.
    batches: usize,
    is_numbered: bool,
    /// Whether one time round has as many of each part.
    is_balanced: bool,
}

impl Order {
    /// Reads an order. Spaces and commas are allowed between operators.
    ///
    /// # Errors
    /// Another letter; a number that some operators have and others lack; or an operator or half that comes twice, or before what must precede it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let order = Self::read(text)?;
        order.check()?;
        Ok(order)
    }

    /// Reads an order that may have parts before others that must precede them: a rank that takes it waits for itself.
    ///
    /// # Errors
    /// The same but for that.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut body = Vec::new();
        let mut numbers = Vec::new();
        let mut rest = text.char_indices().peekable();
        // Operators of each kind and half so far.
        let mut counts = [[0; 2]; 2];
        while let Some((at, letter)) = rest.next() {
            let operator = match letter {
                ' ' | ',' => continue,
                'D' => Operator::Dispatch,
                'C' => Operator::Combine,
                other => return Err(format!("{other:?} at position {at}: must be D or C")),
            };
            let half = match rest.peek() {
                Some((_, 's')) => Half::Send,
                Some((_, 'r')) => Half::Receive,
                _ => Half::Whole,
            };
            if half != Half::Whole {
                rest.next();
            }
            let mut digits = String::new();
            while let Some((_, digit)) = rest.next_if(|(_, digit)| digit.is_ascii_digit()) {
                digits.push(digit);
            }
            let [begun, ended] = &mut counts[operator as usize];
            let count = if half == Half::Receive { &mut *ended } else { &mut *begun };
            let counted = *count;
            *count += 1;
            if half == Half::Whole {
                *ended += 1;
            }
            let number = match digits.as_str() {
                "" => None,
                digits => Some(digits.parse::<u8>().map_err(|_| format!("{digits}: too large a number"))?),
            };
            if body.len() == PARTS_MAX {
                return Err(format!("must have at most {PARTS_MAX} operators and halves"));
            }
            numbers.push(number);
            let round = number.map_or(counted, usize::from);
            body.push(Planned { operator, round, half });
        }
        let is_numbered = numbers.first().is_some_and(Option::is_some);
        if numbers.iter().any(|number| number.is_some() != is_numbered) {
            return Err("must number all operators or none".into());
        }
        let [[sent, received], [returned, summed]] = counts;
        let is_balanced = [received, returned, summed].iter().all(|&count| count == sent);
        if is_numbered && !is_balanced {
            return Err(format!(
                "{sent} of D or Ds, {received} of D or Dr, {returned} of C or Cs, {summed} of C or Cr: must be as many of each"
            ));
        }
        let order = Self { body, batches: sent, is_numbered, is_balanced };
        // In a loop a number may come again the next time round.
        match twice(&order.times(order.settled() + usize::from(is_numbered))) {
            Some(planned) => Err(format!("{planned} comes twice")),
            None => Ok(order),
        }
    }

    /// Judges whether a rank can take every part when it comes to it.
    ///
    /// # Errors
    /// A part comes before what must precede it.
    pub fn check(&self) -> Result<(), String> {
        check(&self.times(self.settled()))
    }

    fn last(&self) -> usize {
        self.body.iter().map(|planned| planned.round).max().unwrap_or(0)
    }

    /// The times round after which the first batches lack nothing any more.
    fn settled(&self) -> usize {
        if self.is_numbered { (1 + self.last()).div_ceil(self.batches.max(1)) } else { 1 }
    }

    /// The parts of one time round.
    #[must_use]
    pub fn body(&self) -> &[Planned] {
        &self.body
    }

    /// What is taken before the first time round: the loop's earlier times round, of which only the batches from 0 on are there.
    #[must_use]
    pub fn before(&self) -> Vec<Planned> {
        if !self.is_numbered {
            return Vec::new();
        }
        let earlier = |i: usize| {
            self.body.iter().filter_map(move |planned| {
                Some(Planned { round: planned.round.checked_sub(i * self.batches)?, ..*planned })
            })
        };
        (1..=self.settled()).rev().flat_map(earlier).collect()
    }

    /// What is taken after the last one of so many times round: later ones, of the batches that have begun.
    fn after(&self, times: usize) -> Vec<Planned> {
        if !self.is_numbered || times == 0 {
            return Vec::new();
        }
        let last = self.last() + (times - 1) * self.batches;
        let mut later = self.repeated(times..times + self.settled());
        later.retain(|planned| planned.round <= last);
        later
    }

    /// Whether one time round has as many of each part, so that it can be repeated.
    #[must_use]
    pub const fn is_balanced(&self) -> bool {
        self.is_balanced
    }

    /// Batches that one time round begins.
    #[must_use]
    pub const fn batches(&self) -> usize {
        self.batches
    }

    /// Whether it is the body of a loop: with numbers.
    #[must_use]
    pub const fn is_loop(&self) -> bool {
        self.is_numbered
    }

    /// Whether it names halves.
    #[must_use]
    pub fn has_halves(&self) -> bool {
        self.body.iter().any(|planned| planned.half != Half::Whole)
    }

    /// The order, `times` over, in full.
    #[must_use]
    pub fn times(&self, times: usize) -> Vec<Planned> {
        [self.before(), self.repeated(0..times), self.after(times)].concat()
    }

    /// These times round of the body.
    fn repeated(&self, times: Range<usize>) -> Vec<Planned> {
        let again = |i| {
            self.body
                .iter()
                .map(move |planned| Planned { round: planned.round + i * self.batches, ..*planned })
        };
        times.flat_map(again).collect()
    }
}

/// The first operator or half that is taken twice.
fn twice(taken: &[Planned]) -> Option<Planned> {
    let mut seen = BTreeSet::new();
    let is_new = |planned: &Planned, seen: &mut BTreeSet<_>| {
        let this = (planned.operator, planned.round);
        // Both, though the first is seen.
        let [begins, ends] = [planned.begins(), planned.ends()];
        let begins = !begins || seen.insert((this, Half::Send));
        let ends = !ends || seen.insert((this, Half::Receive));
        begins && ends
    };
    taken.iter().find(|planned| !is_new(planned, &mut seen)).copied()
}

/// Refuses an operator or half that is taken before what must precede it.
fn check(taken: &[Planned]) -> Result<(), String> {
    for (i, planned) in taken.iter().enumerate() {
        let Planned { operator, round, .. } = *planned;
        let before = &taken[..i];
        let has = |operator, is_one: fn(&Planned) -> bool| {
            before.iter().any(|other| other.operator == operator && other.round == round && is_one(other))
        };
        if planned.half == Half::Receive && !has(operator, Planned::begins) {
            return Err(format!("{planned} has no sending half before it"));
        }
        if operator == Operator::Combine && planned.begins() && !has(Operator::Dispatch, Planned::ends) {
            return Err(format!("{planned} has no dispatch to combine"));
        }
    }
    Ok(())
}

/// The first operator or half that the gates of a rank refuse, by its place, if all ranks take this order; a combine is of the dispatch of
/// its round. `gates` are those that it has come to.
///
/// # Panics
/// What ends has not begun.
pub fn refused_by(gates: &mut Gates, order: &[Planned]) -> Option<(usize, ProtocolError)> {
    let mut open: Vec<(Operator, usize, Ticket)> = Vec::new();
    let mut dispatched: Vec<(usize, Ticket)> = Vec::new();
    for (place, planned) in order.iter().enumerate() {
        let Planned { operator, round, .. } = *planned;
        if planned.begins() {
            let of = dispatched.iter().find(|(of, _)| *of == round).map(|(_, ticket)| *ticket);
            let begun = gates.begin(operator, of.filter(|_| operator == Operator::Combine));
            match begun {
                Ok(ticket) => open.push((operator, round, ticket)),
                Err(error) => return Some((place, error)),
            }
        }
        if planned.ends() {
            let is_one = |(kind, of, _): &(Operator, usize, Ticket)| (*kind, *of) == (operator, round);
            let found = open.iter().position(is_one).unwrap_or_else(|| panic!("{planned} has not begun"));
            let (_, _, ticket) = open.swap_remove(found);
            gates.end(ticket);
            match operator {
                Operator::Dispatch => dispatched.push((round, ticket)),
                Operator::Combine => dispatched.retain(|(of, _)| *of != round),
            }
        }
    }
    None
}

/// The operators that letters such as `DDCC` mean, `times` over: a C combines the oldest dispatch that is not yet
/// combined.
///
/// # Panics
/// The letters cannot be [read](Order::read).
#[must_use]
pub fn schedule(letters: &str, times: usize) -> Vec<Planned> {
    // A test may combine what a reference has dispatched.
    match Order::read(letters) {
        Ok(order) => order.times(times),
        Err(why) => panic!("{letters}: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn shown(text: &str, times: usize) -> Vec<String> {
        let short = |planned: &Planned| {
            let half = ["", "s", "r"][planned.half as usize];
            format!("{}{half}{}", if planned.is_dispatch() { "D" } else { "C" }, planned.round)
        };
        Order::parse(text).unwrap().times(times).iter().map(short).collect()
    }

    #[test]
    fn operators_without_numbers_are_of_the_batches_in_order() {
        assert_eq!(shown("DDCC", 1), ["D0", "D1", "C0", "C1"]);
        assert_eq!(shown("DC", 2), ["D0", "C0", "D1", "C1"]);
        assert_eq!(shown("Ds Dr, CsCr", 1), ["Ds0", "Dr0", "Cs0", "Cr0"]);
        assert_eq!(shown("DsDsDrDrCC", 1), ["Ds0", "Ds1", "Dr0", "Dr1", "C0", "C1"]);
        assert_eq!(shown("D", 1), ["D0"]);
        assert_eq!(schedule("", 3), vec![]);
    }

    #[test]
    fn a_loop_gets_what_its_first_and_last_batches_lack() {
        let before = ["Ds0", "Dr0"];
        let twice = ["Ds1", "Cs0", "Dr1", "Cr0", "Ds2", "Cs1", "Dr2", "Cr1"];
        let after = ["Cs2", "Cr2"];
        assert_eq!(shown("Ds1 Cs0 Dr1 Cr0", 2), [&before[..], &twice, &after].concat());
        assert_eq!(shown("D1 C0", 1), ["D0", "D1", "C0", "C1"]);
        assert_eq!(shown("D2 C0", 1), ["D0", "D1", "D2", "C0", "C1", "C2"]);
        assert_eq!(shown("D2 C1", 1), ["D0", "D1", "C0", "D2", "C1", "C2"]);
        assert_eq!(shown("D0 C0", 2), ["D0", "C0", "D1", "C1"]);
    }

    #[test]
    fn an_order_that_waits_for_itself_can_be_read() {
        let order = Order::read("CD").unwrap();
        assert!(order.is_balanced() && !order.has_halves());
        assert_eq!(order.check().unwrap_err(), "combine 0 has no dispatch to combine");
        assert!(!Order::read("D").unwrap().is_balanced());
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for (text, why) in [
            ("DX", "'X' at position 1: must be D or C"),
            ("d", "'d' at position 0: must be D or C"),
            ("C", "combine 0 has no dispatch to combine"),
            ("DCC", "combine 1 has no dispatch to combine"),
            ("DrDs", "receiving half of dispatch 0 has no sending half before it"),
            ("DsCs", "sending half of combine 0 has no dispatch to combine"),
            ("Ds0 Dr", "must number all operators or none"),
            ("D0 D0 C0 C0", "dispatch 0 comes twice"),
            ("D1 C0 C0", "1 of D or Ds, 1 of D or Dr, 2 of C or Cs, 2 of C or Cr: must be as many of each"),
            ("D0 C1", "combine 0 has no dispatch to combine"),
            ("D99999999 C0", "99999999: too large a number"),
            (&"D".repeat(PARTS_MAX + 1), "must have at most 4096 operators and halves"),
        ] {
            assert_eq!(Order::parse(text).unwrap_err(), why, "{text}");
        }
    }
}
