//! Worlds of several processes, all of them in this one.

use super::*;
use crate::driver::Rest;
use crate::world::join::{Identity, MemberTable};
use std::thread;
use std::time::Instant;

/// The watching world of a group of two processes with two ranks, and those of the processes.
fn group() -> (Arc<World>, [Arc<World>; 2]) {
    let memory = memory(2);
    (World::observer(&memory), [0, 1].map(|process| World::member(&memory, process)))
}

/// The memory of a group whose processes have a rank each.
fn memory(processes: usize) -> GroupMemory {
    GroupMemory::new(GroupSize::of_single_ranks(processes), 0).unwrap()
}

#[test]
fn every_process_has_neighbouring_ranks_and_all_have_about_as_many() {
    for ranks in 1..20 {
        for processes in 1..=ranks as usize {
            let size = GroupSize { processes, workers: 1, ranks };
            let world = World::observer(&GroupMemory::new(size, 0).unwrap());
            let all: Vec<Vec<_>> =
                (0..processes).map(|process| world.ranks_of(process).map(|rank| rank.0).collect()).collect();
            assert_eq!(all.concat(), (0..ranks).collect::<Vec<_>>(), "{processes} processes");
            let numbers: Vec<_> = all.iter().map(Vec::len).collect();
            assert!(numbers.iter().max().unwrap() - numbers.iter().min().unwrap() <= 1, "{numbers:?}");
        }
    }
}

#[test]
fn all_ranks_have_ended_when_those_of_all_processes_have() {
    let (_, [a, b]) = group();
    a.rank_is_open();
    assert!(!a.all_ranks_ended(1) && !b.all_ranks_ended(1));
    b.rank_is_open();
    assert!(a.all_ranks_ended(1) && b.all_ranks_ended(1) && !a.all_ranks_ended(2));
    // The next unit counts anew, also while the other is in the one before.
    a.end_unit(1);
    assert!(a.all_ranks_ended(0) && !a.all_ranks_ended(1) && b.all_ranks_ended(1));
}

#[test]
fn all_processes_end_behind_the_same_unit() {
    let (watching, worlds) = group();
    let run = |world: &World| {
        let mut units = 0;
        loop {
            world.propose();
            crate::driver::meet(world).unwrap();
            if !world.goes_on() {
                return units;
            }
            world.end_unit(2);
            units += 1;
        }
    };
    let ended = thread::scope(|scope| {
        let running = worlds.each_ref().map(|world| scope.spawn(|| run(world)));
        thread::sleep(Duration::from_millis(5));
        watching.ask_for_the_end();
        running.map(|one| one.join().unwrap())
    });
    assert_eq!(ended[0], ended[1]);
}

#[test]
fn nobody_is_stuck_while_somebody_checks_or_has_not_tried() {
    let (watching, [a, b]) = group();
    // A tenth of what is enough in any case.
    let deadline = Duration::from_millis(100);
    let is_spent = |tries: &[&World]| {
        let mut patience = Patience::new(deadline);
        patience.look(&watching);
        for world in tries {
            (0..2).for_each(|_| world.count_pass_in_vain(0));
        }
        thread::sleep(deadline + deadline / 10);
        patience.is_spent(&watching)
    };
    a.enter(Phase::Drives);
    a.set_busy(0, true);
    b.checks(0);
    assert!(!is_spent(&[&a]), "one checks");
    b.enter(Phase::Drives);
    b.set_busy(0, true);
    assert!(!is_spent(&[&a]), "one has not tried");
    assert!(is_spent(&[&a, &b]));
    // A process that waits for a meeting that the other has not come to waits like others; else it is about to go on.
    a.enter(Phase::Meets);
    a.arrive();
    assert!(is_spent(&[&b]));
    b.arrive();
    assert!(!is_spent(&[&b]), "all have come");
    // A process that has done all that it was asked for holds up no other.
    b.enter(Phase::Idle);
    a.enter(Phase::Drives);
    assert!(is_spent(&[&a]));
}

#[test]
fn who_has_not_run_since_the_last_move_is_silent() {
    // The other process shows no sign of life.
    let (watching, [a, _]) = group();
    let _beats = Peers::default().watch(&a).unwrap();
    let mut patience = Patience::new(Duration::from_millis(1));
    patience.look(&watching);
    assert_eq!(patience.silent(&watching, Duration::from_millis(200)), Vec::<usize>::new());
    thread::sleep(Duration::from_millis(300));
    patience.look(&watching);
    assert_eq!(patience.silent(&watching, Duration::from_millis(200)), [1]);
    // It runs once more, where it does not count as a move, and never again.
    watching.board.of(1, OfProcess::Beat).store(7, Ordering::Release);
    patience.look(&watching);
    assert_eq!(patience.silent(&watching, Duration::from_millis(200)), Vec::<usize>::new());
    thread::sleep(Duration::from_millis(300));
    patience.look(&watching);
    assert_eq!(patience.silent(&watching, Duration::from_millis(200)), [1]);
}

