//! The numbers of a shape from which places are computed, each with its name and, if it follows from others, its formula.
//!
//! [`Quantity::value`] is the number that machines use. [`Quantity::definition`] says how it follows. Most are code and data of
//! one formula; where a shape holds the number ready, a test holds the two against each other.

use super::affine::Mode;
use super::expr::Expr;
use super::record::Triple;
use super::state::{LINE, Slots};
use super::{block, relay};
use crate::shape::sizes::{
    BLOCK, BLOCK_PAYLOAD, HALF_TAIL, LANDING_INFO, SCALE_FIELD, SLOT_ALIGN, STREAM_END, TRIPLE, near_slot,
    relay_record, relay_stream,
};
use crate::shape::{Product, Protocol, Shape};
use crate::units::{RankId, align_up, div_floor};
use core::ops::Range;

/// Declares the quantities: each with its name, and either code in braces, for what a shape holds or a group says, or a formula in
/// parentheses, which is data and code.
macro_rules! quantities {
    (@code $at:ident { $($code:tt)+ }) => { $($code)+ };
    (@code $at:ident ( $($formula:tt)+ )) => { code!($at: $($formula)+) };
    (@formula { $($code:tt)+ }) => { None };
    (@formula ( $($formula:tt)+ )) => { Some(expr!(Quantity: $($formula)+)) };
    ($at:ident: $(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $text:literal: $how:tt;)* }) => {
        named! { $(#[$about])* $type { $($(#[$doc])* $name = $text,)* } }

        /// The numbers in a memory, each as a function of its name.
        #[allow(non_snake_case)]
        pub(super) mod number {
            use super::*;
            $(
                #[inline(always)]
                pub(in crate::layout) const fn $name($at: &Memory<'_>) -> u64 { quantities!(@code $at $how) }
            )*
        }

        impl $type {
            /// Returns the number in a memory.
            #[must_use]
            pub const fn value(self, at: &Memory<'_>) -> u64 {
                match self { $(Self::$name => number::$name(at),)* }
            }

            /// Returns the formula by which it is computed in every kind of group.
            const fn formula(self) -> Option<Expr<Self>> {
                match self { $(Self::$name => quantities!(@formula $how),)* }
            }
        }
    };
}

quantities! { at:
    /// A number that follows from a shape, a mode and the rank whose memory it is.
    Quantity {
        /// R, the ranks of the domain.
        Ranks = "ranks": { at.shape.ep_world_size() as u64 };
        /// L, the MoE experts of a MoE rank.
        LocalExpertNum = "local_expert_num": { at.shape.local_expert_num() as u64 };
        /// Experts of this rank: L, or 1 on a shared-expert rank.
        LocalExperts = "local_experts": { at.shape.local_experts(at.rank) as u64 };
        /// The first rank with the map of this one.
        FirstOwner = "first_owner": { at.alike().start as u64 };
        /// The number of ranks with that map.
        Owners = "owners": { (at.alike().end - at.alike().start) as u64 };
        /// K.
        K = "k": { at.shape.k() as u64 };
        /// K + S.
        Columns = "columns": { at.shape.combine_columns() as u64 };
        /// The capacity, `max_bs`.
        Capacity = "capacity": { at.shape.bs_max() as u64 };
        /// Tokens of this rank.
        Tokens = "tokens": { at.shape.bs(at.rank) as u64 };
        /// Elements of a row in the steps that the protocol demands: H, on A2 H / 8.
        ElementSteps = "element_steps": { div_floor(at.shape.h() as u64, element_step(at.shape.protocol())) };
        /// `hccl_buffsize_mb`.
        WindowMib = "window_mib": { at.shape.hccl_buffsize_mb() as u64 };
        /// Packets of 512 bytes added per source rank.
        PortSteps = "port_steps": { div_floor(at.shape.port_offset(), SLOT_ALIGN) };
        /// Cores of a rank.
        Cores = "cores": { at.shape.aiv_num() as u64 };
        /// Ranks of a server.
        ServerRanks = "server_ranks": { at.shape.server_ranks() as u64 };
        /// Servers.
        Servers = "servers": { at.shape.servers() as u64 };
        /// Ranks of a TP domain.
        TpRanks = "tp_ranks": { at.shape.tp_world_size() as u64 };
        /// Most rows that this rank can receive.
        RowsMax = "rows_max": { at.shape.rows_max(at.rank) };
        /// Areas of direct placement.
        Areas = "areas": { at.mode.landings as u64 };
        /// Whether rows travel to experts as int8 with a scale: 0 or 1.
        Quantised = "quantised": { at.shape.row_format().scale.is_some() as u64 };
        /// Bytes of a result on its way back.
        ResultBytes = "result_bytes": { at.shape.result_bytes() };
        /// Whether results travel as int8 with scales: 0 or 1.
        ScaledResults = "scaled_results": { at.shape.result_format().scale.is_some() as u64 };
        /// Packets by which rows of combine are further apart than aligned ones: 0 or 1.
        PortGap = "port_gap": { div_floor(at.shape.combine_pitch() - align_up(at.shape.row_bytes(), SLOT_ALIGN), SLOT_ALIGN) };

        /// H.
        Elements = "elements": { at.shape.h() as u64 };
        /// Bytes added per source rank.
        PortOffset = "port_offset": { at.shape.port_offset() };
        /// Bytes of the window.
        WindowBytes = "window_bytes": { at.shape.window_bytes() };
        /// Bytes of half of it.
        HalfWindow = "half_window": (WindowBytes / 2);
        /// Bytes of a result.
        RowBytes = "row_bytes": { at.shape.row_bytes() };
        /// Bytes of a row on its way to experts.
        Payload = "payload": { at.shape.payload_bytes() };
        /// Bytes of its scale in a window of A2.
        WindowScale = "window_scale": { at.shape.window_record() - at.shape.payload_bytes() };
        /// Bytes of the longest row.
        LongestRow = "longest_row": { at.shape.longest_row_bytes() };
        /// Bytes of a record as sent.
        SentBytes = "sent_bytes": { at.shape.record_scale_at() + SCALE_FIELD + TRIPLE };
        /// The start of the scale in a record of A3.
        RecordScale = "record_scale": {
            match at.shape.protocol() {
                Protocol::FullmeshV2 => block::byte(at.shape.record_scale_at()),
                _ => at.shape.record_scale_at(),
            }
        };
        /// The start of the triple there.
        RecordTriple = "record_triple": {
            match at.shape.protocol() {
                Protocol::FullmeshV2 => block::byte(at.shape.record_scale_at() + SCALE_FIELD),
                _ => at.shape.record_scale_at() + SCALE_FIELD,
            }
        };
        /// Blocks of a record of fullmesh_v2.
        BlockCount = "block_count": (ceil(SentBytes, BLOCK_PAYLOAD));
        /// Bytes of a record up to the last used one.
        RecordUsed = "record_used": { match at.shape.protocol() {
            // Up to the flag of the last block, of 8 bytes.
            Protocol::FullmeshV2 => BlockCount(at) * BLOCK - (BLOCK - BLOCK_PAYLOAD - 8),
            _ => SentBytes(at),
        } };
        /// Bytes of a status slot, and between two.
        StatusSlot = "status_slot": { at.mode.slots.bytes() };
        /// Bytes between two records.
        RecordPitch = "record_pitch": { at.shape.record_pitch() };
        /// Bytes between two rows of combine.
        CombinePitch = "combine_pitch": { at.shape.combine_pitch() };
        /// Bytes of the rows of combine.
        CombineArea = "combine_area": { at.shape.combine_area() };
        /// Bytes between the records of two sources.
        SourceStride = "source_stride": ((LocalExperts * Capacity * RecordPitch) + PortOffset);
        /// Bytes between the records of two sources with direct placement.
        DirectPitch = "direct_pitch": (up((24 + (LocalExpertNum * 8)), LINE));
        /// Bytes between the sums of two cores.
        SumPitch = "sum_pitch": (up((LocalExpertNum * 4), LINE));
        /// The start of infos in an area of direct placement.
        LandingInfos = "landing_infos": { at.shape.landing(at.rank).infos };
        /// The start of results there.
        LandingResults = "landing_results": { at.shape.landing(at.rank).results };
        /// Bytes of such an area.
        LandingBytes = "landing_bytes": { if at.mode.overwritten { at.shape.landing(at.rank).results } else { at.shape.landing(at.rank).bytes } };
        /// Bytes of a partition of the TP window.
        TpPartition = "tp_partition": (RowsMax * (RecordPitch + CombinePitch));
        /// Bytes of the window of a peer (A2).
        RankWindow = "rank_window": { at.shape.rank_window() };
        /// Bytes of a record in it.
        WindowRecord = "window_record": { at.shape.window_record() };
        /// Most rows for a peer.
        ToPeer = "to_peer": (Capacity * (min(K, LocalExpertNum)));
        /// Bytes between two relay records.
        RelayPitch = "relay_pitch": { relay_record(at.shape.longest_row_bytes(), at.shape.k() as u64) };
        /// Bytes of a relay record of dispatch.
        TokenBytes = "token_bytes": ({relay::ROW} + (up(Payload, 32)) + {SCALE_FIELD} + (8 * (up(K, 8))));
        /// Bytes of a relay record of combine.
        PartialBytes = "partial_bytes": ({relay::ROW} + (up(ResultBytes, 8)));
        /// Bytes of a stream.
        StreamBytes = "stream_bytes": { relay_stream(at.shape.bs_max() as u64, at.shape.longest_row_bytes(), at.shape.k() as u64) };
        /// Bytes of a near slot.
        NearSlot = "near_slot": { near_slot(at.shape.longest_row_bytes(), at.shape.k() as u64) };
        /// S, the shared experts.
        SharedExperts = "shared_experts": (Columns - K);
        /// Most pairs of a token on a server.
        Pairs = "pairs": (min((ServerRanks * LocalExpertNum), K));
    }
}

const STEP_A2: u64 = element_step(Protocol::Fullmesh);

/// The divisor of H: flags of A2 follow whole rows and must be aligned words.
pub(super) const fn element_step(protocol: Protocol) -> u64 {
    match protocol.product() {
        Product::A3 => 1,
        Product::A2 => 8,
    }
}

/// The properties of a group on which its formulas depend, besides numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// The protocol.
    pub protocol: Protocol,
    /// Whether there is a TP domain.
    pub has_tp: bool,
    /// The choices of the group.
    pub mode: Mode,
}

impl Kind {
    /// Returns the kind of a group.
    #[must_use]
    pub const fn of(shape: &Shape, mode: Mode) -> Self {
        Self { protocol: shape.protocol(), has_tp: shape.tp_world_size() > 1, mode }
    }
}

/// The memory of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'s> {
    /// The shape of the group.
    pub shape: &'s Shape,
    /// The choices of the group.
    pub mode: Mode,
    /// The rank.
    pub rank: RankId,
}

