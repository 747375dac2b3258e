//! The verdict on a group that does not move: the words that it waits for, and the ranks to blame.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use veriep_core::fabric::{Flag, Wait};
use veriep_core::units::{CoreId, RankId};

/// Suspects and complaints that a line names; the JSON report has all.
const NAMED: usize = 4;

/// One core's complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Whose.
    pub rank: RankId,
    /// Its core.
    pub core: CoreId,
    /// The operator's number in the unit.
    pub operator: usize,
    /// What is missing.
    pub wait: Wait,
}

/// A group without progress.
#[derive(Clone, Debug, Default)]
pub struct Hang {
    /// How long no core moved; zero when it is certain that none ever will.
    pub after: Duration,
    /// What each waiting core misses.
    pub missing: Vec<Missing>,
}

impl Missing {
    /// The same with every rank under the name that `name` has for it.
    #[must_use]
    pub fn renamed(self, name: &dyn Fn(RankId) -> RankId) -> Self {
        Self { rank: name(self.rank), wait: self.wait.renamed(name), ..self }
    }

    /// What an agent misses; nothing if it only waits for its doorbell.
    pub(super) fn of_agent(rank: RankId, wait: Wait) -> Option<Self> {
        // Whatever the cores are stuck in, they are not to blame.
        (wait != Wait::IDLE).then_some(Self { rank, core: CoreId(0), operator: 0, wait })
    }
}

impl Hang {
    /// The complaints in the earliest operator that anybody is stuck in: later ones follow from them. Of those
    /// the ones about another rank, if there are any: who waits for its own rank's cores or for its own flag
    /// waits for what they wait for.
    #[must_use]
    pub fn roots(&self) -> Vec<Missing> {
        let first = self.missing.iter().map(|missing| missing.operator).min();
        let is_foreign =
            |missing: &Missing| missing.wait.source().is_some_and(|source| source != missing.rank);
        let mut roots: Vec<_> =
            self.missing.iter().filter(|missing| Some(missing.operator) == first).copied().collect();
        if roots.iter().any(is_foreign) {
            roots.retain(is_foreign);
        }
        // A rank that misses counts can neither grant nor publish its token flags; one that misses grants has perhaps not
        // come to the latter.
        let of = |missing: &Missing, flags: &[Flag]| flags.contains(&missing.wait.flag);
        for (flag, later) in [
            (Flag::Count, &[Flag::Token][..]),
            (Flag::Counts, &[Flag::Tokens, Flag::Grant]),
            (Flag::Grant, &[Flag::Tokens]),
        ] {
            let miss: BTreeSet<_> =
                roots.iter().filter(|root| of(root, &[flag])).map(|root| root.rank).collect();
            roots.retain(|root| !of(root, later) || !miss.contains(&root.wait.rank));
        }
        // Who waits for another rank itself may have nothing to say before it hears of it: a core that waits for another one
        // who does not complain knows better.
        let complaining: BTreeSet<_> =
            roots.iter().filter(|missing| is_foreign(missing)).map(|missing| missing.rank).collect();
        let is_last = |missing: &Missing| {
            missing.wait.source().is_some_and(|source| is_foreign(missing) && !complaining.contains(&source))
        };
        if roots.iter().any(is_last) {
            roots.retain(is_last);
        }
        // Workers complain in any order.
        roots.sort_by_key(|missing| (missing.rank, missing.core));
        roots
    }

    /// The ranks that others wait for in that operator and how many cores do, most waited for first.
    #[must_use]
    pub fn suspects(&self) -> Vec<(RankId, usize)> {
        let mut waited = BTreeMap::new();
        for source in self.roots().iter().filter_map(|missing| missing.wait.source()) {
            *waited.entry(source).or_insert(0) += 1;
        }
        let mut waited: Vec<_> = waited.into_iter().collect();
        waited.sort_by_key(|&(rank, cores)| (core::cmp::Reverse(cores), rank));
        waited
    }

    /// The ranks that cores wait for and which cores do, each behind `before`.
    fn write_suspects(&self, f: &mut dyn fmt::Write, before: &str) -> fmt::Result {
        let suspects = self.suspects();
        let roots = self.roots();
        for (i, (rank, count)) in suspects.iter().take(NAMED).enumerate() {
            let before = if i == 0 { before } else { "," };
            write!(f, "{before} rank {rank} (")?;
            let cores = roots.iter().filter(|root| root.wait.source() == Some(*rank));
            write_cores(f, cores.take(NAMED))?;
            match count.saturating_sub(NAMED) {
                0 => f.write_str(")")?,
                1 => f.write_str(" and 1 more core)")?,
                more => write!(f, " and {more} more cores)")?,
            }
        }
        if suspects.len() > NAMED {
            write!(f, " and {} more ranks", suspects.len() - NAMED)?;
        }
        Ok(())
    }

