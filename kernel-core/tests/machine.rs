//! One machine type: what a shape leaves to be chosen, and what a memory must be able to do.

use veriep_core::fabric::Capabilities;
use veriep_core::protocol::{Choices, Machine, Operator, Receive, Refused, Stage};
use veriep_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};

fn shape(config: &Config<'_>) -> Shape {
    Shape::new(config, Limits::None).unwrap_or_else(|found| panic!("{found:?}"))
}

/// Two ranks of A3; the others differ from it by what is named.
fn a3() -> Config<'static> {
    Config {
        ep_world_size: 2,
        moe_expert_num: 4,
        k: 2,
        h: 64,
        bs: BatchSizes::Uniform(2),
        hccl_buffsize_mb: 8,
        ..Config::default()
    }
}

fn hierarchy() -> Config<'static> {
    Config { comm_alg: Protocol::Hierarchy, ep_world_size: 4, server_ranks: 2, hccl_buffsize_mb: 105, ..a3() }
}

/// Number of choices by shape, worked out by hand: orders times flags times ways to receive times stages.
#[test]
fn every_choice_that_makes_a_difference_is_listed_once() {
    for (name, config, expected) in [
        // Copied out and in place with either flags, in four orders; two areas of direct placement, without flags, in three.
        ("plain", a3(), 4 * 2 * 2 + 3 * 2),
        ("int8 results", Config { comm_quant_mode: 2, ..a3() }, 4 * 2 * 2),
        ("a TP domain", Config { tp_world_size: 2, moe_expert_num: 2, ..a3() }, 4 * 2),
        ("fullmesh_v2", Config { comm_alg: Protocol::FullmeshV2, ..a3() }, 4),
        ("A2", Config { comm_alg: Protocol::Fullmesh, ..a3() }, 3),
        // The agent has an order, the cores have none.
        ("hierarchy", hierarchy(), 3 + 1),
    ] {
        let shape = shape(&config);
        let all: Vec<_> = Choices::all(&shape).collect();
        assert_eq!(all.len(), expected, "{name}: {all:?}");
        let twice = all.iter().enumerate().find(|(i, choices)| all[..*i].contains(choices));
        assert_eq!(twice, None, "{name}");
        for choices in all {
            for operator in [Operator::Dispatch, Operator::Combine] {
                let machine = Machine::begin(operator, &shape, choices, Capabilities::all());
                assert!(machine.is_ok(), "{name}, {choices:?}: {machine:?}");
                let needs = Machine::needs(operator, &shape, choices);
                assert!(Machine::begin(operator, &shape, choices, needs).is_ok(), "{name}, {choices:?}");
            }
        }
    }
}

fn refused(config: &Config<'_>, operator: Operator, choices: Choices, has: Capabilities) -> Option<Refused> {
    Machine::begin(operator, &shape(config), choices, has).err()
}

#[test]
fn a_memory_that_lacks_a_call_is_refused_before_an_operator_begins() {
    let direct = Choices { receive: Receive::Direct { areas: 1 }, ..Choices::default() };
    let (none, missing) = (Capabilities::empty(), |missing| Some(Refused::Capabilities { missing }));
    assert_eq!(refused(&a3(), Operator::Combine, direct, none), missing(Capabilities::PEER_BYTES));
    assert_eq!(refused(&a3(), Operator::Dispatch, direct, none), None);
    for operator in [Operator::Dispatch, Operator::Combine] {
        let stage = |stage| Choices { stage, ..Choices::default() };
        let sends = missing(Capabilities::SEND);
        assert_eq!(refused(&hierarchy(), operator, stage(Stage::Three), Capabilities::PEER_BYTES), sends);
        assert_eq!(refused(&hierarchy(), operator, stage(Stage::Two), none), None);
        // There is no other server to send to.
        let alone = Config { ep_world_size: 2, ..hierarchy() };
        assert_eq!(refused(&alone, operator, stage(Stage::Three), none), None);
    }
    let refused = Refused::Capabilities { missing: Capabilities::all() };
    assert_eq!(refused.to_string(), "the memory has no PEER_BYTES and SEND and LEND and PREFETCH");
}

#[test]
fn a_way_to_receive_that_a_shape_does_not_have_is_refused() {
    let receive = |receive| Choices { receive, ..Choices::default() };
    let (in_place, direct) = (receive(Receive::InPlace), receive(Receive::Direct { areas: 2 }));
    for config in [
        Config { tp_world_size: 2, moe_expert_num: 2, ..a3() },
        Config { comm_alg: Protocol::FullmeshV2, ..a3() },
        Config { comm_alg: Protocol::Fullmesh, ..a3() },
        hierarchy(),
    ] {
        for choices in [in_place, direct] {
            let why = refused(&config, Operator::Dispatch, choices, Capabilities::all());
            assert_eq!(why, Some(Refused::Receive(choices.receive)), "{config:?}");
        }
    }
    let int8 = Config { comm_quant_mode: 2, ..a3() };
    assert_eq!(refused(&int8, Operator::Combine, in_place, Capabilities::all()), None);
    assert!(refused(&int8, Operator::Combine, direct, Capabilities::all()).is_some());
    // There are one or two areas, whatever the window holds.
    let areas = |areas| receive(Receive::Direct { areas });
    let seen =
        [0, 1, 2, 3].map(|n| refused(&a3(), Operator::Dispatch, areas(n), Capabilities::all()).is_some());
    assert_eq!(seen, [true, false, false, true]);
    // Records of one expert per rank fit, but not two areas of rows and results.
    let bs = BatchSizes::Uniform(64);
    let wide = Config { ep_world_size: 8, moe_expert_num: 8, h: 8192, bs, hccl_buffsize_mb: 24, ..a3() };
    assert_eq!(
        refused(&wide, Operator::Dispatch, direct, Capabilities::all()),
        Some(Refused::Receive(direct.receive))
    );
}
