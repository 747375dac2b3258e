//! A record of events as it is read from a file.

use crate::events::{FORMER_SCHEMA, SCHEMA};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use veriep_case::config::Config;
use veriep_case::dump::REGIONS;
use veriep_case::error::Error;
use veriep_core::place::{Region, Tensor};
use veriep_core::protocol::Receive;
use veriep_group::driver::schedule::Schedule;

/// The first line of a record. What a field of another name would say is not known, so that none is taken.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    schema: Value,
    #[serde(default)]
    unit: Option<String>,
    #[serde(default)]
    config: Option<Map<String, Value>>,
    #[serde(default)]
    options: Options,
}

/// The choices of a run.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    receive: Option<String>,
    schedule: Option<String>,
    rounds: Option<u64>,
    /// How often a loop is taken in one go.
    chain: Option<usize>,
    /// Ranks that take no part.
    dead: Vec<u32>,
    partitions: Vec<u64>,
    server_ranks: Option<i64>,
    // No guard depends on these.
    #[serde(rename = "order")]
    _order: IgnoredAny,
    #[serde(rename = "flags")]
    _flags: IgnoredAny,
    #[serde(rename = "stage")]
    _stage: IgnoredAny,
    #[serde(rename = "checked")]
    _checked: IgnoredAny,
    #[serde(rename = "slots")]
    _slots: IgnoredAny,
    #[serde(rename = "port_offset")]
    _port_offset: IgnoredAny,
}

/// An event.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Rank of the core or agent.
    pub rank: u32,
    /// The core; none of an agent.
    pub core: Option<u32>,
    pub batch: Option<u64>,
    /// `dispatch` or `combine`.
    pub operator: Option<String>,
    pub kind: String,
    /// The other rank; none: its own.
    pub peer: Option<u32>,
    #[serde(default)]
    pub region: String,
    /// Where in the region, in bytes.
    #[serde(default)]
    pub offset: u64,
    pub length: Option<u64>,
    /// Where in WindowsOut of its rank a task is read.
    pub from: Option<u64>,
    /// The word, in hexadecimal digits behind `0x`.
    #[serde(default, deserialize_with = "word")]
    pub word: Option<u64>,
    // For people and for pictures: no guard depends on these.
    #[serde(default, rename = "time")]
    pub(super) _time: IgnoredAny,
    #[serde(default, rename = "phase")]
    pub(super) _phase: IgnoredAny,
    #[serde(default, rename = "awaited")]
    pub(super) _awaited: IgnoredAny,
}

/// What an event can be, and what it must have then.
const KINDS: [(&str, &str); 16] = [
    ("begin", "batch operator"),
    ("sent", ""),
    ("resume", "batch operator"),
    ("end", ""),
    ("put", "peer region length"),
    ("send", "peer region length"),
    ("post", "peer region length"),
    ("publish", "peer region word"),
    ("store", "region word"),
    ("observe", "region word"),
    ("deliver", "region length"),
    ("write", "region length"),
    ("quiet", ""),
    ("land", ""),
    ("await", ""),
    ("experts", ""),
];
/// No region is larger.
const BYTES_MAX: u64 = 1 << 52;

/// Rank, region and offset of a word.
pub(super) type Place = (u32, String, u64);

impl Line {
    /// Its place in the memory of a rank.
    pub(super) fn place(&self, rank: u32) -> Place {
        (rank, self.region.clone(), self.offset)
    }

    /// The reading of a task where it comes from, if the record says where.
    pub(super) fn source(&self) -> Option<Self> {
        let region = Region::WindowOut.name().to_owned();
        self.from.map(|offset| Self { region, offset, ..self.clone() })
    }

