//! The memory of a small group that records what happens in it as events of the model.

use crate::random::Random;
use core::cell::RefCell;
use kernel_core::fabric::order::{Issued, Kind as Effect};
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::layout::outputs::capacity;
use kernel_core::layout::state::{DISPATCH_STATUS, PARTITION, STATE_BYTES, STATUS_SLOT};
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::shape::Shape;
use kernel_core::sync::flag;
use kernel_core::units::{CoreId, RankId};
use std::collections::BTreeMap;
use verify::smt::model::Step;
use verify::smt::schedule::{Kind, Schedule};
use verify::smt::trace::Event;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    /// Nothing.
    Sound,
    /// Both partitions of a kind are the same memory.
    OnePartition(Kind),
    /// Clears of flags do nothing.
    NoClear,
    /// Quiet does not wait.
    HastyQuiet,
    /// Every flag reads as if it had arrived.
    NoWait,
    /// A publish overtakes its core's puts.
    FlagFirst,
    /// Cores do not wait for each other between operators.
    NoJoin,
}

struct RankMemory {
    state: Vec<u8>,
    window: Vec<u8>,
    /// By batch, then tensor.
    outputs: Vec<Vec<Vec<u8>>>,
}

struct InFlight {
    issued: Issued,
    bytes: Vec<u8>,
    event: Option<Event>,
}

/// All ranks' memory, what is in flight, and what has happened.
pub(crate) struct Memory<'s> {
    shape: &'s Shape,
    schedule: Schedule,
    twin: Twin,
    /// Of 256: how likely something lands at a tick. 256: at once.
    eagerness: u32,
    ranks: Vec<RankMemory>,
    flight: Vec<InFlight>,
    /// Cores that are quiet, by rank and operator.
    quiet: BTreeMap<(RankId, u32), u32>,
    /// What has happened.
    pub(crate) trace: RefCell<Vec<Event>>,
}

/// Lands at once.
pub(crate) const STRONG: u32 = 256;

impl<'s> Memory<'s> {
    pub(crate) fn new(
        shape: &'s Shape,
        schedule: Schedule,
        batches: usize,
        twin: Twin,
        eagerness: u32,
    ) -> Self {
        let rank = |rank| RankMemory {
            state: vec![0; STATE_BYTES as usize],
            window: vec![0; shape.window_bytes() as usize],
            outputs: (0..batches)
                .map(|_| Tensor::ALL.map(|t| vec![0; capacity(shape, rank, t) as usize]).into())
                .collect(),
        };
        Self {
            shape,
            schedule,
            twin,
            eagerness,
            ranks: (0..shape.ep_world_size()).map(RankId).map(rank).collect(),
            flight: Vec::new(),
            quiet: BTreeMap::new(),
            trace: RefCell::default(),
        }
    }

    pub(crate) fn record(&self, event: Event) {
        self.trace.borrow_mut().push(event);
    }

    pub(crate) fn output(&self, rank: RankId, batch: usize, tensor: Tensor) -> &[u8] {
        &self.ranks[rank.index()].outputs[batch][tensor as usize]
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, random: &mut Random) {
        if self.eagerness < STRONG && random.below(256) < self.eagerness {
            self.land_one(random);
        }
    }

    /// Lands something that may land now. `false` when nothing is in flight.
    pub(crate) fn land_one(&mut self, random: &mut Random) -> bool {
        if self.flight.is_empty() {
            return false;
        }
        let start = random.below(self.flight.len() as u32) as usize;
        // The oldest may always land.
        let next = (0..=start).rev().find(|&i| self.may_land(i)).unwrap_or(0);
        let effect = self.flight.remove(next);
        self.land(&effect);
        true
    }

    fn may_land(&self, i: usize) -> bool {
        let late = self.flight[i].issued;
        self.flight[..i].iter().all(|earlier| {
            let ordered = late.must_follow(&earlier.issued);
            let overtakes = self.twin == Twin::FlagFirst && earlier.issued.kind == Effect::Put;
            !ordered || overtakes
        })
    }

    fn issue(&mut self, effect: InFlight) {
        if self.eagerness == STRONG { self.land(&effect) } else { self.flight.push(effect) }
    }

    fn land(&mut self, effect: &InFlight) {
        let Issued { to, at, .. } = effect.issued;
        let memory = &mut self.ranks[to.index()];
        let region = if at.region == Region::State { &mut memory.state } else { &mut memory.window };
        region[at.offset as usize..][..effect.bytes.len()].copy_from_slice(&effect.bytes);
        self.trace.borrow_mut().extend(effect.event);
    }

    /// Which slot a place of `rank` belongs to: kind, partition, number; `None` for other words.
    fn slot(&self, rank: RankId, at: Place) -> Option<(Kind, u32, u64)> {
        let shape = self.shape;
        match at.region {
            Region::State if at.offset < 2 * PARTITION => {
                let within = at.offset % PARTITION;
                let partition = (at.offset / PARTITION) as u32;
                Some(match within.checked_sub(DISPATCH_STATUS) {
                    None => (Kind::Dispatch, partition, within / STATUS_SLOT),
                    Some(within) => (Kind::Combine, partition, within / STATUS_SLOT),
                })
            }
            Region::Window => {
                let half = shape.window_bytes() / 2;
                let (partition, within) = ((at.offset / half) as u32, at.offset % half);
                let Some(within) = within.checked_sub(shape.combine_area()) else {
                    return Some((Kind::Combine, partition, within / shape.combine_pitch()));
                };
                let block = within / shape.record_pitch() / u64::from(shape.bs_max());
                let experts = u64::from(shape.local_experts(rank));
                let (source, expert) = (block / experts, block % experts);
                Some((Kind::Dispatch, partition, expert * u64::from(shape.ep_world_size()) + source))
            }
            _ => None,
        }
    }

