//! A rank that stands still for as long as it likes: nobody writes what it has still to read, and nobody gets
//! further than the operator behind its own. Every rank of three, at every step of its core.

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
/// What stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Still {
    /// The core of the rank.
    Core,
    /// Its agent as well.
    Agent,
    /// And nothing is delivered to it.
    Transfers,
}

/// How far the others are when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// As far as they can, at each of its steps.
    Ahead,
    /// No further than it needs.
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
    /// So many steps of the core come before.
    steps: usize,
    /// The last operator in which it is frozen.
    last: usize,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// There are not so many steps.
    Over,
    /// The others came to the next operator, or did not.
    Frozen { in_next: bool },
}

impl Trial {
    fn is_core_of(self, group: &Group, actor: usize) -> bool {
        actor < group.cores() && group.actors[actor].member == self.rank
    }

    /// Whether an actor moves while the rank is frozen.
    fn moves(self, group: &Group, actor: usize) -> bool {
        let agent = group.cores() + self.rank.index();
        !self.is_core_of(group, actor) && (self.still == Still::Core || actor != agent)
    }

    fn lands(self, group: &Group, transfer: FlightId) -> bool {
        let to = group.memory.flight(transfer).map(|flight| flight.to);
        self.still != Still::Transfers || to != Some(self.rank)
    }

    /// Walks to the step, freezes, lets all others go on until nobody moves, thaws.
    fn run(self, group: &mut Group) -> Result<Seen, Failure> {
        group.begin_all();
        for _ in 0..self.steps {
            self.step(group)?;
            if group.members[self.rank.index()].ended > self.last {
                return Ok(Seen::Over);
            }
        }
        let number = group.members[self.rank.index()].ended;
        // What the others owe to this operator comes first: afterwards nothing may change.
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
            return Err(Failure::Wrong(format!("a source was written in operator {number} or behind it")));
        }
        Ok(Seen::Frozen { in_next: furthest > number })
    }

    /// One step of the rank's core, and what the others do before it.
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
                // Quiet says no at first. If it is not that, somebody is waited for.
                land(group, |_, _| true);
                for actor in (0..group.actors.len()).filter(|&actor| actor != core) {
                    group.act(actor)?;
                }
            }
        }
        Ok(())
    }

    /// The rank's half of WindowsIn and of WindowsOut and its message slot, as far as they are ever used.
    fn needed(self, group: &Group, number: usize) -> Vec<u64> {
        let shape = group.shape;
        let half = if number.is_multiple_of(2) { Partition::P0 } else { Partition::P1 };
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

/// By turns, until nobody of those who may move does.
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

/// Every trial with this traffic: how many there were, in how many the others came to the next operator, and how
/// many failed, by kind.
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
                // Enough of a twin.
                if tally.wrong + tally.hung > 500 {
                    return tally;
                }
            }
        }
    }
    tally
}

#[test]
fn nobody_writes_what_a_rank_has_still_to_read_however_long_it_stands_still() {
    let shape = shape();
    let tally = tally(3, &|_| {
        let mut group = Group::of(&shape, random_rounds(&shape, 3, false, &mut Dice(5)), plain_result);
        // Frozen in the first four: the operator after the next is there, too.
        group.operators = schedule("DDCCDC", 1);
        group
    });
    assert_eq!((tally.wrong, tally.hung), (0, 0), "{tally:?}");
    assert!(tally.trials > 1000 && tally.in_next > tally.trials / 4, "{tally:?}");
}

#[test]
fn one_half_is_written_while_its_reader_stands_still() {
    // The same counts in every operator, so that nobody stops at a word that cannot be; other rows.
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
fn a_half_that_is_taken_before_its_reader_was_heard_is_written_while_it_stands_still() {
    // Dispatches alone, and nobody waits for the rank, which has no tokens: whoever is not waited for is overtaken.
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
