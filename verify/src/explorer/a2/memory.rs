//! The memory of an A2 group: what has landed, what is under way, and what may be forgotten.

use super::super::model::Memory as Landing;
use super::super::protocol::VIRTUAL;
use super::super::setup::Setup;
use super::super::state::clone_in_place;
use super::super::violation::Violation;
use crate::order::Order;
use core::hash::{Hash, Hasher};
use core::ops::Range;
use std::rc::Rc;
use veriep_core::fabric::order::Kind;
use veriep_core::layout::a2_message::TASK;
use veriep_core::layout::a2_window::{FLAG, FLAG1, next_flag_place, sent_bytes, tail_flag, window_in};
use veriep_core::layout::state::Partition;
use veriep_core::place::Place;
use veriep_core::protocol::{Agent, Operator};
use veriep_core::units::RankId;
use xxhash_rust::xxh3::xxh3_128;

/// What forgotten bytes hold: no flag, no count, no field of a task, and no payload.
const FORGOTTEN: u8 = 0xEE;
/// Bytes of the word in which a flag lies.
pub(super) const WORD: usize = 8;

/// Where one kind of words or bytes lies: a window in, a window out, a task record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Area {
    In,
    Out,
    Task,
}

/// An area of one rank, of one half, for one peer, by its number.
pub(super) type Spot = (Area, usize);

/// A model, and where flags could be in it.
pub(in super::super) struct Scene<'a> {
    pub(super) setup: &'a Setup<'a>,
    /// Every word of a window at which a flag could be looked for, and whether this group could.
    places: Vec<(usize, bool)>,
    /// Ends of the pieces of a transfer, by operator: a core may look for a flag in their last word.
    ends: [Vec<usize>; 2],
    window: usize,
}

impl<'a> Scene<'a> {
    pub(in super::super) fn new(setup: &'a Setup<'a>) -> Self {
        let shape = setup.shape;
        let most = shape.rows_to_peer_max(RankId(0));
        let window = sent_bytes(shape, Operator::Dispatch, most);
        let window = window.max(sent_bytes(shape, Operator::Combine, most)) as usize;
        let flags = |kind| {
            let first = (kind == Operator::Dispatch).then_some(FLAG1);
            let tails = (0..=most).map(move |rows| tail_flag(shape, kind, rows));
            first.into_iter().chain(tails).map(|at| at as usize).collect::<Vec<_>>()
        };
        let looked = [flags(Operator::Dispatch), flags(Operator::Combine)];
        let next = |at: usize| next_flag_place(shape, at as u64) as usize;
        let all = core::iter::successors(Some(next(0)), |&at| Some(next(at + 1)));
        let places = all
            .take_while(|&at| at + WORD <= window)
            .map(|at| (at, looked.iter().any(|flags| flags.contains(&at))))
            .collect();
        let ends = looked.map(|flags| flags.into_iter().map(|at| at + WORD).collect());
        Self { setup, places, ends, window }
    }

    pub(super) fn half(&self, op: u32) -> usize {
        (op % self.setup.model.partitions[0]) as usize
    }

    /// A place as it is told: by its virtual half.
    pub(super) fn told(&self, at: Place, size: u64, op: u32) -> Place {
        Place { offset: at.offset % size + self.half(op) as u64 * VIRTUAL, ..at }
    }

    pub(super) fn spot(&self, area: Area, rank: usize, op: u32, peer: usize) -> Spot {
        let ranks = self.setup.model.ranks as usize;
        let halves = self.setup.model.partitions[0] as usize;
        let half = if area == Area::Task { self.message_half(op) } else { self.half(op) };
        (area, (rank * halves + half) * ranks + peer)
    }

