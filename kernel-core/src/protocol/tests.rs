//! Every machine's step is a function of what it observed, and a pending step reports all that could let it move.

mod busy;
mod calls;
mod halves;

use crate::fabric::middleware::Middleware;
use crate::fabric::nic::Nic;
use crate::fabric::{Awaited, Capabilities, Fabric, Fault, Progress, ProtocolError, Terms, Watch};
use crate::inputs::Inputs;
use crate::layout::outputs::ep_recv_counts_bytes;
use crate::place::{Place, Tensor};
use crate::protocol::kit::{Context, Scratch};
use crate::protocol::{Choices, CombineInputs, Env, Machine, Operator};
use crate::shape::{Config, Protocol, Shape};
use crate::sim::chooser::{Actor, Choice, Chooser, Lands};
use crate::sim::cluster::{AgentStep, Answer, Cluster, CoreStep, Failure, Planned, World, schedule};
use crate::sim::flight::{Flight, FlightId, FlightKind};
use crate::sim::seeded::{self, Seeded};
use crate::sim::storage::{Dense, group_sizes};
use crate::sim::{self};
use crate::testing::domain::{Dice, Domain, Tensors, shape as shape_of};
use crate::testing::{golden, phases};
use crate::units::{CoreId, RankId};
use crate::vector::Portable;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

mod own_batch;

/// Weak memory that also records what lands. Quiet never answers early, so its answer changes by landings alone.
struct Noted {
    weak: Seeded,
    landed: Vec<Landing>,
}

/// Bytes of a member that have changed, and the actor that changed them.
#[derive(Clone, Copy)]
struct Landing {
    from: Actor,
    is_transfer: bool,
    to: RankId,
    at: Place,
    bytes: u64,
}

impl Chooser for Noted {
    fn next(&mut self) -> Option<Choice> {
        self.weak.next()
    }

    fn issued(&mut self, flight: FlightId, what: &Flight) -> Lands {
        self.weak.issued(flight, what)
    }

    fn cut(&mut self, kind: FlightKind, len: u64, cuts: &mut Vec<u64>) {
        self.weak.cut(kind, len, cuts);
    }

    fn may_land(&mut self, flight: FlightId, what: &Flight) {
        self.weak.may_land(flight, what);
    }

    fn landed(&mut self, flight: FlightId, what: &Flight, at: Place, bytes: u64, end: bool) {
        let is_transfer = matches!(what.kind, FlightKind::Transfer(_));
        self.landed.push(Landing { from: what.from, is_transfer, to: what.to, at, bytes });
        self.weak.landed(flight, what, at, bytes, end);
    }

    fn may_step(&mut self, actor: Actor) {
        self.weak.may_step(actor);
    }
}

impl Landing {
    /// Returns whether `actor` awaits these bytes.
    fn is(&self, awaited: &Awaited, actor: Actor) -> bool {
        let (at, len) = match *awaited {
            Awaited::Word(at) => (at, 8),
            Awaited::Bytes(at, len) => (at, len),
            Awaited::Quiet => return self.from == actor,
            Awaited::Room => return self.is_transfer && self.from.member == actor.member,
        };
        let apart = at.offset + len <= self.at.offset || self.at.offset + self.bytes <= at.offset;
        (self.to, self.at.region) == (actor.member, at.region) && !apart
    }
}

/// An answer that a step received, or an effect that it had.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Word(Place, u64),
    Bytes(Option<RankId>, Place, Vec<u8>),
    Quiet(bool),
    Effect(&'static str, RankId, Place, Vec<u8>),
}

/// Records all calls between a machine and a fabric.
struct Recorder<'a> {
    inner: &'a mut dyn Fabric,
    events: &'a RefCell<Vec<Event>>,
}

impl Recorder<'_> {
    fn note(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }
}

const OWN: RankId = RankId(u32::MAX);

impl<'a> Middleware for Recorder<'a> {
    type Inner = dyn Fabric + 'a;

