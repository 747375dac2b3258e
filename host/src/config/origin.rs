//! The form in which a configuration was written.

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
}

impl Origin {
    pub(super) fn with(notes: Vec<String>, lacks: Vec<&'static str>, given: Given) -> Self {
        Self { keys: Vec::new(), notes, lacks, given }
    }

    /// Returns the keys for which defaults stand because the text, a call, does not tell their values, and no option sets them.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        self.lacks.iter().copied().filter(|key| !self.has(key)).collect()
    }

    /// Returns the tensors that a call passes, of which rules depend; of a mask both possible shapes.
    pub(crate) const fn given(&self) -> Given {
        self.given
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let missing = self.missing();
        let mut notes = self.notes.clone();
        if !missing.is_empty() {
            let keys = missing.join(", ");
            notes.push(format!("the call does not say {keys}: defaults stand for them, which --set changes"));
        }
        notes
    }

    /// Adds a key that stands in a line, unless it is there.
    pub(super) fn add(&mut self, key: &'static str, line: usize) {
        if !self.has(key) {
            self.keys.push((key, line));
        }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.line(key).is_some()
    }

    /// Returns the line of a key; of a key that an option sets, one behind all others.
    pub(super) fn line(&self, key: &str) -> Option<usize> {
        self.keys.iter().find(|(other, _)| *other == key).map(|(_, line)| *line)
    }

    /// Returns the place of a key among those of the text; that of one which is not there comes last.
    pub(crate) fn place(&self, key: &str) -> usize {
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
