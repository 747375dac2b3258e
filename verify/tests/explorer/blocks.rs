//! fullmesh_v2: records in blocks that carry flags of their own. The protocol, and what is broken in it on purpose,
//! each under the weakest conditions that show it.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Traffic, Violation};

fn dc(cores: u32, defect: Defect) -> Model {
    Model::new(2, "DC").blocks(1).cores(cores).defect(defect)
}

#[test]
fn two_ranks_for_ever_over_weak_memory() {
    safe_in_reuse("blocks, 2 ranks x 1 core, DC for any number of rounds, weak", &dc(1, Defect::None).weak());
    let two = Model::new(2, "DC").blocks(2);
    safe_in_reuse("two blocks a record, 2 ranks x 1 core, DC for any number of rounds, weak", &two.weak());
}

#[test]
fn two_ranks_of_two_cores_for_ever() {
    safe_in_reuse(
        "blocks, 2 ranks x 2 cores, DC for any number of rounds, weak",
        &dc(2, Defect::None).weak(),
    );
}

#[test]
fn two_ranks_of_two_cores_with_two_blocks_a_record() {
    let two = Model::new(2, "DC").blocks(2).cores(2).weak();
    safe_in_reuse("two blocks a record, 2 ranks x 2 cores, DC three times, weak", &two.units(3));
}

#[test]
fn two_ranks_of_three_cores() {
    safe("blocks, 2 ranks x 3 cores, DC once", &dc(3, Defect::None).units(1));
}

#[test]
fn three_ranks_once_over_weak_memory() {
    safe("blocks, 3 ranks x 1 core, DC once, weak", &Model::new(3, "DC").blocks(1).weak().units(1));
}

#[test]
fn two_batches_in_flight() {
    safe_in_reuse(
        "blocks, 2 ranks x 1 core, DDCC for any number of rounds, weak",
        &Model::new(2, "DDCC").blocks(1).weak(),
    );
}

#[test]
fn several_pairs() {
    let wide = Model::new(2, "DC").blocks(1).wide().units(1).quantised().weak();
    safe("blocks, 2 ranks x 1 core, wide, quantised, to others, weak", &wide.traffic(Traffic::NoSelf));
}

#[test]
#[ignore = "takes half a minute; run: cargo test -p veriep-verify --test explorer -- --ignored several_pairs_to"]
fn several_pairs_to_everybody() {
    let wide = Model::new(2, "DC").blocks(1).wide().units(1);
    safe("blocks, 2 ranks x 1 core, wide, quantised, weak", &wide.quantised().weak());
}

#[test]
fn one_combine_partition_is_enough_in_strict_order() {
    safe("blocks, one combine partition, DC, weak", &Model::new(2, "DC").blocks(1).partitions(2, 1).weak());
}

#[test]
fn catches_a_block_flag_ahead_of_its_block() {
    // Needs weak memory.
    safe("blocks, relaxed publish, twice", &dc(1, Defect::RelaxedPublish).units(2));
    let one = |defect| dc(1, defect).weak().units(1);
    let seen = caught("blocks, relaxed publish, once, weak", &one(Defect::RelaxedPublish));
    assert!(matches!(seen.violation, Violation::NotLanded { .. }), "{seen}");
}

#[test]
fn catches_a_record_that_is_refused_while_one_of_its_blocks_is_on_its_way() {
    // Needs two blocks and weak memory, where a later one may be seen first; one dispatch.
    let gaps = |blocks| Model::new(2, "DC").blocks(blocks).defect(Defect::RefusesGaps);
    safe("two blocks, gaps are refused", &gaps(2));
    safe("one block, gaps are refused, weak", &gaps(1).weak());
    let seen = caught("two blocks, gaps are refused, once, weak", &gaps(2).weak().units(1));
    assert!(matches!(seen.violation, Violation::Refused { .. }), "{seen}");
}

#[test]
fn catches_a_lost_flag_for_which_a_core_polls_by_stepping() {
    // Any memory, two rounds. There is always a move, and no memory is harmed.
    let polls = |units| dc(1, Defect::PollsByStepping).units(units);
    safe("blocks, lost flags, polls by stepping, one round", &polls(1));
    let seen = caught("blocks, lost flags, polls by stepping, two rounds", &polls(2));
    assert_eq!(seen.violation, Violation::Livelock, "{seen}");
}

#[test]
fn catches_counts_and_block_flags_that_are_never_cleared() {
    // Any memory, but three rounds, each by itself.
    for defect in [Defect::NoCountClear, Defect::NoBlockClear] {
        safe(&format!("blocks, {defect:?}, two rounds"), &dc(1, defect).units(2));
        let seen = caught(&format!("blocks, {defect:?}, three rounds"), &dc(1, defect).units(3));
        assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
    }
}

#[test]
fn catches_a_missing_quiet() {
    // Needs weak memory and three rounds: nothing but clears waits for it.
    safe("blocks, no quiet, 2 cores, twice", &dc(2, Defect::NoQuiet).units(2));
    safe("blocks, no quiet, two rounds, weak", &dc(1, Defect::NoQuiet).weak().units(2));
    let seen = caught("blocks, no quiet, three rounds, weak", &dc(1, Defect::NoQuiet).weak().units(3));
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
    let seen = caught("blocks, late clear, three rounds, weak", &dc(1, Defect::LateClear).weak().units(3));
    assert!(matches!(seen.violation, Violation::LostFlag { .. }), "{seen}");
}

#[test]
fn catches_a_driver_without_the_join() {
    caught("blocks, no join, weak", &dc(2, Defect::NoJoin).weak());
}

#[test]
fn catches_a_core_barrier_that_does_not_wait() {
    caught("blocks, no core barrier", &dc(2, Defect::NoBarrier));
}

#[test]
fn catches_one_dispatch_partition() {
    caught("blocks, one dispatch partition", &Model::new(2, "DC").blocks(1).partitions(1, 2));
}
