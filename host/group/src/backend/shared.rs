//! Memory shared by threads, as anonymous mappings, or by processes, as parts of one mapping of all; committed as it is touched.
//!
//! A group may reserve far more than the machine has (512 MiB of window on each of 288 ranks); only what the
//! protocol touches becomes resident.
#![allow(unsafe_code)]

use super::{Backend, Members, PAGE, Pages, Reader, anonymous, row_copy, take};
use crate::dump;
use core::marker::PhantomData;
use core::ops::Range;
use memmap2::MmapRaw;
use std::io;
use std::sync::Arc;
use veriep_case::global_rank;
use veriep_core::fabric::Fabric;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, RowCopy, Segment};
use veriep_core::place::Tensor;
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId, align_up, div_rem};

/// The memory of a group on one machine.
#[derive(Debug)]
pub struct SharedMemory {
    /// By TP rank, then EP rank.
    peers: Vec<Vec<Peer>>,
    /// By EP rank, then TP rank.
    tp: Vec<Vec<Peer>>,
    tp_world_size: u32,
    /// Ranks of a server, if others are far; else 0.
    server_ranks: u32,
    row_copy: RowCopy,
    /// By rank, then batch.
    outputs: Vec<Vec<Outputs>>,
    /// Keeps the segments mapped.
    _maps: Vec<Arc<MmapRaw>>,
}

/// Where memory comes from.
enum Source {
    /// The system.
    Anonymous(Pages),
    /// One mapping, and how far it is given away.
    Part(Arc<MmapRaw>, u64),
    /// Nowhere: only its size is asked for.
    Measured(u64),
}

impl Source {
    /// So many bytes, zeroed, with what keeps them mapped.
    fn take(&mut self, bytes: u64) -> io::Result<(*mut u8, Option<Arc<MmapRaw>>)> {
        match self {
            Self::Anonymous(pages) => {
                let map = Arc::new(MmapRaw::from(anonymous(bytes, *pages)?));
                Ok((map.as_mut_ptr(), Some(map)))
            }
            Self::Part(map, at) => {
                let Range { start, end } = take(at, bytes, PAGE)?;
                let given = (end <= map.len() as u64).then(|| map.as_mut_ptr().wrapping_add(start as usize));
                Ok((given.ok_or(io::ErrorKind::OutOfMemory)?, Some(map.clone())))
            }
            Self::Measured(at) => take(at, bytes, PAGE).map(|_| (core::ptr::dangling_mut(), None)),
        }
    }
}

