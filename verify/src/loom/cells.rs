//! Cells that are objects of loom, for the very fabrics of `veriep_core::fabric`: all that one core or agent reaches.

use super::bent::{go_past_caches, ordering};
use super::memory::{Member, Memory, Outputs};
use super::trace::{self, Access, Event};
use crate::defects::Defect;
use ::loom::sync::atomic::Ordering;
use bumpalo::Bump;
use core::cell::{Cell, RefCell};
use core::mem;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use veriep_core::fabric::coherent::{Cells, CoherentFabric, Copied};
use veriep_core::fabric::{Capabilities, Fault};
use veriep_core::layout::a2_message::doorbell;
use veriep_core::layout::a2_window::buffer_chosen;
use veriep_core::layout::state::{Operator, core_word, selector};
use veriep_core::place::{Place, Region};
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, RankId};

pub type LoomFabric = CoherentFabric<LoomCells>;

/// Puts a fabric for the next rows in the place of this one, which it returns. The new one owes no fence.
pub(super) fn renew(fabric: &mut LoomFabric, outputs: Rc<Outputs>) -> LoomFabric {
    let cells = fabric.cells().with_outputs(outputs);
    mem::replace(fabric, LoomFabric::from(cells))
}

/// Acts as if there were nothing to fence.
pub(super) fn unfenced<T>(fabric: &mut LoomFabric, act: impl FnOnce(&mut LoomFabric) -> T) -> T {
    let outputs = Rc::clone(&fabric.cells().outputs);
    let owing = renew(fabric, outputs);
    let result = act(fabric);
    *fabric = owing;
    result
}

/// Forgets the rows that have not landed.
pub(super) fn forget(fabric: &mut LoomFabric) {
    let outputs = Rc::clone(&fabric.cells().outputs);
    mem::forget(renew(fabric, outputs));
}

/// The memory as a rank reaches it, and what is broken in that.
#[derive(Clone, Debug)]
pub struct RankView {
    pub memory: Rc<Memory>,
    /// The domain as this rank sees it.
    pub shape: Arc<Shape>,
    pub member: Member,
    pub defect: Defect,
}

impl RankView {
    /// Whether cores reach the memory of their own rank alone, and agents that of others: on A2.
    pub(super) fn has_agents(&self) -> bool {
        self.shape.protocol() == Protocol::Fullmesh
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Core(CoreId),
    Agent,
}

/// What a core or an agent reaches.
#[derive(Debug)]
pub struct LoomCells {
    view: RankView,
    actor: Actor,
    /// Of the running operator.
    outputs: Rc<Outputs>,
    /// Words as only their owner reads them. Loom need not branch on them.
    private: Rc<RefCell<BTreeMap<Place, u64>>>,
    /// Rows that have gone past the caches. They land at the fence and not before, whatever the core publishes meanwhile;
    /// that they may land at once is what a model without streaming has.
    late: Vec<(RankId, Place, Vec<u8>)>,
    /// Copies of the rows that a machine looks at.
    copies: Bump,
}

impl LoomCells {
    /// What `core` of a rank reaches.
    pub fn of_core(view: RankView, core: CoreId) -> Self {
        Self::new(view, Actor::Core(core))
    }

    /// What the agent of a rank reaches.
    pub fn of_agent(view: RankView) -> Self {
        Self::new(view, Actor::Agent)
    }

    fn new(view: RankView, actor: Actor) -> Self {
        let (outputs, private) = (Rc::default(), Rc::default());
        Self { view, actor, outputs, private, late: Vec::new(), copies: Bump::new() }
    }

    fn with_outputs(&self, outputs: Rc<Outputs>) -> Self {
        let private = Rc::clone(&self.private);
        Self { outputs, private, ..Self::new(self.view.clone(), self.actor) }
    }

    pub(super) const fn view(&self) -> &RankView {
        &self.view
    }

    pub(super) const fn defect(&self) -> Defect {
        self.view.defect
    }

    /// The number of the core. An agent has that of core 0.
    pub const fn core(&self) -> CoreId {
        if let Actor::Core(core) = self.actor { core } else { CoreId(0) }
    }

    fn is_agent(&self) -> bool {
        self.actor == Actor::Agent
    }

    /// What this core last wrote to a word of its rank that it alone reads; `None` for other words.
    pub fn private(&self, at: Place) -> Option<u64> {
        if self.is_agent() {
            return None;
        }
        let is_own_word = [core_word(self.core(), 0), core_word(self.core(), 1)].contains(&at);
        let is_private = if self.view.has_agents() {
            let is_alone = self.view.shape.aiv_num() == 1;
            at == doorbell() && self.core().0 == 0 || is_alone && at == buffer_chosen(&self.view.shape)
        } else {
            self.is_selector(Operator::Dispatch, at) || self.is_selector(Operator::Combine, at)
        };
        (is_own_word || is_private).then(|| self.private.borrow().get(&at).copied().unwrap_or(0))
    }

    /// Whether it is the core's selector for an operator kind, of the EP domain or of the TP domain: their state regions are
    /// divided alike.
    pub(super) fn is_selector(&self, kind: Operator, at: Place) -> bool {
        matches!(at.region, Region::State | Region::TpState)
            && at.offset == selector(kind, self.core()).offset
    }