    fn inner(&self) -> &Self::Inner {
        self.inner
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn reached(&self, rank: RankId, at: Place, len: u64) -> Result<RankId, Fault> {
        let seen = self.inner.peer_bytes(rank, at, len)?.to_vec();
        self.note(Event::Bytes(Some(rank), at, seen));
        Ok(rank)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.note(Event::Effect("put", to, at, [row, tail].concat()));
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.note(Event::Effect("publish", to, at, word.to_le_bytes().to_vec()));
        self.inner.publish(to, at, word)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.note(Event::Effect("send", to, at, message.to_vec()));
        self.inner.send(to, at, message)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let answer = self.inner.quiet()?;
        self.note(Event::Quiet(answer));
        Ok(answer)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let word = self.inner.observe(at)?;
        self.note(Event::Word(at, word));
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.note(Event::Effect("store", OWN, at, word.to_le_bytes().to_vec()));
        self.inner.store(at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let bytes = self.inner.bytes(at, len)?;
        self.note(Event::Bytes(None, at, bytes.to_vec()));
        Ok(bytes)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.note(Event::Effect("write", OWN, at, bytes.to_vec()));
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.note(Event::Effect("deliver", OWN, output, [from.offset, len].map(u64::to_le_bytes).concat()));
        self.inner.deliver(output, from, len)
    }
}

/// Replays recorded answers, and asserts that a step has the recorded effects.
struct Replay<'a> {
    events: &'a [Event],
    next: Cell<usize>,
    capabilities: Capabilities,
}

impl Replay<'_> {
    fn take(&self) -> &Event {
        let next = self.next.get();
        self.next.set(next + 1);
        self.events.get(next).expect("as many calls as when it was recorded")
    }

    fn effect(&self, verb: &'static str, to: RankId, at: Place, bytes: Vec<u8>) -> Result<(), Fault> {
        assert_eq!(*self.take(), Event::Effect(verb, to, at, bytes));
        Ok(())
    }

    fn same_bytes(&self, rank: Option<RankId>, at: Place, len: u64) -> &[u8] {
        match self.take() {
            Event::Bytes(of, place, bytes) if (*of, *place, bytes.len() as u64) == (rank, at, len) => bytes,
            other => panic!("asked for {len} bytes at {at}, recorded was {other:?}"),
        }
    }
}

impl Fabric for Replay<'_> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.effect("put", to, at, [row, tail].concat())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.effect("publish", to, at, word.to_le_bytes().to_vec())
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.effect("send", to, at, message.to_vec())
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        match self.take() {
            Event::Quiet(answer) => Ok(*answer),
            other => panic!("asked for quiet, recorded was {other:?}"),
        }
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        match self.take() {
            Event::Word(place, word) if *place == at => Ok(*word),
            other => panic!("observed {at}, recorded was {other:?}"),
        }
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.effect("store", OWN, at, word.to_le_bytes().to_vec())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        Ok(self.same_bytes(None, at, len))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.effect("write", OWN, at, bytes.to_vec())
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.effect("deliver", OWN, output, [from.offset, len].map(u64::to_le_bytes).concat())
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        Ok(self.same_bytes(Some(rank), at, len))
    }
}

/// Random tokens, and experts that return zeros. Every step is recorded and watched.
struct Scene {
    tensors: Vec<Tensors>,
    told: RefCell<Vec<Awaited>>,
    events: RefCell<Vec<Event>>,
}

type Group<'a> = Cluster<'a, Dense, Noted>;

/// Returns the number of rows for which a member's experts owe results: with a TP domain those of both peers.
fn rows<C: Chooser>(cluster: &Cluster<'_, Dense, C>, i: usize, round: usize) -> usize {
    let counts = |tensor| cluster.output(i, round, tensor).as_chunks().0;
    let sums = ep_recv_counts_bytes(cluster.shape, cluster.members[i].ep) as usize / 4;
    let last = match cluster.shape.tp_world_size() {
        1 => counts(Tensor::EpRecvCounts)[..sums].iter().rev().take(1),
        _ => counts(Tensor::TpRecvCounts).iter().rev().take(2),
    };
    last.map(|&count| u32::from_le_bytes(count) as usize).sum()
}

