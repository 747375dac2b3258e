//! The fabric that a machine of A3 sees while it is explored.

use super::super::model::{Memory as Landing, Twin};
use super::super::protocol::{NOTHING, Step, VIRTUAL, spot};
use super::super::setup::Setup;
use super::super::violation::Violation;
use super::memory::{Effect, Memory, Scene, Value, is_flag};
use crate::order::Order;
use crate::smt::model::Step as SmtStep;
use core::cell::{Cell, RefCell};
use veriep_core::fabric::order::{self, Issued};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::layout::block;
use veriep_core::layout::data::{dispatch_record, partition_start};
use veriep_core::layout::state::{
    CORE_RECORD, CORE_SUMS, CORE_WORDS, DISPATCH_SELECTORS, DISPATCH_STATUS, Direct, PARTITION, Partition,
    STATUS_SLOT, combine_slot, combine_status, core_word, dispatch_status, selector,
};
use veriep_core::layout::tp;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::placement::Home;
use veriep_core::protocol::Operator;
use veriep_core::sync::flag;
use veriep_core::units::{CoreId, RankId, Token};

/// Bytes of a scale.
const SCALE: u64 = 4;
/// The bits of a core word that hold the number of its barrier. The others are sums of rows.
const EPOCH_BITS: u64 = 3 << 62;

/// Whether others than its own core may look at a word.
fn is_shared(at: Place) -> bool {
    !matches!(at.region, Region::State | Region::TpState)
        || at.offset >= VIRTUAL
        || !(DISPATCH_SELECTORS..CORE_WORDS).contains(&at.offset)
}

/// One core's view.
pub(super) struct View<'v, 'a> {
    pub(super) scene: &'v mut Scene<'a>,
    pub(super) memory: RefCell<&'v mut Memory>,
    pub(super) step: Step<(), ()>,
    /// Whether the core has put something since its last quiet.
    pub(super) sent: bool,
    /// Where it last saw the flag of a block.
    block_seen: Cell<Option<u64>>,
    /// Whether it copies bytes to an output.
    delivers: bool,
    /// Rows that it has read for the last time, by their places.
    pub(super) read_rows: RefCell<Vec<u32>>,
}

impl<'v, 'a> View<'v, 'a> {
    pub(super) fn new(
        scene: &'v mut Scene<'a>,
        memory: &'v mut Memory,
        sent: bool,
        step: Step<(), ()>,
    ) -> Self {
        let (block_seen, read_rows) = (Cell::default(), RefCell::default());
        Self { scene, memory: RefCell::new(memory), step, sent, block_seen, delivers: false, read_rows }
    }

    pub(super) fn twin(&self) -> Twin {
        self.scene.twin()
    }

    /// Notes that a row has been read for the last time.
    pub(super) fn read(&self, number: u32) {
        let mut read = self.read_rows.borrow_mut();
        if !read.contains(&number) {
            read.push(number);
            let (rank, at) = **self.scene.places.get(number);
            self.step
                .say_read(rank, || format!("reads the row at {} of rank {rank} for the last time", spot(at)));
        }
    }

    /// Notes that the row at `at` has been read for the last time, if a row starts there. `at` is one of the model's addresses.
    fn read_row(&self, at: Place) {
        self.scene.places.known(&(self.step.rank, at)).into_iter().for_each(|number| self.read(number));
    }

    /// The place in the model's own addresses: operator `n` of a kind uses partition `n % P`.
    pub(super) fn virtually(&self, at: Place) -> Place {
        let size = match (self.scene.partition_bytes(at), at.region) {
            (Some(size), _) => size,
            (None, Region::State) => return self.barrier_word(at),
            (None, Region::TpWindow) => {
                tp::partition_start(self.scene.setup.shape, self.ep_rank(), Partition::P1)
            }
            (None, _) => return at,
        };
        if at.offset / size != u64::from(self.step.nth % 2) {
            self.step.blame(Violation::WrongPartition { rank: self.step.rank, at });
        }
        self.in_partition(at, size, self.step.operator)
    }

