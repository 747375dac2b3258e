//! A group in virtual time: the machines themselves, whose effects land when links of a cluster have carried them, and whose
//! steps take as long as the cluster's costs say. Every output is held against the oracle. See `docs/operate/simulate.md`.

pub mod network;
pub mod path;
pub mod prices;
pub mod timed;

use crate::backend::lockstep::Mapped;
use crate::batch::Batch;
use crate::case::Case;
use crate::error::Error;
use crate::expected::Expected;
use crate::expert;
use network::Carried;
use path::Part;
use prices::{Cluster, Ps};
use std::rc::Rc;
use timed::{Clock, Priced, PricedNic, Prices, Timed};
use veriep_core::fabric::Fabric;
use veriep_core::fabric::nic::Nic;
use veriep_core::inputs::Inputs;
use veriep_core::layout::outputs::ep_recv_counts_bytes;
use veriep_core::place::Tensor;
use veriep_core::protocol::{Choices, Operator};
use veriep_core::shape::Product;
use veriep_core::sim::cluster::{AgentStep, Answer, CoreStep, Failure, Planned, World, schedule};
use veriep_core::sim::storage::region_sizes;
use veriep_core::sim::{self, Actor, Memory};
use veriep_core::units::RankId;
use veriep_core::vector::Any;

/// Bytes at each end of a row that are kept where rows are not.
const KEPT: usize = 256;

/// What to simulate.
#[derive(Debug)]
pub struct Plan<'c> {
    /// The batch of every round.
    pub case: &'c Case,
    /// The links and the costs.
    pub cluster: &'c Cluster,
    /// The choices of all machines.
    pub choices: Choices,
    /// The operators of a round, such as `DC`.
    pub schedule: &'c str,
    /// How often.
    pub rounds: usize,
    /// Whether rows are kept, and outputs held against the oracle.
    pub rows: bool,
    /// When a rank begins, by rank.
    pub begins: Vec<Ps>,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// From its begin to its end on each rank, by operator (dispatch, combine), then rank; of the last round.
    pub took: [Vec<Ps>; 2],
    /// Bytes over bandwidth, by operator: the mean of all rounds.
    pub formula: [Ps; 2],
    /// Of the ports, by operator and rank: out, in; all rounds.
    pub ports: [Vec<[Carried; 2]>; 2],
    /// The most ranks with rows at the port of a rank at once, by operator and rank.
    pub incast: [Vec<usize>; 2],
    /// Ranks that were waited for, and for how long by all cores and agents together, the longest first.
    pub waits: Vec<(u32, Ps)>,
    /// The critical path, backwards from the end.
    pub path: Vec<Part>,
    /// When the last rank has ended.
    pub end: Ps,
    /// Steps, landings and what happened on links.
    pub events: u64,
}

type Group<'p> = sim::Cluster<'p, Mapped, Timed>;

/// What stands around the machines.
struct Scene<'p> {
    plan: &'p Plan<'p>,
    batch: Batch<'p>,
    expected: Option<Expected<'p>>,
    clock: Rc<Clock>,
    prices: Prices,
    /// By operator, then rank.
    began: [Vec<Ps>; 2],
    took: [Vec<Ps>; 2],
    /// When the last rank has ended, and by which step.
    end: (Ps, usize),
}

impl Scene<'_> {
    fn experts(&self, group: &mut Group<'_>, i: usize, round: usize) -> Result<(), Failure> {
        let (shape, rank) = (&self.plan.case.shape, group.members[i].number);
        let mut y = Vec::new();
        if self.plan.rows {
            let read = |at, len, read: &mut dyn FnMut(&[u8])| group.read(i, round, at, len).map(read);
            let receive = self.plan.choices.receive;
            expert::run(shape, &self.batch, (rank, receive), &read, &mut y)
                .map_err(|error| Failure::Agent(rank, error))?;
        } else {
            let counts = group.output(i, round, Tensor::EpRecvCounts);
            let counts = &counts[..ep_recv_counts_bytes(shape, rank) as usize];
            let rows = counts.last_chunk().map_or(0, |&last| u32::from_le_bytes(last));
            y.resize(rows as usize * shape.row_bytes() as usize, 0);
        }
        group.members[i].returned[round] = group.returned(i, round, y);
        Ok(())
    }

    fn check(&self, group: &Group<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        let Some(expected) = &self.expected else { return Ok(()) };
        let rank = group.members[i].number;
        let is_combine = planned.operator == Operator::Combine;
        for tensor in Tensor::ALL.into_iter().filter(|tensor| tensor.is_of_combine() == is_combine) {
            let right = expected.output(rank, tensor);
            if right.is_empty() {
                continue;
            }
            if &group.output(i, planned.round, tensor)[..right.len()] != right {
                let what = format!("{planned}: rank {rank}: {}: differs from the oracle", tensor.name());
                return Err(Failure::Wrong(what));
            }
        }
        Ok(())
    }
}

