//! `veriep conform`: whether a record of events keeps the contract.

use crate::cli::ConformArgs;
use crate::conform::{Broken, Trace, conform};
use crate::error::{Error, one_line};
use crate::hints;
use crate::report::{Report, pairs};
use serde::Serialize;
use veriep_core::shape::{Given, Limits};

#[derive(Serialize)]
struct Verdict {
    ok: bool,
    trace: String,
    events: usize,
    broken: Option<Broken>,
}

pub(super) fn run(args: &ConformArgs, report: &mut Report) -> Result<(), Error> {
    let trace = Trace::open(&args.trace)?;
    let name = args.trace.display().to_string();
    let shape = hints::shape(&trace.config, Given::empty(), Limits::None, &name)?;
    let broken = conform(&trace, &shape)?;
    let wrong =
        broken.as_ref().map(|broken| Error::Wrong(one_line(&format!("{name}: {broken}: {}", broken.event))));
    let verdict = Verdict { ok: broken.is_none(), trace: name, events: trace.events.len(), broken };
    let table = |verdict: &Verdict| {
        pairs(&[
            ("trace", verdict.trace.clone()),
            ("events", verdict.events.to_string()),
            ("keeps the contract", verdict.ok.to_string()),
        ])
    };
    report.judge(&verdict, table, wrong.map_or(Ok(()), Err))
}
