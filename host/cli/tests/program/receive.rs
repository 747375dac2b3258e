//! `run --receive`: every way gives the reference's bytes on every backend, and says what it moved; what has no such way is
//! refused by name; a hang names what is missing.

use crate::common::{fails, fails_with_lines, json};
use serde_json::Value;

const WAYS: [&str; 3] = ["copy", "in-place", "direct"];

fn moved(report: &Value) -> [[u64; 2]; 2] {
    let of =
        |i: usize| ["payload_bytes", "moved_bytes"].map(|key| report["operators"][i][key].as_u64().unwrap());
    [of(0), of(1)]
}

#[test]
fn every_way_agrees_with_the_oracle_on_every_backend() {
    for receive in WAYS {
        for (backend, schedule) in
            [("threads", "DC"), ("threads", "DDCC"), ("lockstep", "DCDDCC"), ("weak", "DDCC")]
        {
            let set = if schedule == "DC" { "quant_mode=2" } else { "op=combine_add_rms_norm" };
            let args = ["run", "--preset", "tiny", "--set", set, "--receive", receive, "--rounds", "6"];
            let report = json(0, &[&args[..], &["--backend", backend, "--schedule", schedule]].concat());
            assert_eq!(report["receive"], receive);
            assert_eq!(report["checked"], true);
        }
    }
}

#[test]
fn experts_that_overwrite_agree_with_the_oracle_on_every_backend() {
    for (backend, schedule) in
        [("threads", "DC"), ("threads", "DDCC"), ("lockstep", "DCDDCC"), ("weak", "DDCC"), ("weak", "DC")]
    {
        let args =
            ["run", "--preset", "tiny", "--receive", "direct", "--experts", "overwrite", "--rounds", "6"];
        let report = json(0, &[&args[..], &["--backend", backend, "--schedule", schedule]].concat());
        assert_eq!((&report["receive"], &report["experts"]), (&"direct".into(), &"overwrite".into()));
        assert_eq!(report["checked"], true);
    }
}

#[test]
fn where_experts_cannot_overwrite_a_line_says_what_can_be_had() {
    let run = |more: &[&str]| {
        let args = ["run", "--preset", "tiny", "--experts", "overwrite"];
        fails_with_lines(2, &[&args[..], more].concat()).join("; ")
    };
    assert!(run(&[]).ends_with("only --receive direct has it, not copy; hint: --receive direct"));
    for (set, hint) in [
        ("quant_mode=2", "--experts apart"),
        ("comm_quant_mode=2", "--receive copy --experts apart"),
        ("comm_alg=fullmesh_v2", "--receive copy --experts apart"),
    ] {
        let seen = run(&["--receive", "direct", "--set", set]);
        let (key, value) = set.split_once('=').unwrap();
        assert!(seen.contains(&format!("--experts overwrite: {key} = {value}: must be ")), "{seen}");
        assert!(seen.contains(": impossible: "), "{seen}");
        assert!(seen.ends_with(&format!("; hint: {hint}")), "{seen}");
    }
    let tp = [
        "--receive",
        "direct",
        "--set",
        "release=9.1.0",
        "--set",
        "tp_world_size=2",
        "--set",
        "moe_expert_num=2",
    ];
    assert!(run(&tp).contains("tp_world_size = 2"));
}

#[test]
fn shared_and_special_experts_masks_and_those_who_are_left_go_every_way() {
    for receive in WAYS {
        for more in [
            &["--set", "ep_world_size=4", "--set", "shared_expert_rank_num=2", "--mask", "pairs"][..],
            &["--set", "zero_expert_num=1", "--set", "const_expert_num=2", "--set", "k=4"],
            &["--set", "ep_world_size=8", "--set", "moe_expert_num=16", "--dead", "1,6"],
        ] {
            json(
                0,
                &[&["run", "--preset", "tiny", "--receive", receive, "--schedule", "DDCC"], more].concat(),
            );
        }
    }
}

#[test]
fn the_report_counts_what_each_way_moves() {
    let run = |receive| moved(&json(0, &["run", "--preset", "tiny", "--receive", receive, "--rounds", "1"]));
    let [[payload, twice], [row, with_output]] = run("copy");
    let output = with_output - 2 * row;
    assert_eq!(twice, 2 * payload);
    assert_eq!(run("in-place"), [[payload, payload], [row, with_output]]);
    assert_eq!(run("direct"), [[payload, payload], [row, row + output]]);
}

