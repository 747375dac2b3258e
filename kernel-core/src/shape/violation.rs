//! What a configuration breaks: the parameter, the rule and the numbers.

use core::fmt;

/// The most violations that one configuration can have; the rules number fewer.
pub const VIOLATIONS_MAX: usize = 64;

/// All violations of a configuration, in the order of the rules.
pub type Violations = heapless::Vec<Violation, VIOLATIONS_MAX>;

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The parameter that a user would change first, by its configuration key or tensor name.
    pub parameter: &'static str,
    /// The value seen, unless the parameter is a word or absent.
    pub seen: Option<i64>,
    /// The rule.
    pub rule: Rule,
    /// The other numbers of the rule, by name; unused places are `("", 0)`.
    pub numbers: [(&'static str, i64); 4],
}

/// A rule of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The value must lie in `[min, max]`.
    Range {
        /// Smallest legal value.
        min: i64,
        /// Largest legal value.
        max: i64,
    },
    /// Any other rule, in words.
    Words(&'static str),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { min, max } if min == max => write!(f, "must be {min}"),
            Self::Range { min, max } => write!(f, "must be in [{min}, {max}]"),
            Self::Words(words) => f.write_str(words),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.parameter)?;
        if let Some(seen) = self.seen {
            write!(f, " = {seen}")?;
        }
        write!(f, ": {}", self.rule)?;
        let mut given = self.numbers.iter().filter(|(name, _)| !name.is_empty());
        if let Some((name, value)) = given.next() {
            write!(f, " ({name} = {value}")?;
            for (name, value) in given {
                write!(f, ", {name} = {value}")?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}
