//! The memory of a rank as one table: a row for everything that has a place of its own, with formulas as data.
//!
//! A row says where its slots lie: a base, and for each index its extent and the bytes from one to the next. [`maps`] are the
//! rows with the numbers of a shape, [`locate`] is the way back from a place to a row and its indices, and `verify` proves
//! for every legal shape that rows do not overlap. Machines compute places by functions of their own, without a look-up; tests
//! hold them against the table at every index.
//!
//! [`locate`]: super::locate::locate
//! [`maps`]: super::affine::maps

use super::a2_message::{DOORBELL, MESSAGE_SLOT, TASK};
use super::a2_window::FLAG1;
use super::affine::{INDICES_MAX, Index, Named};
use super::expr::Expr;
use super::quantity::Quantity;
use super::record::Triple;
use super::relay::{
    COUNTS, COUNTS_PARTITION, END_FLAGS, END_FLAGS_PARTITION, ENTERED, LINE, NEAR_AREA, ROW, ROWS_DONE, Tail,
    WEIGHT_BYTES, WORDS,
};
use super::state::{
    COMBINE_SELECTORS, CORE_RECORD, CORE_SUMS, CORE_WORDS, DISPATCH_SELECTORS, DISPATCH_STATUS, PARTITION,
    STATE_BYTES, STATUS_SLOT,
};
use crate::place::{Region, Tensor};
use crate::shape::CORES_MAX;
use crate::shape::sizes::{
    BLOCK, BLOCK_PAYLOAD, FLAG_STEP, HALF_TAIL, LANDING_INFO, RELAY_AREA, SLOT_ALIGN, WINDOW_HEAD,
};
use static_assertions::const_assert;

/// The rank that writes a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// The rank whose memory it is; with an index of cores each writes its own.
    Own,
    /// The rank that this index names. Servers name the rank's namesake there.
    By(Index),
    /// The rank to which the pair of the slot was sent.
    Expert,
    /// The source to which its owner granted the row.
    Granted,
    /// The TP peer.
    TpPeer,
}

/// One index of a row.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// The kind of the index.
    pub index: Index,
    /// The number of its values, from 0 on.
    pub extent: Expr<Quantity>,
    /// Bytes from one to the next.
    pub stride: Expr<Quantity>,
    /// Whether offsets fall as the index rises.
    pub falls: bool,
}

/// The places of something.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub named: Named,
    /// Its region. A row that is [inside](Named::inside) another starts at a slot of that one.
    pub region: Region,
    /// The offset when all indices are 0.
    pub base: Expr<Quantity>,
    /// Its indices, the outermost first.
    pub axes: &'static [Axis],
    /// Bytes that are used at each place.
    pub bytes: Expr<Quantity>,
    /// The rank that writes there.
    pub writer: Writer,
}

/// Two rows of which slots may lie on the same bytes, and the reason why that is safe.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    /// The rows.
    pub rows: [Named; 2],
    /// The reason.
    pub because: &'static str,
}

/// Every pair of rows of one slot or region that share bytes. All others are disjoint.
pub const SHARED: &[Sharing] = {
    const KINDS: &str = "windows of dispatch and of combine are never the same window at once";
    const MOVES: &str =
        "a flag behind n rows lies where a longer window has a row, and is read there for n rows only";
    const SAME: &str = "near slots by the indices of the other operator";
    const STREAMS: &str = "streams of dispatch and of combine are never in the same partition at once";
    &[
        Sharing { rows: [Named::WindowCounts, Named::WindowRows], because: KINDS },
        Sharing { rows: [Named::WindowCounts, Named::CombineFlags], because: KINDS },
        Sharing { rows: [Named::WindowRecords, Named::WindowRows], because: KINDS },
        Sharing { rows: [Named::WindowRecords, Named::CombineFlags], because: KINDS },
        Sharing { rows: [Named::DispatchFlags, Named::WindowRows], because: KINDS },
        Sharing { rows: [Named::DispatchFlags, Named::CombineFlags], because: KINDS },
        Sharing { rows: [Named::WindowRecords, Named::DispatchFlags], because: MOVES },
        Sharing { rows: [Named::WindowRows, Named::CombineFlags], because: MOVES },
        Sharing { rows: [Named::NearSlots, Named::ReturnedSlots], because: SAME },
        Sharing { rows: [Named::TokenRecords, Named::SumRecords], because: STREAMS },
    ]
};

