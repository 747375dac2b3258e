//! A rank that stands still for any time: no rank overwrites what it has still to read, and no rank gets further than the
//! next operator. Tested for every rank of three, at every step of its core.

use super::{TWO, a2, plain_result, random_rounds, routed};
use crate::layout::a2_message::{Task, task_word};
use crate::layout::a2_window::{FLAG1, sent_bytes, tail_flag, window, window_in, window_out};
use crate::layout::state::{Operator, Partition};
use crate::shape::Shape;
use crate::sim::FlightId;
use crate::sim::cluster::{Failure, schedule};
use crate::sim::duty::{Double, Duty, Words};
use crate::testing::domain::{Dice, Domain, OwnedMask, Tensors, row, shape as shape_of};
use crate::testing::group::Group;
use crate::units::RankId;
use alloc::format;
use alloc::vec::Vec;

const RANKS: u32 = 3;
/// The parts of a rank that stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Still {
    /// The core of the rank.
    Core,
    /// The core and its agent.
    Agent,
    /// The core, its agent, and all transfers to the rank.
    Transfers,
}

/// The progress of the other ranks at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// They have gone as far as they can, at each of its steps.
    Ahead,
    /// They have gone no further than the rank needs.
    Behind,
}

const WAYS: [(Still, Pace); 4] = [
    (Still::Core, Pace::Ahead),
    (Still::Core, Pace::Behind),
    (Still::Agent, Pace::Ahead),
    (Still::Transfers, Pace::Behind),
];

#[derive(Clone, Copy, Debug)]
struct Trial {
    rank: RankId,
    still: Still,
    pace: Pace,
    /// The number of the core's steps before it freezes.
    steps: usize,
    /// The last operator in which the rank is frozen.
    last: usize,
}

/// The result of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The operators ended within that number of steps.
    Over,
    /// The rank was frozen; `in_next` if another rank reached the next operator.
    Frozen { in_next: bool },
}

impl Trial {
    fn is_core_of(self, group: &Group, actor: usize) -> bool {
        actor < group.cores() && group.actors[actor].member == self.rank
    }

    /// Returns whether an actor moves while the rank is frozen.
    fn moves(self, group: &Group, actor: usize) -> bool {
        let agent = group.cores() + self.rank.index();
        !self.is_core_of(group, actor) && (self.still == Still::Core || actor != agent)
    }

    fn lands(self, group: &Group, transfer: FlightId) -> bool {
        let to = group.memory.flight(transfer).map(|flight| flight.to);
        self.still != Still::Transfers || to != Some(self.rank)
    }

    /// Steps to the point, freezes the rank, runs all others until none moves, and thaws it.
    fn run(self, group: &mut Group) -> Result<Seen, Failure> {
        group.begin_all();
        for _ in 0..self.steps {
            self.step(group)?;
            if group.members[self.rank.index()].ended > self.last {
                return Ok(Seen::Over);
            }
        }
        let number = group.members[self.rank.index()].ended;
        // The others first complete this operator's writes; afterwards nothing may change.
        rest(
            group,
            |group, actor| {
                let member = group.actors[actor].member;
                let ahead = actor < group.cores() && group.members[member.index()].ended > number;
                self.moves(group, actor) && !ahead
            },
            |group, transfer| self.lands(group, transfer),
        )?;
        let before = self.needed(group, number);
        let moved = rest(
            group,
            |group, actor| self.moves(group, actor),
            |group, transfer| self.lands(group, transfer),
        );
        if self.needed(group, number) != before {
            return Err(Failure::Wrong(format!("what operator {number} needs was written")));
        }
        moved?;
        let furthest = group.members.iter().map(|rank| rank.ended).max().unwrap_or(0);
        if furthest > number + 1 {
            return Err(Failure::Wrong(format!("operator {furthest} begun while {number} is not ended")));
        }
        rest(group, |_, _| true, |_, _| true)?;
        if group.members.iter().any(|rank| rank.ended < group.operators.len()) {
            return Err(Failure::Hang(Vec::new()));
        }
        if group.memory.source_changed {
            return Err(Failure::Wrong(format!("a source was written in operator {number} or after it")));
        }
        Ok(Seen::Frozen { in_next: furthest > number })
    }

    /// Takes one step of the rank's core, and the steps of the others before it.
    fn step(self, group: &mut Group) -> Result<(), Failure> {
        if self.pace == Pace::Ahead {
            rest(group, |group, actor| !self.is_core_of(group, actor), |_, _| true)?;
        }
        let core = (0..group.cores()).find(|&actor| self.is_core_of(group, actor)).unwrap();
        for turn in 0.. {
            if group.act(core)? {
                break;
            }
            if turn > 1000 {
                return Err(Failure::Hang(Vec::new()));
            }
            if turn > 0 {
                // Quiet denies at first. Otherwise the core waits for another actor.
                land(group, |_, _| true);
                for actor in (0..group.actors.len()).filter(|&actor| actor != core) {
                    group.act(actor)?;
                }
            }
        }
        Ok(())
    }

