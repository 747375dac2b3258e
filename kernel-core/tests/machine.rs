//! The common machine type: the choices that a shape allows, and the calls that a memory must support.

use veriep_core::fabric::{Capabilities, Terms};
use veriep_core::layout::state::Slots;
use veriep_core::protocol::{Choices, Env, Flags, Receive, Refused, Stage};
use veriep_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Portable;

fn shape(config: &Config<'_>) -> Shape {
    Shape::new(config, Limits::None).unwrap_or_else(|found| panic!("{found:?}"))
}

/// Two ranks of A3; the others differ from it as named.
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

/// The number of choices by shape, computed by hand: orders times flags and slots times receive modes times stages.
#[test]
fn every_choice_that_makes_a_difference_is_listed_once() {
    for (name, config, expected) in [
        // Copied out and in place with joint flags in either slots, or separate ones, in four orders; one or two areas of direct
        // placement, overwritten or not, without flags, in three.
        ("plain", a3(), 4 * 2 * 3 + 3 * 2 * 2),
        // A quantised row has no room for a result.
        ("int8 rows", Config { quant_mode: 2, ..a3() }, 4 * 2 * 3 + 3 * 2),
        ("int8 results", Config { comm_quant_mode: 2, ..a3() }, 4 * 2 * 3),
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
            let terms = Terms::new(choices.needs(&shape));
            let env = Env::new(&shape, RankId(0), CoreId(0), choices, terms, Portable);
            assert!(env.is_ok(), "{name}, {choices:?}: {env:?}");
        }
    }
}

fn refused(config: &Config<'_>, choices: Choices, has: Capabilities) -> Option<Refused> {
    Env::new(&shape(config), RankId(0), CoreId(0), choices, Terms::new(has), Portable).err()
}

#[test]
fn a_memory_that_lacks_a_call_is_refused_before_an_operator_begins() {
    let direct = Choices { receive: Receive::Direct { areas: 1 }, ..Choices::default() };
    let (none, missing) = (Capabilities::empty(), |missing| Some(Refused::Capabilities { missing }));
    assert_eq!(refused(&a3(), direct, none), missing(Capabilities::PEER_BYTES));
    let stage = |stage| Choices { stage, ..Choices::default() };
    let sends = missing(Capabilities::SEND);
    assert_eq!(refused(&hierarchy(), stage(Stage::Three), Capabilities::PEER_BYTES), sends);
    assert_eq!(refused(&hierarchy(), stage(Stage::Two), none), None);
    // There is no other server to send to.
    let alone = Config { ep_world_size: 2, ..hierarchy() };
    assert_eq!(refused(&alone, stage(Stage::Three), none), None);
    let refused = Refused::Capabilities { missing: Capabilities::all() };
    assert_eq!(refused.to_string(), "the memory has no PEER_BYTES and SEND and LEND and PREFETCH");
}

#[test]
fn a_core_that_the_shape_does_not_have_is_refused() {
    for config in [a3(), hierarchy(), Config { comm_alg: Protocol::Fullmesh, ..a3() }] {
        let shape = shape(&config);
        let new = |rank, core| {
            let (rank, core, terms) = (RankId(rank), CoreId(core), Terms::new(Capabilities::all()));
            Env::new(&shape, rank, core, Choices::default(), terms, Portable).err()
        };
        let (ranks, cores) = (shape.ep_world_size(), shape.aiv_num());
        assert_eq!(new(ranks - 1, cores - 1), None);
        for (rank, core) in [(ranks, 0), (0, cores), (u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX)] {
            let refused = Refused::NoCore { rank: RankId(rank), core: CoreId(core) };
            assert_eq!(new(rank, core), Some(refused));
        }
    }
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
            let why = refused(&config, choices, Capabilities::all());
            assert_eq!(why, Some(Refused::Receive(choices.receive)), "{config:?}");
        }
    }
    let int8 = Config { comm_quant_mode: 2, ..a3() };
    assert_eq!(refused(&int8, in_place, Capabilities::all()), None);
    assert!(refused(&int8, direct, Capabilities::all()).is_some());
    // There are one or two areas, for any size of window.
    let areas = |areas| receive(Receive::Direct { areas });
    let seen = [0, 1, 2, 3].map(|n| refused(&a3(), areas(n), Capabilities::all()).is_some());
    assert_eq!(seen, [true, false, false, true]);
    // Records of one expert per rank fit, but not two areas of rows and results.
    let bs = BatchSizes::Uniform(64);
    let wide = Config { ep_world_size: 8, moe_expert_num: 8, h: 8192, bs, hccl_buffsize_mb: 24, ..a3() };
    assert_eq!(refused(&wide, direct, Capabilities::all()), Some(Refused::Receive(direct.receive)));
}

