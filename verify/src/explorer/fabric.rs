//! The fabric that a machine sees while it is explored: sparse memory, a flight of effects, an oracle beside
//! every output, and a note of whether the step touched anything that others can see.

use super::model::{Kind, Memory, Setup, Twin};
use super::oracle::Expected;
use super::state::{Effect, Interner, Shared, Value};
use super::tape::Tape;
use super::violation::Violation;
use core::cell::{Cell, RefCell};
use kernel_core::fabric::order::{self, Issued};
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::layout::block;
use kernel_core::layout::data::partition_start;
use kernel_core::layout::state::{
    CORE_WORDS, DISPATCH_SELECTORS, DISPATCH_STATUS, Direct, PARTITION, Partition, STATUS_SLOT, core_word,
};
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::protocol::Receive;
use kernel_core::sync::flag;
use kernel_core::units::{CoreId, RankId};
use std::rc::Rc;

/// Where virtual partitions begin in the model's addresses.
pub(super) const VIRTUAL: u64 = 1 << 40;
/// Bytes of a scale.
const SCALE: u64 = 4;
/// What unread or never written bytes look like.
pub(super) static NOTHING: [u8; 512] = [0xEE; 512];

/// A place in words: its partition and where it is in there.
pub(super) fn spot(at: Place) -> String {
    let partitioned = at.region == Region::Window || at.offset % VIRTUAL < DISPATCH_SELECTORS;
    let place = Place { offset: at.offset % VIRTUAL, ..at };
    if partitioned { format!("{place} in partition {}", at.offset / VIRTUAL) } else { place.to_string() }
}

/// Whether others than its own core may look at a word.
pub(super) fn is_shared(at: Place) -> bool {
    at.region != Region::State
        || at.offset >= VIRTUAL
        || !(DISPATCH_SELECTORS..CORE_WORDS).contains(&at.offset)
}

/// One core's view.
pub(super) struct View<'a> {
    pub(super) setup: &'a Setup<'a>,
    pub(super) shared: RefCell<&'a mut Shared>,
    pub(super) interner: &'a mut Interner,
    pub(super) rank: RankId,
    pub(super) core: CoreId,
    /// The running operator: its kind and its number among its kind.
    pub(super) kind: Kind,
    pub(super) nth: u32,
    /// What this rank must write; `None` while some rank has not chosen its traffic.
    pub(super) expected: Option<Rc<Vec<Expected>>>,
    /// Whether shared accesses are refused: the caller only wants to know whether there are any.
    pub(super) peek: bool,
    pub(super) sent: bool,
    /// What the step did.
    pub(super) touched: Cell<bool>,
    pub(super) tape: RefCell<Tape<()>>,
    /// Where it last saw the flag of a block.
    pub(super) block_seen: Cell<Option<u64>>,
    pub(super) read_rows: RefCell<Vec<u16>>,
    pub(super) written: u32,
    pub(super) violation: RefCell<Option<Violation>>,
}