    /// The cores that wait, for a line about a process that is gone.
    #[must_use]
    pub fn waits(&self) -> String {
        let mut text = String::new();
        // Text takes all.
        let _ = self.write_suspects(&mut text, "; waiting for");
        text
    }
}

/// The cores that complain, rank by rank, in which order they come.
fn write_cores<'m>(f: &mut dyn fmt::Write, missing: impl Iterator<Item = &'m Missing>) -> fmt::Result {
    let mut cores = BTreeMap::<RankId, Vec<String>>::new();
    missing.for_each(|Missing { rank, core, .. }| cores.entry(*rank).or_default().push(core.to_string()));
    let of_rank = |(rank, cores): (RankId, Vec<String>)| {
        let plural = if cores.len() == 1 { "" } else { "s" };
        format!("rank {rank} core{plural} {}", cores.join(", "))
    };
    f.write_str(&cores.into_iter().map(of_rank).collect::<Vec<_>>().join("; "))
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.after.is_zero() {
            f.write_str("no core can move")?;
        } else {
            write!(f, "no progress for {} s", self.after.as_secs_f64())?;
        }
        if self.missing.is_empty() && !self.after.is_zero() {
            // A core that gives up asks all once more.
            f.write_str("; but by now no core misses anything: slow, not stuck")?;
        }
        self.write_suspects(f, ": waiting for")?;
        let roots = self.roots();
        for Missing { rank, core, wait, .. } in roots.iter().take(NAMED) {
            match wait.flag {
                Flag::Idle | Flag::Nic => write!(f, "; agent of rank {rank}: {wait}")?,
                _ => write!(f, "; rank {rank} core {core}: {wait}")?,
            }
        }
        if roots.len() > NAMED {
            write!(f, "; and {} more cores", roots.len() - NAMED)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses(rank: u32, core: u32, operator: usize, wait: Wait) -> Missing {
        Missing { rank: RankId(rank), core: CoreId(core), operator, wait }
    }

    fn flag(source: u32) -> Wait {
        Wait::new(Flag::Dispatch, RankId(source), &[3])
    }

    #[test]
    fn the_earliest_operator_is_to_blame_and_in_it_the_other_rank() {
        let later = Wait::new(Flag::Combine, RankId(0), &[2, 1]);
        let hang = Hang {
            after: Duration::from_secs(2),
            missing: vec![
                misses(1, 0, 1, later),
                misses(2, 0, 0, flag(1)),
                misses(0, 1, 0, Wait::barrier(CoreId(0))),
                misses(0, 0, 0, flag(1)),
                misses(1, 1, 0, flag(1)),
            ],
        };
        assert_eq!(hang.suspects(), [(RankId(1), 2)]);
        assert_eq!(
            hang.to_string(),
            "no progress for 2 s: waiting for rank 1 (rank 0 core 0; rank 2 core 0); \
             rank 0 core 0: missing: dispatch flag of rank 1 for local expert 3; \
             rank 2 core 0: missing: dispatch flag of rank 1 for local expert 3"
        );
    }

    #[test]
    fn a_rank_whose_token_flags_wait_for_a_count_is_not_to_blame() {
        let count = Wait::new(Flag::Count, RankId(1), &[0]);
        let token = |source| Wait::new(Flag::Token, RankId(source), &[0]);
        let missing = vec![misses(0, 0, 0, count), misses(1, 0, 0, token(0)), misses(2, 0, 0, token(1))];
        let hang = Hang { after: Duration::ZERO, missing };
        assert_eq!(hang.suspects(), [(RankId(1), 2)]);
    }

    #[test]
    fn a_rank_that_waits_for_a_third_is_not_to_blame() {
        let missing = vec![misses(0, 0, 0, flag(1)), misses(1, 0, 0, flag(2)), misses(3, 0, 0, flag(2))];
        let hang = Hang { after: Duration::ZERO, missing };
        assert_eq!(hang.suspects(), [(RankId(2), 2)]);
        // Of two who wait for each other either may be.
        let missing = vec![misses(0, 0, 0, flag(1)), misses(1, 0, 0, flag(0))];
        let hang = Hang { after: Duration::ZERO, missing };
        assert_eq!(hang.suspects(), [(RankId(0), 1), (RankId(1), 1)]);
    }

    #[test]
    fn a_group_that_moved_again_before_it_was_asked_is_not_called_stuck() {
        let hang = Hang { after: Duration::from_millis(1), missing: Vec::new() };
        assert_eq!(
            hang.to_string(),
            "no progress for 0.001 s; but by now no core misses anything: slow, not stuck"
        );
    }

    #[test]
    fn a_rank_that_waits_for_itself_alone_is_named() {
        let missing = vec![misses(4, 1, 0, Wait::barrier(CoreId(2)))];
        let hang = Hang { after: Duration::ZERO, missing };
        assert_eq!(
            hang.to_string(),
            "no core can move; rank 4 core 1: core 2 has not come to the core barrier"
        );
    }
}
