//! A result against another one, tensor by tensor: the verdict, its bound, and the first thing that is wrong with each.

use safetensors::tensor::TensorInfo;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use veriep_case::error::{Error, list, shown};
use veriep_case::padding::Padding;
use veriep_case::result::is_flat_assist_info;
use veriep_case::store::{Tensor, TensorFile, convert_to};
use veriep_case::tolerance::{self, Judged, LISTED_MAX, Tolerance, is_zero};
use veriep_case::verdict::{Judgement, Verdict};
use veriep_core::place::Tensor as Output;

/// Most differing tensors named.
const NAMED_MAX: usize = 20;
/// The error of a tensor that the result lacks.
const MISSING: &str = "missing";
/// Most tensors named in the line of the verdict.
const NAMED_IN_BOUND: usize = 4;

/// The tensors that are judged, and the tolerance.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// A value may be off by so many steps of its type.
    pub ulp: u64,
    /// A value may differ by `rtol * abs(expected)`, plus `atol`.
    pub rtol: f64,
    /// A value may differ by this much, plus the part of `rtol`.
    pub atol: f64,
    /// The only ranks that are judged; all of them if there are none.
    pub ranks: Vec<u32>,
    /// The only tensors that are judged; all of them if there are none.
    pub tensors: Vec<String>,
    /// Rows after the received ones are ignored.
    pub padded: bool,
    /// Rows after the received ones must hold this value throughout.
    pub padded_with: Option<Padding>,
}

/// What became of a result.
#[derive(Debug)]
pub struct Compared {
    /// The bound names what was judged.
    pub judgement: Judgement,
    /// What became of each tensor that is asked for and there.
    pub tensors: Vec<One>,
    /// `expand_idx` of ranks that have `assist_info_for_combine` instead.
    pub not_compared: Vec<String>,
}

/// What became of a tensor.
#[derive(Debug, Default, Serialize)]
pub struct One {
    /// Without its rank.
    pub name: String,
    /// None of a name that no rank's tensor has.
    pub rank: Option<u32>,
    #[serde(flatten)]
    pub judged: Judged,
    /// What became of the values after the received rows, where `--padded-with` asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<Judged>,
    /// Values after the received rows that were not looked at.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_judged: usize,
    /// What is wrong with the tensor as a whole: missing, of another type or shape, or one that must be absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The option that may have been meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Returns whether the operators return a tensor of this name.
pub fn is_output(tensor: &str) -> bool {
    Output::ALL.iter().any(|output| output.name() == tensor)
}

impl Compared {
    /// Says so if nothing but the result itself was what it was compared with.
    pub fn with_itself(self, is_itself: bool) -> Self {
        if !is_itself || self.judgement.verdict() != Verdict::Yes {
            return self;
        }
        let bound = self.judgement.bound();
        let bound =
            format!("{bound}; both names are of one file, which was compared with itself and nothing else");
        Self { judgement: Judgement::yes(bound), ..self }
    }
}

impl One {
    fn new(name: &str) -> Self {
        let (rank, tensor) = parts(name);
        let name = if rank.is_some() { tensor } else { name }.to_owned();
        Self { name, rank, ..Self::default() }
    }

    fn is_missing(&self) -> bool {
        self.error.as_deref() == Some(MISSING)
    }

    /// Whether nothing is wrong with it.
    pub fn is_right(&self) -> bool {
        self.wrong_values() == 0 && self.error.is_none()
    }

    /// Wrong ones among its rows and after them.
    pub fn wrong_values(&self) -> usize {
        self.judged.wrong + self.padding.as_ref().map_or(0, |padding| padding.wrong)
    }

