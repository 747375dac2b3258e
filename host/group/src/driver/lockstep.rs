//! One thread drives all cores: the [simulated group](veriep_core::sim) of the core, whose chooser decides who takes the next
//! step and what lands. The same seed gives the same run.

use super::budget::steps_max;
use super::{Failure, Hang, Missing, Unit, Who};
use crate::backend::lockstep::{Lockstep, Mapped};
use crate::backend::{Backend, Layer, Layered, Told};
use crate::expert;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::BTreeMap;
use veriep_case::global_rank;
use veriep_case::parallel::lock;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fabric, Fault, Progress, ProtocolError, Wait};
use veriep_core::inputs::Inputs;
use veriep_core::place::Place;
use veriep_core::protocol::Operator;
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::{AgentStep, Answer, CoreStep, Failure as Ended, Planned, World};
use veriep_core::sim::{self, Actor, Choice, Seeded};
use veriep_core::units::{CoreId, RankId};

/// A memory that one thread steps: the simulated one, perhaps with layers in front of it.
pub trait Clockwork: Backend {
    /// The memory beneath all layers.
    fn simulated(&self) -> &Lockstep;

    /// The name that it has for a rank.
    fn number(&self, rank: RankId) -> RankId {
        rank
    }

    /// Lets a core take its step on `fabric`, with all layers in front of it.
    fn through(&self, _rank: RankId, _core: CoreId, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        step(fabric)
    }

    /// The same of an agent.
    fn through_nic(&self, _rank: RankId, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        step(nic)
    }
}

impl Clockwork for Lockstep {
    fn simulated(&self) -> &Lockstep {
        self
    }
}

impl<L: Layer, B: Clockwork> Clockwork for Layered<L, B> {
    fn simulated(&self) -> &Lockstep {
        self.inner.simulated()
    }

    fn number(&self, rank: RankId) -> RankId {
        self.inner.number(self.layer.behind(rank))
    }

    fn through(&self, rank: RankId, core: CoreId, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        let mut answer = Ok(Progress::Stepped);
        let _ = self.inner.through(self.layer.behind(rank), core, fabric, &mut |inner| {
            answer = step(&mut self.layer.fabric(rank, core, Borrowed(inner)));
            self.layer.stepped(rank, core, &answer);
            self.behind(answer)
        });
        answer
    }

    fn through_nic(&self, rank: RankId, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        let mut answer = Ok(Progress::Stepped);
        let _ = self.inner.through_nic(self.layer.behind(rank), nic, &mut |inner| {
            answer = step(&mut self.layer.nic(rank, Borrowed(inner)));
            self.layer.stepped(rank, AGENT, &answer);
            self.behind(answer)
        });
        answer
    }
}

impl<L: Layer, B> Layered<L, B> {
    /// An answer by the names that the memory behind has for ranks.
    fn behind(&self, answer: Answer) -> Answer {
        match answer {
            Ok(Progress::Pending(wait)) => {
                Ok(Progress::Pending(wait.renamed(|rank| self.layer.behind(rank))))
            }
            other => other,
        }
    }
}

/// A fabric or an interface by reference.
pub struct Borrowed<'f, F: ?Sized>(pub &'f mut F);

impl<F: Fabric + ?Sized> Middleware for Borrowed<'_, F> {
    veriep_core::around! { 0: F, its capabilities }
}

impl<N: Nic + ?Sized> Nic for Borrowed<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.0.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.0.post(transfer)
    }
}

type Cluster<'u> = sim::Cluster<'u, Mapped, Seeded>;

/// What stands around the machines of a unit.
struct Scene<'u, B> {
    unit: &'u Unit<'u, B>,
    /// The ranks by their numbers in the memory.
    names: Vec<RankId>,
    /// Steps of each core in its operator.
    steps: RefCell<BTreeMap<Actor, u64>>,
    /// The most that one can have, and who had more.
    steps_max: u64,
    polls: Cell<Option<(RankId, CoreId, u64)>>,
}

