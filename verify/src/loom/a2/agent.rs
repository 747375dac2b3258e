//! One agent's interface over loom's memory, and the agent.

use crate::loom::bent::in_parts;
use crate::loom::cells::{LoomCells, RankView};
use crate::loom::domain::drive;
use std::sync::Arc;
use veriep_core::fabric::coherent::CoherentNic;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fault, Progress, ProtocolError};
use veriep_core::place::Place;
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Agent, AgentEnv};

/// The interface of one agent, and the agent.
#[derive(Debug)]
pub struct AgentNic {
    view: RankView,
    inner: CoherentNic<LoomCells>,
    /// Transfers wait for the next one and are delivered after it.
    pub late: bool,
    agent: Agent,
    /// Transfers that it has still to post.
    tasks: usize,
    held: Vec<Transfer>,
}

impl AgentNic {
    /// The interface of the agent of a rank, which posts so many tasks.
    pub fn new(view: RankView, late: bool, tasks: usize) -> Self {
        let inner = CoherentNic::from(LoomCells::of_agent(view.clone()));
        Self { view, inner, late, agent: Agent::new(), tasks, held: Vec::new() }
    }

    /// Lets the agent step.
    pub(super) fn step(&mut self) -> Result<Progress, ProtocolError> {
        if self.tasks == 0 {
            self.flush()?;
            return Ok(Progress::Done);
        }
        let (shape, mut agent) = (Arc::clone(&self.view.shape), self.agent.clone());
        let env = AgentEnv::new(&shape, self.view.member.number, SendOrder::Staggered);
        let progress = agent.step(&shape, &env, self);
        self.agent = agent;
        progress
    }

    /// Serves to the end.
    pub(super) fn serve(mut self) {
        if let Err(error) = drive(|| self.step()) {
            panic!("agent of rank {}: {error}", self.view.member.number);
        }
    }

    /// Delivers what has been held back.
    fn flush(&mut self) -> Result<(), Fault> {
        while let Some(transfer) = self.held.pop() {
            self.deliver(&transfer)?;
        }
        Ok(())
    }

    fn deliver(&mut self, transfer: &Transfer) -> Result<(), Fault> {
        in_parts(self.view.defect, transfer).iter().try_for_each(|part| self.inner.post(part).map(|_| ()))
    }
}

impl Nic for AgentNic {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.tasks = self.tasks.saturating_sub(1);
        if self.late && self.held.is_empty() {
            self.held.push(*transfer);
        } else {
            self.deliver(transfer)?;
            self.flush()?;
        }
        Ok(Post::Posted)
    }
}
