//! A timeline as one page that needs nothing else: the critical path on top, then a lane for each core and agent of some ranks,
//! their ports, how busy all ports are, who waited for whom, and what is in windows.

use super::chrome::Part;
use super::core_of;
use super::timeline::{Direction, Timeline};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};
use std::path::Path;
use veriep_case::atomic_file::write_atomically;
use veriep_case::error::Error;
use veriep_core::sim::Actor;

/// The page around the data.
const PAGE: &str = include_str!("page.html");
/// What is in it where the data belong.
const PLACE: &str = "/*DATA*/null";
/// Ranks that have lanes at most.
const RANKS_MAX: usize = 16;
/// Pieces in which the use of ports is told.
const PIECES: u64 = 400;
/// Ranks and points of what is drawn over time or against each other.
const MATRIX_MAX: usize = 64;
const POINTS_MAX: usize = 400;

/// What is above the drawing.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub title: String,
    /// Names and values.
    pub facts: Vec<(String, String)>,
    /// Who waited for whom, in units of the timeline; empty if only the waits of the timeline tell.
    pub matrix: BTreeMap<(u32, u32), u64>,
}

/// Names, each told once.
#[derive(Default)]
pub struct Names(Vec<String>, HashMap<String, usize>);

impl Names {
    pub fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.1.get(name) {
            return number;
        }
        self.0.push(name.to_owned());
        self.1.insert(name.to_owned(), self.0.len() - 1);
        self.0.len() - 1
    }

    pub fn all(self) -> Vec<String> {
        self.0
    }
}

#[derive(Serialize)]
pub struct Lane {
    pub rank: u32,
    /// A core, or "agent", or a port, or "memory".
    pub name: String,
    pub kind: &'static str,
    pub operators: Vec<Value>,
    pub phases: Vec<Value>,
    pub waits: Vec<Value>,
}

/// Writes the page.
pub fn write(path: &Path, timeline: &Timeline, critical: &[Part], about: &About) -> Result<(), Error> {
    write_data(path, &data(timeline, critical, about))
}

pub fn write_data(path: &Path, data: &Value) -> Result<(), Error> {
    // Nothing in it may end the script.
    let text = serde_json::to_string(data).map(|text| text.replace("</", "<\\/"));
    let (before, after) = PAGE.split_once(PLACE).unwrap_or((PAGE, ""));
    write_atomically(path, |file| {
        file.write_all(before.as_bytes())?;
        file.write_all(text.map_err(io::Error::from)?.as_bytes())?;
        file.write_all(after.as_bytes())
    })
}

fn data(timeline: &Timeline, critical: &[Part], about: &About) -> Value {
    let ranks: BTreeSet<_> = timeline.lanes.keys().map(|actor| actor.member.0).collect();
    let drawn = chosen(timeline, &ranks, critical);
    let mut names = Names::default();
    let lanes: Vec<_> = timeline
        .lanes
        .iter()
        .filter(|(actor, _)| drawn.contains(&actor.member.0))
        .map(|(&actor, lane)| lane_of(actor, lane, &mut names))
        .collect();
    let path: Vec<_> = critical
        .iter()
        .rev()
        .map(|part| json!([part.from, part.to, part.rank, part.core, names.number(part.what)]))
        .collect();
    let critical_ranks: BTreeSet<_> = critical.iter().map(|part| part.rank).collect();
    let flows: Vec<_> = timeline
        .flows
        .iter()
        .filter(|flow| [flow.from.0, flow.to.0].iter().all(|actor| drawn.contains(&actor.member.0)))
        .filter(|flow| flow.from.0.member != flow.to.0.member)
        .map(|flow| {
            let end = |(actor, at): (Actor, u64)| json!([actor.member.0, core_of(actor), at]);
            json!([end(flow.from), end(flow.to)])
        })
        .collect();
    json!({
        "title": about.title,
        "facts": about.facts,
        "perUs": (1.0 / timeline.unit.us(1)).round(),
        "end": timeline.end,
        "ranks": ranks.len(),
        "drawn": drawn,
        "critical": critical_ranks,
        "lanes": lanes,
        "ports": ports(timeline, &drawn),
        "use": in_use(timeline),
        "path": path,
        "flows": flows,
        "matrix": matrix(timeline, about),
        "windows": drawn.iter().map(|&rank| json!([rank, thinned(timeline.window(rank))])).collect::<Vec<_>>(),
        "names": names.all(),
    })
}

/// The ranks that have lanes: all if they are few, else those on the critical path, from its end on, and the slowest.
fn chosen(timeline: &Timeline, ranks: &BTreeSet<u32>, critical: &[Part]) -> BTreeSet<u32> {
    if ranks.len() <= RANKS_MAX {
        return ranks.clone();
    }
    let mut busiest: BTreeMap<u32, u64> = BTreeMap::new();
    for (actor, lane) in &timeline.lanes {
        for operator in &lane.operators {
            let longest = busiest.entry(actor.member.0).or_default();
            *longest = (*longest).max(operator.to - operator.from);
        }
    }
    let mut slowest: Vec<_> = busiest.into_iter().collect();
    slowest.sort_by_key(|&(rank, took)| (core::cmp::Reverse(took), rank));
    let root = critical.last().map(|part| part.rank);
    let slowest = slowest.into_iter().map(|(rank, _)| rank);
    let mut chosen = BTreeSet::new();
    for rank in root.into_iter().chain(critical.iter().map(|part| part.rank)).chain(slowest) {
        if chosen.len() < RANKS_MAX {
            chosen.insert(rank);
        }
    }
    chosen
}

