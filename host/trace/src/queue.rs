//! A queue of items ordered by the time at which they are due.

use core::cmp::Ordering;
use std::collections::BinaryHeap;

/// What is due when, the earlier entry first among those of one time.
#[derive(Debug)]
pub struct Queue<D> {
    numbered: u64,
    heap: BinaryHeap<Entry<D>>,
}

#[derive(Debug)]
struct Entry<D> {
    /// When, and the number of the entry.
    key: (u64, u64),
    due: D,
}

impl<D> Default for Queue<D> {
    fn default() -> Self {
        Self { numbered: 0, heap: BinaryHeap::new() }
    }
}

impl<D> Queue<D> {
    pub fn add(&mut self, at: u64, due: D) {
        self.numbered += 1;
        self.heap.push(Entry { key: (at, self.numbered), due });
    }

    /// When the next one is due.
    pub fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.key.0)
    }

    /// What is due next, and when.
    pub fn pop(&mut self) -> Option<(u64, D)> {
        self.heap.pop().map(|Entry { key: (at, _), due }| (at, due))
    }
}

impl<D> PartialEq for Entry<D> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<D> Eq for Entry<D> {}

impl<D> PartialOrd for Entry<D> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    // What the heap asks most.
    #[inline]
    fn le(&self, other: &Self) -> bool {
        other.key <= self.key
    }
}

impl<D> Ord for Entry<D> {
    /// The earlier is the greater, which a heap has on top.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}
