//! Operators in two halves: every backend gives the bytes of the reference in every order that the gates of a rank allow.

use veriep_case::case::Case;
use veriep_case::config::Config;
use veriep_case::generate::{MaskKind, Options};
use veriep_core::fabric::ProtocolError;
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::sim::cluster::{Half, Planned};
use veriep_group::backend::lockstep::Memory;
use veriep_group::driver;
use veriep_group::driver::schedule::Schedule;
use veriep_group::driver::threads::Spread;
use veriep_group::group::Plan;
use veriep_testing::trial::{Trial, make, small};

/// The order in which frameworks overlap two batches.
const OVERLAP: &str = "Ds1 Cs0 Dr1 Cr0";
/// A whole dispatch, with barriers of its own, runs between the halves of a combine.
const AROUND: &str = "Cs0 D1 Cr0";
/// Each half comes at once after the other.
const NO_OVERLAP: &str = "Ds Dr Cs Cr";
/// Two dispatches are sent before the first is received.
const BOTH_SENT: &str = "Ds0 Ds1 Dr0 Dr1 C0 C1";

fn plan(schedule: &str, choices: Choices) -> Plan {
    let unit = Schedule::parse(schedule).unwrap();
    let options = driver::Options { choices, ..driver::Options::default() };
    Plan { unit, units: 4, last: None, options, check: None }
}

fn refused(case: &Case, schedule: &str, choices: Choices) -> Option<(Planned, ProtocolError)> {
    plan(schedule, choices).refused(&case.shape)
}

/// A case and a choice of each protocol.
fn cases() -> Vec<(Case, Choices)> {
    let plain = Options { seed: 3, ..Options::default() };
    let case = |config| make(config, Options { mask: MaskKind::Tokens, ..plain });
    let a3 = small(3, 6, 2, 3, 3);
    let v2 = Config { comm_alg: "fullmesh_v2".to_owned(), h: 512, ..a3.clone() };
    let a2 = Config { product: "a2".to_owned(), hccl_buffsize_mb: 8, ..a3.clone() };
    let hierarchy = Config {
        product: "a2".to_owned(),
        comm_alg: "hierarchy".to_owned(),
        hccl_buffsize_mb: 106,
        server_ranks: 2,
        ..small(4, 8, 2, 3, 2)
    };
    let of = |receive| Choices { receive, ..Choices::default() };
    vec![
        (case(a3.clone()), Choices::default()),
        (case(a3.clone()), Choices { flags: Flags::Separate, ..Choices::default() }),
        (case(a3.clone()), of(Receive::InPlace)),
        (case(a3), of(Receive::Direct { areas: 2 })),
        (case(v2), Choices::default()),
        (case(a2), Choices::default()),
        (make(hierarchy.clone(), plain), Choices { stage: Stage::Two, ..Choices::default() }),
        (make(hierarchy, plain), Choices { stage: Stage::Three, ..Choices::default() }),
    ]
}

fn trial<'a>(case: &'a Case, schedule: &'a str, choices: Choices) -> Trial<'a> {
    let options = driver::Options { choices, ..driver::Options::default() };
    Trial { units: 2, options, ..Trial::new(case, schedule, 3) }
}

#[test]
fn every_backend_gives_the_bytes_of_the_oracle_in_halves() {
    let mut overlapped = 0;
    for (number, (case, choices)) in cases().iter().enumerate() {
        for schedule in [NO_OVERLAP, OVERLAP, AROUND] {
            if refused(case, schedule, *choices).is_some() {
                continue;
            }
            overlapped += usize::from(schedule != NO_OVERLAP);
            let trial = trial(case, schedule, *choices);
            let what = format!("{schedule}, case {number}");
            let expected = trial.in_lockstep(Memory::Strong, 1).unwrap_or_else(|e| panic!("{what}: {e}"));
            for seed in 0..6 {
                let seen = trial.in_lockstep(Memory::Weak, seed).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(seen == expected, "{what}, weak memory, seed {seed}");
            }
            for (workers, spread) in [(2, Spread::Ranks), (3, Spread::Cores)] {
                let seen = trial.on_threads(workers, spread).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(seen == expected, "{what}, {workers} threads");
            }
        }
    }
    assert_eq!(overlapped, 2 * 5, "A2 takes one operator after the other");
}

#[test]
fn an_order_that_is_no_gate_is_refused_and_fails_in_some_run() {
    for (case, choices) in cases().iter().take(5) {
        let (planned, error) = refused(case, BOTH_SENT, *choices).expect("a false gate");
        assert!(matches!(error, ProtocolError::Given(_)), "{error:?}");
        assert_eq!((planned.round, planned.half), (1, Half::Send), "{error:?}");
    }
    let case = make(small(2, 2, 1, 1, 1), Options::default());
    let unchecked = driver::Options {
        choices: Choices { checked: false, ..Choices::default() },
        ..driver::Options::default()
    };
    let trial = Trial { options: unchecked, ..Trial::new(&case, BOTH_SENT, 6) };
    let bad = (0..40).filter(|&seed| trial.in_lockstep(Memory::Weak, seed).is_err()).count();
    assert!(bad > 0, "no run was wrong");
}
