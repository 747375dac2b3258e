//! Memory that A3 and the hierarchy have in common: what has landed, sparse, and effects in flight. What is at a place, a word, a
//! row or a record, is of each protocol. A2's memory is its bytes: those that are stale are its subject.

use super::setup::Setup;
use super::state::Bytes;
use crate::order::Order;
use core::hash::Hash;
use core::ops::Deref;
use veriep_core::fabric::order::{Issued, Kind};

/// Values by place, sorted. What is not there was never written, or is forgotten.
#[derive(Debug)]
pub(super) struct Sparse<K, V>(Vec<(K, V)>);

/// Effects that have perhaps not landed, as they were issued.
#[derive(Debug)]
pub(super) struct Flight<E>(Vec<E>);

/// Where a search copies states, it allocates nothing where it need not.
macro_rules! clone_the_list {
    ($($Type:ident<$($of:ident),*>)*) => {
        $(impl<$($of: Clone),*> Clone for $Type<$($of),*> {
            fn clone(&self) -> Self {
                Self(self.0.clone())
            }

            fn clone_from(&mut self, source: &Self) {
                self.0.clone_from(&source.0);
            }
        })*
    };
}

clone_the_list! { Sparse<K, V> Flight<E> }

impl<K, V> Default for Sparse<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord + Copy, V> Sparse<K, V> {
    pub(super) fn get(&self, at: K) -> Option<&V> {
        let found = self.0.binary_search_by_key(&at, |(place, _)| *place);
        found.ok().map(|i| &self.0[i].1)
    }

    /// Writes a value, or forgets what is there.
    pub(super) fn set(&mut self, at: K, value: Option<V>) {
        match (self.0.binary_search_by_key(&at, |(place, _)| *place), value) {
            (Ok(i), Some(value)) => self.0[i].1 = value,
            (Ok(i), None) => _ = self.0.remove(i),
            (Err(i), Some(value)) => self.0.insert(i, (at, value)),
            (Err(_), None) => {}
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &(K, V)> {
        self.0.iter()
    }

    pub(super) fn retain(&mut self, which: impl FnMut(&(K, V)) -> bool) {
        self.0.retain(which);
    }
}

impl<K: Hash, V: Hash> Hash for Sparse<K, V> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// An effect that may be in flight.
pub(super) trait InFlight {
    fn issued(&self) -> &Issued;
}

impl<E> Default for Flight<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E> Deref for Flight<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &self.0
    }
}

impl<E: InFlight> Flight<E> {
    pub(super) fn push(&mut self, effect: E) {
        self.0.push(effect);
    }

    /// Takes one out that lands by itself.
    pub(super) fn remove(&mut self, i: usize) -> E {
        self.0.remove(i)
    }

    /// Forgets those that were issued after the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    pub(super) fn find_mut(&mut self, which: impl FnMut(&&mut E) -> bool) -> Option<&mut E> {
        self.0.iter_mut().find(which)
    }

    /// Those that may land now, by their numbers: all that they `follow` has landed.
    pub(super) fn may_land(&self, follow: impl Fn(&Issued, &Issued) -> bool) -> Vec<usize> {
        let waits =
            |&i: &usize| self.0[..i].iter().any(|earlier| follow(self.0[i].issued(), earlier.issued()));
        (0..self.0.len()).filter(|i| !waits(i)).collect()
    }

    /// Takes out the effects for which there is an order: they have landed.
    pub(super) fn land(
        &mut self,
        setup: &Setup<'_>,
        mut order: impl FnMut(usize, &E) -> Option<Order>,
    ) -> Vec<E> {
        let mut landed = Vec::new();
        for (i, effect) in core::mem::take(&mut self.0).into_iter().enumerate() {
            match order(i, &effect) {
                Some(order) => {
                    setup.relies_on(order);
                    landed.push(effect);
                }
                None => self.0.push(effect),
            }
        }
        landed
    }

    /// Effect number `i` is seen: takes out all earlier ones that it `follows`, and itself, if it `is_whole`: they have landed.
    pub(super) fn see(
        &mut self,
        setup: &Setup<'_>,
        i: usize,
        is_whole: bool,
        follows: impl Fn(&Issued, &Issued) -> bool,
    ) -> Vec<E> {
        let seen = *self.0[i].issued();
        let order = |at: usize, effect: &E| {
            let reason = match effect.issued().kind {
                _ if at == i => Order::Hearsay,
                Kind::Put => Order::PutPublish,
                Kind::Message(_) => Order::TransferInOrder,
                // The same core's earlier store to the word that is seen.
                Kind::Publish | Kind::Store => Order::Hearsay,
            };
            let has_landed = if at == i { is_whole } else { at < i && follows(&seen, effect.issued()) };
            has_landed.then_some(reason)
        };
        self.land(setup, order)
    }

    /// Adds them to what tells states apart: effects of different cores, or to different ranks, have no order among each other.
    pub(super) fn fingerprint(&self, bytes: &mut Bytes, mut add: impl FnMut(&E, &mut Bytes)) {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|effect| (effect.issued().from, effect.issued().to));
        all.len().hash(bytes);
        all.into_iter().for_each(|effect| add(effect, bytes));
    }
}
