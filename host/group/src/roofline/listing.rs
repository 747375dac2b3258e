//! Lists the copies of a group in one round. A layer in front of the memory records the rows that the state machines move while
//! the group runs once.
//!
//! So the bare copies of any protocol are those that its machines make, also where rows go by way of an agent's window or of
//! a relay. What is shorter than a row is a flag, a tail or a count, and is not listed.

use crate::backend::{Layer, Told};
use crate::driver::RankState;
use core::cell::Cell;
use core::ops::Range;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use veriep_case::global_rank;
use veriep_case::parallel::lock;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::inputs::Inputs;
use veriep_core::layout::relay;
use veriep_core::place::{Place, Region};
use veriep_core::protocol::Operator;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, RankId};

/// The payload of a block of `fullmesh_v2`, the shortest piece in which a long row travels.
const PIECE: u64 = 480;

/// Where a rank has a row that it copies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// At this byte of its tokens, also if it is sent within a record.
    Token(usize),
    /// At this byte of what its experts have returned.
    Result(usize),
    /// Among what it has just computed or read.
    Scratch,
}

fn span(bytes: &[u8]) -> Range<usize> {
    let Range { start, end } = bytes.as_ptr_range();
    start.addr()..end.addr()
}

/// One copy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Copied {
    /// Into a rank's memory.
    Put { to: RankId, at: Place, from: Source },
    /// As a message to a rank of another server.
    Sent { to: RankId, at: Place, from: Source },
    /// Into its own memory.
    Written { at: Place, from: Source },
    /// From its own memory into an output.
    Delivered { output: Place, from: Place },
    /// From its own memory into scratch, where a sum or a relay reads it.
    Read { at: Place },
    /// The same from a peer's memory.
    Pulled { from: RankId, at: Place },
    /// By the rank's agent.
    Posted(Transfer),
}

impl Copied {
    pub(super) const fn is_of_token(self) -> bool {
        let (Self::Put { from, .. } | Self::Sent { from, .. } | Self::Written { from, .. }) = self else {
            return false;
        };
        matches!(from, Source::Token(_))
    }
}

/// A copy of a rank.
#[derive(Clone, Copy, Debug)]
struct Entry {
    rank: RankId,
    /// A core, or the agent after the last one.
    actor: u32,
    /// Between operators what the experts do.
    during: During,
    copied: Copied,
    len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum During {
    /// The operator of that number of the listed ones.
    Operator(usize),
    /// What is behind that many operators.
    Behind(usize),
}

/// Copies that depend on none of each other: a meeting of all precedes them.
#[derive(Debug)]
pub(super) struct Phase {
    /// The operator whose time it is; none if experts write their results.
    pub(super) operator: Option<Operator>,
    /// By rank, each with its length in bytes.
    pub(super) copies: Vec<Vec<(Copied, u64)>>,
}

/// The layer.
#[derive(Debug)]
pub(super) struct Listing<'a> {
    shape: &'a Shape,
    /// By rank: its tokens.
    tokens: Vec<&'a [u8]>,
    /// By rank: where what its experts return lies; none before [`begin`](Self::begin).
    results: Vec<Range<usize>>,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    entries: Vec<Entry>,
    /// By rank, then core: the operators that it has begun, and whether it is in the last of them.
    cores: Vec<(usize, bool)>,
}

impl Log {
    fn new(shape: &Shape) -> Self {
        let cores = (global_rank::count(shape) * shape.aiv_num()) as usize;
        Self { entries: Vec::new(), cores: vec![(0, false); cores] }
    }
}

impl<'a> Listing<'a> {
    /// Creates the layer of a group with these `inputs`, by rank, which lists nothing yet.
    pub(super) fn new(shape: &'a Shape, inputs: impl Fn(RankId) -> Inputs<'a>) -> Self {
        let tokens = global_rank::all(shape).map(|rank| inputs(rank).x).collect();
        Self { shape, tokens, results: Vec::new(), log: Mutex::new(Log::new(shape)) }
    }