/// Declares rows: a name, its region and base, its indices with extent and stride, the bytes used, and the writer.
macro_rules! rows {
    ($($named:ident: $region:expr, $base:tt, [$($index:ident $extent:tt $sign:tt $stride:tt),*], $bytes:tt, $writer:expr;)*) => {
        &[$(Row {
            named: Named::$named,
            region: $region,
            base: expr!(Quantity: $base),
            axes: &[$(Axis {
                index: Index::$index,
                extent: expr!(Quantity: $extent),
                stride: expr!(Quantity: $stride),
                falls: rows!(@falls $sign),
            }),*],
            bytes: expr!(Quantity: $bytes),
            writer: $writer,
        }),*]
    };
    (@falls +) => { false };
    (@falls -) => { true };
}

/// All rows, by the number of their names.
pub const TABLE: &[Row] = {
    use Index::{Near, Peer, Server, Source};
    use Region::{Output, State, TpState, TpWindow, Window, WindowOut};
    use Writer::{By, Expert, Granted, Own, TpPeer};
    const INFO: u64 = LANDING_INFO;
    const FORWARDED: u64 = ROW + Tail::BYTES;
    const RETURNED: u64 = ROW + WEIGHT_BYTES;
    const CORES: u64 = CORES_MAX as u64;
    rows! {
        DispatchStatus: State, 0,
            [Partition 2 + {PARTITION}, LocalExpert LocalExperts + (Ranks * {STATUS_SLOT}), Source Ranks + {STATUS_SLOT}],
            {STATUS_SLOT}, By(Source);
        DirectRecords: State, 0,
            [Partition 2 + {PARTITION}, Source Ranks + DirectPitch],
            (24 + (LocalExpertNum * 8)), By(Source);
        CombineStatus: State, {DISPATCH_STATUS},
            [Partition 2 + {PARTITION}, Token Capacity + (Columns * {STATUS_SLOT}), K Columns + {STATUS_SLOT}],
            {STATUS_SLOT}, Expert;
        ResultsReady: State, {DISPATCH_STATUS},
            [Partition 2 + {PARTITION}, Source Ranks + {STATUS_SLOT}],
            {STATUS_SLOT}, By(Source);
        DispatchSelectors: State, {DISPATCH_SELECTORS}, [Core Cores + {CORE_RECORD}], 8, Own;
        CombineSelectors: State, {COMBINE_SELECTORS}, [Core Cores + {CORE_RECORD}], 8, Own;
        Tasks: State, 0, [Partition 2 + {MESSAGE_SLOT}, Peer Ranks + {TASK}], {TASK}, Own;
        Doorbell: State, {DOORBELL}, [], 8, Own;
        CoreWords: State, {CORE_WORDS}, [Core Cores + {CORE_RECORD}], 16, Own;
        CoreSums: State, {CORE_SUMS}, [Core (min(Cores, Ranks)) + SumPitch], (LocalExpertNum * 4), Own;
        CombineRows: Window, 0,
            [Partition 2 + HalfWindow, Token Capacity + (Columns * CombinePitch), K Columns + CombinePitch],
            ResultBytes, Expert;
        DispatchRecords: Window, (CombineArea + (FirstOwner * PortOffset)),
            [Partition 2 + HalfWindow, Owner Owners + PortOffset, Source Ranks + SourceStride,
             LocalExpert LocalExperts + (Capacity * RecordPitch), Slot Capacity + RecordPitch],
            RecordUsed, By(Source);
        Rows: Window, 0, [Area Areas + LandingBytes, Row RowsMax + Payload], Payload, Granted;
        Infos: Window, LandingInfos, [Area Areas + LandingBytes, Row RowsMax + {INFO}], {INFO}, Granted;
        OverwrittenRows: Window, 0, [Area Areas + LandingBytes, Row RowsMax + Payload], Payload, Granted;
        Results: Window, LandingResults, [Area Areas + LandingBytes, Row RowsMax + RowBytes], RowBytes, Own;
        WindowsIn: Window, 0, [Partition 2 + HalfWindow, Peer Ranks + RankWindow], RankWindow, By(Peer);
        BufferChosen: Window, (HalfWindow - {HALF_TAIL}), [], 8, Own;
        WindowsOut: WindowOut, 0, [Partition 2 + HalfWindow, Peer Ranks + RankWindow], RankWindow, Own;
        TpDispatchSlots: TpState, 0, [Partition 2 + {PARTITION}, Core Cores + {STATUS_SLOT}], 12, TpPeer;
        TpCombineSlots: TpState, {DISPATCH_STATUS},
            [Partition 2 + {PARTITION}, Core Cores + {STATUS_SLOT}], 12, TpPeer;
        TpDispatchSelectors: TpState, {DISPATCH_SELECTORS}, [Core Cores + {CORE_RECORD}], 8, Own;
        TpCombineSelectors: TpState, {COMBINE_SELECTORS}, [Core Cores + {CORE_RECORD}], 8, Own;
        TpRecords: TpWindow, 0, [Partition 2 + TpPartition, Row RowsMax + RecordPitch], RecordUsed, TpPeer;
        TpResults: TpWindow, (RowsMax * RecordPitch),
            [Partition 2 + TpPartition, Row RowsMax + CombinePitch], RowBytes, TpPeer;
        Epochs: Window, 0, [Core Cores + {CORE_RECORD}], 8, Own;
        Entered: Window, {ENTERED}, [Near ServerRanks + {LINE}], 8, By(Near);
        RowsDone: Window, {ROWS_DONE}, [Near ServerRanks + {CORES * LINE}, Core {CORES} + {LINE}], 8, By(Near);
        EndFlags: Window, {END_FLAGS}, [Partition 2 + {END_FLAGS_PARTITION}, Server Servers + {LINE}], 8, By(Server);
        Counts: Window, {COUNTS},
            [Partition 2 + {COUNTS_PARTITION}, LocalExpert LocalExperts + (Ranks * 8), Source Ranks + 8], 8, By(Source);
        RelayRecords: Window, {WORDS},
            [Partition 2 + {RELAY_AREA}, Server Servers + (Capacity * RelayPitch), Record Capacity + RelayPitch],
            (max(TokenBytes, PartialBytes)), By(Server);
        StreamsIn: Window, {WORDS},
            [Partition 2 + {RELAY_AREA}, Server Servers + StreamBytes], StreamBytes, By(Server);
        NearSlots: Window, {NEAR_AREA},
            [LocalExpert LocalExperts + (Ranks * Capacity * NearSlot), Source Ranks + (Capacity * NearSlot),
             Slot Capacity + NearSlot],
            (LongestRow + {FORWARDED}), By(Source);
        StreamsOut: WindowOut, {WORDS},
            [Partition 2 + {RELAY_AREA}, Server Servers + StreamBytes], StreamBytes, Own;
        ReturnedSlots: Window, {NEAR_AREA},
            [Server Servers + (Capacity * Pairs * NearSlot), Token Capacity + (Pairs * NearSlot), Position Pairs + NearSlot],
            (RowBytes + {RETURNED}), Expert;
        Blocks: Window, 0, [Block BlockCount + {BLOCK}], {BLOCK_PAYLOAD}, By(Source);
        BlockFlags: Window, {BLOCK_PAYLOAD}, [Block BlockCount + {BLOCK}], 8, By(Source);
        CountTable: Window, 24, [LocalExpert LocalExpertNum + 4], 4, By(Source);
        GrantTable: Window, (24 + (LocalExpertNum * 4)), [LocalExpert LocalExpertNum + 4], 4, By(Source);
        SumTable: Window, 0, [LocalExpert LocalExpertNum + 4], 4, Own;
        WindowCounts: Window, 0, [LocalExpert LocalExperts + 4], 4, By(Peer);
        WindowRecords: Window, {WINDOW_HEAD}, [Position ToPeer + WindowRecord], WindowRecord, By(Peer);
        DispatchFlags: Window, {2 * WINDOW_HEAD}, [Rows (ToPeer + 1) + WindowRecord], 8, By(Peer);
        WindowRows: Window, 0, [Position ToPeer + RowBytes], RowBytes, By(Peer);
        CombineFlags: Window, {FLAG_STEP}, [Rows (ToPeer + 1) + RowBytes], 8, By(Peer);
        TokenRecords: Window, (StreamBytes - (8 + TokenBytes)), [Record Capacity - TokenBytes], TokenBytes, By(Server);
        SumRecords: Window, (StreamBytes - (8 + PartialBytes)), [Record Capacity - PartialBytes], PartialBytes, By(Server);
        ExpandX: Output(Tensor::ExpandX), 0, [Row (RowsMax * TpRanks) + Payload], Payload, Own;
        DynamicScales: Output(Tensor::DynamicScales), 0, [Row (RowsMax * TpRanks) + 4], 4, Own;
        AssistInfo: Output(Tensor::AssistInfo), 0, [Row (RowsMax * TpRanks) + {Triple::BYTES}], {Triple::BYTES}, Own;
        ExpandIdx: Output(Tensor::ExpandIdx), 0, [Token Capacity + (K * 4), K K + 4], 4, Own;
        ExpertTokenNums: Output(Tensor::ExpertTokenNums), 0, [LocalExpert LocalExperts + 8], 8, Own;
        EpRecvCounts: Output(Tensor::EpRecvCounts), 0,
            [LocalExpert LocalExperts + (Ranks * 4), Source Ranks + 4], 4, Own;
        RowTable: Output(Tensor::RowTable), 0, [Row (RowsMax * TpRanks) + 8], 8, Own;
        ExpandScales: Output(Tensor::ExpandScales), 0, [Row (RowsMax * TpRanks) + 4], 4, Own;
        XOut: Output(Tensor::XOut), 0, [Token Capacity + RowBytes], RowBytes, Own;
        X: Output(Tensor::X), 0, [Token Capacity + RowBytes], RowBytes, Own;
        Rstd: Output(Tensor::Rstd), 0, [Token Capacity + 4], 4, Own;
        Y: Output(Tensor::Y), 0, [Token Capacity + RowBytes], RowBytes, Own;
    }
};

