//! What a step found out about effects that have perhaps landed: one choice after the other.

use super::memory::Spot;

/// A word of the core's rank, or its quiet.
pub(super) type Asked = (Spot, bool);

#[derive(Clone, Debug, Default)]
pub(super) struct Tape {
    /// Choices that are given; behind them everything has landed.
    given: Vec<bool>,
    made: Vec<(Asked, bool)>,
    /// Whether the step depended on others at all.
    pub(super) touched: bool,
    /// The ranks that can still change what it looked at, as bits.
    pub(super) open: u32,
}

impl Tape {
    pub(super) fn new(given: Vec<bool>) -> Self {
        Self { given, ..Self::default() }
    }

    pub(super) fn choose(&mut self, asked: Asked) -> bool {
        let choice = self.given.get(self.made.len()).copied().unwrap_or(true);
        self.made.push((asked, choice));
        choice
    }

    /// The tapes that differ first where nothing was given.
    pub(super) fn others(&self) -> impl Iterator<Item = Vec<bool>> + '_ {
        (self.given.len()..self.made.len()).map(|at| {
            let mut other: Vec<bool> = self.made[..at].iter().map(|&(_, choice)| choice).collect();
            other.push(!self.made[at].1);
            other
        })
    }

    /// Whether all that this step has seen to have landed the other has seen, too.
    pub(super) fn saw_no_more_than(&self, other: &Self) -> bool {
        let seen = |tape: &Self, asked| tape.made.contains(&(asked, true));
        self.made.iter().all(|&(asked, choice)| !choice || seen(other, asked))
    }
}
