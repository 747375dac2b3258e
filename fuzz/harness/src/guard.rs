//! Every access to memory is held against the layout: it must be in one slot of one area, and the writer must be
//! the one whose slot it is. A machine that reads or writes anywhere else is a defect, whatever it was told.

use crate::spec;
use veriep_core::layout::affine::Named;
use veriep_core::layout::map::{self, Area};
use veriep_core::layout::outputs::capacity;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::plan;
use veriep_core::protocol::Choices;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, RankId};

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By this rank.
    Read,
    /// By any rank: put, publish, a delivered transfer.
    Send,
    /// By a rank of another server.
    Message,
    /// By this rank: store, write.
    Own,
    /// By a peer that reads.
    Pull,
}

/// Where in a rank's memory something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub area: Area,
    pub slot: u64,
    pub offset: u64,
}

/// The areas of one rank.
#[derive(Clone, Debug)]
pub struct Guard {
    pub areas: Vec<Area>,
    outputs: [u64; Tensor::ALL.len()],
    /// Words have the numbers of calls.
    pub checked: bool,
    pub shape: Shape,
    /// The owner of the memory, by the id that machines use.
    pub rank: RankId,
}

impl Guard {
    /// Of the rank that machines call `ep`.
    pub fn new(shape: &Shape, ep: RankId, choices: Choices) -> Self {
        Self {
            areas: map::areas(shape, choices.mode(), ep).collect(),
            checked: choices.checked,
            outputs: Tensor::ALL.map(|tensor| capacity(shape, ep, tensor)),
            shape: shape.clone(),
            rank: ep,
        }
    }

    /// Where `at` lies.
    pub fn find(&self, at: Place) -> Option<Spot> {
        let holds = |area: &&Area| {
            let start = area.start;
            start.region == at.region && start.offset <= at.offset && at.offset - start.offset < area.size()
        };
        let area = *self.areas.iter().find(holds)?;
        let inside = at.offset - area.start.offset;
        Some(Spot { area, slot: inside / area.stride, offset: inside % area.stride })
    }

    /// Checks an access by a core (an agent counts as core 0) of the rank that machines call `by`.
    ///
    /// # Panics
    /// If it is not that core's to make.
    pub fn check(&self, access: Access, (by, core): (RankId, CoreId), at: Place, len: u64) {
        if let Region::Output(tensor) = at.region {
            assert!(access == Access::Own, "{access:?} of an output: {at}");
            let end = at.offset.checked_add(len);
            let fits = end.is_some_and(|end| end <= self.outputs[tensor as usize]);
            assert!(fits, "{len} bytes at {at} are outside the tensor's {}", self.outputs[tensor as usize]);
            return;
        }
        let Some(spot) = self.find(at) else {
            panic!("{access:?} of {len} bytes at {at} by core {core} of rank {by}: in no area");
        };
        let Spot { area, slot, offset } = spot;
        let name = area.named.name();
        assert!(
            len > 0 && offset.checked_add(len).is_some_and(|end| end <= area.slot),
            "{access:?} of {len} bytes at {at} by core {core} of rank {by}: leaves slot {slot} of {name}"
        );
        let is_owner = match self.shape.protocol() {
            Protocol::Hierarchy => self.is_owner_of_messages(access, (by, core), &spot),
            _ => self.is_owner(access, (by, core), &spot),
        };
        assert!(
            is_owner,
            "{access:?} at {at} by core {core} of rank {by}: slot {slot} of {name} is not its own"
        );
    }

    /// The source of a dispatch record, and the number of the record among those of its expert.
    pub fn record_source(&self, area: &Area, slot: u64) -> (u64, u64) {
        let bs = u64::from(self.shape.bs_max());
        let is_shared = self.rank.0 < self.shape.shared_expert_rank_num();
        let experts = if is_shared { 1 } else { spec::local_experts(&self.shape) };
        // With a port offset one area for each source, partition by partition.
        let records = |other: &&Area| other.named == area.named && other.partition == area.partition;
        let before = self.areas.iter().filter(records).position(|other| other == area).unwrap_or(0);
        (before as u64 + slot / (experts * bs), slot % bs)
    }

