//! Broken twins of the protocol: middlewares around a backend that each break one thing it rests on. The
//! machines stay as they are.

use host::backend::Backend;
use host::driver::lockstep::Clockwork;
use kernel_core::fabric::{Capabilities, Fabric, Fault};
use kernel_core::layout::state::{
    COMBINE_SELECTORS, CORE_RECORD, CORE_WORDS, DISPATCH_SELECTORS, DISPATCH_STATUS, Kind, PARTITION,
    STATUS_SLOT,
};
use kernel_core::layout::tp;
use kernel_core::place::{Place, Region, Tensor};
use kernel_core::shape::Shape;
use kernel_core::sync::flag;
use kernel_core::units::{CoreId, RankId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    /// Rows are put a step after the flag that covers them.
    PublishBeforeData,
    /// Nobody waits at the barrier behind quiet: the epochs that are odd.
    NoQuietBarrier,
    /// Nobody waits at the barrier that carries the sums: the epochs that are even.
    NoSumsBarrier,
    /// Partition 1 of a kind lies on partition 0.
    OnePartition(Kind),
    /// Quiet answers at once.
    NoQuiet,
    /// Flags of a kind stay.
    NoClear(Kind),
    /// Flags of a kind are cleared in the next operator of the kind, when that one clears.
    LateClear(Kind),
    /// A flag waits for no puts.
    RelaxedPublish,
    /// The flag is published first, the count of rows behind it.
    TornCount,
    /// Partition 1 of the TP regions lies on partition 0.
    OneTpPartition,
    /// Slots of the TP domain stay.
    NoTpClear(Kind),
    /// Those of them stay that tell of no rows.
    NoEmptyTpClear(Kind),
    /// A slot of the TP domain waits for no puts.
    RelaxedTp,
    /// Senders take dispatch status slots to be rank-major, as the data slots are.
    RankMajorStatus,
}

#[derive(Debug)]
pub(crate) struct Twisted<B> {
    inner: B,
    twin: Twin,
    shape: Shape,
    held: Mutex<BTreeMap<(RankId, CoreId), Held>>,
}

/// What a core has done that the memory does not know yet.
#[derive(Debug, Default)]
struct Held {
    puts: Vec<Effect>,
    /// To be done before the core's next step.
    due: Vec<Effect>,
    /// Clears, with the number of the operator that they belong to.
    clears: Vec<(u32, Place)>,
    operators: u32,
    /// The core's latest barrier.
    epoch: u64,
}

#[derive(Clone, Debug)]
struct Effect {
    to: RankId,
    at: Place,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Put(Vec<u8>),
    Publish(u64),
}

impl<B: Backend> Twisted<B> {
    pub(crate) fn new(inner: B, twin: Twin, shape: Shape) -> Self {
        Self { inner, twin, shape, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<(RankId, CoreId), Held>> {
        self.held.lock().unwrap()
    }

    /// Does what is due of a core; whether there was anything.
    fn catch_up(&self, rank: RankId, core: CoreId) -> bool {
        let due = core::mem::take(&mut self.held().entry((rank, core)).or_default().due);
        let mut fabric = self.inner.fabric(rank, core, 0);
        for Effect { to, at, what } in &due {
            match what {
                What::Put(bytes) => fabric.put(*to, *at, bytes, &[]).unwrap(),
                What::Publish(word) => fabric.publish(*to, *at, *word).unwrap(),
            }
        }
        !due.is_empty()
    }

    /// Where the twin keeps what the protocol keeps at `at`.
    fn place(&self, at: Place) -> Place {
        if self.twin == Twin::OneTpPartition {
            let partition = match at.region {
                Region::TpState if at.offset < 2 * PARTITION => PARTITION,
                // All ranks of the twin's groups have one size.
                Region::TpWindow => tp::window_bytes(&self.shape, RankId(0)) / 2,
                _ => return at,
            };
            return Place { offset: at.offset % partition, ..at };
        }
        let Twin::OnePartition(kind) = self.twin else { return at };
        let (partition, combine, dispatch_first) = match at.region {
            Region::State => (PARTITION, DISPATCH_STATUS, true),
            Region::Window => (self.shape.window_bytes() / 2, self.shape.combine_area(), false),
            Region::WindowOut | Region::Output(_) | Region::TpState | Region::TpWindow => return at,
        };
        let Some(inside) = at.offset.checked_sub(partition).filter(|&inside| inside < partition) else {
            return at;
        };
        let is_dispatch = (inside < combine) == dispatch_first;
        let moved = is_dispatch == (kind == Kind::Dispatch);
        if moved { Place { offset: inside, ..at } } else { at }
    }
}

impl<B: Backend> Backend for Twisted<B> {
    type Fabric<'b>
        = TwistedFabric<'b, B>
    where
        Self: 'b;

    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> TwistedFabric<'_, B> {
        self.catch_up(rank, core);
        let inner = Some(self.inner.fabric(rank, core, batch));
        TwistedFabric { backend: self, inner, rank, core, batch }
    }

    type Nic<'b>
        = B::Nic<'b>
    where
        Self: 'b;

    fn nic(&self, rank: RankId) -> Self::Nic<'_> {
        self.inner.nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, t: Tensor, len: usize, read: &mut dyn FnMut(&[u8])) {
        self.inner.read_output(rank, batch, t, len, read);
    }

