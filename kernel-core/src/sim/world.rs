//! The parts of a cluster: its memory, the operators that it runs, and the layers around them.

use super::chooser::{Actor, Chooser};
use super::cluster::Cluster;
use super::order::{Half, Planned};
use super::storage::Storage;
use crate::fabric::nic::Nic;
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::inputs::Inputs;
use crate::protocol::{Agent, CombineInputs, Env, Machine};
use crate::units::{CoreId, RankId};
use crate::vector::Any;
use alloc::string::String;
use alloc::vec::Vec;

/// What combine is given on one rank. See [`CombineInputs`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the inputs")]
pub struct Returned {
    pub y: Vec<u8>,
    pub assist_info: Vec<u8>,
    pub expand_scales: Vec<u8>,
    pub ep_recv_counts: Vec<u8>,
    pub expand_idx: Vec<u8>,
    pub sent_rows: Vec<u8>,
    pub row_table: Vec<u8>,
}

impl Returned {
    /// By reference.
    #[must_use]
    pub fn combine_inputs(&self) -> CombineInputs<'_> {
        let Self { y, assist_info, expand_scales, ep_recv_counts, expand_idx, sent_rows, row_table } = self;
        CombineInputs { y, assist_info, expand_scales, ep_recv_counts, expand_idx, sent_rows, row_table }
    }
}

/// A core and its scratch.
#[derive(Clone, Debug)]
pub struct Core {
    /// Its constants, from its first operator on.
    pub env: Option<Env<Any>>,
    /// What it runs; nothing between operators.
    pub machine: Option<Machine>,
    /// Words of scratch.
    pub words: Vec<u32>,
    /// Bytes of scratch.
    pub row: Vec<u8>,
    /// Operators that it has sent and not ended.
    pub open: Vec<Open>,
    /// Operators and halves that it has ended.
    pub ended: usize,
    /// What it waited for in its last step.
    pub wait: Option<Wait>,
}

/// An operator of a core between its halves.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its sending half.
    pub sent: Planned,
    /// Its machine.
    pub machine: Machine,
    /// Its words of scratch.
    pub words: Vec<u32>,
    /// Its bytes of scratch.
    pub row: Vec<u8>,
}

impl Open {
    /// Takes the operator with which the receiving half `planned` goes on; `None` if it has not been sent.
    pub fn take(all: &mut Vec<Self>, planned: Planned) -> Option<Self> {
        let found = all.iter().position(|open| open.sent == Planned { half: Half::Send, ..planned })?;
        Some(all.swap_remove(found))
    }
}

/// A member of the group: a rank, or one of two ranks with the same EP rank in a TP domain.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number in the memory.
    pub number: RankId,
    /// Its EP rank, as machines name it.
    pub ep: RankId,
    /// Its rank in the TP domain.
    pub tp: RankId,
    /// Operators and halves that all of its cores have ended.
    pub ended: usize,
    /// What combine is given, by round.
    pub returned: Vec<Returned>,
    /// Its cores.
    pub cores: Vec<Core>,
    /// Its agent, which steps only where the protocol has agents.
    pub agent: Agent,
    /// What the agent waited for in its last step.
    pub agent_wait: Option<Wait>,
    /// What it has refused. It takes no steps afterwards.
    pub error: Option<ProtocolError>,
    /// The operators of its own, if it does not run what the group runs.
    pub own: Option<Vec<Planned>>,
}

impl Member {
    /// The operators that it runs in a group that runs `operators`.
    #[must_use]
    pub fn plan<'p>(&'p self, operators: &'p [Planned]) -> &'p [Planned] {
        self.own.as_deref().unwrap_or(operators)
    }
}

/// Why a run ended badly.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// A core of this member refused what it saw.
    Core(RankId, CoreId, ProtocolError),
    /// An agent did.
    Agent(RankId, ProtocolError),
    /// Something that was computed is wrong.
    Wrong(String),
    /// No core can move: the waits. A core that waits for nothing waits for the others of its rank.
    Hang(Vec<(Actor, Option<Wait>)>),
}

/// What one step comes to on a fabric: the machine's answer.
pub type Answer = Result<Progress, ProtocolError>;
/// Lets a core take its step on a fabric.
pub type CoreStep<'s> = &'s mut dyn FnMut(&mut dyn Fabric) -> Answer;
/// Lets an agent take its step on an interface.
pub type AgentStep<'s> = &'s mut dyn FnMut(&mut dyn Nic) -> Answer;

/// What stands around the machines of a group: the inputs, the experts, who judges results, and what is between a
/// core and the memory.
pub trait World<S: Storage, C: Chooser>: Sized {
    /// What a member brings to a round.
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_>;

    /// Member number `i` of the cluster's has ended an operator, with its last half. After a dispatch the experts run: what combine is given
    /// is put into [`Member::returned`].
    fn ended(&mut self, cluster: &mut Cluster<'_, S, C>, i: usize, planned: Planned) -> Result<(), Failure>;

    /// Member number `i` is about to begin an operator, with its first half.
    fn begins(
        &mut self,
        _cluster: &mut Cluster<'_, S, C>,
        _i: usize,
        _planned: Planned,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// A core is about to take a step of an operator, in the phase of that name.
    fn steps(&self, _core: Actor, _planned: Planned, _phase: &'static str) {}

    /// Lets a core take its step on `fabric`, or on something in front of it.
    fn through(&self, _core: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        step(fabric)
    }

    /// The same of an agent.
    fn through_nic(&self, _agent: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        step(nic)
    }

    /// Something was refused. If that is no failure, member number `i` takes no steps any more, and the others go on.
    ///
    /// # Errors
    /// It is one; by default always.
    fn refused(
        &mut self,
        _cluster: &mut Cluster<'_, S, C>,
        _i: usize,
        failure: Failure,
    ) -> Result<(), Failure> {
        Err(failure)
    }
}
