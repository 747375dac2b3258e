//! Keys and values in the order of their text, and all that is wrong with them.

use super::call::{self, Call};
use super::{Config, cut, keys, short};
use crate::error::{Error, Problem};
use crate::hints;
use core::fmt;
use serde::Deserialize;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};
use veriep_core::shape::{Given, Limits};

/// What is wrong in a line of a configuration.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Number of the line, from 1.
    pub line: usize,
    /// The start of the line.
    shown: String,
    /// The word that stands for a key; none in what is no configuration at all.
    word: String,
    what: String,
}

/// Why a text is no configuration.
#[derive(Debug)]
pub struct Faults {
    /// At least one, in the order of the text.
    pub all: Vec<Fault>,
    /// What the other lines say.
    rest: Option<Box<Config>>,
}

/// A word that stands for a key, with its value.
pub(super) struct Entry<'t> {
    word: String,
    line: usize,
    shown: String,
    /// None if the text says that there is none.
    value: Option<Spanned<DeValue<'t>>>,
}

/// All entries of a text.
pub(super) struct Entries<'t> {
    all: Vec<Entry<'t>>,
    notes: Vec<String>,
    /// Keys whose values the text does not tell.
    lacks: Vec<&'static str>,
    /// Tensors that the text passes.
    given: Given,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.shown, self.what)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.all.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

impl Faults {
    /// Returns the error of a file with all that is wrong: the lines, and the values of others that `change` leaves wrong.
    pub(super) fn error(self, path: &Path, change: impl Fn(&mut Config) -> Result<(), Error>) -> Error {
        let of_line = |fault: Fault| {
            let message = format!("line {}: {fault}", fault.line);
            (fault.line, Problem { message, ..Problem::new(fault.word, "", fault.what) })
        };
        let mut problems: Vec<_> = self.all.into_iter().map(of_line).collect();
        let rest = self.rest.and_then(|mut config| change(&mut config).map(|()| config).ok());
        problems.extend(rest.iter().flat_map(|config| of_values(config)));
        problems.sort_by_key(|(line, _)| *line);
        let problems = problems.into_iter().map(|(_, problem)| problem).collect();
        Error::Invalid { place: path.display().to_string(), problems }
    }
}

/// Returns the values that are wrong by themselves, with their lines. What depends on other numbers is left out: those of the
/// lines that cannot be read are missing.
fn of_values(config: &Config) -> Vec<(usize, Problem)> {
    let problems = match hints::shape(config, Given::empty(), Limits::Product, "") {
        Err(Error::Invalid { problems, .. }) => problems,
        _ => Vec::new(),
    };
    let by_itself = |problem: Problem| {
        let line = config.origin.line(&problem.parameter)?;
        problem.reads.is_empty().then_some((line, problem))
    };
    problems.into_iter().filter_map(by_itself).collect()
}

/// Reads a text by what it looks like: TOML, an object of JSON, or a call of a function of `torch_npu`.
pub(super) fn of_text(text: &str) -> Result<Entries<'_>, Faults> {
    let wrong = match DeTable::parse(text) {
        Ok(table) => return Ok(of_toml(table, text)),
        Err(wrong) => wrong,
    };
    if text.trim_start().starts_with('{') {
        return of_json(text);
    }
    if let Some(call) = Call::find(text) {
        return of_call(&call, text);
    }
    let start = wrong.span().map_or(0, |span| span.start);
    Err(fault_at(super::line_of(text.as_bytes(), start), text, short(wrong.message())))
}

/// That a text is no configuration at all.
fn fault_at(line: usize, text: &str, what: String) -> Faults {
    let content = text.lines().nth(line - 1).unwrap_or_default().trim();
    let fault = Fault { line, shown: cut(content), word: String::new(), what };
    Faults { all: vec![fault], rest: None }
}

