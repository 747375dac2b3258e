//! A group of A2: cores and agents, one step at a time, through rounds on live windows. A rank goes on to its next
//! operator when its own cores have ended the one before; nobody else is waited for.

use super::domain::{Dice, Tensors};
use super::fake::World;
use super::nic::Bend;
use crate::fabric::{Flag, Progress, ProtocolError};
use crate::layout::a2_window::{FLAG1, next_flag_place, tail_flag, window, window_in};
use crate::layout::state::{Kind, Partition};
use crate::place::{Place, Tensor};
use crate::plan::order::SendOrder;
use crate::protocol::a2::{Agent, AgentEnv, Combine, Dispatch, Env, ub_bytes, ub_words};
use crate::protocol::{Operands, Ub};
use crate::reference::{Cluster, Dispatched};
use crate::shape::Shape;
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

/// An operator of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Dispatch(usize),
    Combine(usize),
}

impl Operator {
    pub(crate) const fn round(self) -> usize {
        match self {
            Self::Dispatch(round) | Self::Combine(round) => round,
        }
    }
}

/// Operators by their letters: `DDCC`, so many times over.
pub(crate) fn schedule(letters: &str, times: usize) -> Vec<Operator> {
    let (mut dispatched, mut combined) = (0, 0);
    let mut operators = Vec::new();
    for letter in letters.repeat(times).chars() {
        let (next, operator): (_, fn(usize) -> Operator) = match letter {
            'D' => (&mut dispatched, Operator::Dispatch),
            _ => (&mut combined, Operator::Combine),
        };
        operators.push(operator(*next));
        *next += 1;
    }
    operators
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
    /// The operator that it runs, by its number.
    pub(crate) operator: usize,
    /// By round.
    pub(crate) rows: Vec<Rows>,
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
    /// What every rank runs.
    pub(crate) operators: Vec<Operator>,
    pub(crate) cores: Vec<Core>,
    pub(crate) ranks: Vec<Rank>,
    /// What the experts return for (round, source, token, k).
    pub(crate) result: fn(&Shape, usize, u32, u32, u32) -> Vec<u8>,
    /// Only what was waited for is cleared.
    pub(crate) seed_clears: bool,
    pub(crate) tasks: usize,
    /// Whether to note every (phase, effect, next phase).
    pub(crate) record: bool,
    pub(crate) transitions: BTreeSet<[String; 3]>,
}

