//! The tokens, the experts, which return every row as it is, and the comparison with the reference.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::cell::RefCell;
use veriep_core::fabric::Fabric;
use veriep_core::fabric::nic::Nic;
use veriep_core::inputs::Inputs;
use veriep_core::layout::state::Operator;
use veriep_core::place::Tensor;
use veriep_core::reference::Cluster as Oracle;
use veriep_core::reference::numerics::to_bytes;
use veriep_core::shape::Shape;
use veriep_core::sim::chooser::Dice;
use veriep_core::sim::cluster::{AgentStep, Answer, Cluster, CoreStep, Failure, Planned, World};
use veriep_core::sim::duty::{Duty, FaultyNic, Held};
use veriep_core::sim::storage::Sparse;
use veriep_core::sim::{Actor, Chooser, Faulty};
use veriep_core::units::{RankId, Token};

/// What a rank sends in a round.
#[derive(Clone, Debug)]
struct Sent {
    x: Vec<u8>,
    expert_ids: Vec<i32>,
    expert_scales: Vec<f32>,
}

#[derive(Debug)]
pub(crate) struct Judge {
    shape: &'static Shape,
    /// By round, then rank.
    sent: Vec<Vec<Sent>>,
    pub(crate) duty: Option<Duty>,
    held: RefCell<BTreeMap<Actor, Held>>,
}

/// Returns a token's row, filled by one number: 1 to 4 of rank 0 and 5 to 8 of rank 1 in round 0, ten more in each round.
fn row(shape: &Shape, round: usize, rank: u32, token: u32) -> Vec<u8> {
    let number = (10 * round) as f32 + (4 * rank + token + 1) as f32;
    to_bytes(shape.dtype(), number).repeat(shape.h() as usize)
}

impl Judge {
    pub(crate) fn new(shape: &'static Shape, duty: Option<Duty>, dice: &mut Dice) -> Self {
        let sent = |round, rank: u32, dice: &mut Dice| {
            let tokens = 0..shape.bs(RankId(rank));
            Sent {
                x: tokens.clone().flat_map(|token| row(shape, round, rank, token)).collect(),
                expert_ids: tokens
                    .clone()
                    .map(|_| dice.below(shape.moe_expert_num() as usize) as i32)
                    .collect(),
                expert_scales: tokens.map(|_| 1.0).collect(),
            }
        };
        let ranks =
            |round, dice: &mut Dice| (0..shape.ep_world_size()).map(|rank| sent(round, rank, dice)).collect();
        let sent = (0..crate::ROUNDS).map(|round| ranks(round, dice)).collect();
        Self { shape, sent, duty, held: RefCell::default() }
    }

    fn of(sent: &Sent) -> Inputs<'_> {
        let Sent { x, expert_ids, expert_scales } = sent;
        Inputs { x, expert_ids, expert_scales, ..Inputs::default() }
    }

    /// Returns the experts that a rank's tokens go to in a round.
    pub(crate) fn experts(&self, round: usize, rank: RankId) -> &[i32] {
        &self.sent[round][rank.index()].expert_ids
    }

    fn oracle<T>(&self, round: usize, ask: impl FnOnce(&Oracle<'_>) -> T) -> T {
        let ranks: Vec<_> = self.sent[round].iter().map(Self::of).collect();
        ask(&Oracle { shape: self.shape, ranks: &ranks, elastic_info: None, expert_map: None })
    }
}

fn compare(planned: Planned, rank: usize, tensor: Tensor, seen: &[u8], right: &[u8]) -> Result<(), Failure> {
    match seen.iter().zip(right).position(|(seen, right)| seen != right) {
        None => Ok(()),
        Some(at) => {
            let what =
                format!("{planned}: rank {rank}: {}: byte {at} differs from the reference's", tensor.name());
            Err(Failure::Wrong(what))
        }
    }
}

impl<C: Chooser> World<Sparse, C> for Judge {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        Self::of(&self.sent[round][member.index()])
    }

    fn ended(&mut self, all: &mut Cluster<'_, Sparse, C>, i: usize, planned: Planned) -> Result<(), Failure> {
        let (rank, round) = (RankId(i as u32), planned.round);
        if planned.operator == Operator::Combine {
            let right = self.oracle(round, |oracle| {
                oracle.combine(rank, &mut |token: Token, _, to| *to = row(self.shape, round, rank.0, token.0))
            });
            return compare(planned, i, Tensor::XOut, all.output(i, round, Tensor::XOut), &right);
        }
        let right = self.oracle(round, |oracle| oracle.dispatch(rank));
        for tensor in [Tensor::EpRecvCounts, Tensor::ExpertTokenNums, Tensor::ExpandX, Tensor::AssistInfo] {
            compare(planned, i, tensor, all.output(i, round, tensor), &right.bytes(tensor))?;
        }
        let y = all.output(i, round, Tensor::ExpandX)[..right.expand_x.len()].to_vec();
        all.members[i].returned[round] = all.returned(i, round, y);
        Ok(())
    }

    fn through(&self, actor: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        let Some(duty) = &self.duty else { return step(fabric) };
        let mut held = self.held.borrow_mut();
        step(&mut Faulty::new(fabric, duty, self.shape, actor, held.entry(actor).or_default()).begin()?)
    }

    fn through_nic(&self, _: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        let Some(duty) = &self.duty else { return step(nic) };
        step(&mut FaultyNic { inner: nic, duty, shape: self.shape })
    }
}
