//! The record of events that a run is asked for.

use crate::cli::RecordArgs;
use crate::report::note;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use veriep_case::case::Case;
use veriep_case::config::Config;
use veriep_case::error::Error;
use veriep_core::protocol::{Choices, Stage};
use veriep_core::shape::Shape;
use veriep_trace::events::chrome::{self, Part};
use veriep_trace::events::lines::{Header, Lines};
use veriep_trace::events::log::Log;
use veriep_trace::events::page::{self, About};
use veriep_trace::events::timeline::Timeline;
use veriep_trace::events::{SCHEMA, Sinks, Unit};

/// Entries of a trace that a viewer shows without trouble.
const ENTRIES_MAX: usize = 1_000_000;

pub(super) struct Subject<'s> {
    pub(super) unit: Unit,
    pub(super) config: &'s Config,
    pub(super) shape: &'s Shape,
    pub(super) choices: Choices,
    pub(super) schedule: &'s str,
    pub(super) rounds: usize,
    /// How often a loop is taken in one go, if the schedule is one and the run has several goes.
    pub(super) chain: Option<usize>,
    /// Ranks that an elastic domain has lost, of which there are no events.
    pub(super) dead: Vec<u32>,
}

impl<'s> Subject<'s> {
    pub(super) fn of(
        case: &'s Case,
        unit: Unit,
        choices: Choices,
        (schedule, rounds): (&'s str, usize),
    ) -> Self {
        Self {
            unit,
            config: &case.config,
            shape: &case.shape,
            choices,
            schedule,
            rounds,
            chain: None,
            dead: case.dead(),
        }
    }

    pub(super) fn header(&self) -> Header {
        let Choices { order, flags, receive, stage, checked, slots } = self.choices;
        let mut options = json!({
            "order": format!("{order:?}").to_lowercase(),
            "flags": flags.name(),
            "receive": receive.name(),
            "stage": if stage == Stage::Two { 2 } else { 3 },
            "checked": checked,
            "slots": slots.bytes(),
            "port_offset": self.shape.port_offset(),
            "schedule": self.schedule,
            "rounds": self.rounds,
        });
        if let Some(chain) = self.chain {
            options["chain"] = chain.into();
        }
        if !self.dead.is_empty() {
            options["dead"] = self.dead.as_slice().into();
        }
        Header { schema: SCHEMA, unit: self.unit, config: self.config.clone(), options }
    }
}

/// Whether anything is to be recorded.
pub(super) const fn is_asked(args: &RecordArgs) -> bool {
    args.events.is_some() || args.trace.is_some() || args.html.is_some()
}

/// Begins the record; none if none is asked for.
pub(super) fn begin(args: &RecordArgs, subject: &Subject<'_>) -> Result<Option<Arc<Log>>, Error> {
    if !is_asked(args) {
        return Ok(None);
    }
    let sinks = sinks(args, &subject.header(), (subject.unit, subject.shape.aiv_num()))?;
    Ok(Some(Arc::new(Log::new(subject.unit, subject.shape.tp_world_size(), sinks))))
}

/// Ends the record. `add` completes what is drawn, and returns the critical path, if one is known, and what to say of it.
pub(super) fn end(
    args: &RecordArgs,
    log: Option<Arc<Log>>,
    add: impl FnOnce(&mut Timeline) -> (Vec<Part>, About),
) -> Result<(), Error> {
    log.map_or(Ok(()), |log| finish(args, log.finish(), add))
}

fn sinks(args: &RecordArgs, header: &impl Serialize, (unit, cores): (Unit, u32)) -> Result<Sinks, Error> {
    let lines = args.events.as_ref().map(|path| Lines::create(path, header)).transpose()?;
    let is_drawn = args.trace.is_some() || args.html.is_some();
    Ok(Sinks { lines, timeline: is_drawn.then(|| Timeline::new(unit, cores)) })
}

fn finish(
    args: &RecordArgs,
    Sinks { lines, timeline }: Sinks,
    add: impl FnOnce(&mut Timeline) -> (Vec<Part>, About),
) -> Result<(), Error> {
    lines.map_or(Ok(()), Lines::finish)?;
    let Some(mut timeline) = timeline else { return Ok(()) };
    timeline.close();
    let (critical, about) = add(&mut timeline);
    if let Some(file) = &args.trace {
        let entries = chrome::write(file, &timeline, &critical)?;
        if entries > ENTRIES_MAX {
            note(&format!(
                "note: --trace: {entries} entries, more than viewers like; --html picks the ranks that matter"
            ));
        }
    }
    if let Some(file) = &args.html {
        page::write(file, &timeline, &critical, &about)?;
    }
    Ok(())
}
