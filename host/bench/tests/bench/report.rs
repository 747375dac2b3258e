//! `veriep-bench`, from outside. Baselines run only where they can be built.

use crate::common::{fails, json, text, veriep};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::tempdir;

const TINY: [&str; 6] = ["--preset", "tiny", "--iters", "2", "--blocks", "3"];

fn tiny(more: &[&str]) -> Value {
    json(0, &[&TINY[..], more].concat())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} must be a number"))
}

/// Checks what every result has, of whatever system.
fn is_sound(result: &Value) {
    for times in [&result["dispatch_ms"], &result["combine_ms"], &result["chained"]["round_ms"]] {
        let [median, p90, p99] = ["median", "p90", "p99"].map(|quantile| number(&times[quantile]));
        assert!(0.0 < median && median <= p90 && p90 <= p99, "{result}");
    }
    for number in ["ep_world_size", "bs", "h", "k", "moe_expert_num", "payload_bytes"] {
        assert!(result[number].as_u64().is_some_and(|n| n > 0), "{number}: {result}");
    }
    assert!(result["quant_mode"].is_u64());
}

#[test]
fn the_report_has_machine_shape_times_and_bytes() {
    let report = tiny(&[]);
    assert_eq!(report["ok"], true);
    assert!(number(&report["machine"]["cores"]) >= 1.0);
    for said in [&report["machine"]["cpu"], &report["machine"]["os"], &report["versions"]["veriep"]] {
        assert!(said.as_str().is_some_and(|text| !text.is_empty()), "{report}");
    }
    assert!(report["machine"]["memory_bytes"].is_u64() && report["seed"] == 1);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 1);
    let result = &results[0];
    is_sound(result);
    assert_eq!((&result["system"], &result["receive"]), (&"veriep".into(), &"copy".into()));
    // 2 ranks of 4 tokens, 2 experts each, 1024 elements of 2 bytes.
    assert_eq!(result["payload_bytes"], 2 * 4 * 2 * 2048);
    assert_eq!(result["moved_bytes"]["dispatch"], 2 * 2 * 4 * 2 * 2048);
    assert_eq!(result["moved_bytes"]["combine"], (2 * 2 + 1) * 2 * 4 * 2048);
    assert!(number(&result["memcpy_ms"]["dispatch"]) > 0.0 && number(&result["memcpy_ms"]["combine"]) > 0.0);
}

