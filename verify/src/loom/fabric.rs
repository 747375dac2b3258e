//! One core's fabric over loom's memory: the very fabric of `veriep_core::fabric::raw`, over cells that are loom's objects.

use super::bent::{self, go_past_caches};
use super::memory::{Member, Memory, Outputs, Rows};
use super::trace::{self, Access, Event};
use crate::defects::Defect;
use ::loom::sync::atomic::{AtomicU64, Ordering};
use bumpalo::Bump;
use core::cell::{Cell, RefCell};
use core::mem;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::thread;
use veriep_core::fabric::coherent::{Cells, CoherentFabric, Copied};
use veriep_core::fabric::{Capabilities, Fault};
use veriep_core::layout::state::{Operator, core_word, selector};
use veriep_core::place::{Place, Region};
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

/// What one core reaches.
#[derive(Debug)]
pub struct LoomCells {
    memory: Rc<Memory>,
    /// Of the running operator.
    outputs: Rc<Outputs>,
    member: Member,
    core: CoreId,
    pub(super) defect: Defect,
    /// Words as only their owner reads them: selectors, own core words. Loom need not branch on them.
    private: Rc<RefCell<BTreeMap<Place, u64>>>,
    /// Rows that have gone past the caches. They land at the fence and not before, whatever the core publishes meanwhile;
    /// that they may land at once is what a model without streaming has.
    late: Vec<(RankId, Place, Vec<u8>)>,
    /// Copies of the rows that a machine looks at.
    copies: Bump,
}

impl LoomCells {
    /// Creates what `core` of `member` reaches. Its accesses are those of the defect.
    pub fn new(memory: Rc<Memory>, member: Member, core: CoreId, defect: Defect) -> Self {
        let (outputs, private) = (Rc::default(), Rc::default());
        Self { memory, outputs, member, core, defect, private, late: Vec::new(), copies: Bump::new() }
    }

    fn with_outputs(&self, outputs: Rc<Outputs>) -> Self {
        let private = Rc::clone(&self.private);
        Self { outputs, private, ..Self::new(Rc::clone(&self.memory), self.member, self.core, self.defect) }
    }

    pub const fn core(&self) -> CoreId {
        self.core
    }

    /// What this core last wrote to a word that it alone reads; `None` for other words.
    pub fn private(&self, at: Place) -> Option<u64> {
        let own_words = [core_word(self.core, 0), core_word(self.core, 1)];
        let is_selector = self.is_selector(Operator::Dispatch, at) || self.is_selector(Operator::Combine, at);
        let is_private = is_selector || own_words.contains(&at);
        is_private.then(|| self.private.borrow().get(&at).copied().unwrap_or(0))
    }

    /// Whether it is the core's selector for an operator kind, of the EP domain or of the TP domain: their state regions are
    /// divided alike.
    pub(super) fn is_selector(&self, kind: Operator, at: Place) -> bool {
        matches!(at.region, Region::State | Region::TpState) && at.offset == selector(kind, self.core).offset
    }

    fn note(&self, access: Access) {
        trace::note(Event { rank: self.member.number, core: self.core, access });
    }

    /// The rows where a place of `rank` lies, a rank of the domain that has the region.
    fn rows(&self, rank: RankId, at: Place) -> Option<&Rows> {
        match at.region {
            Region::Output(tensor) => Some(self.outputs.tensor(tensor)).filter(|_| rank == self.member.ep),
            region => self.memory.rows(self.member.reached(rank, at), region),
        }
    }

    fn word(&self, rank: RankId, at: Place) -> Option<&AtomicU64> {
        self.memory.word(self.member.reached(rank, at), at)
    }

    fn write_now(&self, to: RankId, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let written = self.rows(to, at).and_then(|rows| rows.write(at.offset, bytes));
        written.ok_or(Fault::new(to, at, bytes.len() as u64))
    }

    fn copy(&mut self, to: RankId, at: Place, bytes: Vec<u8>) -> Result<Copied, Fault> {
        if go_past_caches(self.defect) {
            self.late.push((to, at, bytes));
            return Ok(Copied::Streamed);
        }
        self.write_now(to, at, &bytes).map(|()| Copied::Cached)
    }
}

impl Cells for LoomCells {
    /// Peers' windows can be read; lent outputs could not be watched.
    fn capabilities(&self) -> Capabilities {
        Capabilities::PEER_BYTES
    }

    fn own(&self, at: Place) -> RankId {
        self.member.own(at)
    }

    fn is_far(&self, _: RankId) -> bool {
        false
    }

    fn check(&self, rank: RankId, at: Place, len: u64) -> Result<(), Fault> {
        Err(Fault::new(rank, at, len))
    }

    fn load(&self, rank: RankId, at: Place, ordering: Ordering) -> Result<u64, Fault> {
        if let Some(word) = self.private(at).filter(|_| rank == self.own(at)) {
            return Ok(word);
        }
        let atomic = self.word(rank, at).ok_or(Fault::new(rank, at, 8))?;
        let word = atomic.load(bent::ordering(self.defect, false, at, ordering));
        self.note(Access::Saw(at, word));
        Ok(word)
    }

    fn store(&self, to: RankId, at: Place, word: u64, ordering: Ordering) -> Result<(), Fault> {
        let is_private = to == self.own(at) && self.private(at).is_some();
        if is_private {
            self.private.borrow_mut().insert(at, word);
        }
        self.note(Access::Word(to, at, word));
        match self.word(to, at) {
            Some(atomic) => atomic.store(word, bent::ordering(self.defect, false, at, ordering)),
            None if is_private => {}
            None => return Err(Fault::new(to, at, 8)),
        }
        Ok(())
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<Copied, Fault> {
        self.note(Access::Put(to, at));
        if matches!(at.region, Region::Output(_)) {
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
        self.write_now(self.own(at), at, bytes)
    }

    fn bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.note(Access::Read(rank, at));
        let bytes = self.rows(rank, at).and_then(|rows| rows.read(at.offset, len));
        let bytes = bytes.ok_or(Fault::new(rank, at, len))?;
        Ok(self.copies.alloc_slice_copy(&bytes))
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
