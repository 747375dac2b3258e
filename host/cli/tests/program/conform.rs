//! `veriep conform`: records of every protocol pass; with one event left out, told twice or told too early they do not, where the
//! contract forbids it.

use crate::common::{fails, json, text};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};
use tempfile::tempdir;
use veriep_case::config::Bs;
use veriep_core::layout::a2_message::doorbell;
use veriep_core::layout::a2_window::FLAG;
use veriep_core::shape::{Given, Limits, Shape};
use veriep_testing::tier;
use veriep_trace::conform::{Guard, Line, Trace, conform};

/// Runs, and of which of their events the record can miss none: `flag` is a word that is cleared after its use.
const RUNS: [(&str, &[&str]); 14] = [
    ("run --preset tiny --backend lockstep", &["put", "flag"]),
    ("run --preset tiny --backend weak --schedule DDCC", &["put", "flag"]),
    ("run --preset tiny --backend weak --flags separate", &["put", "flag"]),
    ("run --preset tiny --backend weak --set quant_mode=2 --receive in-place", &["put", "flag"]),
    // That a row is there which experts read is not in the record.
    ("run --preset tiny --backend weak --receive direct", &["quiet"]),
    ("run --preset tiny --backend weak --receive direct --experts overwrite --schedule DDCC", &["quiet"]),
    ("run --preset tiny --backend weak --set comm_alg=fullmesh_v2", &["put", "flag"]),
    (
        "run --preset tiny --backend weak --set release=9.1.0 --set tp_world_size=2 --set moe_expert_num=2",
        &["put", "flag"],
    ),
    ("run --preset a2-hier-16 --set comm_alg=fullmesh --set k=2 --set h=512 --set bs=1 --backend weak", &[]),
    ("run --preset a2-hier-16 --set h=512 --set bs=1 --backend weak", &["put", "send"]),
    ("simulate --preset tiny --cluster a3 --schedule DDCC", &["put", "flag"]),
    // Of halves: a loop, then all of an operator before the next one.
    ("run --preset tiny --backend weak --schedule Ds1,Cs0,Dr1,Cr0", &["put", "flag"]),
    ("run --preset tiny --backend weak --receive direct --schedule DsDrCsCr", &["quiet"]),
    (
        "run --preset a2-hier-16 --set comm_alg=fullmesh --set k=2 --set h=512 --set bs=1 --backend weak --schedule DsDrCsCr",
        &[],
    ),
];
/// Where in [`RUNS`] those of halves are.
const OF_HALVES: [usize; 3] = [11, 12, 13];
/// Of a group of two ranks.
const HEADER: &str = r#"{"schema":"veriep.events/1","unit":"events","config":{"ep_world_size":2,"moe_expert_num":4,"k":2},"options":{}}"#;
/// Of each kind so many events are changed.
const TRIED: usize = 12;

struct Record {
    trace: Trace,
    shape: Shape,
    /// Words that a rank clears.
    cleared: Vec<(u32, String, u64)>,
}

fn record(run: &str) -> Record {
    record_of(run, 2)
}

