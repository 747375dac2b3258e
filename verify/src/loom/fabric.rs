//! One core's fabric over loom's memory: orderings and fences are those of `veriep_core::fabric::raw`, which stand in
//! `veriep_core::fabric::coherent`.

use super::memory::{Memory, Outputs};
use super::trace::{self, Access, Event};
use ::loom::sync::atomic::Ordering;
use bumpalo::Bump;
use core::mem;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::thread;
use veriep_core::fabric::coherent::{Fence, OBSERVE, PUBLISH, STORE, Streamed};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::layout::state::{Operator, core_word, selector};
use veriep_core::place::{Place, Region};
use veriep_core::units::{CoreId, RankId};

/// How words are accessed, and rows written.
#[derive(Clone, Copy, Debug)]
pub struct Orderings {
    /// Of a publish.
    pub publish: Ordering,
    /// Of an observe.
    pub observe: Ordering,
    /// Rows go past the caches.
    pub streaming: bool,
}

impl Default for Orderings {
    fn default() -> Self {
        Self { publish: PUBLISH, observe: OBSERVE, streaming: false }
    }
}

/// Where the rows of a core go.
#[derive(Clone, Debug)]
struct Target {
    memory: Rc<Memory>,
    /// Of the running operator.
    outputs: Rc<Outputs>,
}

impl Target {
    fn write(&self, to: RankId, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        let written = match at.region {
            Region::Window => self.memory.window(to).and_then(|window| window.write(at.offset, bytes)),
            Region::Output(tensor) => self.outputs.tensor(tensor).write(at.offset, bytes),
            _ => None,
        };
        written.ok_or(Fault::new(to, at, bytes.len() as u64))
    }
}

/// Rows that a core has written past the caches. They land at the fence and not before, whatever the core publishes
/// meanwhile; that they may land at once is what a model without streaming has.
#[derive(Debug)]
struct Late {
    target: Target,
    rows: Vec<(RankId, Place, Vec<u8>)>,
}

impl Fence for Late {
    fn fence(&mut self) {
        // Nothing more is done once an execution has failed.
        if !thread::panicking() {
            self.rows.drain(..).for_each(|(to, at, bytes)| {
                self.target.write(to, at, &bytes).expect("a place for a row");
            });
        }
    }
}

/// The fabric of one core.
#[derive(Debug)]
pub struct LoomFabric {
    target: Target,
    streamed: Streamed<Late>,
    rank: RankId,
    core: CoreId,
    orderings: Orderings,
    /// Words as only their owner reads them: selectors, own core words. Loom need not branch on them.
    private: BTreeMap<Place, u64>,
    /// Copies of the rows that a machine looks at.
    copies: Bump,
}

impl LoomFabric {
    /// The fabric of `core` of `rank`.
    #[must_use]
    pub fn new(memory: Rc<Memory>, rank: RankId, core: CoreId, orderings: Orderings) -> Self {
        let target = Target { memory, outputs: Rc::default() };
        let (private, copies) = (BTreeMap::new(), Bump::new());
        Self { streamed: none_streamed(&target), target, rank, core, orderings, private, copies }
    }

    /// Begins an operator that writes to `outputs`. The driver has dropped the fabric of the one before.
    pub fn begin(&mut self, outputs: Rc<Outputs>) {
        self.target.outputs = outputs;
        self.streamed = none_streamed(&self.target);
        self.copies.reset();
    }

    /// Acts as if there were nothing to fence.
    pub(super) fn unfenced<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let streamed = mem::replace(&mut self.streamed, none_streamed(&self.target));
        let result = act(self);
        self.streamed = streamed;
        result
    }

    /// Forgets the rows that have not landed.
    pub(super) fn forget(&mut self) {
        mem::forget(mem::replace(&mut self.streamed, none_streamed(&self.target)));
    }

    /// Its core.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.core
    }

    /// What this core last wrote to a word that it alone reads; `None` for other words.
    #[must_use]
    pub fn private(&self, at: Place) -> Option<u64> {
        let own = [selector(Operator::Dispatch, self.core), selector(Operator::Combine, self.core)];
        let own_words = [core_word(self.core, 0), core_word(self.core, 1)];
        let is_private = own.contains(&at) || own_words.contains(&at);
        is_private.then(|| self.private.get(&at).copied().unwrap_or(0))
    }

    fn note(&self, access: Access) {
        trace::note(Event { rank: self.rank, core: self.core, access });
    }

    fn write_word(&mut self, to: RankId, at: Place, word: u64, ordering: Ordering) -> Result<(), Fault> {
        let is_private = to == self.rank && self.private(at).is_some();
        if is_private {
            self.private.insert(at, word);
        }
        self.note(Access::Word(to, at, word));
        match self.target.memory.word(to, at) {
            Some(atomic) => atomic.store(word, ordering),
            None if is_private => {}
            None => return Err(Fault::new(to, at, 8)),
        }
        Ok(())
    }

    fn write_row(&mut self, to: RankId, at: Place, bytes: Vec<u8>) -> Result<(), Fault> {
        if !self.orderings.streaming {
            return self.target.write(to, at, &bytes);
        }
        self.streamed.row().rows.push((to, at, bytes));
        Ok(())
    }
}

fn none_streamed(target: &Target) -> Streamed<Late> {
    Streamed::new(Late { target: target.clone(), rows: Vec::new() })
}

impl Fabric for LoomFabric {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.note(Access::Put(to, at));
        if at.region != Region::Window {
            return Err(Fault::new(to, at, (row.len() + tail.len()) as u64));
        }
        self.write_row(to, at, [row, tail].concat())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.streamed.fence();
        self.write_word(to, at, word, self.orderings.publish)
    }

    /// A release store is after all that its thread did before, so there is nothing else to wait for.
    fn quiet(&mut self) -> Result<bool, Fault> {
        self.streamed.fence();
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if let Some(word) = self.private(at) {
            return Ok(word);
        }
        let atomic = self.target.memory.word(self.rank, at).ok_or(Fault::new(self.rank, at, 8))?;
        let word = atomic.load(self.orderings.observe);
        self.note(Access::Saw(at, word));
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.write_word(self.rank, at, word, STORE)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.note(Access::Read(at));
        let window = self.target.memory.window(self.rank).filter(|_| at.region == Region::Window);
        let bytes = window.and_then(|window| window.read(at.offset, len));
        let bytes = bytes.ok_or(Fault::new(self.rank, at, len))?;
        Ok(self.copies.alloc_slice_copy(&bytes))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.note(Access::Wrote(at));
        if !matches!(at.region, Region::Output(_)) {
            return Err(Fault::new(self.rank, at, bytes.len() as u64));
        }
        self.target.write(self.rank, at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.note(Access::Wrote(output));
        self.write_row(self.rank, output, bytes)
    }
}
