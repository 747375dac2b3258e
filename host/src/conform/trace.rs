//! A record of events as it is read from a file.

use crate::config::Config;
use crate::error::Error;
use crate::events::SCHEMA;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// An event.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    /// Rank of the core or agent.
    pub rank: u32,
    /// The core; none of an agent.
    pub core: Option<u32>,
    /// Which batch.
    pub batch: Option<u64>,
    /// `dispatch` or `combine`.
    pub operator: Option<String>,
    /// What it is.
    pub kind: String,
    /// The other rank; none: the own one.
    pub peer: Option<u32>,
    /// Where.
    #[serde(default)]
    pub region: String,
    /// Where in the region, in bytes.
    #[serde(default)]
    pub offset: u64,
    /// How many bytes.
    pub length: Option<u64>,
    /// The word, in hexadecimal digits behind `0x`.
    #[serde(default, deserialize_with = "word")]
    pub word: Option<u64>,
}

/// Rank, region and offset of a word.
pub(super) type Place = (u32, String, u64);

impl Line {
    /// Its place in the memory of a rank.
    pub(super) fn place(&self, rank: u32) -> Place {
        (rank, self.region.clone(), self.offset)
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
    /// The configuration of the group.
    pub config: Config,
    /// Whether experts read rows in the window.
    pub keeps_rows: bool,
    /// Events in the order in which they happened.
    pub events: Vec<Line>,
    /// As they stand in the file.
    pub texts: Vec<String>,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no record of events.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, "read", &error))?;
        Self::of_text(path, &text)
    }

    /// Reads a text that stands for a file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_text(path: &Path, text: &str) -> Result<Self, Error> {
        let at = |number: usize, what: String| Error::file(path, format!("line {number}: {what}"));
        let mut lines = text.lines();
        let header: Value = serde_json::from_str(lines.next().unwrap_or_default())
            .map_err(|error| at(1, format!("must be the header of a record of events: {error}")))?;
        if header["schema"] != SCHEMA {
            return Err(at(1, format!("schema: must be {SCHEMA:?}")));
        }
        let config = toml::to_string(&header["config"])
            .map_err(|error| at(1, format!("config: {error}")))
            .and_then(|text| Config::of_text(path, &text))?;
        let receive = header["options"]["receive"].as_str().unwrap_or("copy");
        let texts: Vec<_> = lines.map(str::to_owned).collect();
        let event = |(number, text): (usize, &String)| {
            serde_json::from_str(text).map_err(|error| at(number, error.to_string()))
        };
        let events = (2..).zip(&texts).map(event).collect::<Result<_, _>>()?;
        Ok(Self { path: path.to_owned(), config, keeps_rows: receive != "copy", events, texts })
    }

    /// What is wrong with a line.
    #[must_use]
    pub fn error(&self, number: usize, what: &str) -> Error {
        Error::file(&self.path, format!("line {number}: {what}"))
    }
}
