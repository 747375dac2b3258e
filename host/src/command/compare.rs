//! `veriep compare`: a result against the oracle, or against another result.

use crate::case;
use crate::cli::{Asked, CompareArgs};
use crate::error::{Error, shown};
use crate::expected::Expected;
use crate::report::{Report, columns, pairs};
use crate::store::{Tensor, TensorFile, convert_to};
use crate::tolerance::{Judged, Tolerance};
use crate::verdict::{Judgement, Verdict};
use crate::world;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use veriep_core::place::Tensor as Output;

/// Most differing tensors named.
const NAMED_MAX: usize = 20;

#[derive(Serialize)]
struct Summary<'a> {
    ok: bool,
    expected: String,
    result: String,
    tensors: &'a [One],
}

/// What became of a result.
#[derive(Debug)]
pub struct Compared {
    /// The bound names what was judged.
    pub judgement: Judgement,
    /// What became of each tensor that is asked for and there.
    pub tensors: Vec<One>,
}

/// What became of a tensor.
#[derive(Debug, Serialize)]
pub struct One {
    /// Without its rank.
    pub name: String,
    /// None of a name that no rank's tensor has.
    pub rank: Option<u32>,
    #[serde(flatten)]
    pub judged: Judged,
    /// What is wrong with the tensor as a whole: missing, of another type or shape, or one that must be absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The option that may have been meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

pub(super) fn run(args: &CompareArgs, report: &mut Report) -> Result<(), Error> {
    if args.result.is_dir() {
        return Err(Error::file(&args.result, "a folder: the case goes first, then the result"));
    }
    let mut result = TensorFile::open(&args.result)?;
    let compared = if args.expected.is_dir() {
        let mut opened = case::open(&args.expected)?;
        args.set.iter().try_for_each(|assignment| opened.config.set(assignment))?;
        let case = opened.load(&args.expected)?;
        compared(&args.asked, &Expected::of(&case).tensors()?, &mut result)?
    } else {
        if let Some(assignment) = args.set.first() {
            let seen = shown(assignment);
            return Err(Error::file(&args.expected, format!("--set {seen}: a result has no configuration")));
        }
        let expected = read(&args.expected)?;
        if expected.is_empty() {
            return Err(Error::file(&args.expected, "has no tensors: must have those to compare with"));
        }
        compared(&args.asked, &expected, &mut result)?
    };
    let told = Summary {
        ok: compared.judgement.verdict() == Verdict::Yes,
        expected: args.expected.display().to_string(),
        result: args.result.display().to_string(),
        tensors: &compared.tensors,
    };
    report.judge(&compared.judgement, &told, table)
}

impl One {
    fn new(name: &str) -> Self {
        let (rank, tensor) = parts(name);
        let name = if rank.is_some() { tensor } else { name }.to_owned();
        Self { name, rank, judged: Judged::default(), error: None, hint: None }
    }

    /// Whether nothing is wrong with it.
    pub const fn is_right(&self) -> bool {
        self.judged.wrong == 0 && self.error.is_none()
    }

    /// Its name, and the first thing that is wrong with it.
    pub fn line(&self) -> String {
        let name = self
            .rank
            .map_or_else(|| shown(&self.name).to_owned(), |rank| format!("rank{rank}.{}", self.name));
        let Judged { compared, wrong, first, max_abs, max_ulp, stray_row, .. } = &self.judged;
        match (&self.error, first.first()) {
            (Some(error), _) => format!("{name}: {error}"),
            (None, Some(first)) => {
                // Both are 0 where nothing that differs is finite.
                let most = max_abs.zip(*max_ulp).filter(|&(abs, _)| *wrong > 1 && abs > 0.0);
                let most =
                    most.map_or_else(String::new, |(abs, ulp)| format!(", by at most {abs:e}, {ulp} steps"));
                let stray = stray_row.zip(first.index.first());
                let stray = stray.map_or_else(String::new, |(from, row)| {
                    format!("; row {row} is the one that must be row {from}")
                });
                format!("{name}{} ({wrong} of {compared} values differ{most}{stray})", first.words)
            }
            (None, None) => name,
        }
    }

