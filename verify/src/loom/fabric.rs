//! One core's fabric over loom's memory: the same orderings as `kernel_core::fabric::raw`.

use super::memory::{Memory, Outputs};
use super::trace::{self, Access, Event};
use ::loom::sync::atomic::Ordering;
use bumpalo::Bump;
use kernel_core::fabric::{Fabric, Fault};
use kernel_core::layout::state::{Kind, core_word, selector};
use kernel_core::place::{Place, Region};
use kernel_core::units::{CoreId, RankId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How words are accessed.
#[derive(Clone, Copy, Debug)]
pub struct Orderings {
    /// Of a publish.
    pub publish: Ordering,
    /// Of an observe.
    pub observe: Ordering,
}

impl Default for Orderings {
    fn default() -> Self {
        Self { publish: Ordering::Release, observe: Ordering::Acquire }
    }
}

/// The fabric of one core.
#[derive(Debug)]
pub struct LoomFabric {
    memory: Rc<Memory>,
    /// Of the running operator.
    outputs: Rc<Outputs>,
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
        let outputs = Rc::default();
        Self { memory, outputs, rank, core, orderings, private: BTreeMap::new(), copies: Bump::new() }
    }

    /// Begins an operator that writes to `outputs`.
    pub fn begin(&mut self, outputs: Rc<Outputs>) {
        self.outputs = outputs;
        self.copies.reset();
    }

    /// Its core.
    #[must_use]
    pub const fn core(&self) -> CoreId {
        self.core
    }

    /// What this core last wrote to a word that it alone reads; `None` for other words.
    #[must_use]
    pub fn private(&self, at: Place) -> Option<u64> {
        let own = [selector(Kind::Dispatch, self.core), selector(Kind::Combine, self.core)];
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
        match self.memory.word(to, at) {
            Some(atomic) => atomic.store(word, ordering),
            None if is_private => {}
            None => return Err(Fault { rank: to, at, len: 8 }),
        }
        Ok(())
    }
}

impl Fabric for LoomFabric {
    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.note(Access::Put(to, at));
        let bytes = [row, tail].concat();
        let window = self.memory.window(to).filter(|_| at.region == Region::Window);
        let fault = Fault { rank: to, at, len: bytes.len() as u64 };
        window.and_then(|window| window.write(at.offset, &bytes)).ok_or(fault)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.write_word(to, at, word, self.orderings.publish)
    }

    /// A release store is after all that its thread did before, so there is nothing to wait for.
    fn quiet(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if let Some(word) = self.private(at) {
            return Ok(word);
        }
        let atomic = self.memory.word(self.rank, at).ok_or(Fault { rank: self.rank, at, len: 8 })?;
        let word = atomic.load(self.orderings.observe);
        self.note(Access::Saw(at, word));
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.write_word(self.rank, at, word, Ordering::Relaxed)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.note(Access::Read(at));
        let window = self.memory.window(self.rank).filter(|_| at.region == Region::Window);
        let bytes = window.and_then(|window| window.read(at.offset, len));
        let bytes = bytes.ok_or(Fault { rank: self.rank, at, len })?;
        Ok(self.copies.alloc_slice_copy(&bytes))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.note(Access::Wrote(at));
        let Region::Output(tensor) = at.region else {
            return Err(Fault { rank: self.rank, at, len: bytes.len() as u64 });
        };
        let written = self.outputs.tensor(tensor).write(at.offset, bytes);
        written.ok_or(Fault { rank: self.rank, at, len: bytes.len() as u64 })
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let bytes = self.bytes(from, len)?.to_vec();
        self.write(output, &bytes)
    }
}