/// Reads an object of JSON. `null` is a value that is missing.
fn of_json(text: &str) -> Result<Entries<'_>, Faults> {
    let wrong = |e: &serde_json::Error| fault_at(e.line().max(1), text, short(&format!("not JSON: {e}")));
    serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(text).map_err(|e| wrong(&e))?;
    let mut all = Vec::new();
    for (line, piece) in call::pieces(text, text.find('{').map_or(0, |open| open + 1)).unwrap_or_default() {
        // A name may have colons.
        let Some((Ok(word), rest)) =
            call::string_and_rest(piece).map(|(word, rest)| (serde_json::from_str(word), rest))
        else {
            continue;
        };
        let literal = rest.trim_start().trim_start_matches(':').trim();
        let shown = cut(piece);
        let value = (literal != "null").then(|| DeValue::parse(literal)).transpose().map_err(|_| {
            let what = "must be a number, a string or a list of numbers".to_owned();
            Faults {
                all: vec![Fault { line, shown: shown.clone(), word: String::clone(&word), what }],
                rest: None,
            }
        })?;
        all.push(Entry { word, line, shown, value });
    }
    Ok(Entries { all, notes: Vec::new(), lacks: Vec::new(), given: Given::empty() })
}

/// Reads the literal keyword arguments of a call; the others are noted.
fn of_call<'t>(call: &Call<'t>, text: &'t str) -> Result<Entries<'t>, Faults> {
    let line_of_call = super::line_of(text.as_bytes(), call.start);
    let Some(arguments) = call::pieces(text, call.start) else {
        return Err(fault_at(line_of_call, text, format!("{}( is not closed", call.function)));
    };
    if let Some(what) = call.is_foreign() {
        return Err(fault_at(line_of_call, text, what));
    }
    let (mut all, mut not_read) = (Vec::new(), Vec::new());
    let (mut lacks, mut given) = (needed().collect::<Vec<_>>(), Given::empty());
    for (line, piece) in arguments {
        let Some((word, literal)) = call::keyword(piece) else {
            // Any argument may hide there.
            lacks.extend(call::decisive());
            not_read.push(cut(piece));
            continue;
        };
        let value = match (literal, keys::key(word)) {
            ("None", _) => continue,
            (_, Err(keys::NotKey::Other(_))) => None,
            _ => DeValue::parse(literal).ok(),
        };
        match value {
            Some(value) => {
                all.push(Entry { word: word.to_owned(), line, shown: cut(piece), value: Some(value) });
            }
            None => {
                given |= call::tensor(word);
                lacks.extend(
                    keys::key(word).ok().filter(|key| call::decisive().any(|decisive| decisive == *key)),
                );
                not_read.push(short(word));
            }
        }
    }
    let mut notes = Vec::new();
    if !not_read.is_empty() {
        notes.push(format!("not read of the call of {}: {}", call.function, not_read.join(", ")));
    }
    if call.function.ends_with("add_rms_norm") {
        let value = Spanned::new(0..0, DeValue::String("combine_add_rms_norm".into()));
        let (word, shown) = ("op".to_owned(), cut(call.function));
        all.push(Entry { word, line: line_of_call, shown, value: Some(value) });
    }
    let contradicted = contradicted(&all, text, call.start);
    if !contradicted.is_empty() {
        return Err(Faults { all: contradicted, rest: None });
    }
    if Call::find(&text[call.start..]).is_some() {
        notes.push("not read: the calls after the first, but for what they say of the same group".to_owned());
    }
    Ok(Entries { all, notes, lacks, given })
}