const_assert!(TABLE.len() == Named::ALL.len());
const _: () = {
    let mut n = 0;
    while n < TABLE.len() {
        assert!(TABLE[n].named as usize == n && TABLE[n].axes.len() <= INDICES_MAX);
        n += 1;
    }
};

impl Region {
    /// Returns its length in bytes; for an output that of the part that [rows](TABLE) are in.
    #[must_use]
    pub const fn room(self) -> Expr<Quantity> {
        match self {
            Self::State | Self::TpState => expr!(Quantity: {STATE_BYTES}),
            Self::Window | Self::WindowOut => expr!(Quantity: WindowBytes),
            Self::TpWindow => expr!(Quantity: TpPartition * 2),
            Self::Output(tensor) => match tensor {
                Tensor::ExpandX => expr!(Quantity: RowsMax * TpRanks * Payload),
                Tensor::DynamicScales | Tensor::ExpandScales => expr!(Quantity: RowsMax * TpRanks * 4),
                Tensor::AssistInfo => expr!(Quantity: RowsMax * TpRanks * {Triple::BYTES}),
                Tensor::RowTable => expr!(Quantity: (max((RowsMax * TpRanks), 2)) * 8),
                Tensor::ExpandIdx => expr!(Quantity: Tokens * K * 4),
                Tensor::ExpertTokenNums => expr!(Quantity: LocalExperts * 8),
                Tensor::EpRecvCounts => expr!(Quantity: LocalExperts * Ranks * TpRanks * 4),
                Tensor::XOut | Tensor::X | Tensor::Y => expr!(Quantity: Tokens * RowBytes),
                Tensor::Rstd => expr!(Quantity: Tokens * 4),
                Tensor::TpRecvCounts | Tensor::SentRows => expr!(Quantity: 0),
            },
        }
    }
}

