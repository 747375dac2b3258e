//! States and moves of an A2 group.

use super::super::model::{Choice, Kind, Setup};
use super::super::oracle::{Expected, Oracle, RankTensors};
use super::super::violation::Violation;
use super::memory::{Memory, View};
use core::cell::{Cell, RefCell};
use core::hash::{Hash, Hasher};
use kernel_core::a2::{Agent, AgentEnv, Combine, Dispatch, Env, Returned, Ub, ub_bytes, ub_words};
use kernel_core::fabric::{Progress, ProtocolError};
use kernel_core::place::Tensor;
use kernel_core::plan::order::SendOrder;
use kernel_core::units::{CoreId, RankId};
use kernel_core::vector::Portable;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_128;

/// What a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// The core of a rank.
    Core(usize),
    /// The agent of a rank.
    Agent(usize),
    /// The next piece of a transfer, by its place in the flight.
    Arrive(usize),
}

/// A successor, or why there must be none.
pub(super) type Next = Result<Group, Violation>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Machine {
    Between,
    Dispatch(Dispatch),
    Combine(Combine),
}

#[derive(Clone, Debug)]
struct Rank {
    machine: Machine,
    /// Operators begun or about to begin.
    op: u32,
    words: Vec<u32>,
    agent: Agent,
    /// Output bytes of the current operator.
    written: u32,
}

/// A state.
#[derive(Clone, Debug)]
pub(super) struct Group {
    ranks: Vec<Rank>,
    memory: Memory,
    /// What each rank has chosen, by live round; the first is number `first_round`.
    rounds: VecDeque<Vec<Option<Choice>>>,
    first_round: u32,
}

impl Group {
    pub(super) fn new(setup: &Setup<'_>) -> Self {
        let words = vec![0; ub_words(setup.shape)];
        let rank = Rank { machine: Machine::Between, op: 0, words, agent: Agent::new(), written: 0 };
        Self {
            ranks: vec![rank; setup.model.ranks as usize],
            memory: Memory::new(setup),
            rounds: VecDeque::new(),
            first_round: 0,
        }
    }

    pub(super) fn moves(&self) -> Vec<Move> {
        let ranks = 0..self.ranks.len();
        let cores =
            ranks.clone().filter(|&rank| self.ranks[rank].machine != Machine::Between).map(Move::Core);
        let arrivals = (0..self.memory.flying.len()).map(Move::Arrive);
        cores.chain(ranks.map(Move::Agent)).chain(arrivals).collect()
    }

    /// Whether there is nothing left to do.
    pub(super) fn is_over(&self, setup: &Setup<'_>) -> bool {
        self.ranks.iter().all(|rank| setup.ended(rank.op))
    }

    fn round(&mut self, batch: u32) -> &mut Vec<Option<Choice>> {
        let (at, ranks) = ((batch - self.first_round) as usize, self.ranks.len());
        while self.rounds.len() <= at {
            self.rounds.push_back(vec![None; ranks]);
        }
        &mut self.rounds[at]
    }

    /// Forgets rounds whose combine all ranks have ended.
    fn retire(&mut self, setup: &Setup<'_>) {
        // Batches are combined in order.
        let combined = |rank: &Rank| {
            (0..rank.op)
                .rev()
                .map(|op| setup.operator(op))
                .find(|op| op.0 == Kind::Combine)
                .map_or(0, |op| op.1 + 1)
        };
        let over = self.ranks.iter().map(combined).min().unwrap_or(0);
        while self.first_round < over && self.rounds.pop_front().is_some() {
            self.first_round += 1;
        }
    }

    /// A number that tells states apart, but for how long ago they began.
    pub(super) fn fingerprint(&self, setup: &Setup<'_>) -> u128 {
        let unit = setup.unit.len() as u32;
        let first_unit = self.ranks.iter().map(|rank| setup.unit_of(rank.op)).min().unwrap_or(0);
        let peers = setup.model.ranks - 1;
        let period = setup.tags * setup.model.partitions[0];
        let first = first_unit * unit;
        let mut bytes = Bytes(Vec::with_capacity(2048));
        let phase = if setup.model.units.is_some() { first_unit } else { first_unit % period };
        phase.hash(&mut bytes);
        for (rank, memory) in self.ranks.iter().zip(0..) {
            (rank.op - first, &rank.machine, &rank.words, rank.written).hash(&mut bytes);
            // All that there is of an agent: tasks posted.
            self.memory.posted[memory].wrapping_sub(first * peers).hash(&mut bytes);
            self.memory.doorbell[memory].wrapping_sub(first.into()).hash(&mut bytes);
        }
        (self.first_round.wrapping_sub(first_unit * setup.batches), &self.rounds).hash(&mut bytes);
        (&self.memory.chosen, &self.memory.late, &self.memory.areas).hash(&mut bytes);
        let mut flying: Vec<_> = self.memory.flying.iter().collect();
        flying.sort_by_key(|flying| (flying.from, flying.to, flying.op));
        for flying in flying {
            let op = flying.op.wrapping_sub(first);
            (flying.from, flying.to, op, flying.len, flying.done).hash(&mut bytes);
        }
        xxh3_128(&bytes.0)
    }