    fn reuse_outputs(&self) {
        self.inner.reuse_outputs();
    }
}

impl<B: Clockwork> Clockwork for Twisted<B> {
    fn tick(&self) {
        self.inner.tick();
    }

    fn land_one(&self) -> bool {
        let cores: Vec<_> = self.held().keys().copied().collect();
        cores.into_iter().any(|(rank, core)| self.catch_up(rank, core)) || self.inner.land_one()
    }
}

pub(crate) struct TwistedFabric<'b, B: Backend + 'b> {
    backend: &'b Twisted<B>,
    /// Always there but inside [`Self::as_phantom`].
    inner: Option<B::Fabric<'b>>,
    rank: RankId,
    core: CoreId,
    batch: usize,
}

/// The kind whose status word lies at `at`.
fn status_kind(at: Place) -> Option<Kind> {
    let inside = at.offset % PARTITION;
    match at.region {
        Region::State if at.offset >= 2 * PARTITION => None,
        Region::State if inside < DISPATCH_STATUS => Some(Kind::Dispatch),
        Region::State => Some(Kind::Combine),
        _ => None,
    }
}

/// The kind whose TP slot lies at `at`.
fn tp_kind(at: Place) -> Option<Kind> {
    match at.region {
        Region::TpState => status_kind(Place { region: Region::State, ..at }),
        _ => None,
    }
}

fn core_word_of(at: Place) -> Option<(CoreId, u64)> {
    let inside = at.offset.checked_sub(CORE_WORDS).filter(|_| at.region == Region::State)?;
    Some((CoreId((inside / CORE_RECORD) as u32), inside % CORE_RECORD / 8))
}

impl<'b, B: Backend + 'b> TwistedFabric<'b, B> {
    fn inner(&mut self) -> &mut B::Fabric<'b> {
        self.inner.as_mut().unwrap()
    }

    fn with_held<T>(&self, f: impl FnOnce(&mut Held) -> T) -> T {
        f(self.backend.held().entry((self.rank, self.core)).or_default())
    }

    /// Acts as another core of the rank that does not exist: nothing of this core comes before it.
    fn as_phantom<T>(&mut self, f: impl FnOnce(&mut B::Fabric<'b>) -> T) -> T {
        let memory = &self.backend.inner;
        // One fabric at a time: each may hold the memory.
        self.inner = None;
        let phantom = CoreId(self.core.0 + 1000);
        let answer = f(&mut memory.fabric(self.rank, phantom, self.batch));
        self.inner = Some(memory.fabric(self.rank, self.core, self.batch));
        answer
    }

    /// The slot of a sender that takes the status area to be rank-major.
    fn rank_major(&self, to: RankId, at: Place) -> Place {
        let (local, ranks) = (self.backend.shape.local_experts(to), self.backend.shape.ep_world_size());
        let slot = (at.offset % PARTITION / STATUS_SLOT) as u32;
        let wrong = slot % ranks * local + slot / ranks;
        Place { offset: at.offset - u64::from(slot) * STATUS_SLOT + u64::from(wrong) * STATUS_SLOT, ..at }
    }
}

