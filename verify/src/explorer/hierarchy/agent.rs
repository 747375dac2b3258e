//! Stage 2: the core barrier, and the agent, which posts what cores have gathered.

use super::super::violation::Violation;
use super::memory::{Part, Spot};
use super::view::View;
use crate::order::Order;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fault, Progress};
use veriep_core::layout::{a2_message, relay};
use veriep_core::place::Place;
use veriep_core::plan::counts::ShareSum;
use veriep_core::protocol::AgentEnv;
use veriep_core::sync::barrier;
use veriep_core::units::CoreId;

impl View<'_, '_> {
    /// The word of a core at the barrier of operator `op`. As the machine counts, barriers are as far apart as operators.
    pub(super) fn barrier_word(&self, op: u32) -> u64 {
        let epoch = (1 + self.step.at.op % 2).wrapping_add(op.wrapping_sub(self.step.at.op)) % 4;
        barrier::word(epoch, ShareSum::default())
    }

    /// A barrier word: that of this operator's barrier, or of the last one for which the core used it.
    pub(super) fn barrier(&self, at: Place, spot: Spot) -> Result<u64, Fault> {
        let (core, parity, op) =
            (CoreId(u32::from(spot.number) / 2), u32::from(spot.number) % 2, self.step.at.op);
        let is_used = parity != op % 2;
        let before = if is_used { op.wrapping_sub(2) } else { op.wrapping_sub(1) };
        let own = core == self.step.at.core;
        let come = is_used && !own && self.look(at, spot, Part::Whole)?.is_some();
        Ok(self.barrier_word(if come { op } else { before }))
    }

    /// Rings for the agent, which posts at once.
    pub(super) fn ring(&mut self, at: Place) -> Result<(), Fault> {
        if self.strong() {
            self.touch(at, 0)?;
        }
        self.step.account.say_written(self.step.at.rank, || "rings".to_owned());
        let (model, shape, rank) = (self.scene.setup.model, self.scene.setup.shape, self.step.at.rank);
        let mut agent = self.memory.get_mut().agents[rank.index()].clone();
        let env = AgentEnv::new(shape, rank, model.choices.order);
        loop {
            match agent.step(shape, &env, self) {
                Ok(Progress::Stepped) => {}
                Ok(_) => break,
                Err(error) => {
                    self.step.found.blame(Violation::Refused { rank, error: error.to_string() });
                    break;
                }
            }
        }
        self.memory.get_mut().agents[rank.index()] = agent;
        Ok(())
    }
}

/// The agent's view, while it is rung for.
impl Nic for View<'_, '_> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        if at == a2_message::doorbell() {
            return Ok(u64::from(self.step.at.op) + 1);
        }
        self.scene.setup.relies_on(Order::TransferDoorbell);
        let word = self.body(at, 8)?.and_then(|bytes| bytes.first_chunk());
        Ok(word.map_or(0, |word| u64::from_le_bytes(*word)))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, from, at, len } = *transfer;
        let record = relay::record_bytes(self.scene.setup.shape, self.step.at.operator);
        let (kind, mut done) = (self.next_message(), 0);
        while done < len {
            let source = relay::behind(from, done);
            let (spot, inside) = self.spot(source, 8)?;
            let (0, Some(value)) = (inside, self.landed(source, spot)) else {
                return Err(self.fault(source, 8));
            };
            self.effect(kind, to, relay::behind(at, done), (value.op, value.number, value.body))?;
            done += if value.body.is_some() { record } else { 8 };
        }
        Ok(Post::Posted)
    }
}
