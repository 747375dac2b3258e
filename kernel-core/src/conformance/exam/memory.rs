//! One memory that can be late, odd and wrong in many ways. What it does is data: a [`Pace`] within the contract, and a [`Fault`]
//! that breaks it.
//!
//! Effects wait here until they land in the simulated memory behind, between two steps. Time is counted in steps.

mod land;

use super::fault::{Animal, Fault, Kind, Late, Looks, Order, When, Which};
use crate::fabric::nic::{Post, Transfer};
use crate::place::Place;
use crate::sim;
use crate::sim::chooser::{AGENT, Actor, Choice, Chooser, Dice};
use crate::sim::storage::Dense;
use crate::units::RankId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

/// The memory behind.
pub(super) type Behind = sim::Memory<Dense, Idle>;

/// Effects are kept here, so there is nothing to choose.
#[derive(Clone, Debug)]
pub(super) struct Idle;

impl Chooser for Idle {
    fn next(&mut self) -> Option<Choice> {
        None
    }
}

#[derive(Debug)]
struct Effect {
    from: Actor,
    to: RankId,
    at: Place,
    kind: Kind,
    bytes: Vec<u8>,
    due: u64,
    /// The number of its message.
    message: u64,
    /// The place that a transfer reads.
    source: Place,
    /// Its bytes that have still to land; of others 0.
    left: u64,
    /// Whether nothing waits for it.
    loose: bool,
    /// The length of the put that it is a piece of.
    whole: usize,
    /// The line around it when it was issued.
    line: Option<(Place, Vec<u8>)>,
    fresh: bool,
}

impl Effect {
    fn new(kind: Kind, from: Actor, to: RankId, at: Place, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        let whole = bytes.len();
        Self {
            from,
            to,
            at,
            kind,
            bytes,
            due: 0,
            message: 0,
            source: at,
            left: 0,
            loose: false,
            whole,
            line: None,
            fresh: true,
        }
    }
}

#[derive(Debug)]
struct Again {
    calls: u64,
    to: RankId,
    at: Place,
    bytes: Vec<u8>,
}

/// Lines that a core keeps, with the reads after which each is dropped.
#[derive(Debug, Default)]
struct Cache {
    lines: BTreeMap<Place, (Vec<u8>, u64)>,
    reads: u64,
}

/// A memory at work.
#[derive(Debug)]
pub(super) struct Zoo {
    pub(super) animal: Animal,
    tp: u32,
    dice: Dice,
    now: u64,
    pub(super) calls: u64,
    messages: u64,
    effects: Vec<Effect>,
    again: Vec<Again>,
    denied: BTreeMap<Actor, u32>,
    issued: BTreeMap<(Actor, Kind), u64>,
    /// Bytes put since the last quiet.
    since_quiet: BTreeMap<Actor, u64>,
    published: BTreeMap<(Actor, RankId, Place), Vec<u8>>,
    put_to: BTreeSet<(RankId, Place)>,
    /// The rank of the last put.
    last: BTreeMap<Actor, RankId>,
    caches: BTreeMap<Actor, Cache>,
    remembered: BTreeMap<(RankId, Place), Vec<u8>>,
    posts: u64,
    /// The effects for which each core has asked.
    asked: BTreeMap<Actor, u64>,
}

/// A time that never comes by itself.
const FORCED: u64 = u64::MAX;
/// The pieces of a put at most.
const PIECES_MAX: usize = 24;
/// Transfers of one agent that can be under way.
const ROOM: usize = 24;

impl Zoo {
    pub(super) fn new(animal: &Animal, tp: u32, seed: u64) -> Self {
        Self {
            animal: *animal,
            tp,
            dice: Dice(seed),
            now: 0,
            calls: 0,
            messages: 0,
            effects: Vec::new(),
            again: Vec::new(),
            denied: BTreeMap::new(),
            issued: BTreeMap::new(),
            since_quiet: BTreeMap::new(),
            published: BTreeMap::new(),
            put_to: BTreeSet::new(),
            last: BTreeMap::new(),
            caches: BTreeMap::new(),
            remembered: BTreeMap::new(),
            posts: 0,
            asked: BTreeMap::new(),
        }
    }

    pub(super) fn member(&self, actor: Actor, to: RankId, at: Place) -> RankId {
        let (ep, tp_rank) = (actor.member.0 / self.tp, actor.member.0 % self.tp);
        RankId(if at.region.is_of_tp() { ep * self.tp + to.0 } else { to.0 * self.tp + tp_rank })
    }

