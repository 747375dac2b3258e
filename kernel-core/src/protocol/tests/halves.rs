//! Operators in two halves, in every protocol, over memory as late as the contract allows.

use super::calls::{Case, cases, seeds};
use crate::fabric::ProtocolError;
use crate::protocol::{Choices, Gates, Operator, Receive, Ticket};
use crate::shape::{Product, Protocol, Shape};
use crate::sim::cluster::{Failure, Half, Order, Planned, refused_by};
use crate::sim::seeded::Memory::Late;
use crate::sim::storage::{Dense, region_sizes};
use crate::testing::domain::Dice;
use crate::testing::group::Group;
use crate::units::RankId;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The order in which frameworks overlap two batches.
const OVERLAP: &str = "Ds1 Cs0 Dr1 Cr0";
/// Two dispatches are sent before the first is received.
const BOTH_SENT: &str = "Ds0 Ds1 Dr0 Dr1 C0 C1";

/// Returns the first half that the gates of a rank refuse, and why, if all ranks take this order.
fn refused(case: &Case, order: &[Planned]) -> Option<(Planned, ProtocolError)> {
    let gates = &mut Gates::new(&case.shape(), &case.choices);
    refused_by(gates, order).map(|(place, error)| (order[place], error))
}

/// Returns a group whose ranks all take this order.
fn group_of(case: &Case, order: &[Planned], seed: u64) -> Group {
    let rounds = order.iter().map(|planned| planned.round + 1).max().unwrap_or(0);
    let mut group = case.group(rounds, seed);
    group.operators = order.to_vec();
    // A batch in flight has outputs of its own.
    group.cluster.batches = 6;
    let sizes = region_sizes_of(&case.shape());
    group.memory.storage = Dense::new(sizes);
    group
}

fn run(case: &Case, order: &[Planned], seed: u64) -> Result<(), Failure> {
    group_of(case, order, seed).play(Late, seed)
}

/// Returns the sizes of all ranks' regions, with outputs of six batches.
fn region_sizes_of(shape: &Shape) -> Vec<Vec<u64>> {
    (0..shape.ep_world_size()).map(|rank| region_sizes(shape, Some(RankId(rank)), 6)).collect()
}

/// Returns the cases, with an area for each of two batches.
fn with_two_areas() -> Vec<Case> {
    let two = |mut case: Case| {
        case.choices.receive = case.choices.receive.with_batches(2);
        case
    };
    cases().into_iter().map(two).collect()
}

fn times(text: &str, times: usize) -> Vec<Planned> {
    Order::parse(text).unwrap().times(times)
}

fn is_a2(case: &Case) -> bool {
    case.shape().product() == Product::A2
}

#[test]
fn halves_one_after_the_other_are_the_operator() {
    for case in with_two_areas() {
        let what = format!("{}, {} cores", case.name, case.config.aiv_num);
        let order = times("Ds0 Dr0 Cs0 Cr0", 5);
        assert_eq!(refused(&case, &order), None, "{what}");
        for seed in 0..4 {
            assert_eq!(run(&case, &order, seed), Ok(()), "{what}, seed {seed}");
        }
    }
}

#[test]
fn the_usual_overlap_is_right_where_gates_allow_it() {
    let mut allowed = Vec::new();
    for case in with_two_areas() {
        let what = format!("{}, {} cores", case.name, case.config.aiv_num);
        let order = times(OVERLAP, 5);
        match refused(&case, &order) {
            Some((_, ProtocolError::Given(_))) => continue,
            Some(other) => panic!("{what}: {other:?}"),
            None => allowed.push(case.name),
        }
        for seed in 0..seeds() {
            assert_eq!(run(&case, &order, seed), Ok(()), "{what}, seed {seed}");
        }
    }
    let once =
        ["joint flags", "separate flags", "in place", "direct placement", "overwriting", "fullmesh_v2"];
    assert_eq!(allowed, [once, once].concat());
}