    /// What is wrong with it by itself, if anything is.
    fn problem(&self) -> Option<String> {
        let Some((_, needs)) = KINDS.iter().find(|(kind, _)| *kind == self.kind) else {
            let all: Vec<_> = KINDS.iter().map(|(kind, _)| *kind).collect();
            return Some(format!("kind {:?}: must be one of {}", self.kind, all.join(", ")));
        };
        if let Some(operator) =
            self.operator.as_deref().filter(|name| !["dispatch", "combine"].contains(name))
        {
            return Some(format!("operator {operator:?}: must be dispatch or combine"));
        }
        let is_core = self.core.is_some();
        let has = |field: &str| match field {
            "peer" => self.peer.is_some(),
            "length" => self.length.is_some_and(|length| length > 0),
            "word" => self.word.is_some(),
            "batch" => !is_core || self.batch.is_some(),
            "operator" => !is_core || self.operator.is_some(),
            _ => !self.region.is_empty(),
        };
        if let Some(missing) = needs.split_whitespace().find(|field| !has(field)) {
            return Some(format!("{}: must have {missing}", self.kind));
        }
        let outputs = Tensor::ALL.map(Region::Output);
        let mut regions = REGIONS.iter().chain(&outputs).map(|region| region.name());
        if !self.region.is_empty() && !regions.any(|name| name == self.region) {
            return Some(format!("region {:?}: there is no such region", self.region));
        }
        let is_word = needs.contains("word");
        let length = if is_word { 8 } else { self.length.unwrap_or(1) };
        let mut offsets = [("offset", self.offset), ("from", self.from.unwrap_or(0))].into_iter();
        let is_beyond =
            |(_, offset): &(&str, u64)| offset.checked_add(length).is_none_or(|end| end > BYTES_MAX);
        if let Some((name, offset)) = offsets.find(is_beyond) {
            return Some(format!("{name} {offset}: must end below {BYTES_MAX}"));
        }
        (is_word && !self.offset.is_multiple_of(8))
            .then(|| format!("offset {}: a word's must be a multiple of 8", self.offset))
    }

    /// Whether it is of what its core is doing.
    pub(super) fn is_of(&self, doing: Option<&(u64, String)>) -> bool {
        doing.is_some_and(|(batch, operator)| {
            self.batch.is_none_or(|own| own == *batch)
                && self.operator.as_ref().is_none_or(|own| own == operator)
        })
    }

    /// Whether its core begins an operator or goes on with one.
    pub(super) fn takes_up(&self) -> bool {
        ["begin", "resume"].contains(&self.kind.as_str())
    }

    /// Whether a core does it in an operator only. A record may leave out of which operator a word is.
    pub(super) fn is_of_operator(&self) -> bool {
        let is_part = ["sent", "end"].contains(&self.kind.as_str());
        let is_of_named = self.kind == "observe" && self.operator.is_some();
        self.is_effect() || is_part || is_of_named
    }

    /// Whether it hands bytes to a rank.
    pub(super) fn is_sent(&self) -> bool {
        ["put", "send", "post"].contains(&self.kind.as_str())
    }

    /// Whether it changes memory.
    pub(super) fn is_effect(&self) -> bool {
        ["put", "publish", "store", "write", "deliver", "send"].contains(&self.kind.as_str())
    }
}

fn word<'d, D: Deserializer<'d>>(from: D) -> Result<Option<u64>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let digits = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    digits
        .map(Some)
        .ok_or_else(|| serde::de::Error::custom(format!("word {text:?}: must be 0x and hexadecimal digits")))
}