    /// The event of touching a slot of `rank` in operator `n`. The machines' own partition must be the model's.
    fn event(&self, step: Step, rank: RankId, at: Place, n: u32) -> Option<Event> {
        let (kind, partition, slot) = self.slot(rank, at)?;
        let of_model = (self.schedule.kind(n), self.schedule.partition(n));
        let folded = matches!(self.twin, Twin::OnePartition(_));
        assert!(folded || (kind, partition) == of_model, "{step} in operator {n} at {at}");
        Some(Event { step, rank: rank.index(), slot: slot as usize, n })
    }

    /// Where a place really is: the twin with one partition folds the second one onto the first.
    fn fold(&self, rank: RankId, at: Place) -> Place {
        let Twin::OnePartition(folded) = self.twin else { return at };
        match self.slot(rank, at) {
            Some((kind, 1, _)) if kind == folded => {
                let size = if at.region == Region::State { PARTITION } else { self.shape.window_bytes() / 2 };
                Place { offset: at.offset - size, ..at }
            }
            _ => at,
        }
    }
}

/// A core's view during one operator.
pub(crate) struct Core<'m, 's> {
    pub(crate) memory: &'m mut Memory<'s>,
    pub(crate) rank: RankId,
    pub(crate) core: CoreId,
    pub(crate) batch: usize,
    pub(crate) n: u32,
}

impl Core<'_, '_> {
    fn issued(&self, to: RankId, at: Place, kind: Effect) -> Issued {
        Issued { from: (self.rank, self.core), to, at, kind }
    }

    fn read(&self, at: Place, len: u64) -> &[u8] {
        let at = self.memory.fold(self.rank, at);
        let memory = &self.memory.ranks[self.rank.index()];
        let region = if at.region == Region::State { &memory.state } else { &memory.window };
        &region[at.offset as usize..][..len as usize]
    }
}

impl Fabric for Core<'_, '_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let at = self.memory.fold(to, at);
        let behind = Place { offset: at.offset + row.len() as u64, ..at };
        for (at, bytes) in [(at, row), (behind, tail)] {
            if !bytes.is_empty() {
                let event = self.memory.event(Step::Write, to, at, self.n);
                let issued = self.issued(to, at, Effect::Put);
                self.memory.issue(InFlight { issued, bytes: bytes.to_vec(), event });
            }
        }
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let at = self.memory.fold(to, at);
        let event = self.memory.event(Step::Land, to, at, self.n);
        let issued = self.issued(to, at, Effect::Publish);
        self.memory.issue(InFlight { issued, bytes: word.to_le_bytes().to_vec(), event });
        Ok(())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let me = (self.rank, self.core);
        let landed = self.memory.flight.iter().all(|effect| effect.issued.from != me);
        if !landed && self.memory.twin != Twin::HastyQuiet {
            return Ok(false);
        }
        let cores = self.memory.quiet.entry((self.rank, self.n)).or_default();
        *cores += 1;
        if *cores == self.memory.shape.aiv_num() {
            let event = Event { step: Step::Quiet, rank: self.rank.index(), slot: 0, n: self.n };
            self.memory.record(event);
        }
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let at = self.memory.fold(self.rank, at);
        // A core sees its own stores before anybody else does.
        let mine = self.issued(self.rank, at, Effect::Store);
        let own = self.memory.flight.iter().rev().find(|effect| effect.issued == mine);
        let seen = own.map_or_else(|| self.read(at, 8), |effect| &effect.bytes);
        let seen = seen.try_into().map_or(0, u64::from_le_bytes);
        let is_flag = self.memory.slot(self.rank, at);
        Ok(match is_flag {
            Some((Kind::Dispatch, ..)) if seen == 0 && self.memory.twin == Twin::NoWait => flag::status(0),
            Some((Kind::Combine, ..)) if self.memory.twin == Twin::NoWait => flag::ARRIVED,
            _ => seen,
        })
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let at = self.memory.fold(self.rank, at);
        if let Some(taken) = self.memory.event(Step::Take, self.rank, at, self.n) {
            self.memory.record(taken);
            if self.memory.twin == Twin::NoClear {
                return Ok(());
            }
        }
        let event = self.memory.event(Step::Clear, self.rank, at, self.n);
        let issued = self.issued(self.rank, at, Effect::Store);
        self.memory.issue(InFlight { issued, bytes: word.to_le_bytes().to_vec(), event });
        Ok(())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let folded = self.memory.fold(self.rank, at);
        self.memory.trace.borrow_mut().extend(self.memory.event(Step::Read, self.rank, folded, self.n));
        Ok(self.read(at, len))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let Region::Output(tensor) = at.region else {
            return Err(Fault::new(self.rank, at, bytes.len() as u64));
        };
        let output = &mut self.memory.ranks[self.rank.index()].outputs[self.batch][tensor as usize];
        output[at.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.write(output, &bytes)
    }
}