    fn due(&mut self, kind: Kind, to: RankId, len: usize) -> u64 {
        let pace = self.animal.pace;
        let late = match kind {
            Kind::Put | Kind::Message | Kind::Transfer => pace.rows,
            Kind::Publish => pace.words,
            Kind::Store | Kind::Write => pace.stores,
        };
        let steps = match late {
            Late::UpTo(most) => self.dice.below(most as usize + 1) as u64,
            Late::ByLength(bytes) => len as u64 / bytes,
            Late::ByRank(steps) => u64::from(to.0) * steps,
            Late::Batches(steps) => steps - self.now % steps,
            Late::Forced if matches!(kind, Kind::Put | Kind::Store | Kind::Write) => return FORCED,
            Late::Forced => 0,
        };
        self.now + 1 + steps
    }

    /// Returns whether there is room for the next effect of a core.
    pub(super) fn has_room(&mut self, core: Actor) -> bool {
        let asked = self.asked.entry(core).or_default();
        *asked += 1;
        let full = self.animal.pace.full;
        full == 0 || !asked.is_multiple_of(full)
    }

    fn count(&mut self, actor: Actor, kind: Kind) -> u64 {
        let count = self.issued.entry((actor, kind)).or_default();
        *count += 1;
        *count
    }

    pub(super) fn put(&mut self, from: Actor, to: RankId, at: Place, row: &[u8], tail: &[u8]) {
        let whole = row.len() + tail.len();
        let mut bytes = [row, tail].concat();
        let number = self.count(from, Kind::Put);
        let first = !self.since_quiet.contains_key(&from);
        let sent = self.since_quiet.entry(from).or_default();
        *sent += whole as u64;
        let sent = *sent;
        let again = !self.put_to.insert((to, at));
        self.last.insert(from, to);
        let mut loose_at = None;
        let mut lost = false;
        match self.animal.fault {
            Some(Fault::Loose(which, when)) => loose_at = Some((which, when)),
            Some(Fault::LostPut(which)) => loose_at = Some((which, When::Never)),
            Some(Fault::Lost(Kind::Put, every)) => lost = number.is_multiple_of(every),
            Some(Fault::LateSource) => {
                let staged = |e: &&mut Effect| e.kind == Kind::Put && e.from == from && e.whole == whole;
                if self.animal.pace.pieces == 0 {
                    self.effects.iter_mut().filter(staged).for_each(|e| e.bytes.clone_from(&bytes));
                }
            }
            Some(Fault::Padded(block)) => {
                let end = (at.offset + whole as u64).next_multiple_of(block);
                bytes.resize((end - at.offset) as usize, 0);
            }
            Some(Fault::Cut(unit)) => bytes.truncate(whole / unit as usize * unit as usize),
            _ => {}
        }
        if lost || bytes.is_empty() {
            return;
        }
        let mut cuts = vec![0, bytes.len()];
        if self.animal.pace.pieces > 0 {
            // Of a long put some of the cuts: more take time and show no more.
            let all = bytes.len().div_ceil(self.animal.pace.pieces);
            let some = self.animal.pace.pieces * all.div_ceil(PIECES_MAX);
            cuts.extend((0..bytes.len()).step_by(some));
        }
        match loose_at {
            Some((Which::Row | Which::Tail, _)) => cuts.push(row.len()),
            Some((Which::Behind(from), _)) => cuts.push(from.min(bytes.len())),
            Some((Which::Stripe(unit) | Which::Crossing(unit), _)) => {
                let first = at.offset.next_multiple_of(unit) - at.offset;
                let all = bytes.len().div_ceil(unit as usize);
                cuts.extend(
                    (first as usize..bytes.len()).step_by(unit as usize * (all.div_ceil(PIECES_MAX) | 1)),
                );
            }
            _ => {}
        }
        cuts.sort_unstable();
        cuts.dedup();
        let outstanding =
            self.effects.iter().filter(|e| e.from == from && e.kind == Kind::Put && !e.loose).count();
        for (i, ends) in cuts.windows(2).enumerate() {
            let (start, end) = (ends[0], ends[1]);
            let place = Place { offset: at.offset + start as u64, ..at };
            let mut due = self.due(Kind::Put, to, whole);
            if self.animal.pace.order == Order::Backwards && due != FORCED {
                due = self.now + 1 + (cuts.len() - i) as u64;
            }
            let is_loose = loose_at.is_some_and(|(which, _)| match which {
                Which::All => true,
                Which::Above(len) => whole > len,
                Which::Below(len) => whole < len,
                Which::Behind(from) => start >= from,
                Which::Row => start < row.len(),
                Which::Tail => start >= row.len(),
                Which::Nth(n) => number.is_multiple_of(n),
                Which::Outstanding(most) => outstanding >= most,
                Which::Stripe(unit) => place.offset / unit % 2 == 1,
                Which::Unaligned(unit) => !at.offset.is_multiple_of(unit),
                Which::Crossing(unit) => start > 0 && place.offset.is_multiple_of(unit),
                Which::OwnRank => to == from.member,
                Which::OtherRanks => to != from.member,
                Which::FirstAfterQuiet => first,
                Which::OtherCores => from.core.0 > 0,
                Which::Again => again,
                Which::SinceQuiet(bytes) => sent >= bytes,
                Which::NoTail => tail.is_empty(),
                Which::EndsAt(unit) => (at.offset + whole as u64).is_multiple_of(unit),
                Which::FromRank(rank) => to.0 >= rank,
                Which::After(calls) => self.calls > calls,
            });
            if let (true, Some((_, when))) = (is_loose, loose_at) {
                due = match when {
                    When::Quiet => FORCED,
                    When::Steps(steps) => self.now + 1 + steps / 2 + self.dice.below(steps as usize) as u64,
                    When::Never => continue,
                };
            }
            let effect = Effect::new(Kind::Put, from, to, place, &bytes[start..end]);
            self.effects.push(Effect { due, loose: is_loose, whole, ..effect });
        }
    }

