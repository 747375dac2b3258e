//! Slots by a table and vector additions (910C guide, section 2.2), as an alternative to the scalar walk of [`super::route`].
//!
//! The scalar unit only marks the destinations of each token in a table of 0 and 1 (CANN: `tableLocalTensor[BS,
//! moeExpertRankNum]`). Adding the table's rows one after the other, whole rows at a time, gives for each destination the
//! number of rows before a token, which is the slot of that token's pair (CANN: `expertCountTensor`), and in the end
//! `send_status` (CANN: `statusTensor`).
//!
//! The scalar unit accesses its scratch `5 * BS * K` times in the walk of a core that owns all pairs (read the id, the mask
//! and the count, write the count and the slot), 4 times per pair without a mask. Marking the table takes `2 * BS * K`
//! accesses (read the id, write the mark), 3 per pair with a mask. The slots of the core's own share take 4 each (read id,
//! mark and count, write the slot), 5 with a mask; the `BS` additions of `Rs + E` counts are the vector unit's. A test counts them all.
//!
//! The machines walk, in every shape. On a processor (x86-64, one of eight cores, K 8, BS 48, E 256) the walk takes 0.16
//! microseconds and the table 1.6; with E 8, where the table is shortest, 0.17 and 0.53. Where pairs are masked
//! individually the walk takes 0.68 and the table 1.7; with up to 32 experts the walk takes 0.68 to 0.83, the table 0.66 to
//! 0.75, which does not justify scratch of another size. (`the_walk_and_the_table_by_the_clock` measures it.) The table is
//! for firmware whose scalar unit is as slow as the seed's, at 8 ns an access.

use super::accesses;
use super::route::{self, NO_SLOT, share_len};
use super::split::DispatchShare;
use crate::inputs::{Inputs, Mask};
use crate::shape::Shape;
use crate::units::{RankId, Token, div_rem};

/// Returns the bytes that the table of `rank` needs: one for each token and destination.
#[must_use]
pub fn table_len(shape: &Shape, rank: RankId) -> usize {
    shape.bs(rank) as usize * route::destinations(shape) as usize
}

/// The scalar part: marks in `table`, [`table_len`] bytes, token by token, the destinations of its active pairs.
/// A token has at most one active pair for a destination, since their ids are distinct.
pub fn mark(shape: &Shape, rank: RankId, inputs: &Inputs<'_>, table: &mut [u8]) {
    table.fill(0);
    let shared_ranks = shape.shared_expert_rank_num();
    for (token, row) in rows_mut(shape, table) {
        for (k, &id) in (0..shape.k()).zip(inputs.ids(shape, token)) {
            accesses::add(1 + u64::from(!matches!(inputs.mask, Mask::None)));
            // Special experts follow the last destination and have no column.
            if let Ok(e) = u32::try_from(id)
                && inputs.pair_is_active(shape, token, k)
                && let Some(entry) = row.get_mut((shared_ranks + e) as usize)
            {
                *entry = 1;
                accesses::add(1);
            }
        }
        for j in (0..shape.shared_expert_num()).filter(|_| inputs.token_is_active(shape, token)) {
            if let Some(entry) = row.get_mut(shape.shared_home(rank, j).rank.index()) {
                *entry = 1;
            }
        }
    }
}

/// The vector part: adds up the rows of a marked table into `send_status`, and reads off the slots of the core's own share.
/// Both results equal those of [`route::walk`].
pub fn add_up(
    shape: &Shape,
    rank: RankId,
    inputs: &Inputs<'_>,
    share: &DispatchShare,
    table: &[u8],
    send_status: &mut [u32],
    slots: &mut [u32],
) {
    send_status.fill(0);
    slots.fill(NO_SLOT);
    let own_moe = share_len(&DispatchShare { shared: 0..0, ..share.clone() });
    let shared_ranks = shape.shared_expert_rank_num();
    for (token, row) in rows(shape, table) {
        let slot_at = |destination: u32, send_status: &[u32]| {
            accesses::add(2);
            let marked = *row.get(destination as usize)? == 1;
            send_status.get(destination as usize).copied().filter(|_| marked)
        };
        for pair in own(&share.moe, token, shape.k()) {
            let (_, k) = div_rem(pair, shape.k());
            accesses::add(1 + u64::from(!matches!(inputs.mask, Mask::None)));
            let id = inputs.id(shape, token, k).filter(|_| inputs.pair_is_active(shape, token, k));
            let id = id.and_then(|id| u32::try_from(id).ok());
            // A mark does not name its pair, but the ids of a token's active pairs are distinct, so it is this one.
            let slot = id.and_then(|e| slot_at(shared_ranks + e, send_status));
            set(slots, pair - share.moe.start, slot);
        }
        for pair in own(&share.shared, token, shape.shared_expert_num()) {
            let (_, j) = div_rem(pair, shape.shared_expert_num());
            let slot = slot_at(shape.shared_home(rank, j).rank.0, send_status);
            set(slots, own_moe + pair - share.shared.start, slot);
        }
        for (count, &mark) in send_status.iter_mut().zip(row) {
            *count += u32::from(mark);
        }
    }
}

/// Returns the pairs of `token`, `columns` each, that are in a share.
fn own(share: &core::ops::Range<u32>, token: Token, columns: u32) -> core::ops::Range<u32> {
    let start = token.0 * columns;
    start.max(share.start)..(start + columns).min(share.end)
}

fn set(slots: &mut [u32], index: u32, slot: Option<u32>) {
    if let (Some(entry), Some(slot)) = (slots.get_mut(index as usize), slot) {
        *entry = slot;
        accesses::add(1);
    }
}

fn rows<'t>(shape: &Shape, table: &'t [u8]) -> impl Iterator<Item = (Token, &'t [u8])> {
    (0..).map(Token).zip(table.chunks_exact(route::destinations(shape).max(1) as usize))
}

fn rows_mut<'t>(shape: &Shape, table: &'t mut [u8]) -> impl Iterator<Item = (Token, &'t mut [u8])> {
    (0..).map(Token).zip(table.chunks_exact_mut(route::destinations(shape).max(1) as usize))
}
