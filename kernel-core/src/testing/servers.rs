//! A hierarchy of servers: cores, one step at a time, through rounds on live windows. A rank goes on to its next operator
//! when its own cores have ended the one before; nobody else is waited for.

use super::a2_group::{Failure, Operator, schedule};
use super::domain::{Dice, OwnedMask, Tensors};
use super::fake::World;
use crate::fabric::Progress;
use crate::place::Tensor;
use crate::plan::order::SendOrder;
use crate::plan::relay;
use crate::protocol::a2::{Agent, AgentEnv};
use crate::protocol::hierarchy::{Combine, Dispatch, Env, ub_bytes, ub_words};
use crate::protocol::{Operands, Stage, Ub};
use crate::reference::{Cluster, Dispatched};
use crate::shape::Shape;
use crate::units::{CoreId, RankId, Token};
use crate::vector::Portable;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    Between,
    Dispatch(Dispatch),
    Combine(Combine),
}

pub(crate) struct Core {
    pub(crate) rank: RankId,
    pub(crate) core: CoreId,
    pub(crate) machine: Machine,
    words: Vec<u32>,
    row: Vec<u8>,
}

/// What combine is given.
#[derive(Clone, Debug, Default)]
struct Rows {
    y: Vec<u8>,
    assist_info: Vec<u8>,
    expand_scales: Vec<u8>,
    ep_recv_counts: Vec<u8>,
}

pub(crate) struct Group {
    shape: Shape,
    pub(crate) world: World,
    rounds: Vec<Vec<Tensors>>,
    pub(crate) operators: Vec<Operator>,
    pub(crate) cores: Vec<Core>,
    pub(crate) stage: Stage,
    /// By rank.
    agents: Vec<Agent>,
    /// By rank: the operator that it runs.
    pub(crate) at: Vec<usize>,
    /// By rank, then round.
    rows: Vec<Vec<Rows>>,
    result: fn(&Shape, u32, u32, u32) -> Vec<u8>,
}

/// Random inputs of every rank of so many rounds.
pub(crate) fn random_rounds(shape: &Shape, rounds: usize, dice: &mut Dice) -> Vec<Vec<Tensors>> {
    let tensors = |rank, dice: &mut Dice| Tensors {
        mask: OwnedMask::None,
        ..Tensors::random(shape, RankId(rank), dice)
    };
    (0..rounds).map(|_| (0..shape.ep_world_size()).map(|rank| tensors(rank, dice)).collect()).collect()
}

impl Group {
    pub(crate) fn new(
        shape: &Shape,
        rounds: Vec<Vec<Tensors>>,
        letters: &str,
        result: fn(&Shape, u32, u32, u32) -> Vec<u8>,
    ) -> Self {
        let operators = schedule(letters, rounds.len() * 2 / letters.len());
        let core = |(rank, core)| Core {
            rank: RankId(rank),
            core: CoreId(core),
            machine: Machine::Between,
            words: vec![0xDEAD_BEEF; ub_words(shape)],
            row: vec![0xAB; ub_bytes(shape)],
        };
        let ids = (0..shape.ep_world_size()).flat_map(|r| (0..shape.aiv_num()).map(move |c| (r, c)));
        let ranks = shape.ep_world_size() as usize;
        let mut group = Self {
            shape: shape.clone(),
            world: World::new(shape),
            operators,
            cores: ids.map(core).collect(),
            stage: Stage::Three,
            agents: vec![Agent::new(); ranks],
            at: vec![0; ranks],
            rows: vec![vec![Rows::default(); rounds.len()]; ranks],
            rounds,
            result,
        };
        (0..ranks).for_each(|rank| group.begin(RankId(rank as u32)));
        group
    }

    /// Lets cores move until none can that is awake.
    pub(crate) fn run_without(&mut self, asleep: impl Fn(&Self, &Core) -> bool) -> Result<(), Failure> {
        let mut idle = 0;
        // Quiet says no when it is asked for the first time.
        while idle < 3 {
            idle += 1;
            for i in 0..self.cores.len() {
                if !asleep(self, &self.cores[i]) && self.step(i)? {
                    idle = 0;
                }
            }
        }
        Ok(())
    }

