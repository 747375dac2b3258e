//! A state of a hierarchy.

use super::super::model::{Choice, Kind, Setup};
use super::super::phase::Phase;
use super::memory::{Heard, Memory, RANKS};
use core::hash::{Hash, Hasher};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_128;

/// All that is a core's own: its phase and its scratch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Local {
    pub(super) phase: Phase,
    pub(super) words: Vec<u32>,
    pub(super) row: Vec<u8>,
}

/// Numbers for what cores and rows hold, so that states stay small.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    locals: HashMap<Rc<Local>, u32>,
    by_local: Vec<Rc<Local>>,
    bodies: HashMap<Vec<u8>, u16>,
    by_body: Vec<Vec<u8>>,
}

impl Numbers {
    pub(super) fn local(&mut self, local: Local) -> u32 {
        if let Some(&number) = self.locals.get(&local) {
            return number;
        }
        let (number, local) = (self.by_local.len() as u32, Rc::new(local));
        self.by_local.push(Rc::clone(&local));
        self.locals.insert(local, number);
        number
    }

    pub(super) fn local_of(&self, number: u32) -> &Local {
        &self.by_local[number as usize]
    }

    pub(super) fn body(&mut self, bytes: &[u8]) -> u16 {
        if let Some(&number) = self.bodies.get(bytes) {
            return number;
        }
        let number = self.by_body.len() as u16;
        self.by_body.push(bytes.to_vec());
        self.bodies.insert(bytes.to_vec(), number);
        number
    }

    pub(super) fn body_of(&self, number: u16) -> &[u8] {
        &self.by_body[number as usize]
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Core {
    /// By its number; 0 is between operators.
    pub(super) local: u32,
    /// Operators begun or about to begin.
    pub(super) op: u32,
    /// Operators begun by its own count, the word in its window.
    pub(super) epoch: u32,
    /// Of every rank: the operator that it has begun, as far as this core has heard; no later than its own.
    pub(super) heard: Heard,
}

/// A state.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Rank-major.
    pub(super) cores: Vec<Core>,
    /// Output bytes of each rank's current operator.
    pub(super) written: Vec<u32>,
    pub(super) memory: Memory,
    /// Traffic of the live rounds, by number of its matrix; the first is number `first_round`.
    pub(super) rounds: VecDeque<u16>,
    pub(super) first_round: u32,
    /// What has happened, in words, if it is to be told.
    pub(super) story: Option<Vec<String>>,
}

impl Group {
    pub(super) fn new(setup: &Setup<'_>, told: bool) -> Self {
        let (ranks, cores) = (setup.model.ranks as usize, setup.model.cores as usize);
        Self {
            cores: vec![Core { local: 0, op: 0, epoch: 0, heard: [0; RANKS] }; ranks * cores],
            written: vec![0; ranks],
            memory: Memory::default(),
            rounds: VecDeque::new(),
            first_round: 0,
            story: told.then(Vec::new),
        }
    }

    /// The operator that a rank is in: it has ended one when all of its cores have.
    pub(super) fn operator(&self, setup: &Setup<'_>, rank: usize) -> u32 {
        let cores = setup.model.cores as usize;
        self.cores[rank * cores..][..cores].iter().map(|core| core.op).min().unwrap_or(0)
    }

    /// The traffic of a batch, if that has begun.
    pub(super) fn matrix(&self, batch: u32) -> Option<u16> {
        self.rounds.get(batch.checked_sub(self.first_round)? as usize).copied()
    }

    /// Forgets rounds whose combine all ranks have ended.
    pub(super) fn retire(&mut self, setup: &Setup<'_>) {
        let last = self.cores.iter().map(|core| core.op).min().unwrap_or(0);
        let combines = (0..last).rev().map(|op| setup.operator(op)).find(|op| op.0 == Kind::Combine);
        let over = combines.map_or(0, |op| op.1 + 1);
        while self.first_round < over && self.rounds.pop_front().is_some() {
            self.first_round += 1;
        }
    }

    /// A number that tells states apart, but for how long ago they began.
    pub(super) fn fingerprint(&self, setup: &Setup<'_>) -> u128 {
        let first_unit = self.cores.iter().map(|core| setup.unit_of(core.op)).min().unwrap_or(0);
        let first = first_unit * setup.unit.len() as u32;
        let since = |op: u32| op.wrapping_sub(first);
        let ranks = setup.model.ranks as usize;
        let heard = |heard: &Heard| -> Heard {
            core::array::from_fn(|rank| if rank < ranks { since(heard[rank]) } else { 0 })
        };
        let mut bytes = Bytes(Vec::with_capacity(1024));
        // What depends on the time: the machines' partition, the model's, the tags of rows.
        (first % 2, first % setup.model.partitions[0], first_unit * setup.batches % setup.tags)
            .hash(&mut bytes);
        if setup.model.units.is_some() {
            first_unit.hash(&mut bytes);
        }
        for core in &self.cores {
            (since(core.op), core.local, since(core.epoch), heard(&core.heard)).hash(&mut bytes);
        }
        (self.first_round.wrapping_sub(first_unit * setup.batches), &self.rounds, &self.written)
            .hash(&mut bytes);
        self.memory.cells.len().hash(&mut bytes);
        for cell in &self.memory.cells {
            let value = &cell.value;
            (cell.rank, cell.spot, since(value.op), value.number, value.body, heard(&value.heard))
                .hash(&mut bytes);
        }
        let mut flight: Vec<_> = self.memory.flight.iter().collect();
        // Effects of different cores, or to different ranks, have no order among each other.
        flight.sort_by_key(|effect| (effect.issued.from, effect.issued.to));
        for effect in flight {
            let value = &effect.value;
            (effect.issued.from, effect.issued.to, effect.spot, effect.seen).hash(&mut bytes);
            (since(value.op), value.number, value.body, heard(&value.heard)).hash(&mut bytes);
        }
        xxh3_128(&bytes.0)
    }

    /// Adds to the story what a core did, in the line of what it did just before.
    pub(super) fn tell(&mut self, who: &str, did: &[String]) {
        let Some(story) = self.story.as_mut().filter(|_| !did.is_empty()) else { return };
        let did = did.join("; ");
        match story.last_mut().filter(|line| line.starts_with(who)) {
            Some(line) => {
                line.push_str("; ");
                line.push_str(&did);
            }
            None => story.push(format!("{who}{did}")),
        }
    }

    /// Traffic of the live rounds, into that of all.
    pub(super) fn tell_traffic(&self, matrices: &[Vec<Choice>], traffic: &mut Vec<Vec<Option<i32>>>) {
        for (round, &matrix) in (self.first_round as usize..).zip(&self.rounds) {
            if round >= traffic.len() {
                traffic.push(matrices[usize::from(matrix)].clone());
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
