//! Memory of ranks in several processes, some of which do not map each other's: what goes to those is carried by a [`Wire`],
//! and their process applies it in order.
//!
//! A stream keeps its order, which is more than rule 2 of the contract asks for. Quiet answers yes once the other process has
//! applied what the core sent. Nothing arrives by itself: the driver of a group must call [`FarMemory::poll`].

mod fabric;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

pub use fabric::Far;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use tests::MemoryWire;
pub use wire::Wire;

use super::{Backend, Reader, Told};
use core::fmt::{self, Debug};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::Instant;
use stream::{Entry, Incoming, Kind, Outgoing};
use veriep_case::global_rank;
use veriep_case::parallel::lock;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::layout::tp::{self, TP_STATE_BYTES};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::shape::Shape;
use veriep_core::sim::chooser::AGENT;
use veriep_core::units::{CoreId, RankId};

/// Bytes of entries in a chunk: with its head below the 64 KiB up to which MPIs send without asking the receiver.
const CHUNK: usize = 60 << 10;

/// Which process drives which rank, and whose memory this process maps.
#[derive(Clone, Debug)]
pub struct Processes {
    /// This process.
    pub me: usize,
    /// The process of each member, by number.
    pub of: Vec<usize>,
    /// By process, whether its memory is mapped here.
    pub near: Vec<bool>,
}

/// The memory of a group as one of its processes sees it.
#[derive(Debug)]
pub struct FarMemory<B, W> {
    /// What is mapped.
    inner: B,
    shape: Shape,
    processes: Processes,
    /// Bytes of entries in a chunk.
    chunk: usize,
    engine: Mutex<Engine<W>>,
    failed: OnceLock<String>,
}

/// Takes a note: from which process, its tag, and what it says.
pub type Hear = dyn FnMut(usize, u32, &[u8]) -> Result<(), String> + Send;

struct Heard(Box<Hear>);

impl Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Heard")
    }
}

#[derive(Debug)]
struct Engine<W> {
    wire: W,
    /// By process.
    ways: Vec<(Outgoing, Incoming)>,
    /// By core of a member: the last entry to each process.
    last: HashMap<(RankId, CoreId), Vec<u64>>,
    /// Takes the notes that other processes send.
    heard: Heard,
    /// The wire has been left.
    closed: bool,
    /// A twin: what has been sent counts as applied.
    #[cfg(test)]
    early: bool,
}

impl<B, W: Wire> FarMemory<B, W> {
    /// Creates the memory of a group: `inner` for ranks of near processes, and `wire` to all others. `hear` takes each note of
    /// another process, in order with everything else that this process sends.
    #[must_use]
    pub fn new(inner: B, shape: &Shape, processes: Processes, wire: W, hear: Box<Hear>) -> Self {
        let ways = processes.near.iter().map(|_| Default::default()).collect();
        let engine = Engine {
            wire,
            ways,
            last: HashMap::new(),
            heard: Heard(hear),
            closed: false,
            #[cfg(test)]
            early: false,
        };
        let engine = Mutex::new(engine);
        Self { inner, shape: shape.clone(), processes, chunk: CHUNK, engine, failed: OnceLock::new() }
    }

