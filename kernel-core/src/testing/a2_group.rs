//! A group of A2: cores and agents, one step at a time, through rounds on live windows. A rank goes on to its next
//! operator when its own cores have ended the one before; nobody else is waited for.

use super::domain::{Dice, Tensors};
use super::fake::World;
use crate::a2::{Agent, AgentEnv, Combine, Dispatch, Env, Returned, Ub, ub_bytes, ub_words};
use crate::fabric::{Progress, ProtocolError, Wait};
use crate::layout::a2_window::{FLAG1, next_flag_place, tail_flag, window, window_in};
use crate::layout::state::{Kind, Partition};
use crate::place::{Place, Tensor};
use crate::plan::order::SendOrder;
use crate::reference::{Cluster, Dispatched};
use crate::shape::{QuantMode, Shape};
use crate::sync::flag::is_window_flag;
use crate::units::{CoreId, RankId, Token};
use crate::vector::Portable;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// A machine of either kind, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    Between,
    Dispatch(Dispatch),
    Combine(Combine),
}

#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) rank: RankId,
    pub(crate) core: CoreId,
    pub(crate) machine: Machine,
    pub(crate) words: Vec<u32>,
    pub(crate) row: Vec<u8>,
}

/// What combine is given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    pub(crate) y: Vec<u8>,
    pub(crate) ep_recv_counts: Vec<u8>,
    pub(crate) expand_idx: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Rank {
    /// The operator that it runs: round, then dispatch or combine.
    pub(crate) operator: usize,
    pub(crate) rows: Rows,
    pub(crate) agent: Agent,
}

/// How a batched write arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// At once, whole.
    Strong,
    /// Late, in pieces, out of order; seldom more than a few in flight.
    Weak,
}

/// Why a run ended badly.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    Core(RankId, CoreId, ProtocolError),
    Agent(RankId, ProtocolError),
    Wrong(String),
    Hang(String),
}

pub(crate) struct Group {
    pub(crate) shape: Shape,
    pub(crate) world: World,
    /// By round, then rank.
    pub(crate) rounds: Vec<Vec<Tensors>>,
    pub(crate) cores: Vec<Core>,
    pub(crate) ranks: Vec<Rank>,
    /// What the experts return for (round, source, token, k).
    pub(crate) result: fn(&Shape, usize, u32, u32, u32) -> Vec<u8>,
    /// Only what was waited for is cleared.
    pub(crate) seed_clears: bool,
    pub(crate) tasks: usize,
}

impl Group {
    pub(crate) fn new(
        shape: &Shape,
        rounds: Vec<Vec<Tensors>>,
        result: fn(&Shape, usize, u32, u32, u32) -> Vec<u8>,
    ) -> Self {
        let core = |(rank, core)| Core {
            rank: RankId(rank),
            core: CoreId(core),
            machine: Machine::Between,
            // The scratch holds whatever was there before.
            words: vec![0xDEAD_BEEF; ub_words(shape)],
            row: vec![0xAB; ub_bytes(shape)],
        };
        let ids = (0..shape.ep_world_size()).flat_map(|r| (0..shape.aiv_num()).map(move |c| (r, c)));
        let rank = |_| Rank { operator: 0, rows: Rows::default(), agent: Agent::new() };
        Self {
            shape: shape.clone(),
            world: World::new(shape),
            rounds,
            cores: ids.map(core).collect(),
            ranks: (0..shape.ep_world_size()).map(rank).collect(),
            result,
            seed_clears: false,
            tasks: 0,
        }
    }

