//! The fabric that a machine of A3 sees while it is explored.

use super::super::model::Memory as Landing;
use super::super::protocol::{NOTHING, VIRTUAL, spot};
use super::super::setup::Setup;
use super::super::step::Step;
use super::super::violation::Violation;
use super::memory::{Effect, Memory, Scene, Value};
use crate::order::Order;
use crate::smt::model::Step as SmtStep;
use core::cell::RefCell;
use veriep_core::fabric::order::{self, Issued};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::layout::block;
use veriep_core::layout::state::{
    CORE_SUMS, CORE_WORDS, DISPATCH_SELECTORS, Direct, LINE, PARTITION, Partition, core_word,
};
use veriep_core::layout::tp;
use veriep_core::place::{Place, Region};
use veriep_core::protocol::Operator;
use veriep_core::units::RankId;

/// Bytes of a scale.
const SCALE: u64 = 4;

/// Whether others than its own core may look at a word, by a machine's address: all but selectors.
pub(super) fn is_shared(at: Place) -> bool {
    !matches!(at.region, Region::State | Region::TpState)
        || !(DISPATCH_SELECTORS..CORE_WORDS).contains(&at.offset)
}

/// Whether the word of a core for a barrier is there.
pub(super) fn is_core_word(at: Place) -> bool {
    at.region == Region::State && (CORE_WORDS..VIRTUAL).contains(&at.offset)
}

/// One core's view: the memory as the contract has it. What is broken on purpose stands around it, in `bent.rs`.
pub(super) struct View<'v, 'a> {
    pub(super) scene: &'v mut Scene<'a>,
    pub(super) memory: RefCell<&'v mut Memory>,
    pub(super) step: Step<(), ()>,
    /// Whether it copies bytes to an output.
    delivers: bool,
    /// Rows that it has read for the last time, by their places.
    pub(super) read_rows: RefCell<Vec<u32>>,
}

impl<'v, 'a> View<'v, 'a> {
    pub(super) fn new(scene: &'v mut Scene<'a>, memory: &'v mut Memory, step: Step<(), ()>) -> Self {
        Self { scene, memory: RefCell::new(memory), step, delivers: false, read_rows: RefCell::default() }
    }

    /// Notes that a row has been read for the last time.
    pub(super) fn read(&self, number: u32) {
        let mut read = self.read_rows.borrow_mut();
        if !read.contains(&number) {
            read.push(number);
            let (rank, at) = **self.scene.places.get(number);
            self.step
                .account
                .say_read(rank, || format!("reads the row at {} of rank {rank} for the last time", spot(at)));
        }
    }

    /// Notes that the row at `at` has been read for the last time, if a row starts there. `at` is one of the model's addresses.
    fn read_row(&self, at: Place) {
        self.scene.places.known(&(self.step.at.rank, at)).into_iter().for_each(|number| self.read(number));
    }

    /// The place in the model's own addresses: operator `n` of a kind uses partition `n % P`.
    pub(super) fn virtually(&self, at: Place) -> Place {
        let size = match (self.scene.partition_bytes(at), at.region) {
            (Some(size), _) => size,
            (None, Region::TpWindow) => {
                tp::partition_start(self.scene.setup.shape, self.ep_rank(), Partition::P1)
            }
            (None, _) => return at,
        };
        if at.offset / size != u64::from(self.step.at.nth % 2) {
            self.step.found.blame(Violation::WrongPartition { rank: self.step.at.rank, at });
        }
        self.in_partition(at, size, self.step.at.operator)
    }

    /// The same of a word that is stored. With direct placement a dispatch clears words of the partition of the one before.
    fn stored(&self, at: Place) -> Place {
        if self.direct_word(at).is_none() {
            return self.virtually(at);
        }
        let former = u64::from((self.step.at.nth + 1) % 2);
        if at.offset / PARTITION != former {
            self.step.found.blame(Violation::WrongPartition { rank: self.step.at.rank, at });
        }
        Place { offset: at.offset % PARTITION + former * VIRTUAL, ..at }
    }

    /// A place of a partitioned region, `size` a partition, in the partition that operator `nth` of `operator` has.
    pub(super) fn in_partition(&self, at: Place, size: u64, operator: Operator) -> Place {
        let partition = self.step.at.nth % self.scene.setup.model.partitions[operator as usize];
        Place { offset: at.offset % size + u64::from(partition) * VIRTUAL, ..at }
    }

