//! Who owes the words that ranks lack. A rank lacks a word when a core of it waits for the word and memory does not have it; the
//! rank that must write it owes it, unless it cannot write it yet because it lacks words of an earlier operator itself.

use std::collections::BTreeSet;
use veriep_core::layout::state::Operator;

/// What a dump shows of a rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Dispatches and combines that any of its cores has begun.
    pub(super) begun: [u64; 2],
    /// Cores that have begun fewer.
    pub(super) behind: Vec<u32>,
    /// What its cores lack.
    pub(super) waits: Vec<Lack>,
}

/// A word, or several, that a core lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    /// The core.
    pub(super) core: u32,
    /// The number of the operator among those of its kind, from 1.
    pub(super) number: u64,
    /// What it lacks.
    pub(super) what: Missing,
}

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// Flag and count of a source for a local expert.
    Flag {
        /// The rank that writes it.
        source: u32,
        /// The local expert.
        expert: u32,
    },
    /// The result of a pair.
    Result {
        /// The token.
        token: u32,
        /// The column.
        k: u32,
        /// The rank that returns it, where the batch is known.
        source: Option<u32>,
    },
    /// All results of so many tokens, of which memory does not say which.
    Tokens {
        /// How many.
        tokens: u32,
    },
}

impl Missing {
    /// The operator that it belongs to.
    pub(super) const fn operator(self) -> Operator {
        match self {
            Self::Flag { .. } => Operator::Dispatch,
            Self::Result { .. } | Self::Tokens { .. } => Operator::Combine,
        }
    }

    /// The rank that must write it, where that is known.
    pub(super) const fn source(self) -> Option<u32> {
        match self {
            Self::Flag { source, .. } => Some(source),
            Self::Result { source, .. } => source,
            Self::Tokens { .. } => None,
        }
    }
}

impl Seen {
    /// Whether it has begun operator `number` of that kind.
    pub(super) const fn has_begun(&self, operator: Operator, number: u64) -> bool {
        self.begun[operator as usize] >= number
    }
}

/// The ranks that owe a word that another one, or they themselves, lack. Of a rank without a dump nothing is known.
pub(super) fn culprits(ranks: &[Option<Seen>]) -> BTreeSet<u32> {
    let all = || (0..).zip(ranks).filter_map(|(rank, seen)| Some((rank, seen.as_ref()?)));
    let mut owe = BTreeSet::new();
    for lack in all().flat_map(|(_, seen)| &seen.waits) {
        let operator = lack.what.operator();
        let may_write = |seen: &Seen| seen.has_begun(operator, lack.number) || seen.waits.is_empty();
        match lack.what.source() {
            Some(source) => {
                owe.extend(
                    all().find(|&(rank, seen)| rank == source && may_write(seen)).map(|(rank, _)| rank),
                );
            }
            // Whoever has begun the operator may have returned all that it had.
            None => owe.extend(
                all()
                    .filter(|(_, seen)| !seen.has_begun(operator, lack.number) && seen.waits.is_empty())
                    .map(|(rank, _)| rank),
            ),
        }
    }
    owe
}
