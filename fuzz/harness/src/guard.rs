//! Every access to memory is held against the layout: it must be in one slot of one area, and the writer must be
//! the one whose slot it is. A machine that reads or writes anywhere else is a defect, whatever it was told.

use veriep_core::layout::affine::{self, Index, Map, Named};
use veriep_core::layout::locate::Spot;
use veriep_core::layout::map::{self, Area};
use veriep_core::layout::outputs::capacity;
use veriep_core::layout::quantity::{Memory, Quantity};
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

/// The areas of one rank.
#[derive(Clone, Debug)]
pub struct Guard {
    pub areas: Vec<Area>,
    outputs: [u64; Tensor::ALL.len()],
    /// Maps of the areas, and the rank's number among those that have the same.
    maps: Vec<Map>,
    owner: u32,
    /// Words have the numbers of calls.
    pub checked: bool,
    pub shape: Shape,
    /// The owner of the memory, by the id that machines use.
    pub rank: RankId,
}

impl Guard {
    /// Of the rank that machines call `ep`.
    pub fn new(shape: &Shape, ep: RankId, choices: Choices) -> Self {
        let memory = Memory { shape, mode: choices.mode(), rank: ep };
        let maps = affine::maps(shape, memory.mode, ep).filter(|map| map.named.is_area());
        Self {
            areas: map::areas(shape, memory.mode, ep).collect(),
            maps: maps.collect(),
            owner: ep.0 - Quantity::FirstOwner.value(&memory) as u32,
            checked: choices.checked,
            outputs: Tensor::ALL.map(|tensor| capacity(shape, ep, tensor)),
            shape: shape.clone(),
            rank: ep,
        }
    }

    /// Returns the slot that has a byte.
    pub fn find(&self, at: Place) -> Option<Spot> {
        let mut of_region = self.maps.iter().filter(|map| map.region == at.region);
        of_region.find_map(|&map| {
            let (indices, inside) = map.find(self.owner, at.offset)?;
            Some(Spot { map, indices, inside })
        })
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
            panic!("{access:?} of {len} bytes at {at} by core {core} of rank {by}: in no slot");
        };
        assert!(
            len > 0 && spot.inside.checked_add(len).is_some_and(|end| end <= spot.map.bytes),
            "{access:?} of {len} bytes at {at} by core {core} of rank {by}: leaves {spot}"
        );
        let is_owner = match self.shape.protocol() {
            Protocol::Hierarchy => self.is_owner_of_messages(access, (by, core), &spot),
            _ => self.is_owner(access, (by, core), &spot),
        };
        assert!(is_owner, "{access:?} at {at} by core {core} of rank {by}: {spot} is not its own");
    }

    fn is_owner(&self, access: Access, (by, core): (RankId, CoreId), spot: &Spot) -> bool {
        let of_core = spot.index(Index::Core) == Some(core.0);
        let is = |index| spot.index(index) == Some(by.0);
        match (spot.map.named, access) {
            (_, Access::Message) => false,
            (name, Access::Pull) => matches!(name, Named::Results | Named::OverwrittenRows),
            (Named::DispatchSelectors | Named::CombineSelectors, _) => of_core,
            (Named::TpDispatchSelectors | Named::TpCombineSelectors, _) => of_core,
            (Named::CoreWords, Access::Send | Access::Own) => of_core,
            (Named::CoreWords, Access::Read) => true,
            (Named::TpDispatchSlots | Named::TpCombineSlots, _) => of_core,
            (Named::DispatchStatus | Named::DispatchRecords, Access::Send) => is(Index::Source),
            (Named::DirectRecords | Named::ResultsReady, Access::Send) => is(Index::Source),
            (Named::CoreSums, Access::Send) => by == self.rank && of_core,
            (Named::Results, _) => false,
            (Named::WindowsIn, Access::Send) => is(Index::Peer),
            (Named::Doorbell, Access::Send) | (Named::BufferChosen, Access::Own) => core.0 == 0,
            (Named::Tasks | Named::WindowsOut, Access::Send) | (Named::Doorbell | Named::BufferChosen, _) => {
                access == Access::Read
            }
            _ => true,
        }
    }

    /// The same in a hierarchy, where messages and tasks come from namesakes on other servers, all else from near ranks.
    fn is_owner_of_messages(&self, access: Access, (by, core): (RankId, CoreId), spot: &Spot) -> bool {
        let near = self.shape.server_ranks();
        let place = |rank: u32| (rank / near, rank % near);
        let ((server, number), (own_server, own_number)) = (place(by.0), place(self.rank.0));
        let (is_near, is_namesake) = (server == own_server, server != own_server && number == own_number);
        let streams = plan::relay::streams(&self.shape, core);
        let issues = |to: u32| to != own_server && streams.contains(&to);
        let of_core = spot.index(Index::Core) == Some(core.0);
        let (of_server, of_number) =
            (spot.index(Index::Server) == Some(server), spot.index(Index::Near) == Some(number));
        match (spot.map.named, access) {
            (Named::Epochs, Access::Read | Access::Own) => of_core,
            (_, Access::Read) => true,
            (Named::Entered, Access::Send) => is_near && of_number && core.0 == 0,
            (Named::RowsDone, Access::Send) => is_near && of_number && of_core,
            // A relay tells of its namesakes.
            (Named::Counts, Access::Send) => {
                is_near && spot.index(Index::Source).is_some_and(|source| place(source).1 == number)
            }
            (Named::NearSlots, Access::Send) => is_near,
            (Named::EndFlags | Named::RelayRecords, Access::Message) => is_namesake && of_server,
            (Named::StreamsIn, Access::Send) => is_namesake && of_server,
            (Named::StreamsOut, Access::Own) => spot.index(Index::Server).is_some_and(issues),
            (Named::Tasks, Access::Own) => spot.index(Index::Peer).is_some_and(|peer| {
                let (server, number) = place(peer);
                number == own_number && issues(server)
            }),
            (Named::Doorbell, Access::Send) => by == self.rank && core.0 == 0,
            (Named::CoreWords, Access::Send) => by == self.rank && of_core,
            _ => false,
        }
    }
}
