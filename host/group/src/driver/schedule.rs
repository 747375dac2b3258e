//! The order in which all ranks of a run take operators and halves.

use veriep_case::error::Error;
use veriep_core::protocol::Operator;
use veriep_core::sim::cluster::{Order, Planned};

/// The operators and halves that every rank runs between two checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    order: Order,
    /// How often the order is taken.
    times: usize,
    operators: Vec<Planned>,
    batches: usize,
}

/// A schedule in units, for so many batches or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Units {
    /// The schedule of each.
    pub unit: Schedule,
    /// How many there are.
    pub count: usize,
    /// A shorter one after them.
    pub last: Option<Schedule>,
}

impl Units {
    /// The operators and halves of all units in order. Batches are counted on from unit to unit.
    pub fn operators(&self) -> impl Iterator<Item = Planned> {
        let schedules = core::iter::repeat_n(&self.unit, self.count).chain(&self.last);
        schedules.enumerate().flat_map(|(nth, schedule)| {
            let first = nth * self.unit.batches;
            schedule.operators.iter().map(move |planned| Planned { round: first + planned.round, ..*planned })
        })
    }
}

impl Schedule {
    /// Reads an order of whole batches, such as `DDCC` or `Ds1 Cs0 Dr1 Cr0`.
    ///
    /// # Errors
    /// The text is no [order](Order), or a batch lacks a half or its combine.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let refuse = |why| Error::Request(format!("--schedule {text}: {why}"));
        if text.contains('|') {
            return Err(refuse(
                "must be one order for all ranks; veriep schedule takes one for each".to_owned(),
            ));
        }
        let schedule = Self::read(text).map_err(refuse)?;
        // A combine that ends has a dispatch that has ended.
        let ends = |planned: &&Planned| planned.operator == Operator::Combine && planned.ends();
        let (batches, combined) = (schedule.batches, schedule.operators.iter().filter(ends).count());
        if batches == 0 || combined < batches {
            let halves = if schedule.has_halves() { " in both halves" } else { "" };
            return Err(refuse(format!(
                "{batches} D and {combined} C{halves}: must have at least one D, and as many C as D"
            )));
        }
        Ok(schedule)
    }

    /// Reads an order, of which batches may lack a half or a combine.
    ///
    /// # Errors
    /// The text is no [order](Order).
    pub fn read(text: &str) -> Result<Self, String> {
        Order::parse(text).map(|order| Self::of(order, 1))
    }

    fn of(order: Order, times: usize) -> Self {
        let operators = order.times(times);
        let batches = operators.iter().map(|planned| planned.round + 1).max().unwrap_or(0);
        Self { order, times, operators, batches }
    }

    /// Cuts it into units that take the order so often, `chain`, as far as `batches` need.
    #[must_use]
    pub fn in_units(&self, batches: usize, chain: usize) -> Units {
        let unit = self.repeat(chain);
        let rest = batches % unit.batches;
        let last = (rest > 0).then(|| self.repeat(self.times_for(rest))).filter(|last| *last != unit);
        let count = if last.is_some() { batches / unit.batches } else { batches.div_ceil(unit.batches) };
        Units { unit, count, last }
    }

    /// How often it takes its order.
    #[must_use]
    pub const fn times(&self) -> usize {
        self.times
    }

    /// The same, `times` over, with batches of their own.
    #[must_use]
    pub fn repeat(&self, times: usize) -> Self {
        Self::of(self.order.clone(), times)
    }

    /// The same, `times` over, with the same batches again: their outputs are those of the last time.
    #[must_use]
    pub fn again(&self, times: usize) -> Self {
        Self { operators: self.operators.repeat(times), ..self.clone() }
    }

    /// How often the order must be taken in one go for so many batches.
    #[must_use]
    pub fn times_for(&self, batches: usize) -> usize {
        // A loop whose first and last batches lack something begins some outside of it.
        let outside = self.batches - self.times * self.order.batches();
        batches.saturating_sub(outside).div_ceil(self.order.batches()).max(1)
    }

    /// The operators and halves in order.
    #[must_use]
    pub fn operators(&self) -> &[Planned] {
        &self.operators
    }

    /// Whether it is a loop whose batches overlap from one time round to the next.
    #[must_use]
    pub fn is_loop(&self) -> bool {
        self.order.is_loop()
    }

    /// Whether an operator is taken in two halves.
    #[must_use]
    pub fn has_halves(&self) -> bool {
        self.order.has_halves()
    }

    /// The most batches in flight at once: from the first half of dispatch to the last half of combine.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let sums = self.operators.iter().scan(0usize, |now, planned| {
            match planned.operator {
                Operator::Dispatch => *now += usize::from(planned.begins()),
                Operator::Combine => *now = now.saturating_sub(usize::from(planned.ends())),
            }
            Some(*now)
        });
        sums.max().unwrap_or(0)
    }

    /// Batches that begin and end in it.
    #[must_use]
    pub const fn batches(&self) -> usize {
        self.batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_combine_takes_the_oldest_dispatch() {
        let of = |schedule: &Schedule| -> Vec<_> {
            schedule.operators().iter().map(|planned| (planned.is_dispatch(), planned.round)).collect()
        };
        let schedule = Schedule::parse("DDCC").expect("legal");
        assert_eq!(of(&schedule), [(true, 0), (true, 1), (false, 0), (false, 1)]);
        let twice = Schedule::parse("DC").expect("legal").repeat(2);
        assert_eq!(of(&twice), [(true, 0), (false, 0), (true, 1), (false, 1)]);
    }

    #[test]
    fn batches_in_flight_are_counted() {
        for (text, most) in [("DC", 1), ("DDCC", 2), ("DCDDCC", 2), ("DDCDCC", 2), ("DDDCCC", 3)] {
            assert_eq!(Schedule::parse(text).expect("legal").repeat(2).in_flight(), most, "{text}");
        }
        for (text, most) in [("DsDrCsCr", 1), ("Ds1 Cs0 Dr1 Cr0", 2), ("Ds0 Ds1 Ds2 Dr0 Dr1 Dr2 C0 C1 C2", 3)]
        {
            assert_eq!(Schedule::parse(text).expect("legal").repeat(2).in_flight(), most, "{text}");
        }
    }

    #[test]
    fn a_loop_is_taken_as_often_as_its_batches_need() {
        for text in ["DC", "DDCC", "DsDrCsCr", "Ds1 Cs0 Dr1 Cr0", "D0 D1 C0 C1"] {
            let schedule = Schedule::parse(text).expect("legal");
            for batches in 1..9 {
                let times = schedule.times_for(batches);
                assert!(schedule.repeat(times).batches() >= batches, "{text}, {batches}");
                let is_least = times == 1 || schedule.repeat(times - 1).batches() < batches;
                assert!(is_least, "{text}, {batches}");
            }
        }
        assert_eq!(Schedule::parse("Ds1 Cs0 Dr1 Cr0").expect("legal").repeat(3).batches(), 4);
    }

    #[test]
    fn what_is_not_a_schedule_is_refused() {
        for text in ["", "C", "DCC", "D", "DDC", "DX", "dc", "Ds", "DsC", "DsDrCs", "Ds0 Dr0"] {
            assert!(Schedule::parse(text).is_err(), "{text:?}");
        }
    }
}
