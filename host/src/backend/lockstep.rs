//! Memory for one thread that drives all cores: nothing is concurrent, so everything replays.
//!
//! **Strong**: every effect lands at once. **Weak**: puts (in pieces), publishes and stores stay in flight and
//! land later in any order that the contracts of [`Fabric`] and [`Nic`] leave open, drawn from a seed. Both refuse a
//! second write to a byte of an output within one operator: its writers must be disjoint. What nobody has
//! written in an operator holds a pattern, so that a value of the operator before cannot pass for a new one.

use super::{Backend, Members, Pages, anonymous};
use crate::member;
use core::ops::Range;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::order::{Issued, Kind};
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::layout::state::STATE_BYTES;
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::units::{CoreId, RankId};
use memmap2::MmapMut;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How an effect may be delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Every effect lands at once.
    Strong,
    /// Effects land as late and as disordered as the contract allows.
    Weak,
}

/// The most effects in flight; beyond it the memory lands some first. Bounds time, not behaviour.
const FLIGHT_MAX: usize = 192;

/// The most transfers in flight; beyond it the interface is busy.
const TRANSFERS_MAX: usize = 24;

/// A byte of an output that its operator has not written.
const UNWRITTEN: u8 = 0xA5;

/// The memory of a group.
#[derive(Debug)]
pub struct Lockstep {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    ranks: Vec<RankMemory>,
    tp_world_size: u32,
    /// Ranks of a server, if others are far.
    server_ranks: Option<u32>,
    /// Messages sent so far.
    messages: u32,
    memory: Memory,
    flight: Vec<Effect>,
    transfers: Vec<Flying>,
    rng: ChaCha8Rng,
    mood: Mood,
}

/// How the weak memory treats what is in flight; redrawn now and then.
#[derive(Clone, Copy, Debug)]
struct Mood {
    /// How likely an effect lands at a tick, of 256.
    eagerness: u8,
    /// How likely a put is slow, of 256: it lands when nothing else can.
    slow_puts: u8,
    /// How likely a word is.
    slow_words: u8,
}

#[derive(Debug)]
struct RankMemory {
    state: Vec<u8>,
    window: MmapMut,
    window_out: MmapMut,
    tp_state: Vec<u8>,
    tp_window: MmapMut,
    /// By batch, then tensor.
    outputs: Vec<Vec<MmapMut>>,
    /// Written ranges of the outputs, start to end, by (batch, tensor).
    written: BTreeMap<(usize, Tensor), BTreeMap<u64, u64>>,
}

/// Something that a core did and that has not landed.
#[derive(Debug)]
struct Effect {
    issued: Issued,
    bytes: Vec<u8>,
    slow: bool,
    /// Effects in flight that must land before it.
    ahead: usize,
}

/// A transfer of an agent that has not been delivered completely.
#[derive(Debug)]
struct Flying {
    from: RankId,
    transfer: Transfer,
    /// Bytes delivered.
    done: u64,
    slow: bool,
}

