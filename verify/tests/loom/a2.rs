//! A2's machines and agents, and the seam between them. Every execution compares the outputs with the reference; the
//! payload differs in every round.

use core::ops::RangeInclusive;
use veriep_core::shape::Shape;
use veriep_verify::defects::Defect;
use veriep_verify::loom::a2::group::Agency::{Folded, Late, Thread};
use veriep_verify::loom::a2::group::{Group, Size};
pub(super) use veriep_verify::loom::a2::litmus::litmus as seam;
use veriep_verify::loom::a2::litmus::{Scripts, litmus};
use veriep_verify::loom::round::Traffic;
use veriep_verify::loom::search::{Bound, failure, model};

const TWO: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 1, h: 8 };
/// Each rank sends to the other.
const CROSS: Traffic<'_> = &[&[&[1]], &[&[0]]];
/// Each rank sends to itself.
const OWN: Traffic<'_> = &[&[&[0]], &[&[1]]];
/// Both send to rank 0.
const TO_FIRST: Traffic<'_> = &[&[&[0]], &[&[0]]];
/// No rank sends.
const IDLE: Traffic<'_> = &[&[&[]], &[&[]]];

/// One rank alone, whose core `i` reorders token `i` for expert `1 - i`; it needs no agent.
const ALONE: Size<'_> = Size { cores: &[2], experts: 2, bs: 2, h: 8 };
const SWAP: Traffic<'_> = &[&[&[1], &[0]]];

pub(super) fn tiny() -> Shape {
    TWO.shape(1)
}

fn three() -> Shape {
    Size { cores: &[1; 3], experts: 3, ..TWO }.shape(1)
}

fn holds(name: &str, expected: RangeInclusive<usize>, shape: Shape, scripts: Scripts) {
    model(name, Bound::Complete, expected, litmus(shape, Defect::None, scripts));
}

fn fails(name: &str, shape: Shape, defect: Defect, scripts: Scripts) -> String {
    failure(name, Bound::Complete, litmus(shape, defect, scripts))
}

/// Core 0 of rank 0 writes a row and a task and rings; its agent posts; rank 1 waits for the last flag and reads.
pub(super) const SENDS: Scripts = &[
    (1, |core| {
        core.wait(0);
        core.expect(0, 7);
    }),
    (0, |core| {
        core.write(1, 7);
        core.ring(1);
    }),
    (0, |agent| {
        agent.wait_for_doorbell(1);
        agent.expect_task(1, 7);
        agent.post(1);
    }),
];

#[test]
fn a_row_is_there_when_the_last_word_of_its_transfer_is() {
    holds("A2 transfer", 333..=408, tiny(), SENDS);
}

/// Needs a memory that is weaker than total store order.
#[test]
fn catches_relaxed_words_of_a_transfer() {
    let how = fails("A2 relaxed transfer", tiny(), Defect::RelaxedTransfer, SENDS);
    assert!(how.contains("Causality violation") || how.contains("Concurrent"), "{how}");
}

/// Fails on any memory.
#[test]
fn catches_a_last_word_that_comes_first() {
    let how = fails("A2 last word first", tiny(), Defect::LastWordFirst, SENDS);
    assert!(
        how.contains("Causality violation") || how.contains("Concurrent") || how.contains("the row"),
        "{how}"
    );
}

/// The doorbell speaks for rows and tasks. The first two need a memory that is weaker than total store order.
#[test]
fn catches_a_doorbell_that_speaks_for_nothing() {
    for defect in [Defect::RelaxedDoorbell, Defect::RelaxedAgent, Defect::LateWrites, Defect::LateTasks] {
        let how = fails(&format!("A2 {defect:?}"), tiny(), defect, SENDS);
        let is_race = how.contains("Causality violation") || how.contains("Concurrent");
        assert!(is_race || how.contains("the task behind a doorbell"), "{how}");
    }
}

/// Needs loads that overtake loads.
#[test]
fn catches_a_relaxed_observe() {
    let how = fails("A2 relaxed observe", tiny(), Defect::RelaxedObserve, SENDS);
    assert!(how.contains("Causality violation") || how.contains("Concurrent"), "{how}");
}

/// Who has seen the last word answers, and the source is written again; the answer is a transfer, too.
const AGAIN: Scripts = &[
    (1, |rank| {
        rank.wait(0);
        rank.clear(0);
        rank.expect(0, 7);
        rank.write_answer(0);
        rank.post_answer(0);
        rank.wait(0);
        rank.expect(0, 8);
    }),
    (0, |rank| {
        rank.write(1, 7);
        rank.post(1);
        rank.wait_for_answer(1);
        rank.write(1, 8);
        rank.post(1);
    }),
];

