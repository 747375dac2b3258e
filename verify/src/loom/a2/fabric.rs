//! One core's fabric and one agent's interface over loom's memory: the very ones of `veriep_core::fabric::raw`, over cells that
//! are loom's objects.

use super::Bend;
use super::memory::Memory;
use crate::loom::domain::{Seated, drive};
use crate::loom::memory::Outputs;
use crate::loom::trace::{self, Access, Event};
use ::loom::sync::atomic::Ordering;
use bumpalo::Bump;
use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::fabric::coherent::{Cells, CoherentFabric, CoherentNic, Copied};
use veriep_core::fabric::middleware::Middleware;
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
    pub memory: Rc<Memory>,
    /// The domain as this rank sees it.
    pub shape: Arc<Shape>,
    pub rank: RankId,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Core(CoreId),
    Agent,
}

/// What a core or an agent reaches.
#[derive(Debug)]
pub struct A2Cells {
    view: RankView,
    actor: Actor,
    /// Of the running operator.
    outputs: Rc<Outputs>,
    /// Words as only their owner reads them, so that loom need not branch on them.
    private: Rc<RefCell<BTreeMap<Place, u64>>>,
    /// Copies of the rows that a machine looks at.
    copies: Bump,
}

impl A2Cells {
    fn new(view: RankView, actor: Actor) -> Self {
        Self { view, actor, outputs: Rc::default(), private: Rc::default(), copies: Bump::new() }
    }

    fn with_outputs(&self, outputs: Rc<Outputs>) -> Self {
        let private = Rc::clone(&self.private);
        Self { outputs, private, ..Self::new(self.view.clone(), self.actor) }
    }

    /// An agent's accesses are noted as those of core 0.
    fn note(&self, access: Access) {
        let core = if let Actor::Core(core) = self.actor { core } else { CoreId(0) };
        trace::note(Event { rank: self.view.rank, core, access });
    }

    fn is_private(&self, rank: RankId, at: Place) -> bool {
        let Actor::Core(core) = self.actor else { return false };
        let alone = self.view.shape.aiv_num() == 1;
        let own = [core_word(core, 0), core_word(core, 1)].contains(&at);
        let mine = own || at == doorbell() && core.0 == 0 || alone && at == buffer_chosen(&self.view.shape);
        mine && rank == self.view.rank
    }

    /// The ordering that a twin makes of the one that the fabric asks for.
    fn bent(&self, at: Place, ordering: Ordering) -> Ordering {
        let is_agent = self.actor == Actor::Agent;
        let relaxed = match (self.view.bend, ordering) {
            (Bend::RelaxedTransfer, Ordering::Release) => is_agent,
            (Bend::RelaxedAgent, Ordering::Acquire) => is_agent,
            (Bend::RelaxedObserve, Ordering::Acquire) => !is_agent,
            (Bend::RelaxedDoorbell, Ordering::Release) => at == doorbell(),
            _ => false,
        };
        if relaxed { Ordering::Relaxed } else { ordering }
    }

