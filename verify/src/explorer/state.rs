//! A state: all machines, all memory, all effects that have not landed.

use super::model::{Choice, Setup};
use super::phase::Phase;
use core::hash::{Hash, Hasher};
use kernel_core::fabric::order::Issued;
use kernel_core::place::Place;
use kernel_core::units::RankId;
use std::collections::{HashMap, VecDeque};
use xxhash_rust::xxh3::xxh3_128;

/// Words of scratch that a model's core may need.
pub(super) const UB_WORDS: usize = 16;

/// A core.
#[derive(Clone, Debug)]
pub(super) struct Core {
    pub(super) phase: Phase,
    /// Operators begun or about to begin, from the beginning.
    pub(super) op: u32,
    pub(super) ub: [u32; UB_WORDS],
    /// What a step leaves in the scratch row for later ones.
    pub(super) row: Vec<u8>,
    /// Whether it has put something since its last quiet. Only the twin that asks looks at it.
    pub(super) sent: bool,
    /// Changes where a twin steps instead of waiting.
    pub(super) polled: bool,
}

/// What an effect does when it lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Value {
    /// Bytes, by their number.
    Row(u16),
    Word(u64),
}

/// An effect in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Effect {
    pub(super) issued: Issued,
    pub(super) value: Value,
}

/// A round that somebody has begun and not everybody ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Round {
    /// What each rank has chosen so far.
    pub(super) choices: Vec<Option<Choice>>,
    /// Cores that have ended its last operator.
    pub(super) ended: u32,
}

/// Memory, sparse: what is not there is zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    /// Words that are not zero, by the number of their place.
    pub(super) words: Vec<(u16, u64)>,
    /// Rows that have landed and that nobody has read, by the number of their place.
    pub(super) rows: Vec<(u16, u16)>,
    pub(super) flight: Vec<Effect>,
}

impl Shared {
    pub(super) fn word(&self, at: u16) -> u64 {
        self.words.iter().find(|(place, _)| *place == at).map_or(0, |(_, word)| *word)
    }

    pub(super) fn set_word(&mut self, at: u16, word: u64) {
        set(&mut self.words, at, (word != 0).then_some(word));
    }

    pub(super) fn set_row(&mut self, at: u16, row: Option<u16>) {
        set(&mut self.rows, at, row);
    }
}

/// Keeps a list sorted by place.
fn set<T>(list: &mut Vec<(u16, T)>, at: u16, value: Option<T>) {
    match (list.binary_search_by_key(&at, |(place, _)| *place), value) {
        (Ok(i), Some(value)) => list[i].1 = value,
        (Ok(i), None) => {
            list.remove(i);
        }
        (Err(i), Some(value)) => list.insert(i, (at, value)),
        (Err(_), None) => {}
    }
}

/// A state.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Rank-major.
    pub(super) cores: Vec<Core>,
    pub(super) shared: Shared,
    /// Live rounds; the first is number `first_round`.
    pub(super) rounds: VecDeque<Round>,
    pub(super) first_round: u32,
    /// Output bytes that each rank has written in its current operator.
    pub(super) written: Vec<u32>,
    /// The cores that stepped, in order; kept only while a way is told again.
    pub(super) log: Option<Vec<usize>>,
}

impl State {
    pub(super) fn new(setup: &Setup<'_>) -> Self {
        let row = vec![0; setup.staged_bytes];
        let core = Core { phase: Phase::Between, op: 0, ub: [0; UB_WORDS], row, sent: false, polled: false };
        Self {
            cores: vec![core; setup.envs.len()],
            shared: Shared::default(),
            rounds: VecDeque::new(),
            first_round: 0,
            written: vec![0; setup.model.ranks as usize],
            log: None,
        }
    }

    /// The live round of a batch; made if it does not exist yet.
    pub(super) fn round(&mut self, setup: &Setup<'_>, batch: u32) -> &mut Round {
        let at = (batch - self.first_round) as usize;
        while self.rounds.len() <= at {
            self.rounds.push_back(Round { choices: vec![None; setup.model.ranks as usize], ended: 0 });
        }
        &mut self.rounds[at]
    }

    /// Forgets rounds that all cores have ended.
    pub(super) fn retire(&mut self, setup: &Setup<'_>) {
        while self.rounds.front().is_some_and(|round| round.ended as usize == setup.envs.len()) {
            self.rounds.pop_front();
            self.first_round += 1;
        }
    }

    /// A number that tells states apart: equal for states that differ only in how long ago they began.
    pub(super) fn fingerprint(&self, setup: &Setup<'_>) -> u128 {
        let first_unit = self.cores.iter().map(|core| setup.unit_of(core.op)).min().unwrap_or(0);
        // Tags, partitions and epochs repeat; a group that ends does not.
        let [d, c] = setup.model.partitions;
        let period = lcm(lcm(setup.tags, d), lcm(c, 4));
        let phase = if setup.model.units.is_some() { first_unit } else { first_unit % period };
        let mut bytes = Bytes(Vec::with_capacity(512));
        phase.hash(&mut bytes);
        for core in &self.cores {
            (core.op - first_unit * setup.unit.len() as u32).hash(&mut bytes);
            core.phase.hash(&mut bytes);
            core.ub[..setup.ub_words].hash(&mut bytes);
            core.row.hash(&mut bytes);
            (core.sent, core.polled).hash(&mut bytes);
        }
        (self.first_round - first_unit * setup.batches).hash(&mut bytes);
        self.rounds.hash(&mut bytes);
        self.written.hash(&mut bytes);
        self.shared.words.hash(&mut bytes);
        self.shared.rows.hash(&mut bytes);
        let mut flight: Vec<_> = self.shared.flight.iter().collect();
        // Effects of different cores, or to different ranks, have no order among each other.
        flight.sort_by_key(|effect| (effect.issued.from, effect.issued.to));
        flight.hash(&mut bytes);
        xxh3_128(&bytes.0)
    }
}

fn lcm(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Collects what is hashed.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Numbers for places and rows, so that states stay small.
#[derive(Debug, Default)]
pub(super) struct Interner {
    places: HashMap<(RankId, Place), u16>,
    by_place: Vec<(RankId, Place)>,
    rows: HashMap<Vec<u8>, u16>,
    by_row: Vec<Vec<u8>>,
}

impl Interner {
    pub(super) fn place(&mut self, rank: RankId, at: Place) -> u16 {
        let next = self.by_place.len() as u16;
        let by_place = &mut self.by_place;
        *self.places.entry((rank, at)).or_insert_with(|| {
            by_place.push((rank, at));
            next
        })
    }

    /// The number of a place, if anybody ever wrote there.
    pub(super) fn known(&self, rank: RankId, at: Place) -> Option<u16> {
        self.places.get(&(rank, at)).copied()
    }

    pub(super) fn place_of(&self, number: u16) -> (RankId, Place) {
        self.by_place[number as usize]
    }

    pub(super) fn row(&mut self, bytes: Vec<u8>) -> u16 {
        let next = self.by_row.len() as u16;
        let by_row = &mut self.by_row;
        *self.rows.entry(bytes).or_insert_with_key(|bytes| {
            by_row.push(bytes.clone());
            next
        })
    }

    pub(super) fn row_of(&self, number: u16) -> &[u8] {
        &self.by_row[number as usize]
    }
}
