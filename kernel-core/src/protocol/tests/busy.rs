//! A memory may have no room for any effect. Machines then keep what they have done, and repeat nothing.

use super::{Event, OWN, called_by, rows, shapes_for_all_phases};
use crate::fabric::middleware::Middleware;
use crate::fabric::{Capabilities, Fabric, Fault};
use crate::inputs::Inputs;
use crate::place::{Place, Tensor};
use crate::plan::returns::received;
use crate::protocol::outstanding::{CoreRows, Outstanding};
use crate::protocol::{Choices, Operator};
use crate::shape::{Protocol, Shape};
use crate::sim;
use crate::sim::chooser::Actor;
use crate::sim::cluster::{Answer, Cluster, CoreStep, Failure, Planned, World, schedule};
use crate::sim::seeded::{self, Seeded};
use crate::sim::storage::{Dense, group_sizes};
use crate::testing::domain::{Dice, Tensors, result_row};
use crate::testing::group::Judge;
use crate::units::RankId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

/// More effects than any core here has in two rounds, if each is asked for twice.
const ASKED_MAX: u64 = 100_000;

/// The effects for which a core has asked, and those that were taken, in order.
#[derive(Clone, Debug, Default)]
struct Asked {
    asked: u64,
    taken: Vec<Event>,
    /// The puts, publishes and messages since quiet said yes.
    under_way: u64,
    most_under_way: u64,
}

/// One core's view of a memory that has no room for every so many of its effects; 0 is none.
struct Busy<'a, F: ?Sized> {
    inner: &'a mut F,
    core: &'a mut Asked,
    every: u64,
}

impl<F: ?Sized> Busy<'_, F> {
    fn ask(&mut self, verb: &'static str, to: RankId, at: Place, bytes: Vec<u8>) -> Result<(), Fault> {
        self.core.asked += 1;
        assert!(self.core.asked < ASKED_MAX, "a core asks without end: {verb} at {at}");
        if self.every > 0 && self.core.asked.is_multiple_of(self.every) {
            return Err(Fault::busy(to, at, bytes.len() as u64));
        }
        self.core.taken.push(Event::Effect(verb, to, at, bytes));
        self.core.under_way += u64::from(matches!(verb, "put" | "publish" | "send"));
        self.core.most_under_way = self.core.most_under_way.max(self.core.under_way);
        Ok(())
    }
}

impl<F: Fabric + ?Sized> Middleware for Busy<'_, F> {
    crate::around! { inner: F }

    fn capabilities(&self) -> Capabilities {
        // What is lent is written without a call.
        self.inner.capabilities().difference(Capabilities::LEND)
    }

    fn lend(&self, _: Place, _: u64) -> Option<&[Cell<u8>]> {
        None
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        let is_quiet = self.inner.quiet()?;
        if is_quiet {
            self.core.under_way = 0;
        }
        Ok(is_quiet)
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.ask("put", to, at, [row, tail].concat())?;
        self.inner.put(to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.ask("publish", to, at, word.to_le_bytes().to_vec())?;
        self.inner.publish(to, at, word)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.ask("send", to, at, message.to_vec())?;
        self.inner.send(to, at, message)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.ask("store", OWN, at, word.to_le_bytes().to_vec())?;
        self.inner.store(at, word)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.ask("write", OWN, at, bytes.to_vec())?;
        self.inner.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.ask("deliver", OWN, output, [from.offset, len].map(u64::to_le_bytes).concat())?;
        self.inner.deliver(output, from, len)
    }
}

/// The calls of all cores, the rounds' inputs, and the last outputs of all members.
#[derive(Debug, Default)]
pub(super) struct Seen {
    asked: BTreeMap<Actor, Asked>,
    rounds: Vec<Vec<Tensors>>,
    outputs: Vec<Vec<u8>>,
    /// The most effects of any step.
    most: usize,
}

struct Scene {
    judge: Judge,
    every: u64,
    asked: RefCell<BTreeMap<Actor, Asked>>,
}

impl World<Dense, Seeded> for Scene {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        let member = RankId(member.0 % self.judge.rounds[round].len() as u32);
        World::<Dense, Seeded>::inputs(&self.judge, member, round)
    }

    fn ended(
        &mut self,
        cluster: &mut Cluster<'_, Dense, Seeded>,
        i: usize,
        planned: Planned,
    ) -> Result<(), Failure> {
        if cluster.shape.tp_world_size() == 1 {
            return self.judge.ended(cluster, i, planned);
        }
        if planned.operator == Operator::Dispatch {
            let len = rows(cluster, i, planned.round) * cluster.shape.row_bytes() as usize;
            // Small numbers of bf16, other ones in each row.
            let y = (0..len).map(|byte| if byte % 2 == 0 { (byte / 2 + i) as u8 } else { 0x3F }).collect();
            cluster.members[i].returned[planned.round] = cluster.returned(i, planned.round, y);
        }
        Ok(())
    }

    fn through(&self, core: Actor, inner: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        let mut asked = self.asked.borrow_mut();
        step(&mut Busy { inner, core: asked.entry(core).or_default(), every: self.every })
    }
}

