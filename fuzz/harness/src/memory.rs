//! The memory of all ranks in one thread. Effects stay in flight, puts in pieces, until whoever drives lands them, in
//! any order that the contract of the fabric leaves open. Every access is [guarded](crate::guard).

use crate::domain::Domain;
use crate::guard::Guard;
use crate::law::{Lie, When};
use crate::tape::Tape;
use crate::view::View;
use core::cell::Cell;
use kernel_core::fabric::nic::Transfer;
use kernel_core::fabric::order::{Issued, Kind};
use kernel_core::layout::outputs::capacity;
use kernel_core::layout::{state, tp};
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::units::{CoreId, RankId};
use std::collections::BTreeSet;

/// The most effects that may be in flight before one must land: to choose one takes the square of their number.
const FLIGHT_MAX: usize = 256;
/// More can never be in flight: a burst of 16 steps, of which each is a message of 80 words at most, goes beyond
/// [`FLIGHT_MAX`]. Bounds time, not behaviour.
const FLIGHT_LIMIT: usize = 2048;
/// How many of the effects that landed last are remembered.
const RECENT: usize = 8;
/// A byte of an output that its operator has not written.
const UNWRITTEN: u8 = 0xA5;

#[derive(Debug)]
pub(crate) struct Memory {
    state: Vec<u8>,
    window: Vec<u8>,
    window_out: Vec<u8>,
    tp_state: Vec<u8>,
    tp_window: Vec<u8>,
    outputs: Vec<Vec<u8>>,
    /// What the running operator has written of the outputs, to see a second write.
    pub(crate) written: BTreeSet<Place>,
    pub(crate) guard: Guard,
    /// The name that machines have for it.
    pub(crate) ep: RankId,
}

impl Memory {
    fn new(Domain { shape, numbers, .. }: &Domain, ep: RankId) -> Self {
        let tp = if shape.tp_world_size() > 1 { tp::window_bytes(shape, ep) as usize } else { 0 };
        Self {
            state: vec![0; state::STATE_BYTES as usize],
            window: vec![0; shape.window_bytes() as usize],
            window_out: vec![0; shape.window_out_bytes() as usize],
            tp_state: vec![0; if tp > 0 { tp::TP_STATE_BYTES as usize } else { 0 }],
            tp_window: vec![0; tp],
            outputs: Tensor::ALL.map(|tensor| vec![UNWRITTEN; capacity(shape, ep, tensor) as usize]).into(),
            written: BTreeSet::new(),
            guard: Guard::new(shape, ep, numbers.receive(), numbers.stage()),
            ep,
        }
    }

    fn region(&mut self, region: Region) -> &mut Vec<u8> {
        match region {
            Region::State => &mut self.state,
            Region::Window => &mut self.window,
            Region::WindowOut => &mut self.window_out,
            Region::TpState => &mut self.tp_state,
            Region::TpWindow => &mut self.tp_window,
            Region::Output(tensor) => &mut self.outputs[tensor as usize],
        }
    }

    pub(crate) fn get(&self, at: Place, len: u64) -> Option<&[u8]> {
        let region = match at.region {
            Region::State => &self.state,
            Region::Window => &self.window,
            Region::WindowOut => &self.window_out,
            Region::TpState => &self.tp_state,
            Region::TpWindow => &self.tp_window,
            Region::Output(tensor) => &self.outputs[tensor as usize],
        };
        region.get(usize::try_from(at.offset).ok()?..usize::try_from(at.offset.checked_add(len)?).ok()?)
    }
}

/// What a core did and has not landed. `to` and `from` are member numbers.
#[derive(Debug)]
pub(crate) struct Effect {
    pub(crate) issued: Issued,
    pub(crate) bytes: Vec<u8>,
}

/// A transfer that has not been delivered completely.
#[derive(Debug)]
pub(crate) struct Flying {
    pub(crate) from: usize,
    pub(crate) transfer: Transfer,
    pub(crate) done: u64,
}

/// Someone who tells others what is not so: what it sends is changed now and then, never where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Liar {
    /// The member.
    pub member: usize,
    /// Of 256, how many of its effects are changed.
    pub rate: u8,
}

