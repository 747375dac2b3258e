//! The agent of a rank (seed 000 section 1.3: AICPU): serves doorbells in order, issues their tasks one by one.
//!
//! It has no end. When no newer doorbell has been rung it is pending with [`Wait::Idle`]; whoever drives decides
//! when that is the end of a run. All it reads was written by others, so every field is checked: against the
//! one task that there can be for this peer in this half, but for its length, which may be any that fits the window.

use crate::fabric::nic::{Nic, Post, Transfer};
use crate::fabric::{Progress, ProtocolError, Wait};
use crate::layout::a2_message::{ELEMENT, Task, WORDS_OF_8, doorbell, task_word};
use crate::layout::a2_window::{sent_bytes, window};
use crate::layout::state::{Kind, Partition};
use crate::place::Place;
use crate::plan::order::SendOrder;
use crate::shape::Shape;
use crate::units::{RankId, div_floor};

/// What stays the same for an agent over a group's life.
#[derive(Clone, Debug)]
pub struct AgentEnv<'a> {
    /// The domain.
    pub shape: &'a Shape,
    /// Whose agent.
    pub rank: RankId,
    /// The order in which it issues the tasks of an operator; staggered, it begins with the next rank.
    pub order: SendOrder,
}

/// The agent of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Agent {
    /// Operators whose tasks have all been posted.
    served: u64,
    /// Tasks posted of the next one.
    posted: u32,
}

impl Agent {
    /// The agent of a group that was just created.
    #[must_use]
    pub const fn new() -> Self {
        Self { served: 0, posted: 0 }
    }

    /// Goes on: posts at most one task.
    ///
    /// # Errors
    /// A doorbell or a task record holds what no core writes (nothing is posted then), or the interface refuses.
    pub fn step<N: Nic + ?Sized>(
        &mut self,
        env: &AgentEnv<'_>,
        nic: &mut N,
    ) -> Result<Progress, ProtocolError> {
        let peers = env.shape.ep_world_size().saturating_sub(1);
        let rung = nic.observe(doorbell())?;
        // A rank rings N + 2 when it has ended N + 1: then every peer has ended N, for which it needed our task. A
        // rank alone needs nobody's.
        let (min, max) = (self.served, if peers > 0 { self.served.saturating_add(2) } else { u64::MAX });
        if rung < min || rung > max {
            return Err(ProtocolError::Doorbell { seen: rung, min, max });
        }
        if rung == self.served {
            return Ok(Progress::Pending(Wait::Idle));
        }
        if peers == 0 {
            // No task, whatever the number: counting up to it would be as long as a foreign word is large.
            self.served = rung;
            return Ok(Progress::Stepped);
        }
        if self.posted < peers {
            let peer = nth_peer(env, peers, self.posted);
            let transfer = self.transfer(env, nic, peer)?;
            match nic.post(&transfer)? {
                Post::Posted => self.posted += 1,
                Post::Busy => return Ok(Progress::Pending(Wait::Nic { to: peer })),
            }
        }
        if self.posted == peers {
            *self = Self { served: self.served.wrapping_add(1), posted: 0 };
        }
        Ok(Progress::Stepped)
    }

    /// The task for `peer`, checked.
    fn transfer<N: Nic + ?Sized>(
        &self,
        env: &AgentEnv<'_>,
        nic: &N,
        peer: RankId,
    ) -> Result<Transfer, ProtocolError> {
        let half = if self.served.is_multiple_of(2) { Partition::P0 } else { Partition::P1 };
        let mut words = [0; Task::WORDS as usize];
        for (word, i) in words.iter_mut().zip(0..) {
            *word = nic.observe(task_word(half, peer, i))?;
        }
        let task = Task::from_words(words);
        let shape = env.shape;
        let (from, at) = (window(shape, half, peer), window(shape, half, env.rank));
        let least = sent_bytes(shape, Kind::Combine, 0);
        let in_range = |field, seen, min, max| {
            let fits = min <= seen && seen <= max;
            fits.then_some(seen).ok_or(ProtocolError::Task { peer, field, seen, min, max })
        };
        let count_max = div_floor(shape.rank_window(), ELEMENT);
        in_range("data_type", task.data_type.into(), WORDS_OF_8.into(), WORDS_OF_8.into())?;
        in_range("remote_rank_id", task.remote_rank_id.into(), peer.0.into(), peer.0.into())?;
        let count = in_range("count", task.count, div_floor(least, ELEMENT), count_max)?;
        Ok(Transfer {
            to: peer,
            from: Place::window_out(in_range("local_buf", task.local_buf, from, from)?),
            at: Place::window(in_range("remote_buf", task.remote_buf, at, at)?),
            len: count * ELEMENT,
        })
    }
}

/// The `i`-th of the `peers` other ranks in the agent's order.
fn nth_peer(env: &AgentEnv<'_>, peers: u32, i: u32) -> RankId {
    let peer = env.order.item(&(0..peers), env.rank, i);
    RankId(if peer < env.rank.0 { peer } else { peer + 1 })
}

static_assertions::const_assert!(size_of::<Agent>() <= 512);
