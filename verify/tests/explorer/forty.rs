//! Sixty orders, more than half of them with halves: the answer of the search, and the partitions that the argument counts.

use Answered::{Deadlock, Safe, Unknown, Unsafe};
use veriep_core::protocol::{Flags, Receive};
use veriep_verify::orders::Orders;
use veriep_verify::schedule::{Answer, Product, Question, Subject, answer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Safe,
    Unsafe,
    Deadlock,
    /// No search has such orders.
    Unknown,
}

/// A protocol with its numbers of partitions.
#[derive(Clone, Copy, Debug)]
struct Group {
    product: Product,
    server_ranks: u32,
    receive: Receive,
    flags: Flags,
    partitions: [u32; 2],
}

const A3: Group = Group {
    product: Product::A3,
    server_ranks: 1,
    receive: Receive::Copy,
    flags: Flags::Joint,
    partitions: [2, 2],
};
const SEPARATE: Group = Group { flags: Flags::Separate, ..A3 };
const IN_PLACE: Group = Group { receive: Receive::InPlace, ..A3 };
const ONE_AREA: Group = Group { receive: Receive::Direct { areas: 1 }, ..A3 };
const TWO_AREAS: Group = Group { receive: Receive::Direct { areas: 2 }, ..A3 };
const A2: Group = Group { product: Product::A2, ..A3 };
const NEAR: Group = Group { product: Product::Hierarchy, server_ranks: 2, ..A3 };
const FAR: Group = Group { product: Product::Hierarchy, ..A3 };

const fn with(group: Group, dispatch: u32, combine: u32) -> Group {
    Group { partitions: [dispatch, combine], ..group }
}

/// A group, an order and how often it runs (0: without end), the answer, and by region the partitions that it needs (0: no number is enough).
type Row = (Group, &'static str, u32, Answered, &'static [u32]);

const IN_TURN: &str = "Ds0 Dr0 Cs0 Cr0";
const OVERLAP: &str = "Ds1 Cs0 Dr1 Cr0";
const SEND_AHEAD: &str = "Cs0 Ds1 Cr0 Dr1";
const BOTH_SENT: &str = "Ds0 Ds1 Dr0 Dr1 C0 C1";

const FORTY: &[Row] = &[
    (A3, "DC", 0, Safe, &[2, 1]),
    (with(A3, 2, 1), "DC", 0, Safe, &[2, 1]),
    (with(A3, 1, 2), "DC", 0, Unsafe, &[2, 1]),
    (A3, "DDCC", 2, Safe, &[2, 2]),
    (with(A3, 2, 1), "DDCC", 0, Unsafe, &[2, 2]),
    (A3, "DDDCCC", 0, Unsafe, &[2, 3]),
    (with(A3, 2, 3), "DDDCCC", 1, Safe, &[2, 3]),
    (A3, "D", 1, Safe, &[1, 1]),
    (IN_PLACE, "DDCC", 2, Safe, &[2, 2]),
    (IN_PLACE, "DDDCCC", 0, Unsafe, &[3, 3]),
    (ONE_AREA, "DC", 0, Safe, &[2, 1, 1]),
    (ONE_AREA, "DDCC", 0, Unsafe, &[2, 2, 2]),
    (A2, "DC", 0, Safe, &[2]),
    (with(A2, 1, 1), "DC", 0, Unsafe, &[2]),
    (NEAR, "DC", 0, Safe, &[2]),
    (with(FAR, 1, 1), "DC", 0, Unsafe, &[2]),
    (A3, "DCDC|DDCC", 0, Deadlock, &[2, 2]),
    (A3, "DDCC|DCDC", 0, Deadlock, &[2, 2]),
    (A3, "DC|D", 1, Deadlock, &[1, 1]),
    (A3, "DC|CD", 1, Deadlock, &[1, 1]),
    (A3, IN_TURN, 0, Safe, &[2, 1]),
    (with(A3, 2, 1), IN_TURN, 0, Safe, &[2, 1]),
    (with(A3, 1, 2), IN_TURN, 0, Unsafe, &[2, 1]),
    (A3, OVERLAP, 2, Safe, &[2, 2]),
    (with(A3, 2, 1), OVERLAP, 0, Unsafe, &[2, 2]),
    (A3, SEND_AHEAD, 2, Safe, &[2, 2]),
    (with(A3, 2, 1), SEND_AHEAD, 0, Unsafe, &[2, 2]),
    (A3, BOTH_SENT, 0, Unsafe, &[4, 2]),
    (with(A3, 3, 2), BOTH_SENT, 0, Unsafe, &[4, 2]),
    (with(A3, 4, 2), BOTH_SENT, 2, Safe, &[4, 2]),
    (A3, "Ds1 Dr0 C0", 0, Unsafe, &[4, 2]),
    (IN_PLACE, OVERLAP, 2, Safe, &[2, 2]),
    (TWO_AREAS, OVERLAP, 1, Safe, &[2, 2, 2]),
    (ONE_AREA, OVERLAP, 0, Unsafe, &[2, 2, 2]),
    (A2, IN_TURN, 0, Safe, &[2]),
    (with(A2, 1, 1), IN_TURN, 0, Unsafe, &[2]),
    (A2, OVERLAP, 0, Unknown, &[0]),
    (NEAR, IN_TURN, 0, Safe, &[2]),
    (FAR, BOTH_SENT, 0, Unknown, &[0]),
    (A3, "Ds0 Dr0 Cs0 Cr0 D1 C1|DDCC", 0, Deadlock, &[2, 2]),
];

