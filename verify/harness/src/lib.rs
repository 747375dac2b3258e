//! Groups for programs without std: their scenes, memory and experts, and a digest of what must come of each round, which the
//! reference was asked for when this crate was built. A program gives an [`Arena`](memory::Arena) its memory, and steps the cores of
//! each [`Group`] in its own way: `verify/boot` has a
//! processor for each, `verify/freestanding` one for all.
//!
//! Other programs do the same by themselves. `verify/firmware` and the example `own_fabric` show the code of an embedder, and
//! `verify/device` compares every output of drawn inputs, in memory of another device.
//!
//! Nothing here has a path to a panic.
#![no_std]

pub mod memory;
pub mod scene;

use memory::{Memory, OUTPUT, bytes, bytes_mut, part};
use scene::{Domain, MEMBERS, RANKS, ROUNDS, ROW, SCENES, Scene};
use veriep_core::fabric::Terms;
use veriep_core::fabric::rank_remap::RankRemap;
use veriep_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, Segment};
use veriep_core::layout::outputs::{capacity, ep_recv_counts_bytes};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::received::{expert_rows, received_rows};
use veriep_core::protocol::{CombineInputs, Env, Operator, Refused, Scratch, scratch_bytes, scratch_words};
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Portable;

/// What must come of every round of every scene, those of [`protocols`](scene::protocols) first: a digest of each member's
/// results.
pub static GOLDEN: [[[u64; MEMBERS]; ROUNDS]; SCENES] = include!(concat!(env!("OUT_DIR"), "/golden.rs"));

const WORDS: usize = 256;
const ROW_BYTES: usize = 6 * ROW;

/// A core's scratch, large enough for every scene.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    words: [u32; WORDS],
    row: [u8; ROW_BYTES],
}

impl Buffers {
    /// What a core begins with.
    pub const ZERO: Self = Self { words: [0; _], row: [0; _] };

    /// Returns it as a machine takes it.
    pub const fn scratch(&mut self) -> Scratch<'_> {
        Scratch { words: &mut self.words, row: &mut self.row }
    }
}

/// The members of a scene, and their memory.
#[derive(Debug)]
pub struct Group<'a> {
    /// The scene.
    pub scene: &'a Scene,
    /// Its domain.
    pub domain: &'a Domain,
    eps: [Peer; RANKS],
    tps: [Peer; RANKS],
    outputs: [Outputs; MEMBERS],
    ys: [Segment; MEMBERS],
}

impl<'a> Group<'a> {
    /// Returns the group, if its operators fit into the memory and into [`Buffers`].
    fn new(scene: &'a Scene, domain: &'a Domain, memories: [Memory; RANKS]) -> Option<Self> {
        let shape = &domain.shape;
        let mut group = Self {
            scene,
            domain,
            eps: memories.map(|memory| memory.ep),
            tps: memories.map(|memory| memory.tp),
            outputs: [[Segment::EMPTY; Tensor::ALL.len()]; MEMBERS],
            ys: [Segment::EMPTY; MEMBERS],
        };
        let members = group.outputs.iter_mut().zip(&mut group.ys);
        for (member, (outputs, y)) in members.enumerate() {
            let Memory { outputs: all, y: room, .. } = memories.get(domain.physical(member)?.index())?;
            for (tensor, output) in Tensor::ALL.into_iter().zip(outputs) {
                let len = capacity(shape, domain.ep(member), tensor);
                *output = part(part(*all, tensor as u64 * OUTPUT, OUTPUT)?, 0, len)?;
            }
            *y = *room;
        }
        (scratch_words(shape) <= WORDS && scratch_bytes(shape) <= ROW_BYTES).then_some(group)
    }

    /// Returns the memory as cores of a member reach it.
    pub fn fabric(&self, member: usize) -> Option<RankRemap<'_, RawFabric<'_>>> {
        let (peers, rank) = self.peers(member)?;
        let outputs = *self.outputs.get(member)?;
        // SAFETY: segments of an arena, which are disjoint; what `Arena::new` demands is the rest.
        let inner = unsafe { RawFabric::new(peers, rank, outputs).with_tp(&self.tps, RankId(member as u32)) };
        let inner = inner.with_servers(self.domain.shape.server_ranks());
        Some(RankRemap { inner, left: self.domain.left.as_ref() })
    }