    fn engine(&self) -> MutexGuard<'_, Engine<W>> {
        lock(&self.engine)
    }

    /// Why the group cannot go on, if the wire has failed or another process has sent what cannot be.
    pub fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Bytes of a region that others reach.
    fn region_bytes(&self, member: RankId, region: Region) -> u64 {
        match region {
            Region::State => STATE_BYTES,
            Region::Window => self.shape.window_bytes(),
            Region::TpState if self.shape.tp_world_size() > 1 => TP_STATE_BYTES,
            Region::TpWindow if self.shape.tp_world_size() > 1 => {
                tp::window_bytes(&self.shape, global_rank::ep_rank(&self.shape, member))
            }
            _ => 0,
        }
    }

    /// The process and the number of the member that `own` calls `to`, if that memory is not mapped here.
    fn far(&self, own: RankId, to: RankId, at: Place) -> Option<(usize, RankId)> {
        let member = global_rank::reached(self.shape.tp_world_size(), own, to, at);
        let process = *self.processes.of.get(member.index())?;
        (!self.processes.near[process]).then_some((process, member))
    }

    /// Whether EP rank `to` is of another server than member `own`, so that only messages go there.
    fn is_of_other_server(&self, own: RankId, to: RankId) -> bool {
        let own = global_rank::ep_rank(&self.shape, own);
        global_rank::servers(&self.shape).is_some_and(|ranks| own.0 / ranks != to.0 / ranks)
    }

    /// Sends an entry, which quiet of `core` waits for, if any.
    fn add(
        &self,
        process: usize,
        entry: Entry,
        parts: [&[u8]; 2],
        core: Option<(RankId, CoreId)>,
    ) -> Result<(), Fault> {
        let fault = Fault::new(entry.member, entry.at, entry.len);
        let end = entry.at.offset.checked_add(entry.len);
        let aligned = entry.at.offset.is_multiple_of(8) && entry.len.is_multiple_of(8);
        let is_inside = end.is_some_and(|end| end <= self.region_bytes(entry.member, entry.at.region));
        if !is_inside || entry.kind == Kind::Words && !aligned || self.failed().is_some() {
            return Err(fault);
        }
        let mut engine = self.engine();
        if let Err(why) = self.push(&mut engine, process, (entry, parts)) {
            self.failed.get_or_init(|| why);
            return Err(fault);
        }
        if let Some(core) = core {
            let Engine { ways, last, .. } = &mut *engine;
            let entries = ways[process].0.entries;
            last.entry(core).or_insert_with(|| vec![0; self.processes.near.len()])[process] = entries;
        }
        Ok(())
    }

    fn push(&self, engine: &mut Engine<W>, process: usize, entry: (Entry, [&[u8]; 2])) -> Result<(), String> {
        let Engine { wire, ways, .. } = engine;
        let (out, came) = &mut ways[process];
        let mut ship = |out: &mut Outgoing| {
            came.told = came.applied;
            wire.send(process, out.close(self.processes.me, came.applied))
        };
        out.add(entry, self.chunk, &mut ship)
    }

    /// Sends a note to a process, after all that went there before.
    pub fn note(&self, process: usize, tag: u32, note: &[u8]) {
        let mut engine = self.engine();
        if engine.closed || self.failed().is_some() {
            return;
        }
        let entry =
            Entry { kind: Kind::Note, member: RankId(tag), at: Place::state(0), len: note.len() as u64 };
        if let Err(why) = self.push(&mut engine, process, (entry, [note, &[]])) {
            self.failed.get_or_init(|| why);
        }
    }

    /// Does something with the wire, which no other thread uses meanwhile.
    pub fn with_wire<T>(&self, use_it: impl FnOnce(&mut W) -> T) -> T {
        use_it(&mut self.engine().wire)
    }

    /// Whether the wire has been left.
    pub fn is_closed(&self) -> bool {
        self.engine.try_lock().is_ok_and(|engine| engine.closed)
    }

    /// Ends all processes, where the wire can; not if it does not come back from what it does.
    pub fn abort(&self, status: u8) {
        if let Ok(mut engine) = self.engine.try_lock() {
            engine.closed = true;
            engine.wire.abort(status);
        }
    }

    /// Whether all entries of a core have been applied.
    fn has_landed(&self, core: (RankId, CoreId)) -> Result<bool, Fault> {
        if self.failed().is_some() {
            return Err(Fault::new(core.0, Place::state(0), 0));
        }
        let engine = self.engine();
        #[cfg(test)]
        if engine.early {
            return Ok(true);
        }
        let last = engine.last.get(&core);
        Ok(last.is_none_or(|last| last.iter().zip(&engine.ways).all(|(&last, (out, _))| out.applied >= last)))
    }
}

impl<B: Backend, W: Wire> FarMemory<B, W> {
    /// Sends what is to be sent, and applies what has come. Whether something has.
    pub fn poll(&self) -> bool {
        // Who holds it does just that.
        let Ok(mut engine) = self.engine.try_lock() else { return false };
        if engine.closed || self.failed().is_some() {
            return false;
        }
        match self.turn(&mut engine) {
            Ok(moved) => moved,
            Err(why) => {
                self.failed.get_or_init(|| why);
                false
            }
        }
    }

