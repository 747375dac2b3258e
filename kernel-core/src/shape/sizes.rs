//! Sizes that follow from a shape: rows, records, areas, capacities. Each formula stands here once;
//! `layout` only adds where things lie.

use super::{QuantMode, Shape};
use crate::units::{RankId, align_up, div_ceil, div_rem};

/// Bytes of the scale field of a token record (an f32 in its first four).
pub(crate) const SCALE_FIELD: u64 = 32;
/// Bytes of the triple of a token record: source rank, token, k index as i32.
pub(crate) const TRIPLE: u64 = 12;
/// Data slots start at multiples of this.
pub(crate) const SLOT_ALIGN: u64 = 512;

impl Shape {
    /// Bytes of one token or result in [`Dtype`](super::Dtype): `2 * H`.
    #[must_use]
    pub const fn row_bytes(&self) -> u64 {
        2 * self.h as u64
    }

    /// Bytes of one dispatched row: `2 * H`, or `H` when quantised.
    #[must_use]
    pub const fn payload_bytes(&self) -> u64 {
        match self.quant_mode {
            QuantMode::None => self.row_bytes(),
            QuantMode::Dynamic => self.h as u64,
        }
    }

    /// Local experts of a rank: L, or 1 on a shared-expert rank.
    #[must_use]
    pub const fn local_experts(&self, rank: RankId) -> u32 {
        if rank.0 < self.shared_expert_rank_num { 1 } else { self.local_expert_num }
    }

    /// Replicas of each shared expert: `Rs / S`; 0 when no rank holds shared experts.
    #[must_use]
    pub const fn shared_replicas(&self) -> u32 {
        if self.shared_expert_num == 0 {
            0
        } else {
            div_rem(self.shared_expert_rank_num, self.shared_expert_num).0
        }
    }

    /// A: the most rows a rank can receive (seed 003: `A`; the division rounds up).
    #[must_use]
    pub fn rows_max(&self, rank: RankId) -> u64 {
        let (bs, ranks) = (u64::from(self.bs_max), u64::from(self.ep_world_size));
        if rank.0 < self.shared_expert_rank_num {
            bs * div_ceil(ranks, u64::from(self.shared_replicas()))
        } else {
            bs * ranks * u64::from(self.local_expert_num.min(self.k))
        }
    }

    /// Columns of the combine area: `K + S`.
    #[must_use]
    pub const fn combine_columns(&self) -> u32 {
        self.k + self.shared_expert_num
    }
}

impl Shape {
    /// Bytes between two token records of the dispatch area.
    #[must_use]
    pub const fn record_pitch(&self) -> u64 {
        record_pitch(self.payload_bytes())
    }

    /// Bytes between two rows of the combine area.
    #[must_use]
    pub const fn combine_pitch(&self) -> u64 {
        combine_pitch(self.row_bytes())
    }

    /// Bytes of the combine area of one partition (A3).
    #[must_use]
    pub const fn combine_area(&self) -> u64 {
        self.bs_max as u64 * self.combine_columns() as u64 * self.combine_pitch()
    }

    /// Bytes of the data region, `hccl_buffsize_mb`.
    #[must_use]
    pub const fn window_bytes(&self) -> u64 {
        (self.hccl_buffsize_mb as u64) << 20
    }
}

/// Bytes between two token records whose data is `payload` bytes long.
pub(crate) const fn record_pitch(payload: u64) -> u64 {
    align_up(align_up(payload, 32) + SCALE_FIELD + TRIPLE, SLOT_ALIGN)
}

/// Bytes between two result rows of `row` bytes.
pub(crate) const fn combine_pitch(row: u64) -> u64 {
    align_up(row, SLOT_ALIGN)
}

/// What the windows need and have, in whole MiB (seed 003: `HCCL_BUFFSIZE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The smallest whole MiB that holds the windows.
    pub required_mb: u64,
    /// `hccl_buffsize_mb` as given.
    pub configured_mb: i64,
    /// The largest uniform `bs` that fits `configured_mb`; 0 if none does.
    pub max_bs: u64,
}