    /// Returns whether a word is lost.
    fn loses(&mut self, word: &Effect, number: u64) -> bool {
        let kind = word.kind;
        let near = |e: &Effect, line: u64| {
            let same_line = e.at.region == word.at.region && e.at.offset / line == word.at.offset / line;
            e.kind == Kind::Publish && e.to == word.to && same_line
        };
        match (self.animal.fault, kind) {
            (Some(Fault::Lost(of, every)), _) => of == kind && number.is_multiple_of(every),
            (Some(Fault::Unrepeated), Kind::Publish) => {
                let place = (word.from, word.to, word.at);
                self.published.insert(place, word.bytes.clone()).as_ref() == Some(&word.bytes)
            }
            (Some(Fault::Incast(most)), Kind::Publish) => {
                self.effects.iter().filter(|e| e.kind == kind && e.to == word.to).count() >= most
            }
            (Some(Fault::StoreContended(line)), Kind::Store) => self.effects.iter().any(|e| near(e, line)),
            (Some(Fault::Merges(line)), Kind::Publish) => {
                self.effects.retain(|e| e.from != word.from || !near(e, line));
                false
            }
            _ => false,
        }
    }

    pub(super) fn word(&mut self, from: Actor, to: RankId, at: Place, kind: Kind, bytes: &[u8]) {
        let number = self.count(from, kind);
        let mut due = self.due(kind, to, bytes.len());
        if self.loses(&Effect::new(kind, from, to, at, bytes), number) {
            return;
        }
        match (self.animal.fault, kind) {
            (Some(Fault::Unflushed), Kind::Publish) => due = FORCED,
            (Some(Fault::Multicast(every)), Kind::Publish) if number.is_multiple_of(every) => {
                let too = Effect::new(kind, from, RankId(to.0 + 1), at, bytes);
                self.effects.push(Effect { due, ..too });
            }
            _ => {}
        }
        let halves: &[(usize, usize)] = match self.animal.fault {
            Some(Fault::Torn) if kind == Kind::Publish => &[(0, 4), (4, 8)],
            Some(Fault::Half) if kind == Kind::Publish => &[(0, 4)],
            _ => &[(0, bytes.len())],
        };
        for (i, &(start, end)) in halves.iter().enumerate() {
            let later = if i == 0 || due == FORCED { due } else { due + 3 };
            let place = Place { offset: at.offset + start as u64, ..at };
            let loose = matches!(self.animal.fault, Some(Fault::Stores)) && kind == Kind::Store;
            self.effects.push(Effect {
                due: later,
                loose,
                ..Effect::new(kind, from, to, place, &bytes[start..end])
            });
        }
    }

    pub(super) fn send(&mut self, from: Actor, to: RankId, at: Place, message: &[u8]) {
        self.messages += 1;
        let unit = (message.len() / 6).next_multiple_of(8).max(8);
        let mut cuts: Vec<_> = (0..message.len()).step_by(unit).chain([message.len()]).collect();
        if let Some(Fault::TornMessage) = self.animal.fault {
            cuts.insert(cuts.len() - 1, message.len() - 4);
        }
        for ends in cuts.windows(2) {
            let (start, bytes) = (ends[0], &message[ends[0]..ends[1]]);
            let due = self.due(Kind::Message, to, message.len());
            let place = Place { offset: at.offset + start as u64, ..at };
            let loose = matches!(self.animal.fault, Some(Fault::Overtakes(above)) if message.len() > above);
            let effect = Effect::new(Kind::Message, from, to, place, bytes);
            self.effects.push(Effect { due, message: self.messages, loose, ..effect });
        }
    }

