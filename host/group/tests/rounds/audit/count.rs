//! A layer in front of any memory of servers (A2) that counts what goes from rank to rank, where it is put: by core
//! and operator, with what each write carries.

use std::sync::{Mutex, MutexGuard};
use veriep_case::global_rank;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::relay::{self, Tail};
use veriep_core::place::{Place, Region};
use veriep_core::shape::{Product, Protocol, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::{Layer, Told};

/// What a write carries, beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// A record of a stream, or what it will be once the agent sends it: this token.
    Record {
        /// The token.
        token: u32,
    },
    /// A row inside a server: of this token, at that place in its sum there.
    Row {
        /// Whose token.
        source: RankId,
        /// The token.
        token: u32,
        /// Which of its rows on that server.
        position: u32,
    },
    /// Something that is no row of any token.
    Unknown,
}

/// One write of a core, but for words that tell something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    /// The number of the operator among those that the core has begun.
    pub(super) operator: u32,
    /// Into whose memory.
    pub(super) to: RankId,
    /// Its load.
    pub(super) load: Load,
}

/// Bytes to ranks of other servers and to others of the same one, flags and lists included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    /// To other servers.
    pub(super) across: u64,
    /// To other ranks of the same one.
    pub(super) inside: u64,
}

/// What a core has done since the last [`Counted::take`].
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// What it has written.
    pub(super) writes: Vec<Write>,
    /// Bytes of each operator that it has begun.
    pub(super) bytes: Vec<Bytes>,
}

/// The layer that counts.
#[derive(Debug)]
pub(super) struct Counted {
    /// The domain, if it has servers.
    shape: Option<Shape>,
    /// By rank, then core.
    cores: Vec<Mutex<Log>>,
    /// By rank.
    agents: Vec<Mutex<Vec<Transfer>>>,
}

/// All that ranks did.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// By rank, then core.
    pub(super) cores: Vec<Log>,
    /// By rank: what its agent has posted.
    pub(super) agents: Vec<Vec<Transfer>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl Counted {
    /// Counts what the ranks of `shape` do; nothing where ranks have no servers.
    pub(super) fn of(shape: &Shape) -> Self {
        let shape = Some(shape).filter(|shape| shape.product() == Product::A2).cloned();
        let of = |shape: &Shape| (global_rank::count(shape) as usize, shape.aiv_num() as usize);
        let (ranks, cores) = shape.as_ref().map_or((0, 0), of);
        Self {
            shape,
            cores: (0..ranks * cores).map(|_| Mutex::default()).collect(),
            agents: (0..ranks).map(|_| Mutex::default()).collect(),
        }
    }

    /// The counts, which begin again at 0.
    pub(super) fn take(&self) -> Counts {
        Counts {
            cores: self.cores.iter().map(|log| core::mem::take(&mut *lock(log))).collect(),
            agents: self.agents.iter().map(|posted| core::mem::take(&mut *lock(posted))).collect(),
        }
    }

    fn log(&self, rank: RankId, core: CoreId) -> Option<MutexGuard<'_, Log>> {
        let cores = self.shape.as_ref()?.aiv_num() as usize;
        self.cores.get(rank.index() * cores + core.0 as usize).map(lock)
    }
}

impl Layer for Counted {
    #[inline]
    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, core: CoreId, inner: F) -> impl Fabric {
        // A core has one fabric at a time, so no thread waits for its log.
        CountedFabric { inner, rank, counting: self.shape.as_ref().zip(self.log(rank, core)) }
    }

    fn nic<'b, N: Nic + 'b>(&'b self, rank: RankId, inner: N) -> impl Nic {
        CountedNic { inner, posted: self.agents.get(rank.index()).map(lock) }
    }

    fn hears(&self, rank: RankId, core: CoreId, told: Told) {
        if matches!(told, Told::Begins(_))
            && let Some(mut log) = self.log(rank, core)
        {
            log.bytes.push(Bytes::default());
        }
    }
}

