//! How a core and an agent see the memory of an A2 group.

use super::super::model::{Kind, Memory as Landing, Twin};
use super::super::oracle::Expected;
use super::super::tape::Tape;
use super::super::violation::Violation;
use super::memory::{Area, Flying, Late, Memory, Scene, Spot, in_use};
use core::cell::{Cell, RefCell};
use core::ops::Range;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::layout::a2_message::{DOORBELL, MESSAGE_SLOT, TASK};
use kernel_core::layout::a2_window::{FLAG, FLAG1, buffer_chosen, tail_flag};
use kernel_core::layout::state::Kind as Operator;
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::units::{CoreId, RankId};
use std::rc::Rc;

/// What is told once, however many there are.
pub(super) const CLEARS: &str = "clears its flags";

/// The view of one core, or of an agent.
pub(super) struct View<'a> {
    pub(super) scene: &'a Scene<'a>,
    pub(super) memory: &'a mut Memory,
    pub(super) rank: usize,
    /// The core in its rank; the agent has the view of core 0.
    pub(super) core: CoreId,
    /// The operator that the core runs or the agent serves.
    pub(super) op: u32,
    pub(super) kind: Kind,
    /// What this rank must write, and where all send; `None` while some rank has not chosen.
    pub(super) expected: Option<Rc<Vec<Expected>>>,
    pub(super) choices: Vec<Option<Option<i32>>>,
    /// Whether shared accesses are refused.
    pub(super) peek: bool,
    pub(super) touched: Cell<bool>,
    pub(super) tape: RefCell<Tape<()>>,
    pub(super) written: u32,
    pub(super) violation: RefCell<Option<Violation>>,
    /// Barrier words, by core and parity, that were seen.
    pub(super) landed: RefCell<Vec<(usize, usize)>>,
    /// What the step did, in words, if it is to be told.
    pub(super) story: Option<RefCell<Vec<String>>>,
}

