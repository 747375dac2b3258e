//! The orderings that the protocol needs, one by one. Bound: every execution.

use core::ops::RangeInclusive;
use veriep_core::protocol::Flags;
use veriep_core::shape::Shape;
use veriep_verify::defects::Defect;
use veriep_verify::loom::group::{Layout, Size};
use veriep_verify::loom::litmus::{Scripts, answer, count_flag, litmus, token_flag};
use veriep_verify::loom::search::{Bound, failure, model};

pub(super) fn shape(ranks: &[u32], cores: u32) -> Shape {
    Size { cores: ranks, experts: ranks.len() as u32, bs: 1, k: 1 }.shape(cores, Layout::Plain(Flags::Joint))
}

fn holds(name: &str, expected: RangeInclusive<usize>, shape: Shape, scripts: Scripts) {
    model(name, Bound::Complete, expected, litmus(shape, Defect::None, scripts));
}

pub(super) fn fails(name: &str, shape: Shape, defect: Defect, scripts: Scripts) -> String {
    failure(name, Bound::Complete, litmus(shape, defect, scripts))
}

/// Rank 1 puts and publishes; rank 0 waits and reads.
pub(super) const FLAG_AFTER_DATA: Scripts = &[
    (0, 0, |core| {
        core.await_flag(count_flag());
        core.expect_row(0);
    }),
    (1, 0, |core| {
        core.put(0, 0);
        core.publish(0, count_flag());
    }),
];

#[test]
fn a_row_is_there_when_its_flag_is() {
    holds("flag after data", 10..=14, shape(&[1, 1], 1), FLAG_AFTER_DATA);
}

/// Needs a memory that is weaker than total store order; two ranks, one row.
#[test]
fn catches_a_relaxed_publish() {
    let how = fails("relaxed publish", shape(&[1, 1], 1), Defect::RelaxedPublish, FLAG_AFTER_DATA);
    assert!(how.contains("Concurrent read and write"), "{how}");
}

/// Needs loads that overtake loads; two ranks, one row.
#[test]
fn catches_a_relaxed_observe() {
    let how = fails("relaxed observe", shape(&[1, 1], 1), Defect::RelaxedObserve, FLAG_AFTER_DATA);
    assert!(how.contains("Concurrent read and write"), "{how}");
}

/// Fails on any memory: two ranks, one row.
#[test]
fn catches_a_flag_before_its_data() {
    let how = fails("flag first", shape(&[1, 1], 1), Defect::FlagFirst, FLAG_AFTER_DATA);
    assert!(how.contains("Concurrent") || how.contains("the row of a set flag"), "{how}");
}

/// Rank 0 reads, clears with a relaxed store and answers; rank 1 then uses row and flag again.
pub(super) const REUSE: Scripts = &[
    (0, 0, |core| {
        core.await_flag(count_flag());
        core.clear(count_flag());
        core.expect_row(0);
        core.quiet();
        core.publish(1, answer());
        core.await_flag(count_flag());
        core.expect_row(4);
    }),
    (1, 0, |core| {
        core.put(0, 0);
        core.publish(0, count_flag());
        core.await_flag(answer());
        core.put(0, 4);
        core.publish(0, count_flag());
    }),
];

#[test]
fn a_relaxed_clear_is_before_the_next_flag() {
    holds("clear, answer, flag", 420..=530, shape(&[1, 1], 1), REUSE);
}

/// The answer carries the clear and the end of the reading: with a relaxed one both are lost. Needs a memory
/// that is weaker than total store order; two ranks, two uses of one slot.
#[test]
fn catches_a_relaxed_answer() {
    let how = fails("relaxed answer", shape(&[1, 1], 1), Defect::RelaxedPublish, REUSE);
    assert!(how.contains("Concurrent read and write"), "{how}");
}

/// A clear after the answer wipes the next flag: two ranks, two uses of one slot; fails on any memory.
#[test]
fn catches_a_clear_after_the_answer() {
    let scripts: Scripts = &[
        (0, 0, |core| {
            core.await_flag(count_flag());
            core.publish(1, answer());
            core.clear(count_flag());
            core.await_flag(count_flag());
        }),
        (1, 0, |core| {
            core.publish(0, count_flag());
            core.await_flag(answer());
            core.publish(0, count_flag());
        }),
    ];
    let how = fails("clear after the answer", shape(&[1, 1], 1), Defect::None, scripts);
    assert!(how.contains("maximum number of branches"), "{how}");
}

