//! The agent of a rank (A2 design, section 1.3: AICPU): serves doorbells in order, issues their tasks one by one.
//!
//! It never ends. While no newer doorbell has been rung it is pending with [`Wait::IDLE`]; its driver decides when that is
//! the end of a run. Everything that it reads was written by others, so it checks every field against the only valid task
//! for this peer in this half; just the length may be any that fits the window.

use crate::fabric::nic::{Nic, Post, Transfer};
use crate::fabric::{Awaited, Flag, Progress, ProtocolError, Result, Wait, Watch};
use crate::layout::a2_message::{ELEMENT, Task, WORDS_OF_8, doorbell, task_word};
use crate::layout::a2_window::sent_bytes;
use crate::layout::relay::gathered_bytes;
use crate::layout::state::{Operator, Partition};
use crate::place::Place;
use crate::plan::order::SendOrder;
use crate::protocol::kit::{Outcome, check};
use crate::protocol::run::{Ran, drive};
use crate::shape::{Protocol, Shape};
use crate::units::{RankId, div_floor};

/// The constants of an agent over a group's life.
#[derive(Clone, Debug)]
pub struct AgentEnv {
    fingerprint: u64,
    rank: RankId,
    order: SendOrder,
}

impl AgentEnv {
    /// Creates the constants of the agent of `rank`, which issues the tasks of an operator in this `order`; staggered, it
    /// begins with the next rank.
    #[must_use]
    pub const fn new(shape: &Shape, rank: RankId, order: SendOrder) -> Self {
        Self { fingerprint: shape.fingerprint(), rank, order }
    }
}

/// The agent of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Agent {
    /// The number of operators whose tasks have all been posted.
    served: u64,
    /// The number of posted tasks of the next operator.
    posted: u32,
}

impl Agent {
    /// Creates the agent of a new group.
    #[must_use]
    pub const fn new() -> Self {
        Self { served: 0, posted: 0 }
    }

    /// Posts at most one task.
    ///
    /// # Errors
    /// A doorbell or a task record holds a value that no core writes (nothing is posted then), the interface refuses, or
    /// `env` was made for another shape.
    pub fn step<N: Nic + ?Sized>(
        &mut self,
        shape: &Shape,
        env: &AgentEnv,
        nic: &mut N,
    ) -> Result<Progress, ProtocolError> {
        check(shape, env.fingerprint)?;
        self.advance(shape, env, nic)
    }

    #[inline]
    fn advance<N: Nic + ?Sized>(&mut self, shape: &Shape, env: &AgentEnv, nic: &mut N) -> Outcome {
        let peers = peers(shape);
        let rung = nic.observe(doorbell())?;
        // A rank rings N + 2 after it has ended N + 1. By then every peer has ended N, for which it needed our task. A rank
        // without peers waits for no task.
        let (min, max) = (self.served, if peers > 0 { self.served.saturating_add(2) } else { u64::MAX });
        if rung < min || rung > max {
            return Err(ProtocolError::Doorbell { seen: rung, min, max });
        }
        if rung == self.served {
            return Ok(Progress::Pending(Wait::IDLE));
        }
        if peers == 0 {
            // There are no tasks. Counting up to an untrusted word could take forever.
            self.served = rung;
            return Ok(Progress::Stepped);
        }
        if self.posted < peers {
            let peer = nth_peer(shape, env, peers, self.posted);
            let transfer = self.transfer(shape, env, nic, peer)?;
            match nic.post(&transfer)? {
                Post::Posted => self.posted += 1,
                Post::Busy => return Ok(Progress::Pending(Wait::new(Flag::Nic, peer, &[]))),
            }
        }
        if self.posted == peers {
            *self = Self { served: self.served.wrapping_add(1), posted: 0 };
        }
        Ok(Progress::Stepped)
    }

