//! Packets by port, with and without the port offset.

use super::lists::{Traffic, Write, Writes, puts};
use serde::Serialize;
use veriep_core::layout::data::dispatch_record;
use veriep_core::layout::state::{Partition, dispatch_slot};
use veriep_core::placement::Home;
use veriep_core::plan::route::Send;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;
use veriep_spread::port::{Bits20To9, Load, PACKET, PORTS, REGION_ALIGN, add};

/// Packets by port.
#[derive(Debug, Serialize)]
pub struct Ports {
    pub packet_bytes: u64,
    /// State regions and windows are taken to start at multiples of it.
    pub region_align: u64,
    pub hash: &'static str,
    pub step: u32,
    pub without_offset: Vec<Port>,
    pub with_offset: Option<Vec<Port>>,
}

#[derive(Debug, Serialize)]
pub struct Port {
    pub port: usize,
    /// Blocks of records, one per source and receiver, whose first packet takes this port.
    pub block_starts: u64,
    /// Words of dispatch that tell a count, one for each source, receiver and expert there.
    pub flags: u64,
    pub at_step: Packets,
    pub all_steps: Packets,
}

#[derive(Debug, Serialize)]
pub struct Packets {
    pub heads: u64,
    pub packets: u64,
    pub bytes: u64,
}

impl From<Load> for Packets {
    fn from(Load { heads, packets, bytes }: Load) -> Self {
        Self { heads, packets, bytes }
    }
}

/// Of the dispatch sends that `writes` gives for a layout, and of the blocks of `sources`.
pub(super) fn of(
    traffic: &Traffic,
    step: u32,
    sources: impl Iterator<Item = RankId> + Clone,
    writes: impl Fn(&Shape) -> Writes<Send>,
) -> Ports {
    let ports = |shape: &Shape| ports(traffic, shape, &writes(shape), step, sources.clone());
    Ports {
        packet_bytes: PACKET,
        region_align: REGION_ALIGN,
        hash: "((address >> 9) & 0xFFF) % 7",
        step,
        without_offset: ports(&traffic.plain),
        with_offset: (traffic.shape.port_offset() > 0).then(|| ports(&traffic.shape)),
    }
}

fn ports(
    traffic: &Traffic,
    shape: &Shape,
    writes: &Writes<Send>,
    step: u32,
    sources: impl Iterator<Item = RankId>,
) -> Vec<Port> {
    // Windows are in the order of names: who is gone has left a gap.
    let base = |rank| RankId(traffic.name(rank));
    let (mut blocks, mut flags) = ([Load::default(); PORTS], [Load::default(); PORTS]);
    let slots = traffic.choices.slots;
    for source in sources {
        for rank in (0..shape.ep_world_size()).map(RankId) {
            let home = Home { rank, local_expert: 0 };
            let at = dispatch_record(shape, Partition::P0, home, traffic.ep(source), 0);
            let to = base(traffic.called(source, rank));
            add(&Bits20To9, shape, to, at, PACKET, &mut blocks);
            for local_expert in 0..shape.local_experts(rank) {
                let slot = dispatch_slot(shape, local_expert, traffic.ep(source));
                add(&Bits20To9, shape, to, slots.dispatch_status(Partition::P0, slot), 8, &mut flags);
            }
        }
    }
    let loads = |of: &mut dyn Iterator<Item = &Write<Send>>| {
        let mut loads = [Load::default(); PORTS];
        of.for_each(|write| {
            for (at, bytes) in puts(shape, write.at) {
                add(&Bits20To9, shape, base(write.to), at, bytes, &mut loads);
            }
        });
        loads
    };
    let cores = || writes.iter().flatten();
    let at_step = loads(&mut cores().filter_map(|list| list.get(step as usize)));
    let all_steps = loads(&mut cores().flatten());
    let port = |port: usize| Port {
        port,
        block_starts: blocks[port].heads,
        flags: flags[port].heads,
        at_step: at_step[port].into(),
        all_steps: all_steps[port].into(),
    };
    (0..PORTS).map(port).collect()
}
