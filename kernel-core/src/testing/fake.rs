//! A fabric over vectors, in one thread, as weak as the contract allows in one respect: puts and stores land
//! as late as they may. A put lands when its core publishes to that rank or is quiet, a store and a write to
//! WindowsOut when its core is quiet; and quiet says no the first time it is asked. Batched writes are in
//! [`nic`](super::nic).

use super::messages::{Loose, Message};
use super::nic::{Bend, Flying};
use crate::fabric::{Capabilities, Fabric, Fault};
use crate::layout::a2_window::buffer_chosen;
use crate::layout::data::partition_start;
use crate::layout::outputs::capacity;
use crate::layout::relay;
use crate::layout::state::{Partition, STATE_BYTES};
use crate::place::{Place, Region, Tensor};
use crate::shape::{CommAlg, Shape};
use crate::units::{CoreId, RankId};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// The memory of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Memory {
    state: Vec<u8>,
    window: Vec<u8>,
    window_out: Vec<u8>,
    outputs: Vec<Vec<u8>>,
}

impl Memory {
    fn region(&mut self, region: Region) -> &mut Vec<u8> {
        match region {
            Region::State => &mut self.state,
            Region::Window => &mut self.window,
            Region::WindowOut => &mut self.window_out,
            Region::TpState | Region::TpWindow => panic!("no TP domain here"),
            Region::Output(tensor) => &mut self.outputs[tensor as usize],
        }
    }

    fn get(&self, at: Place, len: u64) -> Option<&[u8]> {
        let region = match at.region {
            Region::State => &self.state,
            Region::Window => &self.window,
            Region::WindowOut => &self.window_out,
            Region::TpState | Region::TpWindow => panic!("no TP domain here"),
            Region::Output(tensor) => &self.outputs[tensor as usize],
        };
        let end = at.offset.checked_add(len)?;
        region.get(usize::try_from(at.offset).ok()?..usize::try_from(end).ok()?)
    }
}

/// Something that has not landed.
#[derive(Clone, Debug)]
pub(super) struct Late {
    from: (RankId, CoreId),
    pub(super) to: RankId,
    pub(super) at: Place,
    pub(super) bytes: Vec<u8>,
    pub(super) kind: Kind,
    /// How often its core was quiet since.
    pub(super) quiets: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    Publish,
    Store,
    Write,
}

/// The memory of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct World {
    ranks: Vec<Memory>,
    late: Vec<Late>,
    /// Who has asked for quiet and been told no.
    asked: Vec<(RankId, CoreId)>,
    /// Output bytes that have been written, to see a second write.
    written: BTreeSet<(RankId, Place)>,
    /// Whether a second write is no defect.
    forgiving: bool,
    /// Effects since [`World::take_effects`], in words.
    effects: Vec<String>,
    /// Posted and not delivered.
    pub(super) flying: Vec<Flying>,
    /// Whether what a transfer had still to read was ever written behind its post.
    pub(crate) rewritten: bool,
    /// Whether everything lands at once instead.
    pub(crate) eager: bool,
    /// A duty left out.
    pub(crate) bend: Bend,
    /// Where A2 keeps its `bufferChosen`.
    chosen: Place,
    /// Ranks of a server, if others are far.
    server_ranks: Option<u32>,
    /// Messages that have not landed in full, by the order in which they were sent.
    pub(super) messages: Vec<Message>,
    /// Messages of more than a word that were ever sent.
    pub(crate) crossed: u64,
}

impl World {
    pub(crate) fn new(shape: &Shape) -> Self {
        let rank = |rank| Memory {
            state: vec![0; STATE_BYTES as usize],
            window: vec![0; shape.window_bytes() as usize],
            window_out: vec![0; shape.window_out_bytes() as usize],
            outputs: Tensor::ALL.map(|tensor| vec![0; capacity(shape, rank, tensor) as usize]).to_vec(),
        };
        Self {
            ranks: (0..shape.ep_world_size()).map(RankId).map(rank).collect(),
            late: Vec::new(),
            asked: Vec::new(),
            written: BTreeSet::new(),
            forgiving: false,
            effects: Vec::new(),
            flying: Vec::new(),
            rewritten: false,
            eager: false,
            bend: Bend::None,
            chosen: buffer_chosen(shape),
            server_ranks: (shape.comm_alg() == CommAlg::Hierarchy).then(|| shape.server_ranks()),
            messages: Vec::new(),
            crossed: 0,
        }
    }