/// Far longer than a wake-up takes: only a notification ends such a wait in time.
const WAIT: Duration = Duration::from_secs(1);

/// Two processes that outnumber the processors and wait so long.
fn waiting() -> [World; 2] {
    let memory = memory(2);
    [0, 1].map(|process| World {
        crowded: true,
        links: Links { wait_max: WAIT, ..Links::default() },
        ..World::of(memory.board(), process, 2)
    })
}

fn at_once(what: &str, wait: impl FnOnce()) {
    let since = Instant::now();
    wait();
    assert!(since.elapsed() < WAIT / 2, "{what}: {:?}", since.elapsed());
}

#[test]
fn a_notification_ends_a_wait_that_has_begun_or_is_about_to() {
    let [a, b] = waiting();
    let seen = b.register_waiter();
    a.notify();
    at_once("one that came before the wait", || assert_eq!(b.wait(seen), seen + 1));
    at_once("one that comes in the midst", || {
        thread::scope(|scope| {
            scope.spawn(|| b.wait(seen + 1));
            thread::sleep(Duration::from_millis(20));
            a.notify();
        });
    });
    b.unregister_waiter();
    a.notify();
    assert_eq!(b.register_waiter(), seen + 2, "without a waiter no process is notified");
}

#[test]
fn a_waiter_looks_again_behind_every_notification() {
    let [a, b] = waiting();
    let (mut rest, mut other) = (Rest::new(&b), Rest::new(&a));
    // It registers, and looks.
    rest.in_vain();
    for nth in 0..3 {
        other.moved();
        at_once(&format!("notification {nth} behind a look"), || rest.in_vain());
    }
}

#[test]
fn a_process_that_had_given_up_before_it_died_is_no_death() {
    for (phase, is_death) in [
        (Phase::Starts, true),
        (Phase::Meets, true),
        (Phase::Drives, true),
        (Phase::Checks, true),
        (Phase::Idle, true),
        (Phase::Ended, false),
        (Phase::GivenUp, false),
    ] {
        let (watching, [_, other]) = group();
        other.enter(phase);
        watching.died(1, How::Signal(9));
        assert_eq!(watching.how_died(1), is_death.then_some(How::Signal(9)), "{phase:?}");
    }
}

#[test]
fn the_process_that_knows_more_of_a_death_counts() {
    let (watching, [a, _]) = group();
    a.died(1, How::Ended);
    watching.died(1, How::Signal(9));
    a.died(1, How::Ended);
    assert_eq!(a.how_died(1), Some(How::Signal(9)));
}

/// Processes of a group that end when the watcher has looked so often.
struct Ending {
    looks: u32,
    /// By process.
    dies_at: Vec<Option<u32>>,
}

impl Watched for Ending {
    fn reap(&mut self) {
        self.looks += 1;
    }

    fn left(&self, process: usize) -> Option<How> {
        self.dies_at[process].filter(|&at| at <= self.looks).map(|_| How::Signal(9))
    }

    fn has_ended(&self, process: usize) -> bool {
        self.left(process).is_some()
    }

    fn kill(&mut self) {}
}

fn watched(world: &World, dies_at: &[Option<u32>], deadline: Duration) -> Outcome {
    let mut members = Ending { looks: 0, dies_at: dies_at.to_vec() };
    watch(world, &mut members, deadline, |_, _| false, &mut |_| false)
}

/// The first death is seen before the second, which comes while the others are let go on until they miss something.
#[test]
fn who_dies_shortly_after_another_is_named_with_it() {
    let memory = memory(3);
    let world = World::observer(&memory);
    for process in 0..3 {
        MemberTable(&world.board).enter(process, Identity::of_pid(100 + process as u64));
    }
    let gone = |dies_at: &[Option<u32>]| match watched(&world, dies_at, Duration::from_secs(10)) {
        Outcome::Gone(gone) => gone.iter().map(|one| (one.process, one.pid, one.how)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let dead = |process| (process, 100 + process as u32, How::Signal(9));
    assert_eq!(gone(&[Some(1), None, Some(6)]), [dead(0), dead(2)]);
    assert_eq!(gone(&[None, Some(2), None]), [dead(1)]);
}

/// Between the deadline and half a second a process may just not have run: the group is stuck, and no process is silent.
#[test]
fn with_a_short_deadline_a_group_is_stuck_before_anybody_is_silent() {
    let (watching, worlds) = group();
    for world in &worlds {
        // Nothing to do is as good as tried in vain.
        world.enter(Phase::Drives);
    }
    let deadline = Duration::from_millis(100);
    assert_eq!(watched(&watching, &[None, None], deadline), Outcome::Stuck(deadline));
    // A longer wait shows which processes do not run.
    match watched(&watching, &[None, None], Duration::from_millis(700)) {
        Outcome::Gone(gone) => assert!(gone.iter().all(|one| one.how == How::Silent) && gone.len() == 2),
        other => panic!("{other:?}"),
    }
}
