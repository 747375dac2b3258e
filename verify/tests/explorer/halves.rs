//! Operators in two halves, and ranks with orders of their own.

use crate::verdict::{caught, safe, safe_in_reuse};
use veriep_core::protocol::Receive;
use veriep_verify::argument::{Rules, argue};
use veriep_verify::defects::Defect;
use veriep_verify::explorer::{Model, Traffic, Violation, explore};
use veriep_verify::orders::Orders;
use veriep_verify::report::line;

/// Each half as soon as may be.
const IN_TURN: &str = "Ds0 Dr0 Cs0 Cr0";
/// The order in which frameworks overlap two batches.
const OVERLAP: &str = "Ds1 Cs0 Dr1 Cr0";
/// The next batch is sent while results come back.
const SEND_AHEAD: &str = "Cs0 Ds1 Cr0 Dr1";

fn two(order: &str) -> Model {
    Model::new(2, order).weak()
}

#[test]
fn halves_one_after_the_other_are_safe_without_end() {
    let halves = || two(IN_TURN);
    for (kind, model) in [
        ("joint flags", halves()),
        ("separate flags", halves().separate()),
        ("in place", halves().in_place()),
        ("direct placement", halves().direct(1)),
        ("experts overwrite", halves().overwrite(1)),
        ("blocks", halves().blocks(1)),
        ("A2", halves().a2()),
        ("hierarchy, 1 server", halves().hierarchy(2)),
        ("hierarchy, 2 servers", halves().hierarchy(1)),
        ("stage 2", halves().hierarchy(1).stage_two()),
    ] {
        safe_in_reuse(&format!("{kind}, 2 ranks x 1 core, halves in turn without end, weak"), &model);
    }
}

#[test]
fn the_usual_overlap_is_safe_without_end() {
    let overlap = || two(OVERLAP);
    for (kind, model) in [
        ("joint flags", overlap()),
        ("separate flags", overlap().separate()),
        ("in place", overlap().in_place()),
        ("direct placement", overlap().direct(2)),
        ("experts overwrite", overlap().overwrite(2)),
        ("blocks", overlap().blocks(1)),
    ] {
        let name = format!("{kind}, 2 ranks x 1 core, dispatch around combine without end, weak");
        safe_in_reuse(&name, &model);
    }
}

#[test]
fn the_next_batch_may_be_sent_while_results_come_back() {
    for (kind, model) in [("joint flags", two(SEND_AHEAD)), ("direct placement", two(SEND_AHEAD).direct(2))] {
        safe_in_reuse(&format!("{kind}, 2 ranks x 1 core, sent ahead without end, weak"), &model);
    }
}

#[test]
fn the_usual_overlap_is_safe_on_two_cores() {
    safe_in_reuse("2 ranks x 2 cores, dispatch around combine twice, weak", &two(OVERLAP).cores(2).units(2));
}

/// Over strong memory a story is short, and each of its events is one.
#[test]
fn two_dispatches_sent_before_the_first_is_received_are_caught() {
    let both = "Ds0 Ds1 Dr0 Dr1 C0 C1";
    let weak = caught("2 ranks x 1 core, both sent, weak", &two(both));
    let strong = caught("2 ranks x 1 core, both sent", &Model::new(2, both));
    for timeline in [weak, strong] {
        assert!(matches!(timeline.violation, Violation::LostFlag { .. }), "{timeline}");
        let last = timeline.story.last().unwrap().to_string();
        assert!(last.contains("sending half of dispatch 2: "), "{last}");
    }
}

/// A core that goes on must read its own barrier word again: another operator has passed barriers meanwhile.
#[test]
fn catches_a_core_that_takes_its_barrier_to_be_where_it_left_it() {
    let around = || two("Ds0 D1 Dr0 C0 C1").units(1).traffic(Traffic::NoSelf);
    let stale = |model: Model| model.defect(Defect::StaleEpoch);
    caught("stale epoch, 2 ranks x 2 cores, one dispatch around another, weak", &stale(around().cores(2)));
    // It takes what the order does, two cores, and an operator between that has barriers.
    safe("2 ranks x 2 cores, one dispatch around another, weak", &around().cores(2));
    safe("stale epoch, 2 ranks x 1 core, one dispatch around another, weak", &stale(around()));
    let without = two("Ds0 Dr0 Cs0 Cr0").units(1).traffic(Traffic::NoSelf).cores(2);
    safe("stale epoch, 2 ranks x 2 cores, halves in turn, weak", &stale(without));
}