#[test]
fn ways_to_copy_rows_are_measured_beside_each_other() {
    let report = tiny(&["--row-copy", "ahead,plain,streaming", "--receive", "copy,direct"]);
    let results = report["results"].as_array().unwrap();
    results.iter().for_each(is_sound);
    let way = |result: &Value| {
        [&result["receive"], &result["row_copy"]].map(|name| name.as_str().unwrap().to_owned())
    };
    assert_eq!(
        results.iter().map(way).collect::<Vec<_>>(),
        ["copy", "direct"].map(|receive| ["ahead", "plain", "streaming"].map(|way| [receive, way])).concat()
    );
    let than = |result: &Value| {
        let than = result["than"].as_array().unwrap().iter();
        than.map(|than| than["system"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let [ahead, plain, streaming] = [&results[3], &results[4], &results[5]].map(than);
    assert_eq!(ahead, ["memcpy"]);
    assert_eq!(plain, ["memcpy", "row_copy = ahead"]);
    assert_eq!(streaming, ["memcpy", "row_copy = ahead", "row_copy = plain"]);
}

#[test]
fn the_grid_has_every_size_and_the_window_grows_with_it() {
    let report = tiny(&["--ep", "2,4", "--bs", "1,8"]);
    let number = |result: &Value, name: &str| result[name].as_u64().unwrap();
    let results = report["results"].as_array().unwrap();
    let sizes: Vec<_> = results.iter().map(|r| (number(r, "ep_world_size"), number(r, "bs"))).collect();
    assert_eq!(sizes, [(2, 1), (2, 8), (4, 1), (4, 8)]);
    let large = ["--ep", "2", "--bs", "512", "--set", "moe_expert_num=64", "--set", "h=1536"];
    assert!(number(&tiny(&large)["results"][0], "hccl_buffsize_mb") > 200);
    let line = fails(2, &[&TINY[..], &large, &["--set", "hccl_buffsize_mb=200"]].concat());
    assert!(line.contains("hccl_buffsize_mb = 200"), "a window that is set stays as it is: {line}");
}

#[test]
fn int8_and_a2_are_measured_too() {
    let result = &tiny(&["--set", "quant_mode=2"])["results"][0];
    is_sound(result);
    assert_eq!(result["payload_bytes"], 2 * 4 * 2 * 1024);
    let a2 = json(
        0,
        &[
            "--iters",
            "2",
            "--preset",
            "tiny",
            "--set",
            "product=a2",
            "--ep",
            "16",
            "--set",
            "moe_expert_num=16",
        ],
    );
    is_sound(&a2["results"][0]);
    assert!(number(&a2["results"][0]["memcpy_ms"]["dispatch"]) > 0.0);
}

#[test]
fn a_request_that_cannot_be_met_is_one_line() {
    let bench = |more: &[&str]| fails(2, &[&TINY[..], more].concat());
    assert!(bench(&["--receive", "telepathy"]).contains("telepathy"));
    assert!(bench(&["--against", "gloo"]).contains("gloo"));
    assert!(bench(&["--row-copy", "xerox"]).contains("xerox"));
    assert!(bench(&["--row-copy", "auto,ahead,auto"]).contains("--row-copy: each value may be named once"));
    assert!(bench(&["--ep", "1"]).contains("ep_world_size"));
    assert!(bench(&["--ep", "two"]).contains("two"));
    assert!(bench(&["--bs", "0"]).contains("bs"));
    assert!(bench(&["--iters", "0"]).contains("--iters"));
    let folder = tempdir().unwrap();
    let line = bench(&["--against", "mpi", "--baselines", text(folder.path())]);
    assert!(line.contains("mpi-alltoallv: missing: make -C host/bench/baselines"), "{line}");
    std::fs::write(folder.path().join("mpi-alltoallv"), "no program").unwrap();
    let line = bench(&["--against", "mpi", "--baselines", text(folder.path())]);
    assert!(line.contains("mpi-alltoallv: not executable: make -C host/bench/baselines"), "{line}");
}

#[test]
fn people_get_a_table_and_no_bar_without_a_terminal() {
    let output = veriep(&TINY);
    assert!(output.status.success() && output.stderr.is_empty());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("times as fast as")
            && table.contains("memcpy")
            && table.contains("dispatch")
            && table.contains("combine"),
        "{table}"
    );
}

/// Builds the baselines; `None` where that is not possible.
fn baselines(folder: &Path) -> Option<()> {
    for tool in ["mpirun", "mpicc", "make"] {
        let found = Command::new(tool).arg("--version").stdin(Stdio::null()).output();
        if !found.is_ok_and(|output| output.status.success()) {
            println!("skipped: no {tool} here");
            return None;
        }
    }
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/baselines");
    let built = Command::new("make")
        .args(["-s", "-C", sources, "CFLAGS=-O2 -march=native", &format!("OUT={}", text(folder))])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(())
}

#[test]
fn baselines_put_out_what_the_oracle_says() {
    let folder = tempdir().unwrap();
    let Some(()) = baselines(folder.path()) else { return };
    let against = |systems, more: &[&str]| {
        tiny(&[&["--baselines", text(folder.path()), "--against", systems], more].concat())
    };
    // An H that is no multiple of a vector, and more ranks than processors.
    let report =
        against("mpi,c,c-ahead,c-one,c-one-ahead,put", &["--set", "h=1050", "--ep", "2,4", "--set", "k=3"]);
    let results = report["results"].as_array().unwrap();
    let systems: Vec<_> = results.iter().map(|result| result["system"].as_str().unwrap()).collect();
    let windows = ["c-shared-window", "c-shared-window-ahead", "c-one-place", "c-one-place-ahead"];
    let all = [&["veriep", "mpi-alltoallv"][..], &windows, &["mpi-put"]].concat();
    assert_eq!(systems, [&all[..], &all].concat());
    results.iter().for_each(is_sound);
    let report = against("c-shared-window", &["--set", "quant_mode=2"]);
    assert_eq!(report["results"][1]["moved_bytes"]["dispatch"], 2 * 4 * 2 * 1024);
    let refused =
        [&TINY[..], &["--against", "mpi", "--baselines", text(folder.path()), "--set", "quant_mode=2"]]
            .concat();
    assert!(fails(2, &refused).contains("quant_mode = 2: must be 0"));
}

#[test]
fn a_report_is_kept_and_compared_with() {
    let folder = tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    let (kept, more) = (at("kept.json"), ["--quant-mode", "0,2"]);
    let first = tiny(&[&more[..], &["--out", &kept]].concat());
    let file: Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    assert_eq!(file, first, "what is printed is what is kept");
    // Twice as slow, of other cores, and of another machine.
    let mut slower = file.clone();
    slower["machine"]["cores"] = 1000.into();
    for result in slower["results"].as_array_mut().unwrap() {
        for times in ["dispatch_ms", "combine_ms"] {
            result[times]["median"] = 1e6.into();
        }
    }
    slower["results"][1]["aiv_num"] = 7.into();
    slower["results"][0]["load"]["busy"] = true.into();
    std::fs::write(at("slower.json"), slower.to_string()).unwrap();
    let second = tiny(&[&more[..], &["--compare", &at("slower.json")]].concat());
    let compared = &second["compared"];
    assert_eq!(compared["differs"], serde_json::json!(["machine"]));
    let mine = number(&second["results"][0]["dispatch_ms"]["median"]);
    assert!((number(&compared["results"][0]["dispatch"]) * mine / 1e6 - 1.0).abs() < 1e-6, "{compared}");
    assert_eq!(compared["results"][0]["was_busy"], true);
    assert!(compared["results"][1]["dispatch"].is_null(), "another number of cores is another thing");
    let table = veriep(&[&TINY[..], &more, &["--compare", &at("slower.json")]].concat());
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("times as fast as in ") && table.contains("with another machine\n"), "{table}");
    // What is no report is said before anything is measured.
    for (content, words) in
        [("", "EOF"), ("{}", "missing: results"), ("{\"results\": [{}], \"machine\": 1}", "missing: machine")]
    {
        std::fs::write(at("none"), content).unwrap();
        let line = fails(2, &[&TINY[..], &["--compare", &at("none")]].concat());
        assert!(line.contains("none: not a report of veriep-bench: ") && line.contains(words), "{line}");
    }
    assert!(fails(2, &[&TINY[..], &["--compare", &at("nowhere")]].concat()).ends_with("nowhere: missing"));
    let line = fails(2, &[&TINY[..], &["--out", &at("none/report")]].concat());
    assert!(line.contains("none/report: "), "{line}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_busy_machine_is_seen_and_marked() {
    use core::sync::atomic::{AtomicBool, Ordering};
    let (folder, end) = (tempdir().unwrap(), AtomicBool::new(false));
    let kept = text(&folder.path().join("kept.json")).to_owned();
    let processors = std::thread::available_parallelism().unwrap().get();
    let output = std::thread::scope(|scope| {
        for _ in 0..4 * processors {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    core::hint::spin_loop();
                }
            });
        }
        let long = ["--preset", "tiny", "--set", "bs=64", "--iters", "5", "--blocks", "2"];
        let output = veriep(&[&long[..], &["--out", &kept]].concat());
        end.store(true, Ordering::Relaxed);
        output
    });
    let table = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    let load = &report["results"][0]["load"];
    assert!(load["busy"] == true && load["switches_per_s"].is_f64(), "{load}");
    // Every line of a result, of times and of ratios, and once in words.
    let lines: Vec<_> = table.lines().filter(|line| line.trim_start().starts_with("veriep ")).collect();
    assert!(lines.len() >= 3 && lines.iter().all(|line| line.contains(" copy (busy) ")), "{table}");
    assert!(table.contains("(busy): other programs wanted the processors"), "{table}");
}

