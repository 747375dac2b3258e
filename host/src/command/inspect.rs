//! `veriep inspect`: what the record of a group says, most of all of one that failed.

use super::record;
use crate::cli::InspectArgs;
use crate::driver::{Hang, Missing};
use crate::error::{self, Error};
use crate::events::page::About;
use crate::events::{Event, Unit, core_of};
use crate::group;
use crate::record::reader::Waiting;
use crate::record::{End, Process, Record, State};
use crate::report::{Report, columns, note, pairs};
use crate::world::{Gone, list};
use core::time::Duration;
use serde::Serialize;
use veriep_core::units::RankId;

/// Processes that a line names, and waits that the table shows; JSON has all.
const NAMED: usize = 4;
const SHOWN: usize = 16;

#[derive(Serialize)]
struct Inspected {
    processes: Vec<Told>,
    /// Who was gone first; several, if nobody has seen one go before the others.
    first: Vec<u32>,
    waits: Vec<Wait>,
    last: Vec<Event>,
    #[serde(skip)]
    place: String,
    #[serde(skip)]
    parent: Option<u32>,
}

#[derive(Serialize)]
struct Told {
    process: usize,
    pid: u32,
    host: String,
    ranks: Vec<u32>,
    state: &'static str,
    how: Option<String>,
    died_at_us: Option<u64>,
    #[serde(skip)]
    shown: &'static str,
}

/// What a core or agent waited for last.
#[derive(Serialize)]
struct Wait {
    process: usize,
    /// Of a core; what an agent waits for has the core 0.
    #[serde(flatten)]
    missing: error::Missing,
    phase: &'static str,
    since_us: u64,
    #[serde(skip)]
    wait: veriep_core::fabric::Wait,
}

pub(super) fn run(args: &InspectArgs, report: &mut Report) -> Result<(), Error> {
    let record = Record::open(&args.folder)?;
    let Some(about) = record.processes.first().map(|process| &process.about) else { return Ok(()) };
    let events = record.events();
    let title = format!("record {}", args.folder.display());
    let of_page = About { title, ..About::default() };
    record::tell(&args.record, &about.events, (Unit::Ns, about.cores), &events, &of_page)?;
    let elsewhere = about.processes.saturating_sub(record.processes.len());
    if elsewhere > 0 {
        note(&format!("note: {elsewhere} of {} processes have no file here", about.processes));
    }
    let inspected = Inspected {
        processes: record.processes.iter().map(told).collect(),
        first: record.first().iter().map(|process| process.pid).collect(),
        waits: record.processes.iter().flat_map(waits).collect(),
        last: events[events.len().saturating_sub(args.last)..].to_vec(),
        place: args.folder.display().to_string(),
        parent: record.processes.iter().find(|process| process.is_orphan).map(|process| process.about.parent),
    };
    report.conclude(&inspected, table, verdict(&record))
}

fn told(process: &Process) -> Told {
    let (state, shown) = match process.state {
        State::Ended(End::Well) => ("ended", "ended well"),
        State::Ended(End::Failed) => ("ended", "ended, and said why"),
        State::Ended(End::Stopped) => ("ended", "ended by its parent"),
        State::Gone if process.pid == 0 => ("gone", "gone before it was started"),
        State::Gone => ("gone", "gone"),
        State::Runs => ("unknown", "runs"),
        State::Unknown => ("unknown", "unknown: of another machine"),
    };
    Told {
        process: process.about.process,
        pid: process.pid,
        host: process.about.host.clone(),
        ranks: process.about.ranks.clone(),
        state,
        how: process.how.map(|how| how.to_string()),
        died_at_us: process.died_at_us,
        shown,
    }
}

fn waits(process: &Process) -> impl Iterator<Item = Wait> {
    process.waits.iter().map(|waiting| {
        let (round, operator) = place(waiting.doing.planned);
        let missing = error::Missing {
            rank: waiting.actor.member.0,
            core: core_of(waiting.actor).unwrap_or(0),
            round: round.unwrap_or(0),
            operator: operator.unwrap_or("dispatch"),
            ..group::of_wait(waiting.wait)
        };
        Wait {
            process: process.about.process,
            missing,
            phase: waiting.doing.phase,
            since_us: process.us(waiting.since),
            wait: waiting.wait,
        }
    })
}

/// The round and the operator.
fn place(planned: Option<veriep_core::sim::cluster::Planned>) -> (Option<usize>, Option<&'static str>) {
    planned.map(|planned| (planned.round, planned.operator.name())).unzip()
}

