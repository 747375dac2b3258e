//! A group that is stepped through a schedule of operators over a simulated memory.

use super::chooser::{AGENT, Actor, Choice, Chooser};
use super::memory::{Effect, Memory};
use super::storage::{Spot, Storage};
use crate::fabric::{Capabilities, Fabric, Fault, Progress, ProtocolError, Wait};
use crate::layout::outputs::capacity;
use crate::layout::record::Triple;
use crate::place::{Place, Region, Tensor};
use crate::protocol::{
    Agent, AgentEnv, Choices, Context, Env, Machine, Operator, Scratch, scratch_bytes, scratch_words,
};
use crate::shape::Shape;
use crate::units::{CoreId, RankId};
use crate::vector::Any;
use alloc::vec;
use alloc::vec::Vec;
use core::mem::discriminant;

pub use super::order::{Half, Order, Planned, refused_by, schedule};
pub use super::world::{AgentStep, Answer, Core, CoreStep, Failure, Member, Open, Returned, World};

/// The cores and agents of a group, its memory, and how far each is in the schedule. A rank begins its next operator when
/// all of its own cores have ended the one before (the join); a core waits for another rank only as the protocol says.
#[derive(Clone, Debug)]
pub struct Cluster<'a, S, C> {
    /// The domain, as machines see it.
    pub shape: &'a Shape,
    /// The choices of all machines.
    pub choices: Choices,
    /// What works on rows.
    pub vector: Any,
    /// The memory.
    pub memory: Memory<S, C>,
    /// What every rank runs, unless its [member](Member::own) has other operators.
    pub operators: Vec<Planned>,
    /// All actors.
    pub members: Vec<Member>,
    /// Instances of the outputs: a round uses instance `round % batches`.
    pub batches: usize,
    /// Of which members every step has one effect at most.
    pub one_by_one: fn(RankId) -> bool,
    /// Whether every step is held to the duties of a machine: no more effects than it may have, in a row of one kind, and no
    /// change of machine or scratch by a step that is pending. Costs a copy of both.
    pub checked: bool,
    /// Whether cores begin an operator without waiting for the others of their rank, but a combine for its experts: for a
    /// twin.
    pub joinless: bool,
    /// Whether cores go on with an operator without reading again at which barrier they are: for a twin.
    pub stale: bool,
    /// The most effects of any step so far.
    pub most_effects: usize,
    /// Steps so far that changed something.
    pub steps: u64,
}

impl<'a, S: Storage, C: Chooser> Cluster<'a, S, C> {
    /// A group of all ranks of `shape`, whose memory is `memory`.
    #[must_use]
    pub fn new(shape: &'a Shape, choices: Choices, memory: Memory<S, C>, operators: Vec<Planned>) -> Self {
        let tp = shape.tp_world_size();
        let members = (0..shape.ep_world_size() * tp).map(|n| (RankId(n), RankId(n / tp), RankId(n % tp)));
        Self::with_members(shape, choices, memory, operators, members)
    }

    /// The same of these members: number in the memory, EP rank and TP rank.
    #[must_use]
    pub fn with_members(
        shape: &'a Shape,
        choices: Choices,
        memory: Memory<S, C>,
        operators: Vec<Planned>,
        members: impl Iterator<Item = (RankId, RankId, RankId)>,
    ) -> Self {
        let rounds = operators.iter().map(|planned| planned.round + 1).max().unwrap_or(0);
        let (words, row) = (scratch_words(shape), scratch_bytes(shape));
        // The scratch holds whatever was there before.
        let core = |_| Core {
            env: None,
            machine: None,
            words: vec![0xDEAD_BEEF; words],
            row: vec![0xAB; row],
            open: Vec::new(),
            ended: 0,
            wait: None,
        };
        let member = |(number, ep, tp)| Member {
            number,
            ep,
            tp,
            ended: 0,
            returned: vec![Returned::default(); rounds],
            cores: (0..shape.aiv_num()).map(core).collect(),
            agent: Agent::new(),
            agent_wait: None,
            error: None,
            own: None,
        };
        Self {
            shape,
            choices,
            vector: Any::default(),
            memory,
            operators,
            members: members.map(member).collect(),
            batches: 1,
            one_by_one: |_| true,
            checked: true,
            joinless: false,
            stale: false,
            most_effects: 0,
            steps: 0,
        }
    }

