//! One core's fabric and one agent's interface over loom's memory: the very ones of `veriep_core::fabric::raw`, over cells that
//! are loom's objects.

use super::bent::in_parts;
use super::memory::Memory;
use crate::defects::Defect;
use crate::loom::bent::ordering;
use crate::loom::domain::drive;
use crate::loom::memory::Outputs;
use crate::loom::trace::{self, Access, Event};
use ::loom::sync::atomic::Ordering;
use bumpalo::Bump;
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::fabric::coherent::{Cells, CoherentNic, Copied};
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Capabilities, Fault, Progress, ProtocolError};
use veriep_core::layout::a2_message::doorbell;
use veriep_core::layout::a2_window::buffer_chosen;
use veriep_core::layout::state::core_word;
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
    pub defect: Defect,
}

impl RankView {
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
    /// What `core` of a rank reaches.
    pub(super) fn of_core(view: RankView, core: CoreId) -> Self {
        Self::new(view, Actor::Core(core))
    }

    fn new(view: RankView, actor: Actor) -> Self {
        Self { view, actor, outputs: Rc::default(), private: Rc::default(), copies: Bump::new() }
    }

    pub(super) fn with_outputs(&self, outputs: Rc<Outputs>) -> Self {
        let private = Rc::clone(&self.private);
        Self { outputs, private, ..Self::new(self.view.clone(), self.actor) }
    }

    pub(super) const fn view(&self) -> &RankView {
        &self.view
    }

    pub(super) fn is_first_core(&self) -> bool {
        self.actor == Actor::Core(CoreId(0))
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

    fn ordering(&self, at: Place, asked: Ordering) -> Ordering {
        ordering(self.view.defect, self.actor == Actor::Agent, at, asked)
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
        let word = known.load(self.ordering(at, ordering));
        if ordering != Ordering::Relaxed && self.actor != Actor::Agent {
            self.note(Access::Saw(at, word));
        }
        Ok(word)
    }

    fn store(&self, to: RankId, at: Place, word: u64, ordering: Ordering) -> Result<(), Fault> {
        if matches!(self.actor, Actor::Core(_)) && to != self.view.rank {
            return Err(Fault::new(to, at, 8));
        }
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
                known.store(word, self.ordering(at, ordering));
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
    pub(super) fn step(&mut self) -> Result<Progress, ProtocolError> {
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
        in_parts(self.view.defect, transfer).iter().try_for_each(|part| self.inner.post(part).map(|_| ()))
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
