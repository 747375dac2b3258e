//! The output tensors of a rank: their capacities and the places of their elements.

use super::affine::{Index, Named};
use super::quantity::Memory;
use super::row_table;
use super::table::places;
use crate::place::{Place, Tensor};
use crate::shape::{Protocol, Shape};
use crate::units::{Pair, RankId, Token};

/// Returns the bytes that `rank` needs for `tensor`; 0 for a tensor that the shape does not have. A rank that calls no combine with
/// AddRmsNorm needs no memory for [its outputs](Tensor::is_of_norm).
#[must_use]
pub fn capacity(shape: &Shape, rank: RankId, tensor: Tensor) -> u64 {
    entries(shape, rank, tensor) * entry_bytes(shape, tensor)
}

/// Returns the maximum number of entries that `rank` writes into `tensor`: rows of a matrix, else elements.
fn entries(shape: &Shape, rank: RankId, tensor: Tensor) -> u64 {
    // TP peers gather each other's rows and counts.
    let tp = u64::from(shape.tp_world_size());
    let rows = shape.rows_max(rank) * tp;
    let tokens = u64::from(shape.bs(rank));
    match tensor {
        Tensor::DynamicScales if shape.row_format().scale.is_none() => 0,
        // The counts determine the source of each row.
        Tensor::AssistInfo if shape.protocol() == Protocol::Fullmesh => 0,
        Tensor::ExpandScales if shape.protocol() != Protocol::Hierarchy => 0,
        tensor if tensor.is_of_norm() && !shape.has_add_rms_norm() => 0,
        Tensor::RowTable | Tensor::SentRows if !row_table::is_possible(shape) => 0,
        Tensor::ExpandX | Tensor::DynamicScales | Tensor::AssistInfo | Tensor::ExpandScales => rows,
        // Direct placement has two entries for any number of rows.
        Tensor::RowTable => rows.max(2),
        Tensor::ExpandIdx => tokens * u64::from(shape.k()),
        Tensor::SentRows => tokens * u64::from(shape.combine_columns()),
        Tensor::ExpertTokenNums => shape.local_experts(rank).into(),
        Tensor::EpRecvCounts => recv_counts(shape, rank) + shape.reduce_entries(),
        Tensor::TpRecvCounts => (tp - 1) * 2,
        Tensor::XOut | Tensor::X | Tensor::Rstd | Tensor::Y => tokens,
    }
}

/// Returns the bytes of an entry of `tensor`.
#[inline(always)]
pub(super) const fn entry_bytes(shape: &Shape, tensor: Tensor) -> u64 {
    let memory = &Memory::of_any(shape);
    match tensor {
        Tensor::ExpandX => places::ExpandX(memory, [1]).offset,
        Tensor::XOut => places::XOut(memory, [1]).offset,
        Tensor::X => places::X(memory, [1]).offset,
        Tensor::Y => places::Y(memory, [1]).offset,
        _ => element_bytes(tensor),
    }
}

/// Returns the bytes of an entry that is no row of a matrix: the same in every shape.
#[inline(always)]
const fn element_bytes(tensor: Tensor) -> u64 {
    match tensor {
        Tensor::DynamicScales => const { Named::DynamicScales.stride(Index::Row) },
        Tensor::AssistInfo => const { Named::AssistInfo.stride(Index::Row) },
        Tensor::ExpandIdx => const { Named::ExpandIdx.stride(Index::K) },
        Tensor::ExpertTokenNums => const { Named::ExpertTokenNums.stride(Index::LocalExpert) },
        Tensor::EpRecvCounts => const { Named::EpRecvCounts.stride(Index::Source) },
        Tensor::TpRecvCounts => const { Named::TpRecvCounts.stride(Index::TpRank) },
        Tensor::SentRows => const { Named::SentRows.stride(Index::K) },
        Tensor::RowTable => const { Named::RowTable.stride(Index::Row) },
        Tensor::ExpandScales => const { Named::ExpandScales.stride(Index::Row) },
        Tensor::Rstd => const { Named::Rstd.stride(Index::Token) },
        _ => 4,
    }
}

/// Returns the place of entry `number` of `tensor`. Entries are numbered by received row, token, local expert, dispatch slot
/// (`ep_recv_counts`), flat pair `token * K + k` (`expand_idx`), or by [`sent_row_number`].
#[inline(always)]
pub(crate) const fn entry(shape: &Shape, tensor: Tensor, number: u32) -> Place {
    Place::output(tensor, number as u64 * entry_bytes(shape, tensor))
}

/// Returns the place of an [`entry`] that is no row of a matrix.
#[inline(always)]
pub(crate) const fn element(tensor: Tensor, number: u32) -> Place {
    Place::output(tensor, number as u64 * element_bytes(tensor))
}

/// Returns the place of row `row` of `expand_x`.
#[must_use]
pub const fn expand_x(shape: &Shape, row: u32) -> Place {
    entry(shape, Tensor::ExpandX, row)
}

/// Returns the place of the row of `x_out` for a token.
#[must_use]
pub const fn x_out(shape: &Shape, token: Token) -> Place {
    entry(shape, Tensor::XOut, token.0)
}

/// Returns the bytes of the counts in `ep_recv_counts` on `rank`. On A2 the tensor extends further, up to [`capacity`];
/// machines neither write nor read the rest.
#[must_use]
pub fn ep_recv_counts_bytes(shape: &Shape, rank: RankId) -> u64 {
    4 * recv_counts(shape, rank)
}

