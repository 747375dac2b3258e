//! Sizes that follow from a shape: rows, records, areas, capacities. Each formula is here once; `layout` adds places.

use super::{Product, Protocol, RowFormat, Shape};
use crate::units::{Divisor, RankId, align_up, div_ceil, div_floor, div_rem};

/// Bytes of the scale field of a token record (an f32 in its first four).
pub(crate) const SCALE_FIELD: u64 = 32;
/// Bytes of the triple of a token record: source rank, token, k index as i32.
pub(crate) const TRIPLE: u64 = 12;
/// Elements of a block of an int8 combine row that share a scale; the last block may be shorter.
pub(crate) const COMM_BLOCK: u64 = 8;
/// Data slots start at multiples of this.
pub(crate) const SLOT_ALIGN: u64 = 512;
/// The number of payload bytes of a fullmesh_v2 block; its flag field follows them.
pub const BLOCK_PAYLOAD: u64 = 480;
/// Bytes of a fullmesh_v2 block.
pub(crate) const BLOCK: u64 = 512;
/// The length in bytes of scale and triple of a row that is placed directly.
pub const LANDING_INFO: u64 = 4 + TRIPLE;
/// The length of a status slot in bytes (A3).
pub const STATUS_SLOT: u64 = 32;
/// The length in bytes of the dispatch status area of a partition (A3).
pub const DISPATCH_STATUS: u64 = 64 << 10;
/// The length in bytes of the combine status area of a partition (A3).
pub const COMBINE_STATUS: u64 = 320 << 10;
/// Bytes of counts, FLAG1 and padding before the records of a window, and of the gap after them (A2 fullmesh).
pub(crate) const WINDOW_HEAD: u64 = 512;
/// The alignment in bytes of the last flag of a window (A2 fullmesh).
pub(crate) const FLAG_STEP: u64 = 32;
/// Bytes at the end of each half that belong to no window (A2 fullmesh).
pub(crate) const HALF_TAIL: u64 = 1 << 20;
/// Ranks of a server (A2); models may have fewer.
pub(crate) const SERVER_RANKS: u64 = 8;
/// The number of counts of one partition in the words area: one for each (local expert, source) (A2 hierarchy).
pub(crate) const COUNT_WORDS: u64 = 1 << 15;
/// Bytes of the relay area of one partition (A2 hierarchy).
pub(crate) const RELAY_AREA: u64 = 51 << 20;
/// Bytes after the records of one server, of which the last word is their end flag where an agent sends them.
pub(crate) const STREAM_END: u64 = 64;

/// Numbers that follow from a shape and are used by every step, computed once by validation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Derived {
    by_ranks: Divisor,
    by_local_experts: Divisor,
    by_replicas: Divisor,
    by_k: Divisor,
    by_shared: Divisor,
    by_cores: Divisor,
    by_server_ranks: Divisor,
    record_scale_at: u64,
    record_pitch: u64,
    combine_pitch: u64,
    combine_area: u64,
    /// On a shared-expert rank, and on any other.
    rows_max: [u64; 2],
    landing: [Landing; 2],
    pub(super) fingerprint: u64,
}

/// The parts of an area of direct placement: their offsets after the rows, and the area's size, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Landing {
    /// Scales and triples of the received rows.
    pub(crate) infos: u64,
    /// The results of the experts.
    pub(crate) results: u64,
    /// The whole area.
    pub(crate) bytes: u64,
}