    fn line_with_hint(&self) -> String {
        self.hint.as_ref().map_or_else(|| self.line(), |option| format!("{}; hint: {option}", self.line()))
    }
}

/// What differs, as an error with a line for each tensor.
fn wrong(result: &Path, tensors: &[One]) -> Error {
    let wrong: Vec<_> = tensors.iter().filter(|one| !one.is_right()).collect();
    let mut lines: Vec<_> = wrong.iter().take(NAMED_MAX).map(|one| one.line_with_hint()).collect();
    if wrong.len() > NAMED_MAX {
        lines.push(format!("{} more tensors are wrong; --format json has them all", wrong.len() - NAMED_MAX));
    }
    let result = result.display();
    Error::Many(lines.into_iter().map(|line| Error::Wrong(format!("{result}: {line}"))).collect())
}

/// Judges what became of the tensors that are asked for. Each rank and tensor that is asked for by name must be among them.
fn judgement(asked: &Asked, result: &Path, tensors: &[One]) -> Judgement {
    let ranks: BTreeSet<_> = tensors.iter().filter_map(|one| one.rank).collect();
    let mut names = Vec::new();
    for one in tensors.iter().filter(|one| one.rank.is_some()) {
        if !names.contains(&one.name.as_str()) {
            names.push(one.name.as_str());
        }
    }
    let ranks: Vec<_> = ranks.into_iter().collect();
    let part = if asked.is_whole() {
        format!("all {} expected tensors of {}", tensors.len(), of_ranks(&ranks))
    } else {
        format!("{} of {} and nothing else", names.join(", "), of_ranks(&ranks))
    };
    let tail = if asked.padded { ", without rows after those received" } else { "" };
    let bad = tensors.iter().filter(|one| !one.is_right()).count();
    if bad > 0 {
        let bound = format!("{bad} of {} tensors are wrong, judged were {part}{tail}", tensors.len());
        return Judgement::no(bound, wrong(result, tensors));
    }
    let absent = asked.absent_from(tensors);
    let values: usize = tensors.iter().map(|one| one.judged.compared).sum();
    if values == 0 {
        let decides = if absent.is_empty() { vec!["ranks that received rows".to_owned()] } else { absent };
        let decides: Vec<_> = decides.into_iter().map(|what| format!("{what} in both files")).collect();
        return Judgement::unknown("nothing was compared", decides);
    }
    let agrees = format!("{values} values agree {}: {part}{tail}", asked.how(&names));
    if absent.is_empty() {
        return Judgement::yes(agrees);
    }
    let decides = format!("{} in both files", absent.join(", "));
    Judgement::unknown(format!("{agrees}; {} is asked for and was not judged", absent.join(", ")), [decides])
}

fn of_ranks(ranks: &[u32]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        ranks => format!("ranks {}", world::list(ranks)),
    }
}

impl Asked {
    /// Whether neither ranks nor tensors are chosen.
    fn is_whole(&self) -> bool {
        self.ranks.is_empty() && self.tensors.is_empty()
    }

    /// The ranks and tensors that are asked for by name of which nothing was judged.
    fn absent_from(&self, tensors: &[One]) -> Vec<String> {
        let ranks = self.ranks.iter().filter(|rank| tensors.iter().all(|one| one.rank != Some(**rank)));
        let names = self.tensors.iter().filter(|name| tensors.iter().all(|one| one.name != **name));
        ranks.map(|rank| format!("rank {rank}")).chain(names.cloned()).collect()
    }

    /// How near values had to be.
    fn how(&self, names: &[&str]) -> String {
        let Self { ulp, rtol, atol, .. } = self;
        let always_near = names.iter().any(|name| *name == Output::Rstd.name() || *name == Output::Y.name());
        match (*ulp, *rtol, *atol) {
            (0, 0.0, 0.0) if always_near => "bit for bit but for rstd and y".to_owned(),
            (0, 0.0, 0.0) => "bit for bit".to_owned(),
            _ => format!("within {ulp} steps or {atol:e} + {rtol:e} * abs(expected)"),
        }
    }
}