    /// A move in words.
    pub(super) fn tell(&self, setup: &Setup<'_>, what: Move) -> String {
        match what {
            Move::Core(rank) => {
                let (kind, batch, _) = setup.operator(self.ranks[rank].op);
                format!("rank {rank}, {kind:?} {batch}: {:?}", self.ranks[rank].machine)
            }
            Move::Agent(rank) => format!("        agent of rank {rank}: posts a task"),
            Move::Arrive(i) => {
                let flying = &self.memory.flying[i];
                format!(
                    "        arrives: the window of rank {} for operator {} at rank {}, from byte {} of {} on",
                    flying.from, flying.op, flying.to, flying.done, flying.len
                )
            }
        }
    }

    /// Traffic of the live rounds, into that of all.
    pub(super) fn tell_traffic(&self, traffic: &mut Vec<Vec<Option<i32>>>) {
        for (round, choices) in (self.first_round as usize..).zip(&self.rounds) {
            let chosen: Option<Vec<_>> = choices.iter().copied().collect();
            if let Some(chosen) = chosen.filter(|_| round >= traffic.len()) {
                traffic.push(chosen);
            }
        }
    }
}

/// Everything that grows while a model is explored, but the states.
pub(super) struct Known<'a> {
    pub(super) setup: Setup<'a>,
    pub(super) oracle: Oracle,
    envs: Vec<Env<'a, Portable>>,
    tensors: HashMap<(u32, u32, Choice), Rc<RankTensors>>,
}

/// What a step came to.
struct Stepped {
    progress: Result<Progress, ProtocolError>,
    touched: bool,
    violation: Option<Violation>,
}

impl<'a> Known<'a> {
    pub(super) fn new(setup: Setup<'a>) -> Self {
        let ranks = 0..setup.model.ranks;
        let envs = ranks.map(|rank| Env::new(setup.shape, RankId(rank), CoreId(0), Portable)).collect();
        Self { setup, oracle: Oracle::default(), envs, tensors: HashMap::new() }
    }

    /// What a move leads to: nothing if the mover waits, several states if a rank chooses new traffic.
    pub(super) fn after(&mut self, state: &Group, what: Move) -> Vec<Next> {
        let mut next = state.clone();
        let moved = match what {
            Move::Core(rank) => {
                let stepped = self.step(&mut next, rank, false);
                self.conclude(&mut next, rank, stepped)
            }
            Move::Agent(rank) => self.agent(&mut next, rank),
            Move::Arrive(i) => {
                let at: Vec<_> = next.ranks.iter().map(|rank| rank.op).collect();
                next.memory.arrive(&self.setup, i, &at).map_or(Ok(true), Err)
            }
        };
        match moved {
            Ok(false) => Vec::new(),
            Ok(true) => self.settle(next),
            Err(violation) => vec![Err(violation)],
        }
    }

