//! Drives the machines of all cores of all ranks through a unit of operators, on one live group.
//!
//! A **unit** is the operators between two checks: every core runs them in order, and waits for a rank only
//! as the protocol says. Where A2 has agents (on the full mesh, in stage 2 of the hierarchy) every rank has an agent beside
//! its cores; a unit ends when all cores are done and all agents idle. The driver owes the join, decides how to wait, when
//! to give up, and says what is missing then.

mod budget;
mod hang;
pub mod lockstep;
pub mod pin;
#[cfg(target_os = "linux")]
pub(crate) mod rank;
pub mod schedule;
mod stepper;
mod task;
pub mod threads;
mod wait;

pub use hang::{Hang, Missing};
pub(crate) use stepper::Stepper;
#[cfg(target_os = "linux")]
pub(crate) use task::keep_combine_inputs;
pub use task::{RankState, Stop, Task};
use veriep_core::protocol::{Choices, Refused};
use veriep_core::shape::Protocol;
use veriep_core::sim::cluster::Planned;
pub(crate) use wait::{Rest, idle, meet};

use crate::backend::Backend;
use crate::world::World;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;
use veriep_case::batch::Batch;
use veriep_case::global_rank;
use veriep_core::fabric::{Fabric, ProtocolError};
use veriep_core::inputs::Inputs;
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Any;

/// Choices that do not change results.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The protocol's.
    pub choices: Choices,
    /// The vector unit that rows are computed with.
    pub vector: Any,
    /// Skips row arithmetic, to measure the remaining cost.
    pub rows_idle: bool,
    /// All ranks begin an operator together, and experts run when all have ended it, so that its time holds no waiting
    /// for another rank's experts. The protocol does not need it.
    pub in_step: bool,
    /// Skips copying received rows to `expand_x` after the experts have run. Set it if nothing will read them.
    pub rows_unseen: bool,
    /// The experts do not run: what they returned for a batch the last time, with the same inputs, is used again. Where they
    /// overwrite, it is put back.
    pub returned_before: bool,
    /// The experts compute nothing and return zeros. Set it when only the places of rows matter.
    pub experts_idle: bool,
    /// At most one effect in a step, where the machine can tell: to count them.
    pub one_by_one: bool,
    /// Most steps of a core in an operator, in place of what the plan says. For tests.
    pub steps_max: Option<u64>,
    /// Breaks the driver's duty, to show that it is one. For tests.
    pub no_join: bool,
    /// A rank leaves out the round of that number, its dispatch and its combine.
    pub skips: Option<(RankId, usize)>,
    /// A rank gives combine another batch than its dispatch had, in the round of that number.
    pub wrong_batch: Option<(RankId, usize)>,
    /// A rank or core takes no step any more, to see what becomes of the others.
    pub stopped: Option<Stopped>,
}

/// An actor of the group that takes no step beyond the first `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The rank.
    pub rank: RankId,
    /// Who of it.
    pub who: Who,
    /// Steps of all who stop, of the unit.
    pub after: u64,
}

/// Who of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// All actors.
    Rank,
    /// One core.
    Core(CoreId),
    /// The agent, on A2.
    Agent,
}

/// What the tasks of a unit share.
#[derive(Debug)]
pub struct Unit<'a, B> {
    /// The domain.
    pub shape: &'a Shape,
    /// Choices.
    pub options: Options,
    /// The group's memory.
    pub backend: &'a B,
    /// The round of the first batch.
    pub first_round: usize,
    /// Inputs of each batch.
    pub batches: &'a [Batch<'a>],
    /// The host's state of each rank.
    pub ranks: &'a [RankState],
    /// What every core runs.
    pub operators: &'a [Planned],
    /// Which ranks are driven here, and how far all are.
    pub world: &'a World,
}

