//! `veriep diagnose`: asks `veriep_plan::diagnose` about dumps, and prints what it says.

use super::source::{Source, resolve};
use crate::cli::{ConfigArgs, DiagnoseArgs};
use crate::report::{Report, columns, pairs};
use veriep_case::config::FILE_NAME;
use veriep_case::error::Error;
use veriep_plan::diagnose::{Diagnosis, PLACED_BY, Rank, Request, Suspect, diagnose, must_agree};

/// Waits of a rank that the table names; the JSON report has all.
const NAMED: usize = 3;

pub(super) fn run(args: &DiagnoseArgs, report: &mut Report) -> Result<(), Error> {
    if !args.folder.is_dir() {
        return Err(Error::file(&args.folder, "is no folder: must have rank0.state and so on"));
    }
    let Source { config, name, .. } = configuration(args)?;
    let (judgement, diagnosis) = diagnose(&Request {
        folder: args.folder.clone(),
        from: args.from,
        config,
        name,
        case: args.case.clone(),
        receive: args.receive,
        experts: args.experts,
        flags: args.flags,
        stage: args.stage,
        slots: args.slots,
        port_offset: args.port_offset,
        in_flight: args.in_flight,
        halves: args.halves,
    })?;
    report.judge(&judgement, &diagnosis, table)
}

/// The configuration of the folder, and what the arguments say of keys that it leaves out.
fn configuration(args: &DiagnoseArgs) -> Result<Source, Error> {
    let file = args.folder.join(FILE_NAME);
    let of_folder = ConfigArgs {
        release: None,
        path: None,
        preset: None,
        config: file.exists().then(|| file.clone()),
        set: Vec::new(),
    };
    let is_named = args.config.is_some() || args.preset.is_some();
    let source = resolve(&ConfigArgs {
        preset: args.preset.clone(),
        config: args.config.clone().or_else(|| (!is_named).then(|| file.clone())),
        set: args.set.clone(),
        ..of_folder.clone()
    })?;
    // A preset states every key. By a default that is not the job's, words are looked for where there are none.
    if args.preset.is_none()
        && let Some(key) = PLACED_BY.into_iter().find(|key| !source.config.origin.has(key))
    {
        let what = format_args!(
            "{key}: missing: must be stated, since places depend on it; hint: --set {key}=VALUE"
        );
        return Err(Error::file(args.config.as_deref().unwrap_or(&file), what));
    }
    if of_folder.config.is_some() && (is_named || !args.set.is_empty()) {
        must_agree(&file, &resolve(&of_folder)?.config.stated()?, &source.config.table()?)?;
    }
    Ok(source)
}

fn table(diagnosis: &Diagnosis) -> String {
    let row = |rank: &Rank| {
        let words: Vec<_> = diagnosis.missing.iter().filter(|word| word.rank == rank.rank).collect();
        let mut waits: Vec<_> = words.iter().take(NAMED).map(|word| word.what.clone()).collect();
        if words.len() > NAMED {
            waits.push(format!("and {} more", words.len() - NAMED));
        }
        if !rank.cores_behind.is_empty() {
            waits.push(format!("cores that have not begun it: {:?}", rank.cores_behind));
        }
        let number = rank.number.map_or_else(String::new, |number| format!(" {number}"));
        vec![
            rank.rank.to_string(),
            rank.operator.map_or_else(|| "-".to_owned(), |operator| format!("{operator}{number}")),
            rank.phase.unwrap_or("-").to_owned(),
            waits.join("; "),
        ]
    };
    let suspect = |rank: &Rank| diagnosis.suspects.iter().any(|suspect| suspect.rank == rank.rank);
    // A short table shows those that matter.
    let mut ranks: Vec<_> = diagnosis.ranks.iter().collect();
    ranks.sort_by_key(|rank| {
        let is_quiet = rank.waits_for.is_empty() && rank.cores_behind.is_empty();
        (!diagnosis.culprits.contains(&rank.rank), !suspect(rank), is_quiet)
    });
    let rows: Vec<_> = ranks.into_iter().map(row).collect();
    let suspects = diagnosis.suspects.iter();
    let suspects: String =
        suspects.map(|Suspect { rank, reason }| format!("suspect  rank {rank}: {reason}\n")).collect();
    let about = pairs(&[
        ("config", diagnosis.config.clone()),
        ("from", diagnosis.from.clone()),
        ("unknown", diagnosis.unknown.join("; ")),
    ]);
    format!("{suspects}{}\n\n{about}", columns(&["rank", "operator", "phase", "missing"], &rows))
}