impl View<'_> {
    pub(super) fn me(&self) -> RankId {
        RankId(self.rank as u32)
    }

    pub(super) fn twin(&self) -> Twin {
        self.scene.setup.model.twin
    }

    /// The number of a core of this rank in the group.
    pub(super) fn number(&self, core: CoreId) -> usize {
        self.rank * self.scene.setup.model.cores as usize + core.0 as usize
    }

    pub(super) fn blame(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            story.borrow_mut().push(what());
        }
    }

    pub(super) fn touch(&self, at: Place) -> Result<(), Fault> {
        self.touched.set(true);
        if self.peek { Err(Fault::new(self.me(), at, 0)) } else { Ok(()) }
    }

    /// Before a window that came is read: others can see it, unless it has come whole, and stays as it is until this
    /// rank ends its operator.
    fn look(&self, at: Place, spot: Spot) -> Result<(), Fault> {
        let source = self.peer_of(spot);
        let explicit = self.scene.setup.model.memory == Landing::WeakExplicit;
        let whole = source == self.rank || self.memory.is_complete(self.scene, source, self.rank, self.op);
        if whole && !explicit { Ok(()) } else { self.touch(at) }
    }

    fn peer_of(&self, spot: Spot) -> usize {
        spot.1 % self.scene.setup.model.ranks as usize
    }

    fn told(&self, at: Place) -> Place {
        let size = match at.region {
            Region::State => MESSAGE_SLOT,
            _ => self.scene.setup.shape.window_bytes() / 2,
        };
        self.scene.told(at, size, self.op)
    }

    /// Which of the virtual halves a place lies in, and where. The machines' half must be that of the operator.
    fn spot(&self, at: Place, len: usize) -> Result<(Spot, usize), Fault> {
        let shape = self.scene.setup.shape;
        let (area, size, each) = match at.region {
            Region::Window => (Area::In, shape.window_bytes() / 2, shape.rank_window()),
            Region::WindowOut => (Area::Out, shape.window_bytes() / 2, shape.rank_window()),
            _ => (Area::Task, MESSAGE_SLOT, TASK),
        };
        if at.offset / size != u64::from(self.op % 2) {
            self.blame(Violation::WrongPartition { rank: self.me(), at });
        }
        let (peer, start) = ((at.offset % size / each) as usize, (at.offset % size % each) as usize);
        let spot = self.scene.spot(area, self.rank, self.op, peer);
        let fits =
            peer < self.scene.setup.model.ranks as usize && start + len <= self.memory.bytes(spot).len();
        if fits { Ok((spot, start)) } else { Err(Fault::new(self.me(), at, len as u64)) }
    }

    fn issue(&mut self, at: Place, bytes: &[u8], store: bool) -> Result<(), Fault> {
        let (spot, start) = self.spot(at, bytes.len())?;
        let range = start..start + bytes.len();
        let landing = self.scene.setup.model.memory;
        if landing != Landing::WeakExplicit
            && let Some(flying) = self.memory.reads(self.scene, self.rank, spot, &range)
        {
            self.blame(in_use(self.scene, self.rank, self.op, flying));
        }
        if landing != Landing::WeakExplicit
            && let Some(flying) = self.memory.unposted(self.scene, self.rank, spot)
        {
            let [operator, unread] = [self.op, flying.op].map(|op| self.scene.setup.named(op));
            self.blame(Violation::TaskInUse { rank: self.me(), operator, unread });
        }
        if landing == Landing::Strong {
            self.touch(at)?;
            self.memory.set(spot, start, bytes);
        } else {
            let late = Late { spot, start, bytes: bytes.into(), store, op: self.op };
            let core = self.number(self.core);
            self.memory.issue(core, late, landing == Landing::WeakExplicit);
        }
        Ok(())
    }

    /// What is read may not have landed.
    fn must_have_landed(&self, at: Place, spot: Spot, range: &Range<usize>) {
        let weak = self.scene.setup.model.memory == Landing::Weak;
        if weak && self.memory.late_at(self.scene, self.rank, spot, range).is_some() {
            self.blame(Violation::NotLanded { rank: self.me(), at: self.told(at) });
        }
    }

    /// Rows that `source` owes this rank in this operator, if all have chosen.
    fn rows_from(&self, source: usize) -> Option<u32> {
        let (sender, receiver) = match self.kind {
            Kind::Dispatch => (source, self.rank),
            Kind::Combine => (self.rank, source),
        };
        let choice = (*self.choices.get(sender)?)?;
        Some(u32::from(choice == Some(receiver as i32)))
    }

    fn operator(&self) -> Operator {
        match self.kind {
            Kind::Dispatch => Operator::Dispatch,
            Kind::Combine => Operator::Combine,
        }
    }

    /// The place of the last flag of what `source` sends.
    fn tail(&self, source: usize) -> Option<usize> {
        let rows = self.rows_from(source)?;
        Some(tail_flag(self.scene.setup.shape, self.operator(), rows) as usize)
    }

    fn is_awaited(&self, source: usize, start: usize) -> bool {
        let counts = self.kind == Kind::Dispatch && start == FLAG1 as usize;
        counts || self.tail(source) == Some(start)
    }

    fn say_flag(&self, source: usize, start: usize) {
        self.say(|| {
            let shape = self.scene.setup.shape;
            let most = shape.rows_to_peer_max(RankId(0));
            let rows = (0..=most).find(|&rows| tail_flag(shape, self.operator(), rows) as usize == start);
            match (self.kind, rows) {
                (Kind::Dispatch, None) => format!("sees FLAG1 of rank {source}"),
                (Kind::Dispatch, Some(0)) => format!("sees FLAG2 of rank {source} behind no row"),
                (Kind::Dispatch, Some(rows)) => format!("sees FLAG2 of rank {source} behind row {rows}"),
                (Kind::Combine, Some(0)) => format!("sees FLAG of rank {source} behind no row"),
                (Kind::Combine, Some(rows)) => format!("sees FLAG of rank {source} behind row {rows}"),
                (Kind::Combine, None) => "sees a flag where it looks for none".to_owned(),
            }
        });
    }

    /// A flag that was looked at to be cleared was not waited for.
    fn say_clear(&self) {
        if let Some(story) = &self.story {
            story.borrow_mut().pop();
        }
        self.say(|| CLEARS.to_owned());
    }

    fn judge(&mut self, at: Place, bytes: &[u8]) {
        let Region::Output(tensor) = at.region else { return };
        self.written += bytes.len() as u32;
        let range = at.offset as usize..at.offset as usize + bytes.len();
        let expected = self.expected.as_ref().and_then(|all| all[self.rank].output(tensor).get(range));
        // Before all ranks have chosen, nothing but this rank's own slots can be known.
        let unknown = self.expected.is_none() && tensor == Tensor::ExpandIdx;
        if !unknown && expected != Some(bytes) {
            self.blame(Violation::Diverged { rank: self.me(), at });
        }
    }
}

