//! Output and keys at a terminal.

use crate::common::{fails, json, let_work, veriep};
use core::time::Duration;
use std::process::{Command, Stdio};

#[test]
fn a_wrong_verb_is_told_with_a_similar_one() {
    assert!(fails(2, &["rum"]).contains("'rum'") && fails(2, &["rum"]).ends_with("; a similar one is run"));
    assert!(fails(2, &["chekc"]).ends_with("a similar one is check"));
    assert!(!fails(2, &["xyzzy"]).contains("similar"));
}

#[test]
fn every_shell_gets_a_script_that_knows_the_verbs() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = json(0, &["completions", shell])["script"].as_str().unwrap().to_owned();
        for word in ["schedule", "golden", "--preset", "--port-offset"] {
            assert!(script.contains(word.trim_start_matches("--")), "{shell}: {word}");
        }
        let output = veriep(&["completions", shell]);
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), script);
    }
    assert!(fails(2, &["completions", "csh"]).contains("csh"));
}

#[test]
fn colour_is_for_terminals_and_whoever_asks_for_it() {
    let stdout_and_stderr = |verb: &[&str], colour: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
        command.args(verb).env_remove("NO_COLOR").stdin(Stdio::null());
        if colour {
            command.env("CLICOLOR_FORCE", "1");
        }
        let output = command.output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let [_, error] = stdout_and_stderr(&["check", "nowhere"], true);
    assert!(error.starts_with("\x1b[") && error.contains("error\x1b[0m: nowhere: missing"), "{error:?}");
    let [verdict, _] = stdout_and_stderr(&["schedule", "DC"], true);
    assert!(
        verdict.starts_with("verdict  \x1b[") && verdict.contains("yes\x1b[0m: SAFE for 2"),
        "{verdict:?}"
    );
    for verb in [&["check", "nowhere"][..], &["schedule", "DC"]] {
        assert!(stdout_and_stderr(verb, false).iter().all(|text| !text.contains('\x1b')), "{verb:?}");
    }
}

#[test]
fn a_verdict_prints_its_bound() {
    let told = |args: &[&str]| String::from_utf8(veriep(&[&["schedule"], args].concat()).stdout).unwrap();
    let bound = "2 ranks x 1 core, 1 token a rank, any number of rounds, 2 partitions\n";
    assert!(told(&["DC"]).starts_with(&format!("verdict  yes: SAFE for {bound}")));
    assert!(told(&["DC"]).contains("\nsearched DC, all states: the real machines over weak memory, "));
    assert!(told(&["DC", "--product", "a2", "--partitions", "1"]).contains(", 1 partition\n"));
    assert!(
        told(&["DC", "--product", "a2", "--ranks", "3"]).contains(", 2 partitions, a model of the windows\n")
    );
    let servers = ["DC", "--product", "a2", "--hierarchy"];
    assert!(told(&servers).contains("2 ranks in 2 servers x 1 core, 1 token a rank"));
    assert!(
        told(&servers).contains(", 2 partitions, no rank idle\nsearched DC, all states: the real machines")
    );
    assert_eq!(json(0, &[&["schedule"], &servers[..]].concat())["traffic"], "no rank idle");
    let json = json(0, &["schedule", "DC"]);
    assert_eq!([&json["ranks"], &json["cores"], &json["tokens"], &json["experts"]], [2, 1, 1, 1]);
}

#[cfg(unix)]
#[test]
fn what_there_is_comes_when_somebody_asks_for_the_end() {
    for (request, field) in [
        (&["run", "--preset", "tiny", "--rounds", "1000000"][..], "rounds"),
        (&["run", "--preset", "tiny", "--rounds", "1000000", "--chain", "8", "--backend", "weak"], "rounds"),
        (&["schedule", "DC", "--ranks", "3", "--receive", "direct"], "states"),
        (
            &["simulate", "--preset=deepseek-v3-decode", "--set=h=1024", "--cluster=a3", "--rounds=1000"],
            "simulations",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_veriep"));
        let out = std::env::temp_dir().join(format!("veriep-never-written-{}", std::process::id()));
        command.args(request).args(["--format", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        if field == "rounds" {
            command.arg("--out").arg(&out);
        }
        let child = command.spawn().unwrap();
        let_work(child.id(), Duration::from_millis(500), Duration::from_millis(1500));
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        // A run and a search have no verdict then; times are no verdict.
        let judges = matches!(field, "rounds" | "states");
        assert_eq!(output.status.code(), Some(if judges { 4 } else { 130 }), "{request:?}: {stderr}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let last = stderr.lines().last().unwrap();
        if field == "states" {
            assert_eq!((&report["verdict"], &report["complete"]), (&"unknown".into(), &false.into()));
            assert!(last.contains(&format!("the search was interrupted after {} states", report["states"])));
            continue;
        }
        if field == "simulations" {
            assert_eq!((&report["cut_off"], &report["checked"]), (&true.into(), &false.into()));
            assert!(report["events"].as_u64() > Some(0) && report["end_us"].as_f64() > Some(0.0));
            assert_eq!(last, "error: interrupted: after 0 of 1 simulations");
            continue;
        }
        assert_eq!(report["interrupted"], true);
        assert!(last.contains("interrupted") && last.contains(&format!("000000 {field}")), "{last}");
        if field == "rounds" {
            assert_eq!((&report["ok"], &report["verdict"]), (&false.into(), &"unknown".into()));
            let rounds = report["rounds"].as_u64().unwrap();
            assert!(
                (1..1_000_000).contains(&rounds) && last.contains(&format!("after {rounds} of ")),
                "{last}"
            );
            assert!(last.contains("is not written; ") && !out.exists(), "{last}");
        } else {
            assert!(report["results"][0]["dispatch_ms"]["median"].as_f64() > Some(0.0));
        }
    }
    // Nothing else has anything to report.
    assert_eq!(json(0, &["run", "--preset", "tiny", "--rounds", "2"])["interrupted"], false);
}