/// Of ranks with so many cores.
fn record_of(run: &str, cores: u32) -> Record {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    // Numbered words differ from round to round, so that none needs to be cleared: here they must.
    let words = if run.starts_with("run") { "--unchecked" } else { "" };
    let line = format!("{run} {words} --set aiv_num={cores} --rounds 4 --seed 3 --events {}", text(&file));
    json(0, &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(json(0, &["conform", text(&file)])["broken"], Value::Null, "{run}");
    let trace = Trace::open(&file).unwrap();
    let shape = Shape::new(&trace.config.as_core(Given::empty()), Limits::None).unwrap();
    let clears = trace.events.iter().filter(|event| event.kind == "store" && event.word == Some(0));
    let cleared = clears.map(|event| (event.rank, event.region.clone(), event.offset)).collect();
    Record { trace, shape, cleared }
}

impl Record {
    /// Whether an event is of the first two batches, so that its memory is used again.
    fn is_early(event: &Line) -> bool {
        event.batch.is_some_and(|batch| batch < 2)
    }

    fn is_flag(&self, event: &Line) -> bool {
        event.kind == "publish" && self.is_cleared(event)
    }

    fn is_cleared(&self, event: &Line) -> bool {
        self.cleared.contains(&(event.peer.unwrap_or(event.rank), event.region.clone(), event.offset))
    }

    /// Some of the early events of a kind, or of all flags, evenly spread.
    fn some(&self, kind: &str) -> Vec<usize> {
        self.evenly(&|event| match kind {
            "flag" => self.is_flag(event),
            kind => Self::is_early(event) && event.kind == kind,
        })
    }

    fn evenly(&self, is_so: &dyn Fn(&Line) -> bool) -> Vec<usize> {
        let events = self.trace.events.iter().enumerate();
        let all: Vec<_> = events.filter(|(_, event)| is_so(event)).map(|(at, _)| at).collect();
        assert!(!all.is_empty(), "there is no such event");
        let every = all.len().div_ceil(TRIED);
        all.into_iter().step_by(every).collect()
    }

    /// The guard that is broken when the events are changed.
    fn guard(&self, change: impl FnOnce(&mut Vec<Line>)) -> Option<Guard> {
        let mut other = self.trace.clone();
        change(&mut other.events);
        conform(&other, &self.shape).unwrap().broken.map(|broken| broken.guard)
    }

    fn dropped(&self, at: usize) -> Option<Guard> {
        self.guard(|events| drop(events.remove(at)))
    }

    fn doubled(&self, at: usize) -> Option<Guard> {
        self.guard(|events| events.insert(at + 1, events[at].clone()))
    }

    /// What a core did last is told as the first that it did in the operator.
    fn first(&self, at: usize) -> Option<Guard> {
        let event = &self.trace.events[at];
        let own = |other: &&Line| {
            (other.rank, other.core) == (event.rank, event.core)
                && (other.batch, &other.operator) == (event.batch, &event.operator)
        };
        let begin = self.trace.events.iter().position(|other| own(&other)).unwrap();
        self.guard(|events| {
            let event = events.remove(at);
            events.insert(begin + 1, event);
        })
    }
}

#[test]
fn a_record_with_one_event_changed_is_refused() {
    for (run, needed) in RUNS.into_iter().step_by(tier(3, 1)) {
        let record = record(run);
        let refused = |what: &str, kind: &str, change: &dyn Fn(usize) -> Option<Guard>| {
            for at in record.some(kind) {
                assert!(change(at).is_some(), "{run}: {kind} {what}: {}", record.trace.texts[at]);
            }
        };
        for kind in needed.iter().chain(&["end"]) {
            refused("left out", kind, &|at| record.dropped(at));
        }
        for kind in needed.iter().filter(|kind| **kind == "flag").chain(&["end"]) {
            refused("twice", kind, &|at| record.doubled(at));
        }
        if needed.contains(&"flag") {
            let uncleared = |event: &Line| event.kind != "store" || event.word != Some(0);
            let guard = record.guard(|events| events.retain(uncleared));
            assert_eq!(guard, Some(Guard::Cleared), "{run}: no clears at all");
        }
        let early = |kind: &str| {
            let events = record.some(kind);
            let refused = events.iter().filter(|&&at| record.first(at).is_some()).count();
            assert!(2 * refused > events.len(), "{run}: {kind} too early: {refused} of {}", events.len());
        };
        ["observe", "deliver"].into_iter().for_each(early);
    }
}

#[test]
fn what_agents_carry_is_judged() {
    let stage_2 = format!("{} --stage 2", RUNS[9].0);
    for run in [RUNS[8].0, &stage_2] {
        let record = record(run);
        let events = &record.trace.events;
        let is_rung = |event: &Line| {
            event.kind == "observe" && event.core.is_none() && event.offset == doorbell().offset
        };
        // Core 0 is quiet once more, for its flip.
        let is_quiet = |event: &Line| {
            event.kind == "quiet" && event.core == Some(1) && event.operator.as_deref() == Some("dispatch")
        };
        let writes = |quiet: &Line| {
            let is_own = |event: &&Line| {
                (event.rank, event.core, event.batch) == (quiet.rank, quiet.core, quiet.batch)
            };
            let mut own = events.iter().filter(is_own).filter(|event| event.operator == quiet.operator);
            own.any(|event| event.kind == "write" && event.region == "window_out")
        };
        let rung = record.evenly(&is_rung);
        let quiets = record.evenly(&|event| Record::is_early(event) && is_quiet(event) && writes(event));
        // An agent that does not know that the words of a task have landed cannot tell them from equal ones of a task before.
        for at in rung.into_iter().chain(quiets) {
            let guard = record.dropped(at);
            let is_right = matches!(guard, Some(Guard::Covered | Guard::Round));
            assert!(is_right, "{run}: {guard:?}: {}", record.trace.texts[at]);
        }
        // In the full mesh the last flags alone: its tasks have gaps.
        let is_written = |event: &Line| {
            let is_asked = run == stage_2 || event.length == Some(8);
            Record::is_early(event) && event.kind == "write" && event.region == "window_out" && is_asked
        };
        for at in record.evenly(&is_written) {
            assert_eq!(record.dropped(at), Some(Guard::Carries), "{run}: {}", record.trace.texts[at]);
        }
    }
    let record = record(RUNS[8].0);
    let observed =
        record.trace.events.iter().filter(|event| event.kind == "observe" && event.region == "window");
    let flags = observed.filter(|event| event.word.is_some_and(|word| word as u32 == FLAG));
    let flags: HashSet<_> = flags.map(|event| (event.rank, event.offset)).collect();
    let is_clear = |event: &Line| {
        let is_at = event.region == "window" && flags.contains(&(event.rank, event.offset));
        event.kind == "store" && event.word == Some(0) && is_at
    };
    for at in record.evenly(&|event| Record::is_early(event) && is_clear(event)) {
        assert_eq!(record.dropped(at), Some(Guard::Cleared), "{}", record.trace.texts[at]);
    }
    let guard = record.guard(|events| events.retain(|event| !is_clear(event)));
    assert_eq!(guard, Some(Guard::Cleared), "no clears at all");
}

/// Runs on threads: those of [`RUNS`] that `run` makes, and stage 2. Where that is quick, each round is a unit of its own in a
/// second one, with a rank's cores on one worker.
fn on_threads() -> impl Iterator<Item = String> {
    let runs = RUNS.iter().filter_map(|(run, _)| {
        let words = run.split_whitespace().filter(|word| !["--backend", "weak", "lockstep"].contains(word));
        run.starts_with("run ").then(|| words.collect::<Vec<_>>().join(" "))
    });
    let stage_2 = "run --preset a2-hier-16 --set h=512 --set bs=1 --stage 2".to_owned();
    runs.chain([stage_2]).flat_map(|run| {
        let is_large = run.contains("a2-");
        let rounds = if is_large { 2 } else { 4 };
        let chained = format!("{run} --rounds {rounds} --threads 4 --spread cores --chain 2");
        let in_units = (!is_large).then(|| format!("{run} --rounds {rounds} --threads 2"));
        [chained].into_iter().chain(in_units)
    })
}

#[test]
fn threads_of_every_protocol_keep_the_contract() {
    // More by `VERIEP_SEEDS=20 cargo test -p veriep --test program threads_of_every_protocol`.
    let seeds: u64 = std::env::var("VERIEP_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let mut tried = 0;
    for (run, seed) in on_threads().flat_map(|run| (0..seeds).map(move |seed| (run.clone(), seed))) {
        let line = format!("{run} --set aiv_num=2 --seed {seed} --events {}", text(&file));
        json(0, &line.split_whitespace().collect::<Vec<_>>());
        let judged = json(0, &["conform", text(&file)]);
        assert_eq!(judged["verdict"], "yes", "{line}: {judged}");
        tried += 1;
    }
    assert!(tried >= 19, "{tried} runs");
}

/// A core of a hierarchy polls for an epoch and meets that of an operator before, which may be overwritten meanwhile.
#[test]
fn a_poll_that_meets_a_word_of_an_operator_before_is_no_read() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let run =
        "run a2-hier-16 --set h=1024 --set aiv_num=2 --set bs=2 -n 2 --schedule DDCC --backend lockstep";
    json(0, &[&run.split(' ').collect::<Vec<_>>()[..], &["--events", text(&file)]].concat());
    assert_eq!(json(0, &["conform", text(&file)])["verdict"], "yes");
}

/// With several cores and two batches in flight, a core polls where the task of an operator before still is.
const STAGE_2: &str = "run --preset a2-hier-16 --set h=512 --set bs=1 --set k=4 --stage 2 --schedule DDCC";

#[test]
fn a_poll_that_meets_a_task_of_an_operator_before_is_no_read() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    for backend in ["threads", "lockstep", "weak"] {
        for seed in 1..=tier(2, 8) {
            let run = STAGE_2.replace("DDCC", if seed % 2 == 0 { "D1,C0" } else { "DDCC" });
            let line = format!("{run} --set aiv_num=2 -n 2 --backend {backend} --seed {seed} --events");
            json(0, &line.split(' ').chain([text(&file)]).collect::<Vec<_>>());
            let judged = json(0, &["conform", text(&file)]);
            assert_eq!(judged["verdict"], "yes", "{line}: {judged}");
        }
    }
}

/// Such a poll must not read the rows of that task, and does not replace the poll of the operator that the task is of.
#[test]
fn a_task_is_read_in_the_operator_that_wrote_it() {
    let record = record(&format!("{STAGE_2} --backend weak"));
    let events = &record.trace.events;
    let end = |event: &Line| event.offset + event.length.unwrap_or(8);
    // By the place of its last word: where the last task is and, of one of dispatch, its operator.
    let mut tasks = HashMap::new();
    let (mut rows, mut polls) = (0, 0);
    let tried = tier(24, 400);
    let mut operator_of = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        let operator = (event.batch, event.operator.clone());
        let last_word = (event.peer.unwrap_or(event.rank), end(event));
        match &*event.kind {
            "write" if event.region == "window_out" => {
                drop(operator_of.insert((event.rank, end(event)), operator));
            }
            "post" => {
                let from = (event.rank, event.from.unwrap() + event.length.unwrap());
                tasks.insert(last_word, (at, operator_of[&from].clone()));
            }
            "observe" if event.region == "window" && event.core.is_some() => {
                let Some((post, of)) = tasks.get(&(event.rank, end(event))) else { continue };
                if *of == operator && Record::is_early(event) && polls < tried {
                    polls += 1;
                    let inside = events[*post].offset..end(event);
                    let unseen = |other: &Line| {
                        let is_there = other.region == event.region && inside.contains(&other.offset);
                        let is_its = (&other.kind, other.rank) == (&event.kind, event.rank) && is_there;
                        !is_its || (other.batch, &other.operator) != (event.batch, &event.operator)
                    };
                    let mut other = record.trace.clone();
                    other.events.retain(unseen);
                    let conformed = conform(&other, &record.shape).unwrap();
                    assert!(conformed.broken.is_some(), "{}", record.trace.texts[at]);
                } else if *of != operator && rows < tried && events[*post].length.unwrap() > 8 {
                    rows += 1;
                    let task = &events[*post];
                    let mut read = event.clone();
                    (read.kind, read.offset, read.length) = ("deliver".to_owned(), task.offset, Some(8));
                    let guard = record.guard(|events| events.insert(at + 1, read));
                    assert_eq!(guard, Some(Guard::Carries), "{}", record.trace.texts[at]);
                }
            }
            _ => {}
        }
    }
    assert!(rows > 7 && polls > 7, "{rows} {polls}");
}

