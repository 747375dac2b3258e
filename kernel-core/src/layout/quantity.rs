//! The numbers of a shape from which places are computed, each with its name and, if it follows from others, its formula.
//!
//! [`Quantity::value`] is the number that machines use. [`Quantity::definition`] says how it follows; a test holds the two
//! against each other.

use super::affine::Mode;
use super::expr::Expr;
use super::record::Triple;
use super::state::{Direct, LINE, Operator, Partition};
use super::{block, data, map, relay};
use crate::shape::sizes::{
    BLOCK, BLOCK_PAYLOAD, HALF_TAIL, LANDING_INFO, SCALE_FIELD, SLOT_ALIGN, STREAM_END,
};
use crate::shape::{Product, Protocol, Shape};
use crate::units::{CoreId, RankId, align_up};
use core::ops::Range;

named! {
    /// A number that follows from a shape, a mode and the rank whose memory it is.
    Quantity {
        /// R, the ranks of the domain.
        Ranks = "ranks",
        /// L, the MoE experts of a MoE rank.
        LocalExpertNum = "local_expert_num",
        /// Experts of this rank: L, or 1 on a shared-expert rank.
        LocalExperts = "local_experts",
        /// The first rank with the map of this one.
        FirstOwner = "first_owner",
        /// The number of ranks with that map.
        Owners = "owners",
        /// K.
        K = "k",
        /// K + S.
        Columns = "columns",
        /// The capacity, `max_bs`.
        Capacity = "capacity",
        /// Tokens of this rank.
        Tokens = "tokens",
        /// Elements of a row in the steps that the protocol demands: H, on A2 H / 8.
        ElementSteps = "element_steps",
        /// `hccl_buffsize_mb`.
        WindowMib = "window_mib",
        /// Packets of 512 bytes added per source rank.
        PortSteps = "port_steps",
        /// Cores of a rank.
        Cores = "cores",
        /// Ranks of a server.
        ServerRanks = "server_ranks",
        /// Servers.
        Servers = "servers",
        /// Ranks of a TP domain.
        TpRanks = "tp_ranks",
        /// Most rows that this rank can receive.
        RowsMax = "rows_max",
        /// Areas of direct placement.
        Areas = "areas",
        /// Whether rows travel to experts as int8 with a scale: 0 or 1.
        Quantised = "quantised",
        /// Bytes of a result on its way back.
        ResultBytes = "result_bytes",
        /// Packets by which rows of combine lie further apart than aligned ones: 0 or 1.
        PortGap = "port_gap",

        /// H.
        Elements = "elements",
        /// Bytes added per source rank.
        PortOffset = "port_offset",
        /// Bytes of the window.
        WindowBytes = "window_bytes",
        /// Bytes of half of it.
        HalfWindow = "half_window",
        /// Bytes of a result.
        RowBytes = "row_bytes",
        /// Bytes of a row on its way to experts.
        Payload = "payload",
        /// Bytes of its scale in a window of A2.
        WindowScale = "window_scale",
        /// Bytes of the longest row.
        LongestRow = "longest_row",
        /// Bytes of a record as sent.
        SentBytes = "sent_bytes",
        /// Blocks of a record of fullmesh_v2.
        BlockCount = "block_count",
        /// Bytes of a record up to the last used one.
        RecordUsed = "record_used",
        /// Bytes between two records.
        RecordPitch = "record_pitch",
        /// Bytes between two rows of combine.
        CombinePitch = "combine_pitch",
        /// Bytes of the rows of combine.
        CombineArea = "combine_area",
        /// Bytes between the records of two sources.
        SourceStride = "source_stride",
        /// Bytes between the records of two sources with direct placement.
        DirectPitch = "direct_pitch",
        /// Bytes between the sums of two cores.
        SumPitch = "sum_pitch",
        /// The start of infos in an area of direct placement.
        LandingInfos = "landing_infos",
        /// The start of results there.
        LandingResults = "landing_results",
        /// Bytes of such an area.
        LandingBytes = "landing_bytes",
        /// Bytes of a partition of the TP window.
        TpPartition = "tp_partition",
        /// Bytes of the window of a peer (A2).
        RankWindow = "rank_window",
        /// Bytes of a record in it.
        WindowRecord = "window_record",
        /// Most rows for a peer.
        ToPeer = "to_peer",
        /// Bytes between two relay records.
        RelayPitch = "relay_pitch",
        /// Bytes of a relay record of dispatch.
        TokenBytes = "token_bytes",
        /// Bytes of a relay record of combine.
        PartialBytes = "partial_bytes",
        /// Bytes of a stream.
        StreamBytes = "stream_bytes",
        /// Bytes of a near slot.
        NearSlot = "near_slot",
        /// Most pairs of a token on a server.
        Pairs = "pairs",
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

impl Memory<'_> {
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
    fn alike(&self) -> Range<u32> {
        let shared = self.shape.shared_expert_rank_num();
        if self.rank.0 < shared { 0..shared } else { shared..self.shape.ep_world_size() }
    }
}

impl Quantity {
    /// Returns the number as machines have it.
    #[must_use]
    pub fn value(self, at: &Memory<'_>) -> u64 {
        let Memory { shape, mode, rank } = *at;
        match self {
            Self::Ranks => shape.ep_world_size().into(),
            Self::LocalExpertNum => shape.local_expert_num().into(),
            Self::LocalExperts => shape.local_experts(rank).into(),
            Self::FirstOwner => at.alike().start.into(),
            Self::Owners => at.alike().len() as u64,
            Self::K => shape.k().into(),
            Self::Columns => shape.combine_columns().into(),
            Self::Capacity => shape.bs_max().into(),
            Self::Tokens => shape.bs(rank).into(),
            Self::ElementSteps => u64::from(shape.h()) / element_step(shape.protocol()),
            Self::WindowMib => shape.hccl_buffsize_mb().into(),
            Self::PortSteps => shape.port_offset() / SLOT_ALIGN,
            Self::Cores => shape.aiv_num().into(),
            Self::ServerRanks => shape.server_ranks().into(),
            Self::Servers => shape.servers().into(),
            Self::TpRanks => shape.tp_world_size().into(),
            Self::RowsMax => shape.rows_max(rank),
            Self::Quantised => shape.row_format().scale.is_some().into(),
            Self::Areas => mode.landings.into(),
            Self::Payload => shape.payload_bytes(),
            Self::WindowScale => shape.window_record() - shape.payload_bytes(),
            Self::ResultBytes => shape.result_bytes(),
            Self::PortGap => (shape.combine_pitch() - align_up(shape.row_bytes(), SLOT_ALIGN)) / SLOT_ALIGN,
            Self::Elements => shape.h().into(),
            Self::PortOffset => shape.port_offset(),
            Self::WindowBytes => shape.window_bytes(),
            Self::HalfWindow => data::partition_start(shape, Partition::P1),
            Self::RowBytes => shape.row_bytes(),
            Self::LongestRow => shape.longest_row_bytes(),
            Self::SentBytes => super::record::sent_bytes(shape),
            Self::BlockCount => block::count(shape).into(),
            Self::RecordUsed => map::used_bytes(shape),
            Self::RecordPitch => shape.record_pitch(),
            Self::CombinePitch => shape.combine_pitch(),
            Self::CombineArea => shape.combine_area(),
            Self::SourceStride => data::source_stride(shape, rank),
            Self::DirectPitch => Direct::pitch(shape),
            Self::SumPitch => {
                let at = |core| super::state::core_sums(shape, CoreId(core)).offset;
                at(1) - at(0)
            }
            Self::LandingInfos => shape.landing(rank).infos,
            Self::LandingResults => shape.landing(rank).results,
            Self::LandingBytes if mode.overwritten => shape.landing(rank).results,
            Self::LandingBytes => shape.landing(rank).bytes,
            Self::TpPartition => super::tp::partition_start(shape, rank, Partition::P1),
            Self::RankWindow => shape.rank_window(),
            Self::WindowRecord => shape.window_record(),
            Self::ToPeer => u64::from(shape.bs_max() * shape.k().min(shape.local_expert_num())),
            Self::RelayPitch => relay::record_pitch(shape),
            Self::TokenBytes => relay::record_bytes(shape, Operator::Dispatch),
            Self::PartialBytes => relay::record_bytes(shape, Operator::Combine),
            Self::StreamBytes => relay::stream_bytes(shape),
            Self::NearSlot => relay::slot_pitch(shape),
            Self::Pairs => relay::pairs_max(shape).into(),
        }
    }

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
            Self::HalfWindow => expr!(Quantity: WindowBytes / 2),
            Self::RowBytes => expr!(Quantity: Elements * 2),
            Self::Payload => expr!(Quantity: (2 - Quantised) * Elements),
            Self::WindowScale => expr!(Quantity: Quantised * {SCALE_FIELD}),
            Self::LongestRow => expr!(Quantity: max(Payload, RowBytes)),
            Self::SentBytes => {
                expr!(Quantity: (up(Payload, 32)) + {SCALE_FIELD} + {Triple::BYTES})
            }
            Self::BlockCount => expr!(Quantity: ceil(SentBytes, BLOCK_PAYLOAD)),
            // Up to the flag of the last block, of 8 bytes.
            Self::RecordUsed if in_blocks => {
                expr!(Quantity: (BlockCount * {BLOCK}) - {BLOCK - BLOCK_PAYLOAD - 8})
            }
            Self::RecordUsed => expr!(Quantity: SentBytes),
            Self::RecordPitch if in_blocks => expr!(Quantity: BlockCount * {BLOCK}),
            Self::RecordPitch => expr!(Quantity: up(SentBytes, SLOT_ALIGN)),
            Self::CombinePitch => expr!(Quantity: ((ceil(RowBytes, SLOT_ALIGN)) + PortGap) * {SLOT_ALIGN}),
            Self::CombineArea => expr!(Quantity: Capacity * Columns * CombinePitch),
            Self::SourceStride => expr!(Quantity: (LocalExperts * Capacity * RecordPitch) + PortOffset),
            Self::DirectPitch => expr!(Quantity: up((24 + (LocalExpertNum * 8)), LINE)),
            Self::SumPitch => expr!(Quantity: up((LocalExpertNum * 4), LINE)),
            Self::LandingInfos => expr!(Quantity: up((RowsMax * Payload), SLOT_ALIGN)),
            Self::LandingResults => {
                expr!(Quantity: LandingInfos + (up((RowsMax * {LANDING_INFO}), SLOT_ALIGN)))
            }
            Self::LandingBytes if kind.mode.overwritten => expr!(Quantity: LandingResults),
            Self::LandingBytes => {
                expr!(Quantity: LandingResults + (up((RowsMax * RowBytes), SLOT_ALIGN)))
            }
            Self::TpPartition => expr!(Quantity: RowsMax * (RecordPitch + CombinePitch)),
            Self::RankWindow => {
                expr!(Quantity: (((HalfWindow - {HALF_TAIL}) / Ranks) / {SLOT_ALIGN}) * {SLOT_ALIGN})
            }
            Self::WindowRecord => expr!(Quantity: Payload + WindowScale),
            Self::ToPeer => expr!(Quantity: Capacity * (min(K, LocalExpertNum))),
            Self::RelayPitch => {
                expr!(Quantity: 32 + (up(LongestRow, 32)) + {SCALE_FIELD} + (8 * (up(K, 8))))
            }
            Self::TokenBytes => {
                expr!(Quantity: {relay::ROW} + (up(Payload, 32)) + {SCALE_FIELD} + (8 * (up(K, 8))))
            }
            Self::PartialBytes => expr!(Quantity: {relay::ROW} + (up(ResultBytes, 8))),
            Self::StreamBytes => expr!(Quantity: (Capacity * RelayPitch) + {STREAM_END}),
            Self::NearSlot => expr!(Quantity: LongestRow + (16 * (up(K, 8)))),
            Self::Pairs => expr!(Quantity: min((ServerRanks * LocalExpertNum), K)),
            _ => return None,
        })
    }
}
