//! `veriep compare`: a result against the reference, or against another result.

use crate::cli::CompareArgs;
use crate::report::{Report, columns, pairs};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use veriep_case::case;
use veriep_case::error::{Error, shown};
use veriep_case::store::{Tensor, TensorFile};
use veriep_case::tolerance::Judged;
use veriep_case::verdict::Verdict;
use veriep_group::compared::{Asked, One, compared, is_output, parts, read};
use veriep_group::expected::Expected;

#[derive(Serialize)]
struct Summary<'a> {
    ok: bool,
    expected: String,
    result: String,
    tensors: &'a [One],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    not_compared: &'a [String],
}

pub(super) fn run(args: &CompareArgs, report: &mut Report) -> Result<(), Error> {
    if args.result.is_dir() {
        return Err(Error::file(&args.result, "a folder: the case goes first, then the result"));
    }
    let result = TensorFile::open(&args.result)?;
    let asked = Asked {
        ranks: args.rank.map_or_else(|| args.asked.ranks.clone(), |rank| vec![rank]),
        ..args.asked.asked()
    };
    let compared = if args.expected.is_dir() {
        let mut opened = case::open(&args.expected)?;
        args.set.iter().try_for_each(|assignment| opened.config.set(assignment))?;
        let case = opened.for_oracle(&args.expected).load(&args.expected)?;
        let expected = Expected::of_folder(&case, &args.expected)?;
        let expected = expected.tensors()?;
        let mut result = of_ranks_expected(result, args.rank, &expected)?;
        compared(&asked, &expected, &mut result)?
    } else {
        if let Some(assignment) = args.set.first() {
            let seen = shown(assignment);
            return Err(Error::file(&args.expected, format!("--set {seen}: a result has no configuration")));
        }
        let file = TensorFile::open(&args.expected)?;
        let expected = read(match args.rank {
            Some(rank) => of_rank(file, rank)?,
            None => file,
        })?;
        if expected.is_empty() {
            return Err(Error::file(&args.expected, "has no tensors: must have those to compare with"));
        }
        let mut result = of_ranks_expected(result, args.rank, &expected)?;
        compared(&asked, &expected, &mut result)?
            .with_itself(case::is_same_file(&args.expected, &args.result))
    };
    let told = Summary {
        ok: compared.judgement.verdict() == Verdict::Yes,
        expected: named(&args.expected),
        result: args.result.display().to_string(),
        tensors: &compared.tensors,
        not_compared: &compared.not_compared,
    };
    report.judge(&compared.judgement, &told, table)
}

/// Names the tensors of a result as those that are expected: if they have no rank in their names, as of the one that is asked
/// for, or of the only one that is expected.
fn of_ranks_expected(
    result: TensorFile,
    asked: Option<u32>,
    expected: &[Tensor<'_>],
) -> Result<TensorFile, Error> {
    let ranks: BTreeSet<_> = expected.iter().filter_map(|tensor| parts(&tensor.name).0).collect();
    let names = result.names();
    let has_rank = names.iter().any(|name| parts(name).0.is_some());
    match (asked, ranks.first()) {
        (Some(rank), _) => of_rank(result, rank),
        (None, Some(&rank)) if !has_rank && ranks.len() == 1 => of_rank(result, rank),
        (None, Some(_)) if !has_rank && names.iter().any(|name| is_output(name)) => {
            let what = "its tensors have no rank0. or the like before their names; hint: --rank N if they are of one rank";
            Err(Error::file(result.path(), what))
        }
        _ => Ok(result),
    }
}

/// Names the tensors without a rank in their names as those of a rank.
fn of_rank(file: TensorFile, rank: u32) -> Result<TensorFile, Error> {
    file.renamed(|name| match parts(name) {
        (None, _) => format!("rank{rank}.{name}"),
        _ => name.to_owned(),
    })
}

/// The name of what is expected, and whether that is what combine alone makes of rows in a file.
fn named(expected: &Path) -> String {
    let returned = case::returned_file(expected).ok().flatten();
    match returned.as_deref().and_then(Path::file_name) {
        Some(name) => format!("{}, combine of the rows in {}", expected.display(), name.display()),
        None => expected.display().to_string(),
    }
}

/// The tensors of all ranks by their names.
fn table(compared: &Summary<'_>) -> String {
    let mut kinds: BTreeMap<&str, (usize, Judged)> = BTreeMap::new();
    for one in compared.tensors {
        let (judged, padding) = (&one.judged, one.padding.as_ref());
        let (ranks, sum) = kinds.entry(&one.name).or_default();
        *ranks += usize::from(one.rank.is_some());
        sum.compared += judged.compared + padding.map_or(0, |padding| padding.compared);
        sum.wrong += one.wrong_values();
        let largest = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        sum.max_abs = largest(sum.max_abs, judged.max_abs);
        sum.max_rel = largest(sum.max_rel, judged.max_rel);
        sum.max_ulp = sum.max_ulp.max(judged.max_ulp);
    }
    let or_dash = |number: Option<f64>| match number {
        Some(0.0) => "0".to_owned(),
        Some(number) => format!("{number:.3e}"),
        None => "-".to_owned(),
    };
    let row = |(name, (ranks, sum)): (&str, (usize, Judged))| {
        let mut row =
            vec![shown(name).to_owned(), ranks.to_string(), sum.compared.to_string(), sum.wrong.to_string()];
        row.extend([or_dash(sum.max_abs), or_dash(sum.max_rel)]);
        row.push(sum.max_ulp.map_or_else(|| "-".to_owned(), |ulp| ulp.to_string()));
        row
    };
    // What is wrong first: a short table shows that much.
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (_, sum))| core::cmp::Reverse(sum.wrong));
    let rows: Vec<_> = kinds.into_iter().map(row).collect();
    let about = pairs(&[
        ("tensors", compared.tensors.len().to_string()),
        ("wrong", compared.tensors.iter().filter(|one| !one.is_right()).count().to_string()),
        ("expected", compared.expected.clone()),
        ("result", compared.result.clone()),
    ]);
    let header = ["tensor", "ranks", "values", "wrong", "max abs", "max rel", "max steps"];
    format!("{}\n\n{about}", columns(&header, &rows))
}