impl Named {
    /// Returns the bytes within which it lies: of its region, or of the part of an outer slot that it may use.
    #[must_use]
    pub fn room(self) -> Expr<Quantity> {
        match self {
            Self::Blocks | Self::BlockFlags => expr!(Quantity: RecordPitch),
            Self::CountTable | Self::GrantTable => expr!(Quantity: 24 + (LocalExpertNum * 8)),
            Self::SumTable => expr!(Quantity: LocalExpertNum * 4),
            Self::WindowCounts => expr!(Quantity: {FLAG1}),
            Self::WindowRecords | Self::DispatchFlags | Self::WindowRows | Self::CombineFlags => {
                expr!(Quantity: RankWindow)
            }
            // The last word is the end flag.
            Self::TokenRecords | Self::SumRecords => expr!(Quantity: StreamBytes - 8),
            _ => self.row().map_or(Expr::Number(0), |row| row.region.room()),
        }
    }

    /// Returns what divides every offset of it.
    #[must_use]
    pub const fn alignment(self) -> u64 {
        match self {
            // A row of any number of bytes follows the other.
            Self::Rows | Self::OverwrittenRows | Self::ExpandX => 1,
            Self::Results | Self::XOut | Self::X | Self::Y => 2,
            Self::CountTable | Self::GrantTable | Self::SumTable | Self::WindowCounts => 4,
            Self::DynamicScales | Self::AssistInfo | Self::ExpandIdx | Self::EpRecvCounts => 4,
            Self::ExpandScales | Self::Rstd => 4,
            Self::Infos | Self::NearSlots | Self::ReturnedSlots => 16,
            Self::DispatchStatus | Self::CombineStatus | Self::ResultsReady | Self::Tasks => STATUS_SLOT,
            Self::TpDispatchSlots | Self::TpCombineSlots | Self::RelayRecords => STATUS_SLOT,
            Self::StreamsIn | Self::StreamsOut => STATUS_SLOT,
            Self::DirectRecords | Self::CoreSums | Self::Entered | Self::RowsDone | Self::EndFlags => LINE,
            Self::CombineRows | Self::DispatchRecords | Self::TpRecords | Self::TpResults => SLOT_ALIGN,
            Self::WindowsIn | Self::WindowsOut | Self::Blocks | Self::CoreWords | Self::Epochs => SLOT_ALIGN,
            Self::DispatchSelectors | Self::CombineSelectors => SLOT_ALIGN,
            Self::TpDispatchSelectors | Self::TpCombineSelectors => SLOT_ALIGN,
            _ => 8,
        }
    }
}
