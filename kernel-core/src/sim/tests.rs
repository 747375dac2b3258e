//! The memory by itself: what may land, who wakes, what is kept.

use super::chooser::{AGENT, Actor, Choice, Chooser, Dice};
use super::cluster::{Cluster, Failure, schedule};
use super::flight::{Flight, FlightId, FlightKind};
use super::memory::Memory;
use super::recorded::{Recorded, Replayed};
use super::seeded::{self, Seeded};
use super::storage::{Dense, Sparse, Spot, Storage, group_sizes};
use crate::fabric::nic::{Nic, Post, Transfer};
use crate::fabric::order::{Issued, Kind};
use crate::fabric::{Awaited, Fabric};
use crate::place::{Place, Tensor};
use crate::protocol::Choices;
use crate::shape::{Config, Protocol, Shape};
use crate::testing;
use crate::testing::domain::{Domain, PAIR, result_row, shape as shape_of};
use crate::testing::group::{Group, unmasked_rounds};
use crate::units::{CoreId, RankId};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// A chooser that only keeps what it is told.
#[derive(Clone, Debug, Default)]
struct Notes {
    offers: BTreeMap<FlightId, Issued>,
    flights: Vec<(FlightId, Issued)>,
    awake: Vec<Actor>,
    asleep: Vec<Actor>,
}

fn issued(what: &Flight) -> Issued {
    let kind = match what.kind {
        FlightKind::Put => Kind::Put,
        FlightKind::Publish => Kind::Publish,
        FlightKind::Store | FlightKind::Write => Kind::Store,
        FlightKind::Message(number) => Kind::Message(number),
        FlightKind::Transfer(_) => unreachable!("no transfers here"),
    };
    Issued { from: (what.from.member, what.from.core), to: what.to, at: what.at, kind }
}

impl Chooser for Notes {
    fn next(&mut self) -> Option<Choice> {
        None
    }

    fn cut(&mut self, _: FlightKind, len: u64, cuts: &mut Vec<u64>) {
        cuts.push(len / 16 * 8);
    }

    fn issued(&mut self, flight: FlightId, what: &Flight) -> super::chooser::Lands {
        if !matches!(what.kind, FlightKind::Transfer(_)) {
            self.flights.push((flight, issued(what)));
        }
        super::chooser::Lands::Later
    }

    fn may_land(&mut self, flight: FlightId, what: &Flight) {
        if !matches!(what.kind, FlightKind::Transfer(_)) {
            assert_eq!(self.offers.insert(flight, issued(what)), None, "offered twice");
        }
    }

    fn landed(&mut self, flight: FlightId, _: &Flight, _: Place, _: u64, end: bool) {
        if end {
            self.offers.remove(&flight);
            self.flights.retain(|other| other.0 != flight);
        }
    }

    fn may_step(&mut self, actor: Actor) {
        self.awake.push(actor);
    }

    fn sleeps(&mut self, actor: Actor, _: &[Awaited]) {
        self.asleep.push(actor);
    }
}

/// Two servers of two ranks of two cores.
fn servers() -> Shape {
    let domain = Domain { r: 4, e: 4, cores: 2, h: 8, ..PAIR };
    shape_of(&Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..domain.config() })
}

fn memory(shape: &Shape) -> Memory<Dense, Notes> {
    Memory::new(shape, Dense::new(group_sizes(shape)), Notes::default())
}

#[test]
fn what_is_offered_is_what_the_relation_leaves_free() {
    let shape = servers();
    for seed in 0..40 {
        let (mut memory, mut dice) = (memory(&shape), Dice(seed));
        for _ in 0..300 {
            let (rank, core) = (dice.below(2) as u32, CoreId(dice.below(2) as u32));
            let (near, far) = (RankId(dice.below(2) as u32), RankId(2 + dice.below(2) as u32));
            let word = Place::state(8 * dice.below(3) as u64);
            let mut fabric = memory.fabric(RankId(rank), core, 0);
            match dice.below(9) {
                0 | 1 => fabric.put(near, Place::window(64 * dice.below(3) as u64), &[7; 20], &[]).unwrap(),
                2 => fabric.publish(near, word, 1).unwrap(),
                3 => fabric.store(word, 2).unwrap(),
                4 => fabric.send(far, Place::window(128), &[3; 32]).unwrap(),
                _ => {
                    let offers: Vec<_> = memory.chooser.offers.keys().copied().collect();
                    if !offers.is_empty() {
                        assert!(memory.land(dice.one_of(&offers), u64::MAX));
                    }
                }
            }
            let told = &memory.chooser;
            for (i, (flight, this)) in told.flights.iter().enumerate() {
                let free = told.flights[..i].iter().all(|(_, earlier)| !this.must_follow(earlier));
                assert_eq!(told.offers.contains_key(flight), free, "{this:?}, seed {seed}");
            }
        }
        memory.settle();
        assert!(memory.chooser.flights.is_empty() && memory.in_flight() == 0);
    }
}

