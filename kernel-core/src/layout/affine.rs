//! Affine maps of the memory: an offset is a base plus, for each index, the index times a stride. Generators of kernels use
//! them, because they need numbers when a kernel is specialised. Base and strides come from the [table](super::table); a test
//! compares each map with the functions that state machines use, on every index. [`areas`](super::map::areas) are the same as
//! rows of equal slots.
//!
//! What no map tells is a table of one batch: which row has which slot, position or record ([`plan`](crate::plan)).

use super::outputs;
use super::quantity::{Kind, Memory};
use super::state::Slots;
use super::table::{Row, TABLE};
use crate::place::{Region, Tensor};
use crate::shape::{Protocol, Shape};
use crate::units::RankId;

/// What a group chooses that decides where things lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mode {
    /// Areas of rows that sources put in place; 0 if they put records.
    pub landings: u32,
    /// Whether results take the places of their rows there.
    pub overwritten: bool,
    /// Whether counts and rows are told of apart.
    pub separate: bool,
    /// Whether agents send to other servers, in a hierarchy.
    pub streams: bool,
    /// The distance of status slots.
    pub slots: Slots,
}

named! {
    /// What a stride belongs to.
    Index {
        /// Partition, or half, 0 or 1.
        Partition = "partition",
        /// Area of direct placement.
        Area = "area",
        /// The rank whose memory it is, counted from the first of those that have the map.
        Owner = "owner",
        /// The rank whose rows they are.
        Source = "source",
        /// Expert of a rank.
        LocalExpert = "local_expert",
        /// Among the rows of a source for an expert.
        Slot = "slot",
        /// Token of a rank.
        Token = "token",
        /// Its k index; after all of them its shared experts.
        K = "k",
        /// Core of a rank.
        Core = "core",
        /// Received row.
        Row = "row",
        /// The other rank of a window or task.
        Peer = "peer",
        /// Rank of a server.
        Near = "near",
        /// Server.
        Server = "server",
        /// Among the records of a stream.
        Record = "record",
        /// Among the rows for a rank, or of a token on a server.
        Position = "position",
        /// How many rows there are before it.
        Rows = "rows",
        /// Block of a record.
        Block = "block",
        /// Rank of a TP domain.
        TpRank = "tp_rank",
        /// Shared expert.
        SharedExpert = "shared_expert",
    }
}

