//! One core's fabric and one agent's interface over loom's memory: orderings are those of `veriep_core::fabric::raw`, which
//! stand in `veriep_core::fabric::coherent`.

use super::Bend;
use super::memory::Memory;
use crate::loom::domain::{Seated, drive};
use crate::loom::memory::Outputs;
use crate::loom::trace::{self, Access, Event};
use ::loom::sync::atomic::Ordering;
use bumpalo::Bump;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::fabric::coherent::{OBSERVE, PUBLISH, SOURCE, STORE, TRANSFER};
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Capabilities, Fabric, Fault, Progress, ProtocolError};
use veriep_core::layout::a2_message::{DOORBELL, MESSAGE_SLOT, doorbell};
use veriep_core::layout::a2_window::{buffer_chosen, half_start};
use veriep_core::layout::state::{Partition, core_word};
use veriep_core::place::{Place, Region};
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Agent, AgentEnv};
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId};

/// What a core or an agent acts on.
#[derive(Clone, Debug)]
pub struct RankView {
    /// The memory of all.
    pub memory: Rc<Memory>,
    /// The domain as this rank sees it.
    pub shape: Arc<Shape>,
    /// Whose.
    pub rank: RankId,
    /// What is broken.
    pub bend: Bend,
}

impl RankView {
    /// Where a place is, if two are one.
    fn folded(&self, at: Place) -> Place {
        let half = half_start(&self.shape, Partition::P1);
        let offset = match (self.bend, at.region) {
            (Bend::OneMessageSlot, Region::State) if at.offset < DOORBELL => at.offset % MESSAGE_SLOT,
            (Bend::OneHalf, Region::Window | Region::WindowOut) if at != buffer_chosen(&self.shape) => {
                at.offset % half
            }
            _ => at.offset,
        };
        Place { offset, ..at }
    }

    const fn fault(&self, at: Place, len: u64) -> Fault {
        Fault::new(self.rank, at, len)
    }

    fn note(&self, core: CoreId, access: Access) {
        trace::note(Event { rank: self.rank, core, access });
    }
}

/// The fabric of one core.
#[derive(Debug)]
pub struct CoreFabric {
    view: RankView,
    core: CoreId,
    /// Of the running operator.
    outputs: Rc<Outputs>,
    /// Words as only their owner reads them, so that loom need not branch on them.
    private: BTreeMap<Place, u64>,
    /// Copies of the rows that a machine looks at.
    copies: Bump,
    /// By operator: the flags that it waits for.
    awaited: Vec<BTreeSet<Place>>,
    /// The running operator.
    operator: usize,
    /// What has not landed.
    late: Vec<(Place, u64)>,
    /// The interface of an agent that goes on whenever this core waits.
    folded: Option<AgentNic>,
}

impl CoreFabric {
    /// The fabric of `core`, which waits for the flags `awaited` of each operator.
    #[must_use]
    pub fn new(
        view: RankView,
        core: CoreId,
        awaited: Vec<BTreeSet<Place>>,
        folded: Option<AgentNic>,
    ) -> Self {
        let (outputs, late, private) = (Rc::default(), Vec::new(), BTreeMap::new());
        Self { view, core, outputs, private, copies: Bump::new(), awaited, operator: 0, late, folded }
    }

    /// Its rank.
    #[must_use]
    pub const fn rank(&self) -> RankId {
        self.view.rank
    }

    fn is_private(&self, at: Place) -> bool {
        let alone = self.view.shape.aiv_num() == 1;
        let own = [core_word(self.core, 0), core_word(self.core, 1)].contains(&at);
        own || at == doorbell() && self.core.0 == 0 || alone && at == buffer_chosen(&self.view.shape)
    }

