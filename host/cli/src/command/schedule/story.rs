//! The shortest story into trouble as a page: cores and memories of ranks are lanes, what is done takes a unit each, in order, and
//! goes from a core to a memory or the other way.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use veriep_case::error::Error;
use veriep_trace::events::page::{self, Lane, Names};
use veriep_verify::schedule::Line;

/// Where something is drawn: at a rank its cores come first, then its agent, then its memory.
type Place = (u32, u32);

const AGENT: u32 = u32::MAX - 1;
const MEMORY: u32 = u32::MAX;

/// Writes a story that ends in `violation`.
pub(super) fn write(path: &Path, title: &str, story: &[Line], violation: &str) -> Result<(), Error> {
    page::write_data(path, &data(title, story, violation))
}

fn name((_, lane): Place) -> String {
    match lane {
        AGENT => "agent".to_owned(),
        MEMORY => "memory".to_owned(),
        core => format!("core {core}"),
    }
}

fn data(title: &str, story: &[Line], violation: &str) -> Value {
    let mut names = Names::default();
    let mut lanes: BTreeMap<Place, Vec<Value>> = BTreeMap::new();
    let mut flows = Vec::new();
    let (mut now, mut last) = (0, (0, 0));
    for Line { who, did } in story {
        // What all ranks do is told of the first.
        let actor = (who.rank.unwrap_or(0), who.core.unwrap_or(if who.rank.is_some() { AGENT } else { 0 }));
        for told in did {
            let text = format!("{} ({})", told.text, who.words.trim_end_matches(": "));
            let (number, end) = (names.number(&text), now + 1);
            lanes.entry(actor).or_default().push(json!([now, end, number, 0]));
            if let Some(rank) = told.memory {
                let memory = (rank, MEMORY);
                lanes.entry(memory).or_default().push(json!([now, end, number, 0]));
                let (from, to) = if told.is_read { (memory, actor) } else { (actor, memory) };
                flows.push(json!([[from.0, name(from), now], [to.0, name(to), end]]));
            }
            (now, last) = (end, actor);
        }
    }
    let alarm = names.number(violation);
    lanes.entry(last).or_default().push(json!([now, now + 1, alarm, 0]));
    let mut ranks: Vec<_> = lanes.keys().map(|place| place.0).collect();
    ranks.dedup();
    let lane = |(place, phases): (Place, Vec<Value>)| Lane {
        rank: place.0,
        name: name(place),
        kind: if place.1 == MEMORY { "memory" } else { "core" },
        operators: Vec::new(),
        phases,
        waits: Vec::new(),
    };
    json!({
        "title": title,
        "facts": [["ends in", violation]],
        "perUs": 1,
        "end": now + 1,
        "ranks": ranks.len(),
        "drawn": ranks,
        "critical": [],
        "lanes": lanes.into_iter().map(lane).collect::<Vec<_>>(),
        "ports": [],
        "use": null,
        "path": [],
        "flows": flows,
        "matrix": {"rows": [], "columns": [], "sums": []},
        "windows": [],
        "names": names.all(),
        "alarm": alarm,
        "story": story.iter().map(ToString::to_string).chain([violation.to_owned()]).collect::<Vec<_>>(),
    })
}