    fn note(&self, access: Access) {
        trace::note(Event { rank: self.view.member.number, core: self.core(), access });
    }

    fn ordering(&self, at: Place, asked: Ordering) -> Ordering {
        ordering(self.defect(), self.is_agent(), at, asked)
    }

    fn write_now(&self, to: RankId, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let RankView { memory, member, .. } = &self.view;
        let written = match at.region {
            Region::Output(_) if to == member.ep => self.outputs.write(at, bytes),
            Region::Output(_) => None,
            _ => memory.write(member.reached(to, at), self.view.folded(at), bytes),
        };
        written.ok_or(Fault::new(to, at, bytes.len() as u64))
    }

    fn copy(&mut self, to: RankId, at: Place, bytes: Vec<u8>) -> Result<Copied, Fault> {
        if go_past_caches(self.defect()) {
            self.late.push((to, at, bytes));
            return Ok(Copied::Streamed);
        }
        self.write_now(to, at, &bytes).map(|()| Copied::Cached)
    }
}

impl Cells for LoomCells {
    /// Where there are no agents, peers' windows can be read; lent outputs could not be watched.
    fn capabilities(&self) -> Capabilities {
        if self.view.has_agents() { Capabilities::empty() } else { Capabilities::PEER_BYTES }
    }

    fn own(&self, at: Place) -> RankId {
        self.view.member.own(at)
    }

    fn is_far(&self, _: RankId) -> bool {
        false
    }

    fn check(&self, rank: RankId, at: Place, len: u64) -> Result<(), Fault> {
        if self.view.memory.covers(at, len) { Ok(()) } else { Err(Fault::new(rank, at, len)) }
    }

    fn load(&self, rank: RankId, at: Place, ordering: Ordering) -> Result<u64, Fault> {
        if let Some(word) = self.private(at).filter(|_| rank == self.own(at)) {
            return Ok(word);
        }
        let RankView { memory, member, .. } = &self.view;
        let Some(known) = memory.word(member.reached(rank, at), self.view.folded(at)) else {
            // Nothing that is meant was ever written there.
            return self.check(rank, at, 8).map(|()| 0);
        };
        let word = known.load(self.ordering(at, ordering));
        if ordering != Ordering::Relaxed && !self.is_agent() {
            self.note(Access::Saw(at, word));
        }
        Ok(word)
    }

    fn store(&self, to: RankId, at: Place, word: u64, ordering: Ordering) -> Result<(), Fault> {
        let RankView { memory, member, .. } = &self.view;
        if self.view.has_agents() && !self.is_agent() && to != self.own(at) {
            return Err(Fault::new(to, at, 8));
        }
        let is_private = to == self.own(at) && self.private(at).is_some();
        if is_private {
            self.private.borrow_mut().insert(at, word);
        }
        self.note(if self.is_agent() { Access::Sent(to, at, word) } else { Access::Word(to, at, word) });
        match memory.word(member.reached(to, at), self.view.folded(at)) {
            Some(known) => known.store(word, self.ordering(at, ordering)),
            None if is_private => {}
            // A transfer also carries words that mean nothing.
            None if self.is_agent() => self.check(to, at, 8)?,
            None => return Err(Fault::new(to, at, 8)),
        }
        Ok(())
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<Copied, Fault> {
        self.note(Access::Put(to, at));
        let is_possible = if self.view.has_agents() {
            to == self.own(at) && at.region == Region::Window && tail.is_empty()
        } else {
            !matches!(at.region, Region::Output(_))
        };
        if !is_possible {
            return Err(Fault::new(to, at, (row.len() + tail.len()) as u64));
        }
        self.copy(to, at, [row, tail].concat())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<Copied, Fault> {
        let bytes = self.bytes(self.own(from), from, len)?.to_vec();
        self.note(Access::Wrote(output));
        self.copy(self.own(output), output, bytes)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.note(Access::Wrote(at));
        let is_possible =
            !self.view.has_agents() || matches!(at.region, Region::WindowOut | Region::Output(_));
        if !is_possible {
            return Err(Fault::new(self.own(at), at, bytes.len() as u64));
        }
        self.write_now(self.own(at), at, bytes)
    }

    fn bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.note(Access::Read(rank, at));
        let RankView { memory, member, .. } = &self.view;
        let bytes = match at.region {
            Region::Output(_) if rank == member.ep => self.outputs.read_at(at, len),
            Region::Output(_) => None,
            _ => memory.read(member.reached(rank, at), self.view.folded(at), len),
        };
        Ok(self.copies.alloc_slice_copy(&bytes.ok_or(Fault::new(rank, at, len))?))
    }

    fn lend(&self, _: Place, _: u64) -> Option<&[Cell<u8>]> {
        None
    }

    fn prefetch(&self, _: &[u8]) {}

    fn fence(&mut self) {
        // Nothing more is done once an execution has failed.
        if !thread::panicking() {
            for (to, at, bytes) in mem::take(&mut self.late) {
                self.write_now(to, at, &bytes).expect("a place for a row");
            }
        }
    }
}