impl View<'_> {
    pub(super) fn twin(&self) -> Twin {
        self.setup.model.twin
    }

    /// The place in the model's own addresses: operator `n` of a kind uses partition `n % P`.
    fn virtually(&self, at: Place) -> Place {
        let size = match at.region {
            Region::State if at.offset < DISPATCH_SELECTORS => PARTITION,
            Region::State => return self.barrier_word(at),
            // Areas are the machines' own.
            Region::Window if matches!(self.setup.model.receive, Receive::Direct { .. }) => return at,
            Region::Window => partition_start(self.setup.shape, Partition::P1),
            // No model has a TP domain, or A2's windows.
            Region::WindowOut | Region::TpState | Region::TpWindow | Region::Output(_) => return at,
        };
        if at.offset / size != u64::from(self.nth % 2) {
            self.blame(Violation::WrongPartition { rank: self.rank, at });
        }
        self.in_partition(at, size, self.kind)
    }

    /// A place of a partitioned region, `size` a partition, in the partition that operator `nth` of `kind` has.
    pub(super) fn in_partition(&self, at: Place, size: u64, kind: Kind) -> Place {
        let partition = self.nth % self.setup.model.partitions[kind as usize];
        Place { offset: at.offset % size + u64::from(partition) * VIRTUAL, ..at }
    }

    /// The landed row that has these bytes, and the bytes.
    pub(super) fn row_at(&self, rank: RankId, at: Place, len: u64) -> Option<(u16, &[u8])> {
        self.shared.borrow().rows.iter().find_map(|(number, row)| {
            let (of, start) = self.interner.place_of(*number);
            let from = at.offset.checked_sub(start.offset)? as usize;
            let bytes = self.interner.row_of(*row).get(from..)?.get(..len as usize)?;
            (of == rank && start.region == at.region).then_some((*number, bytes))
        })
    }

    /// Whether weak memory has a row for this rank there that has perhaps not landed.
    pub(super) fn is_on_its_way(&self, at: Place) -> bool {
        let covers = |effect: &Effect| {
            let start = effect.issued.at;
            let len = match effect.value {
                Value::Row(row) => self.interner.row_of(row).len() as u64,
                Value::Word(_) => 0,
            };
            let covers = start.offset <= at.offset && at.offset < start.offset + len;
            effect.issued.to == self.rank && start.region == at.region && covers
        };
        self.setup.model.memory == Memory::Weak && self.shared.borrow().flight.iter().any(covers)
    }

    fn barrier_word(&self, at: Place) -> Place {
        let words = at.offset >= CORE_WORDS && self.twin() == Twin::OneBarrierWord;
        Place { offset: if words { at.offset & !15 } else { at.offset }, ..at }
    }

    fn is_core_word(&self, at: Place) -> bool {
        at.region == Region::State && (CORE_WORDS..VIRTUAL).contains(&at.offset)
    }

    fn fault(&self, at: Place) -> Fault {
        Fault::new(self.rank, at, 0)
    }

    /// Notes a shared access; refuses it while peeking.
    pub(super) fn touch(&self, at: Place) -> Result<(), Fault> {
        self.touched.set(true);
        if self.peek { Err(self.fault(at)) } else { Ok(()) }
    }

    fn issue(&mut self, kind: order::Kind, to: RankId, at: Place, value: Value) {
        let at = self.virtually(at);
        let effect = Effect { issued: Issued { from: (self.rank, self.core), to, at, kind }, value };
        let shared = &mut **self.shared.get_mut();
        let violation = match self.setup.model.memory {
            Memory::Strong => land(shared, self.interner, &effect),
            Memory::WeakExplicit => {
                shared.flight.push(effect);
                None
            }
            Memory::Weak => {
                let violation = conflict(shared, self.interner, &effect);
                shared.flight.push(effect);
                violation
            }
        };
        if let Some(violation) = violation {
            self.blame(violation);
        }
    }

    pub(super) fn blame(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
    }

    /// Somebody depends on the effects that `depends` picks: they have landed.
    fn force(&self, depends: impl FnMut(&Effect) -> bool) {
        let shared = &mut **self.shared.borrow_mut();
        let (landed, flight) = core::mem::take(&mut shared.flight).into_iter().partition(depends);
        shared.flight = flight;
        let landed: Vec<Effect> = landed;
        for effect in &landed {
            if let Some(place) = self.interner.known(effect.issued.to, effect.issued.at) {
                match effect.value {
                    Value::Row(row) => shared.set_row(place, Some(row)),
                    Value::Word(word) => shared.set_word(place, word),
                }
            }
        }
    }

    /// Compares an output with the oracle's.
    fn judge(&mut self, at: Place, bytes: &[u8]) {
        let Region::Output(tensor) = at.region else { return };
        self.written += bytes.len() as u32;
        let expected = self.expected.as_ref().and_then(|all| {
            let range = at.offset as usize..at.offset as usize + bytes.len();
            all[self.rank.index()].output(tensor).get(range)
        });
        // Before all ranks have chosen, nothing but this rank's own slots can be known.
        let unknown = self.expected.is_none() && tensor == Tensor::ExpandIdx;
        if !unknown && expected != Some(bytes) {
            self.blame(Violation::Diverged { rank: self.rank, at });
        }
    }
}

