//! The bytes of a round.

use crate::backend::row_copy;
use veriep_case::case::Case;
use veriep_case::global_rank;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::plan::route;
use veriep_core::protocol::Receive;
use veriep_core::shape::{Op, Protocol, Shape};
use veriep_core::units::{Pair, Token};

/// Bytes that combine puts out for a token.
fn written_per_token(shape: &Shape, op: Op) -> u64 {
    match op {
        Op::Combine => shape.row_bytes(),
        Op::CombineAddRmsNorm => 3 * shape.row_bytes() + 4,
    }
}

/// Rows that a round sends: every active pair but those of special experts, and every active token once for each
/// shared expert.
fn rows_sent(case: &Case) -> u64 {
    let shape = &case.shape;
    let of_token = |rank, token| {
        let inputs = case.inputs(rank);
        let sent = |&k: &u32| route::home(shape, rank, &inputs, Pair { token, k }).is_some();
        (0..shape.combine_columns()).filter(sent).count() as u64
    };
    let bs = |rank| shape.bs(global_rank::ep_rank(shape, rank));
    global_rank::all(shape)
        .map(|rank| (0..bs(rank)).map(|token| of_token(rank, Token(token))).sum::<u64>())
        .sum()
}

/// How a group copies rows where that is not measured: as is asked, else as is usual for so many.
pub fn unmeasured(case: &Case, receive: Receive, asked: Option<RowCopy>) -> RowCopy {
    asked.unwrap_or_else(|| row_copy::usual(Bytes::of(case).resident(receive)))
}

/// Bytes of a round, all ranks together.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// That a round sends.
    pub rows: u64,
    /// Of the rows that dispatch sends.
    pub payload: u64,
    /// Of the rows that combine returns.
    pub results: u64,
    /// Of what combine puts out.
    pub written: u64,
    /// With an agent every row goes by way of the window that it sends.
    has_agents: bool,
}

impl Bytes {
    pub fn of(case: &Case) -> Self {
        let shape = &case.shape;
        let rows = rows_sent(case);
        let tokens: u64 =
            global_rank::all(shape).map(|rank| u64::from(shape.bs(global_rank::ep_rank(shape, rank)))).sum();
        // In a hierarchy int8 crosses between servers alone.
        let is_hierarchy = shape.protocol() == Protocol::Hierarchy;
        let result = if is_hierarchy { shape.row_bytes() } else { shape.result_bytes() };
        Self {
            rows,
            payload: rows * shape.payload_bytes(),
            results: rows * result,
            written: tokens * written_per_token(shape, case.config.operator()),
            has_agents: shape.protocol() == Protocol::Fullmesh,
        }
    }

    /// Of the memory that dispatch's rows stay in. In `copy` mode they leave the window while they are in the caches.
    pub fn resident(&self, receive: Receive) -> u64 {
        // Records stay in two partitions.
        let stay = receive.keeps_rows() && !receive.is_direct();
        if stay { 2 * self.payload } else { self.payload }
    }

    /// What dispatch and combine must copy.
    pub fn moved(&self, receive: Receive) -> (u64, u64) {
        // Into the window and out of it.
        let copies = |once| if once { 1 } else { 2 + u64::from(self.has_agents) };
        let results = copies(receive.is_direct()) * self.results;
        (copies(receive.keeps_rows()) * self.payload, results + self.written)
    }
}
