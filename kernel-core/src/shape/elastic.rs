//! Elastic domains (V2 reference: `elasticInfo`): some ranks have left, the others continue as a smaller domain.
//!
//! ```text
//! elastic_info, 4 + 2R words of i32:
//!   0          enabled; 0 means as if it were absent
//!   1          R'   ranks left
//!   2          Rs'  those of them that hold shared experts
//!   3          E'   MoE experts left
//!   4 ..       table1[R]: physical rank -> new id, or -1 when it is gone
//!   4 + R ..   table2[R]: new id -> physical rank, -1 from R' on
//! ```
//!
//! Survivors behave exactly like a domain of R', Rs' and E' whose ranks are the new ids. So only validation handles elastic
//! domains: [`Shape::survivors`] is the shape of the smaller domain, and [`fabric::rank_remap`](crate::fabric::rank_remap)
//! turns new ids into physical ranks at each access to memory.

use super::limits::EXPERT_IDS_MAX;
use super::validate::signed;
use super::violation::Found;
use super::{Kept, PerRank, Seen, Shape, Violation};
use crate::shape::Rule;
use crate::units::{RankId, div_rem};

/// The ranks left of a domain: a checked `elastic_info` that is switched on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elastic {
    /// The physical ranks by new id.
    physical: PerRank,
    ranks: u32,
    shared_expert_rank_num: u32,
    moe_expert_num: u32,
}

const HEAD: usize = 4;
const GONE: i32 = -1;
/// The maximum number of reported table entries.
const TOLD_MAX: u32 = 48;

/// Physical rank to new id, and back.
type Tables<'a> = (&'a [i32], &'a [i32]);

impl Elastic {
    /// Returns whether these words switch elasticity on. The configuration states it by
    /// [`Given::ELASTIC_INFO`](super::Given::ELASTIC_INFO).
    #[must_use]
    pub const fn is_on(info: &[i32]) -> bool {
        match info.first() {
            Some(&enabled) => enabled != 0,
            None => false,
        }
    }

    /// Checks `elastic_info` against the shape of the whole domain and calls `found` with each rule that it breaks, in the
    /// order of its words, up to a limit on table entries. Returns `None` if it breaks a rule or is switched off.
    #[inline(never)]
    pub fn check(whole: &Shape, info: &[i32], found: &mut dyn FnMut(&Violation)) -> Option<Self> {
        let mut check = Check { whole, found, told: 0 };
        let (&[enabled, ranks, shared_ranks, experts], tables) = check.parts(info)?;
        if enabled == 0 {
            return None;
        }
        let ranks = check.ranks(ranks);
        let shared_expert_rank_num = check.shared_ranks(shared_ranks, ranks);
        let moe_expert_num = check.experts(experts, ranks, shared_expert_rank_num);
        check.tables(tables, ranks?);
        if check.told > 0 {
            return None;
        }
        let mut left = Self {
            physical: PerRank::NONE,
            ranks: whole.ep_world_size(),
            shared_expert_rank_num: shared_expert_rank_num?,
            moe_expert_num: moe_expert_num?,
        };
        left.physical.set(tables.1.iter().filter_map(|&rank| u16::try_from(rank).ok()));
        Some(left)
    }

    /// Returns R, the number of ranks of the whole domain, including those that have left.
    #[must_use]
    pub const fn whole_world_size(&self) -> u32 {
        self.ranks
    }

    /// Returns the physical rank with that new id, if there is one.
    #[must_use]
    pub fn physical(&self, new: RankId) -> Option<RankId> {
        self.physical.get(new.index()).map(|rank| RankId(rank.into()))
    }

    /// Returns the new id of a physical rank; `None` if it has left.
    #[must_use]
    pub fn new_id(&self, physical: RankId) -> Option<RankId> {
        (0..)
            .map(RankId)
            .zip(self.physical.iter())
            .find(|(_, rank)| u32::from(*rank) == physical.0)
            .map(|(new, _)| new)
    }
}

