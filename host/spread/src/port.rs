//! The physical port of each packet (910C guide, section 2.3, NPLB).
//!
//! The links choose among their ports by a hash of the destination address. Where all sources' blocks begin at multiples of
//! 2 MiB, their addresses agree in the bits that the hash takes, and all small packets use one port. [`Shape::port_offset`]
//! moves each block by a multiple of the packet size for each rank before its source, and for each rank before its owner.
//! So different ports carry packets of different ranks to one receiver, and packets of one rank to the same slot of
//! different receivers.
//!
//! Two facts are assumed, since they are not public: the hash itself (a trait, with the seed's bits as default), and the
//! addresses of regions (state region and window of one rank follow those of the previous rank, each at a multiple of 2
//! MiB).

use veriep_core::layout::state::STATE_BYTES;
use veriep_core::place::{Place, Region};
use veriep_core::shape::Shape;
use veriep_core::units::{RankId, align_up};

/// The length of a packet in bytes; writes are cut at multiples of it.
pub const PACKET: u64 = 512;
/// The number of ports of the default hash.
pub const PORTS: usize = 7;
/// The assumed alignment of state regions and windows.
pub const REGION_ALIGN: u64 = 2 << 20;

/// A link's choice of a port.
pub trait PortHash {
    /// Returns the port of a packet to `address`, counted from 0.
    fn port(&self, address: u64) -> usize;
}

/// `((address >> 9) & 0xFFF) % 7`: the address bits 20 to 9 and the seven ways of the 910C guide; the folding is our choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits20To9;

impl PortHash for Bits20To9 {
    fn port(&self, address: u64) -> usize {
        (((address >> 9) & 0xFFF) % PORTS as u64) as usize
    }
}

/// Returns the assumed start of a region of `rank`.
const fn base(shape: &Shape, rank: RankId, region: Region) -> u64 {
    let state = align_up(STATE_BYTES, REGION_ALIGN);
    let before = rank.0 as u64 * (state + align_up(shape.window_bytes(), REGION_ALIGN));
    if matches!(region, Region::State) { before } else { before + state }
}

/// The packets that leave by one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of first packets of writes: the small packets that the seed describes.
    pub heads: u64,
    /// The number of all packets.
    pub packets: u64,
    /// The number of their bytes.
    pub bytes: u64,
}

/// Adds a write of `bytes` bytes at `at` in the state region or window of `rank` to `loads`, one entry per port.
pub fn add(hash: &impl PortHash, shape: &Shape, rank: RankId, at: Place, bytes: u64, loads: &mut [Load]) {
    let start = base(shape, rank, at.region) + at.offset;
    for (i, (address, bytes)) in packets(start, bytes).enumerate() {
        if let Some(load) = loads.get_mut(hash.port(address)) {
            load.heads += u64::from(i == 0);
            load.packets += 1;
            load.bytes += bytes;
        }
    }
}

