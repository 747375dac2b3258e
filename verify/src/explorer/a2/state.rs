//! A state of an A2 group.

use super::super::model::{Choice, Kind, Setup};
use super::super::phase::Phase;
use super::memory::{Memory, Scene};
use super::view::CLEARS;
use core::hash::{Hash, Hasher};
use kernel_core::protocol::Agent;
use std::collections::VecDeque;
use xxhash_rust::xxh3::xxh3_128;

/// What a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// A core, by its number in the group.
    Core(usize),
    /// The agent of a rank.
    Agent(usize),
    /// The next piece of a transfer, by its place in the flight.
    Arrive(usize),
    /// One effect of a core, if every landing is a move of its own.
    Land(usize, usize),
    /// The same of a core's barrier word, by parity.
    LandWord(usize, usize),
    /// The same of a rank's `bufferChosen`.
    LandFlip(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Core {
    pub(super) phase: Phase,
    /// Operators begun or about to begin.
    pub(super) op: u32,
    pub(super) words: Vec<u32>,
    /// What a step leaves in the scratch row for later ones.
    pub(super) row: Vec<u8>,
}

impl Core {
    /// A core about to begin operator `op`.
    pub(super) fn new(setup: &Setup<'_>, op: u32) -> Self {
        let (words, row) = (vec![0; setup.ub_words], vec![0; setup.staged_bytes]);
        Self { phase: Phase::Between, op, words, row }
    }
}

/// A state.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Rank-major.
    pub(super) cores: Vec<Core>,
    pub(super) agents: Vec<Agent>,
    /// Output bytes of each rank's current operator.
    pub(super) written: Vec<u32>,
    pub(super) memory: Memory,
    /// What each rank has chosen, by live round; the first is number `first_round`.
    pub(super) rounds: VecDeque<Vec<Option<Choice>>>,
    first_round: u32,
    /// What has happened, in words, if it is to be told.
    pub(super) story: Option<Vec<String>>,
}

impl Group {
    pub(super) fn new(scene: &Scene<'_>, told: bool) -> Self {
        let model = scene.setup.model;
        let ranks = model.ranks as usize;
        Self {
            cores: vec![Core::new(&scene.setup, 0); ranks * model.cores as usize],
            agents: vec![Agent::new(); ranks],
            written: vec![0; ranks],
            memory: Memory::new(scene),
            rounds: VecDeque::new(),
            first_round: 0,
            story: told.then(Vec::new),
        }
    }

    pub(super) fn moves(&self, setup: &Setup<'_>) -> Vec<Move> {
        let running = |&core: &usize| self.cores[core].phase != Phase::Between;
        let cores = (0..self.cores.len()).filter(running).map(Move::Core);
        let arrivals = (0..self.memory.flying.len()).map(Move::Arrive);
        let explicit = setup.model.memory == super::Landing::WeakExplicit;
        let agents = 0..if explicit { self.agents.len() } else { 0 };
        let agents = agents.filter(|&rank| self.is_rung(setup, rank)).map(Move::Agent);
        let late = 0..if explicit { self.cores.len() } else { 0 };
        let landings =
            late.clone().flat_map(|core| self.memory.may_land(core).map(move |i| Move::Land(core, i)));
        let is_late = |&(core, parity): &(usize, usize)| self.memory.core_words[core].late[parity].is_some();
        let words = late.flat_map(|core| [(core, 0), (core, 1)]).filter(is_late);
        let words = words.map(|(core, parity)| Move::LandWord(core, parity));
        let ranks = 0..if explicit { self.agents.len() } else { 0 };
        let flips = ranks.filter(|&rank| self.memory.flip[rank].is_some()).map(Move::LandFlip);
        cores.chain(agents).chain(arrivals).chain(landings).chain(words).chain(flips).collect()
    }

    /// Whether an agent has something to serve; else it is idle.
    pub(super) fn is_rung(&self, setup: &Setup<'_>, rank: usize) -> bool {
        let peers = (setup.model.ranks - 1).max(1);
        u64::from(self.memory.posted[rank] / peers) != self.memory.doorbell[rank]
    }

    /// Whether there is nothing left to do.
    pub(super) fn is_over(&self, setup: &Setup<'_>) -> bool {
        self.cores.iter().all(|core| setup.ended(core.op))
    }

