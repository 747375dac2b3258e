//! The transitions between the phases of a state machine, as seen in runs.

use super::sheet::{Anchor, Sheet};
use super::{events, is, keep, number};
use std::collections::{BTreeMap, BTreeSet};

const MACHINES: [(&str, &str, &str); 8] = [
    ("A3 dispatch", "dispatch", "--preset tiny"),
    ("separate flags", "dispatch", "--preset tiny --flags separate"),
    ("fullmesh_v2", "dispatch", "--preset tiny --set comm_alg=fullmesh_v2"),
    ("direct", "dispatch", "--preset tiny --receive direct"),
    ("A3 combine", "combine", "--preset tiny"),
    ("pull combine", "combine", "--preset tiny --receive direct"),
    ("A2 dispatch", "dispatch", "--preset a2-64 --set ep_world_size=16 --set moe_expert_num=16 --set h=1024"),
    ("A2 combine", "combine", "--preset a2-64 --set ep_world_size=16 --set moe_expert_num=16 --set h=1024"),
];

/// The phases of an operator, those first that come first on every core, and which follow each other.
fn graph(operator: &str, arguments: &str) -> (Vec<String>, BTreeSet<(usize, usize)>) {
    let mut walks = BTreeMap::<_, Vec<String>>::new();
    let events = events(&format!("{arguments} --set aiv_num=2 --seed 1"));
    for event in events.iter().filter(|event| is(event, "operator", operator)) {
        let phase = match event["kind"].as_str() {
            Some("begin") => event["phase"].as_str().unwrap(),
            Some("end") => "end",
            _ => continue,
        };
        let walk =
            walks.entry([number(event, "rank"), number(event, "core"), number(event, "batch")]).or_default();
        if walk.last().is_none_or(|last| last != phase) {
            walk.push(phase.to_owned());
        }
    }
    let mut latest = BTreeMap::new();
    for walk in walks.values() {
        for phase in walk {
            let first = walk.iter().position(|other| other == phase);
            let entry = latest.entry(phase.clone()).or_insert(first);
            *entry = first.max(*entry);
        }
    }
    let mut phases: Vec<_> = latest.keys().cloned().collect();
    phases.sort_by_key(|phase| latest[phase]);
    let node = |phase: &String| phases.iter().position(|other| other == phase).unwrap();
    let edges =
        walks.values().flat_map(|walk| walk.windows(2).map(|two| (node(&two[0]), node(&two[1])))).collect();
    (phases, edges)
}

#[test]
fn the_graphs_of_phases_are_those_that_runs_show() {
    const WIDTH: usize = 210;
    let mut sheet = Sheet::new();
    let mut bottom = [0; 2];
    for (place, (title, operator, arguments)) in MACHINES.into_iter().enumerate() {
        let (left, band) = (20 + place % 4 * WIDTH, place / 4);
        let top = if band == 0 { 10 } else { bottom[0] + 20 };
        let (phases, edges) = graph(operator, arguments);
        assert_eq!(phases.last().map(String::as_str), Some("end"), "{title}: {phases:?}");
        sheet.words([left + 75, top + 16], Anchor::Middle, "h", title);
        let y = |node: usize| top + 32 + node * 34;
        for (node, phase) in phases.iter().enumerate() {
            sheet.rect([left, y(node)], [150, 22], "d");
            sheet.words([left + 75, y(node) + 15], Anchor::Middle, "", phase);
        }
        for (from, to) in edges {
            let (start, end) = (y(from) + 11, y(to) + 11);
            if to == from + 1 {
                sheet.path(format!("M{0} {1}L{0} {2}", left + 75, start + 11, end - 11), "c");
            } else {
                let (side, bow) = if to > from { (left + 150, 8 + 6 * (to - from)) } else { (left, 10) };
                let bend = if to > from { side + bow } else { side - bow };
                sheet.path(format!("M{side} {start}C{bend} {start} {bend} {end} {side} {end}"), "c");
            }
        }
        bottom[band] = bottom[band].max(y(phases.len()));
    }
    keep("phases", &sheet.finish([4 * WIDTH + 40, bottom[1] + 10], "Which phase follows which"));
}