/// The lines that a memory may state, in a group with these choices.
fn lines_that_pass(config: &Config<'_>, choices: Choices) -> Vec<u64> {
    let shape = shape(config);
    let passes = |line: &u64| choices.check(&shape, Terms { line: *line, ..Terms::new(Capabilities::all()) });
    let all = [8, 16, 32, 64, 128];
    for line in all {
        let refused = Refused::Line { line, apart: choices.keeps_apart(&shape) };
        assert!(passes(&line).is_ok() || passes(&line) == Err(refused), "{line}");
    }
    all.into_iter().filter(|line| passes(line).is_ok()).collect()
}

#[test]
fn a_memory_with_longer_lines_than_the_layout_keeps_apart_is_refused() {
    let refused = Refused::Line { line: 64, apart: 32 };
    assert_eq!(
        refused.to_string(),
        "the memory writes back lines of 64 bytes, and this layout keeps words in lines of 32 bytes"
    );
    let plain = Choices::default();
    let direct = Choices { receive: Receive::Direct { areas: 1 }, ..plain };
    let tp = Config { tp_world_size: 2, moe_expert_num: 2, ..a3() };
    let of = |comm_alg| Config { comm_alg, ..a3() };
    assert_eq!(lines_that_pass(&a3(), plain), [8, 16, 32]);
    assert_eq!(lines_that_pass(&a3(), Choices { receive: Receive::InPlace, ..plain }), [8, 16, 32]);
    let lines = Choices { slots: Slots::Lines, ..plain };
    assert_eq!(lines_that_pass(&a3(), lines), [8, 16, 32, 64]);
    assert_eq!(lines_that_pass(&a3(), Choices { receive: Receive::InPlace, ..lines }), [8, 16, 32, 64]);
    for (config, choices) in [
        (a3(), Choices { flags: Flags::Separate, ..plain }),
        (a3(), direct),
        (tp, plain),
        (of(Protocol::FullmeshV2), plain),
        (of(Protocol::Fullmesh), plain),
        (hierarchy(), plain),
    ] {
        assert_eq!(lines_that_pass(&config, choices), [8], "{config:?}");
    }
}

#[test]
fn status_slots_of_a_line_are_refused_where_they_would_keep_nothing_apart_or_have_no_room() {
    let lines = Choices { slots: Slots::Lines, ..Choices::default() };
    let said = |config: &Config<'_>, choices| {
        refused(config, choices, Capabilities::all()).map(|refused| refused.to_string())
    };
    let of = |comm_alg| Config { comm_alg, ..a3() };
    let direct = Receive::Direct { areas: 1 };
    for (config, choices, why) in [
        (of(Protocol::Fullmesh), lines, "product = a2: must be a3"),
        (hierarchy(), lines, "product = a2: must be a3"),
        (of(Protocol::FullmeshV2), lines, "comm_alg = fullmesh_v2: must be \"\" or fullmesh_v1"),
        (Config { tp_world_size: 2, moe_expert_num: 2, ..a3() }, lines, "tp_world_size = 2: must be 0 or 1"),
        (a3(), Choices { receive: direct, ..lines }, "receive = direct: must be copy or in-place"),
        (a3(), Choices { flags: Flags::Separate, ..lines }, "flags = separate: must be joint"),
    ] {
        let why = format!("status slots 64 bytes apart: {why}");
        assert_eq!(said(&config, choices), Some(why), "{config:?}");
    }
    // The areas are those of the shipped layout: 1024 and 5120 slots.
    let experts =
        |moe_expert_num| Config { ep_world_size: 32, moe_expert_num, hccl_buffsize_mb: 200, ..a3() };
    let rows = |bs| Config { k: 4, bs: BatchSizes::Uniform(bs), hccl_buffsize_mb: 200, ..a3() };
    let full = |what: &str, seen: u64, most: u64| {
        Some(format!("status slots 64 bytes apart: {what} = {seen}: must be at most {most}"))
    };
    assert_eq!(said(&experts(32 * 32), lines), None);
    assert_eq!(said(&experts(33 * 32), lines), full("local_expert_num * ep_world_size", 1056, 1024));
    assert_eq!(said(&experts(33 * 32), Choices::default()), None);
    assert_eq!(said(&rows(1280), lines), None);
    assert_eq!(said(&rows(1281), lines), full("max_bs * (k + shared_expert_num)", 5124, 5120));
    assert_eq!(said(&rows(1281), Choices::default()), None);
}