/// Lets an effect land.
pub(super) fn land(shared: &mut Shared, interner: &mut Interner, effect: &Effect) -> Option<Violation> {
    let Issued { to: rank, at, kind, .. } = effect.issued;
    let place = interner.place(rank, at);
    match effect.value {
        Value::Row(row) => {
            let unread = shared.rows.iter().any(|(number, _)| *number == place);
            shared.set_row(place, Some(row));
            unread.then_some(Violation::Overwritten { rank, at })
        }
        Value::Word(word) => {
            let lost = kind == order::Kind::Publish && is_flag(at) && shared.word(place) != 0;
            shared.set_word(place, word);
            lost.then_some(Violation::LostFlag { rank, at })
        }
    }
}

/// What the effect breaks if it lands at once, or if something in flight lands after it.
fn conflict(shared: &Shared, interner: &mut Interner, effect: &Effect) -> Option<Violation> {
    let Issued { to: rank, at, kind, .. } = effect.issued;
    let place = interner.place(rank, at);
    let mut in_flight = shared.flight.iter().filter(|e| e.issued.to == rank && e.issued.at == at);
    match effect.value {
        Value::Row(_) => {
            let unread = shared.rows.iter().any(|(number, _)| *number == place);
            (unread || in_flight.next().is_some()).then_some(Violation::Overwritten { rank, at })
        }
        Value::Word(_) => {
            let set = kind == order::Kind::Publish && is_flag(at) && shared.word(place) != 0;
            let unordered = in_flight.any(|earlier| !effect.issued.must_follow(&earlier.issued));
            (set || unordered).then_some(Violation::LostFlag { rank, at })
        }
    }
}

/// The dispatch slot whose `TokenFlag` lies at `at`, a place as machines of the seeds' protocol give it.
fn token_slot(at: Place) -> Option<u32> {
    let inside = at.offset % PARTITION;
    let is_status = at.region == Region::State && is_flag(at) && inside < DISPATCH_STATUS;
    (is_status && inside % STATUS_SLOT == 8).then_some((inside / STATUS_SLOT) as u32)
}

/// Whether a word at `at` is a flag: a status word, or in the window that of a block.
fn is_flag(at: Place) -> bool {
    at.region == Region::Window || at.offset % VIRTUAL < DISPATCH_SELECTORS
}

/// Whether an effect in flight may land now.
pub(super) fn may_land(flight: &[Effect], i: usize, twin: Twin) -> bool {
    let later = &flight[i].issued;
    flight[..i].iter().all(|earlier| {
        let relaxed = twin == Twin::RelaxedPublish && earlier.issued.kind == order::Kind::Put;
        relaxed || !later.must_follow(&earlier.issued)
    })
}

