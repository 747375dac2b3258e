//! A place in the memory of a slow rank, used twice by a fast one: once too early, as the search finds it, and once after a flag.

use super::sheet::{Anchor, Sheet};
use super::{is, keep, number, read_events};
use crate::common::{text, veriep};
use serde_json::Value;
use std::collections::BTreeMap;

const FAST: u64 = 0;
const SLOW: u64 = 1;

/// The use of memory that a picture is about.
struct Use {
    operator: &'static str,
    /// What the fast rank does to the slow one's memory, and what the slow one does when it has read that.
    write: &'static str,
    read: &'static str,
    region: &'static str,
    noun: &'static str,
}

const FLAGS: Use =
    Use { operator: "dispatch", write: "publish", read: "store", region: "state", noun: "flag" };
const ROWS: Use = Use { operator: "combine", write: "put", read: "deliver", region: "window", noun: "row" };

/// An event that a panel shows.
enum Shown {
    Begin {
        rank: u64,
        name: String,
    },
    End {
        rank: u64,
    },
    Write {
        place: u64,
        by: String,
    },
    Read {
        place: u64,
    },
    /// The slow rank's flag of this dispatch is on its way to the fast one, and is seen.
    Flag {
        of: String,
    },
    Seen,
}

fn name(event: &Value) -> String {
    let letter = if is(event, "operator", "dispatch") { 'D' } else { 'C' };
    format!("{letter}{}", number(event, "batch"))
}

/// What of a record is shown, up to the second write to the first place; `gate` is the dispatch whose flag of the slow rank is.
fn shown(events: &[Value], what: &Use, gate: Option<u64>) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut latest = BTreeMap::new();
    let (mut places, mut flag) = (Vec::new(), None);
    for event in events.iter().filter(|event| event["operator"].is_string()) {
        let (rank, place) = (number(event, "rank"), number(event, "offset"));
        if latest.insert(rank, name(event)) != Some(name(event)) {
            shown.push(Shown::Begin { rank, name: name(event) });
        }
        if is(event, "kind", "end") {
            shown.push(Shown::End { rank });
        }
        let of_use = is(event, "operator", what.operator) && is(event, "region", what.region);
        if of_use && rank == FAST && is(event, "kind", what.write) && number(event, "peer") == SLOW {
            shown.push(Shown::Write { place, by: name(event) });
            if places.first() == Some(&place) {
                return shown;
            }
            places.push(place);
        }
        if of_use && rank == SLOW && is(event, "kind", what.read) && places.contains(&place) {
            shown.push(Shown::Read { place });
        }
        let of_gate = is(event, "operator", "dispatch") && Some(number(event, "batch")) == gate;
        if of_gate && rank == SLOW && is(event, "kind", "publish") && number(event, "peer") == FAST {
            flag = Some(place);
            shown.push(Shown::Flag { of: name(event) });
        }
        if of_gate && rank == FAST && is(event, "kind", "observe") && flag == Some(place) {
            shown.push(Shown::Seen);
        }
    }
    panic!("no place is written twice");
}

/// What is at a place and has not been read.
struct Unread {
    since: usize,
    by: String,
}

impl Unread {
    fn until(&self, end: usize, top: usize, what: &Use) -> Filled {
        let words = format!("{}'s {}", self.by, what.noun);
        Filled { top, x: [self.since, end], class: ["g", ""], words }
    }
}

/// A part of a partition with what is there, from one time to another; classes are those of ground and letters.
struct Filled {
    top: usize,
    x: [usize; 2],
    class: [&'static str; 2],
    words: String,
}

/// The flag that frees the first place.
struct Freed {
    points: String,
    words: String,
    place: [usize; 2],
}

const LEFT: usize = 110;
const BOX: usize = 24;

/// The heights of a panel's lanes.
struct Lanes {
    fast: usize,
    memory: usize,
    slow: usize,
}

impl Lanes {
    const fn new(top: usize, places: usize) -> Self {
        let memory = top + 34 + BOX + 34;
        Self { fast: top + 34, memory, slow: memory + places * 34 + 34 }
    }