named! {
    /// What has a place of its own.
    Named {
        /// Flags and counts of dispatch.
        DispatchStatus = "dispatch status",
        /// With direct placement: words and tables of a source.
        DirectRecords = "direct records",
        /// Flags of combine.
        CombineStatus = "combine status",
        /// With direct placement: that results lie ready.
        ResultsReady = "results ready",
        /// The partition that a core's next dispatch uses.
        DispatchSelectors = "dispatch selectors",
        /// The same of combine.
        CombineSelectors = "combine selectors",
        /// A2: tasks of the agent.
        Tasks = "tasks",
        /// A2: how many operators have been rung.
        Doorbell = "doorbell",
        /// The core barrier.
        CoreWords = "core words",
        /// With direct placement: what cores have counted.
        CoreSums = "core sums",
        /// Rows that have come back.
        CombineRows = "combine rows",
        /// Rows with scale and triple.
        DispatchRecords = "dispatch records",
        /// Direct placement: what experts read.
        Rows = "rows",
        /// Scales and triples of these.
        Infos = "infos",
        /// Received rows of direct placement, and after them results that their experts put in their places.
        OverwrittenRows = "overwritten rows",
        /// What experts leave for the owners of tokens.
        Results = "results",
        /// A2: what peers have sent.
        WindowsIn = "windows in",
        /// A2: the half that comes next.
        BufferChosen = "buffer chosen",
        /// A2: what goes to peers.
        WindowsOut = "windows out",
        /// What a core of the TP peer tells in dispatch.
        TpDispatchSlots = "tp dispatch slots",
        /// The same in combine.
        TpCombineSlots = "tp combine slots",
        /// As dispatch selectors.
        TpDispatchSelectors = "tp dispatch selectors",
        /// As combine selectors.
        TpCombineSelectors = "tp combine selectors",
        /// Records that the TP peer has received.
        TpRecords = "tp records",
        /// What its experts return.
        TpResults = "tp results",
        /// Operators that a core has begun.
        Epochs = "epochs",
        /// Operators that a near rank has begun.
        Entered = "entered",
        /// The combine whose rows a near core has returned.
        RowsDone = "rows done",
        /// Ends of the streams from other servers.
        EndFlags = "end flags",
        /// Rows of a source for an expert.
        Counts = "counts",
        /// Tokens or sums from other servers, as messages.
        RelayRecords = "relay records",
        /// The same as an agent sends them.
        StreamsIn = "streams in",
        /// Rows from near ranks, in dispatch.
        NearSlots = "near slots",
        /// What an agent sends.
        StreamsOut = "streams out",
        /// Near slots as combine uses them.
        ReturnedSlots = "returned slots",
        /// Payload of a record of fullmesh_v2.
        Blocks = "blocks",
        /// A flag for each.
        BlockFlags = "block flags",
        /// Rows of a source for an expert.
        CountTable = "count table",
        /// The first of a source's rows.
        GrantTable = "grant table",
        /// Rows for an expert that a core has counted.
        SumTable = "sum table",
        /// Rows for an expert, 4 B each.
        WindowCounts = "window counts",
        /// Rows of dispatch, one behind the other.
        WindowRecords = "window records",
        /// FLAG2, after so many of them.
        DispatchFlags = "dispatch flags",
        /// Rows of combine, one behind the other.
        WindowRows = "window rows",
        /// FLAG, after so many of them.
        CombineFlags = "combine flags",
        /// Records of dispatch in a stream, the first one last.
        TokenRecords = "token records",
        /// Records of combine there.
        SumRecords = "sum records",
        /// `expand_x`.
        ExpandX = "expand_x",
        /// `dynamic_scales`.
        DynamicScales = "dynamic_scales",
        /// `assist_info_for_combine`.
        AssistInfo = "assist_info_for_combine",
        /// `expand_idx`.
        ExpandIdx = "expand_idx",
        /// `expert_token_nums`.
        ExpertTokenNums = "expert_token_nums",
        /// `ep_recv_counts`.
        EpRecvCounts = "ep_recv_counts",
        /// The counts of the TP peer behind these.
        PeerRecvCounts = "ep_recv_counts of the peer",
        /// `tp_recv_counts`.
        TpRecvCounts = "tp_recv_counts",
        /// `row_table`.
        RowTable = "row_table",
        /// `sent_rows`, of pairs with MoE experts.
        SentRows = "sent_rows",
        /// Behind them those of pairs with shared experts.
        SharedSentRows = "sent_rows of shared experts",
        /// `expand_scales`.
        ExpandScales = "expand_scales",
        /// `x_out`.
        XOut = "x_out",
        /// `x` of AddRmsNorm.
        X = "x",
        /// `rstd`.
        Rstd = "rstd",
        /// `y`.
        Y = "y",
    }
}

/// Most indices of a map.
pub const INDICES_MAX: usize = 5;

/// One index of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// What is counted.
    pub index: Index,
    /// It is below this.
    pub extent: u32,
    /// Bytes from one to the next.
    pub stride: i64,
}

/// Where something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// What it is.
    pub named: Named,
    /// In which region. A map that is [inside](Named::inside) another starts at a place of that one.
    pub region: Region,
    /// The offset when all indices are 0.
    pub base: u64,
    /// Bytes that are used at each place.
    pub bytes: u64,
    dims: [Dim; INDICES_MAX],
    used: usize,
}

impl Map {
    /// Its indices, the outermost first.
    #[must_use]
    pub fn dims(&self) -> &[Dim] {
        self.dims.get(..self.used).unwrap_or(&[])
    }

    /// The offset at these indices; those that the map has not must be 0.
    #[must_use]
    pub fn offset(&self, indices: [u32; INDICES_MAX]) -> u64 {
        let add = |at: u64, (dim, index): (&Dim, u32)| {
            at.wrapping_add_signed(dim.stride.wrapping_mul(i64::from(index)))
        };
        self.dims.iter().zip(indices).fold(self.base, add)
    }
}

/// Every map of `rank`'s memory, areas first.
pub fn maps(shape: &Shape, mode: Mode, rank: RankId) -> impl Iterator<Item = Map> {
    Named::ALL.iter().filter_map(move |named| named.map(shape, mode, rank))
}

const WINDOWS: &[Named] = &[Named::WindowsIn, Named::WindowsOut];

impl Named {
    /// Where it is on `rank`, if it does.
    #[must_use]
    pub fn map(self, shape: &Shape, mode: Mode, rank: RankId) -> Option<Map> {
        self.map_in(&Memory { shape, mode, rank })
    }