    /// Runs all rounds to their end; messages land by the dice, cores go by it.
    pub(crate) fn run(&mut self, dice: &mut Dice) -> Result<(), Failure> {
        let actors = self.cores.len() as u32;
        let (mut weights, mut land, mut idle) = (vec![8; self.cores.len()], 16, 0);
        loop {
            if dice.below(40 * actors) == 0 {
                // Some ranks or cores are slow or asleep, or all messages are.
                let of_rank: Vec<u32> = self.at.iter().map(|_| [0, 1, 8][dice.below(3) as usize]).collect();
                let by_rank = dice.below(2) == 0;
                for (weight, core) in weights.iter_mut().zip(&self.cores) {
                    *weight =
                        if by_rank { of_rank[core.rank.index()] } else { [0, 1, 8][dice.below(3) as usize] };
                }
                land = [0, 2, 16, 60][dice.below(4) as usize];
            }
            let moved = if self.world.has_messages() && dice.below(64) < land {
                let words = [1, 1, 5, 1000][dice.below(4) as usize];
                self.world.land_messages(words, dice);
                true
            } else if self.world.flying() > 0 && dice.below(64) < land {
                let i = dice.below(self.world.flying() as u32) as usize;
                let words = self.world.words_left(i);
                self.world
                    .deliver(i, [1, words.saturating_sub(1).max(1), words][dice.below(3) as usize].into());
                true
            } else if self.stage == Stage::Two && dice.below(4) == 0 {
                self.step_agent(RankId(dice.below(self.at.len() as u32)))?
            } else {
                let i = dice.below(actors) as usize;
                weights[i] > dice.below(8) && self.step(i)?
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > 40 * self.cores.len() {
                idle = 0;
                weights.fill(8);
                if !self.everyone(dice)? {
                    return self.end();
                }
            }
        }
    }

    fn everyone(&mut self, dice: &mut Dice) -> Result<bool, Failure> {
        let mut moved = self.world.has_messages() || self.world.flying() > 0;
        self.world.land_messages(1000, dice);
        self.world.deliver_all();
        for rank in (0..self.at.len() as u32).map(RankId) {
            moved |= self.stage == Stage::Two && self.step_agent(rank)?;
        }
        for i in (0..self.cores.len()).cycle().take(3 * self.cores.len()) {
            moved |= self.step(i)?;
        }
        Ok(moved)
    }

    fn end(&mut self) -> Result<(), Failure> {
        if self.at.iter().any(|&at| at < self.operators.len()) {
            let machines: Vec<_> = self.cores.iter().map(|c| (c.rank, c.core, &c.machine)).collect();
            return Err(Failure::Hang(format!("{machines:?}")));
        }
        // Every token crosses once to each server that needs it, and so does every partial sum.
        let across = |tensors: &Vec<Tensors>| {
            let of = |(rank, tensors): (u32, &Tensors)| {
                relay::crossings(&self.shape, RankId(rank), &tensors.ids).0
            };
            (0..).zip(tensors).map(of).sum::<u64>()
        };
        match self.stage {
            Stage::Three => assert_eq!(self.world.crossed, 2 * self.rounds.iter().map(across).sum::<u64>()),
            Stage::Two => assert!(!self.world.rewritten, "a source was rewritten under its task"),
        }
        Ok(())
    }

    /// Whether the agent of `rank` moved.
    fn step_agent(&mut self, rank: RankId) -> Result<bool, Failure> {
        let env = AgentEnv { shape: &self.shape, rank, order: SendOrder::Staggered };
        let step = self.agents[rank.index()].step(&env, &mut self.world.nic(rank, 4));
        let progress = step.map_err(|error| Failure::Agent(rank, error))?;
        Ok(progress == Progress::Stepped)
    }

    /// Steps core number `i` once. Whether it moved.
    pub(crate) fn step(&mut self, i: usize) -> Result<bool, Failure> {
        let Core { rank, core, machine, words, row } = &mut self.cores[i];
        let (rank, core) = (*rank, *core);
        let Some(operator) = self.operators.get(self.at[rank.index()]) else { return Ok(false) };
        let env = Env::new(&self.shape, rank, core, Portable).with_stage(self.stage);
        let inputs = self.rounds[operator.round()][rank.index()].inputs();
        let Rows { y, assist_info, expand_scales, ep_recv_counts } =
            &self.rows[rank.index()][operator.round()];
        let operands = Operands { y, assist_info, expand_scales, ep_recv_counts, ..Operands::default() };
        let mut ub = Ub { words, row };
        let (before, words_before) = (machine.clone(), ub.words.to_vec());
        let mut fabric = self.world.fabric(rank, core);
        let progress = match machine {
            Machine::Between => return Ok(false),
            Machine::Dispatch(machine) => machine.step(&env, &mut fabric, &inputs, &mut ub),
            Machine::Combine(machine) => machine.step(&env, &mut fabric, &inputs, &operands, &mut ub),
        };
        let effects = self.world.take_effects();
        assert!(effects.len() <= 1, "{before:?} had more than one effect: {effects:?}");
        let progress = progress.map_err(|error| Failure::Core(rank, core, error))?;
        if let Progress::Pending(wait) = progress {
            assert_eq!(*machine, before, "{wait} must not change a machine");
            assert_eq!(*ub.words, words_before, "{wait} must not change the scratch");
            assert!(effects.is_empty(), "{wait} with an effect: {effects:?}");
        }
        if progress == Progress::Done {
            *machine = Machine::Between;
            if self.cores.iter().all(|core| core.rank != rank || core.machine == Machine::Between) {
                self.join(rank)?;
            }
        }
        Ok(!matches!(progress, Progress::Pending(_)))
    }

    fn join(&mut self, rank: RankId) -> Result<(), Failure> {
        match self.operators[self.at[rank.index()]] {
            Operator::Dispatch(round) => self.check_dispatch(rank, round)?,
            Operator::Combine(round) => self.check_combine(rank, round)?,
        }
        self.at[rank.index()] += 1;
        self.begin(rank);
        Ok(())
    }

    fn begin(&mut self, rank: RankId) {
        let Some(&operator) = self.operators.get(self.at[rank.index()]) else { return };
        let machine = match operator {
            Operator::Dispatch(_) => Machine::Dispatch(Dispatch::new()),
            Operator::Combine(_) => Machine::Combine(Combine::new()),
        };
        self.world.reuse_outputs_of(rank);
        for core in self.cores.iter_mut().filter(|core| core.rank == rank) {
            core.machine = machine.clone();
        }
    }

    fn compare(&self, rank: RankId, tensor: Tensor, expected: &[u8]) -> Result<(), Failure> {
        let seen = &self.world.output(rank, tensor)[..expected.len()];
        let wrong = seen.iter().zip(expected).position(|(a, b)| a != b);
        wrong.map_or(Ok(()), |at| {
            Err(Failure::Wrong(format!(
                "{} of rank {rank}, byte {at}: {seen:?}, not {expected:?}",
                tensor.name()
            )))
        })
    }

    fn check_dispatch(&mut self, rank: RankId, round: usize) -> Result<(), Failure> {
        let inputs: Vec<_> = self.rounds[round].iter().map(Tensors::inputs).collect();
        let cluster = Cluster { shape: &self.shape, ranks: &inputs, elastic_info: None };
        let Dispatched {
            expand_x,
            dynamic_scales,
            assist_info_for_combine,
            expand_idx,
            expand_scales,
            expert_token_nums,
            ep_recv_counts,
            ..
        } = cluster.dispatch(rank);
        let i32s = |words: &[i32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let f32s = |words: &[f32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let (info, weights) = (i32s(assist_info_for_combine.as_flattened()), f32s(&expand_scales));
        let counts = i32s(&ep_recv_counts);
        self.compare(rank, Tensor::EpRecvCounts, &counts)?;
        let nums: Vec<u8> = expert_token_nums.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.compare(rank, Tensor::ExpertTokenNums, &nums)?;
        self.compare(rank, Tensor::ExpandIdx, &i32s(&expand_idx))?;
        self.compare(rank, Tensor::AssistInfo, &info)?;
        self.compare(rank, Tensor::ExpandScales, &weights)?;
        if self.shape.row_format().scale.is_some() {
            self.compare(rank, Tensor::DynamicScales, &f32s(&dynamic_scales))?;
        }
        self.compare(rank, Tensor::ExpandX, &expand_x)?;
        let y = assist_info_for_combine.iter().zip(self.experts_of_rows(rank, &ep_recv_counts)).flat_map(
            |(&[source, token, _], expert)| {
                let [source, token] = [source, token].map(i32::cast_unsigned);
                let ids = inputs[source as usize].ids(&self.shape, Token(token));
                let k = ids.iter().position(|&id| id == expert).unwrap();
                (self.result)(&self.shape, source, token, k as u32)
            },
        );
        let y = y.collect();
        let rows = Rows { y, assist_info: info, expand_scales: weights, ep_recv_counts: counts };
        self.rows[rank.index()][round] = rows;
        Ok(())
    }

    /// The expert of every received row.
    fn experts_of_rows(&self, rank: RankId, ep_recv_counts: &[i32]) -> Vec<i32> {
        let (mut experts, ranks) = (vec![], self.shape.ep_world_size());
        for (slot, &sum) in (0..).zip(ep_recv_counts) {
            let expert = rank.0 * self.shape.local_expert_num() + slot / ranks;
            experts.resize(sum as usize, expert.cast_signed());
        }
        experts
    }

    fn check_combine(&self, rank: RankId, round: usize) -> Result<(), Failure> {
        let inputs: Vec<_> = self.rounds[round].iter().map(Tensors::inputs).collect();
        let cluster = Cluster { shape: &self.shape, ranks: &inputs, elastic_info: None };
        let expected = cluster.combine(rank, &mut |token, k, row| {
            *row = (self.result)(&self.shape, rank.0, token.0, k);
        });
        self.compare(rank, Tensor::XOut, &expected)
    }
}
