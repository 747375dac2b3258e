//! Runs of the real machines are runs of the model.

mod group;
mod memory;
mod random;
mod windows;

use group::{Case, run};
use memory::one_partition;
use std::collections::BTreeMap;
use std::time::Instant;
use veriep_core::place::Region;
use veriep_core::protocol::{Flags, Operator};
use veriep_core::sim::duty::{Duty, Words};
use veriep_verify::report;
use veriep_verify::smt::schedule::{Partitions, Schedule};
use veriep_verify::smt::trace::{self, Wrong};

const DC: Schedule = Schedule::a3("DC", 2, 2);
const DDCC: Schedule = Schedule::a3("DDCC", 2, 2);

const A2: Schedule = Schedule::a2(2);

fn case(schedule: Schedule, times: u32, ranks: u32, k: u32, cores: u32) -> Case {
    let a2 = matches!(schedule.partitions, Partitions::Shared(_));
    Case { a2, flags: Flags::Joint, schedule, times, ranks, k, cores, duty: None, joinless: false }
}

/// Runs many seeds; all must be runs of the model, end well and keep the premise of the theorem.
fn all_are_runs(case: Case, seeds: u64) {
    let start = Instant::now();
    let mut events = 0;
    for seed in 0..seeds {
        let outcome = run(&case, seed);
        let replay =
            format!("{} ranks {} k {} cores {} seed {seed}", case.schedule, case.ranks, case.k, case.cores);
        assert_eq!(outcome.instance.ungated(), None, "{replay}");
        if let Err(wrong) = trace::check(&outcome.instance, &outcome.trace) {
            panic!("{replay}: {wrong}");
        }
        assert!(outcome.good, "{replay}: did not end with the right result");
        events += outcome.trace.len();
    }
    let flags = if case.flags == Flags::Separate { ", separate flags" } else { "" };
    let Case { schedule, ranks, k, cores, .. } = case;
    let subject = format!("{schedule}{flags}, {ranks} ranks, K {k}, {cores} cores");
    report::line("traces", &subject, &format!("{seeds} runs, {events} events, {:.1?}", start.elapsed()));
}

/// Runs many seeds of a twin and counts what the checker says, and the runs that ended well all the same.
fn verdicts(case: Case, seeds: u64) -> BTreeMap<String, u32> {
    let mut verdicts = BTreeMap::new();
    for seed in 0..seeds {
        let outcome = run(&case, seed);
        let verdict = match trace::check(&outcome.instance, &outcome.trace) {
            Ok(()) => format!("a run, {}", if outcome.good { "good" } else { "bad" }),
            Err(Wrong::Refused(_, guard)) => guard.to_owned(),
            Err(Wrong::Harmful(_, harm)) => harm.to_string(),
        };
        *verdicts.entry(verdict).or_default() += 1;
    }
    report::line("traces", &format!("{} {:?}", case.schedule, case.duty), &format!("{verdicts:?}"));
    verdicts
}

#[test]
fn every_trace_of_the_machines_is_a_safe_run_of_the_model() {
    for (ranks, k, cores) in [(2, 1, 1), (2, 2, 2), (3, 1, 1), (3, 2, 1), (4, 1, 1), (4, 2, 2)] {
        all_are_runs(case(DC, 3, ranks, k, cores), 250);
        all_are_runs(case(DDCC, 2, ranks, k, cores), 250);
    }
}

#[test]
fn every_trace_with_separate_flags_is_a_safe_run_of_the_model() {
    for (ranks, k, cores) in [(2, 1, 1), (2, 2, 2), (3, 2, 1)] {
        let separate = |case| Case { flags: Flags::Separate, ..case };
        all_are_runs(separate(case(DC, 3, ranks, k, cores)), 100);
        all_are_runs(separate(case(DDCC, 2, ranks, k, cores)), 100);
    }
}

#[test]
fn every_trace_of_a2_is_a_safe_run_of_the_model() {
    let two = Schedule { word: "DDCC", ..A2 };
    for (ranks, k, cores) in [(2, 1, 1), (2, 2, 2), (3, 1, 1), (4, 2, 2)] {
        all_are_runs(case(A2, 3, ranks, k, cores), 25);
        all_are_runs(case(two, 2, ranks, k, cores), 25);
    }
}

#[test]
fn also_where_a_core_does_not_see_its_own_sum_yet() {
    // Without room for a wrong sum: seed 36 ends with `received rows = 5: must be in [0, 4]`.
    all_are_runs(case(DC, 3, 2, 1, 2), 250);
    all_are_runs(case(DDCC, 2, 2, 1, 2), 250);
}

/// What the checker says of a twin: one of `expected`, at least once, or that it is a run; and what it takes
/// for a safe run has ended well.
fn is_caught(case: Case, expected: &[&str]) {
    let (schedule, duty) = (case.schedule, case.duty.clone());
    // A run of A2 has more memory.
    let seeds: u32 = if case.a2 { 20 } else { 250 };
    let verdicts = verdicts(case, seeds.into());
    let caught: u32 = expected.iter().filter_map(|&verdict| verdicts.get(verdict)).sum();
    let good = verdicts.get("a run, good").copied().unwrap_or(0);
    assert!(caught > 0 && caught + good == seeds, "{schedule} {duty:?}: {verdicts:?}");
}

const LOST: &str = "a flag arrives where the former one is not cleared: one of them is lost";
const OVERWRITTEN: &str = "rows are overwritten that may still be read";

#[test]
fn the_traces_of_too_few_partitions_are_not_safe() {
    let one = |kind, schedule| Case { duty: Some(one_partition(kind)), ..case(schedule, 3, 2, 1, 1) };
    is_caught(one(Operator::Dispatch, DC), &[LOST]);
    is_caught(one(Operator::Combine, DDCC), &[LOST, OVERWRITTEN]);
    is_caught(case(Schedule::a3("DDDCCC", 2, 2), 2, 2, 1, 1), &[LOST, OVERWRITTEN]);
    // One combine partition in strict order: all is well.
    assert_eq!(verdicts(one(Operator::Combine, DC), 250).get("a run, good"), Some(&250));
}

#[test]
fn the_traces_of_a_broken_driver_or_fabric_are_not_runs() {
    let without = |duty| Case { duty: Some(duty), ..case(DC, 3, 2, 1, 1) };
    let status = || Words::Status(None);
    is_caught(without(Duty::Clear(status())), &["clears"]);
    is_caught(without(Duty::Quiet), &["clears", "data before flag"]);
    is_caught(without(Duty::Wait(status())), &["flag"]);
    is_caught(without(Duty::FlagBehindRows(Region::State)), &["data before flag"]);
    is_caught(Case { joinless: true, ..case(DC, 3, 2, 2, 2) }, &["join"]);
}

#[test]
fn the_traces_of_a_broken_a2_are_not_runs() {
    let without = |duty| Case { duty: Some(duty), ..case(A2, 3, 2, 1, 1) };
    is_caught(without(Duty::Clear(Words::WindowsIn)), &["clears"]);
    is_caught(without(Duty::InTime(Words::WindowsIn)), &["clears"]);
}