#[test]
fn ranks_with_other_orders_are_searched() {
    let name = "joint flags, 2 ranks x 1 core, a rank with halves without end, weak";
    safe_in_reuse(name, &two("DC|Ds Dr Cs Cr"));
    let name = "joint flags, 2 ranks x 1 core, one rank sends ahead, weak";
    safe_in_reuse(name, &two("D0 C0 D1 C1|Ds0 Dr0 Cs0 Ds1 Cr0 Dr1 C1"));
    let stuck = caught("2 ranks x 1 core, one rank holds a second batch, weak", &two("DCDC|DDCC"));
    assert_eq!(stuck.violation, Violation::Deadlock);
    let waits: Vec<_> = stuck.story.iter().rev().take(2).map(ToString::to_string).collect();
    assert_eq!(
        waits,
        [
            "rank 1, dispatch 1: missing: dispatch flag of rank 0 for local expert 0",
            "rank 0, combine 0: missing: combine flag of rank 1 for token 0, k 0"
        ]
    );
}

/// All orders in which so many batches are dispatched and combined, each in two halves, and dispatches begin in turn.
fn short_orders(batches: usize) -> Vec<String> {
    fn go_on(taken: &str, next: &[usize], all: &mut Vec<String>) {
        const PARTS: [&str; 4] = ["Ds", "Dr", "Cs", "Cr"];
        if next.iter().all(|&at| at == PARTS.len()) {
            all.push(taken.to_owned());
        }
        for (batch, &at) in next.iter().enumerate() {
            let is_next = batch == 0 || next[batch - 1] > 0;
            if let Some(part) = PARTS.get(at).filter(|_| is_next) {
                let mut after = next.to_vec();
                after[batch] += 1;
                go_on(&format!("{taken} {part}{batch}"), &after, all);
            }
        }
    }
    let mut all = Vec::new();
    go_on("", &vec![0; batches], &mut all);
    all
}

/// How often argument and search agree.
#[derive(Debug, Default)]
struct Counts {
    both_unsafe: usize,
    by_the_argument_alone: usize,
    safe: usize,
}

impl Counts {
    /// What the search finds unsafe the argument does, too.
    fn compare(&mut self, order: &str, partitions: [u32; 2]) {
        let [dispatch, combine] = partitions;
        let model = two(order).units(1).partitions(dispatch, combine).traffic(Traffic::NoSelf);
        let found = explore(&model);
        let orders = Orders::parse(order).unwrap();
        let argued = argue(Rules::a3(Receive::Copy), &orders, 2, partitions, Some(1));
        assert_eq!(argued.waits, [], "{order}");
        assert!(found.complete || found.counterexample.is_some(), "{order}");
        match (found.counterexample, &argued.gap) {
            (Some(timeline), None) => panic!("{order}, {partitions:?}\n{timeline}"),
            (Some(_), Some(_)) => self.both_unsafe += 1,
            (None, Some(_)) => self.by_the_argument_alone += 1,
            (None, None) => self.safe += 1,
        }
    }
}

#[test]
fn no_order_is_safe_by_the_argument_and_not_by_the_search() {
    let mut counts = Counts::default();
    // One partition is used again by the second of two batches, the first one of two by the third of three.
    for order in short_orders(2) {
        counts.compare(&order, [1, 2]);
        counts.compare(&order, [2, 1]);
    }
    let is_safe = |order: &String| {
        let orders = Orders::parse(order).unwrap();
        argue(Rules::a3(Receive::Copy), &orders, 2, [2, 2], Some(1)).gap.is_none()
    };
    let (safe, other): (Vec<_>, Vec<_>) = short_orders(3).into_iter().partition(is_safe);
    for order in safe.iter().step_by(safe.len().div_ceil(24)).chain(other.iter().step_by(97)) {
        counts.compare(order, [2, 2]);
    }
    line("explorer", "argument and search, orders of 2 and 3 batches", &format!("{counts:?}"));
    assert!(counts.both_unsafe > 60 && counts.safe > 20, "{counts:?}");
}