    /// Lists from now on what the group copies, whose experts have returned something to all `ranks` before.
    pub(super) fn begin(&mut self, ranks: &[RankState]) {
        self.results = ranks.iter().map(|state| state.with_y(0, span)).collect();
        self.log = Mutex::new(Log::new(self.shape));
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    fn core(&self, rank: RankId, core: CoreId) -> usize {
        rank.index() * self.shape.aiv_num() as usize + core.0 as usize
    }

    fn source(&self, rank: RankId, core: CoreId, bytes: &[u8]) -> Source {
        let Some(results) = self.results.get(rank.index()) else { return Source::Scratch };
        let tokens = span(self.tokens[rank.index()]);
        let at = bytes.as_ptr().addr();
        if tokens.contains(&at) {
            Source::Token(at - tokens.start)
        } else if results.contains(&at) {
            Source::Result(at - results.start)
        } else {
            self.token_in(rank, core, bytes).map_or(Source::Scratch, Source::Token)
        }
    }

    /// Returns where the rank's token lies whose row this record to a relay carries unchanged. A core that makes such a record
    /// reads the token.
    fn token_in(&self, rank: RankId, core: CoreId, record: &[u8]) -> Option<usize> {
        if self.shape.protocol() != Protocol::Hierarchy {
            return None;
        }
        // Every second operator is a combine, whose records hold sums and the number of the receiver's token.
        let (begun, _) = self.log().cores[self.core(rank, core)];
        if begun % 2 == 0 {
            return None;
        }
        let number = record.get(relay::TOKEN as usize..)?.first_chunk()?;
        let row = self.shape.row_bytes() as usize;
        let at = row.checked_mul(u32::from_le_bytes(*number) as usize)?;
        let token = self.tokens[rank.index()].get(at..)?.get(..row)?;
        let carried = record.get(relay::ROW as usize..)?.get(..row)?;
        (carried == token).then_some(at)
    }

    /// Lists a copy of `actor`, unless it is shorter than a row or nothing is listed yet.
    fn add(&self, rank: RankId, actor: u32, len: u64, copied: Copied) {
        let row = self.shape.payload_bytes().min(self.shape.result_bytes());
        if len < row.min(PIECE) || self.results.is_empty() {
            return;
        }
        let mut log = self.log();
        let is_agent = actor == self.shape.aiv_num();
        let core = CoreId(if is_agent { 0 } else { actor });
        let (begun, runs) = log.cores[self.core(rank, core)];
        // Core 0 rings the agent's doorbell.
        let during = if runs || is_agent { During::Operator(begun - 1) } else { During::Behind(begun) };
        // Experts read rows in no time of an operator.
        let is_read = matches!(copied, Copied::Read { .. } | Copied::Pulled { .. });
        if !(matches!(during, During::Behind(_)) && is_read) {
            log.entries.push(Entry { rank, actor, during, copied, len });
        }
    }

    /// The copies of both rounds in phases, with those of the experts before each operator.
    pub(super) fn phases(self) -> [Vec<Phase>; 2] {
        let shape = self.shape;
        let entries = self.log.into_inner().unwrap_or_else(PoisonError::into_inner).entries;
        let ranks = global_rank::count(shape) as usize;
        let of_copies = |operator, during| {
            let of: Vec<_> = entries.iter().filter(|entry| entry.during == during).collect();
            let levels = levels(shape, &of);
            let count = levels.iter().map(|level| level + 1).max().unwrap_or(0);
            let mut phases: Vec<_> =
                (0..count).map(|_| Phase { operator, copies: vec![Vec::new(); ranks] }).collect();
            for (entry, level) in of.into_iter().zip(levels) {
                phases[level as usize].copies[entry.rank.index()].push((entry.copied, entry.len));
            }
            phases
        };
        [0, 1].map(|round| {
            let operators = (2 * round..).zip([Operator::Dispatch, Operator::Combine]);
            let phases = operators.flat_map(|(i, operator)| {
                let experts = of_copies(None, During::Behind(i));
                experts.into_iter().chain(of_copies(Some(operator), During::Operator(i)))
            });
            phases.collect()
        })
    }
}

/// By copy: how many meetings precede it, so that what it copies has been written. What comes from scratch has been made of
/// what was read there last.
fn levels(shape: &Shape, entries: &[&Entry]) -> Vec<u32> {
    // What has been written: the end and the level of each stretch by its start.
    let mut written: HashMap<(RankId, Region), BTreeMap<u64, (u64, u32)>> = HashMap::new();
    // By core: the level of what it has in scratch, and whether it is still reading.
    let mut scratch: HashMap<(RankId, u32), (u32, bool)> = HashMap::new();
    let tp = shape.tp_world_size();
    let level = |entry: &&Entry| {
        let Entry { rank, actor, copied, len, .. } = **entry;
        let read = match copied {
            Copied::Put { .. } | Copied::Sent { .. } | Copied::Written { .. } => None,
            Copied::Delivered { from, .. } | Copied::Posted(Transfer { from, .. }) => Some((rank, from)),
            Copied::Read { at } => Some((rank, at)),
            Copied::Pulled { from, at } => Some((global_rank::reached(tp, rank, from, at), at)),
        };
        let behind = read.and_then(|(of, at)| {
            let stretches = written.get(&(of, at.region))?;
            let before = stretches.range(..at.offset).next_back();
            let in_it = stretches.range(at.offset..at.offset + len);
            let touches = |&(_, (end, _)): &(&u64, &(u64, u32))| *end > at.offset;
            before.into_iter().chain(in_it).filter(touches).map(|(_, (_, level))| level + 1).max()
        });
        let (made, reading) = scratch.entry((rank, actor)).or_default();
        let level = match copied {
            Copied::Read { .. } | Copied::Pulled { .. } => {
                *made = behind.unwrap_or(0).max(if *reading { *made } else { 0 });
                *made
            }
            Copied::Put { from: Source::Scratch, .. }
            | Copied::Written { from: Source::Scratch, .. }
            | Copied::Sent { from: Source::Scratch, .. } => *made,
            _ => behind.unwrap_or(0),
        };
        *reading = read.is_some();
        let to = match copied {
            Copied::Put { to, at, .. } | Copied::Sent { to, at, .. } => {
                Some((global_rank::reached(tp, rank, to, at), at))
            }
            Copied::Written { at, .. } => Some((rank, at)),
            Copied::Posted(Transfer { to, at, .. }) => Some((to, at)),
            Copied::Delivered { .. } | Copied::Read { .. } | Copied::Pulled { .. } => None,
        };
        if let Some((to, at)) = to {
            let stretches = written.entry((to, at.region)).or_default();
            stretches.insert(at.offset, (at.offset + len, level));
        }
        level
    };
    entries.iter().map(level).collect()
}

impl Layer for Listing<'_> {
    const INLINED: bool = false;

    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, core: CoreId, inner: F) -> impl Fabric {
        Listed { inner, listing: self, rank, actor: core.0 }
    }

    fn nic<'b, N: Nic + 'b>(&'b self, rank: RankId, inner: N) -> impl Nic {
        Listed { inner, listing: self, rank, actor: self.shape.aiv_num() }
    }

    fn hears(&self, rank: RankId, core: CoreId, told: Told) {
        let (core, mut log) = (self.core(rank, core), self.log());
        let (begun, runs) = &mut log.cores[core];
        match told {
            Told::Begins(_) => (*begun, *runs) = (*begun + 1, true),
            Told::Ends => *runs = false,
            Told::Steps(..) | Told::Waits(_) | Told::Experts => {}
        }
    }
}

