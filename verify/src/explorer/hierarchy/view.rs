//! The fabric that a machine sees while it is explored.

use super::super::model::Memory as Landing;
use super::super::protocol::NOTHING;
use super::super::step::Step;
use super::super::violation::Violation;
use super::Own;
use super::memory::{Area, Effect, Heard, Memory, Part, Scene, Spot, Value};
use core::cell::{Cell, RefCell};
use veriep_core::fabric::order::{self, Issued};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::layout::{a2_message, relay};
use veriep_core::place::{Place, Region};
use veriep_core::units::{CoreId, RankId};

/// The machines' epochs are at the far end of what a flag has room for, where the model's operators are counted from 0:
/// even, so that partitions are the same.
const EPOCHS: u64 = (1 << 48) - 16;

/// A machine's epoch of an operator.
pub(super) fn own_epoch(op: u32) -> u64 {
    EPOCHS + 1 + u64::from(op % 2)
}

/// A word of the core's rank, and whether it is the last one of a record; or its quiet.
pub(in super::super) type Query = (Spot, bool);

/// One core's view: the memory as the contract has it. What is broken on purpose stands around it, in `bent.rs`.
pub(super) struct View<'v, 'a> {
    pub(super) scene: &'v mut Scene<'a>,
    pub(super) memory: RefCell<&'v mut Memory>,
    pub(super) step: Step<Query, Effect>,
    epoch: Cell<u32>,
    heard: Cell<Heard>,
}

impl<'v, 'a> View<'v, 'a> {
    pub(super) fn new(
        scene: &'v mut Scene<'a>,
        memory: &'v mut Memory,
        own: &Own,
        step: Step<Query, Effect>,
    ) -> Self {
        let (epoch, heard) = (Cell::new(own.epoch), Cell::new(own.heard));
        Self { scene, memory: RefCell::new(memory), step, epoch, heard }
    }

    pub(super) const fn own(&self) -> Own {
        Own { epoch: self.epoch.get(), heard: self.heard.get() }
    }

    fn me(&self) -> (RankId, CoreId) {
        (self.step.at.rank, self.step.at.core)
    }

    pub(super) fn strong(&self) -> bool {
        self.scene.setup.model.memory == Landing::Strong
    }

    pub(super) fn fault(&self, at: Place, len: usize) -> Fault {
        Fault::new(self.step.at.rank, at, len as u64)
    }

    /// The machine's epoch of this operator.
    pub(super) fn own_epoch(&self) -> u64 {
        own_epoch(self.step.at.op)
    }

    /// An operator as this machine counts it.
    fn to_machine(&self, op: u32) -> u64 {
        self.own_epoch().wrapping_add_signed(i64::from(op) - i64::from(self.step.at.op))
    }

    /// The operator that a machine calls so.
    pub(super) fn of_machine(&self, epoch: u64) -> u32 {
        self.step.at.op.wrapping_add_signed(epoch.wrapping_sub(self.own_epoch()) as i32)
    }

    pub(super) fn spot(&self, at: Place, len: usize) -> Result<(Spot, u64), Fault> {
        let spot = self.scene.spot(at, self.step.at.op);
        if spot.is_none() && matches!(at.region, Region::Window | Region::WindowOut) {
            self.step.found.blame(Violation::WrongPartition { rank: self.step.at.rank, at });
        }
        spot.ok_or(self.fault(at, len))
    }

    /// What others do decides what comes now. `open`: the ranks that can still change it before this core moves, as bits.
    pub(super) fn touch(&self, at: Place, open: u32) -> Result<(), Fault> {
        self.step.search.open.set(self.step.search.open.get() | open);
        self.step.touch(at)
    }

