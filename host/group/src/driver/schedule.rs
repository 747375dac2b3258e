//! The order of operators: a string of D and C. A C combines the oldest D that has no C of its own.

use veriep_case::error::Error;
use veriep_core::sim::cluster::{Planned, schedule};

/// How many D and C a text has.
///
/// # Errors
/// Another letter, or a C without a dispatch.
pub fn counted(text: &str) -> Result<(usize, usize), String> {
    let (mut dispatched, mut combined) = (0, 0);
    for (i, letter) in text.chars().enumerate() {
        match letter {
            'D' => dispatched += 1,
            'C' if combined < dispatched => combined += 1,
            'C' => return Err(format!("C at position {i} has no dispatch to combine")),
            other => return Err(format!("{other:?} at position {i}: must be D or C")),
        }
    }
    Ok((dispatched, combined))
}

/// The operators that every rank runs between two checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    operators: Vec<Planned>,
    batches: usize,
}

impl Schedule {
    /// Reads a string of D and C, such as `DDCC`.
    ///
    /// # Errors
    /// Another letter, a C without a dispatch, or a D that is never combined.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let refuse = |why| Error::Request(format!("--schedule {text}: {why}"));
        let (dispatched, combined) = counted(text).map_err(refuse)?;
        if dispatched == 0 || combined < dispatched {
            return Err(refuse(format!(
                "{dispatched} D and {combined} C: must have at least one D, and as many C as D"
            )));
        }
        Ok(Self { operators: schedule(text, 1), batches: dispatched })
    }

    /// The same, `times` over, with batches of their own.
    #[must_use]
    pub fn repeat(&self, times: usize) -> Self {
        let operators = (0..times).flat_map(|i| {
            self.operators
                .iter()
                .map(move |&planned| Planned { round: planned.round + i * self.batches, ..planned })
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
    pub fn operators(&self) -> &[Planned] {
        &self.operators
    }

    /// The most batches in flight at once: dispatched and not combined.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let sums = self.operators.iter().scan(0usize, |now, planned| {
            *now = if planned.is_dispatch() { *now + 1 } else { now.saturating_sub(1) };
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
    }

    #[test]
    fn what_is_not_a_schedule_is_refused() {
        for text in ["", "C", "DCC", "D", "DDC", "DX", "dc"] {
            assert!(Schedule::parse(text).is_err(), "{text:?}");
        }
    }
}
