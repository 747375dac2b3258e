//! `veriep schedule`, from outside.

use crate::common::{fails, json, text, veriep};
use serde_json::Value;
use tempfile::tempdir;

fn verdict(status: i32, args: &[&str]) -> Value {
    json(status, &[&["schedule"], args].concat())
}

#[test]
fn the_documented_partitions_are_enough_and_fewer_are_not() {
    for (args, safe) in [
        (&["DC"][..], true),
        (&["DC", "--partitions", "2,1"], true),
        (&["DC", "--partitions", "1,2"], false),
        (&["DDCC", "--rounds", "2"], true),
        (&["DDCC", "--rounds", "1", "--flags", "separate"], true),
        (&["DDDCCC", "--flags", "separate"], false),
        (&["DDCC", "--partitions", "2,1"], false),
        (&["DDDCCC"], false),
        (&["DDDCCC", "--partitions", "2,3", "--rounds", "1"], true),
        (&["DC", "--product", "a2"], true),
        (&["DDCC", "--product", "a2", "--rounds", "1"], true),
        (&["DC", "--product", "a2", "--partitions", "3", "--rounds", "1"], true),
        (&["DC", "--product", "a2", "--ep", "3"], true),
        (&["DC", "--product", "a2", "--partitions", "1"], false),
        (&["DC", "--product", "a2", "--hierarchy"], true),
        (&["DDDCCC", "--product", "a2", "--hierarchy", "--server-ranks", "2", "--rounds", "1"], true),
        (&["D", "--product", "a2", "--hierarchy", "--ranks", "4"], true),
        (&["DC", "--product", "a2", "--hierarchy", "--partitions", "1"], false),
    ] {
        let seen = verdict(i32::from(!safe), args);
        assert_eq!(seen["verdict"], if safe { "yes" } else { "no" }, "{args:?}");
        assert_eq!(seen["complete"], safe, "{args:?}");
        assert_eq!(seen["counterexample"].as_array().unwrap().is_empty(), safe, "{args:?}");
        assert!(seen["states"].as_u64() > Some(0) && seen["traffic_matrices"].as_u64() > Some(0));
    }
}

#[test]
fn a_counterexample_is_drawn_as_messages_between_ranks_and_memories() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("story.html");
    for args in [
        &["DC", "--partitions", "1"][..],
        &["DC", "--product", "a2", "--partitions", "1", "--rounds", "2"],
        &["DC", "--product", "a2", "--hierarchy", "--partitions", "1"],
    ] {
        let seen = verdict(1, &[args, &["--html", text(&file)]].concat());
        let page = std::fs::read_to_string(&file).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix("const DATA = ")).unwrap();
        let data: Value = serde_json::from_str(line.trim_end_matches(';')).unwrap();
        let name = |number: &Value| data["names"][number.as_u64().unwrap() as usize].as_str().unwrap();
        let lanes = data["lanes"].as_array().unwrap();
        let spans = |kind: &str| -> Vec<(u64, &str)> {
            let of = lanes.iter().filter(|lane| lane["kind"] == kind);
            let spans = of.flat_map(|lane| lane["phases"].as_array().unwrap());
            let mut spans: Vec<_> = spans.map(|span| (span[0].as_u64().unwrap(), name(&span[2]))).collect();
            spans.sort_unstable();
            spans
        };
        let (did, memory) = (spans("core"), spans("memory"));
        // One thing after the other, each of a line of the report, and at last what must never happen.
        let told = seen["counterexample"].as_array().unwrap();
        let (last, lines) = told.split_last().unwrap();
        assert!(did.iter().map(|span| span.0).eq(0..did.len() as u64), "{did:?}");
        assert_eq!(did.last().unwrap().1, last.as_str().unwrap());
        let parts = |line: &Value| line.as_str().unwrap().split("; ").count();
        assert_eq!(did.len() - 1, lines.iter().map(parts).sum::<usize>(), "{did:?}");
        // What a memory shows was done by an actor then, by an arrow from or to it.
        assert!(!memory.is_empty() && memory.iter().all(|span| did.contains(span)), "{memory:?}");
        let flows = data["flows"].as_array().unwrap();
        assert_eq!(flows.len(), memory.len());
        for (flow, (begin, text)) in flows.iter().zip(&memory) {
            let [from, to] = [0, 1].map(|end| (flow[end][1] == "memory", flow[end][2].as_u64().unwrap()));
            assert!(from.0 != to.0 && (from.1, to.1) == (*begin, begin + 1), "{flow}");
            let is_read = text.starts_with("reads ") || text.starts_with("sees FLAG");
            let is_write = ["puts ", "publishes ", "arrives "].iter().any(|verb| text.starts_with(verb));
            assert!(from.0 || !is_read, "{flow}: {text}");
            assert!(to.0 || !is_write, "{flow}: {text}");
        }
        std::fs::remove_file(&file).unwrap();
    }
    verdict(0, &["DC", "--rounds", "1", "--html", text(&file)]);
    assert!(!file.exists(), "a schedule that is safe has no story");
    let windows = ["schedule", "DDDCCC", "--product", "a2", "--model", "windows", "--html", text(&file)];
    assert!(fails(2, &windows).contains("--html: needs --model machines"));
}