    pub(crate) fn fabric(&mut self, rank: RankId, core: CoreId) -> FakeFabric<'_> {
        FakeFabric { world: self, rank, core }
    }

    pub(crate) fn take_effects(&mut self) -> Vec<String> {
        core::mem::take(&mut self.effects)
    }

    /// New operators may write the outputs again.
    pub(crate) fn reuse_outputs(&mut self) {
        self.written.clear();
        for output in self.ranks.iter_mut().flat_map(|rank| &mut rank.outputs) {
            output.fill(0xEE);
        }
    }

    /// Corrupt counts may make cores write the same row.
    pub(crate) fn forgive_second_writes(&mut self) {
        self.forgiving = true;
    }

    /// The same for one rank.
    pub(crate) fn reuse_outputs_of(&mut self, rank: RankId) {
        self.written.retain(|&(other, _)| other != rank);
        self.ranks[rank.index()].outputs.iter_mut().for_each(|output| output.fill(0xEE));
    }

    pub(crate) fn output(&self, rank: RankId, tensor: Tensor) -> &[u8] {
        &self.ranks[rank.index()].outputs[tensor as usize]
    }

    /// Overwrites memory behind everybody's back.
    pub(crate) fn poke(&mut self, rank: RankId, at: Place, bytes: &[u8]) {
        let offset = at.offset as usize;
        let region = self.ranks[rank.index()].region(at.region);
        region[offset..][..bytes.len()].copy_from_slice(bytes);
        if let Bend::Lie(liar, place, word) = self.bend
            && (liar, place.region) == (rank, at.region)
            && (offset..offset + bytes.len()).contains(&(place.offset as usize))
        {
            region[place.offset as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
    }

    pub(crate) fn poke_word(&mut self, rank: RankId, at: Place, word: u64) {
        self.poke(rank, at, &word.to_le_bytes());
    }

    pub(crate) fn peek_word(&self, rank: RankId, at: Place) -> u64 {
        let bytes = self.ranks[rank.index()].get(at, 8).unwrap();
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Cuts a rank's window short.
    pub(crate) fn truncate_window(&mut self, rank: RankId, len: usize) {
        self.ranks[rank.index()].window.truncate(len);
    }

    /// Whether nothing is left in the status areas of any rank, nor in the flags of blocks.
    pub(crate) fn no_flag_is_left(&self, shape: &Shape) -> bool {
        let status = 2 * crate::layout::state::PARTITION as usize;
        let no_block = |rank: &Memory| {
            [Partition::P0, Partition::P1].into_iter().all(|partition| {
                let start = (partition_start(shape, partition) + shape.combine_area()) as usize;
                let area = &rank.window[start..][..shape.dispatch_area() as usize];
                area.chunks(512).all(|block| block[480..].iter().all(|&b| b == 0))
            })
        };
        self.late.is_empty()
            && self.ranks.iter().all(|rank| rank.state[..status].iter().all(|&b| b == 0))
            && (shape.comm_alg() != CommAlg::FullmeshV2 || self.ranks.iter().all(no_block))
    }

    /// Whether a publish there lands at quiet and no earlier: the flags of returned rows.
    fn late_publishes(&self, at: Place) -> bool {
        self.server_ranks.is_some() && at.region == Region::Window && at.offset >= relay::near_area()
    }

    /// Whether a put to `rank` has not landed.
    pub(crate) fn has_puts_on_their_way_to(&self, rank: RankId) -> bool {
        self.late.iter().any(|late| late.kind == Kind::Put && late.to == rank)
    }

    /// Lands everything that is late.
    pub(crate) fn settle(&mut self) {
        self.land(|_| true);
    }

    pub(super) fn land(&mut self, which: impl Fn(&Late) -> bool) {
        let (now, later) = core::mem::take(&mut self.late).into_iter().partition(|late| which(late));
        self.late = later;
        for Late { to, at, bytes, .. } in now {
            self.poke(to, at, &bytes);
        }
    }

    pub(super) fn check(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        let memory = self.ranks.get(rank.index());
        memory.and_then(|memory| memory.get(at, len)).ok_or(Fault::new(rank, at, len))
    }
}

/// One core's view of a [`World`].
#[derive(Debug)]
pub(crate) struct FakeFabric<'a> {
    world: &'a mut World,
    rank: RankId,
    core: CoreId,
}

impl FakeFabric<'_> {
    fn is_far(&self, to: RankId) -> bool {
        self.world.server_ranks.is_some_and(|ranks| to.0 / ranks != self.rank.0 / ranks)
    }

    fn later(&mut self, to: RankId, at: Place, bytes: Vec<u8>, kind: Kind) {
        let from = (self.rank, self.core);
        let late = Late { from, to, at, bytes, kind, quiets: 0 };
        if self.world.eager {
            self.world.poke(to, at, &late.bytes);
        } else if self.world.bend.keeps(&late, self.world.chosen) {
            self.world.late.push(late);
        }
    }

    fn word(&self, to: RankId, at: Place) -> Result<(), Fault> {
        self.world.check(to, at, 8)?;
        if at.offset.is_multiple_of(8) { Ok(()) } else { Err(Fault::new(to, at, 8)) }
    }
}