impl World<Dense, Noted> for Scene {
    fn inputs(&self, member: RankId, _: usize) -> Inputs<'_> {
        self.tensors[member.index()].inputs()
    }

    fn ended(&mut self, cluster: &mut Group<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        if planned.operator == Operator::Dispatch {
            let y = alloc::vec![0; rows(cluster, i, planned.round) * cluster.shape.row_bytes() as usize];
            cluster.members[i].returned[planned.round] = cluster.returned(i, planned.round, y);
        }
        Ok(())
    }

    fn through(&self, _: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        self.told.borrow_mut().clear();
        self.events.borrow_mut().clear();
        let mut tell = |what| self.told.borrow_mut().push(what);
        let mut recorder = Recorder { inner: fabric, events: &self.events };
        step(&mut Watch::new(&mut recorder, &mut tell))
    }

    fn through_nic(&self, _: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        self.told.borrow_mut().clear();
        let mut tell = |what| self.told.borrow_mut().push(what);
        step(&mut Watch::new(nic, &mut tell))
    }
}

/// Steps a core of the group, and then repeats the step on the recorded answers.
fn step(cluster: &mut Group<'_>, scene: &mut Scene, actor: Actor) -> Option<Progress> {
    let i = cluster.place_of(actor.member);
    let core = cluster.members[i].cores.get(actor.core.index()).cloned();
    let number = cluster.members[i].number;
    let progress = cluster.step(actor, scene).unwrap();
    if let (Some(core), Some(progress)) = (core, progress)
        && let (Some(env), Some(mut machine)) = (core.env, core.machine)
    {
        let round = cluster.operators[core.ended].round;
        let (mut words, mut row) = (core.words, core.row);
        let events = scene.events.borrow();
        let capabilities = cluster.memory.fabric(number, actor.core, 0).capabilities();
        let mut replay = Replay { events: &events, next: Cell::new(0), capabilities };
        let returned = cluster.members[i].returned[round].clone();
        let mut cx = Context {
            core: env.on(cluster.shape).unwrap(),
            fabric: &mut replay,
            inputs: &scene.inputs(number, round),
            combine_inputs: &returned.combine_inputs(),
            scratch: Scratch { words: &mut words, row: &mut row },
        };
        assert_eq!(machine.step(&mut cx), Ok(progress), "{machine:?}");
        assert_eq!(replay.next.get(), events.len(), "calls of {machine:?}");
        let after = &cluster.members[i].cores[actor.core.index()];
        if let (Some(same), false) = (&after.machine, progress == Progress::Done) {
            assert_eq!((&machine, &words, &row), (same, &after.words, &after.row));
        }
    }
    progress
}

/// The subset of a pending step's reports that is taken to be all that it awaits.
type Believed = fn(&[Awaited]) -> &[Awaited];

/// Runs two rounds and, after every landing, polls all actors that await none of it. Returns the first one that moves.
fn moved_unawaited(shape: &Shape, choices: Choices, believed: Believed, seed: u64) -> Option<Actor> {
    let mut dice = Dice(seed);
    let tp = shape.tp_world_size();
    let members = 0..shape.ep_world_size() * tp;
    let tensors = members.map(|n| Tensors::random(shape, RankId(n / tp), &mut dice)).collect();
    let mut scene = Scene { tensors, told: RefCell::default(), events: RefCell::default() };
    let noted = Noted { weak: Seeded::new(seeded::Memory::Weak, seed), landed: Vec::new() };
    let memory = sim::Memory::new(shape, Dense::new(group_sizes(shape)), noted);
    let mut cluster = Cluster::new(shape, choices, memory, schedule("DC", 2));
    cluster.begin(&mut scene).unwrap();
    let mut asleep: BTreeMap<Actor, Vec<Awaited>> = BTreeMap::new();
    while let Some(choice) = cluster.memory.chooser.next() {
        match choice {
            Choice::Land(flight, bytes) => {
                cluster.memory.land(flight, bytes);
            }
            Choice::Step(actor) => {
                asleep.remove(&actor);
                if let Some(Progress::Pending(_)) = step(&mut cluster, &mut scene, actor) {
                    asleep.insert(actor, scene.told.borrow().clone());
                }
            }
        }
        let landed = core::mem::take(&mut cluster.memory.chooser.landed);
        if landed.is_empty() {
            continue;
        }
        asleep.retain(|&actor, told| {
            !landed.iter().any(|landing| believed(told).iter().any(|awaited| landing.is(awaited, actor)))
        });
        for actor in asleep.keys().copied().collect::<Vec<_>>() {
            if let Some(Progress::Stepped | Progress::Done) = step(&mut cluster, &mut scene, actor) {
                return Some(actor);
            }
        }
    }
    let ended = cluster.members.iter().all(|member| member.ended == cluster.operators.len());
    assert!(ended, "{choices:?}, seed {seed}: no actor can move");
    None
}

