//! Violations of a configuration: the parameter, the value, the rule and the other numbers.

use core::fmt;

/// The receiver of each violation, in the order of the rules.
pub(super) type Found<'a> = &'a mut (dyn FnMut(&Violation) + 'a);

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Violation {
    /// The parameter that a user would change first, by its configuration key or tensor name.
    pub parameter: &'static str,
    /// The wrong element of an input tensor.
    pub element: Option<u32>,
    /// The value seen.
    pub seen: Seen,
    /// The rule.
    pub rule: Rule,
    /// The other numbers of the rule, by name; unused places are `("", 0)`.
    pub numbers: [(&'static str, i64); 4],
}

/// The value that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Seen {
    /// An optional input whose presence breaks the rule.
    Present,
    /// A number.
    Number(i64),
    /// A real number that is infinite or NaN.
    NotFinite(f32),
    /// The name of the value in a configuration.
    Word(&'static str),
    /// A list with this number of entries.
    List(usize),
}

/// A rule of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The value must be in `[min, max]`.
    Range {
        /// Smallest legal value.
        min: i64,
        /// Largest legal value.
        max: i64,
    },
    /// The number must be one of these.
    OneOf(&'static [i64]),
    /// The word must be this one.
    Word(&'static str),
    /// The number must be a multiple of this.
    MultipleOf(i64),
    /// The optional input must be absent for this product and algorithm.
    AbsentOn(&'static str),
    /// Any other rule, in words.
    Words(&'static str),
}

impl Violation {
    pub(crate) const fn new(parameter: &'static str, seen: Seen, rule: Rule) -> Self {
        Self { parameter, element: None, seen, rule, numbers: [("", 0); 4] }
    }

    /// Sets the wrong element.
    pub(crate) const fn at(self, element: u32) -> Self {
        Self { element: Some(element), ..self }
    }

    /// Sets the other numbers of the rule, at most four.
    pub(crate) fn with(mut self, numbers: &[(&'static str, i64)]) -> Self {
        for (place, &number) in self.numbers.iter_mut().zip(numbers) {
            *place = number;
        }
        self
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("given"),
            Self::Number(number) => number.fmt(f),
            // There are three such values, and `core` has paths to panics where it prints real numbers.
            Self::NotFinite(number) if number.is_nan() => f.write_str("NaN"),
            Self::NotFinite(number) => f.write_str(if *number > 0.0 { "inf" } else { "-inf" }),
            Self::List(1) => f.write_str("a list of 1 entry"),
            Self::List(entries) => write!(f, "a list of {entries} entries"),
            Self::Word(word) => write!(f, "\"{word}\""),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { min, max } if min == max => write!(f, "must be {min}"),
            Self::Range { min, max } => write!(f, "must be in [{min}, {max}]"),
            Self::OneOf(legal) => list(f, legal),
            Self::Word(word) => write!(f, "must be \"{word}\""),
            Self::MultipleOf(step) => write!(f, "must be a multiple of {step}"),
            Self::AbsentOn(place) => write!(f, "must be absent on {place}"),
            Self::Words(words) => f.write_str(words),
        }
    }
}

/// "must be A, B or C".
fn list(f: &mut fmt::Formatter<'_>, legal: &[i64]) -> fmt::Result {
    f.write_str("must be ")?;
    for (i, value) in legal.iter().enumerate() {
        let before = if i == 0 {
            ""
        } else if i + 1 == legal.len() {
            " or "
        } else {
            ", "
        };
        write!(f, "{before}{value}")?;
    }
    Ok(())
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.parameter)?;
        if let Some(element) = self.element {
            write!(f, "[{element}]")?;
        }
        match self.seen {
            Seen::Present => write!(f, " is given: {}", self.rule)?,
            seen => write!(f, " = {seen}: {}", self.rule)?,
        }
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

impl core::error::Error for Violation {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_violation_reads_as_parameter_value_rule_and_numbers() {
        let range = Violation::new("k", Seen::Number(17), Rule::Range { min: 1, max: 16 });
        assert_eq!(range.to_string(), "k = 17: must be in [1, 16]");
        let list = Violation::new("quant_mode", Seen::Number(1), Rule::OneOf(&[0, 2]));
        assert_eq!(list.to_string(), "quant_mode = 1: must be 0 or 2");
        let word = Violation::new("op", Seen::Word("combine_add_rms_norm"), Rule::Word("combine"));
        assert_eq!(word.to_string(), r#"op = "combine_add_rms_norm": must be "combine""#);
        let numbers = Violation::new("bs", Seen::Number(3), Rule::Words("must match")).with(&[("R", 4)]);
        assert_eq!(numbers.to_string(), "bs = 3: must match (R = 4)");
        for (number, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            assert_eq!(Seen::NotFinite(number).to_string(), name);
        }
        let given = Violation::new("scales", Seen::Present, Rule::AbsentOn("a2 hierarchy"));
        assert_eq!(given.to_string(), "scales is given: must be absent on a2 hierarchy");
    }
}
