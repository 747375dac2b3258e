//! A2's machines and agents, and the seam between them. Every execution compares the outputs with the oracle; the
//! payload differs in every round.
#![cfg(feature = "loom")]

use core::ops::RangeInclusive;
use kernel_core::shape::Shape;
use verify::loom::a2::Bend;
use verify::loom::a2::group::Agency::{self, Folded, Late, Thread};
use verify::loom::a2::group::{Group, Size};
use verify::loom::a2::litmus::{Script, litmus};
use verify::loom::group::Operator::{self, C, D};
use verify::loom::round::Traffic;
use verify::loom::search::{Bound, failure, model};

const TWO: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 1, h: 4 };
/// Each rank sends to the other.
const CROSS: Traffic<'_> = &[&[&[1]], &[&[0]]];
/// Both send to rank 0.
const TO_FIRST: Traffic<'_> = &[&[&[0]], &[&[0]]];
/// Nobody sends.
const IDLE: Traffic<'_> = &[&[&[]], &[&[]]];

/// One rank alone, whose core `i` reorders token `i` for expert `1 - i`; it needs no agent.
const ALONE: Size<'_> = Size { cores: &[2], experts: 2, bs: 2, h: 4 };
const SWAP: Traffic<'_> = &[&[&[1], &[0]]];

/// Rank 0 has two cores.
const TWO_AND_ONE: Size<'_> = Size { cores: &[2, 1], experts: 2, bs: 2, h: 4 };
const ACROSS: Traffic<'_> = &[&[&[1], &[0]], &[&[0], &[]]];

fn tiny() -> Shape {
    TWO.shape(1)
}

fn three() -> Shape {
    Size { cores: &[1; 3], experts: 3, ..TWO }.shape(1)
}

fn holds(name: &str, expected: RangeInclusive<usize>, shape: Shape, scripts: &'static [Script]) {
    model(name, Bound::Complete, expected, litmus(shape, Bend::None, scripts));
}

fn fails(name: &str, shape: Shape, bend: Bend, scripts: &'static [Script]) -> String {
    failure(name, Bound::Complete, litmus(shape, bend, scripts))
}

/// Core 0 of rank 0 writes a row and a task and rings; its agent posts; rank 1 waits for the last flag and reads.
const SENDS: &[Script] = &[
    Script::Core(1, |core| {
        core.wait(0);
        core.expect(0, 7);
    }),
    Script::Core(0, |core| {
        core.write(1, 7);
        core.ring(1);
    }),
    Script::Agent(0, |agent| {
        agent.wait(1);
        agent.expect(1, 7);
        agent.post(1);
    }),
];

#[test]
fn a_row_is_there_when_the_last_word_of_its_transfer_is() {
    holds("A2 transfer", 1..=1_000_000, tiny(), SENDS);
}

/// Needs a memory that is weaker than total store order.
#[test]
fn catches_relaxed_words_of_a_transfer() {
    let how = fails("A2 relaxed transfer", tiny(), Bend::RelaxedTransfer, SENDS);
    assert!(how.contains("Causality violation") || how.contains("Concurrent"), "{how}");
}

/// Fails on any memory.
#[test]
fn catches_a_last_word_that_comes_first() {
    let how = fails("A2 last word first", tiny(), Bend::LastWordFirst, SENDS);
    assert!(
        how.contains("Causality violation") || how.contains("Concurrent") || how.contains("the row"),
        "{how}"
    );
}

/// The doorbell speaks for rows and tasks. The first two need a memory that is weaker than total store order.
#[test]
fn catches_a_doorbell_that_speaks_for_nothing() {
    for bend in [Bend::RelaxedDoorbell, Bend::RelaxedAgent, Bend::LateWrites, Bend::LateTasks] {
        let how = fails(&format!("A2 {bend:?}"), tiny(), bend, SENDS);
        let is_race = how.contains("Causality violation") || how.contains("Concurrent");
        assert!(is_race || how.contains("the task behind a doorbell"), "{how}");
    }
}

/// Needs loads that overtake loads.
#[test]
fn catches_a_relaxed_observe() {
    let how = fails("A2 relaxed observe", tiny(), Bend::RelaxedObserve, SENDS);
    assert!(how.contains("Causality violation") || how.contains("Concurrent"), "{how}");
}