    /// Where the piece that begins at `done` ends. A reader is in the operator of the transfer, or there is an error
    /// already; so words at which the other kind looks need no piece of their own.
    fn cut(&self, op: u32, done: usize, len: usize) -> usize {
        let kind = self.setup.operator(op).0;
        let ends = self.ends.iter().zip([Operator::Dispatch, Operator::Combine]);
        let ends = ends.filter(|(_, of)| self.is_explicit() || *of == kind).flat_map(|(ends, _)| ends);
        ends.copied().filter(|&end| end > done && end < len).min().unwrap_or(len)
    }

    /// The next piece of a transfer whose bytes arrive in order.
    pub(super) fn piece_in_order(&self, &Flying { op, len, done, .. }: &Flying) -> Piece {
        let end = self.cut(op, done, len);
        Piece { bytes: done..end, done: (end < len).then_some(end) }
    }

    /// Whether a word of a window is a flag to anybody.
    pub(super) fn holds_flags(&self, window: &[u8]) -> bool {
        self.places.iter().any(|&(at, _)| window[at..at + 4] == FLAG.to_le_bytes())
    }

    pub(super) fn is_explicit(&self) -> bool {
        self.setup.model.memory == Landing::WeakExplicit
    }
}

/// What a core has issued and was not quiet about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Late {
    pub(super) spot: Spot,
    pub(super) start: usize,
    pub(super) bytes: Rc<[u8]>,
    /// Its core sees it at once.
    pub(super) store: bool,
    /// Of which operator; every landing by itself needs it.
    pub(super) op: u32,
}

impl Late {
    pub(super) fn meets(&self, spot: Spot, range: &Range<usize>) -> bool {
        self.spot == spot && self.start < range.end && range.start < self.start + self.bytes.len()
    }

    fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes.len()
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

/// Bytes of a transfer that arrive together.
pub(super) struct Piece {
    pub(super) bytes: Range<usize>,
    /// How much has been delivered then; none if that is all.
    pub(super) done: Option<usize>,
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

/// What a core tells the others of its rank by a word: what has landed, and what perhaps has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CoreWord {
    pub(super) landed: u64,
    pub(super) late: Option<u64>,
}

impl CoreWord {
    pub(super) fn newest(&self) -> u64 {
        self.late.unwrap_or(self.landed)
    }

    pub(super) fn land(&mut self) {
        *self = Self { landed: self.newest(), late: None };
    }
}

/// All that is shared.
#[derive(Debug)]
pub(in super::super) struct Memory {
    pub(super) agents: Vec<Agent>,
    /// Windows and task records, by area, then by number.
    pub(super) areas: [Vec<Rc<Block>>; 3],
    /// By rank.
    pub(super) doorbell: Vec<u64>,
    /// `bufferChosen`, by rank.
    pub(super) chosen: Vec<CoreWord>,
    /// Barrier words by core, rank-major, and parity.
    pub(super) core_words: Vec<[CoreWord; 2]>,
    pub(super) late: Vec<Vec<Late>>,
    /// Tasks that each agent has posted.
    pub(super) posted: Vec<u32>,
    pub(super) flying: Vec<Flying>,
}

clone_in_place!(Memory { agents, areas, doorbell, chosen, core_words, late, posted, flying });

impl Memory {
    pub(super) fn new(scene: &Scene<'_>) -> Self {
        let model = scene.setup.model;
        let ranks = model.ranks as usize;
        let cores = ranks * model.cores as usize;
        let window = Rc::new(Block::new(vec![0; scene.window]));
        let task = Rc::new(Block::new(vec![0; TASK as usize]));
        let all = ranks * ranks * model.partitions[0] as usize;
        Self {
            agents: vec![Agent::new(); ranks],
            areas: [vec![Rc::clone(&window); all], vec![window; all], vec![task; all]],
            doorbell: vec![0; ranks],
            chosen: vec![CoreWord::default(); ranks],
            core_words: vec![[CoreWord::default(); 2]; cores],
            late: vec![Vec::new(); cores],
            posted: vec![0; ranks],
            flying: Vec::new(),
        }
    }

    pub(super) fn bytes(&self, (area, number): Spot) -> &[u8] {
        self.areas[area as usize].get(number).map_or(&[], |block| &block.bytes)
    }