    fn is_owner(&self, access: Access, (by, core): (RankId, CoreId), spot: &Spot) -> bool {
        let Spot { area, slot, .. } = *spot;
        let (rank, of_core) = (u64::from(by.0), slot == u64::from(core.0));
        match (area.named, access) {
            (_, Access::Message) => false,
            (name, Access::Pull) => matches!(name, Named::Results | Named::OverwrittenRows),
            (Named::DispatchSelectors | Named::CombineSelectors, _) => of_core,
            (Named::TpDispatchSelectors | Named::TpCombineSelectors, _) => of_core,
            (Named::CoreWords, Access::Send | Access::Own) => of_core,
            (Named::CoreWords, Access::Read) => true,
            (Named::TpDispatchSlots | Named::TpCombineSlots, _) => of_core,
            (Named::DispatchStatus, Access::Send) => slot % u64::from(self.shape.ep_world_size()) == rank,
            (Named::DispatchRecords, Access::Send) => self.record_source(&area, slot).0 == rank,
            (Named::DirectRecords | Named::ResultsReady, Access::Send) => slot == rank,
            (Named::CoreSums, Access::Send) => by == self.rank && of_core,
            (Named::Results, _) => false,
            (Named::WindowsIn, Access::Send) => slot == rank,
            (Named::Doorbell, Access::Send) | (Named::BufferChosen, Access::Own) => core.0 == 0,
            (Named::Tasks | Named::WindowsOut, Access::Send) | (Named::Doorbell | Named::BufferChosen, _) => {
                access == Access::Read
            }
            _ => true,
        }
    }

    /// The same in a hierarchy, where messages and tasks come from namesakes on other servers, all else from near ranks.
    fn is_owner_of_messages(&self, access: Access, (by, core): (RankId, CoreId), spot: &Spot) -> bool {
        let near = u64::from(self.shape.server_ranks());
        let place = |rank: RankId| (u64::from(rank.0) / near, u64::from(rank.0) % near);
        let ((server, number), (own_server, own_number)) = (place(by), place(self.rank));
        let (is_near, is_namesake) = (server == own_server, server != own_server && number == own_number);
        let (slot, bs) = (spot.slot, u64::from(self.shape.bs_max()));
        let streams = plan::relay::streams(&self.shape, core);
        let issues = |to: u64| to != own_server && streams.contains(&(to as u32));
        match (spot.area.named, access) {
            (Named::Epochs, Access::Read | Access::Own) => slot == u64::from(core.0),
            (_, Access::Read) => true,
            (Named::Entered, Access::Send) => is_near && slot == number && core.0 == 0,
            // 48 cores at most.
            (Named::RowsDone, Access::Send) => is_near && slot == number * 48 + u64::from(core.0),
            // A relay tells of its namesakes.
            (Named::Counts, Access::Send) => {
                is_near && slot % u64::from(self.shape.ep_world_size()) % near == number
            }
            (Named::NearSlots, Access::Send) => is_near,
            (Named::EndFlags, Access::Message) => is_namesake && slot == server,
            (Named::RelayRecords, Access::Message) => is_namesake && slot / bs == server,
            (Named::StreamsIn, Access::Send) => is_namesake && slot == server,
            (Named::StreamsOut, Access::Own) => issues(slot),
            (Named::Tasks, Access::Own) => {
                let (server, number) = place(RankId(slot as u32));
                number == own_number && issues(server)
            }
            (Named::Doorbell, Access::Send) => by == self.rank && core.0 == 0,
            (Named::CoreWords, Access::Send) => by == self.rank && slot == u64::from(core.0),
            _ => false,
        }
    }
}
