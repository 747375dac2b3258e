//! What a verb says: results to stdout as a table or one JSON object, everything else to stderr.

use crate::error::{Error, Missing, Problem, one_line};
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};

/// Form of the report on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for people.
    #[default]
    Table,
    /// One JSON object.
    Json,
}

/// The report of one verb: at most one object or table.
#[derive(Debug)]
pub struct Report {
    format: Format,
    emitted: bool,
}

#[derive(Serialize)]
struct Failure<'a> {
    ok: bool,
    status: u8,
    errors: &'a [String],
    violations: Vec<Problem>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    missing: &'a [Missing],
}

impl Report {
    /// A report in `format`.
    #[must_use]
    pub const fn new(format: Format) -> Self {
        Self { format, emitted: false }
    }

    /// Prints the result: `value` as JSON, or the text that `table` makes of it.
    ///
    /// # Errors
    /// Stdout cannot be written; a reader that has closed it is no error.
    pub fn emit<T: Serialize>(&mut self, value: &T, table: impl FnOnce(&T) -> String) -> Result<(), Error> {
        self.emitted = true;
        let mut text = match self.format {
            Format::Table => table(value),
            Format::Json => serde_json::to_string_pretty(value)
                .map_err(|e| Error::Wrong(format!("report: not representable as JSON: {e}")))?,
        };
        text.push('\n');
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                Err(Error::File(format!("stdout: cannot write: {e}")))
            }
            _ => Ok(()),
        }
    }

    /// Prints the result and passes its verdict on. A stdout that cannot be written takes no verdict away: it is told beside
    /// it.
    ///
    /// # Errors
    /// The verdict's, else as [`emit`](Self::emit).
    pub fn judge<T: Serialize>(
        &mut self,
        value: &T,
        table: impl FnOnce(&T) -> String,
        verdict: Result<(), Error>,
    ) -> Result<(), Error> {
        match (self.emit(value, table), verdict) {
            (Err(unsaid), Err(verdict)) => {
                unsaid.lines().iter().for_each(|line| complain(line));
                Err(verdict)
            }
            (said, verdict) => verdict.and(said),
        }
    }

    /// Prints an error, one line per problem, and returns the exit status of its class. With JSON, stdout
    /// gets an object too, unless the verb has already printed its own.
    pub fn fail(&mut self, error: &Error) -> u8 {
        let lines = error.lines();
        if self.format == Format::Json && !self.emitted {
            let failure = Failure {
                ok: false,
                status: error.status(),
                errors: &lines,
                violations: error.problems(),
                missing: error.missing(),
            };
            // Stdout may be what failed: the lines below say so.
            let _ = self.emit(&failure, |_| String::new());
        }
        for line in lines {
            complain(&line);
        }
        error.status()
    }
}

/// An error's line on stderr, printable already; a closed stderr is no error.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {line}");
}

/// A line for people on stderr, whatever names it has in it.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", one_line(line));
}

/// A progress bar of `len` steps on stderr; silent when stderr is not a terminal.
#[must_use]
pub fn progress(len: u64, doing: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len).with_message(doing);
    match ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// A two-column table without borders. Values may be names that a user chose.
#[must_use]
pub fn pairs(rows: &[(&str, String)]) -> String {
    let mut table = plain_table();
    for (name, value) in rows {
        table.add_row([*name, &one_line(value)]);
    }
    table.trim_fmt()
}

/// A table with a header and no borders.
#[must_use]
pub fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = plain_table();
    table.set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| one_line(cell)));
    }
    table.trim_fmt()
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table
}
