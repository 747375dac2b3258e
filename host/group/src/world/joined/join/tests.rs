//! Processes as threads of this one, and some that are copies of this program, to be killed.

use super::*;
use crate::world::{Departed, How, Phase};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::ScopedJoinHandle;
use veriep_case::presets::preset;
use veriep_core::protocol::Choices;
use veriep_core::shape::{Given, Limits, Shape};

/// Says which process of how many a copy is to be, and where they meet.
const COPY: &str = "VERIEP_TEST_JOINS";
const LONG: Duration = Duration::from_secs(30);

fn joins(process: usize, processes: usize, set: &str) -> JoinRequest {
    let (mut config, _) = preset("tiny").unwrap();
    config.set(set).unwrap();
    let shape = Shape::new(&config.as_core(Given::empty()), Limits::Product).unwrap();
    let layers = vec![Fingerprints::new(&shape, Choices::default())];
    let alike = Alike { layers, others: Vec::new() };
    let group = GroupSpec { size: GroupSize::of_single_ranks(processes), bytes: 4096, alike };
    JoinRequest { process, group, patience: LONG }
}

fn member(process: usize, processes: usize) -> JoinRequest {
    joins(process, processes, "bs=4")
}

fn at(path: &Path, request: JoinRequest) -> Result<Joined, JoinError> {
    request.join(Rendezvous::File(path), &mut || true)
}

fn line(joined: Result<Joined, JoinError>) -> String {
    joined.unwrap_err().to_string()
}

/// A copy of this program that joins so and stays until it is killed, or is told to leave.
fn copy(path: &Path, process: usize, processes: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::a_copy_that_joins");
    command.args(["--exact", &name]).env(COPY, format!("{process},{processes}"));
    command.env("VERIEP_TEST_FILE", path).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_copy_that_joins() {
    let Ok(number) = std::env::var(COPY) else { return };
    let (process, processes) = number.split_once(',').unwrap();
    let path = std::env::var("VERIEP_TEST_FILE").unwrap();
    let joined = at(path.as_ref(), member(process.parse().unwrap(), processes.parse().unwrap())).unwrap();
    let _watch = joined.peers.watch(&joined.world).unwrap();
    // Until the other end is closed.
    let _ = io::read_to_string(io::stdin());
    joined.world.enter(Phase::Ended);
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < LONG, "{what}");
        thread::sleep(TICK);
    }
}

fn invited(path: &Path) -> Option<Invitation> {
    std::fs::read_to_string(path).ok().and_then(|text| Invitation::read(text.lines().next()?).ok())
}

fn joining<'s>(
    scope: &'s thread::Scope<'s, '_>,
    path: &'s Path,
    request: JoinRequest,
) -> ScopedJoinHandle<'s, Joined> {
    scope.spawn(move || at(path, request).unwrap())
}

#[test]
fn processes_meet_at_a_file_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a", "b"].map(|name| folder.path().join(name));
    // Two groups at once.
    let groups = thread::scope(|scope| {
        let all =
            files.each_ref().map(|path| [2, 0, 1].map(|process| joining(scope, path, member(process, 3))));
        all.map(|group| group.map(|one| one.join().unwrap()))
    });
    for group in &groups {
        // The same words, seen by all.
        group.iter().for_each(|joined| joined.world.rank_is_open());
        assert!(
            group.iter().all(|joined| joined.world.all_ranks_ended(1) && !joined.world.all_ranks_ended(2))
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_of_the_dead_is_replaced_and_another_one_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group");
    let mut first = copy(&path, 0, 2);
    until("an invitation", || invited(&path).is_some());
    let old = invited(&path).unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    thread::scope(|scope| {
        let one = joining(scope, &path, member(1, 2));
        until("a new group", || invited(&path).is_some_and(|new| new.nonce != old.nonce));
        at(&path, member(0, 2)).unwrap();
        one.join().unwrap();
    });
    assert!(!path.exists());
    std::fs::write(&path, "my thesis\n").unwrap();
    assert!(line(at(&path, member(0, 2))).ends_with("\"my thesis\": is no invitation to a group"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "my thesis\n");
}

#[test]
fn whoever_waits_takes_over_from_a_first_comer_that_dies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group");
    let mut first = copy(&path, 0, 3);
    until("an invitation", || invited(&path).is_some());
    let group = invited(&path).unwrap().nonce;
    thread::scope(|scope| {
        let one = joining(scope, &path, member(1, 3));
        // It has joined.
        thread::sleep(3 * LOOK);
        first.kill().unwrap();
        until("an heir", || invited(&path).is_some_and(|now| now.process == Some(1) && now.nonce == group));
        // The number of the dead is free for another one.
        let (two, zero) = (joining(scope, &path, member(2, 3)), joining(scope, &path, member(0, 3)));
        for joined in [one, two, zero].map(|one| one.join().unwrap()) {
            assert_eq!(joined.world.gone_before(1), []);
        }
    });
    first.wait().unwrap();
}

#[test]
fn who_has_something_else_is_refused_with_the_name_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group");
    thread::scope(|scope| {
        let zero = joining(scope, &path, member(0, 2));
        until("an invitation", || invited(&path).is_some());
        assert_eq!(line(at(&path, joins(1, 2, "bs=5"))), "process 1: bs: must be the same as on process 0");
        let line_of_three = line(at(&path, member(1, 3)));
        assert_eq!(line_of_three, "process 1: the number of processes: must be the same as on process 0");
        assert!(line(at(&path, member(0, 2))).ends_with("has joined as process 0 already"));
        at(&path, member(1, 2)).unwrap();
        zero.join().unwrap();
    });
}

