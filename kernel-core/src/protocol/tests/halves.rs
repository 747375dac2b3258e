//! Operators in two halves, in every protocol, over memory as late as the contract allows.

use super::calls::{Case, cases, seeds};
use crate::fabric::ProtocolError;
use crate::protocol::{Choices, Gates, Operator, Receive, Ticket};
use crate::shape::{Product, Protocol, Shape};
use crate::sim::cluster::{Failure, Half, Order, Planned};
use crate::sim::seeded::Memory::Late;
use crate::sim::storage::{Dense, region_sizes};
use crate::testing::domain::Dice;
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
    let mut gates = Gates::new(&case.shape(), &case.choices);
    let mut open: Vec<(Operator, usize, Ticket)> = Vec::new();
    for planned in order {
        let Planned { operator, round, .. } = *planned;
        if planned.begins() {
            match gates.begin(operator, None) {
                Ok(ticket) => open.push((operator, round, ticket)),
                Err(error) => return Some((*planned, error)),
            }
        }
        if planned.ends() {
            let found = open.iter().position(|&(other, of, _)| (other, of) == (operator, round)).unwrap();
            gates.end(open.swap_remove(found).2);
        }
    }
    None
}

/// Runs an order on all ranks.
fn run(case: &Case, order: &[Planned], seed: u64) -> Result<(), Failure> {
    let rounds = order.iter().map(|planned| planned.round + 1).max().unwrap_or(0);
    let mut group = case.group(rounds, seed);
    group.operators = order.to_vec();
    // A batch in flight has outputs of its own.
    group.cluster.batches = 2;
    let sizes = region_sizes_of(&case.shape());
    group.memory.storage = Dense::new(sizes);
    group.play(Late, seed)
}

/// Returns the sizes of all ranks' regions, with outputs of two batches.
fn region_sizes_of(shape: &Shape) -> Vec<Vec<u64>> {
    (0..shape.ep_world_size()).map(|rank| region_sizes(shape, Some(RankId(rank)), 2)).collect()
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
        // The first two batches use each partition once.
        assert_eq!(planned.round, 2, "{what}");
    }
    let joint = &with_two_areas()[0];
    let unchecked = Case { choices: Choices { checked: false, ..joint.choices }, ..*joint };
    let order = times(BOTH_SENT, 6);
    let bad = (0..60).filter(|&seed| run(&unchecked, &order, seed) != Ok(())).count();
    assert!(bad > 0, "no run was wrong");
    // The usual overlap has no wrong run on the same memory.
    assert!((0..60).all(|seed| run(&unchecked, &times(OVERLAP, 6), seed) == Ok(())));
}

/// Returns an order of some batches, each of which takes its halves in their order.
fn any_order(dice: &mut Dice, batches: usize, in_flight: usize) -> Vec<Planned> {
    let parts = [
        (Operator::Dispatch, Half::Send),
        (Operator::Dispatch, Half::Receive),
        (Operator::Combine, Half::Send),
        (Operator::Combine, Half::Receive),
    ];
    let mut taken: Vec<usize> = Vec::new();
    let mut order = Vec::new();
    loop {
        let unfinished: Vec<_> = (0..taken.len()).filter(|&round| taken[round] < parts.len()).collect();
        let begins = taken.len() < batches && unfinished.len() < in_flight;
        let choices = unfinished.len() as u32 + u32::from(begins);
        if choices == 0 {
            return order;
        }
        let chosen = dice.below(choices) as usize;
        let round = unfinished.get(chosen).copied().unwrap_or_else(|| {
            taken.push(0);
            taken.len() - 1
        });
        let (operator, half) = parts[taken[round]];
        // Without handles, a combine is of the oldest batch.
        let is_overtaking =
            operator == Operator::Combine && (0..round).any(|older| taken[older] < taken[round] + 1);
        if !is_overtaking {
            taken[round] += 1;
            order.push(Planned { operator, round, half });
        } else if taken[round] == 0 {
            taken.pop();
        }
    }
}

#[test]
fn any_order_that_gates_allow_is_right() {
    let mut dice = Dice(7);
    let (mut right, mut refusals) = (0, 0);
    for case in with_two_areas() {
        for seed in 0..5 * seeds() {
            let order = any_order(&mut dice, 5, 2);
            if refused(&case, &order).is_some() {
                refusals += 1;
                continue;
            }
            let shown: Vec<String> = order.iter().map(|planned| format!("{planned}")).collect();
            assert_eq!(run(&case, &order, seed), Ok(()), "{}: {shown:?}", case.name);
            right += 1;
        }
    }
    assert!(right > 20 && refusals > 20, "{right} right, {refusals} refused");
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
