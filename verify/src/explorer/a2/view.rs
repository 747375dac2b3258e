//! The view that a core and an agent have of the memory of an A2 group.

use super::super::model::Memory as Landing;
use super::super::state::CLEARS;
use super::super::step::Step;
use super::super::violation::Violation;
use super::memory::{Area, Flying, Late, Memory, Scene, Spot, in_use};
use crate::order::Order;
use core::cell::RefCell;
use core::ops::Range;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::layout::a2_message::{DOORBELL, MESSAGE_SLOT, TASK};
use veriep_core::layout::a2_window::{FLAG, FLAG1, buffer_chosen, tail_flag};
use veriep_core::place::{Place, Region};
use veriep_core::protocol::Operator;
use veriep_core::units::{CoreId, RankId};

/// The view of one core, or of an agent, which has that of core 0: the memory as the contract has it. What is broken on purpose
/// stands around a core's view, in `bent.rs`.
pub(super) struct View<'v, 'a> {
    pub(super) scene: &'v Scene<'a>,
    pub(super) memory: &'v mut Memory,
    pub(super) rank: usize,
    /// A step of the core, or of the agent as if it were one.
    pub(super) step: Step<(), ()>,
    /// Barrier words, by core and parity, that were seen.
    pub(super) landed: RefCell<Vec<(usize, usize)>>,
}

impl View<'_, '_> {
    pub(super) fn me(&self) -> RankId {
        self.step.at.rank
    }

    /// The number of a core of this rank in the group.
    pub(super) fn number(&self, core: CoreId) -> usize {
        self.rank * self.scene.setup.model.cores as usize + core.0 as usize
    }

    /// Before a window that came is read: others can see it, unless it has come whole, and stays as it is until this
    /// rank ends its operator.
    pub(super) fn look(&self, at: Place, spot: Spot) -> Result<(), Fault> {
        let source = self.peer_of(spot);
        let whole =
            source == self.rank || self.memory.is_complete(self.scene, source, self.rank, self.step.at.op);
        if whole && !self.scene.is_explicit() { Ok(()) } else { self.step.touch(at) }
    }

    pub(super) fn peer_of(&self, spot: Spot) -> usize {
        spot.1 % self.scene.setup.model.ranks as usize
    }

    fn told(&self, at: Place) -> Place {
        let size = match at.region {
            Region::State => MESSAGE_SLOT,
            _ => self.scene.setup.shape.window_bytes() / 2,
        };
        self.scene.told(at, size, self.step.at.op)
    }

    /// Which of the virtual halves a place is in, and where. The machines' half must be that of the operator.
    pub(super) fn spot(&self, at: Place, len: usize) -> Result<(Spot, usize), Fault> {
        let shape = self.scene.setup.shape;
        let (area, size, each) = match at.region {
            Region::Window => (Area::In, shape.window_bytes() / 2, shape.rank_window()),
            Region::WindowOut => (Area::Out, shape.window_bytes() / 2, shape.rank_window()),
            _ => (Area::Task, MESSAGE_SLOT, TASK),
        };
        if at.offset / size != u64::from(self.step.at.op % 2) {
            self.step.found.blame(Violation::WrongPartition { rank: self.me(), at });
        }
        let (peer, start) = ((at.offset % size / each) as usize, (at.offset % size % each) as usize);
        let spot = self.scene.spot(area, self.rank, self.step.at.op, peer);
        let fits =
            peer < self.scene.setup.model.ranks as usize && start + len <= self.memory.bytes(spot).len();
        if fits { Ok((spot, start)) } else { Err(Fault::new(self.me(), at, len as u64)) }
    }

