//! The route of each pair: destinations, send status and slots (A2 design, section 2.2; CANN: `sendStatus`, `expandIdx`).
//!
//! A **destination** is a number: shared-expert ranks first (`0 .. Rs`), then MoE experts (`Rs + e`). The
//! **slot** of a pair is its ordinal among this rank's active pairs with the same destination, in flat order.

use super::accesses;
use super::order::{Path, SendOrder};
use super::split::DispatchShare;
use crate::inputs::{Inputs, Mask};
use crate::placement::{Expert, Home};
use crate::shape::Shape;
use crate::units::{ExpertId, Pair, RankId, Token};
use core::ops::Range;

/// The slot of a pair that is not sent.
pub const NO_SLOT: u32 = u32::MAX;

/// Returns pair number `i` of the `(token, k)` pairs.
pub(crate) const fn moe_pair(shape: &Shape, i: u32) -> Pair {
    let (token, k) = shape.by_k(i);
    Pair { token: Token(token), k }
}

/// Returns pair number `i` of the `(token, j)` pairs.
pub(crate) const fn shared_pair(shape: &Shape, i: u32) -> Pair {
    let (token, j) = shape.by_shared(i);
    Pair { token: Token(token), k: shape.k() + j }
}

/// Returns the number of destinations.
#[must_use]
pub const fn destinations(shape: &Shape) -> u32 {
    shape.shared_expert_rank_num() + shape.moe_expert_num()
}

/// Returns the location of a destination's expert.
#[must_use]
pub const fn destination_home(shape: &Shape, destination: u32) -> Home {
    let shared = shape.shared_expert_rank_num();
    if destination < shared {
        Home { rank: RankId(destination), local_expert: 0 }
    } else {
        shape.moe_home(ExpertId(destination - shared))
    }
}

/// Returns the destination of a local expert of `rank`: the inverse of [`destination_home`].
#[must_use]
pub const fn destination_of(shape: &Shape, rank: RankId, local_expert: u32) -> u32 {
    let shared = shape.shared_expert_rank_num();
    if rank.0 < shared {
        rank.0
    } else {
        shared + (rank.0 - shared) * shape.local_expert_num() + local_expert
    }
}

/// The source of an active pair's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An expert at this location, which returns a row.
    Home(Home),
    /// A zero expert: there is no result.
    Zero,
    /// A copy expert: the result is the token.
    Copy,
    /// The const expert with this number.
    Const(u32),
}

/// Returns the source of a pair's result; `None` for an inactive pair.
#[inline]
pub(crate) fn source(shape: &Shape, rank: RankId, inputs: &Inputs<'_>, pair: Pair) -> Option<Source> {
    match home(shape, rank, inputs, pair) {
        Some(home) => Some(Source::Home(home)),
        None => special(shape, inputs, pair),
    }
}

/// Returns the special expert of an active pair.
#[inline(never)]
fn special(shape: &Shape, inputs: &Inputs<'_>, pair: Pair) -> Option<Source> {
    if !inputs.pair_is_active(shape, pair.token, pair.k) {
        return None;
    }
    match shape.expert(inputs.id(shape, pair.token, pair.k)?)? {
        Expert::Moe(_) => None,
        Expert::Zero => Some(Source::Zero),
        Expert::Copy => Some(Source::Copy),
        Expert::Const(i) => Some(Source::Const(i)),
    }
}

/// Returns the location to which an active pair goes; `None` for an inactive pair or a special expert.
#[inline(always)]
#[must_use]
pub fn home(shape: &Shape, rank: RankId, inputs: &Inputs<'_>, pair: Pair) -> Option<Home> {
    if pair.k >= shape.k() {
        let active = inputs.token_is_active(shape, pair.token);
        return active.then(|| shape.shared_home(rank, pair.k - shape.k()));
    }
    if !inputs.pair_is_active(shape, pair.token, pair.k) {
        return None;
    }
    let id = inputs.id(shape, pair.token, pair.k)?;
    shape.moe_expert(id).map(|e| shape.moe_home(e))
}

