//! Keys and values in the order of their text, and all that is wrong with them.

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
    value: Spanned<DeValue<'t>>,
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
        (!problem.message.contains(" (")).then_some((line, problem))
    };
    problems.into_iter().filter_map(by_itself).collect()
}

/// Reads TOML, in the order of the text.
pub(super) fn of_toml(text: &str) -> Result<Vec<Entry<'_>>, Faults> {
    let mut table = DeTable::parse(text).map_err(|e| {
        let start = e.span().map_or(0, |span| span.start);
        let line = super::line_of(text.as_bytes(), start);
        let content = text.lines().nth(line - 1).unwrap_or_default().trim();
        let fault = Fault { line, shown: cut(content), word: String::new(), what: short(e.message()) };
        Faults { all: vec![fault], rest: None }
    })?;
    let mut words: Vec<_> = core::mem::take(table.get_mut()).into_iter().collect();
    words.sort_by_key(|(word, _)| word.span().start);
    let lines: Vec<_> = text.lines().collect();
    let (mut line, mut seen) = (1, 0);
    let entry = |(word, value): (Spanned<DeString<'_>>, _)| {
        let start = word.span().start;
        line += text.as_bytes()[seen..start].iter().filter(|byte| **byte == b'\n').count();
        seen = start;
        let shown = cut(lines.get(line - 1).unwrap_or(&"").trim());
        Entry { word: word.into_inner().into_owned(), line, shown, value }
    };
    Ok(words.into_iter().map(entry).collect())
}

/// Makes the configuration of all entries.
pub(super) fn config(entries: Vec<Entry<'_>>) -> Result<Config, Faults> {
    let (mut table, mut origin, mut all) = (DeTable::new(), super::Origin::default(), Vec::new());
    let mut lists_keys = true;
    for Entry { word, line, shown, value } in entries {
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
