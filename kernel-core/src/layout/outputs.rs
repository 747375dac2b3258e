//! The output tensors of a rank: their capacities and the places of their elements.

use super::record::Triple;
use super::row_table;
use crate::place::{Place, Tensor};
use crate::plan::route::Pair;
use crate::shape::{CommAlg, Op, QuantMode, Shape};
use crate::units::{RankId, Token};

/// Bytes that `rank` needs for `tensor`; 0 for a tensor that the shape does not have.
#[must_use]
pub fn capacity(shape: &Shape, rank: RankId, tensor: Tensor) -> u64 {
    // TP peers gather each other's rows and counts.
    let tp = u64::from(shape.tp_world_size());
    let rows = shape.rows_max(rank) * tp;
    let local_experts = u64::from(shape.local_experts(rank));
    let tokens = u64::from(shape.bs(rank));
    match tensor {
        Tensor::ExpandX => rows * shape.payload_bytes(),
        Tensor::DynamicScales => match shape.quant_mode() {
            QuantMode::None => 0,
            QuantMode::Dynamic => rows * 4,
        },
        Tensor::AssistInfo => match shape.comm_alg() {
            // Combine knows by counts whose rows they are.
            CommAlg::Fullmesh => 0,
            _ => rows * Triple::BYTES,
        },
        Tensor::ExpandScales => match shape.comm_alg() {
            CommAlg::Hierarchy => rows * 4,
            _ => 0,
        },
        Tensor::ExpandIdx => tokens * u64::from(shape.k()) * 4,
        Tensor::ExpertTokenNums => local_experts * 8,
        Tensor::EpRecvCounts => local_experts * u64::from(shape.ep_world_size()) * 4 * tp,
        Tensor::XOut => tokens * shape.row_bytes(),
        Tensor::TpRecvCounts => (tp - 1) * 2 * 4,
        Tensor::X | Tensor::Rstd | Tensor::Y if shape.op() == Op::Combine => 0,
        Tensor::X | Tensor::Y => tokens * shape.row_bytes(),
        Tensor::Rstd => tokens * 4,
        Tensor::RowTable | Tensor::SentRows if !row_table::is_possible(shape) => 0,
        // Direct placement has two entries, however few rows there are.
        Tensor::RowTable => rows.max(2) * row_table::ENTRY,
        Tensor::SentRows => tokens * u64::from(shape.combine_columns()) * 4,
    }
}

/// Row `row` of `expand_x`.
#[must_use]
pub const fn expand_x(shape: &Shape, row: u32) -> Place {
    Place::output(Tensor::ExpandX, row as u64 * shape.payload_bytes())
}

/// Entry `row` of `dynamic_scales`.
#[must_use]
pub const fn dynamic_scale(row: u32) -> Place {
    Place::output(Tensor::DynamicScales, row as u64 * 4)
}

/// Entry `row` of `assist_info_for_combine`.
#[must_use]
pub const fn assist_info(row: u32) -> Place {
    Place::output(Tensor::AssistInfo, row as u64 * Triple::BYTES)
}

/// Entry `row` of `expand_scales`.
#[must_use]
pub const fn expand_scale(row: u32) -> Place {
    Place::output(Tensor::ExpandScales, row as u64 * 4)
}

/// Entry `row` of the row table.
#[must_use]
pub const fn row_table(row: u32) -> Place {
    Place::output(Tensor::RowTable, row as u64 * row_table::ENTRY)
}

/// Number of an entry of `sent_rows` on `rank`: flat `(token, k)` pairs, then flat `(token, j)` pairs.
#[must_use]
pub fn sent_row_number(shape: &Shape, rank: RankId, pair: Pair) -> u32 {
    match pair.k.checked_sub(shape.k()) {
        None => pair.token.0 * shape.k() + pair.k,
        Some(j) => shape.bs(rank) * shape.k() + pair.token.0 * shape.shared_expert_num() + j,
    }
}

/// Entry of `sent_rows` by its number.
#[must_use]
pub const fn sent_row(number: u32) -> Place {
    Place::output(Tensor::SentRows, number as u64 * 4)
}

/// Entry of `expand_idx` for flat pair `pair = token * K + k`.
#[must_use]
pub const fn expand_idx(pair: u32) -> Place {
    Place::output(Tensor::ExpandIdx, pair as u64 * 4)
}

/// Entry of `expert_token_nums` for a local expert.
#[must_use]
pub const fn expert_token_num(local_expert: u32) -> Place {
    Place::output(Tensor::ExpertTokenNums, local_expert as u64 * 8)
}

/// Entry of `ep_recv_counts` for dispatch slot `slot`.
#[must_use]
pub const fn ep_recv_count(slot: u32) -> Place {
    Place::output(Tensor::EpRecvCounts, slot as u64 * 4)
}

/// `tp_recv_counts`, both entries.
#[must_use]
pub const fn tp_recv_counts() -> Place {
    Place::output(Tensor::TpRecvCounts, 0)
}

/// Row of `x_out` for a token.
#[must_use]
pub const fn x_out(shape: &Shape, token: Token) -> Place {
    Place::output(Tensor::XOut, token.0 as u64 * shape.row_bytes())
}

/// Row of AddRmsNorm's `x` for a token.
#[must_use]
pub const fn x(shape: &Shape, token: Token) -> Place {
    Place::output(Tensor::X, token.0 as u64 * shape.row_bytes())
}

/// Entry of `rstd` for a token.
#[must_use]
pub const fn rstd(token: Token) -> Place {
    Place::output(Tensor::Rstd, token.0 as u64 * 4)
}

/// Row of `y` for a token.
#[must_use]
pub const fn y(shape: &Shape, token: Token) -> Place {
    Place::output(Tensor::Y, token.0 as u64 * shape.row_bytes())
}