#[test]
fn a_source_may_be_written_again_when_its_last_word_was_seen() {
    holds("A2 transfer, answer, transfer", 428..=524, tiny(), AGAIN);
}

/// The answer carries the clear and the end of the reading. Needs a memory weaker than total store order.
#[test]
fn catches_a_relaxed_answer() {
    let how = fails("A2 relaxed answer", tiny(), Defect::RelaxedTransfer, AGAIN);
    assert!(is_race(&how), "{how}");
}

fn is_race(how: &str) -> bool {
    how.contains("Causality violation") || how.contains("Concurrent")
}

/// Rank 2 sends to rank 1 and tells rank 0, which tells rank 1: what an agent's rank has seen goes on with what it posts.
const HEARSAY: Scripts = &[
    (1, |core| {
        core.wait_for_answer(0);
        core.expect(2, 7);
    }),
    (0, |rank| {
        rank.wait_for_answer(2);
        rank.write_answer(1);
        rank.post_answer(1);
    }),
    (2, |rank| {
        rank.write(1, 7);
        rank.write_answer(0);
        rank.post(1);
        rank.post_answer(0);
    }),
];

#[test]
fn what_an_agent_has_seen_is_before_what_an_observer_of_its_transfer_does() {
    holds("A2 hearsay", 402..=492, three(), HEARSAY);
}

/// Needs loads that overtake loads, or stores that overtake stores; three ranks.
#[test]
fn catches_hearsay_over_relaxed_words() {
    for defect in [Defect::RelaxedTransfer, Defect::RelaxedObserve] {
        let how = fails(&format!("A2 hearsay, {defect:?}"), three(), defect, HEARSAY);
        assert!(is_race(&how), "{how}");
    }
}

/// What a rank's cores and its agent do, each on a thread of its own; the other rank is one thread.
#[test]
fn an_operator_with_an_agent_of_its_own() {
    let group = |operator: &str| Group::new(TWO, &[CROSS], operator).agents(&[Thread, Folded]).body();
    model("A2 C, agent", Bound::Complete, 5_250..=6_418, group("C"));
}

#[test]
fn one_operator() {
    let group = |traffic, operator| Group::new(TWO, &[traffic], operator).agents(&[Folded; 2]).body();
    for (name, traffic) in [("cross", CROSS), ("idle", IDLE)] {
        model(&format!("A2 D, {name}"), Bound::Complete, 2_203..=2_693, group(traffic, "D"));
        model(&format!("A2 C, {name}"), Bound::Complete, 153..=188, group(traffic, "C"));
    }
}

#[test]
fn two_operators() {
    let group = |schedule: &str| Group::new(TWO, &[CROSS; 2], schedule).agents(&[Folded; 2]).body();
    model("A2 C C, cross", Bound::Complete, 10_190..=12_460, group("CC"));
    model("A2 D C, cross", Bound::Preemptions(2), 1_657..=2_027, group("DC"));
}

#[test]
fn halves_come_back_in_the_third_operator() {
    for (name, traffic) in [("cross", CROSS), ("to first", TO_FIRST), ("own", OWN), ("idle", IDLE)] {
        let group = |schedule: &str| Group::new(TWO, &[traffic; 3], schedule).agents(&[Folded; 2]).body();
        model(&format!("A2 C C C, {name}"), Bound::Preemptions(3), 5_390..=6_590, group("CCC"));
        model(&format!("A2 D C D, {name}"), Bound::Preemptions(2), 6_170..=7_560, group("DCD"));
    }
}

#[test]
#[ignore = "takes 10 min; run: cargo test -p veriep-verify --test loom -- --ignored a2:: --nocapture"]
fn halves_come_back_in_every_execution_of_three_combines() {
    for (name, traffic) in [("cross", CROSS), ("to first", TO_FIRST)] {
        let group = Group::new(TWO, &[traffic; 3], "CCC").agents(&[Folded; 2]).body();
        model(&format!("A2 C C C, {name}"), Bound::Complete, 592_000..=725_000, group);
    }
    let group = Group::new(TWO, &[CROSS; 3], "DCD").agents(&[Folded; 2]).body();
    model("A2 D C D, cross", Bound::Preemptions(4), 251_000..=308_000, group);
}

#[test]
fn two_operators_transfers_may_be_delivered_in_the_other_order() {
    let group = |schedule: &str| Group::new(TWO, &[CROSS; 2], schedule).agents(&[Folded, Late]);
    model("A2 C C, late, cross", Bound::Preemptions(3), 276..=338, group("CC").body());
    model("A2 D C, late, cross", Bound::Preemptions(2), 332..=406, group("DC").body());
}