/// A record of a stream is written in an operator before the one whose task carries it, and not in that one.
#[test]
fn a_task_of_which_a_part_is_of_another_operator_is_refused() {
    // Of one expert, so that a stream may be longer in combine than in dispatch.
    let record = record(&format!("{STAGE_2} --backend weak").replace("bs=1 --set k=4", "bs=3 --set k=1"));
    let events = &record.trace.events;
    let is_source = |event: &&Line| event.kind == "write" && event.region == "window_out";
    let own = |event: &Line| (event.rank, event.core);
    let mut tried = 0;
    for (at, event) in events.iter().enumerate().filter(|(_, event)| is_source(event)) {
        let is_late = event.batch == Some(0) && event.operator.as_deref() == Some("combine");
        let is_there = |other: &&Line| {
            other.rank == event.rank
                && other.offset < event.offset + 8
                && event.offset < other.offset + other.length.unwrap()
        };
        // No task has carried what was there.
        if !is_late || events[..at].iter().filter(is_source).any(|other| is_there(&other)) {
            continue;
        }
        let first =
            events.iter().position(|other| own(other) == own(event) && other.kind == "write").unwrap();
        let mut early = events[first].clone();
        (early.offset, early.length) = (event.offset, event.length);
        let guard = record.guard(|events| {
            events.remove(at);
            events.insert(first, early);
        });
        assert_eq!(guard, Some(Guard::Carries), "{}", record.trace.texts[at]);
        tried += 1;
        if tried == tier(12, 100) {
            return;
        }
    }
    assert!(tried > 3, "{tried}");
}

#[test]
fn a_record_without_dead_ranks_names_those_that_are_left_and_is_not_judged_in_full() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let run = "run tiny --set ep_world_size=8 --set moe_expert_num=16 --dead 1,6 -n 2 --backend";
    for backend in ["lockstep", "weak", "threads"] {
        json(0, &[&run.split(' ').collect::<Vec<_>>()[..], &[backend, "--events", text(&file)]].concat());
        let record = std::fs::read_to_string(&file).unwrap();
        let peers = record.lines().skip(1).filter_map(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            event["peer"].as_u64()
        });
        let peers: HashSet<_> = peers.collect();
        assert_eq!(peers, HashSet::from([0, 2, 3, 4, 5, 7]), "{backend}");
        let judged = json(4, &["conform", text(&file)]);
        let decides = judged["decides"].to_string();
        assert!(decides.contains("by which rows have their places, are in no record"), "{backend}: {judged}");
        assert_eq!(judged["lacks"].as_array().unwrap().len(), 1, "{backend}: {judged}");
    }
}

#[test]
fn a_record_of_threads_in_which_a_word_is_seen_before_it_is_published_is_refused() {
    let record = record("run --preset tiny --backend threads");
    let events = &record.trace.events;
    let seen_at = |at: usize| {
        let (word, is_flag) = (&events[at], record.is_flag(&events[at]));
        let is_it = |event: &Line| {
            (event.kind.as_str(), Some(event.rank), &event.region) == ("observe", word.peer, &word.region)
                && (event.offset, event.word) == (word.offset, word.word)
        };
        is_flag.then(|| at + events[at..].iter().position(is_it).unwrap())
    };
    let words = record.some("flag");
    for at in words {
        let seen = seen_at(at).unwrap();
        let late = record.guard(|events| events[at..=seen].rotate_left(1));
        assert!(late.is_some(), "{}", record.trace.texts[at]);
    }
}