#[test]
fn who_does_not_come_is_named_and_the_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group");
    let short = JoinRequest { patience: Duration::from_millis(200), ..member(1, 4) };
    let error = thread::scope(|scope| {
        let three = scope.spawn(|| at(&path, JoinRequest { process: 3, ..short.clone() }));
        let one = at(&path, short.clone());
        three.join().unwrap().unwrap_err();
        line(one)
    });
    // The one that waits less long has left already, or not.
    assert!(error.starts_with("of 4 processes 0, 2"), "{error}");
    assert!(error.ends_with("did not join within 0.2 s"), "{error}");
    assert!(!path.exists());
    let interrupted = member(1, 2).join(Rendezvous::File(&path), &mut || false);
    assert_eq!(line(interrupted), "interrupted");
    assert!(!path.exists());
}

/// What is seen of a copy that has joined with this process, once `end` has ended it.
fn after(end: impl FnOnce(&mut Child)) -> (u32, Vec<Departed>, Vec<Departed>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group");
    let mut other = copy(&path, 1, 2);
    let joined = at(&path, member(0, 2)).unwrap();
    let _watch = joined.peers.watch(&joined.world).unwrap();
    assert_eq!(joined.world.gone_before(1), []);
    end(&mut other);
    until("an end", || !joined.world.gone_before(1).is_empty());
    let (before, behind) = (joined.world.gone_before(1), joined.world.gone_before(0));
    let pid = other.id();
    let _ = other.kill();
    other.wait().unwrap();
    (pid, before, behind)
}

#[test]
fn a_death_is_seen_with_name_and_signal() {
    let (pid, gone, behind) = after(|other| other.kill().unwrap());
    let [Departed { process: 1, pid: seen, how: How::Signal(9), .. }] = gone[..] else { panic!("{gone:?}") };
    assert_eq!((seen, behind.len()), (pid, 1), "a process that dies is gone for good");
}

#[test]
fn who_leaves_in_order_is_missed_only_where_it_is_needed() {
    let (_, gone, behind) = after(|other| drop(other.stdin.take()));
    let [Departed { process: 1, how: How::Left, .. }] = gone[..] else { panic!("{gone:?}") };
    assert_eq!(behind, [], "it has left after the operators that it was needed for");
}

#[test]
fn who_is_stopped_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group");
    let mut other = copy(&path, 1, 2);
    let joined = at(&path, member(0, 2)).unwrap();
    assert_eq!(joined.world.silent(), []);
    let pid = Pid::from_raw(other.id().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    thread::sleep(Duration::from_millis(50));
    let silent = joined.world.silent();
    other.kill().unwrap();
    other.wait().unwrap();
    let [Departed { process: 1, how: How::Silent, .. }] = silent[..] else { panic!("{silent:?}") };
}

/// A child finds its invitation in its parent, which has entered all its children in the table.
#[test]
fn children_join_what_their_parent_has_founded_and_nothing_else() {
    let spec = |set: &str| joins(0, 2, set).group;
    let founded = spec("bs=4").found().unwrap();
    let invitation = founded.invitation();
    let observer = World::observer(&founded.memory);
    let child = |process, set: &str, patience| {
        JoinRequest { process, group: spec(set), patience }
            .join(Rendezvous::Parent(&invitation), &mut || true)
    };
    let short = Duration::from_millis(50);
    MemberTable(&observer.board).enter(1, Identity::own());
    assert_eq!(line(child(1, "bs=4", short)), "of 2 processes 0 did not join within 0.05 s");
    (0..2).for_each(|process| MemberTable(&observer.board).enter(process, Identity::own()));
    assert_eq!(line(child(1, "bs=5", short)), "process 1: bs: must be the same as on the parent");
    let joined = [0, 1].map(|process| child(process, "bs=4", LONG).unwrap());
    joined[0].world.stop();
    assert!(observer.is_stopped() && joined[1].world.is_stopped());
}

#[derive(Default)]
struct Words(Mutex<HashMap<String, String>>);

impl Store for Words {
    fn set(&self, key: &str, value: &str) -> Result<(), String> {
        self.0.lock().unwrap().insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Option<String>, String> {
        Ok(self.0.lock().unwrap().get(key).cloned())
    }
}

#[test]
fn processes_meet_in_a_store_and_then_again() {
    let store = Words::default();
    let join = |process, patience| {
        JoinRequest { patience, ..member(process, 3) }.join(Rendezvous::Store(&store), &mut || true)
    };
    let mut before: Vec<Joined> = Vec::new();
    for _ in 0..2 {
        let group = thread::scope(|scope| {
            // Process 0 comes last: the others find the group before.
            let others = [1, 2].map(|process| scope.spawn(move || join(process, LONG).unwrap()));
            thread::sleep(Duration::from_millis(20));
            let zero = join(0, LONG).unwrap();
            others.into_iter().map(|one| one.join().unwrap()).chain([zero]).collect::<Vec<_>>()
        });
        group.iter().for_each(|joined| joined.world.rank_is_open());
        assert!(
            group.iter().all(|joined| joined.world.all_ranks_ended(1) && !joined.world.all_ranks_ended(2))
        );
        before = group;
    }
    drop(before);
    let short = Duration::from_millis(100);
    assert_eq!(line(join(1, short)), "of 3 processes 0 did not join within 0.1 s");
    assert_eq!(line(join(0, short)), "of 3 processes 1, 2 did not join within 0.1 s");
}