    /// Where it is in a memory, if it does.
    pub(super) fn map_in(self, memory: &Memory<'_>) -> Option<Map> {
        let Memory { shape, mode, rank } = *memory;
        let has_tensor = |tensor| outputs::capacity(shape, rank, tensor) > 0;
        if !self.is_of(Kind::of(shape, mode)) || !self.tensor().is_none_or(has_tensor) {
            return None;
        }
        let row = self.row()?;
        let mut dims = [Dim { index: Index::Partition, extent: 1, stride: 0 }; INDICES_MAX];
        for (dim, axis) in dims.iter_mut().zip(row.axes) {
            let stride = memory.value(&axis.stride).cast_signed();
            *dim = Dim {
                index: axis.index,
                extent: memory.value(&axis.extent) as u32,
                stride: if axis.falls { stride.wrapping_neg() } else { stride },
            };
        }
        // Without a shared expert, for example, there is no slot of one.
        if dims.iter().any(|dim| dim.extent == 0) {
            return None;
        }
        let (base, bytes) = (memory.value(&row.base), memory.value(&row.bytes));
        Some(Map { named: self, region: row.region, base, bytes, dims, used: row.axes.len() })
    }

    /// Its row of the table.
    #[must_use]
    pub fn row(self) -> Option<&'static Row> {
        TABLE.get(self as usize)
    }

    /// Inside which others it lies, at the same places of each slot; none if it has a region of its own.
    #[must_use]
    pub const fn inside(self) -> &'static [Self] {
        match self {
            Self::Blocks | Self::BlockFlags => &[Self::DispatchRecords],
            Self::CountTable | Self::GrantTable => &[Self::DirectRecords],
            Self::SumTable => &[Self::CoreSums],
            Self::WindowCounts | Self::WindowRecords | Self::DispatchFlags => WINDOWS,
            Self::WindowRows | Self::CombineFlags => WINDOWS,
            Self::TokenRecords | Self::SumRecords => &[Self::StreamsIn, Self::StreamsOut],
            _ => &[],
        }
    }

    /// Whether it is an area: something for which memory is set aside. Others are outputs, are inside one, or are the same
    /// memory by other indices.
    #[must_use]
    pub const fn is_area(self) -> bool {
        (self as usize) < Self::ReturnedSlots as usize
    }

    /// The output that it is in.
    fn tensor(self) -> Option<Tensor> {
        match self.row()?.region {
            Region::Output(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Whether groups of this kind have it; an output, whether they may.
    #[must_use]
    pub fn is_of(self, Kind { protocol, has_tp: tp, mode }: Kind) -> bool {
        let (mesh, hierarchy) = match protocol {
            Protocol::Fullmesh => (true, false),
            Protocol::Hierarchy => (false, true),
            Protocol::FullmeshV1 | Protocol::FullmeshV2 => (false, false),
        };
        let a3 = !mesh && !hierarchy;
        let (lands, streams) = (a3 && mode.landings > 0, hierarchy && mode.streams);
        match self {
            Self::DispatchStatus | Self::CombineStatus | Self::CombineRows | Self::DispatchRecords => {
                a3 && !lands
            }
            Self::DirectRecords | Self::ResultsReady | Self::CoreSums => lands,
            Self::Infos => lands,
            Self::Rows | Self::Results => lands && !mode.overwritten,
            Self::OverwrittenRows => lands && mode.overwritten,
            Self::CountTable | Self::GrantTable | Self::SumTable => lands,
            Self::DispatchSelectors | Self::CombineSelectors => a3,
            Self::CoreWords => !hierarchy || streams,
            Self::TpDispatchSlots | Self::TpCombineSlots => tp,
            Self::TpDispatchSelectors | Self::TpCombineSelectors | Self::TpRecords | Self::TpResults => tp,
            Self::PeerRecvCounts | Self::TpRecvCounts => tp,
            Self::SentRows | Self::SharedSentRows => lands,
            Self::Tasks | Self::Doorbell => mesh || streams,
            Self::BufferChosen | Self::WindowsIn | Self::WindowsOut => mesh,
            Self::WindowCounts | Self::WindowRecords | Self::DispatchFlags => mesh,
            Self::WindowRows | Self::CombineFlags => mesh,
            Self::Epochs | Self::Entered | Self::RowsDone | Self::Counts => hierarchy,
            Self::NearSlots | Self::ReturnedSlots => hierarchy,
            Self::EndFlags | Self::RelayRecords => hierarchy && !streams,
            Self::StreamsIn | Self::StreamsOut | Self::TokenRecords | Self::SumRecords => streams,
            Self::Blocks | Self::BlockFlags => protocol == Protocol::FullmeshV2,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests;