    /// Takes at most `budget` steps, until the agent waits or fails, like [`step`](Self::step). An agent never ends.
    pub fn run<N: Nic + ?Sized>(&mut self, shape: &Shape, env: &AgentEnv, nic: &mut N, budget: u32) -> Ran {
        match check(shape, env.fingerprint) {
            Ok(()) => drive(budget, || self.advance(shape, env, nic)),
            Err(error) => Ran::failed(error),
        }
    }

    /// Takes a step like [`step`](Self::step) and reports everything that it reads, like
    /// [`Machine::awaits`](crate::protocol::Machine::awaits).
    ///
    /// # Errors
    /// Fails like [`step`](Self::step).
    pub fn awaits<N: Nic + ?Sized>(
        &mut self,
        shape: &Shape,
        env: &AgentEnv,
        nic: &mut N,
        tell: &mut dyn FnMut(Awaited),
    ) -> Result<Progress, ProtocolError> {
        self.step(shape, env, &mut Watch::new(nic, tell))
    }

    /// Returns the task for `peer`, checked.
    fn transfer<N: Nic + ?Sized>(
        &self,
        shape: &Shape,
        env: &AgentEnv,
        nic: &N,
        peer: RankId,
    ) -> Result<Transfer> {
        let half = Partition::of(self.served);
        let mut words = [0; Task::WORDS as usize];
        for (word, i) in words.iter_mut().zip(0..) {
            *word = nic.observe(task_word(half, peer, i))?;
        }
        let task = Task::from_words(words);
        let in_range = |field, seen, min, max| {
            let fits = min <= seen && seen <= max;
            fits.then_some(seen).ok_or(ProtocolError::Task { peer, field, seen, min, max })
        };
        let (min, max) = counts(shape);
        in_range("data_type", task.data_type.into(), WORDS_OF_8.into(), WORDS_OF_8.into())?;
        in_range("remote_rank_id", task.remote_rank_id.into(), peer.0.into(), peer.0.into())?;
        let len = in_range("count", task.count, min, max)? * ELEMENT;
        let Task { local_buf: from, remote_buf: at, .. } = Task::of(shape, half, env.rank, peer, len);
        Ok(Transfer {
            to: peer,
            from: Place::window_out(in_range("local_buf", task.local_buf, from, from)?),
            at: Place::window(in_range("remote_buf", task.remote_buf, at, at)?),
            len,
        })
    }
}

/// Returns the number of ranks that get a task in every operator: all others, or the namesakes on other servers.
const fn peers(shape: &Shape) -> u32 {
    match shape.protocol() {
        Protocol::Hierarchy => shape.servers().saturating_sub(1),
        _ => shape.ep_world_size().saturating_sub(1),
    }
}

/// Returns the minimum and maximum number of elements of a task.
fn counts(shape: &Shape) -> (u64, u64) {
    let (least, most) = match shape.protocol() {
        Protocol::Hierarchy => {
            let bytes = |kind, records| gathered_bytes(shape, kind, records);
            let (token, partial) =
                (bytes(Operator::Dispatch, shape.bs_max()), bytes(Operator::Combine, shape.bs_max()));
            (bytes(Operator::Combine, 0), token.max(partial))
        }
        _ => (sent_bytes(shape, Operator::Combine, 0), shape.rank_window()),
    };
    (div_floor(least, ELEMENT), div_floor(most, ELEMENT))
}

/// Returns the `i`-th of the `peers` in the agent's order.
fn nth_peer(shape: &Shape, env: &AgentEnv, peers: u32, i: u32) -> RankId {
    let rank = env.rank;
    let hierarchy = shape.protocol() == Protocol::Hierarchy;
    let own = if hierarchy { shape.server_of(rank).0 } else { rank.0 };
    let other = env.order.item(&(0..peers), RankId(own), i);
    let other = if other < own { other } else { other + 1 };
    if hierarchy { shape.relay(rank, other) } else { RankId(other) }
}

static_assertions::const_assert!(size_of::<Agent>() <= 256);