/// As users may write them: from docs/operate/schedule.md alone.
const TEN: &[Row] = &[
    (A3, "DC|Ds Dr Cs Cr", 0, Safe, &[2, 1]),
    (A3, "D Cs D Cr C", 1, Safe, &[2, 2]),
    (A3, "Ds Dr C", 0, Safe, &[2, 1]),
    (A3, "D Cs Cr", 0, Safe, &[2, 1]),
    (A3, "DD Cs Cs Cr Cr", 1, Safe, &[2, 2]),
    (A3, "D0 D1 C0 C1|D0 D1 C1 C0", 1, Deadlock, &[0, 0]),
    (A3, "D0 C0 D1 C1|Ds0 Dr0 Cs0 Ds1 Cr0 Dr1 C1", 1, Safe, &[2, 2]),
    (A3, "Ds0 Ds1 Ds2 Dr0 Dr1 Dr2 C0 C1 C2", 1, Unsafe, &[3, 3]),
    (FAR, "Ds Dr Cs Cr", 0, Safe, &[2]),
    (IN_PLACE, "Ds Dr C", 0, Safe, &[2, 1]),
];

/// Halves that enclose others, halves that stay open, ranks that take unequal orders, loops, and separate flags.
const TEN_MORE: &[Row] = &[
    (SEPARATE, OVERLAP, 1, Safe, &[2, 2]),
    (with(SEPARATE, 2, 1), "DDCC", 0, Unsafe, &[2, 2]),
    (A3, "D0 Ds1 C0 Dr1 C1", 1, Safe, &[2, 2]),
    (A3, "Ds0 Dr0 D1 Cs0 Cs1 Cr1 Cr0", 1, Safe, &[2, 2]),
    (with(A3, 4, 2), "Ds0 Ds1 Dr1 Dr0 C0 C1", 1, Safe, &[2, 2]),
    (A3, "D2 C0", 2, Unsafe, &[2, 3]),
    (A3, "D1 Cs0 Cr0", 2, Safe, &[2, 2]),
    (A3, "Cs0 D1 Cr0", 2, Safe, &[2, 2]),
    (A3, "Ds|Ds Dr C", 1, Deadlock, &[1, 1]),
    (A3, "Ds Dr|D", 1, Safe, &[1, 1]),
];

fn asked(&(group, order, rounds, ..): &Row) -> Answer {
    let Group { product, server_ranks, receive, flags, partitions } = group;
    let question = Question {
        product,
        subject: Subject::Machines,
        orders: Orders::parse(order).unwrap(),
        operators: order.to_owned(),
        server_ranks,
        partitions,
        receive,
        flags,
        ranks: 2,
        rounds: (rounds > 0).then_some(rounds),
        states_max: 400_000,
        stop: || false,
    };
    answer(&question, None)
}

fn answered(answer: &Answer) -> Option<Answered> {
    match answer {
        Answer { deadlock: true, .. } => Some(Deadlock),
        Answer { searched: false, .. } => Some(Unknown),
        Answer { safe: false, .. } => Some(Unsafe),
        Answer { complete: true, .. } => Some(Safe),
        _ => None,
    }
}

fn assert_rows(rows: &[Row]) {
    let mut wrong = Vec::new();
    for row in rows {
        let &(group, order, rounds, expected, needs) = row;
        let found = asked(row);
        let counted: Vec<_> = found.argued.needs.iter().map(|need| need.partitions.unwrap_or(0)).collect();
        if (answered(&found), &counted[..]) != (Some(expected), needs) {
            let states = found.states;
            wrong.push(format!(
                "{group:?}, {order} x {rounds}: {:?} {counted:?}, {states} states",
                answered(&found)
            ));
        }
        // The argument says of a safe order that it is, and names those who wait.
        assert!(expected != Safe || found.argued.gap.is_none(), "{order}: {:?}", found.argued.gap);
        assert!(expected != Unsafe || found.argued.gap.is_some(), "{order}");
        let waits = &found.argued.waits;
        assert!(
            if expected == Deadlock { !waits.is_empty() } else { expected != Safe || waits.is_empty() },
            "{order}: {waits:?}"
        );
        // A counterexample is beside each bad answer of a search.
        assert_eq!(found.counterexample.is_empty(), found.safe || !found.searched, "{order}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn forty_orders_have_their_answers() {
    assert_eq!(FORTY.len(), 40);
    let halves = FORTY.iter().filter(|row| Orders::parse(row.1).unwrap().has_halves());
    assert_eq!(halves.count(), 20);
    assert_rows(FORTY);
}

#[test]
fn ten_more_orders_have_their_answers() {
    assert_eq!(TEN.len(), 10);
    assert_rows(TEN);
}

#[test]
fn ten_orders_of_open_and_unequal_halves_have_their_answers() {
    assert_eq!(TEN_MORE.len(), 10);
    assert_rows(TEN_MORE);
}