    /// All actors that step: the cores by member, then the agents, if there are any.
    pub fn actors(&self) -> impl Iterator<Item = Actor> + use<S, C> {
        let (members, cores) = (self.numbers(), self.shape.aiv_num());
        let agents = if self.choices.has_agents(self.shape) { members.clone() } else { Vec::new() };
        let of = |member| (0..cores).map(move |core| Actor { member, core: CoreId(core) });
        let cores: Vec<_> = members.into_iter().flat_map(of).collect();
        cores.into_iter().chain(agents.into_iter().map(|member| Actor { member, core: AGENT }))
    }

    fn numbers(&self) -> Vec<RankId> {
        self.members.iter().map(|member| member.number).collect()
    }

    /// Where a member is among the members.
    #[must_use]
    pub fn place_of(&self, member: RankId) -> usize {
        let found = self.members.binary_search_by_key(&member, |member| member.number);
        found.unwrap_or_else(|_| {
            self.members.iter().position(|other| other.number == member).expect("a member")
        })
    }

    /// The operators that member number `i` runs.
    fn plan(&self, i: usize) -> &[Planned] {
        self.members[i].plan(&self.operators)
    }

    /// The constants of a core.
    ///
    /// # Panics
    /// The memory or the shape cannot do what the choices ask for.
    pub(crate) fn env(&mut self, i: usize, core: CoreId) -> Env<Any> {
        let Member { number, ep, tp, .. } = self.members[i];
        let mut terms = self.memory.fabric(number, core, 0).terms();
        terms.calls |= Capabilities::LEND;
        let env = Env::new(self.shape, ep, core, self.choices, terms, self.vector);
        let env = env.unwrap_or_else(|refused| panic!("{refused}")).with_tp_rank(tp);
        if (self.one_by_one)(number) { env.one_by_one() } else { env }
    }

    /// An output of a round, with its spare capacity.
    #[must_use]
    pub fn output(&self, i: usize, round: usize, tensor: Tensor) -> &[u8] {
        let Member { number, ep, .. } = self.members[i];
        self.memory.output(number, round % self.batches, tensor, capacity(self.shape, ep, tensor))
    }

    /// What combine of a round is given: the experts' rows `y` and the outputs of dispatch as they are. `assist_info` has
    /// room for more rows than were received: only its entries for the rows of `y` are copied.
    #[must_use]
    pub fn returned(&self, i: usize, round: usize, y: Vec<u8>) -> Returned {
        let output = |tensor| self.output(i, round, tensor).to_vec();
        let assist_info = self.output(i, round, Tensor::AssistInfo);
        let rows = y.len() / self.shape.row_bytes() as usize;
        Returned {
            assist_info: assist_info[..assist_info.len().min(rows * Triple::BYTES as usize)].to_vec(),
            y,
            expand_scales: output(Tensor::ExpandScales),
            ep_recv_counts: output(Tensor::EpRecvCounts),
            expand_idx: output(Tensor::ExpandIdx),
            sent_rows: output(Tensor::SentRows),
            row_table: output(Tensor::RowTable),
        }
    }

