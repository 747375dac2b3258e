//! The memory of a rank as one table: a row for everything that has a place of its own, with formulas as data.
//!
//! A row says where its slots lie: a base, and for each index its extent and the bytes from one to the next. [`maps`] are the
//! rows with the numbers of a shape, [`locate`] is the way back from a place to a row and its indices, and `verify` proves
//! for every legal shape that rows do not overlap. Machines compute places by the code of the same rows, without a look-up.
//!
//! [`locate`]: super::locate::locate
//! [`maps`]: super::affine::maps

use super::a2_message::{DOORBELL, MESSAGE_SLOT, TASK};
use super::a2_window::FLAG1;
use super::affine::{INDICES_MAX, Index, Named};
use super::expr::Expr;
use super::quantity::{Memory, Quantity, number};
use super::record::Triple;
use super::relay::{
    COUNTS, COUNTS_PARTITION, END_FLAGS, END_FLAGS_PARTITION, ENTERED, LINE, NEAR_AREA, ROW, ROWS_DONE, Tail,
    WEIGHT_BYTES, WORDS,
};
use super::state::{
    COMBINE_SELECTORS, CORE_RECORD, CORE_SUMS, CORE_WORDS, DISPATCH_SELECTORS, DISPATCH_STATUS, PARTITION,
    STATE_BYTES, STATUS_SLOT,
};
use crate::place::{Place, Region, Tensor};
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
    /// Its region. It means nothing for a row that is [inside](Named::inside) another, which starts at a slot of that one.
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

/// Two rows of which slots may be on the same bytes, and the reason why that is safe.
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

/// Declares rows: a name, its region and base, its indices with extent and stride, the bytes used, and the writer. A number that an
/// index counts `from` is part of the base.
///
/// Each row is data in [`TABLE`], and code: a function of [`places`] with its name, which computes a place from the indices.
macro_rules! rows {
    ($($named:ident: $region:expr, $base:tt,
       [$($index:ident $extent:tt $sign:tt $stride:tt $(from $first:ident)?),*], $bytes:tt, $writer:expr;)*) => {
        /// All rows, by the number of their names.
        pub const TABLE: &[Row] = &[$(Row {
            named: Named::$named,
            region: $region,
            base: expr!(Quantity: $base $($(+ ($first * $stride))?)*),
            axes: &[$(Axis {
                index: Index::$index,
                extent: expr!(Quantity: $extent),
                stride: expr!(Quantity: $stride),
                falls: rows!(@falls $sign),
            }),*],
            bytes: expr!(Quantity: $bytes),
            writer: $writer,
        }),*];

        /// The place of a slot of each row, by its indices in the row's order. An index that counts from another number than 0 is
        /// that number. The functions are what machines use: a step looks nothing up. Of a row that is [fixed](super::fixed) they
        /// use constants instead.
        #[allow(non_snake_case, unused_variables, dead_code)]
        pub(super) mod places {
            use super::*;
            $(
                #[inline(always)]
                pub(in crate::layout) const fn $named(
                    at: &Memory<'_>,
                    [$($index),*]: [u32; {
                        const INDICES: &[Index] = &[$(Index::$index),*];
                        INDICES.len()
                    }],
                ) -> Place {
                    let offset = code!(at: $base);
                    $(let offset = rows!(@step offset $sign $index as u64, code!(at: $stride));)*
                    Place { region: $region, offset }
                }
            )*
        }
    };
    (@falls +) => { false };
    (@falls -) => { true };
    (@step $offset:ident + $index:expr, $stride:expr) => { $offset + $index * $stride };
    // A slot after the last one would begin before its memory.
    (@step $offset:ident - $index:expr, $stride:expr) => { $offset.wrapping_sub($index * $stride) };
}

const FORWARDED: u64 = ROW + Tail::BYTES;
const RETURNED: u64 = ROW + WEIGHT_BYTES;
const CORES: u64 = CORES_MAX as u64;