/// Core 0 of rank 1 puts to rank 0, core 1 publishes after the barrier.
pub(super) const ANOTHER_CORE: Scripts = &[
    (0, 0, |core| {
        core.await_flag(count_flag());
        core.expect_row(0);
    }),
    (1, 0, |core| {
        core.put(0, 0);
        core.barrier(0, 1);
    }),
    (1, 1, |core| {
        core.barrier(0, 0);
        core.publish(0, count_flag());
    }),
];

#[test]
fn a_core_may_publish_what_another_has_put_after_a_barrier() {
    holds("put, barrier, publish", 1_700..=2_200, shape(&[1, 1], 2), ANOTHER_CORE);
}

/// Fails on any memory; three threads, one row. On a memory weaker than total store order a barrier of relaxed
/// words orders nothing either: the same failure.
#[test]
fn catches_a_missing_core_barrier() {
    let how = fails("no barrier", shape(&[1, 1], 2), Defect::NoBarrier, ANOTHER_CORE);
    assert!(how.contains("Concurrent") || how.contains("the row of a set flag"), "{how}");
    let how = fails("relaxed barrier", shape(&[1, 1], 2), Defect::RelaxedPublish, ANOTHER_CORE);
    assert!(how.contains("Concurrent") || how.contains("the row of a set flag"), "{how}");
}

/// Two cores add up at three barriers in a row.
const SUMS: Scripts = &[
    (0, 0, |core| {
        assert_eq!([11, 12, 13].map(|sum| core.barrier(sum, 1)), [21, 22, 23], "sums of core 1");
    }),
    (0, 1, |core| {
        assert_eq!([21, 22, 23].map(|sum| core.barrier(sum, 0)), [11, 12, 13], "sums of core 0");
    }),
];

#[test]
fn sums_survive_until_the_slow_core_has_read_them() {
    holds("three barriers with sums", 8_200..=11_000, shape(&[1], 2), SUMS);
}

/// Two cores, two barriers in a row, no operator's end between them; fails on any memory.
#[test]
fn catches_a_barrier_with_one_word_per_core() {
    let how = fails("one word per core", shape(&[1], 2), Defect::OneBarrierWord, SUMS);
    assert!(how.contains("sums of core"), "{how}");
}

/// Rank 1 sends the count, then the row with a flag of its own; rank 0 uses the count while the row travels.
const TWO_STEPS: Scripts = &[
    (0, 0, |core| {
        assert_eq!(core.await_flag(count_flag()), 1, "a count is whole");
        core.await_flag(token_flag());
        core.expect_row(0);
        core.clear(count_flag());
        core.clear(token_flag());
    }),
    (1, 0, |core| {
        core.publish(0, count_flag());
        core.put(0, 0);
        core.publish(0, token_flag());
    }),
];

#[test]
fn counts_go_ahead_and_the_token_flag_gates_the_copy() {
    holds("flags in two steps", 34..=42, shape(&[1, 1], 1), TWO_STEPS);
}

/// Copying on the count flag alone: two ranks, one row; fails on any memory.
#[test]
fn catches_a_copy_that_the_count_flag_gates() {
    let scripts: Scripts = &[
        (0, 0, |core| {
            core.await_flag(count_flag());
            core.expect_row(0);
        }),
        (1, 0, |core| {
            core.publish(0, count_flag());
            core.put(0, 0);
        }),
    ];
    let how = fails("copy after the count flag", shape(&[1, 1], 1), Defect::None, scripts);
    assert!(how.contains("Concurrent") || how.contains("the row of a set flag"), "{how}");
    let how = fails("relaxed token flag", shape(&[1, 1], 1), Defect::RelaxedPublish, TWO_STEPS);
    assert!(how.contains("Concurrent read and write"), "{how}");
}

/// Rank 2 puts to rank 0 and tells rank 1, which tells rank 0.
const HEARSAY: Scripts = &[
    (0, 0, |core| {
        core.await_flag(count_flag());
        core.expect_row(0);
    }),
    (1, 0, |core| {
        core.await_flag(answer());
        core.publish(0, count_flag());
    }),
    (2, 0, |core| {
        core.put(0, 0);
        core.publish(1, answer());
    }),
];

#[test]
fn what_a_publisher_had_observed_is_before_what_its_observer_does() {
    holds("causality over three ranks", 400..=500, shape(&[1, 1, 1], 1), HEARSAY);
}

/// Needs loads that overtake loads; three ranks: two would not do, since a rank is ordered with itself.
#[test]
fn catches_hearsay_without_acquire() {
    let how = fails("relaxed hearsay", shape(&[1, 1, 1], 1), Defect::RelaxedObserve, HEARSAY);
    assert!(how.contains("Concurrent read and write"), "{how}");
}