/// The name of a machine's phase, with the shared part's where that is at work.
fn phase(machine: &Machine) -> String {
    let text = format!("{machine:?}");
    // The steps to the doorbell are shared with others and stand inside the shared part.
    let text = text.replace("phase: Ring(", "phase: ");
    let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric()).collect::<String>();
    let mut phases = text.split("phase: ").skip(1).map(name);
    let (shared, own) = (phases.next().unwrap_or_default(), phases.next().unwrap_or_default());
    let kind = name(&text);
    if own == "Send" { format!("{kind} Send.{shared}") } else { format!("{kind} {own}") }
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
        let rank = |_| Rank { operator: 0, rows: vec![Rows::default(); rounds.len()], agent: Agent::new() };
        Self {
            shape: shape.clone(),
            world: World::new(shape),
            operators: schedule("DC", rounds.len()),
            cores: ids.map(core).collect(),
            ranks: (0..shape.ep_world_size()).map(rank).collect(),
            rounds,
            result,
            seed_clears: false,
            tasks: 0,
            record: false,
            transitions: BTreeSet::new(),
        }
    }

    /// Runs all rounds to their end.
    pub(crate) fn run(&mut self, delivery: Delivery, dice: &mut Dice) -> Result<(), Failure> {
        self.begin_all();
        // Cores, then agents; each as often as its weight says, which changes now and then.
        let actors = self.cores.len() + self.ranks.len();
        let mut weights = vec![1; actors];
        let (mut land, mut idle, mut nap) = (8, 0, 40);
        loop {
            if dice.below(nap * actors as u32) == 0 {
                nap = [20, 100, 400][dice.below(3) as usize];
                weights = self.weights(dice);
                land = [1, 8, 64][dice.below(3) as usize];
            }
            let moved = if delivery == Delivery::Weak && self.world.flying() > 0 && dice.below(64) < land {
                let i = dice.below(self.world.flying() as u32) as usize;
                let left = self.world.words_left(i);
                let words = match dice.below(4) {
                    0 => 1,
                    1 => 1 + dice.below(64),
                    2 => 1 + dice.below(left),
                    _ => left.saturating_sub(1).max(1),
                };
                self.world.deliver(i, words.into());
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

    /// Gives every core its next operator.
    pub(crate) fn begin_all(&mut self) {
        (0..self.ranks.len()).for_each(|rank| self.begin(RankId(rank as u32)));
    }

    /// How often each is to move: some ranks, some cores or all agents may be slow or asleep.
    fn weights(&self, dice: &mut Dice) -> Vec<u32> {
        let any = |dice: &mut Dice| [0, 1, 8][dice.below(3) as usize];
        let actors = self.cores.len() + self.ranks.len();
        let of_rank: Vec<u32> = self.ranks.iter().map(|_| any(dice)).collect();
        match dice.below(4) {
            0 => (0..actors).map(|actor| if actor < self.cores.len() { 8 } else { 0 }).collect(),
            1 | 2 => (0..actors).map(|actor| of_rank[self.rank_of(actor).index()]).collect(),
            _ => (0..actors).map(|_| any(dice)).collect(),
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
        if self.ranks.iter().any(|rank| rank.operator < self.operators.len()) {
            let machines: Vec<_> = self.cores.iter().map(|c| (c.rank, c.core, &c.machine)).collect();
            return Err(Failure::Hang(format!("{machines:?}")));
        }
        self.world.settle();
        Ok(())
    }

    /// A step of a core or of an agent. Whether it moved.
    pub(crate) fn act(&mut self, actor: usize, delivery: Delivery) -> Result<bool, Failure> {
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
            let Progress::Pending(wait) = progress else { panic!("{progress:?}") };
            assert!(matches!(wait.flag, Flag::Idle | Flag::Nic), "{wait}");
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
        let Some(progress) = self.progress(i)? else { return Ok(false) };
        let Core { rank, machine, .. } = &mut self.cores[i];
        let rank = *rank;
        if progress == Progress::Done {
            *machine = Machine::Between;
            if self.cores.iter().all(|core| core.rank != rank || core.machine == Machine::Between) {
                self.join(rank)?;
            }
        }
        Ok(!matches!(progress, Progress::Pending(_)))
    }

    /// What a step of core number `i` comes to; nothing between operators.
    pub(crate) fn progress(&mut self, i: usize) -> Result<Option<Progress>, Failure> {
        let Core { rank, core, machine, words, row } = &mut self.cores[i];
        let (rank, core) = (*rank, *core);
        let env = Env::new(&self.shape, rank, core, Portable);
        let state = &self.ranks[rank.index()];
        let Some(operator) = self.operators.get(state.operator) else { return Ok(None) };
        let inputs = self.rounds[operator.round()][rank.index()].inputs();
        let Rows { y, ep_recv_counts, expand_idx } = &state.rows[operator.round()];
        let operands = Operands { y, ep_recv_counts, expand_idx, ..Operands::default() };
        let mut ub = Ub { words, row };
        let (before, words_before) = (machine.clone(), ub.words.to_vec());
        let mut fabric = self.world.fabric(rank, core);
        let progress = match machine {
            Machine::Between => return Ok(None),
            Machine::Dispatch(machine) => machine.step(&env, &mut fabric, &inputs, &mut ub),
            Machine::Combine(machine) => machine.step(&env, &mut fabric, &inputs, &operands, &mut ub),
        };
        let effects = self.world.take_effects();
        assert!(effects.len() <= 1, "{before:?} had more than one effect: {effects:?}");
        let progress = progress.map_err(|error| Failure::Core(rank, core, error))?;
        if progress != Progress::Stepped {
            assert_eq!(*machine, before, "{progress:?} must not change a machine");
            assert_eq!(*ub.words, words_before, "{progress:?} must not change the scratch");
            assert!(effects.is_empty(), "{progress:?} with an effect: {effects:?}");
        }
        if self.record {
            let what = match (&progress, effects.first()) {
                (Progress::Pending(_), _) => "(pending)",
                (Progress::Done, _) => "(done)",
                (Progress::Stepped, None) => "-",
                (Progress::Stepped, Some(effect)) => {
                    let what = effect.split_once('+').map_or("", |(what, _)| what);
                    what.split_once(" -> ").map_or(what, |(verb, _)| verb).trim_end()
                }
            };
            self.transitions.insert([phase(&before), what.into(), phase(machine)]);
        }
        Ok(Some(progress))
    }

    /// The end of an operator on a rank: its outputs are compared, the experts run, the next one begins.
    fn join(&mut self, rank: RankId) -> Result<(), Failure> {
        match self.operators[self.ranks[rank.index()].operator] {
            Operator::Dispatch(round) => {
                self.check_dispatch(rank, round)?;
                self.ranks[rank.index()].rows[round] = self.experts(rank, round);
            }
            Operator::Combine(round) => self.check_combine(rank, round)?,
        }
        self.ranks[rank.index()].operator += 1;
        self.begin(rank);
        Ok(())
    }

    fn begin(&mut self, rank: RankId) {
        let number = self.ranks[rank.index()].operator;
        let Some(&operator) = self.operators.get(number) else { return };
        let machine = match operator {
            Operator::Dispatch(_) => Machine::Dispatch(Dispatch::new()),
            Operator::Combine(_) => Machine::Combine(Combine::new()),
        };
        self.world.reuse_outputs_of(rank);
        if self.seed_clears {
            self.allow_seed_clears(rank, number, operator);
        }
        for core in self.cores.iter_mut().filter(|core| core.rank == rank) {
            core.machine = machine.clone();
        }
    }

    /// The flags that the operator waits for, as the seed's scheme would clear them.
    fn allow_seed_clears(&mut self, rank: RankId, number: usize, operator: Operator) {
        let half = if number.is_multiple_of(2) { Partition::P0 } else { Partition::P1 };
        let mut places = match &self.world.bend {
            Bend::SeedClears(places) => places.clone(),
            _ => BTreeSet::new(),
        };
        places.retain(|&(other, _)| other != rank);
        for peer in (0..self.shape.ep_world_size()).map(RankId) {
            let (kind, receiver, source) = match operator {
                Operator::Dispatch(_) => (Kind::Dispatch, rank, peer),
                Operator::Combine(_) => (Kind::Combine, peer, rank),
            };
            let rows = self.triples(receiver, operator.round()).filter(|t| t.0 == source).count();
            let start = window(&self.shape, half, peer);
            places.insert((rank, start + tail_flag(&self.shape, kind, rows as u32)));
            if kind == Kind::Dispatch {
                places.insert((rank, start + FLAG1));
            }
        }
        self.world.bend = Bend::SeedClears(places);
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
        let want: Dispatched =
            Cluster { shape: &self.shape, ranks: &inputs, elastic_info: None }.dispatch(rank);
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
        let cluster = Cluster { shape: &self.shape, ranks: &inputs, elastic_info: None };
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