/// Somebody is gone: who, and which cores wait for it.
fn verdict(record: &Record) -> Result<(), Error> {
    let first = record.first();
    if first.is_empty() {
        return Ok(());
    }
    let gone: Vec<_> = record.gone().map(gone).collect();
    let is_gone = |rank: RankId| gone.iter().any(|gone| gone.ranks.contains(&rank.0));
    let misses = |waiting: &Waiting| {
        let planned = waiting.doing.planned?;
        let operator = 2 * planned.round + usize::from(!planned.is_dispatch());
        let core = veriep_core::units::CoreId(core_of(waiting.actor)?);
        Some(Missing { rank: waiting.actor.member, core, operator, wait: waiting.wait })
    };
    let waiting = record.processes.iter().filter(|process| process.state != State::Gone);
    let missing = waiting.flat_map(|process| process.waits.iter().filter_map(misses));
    let missing = missing.filter(|missing| missing.wait.source().is_some_and(is_gone)).collect();
    let hang = Hang { after: Duration::ZERO, missing };
    let mut line =
        first.iter().take(NAMED).map(|process| self::gone(process).line()).collect::<Vec<_>>().join("; ");
    if first.len() > NAMED {
        line += &format!("; and {} more, none of them seen before the others", first.len() - NAMED);
    }
    if let later @ 1.. = gone.len() - first.len() {
        line += &format!("; {later} more later");
    }
    if let Some(orphan) = first.iter().find(|process| process.is_orphan) {
        line += &format!(
            "; their parent (pid {}) is gone, too, and nobody has seen who was first",
            orphan.about.parent
        );
    }
    line += &hang.waits();
    Err(Error::Gone { line, gone, missing: Vec::new() })
}

fn gone(process: &Process) -> Gone {
    let (round, operator) = place(process.events.last().and_then(|event| event.doing.planned));
    Gone {
        process: process.about.process,
        pid: process.pid,
        host: process.about.host.clone(),
        ranks: process.about.ranks.clone(),
        how: process.how.map_or_else(|| "unknown".to_owned(), |how| how.to_string()),
        round,
        operator,
    }
}

fn table(inspected: &Inspected) -> String {
    let pids = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let mut about = vec![("record", inspected.place.clone())];
    if !inspected.first.is_empty() {
        about.push(("gone first", pids(&inspected.first)));
    }
    about.extend(inspected.parent.map(|pid| ("parent", format!("{pid}: gone"))));
    let processes: Vec<_> = inspected
        .processes
        .iter()
        .map(|told| {
            let how = told.how.clone().map(|how| format!(", {how}")).unwrap_or_default();
            let state = format!("{}{how}", told.shown);
            vec![told.process.to_string(), told.pid.to_string(), told.host.clone(), list(&told.ranks), state]
        })
        .collect();
    let of_wait = |wait: &Wait| {
        let missing = &wait.missing;
        vec![
            missing.rank.to_string(),
            missing.core.to_string(),
            format!("{} of round {}", missing.operator, missing.round),
            wait.phase.to_owned(),
            wait.wait.to_string(),
        ]
    };
    let waits: Vec<_> = inspected.waits.iter().take(SHOWN).map(of_wait).collect();
    let mut text =
        pairs(&about) + "\n\n" + &columns(&["process", "pid", "host", "ranks", "state"], &processes);
    if waits.is_empty() {
        text += "\n\nno core waits";
    } else {
        text += &format!("\n\n{}", columns(&["rank", "core", "in", "phase", "waits"], &waits));
        let more = inspected.waits.len() - waits.len();
        if more > 0 {
            text += &format!("\nand {more} more cores");
        }
    }
    if !inspected.last.is_empty() {
        let end = inspected.last.last().map_or(0, |event| event.time);
        let last: Vec<_> = inspected.last.iter().map(|event| row(event, end)).collect();
        let head = ["us before the end", "rank", "core", "in", "what", "peer", "place", "word"];
        text += &format!("\n\n{}", columns(&head, &last));
    }
    text
}

/// An event of the table.
fn row(event: &Event, end: u64) -> Vec<String> {
    let what = event.what;
    let operator = match place(event.doing.planned) {
        (Some(round), Some(operator)) => format!("{operator} of round {round}"),
        _ => String::new(),
    };
    let kind = format!("{:?}", event.kind).to_lowercase();
    vec![
        format!("{:.1}", (end - event.time) as f64 / 1e3),
        event.actor.member.to_string(),
        core_of(event.actor).map_or_else(|| "agent".to_owned(), |core| core.to_string()),
        operator,
        what.awaited.map_or(kind.clone(), |awaited| format!("{kind} {awaited}")),
        what.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        what.at.map(|at| format!("{} {}", at.region.name(), at.offset)).unwrap_or_default(),
        what.word.map(|word| format!("{word:#x}")).unwrap_or_default(),
    ]
}