/// A rank passes barriers of another dispatch between the halves.
#[test]
fn catches_a_core_that_goes_on_from_an_old_barrier() {
    let cases = with_two_areas();
    let caught = |text, stale| -> Vec<&str> {
        let order = times(text, 1);
        let with_barriers = cases.iter().filter(|case| case.config.aiv_num > 1 && !is_a2(case));
        // Gates refuse two open dispatches; once, their memory is new, but with direct placement the second clears words of the first.
        let allowed = with_barriers.filter(|case| text != BOTH_SENT || !case.choices.receive.is_direct());
        let is_wrong = |case: &&Case| {
            (0..12).any(|seed| {
                let mut group = group_of(case, &order, seed);
                group.cluster.stale = stale;
                group.play(Late, seed) != Ok(())
            })
        };
        allowed.filter(is_wrong).map(|case| case.name).collect()
    };
    // What separate flags and direct placement do after they have sent needs no other core, but a pull combine meets them.
    for (text, seen) in [
        (BOTH_SENT, ["joint flags", "in place", "fullmesh_v2"].as_slice()),
        ("Cs0 D1 Cr0", &["direct placement", "overwriting"]),
    ] {
        assert_eq!((caught(text, true), caught(text, false)), (seen.to_vec(), Vec::new()), "{text}");
    }
}

/// What the gates refuse corrupts or hangs, at least in some run.
#[test]
fn two_dispatches_sent_before_the_first_is_received_are_refused_in_time() {
    for case in with_two_areas().iter().filter(|case| !is_a2(case)) {
        let what = format!("{}, {} cores", case.name, case.config.aiv_num);
        let order = times(BOTH_SENT, 3);
        let Some((planned, ProtocolError::Given(_))) = refused(case, &order) else {
            panic!("{what}: nothing is refused")
        };
        assert_eq!((planned.operator, planned.half), (Operator::Dispatch, Half::Send), "{what}");
        assert_eq!(planned.round, 1, "{what}");
    }
    let joint = &with_two_areas()[0];
    let unchecked = Case { choices: Choices { checked: false, ..joint.choices }, ..*joint };
    let order = times(BOTH_SENT, 6);
    let bad = (0..60).filter(|&seed| run(&unchecked, &order, seed) != Ok(())).count();
    assert!(bad > 0, "no run was wrong");
    // The usual overlap has no wrong run on the same memory.
    assert!((0..60).all(|seed| run(&unchecked, &times(OVERLAP, 6), seed) == Ok(())));
}

/// The parts of a batch, in their order.
const PARTS: [(Operator, Half); 4] = [
    (Operator::Dispatch, Half::Send),
    (Operator::Dispatch, Half::Receive),
    (Operator::Combine, Half::Send),
    (Operator::Combine, Half::Receive),
];

/// A batch whose next part is number `taken`.
#[derive(Clone, Copy, Default)]
struct Batch {
    taken: usize,
    /// The tickets of its operators that have begun.
    tickets: [Option<Ticket>; 2],
}

impl Batch {
    fn take(&mut self, gates: &mut Gates) -> Result<(Operator, Half), ProtocolError> {
        let (operator, half) = PARTS[self.taken];
        let [dispatch, combine] = &mut self.tickets;
        match (operator, half) {
            (Operator::Dispatch, Half::Send) => *dispatch = Some(gates.begin(operator, None)?),
            (Operator::Combine, Half::Send) => *combine = Some(gates.begin(operator, *dispatch)?),
            (Operator::Dispatch, _) => gates.end(dispatch.unwrap()),
            (Operator::Combine, _) => gates.end(combine.unwrap()),
        }
        self.taken += 1;
        Ok((operator, half))
    }
}

/// Returns an order that gates allow of so many batches, at most three in flight, and how many parts they refused on the way.
fn allowed_order(case: &Case, dice: &mut Dice, batches: usize) -> (Vec<Planned>, usize) {
    let mut gates = Gates::new(&case.shape(), &case.choices);
    let (mut open, mut order, mut refusals) = (Vec::<Batch>::new(), Vec::new(), 0);
    loop {
        let mut next: Vec<usize> = (0..open.len()).filter(|&n| open[n].taken < PARTS.len()).collect();
        if open.len() < batches && next.len() < 3 {
            next.push(open.len());
        }
        if next.is_empty() {
            return (order, refusals);
        }
        let first = dice.below(next.len() as u32) as usize;
        next.rotate_left(first);
        let mut taken = None;
        for round in next {
            let mut batch = open.get(round).copied().unwrap_or_default();
            match batch.take(&mut gates) {
                Ok(part) => {
                    taken = Some((round, batch, part));
                    break;
                }
                Err(_) => refusals += 1,
            }
        }
        // With three batches dispatched, the third combine needs a dispatch before it.
        let Some((round, batch, (operator, half))) = taken else { return (order, refusals) };
        order.push(Planned { operator, round, half });
        if round == open.len() { open.push(batch) } else { open[round] = batch }
    }
}