#[test]
fn each_guard_is_named() {
    let record = record(RUNS[0].0);
    let first = |is_so: &dyn Fn(&Line) -> bool| {
        let at = record.trace.events.iter().position(|event| Record::is_early(event) && is_so(event));
        at.expect("there is such an event")
    };
    let of = |kind: &'static str, operator: &'static str| {
        first(&move |event| event.kind == kind && event.operator.as_deref() == Some(operator))
    };
    let flag = first(&|event| record.is_flag(event));
    let store = first(&|event| {
        event.kind == "store" && event.operator.as_deref() == Some("combine") && event.word == Some(0)
    });
    let observe = first(&|event| event.kind == "observe" && event.operator.as_deref() == Some("combine"));
    let all = |record: &Record, kind: &str| -> Vec<_> {
        record.some(kind).into_iter().filter_map(|at| record.dropped(at)).collect()
    };
    let unread = record.guard(|events| {
        events.retain(|event| event.kind != "deliver" || event.operator.as_deref() != Some("dispatch"));
    });
    let put = of("put", "dispatch");
    for (guard, seen) in [
        (Guard::Inside, record.guard(|events| events[put].batch = Some(7))),
        (Guard::Inside, record.guard(|events| events[put].operator = Some("combine".to_owned()))),
        (Guard::Join, record.dropped(of("end", "dispatch"))),
        (Guard::Inside, record.first(of("end", "combine"))),
        (Guard::Place, record.guard(|events| events[put].offset = record.shape.window_bytes() - 8)),
        (
            Guard::Place,
            record.guard(|events| (events[put].offset, events[put].length) = (512, Some(u64::MAX))),
        ),
        (Guard::Flag, record.dropped(flag)),
        (Guard::Taken, record.dropped(observe)),
        (Guard::Cleared, record.dropped(store)),
        (Guard::Covered, all(&record, "quiet").into_iter().find(|&guard| guard == Guard::Covered)),
        (Guard::Carries, record.dropped(put)),
        (Guard::Overwritten, unread),
    ] {
        assert_eq!(seen, Some(guard));
    }
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let put = |rank| event(rank, "put", r#","peer":1,"region":"state","offset":0,"length":8,"word":"0x1""#);
    let events = [event(0, "begin", ""), put(0), event(1, "begin", ""), put(1)];
    std::fs::write(&file, format!("{HEADER}\n{}", events.join("\n"))).unwrap();
    let broken = &json(1, &["conform", text(&file)])["broken"];
    assert_eq!(
        (&broken["guard"], &broken["line"], &broken["against"]),
        (&"hush".into(), &5.into(), &3.into())
    );
}

/// The lines that begin, set aside, take up again and end what a core does: each is left out, doubled and exchanged with the
/// next one of its core.
#[test]
fn each_changed_line_of_a_half_is_refused() {
    for run in OF_HALVES.map(|at| RUNS[at].0) {
        let record = record(run);
        let events = &record.trace.events;
        let mut doing = HashMap::new();
        let mut tried = HashMap::new();
        for (at, event) in events.iter().enumerate() {
            let kind = event.kind.as_str();
            let (core, operator) = ((event.rank, event.core), (event.batch, event.operator.clone()));
            match kind {
                // Another phase.
                "begin" if doing.get(&core) == Some(&operator) => continue,
                "begin" | "resume" => drop(doing.insert(core, operator)),
                "sent" | "end" => drop(doing.remove(&core)),
                _ => continue,
            }
            let count = tried.entry(kind).or_insert(0);
            *count += 1;
            // Of the group of 16 ranks some are enough.
            if *count > tier(24, 400) {
                continue;
            }
            let next = next_of_core(events, at);
            for change in CHANGES {
                let Some(other) = changed(&record.trace, at, change) else { continue };
                let conformed = conform(&other, &record.shape).unwrap();
                let is_refused = conformed.broken.is_some() || !conformed.lacks.is_empty();
                // Up to the next begin, which is of another phase, or the next event there is nothing that must be inside.
                let is_free = |kind: &str| ["await", "quiet"].contains(&kind);
                let is_harmless = match (kind, change) {
                    ("begin", DOUBLED) => true,
                    ("begin", LEFT_OUT) => {
                        let own = events[at + 1..].iter().filter(|other| (other.rank, other.core) == core);
                        own.map(|event| &*event.kind).find(|kind| !is_free(kind)) == Some("begin")
                    }
                    ("begin", EXCHANGED) => {
                        next.is_some_and(|next| is_free(&events[next].kind) || events[next].kind == "begin")
                    }
                    ("resume", EXCHANGED) => next.is_some_and(|next| is_free(&events[next].kind)),
                    _ => false,
                };
                assert_eq!(is_refused, !is_harmless, "{run}: {change}: {}", record.trace.texts[at]);
            }
        }
        let kinds = ["begin", "sent", "resume", "end"];
        assert!(kinds.iter().all(|kind| tried.get(kind).is_some_and(|tried| *tried > 7)), "{run}: {tried:?}");
    }
}

/// What is awaited of an operator is told as if it had come after the word that everything is sent, and after that in the other half.
#[test]
fn what_is_sent_after_everything_is_sent_is_refused() {
    for run in OF_HALVES.map(|at| RUNS[at].0) {
        // Of one core: no other one must have sent, too.
        let record = record_of(run, 1);
        let events = &record.trace.events;
        let mut tried = 0;
        let is_core = |at: usize, other: usize| {
            (events[at].rank, events[at].core) == (events[other].rank, events[other].core)
        };
        for sent in record.evenly(&|event| event.kind == "sent" && event.batch == Some(1)) {
            let is_own = |at: &usize| is_core(*at, sent) && events[*at].operator == events[sent].operator;
            let is_awaited = |at: &usize| {
                let event = &events[*at];
                let is_rung = event.kind == "publish" && event.offset == doorbell().offset;
                event.peer.is_some_and(|peer| peer != event.rank) && event.kind != "deliver" || is_rung
            };
            let last = (0..sent).rev().filter(|at| is_own(at)).find(is_awaited);
            let resumed = (sent..events.len()).find(|at| is_own(at) && events[*at].kind == "resume").unwrap();
            // A core without rows may send nothing.
            let Some(last) = last.filter(|last| events[*last].batch == Some(1)) else { continue };
            let between = record.guard(|events| events[last..=sent].rotate_right(1));
            assert_eq!(between, Some(Guard::Inside), "{run}: {}", record.trace.texts[last]);
            // Both words come before it: only that everything is sent is not true.
            let event = events[last].clone();
            let core = |other: &Line| (other.rank, other.core) == (event.rank, event.core);
            let halves = [events[sent].clone(), events[resumed].clone()];
            let early = record.guard(|events| {
                events.remove(resumed);
                events.remove(sent);
                let first = events[..last].iter().rposition(|other| other.kind == "begin" && core(other));
                events.splice(first.unwrap() + 1..=first.unwrap(), halves);
            });
            assert_eq!(early, Some(Guard::Sent), "{run}: {}", record.trace.texts[last]);
            tried += 1;
        }
        assert!(tried > 1, "{run}: {tried}");
    }
}

#[test]
fn what_gates_forbid_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    for (order, event, why) in [
        ("Ds0,Ds1,Dr0,Dr1,C0,C1", "dispatch", "a dispatch begins before the one before it has been received"),
        (
            "DsDrD D CsCrCC",
            "combine",
            "an operator begins while other ranks may still read its partition: a dispatch must begin and end before",
        ),
    ] {
        let run = "run tiny --backend lockstep --unchecked --rounds 3 --set aiv_num=2 --events";
        let run: Vec<_> = run.split(' ').chain([text(&file), "--schedule", order]).collect();
        json(0, &run);
        let broken = &json(1, &["conform", text(&file)])["broken"];
        assert_eq!((&broken["guard"], &broken["because"]), (&"gate".into(), &why.into()), "{order}");
        let begun: Value = serde_json::from_str(broken["event"].as_str().unwrap()).unwrap();
        assert_eq!((&begun["kind"], &begun["operator"]), (&"begin".into(), &event.into()), "{order}");
        let line = fails(1, &["conform", text(&file)]);
        assert!(line.contains(&format!("gate: the gates of the rank refuse the operator: {why}")), "{line}");
    }
    // Of more partitions gates know nothing, and the header of such a record says so.
    let record = std::fs::read_to_string(&file).unwrap();
    let more = record.replacen("\"options\":{", "\"options\":{\"partitions\":[3,3],", 1);
    std::fs::write(&file, more).unwrap();
    assert_ne!(json(1, &["conform", text(&file)])["broken"]["guard"], "gate");
}

/// Two cores of a rank, and the combine of a dispatch that has not ended.
#[test]
fn the_cores_of_a_rank_take_halves_in_one_order() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let header = HEADER.replace(":2}", ":2,\"aiv_num\":2}");
    let event = |core: u32, kind: &str, operator: &str, batch: u64| {
        format!(r#"{{"rank":0,"core":{core},"batch":{batch},"operator":"{operator}","kind":"{kind}"}}"#)
    };
    let broken = |status: i32, events: &[String]| {
        std::fs::write(&file, format!("{header}\n{}\n", events.join("\n"))).unwrap();
        let broken = json(status, &["conform", text(&file)])["broken"].clone();
        (broken["guard"].clone(), broken["line"].clone(), broken["against"].clone())
    };
    let sent = |core: u32| [event(core, "begin", "dispatch", 0), event(core, "sent", "dispatch", 0)];
    let received = |core: u32| [event(core, "resume", "dispatch", 0), event(core, "end", "dispatch", 0)];
    let both = [sent(0), sent(1)].concat();
    let next = |events: &[String]| [&both[..], events].concat();
    assert_eq!(broken(4, &next(&[received(0), received(1)].concat())), Default::default());
    let other = [received(0), [event(1, "begin", "dispatch", 1), event(1, "end", "dispatch", 1)]].concat();
    assert_eq!(broken(1, &next(&other)), ("join".into(), 8.into(), 6.into()));
    let early = [event(0, "begin", "combine", 0)];
    assert_eq!(broken(1, &next(&early)), ("join".into(), 6.into(), Value::Null));
    let again = [event(0, "begin", "dispatch", 0)];
    assert_eq!(broken(1, &next(&again)), ("join".into(), 6.into(), Value::Null));
    let unsent = [event(0, "resume", "dispatch", 1)];
    assert_eq!(broken(1, &next(&unsent)), ("inside".into(), 6.into(), Value::Null));
    let ended: Vec<_> = both.iter().cloned().chain(received(0)).chain(received(1)).collect();
    let combine = |core: u32, kind: &str| event(core, kind, "combine", 0);
    let returned = [0, 1].map(|core| [combine(core, "begin"), combine(core, "sent")]).concat();
    let twice = [&ended[..], &returned, &[combine(0, "begin")]].concat();
    assert_eq!(broken(1, &twice), ("join".into(), 14.into(), Value::Null));
    // One core has sent, the other one has not.
    let alone = [&sent(0)[..], &received(0)[..]].concat();
    assert_eq!(broken(1, &[&alone[..], &sent(1)[..]].concat()).0, Value::from("join"));
}

/// A core begins an operator within another one. It is the only core, so that no other one is behind.
#[test]
fn a_core_in_an_operator_begins_no_other_one() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let header = HEADER.replace(":2}", ":2,\"aiv_num\":1}");
    let begin =
        |batch: u64| format!(r#"{{"rank":0,"core":0,"batch":{batch},"operator":"dispatch","kind":"begin"}}"#);
    let end = begin(0).replace("begin", "end");
    std::fs::write(&file, format!("{header}\n{}\n{}\n", begin(0), begin(1))).unwrap();
    let broken = &json(1, &["conform", text(&file)])["broken"];
    assert_eq!((&broken["guard"], &broken["line"]), (&"join".into(), &3.into()));
    std::fs::write(&file, format!("{header}\n{}\n{end}\n{}\n", begin(0), begin(1))).unwrap();
    assert_eq!(json(4, &["conform", text(&file)])["broken"], Value::Null);
}