    /// The same of a word that is stored. With direct placement a dispatch clears words of the partition of the one before.
    fn stored(&self, at: Place) -> Place {
        if self.direct_word(at).is_none() {
            return self.virtually(at);
        }
        let former = u64::from((self.step.nth + 1) % 2);
        if at.offset / PARTITION != former {
            self.step.blame(Violation::WrongPartition { rank: self.step.rank, at });
        }
        Place { offset: at.offset % PARTITION + former * VIRTUAL, ..at }
    }

    /// A place of a partitioned region, `size` a partition, in the partition that operator `nth` of `operator` has.
    pub(super) fn in_partition(&self, at: Place, size: u64, operator: Operator) -> Place {
        let partition = self.step.nth % self.scene.setup.model.partitions[operator as usize];
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
        RankId(self.step.rank.0 / self.scene.setup.model.tp_ranks())
    }

    /// The rank of the model that this one calls `to` there. In an elastic domain that is a physical one.
    fn member(&self, to: RankId, at: Place) -> Result<RankId, Fault> {
        let Setup { model, left, .. } = self.scene.setup;
        let tp = model.tp_ranks();
        if at.region.is_of_tp() {
            return Ok(RankId(self.ep_rank().0 * tp + to.0));
        }
        match left {
            Some(left) => left.new_id(to).ok_or(Fault::new(to, at, 0)),
            None => Ok(RankId(to.0 * tp + self.step.rank.0 % tp)),
        }
    }

    fn barrier_word(&self, at: Place) -> Place {
        let words = at.offset >= CORE_WORDS && self.twin() == Twin::OneBarrierWord;
        Place { offset: if words { at.offset & !15 } else { at.offset }, ..at }
    }

    fn is_core_word(&self, at: Place) -> bool {
        at.region == Region::State && (CORE_WORDS..VIRTUAL).contains(&at.offset)
    }

    pub(super) fn issue(&mut self, kind: order::Kind, to: RankId, at: Place, value: Value) {
        let at = if kind == order::Kind::Store { self.stored(at) } else { self.virtually(at) };
        let effect =
            Effect { issued: Issued { from: (self.step.rank, self.step.core), to, at, kind }, value };
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
        self.step.say_written(to, || match (effect.value, spot(at)) {
            _ if !strong => format!("issues a {effect}"),
            (Value::Row(_), at) => format!("puts a row at {at} of rank {to}"),
            (Value::Word(0), at) => format!("sees the flag at {at} of rank {to} and clears it"),
            (Value::Word(word), at) => format!("publishes {word:#x} at {at} of rank {to}"),
        });
        violation.into_iter().for_each(|violation| self.step.blame(violation));
    }

    /// Clears the combine flags of the partition that comes next.
    fn clean_next(&mut self) {
        let model = self.scene.setup.model;
        let next = u64::from((self.step.nth + 1) % model.partitions[Operator::Combine as usize]) * VIRTUAL;
        for slot in 0..model.tokens * model.k {
            let at = combine_status(Partition::P0, slot);
            let at = Place { offset: at.offset + next, ..at };
            let place = self.scene.places.number(&(self.step.rank, at));
            if self.memory.get_mut().word(place) != 0 {
                self.step.blame(Violation::LostFlag { rank: self.step.rank, at });
            }
            self.memory.get_mut().set_word(place, 0);
        }
        self.step.say(|| "clears the flags of its next combine".to_owned());
    }

    /// Whether such effects have landed, if the memory chooses.
    pub(super) fn have_landed(&mut self, which: impl Fn(&Effect) -> bool) -> Result<bool, Fault> {
        if !self.memory.get_mut().flight.iter().any(&which) {
            // What has landed stays landed: this need not be a move of its own.
            return Ok(true);
        }
        self.step.touch(Place::state(0))?;
        if self.scene.setup.model.memory == Landing::WeakExplicit || !self.step.tape.get_mut().choose(()) {
            return Ok(false);
        }
        // Asked by who is quiet, and by experts behind their results.
        self.force(|effect| which(effect).then(|| Order::by_quiet(effect.issued.kind)));
        Ok(true)
    }