#[test]
fn bench_measures_experts_that_overwrite_beside_those_that_do_not() {
    let bench = ["--preset", "tiny", "--iters", "2", "--experts", "apart,overwrite"];
    let report = json(0, &[&bench[..], &["--receive", "copy,direct"]].concat());
    let results = report["results"].as_array().unwrap();
    let ways: Vec<_> =
        results.iter().map(|r| [&r["receive"], &r["experts"]].map(|name| name.as_str().unwrap())).collect();
    assert_eq!(ways, [["copy", "apart"], ["direct", "apart"], ["direct", "overwrite"]]);
    let than = results[2]["than"].as_array().unwrap();
    assert!(
        than.iter().any(|than| than["system"] == "experts = apart" && than["dispatch"].is_object()),
        "{than:?}"
    );
    assert!(fails(2, &bench).contains("--experts overwrite: only --receive direct has it"));
}

#[test]
fn bench_measures_every_way_and_raises_the_window_that_it_needs() {
    let all =
        ["--preset", "tiny", "--iters", "2", "--receive", "copy,in-place,direct", "--set", "quant_mode=2"];
    let report = json(0, &all);
    let results = report["results"].as_array().unwrap();
    assert_eq!(
        results.iter().map(|r| r["receive"].as_str().unwrap()).collect::<Vec<_>>(),
        ["copy", "in-place", "direct"]
    );
    let moved = |i: usize| ["dispatch", "combine"].map(|op| results[i]["moved_bytes"][op].as_u64().unwrap());
    let (payload, results) =
        (results[0]["payload_bytes"].as_u64().unwrap(), results[0]["result_bytes"].as_u64().unwrap());
    let output = moved(0)[1] - 2 * results;
    assert_eq!(moved(0), [2 * payload, 2 * results + output]);
    assert_eq!(moved(1), [payload, 2 * results + output]);
    assert_eq!(moved(2), [payload, results + output]);
    assert!(
        fails(2, &["--preset", "tiny", "--receive", "direct", "--set", "comm_quant_mode=2"])
            .contains("comm_quant_mode")
    );
}

#[test]
fn a_bench_measures_threads_and_processes_beside_each_other() {
    let request = ["--set", "h=1024", "--ep", "2,4", "--bs", "4", "--blocks", "2", "--iters", "2"];
    let seen =
        json(0, &[&request[..], &["--backend", "threads,processes", "--receive", "copy,direct"]].concat());
    let results = seen["results"].as_array().unwrap();
    let of = |system: &str| results.iter().filter(|result| result["system"] == system).collect::<Vec<_>>();
    assert_eq!((of("veriep").len(), of("veriep-processes").len()), (4, 4), "{results:?}");
    for result in of("veriep-processes") {
        assert!(result["dispatch_ms"]["median"].as_f64().unwrap() > 0.0, "{result}");
        assert!(result["chained"]["round_ms"]["median"].as_f64().unwrap() > 0.0, "{result}");
        assert_eq!(result["than"][0]["system"], "veriep", "{result}");
        assert!(result["than"][0]["dispatch"]["median"].as_f64().unwrap() > 0.0, "{result}");
    }
}