/// Returns the address and length of each packet of a write.
fn packets(start: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = start.saturating_add(bytes);
    core::iter::successors(Some(start), |at| Some(align_up(at + 1, PACKET)))
        .take_while(move |&at| at < end)
        .map(move |at| (at, align_up(at + 1, PACKET).min(end) - at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use crate::testing::shape as shape_of;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use veriep_core::layout::data::{combine_row, dispatch_record};
    use veriep_core::layout::record::sent_bytes;
    use veriep_core::layout::state::Partition;
    use veriep_core::placement::Home;
    use veriep_core::shape::{BatchSizes, Config};
    use veriep_core::units::Token;

    /// 14 ranks whose blocks are 2 MiB each: 512 records of 4096 B, after a combine area of 2 MiB.
    fn aligned(port_offset: i64) -> Shape {
        shape_of(&Config {
            ep_world_size: 14,
            moe_expert_num: 14,
            k: 1,
            h: 2016,
            bs: BatchSizes::Uniform(512),
            port_offset,
            ..Config::default()
        })
    }

    /// First packets by port of the first records of all sources on one rank, or of one source on all ranks.
    fn heads(shape: &Shape, on_one: bool) -> Vec<u64> {
        let mut loads = [Load::default(); PORTS];
        for other in (0..shape.ep_world_size()).map(RankId) {
            let (source, rank) = if on_one { (other, RankId(3)) } else { (RankId(3), other) };
            let at = dispatch_record(shape, Partition::P0, Home { rank, local_expert: 0 }, source, 0);
            add(&Bits20To9, shape, rank, at, sent_bytes(shape), &mut loads);
        }
        loads.iter().map(|load| load.heads).collect()
    }

    #[test]
    fn an_offset_spreads_blocks_at_multiples_of_2_mib_over_seven_ports() {
        let home = Home { rank: RankId(3), local_expert: 0 };
        let block = |source| dispatch_record(&aligned(0), Partition::P0, home, RankId(source), 0).offset;
        assert_eq!(block(1) - block(0), 2 << 20);
        for on_one in [true, false] {
            let most = |offset| heads(&aligned(offset), on_one).into_iter().max();
            assert_eq!(heads(&aligned(0), on_one), [14, 0, 0, 0, 0, 0, 0]);
            assert_eq!(heads(&aligned(512), on_one), [2; 7]);
            // Seven steps are a full cycle, and so is a whole block: neither changes anything.
            assert_eq!([7 * 512, 2 << 20].map(most), [Some(14); 2]);
        }
    }

    #[test]
    fn results_of_a_token_begin_at_one_port_and_with_an_offset_at_all() {
        let heads = |port_offset| {
            let shape = shape_of(&Config {
                ep_world_size: 4,
                moe_expert_num: 16,
                k: 14,
                bs: BatchSizes::Uniform(4),
                port_offset,
                ..Config::default()
            });
            let mut loads = [Load::default(); PORTS];
            for k in 0..14 {
                let at = combine_row(&shape, Partition::P0, Token(1), k);
                add(&Bits20To9, &shape, RankId(2), at, shape.result_bytes(), &mut loads);
            }
            loads.map(|load| load.heads)
        };
        assert_eq!(heads(0).into_iter().max(), Some(14));
        assert_eq!(heads(512), [2; 7]);
    }

    #[test]
    fn flags_go_to_state_regions_at_multiples_of_2_mib() {
        let shape = aligned(512);
        let mut loads = [Load::default(); PORTS];
        for rank in (0..14).map(RankId) {
            assert_eq!(base(&shape, rank, Region::State) % (2 << 20), 0);
            assert!(base(&shape, rank, Region::State) + STATE_BYTES <= base(&shape, rank, Region::Window));
            let end = base(&shape, rank, Region::Window) + shape.window_bytes();
            assert!(end <= base(&shape, RankId(rank.0 + 1), Region::State));
            add(&Bits20To9, &shape, rank, Place::state(512), 8, &mut loads);
        }
        assert_eq!(
            loads.map(|load| (load.heads, load.bytes)),
            [(0, 0), (14, 112), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]
        );
    }

    #[test]
    fn the_hash_takes_bits_20_to_9_modulo_7() {
        let port = |address| Bits20To9.port(address);
        assert_eq!([0, 511, 512, 6 * 512, 7 * 512].map(port), [0, 0, 1, 6, 0]);
        assert_eq!((port((2 << 20) - 512), port(2 << 20), port(u64::MAX)), (4095 % 7, 0, 0));
    }

    proptest! {
        #![proptest_config(random::config(256))]

        #[test]
        fn packets_are_a_write_cut_at_multiples_of_512(start in 0u64..5000, bytes in 0u64..5000) {
            let mut next = start;
            for (at, len) in packets(start, bytes) {
                prop_assert!(at == next && len > 0 && at / 512 == (at + len - 1) / 512);
                next = at + len;
                prop_assert!(next == start + bytes || next % 512 == 0, "no shorter than need be");
            }
            prop_assert_eq!(next, start + bytes);
        }
    }
}
