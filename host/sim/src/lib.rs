//! Virtual time: the machines of a group, whose effects land when the links of a cluster have carried them, and whose steps take
//! as long as the costs of the cluster say. Every output is compared with the reference.
//!
//! [`run`] runs a [`Plan`]; [`costs`] has clusters and their costs, [`network`] the links, [`timed`] the clock of each core,
//! [`path`] the longest path through a round, [`baseline`] the exchange of counts before the rows, to compare with.
//! `docs/operate/simulate.md` says where the numbers come from.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod baseline;
pub mod costs;
pub mod network;
pub mod path;
pub mod timed;

use core::cell::RefCell;
use costs::{Cluster, Costs, PortBy, Ps, ps};
use network::{Carried, Network};
use path::ByActor;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use timed::{Clock, OldSplit, Paces, Ports, Priced, Timed};
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Fabric, Progress};
use veriep_core::inputs::Inputs;
use veriep_core::layout::outputs::ep_recv_counts_bytes;
use veriep_core::place::Tensor;
use veriep_core::protocol::{Choices, Operator};
use veriep_core::shape::{Product, RowElement};
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::{AgentStep, Answer, CoreStep, Failure, Planned, World, schedule};
use veriep_core::sim::storage::region_sizes;
use veriep_core::sim::{self, Actor, Chooser, Memory};
use veriep_core::units::RankId;
use veriep_group::backend::lockstep::Mapped;
use veriep_group::driver::lockstep::Borrowed;
use veriep_group::expected::Expected;
use veriep_group::expert;
use veriep_group::vector::Unit;
use veriep_spread::port::PORTS;
use veriep_spread::shared::SharedSplit;
use veriep_trace::events::chrome::Part;
use veriep_trace::events::log::Log;
use veriep_trace::events::recorder::Recorder;
use veriep_trace::events::timeline::Busy;

/// Bytes at each end of a row that are kept where rows are not.
const KEPT: usize = 256;

#[derive(Debug)]
pub struct Plan {
    /// The batch of every round.
    pub case: Case,
    pub choices: Choices,
    /// The operators of a round, such as `DC`.
    pub schedule: String,
    /// How often.
    pub rounds: usize,
    /// When ranks begin, and how fast they are.
    pub paces: Paces,
    /// Whether links of rows to shared experts are those of the split of before.
    pub split: SharedSplit,
    /// Whether wake-ups are checked.
    pub wakes: Wakes,
    /// How many events there may be.
    pub events_max: u64,
}

/// How far the simulator relies on waking each core that can move.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wakes {
    /// After everything that happens, each sleeping core is asked whether it could move, which is an error. Slow.
    pub watched: bool,
    /// The wake-up of that number is lost. For tests.
    pub loses: Option<u64>,
}

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
    /// Of the ports of a number, all ranks together, by operator.
    pub by_port: [Vec<Carried>; 2],
    /// Who waited for whom, and how long all its cores and its agent together.
    pub matrix: BTreeMap<(u32, u32), Ps>,
    /// For which kind of word, and how long all cores and agents together, the longest first.
    pub kinds: Vec<(&'static str, Ps)>,
    /// The critical path, backwards from the end.
    pub path: Vec<Part>,
    /// When the last rank has ended.
    pub end: Ps,
    /// Whether the run was cut off: what is here is what there was.
    pub cut: bool,
    /// When ports were busy, if there is a log.
    pub busy: Vec<Busy>,
    /// Steps, landings and what happened on links.
    pub events: u64,
    /// Words that cores and agents have looked at for each step that changed something.
    pub words_per_step: f64,
}

type Group<'p> = sim::Cluster<'p, Mapped, Timed>;