/// Declares functions of a shape that divide by one of its numbers.
macro_rules! divisions {
    ($($(#[$about:meta])* $by:ident,)*) => {
        impl Shape {
            $(
                $(#[$about])*
                #[inline]
                pub(crate) const fn $by(&self, i: u32) -> (u32, u32) {
                    self.derived.$by.div_rem(i)
                }
            )*
        }
    };
}

divisions! {
    /// Returns `i` divided by R: the local expert and source of a slot, for example.
    by_ranks,
    /// Returns `i` divided by L.
    by_local_experts,
    /// Returns `i` divided by the replicas of a shared expert.
    by_replicas,
    /// Returns `i` divided by K.
    by_k,
    /// Returns `i` divided by S.
    by_shared,
    /// Returns `i` divided by the cores of a rank.
    by_cores,
    /// Returns `i` divided by the ranks of a server.
    by_server_ranks,
}

impl Shape {
    /// Sets the numbers that follow from the rest.
    pub(super) fn derive(&mut self) {
        let (bs, ranks) = (u64::from(self.bs_max), u64::from(self.ep_world_size));
        let rows_max = match self.kept {
            Some(kept) => [kept.rows_max; 2],
            None => [
                bs * div_ceil(ranks, u64::from(self.shared_replicas())),
                bs * ranks * u64::from(self.local_expert_num.min(self.k)),
            ],
        };
        let landing = |rows: u64| {
            let part = |bytes: u64| align_up(rows.saturating_mul(bytes), SLOT_ALIGN);
            let infos = part(self.payload_bytes());
            let results = infos.saturating_add(part(LANDING_INFO));
            Landing { infos, results, bytes: results.saturating_add(part(self.row_bytes())) }
        };
        let combine_pitch = combine_pitch(self.row_bytes(), self.port_offset());
        self.derived = Derived {
            by_ranks: Divisor::new(self.ep_world_size),
            by_local_experts: Divisor::new(self.local_expert_num),
            by_replicas: Divisor::new(self.shared_replicas()),
            by_k: Divisor::new(self.k),
            by_shared: Divisor::new(self.shared_expert_num),
            by_cores: Divisor::new(self.aiv_num),
            by_server_ranks: Divisor::new(self.server_ranks),
            record_scale_at: record_scale_at(self.payload_bytes()),
            record_pitch: match self.comm_alg {
                Protocol::FullmeshV2 => block_record_pitch(self.payload_bytes()),
                _ => record_pitch(self.payload_bytes()),
            },
            combine_pitch,
            combine_area: bs.saturating_mul(self.combine_columns().into()).saturating_mul(combine_pitch),
            rows_max,
            landing: rows_max.map(landing),
            fingerprint: self.hash_of_fields(),
        };
    }

    /// Returns the parts of an area of direct placement on `rank`.
    #[inline]
    pub(crate) const fn landing(&self, rank: RankId) -> &Landing {
        let [on_shared, on_moe] = &self.derived.landing;
        if rank.0 < self.shared_expert_rank_num { on_shared } else { on_moe }
    }

    /// Returns the bytes of one token or result in [`Dtype`](super::Dtype): `2 * H`.
    #[must_use]
    pub const fn row_bytes(&self) -> u64 {
        2 * self.h as u64
    }

    /// Returns the bytes of one dispatched row without its scale.
    #[inline]
    #[must_use]
    pub const fn payload_bytes(&self) -> u64 {
        self.row_format.payload_bytes
    }

    /// Returns the bytes of the longest row: a token as it travels, a result or a hierarchy's sum of results.
    pub(crate) const fn longest_row_bytes(&self) -> u64 {
        self.row_format.or_longer(self.row_bytes())
    }

    /// Returns the bytes of one result as it travels in A3 combine: `2 * H`, or int8 and the scales of its blocks.
    #[must_use]
    pub const fn result_bytes(&self) -> u64 {
        match self.result_format.scale {
            Some(_) => self.comm_scales_at() + self.comm_scales_bytes(),
            None => self.result_format.payload_bytes,
        }
    }

    /// Returns the bytes before the scales of an int8 combine row (A3).
    pub(crate) const fn comm_scales_at(&self) -> u64 {
        align_up(self.h as u64, 32)
    }

    /// Returns the bytes of those scales, one of [`Dtype`](super::Dtype) for each block.
    pub(crate) const fn comm_scales_bytes(&self) -> u64 {
        2 * div_ceil(self.h as u64, COMM_BLOCK)
    }

    /// Returns the number of local experts of a rank: L, or 1 on a shared-expert rank.
    #[must_use]
    pub const fn local_experts(&self, rank: RankId) -> u32 {
        if rank.0 < self.shared_expert_rank_num { 1 } else { self.local_expert_num }
    }

    /// Returns the number of replicas of each shared expert: `Rs / S`; 0 when no rank holds shared experts.
    #[must_use]
    pub const fn shared_replicas(&self) -> u32 {
        if self.shared_expert_num == 0 {
            0
        } else {
            div_rem(self.shared_expert_rank_num, self.shared_expert_num).0
        }
    }

    /// Returns A, the maximum number of rows that a rank can receive (V2 reference: `A`; the division rounds up). In an elastic
    /// domain it is the larger of the whole domain's two, on every rank.
    #[must_use]
    pub const fn rows_max(&self, rank: RankId) -> u64 {
        let [on_shared, on_moe] = self.derived.rows_max;
        if rank.0 < self.shared_expert_rank_num { on_shared } else { on_moe }
    }

    /// Returns the number of entries after the counts of `ep_recv_counts` on A2 (V2 reference: `2 * globalBs * K * serverNum`),
    /// by which the shipped hierarchy informs its combine about early sums.
    pub(crate) const fn reduce_entries(&self) -> u64 {
        let ranks = self.ep_world_size as u64;
        let pairs = self.bs_max as u64 * ranks * self.k as u64;
        match self.product() {
            Product::A2 => 2 * pairs * div_ceil(ranks, self.server_ranks as u64),
            Product::A3 => 0,
        }
    }

    /// Returns the number of columns of the combine area: `K + S`.
    #[must_use]
    pub const fn combine_columns(&self) -> u32 {
        self.k + self.shared_expert_num
    }
}

impl Shape {
    /// Returns the offset of the scale field in a record (A3).
    #[inline]
    pub(crate) const fn record_scale_at(&self) -> u64 {
        self.derived.record_scale_at
    }

    /// Returns the bytes between two token records of the dispatch area.
    #[must_use]
    pub const fn record_pitch(&self) -> u64 {
        self.derived.record_pitch
    }

    /// Returns the bytes between two rows of the combine area.
    #[must_use]
    pub const fn combine_pitch(&self) -> u64 {
        self.derived.combine_pitch
    }

    /// Returns the bytes of the combine area of one partition (A3): for each token a result of each column.
    #[must_use]
    pub const fn combine_area(&self) -> u64 {
        self.derived.combine_area
    }

    /// Returns the bytes of the dispatch area of one partition (A3): for each slot BS records. On every rank it is sized for
    /// a MoE rank.
    #[must_use]
    pub const fn dispatch_area(&self) -> u64 {
        self.dispatch_slots().saturating_mul(self.bs_max as u64).saturating_mul(self.record_pitch())
    }

    /// Returns the number of dispatch status slots of a MoE rank, one per local expert and source rank (A3): `L * R`.
    #[must_use]
    pub const fn dispatch_slots(&self) -> u64 {
        self.local_expert_num as u64 * self.ep_world_size as u64
    }

    /// Returns the bytes of the data region, `hccl_buffsize_mb`.
    #[must_use]
    pub const fn window_bytes(&self) -> u64 {
        (self.hccl_buffsize_mb as u64) << 20
    }
}

impl Shape {
    /// Returns the bytes of WindowsOut: equal to WindowsIn on A2, where agents send from it; 0 elsewhere.
    #[must_use]
    pub const fn window_out_bytes(&self) -> u64 {
        match self.product() {
            Product::A2 => self.window_bytes(),
            Product::A3 => 0,
        }
    }

    /// Returns the bytes of the window for one peer (A2 fullmesh; CANN: `rankSizeOnWin`).
    #[must_use]
    pub const fn rank_window(&self) -> u64 {
        let windows = div_floor(self.window_bytes(), 2).saturating_sub(HALF_TAIL);
        div_floor(div_floor(windows, self.ep_world_size as u64), SLOT_ALIGN) * SLOT_ALIGN
    }

    /// Returns the bytes of a dispatched row in a window: the row and, when quantised, its scale field (A2 fullmesh).
    #[must_use]
    pub const fn window_record(&self) -> u64 {
        window_record(&self.row_format)
    }

    /// Returns the maximum number of rows that `rank` sends to one peer, and gets back from it.
    #[must_use]
    pub fn rows_to_peer_max(&self, rank: RankId) -> u32 {
        self.bs(rank) * self.local_expert_num.min(self.k)
    }
}

/// Returns the bytes of a record in a window (A2 fullmesh).
pub(crate) const fn window_record(row: &RowFormat) -> u64 {
    row.payload_bytes + if row.scale.is_some() { SCALE_FIELD } else { 0 }
}

/// Returns the bytes between two token records whose data is `payload` bytes long.
pub(crate) const fn record_pitch(payload: u64) -> u64 {
    align_up(record_scale_at(payload) + SCALE_FIELD + TRIPLE, SLOT_ALIGN)
}

/// Returns the offset of the scale field in a record.
const fn record_scale_at(payload: u64) -> u64 {
    align_up(payload, 32)
}

/// Returns the bytes between two result rows of `row` bytes. With a port offset it is never a multiple of seven packets, or
/// all rows would begin at the same one of seven ports, as `veriep-spread` counts them.
pub(crate) const fn combine_pitch(row: u64, port_offset: u64) -> u64 {
    let pitch = align_up(row, SLOT_ALIGN);
    let crowds = port_offset > 0 && pitch.is_multiple_of(7 * SLOT_ALIGN);
    if crowds { pitch + SLOT_ALIGN } else { pitch }
}

/// Returns the bytes between two fullmesh_v2 records: whole blocks, each with its own flag.
pub(crate) const fn block_record_pitch(payload: u64) -> u64 {
    div_ceil(record_scale_at(payload) + SCALE_FIELD + TRIPLE, BLOCK_PAYLOAD) * BLOCK
}

/// Returns whether the dispatch status area has a slot for each (local expert, source rank).
pub(crate) const fn dispatch_slots_fit(slots: u64) -> bool {
    slots.saturating_mul(STATUS_SLOT) <= DISPATCH_STATUS
}

/// Returns whether the combine status area has a slot for each (token, column).
pub(crate) const fn combine_slots_fit(bs: u64, columns: u64) -> bool {
    bs.saturating_mul(columns).saturating_mul(STATUS_SLOT) <= COMBINE_STATUS
}

/// Returns the bytes of a relay record: front flag, row, scale, ids and weights of its pairs (A2 hierarchy).
pub(crate) const fn relay_record(row: u64, k: u64) -> u64 {
    32 + align_up(row, 32) + SCALE_FIELD + 2 * 4 * align_up(k, 8)
}

/// Returns the bytes of a near slot: a row, and flag, tail and padding in the place of ids and weights (A2 hierarchy).
pub(crate) const fn near_slot(row: u64, k: u64) -> u64 {
    row.saturating_add(align_up(k, 8).saturating_mul(16))
}

/// Returns the bytes of the records of one server, and of the space after them (A2 hierarchy).
pub(crate) const fn relay_stream(bs: u64, row: u64, k: u64) -> u64 {
    bs.saturating_mul(relay_record(row, k)).saturating_add(STREAM_END)
}

/// Returns whether a relay area holds `bs` records of each of `servers` (A2 hierarchy).
pub(crate) const fn relay_fits(servers: u64, bs: u64, row: u64, k: u64) -> bool {
    servers.saturating_mul(relay_stream(bs, row, k)) <= RELAY_AREA
}