impl Shape {
    /// Returns the smaller domain of the ranks left, by new ids. It has its own slots, placement and counts; batch sizes,
    /// capacity, the window and the rows of `scales` are those of the whole domain.
    #[must_use]
    pub fn survivors(&self, left: &Elastic) -> Self {
        let ranks = left.physical.len() as u32;
        let shared_ranks = left.shared_expert_rank_num;
        let bs = |rank| self.bs_per_rank.get(usize::from(rank));
        // A shape is large, so it is built in place.
        let mut shape = self.clone();
        shape.ep_world_size = ranks;
        shape.moe_expert_num = left.moe_expert_num;
        shape.local_expert_num = div_rem(left.moe_expert_num, ranks - shared_ranks).0;
        if shared_ranks == 0 {
            shape.shared_expert_num = 0;
        }
        shape.shared_expert_rank_num = shared_ranks;
        shape.bs_per_rank.set(left.physical.iter().filter_map(bs));
        let new_id = |own: RankId| left.physical.iter().position(|rank| usize::from(rank) == own.index());
        shape.own = self.own.and_then(new_id).map(|id| RankId(id as u32));
        shape.kept = Some(Kept {
            shared_expert_num: self.shared_expert_num,
            moe_expert_num: self.moe_expert_num,
            rows_max: self.rows_max(RankId(0)).max(self.rows_max(RankId(self.shared_expert_rank_num))),
        });
        shape.derive();
        shape
    }
}

/// Checks the rules. A number that breaks one becomes `None`, so that no consequence of it is reported.
struct Check<'a> {
    whole: &'a Shape,
    found: Found<'a>,
    told: u32,
}

