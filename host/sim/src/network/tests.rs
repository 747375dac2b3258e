//! Times of links, compared with numbers computed by hand.

use super::*;
use crate::costs::Cluster;
use veriep_core::place::Place;
use veriep_core::shape::{Config, Limits, Shape};
use veriep_trace::queue::Queue;

/// Ten gigabytes a second: a thousand bytes take 100 ns.
fn links(changes: &[&str]) -> Links {
    let base = [
        "ports=7",
        "port_gbs=1.4285715",
        "port_ns=700.0",
        "near_gbs=1.0",
        "near_ns=30.0",
        "egress=fifo",
        "chunk=500",
    ];
    let given: Vec<_> = base.iter().chain(changes).map(|&assignment| assignment.to_owned()).collect();
    Cluster::read("a3", &given, &[]).unwrap().links
}

/// When each of some flows arrives, which are sent at these times in nanoseconds.
fn arrivals(changes: &[&str], server: u32, sent: &[(u64, u32, u32, u64)]) -> Vec<Ps> {
    over(&mut Network::new(&links(changes), &[], 4, server), sent)
}

fn over(network: &mut Network, sent: &[(u64, u32, u32, u64)]) -> Vec<Ps> {
    let mut queue = Queue::default();
    for (&(at, from, to, left), number) in sent.iter().zip(0..) {
        let flow = Flow { load: Load::Message(number), from, to, port: 0, left, rows: true, operator: 0 };
        let later = &mut |at, event| queue.add(at, event);
        if network.is_near(from, to) {
            network.send_near(flow, 1000 * at, later);
        } else {
            network.send(flow, Place::window(0), 1000 * at, later);
        }
    }
    let mut arrived = vec![0; sent.len()];
    while let Some((now, event)) = queue.pop() {
        if let Some(Load::Message(number)) =
            network.happens(event, now, &mut |at, event| queue.add(at, event))
        {
            arrived[number as usize] = now / 1000;
        }
    }
    arrived
}

#[test]
fn one_flow_takes_its_bytes_and_the_way() {
    assert_eq!(arrivals(&[], 0, &[(5, 0, 1, 3000)]), [5 + 300 + 700]);
    assert_eq!(arrivals(&[], 2, &[(5, 0, 1, 3000)]), [5 + 3000 + 30]);
}

#[test]
fn a_port_sends_in_order_or_by_turns() {
    let sent = [(0, 0, 1, 3000), (0, 0, 2, 1000)];
    assert_eq!(arrivals(&[], 0, &sent), [1000, 1100]);
    // The second comes when the first has had one turn of 500 bytes, and has the next one: 1, 1, 2, 1, 2, 1, 1, 1.
    assert_eq!(arrivals(&["egress=fair"], 0, &sent), [1100, 950]);
}

#[test]
fn many_senders_share_the_port_of_a_receiver() {
    let sent = [(0, 0, 3, 1000), (0, 1, 3, 1000), (0, 2, 3, 1000)];
    let mut times = arrivals(&[], 0, &sent);
    times.sort_unstable();
    // Alternating chunks: the last of each is the 4th, 5th and 6th.
    assert_eq!(times, [700 + 200, 700 + 250, 700 + 300]);
}

#[test]
fn a_full_buffer_stops_senders_and_what_is_behind_the_head_of_their_line() {
    // Rank 0 fills the buffer of rank 3; then rank 1 has a chunk for it, and one for rank 2.
    let sent = [(0, 0, 3, 1000), (60, 1, 3, 500), (61, 1, 2, 500)];
    assert_eq!(arrivals(&["buffer=0"], 0, &sent), [800, 850, 860]);
    // There is room for another chunk when the first one has been received, at 750.
    assert_eq!(arrivals(&["buffer=1000"], 0, &sent), [800, 750 + 50 + 700, 800 + 50 + 700]);
    // With alternating chunks, what goes elsewhere does not wait.
    assert_eq!(arrivals(&["buffer=1000", "egress=fair"], 0, &sent), [800, 750 + 50 + 700, 61 + 50 + 700]);
}

#[test]
fn groups_share_a_link_to_the_others() {
    let both = |oversubscription| {
        let tier = Tier { source: String::new(), ranks: 2, ns: 100.0, oversubscription, port_gbs: 0.0 };
        let mut network = Network::new(&links(&[]), &[tier], 4, 0);
        over(&mut network, &[(0, 0, 2, 500), (0, 1, 3, 500), (0, 0, 1, 500)])
    };
    // Out of the group and into the other at 10 GB/s, one after the other; inside the group nothing changes.
    assert_eq!(both(2.0), [700 + 150 + 150 + 50, 700 + 150 + 50 + 150 + 50, 50 + 700 + 50]);
    // At half of that.
    assert_eq!(both(4.0)[..2], [700 + 200 + 200 + 50, 700 + 200 + 100 + 200 + 50]);
}

#[test]
fn ports_are_slower_for_what_leaves_a_group() {
    let tier =
        |ranks, gbs| Tier { source: String::new(), ranks, ns: 0.0, oversubscription: 0.001, port_gbs: gbs };
    let of = |tiers: &[Tier], to| over(&mut Network::new(&links(&[]), tiers, 4, 0), &[(0, 0, to, 500)])[0];
    // A seventh of these rates is a port's; what groups share takes no time.
    let [half, fifth] = [(2, 5.0 / 7.0), (2, 2.0 / 7.0)].map(|(ranks, gbs)| tier(ranks, gbs));
    assert_eq!(of(core::slice::from_ref(&half), 1), 700 + 50);
    assert_eq!(of(core::slice::from_ref(&half), 2), 700 + 100);
    assert_eq!(of(&[tier(1, 0.0), half, fifth], 2), 700 + 250);
}

#[test]
fn a_write_goes_by_one_port_or_its_packets_by_many() {
    let config = Config { ep_world_size: 2, moe_expert_num: 2, k: 1, h: 1024, ..Config::default() };
    let shape = Shape::new(&config, Limits::None).unwrap();
    let by = |by, link| {
        let mut network = Network::new(&links(&[link]), &[], 4, 0).with_addresses(by, &shape);
        over(&mut network, &[(0, 0, 1, 3584)])
    };
    // Seven packets: one after the other by one port of seven, or all at once; a chunk has the whole length.
    assert_eq!(by(PortBy::Write, "port_by=write"), [700 + 2508]);
    assert_eq!(by(PortBy::Packet, "port_by=packet"), [700 + 358]);
    assert_eq!(by(PortBy::Even, "port_by=even"), [700 + 358]);
}