    /// Writes whole words of the own rank; those that mean nothing are forgotten.
    fn write_words(&self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        let at = self.view.folded(at);
        if !self.view.memory.has(at, at.offset..at.offset + len) {
            return Err(self.view.fault(at, len));
        }
        let words = bytes.as_chunks().0;
        for (distance, word) in self.view.memory.words(self.view.rank, at, len) {
            if let Some(&value) = words.get(distance as usize / 8) {
                // Nobody else is there: the barrier or the doorbell speaks for it.
                word.store(u64::from_le_bytes(value), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn write_word(&mut self, at: Place, word: u64, ordering: Ordering) -> Result<(), Fault> {
        self.view.note(self.core, Access::Word(self.view.rank, at, word));
        let is_private = self.is_private(at);
        if is_private {
            self.private.insert(at, word);
        }
        match self.view.memory.word(self.view.rank, self.view.folded(at)) {
            Some(known) => known.store(word, ordering),
            None if is_private => {}
            None => return Err(self.view.fault(at, 8)),
        }
        Ok(())
    }
}

impl Fabric for CoreFabric {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.view.note(self.core, Access::Put(to, at));
        if to != self.view.rank || at.region != Region::Window || !tail.is_empty() {
            return Err(Fault::new(to, at, (row.len() + tail.len()) as u64));
        }
        self.write_words(at, row)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if to != self.view.rank {
            return Err(Fault::new(to, at, 8));
        }
        let rings = at == doorbell();
        let relaxed = rings && self.view.bend == Bend::RelaxedDoorbell;
        self.write_word(at, word, if relaxed { Ordering::Relaxed } else { PUBLISH })?;
        if rings {
            let late = core::mem::take(&mut self.late);
            late.into_iter().try_for_each(|(at, word)| match at.region {
                Region::WindowOut => self.write_words(at, &word.to_le_bytes()),
                _ => self.write_word(at, word, STORE),
            })?;
        }
        Ok(())
    }

    /// A release store is after all that its thread did before, so there is nothing to wait for.
    fn quiet(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if self.is_private(at) {
            return Ok(self.private.get(&at).copied().unwrap_or(0));
        }
        let view = &self.view;
        let relaxed = view.bend == Bend::RelaxedObserve;
        let ordering = if relaxed { Ordering::Relaxed } else { OBSERVE };
        let Some(known) = view.memory.word(view.rank, view.folded(at)) else {
            // Nothing that is meant was ever written there.
            return if view.memory.has(at, at.offset..at.offset + 8) {
                Ok(0)
            } else {
                Err(view.fault(at, 8))
            };
        };
        let word = known.load(ordering);
        view.note(self.core, Access::Saw(at, word));
        if view.bend == Bend::EarlyFlip && self.core.0 == 0 && at == buffer_chosen(&view.shape) {
            known.store(word ^ 1, Ordering::Relaxed);
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let flips = at == buffer_chosen(&self.view.shape);
        let clears = at.region == Region::Window && !flips;
        match self.view.bend {
            Bend::EarlyFlip if flips => Ok(()),
            Bend::NoClears if clears => Ok(()),
            Bend::SeedClears if clears && !self.awaited[self.operator].contains(&at) => Ok(()),
            Bend::LateTasks if at.region == Region::State => {
                self.late.push((at, word));
                Ok(())
            }
            _ => self.write_word(at, word, STORE),
        }
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let view = &self.view;
        view.note(self.core, Access::Read(at));
        let at = view.folded(at);
        if !view.memory.has(at, at.offset..at.offset + len) {
            return Err(view.fault(at, len));
        }
        let bytes = self.copies.alloc_slice_fill_copy(len as usize, 0);
        for (distance, word) in view.memory.words(view.rank, at, len) {
            let to = bytes.get_mut(distance as usize..).and_then(|rest| rest.first_chunk_mut());
            *to.ok_or(view.fault(at, len))? = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Ok(bytes)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.view.note(self.core, Access::Wrote(at));
        match at.region {
            Region::WindowOut if self.view.bend == Bend::LateWrites => {
                let words = (0..).step_by(8).zip(bytes.as_chunks().0);
                let late = words.map(|(shift, &word)| {
                    (Place { offset: at.offset + shift, ..at }, u64::from_le_bytes(word))
                });
                self.late.extend(late);
                Ok(())
            }
            Region::WindowOut => self.write_words(at, bytes),
            Region::Output(tensor) => {
                let written = self.outputs.tensor(tensor).write(at.offset, bytes);
                written.ok_or(self.view.fault(at, bytes.len() as u64))
            }
            _ => Err(self.view.fault(at, bytes.len() as u64)),
        }
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.write(output, &bytes)
    }
}

impl Seated for CoreFabric {
    fn begin(&mut self, n: usize, outputs: Rc<Outputs>) {
        (self.operator, self.outputs) = (n, outputs);
        self.copies.reset();
    }

    /// Who waits lets his agent go on.
    fn answer(&mut self, progress: Progress) -> Result<Progress, ProtocolError> {
        let (Progress::Pending(_), Some(nic)) = (progress, &mut self.folded) else { return Ok(progress) };
        Ok(if nic.step()? == Progress::Stepped { Progress::Stepped } else { progress })
    }

    fn leave(&mut self) {
        self.folded.take().into_iter().for_each(AgentNic::serve);
    }
}

/// The interface of one agent, and the agent.
#[derive(Debug)]
pub struct AgentNic {
    view: RankView,
    /// Transfers wait for the next one and are delivered behind it.
    pub late: bool,
    agent: Agent,
    /// Transfers that it has still to post.
    tasks: usize,
    held: Vec<Transfer>,
}

impl AgentNic {
    /// The interface of the agent of a rank, which posts so many tasks.
    #[must_use]
    pub const fn new(view: RankView, late: bool, tasks: usize) -> Self {
        Self { view, late, agent: Agent::new(), tasks, held: Vec::new() }
    }

    /// Lets the agent step.
    fn step(&mut self) -> Result<Progress, ProtocolError> {
        if self.tasks == 0 {
            self.flush();
            return Ok(Progress::Done);
        }
        let (shape, mut agent) = (Arc::clone(&self.view.shape), self.agent.clone());
        let env = AgentEnv::new(&shape, self.view.rank, SendOrder::Staggered);
        let progress = agent.step(&shape, &env, self);
        self.agent = agent;
        progress
    }

    /// Serves to the end.
    pub(super) fn serve(mut self) {
        if let Err(error) = drive(|| self.step()) {
            panic!("agent of rank {}: {error}", self.view.rank);
        }
    }

    /// Delivers what has been held back.
    pub fn flush(&mut self) {
        for transfer in core::mem::take(&mut self.held).iter().rev() {
            self.deliver(transfer);
        }
    }

    fn deliver(&self, &Transfer { to, from, at, len }: &Transfer) {
        let view = &self.view;
        let (from, at) = (view.folded(from), view.folded(at));
        let ordering = match view.bend {
            Bend::RelaxedTransfer => Ordering::Relaxed,
            _ => TRANSFER,
        };
        let mut words: Vec<_> = view.memory.words(to, at, len).collect();
        if view.bend == Bend::LastWordFirst {
            words.rotate_right(1);
        }
        for (distance, word) in words {
            let source = Place { offset: from.offset + distance, ..from };
            let value = view.memory.word(view.rank, source).map_or(0, |word| word.load(SOURCE));
            let place = Place { offset: at.offset + distance, ..at };
            trace::note(Event { rank: view.rank, core: CoreId(0), access: Access::Sent(to, place, value) });
            word.store(value, ordering);
        }
    }
}

impl Nic for AgentNic {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let view = &self.view;
        let relaxed = view.bend == Bend::RelaxedAgent;
        let ordering = if relaxed { Ordering::Relaxed } else { OBSERVE };
        let word = view.memory.word(view.rank, view.folded(at)).ok_or(view.fault(at, 8))?;
        Ok(word.load(ordering))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        transfer.check(self.view.rank)?;
        let Transfer { from, at, len, .. } = *transfer;
        for place in [from, at] {
            let end = place.offset.checked_add(len).ok_or(self.view.fault(place, len))?;
            if !self.view.memory.has(place, place.offset..end) {
                return Err(self.view.fault(place, len));
            }
        }
        self.tasks = self.tasks.saturating_sub(1);
        if self.late && self.held.is_empty() {
            self.held.push(*transfer);
        } else {
            self.deliver(transfer);
            self.flush();
        }
        Ok(Post::Posted)
    }
}