#[test]
fn a_task_is_read_within_windows_out() {
    let record = record(RUNS[8].0);
    for at in record.evenly(&|event| event.kind == "post") {
        let guard = record.guard(|events| events[at].from = Some(1 << 40));
        assert_eq!(guard, Some(Guard::Place), "{}", record.trace.texts[at]);
    }
}

/// The publisher of the next word knows that the one before was cleared, but its clear may land on top of that word.
#[test]
fn a_word_is_published_after_the_clear_before_it_has_landed() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let at = |offset: u64, word: u64| format!(r#","region":"state","offset":{offset},"word":"{word:#x}""#);
    let publishes = |rank: u32, (offset, word): (u64, u64)| {
        event(rank, "publish", &format!(r#","peer":{}{}"#, 1 - rank, at(offset, word)))
    };
    let sees = |rank: u32, (offset, word): (u64, u64)| event(rank, "observe", &at(offset, word));
    let begins = [event(0, "begin", ""), event(1, "begin", "")];
    let cleared = [publishes(0, (0, 1)), sees(1, (0, 1)), event(1, "store", &at(0, 0))];
    let answered = [publishes(1, (8, 1)), sees(0, (8, 1)), publishes(0, (0, 2))];
    let broken = |status: i32, quiet: &[String]| {
        let lines = [&begins[..], &cleared, quiet, &answered].concat();
        std::fs::write(&file, format!("{HEADER}\n{}\n", lines.join("\n"))).unwrap();
        let broken = json(status, &["conform", text(&file)])["broken"].clone();
        (broken["guard"].clone(), broken["line"].clone(), broken["against"].clone())
    };
    assert_eq!(broken(1, &[]), ("cleared".into(), 9.into(), 6.into()));
    assert_eq!(broken(4, &[event(1, "quiet", "")]), Default::default());
}

/// Experts read rows where they were put, and owners of tokens read the results there.
#[test]
fn experts_read_what_has_landed_and_owners_what_experts_have_left() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let header = HEADER.replace(":2}", ":2,\"aiv_num\":1}").replace("{}}", "{\"receive\":\"direct\"}}");
    let event = |rank: u32, operator: &str, kind: &str, more: &str| {
        format!(r#"{{"rank":{rank},"core":0,"batch":0,"operator":"{operator}","kind":"{kind}"{more}}}"#)
    };
    let word = r#","region":"state","offset":0,"word":"0x1""#;
    let publishes = |rank: u32, operator: &str| {
        event(rank, operator, "publish", &format!(r#","peer":{}{word}"#, 1 - rank))
    };
    let sees = |rank: u32, operator: &str| event(rank, operator, "observe", word);
    let row = |rank: u32, operator: &str, kind: &str| {
        event(rank, operator, kind, r#","peer":1,"region":"window","offset":0,"length":64"#)
    };
    let broken = |status: i32, parts: &[&[String]]| {
        std::fs::write(&file, format!("{header}\n{}\n", parts.concat().join("\n"))).unwrap();
        let broken = json(status, &["conform", text(&file)])["broken"].clone();
        (broken["guard"].clone(), broken["line"].clone(), broken["against"].clone())
    };
    let begins =
        [event(0, "dispatch", "begin", ""), event(1, "dispatch", "begin", ""), row(0, "dispatch", "put")];
    let told = [publishes(0, "dispatch"), sees(1, "dispatch")];
    let ends = [event(0, "dispatch", "end", ""), event(1, "dispatch", "end", "")];
    // It has landed, but no experts have run.
    let again = [event(0, "dispatch", "quiet", ""), row(0, "dispatch", "put")];
    assert_eq!(broken(1, &[&begins, &told, &again]), ("overwritten".into(), 8.into(), 4.into()));
    let combines = [event(1, "combine", "begin", ""), event(0, "combine", "begin", "")];
    assert_eq!(broken(1, &[&begins, &ends, &combines]), ("covered".into(), 7.into(), 4.into()));
    let fetched = [row(0, "combine", "deliver")];
    let unasked = broken(1, &[&begins, &told, &ends, &combines, &fetched]);
    assert_eq!(unasked, ("covered".into(), 11.into(), Value::Null));
    let answered = [publishes(1, "combine"), sees(0, "combine")];
    assert_eq!(broken(4, &[&begins, &told, &ends, &combines, &answered, &fetched]), Default::default());
}

#[test]
fn what_is_no_record_is_refused_with_its_line() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let good = HEADER;
    let event = r#"{"time":1,"rank":0,"core":0,"kind":"quiet"}"#;
    for (text, why) in [
        (String::new(), "line 1: must be the header"),
        ("{}".to_owned(), "line 1: schema: must be \"veriep.events/2\""),
        (good.replace("\"k\"", "\"kk\""), "line 1: config: `kk = 2`: unknown key"),
        (
            good.replace("\"config\"", "\"of\""),
            "line 1: must be the header of a record of events: unknown field `of`",
        ),
        (
            good.replace(",\"config\":{\"ep_world_size\":2,\"moe_expert_num\":4,\"k\":2}", ""),
            "line 1: config: missing",
        ),
        (good.replace("\"events\",", "\"weeks\","), "line 1: unit \"weeks\": must be"),
        (
            good.replace("{}}", "{\"recieve\":\"copy\"}}"),
            "line 1: must be the header of a record of events: unknown field `recieve`, expected one of `receive`",
        ),
        (
            good.replace("{}}", "{\"rounds\":\"2\"}}"),
            "line 1: must be the header of a record of events: invalid type",
        ),
        (
            good.replace("{}}", "{\"schedule\":\"DC\",\"rounds\":18446744073709551615}}"),
            "line 1: rounds 18446744073709551615: more operators than can be counted",
        ),
        (good.replace("{}}", "{\"schedule\":\"X\",\"rounds\":1}}"), "line 1: schedule \"X\": "),
        (good.replace("{}}", "{\"schedule\":\"D1 C0\",\"chain\":-1}}"), "line 1: must be the header"),
        (
            good.replace("{}}", "{\"schedule\":\"\",\"rounds\":1}}"),
            "line 1: schedule \"\": must have at least one D",
        ),
        (format!("{good}\n{}", event.replace("\"time\"", "\"lenght\"")), "line 2: unknown field `lenght`"),
        (
            good.replace(":2,", ":256,").replace(":4,", ":256,").replace(":2}", ":2,\"aiv_num\":48}")
                + "\n"
                + event,
            "must be at most 4096",
        ),
        (format!("{good}\n{event}\n{{\n"), "line 3: "),
        (
            format!("{good}\n{}", event.replace("\"rank\":0", "\"rank\":2")),
            "line 2: no such rank, core or peer",
        ),
        (format!("{good}\n{}", event.replace("quiet\"", "store\",\"word\":\"7\"")), "must be 0x"),
        (good.replace("{}}", "{\"receive\":\"teleport\"}}") + "\n" + event, "no such way to receive"),
        (
            format!("{good}\n{}", event.replace("quiet", "xput")),
            "kind \"xput\": must be one of begin, sent, resume, end, put",
        ),
        (format!("{good}\n{}", event.replace("quiet", "put")), "put: must have peer"),
        (
            format!(
                "{good}\n{}",
                event.replace("quiet\"", "store\",\"word\":\"0x7\",\"region\":\"nowhere\"")
            ),
            "no such region",
        ),
        (
            format!(
                "{good}\n{}",
                event.replace("quiet\"", "store\",\"word\":\"0x7\",\"region\":\"state\",\"offset\":3")
            ),
            "multiple of 8",
        ),
        (
            format!(
                "{good}\n{}",
                event.replace(
                    "quiet\"",
                    "store\",\"word\":\"0x7\",\"region\":\"state\",\"offset\":18446744073709551608"
                )
            ),
            "must end below",
        ),
    ] {
        std::fs::write(&file, &text).unwrap();
        let line = fails(2, &["conform", file.to_str().unwrap()]);
        assert!(line.contains(why), "{text}: {line}");
    }
    assert!(fails(2, &["conform", text(&folder.path().join("none"))]).contains("none"));
}

/// Why a record is not that of a whole run that its header describes. Nothing in it is broken.
fn lacks(record: &Record, change: impl FnOnce(&mut Trace)) -> String {
    let mut other = record.trace.clone();
    change(&mut other);
    let shape = Shape::new(&other.config.as_core(Given::empty()), Limits::None).unwrap();
    let conformed = conform(&other, &shape).unwrap();
    assert!(conformed.broken.is_none(), "{:?}", conformed.broken);
    conformed.lacks.join("; ")
}

#[test]
fn a_header_that_the_record_does_not_bear_out_is_not_believed() {
    let record = record(RUNS[0].0);
    assert_eq!(lacks(&record, |_| ()), "");
    let says = |change: &dyn Fn(&mut Trace), why: &str| {
        let said = lacks(&record, change);
        assert!(said.contains(why), "{why}: {said}");
    };
    says(&|trace| trace.rounds = Some(3), "begins 4 dispatches: the header has 3 rounds");
    says(&|trace| (trace.rounds, trace.operators) = (Some(2), Some(4)), "the header has 2 rounds");
    says(&|trace| (trace.schedule, trace.operators) = (None, None), "");
    says(
        &|trace| (trace.schedule, trace.operators, trace.rounds) = (None, None, Some(8)),
        "the header has 8 rounds",
    );
    says(
        &|trace| trace.schedule = Some("DDCC".to_owned()),
        "begins a combine as operator 2: not by the header's schedule \"DDCC\"",
    );
    says(&|trace| trace.dead = vec![1], "the header has rank 1 dead, which takes part in line ");
    says(&|trace| trace.dead = vec![2], "the header has rank 2 dead: there are 2 ranks");
    for bs in [1, 3, 5, 64] {
        says(
            &|trace| trace.config.bs = Bs::Uniform(bs),
            "puts a row where this configuration has none: is its bs right?",
        );
    }
}

/// With these headers rows are at the beginning of a record of another source, or within a record.
#[test]
fn a_row_in_a_record_of_another_rank_or_within_one_has_no_place() {
    let says = |run: &str, change: fn(&mut Trace)| {
        let said = lacks(&record(&format!("run --preset tiny --backend lockstep {run}")), change);
        assert!(said.contains("puts a row where this configuration has none"), "{run}: {said}");
    };
    says("--set hccl_buffsize_mb=64", |trace| trace.config.moe_expert_num *= 2);
    // Of the first rank alone.
    says("--set bs=[4,0] --set global_bs=8 --set quant_mode=2 --set hccl_buffsize_mb=64", |trace| {
        trace.config.quant_mode = 0;
    });
}

/// The memory is for the largest batch, so a place alone does not tell that a smaller one has no row there.
#[test]
fn a_row_beyond_the_batch_of_its_source_has_no_place() {
    let record = record("run --preset tiny --set bs=[4,2] --set global_bs=8 --backend lockstep");
    assert_eq!(lacks(&record, |_| ()), "");
    let said = lacks(&record, |trace| trace.config.bs = Bs::PerRank(vec![2, 4]));
    assert!(said.contains("puts a row where this configuration has none"), "{said}");
}

#[test]
fn a_header_of_halves_and_loops_is_believed_as_the_record_shows_it() {
    let record = record(RUNS[OF_HALVES[0]].0);
    assert_eq!(lacks(&record, |_| ()), "");
    assert_eq!(record.trace.chain, Some(3), "a dispatch and a combine are outside of the loop");
    let says = |change: &dyn Fn(&mut Trace), why: &str| {
        let said = lacks(&record, change);
        assert!(said.contains(why), "{why}: {said}");
    };
    // Taken once, the loop ends earlier and begins again.
    says(
        &|trace| trace.chain = Some(1),
        "begins a sending half of a dispatch as operator 7: not by the header's schedule \"Ds1,Cs0,Dr1,Cr0\"",
    );
    says(
        &|trace| trace.schedule = Some("DC".to_owned()),
        "begins a sending half of a dispatch as operator 1",
    );
    says(
        &|trace| trace.schedule = Some("Ds1,C0,Dr1".to_owned()),
        "as operator 4: not by the header's schedule",
    );
    says(&|trace| trace.rounds = Some(3), "begins a sending half of a dispatch as operator 11");
    says(&|trace| (trace.rounds, trace.operators) = (Some(5), Some(10)), "have not ended all 10 operators");
    let is_last = |event: &Line| event.kind == "resume" && event.operator.as_deref() == Some("combine");
    let last = record.trace.events.iter().rposition(is_last).unwrap();
    says(&|trace| trace.events.truncate(last), "has sent combine of batch ");
}

#[test]
fn a_row_of_which_only_the_triple_is_read_is_not_read() {
    for run in [0, 1, 2, 6] {
        let record = record(RUNS[run].0);
        // Rows of dispatch; their triples have 12 bytes.
        let is_row = |event: &Line| {
            let is_of_dispatch = event.operator.as_deref() == Some("dispatch") && event.region == "window";
            event.kind == "deliver" && is_of_dispatch && event.length.is_some_and(|length| length > 12)
        };
        for at in record.evenly(&is_row) {
            let (early, batch) = (Record::is_early(&record.trace.events[at]), record.trace.events[at].batch);
            let conformed = {
                let mut other = record.trace.clone();
                other.events.remove(at);
                conform(&other, &record.shape).unwrap()
            };
            match conformed.broken {
                Some(broken) => assert_eq!(broken.guard, Guard::Overwritten, "{early} {batch:?}"),
                None => assert!(conformed.lacks.join("").contains("no core reads what line "), "{batch:?}"),
            }
        }
    }
}

#[test]
fn a_row_of_x_out_that_no_core_writes_is_missed() {
    for (run, _) in RUNS {
        let record = record(run);
        let is_written = |event: &Line| event.kind == "write" && event.region == "x_out";
        for at in record.evenly(&is_written) {
            let said = lacks(&record, |trace| drop(trace.events.remove(at)));
            assert!(said.contains("x_out"), "{run}: {said}: {}", record.trace.texts[at]);
        }
        let said = lacks(&record, |trace| trace.events.retain(|event| !is_written(event)));
        assert!(said.contains("writes 0 rows of x_out"), "{run}: {said}");
    }
}

#[test]
fn each_doubled_word_of_a_core_barrier_is_refused() {
    for run in [0, 1, 2, 6] {
        // Of eight cores some have no rows, so that their words at epoch 0 are 0.
        let record = record_of(RUNS[run].0, 8);
        let is_arrival =
            |at: &usize| record.trace.texts[*at].contains(".ArriveWithSums\",\"kind\":\"publish\"");
        let arrivals: Vec<_> = (0..record.trace.events.len()).filter(is_arrival).collect();
        assert!(arrivals.len() > 7);
        for at in arrivals {
            assert_eq!(record.doubled(at), Some(Guard::Cleared), "{}", record.trace.texts[at]);
        }
    }
}

/// Another core of the rank writes the first, the last or all bytes of what a core writes in the same operator.
#[test]
fn a_byte_of_an_output_has_one_writer_in_an_operator() {
    for run in [RUNS[0].0, RUNS[3].0, RUNS[6].0, RUNS[9].0, RUNS[10].0, RUNS[OF_HALVES[0]].0] {
        let record = record(run);
        let events = &record.trace.events;
        let operator = |event: &Line| (event.rank, event.batch, event.operator.clone());
        // It has them between the begin of an operator and its end.
        let has_effect =
            |event: &Line| ["put", "publish", "store", "write", "deliver"].contains(&&*event.kind);
        let mut outputs = BTreeSet::new();
        for at in record.evenly(&|event| class(&record, event) == "write of an output") {
            let written = &events[at];
            let other = |event: &Line| operator(event) == operator(written) && event.core != written.core;
            let Some(inside) = events.iter().position(|event| other(event) && has_effect(event)) else {
                continue;
            };
            outputs.insert(&written.region);
            let length = written.length.unwrap();
            for (behind, length) in [(0, 1), (length - 1, 1), (length - 1, 9), (0, length)] {
                let mut copy = written.clone();
                (copy.core, copy.offset, copy.length) =
                    (events[inside].core, written.offset + behind, Some(length));
                let guard = record.guard(|events| events.insert(inside, copy));
                assert_eq!(guard, Some(Guard::Writer), "{run}: {}", record.trace.texts[at]);
            }
            // The output of the other operator, and of one that has ended.
            let is_of_combine = written.operator.as_deref() == Some("combine");
            let region = if is_of_combine { "expand_idx" } else { "x_out" };
            let guard = record.guard(|events| events[at].region = region.to_owned());
            assert_eq!(guard, Some(Guard::Inside), "{run}: {}", record.trace.texts[at]);
            let own = |event: &Line| operator(event) == operator(written) && event.core == written.core;
            let end = events.iter().rposition(|event| own(event) && event.kind == "end").unwrap();
            let guard = record.guard(|events| events[at..=end].rotate_left(1));
            assert_eq!(guard, Some(Guard::Inside), "{run}: {}", record.trace.texts[at]);
        }
        assert!(outputs.len() > 1, "{run}: {outputs:?}");
    }
}

/// What another core writes in another operator, of the same number or not, and what the same core writes again.
#[test]
fn an_output_may_have_another_writer_in_another_operator() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let header = HEADER.replace(":2}", ":2,\"aiv_num\":2}");
    let event = |core: u32, batch: u64, kind: &str| {
        format!(r#"{{"rank":0,"core":{core},"batch":{batch},"operator":"dispatch","kind":"{kind}"}}"#)
    };
    let write = |core: u32, batch: u64, offset: u64| {
        let at = format!(r#"","region":"expand_idx","offset":{offset},"length":8}}"#);
        event(core, batch, "write").replace("\"}", &at)
    };
    let both = |batch: u64, kind: &str| [0, 1].map(|core| event(core, batch, kind));
    let first = [write(0, 0, 0), write(0, 0, 4), write(0, 0, 0), write(1, 0, 12)];
    let begun = [&both(0, "begin")[..], &first].concat();
    for batch in [0, 1] {
        let next = [&both(0, "end")[..], &both(batch, "begin"), &[write(1, batch, 0)]].concat();
        std::fs::write(&file, format!("{header}\n{}\n", [&begun[..], &next].concat().join("\n"))).unwrap();
        assert_eq!(json(4, &["conform", text(&file)])["broken"], Value::Null);
    }
    // Of what core 0 has written at several times, the second byte from its end.
    std::fs::write(&file, format!("{header}\n{}\n{}\n", begun.join("\n"), write(1, 0, 10))).unwrap();
    let broken = &json(1, &["conform", text(&file)])["broken"];
    assert_eq!(
        (&broken["guard"], &broken["line"], &broken["against"]),
        (&"writer".into(), &8.into(), &4.into())
    );
}

#[test]
fn a_record_that_is_no_whole_run_is_unknown() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let unknown = |content: &str, why: &str| {
        std::fs::write(&file, content).unwrap();
        let told = json(4, &["conform", text(&file)]);
        assert_eq!((&told["verdict"], &told["ok"]), (&"unknown".into(), &false.into()), "{told}");
        assert!(told["lacks"].to_string().contains(why), "{told}");
        assert!(told["decides"][0].as_str().unwrap().starts_with("the record of a whole run: "), "{told}");
    };
    unknown(HEADER, "no core has begun an operator");
    let event = r#"{"time":1,"rank":0,"core":0,"kind":"quiet"}"#;
    unknown(&format!("{HEADER}\n{event}"), "no core has begun an operator");
    let run = "run --preset tiny --backend lockstep --rounds 2 --set aiv_num=2 --events";
    json(0, &run.split(' ').chain([text(&file)]).collect::<Vec<_>>());
    let whole = std::fs::read_to_string(&file).unwrap();
    assert_eq!(json(0, &["conform", text(&file)])["verdict"], "yes");
    let lines: Vec<_> = whole.lines().collect();
    // Within an operator, between two, and within a line.
    unknown(&lines[..lines.len() / 2].join("\n"), "cores have not ended all 4 operators");
    let ends = lines.iter().rposition(|line| line.contains("\"begin\"") && line.contains("\"combine\""));
    let first = lines.iter().position(|line| line.contains("\"batch\":1"));
    unknown(&lines[..first.unwrap().min(ends.unwrap())].join("\n"), "cores have not ended all 4 operators");
    unknown(&whole[..whole.len() - 9], "the file ends within a line");
    let without = |is_left_out: &dyn Fn(&str) -> bool| -> String {
        lines.iter().filter(|line| !is_left_out(line)).map(|line| format!("{line}\n")).collect()
    };
    let is = |line: &str, kind: &str| line.contains(&format!("\"kind\":\"{kind}\""));
    // Without the reads nothing breaks in two rounds, whose memory is not used again.
    unknown(&without(&|line| is(line, "deliver")), "no core reads a row in any dispatch");
    let rows = without(&|line| is(line, "put") || is(line, "deliver"));
    unknown(&rows, "no core puts a row in any combine");
    let last = lines.iter().rposition(|line| is(line, "deliver")).unwrap();
    let mut all_but_one = lines.clone();
    all_but_one.remove(last);
    unknown(&(all_but_one.join("\n") + "\n"), "no core reads what line ");
    // What is broken stays so, whatever is missing after it.
    let broken: Vec<_> = lines.iter().filter(|line| !line.contains("\"kind\":\"put\"")).copied().collect();
    std::fs::write(&file, &broken.join("\n")[..broken.join("\n").len() - 9]).unwrap();
    assert_eq!(json(1, &["conform", text(&file)])["verdict"], "no");
}

/// The same row is put twice into a slot, and nothing in between says that the first one was read.
#[test]
fn a_slot_that_is_used_again_in_one_operator_is_refused() {
    for run in [0, 1, 2, 6] {
        let record = record(RUNS[run].0);
        for operator in ["dispatch", "combine"] {
            let is_row = |event: &Line| event.kind == "put" && event.operator.as_deref() == Some(operator);
            for at in record.evenly(&is_row) {
                assert_eq!(record.doubled(at), Some(Guard::Overwritten), "{}", record.trace.texts[at]);
            }
        }
    }
}

/// An agent's transfer reads its source when it is delivered. Here a core writes there again as soon as it is posted.
#[test]
fn a_source_that_is_written_again_before_its_transfer_was_seen_is_refused() {
    for run in [RUNS[8].0, &format!("{} --stage 2", RUNS[9].0)] {
        let record = record(run);
        let events = &record.trace.events;
        let is_source = |event: &Line| event.kind == "write" && event.region == "window_out";
        let mut tried = 0;
        for at in record.evenly(&|event| Record::is_early(event) && is_source(event)) {
            let carries = |post: &Line| {
                let end = |event: &Line, start| start + event.length.unwrap_or(0);
                let is_inside = |from| from <= events[at].offset && events[at].offset < end(post, from);
                (&*post.kind, post.rank) == ("post", events[at].rank) && post.from.is_some_and(is_inside)
            };
            let post = at + events[at..].iter().position(carries).unwrap();
            let own = |event: &&Line| (event.rank, event.core) == (events[at].rank, events[at].core);
            // A core that has ended its operator writes no more.
            if events[at..post].iter().filter(own).any(|event| event.kind == "end") {
                continue;
            }
            tried += 1;
            let guard = record.guard(|events| events.insert(post + 1, events[at].clone()));
            assert_eq!(guard, Some(Guard::Overwritten), "{run}: {}", record.trace.texts[at]);
        }
        assert!(tried > 3, "{run}: {tried}");
    }
}

/// Two words at one place, by one core, and what the core of the other rank sees.
#[test]
fn words_that_come_round_or_follow_each_other_at_once_are_refused() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let publishes = |word: u64| {
        event(0, "publish", &format!(r#","peer":1,"region":"state","offset":0,"word":"{word:#x}""#))
    };
    let sees =
        |word: u64| event(1, "observe", &format!(r#","region":"state","offset":0,"word":"{word:#x}""#));
    let quiet = || event(0, "quiet", "");
    let broken = |events: &[String], status: i32| {
        let begins = [0, 1].map(|rank| event(rank, "begin", ""));
        let lines: Vec<_> = begins.iter().chain(events).cloned().collect();
        std::fs::write(&file, format!("{HEADER}\n{}\n", lines.join("\n"))).unwrap();
        let broken = json(status, &["conform", text(&file)])["broken"].clone();
        (broken["guard"].clone(), broken["line"].clone(), broken["against"].clone())
    };
    let nothing = (Value::Null, Value::Null, Value::Null);
    // Publishes are not ordered: the 1 may land on top of the 2.
    let refused = broken(&[publishes(1), publishes(2)], 1);
    assert_eq!(refused, ("hush".into(), 5.into(), 4.into()));
    assert_eq!(broken(&[publishes(1), quiet(), publishes(2)], 4), nothing);
    // Which 1 is it?
    let round = [publishes(1), quiet(), publishes(2), quiet(), publishes(1)];
    let refused = broken(&[&round[..], &[sees(1)]].concat(), 1);
    assert_eq!(refused, ("round".into(), 9.into(), 4.into()));
    let seen = [&round[..4], &[sees(2)], &round[4..], &[sees(1)]].concat();
    assert_eq!(broken(&seen, 4), nothing);
}

/// A line of core 0 of a rank in its first dispatch.
fn event(rank: u32, kind: &str, more: &str) -> String {
    format!(r#"{{"rank":{rank},"core":0,"batch":0,"operator":"dispatch","kind":"{kind}"{more}}}"#)
}

/// The next event of the core of an event.
fn next_of_core(events: &[Line], at: usize) -> Option<usize> {
    let (rank, core) = (events[at].rank, events[at].core);
    let next = events[at + 1..].iter().position(|other| (other.rank, other.core) == (rank, core));
    next.map(|next| at + 1 + next)
}

/// A trace with one of [`CHANGES`] at an event; none if it would be exchanged and is its core's last.
fn changed(trace: &Trace, at: usize, change: &str) -> Option<Trace> {
    let mut other = trace.clone();
    match change {
        LEFT_OUT => drop(other.events.remove(at)),
        DOUBLED => other.events.insert(at + 1, trace.events[at].clone()),
        _ => other.events.swap(at, next_of_core(&trace.events, at)?),
    }
    Some(other)
}

/// The changes of one event.
const CHANGES: [&str; 3] = [LEFT_OUT, DOUBLED, EXCHANGED];
const LEFT_OUT: &str = "left out";
const DOUBLED: &str = "doubled";
/// With the next event of its core.
const EXCHANGED: &str = "exchanged";

/// The changes that may pass: by the kinds of events, with the reason.
const SURVIVORS: &[(&str, &[&str], &str)] = &[
    (LEFT_OUT, &["await", "land"], "no guard asks for them"),
    (LEFT_OUT, &["begin"], "a further begin is another phase of an operator"),
    (LEFT_OUT, &["deliver"], "what stands beside a row is read by its words, too"),
    (LEFT_OUT, &["observe"], "another word tells the core the same, or nothing that it needs"),
    (
        LEFT_OUT,
        &["quiet"],
        "of the last rounds: a later word to the same rank says that the rows have landed",
    ),
    (LEFT_OUT, &["put"], "that experts read a row where it was placed is in no record"),
    (LEFT_OUT, &["store"], "a word that its own core alone reads"),
    (LEFT_OUT, &["store of a flag"], "of the last rounds: the place is not used again"),
    (
        LEFT_OUT,
        &["write", "write of an output"],
        "of outputs rows of x_out alone are missed; no task carries it again",
    ),
    (DOUBLED, &["await", "land", "begin"], "no guard asks for them, or it is the same phase"),
    (DOUBLED, &["deliver", "observe", "quiet"], "what is read or known twice is the same"),
    (DOUBLED, &["store", "store of a flag"], "stores of one core to a word keep their order"),
    (DOUBLED, &["write", "write of an output"], "what a core writes again is what it wrote"),
    (EXCHANGED, &["await", "land", "begin"], "no guard asks for them, or the phase is named one event later"),
    (EXCHANGED, &["deliver", "observe"], "the next event needs nothing that it tells, or tells it, too"),
    (
        EXCHANGED,
        &["put", "publish", "publish of a flag", "send", "post"],
        "the next event is none that it must precede",
    ),
    (EXCHANGED, &["quiet", "resume"], "the next event needs none"),
    (
        EXCHANGED,
        &["store", "store of a flag", "write", "write of an output"],
        "up to the next quiet they have no order",
    ),
];

/// The kind of an event, as survivors are told apart.
fn class(record: &Record, event: &Line) -> String {
    let is_output = event.kind == "write" && !["window", "window_out"].contains(&&*event.region);
    match &*event.kind {
        "publish" | "store" if record.is_cleared(event) => format!("{} of a flag", event.kind),
        "write" if is_output => "write of an output".to_owned(),
        kind => kind.to_owned(),
    }
}

/// Each event of good records, or some, is left out, doubled and exchanged. What is not refused is of a class whose reason is
/// known.
#[test]
fn every_change_of_an_event_is_refused_or_of_a_known_class() {
    let mut passed = BTreeSet::new();
    let mut refused = 0;
    for (nth, (run, _)) in RUNS.into_iter().enumerate() {
        let record = record(run);
        let count = record.trace.events.len();
        for at in (nth..count).step_by(count.div_ceil(tier(12, 40))) {
            let event = record.trace.events[at].clone();
            for change in CHANGES {
                let Some(other) = changed(&record.trace, at, change) else { continue };
                let conformed = conform(&other, &record.shape).unwrap();
                if conformed.broken.is_some() || !conformed.lacks.is_empty() {
                    refused += 1;
                    continue;
                }
                let kind = class(&record, &event);
                let known = SURVIVORS.iter().any(|(of, kinds, _)| *of == change && kinds.contains(&&*kind));
                assert!(known, "{run}: {kind} {change}: {}", record.trace.texts[at]);
                passed.insert((change, kind));
            }
        }
    }
    let known =
        SURVIVORS.iter().flat_map(|(change, kinds, _)| kinds.iter().map(move |kind| (*change, *kind)));
    for (change, kind) in known.filter(|_| tier(false, true)) {
        assert!(passed.contains(&(change, kind.to_owned())), "{kind} {change}: none passes");
    }
    assert!(refused > tier(60, 200), "{refused}");
}
