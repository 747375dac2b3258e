//! Redundant experts (A3 slides): a busy expert has several replicas, each a physical expert with a location of its own.
//!
//! ```text
//! expert_map, [E_l, P] words of i32: the physical experts of each logical one, then -1
//! ```
//!
//! `moe_expert_num` counts physical experts, and everything after validation uses these. A router outputs logical ids:
//! [`ExpertMap::translate`] converts a rank's ids to physical ones before they are passed to dispatch and combine.

use super::{Found, Inputs};
use crate::shape::{Rule, Seen, Shape, Violation};
use crate::units::{RankId, Token, div_floor, nth_piece};
use core::ops::ControlFlow;

/// A checked `expert_map`, by reference.
#[derive(Clone, Copy, Debug)]
pub struct ExpertMap<'a> {
    words: &'a [i32],
    logical: u32,
}

const NONE: i32 = -1;
/// The maximum number of reported map entries.
const TOLD_MAX: u32 = 16;

impl<'a> ExpertMap<'a> {
    /// Checks a map of `rows` rows, one for each logical expert, and calls `found` with each rule that it breaks, up to a
    /// limit on wrong entries. Returns `None` if it breaks one.
    pub fn check(
        shape: &Shape,
        words: &'a [i32],
        rows: usize,
        found: &mut dyn FnMut(&Violation),
    ) -> Option<Self> {
        let experts = shape.moe_expert_num();
        let numbers = [("moe_expert_num", i64::from(experts))];
        let told = |seen, words| Violation::new("expert_map", Seen::Number(seen), Rule::Words(words));
        let logical = u32::try_from(rows).ok().filter(|rows| (1..=experts).contains(rows));
        let Some(logical) = logical.filter(|_| words.len().checked_rem(rows) == Some(0)) else {
            let seen = i64::try_from(rows).unwrap_or(i64::MAX);
            let words = "must have a row for each logical expert, of which there are 1 to moe_expert_num";
            found(&told(seen, words).with(&numbers));
            return None;
        };
        let map = Self { words, logical };
        let (mut broken, mut named) = (0, 0);
        let specials = shape.expert_ids_end() - experts;
        if shape.k() > logical + specials {
            let rule = Rule::Words("must not exceed the number of logical and special experts");
            let numbers = [("logical experts", logical.into()), ("special experts", specials.into())];
            found(&Violation::new("k", Seen::Number(shape.k().into()), rule).with(&numbers));
            broken += 1;
        }
        for (expert, place, seen) in map.entries() {
            let words = if seen == NONE {
                if place > 0 {
                    continue;
                }
                "a logical expert must have a replica"
            } else if !u32::try_from(seen).is_ok_and(|id| id < experts) {
                "a physical expert must be in [0, moe_expert_num)"
            } else if map.is_named_before(expert, place, seen) {
                "a physical expert must occur once"
            } else if place > map.replicas(expert).len() {
                "-1 must come after the replicas"
            } else {
                named += 1;
                continue;
            };
            if broken < TOLD_MAX {
                let at = expert as usize * map.width() + place;
                let place = i64::try_from(place).unwrap_or(i64::MAX);
                let [number] = numbers;
                let numbers = [number, ("logical expert", expert.into()), ("replica", place)];
                found(&told(seen.into(), words).at(at as u32).with(&numbers));
            }
            broken += 1;
        }
        if broken == 0 && named < experts {
            let missing = (0..experts.cast_signed()).find(|&e| !map.is_named_before(logical, 0, e));
            let numbers = [numbers[0], ("first missing", missing.unwrap_or(NONE).into())];
            found(&told(named.into(), "must name every physical expert").with(&numbers));
            broken += 1;
        }
        (broken == 0).then_some(map)
    }

    /// Returns E_l, the number of logical experts.
    #[must_use]
    pub const fn logical_expert_num(&self) -> u32 {
        self.logical
    }

    /// Calls `found` with every id of a rank's active pairs that is no logical or special expert, or is repeated in its row.
    /// Of `logical`, the rank's inputs before translation, only ids and mask are read.
    pub fn check_ids(&self, shape: &Shape, logical: &Inputs<'_>, found: &mut Found<'_>) -> ControlFlow<()> {
        let end = self.logical + (shape.expert_ids_end() - shape.moe_expert_num());
        let tokens = div_floor(logical.expert_ids.len() as u64, shape.k().into());
        logical.check_ids(shape, tokens as u32, end, found)
    }

    /// Returns the physical expert for logical `id` of token `token` of EP rank `rank`: of n replicas the one with number
    /// `(rank + token) % n`. Special experts follow the logical ones as they follow the physical ones. Returns `None` if
    /// there is no such expert.
    #[must_use]
    pub fn physical(&self, shape: &Shape, rank: RankId, token: Token, id: i32) -> Option<i32> {
        let expert = u32::try_from(id).ok()?;
        if let Some(special) = expert.checked_sub(self.logical) {
            let id = shape.moe_expert_num().checked_add(special).filter(|&id| id < shape.expert_ids_end());
            return id.map(u32::cast_signed);
        }
        let replicas = self.replicas(expert);
        let turn = (rank.index() + token.index()).checked_rem(replicas.len())?;
        replicas.get(turn).copied()
    }

    /// Fills `physical` with the physical experts of the `expert_ids` of EP rank `rank`; -1, which is no expert, for ids
    /// out of range, which only masked pairs may have.
    pub fn translate(&self, shape: &Shape, rank: RankId, ids: &[i32], physical: &mut [i32]) {
        for (pair, (to, &id)) in (0..).zip(physical.iter_mut().zip(ids)) {
            let token = Token(div_floor(pair, shape.k().into()) as u32);
            *to = self.physical(shape, rank, token, id).unwrap_or(NONE);
        }
    }

    fn width(&self) -> usize {
        self.words.len().checked_div(self.logical as usize).unwrap_or(0)
    }

    /// Returns the row of a logical expert, up to its first -1.
    fn replicas(&self, expert: u32) -> &'a [i32] {
        let row = nth_piece(self.words, expert as usize, self.width()).unwrap_or_default();
        row.get(..row.iter().take_while(|&&id| id >= 0).count()).unwrap_or_default()
    }

    /// Returns every word with its row and its place in the row.
    fn entries(&self) -> impl Iterator<Item = (u32, usize, i32)> + use<'a> {
        let width = self.width();
        let places = (0..self.logical).flat_map(move |row| (0..width).map(move |place| (row, place)));
        places.zip(self.words).map(|((row, place), &word)| (row, place, word))
    }

    /// Returns whether a physical expert is among the replicas before a place.
    fn is_named_before(&self, expert: u32, place: usize, id: i32) -> bool {
        let in_row = self.replicas(expert).iter().take(place).any(|&other| other == id);
        in_row || (0..expert).any(|row| self.replicas(row).contains(&id))
    }
}
