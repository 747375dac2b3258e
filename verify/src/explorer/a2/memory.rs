//! The memory of an A2 group, and how a core, an agent and a transfer see it.

use super::super::fabric::VIRTUAL;
use super::super::model::{Kind, Memory as Landing, Setup, Twin};
use super::super::oracle::Expected;
use super::super::violation::Violation;
use core::cell::{Cell, RefCell};
use core::hash::{Hash, Hasher};
use core::ops::Range;
use kernel_core::fabric::nic::{Nic, Post, Transfer};
use kernel_core::fabric::{Fabric, Fault};
use kernel_core::layout::a2_message::{DOORBELL, MESSAGE_SLOT, TASK};
use kernel_core::layout::a2_window::{FLAG, FLAG1, buffer_chosen, sent_bytes, tail_flag, window_in};
use kernel_core::layout::state::{Kind as Operator, Partition};
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::units::RankId;
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_128;

/// Where one kind of words or bytes lies: a window in, a window out, a task record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Area {
    In,
    Out,
    Task,
}

/// An area of one rank, of one half, for one peer, by its number.
pub(super) type Spot = (Area, usize);

/// What a core has issued and was not quiet about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Late {
    spot: Spot,
    start: usize,
    bytes: Vec<u8>,
    /// Its core sees it at once.
    store: bool,
}

impl Late {
    fn meets(&self, spot: Spot, range: &Range<usize>) -> bool {
        self.spot == spot && self.start < range.end && range.start < self.start + self.bytes.len()
    }
}

/// A transfer on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flying {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Of which operator.
    pub(super) op: u32,
    pub(super) len: usize,
    /// Bytes delivered.
    pub(super) done: usize,
}

/// The bytes of an area, with a number that tells them apart.
#[derive(Clone, Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
    print: u128,
}

impl Block {
    fn new(bytes: Vec<u8>) -> Self {
        let print = xxh3_128(&bytes);
        Self { bytes, print }
    }
}

impl Hash for Block {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.print.hash(state);
    }
}

/// All that is shared.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// Windows and task records, by area, then by number.
    pub(super) areas: [Vec<Rc<Block>>; 3],
    /// By rank.
    pub(super) doorbell: Vec<u64>,
    pub(super) chosen: Vec<u64>,
    pub(super) late: Vec<Vec<Late>>,
    /// Tasks that each agent has posted.
    pub(super) posted: Vec<u32>,
    pub(super) flying: Vec<Flying>,
}

impl Memory {
    pub(super) fn new(setup: &Setup<'_>) -> Self {
        let ranks = setup.model.ranks as usize;
        let rows = setup.shape.rows_to_peer_max(RankId(0));
        let window = vec![0; sent_bytes(setup.shape, Operator::Dispatch, rows) as usize];
        let window = Rc::new(Block::new(window));
        let task = Rc::new(Block::new(vec![0; TASK as usize]));
        let all = ranks * ranks * setup.model.partitions[0] as usize;
        Self {
            areas: [vec![Rc::clone(&window); all], vec![window; all], vec![task; all]],
            doorbell: vec![0; ranks],
            chosen: vec![0; ranks],
            late: vec![Vec::new(); ranks],
            posted: vec![0; ranks],
            flying: Vec::new(),
        }
    }

    fn bytes(&self, (area, number): Spot) -> &[u8] {
        self.areas[area as usize].get(number).map_or(&[], |block| &block.bytes)
    }

    fn set(&mut self, (area, number): Spot, start: usize, bytes: &[u8]) {
        let all = Rc::make_mut(&mut self.areas[area as usize][number]);
        all.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        all.print = xxh3_128(&all.bytes);
    }

    fn is_late(&self, rank: usize, spot: Spot, range: &Range<usize>) -> bool {
        self.late[rank].iter().any(|late| late.meets(spot, range))
    }

    /// Lets the next piece of transfer number `i` arrive. `at` says what each rank runs.
    pub(super) fn arrive(&mut self, setup: &Setup<'_>, i: usize, at: &[u32]) -> Option<Violation> {
        let Flying { from, to, op, len, done } = self.flying[i].clone();
        let source = spot_of(setup, Area::Out, from, op, to);
        let target = spot_of(setup, Area::In, to, op, from);
        let piece = match setup.model.twin {
            Twin::LastWordFirst if done == 0 => len - 8..len,
            Twin::LastWordFirst if done == len - 8 => 0..len - 8,
            _ => done..cut(setup, done, len),
        };
        let inside = window_in(setup.shape, Partition::P0, RankId(from as u32), piece.start as u64);
        let place = Place { offset: inside.offset + half(setup, op) as u64 * VIRTUAL, ..inside };
        let bytes = self.bytes(source)[piece.clone()].to_vec();
        let trouble = if self.is_late(from, source, &piece) {
            Some(Violation::NotLanded { rank: RankId(from as u32), at: place })
        } else if self.is_late(to, target, &piece) {
            Some(Violation::LostFlag { rank: RankId(to as u32), at: place })
        } else if (at[to]..op).any(|earlier| half(setup, earlier) == half(setup, op)) {
            Some(Violation::Overwritten { rank: RankId(to as u32), at: place })
        } else {
            None
        };
        self.set(target, piece.start, &bytes);
        // With its last word first, a transfer is half done for as long as the rest has not come.
        let last = setup.model.twin == Twin::LastWordFirst && done == 0 && len > 8;
        self.flying[i].done = if last { len - 8 } else { piece.end.max(done) };
        let over = !last && (self.flying[i].done == len || setup.model.twin == Twin::LastWordFirst);
        if over {
            self.flying.swap_remove(i);
        }
        trouble
    }