#[test]
fn the_record_of_a_counterexample_is_refused_in_its_last_step() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("story.jsonl");
    let conform = |status| json(status, &["conform", text(&file)])["broken"].clone();
    for (args, guard) in [
        (&["DDDCCC"][..], "overwritten"),
        (&["DDCC", "--partitions", "2,1"], "overwritten"),
        (&["DC", "--partitions", "1"], "cleared"),
        (&["DDDDCCCC", "--partitions", "3", "--rounds", "1"], "overwritten"),
        (&["DDDCCC", "--receive", "in-place"], "overwritten"),
        (&["DDCC", "--receive", "direct", "--partitions", "1"], "overwritten"),
        (&["DDCC", "--product", "a2", "--hierarchy", "--partitions", "1", "--rounds", "1"], "overwritten"),
        (&["DC", "--product", "a2", "--partitions", "1"], "overwritten"),
    ] {
        verdict(1, &[args, &["--events", text(&file)]].concat());
        let broken = conform(1);
        assert_eq!(broken["guard"], guard, "{args:?}: {broken}");
        let record = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = record.lines().collect();
        let (before, rest) = lines.split_at(broken["line"].as_u64().unwrap() as usize - 1);
        let who = |line: &&str| {
            let event: Value = serde_json::from_str(line).unwrap();
            [event["rank"].clone(), event["core"].clone(), event["batch"].clone(), event["operator"].clone()]
        };
        assert!(rest.iter().map(who).all(|other| other == who(&rest[0])), "{args:?}: {rest:?}");
        std::fs::write(&file, before.join("\n")).unwrap();
        // It ends within the operator.
        assert_eq!(conform(4), Value::Null, "{args:?}");
        std::fs::remove_file(&file).unwrap();
    }
    for (args, guard) in [
        (&["Ds0 Ds1 Dr0 Dr1 C0 C1"][..], "gate"),
        (&["D2 C0", "--rounds", "2"], "overwritten"),
        (&["Ds1 Cs0 Dr1 Cr0", "--partitions", "1"], "cleared"),
        (&["DsDrCsCr", "--product", "a2", "--partitions", "1"], "overwritten"),
    ] {
        verdict(1, &[args, &["--events", text(&file)]].concat());
        assert_eq!(conform(1)["guard"], guard, "{args:?}");
    }
    // Events of agents are in the record.
    verdict(1, &["DC", "--product", "a2", "--partitions", "1", "--events", text(&file)]);
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"core\":null,\"kind\":\"post\""));
    std::fs::remove_file(&file).unwrap();
    verdict(0, &["DC", "--rounds", "1", "--events", text(&file)]);
    assert!(!file.exists(), "a schedule that is safe has no story");
    let windows = ["schedule", "DDDCCC", "--product", "a2", "--model", "windows", "--events", text(&file)];
    assert!(fails(2, &windows).contains("--events: needs --model machines"));
}

/// Counts ahead of the records are words of their own, so the same order has other states.
#[test]
fn separate_flags_are_searched_as_such() {
    let [joint, separate] =
        ["joint", "separate"].map(|flags| verdict(0, &["DsDrCsCr", "--rounds", "2", "--flags", flags]));
    assert_eq!((&joint["flags"], &separate["flags"]), (&"joint".into(), &"separate".into()));
    assert_ne!(joint["states"], separate["states"]);
    assert!(separate["bound"].as_str().unwrap().contains("2 partitions, separate flags"), "{separate}");
}

#[test]
fn a_half_that_is_never_received_is_safe_for_one_round_and_said_to_be_open() {
    for (order, open) in [("Ds", "dispatch 0"), ("DsDrCs", "combine 0"), ("DDsCDr|DDsCDr", "")] {
        let bound = verdict(0, &[order])["bound"].as_str().unwrap().to_owned();
        let left = format!("1 round, at whose end {open} is sent and not received, ");
        assert!(bound.starts_with("SAFE ") && bound.contains(&left) != open.is_empty(), "{order}: {bound}");
        assert_eq!(bound.contains("not received"), !open.is_empty(), "{order}: {bound}");
    }
    assert!(fails(2, &["schedule", "Ds", "--rounds", "2"]).contains("must have as many C as D"));
}

