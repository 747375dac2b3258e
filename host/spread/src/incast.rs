//! Incast: the number of ranks that send to one receiver at the same step of their cores (910C guide, section 2.1).
//!
//! A step is the i-th send of every core that still has one, as if all cores sent at one speed from a common start.

use veriep_core::units::RankId;

/// The senders to one receiver at one step; scratch of [`step`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    ranks: u32,
    last: RankId,
}

/// The incast of one or more steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incast {
    /// The maximum number of ranks that send to one receiver at a step.
    pub max: u32,
    /// The number of receivers with any sender, summed over the steps.
    pub receivers: u64,
    /// The number of (sender, receiver) pairs, summed over the steps: divided by `receivers`, the mean incast.
    pub links: u64,
}

impl Incast {
    /// Returns the incast of both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            max: if self.max > other.max { self.max } else { other.max },
            receivers: self.receivers + other.receivers,
            links: self.links + other.links,
        }
    }
}

/// Returns the incast of one step. `sends` are (sender, receiver), all of one sender together; a sender counts once for a
/// receiver, for any number of its cores. `tallies` has one entry per rank; receivers without an entry are not counted.
pub fn step(sends: impl Iterator<Item = (RankId, RankId)>, tallies: &mut [Tally]) -> Incast {
    tallies.fill(Tally::default());
    for (from, to) in sends {
        if let Some(tally) = tallies.get_mut(to.index())
            && (tally.ranks == 0 || tally.last != from)
        {
            *tally = Tally { ranks: tally.ranks + 1, last: from };
        }
    }
    tallies.iter().filter(|tally| tally.ranks > 0).fold(Incast::default(), |sum, tally| {
        sum.and(Incast { max: tally.ranks, receivers: 1, links: tally.ranks.into() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use alloc::collections::{BTreeMap, BTreeSet};
    use alloc::vec::Vec;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn of(sends: &[(u32, u32)]) -> Incast {
        step(sends.iter().map(|&(from, to)| (RankId(from), RankId(to))), &mut [Tally::default(); 4])
    }

    #[test]
    fn a_sender_counts_once_for_each_receiver() {
        assert_eq!(of(&[]), Incast::default());
        // Rank 0 sends to itself with three cores, rank 1 to rank 0 and 2, rank 3 to rank 0.
        let sends = [(0, 0), (0, 0), (0, 0), (1, 2), (1, 0), (1, 2), (3, 0)];
        assert_eq!(of(&sends), Incast { max: 3, receivers: 2, links: 4 });
        // Six ranks that begin with themselves: no rank waits for another. All with rank 0: the seed's figure.
        assert_eq!(of(&[(0, 0), (1, 1), (2, 2), (3, 3)]), Incast { max: 1, receivers: 4, links: 4 });
        assert_eq!(of(&[(0, 0), (1, 0), (2, 0), (3, 0)]), Incast { max: 4, receivers: 1, links: 4 });
    }

    #[test]
    fn steps_add_up_and_ranks_that_are_not_asked_about_are_left_out() {
        let sum = of(&[(0, 1), (1, 1)]).and(of(&[(0, 2), (1, 9)]));
        assert_eq!(sum, Incast { max: 2, receivers: 2, links: 3 });
    }

    /// Computes the incast by its definition, from the senders of each of the four counted ranks.
    fn naive(sends: &[(u32, u32)]) -> Incast {
        let mut senders = BTreeMap::<u32, BTreeSet<u32>>::new();
        for &(from, to) in sends.iter().filter(|(_, to)| *to < 4) {
            senders.entry(to).or_default().insert(from);
        }
        let counts = || senders.values().map(|senders| senders.len() as u32);
        Incast {
            max: counts().max().unwrap_or(0),
            receivers: senders.len() as u64,
            links: counts().map(u64::from).sum(),
        }
    }

    proptest! {
        #![proptest_config(random::config(256))]

        #[test]
        fn each_receiver_counts_its_senders(steps in vec(vec(vec(0u32..6, 0..5), 0..7), 0..4)) {
            let mut sums = (Incast::default(), Incast::default());
            for receivers in steps {
                let each = |(from, to): (u32, Vec<u32>)| to.into_iter().map(move |to| (from, to));
                let sends: Vec<_> = (0..).zip(receivers).flat_map(each).collect();
                let (seen, want) = (of(&sends), naive(&sends));
                prop_assert_eq!(seen, want);
                let longest = sums.1.max.max(want.max);
                sums.0 = sums.0.and(seen);
                sums.1 = Incast {
                    max: longest,
                    receivers: sums.1.receivers + want.receivers,
                    links: sums.1.links + want.links,
                };
                prop_assert_eq!(sums.0, sums.1);
            }
        }
    }
}
