//! Rows that are not copied out: in place, and placed directly, where combine reads results at their expert's rank. What
//! peers read there loom watches as it does all rows.

use core::ops::RangeInclusive;
use veriep_core::protocol::Receive;
use veriep_verify::defects::Defect;
use veriep_verify::loom::group::{Group, Layout, Size};
use veriep_verify::loom::round::Traffic;
use veriep_verify::loom::search::{Bound, failure, model};

const TWO: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 1, k: 1 };
/// Each rank sends to the other.
const CROSS: Traffic<'_> = &[&[&[1]], &[&[0]]];
/// Each rank sends to itself.
const OWN: Traffic<'_> = &[&[&[0]], &[&[1]]];
/// Both send to rank 0.
const TO_FIRST: Traffic<'_> = &[&[&[0]], &[&[0]]];
/// No rank sends.
const IDLE: Traffic<'_> = &[&[&[]], &[&[]]];

const DIRECT: Receive = Receive::Direct { areas: 1 };
const OVERWRITE: Receive = Receive::Overwrite { areas: 1 };

fn group(receive: Receive, traffic: Traffic<'_>, schedule: &str) -> Group {
    Group::with(Layout::Receive(receive), TWO, &[traffic; 3], schedule)
}

fn holds(name: &str, bound: Bound, expected: RangeInclusive<usize>, group: Group) {
    model(name, bound, expected, group.body());
}

#[test]
fn rows_in_place() {
    holds("in place, D C D, cross", Bound::Complete, 8_900..=10_900, group(Receive::InPlace, CROSS, "DCD"));
    let in_three = |traffic| group(Receive::InPlace, traffic, "DCDCD");
    holds("in place, D C D C D, own", Bound::Complete, 8_250..=10_100, in_three(OWN));
    holds("in place, D C D C D, idle", Bound::Complete, 8_250..=10_100, in_three(IDLE));
    holds("in place, D C D C D, to first", Bound::Preemptions(5), 12_400..=15_300, in_three(TO_FIRST));
    holds("in place, D C D C D, cross", Bound::Preemptions(3), 7_000..=8_600, in_three(CROSS));
}

#[test]
#[ignore = "takes 2 min; run: cargo test -p veriep-verify --test loom -- --ignored receive:: --nocapture"]
fn rows_in_place_in_every_execution() {
    let to_first = group(Receive::InPlace, TO_FIRST, "DCDCD");
    holds("in place, D C D C D, to first", Bound::Complete, 84_000..=103_000, to_first);
}

#[test]
fn a_dispatch_that_places_rows() {
    for receive in [DIRECT, OVERWRITE] {
        holds(&format!("{receive:?}, D, cross"), Bound::Complete, 8_900..=10_900, group(receive, CROSS, "D"));
        holds(&format!("{receive:?}, D, own"), Bound::Complete, 510..=630, group(receive, OWN, "D"));
    }
}

/// Words and results, and with one area rows too, in the third round.
#[test]
fn placed_rows_come_back() {
    for receive in [DIRECT, OVERWRITE] {
        for (name, traffic, expected) in [
            ("cross", CROSS, 7_200..=8_900),
            ("to first", TO_FIRST, 3_700..=4_600),
            ("idle", IDLE, 2_790..=3_420),
        ] {
            let name = format!("{receive:?}, D C D C D, {name}");
            holds(&name, Bound::Preemptions(2), expected, group(receive, traffic, "DCDCD"));
        }
    }
    let two = Receive::Direct { areas: 2 };
    holds("direct, D D C C D D", Bound::Preemptions(2), 11_600..=14_300, {
        Group::with(Layout::Receive(two), TWO, &[CROSS; 4], "DDCCDD")
    });
}

#[test]
#[ignore = "takes 2 min; run: cargo test -p veriep-verify --test loom -- --ignored receive:: --nocapture"]
fn placed_rows_come_back_with_three_preemptions() {
    for receive in [DIRECT, OVERWRITE] {
        let name = format!("{receive:?}, D C D C D, cross");
        holds(&name, Bound::Preemptions(3), 90_000..=110_000, group(receive, CROSS, "DCDCD"));
    }
}

fn is_caught(name: &str, bound: Bound, group: Group, defect: Defect) {
    let how = failure(name, bound, group.bent(defect));
    assert!(how.contains("Causality violation"), "{how}");
}

/// One dispatch. The first two need a memory weaker than total store order.
#[test]
fn catches_relaxed_orderings_and_flags_first() {
    for receive in [Receive::InPlace, DIRECT, OVERWRITE] {
        let group = || group(receive, CROSS, "D");
        let name = |defect: &str| format!("{receive:?}, D, {defect}");
        is_caught(&name("relaxed publish"), Bound::Complete, group(), Defect::RelaxedPublish);
        is_caught(&name("relaxed observe"), Bound::Complete, group(), Defect::RelaxedObserve);
        is_caught(&name("flag first"), Bound::Complete, group(), Defect::FlagFirst);
    }
}

/// Results are read at a peer's: its word must be a release. One round whose rows cross, on a memory weaker than total store
/// order; where no owner reads at a peer's it is safe.
#[test]
fn catches_a_relaxed_word_of_ready_results() {
    for receive in [DIRECT, OVERWRITE] {
        let name = |traffic: &str| format!("{receive:?}, D C, relaxed ready word, {traffic}");
        is_caught(&name("cross"), Bound::Complete, group(receive, CROSS, "DC"), Defect::RelaxedReady);
        let own = group(receive, OWN, "DC").bent(Defect::RelaxedReady);
        model(&name("own"), Bound::Preemptions(2), 360..=450, own);
    }
}

/// Three rounds, any memory. Two never show it.
#[test]
fn catches_words_that_are_never_cleared() {
    let bound = Bound::Preemptions(2);
    for receive in [DIRECT, OVERWRITE] {
        let name = format!("{receive:?}, D C D C D, no clear");
        is_caught(&name, bound, group(receive, CROSS, "DCDCD"), Defect::NoClear);
    }
    let two = group(DIRECT, CROSS, "DCDC").bent(Defect::NoClear);
    model("direct, D C D C, no clear", bound, 18_700..=23_000, two);
}