/// A whole record.
#[derive(Clone, Debug)]
pub struct Trace {
    path: PathBuf,
    pub config: Config,
    /// Where experts find rows.
    pub receive: Receive,
    /// Whether the record is of a model with more than two partitions, some of which are beyond the end of their region.
    pub has_more_partitions: bool,
    /// Events in the order in which they happened.
    pub events: Vec<Line>,
    /// As they are in the file.
    pub texts: Vec<String>,
    /// Operators that each core runs, if the header says so.
    pub operators: Option<usize>,
    /// Their order, the number of dispatches, and how often a loop is taken in one go, if the header has them.
    pub schedule: Option<String>,
    pub rounds: Option<u64>,
    pub chain: Option<usize>,
    /// Ranks that take no part.
    pub dead: Vec<u32>,
    /// Whether the file ends within its last line, which is not among the events.
    pub is_cut: bool,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no record of events.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|error| Error::io(path, "read", &error))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            Error::file(path, format_args!("byte {} is not UTF-8 text", error.utf8_error().valid_up_to()))
        })?;
        Self::of_text(path, &text)
    }

    /// Reads a text that stands for a file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_text(path: &Path, text: &str) -> Result<Self, Error> {
        let at = |number: usize, what: String| Error::file(path, format!("line {number}: {what}"));
        let mut lines = text.lines();
        let Header { schema, unit, config, options } = header(lines.next().unwrap_or_default())
            .map_err(|what| at(1, format!("must be the header of a record of events: {what}")))?;
        if schema != SCHEMA && schema != FORMER_SCHEMA {
            return Err(at(1, format!("schema: must be {SCHEMA:?}")));
        }
        let config = config.ok_or_else(|| {
            at(1, "config: missing: must be an object with the keys of a configuration".to_owned())
        })?;
        let mut config = toml::to_string(&config)
            .map_err(|error| at(1, format!("config: {error}")))
            .and_then(|text| Config::parse(&text).map_err(|faults| at(1, format!("config: {faults}"))))?;
        // Of a model, which is smaller than any product.
        config.server_ranks = options.server_ranks.unwrap_or(config.server_ranks);
        match unit.as_deref() {
            None | Some("events" | "ns" | "ps") => {}
            Some(unit) => {
                return Err(at(1, format!("unit {unit:?}: must be \"events\", \"ns\" or \"ps\"")));
            }
        }
        let receive = options.receive.as_deref().unwrap_or("copy");
        let mode = Receive::MODES
            .iter()
            .find(|mode| mode.name() == receive)
            .ok_or_else(|| at(1, format!("receive {receive:?}: there is no such way to receive")))?;
        let mut texts: Vec<_> = lines.map(str::to_owned).collect();
        // A writer that was stopped leaves a part of a line.
        let is_part = |last: &String| {
            let parsed = serde_json::from_str::<Value>(last);
            parsed.is_err_and(|error| error.is_eof())
        };
        let is_cut = !text.ends_with('\n') && texts.last().is_some_and(is_part);
        if is_cut {
            texts.pop();
        }
        let event = |(number, text): (usize, &String)| {
            let event: Line = serde_json::from_str(text).map_err(|error| at(number, of_one_line(&error)))?;
            event.problem().map_or(Ok(event), |problem| Err(at(number, problem)))
        };
        let events = (2..).zip(&texts).map(event).collect::<Result<_, Error>>()?;
        let schedule = options.schedule().map_err(|what| at(1, what))?;
        let has_two_areas = schedule.as_ref().is_none_or(|schedule| schedule.in_flight() > 1);
        Ok(Self {
            operators: options.operators(schedule.as_ref()).map_err(|what| at(1, what))?,
            schedule: options.schedule,
            rounds: options.rounds,
            chain: options.chain,
            dead: options.dead,
            path: path.to_owned(),
            config,
            receive: mode.with_batches(1 + usize::from(has_two_areas)),
            has_more_partitions: options.partitions.iter().any(|&count| count > 2),
            events,
            texts,
            is_cut,
        })
    }

    /// What is wrong with a line.
    #[must_use]
    pub fn error(&self, number: usize, what: &str) -> Error {
        Error::file(&self.path, format!("line {number}: {what}"))
    }
}

/// Reads a header, whose fields must be known; one of another version is told by its version.
fn header(line: &str) -> Result<Header, String> {
    let of_any_version: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| of_one_line(&error))?;
    let schema = of_any_version.get("schema").cloned().unwrap_or_default();
    if schema != SCHEMA && schema != FORMER_SCHEMA {
        return Ok(Header { schema, unit: None, config: None, options: Options::default() });
    }
    serde_json::from_str(line).map_err(|error| of_one_line(&error))
}

/// What is wrong with a line of JSON, which is none of several lines.
fn of_one_line(error: &serde_json::Error) -> String {
    error.to_string().replace(&format!(" at line {} column", error.line()), " at column")
}

impl Options {
    /// The order of operators.
    ///
    /// # Errors
    /// There is no such order.
    fn schedule(&self) -> Result<Option<Schedule>, String> {
        let Some(text) = self.schedule.as_deref() else { return Ok(None) };
        let schedule = Schedule::read(text).map_err(|why| format!("schedule {text:?}: {why}"))?;
        if schedule.batches() == 0 {
            return Err(format!("schedule {text:?}: must have at least one D"));
        }
        Ok(Some(schedule))
    }

    /// The operators of so many rounds, each of which is a dispatch and, unless the schedule leaves some uncombined, a combine.
    ///
    /// # Errors
    /// There are more than can be counted.
    fn operators(&self, schedule: Option<&Schedule>) -> Result<Option<usize>, String> {
        let (Some(schedule), Some(rounds)) = (schedule, self.rounds) else { return Ok(None) };
        // A loop has as many combines as dispatches, wherever it is cut.
        let (batches, ended) = match schedule.is_loop() {
            true => (1, 2),
            false => (schedule.batches(), schedule.operators().iter().filter(|part| part.ends()).count()),
        };
        let repetitions = usize::try_from(rounds).ok().map(|rounds| rounds / batches);
        let operators = repetitions.and_then(|repetitions| repetitions.checked_mul(ended));
        operators.map(Some).ok_or_else(|| format!("rounds {rounds}: more operators than can be counted"))
    }
}