/// What stands around the machines.
struct Scene<'p> {
    plan: &'p Plan,
    batch: Batch<'p>,
    /// None if rows are not kept.
    expected: Option<Expected<'p>>,
    clock: Rc<Clock>,
    costs: &'p Costs,
    /// The last operator that a core has begun: its round, and which it is.
    begun: RefCell<ByActor<(usize, Operator)>>,
    /// A row, if rows are not kept.
    zeros: Vec<u8>,
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
        if self.expected.is_some() {
            let read = |at, len, read: &mut dyn FnMut(&[u8])| group.read(i, round, at, len).map(read);
            let receive = self.plan.choices.receive;
            expert::run(shape, &self.batch, (rank, receive), &read, &mut y)
                .map_err(|error| Failure::Agent(rank, error))?;
        } else {
            let counts = group.output(i, round, Tensor::EpRecvCounts);
            let counts = &counts[..ep_recv_counts_bytes(shape, rank) as usize];
            let rows = counts.last_chunk().map_or(0, |&last| u32::from_le_bytes(last));
            // Zeros that take no memory before a core writes them.
            y = vec![0; rows as usize * shape.row_bytes() as usize];
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
            // Rows that stay in the window are checked by what becomes of them.
            let stays = tensor == Tensor::ExpandX && self.plan.choices.receive.keeps_rows();
            if right.is_empty() || stays {
                continue;
            }
            if &group.output(i, planned.round, tensor)[..right.len()] != right {
                let what = format!("{planned}: rank {rank}: {}: differs from the reference", tensor.name());
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
        self.clock.operators.borrow_mut()[rank.index()] = planned.operator;
        self.began[operator][rank.index()] = self.clock.time().max(self.plan.paces.begins[rank.index()]);
        Ok(())
    }

    fn ended(&mut self, group: &mut Group<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        let (rank, operator) = (group.members[i].number, planned.operator as usize);
        self.end = self.end.max((self.clock.time(), group.memory.chooser.history.now()));
        self.took[operator][rank.index()] = self.clock.time() - self.began[operator][rank.index()];
        self.check(group, i, planned)?;
        if planned.is_dispatch() { self.experts(group, i, planned.round) } else { Ok(()) }
    }

    fn steps(&self, core: Actor, planned: Planned, phase: &'static str) {
        let shape = &self.plan.case.shape;
        let operator = (planned.round, planned.operator);
        if self.begun.borrow_mut().of(core).replace(operator) != Some(operator) {
            self.clock.add(ps(self.costs.start_ns));
            // A core makes its plan in its first step.
            let pairs = u64::from(shape.bs(core.member) * shape.k());
            self.clock.add(if planned.is_dispatch() { pairs * ps(self.costs.pair_ns) } else { 0 });
        }
        if let Some(log) = &self.clock.log {
            log.steps(core, planned, phase);
        }
    }

    fn through(&self, actor: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        let log = self.clock.log.as_deref();
        let inner = &mut Recorder { inner: Borrowed(fabric), actor, book: log };
        let (clock, costs, shape) = (&*self.clock, self.costs, &self.plan.case.shape);
        // Of the rows of combine nothing but their sum is looked at.
        let (vector, zeros) = match self.clock.operators.borrow()[actor.member.index()] {
            Operator::Dispatch => ([shape.row_format().element != RowElement::Dtype, false], &[][..]),
            Operator::Combine => ([shape.result_bytes() != shape.row_bytes(), true], &self.zeros[..]),
        };
        let answer = step(&mut Priced { inner, actor, clock, costs, vector, zeros });
        self.stepped(actor, answer)
    }

    fn through_nic(&self, actor: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        let log = self.clock.log.as_deref();
        let inner = &mut Recorder { inner: Borrowed(nic), actor, book: log };
        let (clock, costs) = (&*self.clock, self.costs);
        let answer = step(&mut Priced { inner, actor, clock, costs, vector: [false; 2], zeros: &[] });
        self.stepped(actor, answer)
    }
}

impl Scene<'_> {
    fn stepped(&self, actor: Actor, answer: Answer) -> Answer {
        if let Ok(Progress::Pending(wait)) = answer {
            self.clock.awaits.set(Some(wait));
        }
        if let Some(log) = &self.clock.log {
            log.stepped(actor, &answer);
        }
        answer
    }
}