impl SharedMemory {
    /// Maps the regions of all ranks, zeroed, with outputs for `batches` batches in flight.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn new<'a>(members: impl Into<Members<'a>>, batches: usize) -> io::Result<Self> {
        Self::with_pages(members, batches, Pages::Small)
    }

    /// The same, committed in such pages.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_pages<'a>(members: impl Into<Members<'a>>, batches: usize, pages: Pages) -> io::Result<Self> {
        Self::from_source(&[members.into()], batches, &mut Source::Anonymous(pages))
    }

    /// The same in a mapping that processes share, from byte `start` on, a multiple of a page. Every process that does this
    /// finds the same places; the system has zeroed it before the first one did.
    ///
    /// # Errors
    /// The mapping is shorter than [`bytes`](Self::bytes) ask for.
    pub fn within<'a>(
        map: &Arc<MmapRaw>,
        start: u64,
        members: impl Into<Members<'a>>,
        batches: usize,
    ) -> io::Result<Self> {
        Self::from_source(&[members.into()], batches, &mut Source::Part(map.clone(), start))
    }

    /// The same for layers of one group: they share all regions, and batch `b` of layer `l` has the outputs with number
    /// `l * batches + b`.
    ///
    /// # Errors
    /// The mapping is shorter than [`bytes_of_layers`](Self::bytes_of_layers).
    pub fn of_layers(map: &Arc<MmapRaw>, start: u64, layers: &[&Shape], batches: usize) -> io::Result<Self> {
        let layers: Vec<_> = layers.iter().map(|&shape| Members::from(shape)).collect();
        Self::from_source(&layers, batches, &mut Source::Part(map.clone(), start))
    }

    /// Bytes of all regions and outputs.
    ///
    /// # Errors
    /// More than there are numbers for.
    pub fn bytes<'a>(members: impl Into<Members<'a>>, batches: usize) -> io::Result<u64> {
        Self::measured(&[members.into()], batches)
    }

    /// The same for layers of one group.
    ///
    /// # Errors
    /// More than there are numbers for.
    pub fn bytes_of_layers(layers: &[&Shape], batches: usize) -> io::Result<u64> {
        let layers: Vec<_> = layers.iter().map(|&shape| Members::from(shape)).collect();
        Self::measured(&layers, batches)
    }

    fn measured(layers: &[Members<'_>], batches: usize) -> io::Result<u64> {
        let mut source = Source::Measured(0);
        Self::from_source(layers, batches, &mut source)?;
        match source {
            Source::Measured(bytes) => Ok(bytes),
            Source::Anonymous(_) | Source::Part(..) => Ok(0),
        }
    }

    /// Memory for layers of which all have the same ranks; at least one.
    fn from_source(layers: &[Members<'_>], batches: usize, source: &mut Source) -> io::Result<Self> {
        let members = layers.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut maps = Vec::new();
        let mut take = |bytes| {
            let (base, map) = source.take(bytes)?;
            maps.extend(map);
            Ok(base)
        };
        let tp_world_size = members.shape.tp_world_size();
        let mut peers = vec![Vec::new(); tp_world_size as usize];
        let mut tp: Vec<Vec<Peer>> = Vec::new();
        let mut outputs = Vec::new();
        for rank in members.ranks() {
            let tp_rank = rank.0 % tp_world_size;
            let mut regions_of_rank = [0; 5];
            let mut outputs_of_rank = Vec::new();
            for layer in layers {
                let sizes = layer.region_sizes(rank, batches);
                let (regions, of_batches) = sizes.split_first_chunk::<5>().expect("a member has all regions");
                for (largest, size) in regions_of_rank.iter_mut().zip(regions) {
                    *largest = (*largest).max(*size);
                }
                outputs_of_rank.extend_from_slice(of_batches);
            }
            let [state, window, window_out, tp_state, tp_window] = regions_of_rank;
            peers[tp_rank as usize].push(regions(&mut take, [state, window, window_out])?);
            if tp_world_size > 1 {
                let pair = regions(&mut take, [tp_state, tp_window, 0])?;
                match tp_rank {
                    0 => tp.push(vec![pair]),
                    _ => tp.last_mut().into_iter().for_each(|of_ep_rank| of_ep_rank.push(pair)),
                }
            }
            let mut of_rank = Vec::new();
            for sizes in outputs_of_rank.as_chunks().0 {
                let sizes = sizes.map(|size| align_up(size, PAGE));
                // A rank that is gone has no outputs, and an empty mapping is refused.
                let mut next = take(sizes.iter().sum::<u64>().max(PAGE))?;
                of_rank.push(sizes.map(|size| {
                    let segment = Segment::new(next, size);
                    next = next.wrapping_add(size as usize);
                    segment
                }));
            }
            outputs.push(of_rank);
        }
        let server_ranks = global_rank::servers(members.shape).unwrap_or(0);
        Ok(Self {
            peers,
            tp,
            tp_world_size,
            server_ranks,
            row_copy: row_copy::usual(0),
            outputs,
            _maps: maps,
        })
    }
}

impl SharedMemory {
    /// Where the regions of all members are, for a dump.
    pub fn mapped(&self) -> Vec<dump::Mapped> {
        let of = |segment: Segment| (segment.base() as usize, segment.len());
        let members = self.peers.first().map_or(0, Vec::len) * self.peers.len();
        let member = |number: usize| {
            let (ep_rank, tp_rank) = (number / self.peers.len(), number % self.peers.len());
            let Peer { state, window, window_out } = self.peers[tp_rank][ep_rank];
            let tp = self.tp.get(ep_rank).map(|pair| [pair[tp_rank].state, pair[tp_rank].window].map(of));
            let [tp_state, tp_window] = tp.unwrap_or_default();
            [of(state), of(window), of(window_out), tp_state, tp_window]
        };
        (0..members).map(member).collect()
    }

    /// Where an output of a rank is, which no core writes between operators.
    #[must_use]
    pub fn output(&self, rank: RankId, batch: usize, tensor: Tensor) -> Segment {
        self.outputs[rank.index()][batch][tensor as usize]
    }

    /// The same memory, but for one output, which is written to bytes of the caller's.
    #[must_use]
    pub fn with_output<'a>(&'a self, tensor: Tensor, bytes: &'a mut [u8]) -> WithOutput<'a> {
        let segment = Segment::new(bytes.as_mut_ptr(), bytes.len() as u64);
        WithOutput { memory: self, tensor, segment, bytes: PhantomData }
    }

    fn fabric_with(&self, rank: RankId, outputs: Outputs) -> RawFabric<'_> {
        let (ep_rank, tp_rank) = div_rem(rank.0, self.tp_world_size);
        let (ep_rank, tp_rank) = (RankId(ep_rank), RankId(tp_rank));
        let tp = self.tp.get(ep_rank.index()).map_or(&[][..], Vec::as_slice);
        // SAFETY: the segments are parts of mappings that live as long as `self`, page-aligned and disjoint; but for one of
        // `WithOutput`, which is borrowed for as long as the fabric, and only by it.
        // The memory is private to this struct, or to those of the same group in other processes, which have each place
        // mapped once: it is reached only through these fabrics, through `read_output` between operators, and by the caller that
        // has asked `output` for an address and keeps to that, too. The drivers
        // hand fabrics to the machines of one core each under the join, each core's in one process; litmus programs on threads read only what a flag covers; the bare copies of the roofline write
        // places of their own and read them after a meeting of all threads.
        unsafe {
            RawFabric::new(&self.peers[tp_rank.index()], ep_rank, outputs)
                .with_tp(tp, tp_rank)
                .with_servers(self.server_ranks)
                .with_row_copy(self.row_copy)
        }
    }

    /// The same with rows copied so, and not as is [usual](row_copy::usual) for few of them.
    #[must_use]
    pub fn with_row_copy(self, row_copy: RowCopy) -> Self {
        Self { row_copy, ..self }
    }

    /// How rows are copied.
    pub const fn row_copy(&self) -> RowCopy {
        self.row_copy
    }
}