#[test]
#[should_panic(expected = "before what it must follow")]
fn a_chooser_that_lands_a_flag_before_its_rows_is_stopped() {
    let mut memory = memory(&servers());
    let mut fabric = memory.fabric(RankId(0), CoreId(0), 0);
    fabric.put(RankId(1), Place::window(0), &[1; 8], &[]).unwrap();
    fabric.publish(RankId(1), Place::state(0), 1).unwrap();
    let (flag, _) = memory.chooser.flights[memory.chooser.flights.len() - 1];
    memory.land(flag, u64::MAX);
}

#[test]
fn an_actor_sleeps_until_something_that_it_has_read_changes() {
    let mut memory = memory(&servers());
    let (sleeper, at) = (Actor { member: RankId(1), core: CoreId(1) }, Place::state(1024));
    let beside = Place { offset: at.offset + 8, ..at };
    memory.begin_step();
    let fabric = memory.fabric(RankId(1), CoreId(1), 0);
    assert_eq!((fabric.observe(at), fabric.bytes(Place::window(500), 20).unwrap().len()), (Ok(0), 20));
    memory.sleep(sleeper);
    assert_eq!(memory.chooser.asleep, [sleeper]);
    let mut other = memory.fabric(RankId(0), CoreId(0), 0);
    other.publish(RankId(1), beside, 1).unwrap();
    other.publish(RankId(0), at, 1).unwrap();
    other.put(RankId(1), Place::window(520), &[1; 16], &[]).unwrap();
    memory.settle();
    assert_eq!(memory.chooser.awake, []);
    memory.fabric(RankId(0), CoreId(0), 0).put(RankId(1), Place::window(512), &[1; 8], &[]).unwrap();
    memory.settle();
    assert_eq!(memory.chooser.awake, [sleeper]);
    // A core that is awake is not woken again, and one that asked for quiet wakes with the last of what it did.
    memory.fabric(RankId(0), CoreId(0), 0).publish(RankId(1), at, 1).unwrap();
    memory.settle();
    memory.begin_step();
    let mut fabric = memory.fabric(RankId(1), CoreId(1), 0);
    fabric.store(at, 5).unwrap();
    assert_eq!((fabric.observe(at), fabric.quiet()), (Ok(5), Ok(false)));
    memory.sleep(sleeper);
    assert_eq!(memory.chooser.awake, [sleeper]);
    memory.settle();
    assert_eq!(memory.chooser.awake, [sleeper, sleeper]);
}

#[test]
fn an_agent_without_room_sleeps_until_a_transfer_has_ended() {
    let domain = Domain { h: 8, ..PAIR };
    let mut memory = memory(&shape_of(&Config { comm_alg: Protocol::Fullmesh, ..domain.config() }));
    memory.room = 1;
    let transfer = Transfer { to: RankId(1), from: Place::window_out(0), at: Place::window(0), len: 24 };
    memory.begin_step();
    assert_eq!([(); 2].map(|()| memory.nic(RankId(0)).post(&transfer)), [Ok(Post::Posted), Ok(Post::Busy)]);
    let agent = Actor { member: RankId(0), core: AGENT };
    memory.sleep(agent);
    let flight = memory.flights().next().unwrap().0;
    assert!(memory.land(flight, 16) && memory.chooser.awake.is_empty());
    // The source is read when a word is delivered.
    memory.poke(RankId(0), Place::window_out(16), &[9; 8]);
    assert!(memory.land(flight, 8) && !memory.land(flight, 8));
    assert_eq!(
        (memory.chooser.awake.as_slice(), memory.word(RankId(1), Place::window(16))),
        (&[agent][..], 0x0909_0909_0909_0909)
    );
}

#[test]
fn a_byte_of_an_output_is_written_once() {
    let mut memory = memory(&servers());
    let at = |offset| Place::output(Tensor::XOut, offset);
    let mut fabric = memory.fabric(RankId(0), CoreId(0), 0);
    assert!(fabric.write(at(8), &[1; 8]).is_ok() && fabric.write(at(0), &[1; 8]).is_ok());
    for offset in 0..16 {
        assert!(fabric.write(at(offset), &[2]).is_err(), "byte {offset}");
    }
    memory.reuse_outputs(RankId(0), 0, true);
    assert_eq!(
        memory.output(RankId(0), 0, Tensor::XOut, 17),
        [&[super::memory::UNWRITTEN; 16][..], &[0]].concat()
    );
    assert!(memory.fabric(RankId(0), CoreId(0), 0).write(at(4), &[1; 8]).is_ok());
}