/// Walks all pairs of a rank once (scalar walk). Fills `send_status` with the number of rows for every destination and
/// `slots` with the slots of the core's own share: MoE pairs first, then shared pairs; [`NO_SLOT`] for pairs that are not
/// sent. The slices have [`destinations`] and [`share_len`] entries.
pub fn walk(
    shape: &Shape,
    rank: RankId,
    inputs: &Inputs<'_>,
    share: &DispatchShare,
    send_status: &mut [u32],
    slots: &mut [u32],
) {
    send_status.fill(0);
    slots.fill(NO_SLOT);
    let shared_ranks = shape.shared_expert_rank_num() as usize;
    let (k, s) = (shape.k(), shape.shared_expert_num());
    let own_moe = (share.moe.end - share.moe.start) as usize;
    let (moe_slots, shared_slots) = slots.split_at_mut_checked(own_moe).unwrap_or_default();
    if s == 0 && matches!(inputs.mask, Mask::None) {
        return walk_plainly(shape, rank, inputs, &share.moe, send_status, moe_slots);
    }
    // One access for the id, and one for the mask if there is one.
    let of_pair = 1 + u64::from(!matches!(inputs.mask, Mask::None));
    let mut active_tokens = 0;
    for token in (0..shape.bs(rank)).map(Token) {
        for (k_index, &id) in (0..k).zip(inputs.ids(shape, token)) {
            accesses::add(of_pair);
            let Ok(e) = u32::try_from(id) else { continue };
            if e >= shape.moe_expert_num() || !inputs.pair_is_active(shape, token, k_index) {
                continue;
            }
            let Some(count) = send_status.get_mut(shared_ranks + e as usize) else { continue };
            set_own(moe_slots, &share.moe, token.0 * k + k_index, *count);
            *count += 1;
            accesses::add(2);
        }
        if s > 0 && inputs.token_is_active(shape, token) {
            for j in 0..s {
                set_own(shared_slots, &share.shared, token.0 * s + j, active_tokens);
            }
            active_tokens += 1;
        }
    }
    for j in 0..s {
        if let Some(count) = send_status.get_mut(shape.shared_home(rank, j).rank.index()) {
            *count = active_tokens;
        }
    }
}

/// The [`walk`] for active pairs without shared experts. Each core walks all pairs of its rank, so it must be short.
fn walk_plainly(
    shape: &Shape,
    rank: RankId,
    inputs: &Inputs<'_>,
    own: &Range<u32>,
    send_status: &mut [u32],
    slots: &mut [u32],
) {
    let counts = send_status.get_mut(shape.shared_expert_rank_num() as usize..).unwrap_or_default();
    let counts = counts.get_mut(..shape.moe_expert_num() as usize).unwrap_or_default();
    let pairs = (shape.bs(rank) * shape.k()) as usize;
    let ids = inputs.expert_ids.get(..pairs).unwrap_or_default();
    let (before, rest) = ids.split_at_checked(own.start as usize).unwrap_or_default();
    let (mine, behind) = rest.split_at_checked(slots.len()).unwrap_or_default();
    // Special experts have no count.
    let mut slot_of = |&id: &i32| match counts.get_mut(id as usize) {
        Some(count) => {
            *count += 1;
            accesses::add(2);
            *count - 1
        }
        None => NO_SLOT,
    };
    accesses::add((ids.len() + mine.len()) as u64);
    before.iter().for_each(|id| _ = slot_of(id));
    mine.iter().zip(slots).for_each(|(id, slot)| *slot = slot_of(id));
    behind.iter().for_each(|id| _ = slot_of(id));
}

/// A record that a core puts: the pair, its destination and its slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Send {
    /// Token and k index.
    pub pair: Pair,
    /// The receiving expert.
    pub home: Home,
    /// The slot among this rank's rows for that expert.
    pub slot: u32,
}

