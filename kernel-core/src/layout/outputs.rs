//! The output tensors of a rank: their capacities and the places of their elements.

use super::record::Triple;
use super::row_table;
use crate::place::{Place, Tensor};
use crate::shape::{Op, Protocol, Shape};
use crate::units::{Pair, RankId, Token};

/// Returns the bytes that `rank` needs for `tensor`; 0 for a tensor that the shape does not have.
#[must_use]
pub fn capacity(shape: &Shape, rank: RankId, tensor: Tensor) -> u64 {
    // TP peers gather each other's rows and counts.
    let tp = u64::from(shape.tp_world_size());
    let rows = shape.rows_max(rank) * tp;
    let local_experts = u64::from(shape.local_experts(rank));
    let tokens = u64::from(shape.bs(rank));
    match tensor {
        Tensor::ExpandX => rows * shape.payload_bytes(),
        Tensor::DynamicScales if shape.row_format().scale.is_none() => 0,
        Tensor::DynamicScales => rows * 4,
        Tensor::AssistInfo => match shape.protocol() {
            // The counts determine the source of each row.
            Protocol::Fullmesh => 0,
            _ => rows * Triple::BYTES,
        },
        Tensor::ExpandScales => match shape.protocol() {
            Protocol::Hierarchy => rows * 4,
            _ => 0,
        },
        Tensor::ExpandIdx => tokens * u64::from(shape.k()) * 4,
        Tensor::ExpertTokenNums => local_experts * 8,
        Tensor::EpRecvCounts => ep_recv_counts_bytes(shape, rank) + 4 * shape.reduce_entries(),
        Tensor::XOut => tokens * shape.row_bytes(),
        Tensor::TpRecvCounts => (tp - 1) * 2 * 4,
        Tensor::X | Tensor::Rstd | Tensor::Y if shape.op() == Op::Combine => 0,
        Tensor::X | Tensor::Y => tokens * shape.row_bytes(),
        Tensor::Rstd => tokens * 4,
        Tensor::RowTable | Tensor::SentRows if !row_table::is_possible(shape) => 0,
        // Direct placement has two entries for any number of rows.
        Tensor::RowTable => rows.max(2) * row_table::ENTRY,
        Tensor::SentRows => tokens * u64::from(shape.combine_columns()) * 4,
    }
}

/// Returns the bytes of the counts in `ep_recv_counts` on `rank`. On A2 the tensor extends further, up to [`capacity`];
/// machines neither write nor read the rest.
#[must_use]
pub fn ep_recv_counts_bytes(shape: &Shape, rank: RankId) -> u64 {
    let slots = u64::from(shape.local_experts(rank)) * u64::from(shape.ep_world_size());
    4 * slots * u64::from(shape.tp_world_size())
}

/// Returns the place of row `row` of `expand_x`.
#[must_use]
pub const fn expand_x(shape: &Shape, row: u32) -> Place {
    Place::output(Tensor::ExpandX, row as u64 * shape.payload_bytes())
}

/// Returns the place of entry `row` of `dynamic_scales`.
#[must_use]
pub(crate) const fn dynamic_scale(row: u32) -> Place {
    Place::output(Tensor::DynamicScales, row as u64 * 4)
}

/// Returns the place of entry `row` of `assist_info_for_combine`.
#[must_use]
pub(crate) const fn assist_info(row: u32) -> Place {
    Place::output(Tensor::AssistInfo, row as u64 * Triple::BYTES)
}

/// Returns the place of entry `row` of `expand_scales`.
#[must_use]
pub(crate) const fn expand_scale(row: u32) -> Place {
    Place::output(Tensor::ExpandScales, row as u64 * 4)
}

/// Returns the place of entry `row` of the row table.
#[must_use]
pub(crate) const fn row_table(row: u32) -> Place {
    Place::output(Tensor::RowTable, row as u64 * row_table::ENTRY)
}

/// Returns the number of a pair's entry of `sent_rows` on `rank`: flat `(token, k)` pairs, then flat `(token, j)` pairs.
#[must_use]
pub(crate) fn sent_row_number(shape: &Shape, rank: RankId, pair: Pair) -> u32 {
    match pair.k.checked_sub(shape.k()) {
        None => pair.token.0 * shape.k() + pair.k,
        Some(j) => shape.bs(rank) * shape.k() + pair.token.0 * shape.shared_expert_num() + j,
    }
}

/// Returns the place of an entry of `sent_rows` by its number.
#[must_use]
pub(crate) const fn sent_row(number: u32) -> Place {
    Place::output(Tensor::SentRows, number as u64 * 4)
}

