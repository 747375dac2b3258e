//! `veriep conform`: whether a record of events keeps the contract.

use crate::cli::ConformArgs;
use crate::report::{Report, pairs};
use serde::Serialize;
use veriep_case::error::{Error, one_line};
use veriep_case::global_rank;
use veriep_case::hints;
use veriep_case::verdict::Judgement;
use veriep_core::shape::{Given, Limits, Shape};
use veriep_trace::conform::{Broken, Conformed, Trace, conform};

#[derive(Serialize)]
struct Summary {
    ok: bool,
    trace: String,
    events: usize,
    /// Operators that cores have ended.
    operators: usize,
    broken: Option<Broken>,
    /// Why the record is not that of a whole run.
    lacks: Vec<String>,
}

pub(super) fn run(args: &ConformArgs, report: &mut Report) -> Result<(), Error> {
    let trace = Trace::open(&args.trace)?;
    let name = args.trace.display().to_string();
    let shape = hints::shape(&trace.config, Given::empty(), Limits::None, &name)?;
    let conformed = conform(&trace, &shape)?;
    let judgement = judgement(&name, &shape, trace.events.len(), &conformed);
    let Conformed { broken, ended, lacks } = conformed;
    let summary = Summary {
        ok: broken.is_none() && lacks.is_empty(),
        trace: name,
        events: trace.events.len(),
        operators: ended,
        broken,
        lacks,
    };
    report.judge(&judgement, &summary, table)
}

fn judgement(name: &str, shape: &Shape, events: usize, conformed: &Conformed) -> Judgement {
    let (ranks, cores) = (global_rank::count(shape), shape.aiv_num());
    let Conformed { broken, ended, lacks } = conformed;
    let run = format!("this run of {ranks} ranks x {cores} cores, {ended} operators, {events} events");
    if let Some(broken) = broken {
        let line = one_line(&format!("{name}: {broken}: {}", broken.event));
        return Judgement::no(
            format!("{run}, breaks the contract at line {}", broken.line),
            Error::Wrong(line),
        );
    }
    if lacks.is_empty() {
        return Judgement::yes(format!("{run}, keeps the contract; no other run is judged"));
    }
    let bound = format!("nothing breaks the contract as far as the record goes: {run}");
    let missing = lacks.join("; ");
    Judgement::unknown(bound, [format!("the record of a whole run: {missing}")])
}

fn table(summary: &Summary) -> String {
    let broken = summary.broken.as_ref().map(|broken| ("broken", broken.to_string()));
    let about = [
        ("trace", summary.trace.clone()),
        ("events", summary.events.to_string()),
        ("operators", summary.operators.to_string()),
    ];
    pairs(&broken.into_iter().chain(about).collect::<Vec<_>>())
}
