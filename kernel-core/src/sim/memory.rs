//! The memory of a group, whose effects land when its chooser says so.

use super::chooser::{AGENT, Actor, Chooser, Lands, Quiet};
use super::flight::{Broken, Bytes, Flight, FlightId, FlightKind, Flights, Queue};
use super::sleepers::Sleepers;
use super::storage::{Spot, Storage};
use super::view::{NicView, View};
use crate::fabric::{Awaited, Fault};
use crate::place::{Place, Region, Tensor};
use crate::shape::{Protocol, Shape};
use crate::units::{CoreId, RankId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;

/// A byte of an output that its operator has not written.
pub const UNWRITTEN: u8 = 0xA5;

/// An effect of a core or an agent, as it was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls")]
pub enum Effect {
    Put { to: RankId, at: Place, row: usize, tail: usize },
    Publish { to: RankId, at: Place, word: u64 },
    Send { to: RankId, at: Place, len: usize },
    Store { at: Place, word: u64 },
    Write { at: Place, len: usize },
    Deliver { at: Place, from: Place, len: u64 },
    Post { to: RankId },
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { to, at, row, tail } => write!(f, "put     -> rank {to} {at}, {row} + {tail} B"),
            Self::Publish { to, at, word } => write!(f, "publish -> rank {to} {at} = {word:#x}"),
            Self::Send { to, at, len } => write!(f, "send    -> rank {to} {at}, {len} B"),
            Self::Store { at, word } => write!(f, "store   {at} = {word:#x}"),
            Self::Write { at, len } => write!(f, "write   {at}, {len} B"),
            Self::Deliver { at, from, len } => write!(f, "deliver {at} <- {from}, {len} B"),
            Self::Post { to } => write!(f, "post    -> rank {to}"),
        }
    }
}

/// The memory of all members of a group, and everything that is in flight.
#[derive(Clone, Debug)]
pub struct Memory<S, C> {
    /// The bytes.
    pub storage: S,
    /// Who decides when effects land.
    pub chooser: C,
    /// Rules of the contract that it breaks.
    pub broken: Broken,
    /// Of an effect that is longer than twice as many bytes only so many at each end are kept: rows are left out, what
    /// is before and after them is not. Of a put that is the tail, whatever its length. Rows of outputs have nothing
    /// around them, and are left out whole.
    pub kept: Option<usize>,
    /// Whether bytes of an output may be written twice in one operator, as when counts are corrupt.
    pub rewrites: bool,
    /// Transfers of one agent that can be in flight.
    pub room: u32,
    /// Words that are what they are, whatever is written there.
    pub stuck: Vec<(RankId, Place, u64)>,
    /// Whether transfers are held against their sources as they were when they were posted.
    pub sources_checked: bool,
    /// Whether a source has changed that a transfer had still to read.
    pub source_changed: bool,
    /// Transfers posted so far.
    pub posted: u64,
    /// Messages of more than a word sent so far.
    pub rows_sent: u64,
    /// What has been issued since [`take_effects`](Self::take_effects).
    pub(super) effects: Vec<Effect>,
    pub(super) flights: Flights,
    /// By member, then core; the agent's after them.
    queues: Vec<Vec<Queue>>,
    cores: usize,
    pub(super) tp_world_size: u32,
    /// Ranks of a server, if those of others are far.
    pub(super) server_ranks: Option<u32>,
    messages: u32,
    /// Transfers in flight, by member.
    transfers: Vec<u32>,
    /// Written ranges, end by start, of outputs.
    written: BTreeMap<(RankId, usize, Tensor), BTreeMap<u64, u64>>,
    /// What the actor has read since its step began.
    pub(super) read: RefCell<Vec<Awaited>>,
    /// Whether it has asked for quiet and been put off though everything had landed.
    pub(super) put_off: Cell<bool>,
    sleepers: Sleepers,
    freed: Vec<FlightId>,
    cuts: Vec<u64>,
}