    /// A word at a spot as this core sees it now, or (a part of) a record: what it is worth in this operator.
    pub(super) fn look(&self, at: Place, spot: Spot, part: Part) -> Result<Option<Value>, Fault> {
        let late = self.memory.borrow().late(self.step.at.rank, spot);
        let landed = self.memory.borrow().cell(self.step.at.rank, spot).copied();
        let seen = part != Part::Whole && self.memory.borrow().was_seen(self.step.at.rank, spot, part);
        // A word that counts goes on when its writer does, and a core that is slow sees that.
        let counts = matches!(spot.area, Area::Entered | Area::RowsDone);
        let settled = landed.filter(|value| value.op >= self.step.at.op).and_then(|value| {
            match &self.step.search.ahead {
                Some(given) if counts => {
                    let mut supposed = self.step.search.supposed.borrow_mut();
                    let ahead = given.get(supposed.len()).copied().unwrap_or(0);
                    supposed.push(ahead);
                    Some(Value { op: value.op + ahead, ..value })
                }
                _ => (late.is_none() && !counts).then_some(value),
            }
        });
        let value = match late {
            _ if settled.is_some() => settled,
            Some(i) => {
                let effect = self.memory.borrow().flight[i];
                let value = effect.value;
                if !seen {
                    self.touch(at, 0)?;
                }
                if seen || self.step.search.tape.borrow_mut().choose((spot, part == Part::End)) {
                    if !seen {
                        let landed = |effect: &Effect| self.note_landed(effect);
                        self.memory.borrow_mut().see(self.scene, i, part, landed);
                        if part == Part::Front {
                            self.note_front(&effect);
                        }
                        self.step.account.say_read(self.step.at.rank, || {
                            format!("sees {}", self.name(self.step.at.rank, spot, value, part))
                        });
                    }
                    Some(value)
                } else {
                    landed
                }
            }
            None => {
                self.touch(at, self.scene.writers(self.step.at.rank, spot))?;
                landed
            }
        };
        if let Some(value) = value.filter(|value| value.op >= self.step.at.op) {
            let mut heard = self.heard.get();
            for (mine, theirs) in heard.iter_mut().zip(value.heard) {
                *mine = (*mine).max(theirs.min(self.step.at.op));
            }
            self.heard.set(heard);
        }
        Ok(value)
    }

    fn issue(
        &mut self,
        kind: order::Kind,
        to: RankId,
        at: Place,
        (epoch, number): (u64, u32),
        body: Option<&[u8]>,
    ) -> Result<(), Fault> {
        let (spot, _) = self.spot(at, 8)?;
        let op = if spot.area == Area::Row { self.step.at.op } else { self.of_machine(epoch) };
        let body = body.map(|bytes| self.scene.bodies.number(&bytes.to_vec()));
        self.effect(kind, to, at, (op, number, body))
    }

    pub(super) fn effect(
        &mut self,
        kind: order::Kind,
        to: RankId,
        at: Place,
        (op, number, body): (u32, u32, Option<u32>),
    ) -> Result<(), Fault> {
        let (spot, _) = self.spot(at, 8)?;
        let far = matches!(kind, order::Kind::Message(_));
        let server = |rank| self.scene.setup.shape.server_of(rank).0;
        if far == (server(to) == server(self.step.at.rank)) {
            return Err(Fault::new(to, at, 8));
        }
        if self.strong() {
            self.touch(at, 0)?;
        }
        let mut heard = self.heard.get();
        heard[self.step.at.rank.index()] = self.step.at.op;
        let value = Value { op, number, body, heard };
        let issued = Issued { from: self.me(), to, at, kind };
        let effect = Effect { issued, spot, value, seen: [false; 2] };
        self.step.search.issued.push(effect);
        self.step.account.say_written(to, || {
            format!("{} {}", verb(spot.area, kind), self.name(to, spot, value, Part::Whole))
        });
        let at = self.step.at.operators[to.index()];
        self.note_issued(&effect);
        if self.strong() {
            self.note_landed(&effect);
        }
        let violation = self.memory.get_mut().issue(self.scene, effect, &heard, at);
        // The theorem's model says by itself whether a core still reads there, where it is asked.
        let is_asked =
            |it: &Violation| self.scene.setup.model.refined && matches!(it, Violation::Unheard { .. });
        violation
            .filter(|it| !is_asked(it))
            .into_iter()
            .for_each(|violation| self.step.found.blame(violation));
        Ok(())
    }

