//! The record of events, as lines and as a trace: its fields, what is in what, and in which order.

use crate::common::{fails, json, text};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use tempfile::tempdir;

/// Those of threads, the last ones, are other runs each time.
const RUNS: [&str; 7] = [
    "simulate --preset tiny --cluster a3 --schedule DDCC --rounds 2",
    "simulate --preset a2-hier-16 --set h=512 --set aiv_num=2 --cluster a2 --stage 2 --jitter 20",
    "run --preset tiny --backend lockstep --rounds 2",
    "run --preset a2-hier-16 --set h=512 --set aiv_num=2 --backend weak --rounds 1 --seed 5",
    "run --preset tiny --backend lockstep --schedule Ds1,Cs0,Dr1,Cr0 --rounds 2",
    "run --preset tiny --backend threads --rounds 2",
    "run --preset a2-hier-16 --set h=512 --set aiv_num=2 --backend threads --rounds 1 --stage 2 --threads 3",
];
/// How many of them have a scheduler.
const SCHEDULED: usize = 5;

fn record(run: &str, option: &str, file: &Path) {
    let line = format!("{run} {option} {}", text(file));
    json(0, &line.split_whitespace().collect::<Vec<_>>());
}

fn lines(run: &str) -> Vec<Value> {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    record(run, "--events", &file);
    let lines = std::fs::read_to_string(file).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn lines_have_a_header_and_events_in_order() {
    for run in RUNS {
        let lines = lines(run);
        let (header, events) = lines.split_first().unwrap();
        assert_eq!(header["schema"], "veriep.events/2");
        let is_simulated = run.starts_with("simulate");
        let unit = if run.contains("threads") { "ns" } else { "events" };
        assert_eq!(header["unit"], if is_simulated { "ps" } else { unit });
        assert!(
            header["config"]["ep_world_size"].is_u64() && header["options"]["stage"].is_u64(),
            "{header}"
        );
        let times: Vec<_> = events.iter().map(|event| event["time"].as_u64().unwrap()).collect();
        assert!(times.is_sorted(), "{run}");
        let mut seen = HashSet::new();
        let mut running = HashMap::new();
        for event in events {
            let kind = event["kind"].as_str().unwrap();
            seen.insert(kind);
            let core = (event["rank"].as_u64().unwrap(), event["core"].as_u64());
            let ranks = header["config"]["ep_world_size"].as_u64().unwrap();
            assert!(core.0 < ranks && event["peer"].as_u64().is_none_or(|peer| peer < ranks), "{event}");
            match kind {
                "put" | "publish" | "send" | "post" | "land" => {
                    assert!(event["peer"].is_u64() && event["region"].is_string(), "{event}");
                    assert!(event["offset"].is_u64() && event["length"].is_u64(), "{event}");
                }
                "store" | "observe" => assert!(event["word"].is_string(), "{event}"),
                "begin" | "resume" => {
                    let planned = (event["operator"].clone(), event["batch"].clone());
                    let before = running.insert(core, planned.clone());
                    assert!(before.is_none_or(|before| before == planned), "{run}: {event} before the end");
                    assert!(event["phase"].is_string(), "{event}");
                }
                "sent" | "end" => assert!(running.remove(&core).is_some(), "{run}: {event} without a begin"),
                _ => {}
            }
        }
        assert!(running.is_empty(), "{run}: {running:?} have no end");
        let mut expected = vec!["begin", "end", "await", "observe", "quiet", "publish", "store"];
        if is_simulated {
            expected.push("land");
        }
        if run.contains("Ds") {
            expected.extend(["sent", "resume"]);
        }
        // In stage 2 agents carry what cores write.
        expected.extend(if run.contains("--stage 2") { ["write", "post"] } else { ["put", "write"] });
        for kind in expected {
            assert!(
                seen.contains(kind) || run.contains("hier") && kind == "quiet",
                "{run}: no {kind} in {seen:?}"
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_record() {
    for run in &RUNS[..SCHEDULED] {
        assert_eq!(lines(run), lines(run), "{run}");
    }
    let jitter = |seed| lines(&format!("{} --seed {seed}", RUNS[1]));
    assert_ne!(jitter(1), jitter(2));
}

/// Microseconds as whole picoseconds, so that sums are exact.
fn ps(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1e6).round() as u64
}

#[test]
fn a_trace_has_lanes_spans_that_lie_in_each_other_and_flows_in_pairs() {
    let folder = tempdir().unwrap();
    for (i, run) in RUNS.iter().enumerate() {
        let file = folder.path().join(format!("{i}.json"));
        record(run, "--trace", &file);
        let trace: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let named: Vec<_> = events.iter().filter(|event| event["name"] == "thread_name").collect();
        let has = |name: &str| named.iter().any(|event| event["args"]["name"] == name);
        assert!(has("core 0") && has("agent") == run.contains("--stage 2"), "{run}");
        assert_eq!(has("port 0 out") && has("port 0 in"), run.starts_with("simulate"), "{run}");

        let mut lanes: HashMap<_, Vec<_>> = HashMap::new();
        for event in events.iter().filter(|event| event["ph"] == "X") {
            let lane = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap_or(0));
            let span = (ps(&event["ts"]), ps(&event["ts"]) + ps(&event["dur"]));
            lanes.entry(lane).or_default().push((span, event["cat"].as_str().unwrap().to_owned()));
        }
        for (lane, spans) in &lanes {
            for category in ["operator", "phase", "wait", "link", "critical path"] {
                let of = spans.iter().filter(|(_, of)| of == category).map(|(span, _)| span);
                let of: Vec<_> = of.collect();
                assert!(of.windows(2).all(|two| two[0].1 <= two[1].0), "{run}: {lane:?}: {category} overlap");
            }
            let of = |category: &'static str| spans.iter().filter(move |(_, of)| of == category);
            let lies_in = |inner: &'static str, outer: &'static str| {
                of(inner)
                    .all(|(span, _)| of(outer).any(|(around, _)| around.0 <= span.0 && span.1 <= around.1))
            };
            assert!(lies_in("phase", "operator"), "{run}: {lane:?}");
            // An agent has no phases.
            assert!(of("phase").next().is_none() || lies_in("wait", "phase"), "{run}: {lane:?}");
        }
        let whom = events.iter().any(|event| event["cat"] == "wait" && event["args"]["for"].is_u64());
        // On threads no core may have to: where one does, `threads_that_hang` sees it.
        assert!(whom || run.contains("threads"), "{run}: no core waits for a rank");

        let mut flows: HashMap<_, Vec<_>> = HashMap::new();
        for event in events.iter().filter(|event| event["cat"] == "flag") {
            flows.entry(event["id"].as_u64().unwrap()).or_default().push(event);
        }
        assert!(!flows.is_empty(), "{run}");
        for (id, flow) in flows {
            let [start, finish] = flow[..] else { panic!("{run}: flow {id} has {} ends", flow.len()) };
            assert!(start["ph"] == "s" && finish["ph"] == "f" && finish["bp"] == "e", "{run}: flow {id}");
            assert!(ps(&start["ts"]) <= ps(&finish["ts"]), "{run}: flow {id} goes back in time");
            for end in [start, finish] {
                let lane = (end["pid"].as_u64().unwrap(), end["tid"].as_u64().unwrap());
                let at = ps(&end["ts"]);
                let spans = &lanes[&lane];
                let is_in = spans.iter().any(|(span, _)| span.0 <= at && at <= span.1);
                assert!(is_in || lane.1 == 1000, "{run}: flow {id} begins or ends in no span");
            }
        }
    }
}

#[test]
fn processes_have_no_record() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    for option in ["--events", "--trace", "--html"] {
        let run = ["run", "--preset", "tiny", "--backend", "processes", option, text(&file)];
        let said = fails(2, &run);
        let works = "only --backend threads, lockstep and weak have them, not processes";
        assert_eq!(said, format!("error: --events, --trace, --html: {works}"));
        assert!(!file.exists());
    }
    let nowhere = folder.path().join("no/events.jsonl");
    let said = fails(2, &["simulate", "--preset", "tiny", "--cluster", "a3", "--events", text(&nowhere)]);
    assert!(said.contains("events.jsonl: cannot write"), "{said}");
}

#[test]
fn threads_that_hang_leave_a_record_that_ends_with_their_waits() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let hangs = "run --preset tiny --inject silent=1 --deadline 0.3 --events";
    json(3, &hangs.split(' ').chain([text(&file)]).collect::<Vec<_>>());
    let lines = std::fs::read_to_string(&file).unwrap();
    let events = lines.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let last: HashMap<_, _> =
        events.map(|event| ((event["rank"].as_u64(), event["core"].as_u64()), event)).collect();
    // Rank 1 hears of rank 0, and ends its dispatch.
    let of_rank_0: Vec<_> = last.values().filter(|event| event["rank"] == 0).collect();
    assert!(of_rank_0.iter().all(|event| event["kind"] == "await"), "{of_rank_0:?}");
    assert!(of_rank_0.iter().any(|event| event["peer"] == 1), "no core waits for rank 1: {of_rank_0:?}");
    // Nothing breaks the contract up to there.
    assert_eq!(json(4, &["conform", text(&file)])["broken"], Value::Null);
}