/// Returns a group of each protocol, with two cores.
fn shapes() -> Vec<Shape> {
    shapes_with_rows_of(8)
}

fn shapes_with_rows_of(h: i64) -> Vec<Shape> {
    let pair = Domain { r: 2, e: 4, s: 0, rs: 0, k: 2, h, bs: 2, cores: 2 };
    let of = |config: Config<'_>| shape_of(&config);
    let servers = Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..pair.config() };
    [
        of(pair.config()),
        of(Config { quant_mode: 2, ..pair.config() }),
        of(Config { comm_alg: Protocol::FullmeshV2, ..pair.config() }),
        of(Config { tp_world_size: 2, ..Domain { e: 2, ..pair }.config() }),
        of(Config { comm_alg: Protocol::Fullmesh, ..pair.config() }),
        of(Config { ep_world_size: 4, ..servers }),
    ]
    .into()
}

#[test]
fn a_pending_step_stays_pending_until_an_awaited_word_lands() {
    for shape in shapes() {
        for choices in Choices::all(&shape) {
            for seed in 0..3 {
                let moved = moved_unawaited(&shape, choices, |told| told, seed);
                assert_eq!(moved, None, "{choices:?}, seed {seed}");
            }
        }
    }
}

/// A core that sleeps on one word alone, as on the one in `Wait`, sleeps too long where roles are polled in turn.
#[test]
fn waiting_for_the_last_word_alone_is_caught() {
    let last: Believed = |told| &told[told.len().saturating_sub(1)..];
    let shapes = shapes();
    let hierarchy = shapes.last().unwrap();
    let caught = Choices::all(hierarchy)
        .filter(|&choices| (0..20).any(|seed| moved_unawaited(hierarchy, choices, last, seed).is_some()));
    assert_eq!(caught.count(), Choices::all(hierarchy).count());
}

fn env(shape: &Shape, choices: Choices) -> Env<Portable> {
    Env::new(shape, RankId(0), CoreId(0), choices, Terms::new(Capabilities::all()), Portable).unwrap()
}

#[test]
fn a_machine_that_begins_is_in_its_first_phase() {
    for shape in shapes() {
        for choices in Choices::all(&shape) {
            let env = env(&shape, choices);
            for operator in [Operator::Dispatch, Operator::Combine] {
                let machine = Machine::begin(operator, &env);
                assert_eq!(machine.phase(), "Select", "{machine:?}");
            }
        }
    }
}

/// The constants of a core fit one shape: they are refused on another one, so no machine can take a step there.
#[test]
fn constants_of_another_shape_are_refused() {
    for (shape, other) in shapes().into_iter().zip(shapes_with_rows_of(16)) {
        for choices in Choices::all(&shape) {
            let (made_for, given) = (other.fingerprint(), shape.fingerprint());
            let refused = Some(ProtocolError::OtherShape { made_for, given });
            let env = env(&other, choices);
            assert_eq!(env.on(&shape).err(), refused, "{choices:?}");
            assert_eq!(env.on(&other).err(), None, "{choices:?}");
        }
    }
}

/// A core runs the machines of one protocol: every other machine refuses a step before any effect.
#[test]
fn machines_of_another_protocol_are_refused() {
    let shapes = shapes();
    let mut envs = Vec::new();
    for shape in &shapes {
        envs.extend(Choices::all(shape).map(|choices| (env(shape, choices), shape)));
    }
    for (env, shape) in &envs {
        let own = [Operator::Dispatch, Operator::Combine].map(|operator| Machine::begin(operator, env));
        for operator in [Operator::Dispatch, Operator::Combine] {
            for (other, _) in &envs {
                let before = Machine::begin(operator, other);
                if own.contains(&before) {
                    continue;
                }
                let mut machine = before.clone();
                let mut replay =
                    Replay { events: &[], next: Cell::new(0), capabilities: Capabilities::all() };
                let (inputs, combine_inputs) = (&Inputs::default(), &CombineInputs::default());
                let scratch = Scratch { words: &mut [], row: &mut [] };
                let (core, fabric) = (env.on(shape).unwrap(), &mut replay);
                let refused = machine.step(&mut Context { core, fabric, inputs, combine_inputs, scratch });
                assert_eq!(refused, Err(ProtocolError::OtherMachine), "{machine:?}");
                assert_eq!(machine, before);
            }
        }
    }
}