/// Runs a group to its end, over the links and with the costs of a cluster. If `rows` are kept, outputs are held against the
/// reference. `log` is told what happens.
///
/// # Errors
/// The system refuses the memory; a result that the reference does not confirm; a machine's error; a group that cannot move.
pub fn run(plan: &Plan, cluster: &Cluster, rows: bool, log: Option<Arc<Log>>) -> Result<Outcome, Error> {
    let (case, shape) = (&plan.case, &plan.case.shape);
    let ranks = shape.ep_world_size();
    let server = if shape.product() == Product::A2 { shape.server_ranks() } else { 0 };
    let mut network = Network::new(&cluster.links, &cluster.tier, ranks, server)
        .with_addresses(cluster.links.port_by, shape);
    network.busy = log.is_some().then(Vec::new);
    let by = cluster.links.port_by;
    // Where rows change places, so do their ports.
    let ports = (by != PortBy::Even && plan.split != SharedSplit::Even).then(|| Ports {
        by,
        shape: shape.clone(),
        server,
        bytes: RefCell::default(),
    });
    let clock = Clock::new(ranks, log, ports);
    let split = OldSplit::new(plan.split, shape);
    let mut timed = Timed::new(clock.clone(), cluster, network, plan.paces.clone(), split);
    timed.events_max = plan.events_max;
    let operators = schedule(&plan.schedule, plan.rounds);
    let dispatches = plan.schedule.matches('D').count().max(1);
    let sizes = (0..ranks).map(|rank| region_sizes(shape, Some(RankId(rank)), dispatches));
    let storage =
        Mapped::new(sizes).map_err(|error| Error::Request(format!("memory of the group: {error}")))?;
    let mut memory = Memory::new(shape, storage, timed);
    memory.kept = (!rows).then_some(KEPT);
    memory.rewrites = true;
    let mut group = Group::new(shape, plan.choices, memory, operators);
    (group.vector, group.batches, group.checked) = (Unit::Auto.find()?, dispatches, false);
    let zeros = || [vec![0; ranks as usize], vec![0; ranks as usize]];
    let mut scene = Scene {
        plan,
        batch: Batch::new(case),
        expected: rows.then(|| Expected::of(case)),
        clock,
        costs: &cluster.costs,
        begun: RefCell::default(),
        zeros: vec![0; if rows { 0 } else { shape.row_bytes() as usize }],
        began: zeros(),
        took: zeros(),
        end: (0, 0),
    };
    group.memory.chooser.loses = plan.wakes.loses;
    let ran = match plan.wakes.watched {
        true => watched(&mut group, &mut scene),
        false => group.run(&mut scene).map(drop),
    };
    let timed = &group.memory.chooser;
    if timed.events >= timed.events_max {
        let (us, network) = (scene.clock.time() as f64 / 1e6, &timed.network);
        let bytes = |&rank: &u32| -> u64 {
            [0, 1]
                .iter()
                .flat_map(|&operator| network.carried(rank, operator))
                .map(|carried| carried.bytes)
                .sum()
        };
        let busiest = (0..ranks).max_by_key(bytes).unwrap_or_default();
        let most = bytes(&busiest);
        return Err(Error::Request(format!(
            "--limit {}: there are more; after {us} us the ports of rank {busiest} have carried most, {most} bytes",
            timed.events_max
        )));
    }
    let cut = group.memory.chooser.cut;
    if cut {
        scene.end = (scene.clock.time(), group.memory.chooser.history.now());
    }
    ran.or_else(|failure| if cut { Ok(()) } else { Err(failure) }).map_err(|failure| match failure {
        Failure::Wrong(what) => Error::Wrong(what),
        Failure::Core(rank, core, error) => Error::Wrong(format!("rank {rank} core {core}: {error}")),
        Failure::Agent(rank, error) => Error::Wrong(format!("rank {rank}: {error}")),
        Failure::Hang(waits) => {
            let missing = waits.iter().find_map(|(actor, wait)| Some((actor.member, (*wait)?)));
            let line = missing.map_or_else(String::new, |(rank, wait)| format!(": rank {rank}: {wait}"));
            let us = scene.clock.time() as f64 / 1e6;
            Error::NoProgress { line: format!("no rank can move after {us} us{line}"), missing: Vec::new() }
        }
    })?;
    let timed = &mut group.memory.chooser;
    let words_per_step = scene.clock.words.get() as f64 / group.steps.max(1) as f64;
    let busy = timed.network.busy.take().unwrap_or_default();
    let network = &timed.network;
    if !cut {
        audit(network, &scene.clock.sent.borrow(), plan.split)?;
        scene.clock.ports.as_ref().map_or(Ok(()), |ports| audit_ports(network, &ports.bytes.borrow()))?;
    }
    Ok(Outcome {
        took: scene.took,
        formula: [0, 1].map(|operator| network.formula(operator) / (dispatches * plan.rounds) as Ps),
        ports: [0, 1].map(|operator| (0..ranks).map(|rank| network.carried(rank, operator)).collect()),
        incast: [0, 1].map(|operator| (0..ranks).map(|rank| network.incast(rank, operator)).collect()),
        by_port: [0, 1].map(|operator| network.by_port(operator)),
        matrix: timed.history.matrix(),
        kinds: timed.history.kinds(),
        cut,
        busy,
        path: timed.history.path(scene.end.1, scene.end.0),
        end: scene.end.0,
        events: timed.events,
        words_per_step,
    })
}

