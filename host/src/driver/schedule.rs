//! The order of operators: a string of D and C. A C combines the oldest dispatch that is not yet combined.

use crate::error::Error;
use kernel_core::protocol;

/// An operator of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// Dispatch of the batch.
    Dispatch(usize),
    /// Combine of the batch.
    Combine(usize),
}

impl Operator {
    /// Which operator it is.
    #[must_use]
    pub const fn kind(self) -> protocol::Operator {
        match self {
            Self::Dispatch(_) => protocol::Operator::Dispatch,
            Self::Combine(_) => protocol::Operator::Combine,
        }
    }

    /// The batch that it belongs to.
    #[must_use]
    pub const fn batch(self) -> usize {
        match self {
            Self::Dispatch(batch) | Self::Combine(batch) => batch,
        }
    }
}

/// The operators that every rank runs between two checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    operators: Vec<Operator>,
    batches: usize,
}

impl Schedule {
    /// Reads a string of D and C, such as `DDCC`.
    ///
    /// # Errors
    /// Another letter, a C without a dispatch, or a D that is never combined.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let refuse = |why: String| Err(Error::Request(format!("--schedule {text}: {why}")));
        let (mut operators, mut dispatched, mut combined) = (Vec::new(), 0, 0);
        for (i, letter) in text.chars().enumerate() {
            match letter {
                'D' => {
                    operators.push(Operator::Dispatch(dispatched));
                    dispatched += 1;
                }
                'C' if combined < dispatched => {
                    operators.push(Operator::Combine(combined));
                    combined += 1;
                }
                'C' => return refuse(format!("C at position {i} has no dispatch to combine")),
                other => return refuse(format!("{other:?} at position {i}: must be D or C")),
            }
        }
        if dispatched == 0 || combined < dispatched {
            return refuse(format!(
                "{dispatched} D and {combined} C: must have at least one D, and as many C as D"
            ));
        }
        Ok(Self { operators, batches: dispatched })
    }

    /// The same, `times` over, with batches of their own.
    #[must_use]
    pub fn repeat(&self, times: usize) -> Self {
        let operators = (0..times).flat_map(|i| {
            self.operators.iter().map(move |&operator| match operator {
                Operator::Dispatch(batch) => Operator::Dispatch(batch + i * self.batches),
                Operator::Combine(batch) => Operator::Combine(batch + i * self.batches),
            })
        });
        Self { operators: operators.collect(), batches: self.batches * times }
    }

    /// The same, `times` over, with the same batches again: their outputs are those of the last time.
    #[must_use]
    pub fn again(&self, times: usize) -> Self {
        Self { operators: self.operators.repeat(times), batches: self.batches }
    }

    /// The operators in order.
    #[must_use]
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// The most batches in flight at once: dispatched and not combined.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let sums = self.operators.iter().scan(0usize, |now, operator| {
            *now = match operator {
                Operator::Dispatch(_) => *now + 1,
                Operator::Combine(_) => now.saturating_sub(1),
            };
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
    use super::Operator::{Combine, Dispatch};
    use super::*;

    #[test]
    fn a_combine_takes_the_oldest_dispatch() {
        let schedule = Schedule::parse("DDCC").expect("legal");
        assert_eq!(schedule.operators(), [Dispatch(0), Dispatch(1), Combine(0), Combine(1)]);
        assert_eq!(
            Schedule::parse("DC").expect("legal").repeat(2).operators(),
            [Dispatch(0), Combine(0), Dispatch(1), Combine(1)]
        );
    }

    #[test]
    fn batches_in_flight_are_counted() {
        for (text, most) in [("DC", 1), ("DDCC", 2), ("DCDDCC", 2), ("DDCDCC", 2), ("DDDCCC", 3)] {
            assert_eq!(Schedule::parse(text).expect("legal").repeat(2).in_flight(), most, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_schedule_is_refused() {
        for text in ["", "C", "DCC", "D", "DDC", "DX", "dc"] {
            assert!(Schedule::parse(text).is_err(), "{text:?}");
        }
    }
}
