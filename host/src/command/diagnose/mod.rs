//! `veriep diagnose`: how far the ranks of a group that hangs are, what they lack, and who owes it, from dumps of their memory.

mod cann;
mod owes;

pub use cann::Release;

use super::source::{Source, resolve};
use crate::case;
use crate::cli::{ConfigArgs, DiagnoseArgs};
use crate::config::FILE_NAME;
use crate::error::Error;
use crate::hints;
use crate::report::{Report, columns, pairs};
use owes::{Lack, Missing, Seen};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use veriep_core::layout::state::Operator;
use veriep_core::shape::{Given, Limits, Protocol, Shape};
use veriep_core::units::RankId;

/// Waits of a rank that the table names; the JSON report has all.
const NAMED: usize = 3;

#[derive(Serialize)]
struct Diagnosis {
    ok: bool,
    config: String,
    from: &'static str,
    ranks: Vec<Rank>,
    missing: Vec<Word>,
    culprits: Vec<u32>,
    /// What memory does not tell.
    unknown: Vec<String>,
}

/// How far a rank is. What the dump does not tell is null.
#[derive(Serialize)]
struct Rank {
    rank: u32,
    operator: Option<&'static str>,
    number: Option<u64>,
    phase: Option<&'static str>,
    dispatches: Option<u64>,
    combines: Option<u64>,
    /// Cores that have begun fewer operators than others of the rank.
    cores_behind: Vec<u32>,
    waits_for: Vec<Wait>,
}

/// What a core waits for.
#[derive(Serialize)]
struct Wait {
    core: u32,
    operator: &'static str,
    number: u64,
    what: &'static str,
    source: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expert: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u32>,
}

/// A word that a rank lacks.
#[derive(Serialize)]
struct Word {
    rank: u32,
    source: Option<u32>,
    what: String,
}

pub(super) fn run(args: &DiagnoseArgs, report: &mut Report) -> Result<(), Error> {
    if !args.folder.is_dir() {
        return Err(Error::file(&args.folder, "is no folder: must have rank0.state and so on"));
    }
    let (shape, name) = shape(args)?;
    let case = args.case.as_deref().map(case::load).transpose()?;
    if case.as_ref().is_some_and(|case| case.shape != shape) {
        return Err(Error::Request("--case: is of another configuration than the dumps".to_owned()));
    }
    let ranks = (0..shape.ep_world_size()).map(|rank| {
        let path = args.folder.join(format!("rank{rank}.state"));
        match fs::read(&path) {
            Ok(bytes) => {
                cann::read(&bytes, (&shape, RankId(rank)), args.from, args.in_flight.into(), case.as_ref())
                    .map(Some)
                    .map_err(|why| Error::file(&path, &why))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file(&path, format!("cannot read: {error}"))),
        }
    });
    let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    if ranks.iter().all(Option::is_none) {
        return Err(Error::file(&args.folder, "has no dump: must have rank0.state and so on"));
    }
    let culprits = owes::culprits(&ranks);
    let diagnosis = Diagnosis {
        ok: culprits.is_empty() && ranks.iter().flatten().all(|seen| seen.waits.is_empty()),
        config: name,
        from: args.from.name(),
        missing: (0..).zip(&ranks).flat_map(|(rank, seen)| words(rank, seen.as_ref())).collect(),
        unknown: unknown(&ranks, case.is_some()),
        culprits: culprits.iter().copied().collect(),
        ranks: (0..)
            .zip(&ranks)
            .map(|(rank, seen)| Rank::of(rank, seen.as_ref(), args.in_flight.into()))
            .collect(),
    };
    let verdict = verdict(&diagnosis, &ranks, &culprits);
    report.judge(&diagnosis, table, verdict)
}

/// The shape of the group, from the folder's own configuration unless another one is named.
fn shape(args: &DiagnoseArgs) -> Result<(Shape, String), Error> {
    let named = args.config.is_some() || args.preset.is_some();
    let config = ConfigArgs {
        path: None,
        preset: args.preset.clone(),
        config: args.config.clone().or_else(|| (!named).then(|| args.folder.join(FILE_NAME))),
        set: args.set.clone(),
    };
    let Source { config, name, .. } = resolve(&config)?;
    let shape = hints::shape(&config, Given::empty(), Limits::None, &name)?;
    let why = match shape.protocol() {
        Protocol::FullmeshV1 if shape.tp_world_size() < 2 => return Ok((shape, name)),
        Protocol::FullmeshV1 => "tp_world_size = 2: flags of a TP domain are not read: must be 0 or 1",
        Protocol::FullmeshV2 => {
            "comm_alg = fullmesh_v2: its flags lie among the rows, in no dump of a state region: must be \"\""
        }
        _ => "product = a2: these operators are of A3: must be a3",
    };
    Err(Error::Request(format!("{name}: {why}")))
}