impl Fabric for View<'_> {
    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.row_at_peer(rank, at, len)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::PEER_BYTES
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.touch(at)?;
        self.sent = true;
        let row = self.interner.row([row, tail].concat());
        self.issue(order::Kind::Put, to, at, Value::Row(row));
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if self.leaves_out(to, at) {
            return Ok(());
        }
        self.touch(at)?;
        let lost = self.twin() == Twin::PollsByStepping && !self.nth.is_multiple_of(2) && to == RankId(1);
        if lost && is_flag(at) {
            return Ok(());
        }
        self.issue(order::Kind::Publish, to, at, Value::Word(word));
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let me = (self.rank, self.core);
        let sent = core::mem::replace(&mut self.sent, false);
        let twin = self.twin();
        let waits = match twin {
            Twin::NoQuiet => false,
            Twin::QuietOnlyIfSent => sent,
            _ => true,
        };
        let counts = |effect: &Effect| {
            let late = twin == Twin::LateClear && effect.issued.kind == order::Kind::Store;
            waits && effect.issued.from == me && !late
        };
        if !self.shared.get_mut().flight.iter().any(counts) {
            // What has landed stays landed: this need not be a move of its own.
            return Ok(true);
        }
        self.sent = sent;
        self.touch(Place::state(0))?;
        if self.setup.model.memory == Memory::WeakExplicit || !self.tape.get_mut().choose(()) {
            return Ok(false);
        }
        self.sent = false;
        self.force(counts);
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if self.leaves_out(self.rank, at) {
            return Ok(flag::ARRIVED);
        }
        let own = self.is_core_word(at) && at == core_word(self.core, (at.offset / 8 % 2) as u32);
        let virtually = self.virtually(at);
        if is_shared(at) && !own {
            self.touch(at)?;
        }
        if self.is_core_word(at) && !own {
            let other = ((at.offset - CORE_WORDS) / kernel_core::layout::state::CORE_RECORD) as u32;
            let skip = match self.twin() {
                Twin::NoBarrier => true,
                Twin::NoPullBarrier => self.kind == Kind::Combine,
                Twin::BarrierOfLowerCores => other > self.core.0,
                _ => false,
            };
            if skip {
                // As if the other had arrived together with this core, without rows.
                let mine = core_word(self.core, (at.offset / 8 % 2) as u32);
                return Ok(self.newest(self.virtually(mine)) & (3 << 62));
            }
        }
        let word = self.read_word(virtually);
        if at.region == Region::Window && self.refuses(at, word) {
            return Err(self.fault(at));
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        if !is_shared(at) {
            let place = self.interner.place(self.rank, at);
            self.shared.get_mut().set_word(place, word);
            return Ok(());
        }
        if self.leaves_out(self.rank, at) {
            return Ok(());
        }
        self.touch(at)?;
        if at.region == Region::Window {
            // The flag of a block: the block has been read.
            let block = Place { offset: at.offset - block::PAYLOAD, ..at };
            let read = self.interner.known(self.rank, self.virtually(block));
            self.read_rows.get_mut().extend(read);
        }
        let forgotten = match self.twin() {
            Twin::NoClear => true,
            Twin::NoCountClear => match self.direct_table(at) {
                Some(table) => table == Direct::Counts,
                None => at.region == Region::State && token_slot(at).is_none(),
            },
            Twin::NoBlockClear => at.region == Region::Window,
            Twin::NoTokenClear => match self.direct_table(at) {
                Some(table) => table == Direct::TokenFlags,
                None => token_slot(at).is_some(),
            },
            Twin::NoGrantClear => self.direct_table(at) == Some(Direct::Grants),
            Twin::NoReadyClear => self.kind == Kind::Combine,
            _ => false,
        };
        if !forgotten {
            self.issue(order::Kind::Store, self.rank, at, Value::Word(word));
        }
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        // A row that lands on an unread one is an error, so when a part of a record is read does not matter;
        // when its last part is read, and the record forgotten, does.
        let last = match self.kind {
            Kind::Combine => true,
            // A block is read when its flag is cleared.
            Kind::Dispatch => match (self.setup.model.receive, self.setup.model.quantised) {
                (Receive::Copy, quantised) => self.setup.model.blocks == 0 && quantised && len == SCALE,
                (Receive::InPlace, _) => false,
                // The triple stands alone with its scale.
                (Receive::Direct { .. }, quantised) => !quantised || len == SCALE,
            },
        };
        if last {
            self.touch(at)?;
        }
        let at = self.virtually(at);
        if let Some((number, bytes)) = self.row_at(self.rank, at, len) {
            if last {
                self.read_rows.borrow_mut().push(number);
            }
            return Ok(bytes);
        }
        if self.is_on_its_way(at) {
            self.blame(Violation::NotLanded { rank: self.rank, at });
        }
        Ok(&NOTHING[..len as usize])
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.judge(at, bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.touch(from)?;
        let bytes = self.bytes(from, len)?.to_vec();
        self.judge(output, &bytes);
        // The data is a record's last part to be read, unless there is a scale.
        if !self.setup.model.quantised
            && self.setup.model.blocks == 0
            && let Some(place) = self.interner.known(self.rank, self.virtually(from))
        {
            self.read_rows.borrow_mut().push(place);
        }
        Ok(())
    }
}