impl<S: Storage, C: Chooser> Memory<S, C> {
    /// Memory of a group over `storage`, with nothing in flight.
    #[must_use]
    pub fn new(shape: &Shape, storage: S, chooser: C) -> Self {
        let members = (shape.ep_world_size() * shape.tp_world_size()) as usize;
        Self {
            storage,
            chooser,
            broken: Broken::default(),
            kept: None,
            rewrites: false,
            room: 24,
            stuck: Vec::new(),
            sources_checked: false,
            source_changed: false,
            posted: 0,
            rows_sent: 0,
            effects: Vec::new(),
            flights: Flights::default(),
            queues: Vec::new(),
            cores: shape.aiv_num() as usize,
            tp_world_size: shape.tp_world_size(),
            server_ranks: (shape.protocol() == Protocol::Hierarchy).then(|| shape.server_ranks()),
            messages: 0,
            transfers: Vec::from_iter((0..members).map(|_| 0)),
            written: BTreeMap::new(),
            read: RefCell::default(),
            put_off: Cell::new(false),
            sleepers: Sleepers::default(),
            freed: Vec::new(),
            cuts: Vec::new(),
        }
    }

    /// What `core` of `member` sees and does, with the outputs of that batch.
    pub fn fabric(&mut self, member: RankId, core: CoreId, batch: usize) -> View<'_, &mut Self, S, C> {
        View::new(self, Actor { member, core }, batch)
    }

    /// What the agent of `member` sees and does.
    pub fn nic(&mut self, member: RankId) -> NicView<'_, &mut Self, S, C> {
        NicView(View::new(self, Actor { member, core: AGENT }, 0))
    }

    /// The number of flights.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// A flight that has not ended.
    #[must_use]
    pub fn flight(&self, id: FlightId) -> Option<&Flight> {
        self.flights.get(id)
    }

    /// All flights, in the order in which they were issued.
    pub fn flights(&self) -> impl Iterator<Item = (FlightId, &Flight)> {
        self.flights.all().into_iter().filter_map(|id| Some((id, self.flights.get(id)?)))
    }

    /// Lets another chooser decide from now on. It is offered the flights that may land; who may step is not known here.
    pub fn choose(&mut self, chooser: C) {
        self.chooser = chooser;
        for id in self.flights.all() {
            if let Some(flight) = self.flights.get(id)
                && flight.free
            {
                self.chooser.may_land(id, flight);
            }
        }
    }

    /// What was issued since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        core::mem::take(&mut self.effects)
    }

    /// Bytes that have landed.
    ///
    /// # Errors
    /// They are not all in one region.
    pub fn read(&self, from: Spot, len: u64) -> Result<&[u8], Fault> {
        self.storage.read(from, len).ok_or(Fault::new(from.member, from.at, len))
    }

    /// Overwrites a word past the contract, as [`poke`](Self::poke).
    pub fn poke_word(&mut self, member: RankId, at: Place, word: u64) {
        self.poke(member, at, &word.to_le_bytes());
    }

    /// A word that has landed; 0 if there is none.
    #[must_use]
    pub fn word(&self, member: RankId, at: Place) -> u64 {
        let word = self.storage.read(Spot { member, batch: 0, at }, 8).and_then(|bytes| bytes.first_chunk());
        word.copied().map_or(0, u64::from_le_bytes)
    }

    /// An output of a batch, whole.
    #[must_use]
    pub fn output(&self, member: RankId, batch: usize, tensor: Tensor, len: u64) -> &[u8] {
        let at = Place::output(tensor, 0);
        self.storage.read(Spot { member, batch, at }, len).unwrap_or_else(|| panic!("no {len} bytes of {at}"))
    }

    /// Overwrites memory past the contract, and wakes who waits for it.
    ///
    /// # Panics
    /// The bytes are not all in one region.
    pub fn poke(&mut self, member: RankId, at: Place, bytes: &[u8]) {
        let to = Spot { member, batch: 0, at };
        assert!(self.storage.holds(to, bytes.len() as u64), "no {} bytes at {}", bytes.len(), to.at);
        self.storage.write(to, bytes);
        let (start, end) = (to.at.offset, to.at.offset + bytes.len() as u64);
        for &(member, at, word) in &self.stuck {
            let touched = start < at.offset + 8 && at.offset < end;
            if (member, at.region) == (to.member, to.at.region) && touched {
                self.storage.write(Spot { at, ..to }, &word.to_le_bytes());
            }
        }
        let chooser = &mut self.chooser;
        self.sleepers.wake_of_bytes(to.member, to.at, bytes.len() as u64, |actor| chooser.may_step(actor));
    }

    /// Dispatch or `combine` may write its outputs of a batch of `member` again. What it leaves out holds [`UNWRITTEN`].
    pub fn reuse_outputs(&mut self, member: RankId, batch: usize, combine: bool) {
        for tensor in Tensor::ALL.into_iter().filter(|tensor| tensor.is_of_combine() == combine) {
            for (start, end) in self.written.remove(&(member, batch, tensor)).unwrap_or_default() {
                let at = Place::output(tensor, start);
                self.storage
                    .write(Spot { member, batch, at }, &alloc::vec![UNWRITTEN; (end - start) as usize]);
            }
        }
    }

    /// Writes a pattern into every output that is written from end to end, so that bytes without a writer are seen.
    pub fn mark_outputs(&mut self, member: RankId, batch: usize, sizes: &[u64]) {
        for tensor in Tensor::ALL.into_iter().filter(|tensor| !tensor.is_of_received_rows()) {
            let spot = Spot { member, batch, at: Place::output(tensor, 0) };
            self.storage.write(spot, &alloc::vec![UNWRITTEN; sizes[spot.region()] as usize]);
        }
    }

    /// Whether a row of that length would not be kept there at all.
    pub(super) fn leaves_out(&self, at: Place, len: u64) -> bool {
        let is_row = matches!(at.region, Region::Output(Tensor::ExpandX | Tensor::XOut));
        is_row && self.is_cut_short(len)
    }

    fn is_cut_short(&self, len: u64) -> bool {
        self.kept.is_some_and(|kept| len > 2 * kept as u64)
    }

    /// Issues a put.
    pub(super) fn put(&mut self, from: Actor, to: RankId, at: Place, row: &[u8], tail: &[u8]) {
        let weight = (row.len() + tail.len()) as u64;
        if !self.is_cut_short(weight) {
            return self.issue(from, to, at, FlightKind::Put, &[row, tail].concat());
        }
        let at = Place { offset: at.offset + row.len() as u64, ..at };
        let (kind, left, bytes) = (FlightKind::Put, tail.len() as u64, Bytes::Many(tail.to_vec()));
        self.launch(Flight { from, to, at, kind, left, weight, bytes, group: 0, free: false });
    }

    /// Writes bytes of an output, or bytes that no order is promised for, at once.
    pub(super) fn write_now(&mut self, to: Spot, bytes: &[u8]) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        if let (Region::Output(tensor), false) = (to.at.region, self.rewrites) {
            let written = self.written.entry((to.member, to.batch, tensor)).or_default();
            let before = written.range(..to.at.offset + len).next_back();
            if before.is_some_and(|(_, &end)| end > to.at.offset) {
                return Err(Fault::new(to.member, to.at, len));
            }
            written.insert(to.at.offset, to.at.offset + len);
        }
        if self.leaves_out(to.at, len) {
            return Ok(());
        }
        for (start, end) in ends(self.kept, bytes.len()) {
            let at = Place { offset: to.at.offset + start as u64, ..to.at };
            self.storage.write(Spot { at, ..to }, &bytes[start..end]);
        }
        Ok(())
    }

    /// Issues an effect on bytes that exist, in pieces if the chooser cuts it.
    pub(super) fn issue(&mut self, from: Actor, to: RankId, at: Place, kind: FlightKind, bytes: &[u8]) {
        let mut cuts = core::mem::take(&mut self.cuts);
        cuts.clear();
        if matches!(kind, FlightKind::Put | FlightKind::Message(_)) {
            self.chooser.cut(kind, bytes.len() as u64, &mut cuts);
        }
        cuts.push(bytes.len() as u64);
        cuts.sort_unstable();
        let mut start = 0;
        for &cut in &cuts {
            let piece = &bytes[start as usize..cut as usize];
            let mut kept = ends(self.kept, piece.len()).peekable();
            let mut stood_for = 0;
            while let Some((first, end)) = kept.next() {
                let until = kept.peek().map_or(piece.len(), |next| next.0);
                let at = Place { offset: at.offset + start + first as u64, ..at };
                let of = match <[u8; 8]>::try_from(&piece[first..end]) {
                    Ok(word) => Bytes::Word(word),
                    Err(_) => Bytes::Many(piece[first..end].to_vec()),
                };
                let (left, weight) = ((end - first) as u64, (until - stood_for) as u64);
                stood_for = until;
                self.launch(Flight { from, to, at, kind, left, weight, bytes: of, group: 0, free: false });
            }
            start = cut;
        }
        self.cuts = cuts;
    }

    /// The number of a new message.
    pub(super) fn message(&mut self, len: usize) -> FlightKind {
        self.messages += 1;
        self.rows_sent += u64::from(len > 8);
        FlightKind::Message(self.messages)
    }

    /// Puts a transfer on its way. `false` if there is no room.
    pub(super) fn post(&mut self, member: RankId, to: RankId, at: Place, source: Place, len: u64) -> bool {
        let transfers = &mut self.transfers[member.index()];
        if *transfers >= self.room {
            self.read.borrow_mut().push(Awaited::Room);
            return false;
        }
        *transfers += 1;
        self.posted += 1;
        let (from, kind) = (Actor { member, core: AGENT }, FlightKind::Transfer(source));
        let posted = self.storage.read(Spot { member, batch: 0, at: source }, len);
        let posted = posted.filter(|_| self.sources_checked);
        let bytes = posted.map_or(Bytes::Source, |bytes| Bytes::Many(bytes.to_vec()));
        self.launch(Flight { from, to, at, kind, left: len, weight: len, bytes, group: 0, free: false });
        true
    }

    fn launch(&mut self, flight: Flight) {
        let (from, broken) = (flight.from, self.broken);
        let lands = self.chooser.issued(self.flights.next_id(), &flight);
        let id = self.flights.add(flight);
        let queue = queue_of(&mut self.queues, self.cores, from);
        let Some(flight) = self.flights.get_mut(id) else { return };
        flight.free = queue.enter(id, flight, broken);
        match lands {
            Lands::Later if flight.free => self.chooser.may_land(id, flight),
            Lands::Later => {}
            Lands::Now => {
                for earlier in queue.before(id, flight) {
                    self.land(earlier, u64::MAX);
                }
                self.land(id, u64::MAX);
            }
        }
    }

    /// Lands everything, in the order in which it was issued.
    pub fn settle(&mut self) {
        for id in self.flights.all() {
            self.land(id, u64::MAX);
        }
    }

    /// Lands so many bytes of a flight; more than are left are all, and fewer than can land by themselves are as many as can.
    /// `false` if the flight had ended before: an offer may have been overtaken.
    ///
    /// # Panics
    /// Something must land before it.
    pub fn land(&mut self, id: FlightId, bytes: u64) -> bool {
        let Some(flight) = self.flights.get_mut(id) else { return false };
        assert!(flight.free, "a flight lands before what it must follow: {flight:?}");
        let piece = flight.piece();
        let (at, left) = (flight.at, flight.left);
        let len = bytes.max(piece).min(left) / piece * piece;
        flight.left -= len;
        let end = flight.left == 0;
        if !end {
            flight.at.offset += len;
        }
        let (from, to, kind) = (flight.from, flight.to, flight.kind);
        // The flight is put aside while its bytes are written.
        let own = core::mem::replace(&mut flight.bytes, Bytes::Source);
        if let FlightKind::Transfer(source) = kind {
            flight.kind = FlightKind::Transfer(Place { offset: source.offset + len, ..source });
            if let Bytes::Many(posted) = &own {
                let spot = Spot { member: from.member, batch: 0, at: source };
                self.source_changed |=
                    self.storage.read(spot, left) != posted.get(posted.len() - left as usize..);
            }
            self.deliver(from.member, to, source, at, len, left);
        } else {
            let all = own.as_slice();
            let start = all.len() - left as usize;
            self.poke(to, at, &all[start..start + len as usize]);
        }
        let Some(flight) = self.flights.get_mut(id) else { return true };
        flight.bytes = own;
        self.chooser.landed(id, flight, at, len, end);
        if end {
            self.end(id);
        } else {
            self.chooser.may_land(id, flight);
        }
        true
    }

    fn end(&mut self, id: FlightId) {
        let Some(flight) = self.flights.remove(id) else { return };
        let mut freed = core::mem::take(&mut self.freed);
        let queue = queue_of(&mut self.queues, self.cores, flight.from);
        queue.leave(id, &flight, &mut freed);
        let quiet = queue.unlanded == 0;
        for id in freed.drain(..) {
            if let Some(next) = self.flights.get_mut(id)
                && !next.free
            {
                next.free = true;
                self.chooser.may_land(id, next);
            }
        }
        self.freed = freed;
        if let FlightKind::Transfer(_) = flight.kind {
            self.transfers[flight.from.member.index()] -= 1;
        }
        if quiet && self.sleepers.wake_of(flight.from, &Awaited::Quiet)
            || flight.from.core == AGENT && self.sleepers.wake_of(flight.from, &Awaited::Room)
        {
            self.chooser.may_step(flight.from);
        }
    }

    /// The next words of a transfer, read now, in address order. `left` bytes were left.
    fn deliver(&mut self, from: RankId, to: RankId, source: Place, at: Place, len: u64, left: u64) {
        let shifted = |place: Place, by| Place { offset: place.offset + by, ..place };
        let last_first = self.broken.transfers;
        let mut copy = |start: u64, len: u64| {
            let spot = Spot { member: from, batch: 0, at: shifted(source, start) };
            let bytes = self.storage.read(spot, len).map(<[u8]>::to_vec).unwrap_or_default();
            self.poke(to, shifted(at, start), &bytes);
        };
        // In chunks, since sparse memory is not read in longer pieces.
        for start in (0..len).step_by(512) {
            copy(start, 512.min(len - start));
        }
        if last_first && len < left {
            copy(left - 8, 8);
        }
    }

    /// Whether everything that a core did, but for messages, has landed, or passes for it.
    pub(super) fn is_quiet(&mut self, core: Actor) -> bool {
        let all = queue_of(&mut self.queues, self.cores, core).unlanded == 0;
        match self.chooser.quiet(core, all) {
            Quiet::Honest => {
                if !all {
                    self.read.borrow_mut().push(Awaited::Quiet);
                }
                all
            }
            Quiet::NotYet => {
                self.put_off.set(true);
                false
            }
            Quiet::Flush => {
                for id in self.flights.all() {
                    let own = |flight: &Flight| {
                        flight.from == core
                            && !matches!(flight.kind, FlightKind::Message(_) | FlightKind::Transfer(_))
                    };
                    if self.flights.get(id).is_some_and(own) {
                        self.land(id, u64::MAX);
                    }
                }
                true
            }
        }
    }

    /// A store of a core that it observes though it has not landed.
    pub(super) fn own_store(&self, core: Actor, at: Place) -> Option<u64> {
        let id = self.queues.get(core.member.index())?.get(core.core.index())?.own_store(at)?;
        let bytes = self.flights.get(id)?.bytes.as_slice();
        bytes.first_chunk().copied().map(u64::from_le_bytes)
    }

    /// An actor's step begins.
    pub fn begin_step(&mut self) {
        self.effects.clear();
        self.read.get_mut().clear();
        self.put_off.set(false);
    }

    /// The actor whose step has begun last cannot go on: it sleeps until something changes that it has read.
    pub fn sleep(&mut self, actor: Actor) {
        let read = self.read.get_mut();
        if self.put_off.get() {
            self.chooser.may_step(actor);
        } else {
            self.sleepers.add(actor, read);
            self.chooser.sleeps(actor, read);
        }
    }

    /// Who sleeps, and on what.
    pub fn sleepers(&self) -> impl Iterator<Item = (Actor, &[Awaited])> {
        self.sleepers.all()
    }
}

/// What an actor has in flight.
fn queue_of(queues: &mut Vec<Vec<Queue>>, cores: usize, actor: Actor) -> &mut Queue {
    let (member, core) = (actor.member.index(), if actor.core == AGENT { cores } else { actor.core.index() });
    if queues.len() <= member {
        queues.resize_with(member + 1, Vec::new);
    }
    if queues[member].len() <= core {
        queues[member].resize_with(core + 1, Queue::default);
    }
    &mut queues[member][core]
}

/// The parts of `len` bytes that are kept: all, or some at each end.
fn ends(kept: Option<usize>, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let parts = match kept {
        Some(kept) if len > 2 * kept => [Some((0, kept)), Some((len - kept, len))],
        _ => [(len > 0).then_some((0, len)), None],
    };
    parts.into_iter().flatten()
}