    pub(super) fn set(&mut self, (area, number): Spot, start: usize, bytes: &[u8]) {
        let all = Rc::make_mut(&mut self.areas[area as usize][number]);
        all.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        all.print = xxh3_128(&all.bytes);
    }

    /// The newest effect that meets a range and has perhaps not landed, and its core, which is of the rank that has the spot.
    pub(super) fn late_at(&self, spot: Spot, range: &Range<usize>) -> Option<(usize, &Late)> {
        self.late.iter().enumerate().find_map(|(core, late)| {
            let newest = late.iter().rev().find(|late| late.meets(spot, range))?;
            Some((core, newest))
        })
    }

    /// Whether nothing of what `from` sends `to` in an operator can still arrive.
    pub(super) fn is_complete(&self, scene: &Scene<'_>, from: usize, to: usize, op: u32) -> bool {
        let peers = scene.setup.model.ranks - 1;
        let flies = |flying: &Flying| (flying.from, flying.to, flying.op) == (from, to, op);
        self.posted[from] >= (op + 1) * peers && !self.flying.iter().any(flies)
    }

    /// The transfer that has still to read some of what a core is about to write.
    pub(super) fn reads(&self, scene: &Scene<'_>, spot: Spot, range: &Range<usize>) -> Option<&Flying> {
        let source = |flying: &Flying| scene.spot(Area::Out, flying.from, flying.op, flying.to);
        let meets = |flying: &Flying| range.end > flying.done && range.start < flying.len;
        self.flying.iter().find(|flying| source(flying) == spot && meets(flying))
    }

    /// The transfer whose task an agent has perhaps not read yet, if it is where a core is about to write.
    pub(super) fn unposted(&self, scene: &Scene<'_>, spot: Spot) -> Option<&Flying> {
        let task = |flying: &Flying| scene.spot(Area::Task, flying.from, flying.op, flying.to);
        self.flying.iter().find(|&flying| flying.done == 0 && task(flying) == spot)
    }

    /// Lets the next piece of transfer number `i` arrive. `at` says what each rank runs.
    pub(super) fn arrive(&mut self, scene: &Scene<'_>, i: usize, at: &[u32]) -> Option<Violation> {
        let Flying { from, to, op, .. } = self.flying[i];
        let source = scene.spot(Area::Out, from, op, to);
        let target = scene.spot(Area::In, to, op, from);
        let Piece { bytes: piece, done } = scene.piece(&self.flying[i]);
        let bytes = self.bytes(source)[piece.clone()].to_vec();
        let trouble = self.arrival_breaks(scene, &self.flying[i], &piece, at);
        self.set(target, piece.start, &bytes);
        if !scene.is_explicit() {
            self.forget(scene, source, piece.clone());
        }
        match done {
            Some(done) => self.flying[i].done = done,
            None => _ = self.flying.swap_remove(i),
        }
        trouble
    }

    fn arrival_breaks(
        &self,
        scene: &Scene<'_>,
        flying: &Flying,
        piece: &Range<usize>,
        at: &[u32],
    ) -> Option<Violation> {
        let &Flying { from, to, op, .. } = flying;
        let inside = window_in(scene.setup.shape, Partition::P0, RankId(from as u32), piece.start as u64);
        let place = scene.told(inside, u64::MAX, op);
        let weak = scene.setup.model.memory == Landing::Weak;
        let late = |spot| weak && self.late_at(spot, piece).is_some();
        if let Some(earlier) = (at[to]..op).find(|&earlier| scene.half(earlier) == scene.half(op)) {
            let (rank, from) = (RankId(to as u32), RankId(from as u32));
            let [operator, unended] = [op, earlier].map(|op| scene.setup.named(op));
            return Some(Violation::HalfInUse { rank, from, operator, unended });
        }
        if late(scene.spot(Area::Out, from, op, to)) {
            return Some(Violation::NotLanded { rank: RankId(from as u32), at: place });
        }
        late(scene.spot(Area::In, to, op, from))
            .then_some(Violation::LostFlag { rank: RankId(to as u32), at: place })
    }

