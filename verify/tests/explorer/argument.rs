//! The argument by gates: what it says of orders, and that the gates of a rank agree.

use core::iter;
use veriep_core::protocol::{Choices, Flags, Gates, Operator, Receive};
use veriep_core::sim::order::{Half, Order, Planned, refused_by};
use veriep_verify::argument::{Argued, Partitions, Rules, argue};
use veriep_verify::explorer::Model;
use veriep_verify::orders::Orders;

const A3: Rules = Rules::a3(Receive::Copy);

fn orders(text: &str) -> Orders {
    Orders::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// Argues without end if the orders repeat.
fn argued(rules: Rules, text: &str, partitions: Partitions) -> Argued {
    let orders = orders(text);
    let rounds = if orders.repeat() { None } else { Some(1) };
    argue(rules, &orders, orders.len().max(2), partitions, rounds)
}

fn needs(rules: Rules, text: &str) -> Vec<Option<u32>> {
    argued(rules, text, [2, 2]).needs.iter().map(|need| need.partitions).collect()
}

#[test]
fn the_partitions_that_an_order_needs_are_counted() {
    for (text, dispatch, combine) in [
        ("DC", 2, 1),
        ("DDCC", 2, 2),
        ("DDDCCC", 2, 3),
        ("DDDDCCCC", 2, 4),
        ("Ds0 Dr0 Cs0 Cr0", 2, 1),
        ("Ds1 Cs0 Dr1 Cr0", 2, 2),
        ("Ds0 Ds1 Dr0 Dr1 C0 C1", 4, 2),
        ("Ds1 Dr0 C0", 4, 2),
    ] {
        assert_eq!(needs(A3, text), [Some(dispatch), Some(combine)], "{text}");
        assert_eq!(argued(A3, text, [dispatch, combine]).gap, None, "{text}");
        let fewer = [[dispatch - 1, combine], [dispatch, combine - 1]];
        for fewer in fewer.into_iter().filter(|fewer| !fewer.contains(&0)) {
            assert!(argued(A3, text, fewer).gap.is_some(), "{text}, {fewer:?}");
        }
    }
    assert_eq!(needs(Rules::a2(false), "DC"), [Some(2)]);
    assert_eq!(needs(Rules::a2(false), "Ds1 Cs0 Dr1 Cr0"), [None]);
    assert_eq!(needs(Rules::a3(Receive::InPlace), "DDDCCC"), [Some(3), Some(3)]);
    assert_eq!(needs(Rules::a3(Receive::Direct { areas: 2 }), "DC"), [Some(2), Some(1), Some(1)]);
    assert_eq!(needs(Rules::a3(Receive::Direct { areas: 2 }), "DDCC"), [Some(2), Some(2), Some(2)]);
}

#[test]
fn a_gap_is_named() {
    let said = |rules, text| argued(rules, text, [2, 2]).gap.unwrap().to_string();
    assert_eq!(
        said(A3, "DDDCCC"),
        "no gate is between combine 0 of rank 1 and combine 2 of rank 0, which use one partition of combine"
    );
    assert_eq!(
        said(A3, "Ds0 Ds1 Dr0 Dr1 C0 C1"),
        "no gate is between dispatch 0 of rank 1 and dispatch 2 of rank 0, which use one partition of dispatch"
    );
    assert_eq!(
        said(Rules::a2(true), "Ds1 Cs0 Dr1 Cr0"),
        "rank 0 begins combine 0 before it has ended dispatch 1: on A2 one must end before the next begins"
    );
    assert_eq!(
        said(Rules::a3(Receive::InPlace), "DDDCCC"),
        "rank 0 begins dispatch 2 before it has ended combine 0, whose rows lie there"
    );
    assert_eq!(
        said(A3, "D0 D1 C0 C1|D0 D1 C1 C0"),
        "combine 0 of rank 0 and combine 1 of rank 1 have one number, and use one partition"
    );
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    let said = |rules, text| -> Vec<_> {
        argued(rules, text, [2, 2]).waits.iter().map(ToString::to_string).collect()
    };
    for text in [
        "DC",
        "DDCC",
        "Ds1 Cs0 Dr1 Cr0",
        "Ds0 Ds1 Dr0 Dr1 C0 C1",
        "DC|Ds Dr Cs Cr",
        "D0 D1 C0 C1|D0 Ds1 C0 Dr1 C1",
    ] {
        assert_eq!(said(A3, text), [""; 0], "{text}");
    }
    assert_eq!(
        said(A3, "DCDC|DDCC"),
        ["rank 0 waits in combine 0 for rank 1", "rank 1 waits in dispatch 1 for rank 0"]
    );
    assert_eq!(said(A3, "DC|D"), ["rank 0 waits in combine 0 for rank 1, which has ended its order"]);
    assert_eq!(
        said(A3, "DC|CD"),
        ["rank 0 waits in dispatch 0 for rank 1", "rank 1 waits in combine 0 for its own dispatch"]
    );
    // Sent before the dispatch: then the other one may receive it.
    let sent = "Ds0 Dr0 Cs0 Ds1 Cr0 Dr1 C1|DDCC";
    assert_eq!(said(A3, sent), [""; 0]);
    assert_eq!(
        said(A3, "Ds0 Dr0 Cs0 Cr0 D1 C1|DDCC"),
        ["rank 0 waits in receiving half of combine 0 for rank 1", "rank 1 waits in dispatch 1 for rank 0"]
    );
    // With separate flags a sending half awaits counts.
    let separate = Rules { flags: Flags::Separate, ..A3 };
    let late = "Ds0 Ds1 Dr0 C0 Dr1 C1|D0 C0 D1 C1";
    assert_eq!(said(A3, late).len(), 0);
    assert_eq!(
        said(separate, late),
        ["rank 0 waits in sending half of dispatch 1 for rank 1", "rank 1 waits in combine 0 for rank 0"]
    );
}

/// Whole numbers that look random.
fn random(seed: u64) -> impl Iterator<Item = u64> {
    iter::successors(Some(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1), |&last| {
        let mut next = last ^ last << 13;
        next ^= next >> 7;
        Some(next ^ next << 17)
    })
}

/// An order in which so many batches are begun and ended, each step drawn from all that may come.
fn drawn(batches: usize, seed: u64) -> Vec<Planned> {
    let parts = [
        (Operator::Dispatch, Half::Send),
        (Operator::Dispatch, Half::Receive),
        (Operator::Combine, Half::Send),
        (Operator::Combine, Half::Receive),
    ];
    let (mut next, mut taken) = (vec![0; batches], Vec::new());
    let mut dice = random(seed);
    while taken.len() < 4 * batches {
        let drawn = dice.next().unwrap_or(0) >> 16;
        let round = (drawn % batches as u64) as usize;
        // Mostly the oldest ones, or hardly an order would be safe.
        let round = if drawn >> 8 & 3 > 0 { next.iter().position(|&n| n < 4).unwrap_or(0) } else { round };
        // Dispatches begin in order: their batches are numbered so.
        let is_next = next[round] > 0 || next[..round].iter().all(|&n| n > 0);
        if let Some(&(operator, half)) = parts.get(next[round]).filter(|_| is_next) {
            taken.push(Planned { operator, round, half });
            next[round] += 1;
        }
    }
    taken
}

fn text_of(taken: &[Planned]) -> String {
    let part = |part: &Planned| {
        let letter = if part.is_dispatch() { 'D' } else { 'C' };
        format!("{letter}{}{} ", ["", "s", "r"][part.half as usize], part.round)
    };
    taken.iter().map(part).collect()
}

/// Whether a dispatch is sent before the one before it has been received.
fn has_two_open(taken: &[Planned]) -> bool {
    let mut open = false;
    taken.iter().filter(|part| part.is_dispatch()).any(|part| {
        let again = open && part.begins();
        open = part.begins() && !part.ends();
        again
    })
}

#[test]
fn the_argument_agrees_with_the_gates_of_a_rank() {
    let a3 = |receive| (Model::new(2, "DC").shape(), Rules::a3(receive), receive);
    let a2 = (Model::new(2, "DC").a2().shape(), Rules::a2(false), Receive::Copy);
    for (shape, rules, receive) in [
        a3(Receive::Copy),
        a3(Receive::InPlace),
        a3(Receive::Direct { areas: 1 }),
        a3(Receive::Direct { areas: 2 }),
        a3(Receive::Overwrite { areas: 2 }),
        a2,
    ] {
        let gates = Gates::new(&shape, &Choices { receive, ..Choices::default() });
        let (mut safe, mut unsafe_) = (0, 0);
        for seed in 0..3000 {
            let taken = drawn(2 + (seed % 4) as usize, seed);
            let text = text_of(&taken);
            let orders = orders(&text);
            assert_eq!(orders.of(0).times(1), taken, "{text}");
            let argued = argue(rules, &orders, 2, [2, 2], Some(1));
            let refused = refused_by(&mut gates.clone(), &taken).is_some();
            // A rank also refuses to send two dispatches before it has received the first: once, that harms nothing, but no later one
            // could ever begin.
            let ends_badly = argued.gap.is_some() || has_two_open(&taken);
            assert_eq!(ends_badly, refused, "{rules:?}: {text}: {:?}", argued.gap);
            assert_eq!(argued.waits, [], "{text}");
            if refused { unsafe_ += 1 } else { safe += 1 }
        }
        assert!(safe > 20 && unsafe_ > 20, "{rules:?}: {safe} safe, {unsafe_} not");
    }
}

#[test]
fn ranks_have_one_order_or_one_each() {
    let one = Orders::parse("DC|DC").unwrap();
    assert!(one.is_one() && one.repeat() && !one.overlaps());
    let two = Orders::parse("DCDC | DDCC").unwrap();
    assert_eq!((two.len(), two.depth(), two.repeat()), (2, 2, true));
    assert_eq!(two.of(1), &Order::parse("DDCC").unwrap());
    assert!(!Orders::parse("DC|D").unwrap().repeat());
    assert!(Orders::parse("DC|CD").unwrap().has_self_wait());
    assert_eq!(Orders::parse("CD").unwrap_err(), "combine 0 has no dispatch to combine");
    assert_eq!(
        Orders::parse("DC|DX").unwrap_err(),
        "order \"DX\" of rank 1: 'X' at position 1: must be D or C"
    );
}

#[test]
fn open_operators_are_counted() {
    for (text, open, depth) in [
        ("DC", 0, 1),
        ("Ds Dr Cs Cr", 0, 1),
        ("Ds1 Cs0 Dr1 Cr0", 1, 2),
        ("Ds0 Ds1 Dr0 Dr1 C0 C1", 1, 2),
        ("Ds0 Ds1 Ds2 Dr0 Dr1 Dr2 C0 C1 C2", 2, 3),
        ("Ds2 Cs1 Dr2 Cr1", 1, 2),
        ("DDC", 0, 2),
    ] {
        let orders = Orders::parse(text).unwrap();
        assert_eq!((orders.most_open(), orders.depth()), (open, depth), "{text}");
    }
    assert!(Orders::parse("DDCC").unwrap().are_in_order());
    assert!(!Orders::parse("D0 D1 C1 C0").unwrap().are_in_order());
}