    fn land(&mut self, rank: usize) {
        for late in core::mem::take(&mut self.late[rank]) {
            self.set(late.spot, late.start, &late.bytes);
        }
    }
}

/// Where the piece that begins at `done` ends: behind the next word that somebody could take for a flag.
fn cut(setup: &Setup<'_>, done: usize, len: usize) -> usize {
    let most = setup.shape.rows_to_peer_max(RankId(0));
    let tails = [Operator::Combine, Operator::Dispatch]
        .into_iter()
        .flat_map(|kind| (0..=most).map(move |rows| tail_flag(setup.shape, kind, rows)));
    let ends = tails.chain([FLAG1]).map(|flag| flag as usize + 8);
    ends.filter(|&end| end > done && end < len).min().unwrap_or(len)
}

fn half(setup: &Setup<'_>, op: u32) -> usize {
    (op % setup.model.partitions[0]) as usize
}

fn spot_of(setup: &Setup<'_>, area: Area, rank: usize, op: u32, peer: usize) -> Spot {
    let ranks = setup.model.ranks as usize;
    let halves = setup.model.partitions[0] as usize;
    let one = area == Area::Task && setup.model.twin == Twin::OneMessageSlot;
    let half = if one { 0 } else { half(setup, op) };
    (area, (rank * halves + half) * ranks + peer)
}

/// The view of one core, or of an agent.
pub(super) struct View<'a> {
    pub(super) setup: &'a Setup<'a>,
    pub(super) memory: &'a mut Memory,
    pub(super) rank: usize,
    /// The operator that the core runs or the agent serves.
    pub(super) op: u32,
    pub(super) kind: Kind,
    /// What this rank must write, and where all send; `None` while some rank has not chosen.
    pub(super) expected: Option<Rc<Vec<Expected>>>,
    pub(super) choices: Vec<Option<Option<i32>>>,
    /// Whether shared accesses are refused.
    pub(super) peek: bool,
    pub(super) touched: Cell<bool>,
    pub(super) written: u32,
    pub(super) violation: RefCell<Option<Violation>>,
}