impl<B: Clockwork> Scene<'_, B> {
    fn name(&self, number: RankId) -> RankId {
        self.names[number.index()]
    }

    fn who(&self, actor: Actor) -> (RankId, Who) {
        let who = if actor.core == AGENT { Who::Agent } else { Who::Core(actor.core) };
        (self.name(actor.member), who)
    }

    fn is_stopped(&self, actor: Actor) -> bool {
        let (rank, who) = self.who(actor);
        self.unit.left(rank, who, 1) == 0
    }

    /// Lets an actor take a step, unless it has stopped: then it waits for nothing, indefinitely.
    fn taken(&self, actor: Actor, step: impl FnOnce(RankId) -> Answer) -> Answer {
        if self.is_stopped(actor) {
            return Ok(Progress::Pending(Wait::IDLE));
        }
        let (rank, who) = self.who(actor);
        let answer = step(rank);
        if let Ok(Progress::Stepped | Progress::Done) = answer {
            self.unit.count(rank, who, 1);
        }
        if let Who::Core(core) = who {
            let mut all = self.steps.borrow_mut();
            let steps = all.entry(actor).or_default();
            match answer {
                Ok(Progress::Stepped) => *steps += 1,
                Ok(Progress::Done) => *steps = 0,
                _ => {}
            }
            if *steps > self.steps_max {
                self.polls.set(Some((rank, core, *steps)));
                return Err(ProtocolError::Internal("polls by stepping"));
            }
        }
        answer
    }

    /// The stand-in experts of a member. Where they have read rows in the window, these are put into `expand_x` then, for
    /// code that looks at them later.
    fn experts(&self, cluster: &mut Cluster<'_>, i: usize, round: usize) -> Result<(), Ended> {
        let (unit, number) = (self.unit, cluster.members[i].number);
        let failed = |error| Ended::Core(number, CoreId(0), error);
        let (rank, receive) = (self.name(number), unit.options.choices.receive);
        let mut y = Vec::new();
        let read = |at, len, read: &mut dyn FnMut(&[u8])| cluster.read(i, round, at, len).map(read);
        let stretches = expert::run(unit.shape, &unit.batches[round], (rank, receive), &read, &mut y);
        let stretches = stretches.map_err(failed)?;
        cluster.members[i].returned[round] = cluster.returned(i, round, y);
        if !unit.options.rows_unseen {
            let batch = round % cluster.batches;
            let mut fabric = cluster.memory.fabric(number, CoreId(0), batch);
            expert::keep_rows(&mut fabric, &stretches).map_err(|fault| failed(fault.into()))?;
        }
        Ok(())
    }

    /// How the unit has failed.
    fn failure(&self, cluster: &Cluster<'_>, ended: Ended) -> Failure {
        if let Some((rank, core, steps)) = self.polls.get() {
            return Failure::Polls { rank, core, steps };
        }
        match ended {
            Ended::Core(number, core, error) => {
                let rank = self.name(number);
                Failure::Protocol { rank, core, error: global_rank::of_error(self.unit.shape, rank, error) }
            }
            Ended::Agent(number, error) => Failure::Agent { rank: self.name(number), error },
            Ended::Wrong(why) => Failure::Traffic(why),
            Ended::Hang(waits) => {
                let waits = waits.into_iter().filter(|&(actor, _)| !self.is_stopped(actor));
                let missing = waits.filter_map(|(actor, wait)| {
                    let (rank, wait) = (self.name(actor.member), wait?);
                    let cores = &cluster.members[cluster.place_of(actor.member)].cores;
                    let Some(core) = cores.get(actor.core.index()) else {
                        return Missing::of_agent(rank, wait);
                    };
                    let wait = global_rank::of_wait(self.unit.shape, rank, wait);
                    Some(Missing { rank, core: actor.core, operator: core.ended, wait })
                });
                Failure::Hang(Hang { after: Duration::ZERO, missing: missing.collect() })
            }
        }
    }
}

