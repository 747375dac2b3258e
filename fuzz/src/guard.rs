//! Every access to memory is held against the layout: it must lie in one slot of one area, and whoever writes must be
//! the one whose slot it is. A machine that reads or writes anywhere else is a defect, whatever it was told.

use kernel_core::layout::a2_window;
use kernel_core::layout::map::{self, Area};
use kernel_core::layout::outputs::capacity;
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::shape::{Product, Shape};
use kernel_core::units::{CoreId, RankId};

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By the own rank.
    Read,
    /// By any rank: put, publish, a delivered transfer.
    Send,
    /// By the own rank: store, write.
    Own,
}

/// The areas of one rank.
#[derive(Clone, Debug)]
pub struct Guard {
    areas: Vec<Area>,
    outputs: [u64; Tensor::ALL.len()],
    ranks: u64,
    /// Records of one source, where all sources' are one area.
    of_source: u64,
}

impl Guard {
    /// Of the rank that machines call `ep`.
    #[must_use]
    pub fn new(shape: &Shape, ep: RankId) -> Self {
        Self {
            areas: match shape.product() {
                Product::A3 => map::areas(shape, ep).collect(),
                Product::A2 => a2_window::areas(shape).collect(),
            },
            outputs: Tensor::ALL.map(|tensor| capacity(shape, ep, tensor)),
            ranks: shape.ep_world_size().into(),
            of_source: match shape.port_offset() {
                0 => u64::from(shape.local_experts(ep)) * u64::from(shape.bs_max()),
                _ => 0,
            },
        }
    }

    /// The areas.
    #[must_use]
    pub fn areas(&self) -> &[Area] {
        &self.areas
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
        let holds = |area: &&Area| {
            let start = area.start;
            start.region == at.region && start.offset <= at.offset && at.offset - start.offset < area.size()
        };
        let Some(area) = self.areas.iter().find(holds) else {
            panic!("{access:?} of {len} bytes at {at} by core {core} of rank {by}: in no area");
        };
        let inside = at.offset - area.start.offset;
        let (slot, offset) = (inside / area.stride, inside % area.stride);
        let name = area.name;
        assert!(
            len > 0 && offset.checked_add(len).is_some_and(|end| end <= area.slot),
            "{access:?} of {len} bytes at {at} by core {core} of rank {by}: leaves slot {slot} of {name}"
        );
        assert!(
            self.is_owner(access, (by, core), area, slot),
            "{access:?} at {at} by core {core} of rank {by}: slot {slot} of {name} is not its own"
        );
    }

    fn is_owner(&self, access: Access, (by, core): (RankId, CoreId), area: &Area, slot: u64) -> bool {
        let (rank, of_core) = (u64::from(by.0), slot == u64::from(core.0));
        match (area.name, access) {
            ("dispatch selectors" | "combine selectors", _) => of_core,
            ("tp dispatch selectors" | "tp combine selectors", _) => of_core,
            ("core words", Access::Send | Access::Own) => of_core,
            ("core words", Access::Read) => true,
            ("tp dispatch slots" | "tp combine slots", _) => of_core,
            ("dispatch status", Access::Send) => slot % self.ranks == rank,
            ("dispatch records", Access::Send) if self.of_source > 0 => slot / self.of_source == rank,
            ("dispatch records", Access::Send) => {
                // One area for each source, partition by partition.
                let records = |other: &&Area| other.name == area.name && other.partition == area.partition;
                self.areas.iter().filter(records).position(|other| other == area) == Some(rank as usize)
            }
            ("windows in", Access::Send) => slot == rank,
            ("doorbell", Access::Send) | ("buffer chosen", Access::Own) => core.0 == 0,
            ("tasks" | "windows out", Access::Send) | ("doorbell" | "buffer chosen", _) => {
                access == Access::Read
            }
            _ => true,
        }
    }
}