    /// The landed row that has these bytes, and the bytes.
    pub(super) fn row_at(&self, rank: RankId, at: Place, len: u64) -> Option<(u32, &[u8])> {
        self.memory.borrow().rows.iter().find_map(|(number, row)| {
            let (of, start) = **self.scene.places.get(*number);
            let from = at.offset.checked_sub(start.offset)? as usize;
            let bytes = self.scene.rows.get(*row).get(from..)?.get(..len as usize)?;
            (of == rank && start.region == at.region).then_some((*number, bytes))
        })
    }

    /// Whether weak memory has a row for a rank there that has perhaps not landed.
    pub(super) fn is_on_its_way(&self, rank: RankId, at: Place) -> bool {
        let covers = |effect: &Effect| {
            let start = effect.issued.at;
            let len = match effect.value {
                Value::Row(row) => self.scene.rows.get(row).len() as u64,
                Value::Word(_) => 0,
            };
            let covers = start.offset <= at.offset && at.offset < start.offset + len;
            effect.issued.to == rank && start.region == at.region && covers
        };
        self.scene.setup.model.memory == Landing::Weak && self.memory.borrow().flight.iter().any(covers)
    }

    /// The rank as machines call it.
    fn ep_rank(&self) -> RankId {
        RankId(self.step.at.rank.0 / self.scene.setup.model.tp_ranks())
    }

    /// The rank of the model that this one calls `to` there. In an elastic domain that is a physical one.
    pub(super) fn member(&self, to: RankId, at: Place) -> Result<RankId, Fault> {
        let Setup { model, left, .. } = self.scene.setup;
        let tp = model.tp_ranks();
        if at.region.is_of_tp() {
            return Ok(RankId(self.ep_rank().0 * tp + to.0));
        }
        match left {
            Some(left) => left.new_id(to).ok_or(Fault::new(to, at, 0)),
            None => Ok(RankId(to.0 * tp + self.step.at.rank.0 % tp)),
        }
    }

    pub(super) fn issue(&mut self, kind: order::Kind, to: RankId, at: Place, value: Value) {
        let at = if kind == order::Kind::Store { self.stored(at) } else { self.virtually(at) };
        let effect =
            Effect { issued: Issued { from: (self.step.at.rank, self.step.at.core), to, at, kind }, value };
        let memory = &mut **self.memory.get_mut();
        let violation = match self.scene.setup.model.memory {
            Landing::Strong => self.scene.land(memory, &effect),
            Landing::WeakExplicit => None,
            Landing::Weak => self.scene.conflict(memory, &effect),
        };
        let strong = self.scene.setup.model.memory == Landing::Strong;
        if strong {
            self.noted(effect.landing());
        } else {
            memory.flight.push(effect);
        }
        self.step.account.say_written(to, || match (effect.value, spot(at)) {
            _ if !strong => format!("issues a {effect}"),
            (Value::Row(_), at) => format!("puts a row at {at} of rank {to}"),
            (Value::Word(0), at) => format!("sees the flag at {at} of rank {to} and clears it"),
            (Value::Word(word), at) => format!("publishes {word:#x} at {at} of rank {to}"),
        });
        violation.into_iter().for_each(|violation| self.step.found.blame(violation));
    }

    /// Whether such effects have landed, if the memory chooses.
    pub(super) fn have_landed(&mut self, which: impl Fn(&Effect) -> bool) -> Result<bool, Fault> {
        if !self.memory.get_mut().flight.iter().any(&which) {
            // What has landed stays landed: this need not be a move of its own.
            return Ok(true);
        }
        self.step.touch(Place::state(0))?;
        if self.scene.setup.model.memory == Landing::WeakExplicit
            || !self.step.search.tape.get_mut().choose(())
        {
            return Ok(false);
        }
        // Asked by who is quiet, and by experts after their results.
        let order = |_, effect: &Effect| which(effect).then(|| Order::by_quiet(effect.issued.kind));
        let landed = self.memory.get_mut().flight.land(self.scene.setup, order);
        self.have_come(landed);
        Ok(true)
    }

    /// These effects are no longer in flight.
    fn have_come(&self, landed: Vec<Effect>) {
        for effect in landed {
            self.noted(effect.landing());
            if let Some(place) = self.scene.places.known(&(effect.issued.to, effect.issued.at)) {
                self.memory.borrow_mut().write(place, effect.value);
            }
        }
    }
}