    /// What was written in this operator to a spot at which nothing may be in flight.
    pub(super) fn landed(&self, at: Place, spot: Spot) -> Option<Value> {
        let memory = self.memory.borrow();
        let value = memory.cell(self.step.at.rank, spot).filter(|value| value.op == self.step.at.op).copied();
        if value.is_none() || memory.late(self.step.at.rank, spot).is_some() {
            self.step.found.blame(Violation::NotLanded { rank: self.step.at.rank, at });
        }
        value
    }

    /// What a machine may read there: it has landed.
    pub(super) fn body(&self, at: Place, len: u64) -> Result<Option<&[u8]>, Fault> {
        let (spot, inside) = self.spot(at, len as usize)?;
        self.note_read(spot);
        let body = self.landed(at, spot).and_then(|value| value.body);
        // The body of a record begins behind its front flag.
        let start = if spot.area == Area::Record { inside.wrapping_sub(8) } else { inside } as usize;
        let bytes = body.and_then(|body| self.scene.bodies.get(body).get(start..)?.get(..len as usize));
        if bytes.is_none() {
            self.step.found.blame(Violation::NotLanded { rank: self.step.at.rank, at });
        }
        Ok(bytes)
    }

    /// A message, or what is gathered for one.
    fn message(&mut self, kind: order::Kind, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let (first, rest) = message.split_first_chunk().ok_or(self.fault(at, message.len()))?;
        let first = u64::from_le_bytes(*first);
        if rest.is_empty() {
            return self.issue(kind, to, at, relay::unmark(first), None);
        }
        self.issue(kind, to, at, (first, 0), Some(rest))
    }

    pub(super) fn next_message(&mut self) -> order::Kind {
        let numbers = self.memory.get_mut().flight.iter().filter_map(|effect| match effect.issued.kind {
            order::Kind::Message(number) => Some(number),
            _ => None,
        });
        order::Kind::Message(numbers.max().unwrap_or(0) + 1)
    }

    /// The front flag of a record, as (a part of) the one at `spot` has come.
    pub(super) fn front(&self, at: Place, spot: Spot, part: Part) -> Result<u64, Fault> {
        Ok(self.look(at, spot, part)?.map_or(0, |value| self.to_machine(value.op)))
    }
}

fn verb(area: Area, kind: order::Kind) -> &'static str {
    match (area, kind) {
        (_, order::Kind::Message(_)) => "sends",
        (_, order::Kind::Put) => "puts",
        (_, order::Kind::Store) => "writes",
        _ => "publishes",
    }
}

