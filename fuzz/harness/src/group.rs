//! All cores and agents of a group, stepped one at a time as the tape decides, through a schedule of operators. A rank
//! goes on to its next operator when its own cores have ended the one before; nobody else is waited for.

use crate::domain::{Domain, Feature, Tensors};
use crate::law::{Lie, When};
use crate::machine::{Machine, Who, order, scratch};
use crate::memory::World;
use crate::tape::{Tape, mixed};
use kernel_core::fabric::survivors::Survivors;
use kernel_core::fabric::{Progress, ProtocolError};
use kernel_core::layout::row_table;
use kernel_core::place::{Place, Tensor};
use kernel_core::protocol::a2::{Agent, AgentEnv};
use kernel_core::protocol::{Receive, Ub};
use kernel_core::reference::numerics;
use kernel_core::shape::Shape;
use kernel_core::units::{CoreId, RankId};

/// The most steps of a run. Bounds time, not behaviour: honest runs need far fewer.
const TICKS_MAX: usize = 400_000;

/// An operator of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Of that round.
    Dispatch(usize),
    /// Of that round.
    Combine(usize),
}

/// What combine is given.
#[derive(Clone, Debug, Default)]
pub struct Returned {
    /// The experts' rows.
    pub y: Vec<u8>,
    /// `assist_info_for_combine`.
    pub assist_info: Vec<u8>,
    /// `ep_recv_counts`.
    pub ep_recv_counts: Vec<u8>,
    /// `expand_idx`.
    pub expand_idx: Vec<u8>,
    /// `expand_scales`.
    pub expand_scales: Vec<u8>,
    /// `sent_rows`.
    pub sent_rows: Vec<u8>,
    /// `row_table`.
    pub row_table: Vec<u8>,
    /// Where results go, with direct placement.
    pub results: Option<Place>,
}

#[derive(Debug)]
struct Core {
    core: CoreId,
    machine: Machine,
    words: Vec<u32>,
    row: Vec<u8>,
}

/// A member of the group.
#[derive(Debug)]
pub struct Member {
    /// Its number.
    pub number: usize,
    /// Its name in the EP domain, for machines.
    pub ep: RankId,
    tp: RankId,
    /// Operators that it has ended.
    pub ended: usize,
    /// By round.
    pub returned: Vec<Returned>,
    /// The first thing that went wrong, of a core or of the agent.
    pub error: Option<ProtocolError>,
    cores: Vec<Core>,
    agent: Agent,
}

/// All members, with their memory.
#[derive(Debug)]
pub struct Group<'t> {
    /// The domain.
    pub domain: Domain,
    /// The memory.
    pub world: World<'t>,
    /// By round, then member number.
    pub rounds: Vec<Vec<Tensors>>,
    /// What every rank runs.
    pub operators: Vec<Operator>,
    /// Everybody.
    pub members: Vec<Member>,
    /// The number of steps so far.
    pub ticks: usize,
    /// Whether the words in which cores count their operators are as they wrote them.
    pub epochs_known: bool,
}