impl Fabric for View<'_, '_> {
    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.row_at_peer(rank, at, len)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::PEER_BYTES
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        // A table is put as early as may be, when it can do most harm: no core reads it before its word, which is a move. In
        // runs both are one step.
        if at.region != Region::State || self.scene.setup.model.in_runs {
            self.step.touch(at)?;
        }
        let to = self.member(to, at)?;
        let row = self.scene.rows.number(&[row, tail].concat());
        self.issue(order::Kind::Put, to, at, Value::Row(row));
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let to = self.member(to, at)?;
        self.step.touch(at)?;
        self.issue(order::Kind::Publish, to, at, Value::Word(word));
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.is_quiet_but_for(|_| false)
    }

    /// Refused only while the search peeks (`Step::touch`): then the step is taken back.
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        // Only this core writes its core words, so what it reads there depends on no other core.
        if is_shared(at) && at != self.own_word(at) {
            self.step.touch(at)?;
        }
        let word = self.read_word(self.virtually(at));
        // Of words that are cleared later than seen; those that are taken at once are noted by their clear.
        if word != 0 {
            self.note_seen(at);
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        if !is_shared(at) {
            let place = self.scene.places.number(&(self.step.at.rank, at));
            self.memory.get_mut().set_word(place, word);
        } else if self.take(at)? {
            self.issue(order::Kind::Store, self.step.at.rank, at, Value::Word(word));
        }
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        if let Some(bytes) = self.row(at, len)? {
            return Ok(bytes);
        }
        let at = self.virtually(at);
        if self.is_on_its_way(self.step.at.rank, at) {
            self.step.found.blame(Violation::NotLanded { rank: self.step.at.rank, at });
        }
        Ok(&NOTHING[..len as usize])
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.step.judge(at, bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.step.touch(from)?;
        self.delivers = true;
        let bytes = self.bytes(from, len)?.to_vec();
        self.delivers = false;
        self.step.judge(output, &bytes);
        // The data is a record's last part to be read, unless there is a scale, or a peer to whom it goes.
        let model = self.scene.setup.model;
        if !model.quantised && model.blocks == 0 && !(model.tp && from.region == Region::Window) {
            self.read_row(self.virtually(from));
        }
        Ok(())
    }
}

impl View<'_, '_> {
    /// With direct placement the word of dispatch that a place, as machines give it, is.
    pub(super) fn direct_word(&self, at: Place) -> Option<Direct> {
        let Setup { model, shape, .. } = self.scene.setup;
        model.choices.receive.is_direct().then(|| Direct::of(shape, at)).flatten()
    }

    /// The rank whose word or table of direct placement is there.
    pub(super) fn source_of(&self, at: Place) -> RankId {
        RankId((at.offset % PARTITION / Direct::pitch(self.scene.setup.shape)) as u32)
    }

    /// What has landed there and is read now, perhaps for the last time.
    pub(super) fn row(&self, at: Place, len: u64) -> Result<Option<&[u8]>, Fault> {
        // A row that lands on an unread one is an error, so when a part of a record is read does not matter;
        // when its last part is read, and the record forgotten, does.
        let model = self.scene.setup.model;
        let last = match self.step.at.operator {
            // Sums of another core, which of two cores one reads. Tables are forgotten when their word is cleared.
            Operator::Dispatch if at.region == Region::State => at.offset >= CORE_SUMS,
            _ if at.region == Region::TpState => false,
            Operator::Combine => true,
            // What has been copied out is put at the peer's.
            Operator::Dispatch if model.tp && at.region == Region::Window => {
                len == self.scene.setup.shape.payload_bytes() && !self.delivers
            }
            // The triple stands alone with its scale.
            Operator::Dispatch if model.choices.receive.is_direct() => !model.quantised || len == SCALE,
            Operator::Dispatch if model.choices.receive.keeps_rows() => false,
            // A block is read when its flag is cleared.
            Operator::Dispatch => model.blocks == 0 && model.quantised && len == SCALE,
        };
        if last {
            self.step.touch(at)?;
        }
        let at = self.virtually(at);
        self.note(SmtStep::Read, at);
        let row = self.row_at(self.step.at.rank, at, len);
        if let Some((number, _)) = row.filter(|_| last) {
            self.read(number);
        }
        Ok(row.map(|(_, bytes)| bytes))
    }