/// The memory of all members, by number; who is gone has none.
#[derive(Debug)]
pub struct World<'t> {
    members: Vec<Option<Memory>>,
    pub(crate) tp_world_size: u32,
    pub(crate) flight: Vec<Effect>,
    pub(crate) transfers: Vec<Flying>,
    /// Effects since the last time somebody asked.
    pub(crate) effects: usize,
    /// Comparisons of effects so far.
    pub(crate) compared: u64,
    /// How often so much was in flight that some of it had to land.
    pub(crate) full: usize,
    /// What has landed last: where, and how many bytes.
    pub recent: Vec<(usize, Place, usize)>,
    /// Messages so far.
    pub(crate) messages: u32,
    /// Tasks that agents have posted so far.
    pub(crate) tasks: usize,
    /// What the machine that takes a step has seen and must refuse.
    pub(crate) lie: Cell<Option<Lie>>,
    /// In which operator it is.
    pub when: When,
    /// Whether rows may be written twice: where memory is corrupted, counts of cores may overlap.
    pub forgiving: bool,
    /// Whose effects are changed.
    pub liar: Option<Liar>,
    /// Decisions.
    pub tape: Tape<'t>,
}

impl<'t> World<'t> {
    /// Zeroed memory.
    #[must_use]
    pub fn new(domain: &Domain, tape: Tape<'t>) -> Self {
        let mut members: Vec<Option<Memory>> = Vec::new();
        members.resize_with((domain.whole.ep_world_size() * domain.whole.tp_world_size()) as usize, || None);
        for (number, ep, _) in domain.members() {
            members[number] = Some(Memory::new(domain, ep));
        }
        let tp_world_size = domain.shape.tp_world_size();
        Self {
            members,
            tp_world_size,
            flight: Vec::new(),
            transfers: Vec::new(),
            effects: 0,
            compared: 0,
            full: 0,
            recent: Vec::new(),
            messages: 0,
            tasks: 0,
            lie: Cell::default(),
            when: When { dispatch: true, epoch: None },
            forgiving: false,
            liar: None,
            tape,
        }
    }

    pub(crate) fn member(&self, number: usize) -> &Memory {
        self.members.get(number).and_then(Option::as_ref).unwrap_or_else(|| panic!("no memory of {number}"))
    }

    pub(crate) fn member_mut(&mut self, number: usize) -> &mut Memory {
        self.members[number].as_mut().unwrap_or_else(|| panic!("no memory of {number}"))
    }

    /// A core's view.
    pub fn fabric(&mut self, member: usize, core: CoreId) -> View<'_, 't> {
        View::new(self, member, core)
    }

    /// How many effects there were since the last time.
    pub fn take_effects(&mut self) -> usize {
        core::mem::take(&mut self.effects)
    }

    /// What the machine that took a step has seen and must refuse.
    pub fn take_lie(&mut self) -> Option<Lie> {
        self.lie.take()
    }

    /// Bytes of a region, past the guard.
    #[must_use]
    pub fn bytes(&self, member: usize, at: Place, len: u64) -> &[u8] {
        self.member(member).get(at, len).unwrap_or(&[])
    }

    /// Outputs are written afresh by the next operator of a member.
    pub fn reuse_outputs(&mut self, member: usize) {
        let memory = self.member_mut(member);
        memory.written.clear();
        memory.outputs.iter_mut().for_each(|output| output.fill(UNWRITTEN));
    }

    /// An output with its spare capacity.
    #[must_use]
    pub fn output(&self, member: usize, tensor: Tensor) -> &[u8] {
        &self.member(member).outputs[tensor as usize]
    }

    /// The guard of a member.
    #[must_use]
    pub fn guard(&self, member: usize) -> &Guard {
        &self.member(member).guard
    }

    /// A word, past the guard.
    #[must_use]
    pub fn peek(&self, member: usize, at: Place) -> u64 {
        let word = self.member(member).get(at, 8).and_then(|bytes| bytes.first_chunk());
        word.copied().map_or(0, u64::from_le_bytes)
    }