/// The fabric or the agent's interface of [`Listing`].
#[derive(Debug)]
pub(super) struct Listed<'b, T> {
    inner: T,
    listing: &'b Listing<'b>,
    rank: RankId,
    /// Numbered as in [`Entry`].
    actor: u32,
}

impl<T> Listed<'_, T> {
    fn add(&self, len: u64, copied: Copied) {
        self.listing.add(self.rank, self.actor, len, copied);
    }
}

impl<F: Fabric> Listed<'_, F> {
    fn source(&self, bytes: &[u8]) -> Source {
        self.listing.source(self.rank, CoreId(self.actor), bytes)
    }
}

impl<F: Fabric> Middleware for Listed<'_, F> {
    veriep_core::around! { inner: F }

    /// Nothing is lent: what is written there would not be seen.
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().difference(Capabilities::LEND)
    }

    fn lend(&self, _output: Place, _len: u64) -> Option<&[Cell<u8>]> {
        None
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.add(row.len() as u64, Copied::Put { to, at, from: self.source(row) });
        self.inner.put(to, at, row, tail)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.add(message.len() as u64, Copied::Sent { to, at, from: self.source(message) });
        self.inner.send(to, at, message)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.add(len, Copied::Read { at });
        self.inner.bytes(at, len)
    }

    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        self.add(len, Copied::Pulled { from: rank, at });
        Ok(rank)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.add(bytes.len() as u64, Copied::Written { at, from: self.source(bytes) });
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.add(len, Copied::Delivered { output, from });
        self.inner.deliver(output, from, len)
    }
}

impl<N: Nic> Nic for Listed<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let post = self.inner.post(transfer)?;
        if post == Post::Posted {
            self.add(transfer.len, Copied::Posted(*transfer));
        }
        Ok(post)
    }
}
