//! Rows past the caches: stores that no release orders, but a fence. When a core owes one is decided by
//! `veriep_core::fabric::coherent`, here as over raw memory. Bound: every execution.

use super::litmus::{FLAG_AFTER_DATA, fails, shape};
use core::ops::RangeInclusive;
use veriep_core::protocol::Flags;
use veriep_verify::defects::Defect;
use veriep_verify::loom::group::{Group, Layout, Size};
use veriep_verify::loom::litmus::{Scripts, count_flag, litmus};
use veriep_verify::loom::round::Traffic;
use veriep_verify::loom::search::{Bound, failure, model};

const SEPARATE: Layout = Layout::Plain(Flags::Separate);
const TWO: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 1, k: 1 };
/// Each rank sends to the other.
const CROSS: Traffic<'_> = &[&[&[1]], &[&[0]]];

/// One rank of two cores, each of which puts a record that the other publishes and copies out.
const ALONE: Size<'_> = Size { cores: &[2], experts: 2, bs: 2, k: 1 };
const SWAP: Traffic<'_> = &[&[&[1], &[0]]];

/// Rank 0 has two cores, rank 1 has one.
const TWO_AND_ONE: Size<'_> = Size { cores: &[2, 1], ..ALONE };
/// Rank 1 returns a row to each core of rank 0.
const BACK: Traffic<'_> = &[&[&[1], &[1]], &[&[0], &[]]];

fn cross(schedule: &str) -> Group {
    Group::new(TWO, &[CROSS; 3], schedule)
}

fn cross_with(layout: Layout) -> Group {
    Group::with(layout, TWO, &[CROSS], "D")
}

fn two_cores() -> Group {
    Group::new(ALONE, &[SWAP], "D")
}

fn holds(name: &str, expected: RangeInclusive<usize>, group: Group, defect: Defect) {
    let body = group.bent(defect);
    model(&format!("{name}, past caches, {defect:?}"), Bound::Complete, expected, body);
}

fn is_caught(name: &str, group: Group, defect: Defect) {
    let name = format!("{name}, past caches, {defect:?}");
    let how = failure(&name, Bound::Complete, group.bent(defect));
    assert!(how.contains("Causality violation"), "{how}");
}

#[test]
fn rows_past_the_caches_are_there_when_their_flags_are() {
    holds("D", 33..=41, cross("D"), Defect::PastCaches);
    holds("C", 33..=41, cross("C"), Defect::PastCaches);
    holds("D C D", 8_900..=11_000, cross("DCD"), Defect::PastCaches);
    holds("D D D", 8_200..=11_000, cross("DDD"), Defect::PastCaches);
    holds("C C C", 8_200..=11_000, cross("CCC"), Defect::PastCaches);
    holds("separate, D", 510..=630, cross_with(SEPARATE), Defect::PastCaches);
    holds("blocks, D", 350..=440, cross_with(Layout::Blocks), Defect::PastCaches);
    holds("D, two cores", 510..=630, two_cores(), Defect::PastCaches);
    holds("C, two cores and one", 425..=525, Group::new(TWO_AND_ONE, &[BACK], "C"), Defect::PastCaches);
}

/// One combine, or one dispatch in blocks: there a core publishes what it has put itself, without a quiet between. Where
/// there is one it has fenced already.
#[test]
fn catches_a_publish_without_a_fence() {
    is_caught("C", cross("C"), Defect::NoFenceBeforePublish);
    is_caught("blocks, D", cross_with(Layout::Blocks), Defect::NoFenceBeforePublish);
    holds("D", 33..=41, cross("D"), Defect::NoFenceBeforePublish);
    holds("separate, D", 510..=630, cross_with(SEPARATE), Defect::NoFenceBeforePublish);
    holds("D, two cores", 510..=630, two_cores(), Defect::NoFenceBeforePublish);
}

/// One dispatch, with one core or with two, where another core's flag speaks for the row. Of the fences in quiet and before
/// the words after it, the barrier's among them, one is enough.
#[test]
fn catches_a_quiet_without_a_fence_unless_the_next_publish_has_one() {
    for (name, group) in
        [("D", cross("D")), ("separate, D", cross_with(SEPARATE)), ("D, two cores", two_cores())]
    {
        is_caught(name, group, Defect::NoFence);
    }
    holds("D", 33..=41, cross("D"), Defect::NoFenceInQuiet);
    holds("D, two cores", 510..=630, two_cores(), Defect::NoFenceInQuiet);
}

/// One dispatch: rows that were copied out past the caches, and no word comes after them.
#[test]
fn catches_a_fabric_that_is_gone_without_a_fence() {
    let group = cross("D").bent(Defect::NoFenceAtTheEnd);
    let how = failure("D, past caches, NotAtTheEnd", Bound::Complete, group);
    assert!(how.contains("expand_x of rank 0"), "{how}");
}

/// Core 0 of rank 1 puts, is quiet and tells core 1 by other means than the fabric; core 1 publishes.
const QUIET_THEN_TOLD: Scripts = &[
    (0, 0, |core| {
        core.await_flag(count_flag());
        core.expect_row(0);
    }),
    (1, 0, |core| {
        core.put(0, 0);
        core.quiet();
        core.tell();
    }),
    (1, 1, |core| {
        core.told();
        core.publish(0, count_flag());
    }),
];

#[test]
fn a_core_was_quiet_about_rows_past_the_caches_whoever_tells_of_it() {
    let body = litmus(shape(&[1, 1], 2), Defect::PastCaches, QUIET_THEN_TOLD);
    model("quiet, told, past caches", Bound::Complete, 333..=407, body);
}

/// Three threads, one row. Two ranks of one core do not show it: the publish has a fence of its own.
#[test]
fn catches_a_quiet_without_a_fence() {
    let defect = Defect::NoFenceInQuiet;
    let how = fails("quiet without a fence, told", shape(&[1, 1], 2), defect, QUIET_THEN_TOLD);
    assert!(how.contains("Concurrent"), "{how}");
    model(
        "quiet without a fence",
        Bound::Complete,
        10..=14,
        litmus(shape(&[1, 1], 1), defect, FLAG_AFTER_DATA),
    );
    let defect = Defect::NoFenceBeforePublish;
    let how = fails("publish without a fence", shape(&[1, 1], 1), defect, FLAG_AFTER_DATA);
    assert!(how.contains("Concurrent read and write"), "{how}");
}