    /// Takes every step that nobody else can see, and begins operators; branches where a rank chooses traffic.
    pub(super) fn settle(&mut self, state: Group) -> Vec<Next> {
        let mut open = vec![state];
        let mut settled = Vec::new();
        'states: while let Some(mut state) = open.pop() {
            for rank in 0..state.ranks.len() {
                loop {
                    if state.ranks[rank].machine == Machine::Between {
                        if self.setup.ended(state.ranks[rank].op) {
                            break;
                        }
                        open.extend(self.begin(&state, rank));
                        continue 'states;
                    }
                    let mut next = state.clone();
                    let stepped = self.step(&mut next, rank, true);
                    if stepped.touched || matches!(stepped.progress, Ok(Progress::Pending(_))) {
                        break;
                    }
                    match self.conclude(&mut next, rank, stepped) {
                        Ok(_) => state = next,
                        Err(violation) => {
                            settled.push(Err(violation));
                            continue 'states;
                        }
                    }
                }
            }
            settled.push(Ok(state));
        }
        settled
    }

    fn begin(&self, state: &Group, rank: usize) -> Vec<Group> {
        let (kind, batch, _) = self.setup.operator(state.ranks[rank].op);
        let mut state = state.clone();
        state.ranks[rank].machine = match kind {
            Kind::Dispatch => Machine::Dispatch(Dispatch::new()),
            Kind::Combine => Machine::Combine(Combine::new()),
        };
        if state.round(batch)[rank].is_some() {
            return vec![state];
        }
        let with = |choice| {
            let mut state = state.clone();
            state.round(batch)[rank] = Some(choice);
            state
        };
        self.setup.choices(rank as u32).into_iter().map(with).collect()
    }

    fn agent(&self, state: &mut Group, rank: usize) -> Result<bool, Violation> {
        let peers = (self.setup.model.ranks - 1).max(1);
        let op = state.memory.posted[rank] / peers;
        let env =
            AgentEnv { shape: self.setup.shape, rank: RankId(rank as u32), order: SendOrder::Staggered };
        let mut view = View {
            setup: &self.setup,
            memory: &mut state.memory,
            rank,
            op,
            kind: Kind::Dispatch,
            expected: None,
            choices: Vec::new(),
            peek: false,
            touched: Cell::new(false),
            written: 0,
            violation: RefCell::default(),
        };
        let progress = state.ranks[rank].agent.step(&env, &mut view);
        match (view.violation.take(), progress) {
            (Some(violation), _) => Err(violation),
            (None, Ok(progress)) => Ok(progress == Progress::Stepped),
            (None, Err(error)) => {
                Err(Violation::Refused { rank: RankId(rank as u32), error: error.to_string() })
            }
        }
    }

    fn step(&mut self, state: &mut Group, rank: usize, peek: bool) -> Stepped {
        let op = state.ranks[rank].op;
        let (kind, batch, _) = self.setup.operator(op);
        let tag = batch % self.setup.tags;
        let choices = state.round(batch).clone();
        let own = choices[rank].unwrap_or_default();
        let expected = self.expected(&choices, tag);
        let setup = &self.setup;
        let tensors = self.tensors.entry((rank as u32, tag, own));
        let tensors =
            Rc::clone(tensors.or_insert_with(|| Rc::new(RankTensors::new(setup, rank as u32, tag, own))));
        let inputs = tensors.inputs();
        let Group { ranks, memory, .. } = state;
        let Rank { machine, words, written, .. } = &mut ranks[rank];
        let before = machine.clone();
        let mut row = vec![0; ub_bytes(setup.shape)];
        let mut ub = Ub { words, row: &mut row };
        let mut view = View {
            setup,
            memory,
            rank,
            op,
            kind,
            expected: expected.clone(),
            choices,
            peek,
            touched: Cell::new(false),
            written: 0,
            violation: RefCell::default(),
        };
        let env = &self.envs[rank];
        let progress = match machine {
            Machine::Between => Ok(Progress::Stepped),
            Machine::Dispatch(machine) => machine.step(env, &mut view, &inputs, &mut ub),
            Machine::Combine(machine) => {
                let own = expected.as_ref().map(|all| &all[rank]);
                let bytes = |tensor| own.map_or(&[][..], |own| own.output(tensor));
                let returned = Returned {
                    y: own.map_or(&[], |own| &own.y),
                    ep_recv_counts: bytes(Tensor::EpRecvCounts),
                    expand_idx: bytes(Tensor::ExpandIdx),
                };
                machine.step(env, &mut view, &inputs, &returned, &mut ub)
            }
        };
        let stays = matches!(progress, Ok(Progress::Pending(_)));
        let mut violation = view.violation.take();
        if matches!(progress, Ok(Progress::Stepped)) && *machine == before || stays && *machine != before {
            violation.get_or_insert(Violation::Misreported { rank: RankId(rank as u32) });
        }
        *written += view.written;
        Stepped { progress, touched: view.touched.get(), violation }
    }

    fn expected(&mut self, choices: &[Option<Choice>], tag: u32) -> Option<Rc<Vec<Expected>>> {
        let choices: Option<Vec<Choice>> = choices.iter().copied().collect();
        choices.map(|choices| self.oracle.expected(&self.setup, &choices, tag))
    }

    /// Draws the consequences of a step. `Ok(false)`: the core is pending.
    fn conclude(&mut self, state: &mut Group, rank: usize, stepped: Stepped) -> Result<bool, Violation> {
        if let Some(violation) = stepped.violation {
            return Err(violation);
        }
        match stepped.progress {
            Ok(Progress::Pending(_)) => Ok(false),
            Ok(Progress::Stepped) => Ok(true),
            Ok(Progress::Done) => self.end(state, rank).map(|()| true),
            Err(error) => Err(Violation::Refused { rank: RankId(rank as u32), error: error.to_string() }),
        }
    }

    fn end(&mut self, state: &mut Group, rank: usize) -> Result<(), Violation> {
        let (kind, batch, _) = self.setup.operator(state.ranks[rank].op);
        let choices = state.round(batch).clone();
        let expected = self.expected(&choices, batch % self.setup.tags);
        let of = |tensor: &&Tensor| (**tensor == Tensor::XOut) == (kind == Kind::Combine);
        let bytes = |all: Rc<Vec<Expected>>| {
            Tensor::ALL.iter().filter(of).map(|&tensor| all[rank].output(tensor).len() as u32).sum()
        };
        let expected = expected.map_or(0, bytes);
        let ended = &mut state.ranks[rank];
        let seen = core::mem::take(&mut ended.written);
        ended.machine = Machine::Between;
        ended.op += 1;
        ended.words.fill(0);
        if seen != expected {
            return Err(Violation::Incomplete { rank: RankId(rank as u32), seen, expected });
        }
        state.retire(&self.setup);
        Ok(())
    }
}

/// Collects what is hashed.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}
