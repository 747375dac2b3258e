//! How the text of a configuration was written.

use core::fmt;

/// The keys that a text has and where they stand. It means nothing for what is configured: all are equal.
#[derive(Clone, Default)]
pub struct Origin {
    keys: Vec<(&'static str, usize)>,
}

impl Origin {
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
