//! A timeline in Chrome's trace-event form, for Perfetto and `chrome://tracing`: a process for each rank, in it a thread for
//! each core, for the agent and for each port each way.

use super::core_of;
use super::timeline::{Direction, Timeline};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use veriep_case::atomic_file::write_atomically;
use veriep_case::error::Error;
use veriep_core::sim::Actor;

/// The thread of an agent; ports are behind it.
const AGENT: u32 = 1000;

/// A part of the critical path.
#[derive(Clone, Debug)]
pub struct Part {
    /// From then on, in units of the timeline.
    pub from: u64,
    pub to: u64,
    /// The rank that was busy, or the one that something was on its way to.
    pub rank: u32,
    /// Its core, or `None` for its agent and for what is on its way.
    pub core: Option<u32>,
    pub what: &'static str,
}

fn thread(actor: Actor) -> u32 {
    core_of(actor).unwrap_or(AGENT)
}

fn of_port(port: u32, direction: Direction) -> u32 {
    AGENT + 1 + 2 * port + direction as u32
}

/// Writes a timeline, with the critical path above it. Returns the number of entries.
pub fn write(path: &Path, timeline: &Timeline, critical: &[Part]) -> Result<usize, Error> {
    let mut entries = 0;
    write_atomically(path, |file| {
        file.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        each(timeline, critical, &mut |event| {
            if entries > 0 {
                file.write_all(b",\n")?;
            }
            entries += 1;
            serde_json::to_writer(&mut *file, &event).map_err(io::Error::from)
        })?;
        file.write_all(b"\n]}\n")
    })?;
    Ok(entries)
}

/// Tells every event of the trace.
fn each(
    timeline: &Timeline,
    critical: &[Part],
    tell: &mut impl FnMut(Value) -> io::Result<()>,
) -> io::Result<()> {
    let us = |time| timeline.unit.us(time);
    let span = |of: (u32, u32), name: &str, (from, to): (u64, u64), category: &str, args: Value| {
        json!({
            "ph": "X", "pid": of.0, "tid": of.1, "name": name, "cat": category,
            "ts": us(from), "dur": us(to) - us(from), "args": args,
        })
    };
    names(timeline, critical, tell)?;
    // Ranks are processes; the critical path is one behind them.
    let above = timeline.lanes.keys().map(|actor| actor.member.0 + 1).max().unwrap_or(0);
    for part in critical.iter().rev() {
        let name = format!("rank {}: {}", part.rank, part.what);
        let args = json!({"rank": part.rank, "core": part.core});
        tell(span((above, 0), &name, (part.from, part.to), "critical path", args))?;
    }
    for (&actor, lane) in &timeline.lanes {
        let of = (actor.member.0, thread(actor));
        for operator in &lane.operators {
            let args = json!({"batch": operator.batch});
            tell(span(of, operator.name, (operator.from, operator.to), "operator", args))?;
        }
        for phase in &lane.phases {
            let args = json!({"batch": phase.batch});
            tell(span(of, phase.name, (phase.from, phase.to), "phase", args))?;
        }
        for wait in &lane.waits {
            let whom = wait.whom.map(|rank| rank.0);
            let name = whom.map_or_else(|| wait.what.to_owned(), |rank| format!("waits for rank {rank}"));
            let args = json!({"for": whom, "what": wait.what});
            tell(span(of, &name, (wait.from, wait.to), "wait", args))?;
        }
    }
    for busy in &timeline.links {
        let name = ["dispatch", "combine"][usize::from(busy.operator)];
        let of = (busy.rank, of_port(busy.port, busy.direction));
        tell(span(of, name, (busy.from, busy.to), "link", json!({"bytes": busy.bytes})))?;
    }
    for (id, flow) in timeline.flows.iter().enumerate() {
        for (ph, (actor, at)) in [("s", flow.from), ("f", flow.to)] {
            let mut event = json!({
                "ph": ph, "id": id, "name": "flag", "cat": "flag",
                "pid": actor.member.0, "tid": thread(actor), "ts": us(at),
            });
            if ph == "f" {
                // It binds to the span that it ends in.
                event["bp"] = json!("e");
                event["args"] = json!({"region": flow.at.region.name(), "offset": flow.at.offset});
            }
            tell(event)?;
        }
    }
    Ok(())
}

/// What processes and threads are called.
fn names(
    timeline: &Timeline,
    critical: &[Part],
    tell: &mut impl FnMut(Value) -> io::Result<()>,
) -> io::Result<()> {
    let process = |pid: u32, name: &str, order: i64, tell: &mut dyn FnMut(Value) -> io::Result<()>| {
        tell(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}))?;
        tell(json!({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}}))
    };
    let thread_name = |pid: u32, tid: u32, name: &str| json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}});
    let mut last = None;
    for &actor in timeline.lanes.keys() {
        let rank = actor.member.0;
        if last.replace(rank) != Some(rank) {
            process(rank, &format!("rank {rank}"), rank.into(), tell)?;
        }
        let name = core_of(actor).map_or_else(|| "agent".to_owned(), |core| format!("core {core}"));
        tell(thread_name(rank, thread(actor), &name))?;
    }
    let mut ports: Vec<_> =
        timeline.links.iter().map(|busy| (busy.rank, busy.port, busy.direction)).collect();
    ports.sort_unstable();
    ports.dedup();
    for (rank, port, direction) in ports {
        let name = format!("port {port} {}", direction.name());
        tell(thread_name(rank, of_port(port, direction), &name))?;
    }
    if !critical.is_empty() {
        process(last.map_or(0, |rank| rank + 1), "critical path", -1, tell)?;
    }
    Ok(())
}