    /// Takes what a word covers that is about to be cleared: all of that has been read. Returns whether there is anything to clear.
    pub(super) fn take(&mut self, at: Place) -> Result<bool, Fault> {
        self.step.touch(at)?;
        if at.region == Region::Window {
            // The flag of a block: the block has been read.
            self.read_row(self.virtually(Place { offset: at.offset - block::PAYLOAD, ..at }));
        }
        if at.region == Region::TpState {
            // The peer's first row belongs to its slot.
            self.read_row(self.virtually(tp::first_row(at)));
        }
        let direct = self.direct_word(at);
        let explicit = self.scene.setup.model.memory == Landing::WeakExplicit;
        if direct.is_some() && explicit && self.step.at.nth == 0 {
            // There is nothing to clear in the first dispatch: a landing for each word is out of reach.
            return Ok(false);
        }
        if let Some(what @ (Direct::Counts | Direct::Grants)) = direct {
            // All cores have read the table.
            let (shape, source) = (self.scene.setup.shape, self.source_of(at));
            let word = what.word(shape, Partition::P0, source).offset;
            let table = what.entry(shape, Partition::P0, source, 0).offset;
            self.read_row(Place::state(self.stored(at).offset + table - word));
        }
        if direct.is_none() && at.region != Region::Window {
            self.note(SmtStep::Take, self.stored(at));
        }
        Ok(true)
    }

    /// Whether all has landed that this core issued, but for effects that quiet does not speak for.
    pub(super) fn is_quiet_but_for(&mut self, exempt: impl Fn(&Effect) -> bool) -> Result<bool, Fault> {
        let me = (self.step.at.rank, self.step.at.core);
        let landed = self.have_landed(|effect| effect.issued.from == me && !exempt(effect))?;
        if landed {
            self.note(SmtStep::Quiet, Place::state(0));
        }
        Ok(landed)
    }

    /// The word of this core for the barrier whose words have the parity of that at `at`.
    pub(super) fn own_word(&self, at: Place) -> Place {
        core_word(self.step.at.core, (at.offset / LINE % 2) as u32)
    }

    /// A word as this core observes it: its own stores at once, all else when it has landed.
    pub(super) fn read_word(&self, at: Place) -> u64 {
        let me = (self.step.at.rank, self.step.at.core);
        let newest =
            self.in_flight(at, |effect| effect.issued.kind == order::Kind::Store && effect.issued.from == me);
        if let Some(Value::Word(word)) = newest.map(|(_, effect)| effect.value) {
            return word;
        }
        // A publish, or another core's clear. The newest speaks for all: a second effect on a word is an error, unless the clears of
        // one core follow each other. Over explicit memory landings are moves of their own.
        if self.scene.setup.model.memory == Landing::Weak
            && let Some((i, late)) = self.in_flight(at, |_| true)
        {
            if late.issued.from == me && is_core_word(at) {
                self.step.found.blame(Violation::OwnNotLanded { rank: self.step.at.rank, at });
            }
            // It may have landed, and all that must have landed before it; or not yet.
            if self.step.search.tape.borrow_mut().choose(()) {
                let follows = |effect: &Issued, earlier: &Issued| self.scene.follows(effect, earlier);
                let landed = self.memory.borrow_mut().flight.see(self.scene.setup, i, true, follows);
                self.have_come(landed);
            }
        }
        self.scene.places.known(&(self.step.at.rank, at)).map_or(0, |place| self.memory.borrow().word(place))
    }

    /// The newest effect in flight on a word of its rank, and its number.
    fn in_flight(&self, at: Place, which: impl Fn(&Effect) -> bool) -> Option<(usize, Effect)> {
        let on = |effect: &Effect| {
            effect.issued.to == self.step.at.rank && effect.issued.at == at && which(effect)
        };
        let flight = &self.memory.borrow().flight;
        flight.iter().rposition(on).map(|i| (i, flight[i]))
    }

    /// A word that this core published, landed or not.
    pub(super) fn newest(&self, at: Place) -> u64 {
        let me = (self.step.at.rank, self.step.at.core);
        match self.in_flight(at, |effect| effect.issued.from == me).map(|(_, effect)| effect.value) {
            Some(Value::Word(word)) => word,
            _ => self
                .scene
                .places
                .known(&(self.step.at.rank, at))
                .map_or(0, |place| self.memory.borrow().word(place)),
        }
    }
}
