//! Short numbers that stand for long values, so that states stay small.

use core::hash::Hash;
use foldhash::HashMap;

/// Values by their numbers, which count from 0.
pub(super) struct Numbers<T> {
    numbers: HashMap<T, u16>,
    values: Vec<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { numbers: HashMap::default(), values: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbers<T> {
    /// Returns the number of a value; a new one if it has none.
    pub(super) fn number(&mut self, value: T) -> u16 {
        let Self { numbers, values } = self;
        *numbers.entry(value).or_insert_with_key(|value| {
            values.push(value.clone());
            (values.len() - 1) as u16
        })
    }

    /// Returns the number of a value, if it has one.
    pub(super) fn known(&self, value: &T) -> Option<u16> {
        self.numbers.get(value).copied()
    }

    /// Returns the value that has a number.
    pub(super) fn get(&self, number: u16) -> &T {
        &self.values[number as usize]
    }
}
