//! The form in which a configuration was written.

use super::entries::{is_decisive, needed};
use core::fmt;
use veriep_core::shape::Given;

/// The keys that a text has and where they stand. It means nothing for what is configured: all are equal.
#[derive(Clone, Default)]
pub struct Origin {
    keys: Vec<(&'static str, usize)>,
    /// What the text has and nothing reads.
    notes: Vec<String>,
    /// Keys whose values the text does not tell.
    lacks: Vec<&'static str>,
    /// Tensors that the text, a call, passes.
    given: Given,
    /// Whether there is a text: what the program itself configures lacks nothing.
    is_of_text: bool,
}

impl Origin {
    pub(super) fn of_text(notes: Vec<String>, lacks: Vec<&'static str>, given: Given) -> Self {
        Self { keys: Vec::new(), notes, lacks, given, is_of_text: true }
    }

    /// Returns the keys, sorted, for which defaults stand although their values are not known, and which no option sets: those
    /// that a call does not tell, and those that JSON leaves null. A text that states none of the keys that a group needs says
    /// nothing, so that all of them are missing; so is the number of experts beside logical or redundant ones alone. Beside one of them that it states the documented defaults count as stated.
    pub fn missing(&self) -> Vec<&'static str> {
        let says_nothing = self.is_of_text && !needed().any(|key| self.has(key));
        let unsaid = needed().filter(|_| says_nothing);
        // One number of redundancy means something beside the number of physical experts alone.
        let is_half = self.is_of_text && self.has("logical_experts") != self.has("redundant_experts");
        let uncounted = is_half.then_some("moe_expert_num");
        let lacks = self.lacks.iter().copied().chain(unsaid).chain(uncounted);
        let mut missing: Vec<_> = lacks.filter(|key| !self.has(key)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Notes that the text has a key without a value.
    pub(super) fn lack(&mut self, key: &'static str) {
        if is_decisive(key) {
            self.lacks.push(key);
        }
    }

    /// Returns the tensors that a call passes, of which rules depend; of a mask both possible shapes.
    pub const fn given(&self) -> Given {
        self.given
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let missing = self.missing();
        let mut notes = self.notes.clone();
        if !missing.is_empty() {
            let keys = missing.join(", ");
            notes
                .push(format!("the input does not say {keys}: defaults stand for them, which --set changes"));
        }
        notes
    }

    /// Adds a key that is in a line, unless it is there.
    pub(super) fn add(&mut self, key: &'static str, line: usize) {
        if !self.has(key) {
            self.keys.push((key, line));
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.line(key).is_some()
    }

    /// Returns the line of a key; of a key that an option sets, one behind all others.
    pub(super) fn line(&self, key: &str) -> Option<usize> {
        self.keys.iter().find(|(other, _)| *other == key).map(|(_, line)| *line)
    }

    /// Returns the place of a key among those of the text; that of one which is not there comes last.
    pub fn place(&self, key: &str) -> usize {
        self.keys.iter().position(|(other, _)| *other == key).unwrap_or(usize::MAX)
    }
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Origin")
    }
}
