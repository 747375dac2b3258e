//! The seeds. Every seed is a scenario that a test here asserts before it is in `fuzz/seeds`; and all that
//! is there is run, regressions included.
//!
//! `VERIEP_WRITE_SEEDS=1 cargo test -p veriep-fuzz` writes the seeds anew.

use veriep_core::fabric::{Flag, ProtocolError};
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::Protocol;
use veriep_core::shape::Protocol::{Fullmesh, FullmeshV1, FullmeshV2, Hierarchy};
use veriep_core::vector::{Portable, Vector};
use veriep_fuzz::domain::{ALGORITHMS, Domain, Feature, Numbers};
use veriep_fuzz::shape_layout::Verdict;
use veriep_fuzz::tape::{Tape, mixed};
use veriep_fuzz::{hostile, inputs, plan, round, shape_layout, vector};

mod keep;
use keep::{assert_all_kept, folder, keep};

type Target = (&'static str, fn(&[u8]));

/// The targets that `files.rs` has seeds for.
const OF_FILES: [&str; 2] = ["config_file", "case_files"];

const TARGETS: &[Target] = &[
    ("shape_layout", |bytes| _ = shape_layout::run(bytes)),
    ("plan", |bytes| _ = plan::run(bytes)),
    ("round", |bytes| _ = round::run(bytes)),
    ("hostile", |bytes| _ = hostile::run(bytes)),
    ("inputs", |bytes| _ = inputs::run(bytes)),
    ("vector", |bytes| _ = vector::run(bytes)),
    #[cfg(feature = "files")]
    ("config_file", |bytes| _ = veriep_fuzz::config_file::run(bytes)),
    #[cfg(feature = "files")]
    ("case_files", |bytes| _ = veriep_fuzz::case_files::run(bytes)),
];

/// The tests that keep seeds; those of files are judged in `files.rs`.
const KEEPERS: &[fn()] = &[
    rounds_of_every_protocol_are_seeds,
    corruption_and_byzantine_ranks_over_every_protocol_are_seeds,
    a_doorbell_of_any_number_on_a_rank_alone_is_no_endless_loop,
    a_dozen_bytes_that_send_long_messages_take_no_square_of_them_to_land,
    a_byzantine_rank_in_a_tp_domain_is_refused_by_its_peer,
    a_triple_that_changes_before_the_peer_gets_it_is_refused,
    a_count_that_changes_after_others_read_it_is_refused_by_who_reads_past_it,
    configurations_that_are_taken_and_refused_are_seeds,
    rows_with_all_kinds_of_numbers_are_seeds,
    an_eps_with_which_the_sum_leaves_f32_is_no_error_of_rstd,
];

#[test]
fn no_seed_is_without_a_test_that_asserts_it() {
    KEEPERS.iter().for_each(|keeper| keeper());
    for (target, _) in TARGETS.iter().filter(|(target, _)| !OF_FILES.contains(target)) {
        assert_all_kept(target);
    }
}

#[test]
fn every_seed_holds() {
    for (target, run) in TARGETS {
        let mut files: Vec<_> =
            folder(target).read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{target} has no seeds");
        for file in files {
            println!("{}", file.display());
            run(&std::fs::read(&file).unwrap());
        }
    }
}

/// `VERIEP_FUZZ_RUNS` is how many there are of each target.
#[test]
fn bytes_of_all_lengths_hold() {
    let runs = std::env::var("VERIEP_FUZZ_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(60u64);
    let only = std::env::var("VERIEP_FUZZ_TARGET").ok();
    for (target, run) in
        TARGETS.iter().filter(|(target, _)| only.as_deref().is_none_or(|only| only == *target))
    {
        for n in 0..runs {
            let len = mixed(n) % 120;
            let bytes: Vec<u8> = (0..len).map(|i| mixed(n << 20 | i) as u8).collect();
            println!("{target}: {bytes:?}");
            run(&bytes);
        }
    }
}

/// A domain of two or three ranks, four tokens, three cores, with these choices.
fn numbers(comm_alg: Protocol, choices: Choices, features: &[Feature]) -> Numbers {
    let low = ALGORITHMS.iter().position(|&alg| alg == comm_alg).unwrap() as u8;
    let features = features.iter().fold(0, |bits, &feature| bits | feature as u16);
    let of = |n: u8| Numbers {
        protocol: low + 4 * n,
        moe_ranks: 1,
        local_experts: 1,
        shared_experts: 0,
        replicas: 0,
        k: 1,
        h: 7,
        bs: 3,
        cores: 2,
        specials: 0,
        features,
        rounds: 2,
        seed: 7,
    };
    let chosen =
        |numbers: &Numbers| Domain::new(*numbers, &mut Tape::new(&[], 0)).unwrap().choices == choices;
    (0..64).map(of).find(chosen).unwrap()
}

/// What is worth a seed: every protocol, alone and with what goes with it.
fn scenarios() -> Vec<(&'static str, Numbers)> {
    use Feature as F;
    let (all, areas) = (Choices::default(), |areas| Receive::Direct { areas });
    let receive = |receive| Choices { receive, ..all };
    let separate = Choices { flags: Flags::Separate, ..all };
    let in_place = receive(Receive::InPlace);
    let agents = Choices { stage: Stage::Two, ..all };
    let shared = |numbers: Numbers| Numbers { shared_experts: 2, replicas: 1, ..numbers };
    // Two rounds, after which the next dispatch uses partition 0 again.
    let checked = |numbers: Numbers| Numbers { rounds: 129, ..numbers };
    // Two servers of two ranks.
    let near = |numbers: Numbers| Numbers { shared_experts: 1, ..numbers };
    let special = |numbers: Numbers| Numbers { specials: 0b01_10_01, ..numbers };
    vec![
        ("joint", numbers(FullmeshV1, all, &[])),
        ("separate", numbers(FullmeshV1, separate, &[])),
        ("v2", numbers(FullmeshV2, all, &[F::Wide])),
        ("a2", numbers(Fullmesh, all, &[])),
        ("joint_shared_quantised", shared(numbers(FullmeshV1, all, &[F::Quantised, F::Smoothed]))),
        (
            "joint_specials_masked_norm",
            special(numbers(FullmeshV1, all, &[F::Masked, F::RmsNorm, F::SharedX])),
        ),
        ("joint_blocks_f16", numbers(FullmeshV1, all, &[F::CommQuant, F::F16, F::AnyBits, F::PortOffset])),
        ("joint_tp_in_flight", numbers(FullmeshV1, all, &[F::Tp, F::InFlight])),
        ("separate_elastic", shared(numbers(FullmeshV1, separate, &[F::Elastic, F::PrefixSums]))),
        (
            "separate_uneven",
            numbers(FullmeshV1, Choices { order: SendOrder::Plain, ..separate }, &[F::UnevenBs, F::InFlight]),
        ),
        ("v2_shared_quantised", shared(numbers(FullmeshV2, all, &[F::Wide, F::Quantised]))),
        ("a2_quantised_masked", special(numbers(Fullmesh, all, &[F::Quantised, F::Masked]))),
        ("a2_any_bits_in_flight", numbers(Fullmesh, all, &[F::AnyBits, F::InFlight, F::UnevenBs])),
        ("in_place", numbers(FullmeshV1, in_place, &[])),
        (
            "in_place_in_flight",
            numbers(
                FullmeshV1,
                Choices { flags: Flags::Separate, ..in_place },
                &[F::InFlight, F::Quantised, F::PortOffset],
            ),
        ),
        (
            "in_place_shared_elastic",
            shared(numbers(FullmeshV1, in_place, &[F::Elastic, F::CommQuant, F::Masked])),
        ),
        ("direct", numbers(FullmeshV1, receive(areas(1)), &[])),
        // Found by fuzzing: the last dispatch was told from the whole selector, which also holds the last calls.
        ("direct_numbered", checked(numbers(FullmeshV1, receive(areas(1)), &[]))),
        (
            "direct_shared_quantised",
            shared(numbers(FullmeshV1, receive(areas(1)), &[F::Quantised, F::Masked, F::RmsNorm])),
        ),
        (
            "direct_in_flight",
            special(numbers(FullmeshV1, receive(areas(2)), &[F::InFlight, F::AnyBits, F::UnevenBs])),
        ),
        ("overwrite", shared(numbers(FullmeshV1, receive(Receive::Overwrite { areas: 1 }), &[F::Masked]))),
        (
            "overwrite_in_flight",
            numbers(FullmeshV1, receive(Receive::Overwrite { areas: 2 }), &[F::InFlight, F::UnevenBs]),
        ),
        ("hierarchy", near(numbers(Hierarchy, all, &[]))),
        ("hierarchy_quantised", near(numbers(Hierarchy, all, &[F::Quantised, F::CommQuant, F::F16]))),
        ("hierarchy_in_flight", near(numbers(Hierarchy, all, &[F::InFlight, F::UnevenBs, F::PrefixSums]))),
        ("hierarchy_agent", near(numbers(Hierarchy, agents, &[]))),
        (
            "hierarchy_agent_quantised",
            near(numbers(Hierarchy, agents, &[F::Quantised, F::CommQuant, F::F16])),
        ),
        (
            "hierarchy_agent_in_flight",
            near(numbers(
                Hierarchy,
                Choices { order: SendOrder::Plain, ..agents },
                &[F::InFlight, F::UnevenBs],
            )),
        ),
    ]
}

#[test]
fn rounds_of_every_protocol_are_seeds() {
    for (name, numbers) in scenarios() {
        let bytes = numbers.to_bytes();
        assert_eq!(Numbers::from_bytes(&bytes), (numbers, &[][..]), "{name}");
        let report = round::run(&bytes).unwrap_or_else(|| panic!("{name} is no domain"));
        let shape = &report.domain.shape;
        assert_eq!(shape.tp_world_size() == 2, numbers.has(Feature::Tp), "{name}");
        assert_eq!(report.domain.elastic.is_some(), numbers.has(Feature::Elastic), "{name}");
        // An elastic domain may be left without a rank that holds them.
        let in_servers = numbers.comm_alg() == Hierarchy;
        assert_eq!(shape.shared_expert_rows() > 0, numbers.shared_experts > 0 && !in_servers, "{name}");
        assert!(!in_servers || (shape.servers(), shape.server_ranks()) == (2, 2), "{name}");
        assert_eq!(shape.bs_is_uneven(), numbers.has(Feature::UnevenBs), "{name}");
        assert!(report.ticks > 300, "{name}: {} steps", report.ticks);
        assert_eq!(report.tasks > 0, name.starts_with("a2") || name.contains("agent"), "{name}");
        keep("round", name, &bytes);
        assert!(plan::run(&bytes).unwrap() > 0, "{name} sends nothing");
        keep("plan", name, &bytes);
        assert!(inputs::run(&bytes).is_some(), "{name}");
        keep("inputs", name, &bytes);
    }
}

#[test]
fn every_choice_that_a_shape_leaves_is_drawn() {
    for comm_alg in ALGORITHMS {
        let plain = numbers(comm_alg, Choices::default(), &[]);
        let of = |n: u8| Numbers { protocol: plain.protocol % 4 + 4 * n, ..plain };
        let drawn: Vec<_> = (0..64).filter_map(|n| Domain::new(of(n), &mut Tape::new(&[], 0))).collect();
        let left = Choices::all(&drawn[0].shape);
        for choices in left {
            assert!(drawn.iter().any(|domain| domain.choices == choices), "{comm_alg:?}: {choices:?}");
        }
    }
}

/// The first bytes after the numbers: kind and rate.
fn attack(numbers: &Numbers, kind: u8, rate: u8) -> (Vec<u8>, hostile::Report) {
    let bytes = [numbers.to_bytes(), vec![kind, rate]].concat();
    let report = hostile::run(&bytes).unwrap();
    (bytes, report)
}

#[test]
fn corruption_and_byzantine_ranks_over_every_protocol_are_seeds() {
    let (mut refused, mut unharmed) = (0, 0);
    for (name, numbers) in scenarios() {
        for (kind, rate) in [(0, 20), (1, 12), (3, 40)] {
            let (bytes, report) = attack(&numbers, kind, rate);
            assert_eq!(report.byzantine, kind & 1 == 1);
            assert!(report.byzantine || report.drops > 0, "{name}: not a drop");
            refused += report.refused.len();
            unharmed += report.unharmed;
            keep("hostile", &format!("{name}_{kind}"), &bytes);
        }
    }
    assert!(refused > 10 && unharmed > 100, "{refused} refused, {unharmed} unharmed");
}

#[test]
fn a_doorbell_of_any_number_on_a_rank_alone_is_no_endless_loop() {
    // Found by fuzzing: the agent counted up to it, one step each.
    let alone = Numbers { moe_ranks: 0, ..numbers(Fullmesh, Choices::default(), &[]) };
    for seed in 0..40 {
        let (bytes, report) = attack(&Numbers { seed, ..alone }, 0, 60);
        let is_doorbell = |error: &ProtocolError| matches!(error, ProtocolError::Doorbell { .. });
        if report.refused.iter().any(|(_, error)| is_doorbell(error)) {
            keep("hostile", "doorbell_alone", &bytes);
            return;
        }
    }
    panic!("no doorbell was hit");
}

#[test]
fn a_dozen_bytes_that_send_long_messages_take_no_square_of_them_to_land() {
    // Found by fuzzing: thousands of words in flight, and each that landed was compared with all before it. It took seconds.
    let wide = Numbers {
        moe_ranks: 2,
        local_experts: 1,
        replicas: 1,
        k: 3,
        h: 11,
        bs: 4,
        cores: 4,
        ..numbers(Hierarchy, Choices::default(), &[Feature::Wide])
    };
    let bytes = &wide.to_bytes()[..12];
    let report = hostile::run(bytes).unwrap();
    assert!(report.full > 100, "there was room for all in flight: {report:?}");
    keep("hostile", "many_in_flight", bytes);
}

#[test]
fn a_byzantine_rank_in_a_tp_domain_is_refused_by_its_peer() {
    for seed in 0..40 {
        let numbers = Numbers { seed, ..numbers(FullmeshV1, Choices::default(), &[Feature::Tp]) };
        let (bytes, report) = attack(&numbers, 0x81, 60);
        let of_tp = |error: &ProtocolError| match error {
            ProtocolError::Flag { awaited, .. } => awaited.flag == Flag::Tp,
            error => matches!(error, ProtocolError::TpRows { .. }),
        };
        if report.byzantine && report.refused.iter().any(|(_, error)| of_tp(error)) {
            keep("hostile", "liar_in_tp", &bytes);
            return;
        }
    }
    panic!("no peer was lied to");
}

#[test]
fn a_triple_that_changes_before_the_peer_gets_it_is_refused() {
    // Found by fuzzing: of a record that goes on to the TP peer the triple is read again, and was only held against the shape.
    let bytes = [0, 17, 0, 2, 248, 254, 254, 1, 255, 255, 255, 247, 2, 10, 2, 0, 30];
    let (numbers, _) = Numbers::from_bytes(&bytes);
    assert!(numbers.has(Feature::Tp));
    let report = hostile::run(&bytes).unwrap();
    let seen = |&(member, error): &_| member == 2 && matches!(error, ProtocolError::Triple { row: 0, .. });
    assert!(report.refused.iter().any(seen), "{report:?}");
    keep("hostile", "triple_changed_for_the_peer", &bytes);
}

#[test]
fn a_count_that_changes_after_others_read_it_is_refused_by_who_reads_past_it() {
    // Found by fuzzing: a core read one count of a rank and left those before it unchecked, so it blamed its own sums.
    let bytes = [48, 1, 1, 3, 1, 1, 37, 3, 2, 0, 17, 64, 2, 7, 0, 0, 20];
    let report = hostile::run(&bytes).unwrap();
    let seen = |(_, error): &_| matches!(error, ProtocolError::Count { .. });
    assert!(report.refused.iter().any(seen), "{report:?}");
    keep("hostile", "count_changed_for_some_cores", &bytes);
}

/// A configuration for the door, with the numbers of the default but for these.
fn given(change: impl FnOnce(&mut shape_layout::Given32)) -> Vec<u8> {
    let mut given = shape_layout::Given32::plain();
    change(&mut given);
    given.to_bytes()
}

#[test]
fn configurations_that_are_taken_and_refused_are_seeds() {
    use shape_layout::Number::{Medium, Small};
    let valid = |name: &str, bytes: Vec<u8>| match shape_layout::run(&bytes).unwrap() {
        Verdict::Valid(_) => keep("shape_layout", name, &bytes),
        refused => panic!("{name}: {refused:?}"),
    };
    valid("plain", given(|_| ()));
    valid("v2", given(|given| given.words[1] = 2));
    valid("tp", given(|given| given.tp_world_size = Small(2)));
    valid("port_offset", given(|given| given.port_offset = Medium(512 * 3)));
    valid(
        "shared",
        given(|given| {
            (given.ep_world_size, given.shared_expert_num, given.shared_expert_rank_num) =
                (Small(20), Small(2), Small(4));
        }),
    );
    valid(
        "quantised_specials",
        given(|given| {
            (given.modes, given.specials) = ([Small(2), Small(2), Small(0)], [Small(3); 3]);
        }),
    );
    valid("a2", given(|given| (given.words[0], given.h) = (1, Medium(7168))));
    valid("hierarchy", given(|given| (given.words[0], given.words[1]) = (1, 4)));
    valid(
        "hierarchy_quantised",
        given(|given| {
            (given.words[0], given.words[1], given.modes) = (1, 4, [Small(2), Small(2), Small(0)]);
            (given.ep_world_size, given.moe_expert_num, given.k) = (Small(24), Small(72), Small(7));
        }),
    );
    // More choices than a server has experts.
    valid(
        "hierarchy_many_pairs",
        given(|given| {
            (given.words[0], given.words[1], given.limits) = (1, 4, false);
            given.k = Small(12);
        }),
    );
    let refused = |name: &str, parameter: &str, bytes: Vec<u8>| match shape_layout::run(&bytes).unwrap() {
        Verdict::Refused(all) if all == [parameter] => keep("shape_layout", name, &bytes),
        other => panic!("{name}: {other:?}"),
    };
    refused("k_0", "k", given(|given| given.k = Small(0)));
    refused("window", "hccl_buffsize_mb", given(|given| given.hccl_buffsize_mb = Some(Small(1))));
    refused("word", "dtype", given(|given| given.words[3] = 2));
}

/// Bytes that mean nothing are refused as a rule; these are shapes, of every algorithm and many sizes.
#[test]
fn shapes_of_many_sizes_hold() {
    use shape_layout::Number::{Medium, Small};
    let mut valid = [0; 4];
    for n in 0..1200u64 {
        let mut dice = (0..).map(|i| mixed(n << 8 | i));
        let mut below = |end: u64| (dice.next().unwrap_or(0) % end) as u8;
        let alg = below(4);
        let bytes = given(|given| {
            given.limits = false;
            // A3 with either fullmesh, A2 with fullmesh and with a hierarchy.
            (given.words[0], given.words[1]) = [(0, 1), (0, 2), (1, 3), (1, 4)][usize::from(alg)];
            let (ranks, local) = (8 * (1 + below(4)), 1 + below(4));
            let (s, replicas) = if alg < 2 { (below(3), 1 + below(3)) } else { (0, 1) };
            given.ep_world_size = Small(ranks + s * replicas);
            given.moe_expert_num = Small(ranks * local);
            (given.shared_expert_num, given.shared_expert_rank_num) = (Small(s), Small(s * replicas));
            (given.k, given.bs) = (Small(1 + below(8)), Small(1 + below(40)));
            let h = 1 + u16::from(below(200)) * 3;
            given.h = Medium(if alg < 2 { h } else { h * 8 });
            given.modes[0] = Small(below(2) * 2);
            given.port_offset = Medium(if alg == 0 { u16::from(below(2)) * 512 } else { 0 });
            given.aiv_num = Small(1 + below(48));
        });
        valid[usize::from(alg)] += usize::from(matches!(shape_layout::run(&bytes), Some(Verdict::Valid(_))));
    }
    assert!(valid.iter().all(|&valid| valid > 200), "{valid:?}");
}

#[test]
fn rows_with_all_kinds_of_numbers_are_seeds() {
    let elements =
        [0x0000, 0x8000, 0x0001, 0x3F80, 0xBF80, 0x7F7F, 0x7F80, 0xFF80, 0x7FC1, 0x0400, 0x7BFF, 0x4248u16];
    for (i, name) in ["bf16", "f16", "bf16_smooth", "f16_smooth"].into_iter().enumerate() {
        // Flags, kinds, weights, alphas, eps; then the rows.
        let mut bytes = vec![i as u8 & 1, i as u8 >> 1, 0, 1, 2, 3, 0];
        let floats = [1.0f32, 0.5, -2.0, 3.0, 0.1, 0.75, 1.25, 1e-6];
        bytes.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
        // No rows one by one.
        bytes.push(0);
        let finite = elements[..6].iter().cycle().take(160);
        bytes.extend(finite.chain(elements.iter().cycle().take(80)).flat_map(|bits| bits.to_le_bytes()));
        assert!(vector::run(&bytes).unwrap() >= 50, "{name}");
        keep("vector", name, &bytes);
    }
}

#[test]
fn an_eps_with_which_the_sum_leaves_f32_is_no_error_of_rstd() {
    // Found by fuzzing: the target called it wrong that rstd is 0 then.
    let (eps, element) = (f32::from_bits(0x7F7F_5F5F), half::bf16::from_bits(0x5E80));
    // bf16, no modes; kinds, weights and alphas, eps; no rows one by one.
    let mut bytes = vec![0, 0, 0, 1, 2, 3, 0];
    bytes.extend([1.0f32; 7].iter().flat_map(|float| float.to_le_bytes()));
    bytes.extend(eps.to_le_bytes());
    bytes.push(0);
    bytes.extend([element; 4 * 12].iter().flat_map(|element| element.to_le_bytes()));
    // Either is a number that f32 has, and squares and their sum are far from its end; with eps they are beyond.
    let square = f64::from(element.to_f32()).powi(2);
    assert!(square < 1e38 && square + f64::from(eps) > f64::from(f32::MAX) * (1.0 + 1e-7), "{square:e}");
    let sums: Vec<u8> = [element.to_f32(); 12].iter().flat_map(|float| float.to_le_bytes()).collect();
    assert_eq!(Portable.rstd(&sums, eps), 0.0);
    assert_eq!(vector::run(&bytes), Some(12));
    keep("vector", "eps_and_sum_beyond_f32", &bytes);
}
