//! Numbers for what is long, so that states stay small.

use core::hash::Hash;
use foldhash::HashMap;

/// Things with the numbers that stand for them, from 0 on.
pub(super) struct Numbers<T> {
    numbers: HashMap<T, u16>,
    things: Vec<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { numbers: HashMap::default(), things: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbers<T> {
    /// The number of a thing; a new one if it has none.
    pub(super) fn number(&mut self, thing: T) -> u16 {
        let Self { numbers, things } = self;
        *numbers.entry(thing).or_insert_with_key(|thing| {
            things.push(thing.clone());
            (things.len() - 1) as u16
        })
    }

    /// The number of a thing, if it has one.
    pub(super) fn known(&self, thing: &T) -> Option<u16> {
        self.numbers.get(thing).copied()
    }

    /// What has that number.
    pub(super) fn thing(&self, number: u16) -> &T {
        &self.things[number as usize]
    }
}