    fn issue(&mut self, at: Place, bytes: &[u8], store: bool) -> Result<(), Fault> {
        let (spot, start) = self.spot(at, bytes.len())?;
        let range = start..start + bytes.len();
        if !self.scene.is_explicit()
            && let Some(flying) = self.memory.reads(self.scene, spot, &range)
        {
            self.step.found.blame(in_use(self.scene, self.step.at.op, flying));
        }
        if !self.scene.is_explicit()
            && let Some(flying) = self.memory.unposted(self.scene, spot)
        {
            let [operator, unread] = [self.step.at.op, flying.op].map(|op| self.scene.setup.named(op));
            self.step.found.blame(Violation::TaskInUse { rank: self.me(), operator, unread });
        }
        if self.scene.setup.model.memory == Landing::Strong {
            self.step.touch(at)?;
            self.memory.set(spot, start, bytes);
        } else {
            let late = Late { spot, start, bytes: bytes.into(), store, op: self.step.at.op };
            let core = self.number(self.step.at.core);
            self.memory.issue(self.scene, core, late);
        }
        Ok(())
    }

    /// What is read may not have landed.
    fn must_have_landed(&self, at: Place, spot: Spot, range: &Range<usize>) {
        let weak = self.scene.setup.model.memory == Landing::Weak;
        if weak && self.memory.late_at(spot, range).is_some() {
            self.step.found.blame(Violation::NotLanded { rank: self.me(), at: self.told(at) });
        }
    }

    /// Rows that `source` owes this rank in this operator, if all have chosen.
    pub(super) fn rows_from(&self, source: usize) -> Option<u32> {
        let (sender, receiver) = match self.step.at.operator {
            Operator::Dispatch => (source, self.rank),
            Operator::Combine => (self.rank, source),
        };
        let choice = (*self.step.at.round.choices.get(sender)?)?;
        Some(u32::from(choice == Some(receiver as i32)))
    }

    /// The place of the last flag of what `source` sends.
    pub(super) fn tail(&self, source: usize) -> Option<usize> {
        let rows = self.rows_from(source)?;
        Some(tail_flag(self.scene.setup.shape, self.step.at.operator, rows) as usize)
    }

    pub(super) fn is_awaited(&self, source: usize, start: usize) -> bool {
        let counts = self.step.at.operator == Operator::Dispatch && start == FLAG1 as usize;
        counts || self.tail(source) == Some(start)
    }

    /// A word of a window. If that is to be `is_certain`, it is an error that it has perhaps not landed.
    pub(super) fn word(&self, at: Place, is_certain: bool) -> Result<u64, Fault> {
        let (spot, start) = self.spot(at, 8)?;
        self.look(at, spot)?;
        let source = self.peer_of(spot);
        let range = start..start + 8;
        let late = self.memory.late_at(spot, &range);
        let own = late.filter(|(core, late)| {
            *core == self.number(self.step.at.core) && late.store && late.start == start
        });
        let bytes = match own {
            Some((_, late)) => &late.bytes[..],
            None => {
                if is_certain {
                    self.must_have_landed(at, spot, &range);
                }
                &self.memory.bytes(spot)[range]
            }
        };
        let word = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if word as u32 == FLAG {
            self.say_flag(source, start);
        }
        self.note_observed(source, start, word);
        Ok(word)
    }

    fn say_flag(&self, source: usize, start: usize) {
        self.step.account.say_read(self.step.at.rank, || {
            let shape = self.scene.setup.shape;
            let most = shape.rows_to_peer_max(RankId(0));
            let rows =
                (0..=most).find(|&rows| tail_flag(shape, self.step.at.operator, rows) as usize == start);
            match (self.step.at.operator, rows) {
                (Operator::Dispatch, None) => format!("sees FLAG1 of rank {source}"),
                (Operator::Dispatch, Some(0)) => format!("sees FLAG2 of rank {source} behind no row"),
                (Operator::Dispatch, Some(rows)) => format!("sees FLAG2 of rank {source} behind row {rows}"),
                (Operator::Combine, Some(0)) => format!("sees FLAG of rank {source} behind no row"),
                (Operator::Combine, Some(rows)) => format!("sees FLAG of rank {source} behind row {rows}"),
                (Operator::Combine, None) => "sees a flag where it looks for none".to_owned(),
            }
        });
    }

    /// A flag that was looked at to be cleared was not waited for.
    pub(super) fn say_clear(&self) {
        self.step.account.unsay();
        self.step.account.say(|| CLEARS.to_owned());
    }
}

