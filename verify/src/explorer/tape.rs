//! Branches of a step on effects that have perhaps landed: one choice after the other. A word in flight may be seen and may be
//! missed, so a step has one way for each tape.

use super::violation::Violation;

/// The choices of one way through a step, each with what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tape<A> {
    /// Choices that are given; after them everything has landed.
    given: Vec<bool>,
    made: Vec<(A, bool)>,
}

impl<A> Default for Tape<A> {
    fn default() -> Self {
        Self { given: Vec::new(), made: Vec::new() }
    }
}

impl<A: Copy + PartialEq> Tape<A> {
    pub(super) const fn new(given: Vec<bool>) -> Self {
        Self { given, made: Vec::new() }
    }

    /// Whether what was asked has landed.
    pub(super) fn choose(&mut self, asked: A) -> bool {
        let choice = self.given.get(self.made.len()).copied().unwrap_or(true);
        self.made.push((asked, choice));
        choice
    }

    /// The tapes that differ first where nothing was given.
    fn others(&self) -> impl Iterator<Item = Vec<bool>> + '_ {
        (self.given.len()..self.made.len()).map(|at| {
            let mut other: Vec<bool> = self.made[..at].iter().map(|&(_, choice)| choice).collect();
            other.push(!self.made[at].1);
            other
        })
    }

    /// Whether all that this step has seen to have landed the other has seen, too.
    fn saw_no_more_than(&self, other: &Self) -> bool {
        let seen = |tape: &Self, asked| tape.made.contains(&(asked, true));
        self.made.iter().all(|&(asked, choice)| !choice || seen(other, asked))
    }
}

/// A way through a step, and where it leads.
pub(super) type Way<S, A> = (Tape<A>, Result<S, Violation>);

/// All ways through a step. `step` goes one of them, by the choices that it is given; `None` says that it is pending.
pub(super) fn ways<S, A: Copy + PartialEq>(
    mut step: impl FnMut(Vec<bool>) -> (Tape<A>, Option<Result<S, Violation>>),
) -> Vec<Way<S, A>> {
    let mut ways = Vec::new();
    let (mut next, mut tapes) = (Some(Vec::new()), Vec::new());
    while let Some(given) = next.take().or_else(|| tapes.pop()) {
        let (tape, next) = step(given);
        tapes.extend(tape.others());
        ways.extend(next.map(|next| (tape, next)));
    }
    ways
}

/// Of two ways that lead a core to the `same` state, leaves out the one that saw more to have landed: from the other one that
/// can still be seen, and until then a core that depends on it is in error.
pub(super) fn with_fewest_landings<S, A: Copy + PartialEq>(
    all: Vec<Way<S, A>>,
    same: impl Fn(&S, &S) -> bool,
) -> Vec<Way<S, A>> {
    let needs_less = |(less, to): &Way<S, A>, (more, there): &Way<S, A>| {
        let same = matches!((to, there), (Ok(to), Ok(there)) if same(to, there));
        same && less.saw_no_more_than(more)
    };
    if all.len() < 2 {
        return all;
    }
    let mut ways: Vec<Way<S, A>> = Vec::new();
    for way in all {
        if !ways.iter().any(|other| needs_less(other, &way)) {
            ways.retain(|other| !needs_less(&way, other));
            ways.push(way);
        }
    }
    ways
}