/// What every dump leaves open, and these ones.
fn unknown(ranks: &[Option<Seen>], has_case: bool) -> Vec<String> {
    let mut unknown = vec!["when a rank stopped, and whether its cores are alive".to_owned()];
    let absent: Vec<_> =
        (0..).zip(ranks).filter(|(_, seen)| seen.is_none()).map(|(rank, _): (u32, _)| rank).collect();
    if !absent.is_empty() {
        unknown.push(format!("ranks without a dump: {absent:?}"));
    }
    let lacks = || ranks.iter().flatten().flat_map(|seen| &seen.waits);
    if !has_case && lacks().any(|lack| lack.what.source().is_none()) {
        unknown.push("which rank returns a result, and which tokens are active: --case has them".to_owned());
    }
    unknown
}

/// The words that a rank lacks, each once.
fn words(rank: u32, seen: Option<&Seen>) -> Vec<Word> {
    let lacks = seen.into_iter().flat_map(|seen| &seen.waits);
    lacks.map(|lack| Word { rank, source: lack.what.source(), what: said(*lack) }).collect()
}

fn said(lack: Lack) -> String {
    let number = lack.number;
    match lack.what {
        Missing::Flag { source, expert } => {
            format!("dispatch {number}: flag of rank {source} for local expert {expert}")
        }
        Missing::Result { token, k, source } => {
            let source = source.map_or_else(String::new, |source| format!(" of rank {source}"));
            format!("combine {number}: result{source} for token {token}, k = {k}")
        }
        Missing::Tokens { tokens } => format!("combine {number}: all results of {tokens} tokens"),
    }
}

impl Wait {
    const fn of(Lack { core, number, what }: Lack) -> Self {
        let operator = cann::name(what.operator());
        let source = what.source();
        let wait = Self {
            core,
            operator,
            number,
            what: "",
            source,
            expert: None,
            token: None,
            k: None,
            tokens: None,
        };
        match what {
            Missing::Flag { expert, .. } => Self { what: "flag", expert: Some(expert), ..wait },
            Missing::Result { token, k, .. } => {
                Self { what: "result", token: Some(token), k: Some(k), ..wait }
            }
            Missing::Tokens { tokens } => Self { what: "results", tokens: Some(tokens), ..wait },
        }
    }
}

impl Rank {
    fn of(rank: u32, seen: Option<&Seen>, in_flight: u64) -> Self {
        let unseen = Self {
            rank,
            operator: None,
            number: None,
            phase: None,
            dispatches: None,
            combines: None,
            cores_behind: Vec::new(),
            waits_for: Vec::new(),
        };
        let Some(seen) = seen else { return unseen };
        let [dispatches, combines] = seen.begun;
        // Between the first and the last batch in flight either kind may have begun last.
        let last = match (dispatches, seen.waits.last()) {
            (0, _) => None,
            (_, Some(lack)) => Some((lack.what.operator(), lack.number)),
            _ if dispatches == combines => Some((Operator::Combine, combines)),
            _ if dispatches == combines + in_flight => Some((Operator::Dispatch, dispatches)),
            _ => None,
        };
        let phase = match last {
            Some((Operator::Dispatch, _)) if !seen.waits.is_empty() => "waits for flags",
            Some((Operator::Combine, _)) if !seen.waits.is_empty() => "waits for results",
            Some((Operator::Dispatch, _)) => "has all flags",
            Some((Operator::Combine, _)) => "has all results",
            None => "has begun nothing",
        };
        Self {
            operator: last.map(|(operator, _)| cann::name(operator)),
            number: last.map(|(_, number)| number),
            phase: (last.is_some() || dispatches == 0).then_some(phase),
            dispatches: Some(dispatches),
            combines: Some(combines),
            cores_behind: seen.behind.clone(),
            waits_for: seen.waits.iter().copied().map(Wait::of).collect(),
            ..unseen
        }
    }
}