#[test]
fn sparse_memory_holds_what_dense_memory_holds() {
    let sizes = vec![10_000; Spot::regions(0)];
    let (mut dense, mut sparse) = (Dense::new([sizes.clone()]), Sparse::new([sizes], 700));
    let mut dice = Dice(5);
    for n in 0..3000u32 {
        let (len, offset) = (dice.below(700) as u64, dice.below(10_100) as u64);
        let spot = Spot { member: RankId(0), batch: 0, at: Place::window(offset) };
        let seen = dense.read(spot, len).map(<[u8]>::to_vec);
        assert_eq!(sparse.read(spot, len), seen.as_deref(), "{len} bytes at {offset}");
        if seen.is_some() && n % 3 > 0 {
            let bytes = vec![n as u8; len as usize];
            dense.write(spot, &bytes);
            sparse.write(spot, &bytes);
        }
    }
}

#[test]
fn of_rows_only_the_ends_are_kept_and_they_weigh_what_the_rows_do() {
    let mut memory = memory(&servers());
    memory.kept = Some(8);
    let mut fabric = memory.fabric(RankId(0), CoreId(0), 0);
    fabric.put(RankId(1), Place::window(0), &[1; 60], &[2; 4]).unwrap();
    fabric.write(Place::window_out(0), &[3; 64]).unwrap();
    let weights: Vec<_> = memory.flights().map(|(_, flight)| (flight.left, flight.weight)).collect();
    assert_eq!(weights, [(4, 64), (8, 56), (8, 8)], "a tail, and two ends");
    memory.settle();
    let read = |member, at| memory.read(Spot { member, batch: 0, at }, 64).unwrap();
    let (put, written) = (read(RankId(1), Place::window(0)), read(RankId(0), Place::window_out(0)));
    assert_eq!([put[0], put[59], put[60]], [0, 0, 2]);
    assert_eq!([written[7], written[8], written[55], written[56]], [3, 0, 0, 3]);
}

#[test]
fn a_recording_makes_the_same_run_again() {
    let domain = Domain { r: 3, e: 6, k: 2, cores: 2, ..PAIR };
    let config = domain.config();
    for (config, seed) in
        [config, Config { comm_alg: Protocol::Fullmesh, h: 8, ..config }].into_iter().zip([3, 4])
    {
        let shape = shape_of(&config);
        let rounds = unmasked_rounds(&shape, 2, &mut testing::domain::Dice(seed));
        let group = Group::of(&shape, rounds, |shape, _, s, t, k| result_row(shape, s, t, k));
        let sizes = || group_sizes(&shape);
        let inner = Seeded::new(seeded::Memory::Weak, seed);
        let recorded = Recorded::new(inner);
        let memory = Memory::new(&shape, Dense::new(sizes()), recorded);
        let mut first = Cluster::new(&shape, Choices::default(), memory, schedule("DC", 2));
        let choices = first.run(&mut group.judge.clone()).unwrap();
        assert!(choices > 500, "{choices}");
        let replayed = Replayed::from(first.memory.chooser.recording.clone());
        let memory = Memory::new(&shape, Dense::new(sizes()), replayed);
        let mut second = Cluster::new(&shape, Choices::default(), memory, schedule("DC", 2));
        assert_eq!(second.run(&mut group.judge.clone()), Ok(choices));
        assert_eq!(first.steps, second.steps);
        assert_eq!(first.memory.storage.members, second.memory.storage.members);
    }
}

#[test]
fn a_group_in_which_a_rank_is_missing_hangs_and_says_who_waits_for_whom() {
    let shape = Domain { r: 3, e: 6, k: 2, ..PAIR }.shape();
    let rounds = unmasked_rounds(&shape, 1, &mut testing::domain::Dice(1));
    let mut group = Group::of(&shape, rounds, |shape, _, s, t, k| result_row(shape, s, t, k));
    // Rank 1 has ended everything before the others begin.
    group.members[1].ended = 2;
    group.members[1].cores[0].ended = 2;
    let Err(Failure::Hang(waits)) = group.play(seeded::Memory::Weak, 1) else { panic!("no hang") };
    let of = |rank| Actor { member: RankId(rank), core: CoreId(0) };
    assert_eq!(waits.iter().map(|wait| wait.0).collect::<Vec<_>>(), [of(0), of(2)]);
    assert!(
        waits.iter().all(|(_, wait)| wait.and_then(|wait| wait.source()) == Some(RankId(1))),
        "{waits:?}"
    );
}