impl Check<'_> {
    /// Returns the four words of the head, and the tables.
    fn parts<'i>(&mut self, info: &'i [i32]) -> Option<(&'i [i32; HEAD], Tables<'i>)> {
        let ranks = self.whole.ep_world_size();
        if info.len() == HEAD + 2 * ranks as usize
            && let Some((head, tables)) = info.split_first_chunk()
            && let Some(tables) = tables.split_at_checked(ranks as usize)
        {
            return Some((head, tables));
        }
        let words = "must have 4 + 2 * ep_world_size elements";
        let numbers = [("ep_world_size", ranks.into())];
        let elements = i64::try_from(info.len()).unwrap_or(i64::MAX);
        let violation = Violation::new("elastic_info", Seen::Number(elements), Rule::Words(words));
        self.tell(&violation.with(&numbers));
        None
    }

    fn ranks(&mut self, seen: i32) -> Option<u32> {
        let ranks = self.whole.ep_world_size();
        let words = "ranks left must be in [1, ep_world_size]";
        let legal = u32::try_from(seen).ok().filter(|left| (1..=ranks).contains(left));
        self.unless(legal.is_some(), 1, seen, words, &[("ep_world_size", ranks.into())]);
        legal
    }

    fn shared_ranks(&mut self, seen: i32, ranks: Option<u32>) -> Option<u32> {
        let shared = self.whole.shared_expert_num();
        let end = ranks.unwrap_or(self.whole.ep_world_size());
        let legal = u32::try_from(seen)
            .ok()
            .filter(|&left| left < end)
            .filter(|&left| left == 0 || shared > 0 && div_rem(left, shared).1 == 0);
        let words = if shared == 0 {
            "shared-expert ranks left must be 0: no rank held shared experts"
        } else {
            "shared-expert ranks left must be in [0, ranks left) and a multiple of shared_expert_num"
        };
        let numbers = [("ranks left", end.into()), ("shared_expert_num", shared.into())];
        self.unless(legal.is_some(), 2, seen, words, &numbers);
        legal
    }

    fn experts(&mut self, seen: i32, ranks: Option<u32>, shared_ranks: Option<u32>) -> Option<u32> {
        let whole = self.whole;
        let specials = whole.expert_ids_end() - whole.moe_expert_num();
        let Some(experts) = u32::try_from(seen).ok().filter(|&experts| experts > 0) else {
            self.unless(false, 3, seen, "MoE experts left must be at least 1", &[]);
            return None;
        };
        let ids = i64::from(experts) + i64::from(specials);
        let words = "MoE experts left must leave K distinct ids";
        self.unless(
            i64::from(whole.k()) <= ids,
            3,
            seen,
            words,
            &[("k", whole.k().into()), ("special experts", specials.into())],
        );
        let words = "MoE experts left and special experts together must be within the limit";
        self.unless(ids <= EXPERT_IDS_MAX, 3, seen, words, &[("sum", ids), ("limit", EXPERT_IDS_MAX)]);
        let (ranks, moe_ranks) = (ranks?, ranks? - shared_ranks?);
        let (local, rest) = div_rem(experts, moe_ranks);
        if rest != 0 {
            let words = "MoE experts left must be a multiple of the MoE ranks left";
            self.unless(false, 3, seen, words, &[("MoE ranks left", moe_ranks.into())]);
            return None;
        }
        let (slots, room) = (u64::from(local) * u64::from(ranks), whole.dispatch_slots());
        let words = "local experts times ranks must not exceed those of the whole domain";
        let numbers = [
            ("local experts left", local.into()),
            ("ranks left", ranks.into()),
            ("of the whole", signed(room)),
        ];
        self.unless(slots <= room, 3, seen, words, &numbers);
        Some(experts)
    }

    fn tables(&mut self, (to_new, to_physical): Tables<'_>, left: u32) {
        let whole = self.whole.ep_world_size();
        let told = self.told;
        let in_range = |end: u32| move |seen: i32| u32::try_from(seen).is_ok_and(|id| id < end);
        for (i, &seen) in (0..).zip(to_new) {
            let words = "a new id must be in [0, ranks left), or -1 for a rank that is gone";
            self.unless(
                seen == GONE || in_range(left)(seen),
                4 + i,
                seen,
                words,
                &[("physical rank", i.into())],
            );
        }
        for (i, &seen) in (0..).zip(to_physical) {
            let (legal, words) = if i < left {
                (in_range(whole)(seen), "a physical rank must be in [0, ep_world_size)")
            } else {
                (seen == GONE, "must be -1 after the last new id")
            };
            self.unless(legal, 4 + whole + i, seen, words, &[("new id", i.into())]);
        }
        if self.told == told {
            self.inverse(to_new, to_physical);
        }
    }

    /// Checks both directions: a rank in one table only would have no name or no home.
    fn inverse(&mut self, to_new: &[i32], to_physical: &[i32]) {
        let whole = self.whole.ep_world_size();
        let entry = |table: &[i32], at: i32| usize::try_from(at).ok().and_then(|at| table.get(at).copied());
        let ways = [
            (to_new, to_physical, 4, "the tables must be inverse: table2 has another rank for this new id"),
            (
                to_physical,
                to_new,
                4 + whole,
                "the tables must be inverse: table1 has another new id for this rank",
            ),
        ];
        for (there, back, start, words) in ways {
            let mut all = (0i32..).zip(there).filter(|(_, seen)| **seen != GONE);
            if let Some((i, &seen)) = all.find(|&(i, &seen)| entry(back, seen) != Some(i)) {
                let back = entry(back, seen).unwrap_or(GONE);
                let numbers = [("entry", i.into()), ("the other table's", back.into())];
                // Consequences of the first difference are not reported.
                self.unless(false, start + i.cast_unsigned(), seen, words, &numbers);
                return;
            }
        }
    }

    fn unless(
        &mut self,
        legal: bool,
        element: u32,
        seen: i32,
        words: &'static str,
        numbers: &[(&'static str, i64)],
    ) {
        if legal {
            return;
        }
        let violation = Violation::new("elastic_info", Seen::Number(seen.into()), Rule::Words(words));
        self.tell(&violation.at(element).with(numbers));
    }

    fn tell(&mut self, violation: &Violation) {
        if self.told < TOLD_MAX {
            (self.found)(violation);
        }
        self.told += 1;
    }
}