/// Who owes something, as an error.
fn verdict(diagnosis: &Diagnosis, ranks: &[Option<Seen>], culprits: &BTreeSet<u32>) -> Result<(), Error> {
    if diagnosis.ok {
        return Ok(());
    }
    let lacks = || ranks.iter().flatten().flat_map(|seen| &seen.waits);
    let of = |&rank: &u32| {
        let own: Vec<_> = lacks().filter(|lack| lack.what.source() == Some(rank)).collect();
        let first = own.first().copied().or_else(|| lacks().find(|lack| lack.what.source().is_none()));
        let begun = first.zip(ranks[rank as usize].as_ref()).map_or_else(String::new, |(lack, seen)| {
            let operator = lack.what.operator();
            let has = if seen.has_begun(operator, lack.number) { "has begun" } else { "has not begun" };
            format!(", {has} {} {}", cann::name(operator), lack.number)
        });
        match own.len() {
            0 => format!("rank {rank}{begun}"),
            words => format!("rank {rank} owes {words} words{begun}"),
        }
    };
    let line = if culprits.is_empty() {
        format!("{} words are missing, and no dump shows who owes them", diagnosis.missing.len())
    } else {
        culprits.iter().map(of).collect::<Vec<_>>().join("; ")
    };
    Err(Error::NoProgress { line, missing: Vec::new() })
}

fn table(diagnosis: &Diagnosis) -> String {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let row = |rank: &Rank| {
        let words: Vec<_> = diagnosis.missing.iter().filter(|word| word.rank == rank.rank).collect();
        let mut waits: Vec<_> = words.iter().take(NAMED).map(|word| word.what.clone()).collect();
        if words.len() > NAMED {
            waits.push(format!("and {} more", words.len() - NAMED));
        }
        if !rank.cores_behind.is_empty() {
            waits.push(format!("cores that have not begun it: {:?}", rank.cores_behind));
        }
        vec![
            rank.rank.to_string(),
            number(rank.dispatches),
            number(rank.combines),
            rank.phase.unwrap_or("-").to_owned(),
            waits.join("; "),
        ]
    };
    let rows: Vec<_> = diagnosis.ranks.iter().map(row).collect();
    let about = pairs(&[
        ("config", diagnosis.config.clone()),
        ("from", diagnosis.from.to_owned()),
        (
            "owe",
            if diagnosis.culprits.is_empty() {
                "nobody".to_owned()
            } else {
                format!("{:?}", diagnosis.culprits)
            },
        ),
        ("unknown", diagnosis.unknown.join("; ")),
    ]);
    format!("{about}\n\n{}", columns(&["rank", "dispatches", "combines", "phase", "missing"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(begun: [u64; 2], waits: &[(u64, Missing)]) -> Option<Seen> {
        let lack = |&(number, what)| Lack { core: 0, number, what };
        Some(Seen { begun, behind: Vec::new(), waits: waits.iter().map(lack).collect() })
    }

    const fn flag(source: u32) -> Missing {
        Missing::Flag { source, expert: 0 }
    }

    const fn result(source: Option<u32>) -> Missing {
        Missing::Result { token: 0, k: 0, source }
    }

    fn owe(ranks: &[Option<Seen>]) -> Vec<u32> {
        owes::culprits(ranks).into_iter().collect()
    }

    #[test]
    fn a_rank_that_lacks_words_of_an_earlier_operator_owes_nothing_later() {
        // Rank 1 has not begun dispatch 2, because combine 1 lacks a result of rank 2, which has begun it.
        let ranks = [seen([2, 1], &[(2, flag(1))]), seen([1, 1], &[(1, result(Some(2)))]), seen([1, 1], &[])];
        assert_eq!(owe(&ranks), [2]);
        // Without a dump of rank 2 nobody is known to owe.
        assert_eq!(owe(&[ranks[0].clone(), ranks[1].clone(), None]), [0; 0]);
    }

    #[test]
    fn a_rank_that_has_begun_owes_although_it_waits() {
        let ranks = [seen([1, 0], &[(1, flag(1))]), seen([1, 0], &[(1, flag(0))])];
        assert_eq!(owe(&ranks), [0, 1]);
        assert_eq!(owe(&[seen([1, 0], &[(1, flag(0))]), seen([1, 0], &[])]), [0]);
    }

    #[test]
    fn where_the_batch_is_unknown_the_ranks_that_are_behind_owe() {
        let lacks = seen([1, 1], &[(1, result(None))]);
        assert_eq!(owe(&[lacks.clone(), seen([1, 0], &[]), seen([1, 1], &[])]), [1]);
        assert_eq!(owe(&[lacks, seen([1, 0], &[(1, flag(2))]), seen([0, 0], &[])]), [2]);
    }

    #[test]
    fn nobody_owes_what_nobody_lacks() {
        assert_eq!(owe(&[seen([0, 0], &[]), seen([3, 2], &[]), None]), [0; 0]);
    }
}