impl Lockstep {
    /// Zeroed memory of all ranks with outputs for `batches` batches in flight.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn new<'a>(
        members: impl Into<Members<'a>>,
        batches: usize,
        memory: Memory,
        seed: u64,
    ) -> io::Result<Self> {
        let members = members.into();
        let of_rank = |rank| {
            let output = |t| blank_output(t, members.output(rank, t));
            let outputs = |_| Tensor::ALL.into_iter().map(output).collect::<io::Result<_>>();
            let (tp_state, tp_window) = members.tp_regions(rank);
            Ok(RankMemory {
                tp_state: vec![0; tp_state as usize],
                // An empty mapping is refused.
                tp_window: anonymous(tp_window.max(1), Pages::Small)?,
                state: vec![0; STATE_BYTES as usize],
                window: anonymous(members.shape.window_bytes(), Pages::Small)?,
                // An empty mapping is refused.
                window_out: anonymous(members.shape.window_out_bytes().max(1), Pages::Small)?,
                outputs: (0..batches).map(outputs).collect::<io::Result<_>>()?,
                written: BTreeMap::new(),
            })
        };
        let ranks = members.ranks().map(of_rank).collect::<io::Result<_>>()?;
        Ok(Self {
            inner: Mutex::new(Inner {
                ranks,
                tp_world_size: members.shape.tp_world_size(),
                server_ranks: member::servers(members.shape),
                messages: 0,
                memory,
                flight: Vec::new(),
                transfers: Vec::new(),
                rng: ChaCha8Rng::seed_from_u64(seed),
                mood: Mood { eagerness: 128, slow_puts: 16, slow_words: 16 },
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time passes: something in flight may land.
    pub fn tick(&self) {
        self.lock().tick();
    }

    /// Lands one effect in flight. `false` when there is none.
    pub fn land_one(&self) -> bool {
        self.lock().land_any()
    }
}

/// Tensors of received rows stay zero: of their capacity only a small part is ever touched.
fn blank_output(tensor: Tensor, capacity: u64) -> io::Result<MmapMut> {
    // An empty mapping is refused.
    let mut bytes = anonymous(capacity.max(1), Pages::Small)?;
    if !tensor.is_of_received_rows() {
        bytes.fill(UNWRITTEN);
    }
    Ok(bytes)
}

impl Inner {
    fn tick(&mut self) {
        if self.flight.is_empty() && self.transfers.is_empty() {
            return;
        }
        if self.rng.random_ratio(1, 64) {
            self.mood = Mood {
                eagerness: [2, 40, 128, 250][self.rng.random_range(0..4)],
                slow_puts: [0, 16, 128, 240][self.rng.random_range(0..4)],
                slow_words: [0, 16, 128][self.rng.random_range(0..3)],
            };
        }
        if self.flight.len() > FLIGHT_MAX {
            self.land_any();
        } else if self.rng.random::<u8>() < self.mood.eagerness {
            let _ =
                !self.transfers.is_empty() && self.rng.random() && self.deliver_some(|flying| !flying.slow)
                    || self.land_some(|effect| !effect.slow);
        }
    }

    /// Lands an effect that the contract lets land now, a slow one only if there is no other. `false` when
    /// there is none at all.
    fn land_any(&mut self) -> bool {
        let quick =
            !self.transfers.is_empty() && self.rng.random() && self.deliver_some(|flying| !flying.slow);
        quick
            || self.land_some(|effect| !effect.slow)
            || self.deliver_some(|flying| !flying.slow)
            || self.land_some(|_| true)
            || self.deliver_some(|_| true)
    }

    /// Delivers some more words of a transfer: seldom all, often all but the last. `false` when there is none.
    fn deliver_some(&mut self, among: impl Fn(&Flying) -> bool) -> bool {
        let choice: Vec<usize> = (0..self.transfers.len()).filter(|&i| among(&self.transfers[i])).collect();
        if choice.is_empty() {
            return false;
        }
        let i = choice[self.rng.random_range(0..choice.len())];
        let left = (self.transfers[i].transfer.len - self.transfers[i].done) / 8;
        let words = match self.rng.random_range(0..8) {
            0 => 1,
            1 => self.rng.random_range(1..=left),
            2..5 => left.saturating_sub(1).max(1),
            _ => left,
        };
        self.deliver(i, words);
        true
    }

    /// Delivers the next words of a transfer, in their order; their source is read now.
    fn deliver(&mut self, i: usize, words: u64) {
        let Flying { from, transfer: Transfer { to, from: source, at, len }, done, .. } = self.transfers[i];
        let end = len.min(done + words * 8);
        let shifted = |at: Place| Place { offset: at.offset + done, ..at };
        let bytes = self.view(from, 0, shifted(source), end - done).map(<[u8]>::to_vec);
        if let (Ok(bytes), Ok(to)) = (bytes, self.region(to, 0, shifted(at), end - done)) {
            to.copy_from_slice(&bytes);
        }
        self.transfers[i].done = end;
        if end == len {
            self.transfers.swap_remove(i);
        }
    }

    fn land_some(&mut self, among: impl Fn(&Effect) -> bool) -> bool {
        let Some(last) = self.flight.len().checked_sub(1) else { return false };
        let start = self.rng.random_range(0..=last);
        // The oldest effect of all may always land, so a search among all finds one.
        let mut places = (0..=start).rev().chain(start + 1..=last);
        let free = |effect: &Effect| effect.ahead == 0 && among(effect);
        let Some(next) = places.find(|&i| free(&self.flight[i])) else { return false };
        let landed = self.flight.remove(next);
        let followers = self.flight[next..].iter_mut().filter(|e| e.issued.must_follow(&landed.issued));
        followers.for_each(|effect| effect.ahead -= 1);
        self.land(landed);
        true
    }

    fn land(&mut self, Effect { issued, bytes, .. }: Effect) {
        if let Ok(to) = self.region(issued.to, 0, issued.at, bytes.len() as u64) {
            to.copy_from_slice(&bytes);
        }
    }

    fn issue(&mut self, issued: Issued, bytes: &[u8]) {
        let slow = match issued.kind {
            _ if self.memory == Memory::Strong => 0,
            Kind::Put | Kind::Message(_) => self.mood.slow_puts,
            Kind::Publish | Kind::Store => self.mood.slow_words,
        };
        let slow = slow > 0 && self.rng.random::<u8>() < slow;
        let ahead = self.flight.iter().filter(|earlier| issued.must_follow(&earlier.issued)).count();
        let effect = Effect { issued, bytes: bytes.to_vec(), slow, ahead };
        match self.memory {
            Memory::Strong => self.land(effect),
            Memory::Weak => self.flight.push(effect),
        }
    }

    fn range(&self, rank: RankId, batch: usize, at: Place, len: u64) -> Result<Range<usize>, Fault> {
        let fault = Fault::new(rank, at, len);
        let memory = self.ranks.get(rank.index()).ok_or(fault)?;
        let size = match at.region {
            Region::State => memory.state.len(),
            Region::Window => memory.window.len(),
            Region::WindowOut => memory.window_out.len(),
            Region::TpState => memory.tp_state.len(),
            Region::TpWindow => memory.tp_window.len(),
            Region::Output(tensor) => memory.outputs[batch][tensor as usize].len(),
        };
        let end = at.offset.checked_add(len).filter(|&end| end <= size as u64).ok_or(fault)?;
        Ok(at.offset as usize..end as usize)
    }

    fn region(&mut self, rank: RankId, batch: usize, at: Place, len: u64) -> Result<&mut [u8], Fault> {
        let range = self.range(rank, batch, at, len)?;
        let memory = &mut self.ranks[rank.index()];
        Ok(match at.region {
            Region::State => &mut memory.state[range],
            Region::Window => &mut memory.window[range],
            Region::WindowOut => &mut memory.window_out[range],
            Region::TpState => &mut memory.tp_state[range],
            Region::TpWindow => &mut memory.tp_window[range],
            Region::Output(tensor) => &mut memory.outputs[batch][tensor as usize][range],
        })
    }

    fn view(&self, rank: RankId, batch: usize, at: Place, len: u64) -> Result<&[u8], Fault> {
        let range = self.range(rank, batch, at, len)?;
        let memory = &self.ranks[rank.index()];
        Ok(match at.region {
            Region::State => &memory.state[range],
            Region::Window => &memory.window[range],
            Region::WindowOut => &memory.window_out[range],
            Region::TpState => &memory.tp_state[range],
            Region::TpWindow => &memory.tp_window[range],
            Region::Output(tensor) => &memory.outputs[batch][tensor as usize][range],
        })
    }
}

/// One core's view. It holds the memory for as long as it lives: one core moves at a time.
#[derive(Debug)]
pub struct LockstepFabric<'b> {
    inner: MutexGuard<'b, Inner>,
    rank: RankId,
    core: CoreId,
    batch: usize,
}

impl LockstepFabric<'_> {
    fn me(&self) -> (RankId, CoreId) {
        (self.rank, self.core)
    }

    /// Whose memory this core calls `to`.
    fn reached(&self, to: RankId, at: Place) -> RankId {
        member::reached(self.inner.tp_world_size, self.rank, to, at)
    }

    /// Whether `to` is on another server.
    fn is_far(&self, to: RankId) -> bool {
        self.inner.server_ranks.is_some_and(|ranks| to.0 / ranks != self.rank.0 / ranks)
    }

    /// Marks output bytes as written, once.
    fn mark(&mut self, at: Place, len: u64) -> Result<(), Fault> {
        let Region::Output(tensor) = at.region else { return Ok(()) };
        let fault = Fault::new(self.rank, at, len);
        let written = self.inner.ranks[self.rank.index()].written.entry((self.batch, tensor)).or_default();
        let before = written.range(..at.offset + len).next_back();
        if before.is_some_and(|(_, &end)| end > at.offset) {
            return Err(fault);
        }
        written.insert(at.offset, at.offset + len);
        Ok(())
    }

    fn word(&mut self, kind: Kind, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if !at.offset.is_multiple_of(8) || matches!(at.region, Region::Output(_)) {
            return Err(Fault::new(to, at, 8));
        }
        self.inner.range(to, self.batch, at, 8)?;
        let from = self.me();
        self.inner.issue(Issued { from, to, at, kind }, &word.to_le_bytes());
        Ok(())
    }
}

impl Fabric for LockstepFabric<'_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::PEER_BYTES | Capabilities::SEND
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner.view(self.reached(rank, at), self.batch, at, len)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        if matches!(at.region, Region::Output(_)) {
            return Err(Fault::new(to, at, row.len() as u64));
        }
        let to = self.reached(to, at);
        if self.is_far(to) {
            return Err(Fault::new(to, at, row.len() as u64));
        }
        let bytes = [row, tail].concat();
        self.inner.range(to, self.batch, at, bytes.len() as u64)?;
        let from = self.me();
        let mut cuts = vec![0, bytes.len()];
        if self.inner.memory == Memory::Weak {
            // In pieces: up to three, cut anywhere.
            cuts.extend((0..2).map(|_| self.inner.rng.random_range(0..=bytes.len())));
            cuts.sort_unstable();
        }
        for piece in cuts.windows(2).filter(|piece| piece[0] < piece[1]) {
            let at = Place { offset: at.offset + piece[0] as u64, ..at };
            let issued = Issued { from, to, at, kind: Kind::Put };
            self.inner.issue(issued, &bytes[piece[0]..piece[1]]);
        }
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let to = self.reached(to, at);
        if self.is_far(to) {
            return Err(Fault::new(to, at, 8));
        }
        self.word(Kind::Publish, to, at, word)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let len = message.len();
        self.inner.range(to, self.batch, at, len as u64)?;
        let crooked = !at.offset.is_multiple_of(8) || !len.is_multiple_of(8);
        if !self.is_far(to) || crooked || matches!(at.region, Region::Output(_)) {
            return Err(Fault::new(to, at, len as u64));
        }
        let from = self.me();
        self.inner.messages = self.inner.messages.wrapping_add(1);
        let kind = Kind::Message(self.inner.messages);
        let mut cuts = vec![0, len];
        if self.inner.memory == Memory::Weak {
            // In pieces of whole words; the first word, which may be a flag, always by itself.
            cuts.push(8.min(len));
            cuts.extend((0..3).map(|_| 8 * self.inner.rng.random_range(0..=len / 8)));
            cuts.sort_unstable();
        }
        for piece in cuts.windows(2).filter(|piece| piece[0] < piece[1]) {
            let at = Place { offset: at.offset + piece[0] as u64, ..at };
            self.inner.issue(Issued { from, to, at, kind }, &message[piece[0]..piece[1]]);
        }
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let me = self.me();
        let counts = |issued: &Issued| issued.from == me && !matches!(issued.kind, Kind::Message(_));
        Ok(!self.inner.flight.iter().any(|effect| counts(&effect.issued)))
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let fault = Fault::new(self.rank, at, 8);
        if !at.offset.is_multiple_of(8) {
            return Err(fault);
        }
        // A core sees its own stores, landed or not.
        let own = |effect: &&Effect| {
            let Issued { from, at: place, kind, .. } = effect.issued;
            kind == Kind::Store && from == self.me() && place == at
        };
        let bytes = match self.inner.flight.iter().rev().find(own) {
            Some(effect) => &effect.bytes,
            None => self.inner.view(self.rank, self.batch, at, 8)?,
        };
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| fault)?))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.word(Kind::Store, self.rank, at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner.view(self.rank, self.batch, at, len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let (rank, batch) = (self.rank, self.batch);
        self.inner.range(rank, batch, at, bytes.len() as u64)?;
        if at.region == Region::WindowOut {
            // No publish speaks for it, only quiet.
            let issued = Issued { from: self.me(), to: rank, at, kind: Kind::Store };
            self.inner.issue(issued, bytes);
            return Ok(());
        }
        self.mark(at, bytes.len() as u64)?;
        self.inner.region(rank, batch, at, bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.write(output, &bytes)
    }
}

/// One agent's view, likewise.
#[derive(Debug)]
pub struct LockstepNic<'b> {
    inner: MutexGuard<'b, Inner>,
    rank: RankId,
}

