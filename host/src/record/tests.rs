//! Records as they are read, and what is no record.

use super::*;
use crate::backend::Told;
use crate::error::Error;
use crate::events::recorder::Book;
use crate::events::{Event, Kind, What};
use core::sync::atomic::{AtomicBool, Ordering};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use tempfile::{TempDir, tempdir};
use veriep_core::fabric::{Flag, Wait};
use veriep_core::place::{Place, Region};
use veriep_core::protocol::Operator;
use veriep_core::sim::Actor;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::{CoreId, RankId};

const ENTRIES_FEW: usize = 16;
const ACTOR: Actor = Actor { member: RankId(5), core: CoreId(1) };
const DISPATCH: Planned = Planned { operator: Operator::Dispatch, round: 0 };

/// A record of one process with ranks 4 and 5 of two cores each, and of one that has not started.
fn begun(entries: usize) -> (TempDir, Folder, Writer) {
    let work = tempdir().unwrap();
    let events = serde_json::json!({"schema": "veriep.events/1"});
    let about = About { processes: 2, cores: 2, entries, ..About::here(events, true) };
    let of = |process, ranks| About { process, ranks, ..about.clone() };
    let folder =
        Folder::make(Some(&work.path().join("record")), &[of(0, vec![4, 5]), of(1, vec![6])]).unwrap();
    let notes = folder.notes(0).unwrap();
    notes.started(std::process::id());
    let writer = Writer::new(notes.file(), |_, _| 0).unwrap();
    (work, folder, writer)
}

fn publish(writer: &Writer, n: u64) {
    let at = Some(Place { region: Region::State, offset: 8 * n });
    let what = What { peer: Some(RankId(4)), at, length: Some(8), word: Some(n), ..What::default() };
    writer.record(ACTOR, Kind::Publish, what);
}

/// A publish is what `publish` has written, not a mixture of two.
fn number(event: &Event) -> u64 {
    let word = event.what.word.unwrap();
    assert_eq!(event.what.at, Some(Place { region: Region::State, offset: 8 * word }), "{event:?}");
    word
}

#[test]
fn what_cores_did_and_wait_for_is_read_as_it_was() {
    let (_work, folder, writer) = begun(ENTRIES);
    writer.begins_unit(70);
    writer.hears(ACTOR, Told::Begins(DISPATCH));
    publish(&writer, 3);
    let wait = Wait::new(Flag::Dispatch, RankId(6), &[2]);
    writer.hears(ACTOR, Told::Waits(wait, "Exchange.Await"));
    let other = Actor { core: CoreId(0), ..ACTOR };
    writer.hears(other, Told::Begins(DISPATCH));
    writer.hears(other, Told::Waits(Wait::QUIET, "Quiet"));
    writer.hears(other, Told::Moves);
    let record = Record::open(folder.path()).unwrap();
    let [process, absent] = &record.processes[..] else { panic!("{record:?}") };
    assert_eq!((process.state, process.pid), (State::Runs, std::process::id()));
    // It was never started, and never will be.
    assert_eq!((absent.state, absent.pid), (State::Gone, 0));
    let [waiting] = process.waits[..] else { panic!("{:?}", process.waits) };
    let planned = Some(Planned { round: 70, ..DISPATCH });
    assert_eq!((waiting.actor, waiting.wait, waiting.doing.planned), (ACTOR, wait, planned));
    assert_eq!(waiting.doing.phase, "Exchange.Await");
    let kinds: Vec<_> = process.events.iter().map(|event| event.kind).collect();
    let [begin, publish, wait] = [Kind::Begin, Kind::Publish, Kind::Await];
    assert_eq!(kinds, [begin, publish, begin, wait, begin, begin, wait]);
    assert!(process.events.iter().all(|event| event.doing.planned == planned));
    assert_eq!(process.events.iter().map(number_of_publish).sum::<u64>(), 3);
}

fn number_of_publish(event: &Event) -> u64 {
    if event.kind == Kind::Publish { number(event) } else { 0 }
}