    /// Writes whole words of the own rank; those that mean nothing are forgotten.
    fn write_words(&self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        let at = self.view.folded(at);
        self.check(self.view.rank, at, len)?;
        let words = bytes.as_chunks().0;
        for (distance, word) in self.view.memory.words(self.view.rank, at, len) {
            if let Some(&value) = words.get(distance as usize / 8) {
                // Nobody else is there: the barrier or the doorbell speaks for it.
                word.store(u64::from_le_bytes(value), Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl Cells for A2Cells {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn own(&self, _: Place) -> RankId {
        self.view.rank
    }

    fn is_far(&self, _: RankId) -> bool {
        false
    }

    fn check(&self, rank: RankId, at: Place, len: u64) -> Result<(), Fault> {
        let end = at.offset.checked_add(len);
        let exists = end.is_some_and(|end| self.view.memory.has(at, at.offset..end));
        if exists { Ok(()) } else { Err(Fault::new(rank, at, len)) }
    }

    fn load(&self, rank: RankId, at: Place, ordering: Ordering) -> Result<u64, Fault> {
        if self.is_private(rank, at) {
            return Ok(self.private.borrow().get(&at).copied().unwrap_or(0));
        }
        let Some(known) = self.view.memory.word(rank, self.view.folded(at)) else {
            // Nothing that is meant was ever written there.
            return self.check(rank, at, 8).map(|()| 0);
        };
        let word = known.load(self.bent(at, ordering));
        if ordering != Ordering::Relaxed && self.actor != Actor::Agent {
            self.note(Access::Saw(at, word));
        }
        Ok(word)
    }

    fn store(&self, to: RankId, at: Place, word: u64, ordering: Ordering) -> Result<(), Fault> {
        let is_private = self.is_private(to, at);
        if is_private {
            self.private.borrow_mut().insert(at, word);
        }
        match self.view.memory.word(to, self.view.folded(at)) {
            Some(known) => {
                self.note(match self.actor {
                    Actor::Core(_) => Access::Word(to, at, word),
                    Actor::Agent => Access::Sent(to, at, word),
                });
                known.store(word, self.bent(at, ordering));
            }
            None if is_private => {}
            // A transfer also carries words that mean nothing.
            None if self.actor == Actor::Agent => self.check(to, at, 8)?,
            None => return Err(Fault::new(to, at, 8)),
        }
        Ok(())
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<Copied, Fault> {
        self.note(Access::Put(to, at));
        if to != self.view.rank || at.region != Region::Window || !tail.is_empty() {
            return Err(Fault::new(to, at, (row.len() + tail.len()) as u64));
        }
        self.write_words(at, row).map(|()| Copied::Cached)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<Copied, Fault> {
        let bytes = self.bytes(self.view.rank, from, len)?.to_vec();
        self.write(output, &bytes).map(|()| Copied::Cached)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.note(Access::Wrote(at));
        let fault = self.view.fault(at, bytes.len() as u64);
        match at.region {
            Region::WindowOut => self.write_words(at, bytes),
            Region::Output(tensor) => self.outputs.tensor(tensor).write(at.offset, bytes).ok_or(fault),
            _ => Err(fault),
        }
    }

    fn bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        let view = &self.view;
        self.note(Access::Read(rank, at));
        let at = view.folded(at);
        self.check(rank, at, len)?;
        let bytes = self.copies.alloc_slice_fill_copy(len as usize, 0);
        for (distance, word) in view.memory.words(rank, at, len) {
            let to = bytes.get_mut(distance as usize..).and_then(|rest| rest.first_chunk_mut());
            *to.ok_or(view.fault(at, len))? = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Ok(bytes)
    }

    fn lend(&self, _: Place, _: u64) -> Option<&[Cell<u8>]> {
        None
    }

    fn prefetch(&self, _: &[u8]) {}

    /// No row bypasses the caches here.
    fn fence(&mut self) {}
}

#[derive(Debug)]
pub struct CoreFabric {
    inner: CoherentFabric<A2Cells>,
    /// By operator: the flags that it waits for.
    awaited: Vec<BTreeSet<Place>>,
    operator: usize,
    late: Vec<(Place, u64)>,
    /// The interface of an agent that goes on whenever this core waits.
    folded: Option<AgentNic>,
}

impl CoreFabric {
    /// The fabric of `core`, which waits for the flags `awaited` of each operator.
    pub fn new(
        view: RankView,
        core: CoreId,
        awaited: Vec<BTreeSet<Place>>,
        folded: Option<AgentNic>,
    ) -> Self {
        let inner = CoherentFabric::from(A2Cells::new(view, Actor::Core(core)));
        Self { inner, awaited, operator: 0, late: Vec::new(), folded }
    }

    const fn view(&self) -> &RankView {
        &self.inner.cells().view
    }
}

impl Middleware for CoreFabric {
    veriep_core::around! { inner: CoherentFabric<A2Cells>, its capabilities }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if to != self.view().rank {
            return Err(Fault::new(to, at, 8));
        }
        self.inner.publish(to, at, word)?;
        if at == doorbell() {
            let late = core::mem::take(&mut self.late);
            late.into_iter().try_for_each(|(at, word)| match at.region {
                Region::WindowOut => self.inner.write(at, &word.to_le_bytes()),
                _ => self.inner.store(at, word),
            })?;
        }
        Ok(())
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let (cells, word) = (self.inner.cells(), self.inner.observe(at)?);
        let first = cells.actor == Actor::Core(CoreId(0));
        if cells.view.bend == Bend::EarlyFlip && first && at == buffer_chosen(&cells.view.shape) {
            cells.store(cells.view.rank, at, word ^ 1, Ordering::Relaxed)?;
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let flips = at == buffer_chosen(&self.view().shape);
        let clears = at.region == Region::Window && !flips;
        match self.view().bend {
            Bend::EarlyFlip if flips => Ok(()),
            Bend::NoClears if clears => Ok(()),
            Bend::SeedClears if clears && !self.awaited[self.operator].contains(&at) => Ok(()),
            Bend::LateTasks if at.region == Region::State => {
                self.late.push((at, word));
                Ok(())
            }
            _ => self.inner.store(at, word),
        }
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        if at.region != Region::WindowOut || self.view().bend != Bend::LateWrites {
            return self.inner.write(at, bytes);
        }
        let words = (0..).step_by(8).zip(bytes.as_chunks().0);
        let late =
            words.map(|(shift, &word)| (Place { offset: at.offset + shift, ..at }, u64::from_le_bytes(word)));
        self.late.extend(late);
        Ok(())
    }
}

impl Seated for CoreFabric {
    /// The driver has dropped the fabric of the operator before.
    fn begin(&mut self, n: usize, outputs: Rc<Outputs>) {
        self.operator = n;
        self.inner = CoherentFabric::from(self.inner.cells().with_outputs(outputs));
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
    inner: CoherentNic<A2Cells>,
    /// Transfers wait for the next one and are delivered behind it.
    pub late: bool,
    agent: Agent,
    /// Transfers that it has still to post.
    tasks: usize,
    held: Vec<Transfer>,
}

impl AgentNic {
    /// The interface of the agent of a rank, which posts so many tasks.
    pub fn new(view: RankView, late: bool, tasks: usize) -> Self {
        let inner = CoherentNic::from(A2Cells::new(view.clone(), Actor::Agent));
        Self { view, inner, late, agent: Agent::new(), tasks, held: Vec::new() }
    }

    /// Lets the agent step.
    fn step(&mut self) -> Result<Progress, ProtocolError> {
        if self.tasks == 0 {
            self.flush()?;
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
    fn flush(&mut self) -> Result<(), Fault> {
        while let Some(transfer) = self.held.pop() {
            self.deliver(&transfer)?;
        }
        Ok(())
    }

    fn deliver(&mut self, transfer: &Transfer) -> Result<(), Fault> {
        let Transfer { from, at, len, .. } = *transfer;
        let rest = len.saturating_sub(8);
        if self.view.bend == Bend::LastWordFirst && rest > 0 {
            let after = |place: Place| Place { offset: place.offset + rest, ..place };
            self.inner.post(&Transfer { from: after(from), at: after(at), len: 8, ..*transfer })?;
            return self.inner.post(&Transfer { len: rest, ..*transfer }).map(|_| ());
        }
        self.inner.post(transfer).map(|_| ())
    }
}

impl Nic for AgentNic {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.tasks = self.tasks.saturating_sub(1);
        if self.late && self.held.is_empty() {
            self.held.push(*transfer);
        } else {
            self.deliver(transfer)?;
            self.flush()?;
        }
        Ok(Post::Posted)
    }
}