impl View<'_> {
    fn me(&self) -> RankId {
        RankId(self.rank as u32)
    }

    fn blame(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
    }

    fn touch(&self, at: Place) -> Result<(), Fault> {
        self.touched.set(true);
        if self.peek { Err(Fault { rank: self.me(), at, len: 0 }) } else { Ok(()) }
    }

    /// A place as it is told: by its virtual half.
    fn told(&self, at: Place) -> Place {
        let size = match at.region {
            Region::State => MESSAGE_SLOT,
            _ => self.setup.shape.window_bytes() / 2,
        };
        Place { offset: at.offset % size + half(self.setup, self.op) as u64 * VIRTUAL, ..at }
    }

    /// Which of the virtual halves a place lies in, and where. The machines' half must be that of the operator.
    fn spot(&self, at: Place, len: usize) -> Result<(Spot, usize), Fault> {
        let shape = self.setup.shape;
        let (area, size, each) = match at.region {
            Region::Window => (Area::In, shape.window_bytes() / 2, shape.rank_window()),
            Region::WindowOut => (Area::Out, shape.window_bytes() / 2, shape.rank_window()),
            _ => (Area::Task, MESSAGE_SLOT, TASK),
        };
        if at.offset / size != u64::from(self.op % 2) {
            self.blame(Violation::WrongPartition { rank: self.me(), at });
        }
        let (peer, start) = ((at.offset % size / each) as usize, (at.offset % size % each) as usize);
        let spot = spot_of(self.setup, area, self.rank, self.op, peer);
        let fits = peer < self.setup.model.ranks as usize && start + len <= self.memory.bytes(spot).len();
        if fits { Ok((spot, start)) } else { Err(Fault { rank: self.me(), at, len: len as u64 }) }
    }

    fn issue(&mut self, at: Place, bytes: &[u8], store: bool) -> Result<(), Fault> {
        let (spot, start) = self.spot(at, bytes.len())?;
        let range = start..start + bytes.len();
        let rank = self.rank;
        let rewrites = self.memory.flying.iter().any(|flying| {
            let source = spot_of(self.setup, Area::Out, flying.from, flying.op, flying.to);
            flying.from == rank && source == spot && range.end > flying.done && range.start < flying.len
        });
        if rewrites {
            self.blame(Violation::Overwritten { rank: self.me(), at: self.told(at) });
        }
        if self.setup.model.memory == Landing::Strong {
            self.touch(at)?;
            self.memory.set(spot, start, bytes);
        } else {
            self.memory.late[rank].push(Late { spot, start, bytes: bytes.to_vec(), store });
        }
        Ok(())
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

    /// The place of the last flag of what `source` sends.
    fn tail(&self, source: usize) -> Option<usize> {
        let kind = match self.kind {
            Kind::Dispatch => Operator::Dispatch,
            Kind::Combine => Operator::Combine,
        };
        self.rows_from(source).map(|rows| tail_flag(self.setup.shape, kind, rows) as usize)
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
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        if to != self.me() || at.region != Region::Window {
            return Err(Fault { rank: to, at, len: row.len() as u64 });
        }
        self.issue(at, &[row, tail].concat(), false)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if to != self.me() || at != Place::state(DOORBELL) {
            return Err(Fault { rank: to, at, len: 8 });
        }
        self.touch(at)?;
        // It may land later: that is an agent that has not looked yet.
        self.memory.doorbell[self.rank] = word;
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        if self.memory.late[self.rank].is_empty() || self.setup.model.twin == Twin::NoQuiet {
            return Ok(true);
        }
        self.touch(Place::state(0))?;
        self.memory.land(self.rank);
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if at == buffer_chosen(self.setup.shape) {
            return Ok(self.memory.chosen[self.rank]);
        }
        if at == Place::state(DOORBELL) {
            return Ok(self.memory.doorbell[self.rank]);
        }
        if at.region == Region::State {
            // Barrier words, of which a core alone has no use.
            return Ok(0);
        }
        self.touch(at)?;
        let (spot, start) = self.spot(at, 8)?;
        let source = spot.1 % self.setup.model.ranks as usize;
        let nothing_owed = self.kind == Kind::Combine && self.rows_from(source) == Some(0);
        if self.setup.model.twin == Twin::PartialWait && nothing_owed && self.tail(source) == Some(start) {
            return Ok(FLAG.into());
        }
        let range = start..start + 8;
        let late = self.memory.late[self.rank].iter().rev().find(|late| late.meets(spot, &range));
        let bytes = match late {
            Some(late) if late.store && late.start == start => &late.bytes[..],
            late => {
                if late.is_some() && self.setup.model.twin != Twin::NoQuiet {
                    self.blame(Violation::NotLanded { rank: self.me(), at: self.told(at) });
                }
                &self.memory.bytes(spot)[range]
            }
        };
        Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        if at == buffer_chosen(self.setup.shape) {
            // Nobody but the core itself ever looks at it.
            self.memory.chosen[self.rank] = word;
            return Ok(());
        }
        if at.region == Region::Window {
            let (spot, start) = self.spot(at, 8)?;
            let tail = self.tail(spot.1 % self.setup.model.ranks as usize);
            let awaited = Some(start) == tail || self.kind == Kind::Dispatch && start == FLAG1 as usize;
            if self.setup.model.twin == Twin::NoClear || self.setup.model.twin == Twin::SeedClears && !awaited
            {
                return Ok(());
            }
        }
        self.issue(at, &word.to_le_bytes(), true)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.touch(at)?;
        let (spot, start) = self.spot(at, len as usize)?;
        let range = start..start + len as usize;
        if self.memory.is_late(self.rank, spot, &range) {
            self.blame(Violation::NotLanded { rank: self.me(), at: self.told(at) });
        }
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
        if self.memory.is_late(self.rank, spot, &(start..start + 8)) {
            self.blame(Violation::NotLanded { rank: self.me(), at: self.told(at) });
        }
        let word = self.memory.bytes(spot).get(start..).and_then(|bytes| bytes.first_chunk());
        Ok(word.map_or(0, |word| u64::from_le_bytes(*word)))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let len = len as usize;
        // Both ends must be whole windows of the half that is served.
        let (source, start) = self.spot(from, len)?;
        let own = spot_of(self.setup, Area::Out, self.rank, self.op, to.index());
        let (target, there) = self.spot(at, len)?;
        let mine = spot_of(self.setup, Area::In, self.rank, self.op, self.rank);
        if (source, start) != (own, 0) || (target, there) != (mine, 0) {
            return Err(Fault { rank: to, at, len: len as u64 });
        }
        let flying = Flying { from: self.rank, to: to.index(), op: self.op, len, done: 0 };
        self.memory.flying.push(flying);
        self.memory.posted[self.rank] += 1;
        Ok(Post::Posted)
    }
}