    /// The rank's half of WindowsIn and of WindowsOut and its message slot, up to their last used byte.
    fn needed(self, group: &Group, number: usize) -> Vec<u64> {
        let shape = group.shape;
        let half = Partition::of(number as u64);
        let end = sent_bytes(shape, Operator::Dispatch, shape.rows_to_peer_max(self.rank));
        let mut words = Vec::new();
        for peer in (0..RANKS).map(RankId) {
            let tasks = (0..Task::WORDS).map(|word| task_word(half, peer, word));
            let bytes = || (0..end).step_by(8);
            let windows = bytes().map(|at| window_in(shape, half, peer, at));
            let out = bytes().map(|at| window_out(shape, half, peer, at));
            let places = tasks.chain(windows).chain(out);
            let place = |at| group.judge.duty.as_ref().map_or(at, |duty| duty.place(shape, at));
            words.extend(places.map(|at| group.memory.word(self.rank, place(at))));
        }
        words
    }
}

/// Delivers a piece of the first transfer that may land.
fn land(group: &mut Group, lands: impl Fn(&Group, FlightId) -> bool) -> bool {
    let next = group.memory.transfers().into_iter().find(|&transfer| lands(group, transfer));
    next.is_some_and(|transfer| group.memory.land(transfer, 8 * 50))
}

/// Steps the permitted actors in turn until none of them moves.
fn rest(
    group: &mut Group,
    may: impl Fn(&Group, usize) -> bool,
    lands: impl Fn(&Group, FlightId) -> bool,
) -> Result<(), Failure> {
    let actors = group.actors.len();
    let (mut actor, mut idle) = (0, 0);
    while idle < 2 * actors {
        let mut moved = land(group, &lands);
        if may(group, actor) {
            moved |= group.act(actor)?;
        }
        actor = (actor + 1) % actors;
        idle = if moved { 0 } else { idle + 1 };
    }
    Ok(())
}

fn shape() -> Shape {
    shape_of(&a2(Domain { r: RANKS.into(), e: RANKS.into(), k: 2, h: 8, bs: 1, ..TWO }))
}

/// The outcome of all trials with this traffic: their number, the number in which another rank reached the next operator,
/// and the numbers of failures by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    trials: usize,
    in_next: usize,
    wrong: usize,
    hung: usize,
}

fn tally(last: usize, group: &impl Fn(RankId) -> Group) -> Tally {
    let mut tally = Tally::default();
    for rank in (0..RANKS).map(RankId) {
        for (still, pace) in WAYS {
            for steps in 0.. {
                let trial = Trial { rank, still, pace, steps, last };
                match trial.run(&mut group(rank)) {
                    Ok(Seen::Over) => break,
                    Ok(Seen::Frozen { in_next }) => tally.in_next += usize::from(in_next),
                    Err(Failure::Wrong(_)) => tally.wrong += 1,
                    Err(_) => tally.hung += 1,
                }
                tally.trials += 1;
                // This suffices for a twin.
                if tally.wrong + tally.hung > 50 {
                    return tally;
                }
            }
        }
    }
    tally
}

#[test]
fn unread_memory_of_a_frozen_rank_is_not_overwritten() {
    let shape = shape();
    let tally = tally(3, &|_| {
        let mut group = Group::of(&shape, random_rounds(&shape, 3, false, &mut Dice(5)), plain_result);
        // It is frozen in the first four operators, so the operator after the next exists.
        group.operators = schedule("DDCCDC", 1);
        group
    });
    assert_eq!((tally.wrong, tally.hung), (0, 0), "{tally:?}");
    assert!(tally.trials > 1000 && tally.in_next > tally.trials / 4, "{tally:?}");
}

#[test]
fn catches_one_half_that_is_overwritten_while_its_reader_is_frozen() {
    // The counts are the same in every operator, so that no rank stops at an impossible word; the rows differ.
    let shape = shape();
    let tally = tally(0, &|_| {
        let tensors = |round: u32, rank: u32| {
            let ids = [rank, (rank + 1) % RANKS].map(|e| e as i32);
            let x = row(shape.dtype(), shape.h(), |i| (round * 8 + i) as f32);
            Tensors { x, ..routed(&shape, rank, &ids) }
        };
        let rounds = (0..6).map(|round| (0..RANKS).map(|rank| tensors(round, rank)).collect()).collect();
        let mut group = Group::of(&shape, rounds, plain_result);
        group.operators = schedule("DDDDDD", 1);
        group.judge.duty = Some(Duty::Second(Double::Half));
        group
    });
    assert!(tally.wrong > 10, "{tally:?}");
}

#[test]
fn catches_a_half_that_is_taken_before_its_reader_was_heard() {
    // Dispatches alone, and no rank waits for this one, which has no tokens, so the others overtake it.
    let shape = shape();
    let tally = tally(0, &|rank| {
        let tensors = |from| match from {
            from if from == rank.0 => {
                Tensors::new(&shape, rank, [0, 1].into(), OwnedMask::Tokens([false].into()))
            }
            from => routed(&shape, from, &[rank.0 as i32, from as i32]),
        };
        let rounds = (0..6).map(|_| (0..RANKS).map(tensors).collect()).collect();
        let mut group = Group::of(&shape, rounds, plain_result);
        group.operators = schedule("DDDDDD", 1);
        let flags = [FLAG1, tail_flag(&shape, Operator::Dispatch, 0)];
        let halves = [Partition::P0, Partition::P1];
        let places = halves.iter().flat_map(|&half| flags.map(|flag| window(&shape, half, rank) + flag));
        let others = (0..RANKS).map(RankId).filter(|&other| other != rank);
        let all = others.flat_map(|other| places.clone().map(move |at| (other, at)));
        group.judge.duty = Some(Duty::Wait(Words::These(all.collect())));
        group
    });
    assert!(tally.wrong > 20, "{tally:?}");
}