/// What watches a run.
pub trait Watch {
    /// A member has ended an operator; `member` is its place among the members. What combine will be given is filled
    /// in here.
    fn ended(&mut self, group: &mut Group<'_>, member: usize, operator: Operator);

    /// A member is about to begin a combine: its experts have just ended.
    fn combines(&mut self, _group: &Group<'_>, _member: usize, _round: usize) {}

    /// Something may be done to memory before the next step.
    fn meddle(&mut self, _group: &mut Group<'_>) {}

    /// Whether an error is a defect.
    fn refused(&mut self, group: &Group<'_>, member: usize, error: ProtocolError);
}

impl<'t> Group<'t> {
    /// A group with live memory and the tensors of all rounds.
    #[must_use]
    pub fn new(domain: Domain, mut tape: Tape<'t>) -> Self {
        let numbers = domain.numbers;
        let physical = (domain.whole.ep_world_size() * domain.whole.tp_world_size()) as usize;
        let mut round = |_| {
            let mut all = vec![Tensors::default(); physical];
            for (number, ep, _) in domain.members() {
                all[number] = Tensors::new(&domain, ep, &mut tape);
            }
            all
        };
        let rounds: Vec<_> = (0..numbers.rounds()).map(&mut round).collect();
        let shape = &domain.shape;
        let (words, row) = scratch(numbers.protocol(), shape);
        // The scratch holds whatever was there before.
        let core = |core| Core {
            core: CoreId(core),
            machine: Machine::None,
            words: vec![0xDEAD_BEEF; words],
            row: vec![0xAB; row],
        };
        let member = |(number, ep, tp)| Member {
            number,
            ep,
            tp,
            ended: 0,
            returned: vec![Returned::default(); rounds.len()],
            error: None,
            cores: (0..shape.aiv_num()).map(core).collect(),
            agent: Agent::new(),
        };
        let members = domain.members().map(member).collect();
        let mut operators = Vec::new();
        let batch = if numbers.has(Feature::InFlight) { 2 } else { 1 };
        for first in (0..rounds.len()).step_by(batch) {
            let batch = first..rounds.len().min(first + batch);
            operators.extend(batch.clone().map(Operator::Dispatch));
            operators.extend(batch.map(Operator::Combine));
        }
        let world = World::new(&domain, tape);
        Self { domain, world, rounds, operators, members, ticks: 0, epochs_known: true }
    }

    /// The first rows that a member has received, wherever its experts find them by `row_table`.
    #[must_use]
    pub fn rows_of(&self, member: usize, rows: usize, table: &[u8]) -> Vec<u8> {
        let number = self.members[member].number;
        let len = self.domain.shape.payload_bytes();
        match self.domain.numbers.receive() {
            Receive::Copy => self.world.output(number, Tensor::ExpandX)[..rows * len as usize].to_vec(),
            Receive::InPlace => {
                let records = row_table::records(table, rows);
                records.flat_map(|at| self.world.bytes(number, at, len).to_vec()).collect()
            }
            Receive::Direct { .. } => {
                let first = row_table::records(table, 1).next();
                first.map_or_else(Vec::new, |at| self.world.bytes(number, at, rows as u64 * len).to_vec())
            }
        }
    }

    /// What combine is given with the experts' rows `y`: the outputs of dispatch.
    #[must_use]
    pub fn returned(&self, member: usize, y: Vec<u8>) -> Returned {
        let number = self.members[member].number;
        let output = |tensor| self.world.output(number, tensor).to_vec();
        let row_table = output(Tensor::RowTable);
        let results = match self.domain.numbers.receive() {
            Receive::Direct { .. } => row_table::records(&row_table, 2).nth(1),
            _ => None,
        };
        Returned {
            y,
            assist_info: output(Tensor::AssistInfo),
            ep_recv_counts: output(Tensor::EpRecvCounts),
            expand_idx: output(Tensor::ExpandIdx),
            expand_scales: output(Tensor::ExpandScales),
            sent_rows: output(Tensor::SentRows),
            row_table,
            results,
        }
    }

    /// Runs until all have ended, failed or wait for ever. Whether all have ended.
    pub fn run(&mut self, watch: &mut impl Watch) -> bool {
        (0..self.members.len()).for_each(|member| self.begin(member, watch));
        let cores = self.domain.shape.aiv_num() as usize;
        let agents = usize::from(self.domain.numbers.has_agents());
        let actors = self.members.len() * (cores + agents);
        let (mut idle, mut landing) = (0, 64);
        while self.ticks < TICKS_MAX {
            watch.meddle(self);
            let choice = self.world.tape.byte();
            if choice == 0 {
                // Now and then effects lag, or land at once.
                landing = [4, 64, 200][self.world.tape.below(3)];
            }
            let lands = self.world.in_flight() && usize::from(choice) < landing;
            let is_full = self.world.is_full();
            self.world.full += usize::from(is_full && !lands);
            let moved = if lands || is_full {
                self.ticks += 1;
                self.world.land_one();
                true
            } else {
                let actor = self.world.tape.below(actors);
                let burst = 1 + (usize::from(choice) & 15);
                (0..burst).take_while(|_| self.act(actor, watch)).count() > 0
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > 2 * actors {
                idle = 0;
                self.world.settle();
                let moves = (0..2 * actors).filter(|actor| self.act(actor % actors, watch)).count();
                if moves == 0 && !self.world.in_flight() {
                    return self.members.iter().all(|member| member.ended == self.operators.len());
                }
            }
        }
        panic!("no end after {TICKS_MAX} steps");
    }

    /// A step of a core or an agent. Whether it moved.
    fn act(&mut self, actor: usize, watch: &mut impl Watch) -> bool {
        self.ticks += 1;
        let cores = self.domain.shape.aiv_num() as usize;
        let all = self.members.len() * cores;
        let (member, result) = if actor < all {
            (actor / cores, self.step(actor / cores, actor % cores))
        } else {
            (actor - all, self.serve(actor - all))
        };
        match result {
            Ok(Some(Progress::Done)) => {
                self.members[member].cores[actor % cores].machine = Machine::None;
                if self.members[member].cores.iter().all(|core| core.machine == Machine::None) {
                    let ended = self.members[member].ended;
                    watch.ended(self, member, self.operators[ended]);
                    self.members[member].ended += 1;
                    self.begin(member, watch);
                }
                true
            }
            Ok(progress) => progress == Some(Progress::Stepped),
            Err(error) => {
                // The rank is dead; the others do not know.
                self.members[member].error.get_or_insert(error);
                self.members[member].cores.iter_mut().for_each(|core| core.machine = Machine::None);
                watch.refused(self, member, error);
                false
            }
        }
    }

    fn begin(&mut self, member: usize, watch: &mut impl Watch) {
        let Some(&operator) = self.operators.get(self.members[member].ended) else { return };
        if let Operator::Combine(round) = operator {
            // Experts are as slow as they may be.
            watch.combines(self, member, round);
            let Member { number, returned, .. } = &self.members[member];
            if let Some(at) = returned[round].results {
                self.world.poke(*number, at, &returned[round].y);
            }
        }
        let Member { number, cores, .. } = &mut self.members[member];
        self.world.reuse_outputs(*number);
        let machine = Machine::new(self.domain.numbers.protocol(), operator);
        cores.iter_mut().for_each(|core| core.machine = machine.clone());
    }

    /// What a step of a core comes to; nothing between operators.
    fn step(&mut self, member: usize, core: usize) -> Result<Option<Progress>, ProtocolError> {
        let Self { domain, world, rounds, operators, members, epochs_known, .. } = self;
        let Member { number, ep, tp, ended, returned, cores, .. } = &mut members[member];
        let Core { core, machine, words, row } = &mut cores[core];
        let (Some(&operator), false) = (operators.get(*ended), *machine == Machine::None) else {
            return Ok(None);
        };
        let (round, dispatch) = match operator {
            Operator::Dispatch(round) => (round, true),
            Operator::Combine(round) => (round, false),
        };
        let inputs = rounds[round][*number].inputs();
        let (before, words_before) = (machine.clone(), words.clone());
        let mut ub = Ub { words, row };
        let left = domain.elastic.as_ref().map(|(_, left)| left);
        // A liar lies to itself, too.
        let is_liar = world.liar.is_some_and(|liar| liar.member == *number);
        let epoch = (*epochs_known && !is_liar).then_some(*ended as u64 + 1);
        world.when = When { dispatch, epoch };
        let mut fabric = Survivors { inner: world.fabric(*number, *core), left };
        let who = Who { ep: *ep, tp: *tp, core: *core };
        let progress = machine.step(domain, who, &mut fabric, &inputs, &returned[round], &mut ub);
        let (effects, lie) = (world.take_effects(), world.take_lie());
        assert!(effects <= before.most_effects(who), "{before:?} had {effects} effects in one step");
        if let Some(lie) = lie {
            refuses(lie, progress, &before);
        }
        let progress = progress?;
        if progress != Progress::Stepped {
            assert_eq!(*machine, before, "{progress:?} must not change a machine");
            assert_eq!((&*ub.words, effects), (&*words_before, 0), "{progress:?} must change nothing");
        }
        Ok(Some(progress))
    }

    /// What a step of a member's agent comes to.
    fn serve(&mut self, member: usize) -> Result<Option<Progress>, ProtocolError> {
        let Member { number, ep, agent, error, .. } = &mut self.members[member];
        if error.is_some() {
            return Ok(None);
        }
        let order = order(&self.domain.numbers);
        let env = AgentEnv { shape: &self.domain.shape, rank: *ep, order };
        let before = agent.clone();
        let progress = agent.step(&env, &mut self.world.fabric(*number, CoreId(0)))?;
        let effects = self.world.take_effects();
        assert!(effects <= 1, "an agent posts one task at a time");
        assert!(
            progress == Progress::Stepped || *agent == before && effects == 0,
            "{progress:?} with a change"
        );
        assert_ne!(progress, Progress::Done, "an agent has no end");
        Ok(Some(progress))
    }
}

/// What a machine saw cannot be: the step that saw it must be the last, and its error must name who wrote there.
fn refuses(lie: Lie, progress: Result<Progress, ProtocolError>, before: &Machine) {
    let Err(error) = progress else { panic!("{before:?} takes {lie:?}: {progress:?}") };
    let named = error.source();
    assert!(named.is_none() || lie.source.is_none() || named == lie.source, "{lie:?}: {error}");
}

/// The row that an expert returns on a member with TP rank `tp`, for `(token, k)` of a member whose EP name is `owner`
/// and whose TP rank is `owner_tp`.
#[must_use]
pub fn result_row(
    shape: &Shape,
    seed: u64,
    tp: RankId,
    owner: (RankId, RankId),
    token: u32,
    k: u32,
) -> Vec<u8> {
    let [ep, owner_tp] = [owner.0, owner.1].map(|rank| u64::from(rank.0));
    let row =
        seed ^ u64::from(tp.0) << 60 ^ ep << 40 ^ owner_tp << 50 ^ u64::from(token) << 20 ^ u64::from(k);
    let any_bits = seed & 1 == 1;
    let element = |i: u32| match mixed(row.wrapping_mul(0x1_0001).wrapping_add(i.into())) {
        bits if any_bits => (bits as u16).to_le_bytes(),
        bits => numerics::to_bytes(shape.dtype(), (bits % 255) as f32 / 2.0 - 60.0),
    };
    (0..shape.h()).flat_map(element).collect()
}
