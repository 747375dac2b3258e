//! The context of the rules: the configuration, its column of limits and the receiver of violations.

use super::limits::{Column, Range};
use super::violation::Found;
use super::{Config, Rule, Seen, Violation};

/// A configuration that is being checked.
pub(super) struct Validator<'a, 'c> {
    pub(super) config: &'a Config<'a>,
    // By reference: a column is large, and rules are checked deep in the stack.
    pub(super) column: &'c Column,
    pub(super) found: Found<'a>,
    pub(super) is_broken: bool,
}

// Not inlined, since each violation would take a place of its own in the frame of all rules.
impl Validator<'_, '_> {
    /// Returns whether there is a legal TP domain.
    pub(super) fn has_tp(&self) -> bool {
        self.config.tp_world_size == 2 && self.column.tp_world_size.holds(2)
    }

    #[inline(never)]
    pub(super) fn range(&mut self, parameter: &'static str, seen: i64, range: Range) -> Option<u32> {
        if range.holds(seen) {
            return u32::try_from(seen).ok();
        }
        let rule = Rule::Range { min: range.min, max: range.max };
        self.broken(Violation::new(parameter, Seen::Number(seen), rule));
        None
    }

    pub(super) fn multiple(&mut self, parameter: &'static str, seen: Option<u32>, step: i64) -> Option<u32> {
        let value = i64::from(seen?);
        if value.checked_rem(step) == Some(0) {
            return seen;
        }
        self.broken(Violation::new(parameter, Seen::Number(value), Rule::MultipleOf(step)));
        None
    }

    pub(super) fn one_of(&mut self, parameter: &'static str, seen: i64, legal: &'static [i64]) -> bool {
        let holds = legal.contains(&seen);
        if !holds {
            self.broken(Violation::new(parameter, Seen::Number(seen), Rule::OneOf(legal)));
        }
        holds
    }

    #[inline(never)]
    pub(super) fn wrong(
        &mut self,
        parameter: &'static str,
        seen: i64,
        words: &'static str,
        numbers: &[(&'static str, i64)],
    ) {
        self.broken(Violation::new(parameter, Seen::Number(seen), Rule::Words(words)).with(numbers));
    }

    #[inline(never)]
    pub(super) fn broken(&mut self, violation: Violation) {
        self.is_broken = true;
        (self.found)(&violation);
    }
}

/// Converts a number for a violation.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