/// The fabric of [`Counted`].
#[derive(Debug)]
pub(super) struct CountedFabric<'b, F> {
    inner: F,
    rank: RankId,
    counting: Option<(&'b Shape, MutexGuard<'b, Log>)>,
}

impl<F> CountedFabric<'_, F> {
    /// Counts a write of `len` bytes.
    #[inline]
    fn count(&mut self, to: RankId, len: usize, load: impl FnOnce(&Shape) -> Option<Load>) {
        if self.counting.is_some() {
            self.note(to, len, load);
        }
    }

    /// Apart, so that domains without servers pay for one comparison.
    #[inline(never)]
    fn note(&mut self, to: RankId, len: usize, load: impl FnOnce(&Shape) -> Option<Load>) {
        let Some((shape, log)) = &mut self.counting else { return };
        let server = |rank: RankId| shape.server_of(rank).0;
        let len = len as u64;
        if let Some(bytes) = log.bytes.last_mut() {
            match to {
                own if own == self.rank => {}
                near if server(near) == server(self.rank) => bytes.inside += len,
                _ => bytes.across += len,
            }
        }
        let operator = (log.bytes.len() as u32).saturating_sub(1);
        if shape.protocol() == Protocol::Hierarchy
            && let Some(load) = load(shape)
        {
            log.writes.push(Write { operator, to, load });
        }
    }
}

/// Tokens are at the same place of every record.
fn record(message: &[u8]) -> Load {
    let word = message.get(relay::TOKEN as usize..).and_then(|rest| rest.first_chunk());
    word.map_or(Load::Unknown, |&token| Load::Record { token: u32::from_le_bytes(token) })
}

/// The load of a row for `to`: in dispatch its tail says it, in combine its place.
fn row(shape: &Shape, to: RankId, at: Place, tail: &[u8]) -> Load {
    let known = if tail.len() as u64 == Tail::BYTES {
        let triple = tail.get(Tail::TRIPLE as usize..Tail::WEIGHT as usize).unwrap_or(&[]);
        relay::read_triple(shape, triple).ok().map(|(source, token, part)| (source, token, part.position))
    } else {
        let row = relay::returned_at(shape, at);
        row.map(|(server, token, position)| (shape.relay(to, server), token, position))
    };
    known.map_or(Load::Unknown, |(source, token, position)| Load::Row { source, token: token.0, position })
}

impl<F: Fabric> Middleware for CountedFabric<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    #[inline]
    fn put(&mut self, to: RankId, at: Place, bytes: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.inner.put(to, at, bytes, tail)?;
        self.count(to, bytes.len() + tail.len(), |shape| Some(row(shape, to, at, tail)));
        Ok(())
    }

    #[inline]
    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.publish(to, at, word)?;
        self.count(to, 8, |_| None);
        Ok(())
    }

    #[inline]
    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.inner.send(to, at, message)?;
        // An end flag is a message of one word.
        self.count(to, message.len(), |_| (message.len() > 8).then(|| record(message)));
        Ok(())
    }

    #[inline]
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.inner.write(at, bytes)?;
        // What is gathered counts as bytes when the agent posts it.
        if let Some((shape, _)) = &self.counting
            && (at.region, shape.protocol()) == (Region::WindowOut, Protocol::Hierarchy)
            && bytes.len() > 8
            && let Some(server) = relay::gathered_for(shape, at)
        {
            let to = shape.relay(self.rank, server);
            self.count(to, 0, |_| Some(record(bytes)));
        }
        Ok(())
    }
}

/// The agent's interface of [`Counted`].
#[derive(Debug)]
pub(super) struct CountedNic<'b, N> {
    inner: N,
    posted: Option<MutexGuard<'b, Vec<Transfer>>>,
}

impl<N: Nic> Nic for CountedNic<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let post = self.inner.post(transfer)?;
        if let Some(posted) = &mut self.posted
            && post == Post::Posted
        {
            posted.push(*transfer);
        }
        Ok(post)
    }
}