/// The tensors of all ranks by their names.
fn table(compared: &Summary<'_>) -> String {
    let mut kinds: BTreeMap<&str, (usize, Judged)> = BTreeMap::new();
    for One { name, judged, .. } in compared.tensors.iter().filter(|one| one.rank.is_some()) {
        let (ranks, sum) = kinds.entry(name).or_default();
        *ranks += 1;
        sum.compared += judged.compared;
        sum.wrong += judged.wrong;
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
            vec![name.to_owned(), ranks.to_string(), sum.compared.to_string(), sum.wrong.to_string()];
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

/// All tensors of a file.
fn read(path: &Path) -> Result<Vec<Tensor<'static>>, Error> {
    let mut file = TensorFile::open(path)?;
    let mut tensors = Vec::new();
    for name in file.names() {
        let data = Cow::Owned(file.read(&name)?);
        if let Some(info) = file.info(&name) {
            tensors.push(Tensor { dtype: info.dtype, shape: info.shape.clone(), name, data });
        }
    }
    Ok(tensors)
}

/// The rank in a tensor's name, and what follows it.
fn parts(name: &str) -> (Option<u32>, &str) {
    let split = name.strip_prefix("rank").and_then(|rest| rest.split_once('.'));
    let Some((rank, tensor)) = split else { return (None, name) };
    match rank.parse::<u32>() {
        Ok(rank) if rank.to_string().len() + tensor.len() + 5 == name.len() => (Some(rank), tensor),
        _ => (None, name),
    }
}

/// What became of each tensor of a result that is asked for.
///
/// # Errors
/// There is no such rank.
pub fn compared(asked: &Asked, expected: &[Tensor<'_>], result: &mut TensorFile) -> Result<Compared, Error> {
    let Asked { ulp, rtol, atol, ranks, tensors: names, padded } = asked;
    let tolerance = Tolerance { ulp: *ulp, rtol: *rtol, atol: *atol };
    let expected: BTreeMap<_, _> = expected.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let has_rank = |rank: u32| expected.keys().any(|name| parts(name).0 == Some(rank));
    if let Some(rank) = ranks.iter().find(|rank| !has_rank(**rank)) {
        let all: BTreeSet<_> = expected.keys().filter_map(|name| parts(name).0).collect();
        let all = world::list(&all.into_iter().collect::<Vec<_>>());
        return Err(Error::Request(format!("ranks = {rank}: must be among {all}")));
    }
    let is_whole = asked.is_whole();
    let is_asked = |name: &str| {
        let (rank, tensor) = parts(name);
        (ranks.is_empty() || rank.is_some_and(|rank| ranks.contains(&rank)))
            && (names.is_empty() || names.iter().any(|asked| asked == tensor))
    };
    let there: BTreeSet<_> = result.names().iter().map(|name| parts(name).0).collect();
    let mut tensors = Vec::new();
    for (name, must) in expected.iter().filter(|(name, _)| is_asked(name)) {
        let mut one = One::new(name);
        match result.info(name).cloned() {
            // What is asked for by name is judged as far as it is there.
            None if !is_whole => continue,
            None => {
                one.error = Some("missing".to_owned());
                one.hint = Some((if there.contains(&one.rank) { "--tensors" } else { "--ranks" }).to_owned());
            }
            Some(info) if info.dtype == must.dtype && fits(&info.shape, must, *padded) => {
                one.judged = tolerance.judge(must, &result.read(name)?[..must.data.len()]);
            }
            Some(info) => {
                one.error =
                    Some(format!("{} {:?}: must be {} {:?}", info.dtype, info.shape, must.dtype, must.shape));
                one.hint = match info.dtype == must.dtype {
                    true => fits(&info.shape, must, true).then(|| "--padded".to_owned()),
                    false => convert_to(must.dtype),
                };
            }
        }
        tensors.push(one);
    }
    let stray =
        result.names().into_iter().filter(|name| is_asked(name) && !expected.contains_key(name.as_str()));
    let stray = stray.map(|name| One { error: Some("must be absent".to_owned()), ..One::new(&name) });
    tensors.extend(stray.filter(|_| is_whole));
    Ok(Compared { judgement: judgement(asked, result.path(), &tensors), tensors })
}

/// Whether a tensor of that shape has the values of `must`: as many, or padded with more rows behind those received.
fn fits(shape: &[usize], must: &Tensor<'_>, padded: bool) -> bool {
    let is_received = |output: &Output| output.is_of_received_rows() && parts(&must.name).1 == output.name();
    let may_be_longer = padded && Output::ALL.iter().any(is_received);
    match (shape, must.shape.as_slice()) {
        ([rows, rest @ ..], [n, others @ ..]) if may_be_longer => rows >= n && rest == others,
        (shape, must) => shape == must,
    }
}