    /// A core issues an effect. Where every landing is a move, the words of a task land together, or there were too many.
    pub(super) fn issue(&mut self, scene: &Scene<'_>, core: usize, late: Late) {
        let explicit = scene.is_explicit();
        let before = self.late[core].last_mut().filter(|_| explicit && late.spot.0 == Area::Task);
        match before.filter(|before| before.spot == late.spot && before.range().end == late.start) {
            Some(before) => before.bytes = [&before.bytes[..], &late.bytes].concat().into(),
            None => self.late[core].push(late),
        }
    }

    /// All that a core has issued has landed.
    pub(super) fn land_all(&mut self, scene: &Scene<'_>, rank: usize, core: usize, first: bool) {
        for late in core::mem::take(&mut self.late[core]) {
            scene.setup.relies_on(Order::by_quiet(if late.store { Kind::Store } else { Kind::Put }));
            self.set(late.spot, late.start, &late.bytes);
        }
        self.core_words[core].iter_mut().for_each(CoreWord::land);
        if first {
            self.chosen[rank].land();
        }
    }

    /// What of a core may land now, if every landing is a move of its own: what it wrote to one place lands in order.
    pub(super) fn may_land(&self, core: usize) -> impl Iterator<Item = usize> + '_ {
        let late = &self.late[core];
        (0..late.len())
            .filter(|&i| !late[..i].iter().any(|before| before.meets(late[i].spot, &late[i].range())))
    }

    /// One effect of a core lands by itself.
    pub(super) fn land(&mut self, scene: &Scene<'_>, core: usize, i: usize) -> Option<Violation> {
        let late = self.late[core].remove(i);
        let reads = self.reads(scene, late.spot, &late.range());
        let trouble = reads.map(|flying| in_use(scene, late.op, flying));
        self.set(late.spot, late.start, &late.bytes);
        trouble
    }

    /// The rank has ended an operator: no core can read what it was sent.
    pub(super) fn forget_received(&mut self, scene: &Scene<'_>, rank: usize, op: u32) {
        for source in 0..if scene.is_explicit() { 0 } else { self.posted.len() } {
            self.forget(scene, scene.spot(Area::In, rank, op, source), 0..scene.window);
        }
    }

    /// The agent has read a task.
    pub(super) fn forget_task(&mut self, scene: &Scene<'_>, spot: Spot) {
        if !scene.is_explicit() {
            self.set(spot, 0, &[FORGOTTEN; TASK as usize]);
        }
    }

    /// Forgets bytes, but not which words are flags. What stays in a window out may be anything that was ever sent, so
    /// every word there becomes a flag at which this group could look for one.
    fn forget(&mut self, scene: &Scene<'_>, spot: Spot, range: Range<usize>) {
        let old = self.bytes(spot);
        let mut bytes = vec![FORGOTTEN; range.len()];
        for &(at, looked) in
            scene.places.iter().filter(|(at, _)| range.start <= *at && at + WORD <= range.end)
        {
            let is_flag = old[at..at + 4] == FLAG.to_le_bytes() || spot.0 == Area::Out && looked;
            let word = if is_flag { u64::from(FLAG) } else { 0 };
            bytes[at - range.start..][..WORD].copy_from_slice(&word.to_le_bytes());
        }
        self.set(spot, range.start, &bytes);
    }
}

/// A core writes what a transfer has still to read.
pub(super) fn in_use(scene: &Scene<'_>, op: u32, flying: &Flying) -> Violation {
    let [rank, to] = [flying.from, flying.to].map(|rank| RankId(rank as u32));
    let [operator, unread] = [op, flying.op].map(|op| scene.setup.named(op));
    Violation::SourceInUse { rank, to, operator, unread }
}