impl<B: Clockwork> World<Mapped, Seeded> for Scene<'_, B> {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        self.unit.inputs(round, self.name(member))
    }

    fn begins(&mut self, cluster: &mut Cluster<'_>, i: usize, planned: Planned) -> Result<(), Ended> {
        let rank = self.name(cluster.members[i].number);
        let begins = |core| self.unit.backend.hears(rank, CoreId(core), Told::Begins(planned));
        (0..self.unit.shape.aiv_num()).for_each(begins);
        let late = cluster.choices.receive.keeps_rows() && planned.operator == Operator::Combine;
        if late { self.experts(cluster, i, planned.round) } else { Ok(()) }
    }

    fn ended(&mut self, cluster: &mut Cluster<'_>, i: usize, planned: Planned) -> Result<(), Ended> {
        let due = !cluster.choices.receive.keeps_rows() && planned.operator == Operator::Dispatch;
        if due { self.experts(cluster, i, planned.round) } else { Ok(()) }
    }

    fn steps(&self, core: Actor, planned: Planned, phase: &'static str) {
        self.unit.backend.hears(self.name(core.member), core.core, Told::Steps(planned, phase));
    }

    fn through(&self, core: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        self.taken(core, |rank| self.unit.backend.through(rank, core.core, fabric, step))
    }

    fn through_nic(&self, agent: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        let answer = self.taken(agent, |rank| self.unit.backend.through_nic(rank, nic, step));
        self.unit.add_tasks(self.name(agent.member), u32::from(answer == Ok(Progress::Stepped)));
        answer
    }
}

/// Runs a unit to its end. Returns the number of steps.
///
/// # Errors
/// A machine's error, or a group in which no core can move and nothing is in flight.
pub fn run<B: Clockwork>(unit: &Unit<'_, B>) -> Result<u64, Failure> {
    driven(unit, |cluster, scene| cluster.run(scene).map(drop))
}

/// Steps the given cores, rank-major numbers in order, then all in turn to the end of the unit.
///
/// # Errors
/// As [`run`].
pub fn replay<B: Clockwork>(unit: &Unit<'_, B>, cores: &[usize]) -> Result<(), Failure> {
    let steps = driven(unit, |cluster, scene| {
        cluster.begin(scene)?;
        let actors: Vec<_> = cluster.actors().collect();
        for &core in cores {
            cluster.step(actors[core], scene)?;
        }
        let mut moved = true;
        while moved {
            moved = false;
            for &actor in &actors {
                moved |= cluster.take(Choice::Step(actor), scene)?;
            }
        }
        cluster.end(scene)
    });
    steps.map(drop)
}

/// Lets `drive` take a unit to its end, on the simulated memory.
fn driven<'u, B: Clockwork>(
    unit: &'u Unit<'u, B>,
    drive: impl FnOnce(&mut Cluster<'u>, &mut Scene<'u, B>) -> Result<(), Ended>,
) -> Result<u64, Failure> {
    unit.check()?;
    let (shape, options, backend) = (unit.shape, unit.options, unit.backend);
    let of_plan =
        || global_rank::all(shape).map(|rank| steps_max(shape, global_rank::ep_rank(shape, rank))).max();
    let steps_max = options.steps_max.or_else(of_plan).unwrap_or(u64::MAX);
    let (names, steps, polls) = (Vec::new(), RefCell::default(), Cell::default());
    let mut scene = Scene { unit, names, steps, steps_max, polls };
    let members = global_rank::all(shape).map(|rank| {
        let number = backend.number(rank);
        scene.names.resize(scene.names.len().max(number.index() + 1), rank);
        scene.names[number.index()] = rank;
        (number, global_rank::ep_rank(shape, rank), global_rank::tp_rank(shape, rank))
    });
    let members: Vec<_> = members.collect();
    let (memory, batches) = backend.simulated().lend(shape);
    let operators = unit.operators.to_vec();
    let mut cluster = Cluster::with_members(shape, options.choices, memory, operators, members.into_iter());
    (cluster.vector, cluster.batches) = (options.vector, batches);
    (cluster.checked, cluster.joinless) = (false, options.no_join);
    // Both kinds of steps in a group; an actor that is to stop stops after any effect.
    let all_finer = options.one_by_one || options.stopped.is_some();
    cluster.one_by_one = if all_finer { |_| true } else { |rank| !rank.0.is_multiple_of(2) };
    for (member, rank) in cluster.members.iter_mut().zip(unit.ranks) {
        member.agent = lock(&rank.agent).clone();
        let rank = scene.names[member.number.index()];
        let skips = |planned: &Planned| unit.skips(rank, planned.round);
        if unit.operators.iter().any(skips) {
            member.own = Some(unit.operators.iter().copied().filter(|planned| !skips(planned)).collect());
        }
    }
    let ran = drive(&mut cluster, &mut scene).map_err(|ended| scene.failure(&cluster, ended));
    for (member, rank) in cluster.members.into_iter().zip(unit.ranks) {
        rank.resume(member);
    }
    backend.simulated().take_back(cluster.memory);
    ran.map(|()| cluster.steps)
}