/// The sends of one core, in its order.
// Constants of all sends are read once: writes of rows through addresses would evict them from registers.
#[derive(Clone, Copy, Debug)]
pub struct Sends<'a> {
    pub(super) shape: &'a Shape,
    pub(super) rank: RankId,
    pub(super) order: SendOrder,
    moe: Part,
    shared: Part,
}

/// One half of a share, in the order of sending.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: u32,
    path: Path,
}

impl<'a> Sends<'a> {
    /// Creates the sends of `rank`, for the pairs of a share.
    #[must_use]
    pub fn new(shape: &'a Shape, rank: RankId, order: SendOrder, share: &DispatchShare) -> Self {
        let of = |part: &Range<u32>| order.path(part.end - part.start, rank);
        let [moe, shared] =
            [&share.moe, &share.shared].map(|part| Part { first: part.start, path: of(part) });
        Self { shape, rank, order, moe, shared }
    }

    /// Returns the number of pairs of the share, sent or not.
    pub(crate) const fn len(&self) -> u32 {
        self.moe_len() + self.shared.path.len()
    }

    /// Returns the number of pairs of MoE experts, which come first.
    #[inline(always)]
    pub(super) const fn moe_len(&self) -> u32 {
        self.moe.path.len()
    }

    /// Returns the sends in order, for pairs to which [`walk`] has given these `slots`.
    pub fn iter<'i>(&'i self, inputs: &'i Inputs<'_>, slots: &'i [u32]) -> impl Iterator<Item = Send> + 'i {
        (0..self.len()).filter_map(|item| self.get(inputs, slots, item))
    }

    /// Returns the first item from `item` on that is sent, and its send.
    // Inlined into the sending loop; `find_map` would be a call.
    #[inline(always)]
    pub(crate) fn next(&self, inputs: &Inputs<'_>, slots: &[u32], mut item: u32) -> Option<(u32, Send)> {
        while item < self.len() {
            if let Some(send) = self.get(inputs, slots, item) {
                return Some((item, send));
            }
            item += 1;
        }
        None
    }

    /// Returns the `item`-th pair of the core; `None` if it is not sent or there are fewer.
    #[inline(always)]
    pub(crate) fn get(&self, inputs: &Inputs<'_>, slots: &[u32], item: u32) -> Option<Send> {
        if item >= self.len() {
            return None;
        }
        let (shape, index) = (self.shape, self.index(item));
        let slot = *slots.get(index as usize)?;
        if slot == NO_SLOT {
            return None;
        }
        // A pair with a slot is active: the walk gives slots only to such pairs.
        let moe = self.moe_len();
        if item < moe {
            let i = self.moe.first + index;
            let expert = shape.moe_expert(*inputs.expert_ids.get(i as usize)?)?;
            Some(Send { pair: moe_pair(shape, i), home: shape.moe_home(expert), slot })
        } else {
            let pair = shared_pair(shape, self.shared.first + index - moe);
            Some(Send { pair, home: shape.shared_home(self.rank, pair.k - shape.k()), slot })
        }
    }

    /// Returns the index of the core's `item`-th pair in its share, and so of its slot in `slots`.
    #[inline(always)]
    pub(crate) const fn index(&self, item: u32) -> u32 {
        let moe = self.moe_len();
        if item < moe { self.moe.path.item(item) } else { moe + self.shared.path.item(item - moe) }
    }
}

/// Returns the number of entries of `slots` that a share needs.
#[must_use]
pub const fn share_len(share: &DispatchShare) -> u32 {
    share.moe.end - share.moe.start + share.shared.end - share.shared.start
}

fn set_own(slots: &mut [u32], own: &Range<u32>, pair: u32, slot: u32) {
    if let Some(i) = pair.checked_sub(own.start)
        && let Some(entry) = slots.get_mut(i as usize)
    {
        *entry = slot;
        accesses::add(1);
    }
}

#[cfg(test)]
mod tests;