impl Fabric for FakeFabric<'_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::PEER_BYTES | Capabilities::SEND
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.world.check(rank, at, len)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        if self.is_far(to) {
            return Err(Fault::new(to, at, row.len() as u64));
        }
        let at = self.world.bend.place(at);
        let bytes = [row, tail].concat();
        self.world.check(to, at, bytes.len() as u64)?;
        self.world.effects.push(format!("put     -> rank {to} {at}, {} + {} B", row.len(), tail.len()));
        self.later(to, at, bytes, Kind::Put);
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if self.is_far(to) {
            return Err(Fault::new(to, at, 8));
        }
        let at = self.world.bend.place(at);
        self.word(to, at)?;
        let me = (self.rank, self.core);
        self.world.land(|late| late.kind == Kind::Put && late.from == me && late.to == to);
        if self.world.late_publishes(at) {
            self.later(to, at, word.to_le_bytes().to_vec(), Kind::Publish);
        } else {
            self.world.poke_word(to, at, word);
        }
        self.world.effects.push(format!("publish -> rank {to} {at} = {word:#x}"));
        Ok(())
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let len = message.len() as u64;
        self.world.check(to, at, len)?;
        if !self.is_far(to) || !at.offset.is_multiple_of(8) || !len.is_multiple_of(8) {
            return Err(Fault::new(to, at, len));
        }
        self.world.effects.push(format!("send    -> rank {to} {at}, {len} B"));
        self.world.crossed += u64::from(len > 8);
        self.world.messages.push(Message::new((self.rank, self.core), to, at, message));
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let me = (self.rank, self.core);
        if self.world.bend == Bend::Servers(Loose::Quiet) {
            return Ok(true);
        }
        if let Some(i) = self.world.asked.iter().position(|&core| core == me) {
            self.world.asked.swap_remove(i);
            self.world.late.iter_mut().filter(|late| late.from == me).for_each(|late| late.quiets += 1);
            let (bend, chosen) = (self.world.bend.clone(), self.world.chosen);
            self.world.land(|late| late.from == me && !bend.outlives_quiet(late, chosen));
            return Ok(true);
        }
        self.world.asked.push(me);
        Ok(false)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let at = self.world.bend.observed(self.world.bend.place(at), self.core);
        self.word(self.rank, at)?;
        let me = (self.rank, self.core);
        let own = self
            .world
            .late
            .iter()
            .rev()
            .find(|late| late.kind == Kind::Store && late.from == me && late.at == at);
        let word = match own {
            Some(late) => u64::from_le_bytes(late.bytes.as_slice().try_into().unwrap()),
            None => self.world.peek_word(self.rank, at),
        };
        Ok(self.world.bend.word(self.rank, at, word))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let at = self.world.bend.place(at);
        self.word(self.rank, at)?;
        self.world.effects.push(format!("store   {at} = {word:#x}"));
        self.later(self.rank, at, word.to_le_bytes().to_vec(), Kind::Store);
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let at = self.world.bend.place(at);
        self.world.check(self.rank, at, len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.world.bend.place(at);
        self.world.check(self.rank, at, bytes.len() as u64)?;
        if at.region == Region::WindowOut {
            self.world.effects.push(format!("write   {at}, {} B", bytes.len()));
            self.later(self.rank, at, bytes.to_vec(), Kind::Write);
            return Ok(());
        }
        assert!(matches!(at.region, Region::Output(_)), "write outside the outputs: {at}");
        let fresh = self.world.written.insert((self.rank, at));
        assert!(fresh || self.world.forgiving, "{at} of rank {} is written twice", self.rank);
        self.world.effects.push(format!("write   {at}, {} B", bytes.len()));
        self.world.poke(self.rank, at, bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.write(output, &bytes)?;
        self.world.effects.pop();
        self.world.effects.push(format!("deliver {output} <- {from}, {len} B"));
        Ok(())
    }
}
