//! Everything that is broken on purpose must be caught, and where it is harmless it must stay safe: each defect
//! states the weakest memory, cores and traffic that show it.

use crate::verdict::{caught, safe};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Traffic, Violation};

fn dc(cores: u32, defect: Defect) -> Model {
    Model::new(2, "DC").cores(cores).defect(defect)
}

#[test]
fn catches_a_publish_that_overtakes_its_data() {
    // Needs weak memory: in order of issue, the data is there first.
    safe("relaxed publish", &dc(1, Defect::RelaxedPublish));
    let seen = caught("relaxed publish, weak", &dc(1, Defect::RelaxedPublish).weak());
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_missing_quiet() {
    // Needs weak memory. With two cores another core's flag overtakes the data, with one a late clear wipes a flag.
    safe("no quiet", &dc(2, Defect::NoQuiet));
    let seen = caught("no quiet, 2 cores, weak", &dc(2, Defect::NoQuiet).weak());
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
    let seen = caught("no quiet, 1 core, weak", &dc(1, Defect::NoQuiet).weak());
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_a_quiet_left_out_by_cores_that_sent_nothing() {
    // Needs weak memory and idle ranks: who always sends is always quiet.
    let defect = Defect::QuietOnlyIfSent;
    safe("quiet only after a put, no rank idle, weak", &dc(1, defect).weak().traffic(Traffic::NoIdle));
    let seen = caught("quiet only after a put, weak", &dc(1, defect).weak());
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_a_core_barrier_that_does_not_wait() {
    // Needs two cores; any memory.
    caught("no core barrier", &dc(2, Defect::NoBarrier));
}

#[test]
fn catches_a_core_barrier_that_waits_for_lower_cores_only() {
    // Needs two cores; any memory.
    caught("barrier of lower cores", &dc(2, Defect::BarrierOfLowerCores));
}

#[test]
fn catches_a_core_barrier_with_one_word() {
    // Needs two cores; any memory: the fast core's next arrival hides what the slow one has not read.
    // Already in the first round; in a second one the core's own words would contradict each other.
    caught("one barrier word", &dc(2, Defect::OneBarrierWord).units(1));
}

#[test]
fn catches_a_clear_that_never_happens() {
    // Any memory, but three rounds: a partition must come round again.
    safe("no clear, two rounds", &dc(1, Defect::NoClear).units(2));
    let seen = caught("no clear, three rounds", &dc(1, Defect::NoClear).units(3));
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_a_clear_behind_the_quiet() {
    // Needs weak memory and three rounds.
    safe("late clear, two rounds, weak", &dc(1, Defect::LateClear).weak().units(2));
    let seen = caught("late clear, three rounds, weak", &dc(1, Defect::LateClear).weak().units(3));
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_a_driver_without_the_join() {
    // Needs two cores and weak memory: a core may read its own barrier word before it has landed.
    safe("no join", &dc(2, Defect::NoJoin).units(3));
    caught("no join, weak", &dc(2, Defect::NoJoin).weak());
}

#[test]
fn catches_one_dispatch_partition_with_self_or_idle_traffic() {
    // Who always sends to others cannot run ahead far enough to lose a flag.
    let one = Model::new(2, "DC").partitions(1, 2);
    caught("one dispatch partition", &one);
    safe("one dispatch partition, all traffic to others", &one.clone().traffic(Traffic::NoSelf));
}

#[test]
fn one_combine_partition_is_enough_in_strict_order() {
    safe("one combine partition, DC, weak", &Model::new(2, "DC").partitions(2, 1).weak());
}

#[test]
fn catches_one_combine_partition_with_two_batches_in_flight() {
    let seen = caught("one combine partition, DDCC", &Model::new(2, "DDCC").partitions(2, 1));
    assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
}

#[test]
fn catches_three_batches_in_flight_on_two_combine_partitions() {
    let seen = caught("two combine partitions, DDDCCC", &Model::new(2, "DDDCCC"));
    assert!(matches!(seen.violation, Violation::Overwritten { .. }), "{seen}");
}

#[test]
fn three_batches_in_flight_are_safe_on_three_combine_partitions() {
    safe("three combine partitions, DDDCCC", &Model::new(2, "DDDCCC").partitions(2, 3).units(2));
}

#[test]
fn catches_a_lost_flag_for_which_a_core_polls_by_stepping() {
    // Any memory, two rounds. There is always a move, and no memory is harmed.
    safe("lost flags, polls by stepping, one round", &dc(1, Defect::PollsByStepping).units(1));
    let seen = caught("lost flags, polls by stepping, two rounds", &dc(1, Defect::PollsByStepping).units(2));
    assert_eq!(seen.violation, Violation::Livelock, "{seen}");
    caught(
        "lost flags, polls by stepping, for any number of rounds, weak",
        &dc(1, Defect::PollsByStepping).weak(),
    );
}