#[test]
fn a_ring_keeps_the_last_and_leaves_out_what_may_be_half_written() {
    let (_work, folder, writer) = begun(ENTRIES_FEW);
    writer.hears(ACTOR, Told::Begins(DISPATCH));
    (0..100).for_each(|n| publish(&writer, n));
    // As a kill in the midst of the next entry leaves it, where the oldest one was.
    let path = folder.path().join("process-0.record");
    let file = fs::File::options().write(true).open(&path).unwrap();
    let about = &Record::open(folder.path()).unwrap().processes[0].about;
    let text = serde_json::to_vec(about).unwrap().len();
    let parts = layout::Parts::new(text, about);
    file.write_all_at(&[0xff; 24], parts.entry(0, 101) as u64).unwrap();
    let record = Record::open(folder.path()).unwrap();
    let seen: Vec<_> = record.processes[0].events.iter().map(number).collect();
    assert_eq!(seen, (100 - ENTRIES_FEW as u64 + 1..100).collect::<Vec<_>>());
    // The begin is not in the ring any more, but at the core's place.
    assert!(record.processes[0].events.iter().all(|event| event.doing.planned == Some(DISPATCH)));
    // Another entry that is none is refused.
    file.write_all_at(&[0xff; 24], parts.entry(0, 99) as u64).unwrap();
    let refused = Record::open(folder.path()).unwrap_err();
    assert!(refused.to_string().contains("worker 0, entry 99: ["), "{refused}");
}

#[test]
fn a_place_that_is_half_written_is_left_out() {
    let (_work, folder, writer) = begun(ENTRIES_FEW);
    writer.hears(ACTOR, Told::Begins(DISPATCH));
    writer.hears(ACTOR, Told::Waits(Wait::QUIET, "Quiet"));
    let about = &Record::open(folder.path()).unwrap().processes[0].about;
    assert_eq!(Record::open(folder.path()).unwrap().processes[0].waits.len(), 1);
    let parts = layout::Parts::new(serde_json::to_vec(about).unwrap().len(), about);
    let place = parts.places + about.place(1, CoreId(1)) * layout::PLACE;
    let file = fs::File::options().write(true).open(folder.path().join("process-0.record")).unwrap();
    file.write_all_at(&5_u64.to_ne_bytes(), place as u64).unwrap();
    file.write_all_at(&[0xff; 32], place as u64 + 64).unwrap();
    assert_eq!(Record::open(folder.path()).unwrap().processes[0].waits.len(), 0);
    // Were it called whole, somebody would see that it is not.
    file.write_all_at(&6_u64.to_ne_bytes(), place as u64).unwrap();
    assert!(Record::open(folder.path()).unwrap_err().to_string().contains("is no entry"));
}

#[test]
fn who_reads_while_others_write_sees_whole_entries_in_their_order() {
    let (_work, folder, writer) = begun(64);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = 0..;
            while !stop.load(Ordering::Relaxed) {
                numbers.by_ref().take(1000).for_each(|n| publish(&writer, n));
                std::thread::sleep(core::time::Duration::from_micros(20));
            }
        });
        let mut seen = 0;
        let mut last = 0;
        for _ in 0..300 {
            let record = Record::open(folder.path());
            let events = record.map(|record| record.processes[0].events.clone());
            let numbers = events.map(|events| events.iter().map(number).collect::<Vec<_>>());
            // A panic must stop the writer, too.
            let is_right =
                matches!(&numbers, Ok(numbers) if numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            if !is_right {
                stop.store(true, Ordering::Relaxed);
            }
            assert!(is_right, "{numbers:?}");
            let numbers = numbers.unwrap();
            seen += usize::from(numbers.last().is_some_and(|&n| n > last));
            last = numbers.last().copied().unwrap_or(last);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(seen > 10, "{seen} records with something new");
    });
}

#[test]
fn the_first_note_of_a_death_counts_and_none_of_who_has_ended() {
    let (_work, folder, _writer) = begun(ENTRIES_FEW);
    let [notes, other] = [0, 1].map(|process| folder.notes(process).unwrap());
    notes.died(How::Signal(9), 1000);
    notes.died(How::Exit(3), 2000);
    notes.ended(End::Stopped);
    other.ended(End::Failed);
    other.died(How::Exit(3), 500);
    let record = Record::open(folder.path()).unwrap();
    let [process, other] = &record.processes[..] else { panic!("{record:?}") };
    assert_eq!(
        (process.state, process.died_at_us, process.how),
        (State::Gone, Some(1000), Some(How::Signal(9)))
    );
    assert_eq!((other.state, other.died_at_us), (State::Ended(End::Failed), None));
    assert_eq!(record.first().iter().map(|process| process.pid).collect::<Vec<_>>(), [std::process::id()]);
}

