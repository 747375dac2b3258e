//! The pictures of the documents that show what code decides, drawn from the program's own records and layouts.
//!
//! `SNAPSHOTS=overwrite` writes them anew; look at them before they are committed.
#![cfg(target_os = "linux")]

#[cfg(feature = "schedule")]
mod evidence;
mod phases;
mod predicted;
#[cfg(feature = "schedule")]
mod reuse;
mod sheet;
mod token;
mod waits;

use crate::common::{json, text, veriep};
use serde_json::Value;
use sheet::{Anchor, Line, Sheet, sequence};
use snapbox::Data;
use snapbox::data::DataFormat;
use std::fs;
use std::path::Path;

/// Holds a picture against the one that is kept.
fn keep(name: &str, picture: &str) {
    let path = format!("{}/../../docs/pictures/{name}.svg", env!("CARGO_MANIFEST_DIR"));
    snapbox::assert_data_eq!(picture, Data::read_from(path.as_ref(), Some(DataFormat::Text)).raw());
}

/// The events that `write` records in a file.
fn read_events(write: impl FnOnce(&Path)) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    write(&path);
    let lines = fs::read_to_string(path).unwrap();
    lines.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events of one round of a configuration on the lockstep backend.
fn events(arguments: &str) -> Vec<Value> {
    read_events(|path| {
        let arguments: Vec<_> = arguments.split(' ').collect();
        // Pictures show the words of the shipped operators.
        let record = ["--unchecked", "--backend", "lockstep", "--rounds", "1", "--events", text(path)];
        let output = veriep(&[&["run"], &arguments[..], &record].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    })
}

fn number(event: &Value, key: &str) -> u64 {
    event[key].as_u64().unwrap_or(u64::MAX)
}

fn is(event: &Value, key: &str, value: &str) -> bool {
    event[key] == value
}

const STATUS_END: u64 = 64 << 10;
const CORE_WORDS: u64 = 848 << 10;

/// What of a dispatch is shown: how the row of rank 0 comes to rank 1, and how rank 1 knows.
fn of_dispatch(event: &Value) -> Option<Line> {
    let (rank, core, offset) = (number(event, "rank"), number(event, "core"), number(event, "offset"));
    let lane = usize::try_from(if rank == 0 { core } else { 4 + core }).ok()?;
    let memory = if rank == 0 { 2 } else { 3 };
    let (to_peer, state) = (number(event, "peer") == 1, is(event, "region", "state"));
    let kind = event["kind"].as_str()?;
    let word =
        u64::from_str_radix(event["word"].as_str().unwrap_or("0x0").trim_start_matches("0x"), 16).ok()?;
    let line = |from, to, class, words: String| Some(Line { from, to, class, words });
    match kind {
        "put" if rank == 0 => line(lane, 3, "a", "put the row".to_owned()),
        "quiet" if rank == 0 => line(lane, lane, "", "quiet: all has landed".to_owned()),
        "publish" if rank == 0 && offset >= CORE_WORDS && is(event, "phase", "Arrive") => {
            line(lane, 2, "f", "arrived".to_owned())
        }
        "observe" if rank == 0 && is(event, "phase", "Barrier") => {
            line(2, lane, "c", "the other has arrived".to_owned())
        }
        "publish" if rank == 0 && to_peer && offset < STATUS_END => {
            line(lane, 3, "f", format!("flag, count {}", word >> 32))
        }
        "observe" if rank == 1 && state && offset < 32 => {
            line(3, lane, "f", format!("sees flag, count {}", word >> 32))
        }
        "store" if rank == 1 && state && offset < 32 => line(lane, 3, "c", "clears it".to_owned()),
        "publish" if rank == 1 && offset >= CORE_WORDS && is(event, "phase", "Exchange.ArriveWithSums") => {
            line(lane, memory, "f", "arrived, with sum".to_owned())
        }
        "observe" if rank == 1 && offset >= CORE_WORDS && is(event, "phase", "Exchange.Sums") => {
            line(3, lane, "c", "the other's sum".to_owned())
        }
        "deliver" if rank == 1 && number(event, "length") > 64 => {
            line(3, lane, "a", "copies the row out".to_owned())
        }
        _ => None,
    }
}

#[test]
fn the_sequence_of_a_dispatch_is_what_two_ranks_do() {
    let events = events("--preset tiny --set aiv_num=2 --set bs=1 --set k=1 --set moe_expert_num=2 --seed 4");
    let dispatch = events.iter().filter(|event| is(event, "operator", "dispatch"));
    let lines: Vec<_> = dispatch.filter_map(of_dispatch).collect();
    assert_eq!(lines.iter().filter(|line| line.class == "a").count(), 2, "one row, put and copied out");
    let memory = |name| (name, true);
    let lanes = [
        ("core 0 of rank 0", false),
        ("core 1 of rank 0", false),
        memory("memory of rank 0"),
        memory("memory of rank 1"),
        ("core 0 of rank 1", false),
        ("core 1 of rank 1", false),
    ];
    keep("dispatch", &sequence("A row goes from rank 0 to rank 1 in one dispatch", &lanes, &lines));
}

/// What of a round is shown: the row of rank 0 goes to rank 1 and comes back as a result.
fn of_round(event: &Value) -> Option<Line> {
    const COMBINE_FLAG: u64 = STATUS_END;
    let (rank, peer, offset) = (number(event, "rank"), number(event, "peer"), number(event, "offset"));
    let (is_row, of_state) = (number(event, "length") > 64, is(event, "region", "state"));
    let line = |from, to, class, words: &str| Some(Line { from, to, class, words: words.to_owned() });
    match (event["operator"].as_str()?, event["kind"].as_str()?, rank) {
        ("dispatch", "put", 0) if peer == 1 => line(0, 2, "a", "puts the row"),
        ("dispatch", "quiet", 0) => line(0, 0, "", "quiet: all has landed"),
        ("dispatch", "publish", 0) if peer == 1 && offset == 0 => line(0, 2, "f", "publishes flag and count"),
        ("dispatch", "observe", 1) if of_state && offset == 0 => line(2, 3, "f", "sees the flag"),
        ("dispatch", "store", 1) if of_state && offset == 0 => line(3, 2, "c", "clears the flag"),
        ("dispatch", "deliver", 1) if is_row => line(2, 3, "a", "copies the row out"),
        ("dispatch", "end", 1) => line(3, 3, "", "the expert runs"),
        ("combine", "put", 1) if peer == 0 => line(3, 1, "a", "puts the result"),
        ("combine", "publish", 1) if peer == 0 => line(3, 1, "f", "publishes the flag"),
        ("combine", "observe", 0) if of_state && offset == COMBINE_FLAG => line(1, 0, "f", "sees the flag"),
        ("combine", "store", 0) if of_state && offset == COMBINE_FLAG => line(0, 1, "c", "clears the flag"),
        ("combine", "deliver", 0) if is_row => line(1, 0, "a", "reads it for the sum"),
        _ => None,
    }
}

#[test]
fn a_round_is_what_two_ranks_do() {
    let events = events("--preset tiny --set aiv_num=1 --set bs=1 --set k=1 --set moe_expert_num=2 --seed 4");
    let mut lines: Vec<_> = events.iter().filter_map(of_round).collect();
    assert_eq!(lines.len(), 12, "each step is shown once");
    for (number, line) in (1..).zip(&mut lines) {
        line.words.insert_str(0, &format!("{number}  "));
    }
    let lanes = [
        ("core of rank 0", false),
        ("memory of rank 0", true),
        ("memory of rank 1", true),
        ("core of rank 1", false),
    ];
    keep("round", &sequence("One round of two ranks: who puts what where, then which flag", &lanes, &lines));
}

/// What of an operator of A2 is shown: the window of rank 0 for rank 1.
fn of_agent(event: &Value, window: u64) -> Option<Line> {
    const DOORBELL: u64 = 64 << 10;
    let (rank, offset) = (number(event, "rank"), number(event, "offset"));
    let is_agent = event["core"].is_null();
    let lane = if is_agent { 4 } else { usize::try_from(number(event, "core")).ok()? };
    let (out, state) = (is(event, "region", "window_out"), is(event, "region", "state"));
    let phase = event["phase"].as_str().unwrap_or_default();
    let line = |from, to, class, words: &str| Some(Line { from, to, class, words: words.to_owned() });
    let mine = (window..2 * window).contains(&offset);
    let is_task = state && (32..64).contains(&offset);
    match (rank, event["kind"].as_str()?) {
        (0, "write") if out && mine && phase == "Reorder" => line(lane, 3, "a", "rows for rank 1"),
        (0, "write") if out && mine && phase == "Head" => line(lane, 3, "a", "counts, FLAG1"),
        (0, "write") if out && mine && phase == "Send.Tail" => line(lane, 3, "f", "FLAG2 after the rows"),
        (0, "store") if is_task && offset == 56 => line(lane, 2, "f", "task record for rank 1"),
        (0, "quiet") => line(lane, lane, "", "quiet"),
        (0, "publish") if state && offset >= CORE_WORDS && phase.starts_with("Send") => {
            line(lane, 2, "f", "arrived")
        }
        (0, "publish") if state && offset == DOORBELL => line(lane, 2, "f", "rings the doorbell"),
        (0, "observe") if is_agent && offset == DOORBELL => line(2, 4, "c", "sees the doorbell"),
        (0, "observe") if is_agent && is_task && offset == 56 => line(2, 4, "c", "reads the task"),
        (0, "post") if number(event, "peer") == 1 => line(4, 5, "a", "posts the window"),
        (1, "observe") if phase == "Counts" && offset == 96 => line(5, 6, "f", "sees FLAG1"),
        (1, "observe") if phase == "Rows" && offset < window => line(5, 6, "f", "sees FLAG2"),
        (1, "deliver") if offset < window && number(event, "length") > 64 => {
            line(5, 6, "a", "copies rows out")
        }
        (1, "store") if is(event, "region", "window") && offset < window => line(6, 5, "c", "clears a flag"),
        _ => None,
    }
}

#[test]
fn cores_ring_and_the_agent_posts() {
    let sizes = "--set ep_world_size=16 --set moe_expert_num=16 --set aiv_num=2 --set bs=1 --set h=1024";
    let events = events(&format!("--preset a2-64 {sizes} --set k=8 --seed 1"));
    let posted = |event: &&Value| is(event, "kind", "post") && number(event, "peer") == 1;
    let window =
        number(events.iter().filter(posted).find(|event| number(event, "rank") == 2).unwrap(), "offset") / 2;
    let first = events.iter().filter(|event| number(event, "batch") == 0 || event["core"].is_null());
    let dispatch = first.filter(|event| !is(event, "operator", "combine"));
    let mut lines: Vec<_> = dispatch.filter_map(|event| of_agent(event, window)).collect();
    let copied = lines.iter().position(|line| line.words == "copies rows out").unwrap();
    let cleared = lines.iter().rposition(|line| line.words == "clears a flag").unwrap();
    assert!(copied < cleared, "flags are cleared last");
    lines.truncate(cleared + 1);
    let lanes = [
        ("core 0 of rank 0", false),
        ("core 1 of rank 0", false),
        ("state of rank 0", true),
        ("WindowsOut of rank 0", true),
        ("agent of rank 0", false),
        ("WindowsIn of rank 1", true),
        ("cores of rank 1", false),
    ];
    keep("agent", &sequence("Rank 0 sends a window to rank 1 by its agent", &lanes, &lines));
}

/// What of a round of the hierarchy is shown: the token of rank 0 on its way over rank 8 to `expert` and back.
fn of_hierarchy(event: &Value, expert: u64) -> Option<Line> {
    const ENTERED: u64 = 32 << 10;
    const ROWS_DONE: u64 = 64 << 10;
    const END_FLAGS: u64 = 128 << 10;
    let (rank, peer, offset) = (number(event, "rank"), number(event, "peer"), number(event, "offset"));
    let is_row = number(event, "length") > 64;
    let lane = |rank: u64| [0, 8, expert].iter().position(|&other| other == rank);
    let (from, kind) = (lane(rank)?, event["kind"].as_str()?);
    let back = is(event, "operator", "combine");
    let line = |to, class, words: &str| Some(Line { from, to, class, words: words.to_owned() });
    match (kind, rank, peer, back) {
        ("send", 0, 8, false) if is_row => line(1, "a", "message: the token"),
        ("send", 0, 8, false) => line(1, "f", "message: end flag"),
        ("put", 8, _, false) if peer == expert && is_row => line(lane(expert)?, "a", "puts the row"),
        ("publish", 8, _, false) if peer == expert && is(event, "word", "0x10001") => {
            line(lane(expert)?, "f", "publishes the count")
        }
        ("put", _, 8, true) if rank == expert && is_row => line(1, "a", "returns the row"),
        ("publish", _, 8, true) if rank == expert => match offset {
            ENTERED..ROWS_DONE => line(1, "f", "has entered combine"),
            ROWS_DONE..END_FLAGS => line(1, "f", "rows done"),
            _ => line(1, "f", "flag of the row"),
        },
        ("send", 8, 0, true) if is_row => line(0, "a", "message: the sum"),
        ("send", 8, 0, true) => line(0, "f", "message: end flag"),
        _ => None,
    }
}

#[test]
fn a_token_goes_over_a_relay_and_comes_back() {
    let sizes = "--set moe_expert_num=16 --set aiv_num=1 --set bs=1 --set k=1 --set h=1024";
    let events = events(&format!("--preset a2-hier-16 {sizes} --seed 2"));
    let forwards = |event: &&Value| {
        is(event, "kind", "put")
            && number(event, "rank") == 8
            && number(event, "peer") != 8
            && is(event, "operator", "dispatch")
            && number(event, "length") > 64
    };
    let expert = number(events.iter().find(forwards).unwrap(), "peer");
    let lines: Vec<_> = events.iter().filter_map(|event| of_hierarchy(event, expert)).collect();
    assert_eq!(lines.iter().filter(|line| line.class == "a").count(), 4, "there and back in four hops");
    let name = format!("rank {expert}, server 1");
    let lanes = [("rank 0, server 0", false), ("rank 8, its relay, server 1", false), (&*name, false)];
    keep("hierarchy", &sequence("A token goes over a relay and comes back", &lanes, &lines));
}

const KIB: (u64, &str) = (1 << 10, "KiB");
const MIB: (u64, &str) = (1 << 20, "MiB");

/// The offsets in bytes that the labels of a drawing name, as `+1.75 MiB: ...`.
fn drawn_offsets(picture: &str) -> Vec<u64> {
    let label = |line: &str| {
        let (offset, _) = line.split_once(">+")?.1.split_once(':')?;
        let (count, unit) = offset.split_once(' ')?;
        let (bytes, _) = [KIB, MIB].into_iter().find(|(_, name)| *name == unit)?;
        Some((count.parse::<f64>().ok()? * bytes as f64) as u64)
    };
    picture.lines().filter_map(label).collect()
}

#[test]
fn a_partition_is_drawn_as_the_layout_has_it() {
    let layout = json(0, &["layout", "--preset", "deepseek-v3-decode"]);
    let areas = layout["areas"].as_array().unwrap();
    let mut sheet = Sheet::new();
    for (left, region, size) in [(20, "state", 1 << 20), (440, "window", 200 << 20)] {
        let unit = if region == "state" { KIB } else { MIB };
        sheet.words([left + 190, 24], Anchor::Middle, "h", format!("{region}, {} {}", size / unit.0, unit.1));
        sheet.rect([left, 40], [380, 480], "m");
        let mut free = 40;
        for area in areas.iter().filter(|area| is(area, "region", region)) {
            let scale = |bytes: u64| usize::try_from(bytes * 480 / size).unwrap();
            let (offset, bytes) = (number(area, "offset"), number(area, "size"));
            let (top, height) = ((40 + scale(offset)).max(free), scale(bytes).max(18));
            free = top + height;
            let class = if is(area, "region", "window") { "d" } else { "g" };
            sheet.rect([left, top], [380, height], class);
            let partition =
                area["partition"].as_u64().map_or(String::new(), |p| format!(" of partition {p}"));
            let (name, start) = (area["name"].as_str().unwrap(), offset as f64 / unit.0 as f64);
            let slots = format!("{} x {} B", area["count"], area["stride"]);
            let words = format!("+{start} {}: {name}{partition}, {slots}", unit.1);
            sheet.words([left + 190, top + 14], Anchor::Middle, "", words);
        }
    }
    let label = "State region and window of a rank to scale; areas that are too small to see are enlarged";
    let picture = sheet.finish([840, 540], label);
    let offsets: Vec<_> = areas.iter().map(|area| number(area, "offset")).collect();
    assert_eq!(drawn_offsets(&picture), offsets, "bytes");
    keep("partition", &picture);
}