#[test]
fn a_failure_with_three_batches_in_flight_says_who_tells_whether_that_is_safe() {
    for receive in ["in-place", "direct"] {
        let args = ["run", "--preset", "tiny", "--schedule", "DDDCCC", "--receive", receive, "--unchecked"];
        let line = fails(1, &[&args[..], &["--backend", "lockstep", "--rounds", "6"]].concat());
        assert!(
            line.ends_with(&format!(
                "; 3 batches in flight: veriep schedule DDDCCC --receive {receive} tells whether that is safe"
            )),
            "{line}"
        );
    }
}

#[test]
fn what_has_no_such_way_is_refused_by_name() {
    let line = |receive, set: &str| {
        fails_with_lines(2, &["run", "--preset", "tiny", "--receive", receive, "--set", set]).join("; ")
    };
    for receive in ["in-place", "direct"] {
        let seen = line(receive, "comm_alg=fullmesh_v2");
        assert!(seen.contains("comm_alg = fullmesh_v2"), "{seen}");
        let tp = [
            "run",
            "--preset",
            "tiny",
            "--receive",
            receive,
            "--set",
            "release=9.1.0",
            "--set",
            "tp_world_size=2",
            "--set",
            "moe_expert_num=2",
        ];
        let seen = fails_with_lines(2, &tp).join("; ");
        assert!(seen.contains("tp_world_size = 2"), "{seen}");
        let seen = fails_with_lines(2, &["run", "--preset", "a2-64", "--receive", receive]).join("; ");
        assert!(seen.contains("product = a2"), "{seen}");
    }
    let seen = line("direct", "comm_quant_mode=2");
    assert!(seen.contains("comm_quant_mode = 2"), "{seen}");
    let direct = ["run", "--preset", "tiny", "--receive", "direct"];
    assert!(fails(2, &[&direct[..], &["--flags", "separate"]].concat()).contains("must be left out"));
    assert!(fails(2, &[&direct[..], &["--port-offset", "512"]].concat()).contains("--port-offset"));
}

#[test]
fn a_window_too_small_for_two_areas_is_refused_with_the_size_that_suffices() {
    // 2 ranks, 96 tokens, L = K = 2, H = 8192: 384 rows of 16 KiB, and as many results: 12 MiB an area, and the infos.
    let set = ["--set", "bs=96", "--set", "h=8192", "--set", "hccl_buffsize_mb=20"];
    let run = |schedule| {
        [&["run", "--preset", "tiny", "--receive", "direct", "--schedule", schedule], &set[..]].concat()
    };
    json(0, &run("DC"));
    let seen = fails(2, &run("DDCC"));
    assert!(seen.contains("hccl_buffsize_mb = 20") && seen.contains("at least 25"), "{seen}");
    let check = |experts| {
        let args =
            ["check", "--preset", "tiny", "--receive", "direct", "--in-flight", "2", "--experts", experts];
        [&args[..], &set[..]].concat()
    };
    assert!(fails(2, &check("apart")).contains("at least 25"));
    let placed = &json(0, &check("overwrite"))["placed"];
    assert_eq!((&placed["areas"], &placed["required_mb"]), (&2.into(), &13.into()));
    // Where experts overwrite, both areas fit.
    json(0, &[&run("DDCC")[..], &["--experts", "overwrite"]].concat());
}

#[test]
fn a_hang_names_the_grant_or_the_results_that_are_missing() {
    for (lost, what) in
        [("counts", "counts"), ("grants", "grant"), ("tokens", "token_flags"), ("rows", "results")]
    {
        let fault = format!("silent=1:{lost}");
        let args =
            ["run", "--preset", "tiny", "--receive", "direct", "--backend", "lockstep", "--inject", &fault];
        let report = json(3, &args);
        let missing = report["missing"].as_array().unwrap();
        assert!(!missing.is_empty());
        for one in missing {
            assert_eq!((&one["what"], &one["source_rank"]), (&what.into(), &1.into()), "{lost}: {one}");
        }
    }
}