/// Runs a group and asks each sleeping core, whatever happens, whether it could move.
fn watched(group: &mut Group<'_>, scene: &mut Scene<'_>) -> Result<(), Failure> {
    group.memory.chooser.offers = Some(BTreeSet::new());
    group.begin(scene)?;
    let all: Vec<_> = group.actors().collect();
    while let Some(choice) = group.memory.chooser.next() {
        group.take(choice, scene)?;
        for &actor in &all {
            let is_offered =
                group.memory.chooser.offers.as_ref().is_some_and(|offers| offers.contains(&actor));
            if is_offered {
                continue;
            }
            if let Some(Progress::Stepped | Progress::Done) = group.step(actor, scene)? {
                let core =
                    if actor.core == AGENT { "its agent".to_owned() } else { format!("core {}", actor.core) };
                let rank = actor.member;
                return Err(Failure::Wrong(format!("rank {rank}: {core} could move and was not woken")));
            }
        }
    }
    group.end(scene)
}

/// Refuses a run whose links have carried other bytes than the machines have sent.
fn audit(network: &Network, sent: &[[[u64; 2]; 2]], split: SharedSplit) -> Result<(), Error> {
    let mut carried: Vec<_> =
        (0..sent.len() as u32).map(|rank| [0, 1].map(|operator| network.bytes(rank, operator))).collect();
    let mut sent = sent.to_vec();
    if split == SharedSplit::Even {
        // Replicas change places, and some rows are their own rank's now: what went out came in.
        let sum = |operator: usize, way: usize| carried.iter().map(|of| of[operator][way]).sum::<u64>();
        let sums = [0, 1].map(|operator| [0, 1].map(|way| sum(operator, way)));
        (sent, carried) = (vec![sums.map(|[out, _]| [out; 2])], vec![sums]);
    }
    for (rank, (carried, sent)) in carried.iter().zip(&sent).enumerate() {
        for (operator, way) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (seen, due) = (carried[operator][way], sent[operator][way]);
            if seen != due {
                let operator = ["dispatch", "combine"][operator];
                let way = ["out of", "into"][way];
                let line =
                    format!("{operator}: links {way} rank {rank} carried {seen} B, machines sent {due} B");
                return Err(Error::Wrong(line));
            }
        }
    }
    Ok(())
}

/// The same of each port.
fn audit_ports(network: &Network, sent: &[[u64; PORTS]; 2]) -> Result<(), Error> {
    for (operator, sent) in sent.iter().enumerate() {
        for (port, (carried, due)) in network.by_port(operator).iter().zip(sent).enumerate() {
            if carried.bytes != *due {
                let (name, seen) = (["dispatch", "combine"][operator], carried.bytes);
                let line =
                    format!("{name}: port {port} of all ranks carried {seen} B, machines sent {due} B by it");
                return Err(Error::Wrong(line));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_carry_other_bytes_than_were_sent_are_refused() {
        let cluster = Cluster::read("a3", &[], &[]).unwrap();
        let network = Network::new(&cluster.links, &[], 2, 0);
        assert!(audit(&network, &[[[0; 2]; 2]; 2], SharedSplit::AllIn).is_ok());
        let mut sent = [[[0; 2]; 2]; 2];
        sent[1][1][0] = 512;
        let refused = audit(&network, &sent, SharedSplit::AllIn).unwrap_err().to_string();
        assert_eq!(refused, "combine: links out of rank 1 carried 0 B, machines sent 512 B");
    }

    #[test]
    fn a_port_that_carries_other_bytes_than_machines_sent_by_it_is_refused() {
        let cluster = Cluster::read("a3", &["port_by=packet".to_owned()], &[]).unwrap();
        let network = Network::new(&cluster.links, &[], 2, 0);
        let mut sent = [[0; PORTS]; 2];
        assert!(audit_ports(&network, &sent).is_ok());
        sent[1][3] = 8;
        let refused = audit_ports(&network, &sent).unwrap_err().to_string();
        assert_eq!(refused, "combine: port 3 of all ranks carried 0 B, machines sent 8 B by it");
    }
}