impl<'b, B: Backend + 'b> Fabric for TwistedFabric<'b, B> {
    fn capabilities(&self) -> Capabilities {
        self.inner.as_ref().unwrap().capabilities()
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner.as_ref().unwrap().peer_bytes(rank, self.backend.place(at), len)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let at = self.backend.place(at);
        if self.backend.twin == Twin::PublishBeforeData {
            let what = What::Put([row, tail].concat());
            self.with_held(|held| held.puts.push(Effect { to, at, what }));
            return Ok(());
        }
        self.inner().put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        if core_word_of(at).is_some() {
            self.with_held(|held| held.epoch = word >> 62);
        }
        let kind = status_kind(at);
        let at = self.backend.place(at);
        if self.backend.twin == Twin::RelaxedTp && at.region == Region::TpState {
            return self.as_phantom(|phantom| phantom.publish(to, at, word));
        }
        match (self.backend.twin, kind) {
            (Twin::PublishBeforeData, Some(_)) => self.with_held(|held| held.due.append(&mut held.puts)),
            (Twin::RelaxedPublish, Some(_)) => {
                return self.as_phantom(|phantom| phantom.publish(to, at, word));
            }
            (Twin::TornCount, Some(Kind::Dispatch)) if word != flag::status(0) => {
                let what = What::Publish(word);
                self.with_held(|held| held.due.push(Effect { to, at, what }));
                return self.inner().publish(to, at, flag::status(0));
            }
            (Twin::RankMajorStatus, Some(Kind::Dispatch)) => {
                let at = self.rank_major(to, at);
                return self.inner().publish(to, at, word);
            }
            _ => {}
        }
        self.inner().publish(to, at, word)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        match self.backend.twin {
            Twin::NoQuiet => Ok(true),
            Twin::RelaxedPublish | Twin::RelaxedTp => {
                Ok(self.as_phantom(Fabric::quiet)? && self.inner().quiet()?)
            }
            _ => self.inner().quiet(),
        }
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let at = self.backend.place(at);
        let seen = self.inner.as_ref().unwrap().observe(at)?;
        let skipped = match self.backend.twin {
            Twin::NoQuietBarrier => 1,
            Twin::NoSumsBarrier => 0,
            _ => return Ok(seen),
        };
        let epoch = self.with_held(|held| held.epoch);
        match core_word_of(at) {
            Some((core, parity)) if core != self.core && parity == skipped && epoch % 2 == skipped => {
                Ok(if seen >> 62 == epoch { seen } else { epoch << 62 })
            }
            _ => Ok(seen),
        }
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let selectors = match self.backend.twin {
            Twin::LateClear(Kind::Dispatch) => DISPATCH_SELECTORS,
            _ => COMBINE_SELECTORS,
        };
        if at == Place::state(selectors + u64::from(self.core.0) * CORE_RECORD) {
            self.with_held(|held| held.operators += 1);
        }
        let kind = status_kind(at);
        let at = self.backend.place(at);
        match self.backend.twin {
            Twin::NoTpClear(never) if tp_kind(at) == Some(never) => return Ok(()),
            Twin::NoEmptyTpClear(never)
                if tp_kind(at) == Some(never) && self.observe(at)? == flag::status(0) =>
            {
                return Ok(());
            }
            Twin::NoClear(never) if kind == Some(never) => return Ok(()),
            Twin::LateClear(late) if kind == Some(late) => {
                let old = self.with_held(|held| {
                    let now = held.operators;
                    held.clears.push((now, at));
                    held.clears.extract_if(.., |(operator, _)| *operator < now).collect::<Vec<_>>()
                });
                return old.into_iter().try_for_each(|(_, at)| self.inner().store(at, 0));
            }
            _ => {}
        }
        self.inner().store(at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.inner.as_ref().unwrap().bytes(self.backend.place(at), len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.inner().write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let from = self.backend.place(from);
        self.inner().deliver(output, from, len)
    }
}