#[test]
fn a_search_that_stops_early_is_unknown() {
    let seen = verdict(4, &["DDCC", "--ep", "3", "--states", "1000"]);
    assert_eq!((&seen["verdict"], &seen["complete"]), (&"unknown".into(), &false.into()));
    assert_eq!(seen["safe"], Value::Null);
    assert_eq!(seen["decides"][0], "--states 10000, if that is enough; about 10 MiB");
    // The documented unsafe order, whose counterexample comes later.
    let unsafe_order = ["DDDCCC", "--states", "500"];
    assert_eq!(verdict(4, &unsafe_order)["verdict"], "unknown");
    let line = fails(4, &[&["schedule"], &unsafe_order[..]].concat());
    assert!(line.starts_with("error: unknown: DDDCCC for 2 ranks x 1 core"), "{line}");
    assert!(line.ends_with("decided by: --states 5000, if that is enough; about 5 MiB"), "{line}");
    let output = veriep(&["schedule", "DC", "--states", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let bound = "DC for 2 ranks x 1 core, 1 token a rank, any number of rounds, 2 partitions";
    assert!(text.starts_with(&format!("verdict  unknown: {bound}: the search ended after ")), "{text}");
    assert!(text.contains("\nsearched DC, a part of the states: the real machines"), "{text}");
}

#[test]
fn an_answer_says_whether_machines_or_windows_were_searched() {
    for (args, model) in [
        (&["DC"][..], "machines"),
        (&["D", "--product", "a2"], "machines"),
        (&["D", "--product", "a2", "--model", "windows"], "windows"),
        (&["D", "--product", "a2", "--ranks", "3"], "windows"),
        (&["D", "--product", "a2", "--ranks", "3", "--model", "machines", "--states", "100"], "machines"),
    ] {
        let status = if args.contains(&"--states") { 4 } else { 0 };
        assert_eq!(verdict(status, args)["model"], model, "{args:?}");
    }
}

#[test]
fn what_is_not_a_schedule_is_refused() {
    assert!(fails(2, &["schedule", "DCC"]).contains("combine 1 has no dispatch to combine"));
    assert!(fails(2, &["schedule", "DXC"]).contains("'X' at position 1"));
    assert!(fails(2, &["schedule", "DC|DX"]).contains("order \"DX\" of rank 1: 'X' at position 1"));
    assert!(fails(2, &["schedule", "DC|DC|D"]).contains("3 orders for 2 ranks"));
    assert!(fails(2, &["schedule", "DC|DC|DC"]).contains("3 orders for 2 ranks"));
    assert!(fails(2, &["schedule", &"D".repeat(33)]).contains("33 batches: must be at most 32"));
    let record = fails(2, &["schedule", "DC|DDCC", "--events", "target/never.jsonl"]);
    assert!(record.contains("--events: must be left out: a record is of one order"), "{record}");
    assert!(fails(2, &["schedule", ""]).contains("missing: a D"));
    for (more, why) in [(["--product", "a2"], "product = a2"), (["--receive", "direct"], "--receive direct")]
    {
        let line = fails(2, &[&["schedule", "DC", "--flags", "separate"], &more[..]].concat());
        assert!(line.contains(&format!("--flags: {why} has ")), "{line}");
    }
    assert!(fails(2, &["schedule", "DDC", "--rounds", "2"]).contains("as many C as D"));
    assert!(fails(2, &["schedule", "DC", "--ep", "9"]).contains("--ep"));
    assert!(fails(2, &["schedule", "DC", "--partitions", "0"]).contains("--partitions"));
    assert!(fails(2, &["schedule", "DC", "--product", "a2", "--partitions", "2,1"]).contains("a2"));
    assert!(fails(2, &["schedule", "DC", "--model", "windows"]).contains("only --product a2 has"));
    let servers = |more: &[&str]| fails(2, &[&["schedule", "DC", "--product", "a2"], more].concat());
    assert!(fails(2, &["schedule", "DC", "--hierarchy"]).contains("needs --product a2"));
    assert!(servers(&["--hierarchy", "--model", "windows"]).contains("--hierarchy has no such model"));
    assert!(servers(&["--server-ranks", "1"]).contains("without --hierarchy"));
    assert!(servers(&["--hierarchy", "--server-ranks", "2", "--ranks", "3"]).contains("must divide"));
}

#[test]
fn halves_are_answered_with_the_partitions_that_they_need() {
    let both = "Ds0 Ds1 Dr0 Dr1 C0 C1";
    for (args, safe, needs) in [
        (&["Ds0 Dr0 Cs0 Cr0"][..], true, &[Some(2), Some(1)][..]),
        (&["Ds0 Dr0 Cs0 Cr0", "--product", "a2"], true, &[Some(2)]),
        (&["Ds0 Dr0 Cs0 Cr0", "--product", "a2", "--ep", "3"], true, &[Some(2)]),
        (&["Ds1 Cs0 Dr1 Cr0", "--rounds", "3"], true, &[Some(2), Some(2)]),
        (&["Ds1 Cs0 Dr1 Cr0", "--rounds", "2", "--receive", "direct"], true, &[Some(2), Some(2), Some(2)]),
        (&["Ds1 Cs0 Dr1 Cr0", "--partitions", "2,1"], false, &[Some(2), Some(2)]),
        (&[both], false, &[Some(4), Some(2)]),
        (&[both, "--partitions", "4,2", "--rounds", "2"], true, &[Some(4), Some(2)]),
    ] {
        let seen = verdict(i32::from(!safe), args);
        assert_eq!((&seen["ok"], &seen["deadlock"]), (&safe.into(), &false.into()), "{args:?}");
        assert_eq!(seen["argument"]["gap"].is_null(), safe, "{args:?}");
        let told = seen["argument"]["needs"].as_array().unwrap().iter();
        let told: Vec<_> = told.map(|need| need["partitions"].as_u64()).collect();
        assert_eq!(told, needs, "{args:?}");
    }
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    for (order, searched, waits) in [
        (
            "DCDC|DDCC",
            true,
            &["rank 0 waits in combine 0 for rank 1", "rank 1 waits in dispatch 1 for rank 0"][..],
        ),
        ("DC|D", true, &["rank 0 waits in combine 0 for rank 1, which has ended its order"]),
        (
            "DC|CD",
            false,
            &["rank 0 waits in dispatch 0 for rank 1", "rank 1 waits in combine 0 for its own dispatch"],
        ),
    ] {
        let seen = verdict(1, &[order]);
        assert_eq!((&seen["deadlock"], &seen["searched"]), (&true.into(), &searched.into()), "{order}");
        assert_eq!(seen["argument"]["waits"], serde_json::json!(waits), "{order}");
        let line = fails(1, &["schedule", order]);
        assert!(line.contains("comes to a deadlock: rank 0 waits in "), "{line}");
    }
    assert_eq!(verdict(0, &["DC|Ds Dr Cs Cr"])["deadlock"], false);
}

#[test]
fn orders_that_no_search_has_are_unknown() {
    let seen = verdict(4, &["Ds1 Cs0 Dr1 Cr0", "--product", "a2"]);
    assert_eq!((&seen["verdict"], &seen["searched"]), (&"unknown".into(), &false.into()));
    assert!(seen["argument"]["gap"].as_str().unwrap().ends_with("on A2 one must end before the next begins"));
    assert_eq!(seen["argument"]["needs"][0]["partitions"], Value::Null);
}

#[test]
fn an_unsafe_schedule_is_told_as_a_timeline() {
    let output = veriep(&["schedule", "DC", "--partitions", "1,2", "-v"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.starts_with("verdict  no: UNSAFE for 2 ranks x 1 core"), "{told}");
    assert!(told.contains("rank 0 begins round 0") && told.contains("one is lost"), "{told}");
}

#[test]
fn a_short_report_ends_with_what_goes_wrong() {
    let whole = String::from_utf8(veriep(&["schedule", "DDDCCC", "-v"]).stdout).unwrap();
    let short = String::from_utf8(veriep(&["schedule", "DDDCCC"]).stdout).unwrap();
    let (whole, short): (Vec<_>, Vec<_>) = (whole.lines().collect(), short.lines().collect());
    assert_eq!(short.len(), 10, "{short:?}");
    assert_eq!(short[5..], whole[whole.len() - 5..]);
    assert_eq!(short[4], format!("  ..  {} events before: -v prints them", whole.len() - 10));
}

#[test]
fn an_unsafe_schedule_of_a2_is_told_in_the_words_of_its_protocol() {
    let output = veriep(&["schedule", "DC", "--product", "a2", "--partitions", "1", "-v"]);
    let told = String::from_utf8(output.stdout).unwrap();
    for words in [
        "verdict  no: UNSAFE for 2 ranks x 1 core",
        "rings",
        "posts a window",
        "arrives at rank",
        "sees FLAG1",
        "has still to read",
    ] {
        assert!(told.contains(words), "{words} in {told}");
    }
}

#[test]
fn an_unsafe_schedule_of_the_hierarchy_is_told_in_the_words_of_its_protocol() {
    let args = ["schedule", "DC", "--product", "a2", "--hierarchy", "--partitions", "1", "-v"];
    let output = veriep(&args);
    let told = String::from_utf8(output.stdout).unwrap();
    for words in [
        "verdict  no: UNSAFE for 2 ranks in 2 servers x 1 core",
        "sends record 0 from rank",
        "sends the end flag",
        "sees the count at rank",
        "has not heard that rank",
    ] {
        assert!(told.contains(words), "{words} in {told}");
    }
}
