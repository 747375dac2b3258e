//! TP domains: what a rank lends its peer, in regions of their own. There is one EP rank, so words of the EP domain are those of
//! one core alone, and only the slots of the peers can be at fault, but where a name says else.

use veriep_verify::defects::Defect;
use veriep_verify::loom::group::{Group, Layout, Size};
use veriep_verify::loom::round::Traffic;
use veriep_verify::loom::search::{Bound, failure, model};

/// One EP rank; its two TP ranks are ranks 0 and 1.
const PEERS: Size<'_> = Size { cores: &[1, 1], experts: 1, bs: 1, k: 1 };
/// Each peer has a row for the expert that they share.
const BOTH: Traffic<'_> = &[&[&[0]], &[&[0]]];
/// Only rank 0 has.
const ONE: Traffic<'_> = &[&[&[0]], &[&[]]];
/// Neither has: the peers announce no rows.
const IDLE: Traffic<'_> = &[&[&[]], &[&[]]];

/// The same with two cores a rank: each core has a row of its own in combine.
const TWO_CORES: Size<'_> = Size { cores: &[2, 2], bs: 2, ..PEERS };
const ROW_EACH: Traffic<'_> = &[&[&[0], &[0]], &[&[0], &[0]]];

/// Two EP ranks: ranks 0 and 1 are TP peers, and so are 2 and 3.
const TWO_BY_TWO: Size<'_> = Size { cores: &[1, 1, 1, 1], experts: 2, ..PEERS };
const IDLE_FOUR: Traffic<'_> = &[&[&[]], &[&[]], &[&[]], &[&[]]];
/// Rank 2 returns a row to rank 0, with what rank 3 has lent it.
const LENT_THEN_RETURNED: Traffic<'_> = &[&[&[1]], &[&[]], &[&[]], &[&[]]];

fn group(traffic: Traffic<'_>, schedule: &str) -> Group {
    Group::with(Layout::Tp, PEERS, &[traffic; 3], schedule)
}

fn fails(operators: &str, defect: Defect) -> String {
    let name = format!("TP, {operators}, {defect:?}");
    failure(&name, Bound::Complete, group(BOTH, operators).bent(defect))
}

#[test]
fn peers_exchange_rows_and_results() {
    model("TP, D, both", Bound::Complete, 33..=41, group(BOTH, "D").body());
    model("TP, C, both", Bound::Complete, 33..=41, group(BOTH, "C").body());
    model("TP, D C, both", Bound::Complete, 510..=630, group(BOTH, "DC").body());
    model("TP, D C D, both", Bound::Complete, 8_900..=11_000, group(BOTH, "DCD").body());
    model("TP, D C D, one", Bound::Complete, 8_900..=11_000, group(ONE, "DCD").body());
    model("TP, D C D, idle", Bound::Complete, 8_900..=11_000, group(IDLE, "DCD").body());
    model("TP, C D C, both", Bound::Complete, 8_900..=11_000, group(BOTH, "CDC").body());
}