fn lane_of(actor: Actor, lane: &super::timeline::Lane, names: &mut Names) -> Lane {
    let span = |span: &super::timeline::Span, names: &mut Names| {
        json!([span.from, span.to, names.number(span.name), span.batch])
    };
    let name = core_of(actor).map_or_else(|| "agent".to_owned(), |core| format!("core {core}"));
    Lane {
        rank: actor.member.0,
        kind: if core_of(actor).is_some() { "core" } else { "agent" },
        name,
        operators: lane.operators.iter().map(|operator| span(operator, names)).collect(),
        phases: lane.phases.iter().map(|phase| span(phase, names)).collect(),
        waits: lane
            .waits
            .iter()
            .filter(|wait| wait.to > wait.from)
            .map(|wait| json!([wait.from, wait.to, wait.whom.map(|rank| rank.0), names.number(wait.what)]))
            .collect(),
    }
}

/// The ports of some ranks: when each was busy, for which operator, with how many bytes.
fn ports(timeline: &Timeline, drawn: &BTreeSet<u32>) -> Vec<Value> {
    let mut ports: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    for busy in timeline.links.iter().filter(|busy| drawn.contains(&busy.rank)) {
        let span = json!([busy.from, busy.to, busy.operator, busy.bytes]);
        ports.entry((busy.rank, busy.port, busy.direction.name())).or_default().push(span);
    }
    let port = |((rank, port, way), spans)| json!({"rank": rank, "name": format!("port {port} {way}"), "spans": spans});
    ports.into_iter().map(port).collect()
}

/// For each way and each piece of the time: by how much of it the ports were busy, of all ranks on average and of the busiest.
fn in_use(timeline: &Timeline) -> Value {
    let piece = (timeline.end / PIECES).max(1);
    let ports: BTreeSet<_> = timeline.links.iter().map(|busy| (busy.rank, busy.port)).collect();
    let of = |way: Direction| {
        let mut busy: HashMap<(u32, u32), Vec<u64>> = HashMap::new();
        for link in timeline.links.iter().filter(|link| link.direction == way) {
            let pieces = busy.entry((link.rank, link.port)).or_insert_with(|| vec![0; PIECES as usize + 1]);
            for number in link.from / piece..=link.to / piece {
                let (from, to) = (link.from.max(number * piece), link.to.min((number + 1) * piece));
                if let Some(sum) = pieces.get_mut(number as usize) {
                    *sum += to.saturating_sub(from);
                }
            }
        }
        let share = |sum: u64| (1000.0 * sum as f64 / piece as f64).round() / 1000.0;
        let pieces = (0..PIECES as usize).map(|number| {
            let all = busy.values().map(|pieces| pieces[number]);
            let mean = share(all.clone().sum::<u64>()) / ports.len().max(1) as f64;
            json!([(1000.0 * mean).round() / 1000.0, share(all.max().unwrap_or(0))])
        });
        pieces.collect::<Vec<_>>()
    };
    if timeline.links.is_empty() {
        return Value::Null;
    }
    json!({"piece": piece, "out": of(Direction::Out), "in": of(Direction::In)})
}

/// Who waited for whom: of many ranks those that were waited for longest, and that waited longest.
fn matrix(timeline: &Timeline, about: &About) -> Value {
    let mut pairs = about.matrix.clone();
    if pairs.is_empty() {
        for (actor, lane) in &timeline.lanes {
            for wait in &lane.waits {
                if let Some(whom) = wait.whom {
                    *pairs.entry((actor.member.0, whom.0)).or_default() += wait.to - wait.from;
                }
            }
        }
    }
    let first = |sums: BTreeMap<u32, u64>| {
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|&(rank, sum)| (core::cmp::Reverse(sum), rank));
        let mut ranks: Vec<_> = sums.into_iter().take(MATRIX_MAX).map(|(rank, _)| rank).collect();
        ranks.sort_unstable();
        ranks
    };
    let (mut by_waiting, mut by_awaited) = (BTreeMap::new(), BTreeMap::new());
    for (&(waiting, awaited), sum) in &pairs {
        *by_waiting.entry(waiting).or_default() += sum;
        *by_awaited.entry(awaited).or_default() += sum;
    }
    let (rows, columns) = (first(by_waiting), first(by_awaited));
    let row = |&row: &u32| {
        let cell = |&column: &u32| pairs.get(&(row, column)).copied().unwrap_or(0);
        columns.iter().map(cell).collect::<Vec<_>>()
    };
    json!({"rows": rows, "columns": columns, "sums": rows.iter().map(row).collect::<Vec<_>>()})
}

/// At most so many points of a curve, of each stretch the highest, and its end.
fn thinned(points: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let stretch = points.len().div_ceil(POINTS_MAX).max(1);
    let highest = |chunk: &[(u64, u64)]| chunk.iter().copied().max_by_key(|&(_, bytes)| bytes);
    points.chunks(stretch).filter_map(highest).chain(points.last().copied()).collect()
}