    /// Leaves the wire once all processes do the same, but for no longer than `limit`: what has not been taken then might trouble
    /// the network. A later poll does nothing.
    ///
    /// # Errors
    /// The network has failed, a process does not leave, or something that was sent has not left.
    pub fn close(&self, limit: Duration) -> Result<(), String> {
        let mut engine = self.engine();
        engine.closed = true;
        let others = (0..self.processes.near.len()).filter(|&process| process != self.processes.me);
        let end = Entry { kind: Kind::End, member: RankId(0), at: Place::state(0), len: 0 };
        for process in others.clone() {
            self.push(&mut engine, process, (end, [&[], &[]]))?;
        }
        self.ship(&mut engine, |out, _| out.is_open())?;
        let since = Instant::now();
        while let Some(process) = others.clone().find(|&process| !engine.ways[process].1.ended) {
            if since.elapsed() > limit {
                return Err(format!("process {process} does not leave"));
            }
            if !self.receive(&mut engine)? {
                thread::yield_now();
            }
        }
        engine.wire.finish()
    }

    fn turn(&self, engine: &mut Engine<W>) -> Result<bool, String> {
        self.ship(engine, |out, _| out.is_open())?;
        let moved = self.receive(engine)?;
        self.ship(engine, |_, came| came.applied > came.told)?;
        Ok(moved)
    }

    /// Takes all that has come. Whether something has.
    fn receive(&self, engine: &mut Engine<W>) -> Result<bool, String> {
        let Engine { wire, ways, heard, .. } = engine;
        let mut moved = false;
        while let Some((from, chunk)) = wire.receive()? {
            moved = true;
            self.take((ways, heard), from, chunk)?;
        }
        Ok(moved)
    }

    /// Sends a chunk to each process for which that holds.
    fn ship(&self, engine: &mut Engine<W>, due: impl Fn(&Outgoing, &Incoming) -> bool) -> Result<(), String> {
        let Engine { wire, ways, .. } = engine;
        for (process, (out, came)) in ways.iter_mut().enumerate() {
            if due(out, came) {
                came.told = came.applied;
                wire.send(process, out.close(self.processes.me, came.applied))?;
            }
        }
        Ok(())
    }

    fn take(
        &self,
        (ways, heard): (&mut [(Outgoing, Incoming)], &mut Heard),
        from: usize,
        chunk: &[u8],
    ) -> Result<(), String> {
        let of = |why| format!("process {from} has sent {why}");
        let (out, came) =
            ways.get_mut(from).ok_or_else(|| of("something, and is none of the group".into()))?;
        let most = STATE_BYTES.max(TP_STATE_BYTES).max(self.shape.window_bytes());
        let legal = out.applied..=out.entries;
        let mut ended = false;
        let mut apply = |entry: Entry, bytes: &[u8]| match entry.kind {
            Kind::Note => (heard.0)(from, entry.member.0, bytes),
            Kind::End => {
                ended = true;
                Ok(())
            }
            Kind::Row | Kind::Words => self.apply(entry, bytes),
        };
        out.applied = came.take(from, chunk, most, legal, &mut apply).map_err(of)?;
        came.ended |= ended;
        Ok(())
    }

    /// Writes what has come into the memory of a rank of this process.
    fn apply(&self, entry: Entry, bytes: &[u8]) -> Result<(), String> {
        let Entry { kind, member, at, len } = entry;
        if self.processes.of.get(member.index()) != Some(&self.processes.me) {
            return Err(format!("something to rank {member}, which is not here"));
        }
        let own = match at.region {
            Region::TpState | Region::TpWindow => global_rank::tp_rank(&self.shape, member),
            _ => global_rank::ep_rank(&self.shape, member),
        };
        let mut fabric = self.inner.fabric(member, CoreId(0), 0);
        let (words, rest) = bytes.as_chunks();
        let written = match kind {
            Kind::Row | Kind::Note | Kind::End => fabric.put(own, at, bytes, &[]),
            Kind::Words if !rest.is_empty() => Err(Fault::new(member, at, len)),
            Kind::Words => (0..).step_by(8).zip(words).try_for_each(|(behind, word)| {
                let at = Place { offset: at.offset.saturating_add(behind), ..at };
                fabric.publish(own, at, u64::from_le_bytes(*word))
            }),
        };
        written.map_err(|fault| format!("something wrong: {fault}"))
    }
}

impl<B: Backend, W: Wire> Backend for FarMemory<B, W> {
    const STEPS: bool = B::STEPS;

    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        Far { inner: self.inner.fabric(rank, core, batch), memory: self, own: rank, core }
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        Far { inner: self.inner.nic(rank), memory: self, own: rank, core: AGENT }
    }

    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>) {
        self.inner.read_output(rank, batch, tensor, len, read);
    }

    fn hears(&self, rank: RankId, core: CoreId, told: Told) {
        self.inner.hears(rank, core, told);
    }
}