    /// Its name, and the first thing that is wrong with it.
    pub fn line(&self) -> String {
        let name = self
            .rank
            .map_or_else(|| shown(&self.name).to_owned(), |rank| format!("rank{rank}.{}", self.name));
        let Judged { compared, wrong, first, max_abs, max_ulp, wrong_rows, stray_row, .. } = &self.judged;
        match (&self.error, first.first()) {
            (Some(error), _) => format!("{name}: {error}"),
            (None, Some(first)) => {
                // Both are 0 where nothing that differs is finite.
                let most = max_abs.zip(*max_ulp).filter(|&(abs, _)| *wrong > 1 && abs > 0.0);
                let most =
                    most.map_or_else(String::new, |(abs, ulp)| format!(", by at most {abs:e}, {ulp} steps"));
                let stray = stray_row.zip(first.index.first());
                let stray = stray.map_or_else(String::new, |(from, row)| {
                    format!("; row {row} holds what must be in row {from}")
                });
                let more = if wrong_rows.len() > LISTED_MAX { ", ..." } else { "" };
                let rows: Vec<_> = wrong_rows.iter().take(LISTED_MAX).map(usize::to_string).collect();
                let rows = match rows.len() {
                    0 | 1 => String::new(),
                    _ => format!(" in rows {}{more}", rows.join(", ")),
                };
                format!("{name}{} ({wrong} of {compared} values differ{rows}{most}{stray})", first.words)
            }
            (None, None) => {
                match self.padding.as_ref().and_then(|padding| Some((padding, padding.first.first()?))) {
                    Some((Judged { compared, wrong, .. }, first)) => {
                        format!(
                            "{name}{} ({wrong} of {compared} values after the received rows differ)",
                            first.words
                        )
                    }
                    None => name,
                }
            }
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
fn judgement(
    asked: &Asked,
    result: &TensorFile,
    tensors: &[One],
    not_compared: &[String],
    lacking: &[String],
) -> Judgement {
    let there = result.names();
    let mut names = Vec::new();
    for one in tensors {
        if !names.contains(&one.name.as_str()) {
            names.push(one.name.as_str());
        }
    }
    let of_ranks = of_ranks(tensors);
    let part = match (asked.is_whole(), not_compared.len()) {
        (true, 0) => format!("all {} expected tensors {of_ranks}", tensors.len()),
        (true, without) => {
            let (seen, all, name) = (tensors.len(), tensors.len() + without, Output::ExpandIdx.name());
            format!(
                "{seen} of {all} expected tensors {of_ranks}; {name} was not compared, since the result has none"
            )
        }
        (false, _) => format!("{} {of_ranks} and nothing else", names.join(", ")),
    };
    let tail = asked.tail(tensors);
    let bad = tensors.iter().filter(|one| !one.is_right()).count();
    if bad > 0 {
        let missing = tensors.iter().filter(|one| one.is_missing()).count();
        let what = match missing {
            0 => format!("{bad} of {} tensors are wrong", tensors.len()),
            _ if missing == tensors.len() => format!("all {missing} tensors are missing, none was compared"),
            _ if missing == bad => {
                format!("{missing} of {} tensors are missing, the others agree", tensors.len())
            }
            _ => format!("{bad} of {} tensors are wrong, {missing} of them missing", tensors.len()),
        };
        let bound = format!("{what}; judged were {part}{tail}");
        return Judgement::no(bound, wrong(result.path(), tensors));
    }
    let absent = asked.absent_from(tensors, lacking);
    let values: usize = tensors.iter().map(|one| one.judged.compared).sum();
    if values == 0 {
        let decides = if absent.is_empty() { vec!["ranks that received rows".to_owned()] } else { absent };
        let decides: Vec<_> = decides.into_iter().map(|what| format!("{what} in both files")).collect();
        let has: Vec<_> = there.iter().take(NAMED_IN_BOUND).map(|name| shown(name)).collect();
        let has = if has.is_empty() { "no tensor".to_owned() } else { has.join(", ") };
        let bound = format!("nothing was compared: the result has {has}");
        return Judgement::unknown(bound, decides);
    }
    let other_nan: usize = tensors.iter().map(|one| one.judged.other_nan).sum();
    let agrees = format!("{values} values agree {}: {part}{tail}", asked.how(&names, other_nan));
    if absent.is_empty() {
        return Judgement::yes(agrees);
    }
    let decides = format!("{} in both files", absent.join(", "));
    Judgement::unknown(format!("{agrees}; {} is asked for and was not judged", absent.join(", ")), [decides])
}

/// Whose tensors these are, and which of them have no rank in their names.
fn of_ranks(tensors: &[One]) -> String {
    let ranks: BTreeSet<_> = tensors.iter().filter_map(|one| one.rank).collect();
    let ranks: Vec<_> = ranks.into_iter().collect();
    let of_none: Vec<_> =
        tensors.iter().filter(|one| one.rank.is_none()).map(|one| shown(&one.name)).collect();
    let mut named: Vec<_> = of_none.iter().take(NAMED_IN_BOUND).map(|name| (*name).to_owned()).collect();
    if of_none.len() > NAMED_IN_BOUND {
        named.push(format!("{} more", of_none.len() - NAMED_IN_BOUND));
    }
    let without = format!("without a rank in their names ({})", named.join(", "));
    match (&*ranks, of_none.is_empty()) {
        ([], _) => without,
        ([rank], true) => format!("of rank {rank}"),
        (ranks, true) => format!("of ranks {}", list(ranks)),
        (ranks, false) => format!("of ranks {}, and {without}", list(ranks)),
    }
}

impl Asked {
    const fn tolerance(&self) -> Tolerance {
        Tolerance { ulp: self.ulp, rtol: self.rtol, atol: self.atol }
    }

    /// Whether tensors may be as long as their capacity.
    const fn may_be_padded(&self) -> bool {
        self.padded || self.padded_with.is_some()
    }

    /// Whether neither ranks nor tensors are chosen.
    fn is_whole(&self) -> bool {
        self.ranks.is_empty() && self.tensors.is_empty()
    }

    /// The ranks and tensors that are asked for of which nothing was judged, and what else the result lacks of them.
    fn absent_from(&self, tensors: &[One], lacking: &[String]) -> Vec<String> {
        let has_rank = |rank: u32| tensors.iter().any(|one| one.rank == Some(rank));
        let has_name = |name: &str| tensors.iter().any(|one| one.name == name);
        let ranks = self.ranks.iter().filter(|rank| !has_rank(**rank)).map(|rank| format!("rank {rank}"));
        let names = self.tensors.iter().filter(|name| !has_name(name)).cloned();
        let is_single = |name: &&String| {
            let (rank, tensor) = parts(name);
            (self.ranks.is_empty() || rank.is_none_or(has_rank))
                && (self.tensors.is_empty() || has_name(tensor))
        };
        ranks.chain(names).chain(lacking.iter().filter(is_single).cloned()).collect()
    }

    /// What became of the values after the received rows.
    fn tail(&self, tensors: &[One]) -> String {
        let judged: usize = tensors.iter().filter_map(|one| Some(one.padding.as_ref()?.compared)).sum();
        let not_judged: usize = tensors.iter().map(|one| one.not_judged).sum();
        match (&self.padded_with, judged, not_judged) {
            (Some(_), 0, _) => "; there are no values after the received rows".to_owned(),
            (Some(value), judged, _) => {
                format!("; {judged} values after the received rows were compared with {value}")
            }
            (None, _, 0) => String::new(),
            (None, _, ignored) => format!("; {ignored} values after the received rows were not judged"),
        }
    }

    /// How near values had to be.
    fn how(&self, names: &[&str], other_nan: usize) -> String {
        let Self { ulp, rtol, atol, .. } = self;
        let always_near = names.iter().any(|name| *name == Output::Rstd.name() || *name == Output::Y.name());
        let how = match (*ulp, *rtol, *atol) {
            (0, 0.0, 0.0) if always_near => "bit for bit but for rstd and y".to_owned(),
            (0, 0.0, 0.0) => "bit for bit".to_owned(),
            _ => format!("within {ulp} steps or {atol:e} + {rtol:e} * abs(expected)"),
        };
        match other_nan {
            0 => how,
            count => format!("{how}, {count} of them as NaN of other bits"),
        }
    }
}

/// All tensors of a file.
pub fn read(mut file: TensorFile) -> Result<Vec<Tensor<'static>>, Error> {
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
pub fn parts(name: &str) -> (Option<u32>, &str) {
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
/// There is no such rank, or a tensor whose padding is asked about cannot hold the value.
pub fn compared(asked: &Asked, expected: &[Tensor<'_>], result: &mut TensorFile) -> Result<Compared, Error> {
    let Asked { ranks, tensors: names, .. } = asked;
    let expected: BTreeMap<_, _> = expected.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let has_rank = |rank: u32| expected.keys().any(|name| parts(name).0 == Some(rank));
    if let Some(rank) = ranks.iter().find(|rank| !has_rank(**rank)) {
        let all: BTreeSet<_> = expected.keys().filter_map(|name| parts(name).0).collect();
        let all = match list(&all.into_iter().collect::<Vec<_>>()) {
            none if none.is_empty() => "left out: no expected tensor has a rank in its name".to_owned(),
            all => format!("among {all}"),
        };
        return Err(Error::Request(format!("ranks = {rank}: must be {all}")));
    }
    let is_whole = asked.is_whole();
    let is_asked = |name: &str| {
        let (rank, tensor) = parts(name);
        (ranks.is_empty() || rank.is_some_and(|rank| ranks.contains(&rank)))
            && (names.is_empty() || names.iter().any(|asked| asked == tensor))
    };
    let there: BTreeSet<_> = result.names().iter().map(|name| parts(name).0).collect();
    let (mut tensors, mut not_compared, mut lacking) = (Vec::new(), Vec::new(), Vec::new());
    for (name, must) in expected.iter().filter(|(name, _)| is_asked(name)) {
        match result.info(name).cloned() {
            // What is asked for by name is judged as far as it is there.
            None if !is_whole => lacking.push((*name).to_owned()),
            None if triples_beside(name).is_some_and(|triples| {
                expected.contains_key(&*triples) && result.info(&triples).is_some()
            }) =>
            {
                not_compared.push((*name).to_owned());
            }
            None => tensors.push(One {
                error: Some(MISSING.to_owned()),
                hint: Some((if there.contains(&parts(name).0) { "--tensors" } else { "--ranks" }).to_owned()),
                ..One::new(name)
            }),
            Some(info) => tensors.push(judged(asked, must, &info, result)?),
        }
    }
    let stray =
        result.names().into_iter().filter(|name| is_asked(name) && !expected.contains_key(name.as_str()));
    // An output of another operator than the one that was asked about.
    let is_output = |name: &str| {
        let (rank, tensor) = parts(name);
        rank.is_some_and(has_rank) && is_output(tensor)
    };
    let stray = stray.map(|name| One {
        error: Some("must be absent".to_owned()),
        hint: is_output(&name).then(|| "--tensors".to_owned()),
        ..One::new(&name)
    });
    tensors.extend(stray.filter(|_| is_whole));
    let judgement = judgement(asked, result, &tensors, &not_compared, &lacking);
    Ok(Compared { judgement, tensors, not_compared })
}

/// Judges a tensor of a result that has one of that name.
fn judged(
    asked: &Asked,
    must: &Tensor<'_>,
    info: &TensorInfo,
    result: &mut TensorFile,
) -> Result<One, Error> {
    let mut one = One::new(&must.name);
    if info.dtype != must.dtype || !fits(&info.shape, must, asked.may_be_padded()) {
        one.error = Some(format!("{} {:?}: must be {} {:?}", info.dtype, info.shape, must.dtype, must.shape));
        one.hint = match info.dtype == must.dtype {
            true => fits(&info.shape, must, true).then(|| "--padded".to_owned()),
            false => convert_to(info.dtype, must.dtype),
        };
        return Ok(one);
    }
    let seen = result.read(&must.name)?;
    let (rows, tail) = seen.split_at(must.data.len());
    one.judged = asked.tolerance().judge(must, rows);
    let element_bytes = (must.dtype.bitsize() / 8).max(1);
    match &asked.padded_with {
        Some(value) if !tail.is_empty() => {
            let element = value.element(must.dtype).map_err(|nearest| {
                let (name, dtype) = (&must.name, must.dtype);
                let nearest = nearest.map(|nearest| format!("--padded-with {nearest}, or "));
                let hint = format!("{}choose with --tensors what holds it", nearest.unwrap_or_default());
                let what = "has no such value";
                Error::Request(format!(
                    "--padded-with {value}: {name} is {dtype}, which {what}; hint: {hint}"
                ))
            })?;
            let from = rows.len() / element_bytes;
            one.padding = Some(tolerance::judge_padding((info.dtype, &info.shape), from, tail, &element));
        }
        _ => one.not_judged = tail.len() / element_bytes,
    }
    Ok(one)
}

/// Whether a tensor of that shape has the values of `must`: as many, or with more after the received rows.
fn fits(shape: &[usize], must: &Tensor<'_>, may_be_padded: bool) -> bool {
    let tensor = parts(&must.name).1;
    let is_received = |output: &Output| output.is_of_received_rows() && tensor == output.name();
    let may_be_longer = may_be_padded && Output::ALL.iter().any(is_received);
    match (shape, must.shape.as_slice()) {
        // Its length is of the operator's own choice, and so always longer than what it says.
        (&[words], &[n, 3]) if tensor == Output::AssistInfo.name() => is_flat_assist_info(words, n),
        ([rows, rest @ ..], [n, others @ ..]) if may_be_longer => rows >= n && rest == others,
        (shape, must) => shape == must,
    }
}

/// The tensor of the same rank by which combine finds rows where an operator does not return that `expand_idx`.
fn triples_beside(name: &str) -> Option<String> {
    let (rank, tensor) = parts(name);
    let rank = rank.filter(|_| tensor == Output::ExpandIdx.name())?;
    Some(format!("rank{rank}.{}", Output::AssistInfo.name()))
}