    pub(super) fn post(&mut self, from: Actor, transfer: &Transfer) -> Post {
        self.posts += 1;
        let busy = self.animal.pace.busy;
        let under_way = self.effects.iter().filter(|e| e.from == from && e.kind == Kind::Transfer).count();
        if busy > 0 && self.posts.is_multiple_of(busy) || under_way >= ROOM {
            return Post::Busy;
        }
        let Transfer { to, from: source, at, len } = *transfer;
        let len = match self.animal.fault {
            Some(Fault::CutTransfer(most)) if len > most => len - 8,
            _ => len,
        };
        let due = self.due(Kind::Transfer, to, len as usize);
        let effect = Effect::new(Kind::Transfer, from, to, at, &[]);
        self.effects.push(Effect { due, source, left: len, whole: len as usize, ..effect });
        Post::Posted
    }

    pub(super) fn quiet(&mut self, core: Actor) -> bool {
        let (fault, now) = (self.animal.fault, self.now);
        let last = self.last.get(&core).copied();
        let mut all = true;
        for e in &mut self.effects {
            if e.from != core || matches!(e.kind, Kind::Message | Kind::Transfer) {
                continue;
            }
            let passed = match fault {
                Some(Fault::Quiet(kind)) => e.kind == kind,
                Some(Fault::QuietOfRank { own }) => own == (e.to == core.member),
                Some(Fault::QuietAbove(len)) => e.whole > len,
                Some(Fault::QuietOfLast) => Some(e.to) != last,
                _ => false,
            };
            all &= passed;
            if e.due == FORCED && !passed {
                e.due = now + 1;
            }
        }
        let denied = self.denied.entry(core).or_default();
        *denied += 1;
        let quiet = match fault {
            Some(Fault::QuietAtSecondAsking) => all || *denied > 1,
            _ => all && *denied > self.animal.pace.denials,
        };
        if quiet {
            self.denied.remove(&core);
            self.since_quiet.remove(&core);
            if let Some(Fault::Stale { looks: Looks::Quiet, .. }) = fault {
                self.caches.remove(&core);
            }
        }
        quiet
    }

    fn wrapped(&self, at: Place) -> Place {
        match self.animal.fault {
            Some(Fault::Wrap(region, period, _)) if at.region == region => {
                Place { offset: at.offset % period, ..at }
            }
            _ => at,
        }
    }

    /// Returns the place that a reader of `at` reads.
    pub(super) fn read_at(&self, at: Place) -> Place {
        if let Some(Fault::Wrap(_, _, true)) = self.animal.fault { self.wrapped(at) } else { at }
    }

    /// Returns what a core sees at `at`, where memory has `fresh`. `line_at` reads the line at a place of the region.
    pub(super) fn seen(
        &mut self,
        core: Actor,
        at: Place,
        fresh: &[u8],
        observes: bool,
        line_at: impl Fn(Place, u64) -> Option<Vec<u8>>,
    ) -> Vec<u8> {
        let mut seen = fresh.to_vec();
        let Some(Fault::Stale { line, ahead, reads, looks }) = self.animal.fault else { return seen };
        let cache = self.caches.entry(core).or_default();
        cache.reads += 1;
        let now = cache.reads;
        cache.lines.retain(|_, (_, until)| *until > now);
        let (first, last) = (at.offset / line, (at.offset + fresh.len().max(1) as u64 - 1) / line);
        if observes && looks == Looks::All {
            cache.lines.clear();
        }
        if observes && looks == Looks::Line {
            cache.lines.remove(&Place { offset: first * line, ..at });
            return seen;
        }
        for number in first..=last + ahead {
            let start = Place { offset: number * line, ..at };
            let Some(fill) = line_at(start, line) else { continue };
            let (kept, _) = cache.lines.entry(start).or_insert((fill, now + reads));
            for (i, byte) in kept.iter().enumerate() {
                let offset = start.offset + i as u64;
                if let Some(inside) =
                    offset.checked_sub(at.offset).and_then(|inside| seen.get_mut(inside as usize))
                {
                    *inside = *byte;
                }
            }
        }
        seen
    }

    /// A word under way that its core, or an agent, sees already.
    pub(super) fn forwarded(&self, core: Actor, at: Place) -> Option<u64> {
        let fault = self.animal.fault;
        let shows = |e: &&Effect| {
            let own = e.from == core;
            let (publish, store) = (e.kind == Kind::Publish, e.kind == Kind::Store);
            (e.to, e.at) == (core.member, at)
                && match fault {
                    Some(Fault::OwnStore) => false,
                    Some(Fault::OwnPublish) => own && (publish || store),
                    Some(Fault::Peeks) if core.core == AGENT => publish || store,
                    _ => own && store,
                }
        };
        let newest = self.effects.iter().rev().find(shows)?;
        newest.bytes.first_chunk().copied().map(u64::from_le_bytes)
    }
}