/// What the calls behind `start` say otherwise than the first one, which has these entries, of what a group has once.
fn contradicted(first: &[Entry<'_>], text: &str, start: usize) -> Vec<Fault> {
    let (mut faults, mut from) = (Vec::new(), start);
    let stated: Vec<_> =
        first.iter().filter_map(|entry| Some((keys::key(&entry.word).ok()?, entry))).collect();
    while let Some(call) = Call::find(&text[from..]) {
        from += call.start;
        let known = call.is_foreign().is_none();
        let arguments = call::pieces(text, from).filter(|_| known).unwrap_or_default();
        faults.extend(arguments.into_iter().filter_map(|(line, piece)| {
            let (word, literal) = call::keyword(piece)?;
            let key = keys::key(word).ok().filter(|key| call::of_group().any(|shared| shared == *key))?;
            let value = DeValue::parse(literal).ok()?;
            let (_, entry) = stated.iter().find(|(other, _)| *other == key)?;
            // Values of this type are compared by what they print.
            let printed = |value: &Spanned<DeValue<'_>>| format!("{:?}", value.get_ref());
            let is_same = entry.value.as_ref().is_some_and(|first| printed(first) == printed(&value));
            let what = format!("the first call, in line {}, has {}: must agree", entry.line, entry.shown);
            (!is_same).then(|| Fault { line, shown: cut(piece), word: key.to_owned(), what })
        }));
    }
    faults
}

/// Takes the entries of TOML, in the order of the text.
fn of_toml<'t>(mut table: Spanned<DeTable<'t>>, text: &str) -> Entries<'t> {
    let mut words: Vec<_> = core::mem::take(table.get_mut()).into_iter().collect();
    words.sort_by_key(|(word, _)| word.span().start);
    let lines: Vec<_> = text.lines().collect();
    let (mut line, mut seen) = (1, 0);
    let entry = |(word, value): (Spanned<DeString<'_>>, _)| {
        let start = word.span().start;
        line += text.as_bytes()[seen..start].iter().filter(|byte| **byte == b'\n').count();
        seen = start;
        let shown = cut(lines.get(line - 1).unwrap_or(&"").trim());
        Entry { word: word.into_inner().into_owned(), line, shown, value: Some(value) }
    };
    Entries {
        all: words.into_iter().map(entry).collect(),
        notes: Vec::new(),
        lacks: Vec::new(),
        given: Given::empty(),
    }
}

/// The keys without which nothing is said of a group.
pub(super) fn needed() -> impl Iterator<Item = &'static str> {
    call::ELSEWHERE.into_iter().chain(call::REQUIRED)
}

/// Whether a missing value of a key leaves open what is asked about: others are absent by default.
pub(super) fn is_decisive(key: &str) -> bool {
    // No call has these, and rules or the choice of the algorithm follow from them.
    const OF_TEXTS: [&str; 4] =
        ["op", "expert_shard_type", "hccl_intra_pcie_enable", "hccl_intra_roce_enable"];
    needed().chain(call::decisive()).chain(OF_TEXTS).any(|decisive| decisive == key)
}

/// Makes the configuration of all entries.
pub(super) fn config(entries: Entries<'_>) -> Result<Config, Faults> {
    let mut origin = super::Origin::of_text(entries.notes, entries.lacks, entries.given);
    let (mut table, mut all) = (DeTable::new(), Vec::new());
    let mut lists_keys = true;
    for Entry { word, line, shown, value } in entries.all {
        let mut wrong =
            |what: String| all.push(Fault { line, shown: shown.clone(), word: word.clone(), what });
        let key = match keys::key(&word) {
            Ok(key) => key,
            Err(not_key) => {
                wrong(not_key.what(&word, lists_keys));
                lists_keys &= not_key != keys::NotKey::Foreign;
                continue;
            }
        };
        if origin.has(key) {
            wrong(format!("duplicate key: {key} in two spellings"));
            continue;
        }
        let Some(value) = value else {
            origin.lack(key);
            continue;
        };
        let key_of_toml = Spanned::new(value.span(), DeString::from(key));
        if let Err(error) = deserialize(DeTable::from_iter([(key_of_toml.clone(), value.clone())])) {
            wrong(short(error.message()));
            continue;
        }
        origin.add(key, line);
        table.insert(key_of_toml, value);
    }
    // Each of them was read alone.
    let config = Config { origin, ..deserialize(table).unwrap_or_default() };
    if all.is_empty() { Ok(config) } else { Err(Faults { all, rest: Some(Box::new(config)) }) }
}

fn deserialize(table: DeTable<'_>) -> Result<Config, toml::de::Error> {
    Config::deserialize(toml::Deserializer::from(Spanned::new(0..0, table)))
}