/// Returns the place of the entry of `expand_idx` for flat pair `pair = token * K + k`.
#[must_use]
pub(crate) const fn expand_idx(pair: u32) -> Place {
    Place::output(Tensor::ExpandIdx, pair as u64 * 4)
}

/// Returns the place of the entry of `expert_token_nums` for a local expert.
#[must_use]
pub(crate) const fn expert_token_num(local_expert: u32) -> Place {
    Place::output(Tensor::ExpertTokenNums, local_expert as u64 * 8)
}

/// Returns the place of the entry of `ep_recv_counts` for dispatch slot `slot`.
#[must_use]
pub(crate) const fn ep_recv_count(slot: u32) -> Place {
    Place::output(Tensor::EpRecvCounts, slot as u64 * 4)
}

/// Returns the place of `tp_recv_counts`, both entries.
#[must_use]
pub(crate) const fn tp_recv_counts() -> Place {
    Place::output(Tensor::TpRecvCounts, 0)
}

/// Returns the place of the row of `x_out` for a token.
#[must_use]
pub const fn x_out(shape: &Shape, token: Token) -> Place {
    Place::output(Tensor::XOut, token.0 as u64 * shape.row_bytes())
}

/// Returns the place of the row of AddRmsNorm's `x` for a token.
#[must_use]
pub(crate) const fn x(shape: &Shape, token: Token) -> Place {
    Place::output(Tensor::X, token.0 as u64 * shape.row_bytes())
}

/// Returns the place of the entry of `rstd` for a token.
#[must_use]
pub(crate) const fn rstd(token: Token) -> Place {
    Place::output(Tensor::Rstd, token.0 as u64 * 4)
}

/// Returns the place of the row of `y` for a token.
#[must_use]
pub(crate) const fn y(shape: &Shape, token: Token) -> Place {
    Place::output(Tensor::Y, token.0 as u64 * shape.row_bytes())
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
            config in any_config(), last: bool, norm: bool, in_blocks: bool,
        ) {
            let op = if norm { Op::CombineAddRmsNorm } else { Op::Combine };
            let comm_alg = if in_blocks { Protocol::FullmeshV2 } else { Protocol::FullmeshV1 };
            let shape = shape_of(&Config { op, comm_alg, ..config });
            let rank = RankId(if last { shape.ep_world_size() - 1 } else { 0 });
            let BatchSizes::Uniform(bs) = config.bs else { panic!("{config:?}") };
            let is_shared = i64::from(rank.0) < config.shared_expert_rank_num;
            let local = config.moe_expert_num / (config.ep_world_size - config.shared_expert_rank_num);
            let replicas = config.shared_expert_rank_num / config.shared_expert_num.max(1);
            let rows = if is_shared { bs * (config.ep_world_size as u64).div_ceil(replicas as u64) as i64 }
                else { bs * config.ep_world_size * local.min(config.k) };
            let experts = if is_shared { 1 } else { local };
            let payload = config.h * if config.quant_mode == 2 { 1 } else { 2 };
            let if_norm = |n| if norm { n } else { 0 };
            let if_rows_stay = |n| if in_blocks { 0 } else { n };
            let of = |at: &dyn Fn(u32) -> Place, count: i64, bytes: i64| {
                let places: Vec<Place> = (0..=count as u32).map(at).collect();
                (places, bytes as u64)
            };
            let columns = config.k + config.shared_expert_num;
            let all = [
                of(&|i| expand_x(&shape, i), rows, payload),
                of(&dynamic_scale, if config.quant_mode == 2 { rows } else { 0 }, 4),
                of(&assist_info, rows, 12),
                of(&expand_idx, bs * config.k, 4),
                of(&expert_token_num, experts, 8),
                of(&ep_recv_count, experts * config.ep_world_size, 4),
                of(&|i| x_out(&shape, Token(i)), bs, 2 * config.h),
                of(&|i| x(&shape, Token(i)), if_norm(bs), 2 * config.h),
                of(&|i| rstd(Token(i)), if_norm(bs), 4),
                of(&|i| y(&shape, Token(i)), if_norm(bs), 2 * config.h),
                // At least two entries.
                of(&row_table, if_rows_stay(rows.max(2)), 8),
                of(&sent_row, if_rows_stay(bs * columns), 4),
            ];
            for (places, bytes) in all {
                let tensor = match places[0].region {
                    crate::place::Region::Output(tensor) => tensor,
                    region => panic!("{region:?} is no output"),
                };
                for (i, place) in (0..).zip(&places) {
                    prop_assert_eq!(*place, Place::output(tensor, i * bytes));
                }
                let end = (places.len() as u64 - 1) * bytes;
                prop_assert_eq!(capacity(&shape, rank, tensor), end, "{:?}", tensor);
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