rows! {
    DispatchStatus: Region::State, 0,
        [Partition 2 + {PARTITION}, LocalExpert LocalExperts + (Ranks * StatusSlot), Source Ranks + StatusSlot],
        StatusSlot, Writer::By(Index::Source);
    DirectRecords: Region::State, 0,
        [Partition 2 + {PARTITION}, Source Ranks + DirectPitch],
        (24 + (LocalExpertNum * 8)), Writer::By(Index::Source);
    CombineStatus: Region::State, {DISPATCH_STATUS},
        [Partition 2 + {PARTITION}, Token Capacity + (Columns * StatusSlot), K Columns + StatusSlot],
        StatusSlot, Writer::Expert;
    ResultsReady: Region::State, {DISPATCH_STATUS},
        [Partition 2 + {PARTITION}, Source Ranks + {STATUS_SLOT}],
        {STATUS_SLOT}, Writer::By(Index::Source);
    DispatchSelectors: Region::State, {DISPATCH_SELECTORS}, [Core Cores + {CORE_RECORD}], 8, Writer::Own;
    CombineSelectors: Region::State, {COMBINE_SELECTORS}, [Core Cores + {CORE_RECORD}], 8, Writer::Own;
    Tasks: Region::State, 0, [Partition 2 + {MESSAGE_SLOT}, Peer Ranks + {TASK}], {TASK}, Writer::Own;
    Doorbell: Region::State, {DOORBELL}, [], 8, Writer::Own;
    CoreWords: Region::State, {CORE_WORDS}, [Core Cores + {CORE_RECORD}], {LINE + 8}, Writer::Own;
    CoreSums: Region::State, {CORE_SUMS}, [Core (min(Cores, Ranks)) + SumPitch], (LocalExpertNum * 4), Writer::Own;
    CombineRows: Region::Window, 0,
        [Partition 2 + HalfWindow, Token Capacity + (Columns * CombinePitch), K Columns + CombinePitch],
        ResultBytes, Writer::Expert;
    DispatchRecords: Region::Window, CombineArea,
        [Partition 2 + HalfWindow, Owner Owners + PortOffset from FirstOwner, Source Ranks + SourceStride,
         LocalExpert LocalExperts + (Capacity * RecordPitch), Slot Capacity + RecordPitch],
        RecordUsed, Writer::By(Index::Source);
    Rows: Region::Window, 0, [Area Areas + LandingBytes, Row RowsMax + Payload], Payload, Writer::Granted;
    Infos: Region::Window, LandingInfos, [Area Areas + LandingBytes, Row RowsMax + {LANDING_INFO}], {LANDING_INFO}, Writer::Granted;
    OverwrittenRows: Region::Window, 0, [Area Areas + LandingBytes, Row RowsMax + Payload], Payload, Writer::Granted;
    Results: Region::Window, LandingResults, [Area Areas + LandingBytes, Row RowsMax + RowBytes], RowBytes, Writer::Own;
    WindowsIn: Region::Window, 0, [Partition 2 + HalfWindow, Peer Ranks + RankWindow], RankWindow, Writer::By(Index::Peer);
    BufferChosen: Region::Window, (HalfWindow - {HALF_TAIL}), [], 8, Writer::Own;
    WindowsOut: Region::WindowOut, 0, [Partition 2 + HalfWindow, Peer Ranks + RankWindow], RankWindow, Writer::Own;
    TpDispatchSlots: Region::TpState, 0, [Partition 2 + {PARTITION}, Core Cores + {STATUS_SLOT}], 12, Writer::TpPeer;
    TpCombineSlots: Region::TpState, {DISPATCH_STATUS},
        [Partition 2 + {PARTITION}, Core Cores + {STATUS_SLOT}], 12, Writer::TpPeer;
    TpDispatchSelectors: Region::TpState, {DISPATCH_SELECTORS}, [Core Cores + {CORE_RECORD}], 8, Writer::Own;
    TpCombineSelectors: Region::TpState, {COMBINE_SELECTORS}, [Core Cores + {CORE_RECORD}], 8, Writer::Own;
    TpRecords: Region::TpWindow, 0, [Partition 2 + TpPartition, Row RowsMax + RecordPitch], RecordUsed, Writer::TpPeer;
    TpResults: Region::TpWindow, (RowsMax * RecordPitch),
        [Partition 2 + TpPartition, Row RowsMax + CombinePitch], RowBytes, Writer::TpPeer;
    Epochs: Region::Window, 0, [Core Cores + {CORE_RECORD}], 8, Writer::Own;
    Entered: Region::Window, {ENTERED}, [Near ServerRanks + {LINE}], 8, Writer::By(Index::Near);
    RowsDone: Region::Window, {ROWS_DONE}, [Near ServerRanks + {CORES * LINE}, Core {CORES} + {LINE}], 8, Writer::By(Index::Near);
    EndFlags: Region::Window, {END_FLAGS}, [Partition 2 + {END_FLAGS_PARTITION}, Server Servers + {LINE}], 8, Writer::By(Index::Server);
    Counts: Region::Window, {COUNTS},
        [Partition 2 + {COUNTS_PARTITION}, LocalExpert LocalExperts + (Ranks * 8), Source Ranks + 8], 8, Writer::By(Index::Source);
    RelayRecords: Region::Window, {WORDS},
        [Partition 2 + {RELAY_AREA}, Server Servers + (Capacity * RelayPitch), Record Capacity + RelayPitch],
        (max(TokenBytes, PartialBytes)), Writer::By(Index::Server);
    StreamsIn: Region::Window, {WORDS},
        [Partition 2 + {RELAY_AREA}, Server Servers + StreamBytes], StreamBytes, Writer::By(Index::Server);
    NearSlots: Region::Window, {NEAR_AREA},
        [LocalExpert LocalExperts + (Ranks * Capacity * NearSlot), Source Ranks + (Capacity * NearSlot),
         Slot Capacity + NearSlot],
        (LongestRow + {FORWARDED}), Writer::By(Index::Source);
    StreamsOut: Region::WindowOut, {WORDS},
        [Partition 2 + {RELAY_AREA}, Server Servers + StreamBytes], StreamBytes, Writer::Own;
    ReturnedSlots: Region::Window, {NEAR_AREA},
        [Server Servers + (Capacity * Pairs * NearSlot), Token Capacity + (Pairs * NearSlot), Position Pairs + NearSlot],
        (RowBytes + {RETURNED}), Writer::Expert;
    Blocks: Region::Window, 0, [Block BlockCount + {BLOCK}], {BLOCK_PAYLOAD}, Writer::By(Index::Source);
    BlockFlags: Region::Window, {BLOCK_PAYLOAD}, [Block BlockCount + {BLOCK}], 8, Writer::By(Index::Source);
    CountTable: Region::Window, 24, [LocalExpert LocalExpertNum + 4], 4, Writer::By(Index::Source);
    GrantTable: Region::Window, (24 + (LocalExpertNum * 4)), [LocalExpert LocalExpertNum + 4], 4, Writer::By(Index::Source);
    SumTable: Region::Window, 0, [LocalExpert LocalExpertNum + 4], 4, Writer::Own;
    WindowCounts: Region::Window, 0, [LocalExpert LocalExperts + 4], 4, Writer::By(Index::Peer);
    WindowRecords: Region::Window, {WINDOW_HEAD}, [Position ToPeer + WindowRecord], WindowRecord, Writer::By(Index::Peer);
    DispatchFlags: Region::Window, {2 * WINDOW_HEAD}, [Rows (ToPeer + 1) + WindowRecord], 8, Writer::By(Index::Peer);
    WindowRows: Region::Window, 0, [Position ToPeer + RowBytes], RowBytes, Writer::By(Index::Peer);
    CombineFlags: Region::Window, {FLAG_STEP}, [Rows (ToPeer + 1) + RowBytes], 8, Writer::By(Index::Peer);
    TokenRecords: Region::Window, (StreamBytes - (8 + TokenBytes)), [Record Capacity - TokenBytes], TokenBytes, Writer::By(Index::Server);
    SumRecords: Region::Window, (StreamBytes - (8 + PartialBytes)), [Record Capacity - PartialBytes], PartialBytes, Writer::By(Index::Server);
    ExpandX: Region::Output(Tensor::ExpandX), 0, [Row (RowsMax * TpRanks) + Payload], Payload, Writer::Own;
    DynamicScales: Region::Output(Tensor::DynamicScales), 0, [Row (RowsMax * TpRanks) + 4], 4, Writer::Own;
    AssistInfo: Region::Output(Tensor::AssistInfo), 0, [Row (RowsMax * TpRanks) + {Triple::BYTES}], {Triple::BYTES}, Writer::Own;
    ExpandIdx: Region::Output(Tensor::ExpandIdx), 0, [Token Capacity + (K * 4), K K + 4], 4, Writer::Own;
    ExpertTokenNums: Region::Output(Tensor::ExpertTokenNums), 0, [LocalExpert LocalExperts + 8], 8, Writer::Own;
    EpRecvCounts: Region::Output(Tensor::EpRecvCounts), 0,
        [LocalExpert LocalExperts + (Ranks * 4), Source Ranks + 4], 4, Writer::Own;
    PeerRecvCounts: Region::Output(Tensor::EpRecvCounts), (LocalExperts * Ranks * 4), [Source Ranks + 4], 4, Writer::Own;
    TpRecvCounts: Region::Output(Tensor::TpRecvCounts), 0, [TpRank TpRanks + 4], 4, Writer::Own;
    RowTable: Region::Output(Tensor::RowTable), 0, [Row (RowsMax * TpRanks) + 8], 8, Writer::Own;
    SentRows: Region::Output(Tensor::SentRows), 0, [Token Tokens + (K * 4), K K + 4], 4, Writer::Own;
    SharedSentRows: Region::Output(Tensor::SentRows), (Tokens * K * 4),
        [Token Tokens + (SharedExperts * 4), SharedExpert SharedExperts + 4], 4, Writer::Own;
    ExpandScales: Region::Output(Tensor::ExpandScales), 0, [Row (RowsMax * TpRanks) + 4], 4, Writer::Own;
    XOut: Region::Output(Tensor::XOut), 0, [Token Capacity + RowBytes], RowBytes, Writer::Own;
    X: Region::Output(Tensor::X), 0, [Token Capacity + RowBytes], RowBytes, Writer::Own;
    Rstd: Region::Output(Tensor::Rstd), 0, [Token Capacity + 4], 4, Writer::Own;
    Y: Region::Output(Tensor::Y), 0, [Token Capacity + RowBytes], RowBytes, Writer::Own;
}