impl Fabric for View<'_> {
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
            self.say(|| "rings".to_owned());
            return Ok(());
        }
        self.touch(at)?;
        let (core, parity) = self.core_word_at(at)?;
        if core != self.core {
            return Err(Fault::new(to, at, 8));
        }
        let number = self.number(core);
        let words = &mut self.memory.core_words[number];
        words.land(parity);
        words.late[parity] = Some(word);
        if self.scene.setup.model.memory == Landing::Strong {
            words.land(parity);
        }
        self.say(|| "comes to the core barrier".to_owned());
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let first = self.core.0 == 0;
        let core = self.number(self.core);
        let under_way = !self.memory.late[core].is_empty()
            || self.memory.core_words[core].late != [None; 2]
            || first && self.memory.flip[self.rank].is_some();
        let waits = under_way && self.twin() != Twin::NoQuiet;
        if waits {
            self.touch(Place::state(0))?;
            if self.scene.setup.model.memory == Landing::WeakExplicit || !self.tape.get_mut().choose(()) {
                return Ok(false);
            }
            self.memory.land_all(self.rank, core, first);
            self.say(|| "all that it wrote and cleared has landed".to_owned());
        }
        if first && self.twin() == Twin::EarlyFlip {
            self.memory.chosen[self.rank] = u64::from(self.op + 1) % 2;
        }
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
        let (spot, start) = self.spot(at, 8)?;
        self.look(at, spot)?;
        let source = self.peer_of(spot);
        let nothing_owed = self.kind == Kind::Combine && self.rows_from(source) == Some(0);
        if self.twin() == Twin::PartialWait && nothing_owed && self.tail(source) == Some(start) {
            return Ok(FLAG.into());
        }
        let range = start..start + 8;
        let late = self.memory.late_at(self.scene, self.rank, spot, &range);
        let own =
            late.filter(|(core, late)| *core == self.number(self.core) && late.store && late.start == start);
        let bytes = match own {
            Some((_, late)) => &late.bytes[..],
            None => {
                if self.twin() != Twin::NoQuiet {
                    self.must_have_landed(at, spot, &range);
                }
                &self.memory.bytes(spot)[range]
            }
        };
        let word = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if word as u32 == FLAG {
            self.say_flag(source, start);
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        if at == buffer_chosen(self.scene.setup.shape) {
            self.flip(word);
            return Ok(());
        }
        if at.region == Region::Window {
            let (spot, start) = self.spot(at, 8)?;
            let source = self.peer_of(spot);
            self.say_clear();
            let forgotten = match self.twin() {
                Twin::NoClear => true,
                Twin::SeedClears => !self.is_awaited(source, start),
                _ => false,
            };
            if forgotten {
                return Ok(());
            }
        }
        self.issue(at, &word.to_le_bytes(), true)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let (spot, start) = self.spot(at, len as usize)?;
        self.look(at, spot)?;
        let range = start..start + len as usize;
        self.must_have_landed(at, spot, &range);
        self.say(|| format!("reads a row of rank {}", self.peer_of(spot)));
        Ok(&self.memory.bytes(spot)[range])
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        if at.region == Region::WindowOut {
            return self.issue(at, bytes, false);
        }
        self.judge(at, bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.judge(output, &bytes);
        Ok(())
    }
}

impl Nic for View<'_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if at == Place::state(DOORBELL) {
            return Ok(self.memory.doorbell[self.rank]);
        }
        let (spot, start) = self.spot(at, 8)?;
        self.must_have_landed(at, spot, &(start..start + 8));
        let word = self.memory.bytes(spot).get(start..).and_then(|bytes| bytes.first_chunk());
        Ok(word.map_or(0, |word| u64::from_le_bytes(*word)))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let len = len as usize;
        // Both ends must be whole windows of the half that is served.
        let (source, start) = self.spot(from, len)?;
        let own = self.scene.spot(Area::Out, self.rank, self.op, to.index());
        let (target, there) = self.spot(at, len)?;
        let mine = self.scene.spot(Area::In, self.rank, self.op, self.rank);
        if (source, start) != (own, 0) || (target, there) != (mine, 0) {
            return Err(Fault::new(to, at, len as u64));
        }
        let flying = Flying { from: self.rank, to: to.index(), op: self.op, len, done: 0 };
        self.memory.flying.push(flying);
        self.memory.posted[self.rank] += 1;
        self.memory.forget_task(self.scene, self.scene.spot(Area::Task, self.rank, self.op, to.index()));
        Ok(Post::Posted)
    }
}