    /// Runs all rounds to their end.
    pub(crate) fn run(&mut self, delivery: Delivery, dice: &mut Dice) -> Result<(), Failure> {
        for rank in 0..self.ranks.len() {
            self.begin(RankId(rank as u32));
        }
        // Cores, then agents; each as often as its weight says, which changes now and then.
        let actors = self.cores.len() + self.ranks.len();
        let mut weights = vec![1; actors];
        let (mut land, mut idle) = (8, 0);
        loop {
            if dice.below(40 * actors as u32) == 0 {
                let by_rank = dice.below(2) == 0;
                let of_rank: Vec<u32> =
                    self.ranks.iter().map(|_| [0, 1, 8][dice.below(3) as usize]).collect();
                for (actor, weight) in weights.iter_mut().enumerate() {
                    let rank = self.rank_of(actor);
                    *weight = if by_rank { of_rank[rank.index()] } else { dice.below(3) };
                }
                land = [1, 8, 64][dice.below(3) as usize];
            }
            let moved = if delivery == Delivery::Weak && self.world.flying() > 0 && dice.below(64) < land {
                let i = dice.below(self.world.flying() as u32) as usize;
                let words = [1, 7, 64, 1 << 20][dice.below(4) as usize];
                self.world.deliver(i, words);
                true
            } else {
                let actor = dice.below(actors as u32) as usize;
                weights[actor] > dice.below(8) && self.act(actor, delivery)?
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > 40 * actors {
                idle = 0;
                weights.fill(8);
                if !self.everyone(delivery)? {
                    return self.end();
                }
            }
        }
    }

    fn rank_of(&self, actor: usize) -> RankId {
        match self.cores.get(actor) {
            Some(core) => core.rank,
            None => RankId((actor - self.cores.len()) as u32),
        }
    }

    /// Everybody's turn, three times since quiet says no at first. Whether anybody moved.
    fn everyone(&mut self, delivery: Delivery) -> Result<bool, Failure> {
        let mut moved = self.world.flying() > 0;
        if moved {
            self.world.deliver(0, 1 << 20);
        }
        for actor in
            (0..self.cores.len() + self.ranks.len()).cycle().take(3 * (self.cores.len() + self.ranks.len()))
        {
            moved |= self.act(actor, delivery)?;
        }
        Ok(moved)
    }

    fn end(&mut self) -> Result<(), Failure> {
        if self.ranks.iter().any(|rank| rank.operator < 2 * self.rounds.len()) {
            let machines: Vec<_> = self.cores.iter().map(|c| (c.rank, c.core, &c.machine)).collect();
            return Err(Failure::Hang(format!("{machines:?}")));
        }
        self.world.settle();
        Ok(())
    }

    /// A step of a core or of an agent. Whether it moved.
    fn act(&mut self, actor: usize, delivery: Delivery) -> Result<bool, Failure> {
        if actor < self.cores.len() {
            return self.step(actor);
        }
        let rank = RankId((actor - self.cores.len()) as u32);
        let env = AgentEnv { shape: &self.shape, rank, order: SendOrder::Staggered };
        let agent = &mut self.ranks[rank.index()].agent;
        let before = agent.clone();
        let flying = self.world.flying();
        let progress =
            agent.step(&env, &mut self.world.nic(rank, 5)).map_err(|error| Failure::Agent(rank, error))?;
        let posted = self.world.flying() - flying;
        assert!(posted <= 1, "an agent posts one task at a time");
        if progress != Progress::Stepped {
            assert!(matches!(progress, Progress::Pending(Wait::Idle | Wait::Nic { .. })), "{progress:?}");
            assert_eq!((&before, posted), (&*agent, 0), "{progress:?} must not change an agent");
        }
        self.tasks += posted;
        if delivery == Delivery::Strong {
            self.world.deliver_all();
        }
        Ok(progress == Progress::Stepped)
    }

    /// Steps core number `i` once. Whether it moved.
    fn step(&mut self, i: usize) -> Result<bool, Failure> {
        let Core { rank, core, machine, words, row } = &mut self.cores[i];
        let (rank, core) = (*rank, *core);
        let env = Env::new(&self.shape, rank, core, Portable);
        let state = &self.ranks[rank.index()];
        let Some(round) = self.rounds.get(state.operator / 2) else { return Ok(false) };
        let inputs = round[rank.index()].inputs();
        let Rows { y, ep_recv_counts, expand_idx } = &state.rows;
        let returned = Returned { y, ep_recv_counts, expand_idx };
        let mut ub = Ub { words, row };
        let (before, words_before) = (machine.clone(), ub.words.to_vec());
        let mut fabric = self.world.fabric(rank, core);
        let progress = match machine {
            Machine::Between => return Ok(false),
            Machine::Dispatch(machine) => machine.step(&env, &mut fabric, &inputs, &mut ub),
            Machine::Combine(machine) => machine.step(&env, &mut fabric, &inputs, &returned, &mut ub),
        };
        let effects = self.world.take_effects();
        assert!(effects.len() <= 1, "{before:?} had more than one effect: {effects:?}");
        let progress = progress.map_err(|error| Failure::Core(rank, core, error))?;
        if progress != Progress::Stepped {
            assert_eq!(*machine, before, "{progress:?} must not change a machine");
            assert_eq!(*ub.words, words_before, "{progress:?} must not change the scratch");
            assert!(effects.is_empty(), "{progress:?} with an effect: {effects:?}");
        }
        if progress == Progress::Done {
            *machine = Machine::Between;
            if self.cores.iter().all(|core| core.rank != rank || core.machine == Machine::Between) {
                self.join(rank)?;
            }
            return Ok(true);
        }
        Ok(progress == Progress::Stepped)
    }

    /// The end of an operator on a rank: its outputs are compared, the experts run, the next one begins.
    fn join(&mut self, rank: RankId) -> Result<(), Failure> {
        let operator = self.ranks[rank.index()].operator;
        match operator % 2 {
            0 => {
                self.check_dispatch(rank, operator / 2)?;
                self.ranks[rank.index()].rows = self.experts(rank, operator / 2);
            }
            _ => self.check_combine(rank, operator / 2)?,
        }
        self.ranks[rank.index()].operator += 1;
        self.begin(rank);
        Ok(())
    }

    fn begin(&mut self, rank: RankId) {
        let operator = self.ranks[rank.index()].operator;
        if operator >= 2 * self.rounds.len() {
            return;
        }
        let machine = match operator % 2 {
            0 => Machine::Dispatch(Dispatch::new()),
            _ => Machine::Combine(Combine::new()),
        };
        if operator.is_multiple_of(2) {
            self.world.reuse_outputs_of(rank);
        }
        if self.seed_clears {
            self.allow_seed_clears(rank, operator);
        }
        for core in self.cores.iter_mut().filter(|core| core.rank == rank) {
            core.machine = machine.clone();
        }
    }

    /// The flags that the operator waits for, as the seed's scheme would clear them.
    fn allow_seed_clears(&mut self, rank: RankId, operator: usize) {
        let half = if operator.is_multiple_of(2) { Partition::P0 } else { Partition::P1 };
        let mut places = match &self.world.bend {
            super::nic::Bend::SeedClears(places) => places.clone(),
            _ => BTreeSet::new(),
        };
        places.retain(|&(other, _)| other != rank);
        for peer in (0..self.shape.ep_world_size()).map(RankId) {
            let (kind, rows) = match operator % 2 {
                0 => (Kind::Dispatch, self.triples(rank, operator / 2).filter(|t| t.0 == peer).count()),
                _ => (Kind::Combine, self.triples(peer, operator / 2).filter(|t| t.0 == rank).count()),
            };
            let start = window(&self.shape, half, peer);
            places.insert((rank, start + tail_flag(&self.shape, kind, rows as u32)));
            if kind == Kind::Dispatch {
                places.insert((rank, start + FLAG1));
            }
        }
        self.world.bend = super::nic::Bend::SeedClears(places);
    }

    /// Source, token and k of each row that `rank` receives, in order.
    fn triples(&self, rank: RankId, round: usize) -> impl Iterator<Item = (RankId, Token, u32)> {
        let shape = &self.shape;
        let local = shape.moe_expert_num() / shape.ep_world_size();
        let experts = rank.0 * local..(rank.0 + 1) * local;
        let tensors = &self.rounds[round];
        experts.flat_map(move |e| {
            tensors.iter().enumerate().flat_map(move |(source, tensors)| {
                let pairs = (0..tensors.ids.len() as u32).filter(move |&i| {
                    let (token, k) = (Token(i / shape.k()), i % shape.k());
                    tensors.ids[i as usize] == e as i32 && tensors.inputs().pair_is_active(shape, token, k)
                });
                pairs.map(move |i| (RankId(source as u32), Token(i / shape.k()), i % shape.k()))
            })
        })
    }

    fn experts(&self, rank: RankId, round: usize) -> Rows {
        let y = self.triples(rank, round);
        Rows {
            y: y.flat_map(|(s, t, k)| (self.result)(&self.shape, round, s.0, t.0, k)).collect(),
            ep_recv_counts: self.world.output(rank, Tensor::EpRecvCounts).to_vec(),
            expand_idx: self.world.output(rank, Tensor::ExpandIdx).to_vec(),
        }
    }

    fn check_dispatch(&self, rank: RankId, round: usize) -> Result<(), Failure> {
        let inputs: Vec<_> = self.rounds[round].iter().map(Tensors::inputs).collect();
        let want: Dispatched = Cluster { shape: &self.shape, ranks: &inputs }.dispatch(rank);
        let i32s = |values: &[i32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        assert!(want.assist_info_for_combine.is_empty(), "A2 has no triples");
        let scales = want.dynamic_scales.iter().flat_map(|v| v.to_le_bytes()).collect();
        let token_nums = want.expert_token_nums.iter().flat_map(|v| v.to_le_bytes()).collect();
        for (tensor, want) in [
            (Tensor::EpRecvCounts, i32s(&want.ep_recv_counts)),
            (Tensor::ExpertTokenNums, token_nums),
            (Tensor::ExpandIdx, i32s(&want.expand_idx)),
            (Tensor::DynamicScales, scales),
            (Tensor::ExpandX, want.expand_x),
        ] {
            self.compare(rank, round, tensor, &want)?;
        }
        Ok(())
    }

    fn check_combine(&self, rank: RankId, round: usize) -> Result<(), Failure> {
        let inputs: Vec<_> = self.rounds[round].iter().map(Tensors::inputs).collect();
        let cluster = Cluster { shape: &self.shape, ranks: &inputs };
        let want = cluster.combine(rank, &mut |token, k, row| {
            *row = (self.result)(&self.shape, round, rank.0, token.0, k);
        });
        self.compare(rank, round, Tensor::XOut, &want)
    }

    fn compare(&self, rank: RankId, round: usize, tensor: Tensor, want: &[u8]) -> Result<(), Failure> {
        let seen = &self.world.output(rank, tensor)[..want.len()];
        if seen == want {
            return Ok(());
        }
        let at = seen.iter().zip(want).position(|(a, b)| a != b);
        let name = tensor.name();
        Err(Failure::Wrong(format!("{name} of rank {rank} in round {round} differs at byte {at:?}")))
    }

    /// Places in the windows of any rank at which a flag could be looked for and that hold one.
    pub(crate) fn flags_left(&self) -> Vec<(RankId, Place)> {
        let shape = &self.shape;
        let ranks = || (0..shape.ep_world_size()).map(RankId);
        let mut left = Vec::new();
        for (rank, peer) in ranks().flat_map(|rank| ranks().map(move |peer| (rank, peer))) {
            for half in [Partition::P0, Partition::P1] {
                let mut at = next_flag_place(shape, 0);
                while at < shape.rank_window() {
                    let place = window_in(shape, half, peer, at);
                    if is_window_flag(self.world.peek_word(rank, place)) {
                        left.push((rank, place));
                    }
                    at = next_flag_place(shape, at + 1);
                }
            }
        }
        left
    }
}

/// Whether rows travel as int8.
pub(crate) fn is_quantised(shape: &Shape) -> bool {
    shape.quant_mode() == QuantMode::Dynamic
}