impl Fabric for View<'_, '_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::SEND
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.issue(order::Kind::Put, to, at, (0, 0), Some(&[row, tail].concat()))
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if at == a2_message::doorbell() {
            return self.ring(at);
        }
        let (spot, _) = self.spot(at, 8)?;
        let value = match spot.area {
            Area::Entered | Area::RowsDone => (word, 0),
            Area::Barrier if word != self.barrier_word(self.step.at.op) => return Err(self.fault(at, 8)),
            Area::Barrier => (self.own_epoch(), 0),
            _ => relay::unmark(word),
        };
        self.issue(order::Kind::Publish, to, at, value, None)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        let kind = self.next_message();
        self.message(kind, to, at, message)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let me = self.me();
        let targets = self.memory.get_mut().targets(me);
        if targets == 0 {
            return Ok(true);
        }
        // A core that could still miss what lands now must be tried, too.
        self.touch(Place::window(0), targets)?;
        let spot = Spot { area: Area::Row, partition: 0, number: u16::MAX };
        let quiet = self.step.search.tape.get_mut().choose((spot, false));
        if quiet {
            self.memory.borrow_mut().quiet(self.scene, me, |effect| self.note_landed(effect));
            self.step.account.say(|| "is quiet".to_owned());
        }
        Ok(quiet)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if at == relay::epoch(self.step.at.core) {
            return Ok(self.to_machine(self.epoch.get()).wrapping_sub(1));
        }
        if at == a2_message::doorbell() {
            return Ok(self.step.at.op.into());
        }
        let (spot, inside) = self.spot(at, 8)?;
        match (spot.area, inside) {
            (Area::Barrier, _) => return self.barrier(at, spot),
            (Area::Record, 0) => return self.front(at, spot, Part::Front),
            (Area::Record, _) => {
                let word = self.body(at, 8)?.and_then(|bytes| bytes.first_chunk());
                return Ok(word.map_or(0, |word| u64::from_le_bytes(*word)));
            }
            _ => {}
        }
        let value = self.look(at, spot, Part::Whole)?;
        Ok(value.map_or(0, |value| match spot.area {
            Area::Entered | Area::RowsDone => self.to_machine(value.op),
            _ => relay::mark(self.to_machine(value.op), value.number),
        }))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        if at.region == Region::State {
            let mark = (self.own_epoch(), 0);
            return self.issue(order::Kind::Store, self.step.at.rank, at, mark, Some(&word.to_le_bytes()));
        }
        if at != relay::epoch(self.step.at.core) {
            return Err(self.fault(at, 8));
        }
        // Private: it lands before its core looks again.
        self.epoch.set(self.of_machine(word) + 1);
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        Ok(self.body(at, len)?.unwrap_or(&NOTHING[..len as usize]))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        if at.region == Region::WindowOut {
            return self.message(order::Kind::Store, self.step.at.rank, at, bytes);
        }
        self.step.judge(at, bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.step.judge(output, &bytes);
        Ok(())
    }
}

impl View<'_, '_> {
    fn name(&self, rank: RankId, spot: Spot, value: Value, part: Part) -> String {
        let shape = self.scene.setup.shape;
        let number = u32::from(spot.number);
        let (own, _) = shape.server_of(rank);
        let stream = |server| format!("from rank {} to rank {rank}", shape.relay(rank, server));
        match spot.area {
            Area::Entered => {
                let (near, operator) = (shape.rank_on(own, number), self.scene.setup.named(value.op));
                format!("the word at rank {rank} that rank {near} has entered {operator}")
            }
            Area::RowsDone => {
                let near = shape.rank_on(own, number / shape.aiv_num());
                let operator = self.scene.setup.named(value.op);
                format!("the word at rank {rank} that rank {near} has no more rows for it in {operator}")
            }
            Area::End => format!("the end flag {}, behind {} records", stream(number), value.number),
            Area::Count => {
                let (expert, source) = (number / shape.ep_world_size(), number % shape.ep_world_size());
                let rows = value.number;
                format!("the count at rank {rank}: {rows} from rank {source} for its expert {expert}")
            }
            Area::Record => {
                let record = number % shape.bs_max();
                let part = match part {
                    Part::Front => "the front flag of ",
                    Part::End => "the last word of ",
                    Part::Whole => "",
                };
                format!("{part}record {record} {}", stream(number / shape.bs_max()))
            }
            Area::Flag => format!("the flag of near slot {number} of rank {rank}"),
            Area::Row => format!("a row into near slot {number} of rank {rank}"),
            Area::Out => {
                let (server, number) = (number / (shape.bs_max() + 1), number % (shape.bs_max() + 1));
                let what = number
                    .checked_sub(1)
                    .map_or("the end flag".to_owned(), |record| format!("record {record}"));
                format!("{what} for rank {}, into its window out", shape.relay(rank, server))
            }
            Area::Task => format!("a word of its task for rank {}", number / a2_message::Task::WORDS),
            Area::Barrier => format!("the barrier word of core {}", number / 2),
        }
    }
}
