//! Each order on which the explorer's searches rely, as a litmus test: every execution holds, and with a relaxed word one does
//! not. A new order does not compile here until it has a test.

use super::a2::{SENDS, tiny};
use super::litmus::{ANOTHER_CORE, FLAG_AFTER_DATA, REUSE, shape};
use ::loom::sync::Arc;
use ::loom::sync::atomic::AtomicU64;
use ::loom::thread;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use veriep_core::fabric::coherent::{OBSERVE, PUBLISH};
use veriep_core::shape::Shape;
use veriep_verify::defects::Defect;
use veriep_verify::loom::litmus::{self, Scripts, answer, count_flag};
use veriep_verify::loom::search::{Bound, failure, model};
use veriep_verify::order::Order;

/// Rank 2 puts to rank 1 and tells rank 0, which tells rank 1.
const HEARSAY: Scripts = &[
    (1, 0, |core| {
        core.await_flag(answer());
        core.expect_row(0);
    }),
    (0, 0, |core| {
        core.await_flag(count_flag());
        core.publish(1, answer());
    }),
    (2, 0, |core| {
        core.put(1, 0);
        core.publish(0, count_flag());
    }),
];

/// What shows an order, if it is one between cores alone.
fn of_cores(order: Order) -> Option<(Shape, Scripts)> {
    match order {
        Order::PutPublish => Some((shape(&[1, 1], 1), FLAG_AFTER_DATA)),
        Order::QuietBarrierPublish => Some((shape(&[1, 1], 2), ANOTHER_CORE)),
        Order::ClearQuietPublish => Some((shape(&[1, 1], 1), REUSE)),
        Order::Hearsay => Some((shape(&[1, 1, 1], 1), HEARSAY)),
        Order::TransferDoorbell | Order::TransferInOrder => None,
    }
}

#[test]
fn every_order_holds_in_every_execution() {
    for (order, expected) in
        Order::ALL.into_iter().zip([10..=14, 1_700..=2_200, 420..=530, 400..=500, 333..=408, 333..=408])
    {
        let name = format!("order {order:?}");
        match of_cores(order) {
            Some((shape, scripts)) => {
                model(&name, Bound::Complete, expected, litmus::litmus(shape, Defect::None, scripts))
            }
            None => model(&name, Bound::Complete, expected, super::a2::seam(tiny(), Defect::None, SENDS)),
        };
    }
}

fn fails(order: Order, of_agent: Defect, defect: Defect) {
    let name = format!("order {order:?}, {defect:?}");
    let how = match of_cores(order) {
        Some((shape, scripts)) => failure(&name, Bound::Complete, litmus::litmus(shape, defect, scripts)),
        None => failure(&name, Bound::Complete, super::a2::seam(tiny(), of_agent, SENDS)),
    };
    let seen = ["Concurrent", "Causality violation", "the row of a set flag", "the task behind a doorbell"];
    assert!(seen.iter().any(|seen| how.contains(seen)), "{order:?}: {how}");
}

/// On a memory weaker than total store order.
#[test]
fn catches_a_relaxed_word_in_every_order() {
    for order in Order::ALL {
        let [written, seen] = match order {
            Order::TransferInOrder => [Defect::RelaxedTransfer, Defect::RelaxedObserve],
            _ => [Defect::RelaxedDoorbell, Defect::RelaxedAgent],
        };
        fails(order, written, Defect::RelaxedPublish);
        fails(order, seen, Defect::RelaxedObserve);
    }
}

/// Two ranks publish a word each at rank 0, whose two cores look at both, in opposite order. That each finds the other word
/// still absent is an execution of loom: its memory has no order of stores that all readers share, so neither does any
/// machine need one that loom's models run.
#[test]
fn stores_of_two_ranks_have_no_order_common_to_all_readers() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    let body = || {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writer = |word: usize| {
            let words = Arc::clone(&words);
            thread::spawn(move || words[word].store(1, PUBLISH))
        };
        let reader = |first: usize| {
            let words = Arc::clone(&words);
            thread::spawn(move || words[first].load(OBSERVE) == 1 && words[1 - first].load(OBSERVE) == 0)
        };
        let writers = [writer(0), writer(1)];
        let opposite = [reader(0), reader(1)].map(|reader| reader.join().unwrap());
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        if opposite == [true, true] {
            SEEN.store(true, Relaxed);
        }
    };
    model("two writers, two readers in opposite order", Bound::Preemptions(0), 5..=20, body);
    assert!(SEEN.load(Relaxed), "loom's memory has one order of stores for all");
}