/// Lets a group dispatch and combine twice. Unless it has a TP domain, the reference judges it.
pub(super) fn run(shape: &Shape, choices: Choices, every: u64) -> Seen {
    let (seed, tp) = (11 + every, shape.tp_world_size());
    let mut dice = Dice(5);
    let mut round = || {
        let members = 0..shape.ep_world_size() * tp;
        let one = |n| called_by(shape, RankId(n / tp), Tensors::unmasked(shape, RankId(n / tp), &mut dice));
        members.map(one).collect::<Vec<_>>()
    };
    let rounds = Vec::from([round(), round()]);
    let judge = Judge::new(shape, rounds, |shape, _, source, token, k| result_row(shape, source, token, k));
    let mut scene = Scene { judge, every, asked: RefCell::default() };
    let chooser = Seeded::new(seeded::Memory::Weak, seed);
    let memory = sim::Memory::new(shape, Dense::new(group_sizes(shape)), chooser);
    let mut cluster = Cluster::new(shape, choices, memory, schedule("DC", 2));
    cluster.one_by_one = |_| false;
    cluster.run(&mut scene).unwrap_or_else(|failure| panic!("{choices:?}, {shape:?}: {failure:?}"));
    cluster.memory.settle();
    let of = |i: usize| Tensor::ALL.map(|tensor| cluster.output(i, 0, tensor).to_vec());
    let outputs = (0..cluster.members.len()).flat_map(of).collect();
    Seen { asked: scene.asked.into_inner(), rounds: scene.judge.rounds, outputs, most: cluster.most_effects }
}

/// Returns the effects of a core in an order that does not depend on what came first. In a hierarchy relays number records as
/// their rows come, so there only the kinds are compared.
fn in_order(shape: &Shape, asked: &Asked) -> Vec<Event> {
    let of_kind = |event: &Event| match event {
        Event::Effect(verb, to, at, _) if shape.protocol() == Protocol::Hierarchy => {
            Event::Effect(verb, *to, Place { offset: 0, ..*at }, Vec::new())
        }
        event => event.clone(),
    };
    let mut all: Vec<_> = asked.taken.iter().map(of_kind).collect();
    all.sort();
    all
}

/// At every second call, at every third, and in the middle of every run.
#[test]
fn a_memory_without_room_changes_no_result_and_no_effect_is_repeated() {
    let mut most = 0;
    for shape in shapes_for_all_phases() {
        for choices in Choices::all(&shape) {
            let quick = run(&shape, choices, 0);
            most = most.max(quick.most);
            for every in [2, 3, 7] {
                let busy = run(&shape, choices, every);
                let what = (every, choices, shape.protocol());
                assert_eq!(busy.outputs, quick.outputs, "{what:?}");
                for (actor, asked) in &quick.asked {
                    let (seen, want) = (in_order(&shape, &busy.asked[actor]), in_order(&shape, asked));
                    assert_eq!(seen, want, "{actor:?}, {what:?}");
                }
                assert_eq!(busy.asked.len(), quick.asked.len());
                let refused = |asked: &Asked| asked.asked - asked.taken.len() as u64;
                assert!(busy.asked.values().any(|asked| refused(asked) > 0), "{what:?}");
            }
        }
    }
    assert_eq!(most, 16, "runs");
}

/// The number by which a queue is sized is what a core has under way at most, and no less than that with any inputs.
#[test]
fn as_many_effects_are_under_way_as_the_plan_says() {
    let mut some = 0;
    for shape in shapes_for_all_phases() {
        for choices in Choices::all(&shape) {
            let seen = run(&shape, choices, 0);
            for (&Actor { member, core }, asked) in &seen.asked {
                let of = |rows| Outstanding::of(&shape, choices, member, core, rows);
                let rows = |round: &Vec<Tensors>| {
                    let received =
                        received(&shape, member, |rank| round[rank.index()].inputs()).count() as u32;
                    CoreRows::of(&shape, member, core, &round[member.index()].inputs(), received)
                };
                let Some(bound) = of(CoreRows::most(&shape, member, core)) else { continue };
                let [first, second] = [0, 1].map(|at| of(rows(&seen.rounds[at])).unwrap());
                let want = first.before.max(first.behind + second.before).max(second.behind);
                let what = (choices, member, core, shape.protocol());
                assert_eq!(asked.most_under_way, want, "{what:?}");
                assert!(want <= bound.most(), "{what:?}: {want}, {bound:?}");
                assert!(Outstanding::most_of_any(&shape, choices) >= Some(bound.most()), "{what:?}");
                some += 1;
            }
        }
    }
    assert!(some > 100);
}