#[test]
fn nobody_is_the_first_of_those_who_were_gone_at_once() {
    let (_work, folder, _writer) = begun(ENTRIES_FEW);
    let first = || {
        Record::open(folder.path()).unwrap().first().iter().map(|one| one.about.process).collect::<Vec<_>>()
    };
    // The other one was never started.
    assert_eq!(first(), [1]);
    folder.notes(0).unwrap().died(How::Signal(9), 1000);
    assert_eq!(first(), [0], "nobody was left to see the other one go");
    folder.notes(1).unwrap().died(How::Signal(9), 21_000);
    assert_eq!(first(), [0, 1]);
}

#[test]
fn bytes_that_are_no_record_are_refused_with_a_line() {
    let (work, folder, writer) = begun(ENTRIES_FEW);
    writer.hears(ACTOR, Told::Begins(DISPATCH));
    writer.hears(ACTOR, Told::Waits(Wait::QUIET, "Quiet"));
    (0..50).for_each(|n| publish(&writer, n));
    let good = fs::read(folder.path().join("process-0.record")).unwrap();
    let other = fs::read(folder.path().join("process-1.record")).unwrap();
    let bad = work.path().join("bad");
    fs::create_dir(&bad).unwrap();
    let path: PathBuf = bad.join("process-0.record");
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let opened = Record::open(&bad);
        if let Err(error) = &opened {
            let line = error.to_string();
            assert!(matches!(error, Error::File(_)) && !line.contains('\n'), "{line:?}");
            assert!(line.starts_with(path.to_str().unwrap()), "{line}");
        }
        opened
    };
    open(&good).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        let line = open(bytes).unwrap_err().to_string();
        assert!(line.contains(what), "{line}");
    };
    refused(&other, "is of process 1: must be of 0");
    refused(&[], "begins with");
    refused(&[b"VERIEPF9", &good[8..]].concat(), "begins with \"VERIEPF9\": must be \"VERIEPF1\"");
    for len in [1, 8, 100, 4096, 5000, good.len() / 2, good.len() - 1] {
        assert!(open(&good[..len]).is_err(), "{len} bytes");
    }
    assert!(open(&[&good[..], &[0]].concat()).is_err());
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..1500 {
        let mut bytes = good.clone();
        for _ in 0..random.random_range(1..20) {
            // Most of a file is empty.
            let at = match random.random_range(0..4) {
                0 => random.random_range(0..64),
                1 => random.random_range(4096..5000),
                _ => random.random_range(0..bytes.len()),
            };
            bytes[at] = random.random();
        }
        match open(&bytes) {
            Ok(record) => {
                accepted += 1;
                let _ = (record.first().len(), record.events());
            }
            Err(_) => refused += 1,
        }
    }
    assert!(accepted > 50 && refused > 50, "{accepted} accepted, {refused} refused");
    let empty = work.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(Record::open(&empty).unwrap_err().to_string().contains("has no process-N.record"));
    assert!(
        Record::open(&work.path().join("nowhere")).unwrap_err().to_string().ends_with("nowhere: missing")
    );
}

#[test]
fn records_of_two_groups_in_one_folder_are_refused() {
    let (_one, folder, _a) = begun(ENTRIES_FEW);
    let (_two, other, _b) = begun(32);
    let path = folder.path().join("process-1.record");
    // Of another group that this process has begun, with another header.
    let events = serde_json::json!({"schema": "veriep.events/1", "config": 1});
    let about = About { process: 1, processes: 2, ranks: vec![6], cores: 2, ..About::here(events, true) };
    fs::remove_file(other.path().join("process-1.record")).unwrap();
    fs::remove_dir_all(other.path()).unwrap();
    let other = Folder::make(Some(other.path()), &[about]).unwrap();
    fs::copy(other.path().join("process-1.record"), &path).unwrap();
    let line = Record::open(folder.path()).unwrap_err().to_string();
    assert!(line.ends_with("process-1.record: is of another group than process-0.record"), "{line}");
}

#[test]
fn a_folder_is_made_whole_or_not_at_all_and_written_over_never() {
    let (_work, folder, _writer) = begun(ENTRIES_FEW);
    let about = About { ranks: vec![0], cores: 1, ..About::here(serde_json::Value::Null, false) };
    let refused = Folder::make(Some(folder.path()), core::slice::from_ref(&about)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
    Record::open(folder.path()).unwrap();
    let own = Folder::make(None, &[about.clone(), About { process: 1, ..about.clone() }]).unwrap();
    assert_eq!(fs::read_dir(own.path()).unwrap().count(), 2);
    own.is_needed_no_more();
    assert!(!own.path().exists());
    // More than any disk has.
    let huge = About { entries: 1 << 40, ..about };
    let work = tempdir().unwrap();
    Folder::make(Some(work.path()), &[huge]).unwrap_err();
    assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
}