impl Nic for LockstepNic<'_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let fault = Fault::new(self.rank, at, 8);
        if !at.offset.is_multiple_of(8) {
            return Err(fault);
        }
        let bytes = self.inner.view(self.rank, 0, at, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| fault)?))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        transfer.check(self.rank)?;
        self.inner.range(self.rank, 0, from, len)?;
        self.inner.range(to, 0, at, len)?;
        if self.inner.transfers.len() >= TRANSFERS_MAX {
            return Ok(Post::Busy);
        }
        let slow = self.inner.rng.random::<u8>() < self.inner.mood.slow_puts;
        let flying = Flying { from: self.rank, transfer: *transfer, done: 0, slow };
        self.inner.transfers.push(flying);
        if self.inner.memory == Memory::Strong {
            let last = self.inner.transfers.len() - 1;
            self.inner.deliver(last, len / 8);
        }
        Ok(Post::Posted)
    }
}

impl Backend for Lockstep {
    type Fabric<'b> = LockstepFabric<'b>;

    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> LockstepFabric<'_> {
        LockstepFabric { inner: self.lock(), rank, core, batch }
    }

    type Nic<'b> = LockstepNic<'b>;

    fn nic(&self, rank: RankId) -> LockstepNic<'_> {
        LockstepNic { inner: self.lock(), rank }
    }

    fn read_output(
        &self,
        rank: RankId,
        batch: usize,
        tensor: Tensor,
        len: usize,
        read: &mut dyn FnMut(&[u8]),
    ) {
        let inner = self.lock();
        let bytes = &inner.ranks[rank.index()].outputs[batch][tensor as usize];
        read(&bytes[..len.min(bytes.len())]);
    }

    fn reuse_outputs(&self) {
        for rank in &mut self.lock().ranks {
            for ((batch, tensor), ranges) in core::mem::take(&mut rank.written) {
                for (start, end) in ranges {
                    rank.outputs[batch][tensor as usize][start as usize..end as usize].fill(UNWRITTEN);
                }
            }
        }
    }
}