    /// The first `rows` rows that a member has received, wherever its experts find them by `table`.
    ///
    /// # Errors
    /// The table names a place that is not there.
    pub fn rows(&self, i: usize, round: usize, rows: usize, table: &[u8]) -> Result<Vec<u8>, Fault> {
        let stretches = self.choices.receive.rows(self.shape, rows as u32, table);
        let read = stretches.map(|(at, len)| self.read(i, round, at, len));
        Ok(read.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Bytes of a member's memory, or of an output of a round.
    ///
    /// # Errors
    /// They are not all in one region.
    pub fn read(&self, i: usize, round: usize, at: Place, len: u64) -> Result<&[u8], Fault> {
        let batch = if let Region::Output(_) = at.region { round % self.batches } else { 0 };
        self.memory.read(Spot { member: self.members[i].number, batch, at }, len)
    }

    /// Begins the schedule: every rank its next operator, and every agent.
    pub fn begin(&mut self, world: &mut impl World<S, C>) -> Result<(), Failure> {
        if self.choices.has_agents(self.shape) {
            for member in self.numbers() {
                self.memory.chooser.may_step(Actor { member, core: AGENT });
            }
        }
        (0..self.members.len()).try_for_each(|i| self.begin_next(i, world))
    }

    /// Begins the next operator of a member on all of its cores that can.
    ///
    /// # Panics
    /// The memory or the shape cannot do what the choices ask for.
    pub fn begin_next(&mut self, i: usize, world: &mut impl World<S, C>) -> Result<(), Failure> {
        for core in 0..self.members[i].cores.len() {
            let Core { machine, ended, .. } = &self.members[i].cores[core];
            let (number, ended) = (self.members[i].number, *ended);
            let (true, Some(&planned)) = (machine.is_none(), self.plan(i).get(ended)) else { continue };
            // What the experts return is data: combine cannot begin without it.
            let needed = if self.joinless { self.dispatch_of(i, planned) } else { ended };
            if self.members[i].ended < needed {
                continue;
            }
            let before = |core: &Core| core.ended < ended || core.ended == ended && core.machine.is_none();
            let first = self.members[i].cores.iter().all(before);
            if first && planned.begins() {
                world.begins(self, i, planned)?;
                let is_combine = planned.operator == Operator::Combine;
                self.memory.reuse_outputs(number, planned.round % self.batches, is_combine);
                self.leave_results(i, planned);
            }
            if planned.begins() {
                let env = self.env(i, CoreId(core as u32));
                let Core { env: its, machine, .. } = &mut self.members[i].cores[core];
                *machine = Some(Machine::begin(planned.operator, its.insert(env)));
            } else {
                let id = CoreId(core as u32);
                self.resume(i, id, planned).map_err(|error| Failure::Core(number, id, error))?;
            }
            self.memory.chooser.may_step(Actor { member: number, core: CoreId(core as u32) });
        }
        Ok(())
    }

    /// Goes on with an operator whose sending half has ended, in the scratch that it had.
    ///
    /// # Errors
    /// The core's own words hold what no core writes.
    ///
    /// # Panics
    /// The schedule has no sending half before.
    fn resume(&mut self, i: usize, core: CoreId, planned: Planned) -> Result<(), ProtocolError> {
        let (shape, stale) = (self.shape, self.stale);
        let Member { number, cores, .. } = &mut self.members[i];
        let Core { env, machine, words, row, open, .. } = &mut cores[core.index()];
        let mut resumed = Open::take(open, planned).unwrap_or_else(|| panic!("{planned}: nothing is open"));
        let env = env.as_ref().expect("a core that has sent");
        if !stale {
            resumed.machine.resume(env.on(shape)?, &self.memory.fabric(*number, core, 0))?;
        }
        (*words, *row) = (resumed.words, resumed.row);
        *machine = Some(resumed.machine);
        Ok(())
    }

    /// Puts an operator aside whose sending half has ended.
    fn set_aside(&mut self, i: usize, core: CoreId, sent: Planned) {
        let Core { machine, words, row, open, .. } = &mut self.members[i].cores[core.index()];
        let Some(machine) = machine.take() else { return };
        // The next operator has a scratch of its own, which holds whatever was there before.
        let fresh = (vec![0xDEAD_BEEF; words.len()], vec![0xAB; row.len()]);
        let words = core::mem::replace(words, fresh.0);
        let row = core::mem::replace(row, fresh.1);
        open.push(Open { sent, machine, words, row });
    }

    /// How many operators must have ended before a combine can begin; none before a dispatch.
    fn dispatch_of(&self, i: usize, planned: Planned) -> usize {
        let dispatch = Planned { operator: Operator::Dispatch, ..planned };
        let before = self.plan(i).iter().position(|&other| other == dispatch && planned != dispatch);
        before.map_or(0, |before| before + 1)
    }

    /// Experts may leave their results in the window, as late as may be.
    fn leave_results(&mut self, i: usize, planned: Planned) {
        if planned.operator == Operator::Dispatch {
            return;
        }
        let Member { number, returned, .. } = &mut self.members[i];
        let Returned { y, row_table, .. } = &returned[planned.round];
        let at = self.choices.receive.results(row_table);
        // A test may have changed the table: there are no experts that write outside of their memory.
        let there = |at: &Place| {
            self.memory.storage.holds(Spot { member: *number, batch: 0, at: *at }, y.len() as u64)
        };
        if let Some(at) = at.filter(there) {
            self.memory.poke(*number, at, y);
        }
    }

    /// Lets an actor take a step. What it comes to; nothing for a core between operators, or one whose rank has refused
    /// something.
    ///
    /// # Errors
    /// A machine refuses what it sees, or the world a result.
    ///
    /// # Panics
    /// [Checked](Self::checked), a machine breaks one of its duties.
    pub fn step(&mut self, actor: Actor, world: &mut impl World<S, C>) -> Result<Option<Progress>, Failure> {
        let i = self.place_of(actor.member);
        let answer = match actor.core {
            AGENT => self.step_agent(i, actor, world),
            _ => self.step_core(i, actor, world),
        };
        let Some(answer) = answer else { return Ok(None) };
        match answer {
            Ok(Progress::Stepped) => {
                self.steps += 1;
                self.memory.chooser.may_step(actor);
            }
            Ok(Progress::Pending(wait)) => {
                let Member { cores, agent_wait, .. } = &mut self.members[i];
                *cores.get_mut(actor.core.index()).map_or(agent_wait, |core| &mut core.wait) = Some(wait);
                if wait == Wait::ROOM {
                    // No landing says that there is room: the core asks again.
                    self.memory.chooser.may_step(actor);
                } else {
                    self.memory.sleep(actor);
                }
            }
            Ok(Progress::Done) => {
                self.steps += 1;
                self.end_of_core(i, actor.core, world)?;
            }
            Err(error) => {
                let failure = match actor.core {
                    AGENT => Failure::Agent(actor.member, error),
                    core => Failure::Core(actor.member, core, error),
                };
                world.refused(self, i, failure)?;
                let Member { error: first, cores, .. } = &mut self.members[i];
                first.get_or_insert(error);
                cores.iter_mut().for_each(|core| core.machine = None);
                return Ok(None);
            }
        }
        Ok(answer.ok())
    }

    fn end_of_core(&mut self, i: usize, core: CoreId, world: &mut impl World<S, C>) -> Result<(), Failure> {
        let planned = self.plan(i)[self.members[i].cores[core.index()].ended];
        if planned.half == Half::Send {
            self.set_aside(i, core, planned);
        }
        let core = &mut self.members[i].cores[core.index()];
        (core.machine, core.wait) = (None, None);
        core.ended += 1;
        let ended = self.members[i].ended;
        if self.members[i].cores.iter().all(|core| core.ended > ended) {
            let planned = self.plan(i)[ended];
            if planned.ends() {
                world.ended(self, i, planned)?;
            }
            self.members[i].ended += 1;
        } else if !self.joinless {
            return Ok(());
        }
        self.begin_next(i, world)
    }

    fn step_core(&mut self, i: usize, actor: Actor, world: &impl World<S, C>) -> Option<Answer> {
        let shape = self.shape;
        let planned = *self.plan(i).get(self.members[i].cores[actor.core.index()].ended)?;
        let Member { number, returned, cores, .. } = &mut self.members[i];
        let Core { env, machine, words, row, .. } = &mut cores[actor.core.index()];
        let (Some(env), Some(machine)) = (env, machine) else { return None };
        let round = planned.round;
        world.steps(actor, planned, machine.phase());
        let before = self.checked.then(|| (machine.clone(), words.clone()));
        let (inputs, combine_inputs) = (world.inputs(*number, round), returned[round].combine_inputs());
        self.memory.begin_step();
        let mut fabric = self.memory.fabric(*number, actor.core, round % self.batches);
        let answer = world.through(actor, &mut fabric, &mut |fabric| {
            let scratch = Scratch { words, row };
            let (core, inputs, combine_inputs) = (env.on(shape)?, &inputs, &combine_inputs);
            let cx = &mut Context { core, fabric, inputs, combine_inputs, scratch };
            match planned.half {
                Half::Send => machine.send(cx, 1).progress(),
                Half::Whole | Half::Receive => machine.step(cx),
            }
        });
        if let Some((before, words_before)) = before {
            let effects = &self.memory.effects;
            assert!(
                effects.len() <= env.effects_max() as usize && is_run(effects),
                "{before:?} had other effects than a run: {effects:?}"
            );
            self.most_effects = self.most_effects.max(effects.len());
            if matches!(answer, Ok(Progress::Pending(_) | Progress::Done)) {
                assert!(effects.is_empty(), "{answer:?} with an effect: {effects:?}");
                // For an effect without room a step may have prepared a row or the plan.
                if answer != Ok(Progress::Pending(Wait::ROOM)) {
                    assert_eq!(*machine, before, "{answer:?} must not change a machine");
                    assert_eq!(*words, words_before, "{answer:?} must not change the scratch");
                }
            }
        }
        Some(answer)
    }

    fn step_agent(&mut self, i: usize, actor: Actor, world: &impl World<S, C>) -> Option<Answer> {
        let Member { number, ep, agent, error, .. } = &mut self.members[i];
        if error.is_some() {
            return None;
        }
        let (shape, env) = (self.shape, AgentEnv::new(self.shape, *ep, self.choices.order));
        let before = agent.clone();
        self.memory.begin_step();
        let answer =
            world.through_nic(actor, &mut self.memory.nic(*number), &mut |nic| agent.step(shape, &env, nic));
        if self.checked {
            let effects = self.memory.effects.len();
            assert!(effects <= 1, "an agent posts one task at a time");
            let is_still = *agent == before && effects == 0;
            assert!(answer == Ok(Progress::Stepped) || is_still, "{answer:?} with a change");
            assert_ne!(answer, Ok(Progress::Done), "an agent has no end");
        }
        Some(answer)
    }

    /// Carries out a choice. Whether it changed anything.
    pub fn take(&mut self, choice: Choice, world: &mut impl World<S, C>) -> Result<bool, Failure> {
        match choice {
            Choice::Land(flight, bytes) => Ok(self.memory.land(flight, bytes)),
            Choice::Step(actor) => {
                let progress = self.step(actor, world)?;
                Ok(matches!(progress, Some(Progress::Stepped | Progress::Done)))
            }
        }
    }

    /// Begins the schedule and takes the chooser's choices until it has none. Returns how many there were.
    ///
    /// # Errors
    /// As of [`step`](Self::step); or the schedule has not ended, though no actor can move.
    ///
    /// # Panics
    /// [Checked](Self::checked), an actor can move that was not woken.
    pub fn run(&mut self, world: &mut impl World<S, C>) -> Result<u64, Failure> {
        self.begin(world)?;
        let mut choices = 0;
        while let Some(choice) = self.memory.chooser.next() {
            self.take(choice, world)?;
            choices += 1;
        }
        self.end(world).map(|()| choices)
    }

    /// No actor can move.
    ///
    /// # Errors
    /// The schedule has not ended.
    pub fn end(&mut self, world: &mut impl World<S, C>) -> Result<(), Failure> {
        let is_late = |member: &&Member| member.ended < member.plan(&self.operators).len();
        let late: Vec<_> = self.members.iter().filter(is_late).collect();
        if late.iter().all(|member| member.error.is_some()) {
            return Ok(());
        }
        let cores = late
            .iter()
            .flat_map(|member| (0..).map(CoreId).zip(&member.cores).map(|core| (member.number, core)));
        let waits = cores.map(|(member, (core, state))| (Actor { member, core }, state.wait));
        let agents = self.members.iter().filter(|member| member.agent_wait.is_some());
        let agents = agents.map(|member| (Actor { member: member.number, core: AGENT }, member.agent_wait));
        let waits: Vec<_> = waits.chain(agents).collect();
        if self.checked {
            let asleep: Vec<_> = self.memory.sleepers().map(|(actor, _)| actor).collect();
            for actor in asleep {
                let progress = self.step(actor, world)?;
                assert!(
                    !matches!(progress, Some(Progress::Stepped | Progress::Done)),
                    "{actor:?} was not woken"
                );
            }
        }
        Err(Failure::Hang(waits))
    }
}

/// Whether effects are some of one kind in a row, or rows with their flags.
fn is_run(effects: &[Effect]) -> bool {
    let is_put = |effect: &Effect| matches!(effect, Effect::Put { .. });
    let is_row_or_flag = |effect: &Effect| matches!(effect, Effect::Put { .. } | Effect::Publish { .. });
    let one_kind = effects.windows(2).all(|two| discriminant(&two[0]) == discriminant(&two[1]));
    one_kind || effects.iter().all(is_row_or_flag) && effects.windows(2).all(|two| two.iter().any(is_put))
}