    /// The operator that each rank is in: it has ended one when all of its cores have.
    pub(super) fn operators(&self, setup: &Setup<'_>) -> Vec<u32> {
        let cores = self.cores.chunks_exact(setup.model.cores as usize);
        cores.map(|cores| cores.iter().map(|core| core.op).min().unwrap_or(0)).collect()
    }

    pub(super) fn round(&mut self, batch: u32) -> &mut Vec<Option<Choice>> {
        let (at, ranks) = ((batch - self.first_round) as usize, self.agents.len());
        while self.rounds.len() <= at {
            self.rounds.push_back(vec![None; ranks]);
        }
        &mut self.rounds[at]
    }

    /// Forgets rounds whose combine all ranks have ended.
    pub(super) fn retire(&mut self, setup: &Setup<'_>) {
        // Batches are combined in order.
        let combined = |op: u32| {
            (0..op)
                .rev()
                .map(|op| setup.operator(op))
                .find(|op| op.0 == Kind::Combine)
                .map_or(0, |op| op.1 + 1)
        };
        let over = combined(self.operators(setup).into_iter().min().unwrap_or(0));
        while self.first_round < over && self.rounds.pop_front().is_some() {
            self.first_round += 1;
        }
    }

    /// A number that tells states apart, but for how long ago they began.
    pub(super) fn fingerprint(&self, setup: &Setup<'_>) -> u128 {
        let unit = setup.unit.len() as u32;
        let first_unit = self.cores.iter().map(|core| setup.unit_of(core.op)).min().unwrap_or(0);
        let peers = setup.model.ranks - 1;
        let first = first_unit * unit;
        let mut bytes = Bytes(Vec::with_capacity(2048));
        // What depends on the time: the machines' half, the model's half, the tags of rows.
        let halves = setup.model.partitions[0];
        (first % 2, first % halves, first_unit * setup.batches % setup.tags).hash(&mut bytes);
        if setup.model.units.is_some() {
            first_unit.hash(&mut bytes);
        }
        for core in &self.cores {
            (core.op - first, &core.phase, &core.words, &core.row).hash(&mut bytes);
        }
        for rank in 0..self.agents.len() {
            // All that there is of an agent: tasks posted.
            self.memory.posted[rank].wrapping_sub(first * peers).hash(&mut bytes);
            self.memory.doorbell[rank].wrapping_sub(first.into()).hash(&mut bytes);
        }
        (self.first_round.wrapping_sub(first_unit * setup.batches), &self.rounds, &self.written)
            .hash(&mut bytes);
        let Memory { areas, chosen, flip, core_words, late, flying, .. } = &self.memory;
        (areas, chosen, flip, core_words).hash(&mut bytes);
        for late in late.iter().flatten() {
            (late.spot, late.start, &late.bytes, late.store).hash(&mut bytes);
        }
        late.iter().for_each(|late| late.len().hash(&mut bytes));
        let mut flying: Vec<_> = flying.iter().collect();
        flying.sort_by_key(|flying| (flying.from, flying.to, flying.op));
        for flying in flying {
            let op = flying.op.wrapping_sub(first);
            (flying.from, flying.to, op, flying.len, flying.done).hash(&mut bytes);
        }
        xxh3_128(&bytes.0)
    }

    /// Adds to the story what a core did, in the line of what it did just before.
    pub(super) fn tell(&mut self, who: &str, did: &[String]) {
        let Some(story) = self.story.as_mut().filter(|_| !did.is_empty()) else { return };
        let told = story.last().is_some_and(|line| line.starts_with(who) && line.ends_with(CLEARS));
        let did: Vec<_> = did.iter().filter(|did| !told || *did != CLEARS).map(String::as_str).collect();
        let did = did.join("; ");
        if did.is_empty() {
            return;
        }
        match story.last_mut().filter(|line| line.starts_with(who)) {
            Some(line) => {
                line.push_str("; ");
                line.push_str(&did);
            }
            None => story.push(format!("{who}{did}")),
        }
    }

    /// Traffic of the live rounds, into that of all.
    pub(super) fn tell_traffic(&self, traffic: &mut Vec<Vec<Option<i32>>>) {
        for (round, choices) in (self.first_round as usize..).zip(&self.rounds) {
            let chosen: Option<Vec<_>> = choices.iter().copied().collect();
            if let Some(chosen) = chosen.filter(|_| round >= traffic.len()) {
                traffic.push(chosen);
            }
        }
    }
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