const_assert!(TABLE.len() == Named::ALL.len());
const _: () = {
    let mut n = 0;
    while n < TABLE.len() {
        assert!(TABLE[n].named as usize == n && TABLE[n].axes.len() <= INDICES_MAX);
        n += 1;
    }
};

/// Areas whose partitions follow each other, in the order of addresses.
pub(super) const GROUPS: [&[Named]; 13] = [
    &[Named::DispatchStatus, Named::DirectRecords, Named::CombineStatus, Named::ResultsReady],
    &[Named::Tasks],
    &[Named::Doorbell, Named::DispatchSelectors, Named::CombineSelectors, Named::CoreWords, Named::CoreSums],
    &[Named::Epochs, Named::Entered, Named::RowsDone],
    &[Named::EndFlags],
    &[Named::Counts],
    &[Named::RelayRecords, Named::StreamsIn],
    &[
        Named::CombineRows,
        Named::DispatchRecords,
        Named::Rows,
        Named::OverwrittenRows,
        Named::Infos,
        Named::Results,
    ],
    &[Named::WindowsIn, Named::BufferChosen, Named::NearSlots],
    &[Named::WindowsOut, Named::StreamsOut],
    &[Named::TpDispatchSlots, Named::TpCombineSlots],
    &[Named::TpDispatchSelectors, Named::TpCombineSelectors],
    &[Named::TpRecords, Named::TpResults],
];

// Each area is in one group, once.
const _: () = {
    let mut seen = [0; Named::ALL.len()];
    let mut groups: &[&[Named]] = &GROUPS;
    while let Some((group, others)) = groups.split_first() {
        let mut group = *group;
        while let Some((named, rest)) = group.split_first() {
            seen[*named as usize] += 1;
            group = rest;
        }
        groups = others;
    }
    let mut n = 0;
    while n < TABLE.len() {
        assert!(seen[n] == TABLE[n].named.is_area() as usize);
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
                Tensor::TpRecvCounts => expr!(Quantity: TpRanks * 4),
                Tensor::SentRows => expr!(Quantity: Tokens * Columns * 4),
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
            Self::ExpandScales | Self::Rstd | Self::SentRows | Self::SharedSentRows => 4,
            Self::PeerRecvCounts | Self::TpRecvCounts => 4,
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
