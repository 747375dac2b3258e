//! Times of the baseline, compared with numbers computed by hand.

use super::*;
use crate::costs::Costs;
use veriep_case::generate::{Options, generate};
use veriep_case::presets::preset;

/// Two ranks with eight rows of 2048 bytes, four for either; a port of 1 GB/s, 700 ns away.
fn takes(costs: &[&str]) -> Baseline {
    let (mut config, routing) = preset("tiny").unwrap();
    for set in ["moe_expert_num=2", "k=2", "bs=4", "h=1024", "aiv_num=2"] {
        config.set(set).unwrap();
    }
    let case = generate(config, Options { routing, ..Options::default() }, "").unwrap();
    let links = ["ports=1", "port_gbs=1.0", "port_ns=700.0", "chunk=2048"].map(ToOwned::to_owned);
    let mut cluster = Cluster::read("a3", &links, &[]).unwrap();
    cluster.costs = cluster.free().costs;
    let costs: Vec<_> = costs.iter().map(|&cost| cost.to_owned()).collect();
    let given = Cluster::read("a3", &links, &costs).unwrap().costs;
    let Costs { launch_ns, peer_ns, sync_ns, copy_gbs, .. } = given;
    cluster.costs = Costs { launch_ns, peer_ns, sync_ns, copy_gbs, ..cluster.costs };
    run(&case, &cluster, &Paces { begins: vec![0; 2], slow: vec![WHOLE; 2], jitter: 0, seed: 0 })
}

/// An exchange of so many bytes: a word, the bytes and a word, each with its way.
const fn exchange(bytes: Ps) -> Ps {
    708 + 700 + bytes + 708
}

const FREE: [&str; 4] = ["launch_ns=0", "peer_ns=0", "sync_ns=0", "copy_gbs=1e9"];

#[test]
fn bytes_go_between_words() {
    let Baseline { took, parts } = takes(&FREE);
    let ns = |took: Ps| took / 1000;
    // Four bytes for each token and expert; then four rows.
    assert_eq!(took[0].iter().map(|&took| ns(took)).max(), Some(exchange(4 * 8) + exchange(8192)));
    assert_eq!(took[1].iter().map(|&took| ns(took)).max(), Some(exchange(8192)));
    let parts: Vec<_> = parts[0].iter().map(|&(_, took)| ns(took)).collect();
    assert_eq!(parts, [exchange(32), 0, 0, exchange(8192), 0]);
}

#[test]
fn the_host_launches_ahead_but_for_what_it_waits_for() {
    let Baseline { took, .. } = takes(&["launch_ns=100", "peer_ns=1000", "sync_ns=5000", "copy_gbs=1.0"]);
    // Two cores copy 8 rows of 2048 bytes, sent and received; the launch of an exchange takes 1100.
    let copied = 8 * 2048 / 2;
    let dispatch = 1100 + exchange(32) + 5000 + 100 + copied + exchange(8192) + copied;
    assert_eq!(took[0].iter().max(), Some(&(1000 * dispatch)));
    // Launches of combine hide behind what dispatch still copies.
    assert_eq!(took[1].iter().max(), Some(&(1000 * (copied + exchange(8192) + copied))));
}
