//! The rows that a rank has received, as its experts find them between dispatch and combine.

use super::kit::entry;
use crate::fabric::{ProtocolError, Result};
use crate::shape::Shape;
use crate::units::RankId;
use core::ops::Range;

/// Returns the number of rows that `rank` holds after dispatch, with a TP domain those of its peer too, by its output
/// `ep_recv_counts`, little-endian.
///
/// # Errors
/// A count is missing or above the maximum of the shape.
pub fn received_rows(shape: &Shape, rank: RankId, ep_recv_counts: &[u8]) -> Result<u32, ProtocolError> {
    let own = shape.local_experts(rank).saturating_mul(shape.ep_world_size());
    let mut rows = rows_before(shape, rank, own, ep_recv_counts, 0)?;
    if shape.tp_world_size() > 1 {
        rows = rows.saturating_add(rows_before(shape, rank, own.saturating_mul(2), ep_recv_counts, 0)?);
    }
    Ok(rows)
}

/// Returns which of these rows are for `local_expert` of the rank; none for an expert that it does not have.
///
/// # Errors
/// A count is missing, falls, or is above the maximum of the shape.
pub fn expert_rows(
    shape: &Shape,
    rank: RankId,
    local_expert: u32,
    ep_recv_counts: &[u8],
) -> Result<Range<u32>, ProtocolError> {
    if local_expert >= shape.local_experts(rank) {
        return Ok(0..0);
    }
    if shape.tp_world_size() > 1 {
        // The rank has one expert: the peer's rows follow its own.
        return Ok(0..received_rows(shape, rank, ep_recv_counts)?);
    }
    let first = local_expert.saturating_mul(shape.ep_world_size());
    let start = rows_before(shape, rank, first, ep_recv_counts, 0)?;
    let next = first.saturating_add(shape.ep_world_size());
    Ok(start..rows_before(shape, rank, next, ep_recv_counts, start)?)
}

/// Returns the rows of all slots before `slot`, which must be at least `min`: counts are prefix sums.
fn rows_before(shape: &Shape, rank: RankId, slot: u32, ep_recv_counts: &[u8], min: u32) -> Result<u32> {
    let Some(slot) = slot.checked_sub(1) else { return Ok(0) };
    let seen = entry(ep_recv_counts, slot as usize);
    let max = u32::try_from(shape.rows_max(rank)).unwrap_or(u32::MAX);
    match u32::try_from(seen) {
        Ok(rows) if (min..=max).contains(&rows) => Ok(rows),
        _ => Err(ProtocolError::RecvCount { slot, seen: seen.into(), min, max }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Config;
    use crate::testing::domain::{Domain, PAIR, shape as shape_of};
    use alloc::vec::Vec;

    fn bytes(counts: &[i32]) -> Vec<u8> {
        counts.iter().flat_map(|count| count.to_le_bytes()).collect()
    }

    #[test]
    fn rows_of_experts_lie_between_the_sums_of_their_last_sources() {
        let shape = Domain { r: 3, e: 6, k: 2, bs: 4, ..PAIR }.shape();
        let of = |expert, counts: &[i32]| expert_rows(&shape, RankId(1), expert, &bytes(counts));
        let counts = [1, 1, 3, 3, 5, 7];
        assert_eq!(received_rows(&shape, RankId(1), &bytes(&counts)), Ok(7));
        assert_eq!([of(0, &counts), of(1, &counts), of(2, &counts)], [Ok(0..3), Ok(3..7), Ok(0..0)]);

        let max = shape.rows_max(RankId(1)) as u32;
        let wrong = |slot, seen, min| Err(ProtocolError::RecvCount { slot, seen, min, max });
        assert_eq!(of(1, &[1, 1, 3, 3, 5, 2]), wrong(5, 2, 3));
        assert_eq!(of(0, &[1, 1, 99]), wrong(2, 99, 0));
        assert_eq!(of(1, &counts[..5]), wrong(5, -1, 3));
        assert_eq!(received_rows(&shape, RankId(1), &[]).err(), wrong(5, -1, 0).err());
    }

    #[test]
    fn rows_of_a_tp_peer_belong_to_the_one_expert() {
        let config = Config { tp_world_size: 2, ..Domain { r: 2, e: 2, k: 1, bs: 4, ..PAIR }.config() };
        let shape = shape_of(&config);
        let counts = bytes(&[1, 3, 0, 4]);
        assert_eq!(received_rows(&shape, RankId(0), &counts), Ok(7));
        assert_eq!(expert_rows(&shape, RankId(0), 0, &counts), Ok(0..7));
    }
}
