//! A2's hierarchy in the explorer: machines, near words and far messages, and what is broken on purpose.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Memory, Model, Traffic, Violation};

/// In servers of that many ranks.
fn hierarchy(ranks: u32, server_ranks: u32, schedule: &str) -> Model {
    Model::new(ranks, schedule).hierarchy(server_ranks).weak()
}

/// Two servers of one rank; both have two tokens and two experts, so that none, one or two records cross.
fn streams(schedule: &str) -> Model {
    Model { experts: 2, tokens: 2, ..hierarchy(2, 1, schedule) }
}

/// Every rank sends across, to another number.
const ACROSS: &[&[i32]] = &[&[3, 2, 1, 0]];

#[test]
fn two_servers_of_one_rank_for_ever() {
    safe_in_reuse("hierarchy, 2 servers x 1 rank, DC for any number of rounds, weak", &hierarchy(2, 1, "DC"));
}

#[test]
fn one_server_of_two_ranks_for_ever() {
    safe_in_reuse("hierarchy, 1 server x 2 ranks, DC for any number of rounds, weak", &hierarchy(2, 2, "DC"));
}

#[test]
fn one_server_of_three_ranks_for_ever() {
    safe_in_reuse("hierarchy, 1 server x 3 ranks, DC for any number of rounds, weak", &hierarchy(3, 3, "DC"));
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test explorer -- --ignored hierarchy:: --nocapture"]
fn one_server_of_three_ranks_with_two_batches_in_flight_once() {
    safe("hierarchy, 1 server x 3 ranks, DDCC once, weak", &hierarchy(3, 3, "DDCC").units(1));
}

#[test]
fn two_batches_in_flight_for_ever() {
    safe_in_reuse(
        "hierarchy, 2 servers x 1 rank, DDCC for any number of rounds, weak",
        &hierarchy(2, 1, "DDCC"),
    );
    safe_in_reuse(
        "hierarchy, 1 server x 2 ranks, DDCC for any number of rounds, weak",
        &hierarchy(2, 2, "DDCC"),
    );
}

#[test]
fn a_rank_without_tokens() {
    let idle = |server_ranks, schedule| hierarchy(2, server_ranks, schedule).bs(&[1, 0]);
    safe_in_reuse(
        "hierarchy, no tokens, 2 servers x 1 rank, DC for any number of rounds, weak",
        &idle(1, "DC"),
    );
    safe_in_reuse(
        "hierarchy, no tokens, 1 server x 2 ranks, DC for any number of rounds, weak",
        &idle(2, "DC"),
    );
    safe_in_reuse(
        "hierarchy, no tokens, 2 servers x 1 rank, DDCC for any number of rounds, weak",
        &idle(1, "DDCC"),
    );
    safe_in_reuse(
        "hierarchy, no tokens, 2 servers x 1 rank of 2 cores, DC for any number of rounds, weak",
        &idle(1, "DC").cores(2),
    );
    let seen =
        caught("hierarchy, no tokens, no count of 0", &idle(1, "D").units(1).defect(Defect::NoFlagOfNothing));
    assert_eq!(seen.violation, Violation::Deadlock, "{seen}");
    let seen = caught("hierarchy, no tokens, partial wait", &idle(1, "DC").defect(Defect::PartialWait));
    assert!(matches!(seen.violation, Violation::Unheard { .. }), "{seen}");
    let stage_two = |server_ranks| idle(server_ranks, "DC").stage_two();
    safe_in_reuse(
        "hierarchy, stage 2, no tokens, 2 servers x 1 rank, DC for any number of rounds, weak",
        &stage_two(1),
    );
    safe_in_reuse(
        "hierarchy, stage 2, no tokens, 1 server x 2 ranks, DC for any number of rounds, weak",
        &stage_two(2),
    );
}

#[test]
fn streams_of_two_records_once() {
    safe("hierarchy, 2 x 1, two tokens, DC once, weak", &streams("DC").units(1));
}

#[test]
fn two_servers_of_two_ranks_for_ever() {
    let model = hierarchy(4, 2, "DC").traffic(Traffic::Given(ACROSS));
    safe_in_reuse("hierarchy, 2 x 2, DC for any number of rounds, weak", &model);
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test explorer -- --ignored hierarchy:: --nocapture"]
fn two_servers_of_two_ranks_with_two_experts_a_token_once() {
    let model = Model { k: 2, ..hierarchy(4, 2, "DC").units(1).traffic(Traffic::Given(ACROSS)) };
    safe("hierarchy, 2 x 2, two experts a token, DC once, weak", &model);
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test explorer -- --ignored hierarchy:: --nocapture"]
fn two_servers_of_two_ranks_with_two_batches_in_flight_once() {
    let model = hierarchy(4, 2, "DDCC").units(1).traffic(Traffic::Given(ACROSS));
    safe("hierarchy, 2 x 2, DDCC once, weak", &model);
}

#[test]
#[ignore = "takes 2 min; run: cargo test -p veriep-verify --test explorer -- --ignored hierarchy:: --nocapture"]
fn two_servers_of_two_ranks_with_sixteen_kinds_of_traffic() {
    // Rank r sends to a r + b: all to one, all to its own, alternately. One by one: together they would need gigabytes.
    for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
        let to: Vec<i32> = (0..4).map(|rank| (a * rank + b) % 4).collect();
        let only: &'static [&'static [i32]] = vec![&*to.leak()].leak();
        let model = hierarchy(4, 2, "D").units(1).traffic(Traffic::Given(only));
        safe(&format!("hierarchy, 2 x 2, {only:?}, D once, weak"), &model);
    }
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test explorer -- --ignored hierarchy:: --nocapture"]
fn streams_of_two_records_for_ever() {
    safe("hierarchy, 2 x 1, two tokens, DC for any number of rounds, weak", &streams("DC"));
}

#[test]
fn two_cores_of_two_near_ranks_for_ever() {
    safe_in_reuse(
        "hierarchy, 1 x 2 of 2 cores, DC for any number of rounds, weak",
        &hierarchy(2, 2, "DC").cores(2),
    );
    safe_in_reuse(
        "hierarchy, 1 x 2 of 2 cores, DDCC for any number of rounds, weak",
        &hierarchy(2, 2, "DDCC").cores(2),
    );
}

#[test]
fn two_cores_of_two_servers_for_ever() {
    safe_in_reuse(
        "hierarchy, 2 x 1 of 2 cores, DC for any number of rounds, weak",
        &hierarchy(2, 1, "DC").cores(2),
    );
}

#[test]
fn catches_a_relay_that_forwards_before_proof() {
    // Needs two records in a stream, and a memory that lands a message in pieces.
    let defect = |schedule| streams(schedule).units(1).defect(Defect::OwnFront);
    safe("hierarchy, own front flag, strong", &Model { memory: Memory::Strong, ..defect("D") });
    let seen = caught("hierarchy, own front flag", &defect("D"));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_flag_at_the_end_of_a_record_over_a_fabric_that_reorders() {
    let defect = |schedule| streams(schedule).units(1).defect(Defect::FlagAtEnd);
    safe("hierarchy, flag at the end, strong", &Model { memory: Memory::Strong, ..defect("D") });
    let seen = caught("hierarchy, flag at the end", &defect("D"));
    assert!(matches!(seen.violation, Violation::NotLanded { .. } | Violation::Refused { .. }), "{seen}");
}

#[test]
fn catches_a_combine_that_waits_only_for_its_own_tokens_servers() {
    safe("hierarchy, partial wait, DC once", &hierarchy(2, 1, "DC").units(1).defect(Defect::PartialWait));
    let seen = caught("hierarchy, partial wait", &hierarchy(2, 1, "DC").defect(Defect::PartialWait));
    assert!(matches!(seen.violation, Violation::Unheard { .. }), "{seen}");
}

#[test]
fn catches_one_partition() {
    safe("hierarchy, one partition, one operator", &hierarchy(2, 1, "D").units(1).partitions(1, 1));
    let seen = caught("hierarchy, one partition", &hierarchy(2, 1, "DC").partitions(1, 1));
    assert!(matches!(seen.violation, Violation::Unheard { .. }), "{seen}");
}

#[test]
fn catches_near_ranks_that_nobody_waits_for() {
    safe("hierarchy, no rank enters, one operator", &hierarchy(2, 2, "D").units(1).defect(Defect::NoEntered));
    let seen = caught("hierarchy, no rank enters", &hierarchy(2, 2, "DC").defect(Defect::NoEntered));
    assert!(matches!(seen.violation, Violation::Unheard { .. } | Violation::Unawaited { .. }), "{seen}");
}

#[test]
fn catches_a_third_near_rank_that_nobody_waits_for() {
    // Needs three near ranks.
    safe(
        "hierarchy, the third has not entered, two ranks",
        &hierarchy(2, 2, "DC").defect(Defect::NoThirdEntered),
    );
    let seen =
        caught("hierarchy, the third has not entered", &hierarchy(3, 3, "DC").defect(Defect::NoThirdEntered));
    assert!(matches!(seen.violation, Violation::Unheard { .. } | Violation::Unawaited { .. }), "{seen}");
}

#[test]
fn catches_words_of_near_ranks_that_must_agree() {
    // Needs two cores, and words that go on one by one.
    safe("hierarchy, in step, 1 core", &hierarchy(2, 2, "DC").defect(Defect::InStep));
    let seen = caught("hierarchy, in step, 2 cores", &hierarchy(2, 2, "DC").cores(2).defect(Defect::InStep));
    assert_eq!(seen.violation, Violation::Deadlock, "{seen}");
}

#[test]
fn catches_a_word_that_must_be_met_exactly() {
    // Needs two cores: with one no near rank can be ahead of a rank that still waits for it.
    safe("hierarchy, equality, 1 core", &hierarchy(2, 2, "DC").defect(Defect::Equal));
    let seen = caught("hierarchy, equality, 2 cores", &hierarchy(2, 2, "DC").cores(2).defect(Defect::Equal));
    assert_eq!(seen.violation, Violation::Deadlock, "{seen}");
}

#[test]
fn catches_rows_done_without_quiet() {
    let seen = caught(
        "hierarchy, no quiet",
        &hierarchy(4, 2, "DC").units(1).traffic(Traffic::Given(ACROSS)).defect(Defect::NoQuiet),
    );
    assert!(matches!(seen.violation, Violation::Refused { .. }), "{seen}");
}

#[test]
fn catches_messages_that_overtake_each_other() {
    let seen = caught(
        "hierarchy, unordered messages",
        &hierarchy(2, 1, "DC").units(1).defect(Defect::UnorderedMessages),
    );
    assert!(matches!(seen.violation, Violation::Refused { .. } | Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_flag_that_overtakes_its_row() {
    let seen =
        caught("hierarchy, relaxed publish", &hierarchy(2, 2, "DC").units(1).defect(Defect::RelaxedPublish));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_counts_of_nothing_that_are_not_told() {
    let seen =
        caught("hierarchy, no count of 0", &hierarchy(2, 1, "D").units(1).defect(Defect::NoFlagOfNothing));
    assert_eq!(seen.violation, Violation::Deadlock, "{seen}");
    let waits = seen.story.iter().filter(|event| event.to_string().contains("count")).count();
    assert!(waits > 0, "{seen}");
}

/// Two ranks send to each other.
const EACH_OTHER: &[&[i32]] = &[&[1, 0]];

/// Two servers of one rank, with agents that send.
fn stage_two(schedule: &str) -> Model {
    hierarchy(2, 1, schedule).stage_two()
}

#[test]
fn agents_of_two_servers_for_ever() {
    safe_in_reuse("hierarchy, stage 2, 2 x 1, DC for any number of rounds, weak", &stage_two("DC"));
    safe_in_reuse("hierarchy, stage 2, 2 x 1, DDCC for any number of rounds, weak", &stage_two("DDCC"));
}

#[test]
fn agents_of_two_cores_once() {
    let model = stage_two("DCD").cores(2).units(1).traffic(Traffic::Given(EACH_OTHER));
    safe_in_reuse("hierarchy, stage 2, 2 x 1 of 2 cores, DCD once, weak", &model);
}

#[test]
fn agents_that_carry_two_records_once() {
    let model = streams("DC").stage_two().units(1).traffic(Traffic::Given(&[&[2, 0]]));
    safe("hierarchy, stage 2, 2 x 1, two tokens, DC once, weak", &model);
}

#[test]
fn catches_a_doorbell_before_its_tasks() {
    let seen = caught("hierarchy, stage 2, no quiet", &stage_two("D").units(1).defect(Defect::NoQuiet));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_first_core_that_is_quiet_for_all() {
    // Needs two cores.
    let defect = |cores| stage_two("D").cores(cores).units(1).defect(Defect::QuietOfFirstCore);
    safe("hierarchy, stage 2, quiet of the first core, 1 core", &defect(1));
    let seen = caught("hierarchy, stage 2, quiet of the first core, 2 cores", &defect(2));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_doorbell_ahead_of_other_cores() {
    // Need two cores.
    for defect in [Defect::NoBarrier, Defect::BarrierOfLowerCores] {
        let model = stage_two("D").cores(2).units(1).defect(defect);
        let seen = caught(&format!("hierarchy, stage 2, {defect:?}"), &model);
        assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
    }
}

#[test]
fn catches_a_transfer_whose_last_word_comes_first() {
    let defect = |schedule| stage_two(schedule).units(1).defect(Defect::LastWordFirst);
    safe("hierarchy, stage 2, last word first, strong", &Model { memory: Memory::Strong, ..defect("DC") });
    let seen = caught("hierarchy, stage 2, last word first", &defect("DC"));
    assert!(matches!(seen.violation, Violation::NotLanded { .. } | Violation::Refused { .. }), "{seen}");
}

#[test]
fn catches_windows_out_and_tasks_that_are_written_too_early() {
    safe("hierarchy, stage 2, one partition, one operator", &stage_two("D").units(1).partitions(1, 1));
    let seen = caught("hierarchy, stage 2, one partition", &stage_two("DC").partitions(1, 1));
    assert!(matches!(seen.violation, Violation::SourceInUse { .. }), "{seen}");
    let one_slot = |schedule| stage_two(schedule).defect(Defect::OneMessageSlot);
    safe("hierarchy, stage 2, one message slot, one operator", &one_slot("D").units(1));
    let seen = caught("hierarchy, stage 2, one message slot", &one_slot("DC"));
    assert!(matches!(seen.violation, Violation::TaskInUse { .. }), "{seen}");
    // A half comes round before all have ended the operator before.
    safe("hierarchy, stage 2, partial wait, once", &stage_two("DC").units(1).defect(Defect::PartialWait));
    let seen = caught("hierarchy, stage 2, partial wait", &stage_two("DC").defect(Defect::PartialWait));
    assert!(matches!(seen.violation, Violation::SourceInUse { .. } | Violation::Unheard { .. }), "{seen}");
}