/// Shapes of every family whose cores go through all of their phases: with one core and with several, with idle ones, and
/// with more rows and words than a step takes.
fn shapes_for_all_phases() -> Vec<Shape> {
    let mut all = Vec::new();
    for (cores, bs, quant_mode) in [(1, 2, 2), (2, 20, 0), (3, 5, 2), (6, 1, 0)] {
        let pair = Domain { r: 2, e: 4, s: 0, rs: 0, k: 2, h: 8, bs, cores };
        let a3 = Config { quant_mode, ..pair.config() };
        let servers = Config {
            comm_alg: Protocol::Hierarchy,
            server_ranks: 2,
            ep_world_size: 4,
            quant_mode,
            ..pair.config()
        };
        all.push(shape_of(&a3));
        all.push(shape_of(&Config { quant_mode, ..Domain { r: 3, s: 1, rs: 1, ..pair }.config() }));
        // A record has several blocks.
        all.push(shape_of(&Config { comm_alg: Protocol::FullmeshV2, h: 512, ..a3 }));
        all.push(shape_of(&Config {
            tp_world_size: 2,
            ..Config { quant_mode, ..Domain { e: 2, ..pair }.config() }
        }));
        all.push(shape_of(&Config { comm_alg: Protocol::Fullmesh, ..a3 }));
        all.push(shape_of(&servers));
    }
    // A table of one entry for each local expert takes several writes.
    let pair = Domain { r: 2, e: 130, s: 0, rs: 0, k: 2, h: 8, bs: 2, cores: 2 };
    all.push(shape_of(&pair.config()));
    all
}

/// Returns what a rank brings: ranks with odd numbers call combine with AddRmsNorm where there is one, the others plain combine.
fn called_by(shape: &Shape, rank: RankId, tensors: Tensors) -> Tensors {
    let has_norm = shape.has_add_rms_norm() && rank.0 % 2 == 1;
    if has_norm { tensors.with_add_rms_norm(shape, rank) } else { tensors }
}

/// Lets a group dispatch and combine twice.
fn run(shape: &Shape, choices: Choices, seed: u64) {
    let mut dice = Dice(seed);
    let tp = shape.tp_world_size();
    let members = 0..shape.ep_world_size() * tp;
    let one = |n| called_by(shape, RankId(n / tp), Tensors::random(shape, RankId(n / tp), &mut dice));
    let tensors = members.map(one).collect();
    let mut scene = Scene { tensors, told: RefCell::default(), events: RefCell::default() };
    let noted = Noted { weak: Seeded::new(seeded::Memory::Weak, seed), landed: Vec::new() };
    let memory = sim::Memory::new(shape, Dense::new(group_sizes(shape)), noted);
    let mut cluster = Cluster::new(shape, choices, memory, schedule("DC", 2));
    cluster.one_by_one = if seed == 0 { |_| true } else { |_| false };
    cluster.run(&mut scene).unwrap();
}

/// Transitions of machines are beside their phases, and steps of tests that are not among them fail. Here every declared one
/// is taken, and the page that lists them is as committed.
#[test]
fn every_declared_transition_is_taken() {
    let seen = phases::seen_in(|| {
        for shape in shapes_for_all_phases() {
            for choices in Choices::all(&shape) {
                (0..3).for_each(|seed| run(&shape, choices, seed));
                for every in [2, 3, 7] {
                    busy::run(&shape, choices, every);
                }
            }
        }
    });
    let mut page = String::from(phases::HEAD);
    for (module, machine) in &seen {
        for &(phase, next) in machine.legal {
            for &next in next {
                assert!(machine.taken.contains(&[phase, next]), "{module}: {phase} -> {next} is never taken");
            }
        }
        machine.list(module, &mut page);
    }
    golden::check("../../../docs/internals/phases.md", &page);
}