    const fn of(&self, rank: u64) -> usize {
        if rank == FAST { self.fast } else { self.slow }
    }

    const fn place(&self, number: usize) -> usize {
        self.memory + number * 34
    }

    const fn bottom(&self) -> usize {
        self.slow + BOX
    }
}

/// What a panel has drawn.
struct Drawn {
    right: usize,
    bottom: usize,
    overwritten: usize,
}

/// Draws a record: events from left to right, in their order.
fn panel(sheet: &mut Sheet, top: usize, title: &str, events: &[Shown], what: &Use) -> Drawn {
    let writes = || {
        events
            .iter()
            .filter_map(|event| if let Shown::Write { place, by } = event { Some((place, by)) } else { None })
    };
    let (_, first) = writes().next().unwrap();
    let mut places: Vec<_> = writes().map(|(place, _)| *place).collect();
    places.sort_unstable();
    places.dedup();
    let lanes = Lanes::new(top, places.len());
    let height = |place: &u64| lanes.place(places.iter().position(|other| other == place).unwrap());
    let step = |event: &Shown| if matches!(event, Shown::Begin { .. }) { 7 } else { 34 };
    let right = LEFT + events.iter().map(step).sum::<usize>() + 125;

    sheet.words([10, top + 20], Anchor::Start, "h", title);
    for (words, y) in [("fast rank", lanes.fast), ("slow rank", lanes.slow)] {
        sheet.words([10, y + 16], Anchor::Start, "", words);
        sheet.path(format!("M{LEFT} {0}L{right} {0}", y + BOX / 2), "l");
    }
    for number in 0..places.len() {
        sheet.words([10, lanes.place(number) + 16], Anchor::Start, "", format!("partition {number}"));
        sheet.rect([LEFT, lanes.place(number)], [right - LEFT, BOX], "m");
    }

    let mut drawn = Drawn { right, bottom: lanes.bottom(), overwritten: 0 };
    let (mut x, mut flag, mut freed) = (LEFT, None, None);
    let mut open = BTreeMap::new();
    let mut unread = BTreeMap::new();
    let operator = |sheet: &mut Sheet, rank: u64, (name, from): (&str, usize), to: usize| {
        sheet.rect([from, lanes.of(rank)], [to - from, BOX], "o");
        sheet.plain([from.midpoint(to), lanes.of(rank) + 16], Anchor::Middle, "", name);
    };
    // What is in memory is drawn over the arrows that pass after it.
    let mut filled = Vec::new();
    for event in events {
        x += step(event);
        match event {
            Shown::Begin { rank, name } => {
                open.insert(*rank, (name.as_str(), x));
            }
            Shown::End { rank } => operator(sheet, *rank, open.remove(rank).unwrap(), x),
            Shown::Write { place, by } => {
                let old = unread.insert(*place, Unread { since: x, by: by.clone() });
                let class = if old.is_some() { "w" } else { "f" };
                sheet.path(format!("M{x} {}L{x} {}", lanes.fast + BOX, height(place)), class);
                if let Some(old) = old {
                    drawn.overwritten += 1;
                    let words = format!("{}'s {}, unread", old.by, what.noun);
                    filled.push(Filled { top: height(place), x: [old.since, x], class: ["g", ""], words });
                    unread.remove(place);
                    let words = format!("{by} overwrites it");
                    filled.push(Filled { top: height(place), x: [x, right], class: ["b", "r"], words });
                }
            }
            Shown::Read { place } => {
                let old = unread.remove(place).unwrap();
                filled.push(old.until(x, height(place), what));
                sheet.path(format!("M{x} {}L{x} {}", height(place) + BOX, lanes.slow), "c");
            }
            Shown::Flag { of } => flag = Some((x, of)),
            Shown::Seen => {
                let (from, of) = flag.take().unwrap();
                let points = format!("M{from} {}L{x} {}", lanes.slow, lanes.fast + BOX);
                let words = format!("{of}'s flag: slow rank ended {first}");
                freed = Some(Freed { points, words, place: [from + 14, lanes.slow - 12] });
            }
        }
    }
    for (rank, begun) in open {
        operator(sheet, rank, begun, right);
    }
    filled.extend(unread.iter().map(|(place, old)| old.until(right, height(place), what)));
    for Filled { top, x, class: [ground, letters], words } in filled {
        sheet.rect([x[0], top], [x[1] - x[0], BOX], ground);
        sheet.words([x[0] + 5, top + 16], Anchor::Start, letters, words);
    }
    if let Some(Freed { points, words, place }) = freed {
        sheet.path(points, "s");
        sheet.label(place, Anchor::Start, "v", words);
    }
    drawn
}

/// The record of a counterexample that ends in `violation`.
fn counterexample(arguments: &str, violation: &str) -> Vec<Value> {
    read_events(|path| {
        let arguments: Vec<_> = arguments.split(' ').collect();
        let output = veriep(&[&["schedule"], &arguments[..], &["--events", text(path)]].concat());
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(violation), "{said}");
    })
}