/// A state region, the window after it and after that WindowsOut.
fn regions(
    take: &mut impl FnMut(u64) -> io::Result<*mut u8>,
    [state, window, window_out]: [u64; 3],
) -> io::Result<Peer> {
    let base = take(state + window + window_out)?;
    let window_at = base.wrapping_add(state as usize);
    Ok(Peer {
        state: Segment::new(base, state),
        window: Segment::new(window_at, window),
        window_out: Segment::new(window_at.wrapping_add(window as usize), window_out),
    })
}

impl Backend for SharedMemory {
    const INLINED: bool = true;

    fn fabric(&self, rank: RankId, _core: CoreId, batch: usize) -> impl Fabric {
        self.fabric_with(rank, self.outputs[rank.index()][batch])
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        // SAFETY: as of `fabric`; the driver steps the one agent of each rank under a lock.
        unsafe { RawNic::new(self.peers.first().map_or(&[], Vec::as_slice), rank) }
    }

    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>) {
        let segment = &self.outputs[rank.index()][batch][tensor as usize];
        let len = len.min(segment.len() as usize);
        // SAFETY: the segment is mapped and initialised (zero pages); the caller reads between operators, when
        // no core writes it.
        read(unsafe { core::slice::from_raw_parts(segment.base(), len) });
    }
}

/// Memory of which one output is elsewhere.
#[derive(Debug)]
pub struct WithOutput<'a> {
    memory: &'a SharedMemory,
    tensor: Tensor,
    segment: Segment,
    bytes: PhantomData<&'a mut [u8]>,
}

impl Backend for WithOutput<'_> {
    const INLINED: bool = SharedMemory::INLINED;

    fn fabric(&self, rank: RankId, _core: CoreId, batch: usize) -> impl Fabric {
        let mut outputs = self.memory.outputs[rank.index()][batch];
        outputs[self.tensor as usize] = self.segment;
        self.memory.fabric_with(rank, outputs)
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        self.memory.nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>) {
        self.memory.read_output(rank, batch, tensor, len, read);
    }
}