#[test]
fn two_cores() {
    let group = |operator: &str| Group::new(ALONE, &[SWAP], operator).body();
    model("A2 D, two cores alone", Bound::Complete, 511..=625, group("D"));
    model("A2 C, two cores alone", Bound::Complete, 8_256..=10_092, group("C"));
}

/// Fails on any memory with two cores: the other one takes the half that is not its turn.
#[test]
fn catches_a_flip_before_the_others_have_read() {
    let how =
        failure("A2 early flip", Bound::Complete, Group::new(ALONE, &[SWAP], "D").bent(Defect::EarlyFlip));
    assert!(is_race(&how), "{how}");
}

fn caught(name: &str, defect: Defect, group: Group) -> String {
    failure(&format!("A2 {name}, {defect:?}"), Bound::Preemptions(3), group.bent(defect))
}

/// Orderings: one operator, any traffic. Relaxed ones need a memory weaker than total store order, the others none.
#[test]
fn catches_what_breaks_one_operator() {
    for operator in ["D", "C"] {
        for defect in [Defect::RelaxedTransfer, Defect::LastWordFirst, Defect::RelaxedObserve] {
            let group = Group::new(TWO, &[CROSS], operator).agents(&[Folded; 2]);
            let how = caught(operator, defect, group);
            assert!(is_race(&how), "{how}");
        }
        for defect in [Defect::RelaxedDoorbell, Defect::RelaxedAgent, Defect::LateWrites, Defect::LateTasks] {
            let group = Group::new(TWO, &[CROSS], operator);
            let how = caught(operator, defect, group);
            assert!(is_race(&how), "{how}");
        }
    }
}

/// Two operators: an agent that has not served the first reads the tasks of the second.
#[test]
fn catches_one_message_slot() {
    let group = Group::new(TWO, &[CROSS; 2], "CC").agents(&[Thread, Folded]);
    let how = caught("C C", Defect::OneMessageSlot, group);
    assert!(is_race(&how) || how.contains("must be in"), "{how}");
}

/// Two operators.
#[test]
fn catches_one_half() {
    let group = Group::new(TWO, &[CROSS; 2], "CC").agents(&[Folded; 2]);
    let how = caught("C C", Defect::OneHalf, group);
    assert!(is_race(&how) || how.contains("is wrong"), "{how}");
}

/// Three operators: the half must come round.
#[test]
fn catches_clears_that_never_happen() {
    let group = Group::new(TWO, &[CROSS; 3], "CCC").agents(&[Folded; 2]);
    let how = caught("C C C", Defect::NoClear, group);
    assert!(is_race(&how) || how.contains("is wrong"), "{how}");
}

/// Three tokens, whose rows are two steps between flags long.
const FALLING: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 3, h: 16 };
const MANY: Traffic<'_> = &[&[&[1], &[1], &[1]], &[&[0], &[0], &[0]]];
const FEW: Traffic<'_> = &[&[&[1], &[], &[]], &[&[0], &[], &[]]];

/// Three combines, rows of flags, falling counts: the third row of the first is where the third combine looks for the
/// flag behind one row. With our clears nothing happens.
#[test]
fn catches_the_seeds_clears() {
    let group = || {
        let group = Group::new(FALLING, &[MANY, FEW, FEW], "CCC");
        group.flags(&[0]).agents(&[Folded; 2])
    };
    let how = caught("C C C", Defect::SeedClears, group());
    assert!(is_race(&how) || how.contains("is wrong"), "{how}");
    model("A2 C C C, falling, rows of flags", Bound::Preemptions(2), 944..=1_154, group().body());
}

/// Two tokens, whose rows are so long that the second is where FLAG2 is looked for after the first.
const LONG: Size<'_> = Size { cores: &[1, 1], experts: 2, bs: 2, h: 512 };
const BOTH: Traffic<'_> = &[&[&[1], &[1]], &[&[0], &[0]]];
const ONE: Traffic<'_> = &[&[&[1], &[]], &[&[0], &[]]];

/// Tokens of flags, falling counts: FLAG1 of the second dispatch has come, and where its FLAG2 is looked for stands a
/// token of the first. Needs a core that goes on in the middle of a transfer. With our clears nothing happens.
#[test]
fn catches_the_seeds_clears_at_flag2() {
    let group = || {
        let group = Group::new(LONG, &[BOTH, ONE], "DCD");
        group.flags(&[0]).agents(&[Folded; 2])
    };
    let how = caught("D C D", Defect::SeedClears, group());
    assert!(is_race(&how) || how.contains("is wrong"), "{how}");
    model("A2 D C D, falling, tokens of flags", Bound::Preemptions(1), 457..=559, group().body());
}
