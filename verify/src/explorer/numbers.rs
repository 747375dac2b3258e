//! Short numbers that stand for long values, so that states stay small.

use core::hash::Hash;
use foldhash::HashMap;
use std::rc::Rc;

/// Values by their numbers, which count from 0.
pub(super) struct Numbers<T> {
    numbers: HashMap<Rc<T>, u32>,
    values: Vec<Rc<T>>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { numbers: HashMap::default(), values: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbers<T> {
    /// Returns the number of a value; a new one if it has none.
    pub(super) fn number(&mut self, value: &T) -> u32 {
        self.known(value).unwrap_or_else(|| {
            let (number, value) = (self.values.len() as u32, Rc::new(value.clone()));
            self.values.push(Rc::clone(&value));
            self.numbers.insert(value, number);
            number
        })
    }

    /// Returns the number of a value, if it has one.
    pub(super) fn known(&self, value: &T) -> Option<u32> {
        self.numbers.get(value).copied()
    }

    /// Returns the value that has a number.
    pub(super) fn get(&self, number: u32) -> &Rc<T> {
        &self.values[number as usize]
    }
}