#[test]
fn any_order_that_gates_allow_is_right() {
    let mut dice = Dice(7);
    let mut refusals = 0;
    for case in with_two_areas() {
        for seed in 0..5 * seeds() {
            let (order, refused) = allowed_order(&case, &mut dice, 6);
            refusals += refused;
            let shown: Vec<String> = order.iter().map(|planned| format!("{planned}")).collect();
            assert_eq!(run(&case, &order, seed), Ok(()), "{}: {shown:?}", case.name);
        }
    }
    assert!(refusals > 1000, "only {refusals} refusals");
}

/// Without tickets a combine is of the oldest dispatch that no other has combined.
#[test]
fn two_open_combines_are_of_two_dispatches() {
    use Operator::{Combine, Dispatch};
    for receive in [Receive::InPlace, Receive::Direct { areas: 2 }, Receive::Overwrite { areas: 2 }] {
        let case = Case { choices: Choices { receive, ..Choices::default() }, ..cases().remove(0) };
        let mut gates = Gates::new(&case.shape(), &case.choices);
        for _ in 0..4 {
            for _ in 0..2 {
                let ticket = gates.begin(Dispatch, None).unwrap();
                gates.end(ticket);
            }
            let [first, second] = [(), ()].map(|()| gates.begin(Combine, None).unwrap());
            assert!(gates.begin(Combine, None).is_err(), "{receive:?}: a third combine of two dispatches");
            gates.end(second);
            // The rows of the first are still in use.
            assert!(gates.begin(Dispatch, None).is_err(), "{receive:?}");
            gates.end(first);
            // Ended once more, it frees nothing.
            let next = gates.begin(Dispatch, None).unwrap();
            gates.end(first);
            assert!(gates.begin(Dispatch, None).is_err(), "{receive:?}: not received");
            gates.end(next);
            let ticket = gates.begin(Combine, None).unwrap();
            gates.end(ticket);
        }
    }
}

/// However rows are received, a combine begins when its dispatch has been, and once.
#[test]
fn a_combine_waits_for_its_dispatch() {
    use Operator::{Combine, Dispatch};
    for case in cases() {
        let mut gates = Gates::new(&case.shape(), &case.choices);
        assert!(gates.begin(Combine, None).is_err(), "{:?}: no dispatch", case.choices);
        for _ in 0..40 {
            let dispatch = gates.begin(Dispatch, None).unwrap();
            assert!(gates.begin(Combine, None).is_err(), "{:?}: not received", case.choices);
            gates.end(dispatch);
            let combine = gates.begin(Combine, None).unwrap();
            gates.end(dispatch);
            gates.end(combine);
            assert!(gates.begin(Combine, None).is_err(), "{:?}: combined already", case.choices);
        }
    }
}

/// A copy of a ticket whose operator has ended does not end the one that uses its partition again.
#[test]
fn an_old_ticket_ends_nothing() {
    use Operator::Dispatch;
    let case = cases().remove(0);
    let mut gates = Gates::new(&case.shape(), &case.choices);
    let old = gates.begin(Dispatch, None).unwrap();
    gates.end(old);
    let second = gates.begin(Dispatch, None).unwrap();
    gates.end(second);
    let third = gates.begin(Dispatch, None).unwrap();
    gates.end(old);
    assert!(gates.begin(Dispatch, None).is_err(), "not received");
    gates.end(third);
    assert!(gates.begin(Dispatch, None).is_ok());
}

#[test]
fn whole_operators_are_judged_as_schedules_are() {
    let of = |receive| Choices { receive, ..Choices::default() };
    for (receive, text, is_safe) in [
        (Receive::Copy, "DC", true),
        (Receive::Copy, "DDCC", true),
        (Receive::Copy, "DDDCCC", false),
        (Receive::InPlace, "DDCC", true),
        (Receive::InPlace, "DDDCCC", false),
        (Receive::Direct { areas: 1 }, "DC", true),
        (Receive::Direct { areas: 1 }, "DDCC", false),
        (Receive::Direct { areas: 2 }, "DDCC", true),
    ] {
        let case = Case { choices: of(receive), ..cases().remove(0) };
        assert_eq!(refused(&case, &times(text, 4)).is_none(), is_safe, "{text}, {receive:?}");
    }
    for case in cases().iter().filter(|case| is_a2(case)) {
        assert!(refused(case, &times("DDDCCC", 4)).is_none(), "{}", case.name);
        let last = refused(case, &times(OVERLAP, 4)).map(|(planned, _)| planned);
        assert_eq!(last.map(|planned| planned.operator), Some(Operator::Combine), "{}", case.name);
    }
    assert!(cases().iter().any(|case| case.shape().protocol() == Protocol::Hierarchy));
}