impl Fabric for View<'_, '_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        if to != self.me() || at.region != Region::Window {
            return Err(Fault::new(to, at, row.len() as u64));
        }
        self.issue(at, &[row, tail].concat(), false)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if to != self.me() || at.region != Region::State {
            return Err(Fault::new(to, at, 8));
        }
        if at == Place::state(DOORBELL) {
            // No move of its own, and no landing: each is an agent that has not looked yet.
            self.memory.doorbell[self.rank] = word;
            self.step.account.say_written(self.step.at.rank, || "rings".to_owned());
            return Ok(());
        }
        self.step.touch(at)?;
        let (core, parity) = self.core_word_at(at)?;
        if core != self.step.at.core {
            return Err(Fault::new(to, at, 8));
        }
        let number = self.number(core);
        let own = &mut self.memory.core_words[number][parity];
        own.land();
        own.late = Some(word);
        if self.scene.setup.model.memory == Landing::Strong {
            own.land();
        }
        self.step.account.say(|| "comes to the core barrier".to_owned());
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let first = self.step.at.core.0 == 0;
        let core = self.number(self.step.at.core);
        let under_way = !self.memory.late[core].is_empty()
            || self.memory.core_words[core].iter().any(|word| word.late.is_some())
            || first && self.memory.chosen[self.rank].late.is_some();
        if under_way {
            self.step.touch(Place::state(0))?;
            if self.scene.is_explicit() || !self.step.search.tape.get_mut().choose(()) {
                return Ok(false);
            }
            self.memory.land_all(self.scene, self.rank, core, first);
            self.step.account.say(|| "all that it wrote and cleared has landed".to_owned());
        }
        self.note_quiet();
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if at == buffer_chosen(self.scene.setup.shape) {
            return self.buffer_chosen(at);
        }
        if at == Place::state(DOORBELL) {
            return Ok(self.memory.doorbell[self.rank]);
        }
        if at.region == Region::State {
            return self.core_word(at);
        }
        self.word(at, true)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        if at == buffer_chosen(self.scene.setup.shape) {
            self.flip(word);
            return Ok(());
        }
        if at.region == Region::Window {
            self.say_clear();
        }
        self.issue(at, &word.to_le_bytes(), true)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let (spot, start) = self.spot(at, len as usize)?;
        self.look(at, spot)?;
        let range = start..start + len as usize;
        self.must_have_landed(at, spot, &range);
        if self.peer_of(spot) != self.rank {
            self.scene.setup.relies_on(Order::TransferInOrder);
        }
        self.note_read(self.peer_of(spot), start);
        self.step
            .account
            .say_read(self.step.at.rank, || format!("reads a row of rank {}", self.peer_of(spot)));
        Ok(&self.memory.bytes(spot)[range])
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        if at.region == Region::WindowOut {
            return self.issue(at, bytes, false);
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

impl Nic for View<'_, '_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if at == Place::state(DOORBELL) {
            return Ok(self.memory.doorbell[self.rank]);
        }
        let (spot, start) = self.spot(at, 8)?;
        self.must_have_landed(at, spot, &(start..start + 8));
        self.scene.setup.relies_on(Order::TransferDoorbell);
        let word = self.memory.bytes(spot).get(start..).and_then(|bytes| bytes.first_chunk());
        Ok(word.map_or(0, |word| u64::from_le_bytes(*word)))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let len = len as usize;
        // Both ends must be whole windows of the half that is served.
        let (source, start) = self.spot(from, len)?;
        let own = self.scene.spot(Area::Out, self.rank, self.step.at.op, to.index());
        let (target, there) = self.spot(at, len)?;
        let mine = self.scene.spot(Area::In, self.rank, self.step.at.op, self.rank);
        if (source, start) != (own, 0) || (target, there) != (mine, 0) {
            return Err(Fault::new(to, at, len as u64));
        }
        let flying = Flying { from: self.rank, to: to.index(), op: self.step.at.op, len, done: 0 };
        self.memory.flying.push(flying);
        self.memory.posted[self.rank] += 1;
        self.memory
            .forget_task(self.scene, self.scene.spot(Area::Task, self.rank, self.step.at.op, to.index()));
        Ok(Post::Posted)
    }
}