#[test]
fn partitions_come_back_in_the_third_operator() {
    model("TP, D D D, both", Bound::Complete, 8_200..=11_000, group(BOTH, "DDD").body());
    model("TP, C C C, both", Bound::Complete, 8_200..=11_000, group(BOTH, "CCC").body());
    model("TP, D C D C D, both", Bound::Preemptions(3), 8_600..=10_700, group(BOTH, "DCDCD").body());
    model("TP, C D C D C, both", Bound::Preemptions(3), 7_000..=8_600, group(BOTH, "CDCDC").body());
    model("TP, D D C C, both", Bound::Preemptions(3), 4_600..=5_700, group(BOTH, "DDCC").body());
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test loom -- --ignored tp:: --nocapture"]
fn two_rounds_in_every_execution() {
    model("TP, D C D C, both", Bound::Complete, 145_000..=180_000, group(BOTH, "DCDC").body());
    model("TP, D D C C, both", Bound::Complete, 145_000..=180_000, group(BOTH, "DDCC").body());
}

#[test]
fn clears_may_land_as_late_as_the_next_quiet() {
    let late = |schedule: &str| group(BOTH, schedule).bent(Defect::ClearsAtQuiet);
    model("TP, D D D, late clears, both", Bound::Complete, 8_200..=11_000, late("DDD"));
    model("TP, D C D C D, late clears, both", Bound::Preemptions(3), 8_600..=10_700, late("DCDCD"));
}

/// Every core hears from the peer's core of the same number.
#[test]
fn two_cores_exchange_results() {
    let cores = Group::with(Layout::Tp, TWO_CORES, &[ROW_EACH], "C");
    model("TP, C, two cores a rank", Bound::Complete, 31_000..=38_000, cores.body());
}

#[test]
fn peers_of_two_ep_ranks_do_not_meet() {
    let idle = Group::with(Layout::Tp, TWO_BY_TWO, &[IDLE_FOUR], "C");
    model("TP, C, two EP ranks, idle", Bound::Complete, 20_700..=25_300, idle.body());
}

#[test]
#[ignore = "takes 1 min; run: cargo test -p veriep-verify --test loom -- --ignored tp:: --nocapture"]
fn a_rank_returns_what_its_peer_has_lent() {
    let lent = Group::with(Layout::Tp, TWO_BY_TWO, &[LENT_THEN_RETURNED], "C");
    model("TP, C, two EP ranks, lent then returned", Bound::Complete, 189_000..=231_000, lent.body());
}

#[test]
fn what_is_lent_past_the_caches_is_there_when_its_slot_says_so() {
    let fenced = |schedule: &str| group(BOTH, schedule).bent(Defect::PastCaches);
    model("TP, D, past caches, both", Bound::Complete, 33..=41, fenced("D"));
    model("TP, C, past caches, both", Bound::Complete, 33..=41, fenced("C"));
    model("TP, D C D, past caches, both", Bound::Complete, 8_900..=11_000, fenced("DCD"));
}

/// Needs a memory that is weaker than total store order; one operator.
#[test]
fn catches_a_relaxed_slot() {
    for operator in ["D", "C"] {
        let how = fails(operator, Defect::RelaxedPublish);
        assert!(how.contains("Causality violation"), "{how}");
    }
}

/// Needs loads that overtake loads; one operator.
#[test]
fn catches_a_relaxed_look_at_a_slot() {
    for operator in ["D", "C"] {
        let how = fails(operator, Defect::RelaxedObserve);
        assert!(how.contains("Causality violation"), "{how}");
    }
}

/// Fails on any memory; one operator. Without rows it is the number of the first one that comes too late.
#[test]
fn catches_a_slot_before_its_rows() {
    for (name, traffic) in [("both", BOTH), ("idle", IDLE)] {
        for operator in ["D", "C"] {
            let name = format!("TP, {operator}, slot first, {name}");
            let how = failure(&name, Bound::Complete, group(traffic, operator).bent(Defect::FlagFirst));
            assert!(how.contains("Causality violation"), "{how}");
        }
    }
}

/// One operator: a core announces what it has put itself, without a quiet between.
#[test]
fn catches_a_slot_without_a_fence() {
    for operator in ["D", "C"] {
        let how = fails(operator, Defect::NoFenceBeforePublish);
        assert!(how.contains("Causality violation"), "{how}");
    }
}

/// No race and no lost slot: only the reference sees it.
#[test]
fn catches_rows_that_are_never_lent() {
    for (operator, output) in [("D", "expand_x of rank 0"), ("C", "x_out of rank 0")] {
        let how = fails(operator, Defect::NoPut);
        assert!(how.contains(output), "{how}");
    }
}

/// Fails on any memory in the second operator of a kind, if none of the other kind is between: that one holds the peer back.
#[test]
fn catches_one_partition() {
    for (schedule, defect) in [("DD", Defect::OneDispatchPartition), ("CC", Defect::OneCombinePartition)] {
        let how = fails(schedule, defect);
        assert!(how.contains("Causality violation"), "{how}");
    }
    let one = |schedule, defect| group(BOTH, schedule).bent(defect);
    let body = one("DCD", Defect::OneDispatchPartition);
    model("TP, D C D, one dispatch partition, both", Bound::Complete, 8_200..=11_000, body);
    let body = one("CDC", Defect::OneCombinePartition);
    model("TP, C D C, one combine partition, both", Bound::Complete, 8_200..=11_000, body);
}

/// Fails on any memory in the third operator, which takes the slots of the first for its own.
#[test]
fn catches_a_slot_that_is_never_cleared() {
    for schedule in ["DDD", "CCC"] {
        let how = fails(schedule, Defect::NoClear);
        assert!(how.contains("Causality violation"), "{how}");
    }
}

/// Three dispatches, a memory that lands clears late: else a clear of the first wipes a slot of the third.
#[test]
fn catches_a_quiet_that_does_not_wait_for_clears() {
    let how = fails("DDD", Defect::LateClear);
    assert!(how.contains("endless wait, missing: TP flag"), "{how}");
}
