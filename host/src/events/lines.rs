//! The record as JSON lines: a header, then an event in each.

use super::{Event, SCHEMA, Sink, Unit};
use crate::config::Config;
use crate::error::Error;
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// What counts as time.
    pub unit: Unit,
    /// The configuration.
    pub config: Config,
    /// Choices that do not change results.
    pub options: Value,
}

impl Header {
    pub const fn new(unit: Unit, config: Config, options: Value) -> Self {
        Self { schema: SCHEMA, unit, config, options }
    }
}

/// A file that grows by a line with each event: what is there is complete up to the last line.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: BufWriter<File>,
    /// The first write that has failed.
    failed: Option<io::Error>,
}

impl Lines {
    /// Begins a file.
    pub fn create(path: &Path, header: &impl Serialize) -> Result<Self, Error> {
        let file = File::create(path).map_err(|error| Error::file(path, format!("cannot write: {error}")))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        let mut lines = Self { path: path.to_owned(), file, failed: None };
        lines.line(header);
        Ok(lines)
    }

    fn line(&mut self, value: &impl Serialize) {
        if self.failed.is_none() {
            let written = serde_json::to_writer(&mut self.file, value).map_err(io::Error::from);
            self.failed = written.and_then(|()| self.file.write_all(b"\n")).err();
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

impl Sink for Lines {
    fn event(&mut self, event: &Event) {
        self.line(event);
    }
}