impl World<Mapped, Timed> for Scene<'_> {
    fn inputs(&self, member: RankId, _: usize) -> Inputs<'_> {
        self.batch.inputs(member)
    }

    fn begins(&mut self, group: &mut Group<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        let (rank, operator) = (group.members[i].number, planned.operator as usize);
        self.clock.operators.borrow_mut()[rank.index()] = operator as u8;
        self.began[operator][rank.index()] = self.clock.time().max(self.plan.begins[rank.index()]);
        Ok(())
    }

    fn ended(&mut self, group: &mut Group<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        let (rank, operator) = (group.members[i].number, planned.operator as usize);
        self.end = self.end.max((self.clock.time(), group.memory.chooser.history.now()));
        self.took[operator][rank.index()] = self.clock.time() - self.began[operator][rank.index()];
        self.check(group, i, planned)?;
        if planned.is_dispatch() { self.experts(group, i, planned.round) } else { Ok(()) }
    }

    fn through(&self, _: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        step(&mut Priced { inner: fabric, clock: &self.clock, prices: self.prices })
    }

    fn through_nic(&self, _: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        step(&mut PricedNic { inner: nic, clock: &self.clock, prices: self.prices })
    }
}

/// Runs a group to its end.
///
/// # Errors
/// The system refuses the memory; a result that the oracle does not confirm; a machine's error; a group that cannot move.
pub fn run(plan: &Plan<'_>) -> Result<Outcome, Error> {
    let (case, shape) = (plan.case, &plan.case.shape);
    let ranks = shape.ep_world_size();
    let clock = Clock::new(ranks);
    let server = if shape.product() == Product::A2 { shape.server_ranks() } else { 0 };
    let timed = Timed::new(clock.clone(), plan.cluster, server, plan.begins.clone());
    let operators = schedule(plan.schedule, plan.rounds);
    let dispatches = plan.schedule.matches('D').count().max(1);
    let sizes = (0..ranks).map(|rank| region_sizes(shape, Some(RankId(rank)), dispatches));
    let storage =
        Mapped::new(sizes).map_err(|error| Error::Request(format!("memory of the group: {error}")))?;
    let mut memory = Memory::new(shape, storage, timed);
    memory.kept = (!plan.rows).then_some(KEPT);
    memory.rewrites = true;
    let mut group = Group::new(shape, plan.choices, memory, operators);
    (group.vector, group.batches, group.checked) = (Any::default(), dispatches, false);
    let zeros = || [vec![0; ranks as usize], vec![0; ranks as usize]];
    let mut scene = Scene {
        plan,
        batch: Batch::new(case),
        expected: plan.rows.then(|| Expected::of(case)),
        clock,
        prices: Prices::new(&plan.cluster.costs),
        began: zeros(),
        took: zeros(),
        end: (0, 0),
    };
    group.run(&mut scene).map_err(|failure| match failure {
        Failure::Wrong(what) => Error::Wrong(what),
        Failure::Core(rank, core, error) => Error::Wrong(format!("rank {rank} core {core}: {error}")),
        Failure::Agent(rank, error) => Error::Wrong(format!("rank {rank}: {error}")),
        Failure::Hang(waits) => {
            let missing = waits.iter().find_map(|(actor, wait)| Some((actor.member, (*wait)?)));
            let line = missing.map_or_else(String::new, |(rank, wait)| format!(": rank {rank}: {wait}"));
            Error::NoProgress { line: format!("no rank can move{line}"), missing: Vec::new() }
        }
    })?;
    let timed = &group.memory.chooser;
    let network = &timed.network;
    Ok(Outcome {
        took: scene.took,
        formula: [0, 1].map(|operator| network.formula(operator) / (dispatches * plan.rounds) as Ps),
        ports: [0, 1].map(|operator| (0..ranks).map(|rank| network.carried(rank, operator)).collect()),
        incast: [0, 1].map(|operator| (0..ranks).map(|rank| network.incast(rank, operator)).collect()),
        waits: timed.history.waits(),
        path: timed.history.path(scene.end.1, scene.end.0),
        end: scene.end.0,
        events: timed.events,
    })
}