/// Returns the number of those counts.
fn recv_counts(shape: &Shape, rank: RankId) -> u64 {
    let slots = u64::from(shape.local_experts(rank)) * u64::from(shape.ep_world_size());
    slots * u64::from(shape.tp_world_size())
}

/// Returns the number of a pair's entry of `sent_rows` on `rank`: flat `(token, k)` pairs, then flat `(token, j)` pairs.
pub(crate) fn sent_row_number(shape: &Shape, rank: RankId, pair: Pair) -> u32 {
    match pair.k.checked_sub(shape.k()) {
        None => pair.token.0 * shape.k() + pair.k,
        Some(j) => shape.bs(rank) * shape.k() + pair.token.0 * shape.shared_expert_num() + j,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::any_config;
    use crate::shape::{BatchSizes, Config};
    use crate::testing::domain::{Domain, PAIR, shape as shape_of};
    use crate::testing::random;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_row_table_of_a_rank_that_receives_one_row_has_room_for_two_entries() {
        let shape = Domain { r: 1, e: 1, bs: 1, ..PAIR }.shape();
        assert_eq!(shape.rows_max(RankId(0)), 1);
        assert_eq!(capacity(&shape, RankId(0), Tensor::RowTable), 2 * 8);
    }

    #[test]
    fn ep_recv_counts_has_the_shape_of_the_page() {
        let bytes = |comm_alg, bs: BatchSizes<'_>| {
            let config = Config {
                comm_alg,
                moe_expert_num: 32,
                k: 2,
                h: 1024,
                bs,
                global_bs: 64,
                ..Config::default()
            };
            let shape = shape_of(&config);
            assert_eq!(ep_recv_counts_bytes(&shape, RankId(3)), 4 * 32);
            capacity(&shape, RankId(3), Tensor::EpRecvCounts)
        };
        // moeExpertNum + 2 * globalBs * K * serverNum = 32 + 2 * (4 * 16) * 2 * 2, where the largest batch counts.
        let mut uneven = [1; 16];
        uneven[5] = 4;
        for comm_alg in [Protocol::Fullmesh, Protocol::Hierarchy] {
            assert_eq!(bytes(comm_alg, BatchSizes::Uniform(4)), 4 * 544);
            assert_eq!(bytes(comm_alg, BatchSizes::PerRank(&uneven)), 4 * 544);
        }
        assert_eq!(bytes(Protocol::FullmeshV1, BatchSizes::Uniform(4)), 4 * 32);
    }

    proptest! {
        #![proptest_config(random::config(256))]

        #[test]
        fn entries_follow_each_other_from_zero_to_the_capacity(
            config in any_config(), last: bool, in_blocks: bool,
        ) {
            let comm_alg = if in_blocks { Protocol::FullmeshV2 } else { Protocol::FullmeshV1 };
            let shape = shape_of(&Config { comm_alg, ..config });
            let rank = RankId(if last { shape.ep_world_size() - 1 } else { 0 });
            let BatchSizes::Uniform(bs) = config.bs else { panic!("{config:?}") };
            let is_shared = i64::from(rank.0) < config.shared_expert_rank_num;
            let local = config.moe_expert_num / (config.ep_world_size - config.shared_expert_rank_num);
            let replicas = config.shared_expert_rank_num / config.shared_expert_num.max(1);
            let rows = if is_shared { bs * (config.ep_world_size as u64).div_ceil(replicas as u64) as i64 }
                else { bs * config.ep_world_size * local.min(config.k) };
            let experts = if is_shared { 1 } else { local };
            let payload = config.h * if config.quant_mode == 2 { 1 } else { 2 };
            let if_rows_stay = |n| if in_blocks { 0 } else { n };
            let columns = config.k + config.shared_expert_num;
            let all = [
                (Tensor::ExpandX, rows, payload),
                (Tensor::DynamicScales, if config.quant_mode == 2 { rows } else { 0 }, 4),
                (Tensor::AssistInfo, rows, 12),
                (Tensor::ExpandIdx, bs * config.k, 4),
                (Tensor::ExpertTokenNums, experts, 8),
                (Tensor::EpRecvCounts, experts * config.ep_world_size, 4),
                (Tensor::XOut, bs, 2 * config.h),
                (Tensor::X, bs, 2 * config.h),
                (Tensor::Rstd, bs, 4),
                (Tensor::Y, bs, 2 * config.h),
                // At least two entries.
                (Tensor::RowTable, if_rows_stay(rows.max(2)), 8),
                (Tensor::SentRows, if_rows_stay(bs * columns), 4),
            ];
            for (tensor, count, bytes) in all {
                for i in 0..=count as u32 {
                    let place = Place::output(tensor, u64::from(i) * bytes as u64);
                    prop_assert_eq!(entry(&shape, tensor, i), place);
                }
                prop_assert_eq!(capacity(&shape, rank, tensor), (count * bytes) as u64, "{:?}", tensor);
            }
        }

        #[test]
        fn every_pair_has_an_entry_of_sent_rows_of_its_own(config in any_config()) {
            let shape = shape_of(&config);
            let pairs = (0..shape.bs_max()).map(Token);
            let pairs = pairs.flat_map(|token| (0..shape.combine_columns()).map(move |k| Pair { token, k }));
            let mut numbers: Vec<u32> = pairs.map(|pair| sent_row_number(&shape, RankId(0), pair)).collect();
            numbers.sort_unstable();
            prop_assert!(numbers.into_iter().eq(0..shape.bs_max() * shape.combine_columns()));
        }
    }
}