impl View<'_> {
    /// With direct placement the table that a place, as machines give it, is in.
    fn direct_table(&self, at: Place) -> Option<Direct> {
        let is_direct = matches!(self.setup.model.receive, Receive::Direct { .. });
        let is_status = at.region == Region::State && is_flag(at) && at.offset % PARTITION < DISPATCH_STATUS;
        (is_direct && is_status).then(|| Direct::of(at))
    }

    /// Whether the twin refuses a record of which it has seen a later block, and not this one.
    fn refuses(&self, at: Place, word: u64) -> bool {
        let seen = if word != 0 { self.block_seen.replace(Some(at.offset)) } else { self.block_seen.get() };
        let next = block::block(at, 1).offset;
        self.twin() == Twin::RefusesGaps && word == 0 && seen == Some(next)
    }

    /// Whether the twin has no word at `at` on rank `to`: the token flag of a slot without rows. Who asks has
    /// exchanged counts, so that all traffic is chosen.
    fn leaves_out(&self, to: RankId, at: Place) -> bool {
        if self.twin() != Twin::NoFlagOfNothing || self.direct_table(at).is_some() {
            return false;
        }
        let Some((slot, all)) = token_slot(at).zip(self.expected.as_ref()) else { return false };
        let sums = all[to.index()].output(Tensor::EpRecvCounts);
        let sum = |slot: u32| sums.chunks_exact(4).nth(slot as usize);
        slot.checked_sub(1).map_or(Some(&[0; 4][..]), sum) == sum(slot)
    }

    /// A word as this core observes it: its own stores at once, all else when it has landed.
    fn read_word(&self, at: Place) -> u64 {
        let me = (self.rank, self.core);
        let newest =
            self.in_flight(at, |effect| effect.issued.kind == order::Kind::Store && effect.issued.from == me);
        if let Some(Value::Word(word)) = newest.map(|effect| effect.value) {
            return word;
        }
        // A publish, or another core's clear.
        if self.setup.model.memory == Memory::Weak
            && let Some(late) = self.in_flight(at, |_| true)
        {
            if late.issued.from == me && self.is_core_word(at) {
                self.blame(Violation::OwnNotLanded { rank: self.rank, at });
            }
            // It may have landed, and all that must have landed before it; or not yet.
            let relaxed = self.twin() == Twin::RelaxedPublish;
            let mut before = true;
            if self.tape.borrow_mut().choose(()) {
                self.force(|effect| {
                    before &= *effect != late;
                    *effect == late || before && !relaxed && late.issued.must_follow(&effect.issued)
                });
            }
        }
        self.interner.known(self.rank, at).map_or(0, |place| self.shared.borrow().word(place))
    }

    /// The newest effect on a word of the own rank that is in flight.
    fn in_flight(&self, at: Place, which: impl Fn(&Effect) -> bool) -> Option<Effect> {
        let on = |effect: &&Effect| effect.issued.to == self.rank && effect.issued.at == at && which(effect);
        self.shared.borrow().flight.iter().rev().find(on).copied()
    }

    /// A word that this core published, landed or not.
    fn newest(&self, at: Place) -> u64 {
        let me = (self.rank, self.core);
        match self.in_flight(at, |effect| effect.issued.from == me).map(|effect| effect.value) {
            Some(Value::Word(word)) => word,
            _ => self.interner.known(self.rank, at).map_or(0, |place| self.shared.borrow().word(place)),
        }
    }
}
