//! The memory of all ranks in one thread. Effects stay in flight, puts in pieces, until whoever drives lands them, in
//! any order that the contract of the fabric leaves open. Every access is [guarded](crate::guard).

use crate::domain::Domain;
use crate::guard::{Access, Guard};
use crate::tape::Tape;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::order::{Issued, Kind};
use kernel_core::fabric::{Fabric, Fault};
use kernel_core::layout::outputs::capacity;
use kernel_core::layout::{state, tp};
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::shape::Shape;
use kernel_core::units::{CoreId, RankId};
use std::collections::BTreeSet;

/// A byte of an output that its operator has not written.
const UNWRITTEN: u8 = 0xA5;
/// Transfers that an agent can have in flight.
const TRANSFERS_MAX: usize = 5;

#[derive(Debug)]
struct Memory {
    state: Vec<u8>,
    window: Vec<u8>,
    window_out: Vec<u8>,
    tp_state: Vec<u8>,
    tp_window: Vec<u8>,
    outputs: Vec<Vec<u8>>,
    /// What the running operator has written of the outputs, to see a second write.
    written: BTreeSet<Place>,
    guard: Guard,
    /// The name that machines have for it.
    ep: RankId,
}

impl Memory {
    fn new(shape: &Shape, ep: RankId) -> Self {
        let tp = if shape.tp_world_size() > 1 { tp::window_bytes(shape, ep) as usize } else { 0 };
        Self {
            state: vec![0; state::STATE_BYTES as usize],
            window: vec![0; shape.window_bytes() as usize],
            window_out: vec![0; shape.window_out_bytes() as usize],
            tp_state: vec![0; if tp > 0 { tp::TP_STATE_BYTES as usize } else { 0 }],
            tp_window: vec![0; tp],
            outputs: Tensor::ALL.map(|tensor| vec![UNWRITTEN; capacity(shape, ep, tensor) as usize]).into(),
            written: BTreeSet::new(),
            guard: Guard::new(shape, ep),
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

    fn get(&self, at: Place, len: u64) -> Option<&[u8]> {
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
struct Effect {
    issued: Issued,
    bytes: Vec<u8>,
}

/// A transfer that has not been delivered completely.
#[derive(Debug)]
struct Flying {
    from: usize,
    transfer: Transfer,
    done: u64,
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
    tp_world_size: u32,
    flight: Vec<Effect>,
    transfers: Vec<Flying>,
    /// Effects since the last time somebody asked.
    effects: usize,
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
            members[number] = Some(Memory::new(&domain.shape, ep));
        }
        let tp_world_size = domain.shape.tp_world_size();
        let (flight, transfers) = (Vec::new(), Vec::new());
        Self { members, tp_world_size, flight, transfers, effects: 0, forgiving: false, liar: None, tape }
    }

    fn member(&self, number: usize) -> &Memory {
        self.members.get(number).and_then(Option::as_ref).unwrap_or_else(|| panic!("no memory of {number}"))
    }

    fn member_mut(&mut self, number: usize) -> &mut Memory {
        self.members[number].as_mut().unwrap_or_else(|| panic!("no memory of {number}"))
    }

    /// A core's view.
    pub fn fabric(&mut self, member: usize, core: CoreId) -> View<'_, 't> {
        View { world: self, member, core }
    }

    /// How many effects there were since the last time.
    pub fn take_effects(&mut self) -> usize {
        core::mem::take(&mut self.effects)
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

    /// Lands something of what may land now, or a piece of it.
    pub fn land_one(&mut self) {
        let (effects, transfers) = (self.flight.len(), self.transfers.len());
        if effects + transfers == 0 {
            return;
        }
        let chosen = self.tape.below(effects + transfers);
        if chosen >= effects {
            let left = self.transfers[chosen - effects].words_left();
            let words = 1 + self.tape.below(left as usize * 2) as u64;
            return self.deliver(chosen - effects, words);
        }
        let may = |&i: &usize| {
            let issued = self.flight[i].issued;
            !self.flight[..i].iter().any(|earlier| issued.must_follow(&earlier.issued))
        };
        // The oldest always may.
        let i = (0..=chosen).rev().find(may).unwrap_or(0);
        let (kind, len) = (self.flight[i].issued.kind, self.flight[i].bytes.len());
        if kind == Kind::Put && len > 1 && self.tape.one_in(4) {
            let piece = 1 + self.tape.below(len - 1);
            let Effect { issued, bytes } = &mut self.flight[i];
            let (to, at, rest) = (issued.to, issued.at, bytes.split_off(piece));
            let landed = core::mem::replace(bytes, rest);
            issued.at.offset += piece as u64;
            return self.poke(to.index(), at, &landed);
        }
        let Effect { issued, bytes } = self.flight.remove(i);
        self.poke(issued.to.index(), issued.at, &bytes);
    }

    /// Lands everything.
    pub fn settle(&mut self) {
        for Effect { issued, bytes } in core::mem::take(&mut self.flight) {
            self.poke(issued.to.index(), issued.at, &bytes);
        }
        while !self.transfers.is_empty() {
            self.deliver(0, u64::MAX);
        }
    }

    /// The words of a transfer in address order, each read when it is delivered.
    fn deliver(&mut self, i: usize, words: u64) {
        let Flying { from, transfer, done } = &mut self.transfers[i];
        let (start, member, Transfer { to, from: source, at, len }) = (*done, *from, *transfer);
        let end = len.min(start.saturating_add(words.saturating_mul(8)));
        *done = end;
        let shifted = |at: Place| Place { offset: at.offset + start, ..at };
        let bytes = self.member(member).get(shifted(source), end - start).unwrap_or(&[]).to_vec();
        self.poke(to.index(), shifted(at), &bytes);
        if end == len {
            self.transfers.remove(i);
        }
    }

    /// Changes what a liar sends.
    fn lie(&mut self, member: usize, bytes: &mut [u8]) {
        let Some(liar) = self.liar.filter(|liar| liar.member == member) else { return };
        if self.tape.byte() >= liar.rate || bytes.is_empty() {
            return;
        }
        // Mostly small numbers, so that some lies could be true.
        match self.tape.below(4) {
            0 => {
                let (i, byte) = (self.tape.below(bytes.len()), self.tape.byte());
                bytes[i] = byte;
            }
            1 => {
                let i = self.tape.below(bytes.len());
                bytes[i] = bytes[i].wrapping_sub(1);
            }
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

/// One core's view of a [`World`], or an agent's. Members of the EP domain go by their physical ranks.
#[derive(Debug)]
pub struct View<'w, 't> {
    world: &'w mut World<'t>,
    member: usize,
    core: CoreId,
}

impl View<'_, '_> {
    /// Guards an access to another member or the own one.
    fn guarded(&self, access: Access, to: usize, at: Place, len: u64) -> Result<(), Fault> {
        let by = (self.world.member(self.member).ep, self.core);
        let memory = self.world.member(to);
        memory.guard.check(access, by, at, len);
        match memory.get(at, len) {
            Some(_) => Ok(()),
            None => panic!("{len} bytes at {at} lie in an area, but not in the region"),
        }
    }

    fn word(&self, access: Access, to: usize, at: Place) -> Result<(), Fault> {
        assert!(at.offset.is_multiple_of(8), "the word at {at} is not aligned");
        self.guarded(access, to, at, 8)
    }

    /// Whom a core means by `to`: the region chooses the domain.
    fn named(&self, to: RankId, at: Place) -> usize {
        let tp = self.world.tp_world_size as usize;
        let (ep, of_tp) = (self.member / tp, self.member % tp);
        if at.region.is_of_tp() { ep * tp + to.index() } else { to.index() * tp + of_tp }
    }

    fn issue(&mut self, to: usize, at: Place, kind: Kind, mut bytes: Vec<u8>) {
        self.world.lie(self.member, &mut bytes);
        let from = (RankId(self.member as u32), self.core);
        self.world.effects += 1;
        self.world.flight.push(Effect { issued: Issued { from, to: RankId(to as u32), at, kind }, bytes });
    }
}

impl Fabric for View<'_, '_> {
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let to = self.named(to, at);
        self.guarded(Access::Send, to, at, (row.len() + tail.len()) as u64)?;
        self.issue(to, at, Kind::Put, [row, tail].concat());
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let to = self.named(to, at);
        self.word(Access::Send, to, at)?;
        self.issue(to, at, Kind::Publish, word.to_le_bytes().into());
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let me = (RankId(self.member as u32), self.core);
        Ok(!self.world.flight.iter().any(|effect| effect.issued.from == me))
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.word(Access::Read, self.member, at)?;
        let me = (RankId(self.member as u32), self.core);
        let own = self.world.flight.iter().rev().find(|effect| {
            effect.issued.from == me
                && effect.issued.to == me.0
                && effect.issued.at == at
                && effect.issued.kind == Kind::Store
        });
        let own = own.and_then(|effect| effect.bytes.first_chunk()).copied().map(u64::from_le_bytes);
        Ok(own.unwrap_or_else(|| self.world.peek(self.member, at)))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.word(Access::Own, self.member, at)?;
        self.issue(self.member, at, Kind::Store, word.to_le_bytes().into());
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.guarded(Access::Read, self.member, at, len)?;
        Ok(self.world.member(self.member).get(at, len).unwrap_or(&[]))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.guarded(Access::Own, self.member, at, bytes.len() as u64)?;
        if at.region == Region::WindowOut {
            self.issue(self.member, at, Kind::Store, bytes.into());
            return Ok(());
        }
        assert!(
            matches!(at.region, Region::Output(_)),
            "a write that is neither output nor WindowsOut: {at}"
        );
        let fresh = self.world.member_mut(self.member).written.insert(at);
        assert!(fresh || self.world.forgiving, "{at} of member {} is written twice", self.member);
        self.world.effects += 1;
        self.world.poke(self.member, at, bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.write(output, &bytes)
    }
}

impl Nic for View<'_, '_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        assert_eq!(at.region, Region::State, "an agent reads its state region alone");
        Fabric::observe(self, at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        assert!(from.region == Region::WindowOut && at.region == Region::Window, "{transfer:?}");
        assert!([from.offset, at.offset, len].iter().all(|n| n.is_multiple_of(8)), "{transfer:?}");
        self.guarded(Access::Read, self.member, from, len)?;
        self.guarded(Access::Send, to.index(), at, len)?;
        let own = self.world.transfers.iter().filter(|flying| flying.from == self.member).count();
        if own >= TRANSFERS_MAX {
            return Ok(Post::Busy);
        }
        self.world.effects += 1;
        self.world.transfers.push(Flying { from: self.member, transfer: *transfer, done: 0 });
        Ok(Post::Posted)
    }
}