    /// Overwrites memory behind everybody's back.
    pub fn poke(&mut self, member: usize, at: Place, bytes: &[u8]) {
        let memory = self.member_mut(member).region(at.region);
        memory[at.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Whether anything is in flight.
    #[must_use]
    pub fn in_flight(&self) -> bool {
        !self.flight.is_empty() || !self.transfers.is_empty()
    }

    /// Whether so much is in flight that some of it must land.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.flight.len() >= FLIGHT_MAX
    }

    /// Lands something of what may land now, or a piece of it.
    pub fn land_one(&mut self) {
        let (effects, transfers) = (self.flight.len(), self.transfers.len());
        if effects + transfers == 0 {
            return;
        }
        assert!(
            effects <= FLIGHT_LIMIT,
            "{effects} effects in flight: to choose one takes the square of that"
        );
        let chosen = self.tape.below(effects + transfers);
        if chosen >= effects {
            let left = self.transfers[chosen - effects].words_left();
            let words = 1 + self.tape.below(left as usize * 2) as u64;
            return self.deliver(chosen - effects, words);
        }
        let mut compared = 0;
        let may = |&i: &usize| {
            let issued = self.flight[i].issued;
            let first = self.flight[..i].iter().position(|earlier| issued.must_follow(&earlier.issued));
            compared += first.map_or(i, |first| first + 1) as u64;
            first.is_none()
        };
        // The oldest always may.
        let i = (0..=chosen).rev().find(may).unwrap_or(0);
        self.compared += compared;
        let (kind, len) = (self.flight[i].issued.kind, self.flight[i].bytes.len());
        if kind == Kind::Put && len > 1 && self.tape.one_in(4) {
            let piece = 1 + self.tape.below(len - 1);
            let Effect { issued, bytes } = &mut self.flight[i];
            let (to, at, rest) = (issued.to, issued.at, bytes.split_off(piece));
            let landed = core::mem::replace(bytes, rest);
            issued.at.offset += piece as u64;
            return self.land(to.index(), at, &landed);
        }
        let Effect { issued, bytes } = self.flight.remove(i);
        self.land(issued.to.index(), issued.at, &bytes);
    }

    /// Lands everything.
    pub fn settle(&mut self) {
        for Effect { issued, bytes } in core::mem::take(&mut self.flight) {
            self.land(issued.to.index(), issued.at, &bytes);
        }
        while !self.transfers.is_empty() {
            self.deliver(0, u64::MAX);
        }
    }

    fn land(&mut self, to: usize, at: Place, bytes: &[u8]) {
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push((to, at, bytes.len()));
        self.poke(to, at, bytes);
    }

    /// The words of a transfer in address order, each read when it is delivered.
    fn deliver(&mut self, i: usize, words: u64) {
        let Flying { from, transfer, done } = &mut self.transfers[i];
        let (start, member, Transfer { to, from: source, at, len }) = (*done, *from, *transfer);
        let end = len.min(start.saturating_add(words.saturating_mul(8)));
        *done = end;
        let shifted = |at: Place| Place { offset: at.offset + start, ..at };
        let bytes = self.member(member).get(shifted(source), end - start).unwrap_or(&[]).to_vec();
        self.land(to.index(), shifted(at), &bytes);
        if end == len {
            self.transfers.remove(i);
        }
    }

    /// Changes what a liar sends.
    pub(crate) fn lie_of(&mut self, member: usize, bytes: &mut [u8]) {
        let Some(liar) = self.liar.filter(|liar| liar.member == member) else { return };
        if self.tape.byte() >= liar.rate || bytes.is_empty() {
            return;
        }
        // The end of a record says whose it is.
        let i = if self.tape.byte() & 1 == 0 {
            self.tape.below(bytes.len())
        } else {
            bytes.len() - 1 - self.tape.below(bytes.len().min(12))
        };
        // Mostly small numbers, so that some lies could be true.
        match self.tape.below(4) {
            0 => bytes[i] = self.tape.byte(),
            1 => bytes[i] = bytes[i].wrapping_sub(1),
            2 => bytes.iter_mut().for_each(|byte| *byte = 0xFF),
            _ => {
                let word = self.tape.word();
                bytes.iter_mut().zip(word.to_le_bytes()).for_each(|(byte, other)| *byte = other);
            }
        }
    }
}

impl Flying {
    const fn words_left(&self) -> u64 {
        (self.transfer.len - self.done) / 8
    }
}