impl<'s> Memory<'s> {
    /// Returns the memory of the first rank, for formulas that are the same on all ranks and for all choices.
    pub(super) const fn of_any(shape: &'s Shape) -> Self {
        Self::of(shape, RankId(0))
    }

    /// Returns the memory of a rank, for formulas that are the same for all choices.
    pub(super) const fn of(shape: &'s Shape, rank: RankId) -> Self {
        let mode =
            Mode { landings: 0, overwritten: false, separate: false, streams: false, slots: Slots::Shipped };
        Self { shape, mode, rank }
    }

    /// Returns the value of an expression here.
    #[must_use]
    pub fn value(&self, expr: &Expr<Quantity>) -> u64 {
        expr.value(&|quantity: Quantity| quantity.value(self))
    }

    /// Returns the rank as an [`Owner`](super::affine::Index::Owner): its number among the ranks with the same map.
    pub(super) fn owner(&self) -> u32 {
        self.rank.0 - self.alike().start
    }

    /// Returns the ranks with the same map.
    const fn alike(&self) -> Range<u32> {
        let shared = self.shape.shared_expert_rank_num();
        if self.rank.0 < shared { 0..shared } else { shared..self.shape.ep_world_size() }
    }
}

impl Quantity {
    /// Returns how it follows from other quantities in groups of this kind; `None` for what a configuration says.
    #[must_use]
    pub const fn definition(self, kind: Kind) -> Option<Expr<Self>> {
        let in_blocks = matches!(kind.protocol, Protocol::FullmeshV2);
        Some(match self {
            Self::Elements if matches!(kind.protocol.product(), Product::A2) => {
                expr!(Quantity: ElementSteps * {STEP_A2})
            }
            Self::Elements => expr!(Quantity: ElementSteps),
            Self::PortOffset => expr!(Quantity: PortSteps * {SLOT_ALIGN}),
            Self::WindowBytes => expr!(Quantity: WindowMib * {1 << 20}),
            Self::RowBytes => expr!(Quantity: Elements * 2),
            Self::Payload => expr!(Quantity: (2 - Quantised) * Elements),
            Self::WindowScale => expr!(Quantity: Quantised * {SCALE_FIELD}),
            Self::LongestRow => expr!(Quantity: max(Payload, RowBytes)),
            Self::SentBytes => {
                expr!(Quantity: (up(Payload, 32)) + {SCALE_FIELD} + {Triple::BYTES})
            }
            // The payloads of blocks are one stream.
            Self::RecordScale if in_blocks => {
                expr!(Quantity: (up(Payload, 32)) + (((up(Payload, 32)) / {BLOCK_PAYLOAD}) * {BLOCK - BLOCK_PAYLOAD}))
            }
            Self::RecordTriple if in_blocks => {
                expr!(Quantity: ((up(Payload, 32)) + {SCALE_FIELD})
                    + ((((up(Payload, 32)) + {SCALE_FIELD}) / {BLOCK_PAYLOAD}) * {BLOCK - BLOCK_PAYLOAD}))
            }
            Self::RecordScale => expr!(Quantity: up(Payload, 32)),
            Self::RecordTriple => expr!(Quantity: (up(Payload, 32)) + {SCALE_FIELD}),
            // Up to the flag of the last block, of 8 bytes.
            Self::RecordUsed if in_blocks => {
                expr!(Quantity: (BlockCount * {BLOCK}) - {BLOCK - BLOCK_PAYLOAD - 8})
            }
            Self::RecordUsed => expr!(Quantity: SentBytes),
            Self::StatusSlot => Expr::Number(kind.mode.slots.bytes()),
            Self::RecordPitch if in_blocks => expr!(Quantity: BlockCount * {BLOCK}),
            Self::RecordPitch => expr!(Quantity: up(SentBytes, SLOT_ALIGN)),
            Self::CombinePitch => expr!(Quantity: ((ceil(RowBytes, SLOT_ALIGN)) + PortGap) * {SLOT_ALIGN}),
            Self::CombineArea => expr!(Quantity: Capacity * Columns * CombinePitch),
            Self::LandingInfos => expr!(Quantity: up((RowsMax * Payload), SLOT_ALIGN)),
            Self::LandingResults => {
                expr!(Quantity: LandingInfos + (up((RowsMax * {LANDING_INFO}), SLOT_ALIGN)))
            }
            Self::LandingBytes if kind.mode.overwritten => expr!(Quantity: LandingResults),
            Self::LandingBytes => {
                expr!(Quantity: LandingResults + (up((RowsMax * RowBytes), SLOT_ALIGN)))
            }
            Self::RankWindow => {
                expr!(Quantity: (((HalfWindow - {HALF_TAIL}) / Ranks) / {SLOT_ALIGN}) * {SLOT_ALIGN})
            }
            Self::WindowRecord => expr!(Quantity: Payload + WindowScale),
            Self::RelayPitch => {
                expr!(Quantity: 32 + (up(LongestRow, 32)) + {SCALE_FIELD} + (8 * (up(K, 8))))
            }
            Self::StreamBytes => expr!(Quantity: (Capacity * RelayPitch) + {STREAM_END}),
            Self::NearSlot => expr!(Quantity: LongestRow + (16 * (up(K, 8)))),
            _ => return self.formula(),
        })
    }
}
