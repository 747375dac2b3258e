//! The record as JSON lines: a header, then an event in each.

use super::{Event, Unit};
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use veriep_case::config::Config;
use veriep_case::error::Error;

#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// Always [`SCHEMA`](super::SCHEMA).
    pub schema: &'static str,
    pub unit: Unit,
    pub config: Config,
    /// Choices that do not change results.
    pub options: Value,
}

/// A file that grows line by line: what is there is complete up to the last one.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: BufWriter<File>,
    /// The first write that has failed.
    failed: Option<io::Error>,
}

impl Lines {
    /// Begins a record of events.
    pub fn create(path: &Path, header: &impl Serialize) -> Result<Self, Error> {
        let mut lines = Self::begin(path)?;
        lines.json(header);
        Ok(lines)
    }

    /// Begins a file.
    pub fn begin(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|error| Error::file(path, format!("cannot write: {error}")))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::with_capacity(1 << 20, file), failed: None })
    }

    pub fn event(&mut self, event: &Event) {
        self.json(event);
    }

    pub fn text(&mut self, line: &str) {
        self.line(|file| file.write_all(line.as_bytes()));
    }

    fn json(&mut self, value: &impl Serialize) {
        self.line(|file| serde_json::to_writer(file, value).map_err(io::Error::from));
    }

    fn line(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if self.failed.is_none() {
            self.failed = write(&mut self.file).and_then(|()| self.file.write_all(b"\n")).err();
        }
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// The first write that has failed.
    pub fn finish(mut self) -> Result<(), Error> {
        let failed = self.failed.take().map_or_else(|| self.file.flush(), Err);
        failed.map_err(|error| Error::file(&self.path, format!("cannot write: {error}")))
    }
}
