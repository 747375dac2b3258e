//! When effects land, in numbers worked out by hand.

use super::*;
use veriep_core::shape::{Config, Limits};
use veriep_core::sim::storage::group_sizes;
use veriep_core::sim::{Choice, Dense, Memory};
use veriep_core::units::CoreId;

/// A port of 1 GB/s, 700 ns away.
const LINKS: [&str; 4] = ["port_gbs=1.0", "port_ns=700.0", "chunk=512", "port_by=write"];

/// Three ranks whose steps cost nothing, and when something landed in whose memory.
struct Group {
    memory: Memory<Dense, Timed>,
    clock: Rc<Clock>,
}

impl Group {
    fn new() -> Self {
        let config = Config { ep_world_size: 3, moe_expert_num: 3, k: 1, h: 1024, ..Config::default() };
        let shape = Shape::new(&config, Limits::None).unwrap();
        let links: Vec<_> = LINKS.iter().map(|&link| link.to_owned()).collect();
        let cluster = Cluster::read("a3", &links, &[]).unwrap();
        let clock = Clock::new(3, None);
        let network = Network::new(&cluster.links, &[], 3, 0).with_addresses(cluster.links.port_by, &shape);
        let paces = Paces { begins: vec![0; 3], slow: vec![WHOLE; 3], jitter: 0, seed: 0 };
        let split = OldSplit::default();
        let timed = Timed::new(clock.clone(), &cluster, network, paces, split);
        Self { memory: Memory::new(&shape, Dense::new(group_sizes(&shape)), timed), clock }
    }

    fn put(&mut self, from: u32, to: u32, bytes: usize) {
        let mut fabric = self.memory.fabric(RankId(from), CoreId(0), 0);
        fabric.put(RankId(to), Place::window(0), &vec![1; bytes], &[]).unwrap();
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