/// Two ranks of one core in virtual time, of which rank 1 takes a thousand times as long for each step.
fn slow_rank(arguments: &str) -> Vec<Value> {
    const GROUP: &str =
        "--preset tiny --set aiv_num=1 --set bs=1 --set moe_expert_num=2 --cluster a3 --slow 1:1000";
    read_events(|path| {
        let arguments: Vec<_> = GROUP.split(' ').chain(arguments.split(' ')).collect();
        let output = veriep(&[&["simulate"], &arguments[..], &["--events", text(path)]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    })
}

/// A record and what it is called.
struct Case<'c> {
    title: &'c str,
    events: Vec<Shown>,
}

/// Draws an unsafe and a safe case below each other.
fn pair(cases: [Case<'_>; 2], what: &Use, label: &str) -> String {
    let mut sheet = Sheet::new();
    let (mut right, mut top) = (0, 0);
    let overwritten = cases.map(|Case { title, events }| {
        let drawn = panel(&mut sheet, top, title, &events, what);
        (right, top) = (right.max(drawn.right), drawn.bottom + 14);
        drawn.overwritten
    });
    assert_eq!(overwritten.iter().sum::<usize>(), 1, "one of the two loses something");
    sheet.finish_for_all([right + 10, top], label)
}

#[test]
fn a_second_partition_keeps_a_flag_that_a_slow_rank_has_not_read() {
    let lost = counterexample(
        "DC --partitions 1,2",
        "two flags, meet at state+0x0 in partition 0 of rank 1: one is lost",
    );
    let one = Case { title: "unsafe: one partition", events: shown(&lost, &FLAGS, None) };
    let kept = slow_rank("--set k=1 --seed 2 --rounds 3");
    let two = Case { title: "safe: two partitions", events: shown(&kept, &FLAGS, Some(1)) };
    let label = "With one partition a fast rank's next flag overwrites one that a slow rank has not read; with two, the slow rank's \
                 own flag says that the first partition is free";
    keep("why-two-buffers", &pair([one, two], &FLAGS, label));
}

#[test]
fn three_batches_in_flight_overwrite_a_row_and_two_do_not() {
    let kept = slow_rank("--set k=2 --seed 1 --rounds 2 --schedule DDCC");
    let two = Case { title: "safe: DDCC", events: shown(&kept, &ROWS, Some(2)) };
    let lost = counterexample("DDDCCC", "in partition 0 of rank 1 on a row that rank 1 has not read");
    let three = Case { title: "unsafe: DDDCCC", events: shown(&lost, &ROWS, None) };
    let label = "DDCC: a dispatch between the two uses of a partition tells the fast rank that its row was read. DDDCCC: none does, \
                 and the third combine overwrites the row of the first";
    keep("orders", &pair([two, three], &ROWS, label));
}
