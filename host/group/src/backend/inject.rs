//! A layer in front of any memory that makes one rank misbehave, to see that the others say so.

use super::{Layer, Told};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use veriep_case::global_rank;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::affine::Named;
use veriep_core::layout::field::FieldName;
use veriep_core::layout::locate::locate;
use veriep_core::layout::quantity::Memory;
use veriep_core::place::Place;
use veriep_core::protocol::Choices;
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId};

/// A rank that says nothing to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Which.
    pub rank: RankId,
    /// What of its words is lost; all to other ranks if left out, and all that its agent writes.
    pub only: Option<Lost>,
}

/// What of a rank's words is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Counts of dispatch, with their flag.
    Counts,
    /// Token flags.
    Tokens,
    /// Grants of direct placement.
    Grants,
    /// Flags of blocks.
    Blocks,
    /// Flags of returned rows, or that results lie ready.
    Rows,
    /// What it tells its TP peer.
    Tp,
    /// The last word of all that its agent writes.
    Ends,
}

impl Lost {
    /// Every kind of word.
    pub const ALL: [Self; 7] =
        [Self::Counts, Self::Tokens, Self::Grants, Self::Blocks, Self::Rows, Self::Tp, Self::Ends];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counts => "counts",
            Self::Tokens => "tokens",
            Self::Grants => "grants",
            Self::Blocks => "blocks",
            Self::Rows => "rows",
            Self::Tp => "tp",
            Self::Ends => "ends",
        }
    }

    /// What the word is that another rank has there; A3.
    fn of(memory: &Memory<'_>, at: Place) -> Self {
        let Some(word) = locate(memory, at) else { return Self::Blocks };
        match (word.map.named, word.field(memory).map(|field| field.name)) {
            (Named::TpDispatchSlots | Named::TpCombineSlots, _) => Self::Tp,
            (Named::CombineStatus | Named::ResultsReady, _) => Self::Rows,
            (Named::DirectRecords, Some(FieldName::GrantsTold)) => Self::Grants,
            (Named::DirectRecords, Some(FieldName::RowsLanded))
            | (Named::DispatchStatus, Some(FieldName::TokenFlag)) => Self::Tokens,
            (Named::DispatchStatus | Named::DirectRecords, _) => Self::Counts,
            _ => Self::Blocks,
        }
    }
}

/// A rank whose process dies.
#[derive(Debug)]
pub struct Killed {
    /// Which.
    pub rank: RankId,
    /// In place of which of its writes and tasks to any rank, counted from 0.
    pub at: u64,
    /// Those that it has made.
    pub made: AtomicU64,
}

impl Killed {
    /// The rank is about to make another one.
    #[inline(never)]
    fn count(&self) {
        if self.made.fetch_add(1, Ordering::Relaxed) == self.at {
            // All threads end here, as if another process had killed them. (Elsewhere there are no processes of a group.)
            #[cfg(target_os = "linux")]
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}

/// The layer with a rank that is silent, slow or late, sends twice, or dies.
#[derive(Debug)]
pub struct Inject {
    /// Whose process dies, if anyone's.
    pub killed: Option<Killed>,
    /// Whose experts take so long, if anyone's do.
    pub slow: Option<(RankId, Duration)>,
    /// Who begins each operator so late, if anyone does.
    pub late: Option<(RankId, Duration)>,
    /// Who is silent, if anyone.
    pub silent: Option<Silent>,
    /// The rank that sends everything to other servers twice, if one does. Results stay correct.
    pub twice: Option<RankId>,
    /// The shape of the group.
    pub shape: Shape,
    /// The choices of the group.
    pub choices: Choices,
}

/// The fabric of a core, or the interface of an agent, that [`Inject`] makes for each turn. What a rank does wrong is looked up
/// only when it writes.
#[derive(Debug)]
pub struct Injected<'b, T> {
    inner: T,
    inject: &'b Inject,
    rank: RankId,
}

impl Inject {
    /// Whether `rank` is the silent one, and how.
    #[inline]
    fn silent(&self, rank: RankId) -> Option<Silent> {
        self.silent.filter(|silent| silent.rank == rank)
    }

    /// Whether `rank` sends everything twice.
    #[inline]
    fn is_twice(&self, rank: RankId) -> bool {
        self.twice == Some(rank)
    }

    /// `rank` is about to write.
    #[inline]
    fn count(&self, rank: RankId) {
        if let Some(killed) = self.killed.as_ref().filter(|killed| killed.rank == rank) {
            killed.count();
        }
    }
}

impl Layer for Inject {
    #[inline]
    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, _: CoreId, inner: F) -> impl Fabric {
        Injected { inner, inject: self, rank }
    }

    fn nic<'b, N: Nic + 'b>(&'b self, rank: RankId, inner: N) -> impl Nic {
        Injected { inner, inject: self, rank }
    }

    fn hears(&self, rank: RankId, core: CoreId, told: Told) {
        let sleeper = match told {
            Told::Experts => self.slow,
            Told::Begins(_) if core == CoreId(0) => self.late,
            _ => None,
        };
        if let Some((_, time)) = sleeper.filter(|(sleeper, _)| *sleeper == rank) {
            std::thread::sleep(time);
        }
    }
}

impl<N: Nic> Nic for Injected<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.inject.count(self.rank);
        match self.inject.silent(self.rank).map(|silent| silent.only) {
            Some(None) => Ok(Post::Posted),
            // Bytes arrive in order, so the rest does.
            Some(Some(Lost::Ends)) => {
                let len = transfer.len.saturating_sub(8);
                self.inner.post(&Transfer { len, ..*transfer })
            }
            _ if self.inject.is_twice(self.rank) => match self.inner.post(transfer)? {
                Post::Posted => self.inner.post(transfer).map(|_| Post::Posted),
                Post::Busy => Ok(Post::Busy),
            },
            _ => self.inner.post(transfer),
        }
    }
}

impl<F: Fabric> Middleware for Injected<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.inject.count(self.rank);
        let is_lost = self.inject.silent(self.rank).is_some_and(|Silent { rank, only }| {
            let Inject { shape, choices, .. } = self.inject;
            let to_others = global_rank::reached(shape.tp_world_size(), rank, to, at) != rank;
            let memory = Memory { shape, mode: choices.mode(), rank: to };
            to_others && only.is_none_or(|only| only == Lost::of(&memory, at))
        });
        if is_lost { Ok(()) } else { self.inner.publish(to, at, word) }
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.inject.count(self.rank);
        // Every message holds a flag, and all of them are for others.
        let is_lost = self.inject.silent(self.rank).is_some_and(|silent| silent.only.is_none());
        if is_lost {
            return Ok(());
        }
        if self.inject.is_twice(self.rank) && message.len() > 8 {
            self.inner.send(to, at, message)?;
        }
        self.inner.send(to, at, message)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.inject.count(self.rank);
        self.inner.put(to, at, row, tail)
    }
}