impl<B> Unit<'_, B> {
    /// Returns whether a rank leaves out a batch.
    pub(crate) fn skips(&self, rank: RankId, batch: usize) -> bool {
        self.options.skips == Some((rank, self.first_round + batch))
    }

    /// Returns what a rank brings to a batch. Its call has the number of the round.
    pub(crate) fn inputs(&self, batch: usize, rank: RankId) -> Inputs<'_> {
        let call = u32::try_from(self.first_round + batch).ok();
        Inputs { call, ..self.batches[batch].inputs(rank) }
    }

    /// Refuses, before anything has happened, what the memory or the shape cannot do.
    fn check(&self) -> Result<(), Failure>
    where
        B: Backend,
    {
        let terms = self.backend.fabric(RankId(0), CoreId(0), 0).terms();
        self.options.choices.check(self.shape, terms)?;
        self.check_wrong_batch()
    }

    /// Lets the check of combine's inputs see another batch than its dispatch had, if a rank is to give it one.
    fn check_wrong_batch(&self) -> Result<(), Failure> {
        let Some((rank, round)) = self.options.wrong_batch else { return Ok(()) };
        let Some(batch) = round.checked_sub(self.first_round).filter(|batch| *batch < self.batches.len())
        else {
            return Ok(());
        };
        let (shape, ep_rank) = (self.shape, global_rank::ep_rank(self.shape, rank));
        let dispatched = self.inputs(batch, rank);
        // In a unit of one batch it is that of another rank.
        let other = match self.batches.len() {
            1 => self.inputs(batch, RankId((rank.0 + 1) % global_rank::count(shape))),
            batches => self.inputs((batch + 1) % batches, rank),
        };
        let combined = Inputs { dispatched: Some(dispatched.batch(shape, ep_rank)), ..other };
        let mut refused = None;
        let _ = combined.check_combine(shape, ep_rank, &mut |error| {
            refused.get_or_insert(error.to_string());
            ControlFlow::Break(())
        });
        match refused {
            Some(why) => Err(Failure::Batch { rank, round, why }),
            None => Ok(()),
        }
    }

    /// Whether the cores of `rank` have ended all operators: its doorbell rings no more.
    fn has_ended(&self, rank: RankId) -> bool {
        self.operators.len().checked_sub(1).is_none_or(|last| self.ranks[rank.index()].has_ended(last))
    }

    /// At most `steps` steps that `who` of `rank` may take now; fewer if an actor is [stopped](Options::stopped).
    fn left(&self, rank: RankId, who: Who, steps: u32) -> u32 {
        match self.stopping(rank, who) {
            Some(stopped) => {
                let made = self.ranks[rank.index()].steps.load(Ordering::Relaxed);
                u64::from(steps).min(stopped.after.saturating_sub(made)) as u32
            }
            None => steps,
        }
    }

    /// Counts steps of an actor that will stop.
    fn count(&self, rank: RankId, who: Who, steps: u32) {
        if self.stopping(rank, who).is_some() {
            self.ranks[rank.index()].steps.fetch_add(steps.into(), Ordering::Relaxed);
        }
    }

    fn stopping(&self, rank: RankId, who: Who) -> Option<Stopped> {
        let stopped = self.options.stopped.filter(|stopped| stopped.rank == rank)?;
        (stopped.who == Who::Rank || stopped.who == who).then_some(stopped)
    }

    /// The agent of `rank` has made so many steps, each of which posts a task if there is anybody to post it to.
    fn add_tasks(&self, rank: RankId, steps: u32) {
        let alone = match self.shape.protocol() {
            Protocol::Hierarchy => self.shape.servers() == 1,
            _ => self.shape.ep_world_size() == 1,
        };
        if !alone {
            self.ranks[rank.index()].tasks.fetch_add(steps.into(), Ordering::Relaxed);
        }
    }
}

impl Failure {
    /// The same with every rank under the name that `name` has for it.
    #[must_use]
    pub fn renamed(self, name: &dyn Fn(RankId) -> RankId) -> Self {
        match self {
            Self::Protocol { rank, core, error } => {
                Self::Protocol { rank: name(rank), core, error: error.renamed(name) }
            }
            Self::Hang(Hang { after, missing }) => {
                let missing = missing.into_iter().map(|missing| missing.renamed(name)).collect();
                Self::Hang(Hang { after, missing })
            }
            Self::Agent { rank, error } => Self::Agent { rank: name(rank), error: error.renamed(name) },
            Self::Polls { rank, core, steps } => Self::Polls { rank: name(rank), core, steps },
            Self::Batch { rank, round, why } => Self::Batch { rank: name(rank), round, why },
            Self::Thread(_) | Self::Traffic(_) | Self::Refused(_) | Self::Stopped => self,
        }
    }
}

/// Why a unit did not end well.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// A machine refused what it saw.
    #[error("rank {rank} core {core}: {error}")]
    Protocol {
        /// Where.
        rank: RankId,
        /// Its core.
        core: CoreId,
        /// What.
        error: ProtocolError,
    },
    /// An agent refused what it saw.
    #[error("agent of rank {rank}: {error}")]
    Agent {
        /// Whose.
        rank: RankId,
        /// What.
        error: ProtocolError,
    },
    /// A core takes more steps than its operator can have, so it polls by stepping and will not end it.
    #[error(
        "rank {rank} core {core} polls by stepping: {steps} steps of one operator, more than its plan can take"
    )]
    Polls {
        /// Whose.
        rank: RankId,
        /// Its core.
        core: CoreId,
        /// Steps so far.
        steps: u64,
    },
    /// The check of a combine's inputs has refused them.
    #[error("rank {rank}: combine of batch {round}: {why}")]
    Batch {
        /// Whose.
        rank: RankId,
        /// Of which round.
        round: usize,
        /// What is wrong with them.
        why: String,
    },
    /// Something went from rank to rank that is not in the plan, or did not.
    #[error("{0}")]
    Traffic(String),
    /// No core moved before the deadline.
    #[error("{0}")]
    Hang(Hang),
    /// The memory or the shape does not have what the choices ask for.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Another member of the group has failed, and says why.
    #[error("stopped: another process of the group has failed")]
    Stopped,
    /// The system does not start a worker.
    #[error("cannot start a worker thread: {0}")]
    Thread(String),
}
