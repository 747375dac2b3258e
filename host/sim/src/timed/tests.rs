//! When effects land, in numbers worked out by hand; and that this is a memory as good as any other.

use super::*;
use veriep_core::shape::{Config, Limits, Protocol};
use veriep_core::sim::storage::group_sizes;
use veriep_core::sim::{Choice, Memory};
use veriep_core::units::CoreId;
use veriep_group::backend::lockstep::Mapped;
use veriep_group::conformance::litmus::{self, Failure, Run, Step, Who};
use veriep_group::conformance::{Stepped, Strength, in_lockstep};

/// A port of 1 GB/s, 700 ns away.
const LINKS: [&str; 4] = ["port_gbs=1.0", "port_ns=700.0", "chunk=512", "port_by=write"];

/// Ranks whose steps cost nothing, and when something landed in whose memory.
struct Group {
    memory: Memory<Mapped, Timed>,
    clock: Rc<Clock>,
    dice: Dice,
}

impl Group {
    /// Three ranks.
    fn new() -> Self {
        let config = Config { ep_world_size: 3, moe_expert_num: 3, k: 1, h: 1024, ..Config::default() };
        Self::over(&Shape::new(&config, Limits::None).unwrap(), &LINKS, 0)
    }

    fn over(shape: &Shape, links: &[&str], seed: u64) -> Self {
        let links: Vec<_> = links.iter().map(|&link| link.to_owned()).collect();
        let cluster = Cluster::read("a3", &links, &[]).unwrap();
        let ranks = shape.ep_world_size();
        let clock = Clock::new(ranks, None, None);
        let server = if shape.protocol() == Protocol::Hierarchy { shape.server_ranks() } else { 0 };
        let network = Network::new(&cluster.links, &[], ranks, server);
        let network = network.with_addresses(cluster.links.port_by, shape);
        let paces =
            Paces { begins: vec![0; ranks as usize], slow: vec![WHOLE; ranks as usize], jitter: 0, seed };
        let timed = Timed::new(clock.clone(), &cluster, network, paces, OldSplit::default());
        let memory = Memory::new(shape, Mapped::new(group_sizes(shape)).unwrap(), timed);
        Self { memory, clock, dice: Dice(seed) }
    }

    fn put(&mut self, from: u32, to: u32, bytes: usize) {
        let mut fabric = self.memory.fabric(RankId(from), CoreId(0), 0);
        fabric.put(RankId(to), Place::window(0), &vec![1; bytes], &[]).unwrap();
    }

    /// Lands what is due next; `false` if nothing is.
    fn land_next(&mut self) -> bool {
        while let Some(choice) = self.memory.chooser.next() {
            let Choice::Land(flight, bytes) = choice else { panic!("no core steps") };
            if self.memory.land(flight, bytes) {
                return true;
            }
        }
        false
    }

    /// The next landing: when, in nanoseconds, and which kind of effect.
    fn lands(&mut self) -> (Ps, FlightKind) {
        let Some(Choice::Land(flight, bytes)) = self.memory.chooser.next() else { panic!("nothing lands") };
        let kind = self.memory.flight(flight).unwrap().kind;
        self.memory.land(flight, bytes);
        (self.clock.time() / 1000, kind)
    }
}

#[test]
fn one_put_takes_its_bytes_and_the_way() {
    let mut group = Group::new();
    group.put(0, 1, 2048);
    assert_eq!(group.lands(), (2048 + 700, FlightKind::Put));
}

#[test]
fn what_is_sent_on_takes_two_ways() {
    let mut group = Group::new();
    group.put(0, 1, 2048);
    assert_eq!(group.lands().0, 2748);
    group.put(1, 2, 1024);
    assert_eq!(group.lands().0, 2748 + 1024 + 700);
}

#[test]
fn a_publish_lands_behind_a_slow_put_though_it_comes_by_another_port() {
    let publish = |slow: bool| {
        let mut group = Group::new();
        if slow {
            group.put(0, 1, 2048);
        }
        group.memory.fabric(RankId(0), CoreId(0), 0).publish(RankId(1), Place::state(512), 1).unwrap();
        if slow {
            assert_eq!(group.lands(), (2048 + 700, FlightKind::Put));
        }
        group.lands()
    };
    assert_eq!(publish(true), (2048 + 700, FlightKind::Publish));
    assert_eq!(publish(false), (8 + 700, FlightKind::Publish));
}

#[test]
fn puts_from_a_port_land_one_after_the_other_and_those_to_a_port_as_it_receives_them() {
    let mut group = Group::new();
    (0..3).for_each(|_| group.put(0, 1, 2048));
    assert_eq!([(); 3].map(|()| group.lands().0), [2748, 2748 + 2048, 2748 + 2 * 2048]);
    let mut group = Group::new();
    (0..2).for_each(|from| group.put(from, 2, 2048));
    // Alternating chunks, so that both end within one of each other.
    assert_eq!([(); 2].map(|()| group.lands().0), [700 + 7 * 512, 700 + 8 * 512]);
}

/// A core whose rows leave behind the next flag, for a twin.
struct Late<'f, F> {
    inner: F,
    held: &'f mut Option<(RankId, Place, Vec<u8>)>,
}

impl<F: Fabric> Middleware for Late<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let held = self.held.replace((to, at, [row, tail].concat()));
        held.map_or(Ok(()), |(to, at, row)| self.inner.put(to, at, &row, &[]))
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.publish(to, at, word)?;
        self.held.take().map_or(Ok(()), |(to, at, row)| self.inner.put(to, at, &row, &[]))
    }
}

/// A group that takes the exam of backends.
struct Examined {
    group: RefCell<Group>,
    is_late: bool,
    held: RefCell<Option<(RankId, Place, Vec<u8>)>>,
}

impl Stepped for Examined {
    fn step(&self, run: &mut Run) -> Result<Step, Failure> {
        let memory = &mut self.group.borrow_mut().memory;
        memory.begin_step();
        let rank = RankId(run.program.rank);
        let Who::Core(core) = run.program.who else {
            return run.step(&mut litmus::Actor::Agent(&mut memory.nic(rank)));
        };
        let mut fabric = memory.fabric(rank, CoreId(core), 0);
        if !self.is_late {
            return run.step(&mut litmus::Actor::Core(&mut fabric));
        }
        let held = &mut *self.held.borrow_mut();
        run.step(&mut litmus::Actor::Core(&mut Late { inner: fabric, held }))
    }

    fn tick(&self) {
        let mut group = self.group.borrow_mut();
        let until = group.clock.time() + 1000 * group.dice.below(600) as Ps;
        while group.memory.chooser.queue.next_time().is_some_and(|next| next <= until) {
            group.land_next();
        }
        let now = group.clock.time().max(until);
        group.clock.set(now, WHOLE);
    }

    fn land_one(&self) -> bool {
        self.group.borrow_mut().land_next()
    }
}

fn examined(is_late: bool) {
    let kinds = [&LINKS[..], &["egress=fair", "chunk=64", "port_gbs=0.1"], &["chunk=64", "buffer=64"]];
    for links in kinds {
        let make = |shape: &Shape, seed| {
            let group = RefCell::new(Group::over(shape, links, seed));
            Examined { group, is_late, held: RefCell::default() }
        };
        in_lockstep(make, 0..100, Strength::Any);
    }
}

#[test]
fn memory_in_virtual_time_keeps_the_contract() {
    examined(false);
}

#[test]
#[should_panic(expected = "a put lands whole before the flag behind it")]
fn a_row_that_leaves_behind_its_flag_is_caught_in_virtual_time() {
    examined(true);
}
