//! The memory of a group, of which the model has two: one that is reached by the C functions, one by the core's own in lockstep.

use core::ffi::c_void;
use kernel_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, Segment};
use kernel_core::layout::outputs;
use kernel_core::layout::tp;
use kernel_core::place::Tensor;
use kernel_core::shape::{Protocol, Shape};
use kernel_core::units::RankId;
use std::vec;
use std::vec::Vec;

use crate::codes::VERIEP_STATE_BYTES;

/// No window is longer here; what would be beyond is refused by both.
const WINDOW_MAX: u64 = 1 << 22;

/// The memory that a core reaches.
pub(super) struct Reach {
    pub(super) peers: Vec<Peer>,
    pub(super) tp: Vec<Peer>,
    pub(super) outputs: Outputs,
}

impl Reach {
    /// The fabric of a core.
    pub(super) fn fabric(&self, shape: &Shape, rank: u32, tp_rank: u32) -> RawFabric<'_> {
        // SAFETY: the regions are there, apart, and used by one thread.
        let fabric = unsafe {
            RawFabric::new(&self.peers, RankId(rank), self.outputs).with_tp(&self.tp, RankId(tp_rank))
        };
        let servers = if shape.protocol() == Protocol::Hierarchy { shape.server_ranks() } else { 0 };
        fabric.with_servers(servers)
    }

    /// The interface of an agent.
    pub(super) fn nic(&self, rank: u32) -> RawNic<'_> {
        // SAFETY: as above.
        unsafe { RawNic::new(&self.peers, RankId(rank)) }
    }
}

/// The regions of all ranks, each an allocation of its own with a word after it that nothing may touch.
pub(super) struct Memory {
    regions: Vec<Vec<u64>>,
    pub(super) peers: Vec<Peer>,
    pub(super) tp: Vec<Peer>,
    pub(super) outputs: Vec<Outputs>,
}

impl Memory {
    pub(super) fn new(shape: &Shape) -> Self {
        let mut regions: Vec<Vec<u64>> = Vec::new();
        let mut region = |bytes: u64| {
            if bytes == 0 {
                return Segment::EMPTY;
            }
            regions.push(vec![0; bytes.div_ceil(8) as usize + 1]);
            regions.last_mut().map_or(Segment::EMPTY, |words| Segment::new(words.as_mut_ptr().cast(), bytes))
        };
        let ranks = || (0..shape.ep_world_size()).map(RankId);
        let peers = ranks()
            .map(|_| Peer {
                state: region(VERIEP_STATE_BYTES),
                window: region(shape.window_bytes().min(WINDOW_MAX)),
                window_out: region(shape.window_out_bytes().min(WINDOW_MAX)),
            })
            .collect();
        // Without a TP domain some words that nothing uses.
        let (state, window) = if shape.tp_world_size() > 1 {
            (VERIEP_STATE_BYTES, tp::window_bytes(shape, RankId(0)).min(WINDOW_MAX))
        } else {
            (64, 64)
        };
        let tp = (0..2)
            .map(|_| Peer { state: region(state), window: region(window), window_out: region(64) })
            .collect();
        let outputs =
            ranks().map(|rank| Tensor::ALL.map(|tensor| region(outputs::capacity(shape, rank, tensor))));
        let outputs = outputs.collect();
        Self { regions, peers, tp, outputs }
    }

    /// The number of the region in which an address lies, and the bytes from its start.
    pub(super) fn place_of(&self, address: *const c_void) -> (usize, usize) {
        let found = self.regions.iter().enumerate().find_map(|(number, words)| {
            let from = (address as usize).checked_sub(words.as_ptr() as usize)?;
            (from <= 8 * words.len()).then_some((number, from))
        });
        found.unwrap_or((usize::MAX, address as usize))
    }

    /// The first region in which two memories differ.
    pub(super) fn difference(&self, other: &Self) -> Option<(usize, usize)> {
        let pairs = self.regions.iter().zip(&other.regions).enumerate();
        pairs.filter(|(_, (own, others))| own != others).find_map(|(number, (own, others))| {
            own.iter().zip(others).position(|(a, b)| a != b).map(|at| (number, 8 * at))
        })
    }

    /// Writes a word of a rank's state region.
    pub(super) fn set(&mut self, rank: usize, offset: u64, word: u64) {
        let segment = self.peers[rank].state;
        if offset + 8 <= segment.len() {
            // SAFETY: it is inside, and is aligned as places of words are.
            unsafe { segment.base().wrapping_add(offset as usize).cast::<u64>().write(word) };
        }
    }

    pub(super) fn output(&self, rank: usize, tensor: Tensor) -> (*const u8, usize) {
        let segment = self.outputs[rank][tensor as usize];
        (segment.base(), segment.len() as usize)
    }

    /// What a core of a rank reaches.
    pub(super) fn reach(&self, rank: u32) -> Reach {
        Reach { peers: self.peers.clone(), tp: self.tp.clone(), outputs: self.outputs[rank as usize] }
    }
}