    /// Returns the memory as a member's agent reaches it.
    pub fn nic(&self, member: usize) -> Option<RawNic<'_>> {
        let (peers, rank) = self.peers(member)?;
        // SAFETY: as of `fabric`.
        Some(unsafe { RawNic::new(peers, rank) })
    }

    /// The ranks of a member's EP domain, and its own number among them: a TP peer is alone in its one.
    fn peers(&self, member: usize) -> Option<(&[Peer], RankId)> {
        if self.domain.has_tp() {
            return Some((self.eps.get(member..=member)?, RankId(0)));
        }
        Some((self.eps.get(..self.domain.ranks() as usize)?, self.domain.physical(member)?))
    }

    /// Returns the constants of a member's core.
    ///
    /// # Errors
    /// The core cannot take part.
    pub fn env(&self, member: usize, core: usize, terms: Terms) -> Result<Env<Portable>, Refused> {
        let (shape, ep, core) = (&self.domain.shape, self.domain.ep(member), CoreId(core as u32));
        let env = Env::new(shape, ep, core, self.scene.choices, terms, Portable)?;
        Ok(if self.domain.has_tp() { env.with_tp_rank(RankId(member as u32)) } else { env })
    }

    /// Returns what an operator of a member is given besides its inputs.
    pub fn combine_inputs(&self, member: usize, operator: Operator) -> CombineInputs<'_> {
        match operator {
            // It writes what combine reads.
            Operator::Dispatch => CombineInputs::NONE,
            Operator::Combine => {
                let y = self.ys.get(member).map_or(&[][..], |&y| bytes(y));
                CombineInputs::of(y, |tensor| self.output(member, tensor))
            }
        }
    }

    /// Has the experts of a member work when its dispatch has ended: they find rows, and leave results, where the choices say.
    /// Returns a digest of what was received, or `None` if an output leads nowhere.
    pub fn experts(&self, member: usize) -> Option<u64> {
        let (shape, rank, receive) = (&self.domain.shape, self.domain.ep(member), self.scene.choices.receive);
        let counts = self.output(member, Tensor::EpRecvCounts);
        let counts = counts.get(..usize::try_from(ep_recv_counts_bytes(shape, rank)).ok()?)?;
        let table = self.output(member, Tensor::RowTable);
        let (rows, payload) = (received_rows(shape, rank, counts).ok()?, shape.payload_bytes());
        let scales = self.output(member, Tensor::DynamicScales).get(..4 * rows as usize).unwrap_or(&[]);
        let mut scale_of_next = scales.as_chunks().0.iter().map(|&scale| f32::from_le_bytes(scale));
        let local = shape.local_experts(rank);
        let mut digest = scene::digest(0, counts);
        let stretches = receive.rows(shape, rows, table);
        let places = stretches.flat_map(|(at, len)| {
            (0..len.checked_div(payload).unwrap_or(0))
                .map(move |row| Place { offset: at.offset + row * payload, ..at })
        });
        for (number, at) in (0..).zip(places) {
            let row = bytes(self.at(member, at, payload)?);
            let first = u64::from(number) * ROW as u64;
            let result = match receive.results(table) {
                Some(at) => self.at(member, Place { offset: at.offset + first, ..at }, ROW as u64)?,
                None => part(*self.ys.get(member)?, first, ROW as u64)?,
            };
            let is_its = |&expert: &u32| {
                expert_rows(shape, rank, expert, counts).is_ok_and(|rows| rows.contains(&number))
            };
            let expert = rank.0 * local + (0..local).find(is_its)?;
            scene::expert(expert, row, scale_of_next.next(), bytes_mut(result));
            digest = scene::digest(digest, row);
        }
        Some(scene::digest(digest, scales))
    }

    /// Returns the digest of a member's round when its combine has ended: what was received, and what combine has put out.
    pub fn results(&self, member: usize, received: u64) -> u64 {
        let returned = match self.domain.is_normed() {
            true => &[Tensor::XOut, Tensor::X, Tensor::Y][..],
            false => &[Tensor::XOut],
        };
        returned.iter().fold(received, |so_far, tensor| scene::digest(so_far, self.output(member, *tensor)))
    }

    /// An output of an operator that has ended.
    fn output(&self, member: usize, tensor: Tensor) -> &[u8] {
        let segment = self.outputs.get(member).and_then(|outputs| outputs.get(tensor as usize));
        segment.map_or(&[], |&segment| bytes(segment))
    }

    /// `len` bytes of a member's window or output.
    fn at(&self, member: usize, place: Place, len: u64) -> Option<Segment> {
        let of = match place.region {
            Region::Output(tensor) => *self.outputs.get(member)?.get(tensor as usize)?,
            _ => self.eps.get(self.domain.physical(member)?.index())?.window,
        };
        part(of, place.offset, len)
    }
}