    /// Lands the effects for which there is an `order`: a core or an agent depends on them.
    fn force(&self, mut order: impl FnMut(&Effect) -> Option<Order>) {
        let memory = &mut **self.memory.borrow_mut();
        for effect in core::mem::take(&mut memory.flight) {
            let Some(order) = order(&effect) else {
                memory.flight.push(effect);
                continue;
            };
            self.scene.setup.relies_on(order);
            self.noted(effect.landing());
            if let Some(place) = self.scene.places.known(&(effect.issued.to, effect.issued.at)) {
                match effect.value {
                    Value::Row(row) => memory.set_row(place, Some(row)),
                    Value::Word(word) => memory.set_word(place, word),
                }
            }
        }
    }
}

/// The dispatch slot whose `TokenFlag` lies at `at`, a place as machines of the seeds' protocol give it.
fn token_slot(at: Place) -> Option<u32> {
    let inside = at.offset % PARTITION;
    let is_status = at.region == Region::State && is_flag(at) && inside < DISPATCH_STATUS;
    (is_status && inside % STATUS_SLOT == 8).then_some((inside / STATUS_SLOT) as u32)
}

impl Fabric for View<'_, '_> {
    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.row_at_peer(rank, at, len)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::PEER_BYTES
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        // A table is put as early as may be, when it can do most harm: nobody reads it before its word, which is a move. In
        // runs both are one step.
        if at.region != Region::State || self.scene.setup.model.in_runs {
            self.step.touch(at)?;
        }
        self.sent = true;
        let to = self.member(to, at)?;
        let row = self.scene.rows.number(&[row, tail].concat());
        self.issue(order::Kind::Put, to, at, Value::Row(row));
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let to = self.member(to, at)?;
        if self.leaves_out(to, at) {
            return Ok(());
        }
        self.step.touch(at)?;
        let lost =
            self.twin() == Twin::PollsByStepping && !self.step.nth.is_multiple_of(2) && to == RankId(1);
        if lost && is_flag(at) {
            return Ok(());
        }
        self.issue(order::Kind::Publish, to, at, Value::Word(word));
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let (me, twin) = ((self.step.rank, self.step.core), self.twin());
        let waits = twin != Twin::NoQuiet && (self.sent || twin != Twin::QuietOnlyIfSent);
        let counts = |effect: &Effect| {
            let late = twin == Twin::LateClear && effect.issued.kind == order::Kind::Store;
            waits && effect.issued.from == me && !late
        };
        let landed = self.have_landed(counts)?;
        if landed {
            self.note(SmtStep::Quiet, Place::state(0));
        }
        self.sent &= !landed;
        Ok(landed)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if let Some(word) = self.bent_word(at)? {
            return Ok(word);
        }
        let mine = core_word(self.step.core, (at.offset / 8 % 2) as u32);
        let virtually = self.virtually(at);
        // Only this core writes its core words, so what it reads there depends on no other core.
        if is_shared(at) && at != mine {
            self.step.touch(at)?;
        }
        if self.is_core_word(at) && at != mine && self.skips_barrier_word(at) {
            // As if the other had arrived together with this core, without rows.
            return Ok(self.newest(self.virtually(mine)) & EPOCH_BITS);
        }
        let word = self.read_word(virtually);
        if at.region == Region::Window && self.refuses(at, word) {
            return Err(Fault::new(self.step.rank, at, 0));
        }
        if word != 0 {
            self.note_seen(at);
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        if !is_shared(at) {
            if self.twin() == Twin::CleansNext && at == selector(Operator::Combine, CoreId(0)) {
                self.step.touch(at)?;
                self.clean_next();
            }
            let place = self.scene.places.number(&(self.step.rank, at));
            self.memory.get_mut().set_word(place, word);
            return Ok(());
        }
        if self.leaves_out(self.step.rank, at) {
            return Ok(());
        }
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
        if direct.is_some() && explicit && self.step.nth == 0 {
            // There is nothing to clear in the first dispatch: a landing for each word is out of reach.
            return Ok(());
        }
        if let Some(what @ (Direct::Counts | Direct::Grants)) = direct {
            // All cores have read the table.
            let (shape, source) = (self.scene.setup.shape, self.source_of(at));
            let word = what.word(shape, Partition::P0, source).offset;
            let table = what.entry(shape, Partition::P0, source, 0).offset;
            self.read_row(Place::state(self.stored(at).offset + table - word));
        }
        let forgotten = match self.twin() {
            Twin::NoClear => true,
            Twin::NoCountClear => direct
                .map_or(at.region == Region::State && token_slot(at).is_none(), |word| {
                    word == Direct::Counts
                }),
            Twin::NoBlockClear => at.region == Region::Window,
            Twin::NoLastBlockClear if at.region == Region::Window => {
                let (shape, home) = (self.scene.setup.shape, Home { rank: self.step.rank, local_expert: 0 });
                let first = dispatch_record(shape, Partition::P0, home, RankId(0), 0);
                let last = block::flag(first, block::count(shape) - 1).offset;
                let (inside, pitch) =
                    (at.offset % partition_start(shape, Partition::P1), shape.record_pitch());
                (inside + pitch - last).is_multiple_of(pitch)
            }
            Twin::NoTokenClear => direct.map_or(token_slot(at).is_some(), |word| word == Direct::TokenFlags),
            Twin::NoGrantClear => direct == Some(Direct::Grants),
            Twin::NoSharedClear => {
                let Setup { model, shape, .. } = self.scene.setup;
                let last = dispatch_status(Partition::P0, shape.ep_world_size() - 1);
                let is_last = at.offset % PARTITION == last.offset;
                self.step.rank.0 < model.shared_ranks && is_last
            }
            Twin::NoTpClear if at.region == Region::TpState => {
                self.read_word(self.virtually(at)) == flag::status(0)
            }
            Twin::NoReadyClear => self.step.operator == Operator::Combine,
            _ => false,
        };
        if direct.is_none() && at.region != Region::Window {
            self.note(SmtStep::Take, self.stored(at));
        }
        if !forgotten {
            self.issue(order::Kind::Store, self.step.rank, at, Value::Word(word));
        }
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        // A row that lands on an unread one is an error, so when a part of a record is read does not matter;
        // when its last part is read, and the record forgotten, does.
        let model = self.scene.setup.model;
        let last = match self.step.operator {
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
        if let Some((number, bytes)) = self.row_at(self.step.rank, at, len) {
            if last {
                self.read(number);
            }
            return Ok(bytes);
        }
        if self.twin() == Twin::EarlyGrants && at.region == Region::State {
            return Ok(&[0; 4]);
        }
        if self.is_on_its_way(self.step.rank, at) {
            self.step.blame(Violation::NotLanded { rank: self.step.rank, at });
        }
        Ok(&NOTHING[..len as usize])
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        if self.twin() == Twin::EarlyGrants && self.step.expected().is_none() {
            self.step.written += bytes.len() as u32;
        } else {
            self.step.judge(at, bytes);
        }
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

    /// The word that a twin's core takes for the one at `at`, without a look at the memory; `None` for all others.
    fn bent_word(&self, at: Place) -> Result<Option<u64>, Fault> {
        if self.leaves_out(self.step.rank, at) {
            return Ok(Some(flag::ARRIVED));
        }
        if self.twin() == Twin::MaskedWait && self.is_last_of_masked(at) {
            self.step.touch(at)?;
            return Ok(Some(flag::ARRIVED));
        }
        let is_dispatch = at.region == Region::State && at.offset % PARTITION < DISPATCH_STATUS;
        if self.twin() == Twin::TakesBack && is_dispatch && is_flag(at) {
            let source =
                (at.offset % PARTITION / STATUS_SLOT) as u32 % self.scene.setup.shape.ep_world_size();
            if source != self.step.rank.0 && self.step.withdrawn >> source & 1 == 1 {
                self.step.touch(at)?;
                return Ok(Some(0));
            }
        }
        if self.twin() == Twin::EarlyGrants && self.direct_word(at) == Some(Direct::Counts) {
            self.step.touch(at)?;
            let source = self.source_of(at);
            if source > self.step.rank && self.step.at[source.index()] < self.step.op {
                return Ok(Some(flag::ARRIVED));
            }
        }
        Ok(None)
    }

    /// Whether a twin's core does not wait for the core whose word of the barrier is at `at`.
    fn skips_barrier_word(&self, at: Place) -> bool {
        match self.twin() {
            Twin::NoBarrier => true,
            Twin::NoPullBarrier => self.step.operator == Operator::Combine,
            Twin::BarrierOfLowerCores => {
                let other = ((at.offset - CORE_WORDS) / CORE_RECORD) as u32;
                other > self.step.core.0
            }
            _ => false,
        }
    }

    /// Whether the flag there is that of the last active expert of a token that has a masked one.
    fn is_last_of_masked(&self, at: Place) -> bool {
        let (shape, inputs) =
            (self.scene.setup.shape, self.step.round.tensors[self.step.rank.index()].inputs());
        let of = |token| {
            let ks = 0..shape.k();
            let active = ks.clone().rfind(|&k| inputs.pair_is_active(shape, token, k));
            let slot = active.map(|k| combine_status(Partition::P0, combine_slot(shape, token, k)));
            let masked = ks.into_iter().any(|k| !inputs.pair_is_active(shape, token, k));
            masked && slot.is_some_and(|slot| slot.offset == at.offset % PARTITION)
        };
        let is_status = at.region == Region::State && is_flag(at) && self.step.operator == Operator::Combine;
        is_status && (0..shape.bs(self.step.rank)).map(Token).any(of)
    }

    /// The rank whose word or table of direct placement lies there.
    fn source_of(&self, at: Place) -> RankId {
        RankId((at.offset % PARTITION / Direct::pitch(self.scene.setup.shape)) as u32)
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
        if self.twin() != Twin::NoFlagOfNothing || self.direct_word(at).is_some() {
            return false;
        }
        let Some((slot, all)) = token_slot(at).zip(self.step.expected()) else { return false };
        let sums = all[to.index()].output(Tensor::EpRecvCounts);
        let sum = |slot: u32| sums.chunks_exact(4).nth(slot as usize);
        slot.checked_sub(1).map_or(Some(&[0; 4][..]), sum) == sum(slot)
    }

    /// A word as this core observes it: its own stores at once, all else when it has landed.
    fn read_word(&self, at: Place) -> u64 {
        let me = (self.step.rank, self.step.core);
        let newest =
            self.in_flight(at, |effect| effect.issued.kind == order::Kind::Store && effect.issued.from == me);
        if let Some(Value::Word(word)) = newest.map(|effect| effect.value) {
            return word;
        }
        // A publish, or another core's clear.
        if self.scene.setup.model.memory == Landing::Weak
            && let Some(late) = self.in_flight(at, |_| true)
        {
            if late.issued.from == me && self.is_core_word(at) {
                self.step.blame(Violation::OwnNotLanded { rank: self.step.rank, at });
            }
            // It may have landed, and all that must have landed before it; or not yet.
            let relaxed = self.twin() == Twin::RelaxedPublish;
            let mut before = true;
            if self.step.tape.borrow_mut().choose(()) {
                self.force(|effect| {
                    before &= *effect != late;
                    let behind = before && !relaxed && late.issued.must_follow(&effect.issued);
                    // What it must follow is a put, or the same core's earlier store to the word that is seen.
                    let is_put = effect.issued.kind == order::Kind::Put;
                    let order = if is_put { Order::PutPublish } else { Order::Hearsay };
                    (*effect == late || behind).then_some(order)
                });
            }
        }
        self.scene.places.known(&(self.step.rank, at)).map_or(0, |place| self.memory.borrow().word(place))
    }

    /// The newest effect on a word of the own rank that is in flight.
    fn in_flight(&self, at: Place, which: impl Fn(&Effect) -> bool) -> Option<Effect> {
        let on =
            |effect: &&Effect| effect.issued.to == self.step.rank && effect.issued.at == at && which(effect);
        self.memory.borrow().flight.iter().rev().find(on).copied()
    }

    /// A word that this core published, landed or not.
    fn newest(&self, at: Place) -> u64 {
        let me = (self.step.rank, self.step.core);
        match self.in_flight(at, |effect| effect.issued.from == me).map(|effect| effect.value) {
            Some(Value::Word(word)) => word,
            _ => self
                .scene
                .places
                .known(&(self.step.rank, at))
                .map_or(0, |place| self.memory.borrow().word(place)),
        }
    }
}
