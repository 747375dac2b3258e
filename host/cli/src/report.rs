//! Output of a subcommand: results go to stdout as a table or one JSON object, everything else goes to stderr.

use comfy_table::Table;
use core::time::Duration;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;
use veriep_case::error::{Error, Gone, Missing, Problem, one_line};
pub use veriep_case::stderr::{complain, note, styled};
use veriep_case::verdict::{Judgement, Verdict};

/// Lines of a report that judges, unless all are asked for.
pub const SHORT: usize = 10;
/// Lines of a list that a table shows.
const LINES_MAX: usize = 16;
/// How often a line tells how far something is.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// Form of the report on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for people.
    #[default]
    Table,
    /// One JSON object.
    Json,
}

/// The report of one subcommand: at most one object or table.
#[derive(Debug)]
pub struct Report {
    /// The subcommand, which the schema of its JSON names; empty before it is known.
    name: String,
    format: Format,
    /// Whether nothing but errors is printed.
    quiet: bool,
    /// Whether tables are printed whole.
    verbose: bool,
    /// Whether the subcommand judges, so that its report begins with a verdict.
    judges: bool,
    emitted: bool,
}

#[derive(Serialize)]
struct Failure<'a> {
    /// Of a subcommand that judges; null if the request was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<Option<Verdict>>,
    /// With the verdict: what went wrong, in a few words.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Cow<'a, str>>,
    ok: bool,
    status: u8,
    errors: &'a [String],
    violations: Vec<Problem>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    missing: &'a [Missing],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    gone: &'a [Gone],
}

/// What stdout gets as JSON.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: String,
    /// Null of a subcommand that judges nothing; one that judges has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<Option<Verdict>>,
    #[serde(flatten)]
    value: &'a T,
}

/// The report of a subcommand that judges: the verdict, then everything else.
#[derive(Serialize)]
struct Judged<'a, T> {
    #[serde(flatten)]
    judgement: &'a Judgement,
    #[serde(flatten)]
    report: &'a T,
}

impl Report {
    pub const fn new(format: Format) -> Self {
        let name = String::new();
        Self { name, format, quiet: false, verbose: false, judges: false, emitted: false }
    }

    /// Of which subcommand it is, and whether that judges.
    #[must_use]
    pub fn of(self, name: &str, judges: bool) -> Self {
        Self { name: name.to_owned(), judges, ..self }
    }

    /// Whether tables are printed whole.
    #[must_use]
    pub fn verbose(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// Whether nothing but errors is printed. Notes are silenced for the whole process.
    #[must_use]
    pub fn quiet(self, quiet: bool) -> Self {
        if quiet {
            veriep_case::stderr::silence_notes();
        }
        Self { quiet, ..self }
    }

    /// Whether tables are printed whole.
    pub const fn is_verbose(&self) -> bool {
        self.verbose
    }

    pub const fn format(&self) -> Format {
        self.format
    }

    /// Prints the result: `value` as JSON, or the text that `table` makes of it.
    ///
    /// # Errors
    /// Stdout cannot be written; a reader that has closed it is no error.
    pub fn emit<T: Serialize>(&mut self, value: &T, table: impl FnOnce(&T) -> String) -> Result<(), Error> {
        self.emitted = true;
        if self.quiet {
            return Ok(());
        }
        let mut text = match self.format {
            Format::Table => table(value),
            Format::Json => self.json(value)?,
        };
        text.push('\n');
        let mut stdout = anstream::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                Err(Error::File(format!("stdout: cannot write: {e}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns what stdout gets with `--format json`, for a file that keeps it.
    ///
    /// # Errors
    /// The value has no JSON.
    pub fn json<T: Serialize>(&self, value: &T) -> Result<String, Error> {
        let name = if self.name.is_empty() { "veriep" } else { &self.name };
        let verdict = (!self.judges).then_some(None);
        let document = Document { schema: format!("veriep.report.{name}/1"), verdict, value };
        serde_json::to_string_pretty(&document)
            .map_err(|e| Error::Wrong(format!("report: not representable as JSON: {e}")))
    }

    /// Prints the result and passes its outcome on. If stdout cannot be written, an outcome that is an error stays, and stderr
    /// says so as well.
    ///
    /// # Errors
    /// The outcome is one, or stdout cannot be written.
    pub fn conclude<T: Serialize>(
        &mut self,
        value: &T,
        table: impl FnOnce(&T) -> String,
        outcome: Result<(), Error>,
    ) -> Result<(), Error> {
        match (self.emit(value, table), outcome) {
            (Err(unsaid), Err(outcome)) => {
                unsaid.lines().iter().for_each(|line| complain(line));
                Err(outcome)
            }
            (said, outcome) => outcome.and(said),
        }
    }

    /// Prints the verdict and then the result, of whose table only the first lines are printed unless all are asked for.
    ///
    /// # Errors
    /// The verdict is not yes, or stdout cannot be written.
    pub fn judge<T: Serialize>(
        &mut self,
        judgement: &Judgement,
        value: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Error> {
        let verbose = self.verbose;
        let whole = |judged: &Judged<'_, T>| {
            let (head, body) = (judgement.lines(), table(judged.report));
            if verbose { format!("{}\n\n{body}", head.join("\n")) } else { short(head, &body) }
        };
        self.conclude(&Judged { judgement, report: value }, whole, judgement.outcome())
    }

    /// Prints an error, one line per problem, and returns the exit status of its class. With JSON, stdout
    /// gets an object too, unless the subcommand has already printed its own.
    pub fn fail(&mut self, error: &Error) -> u8 {
        let lines = error.lines();
        let verdict = Verdict::of_status(error.status());
        if let (false, Format::Table, true, Some(verdict)) = (self.emitted, self.format, self.judges, verdict)
        {
            // Stderr has the reason.
            let _ = self.emit(&(), |()| verdict.line(&error.class()));
        }
        if self.format == Format::Json && !self.emitted {
            let failure = Failure {
                verdict: self.judges.then_some(verdict),
                bound: verdict.filter(|_| self.judges).map(|_| error.class()),
                ok: false,
                status: error.status(),
                errors: &lines,
                violations: error.problems(),
                missing: error.missing(),
                gone: error.gone(),
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

/// The lines of a verdict and, below them, as many of a table as [`SHORT`] leaves.
fn short(head: Vec<String>, body: &str) -> String {
    let body: Vec<_> = body.lines().filter(|line| !line.trim().is_empty()).collect();
    let room = SHORT.saturating_sub(head.len());
    let mut lines = head;
    match body.len() {
        all if all <= room => lines.extend(body.iter().map(ToString::to_string)),
        all => {
            let shown = room.saturating_sub(1);
            lines.extend(body.iter().take(shown).map(ToString::to_string));
            lines.push(format!("and {} more lines: -v prints them", all - shown));
        }
    }
    lines.join("\n")
}

/// How far something is: a bar on stderr where that is a terminal, else a line every ten seconds. It ends when dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Tells the thread that writes lines.
    _end: Sender<()>,
}

impl Progress {
    /// A handle by which steps are counted from elsewhere.
    pub fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    pub fn inc(&self, steps: u64) {
        self.bar.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The progress of `len` steps; 0 if their number is not known.
pub fn progress(len: u64, doing: &'static str) -> Progress {
    let (end, ended) = channel();
    if !std::io::stderr().is_terminal() {
        let bar = ProgressBar::hidden();
        let (seen, since) = (bar.clone(), Instant::now());
        let line = move || {
            let done = match (len, seen.position()) {
                (0, 0) => String::new(),
                (0, done) => format!(": {done}"),
                (_, done) => format!(": {done} of {len}"),
            };
            note(&format!("note: {doing} for {} s{done}", since.elapsed().as_secs()));
        };
        // A thread that cannot be started is not needed.
        let _ = thread::Builder::new().spawn(move || every(LINE_PERIOD, &ended, line));
        return Progress { bar, _end: end };
    }
    let bar = if len > 0 { ProgressBar::new(len) } else { ProgressBar::new_spinner() }.with_message(doing);
    let template =
        if len > 0 { "{msg} {wide_bar} {pos}/{len}" } else { "{spinner} {msg} for {elapsed}{done}" };
    let bar = match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.with_key(
            "done",
            |state: &ProgressState, text: &mut dyn core::fmt::Write| {
                if state.pos() > 0 {
                    let _ = write!(text, ": {}", state.pos());
                }
            },
        )),
        Err(_) => bar,
    };
    bar.enable_steady_tick(Duration::from_millis(250));
    Progress { bar, _end: end }
}

/// Calls `tell` once in every period until no sender is left that could report its end.
fn every(period: Duration, ended: &Receiver<()>, tell: impl Fn()) {
    while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
        tell();
    }
}

/// A two-column table without borders. Values may be names that a user chose.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let mut table = plain_table();
    for (name, value) in rows {
        table.add_row([*name, &one_line(value)]);
    }
    table.trim_fmt()
}

/// A table with a header and no borders.
pub fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = plain_table();
    table.set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| one_line(cell)));
    }
    table.trim_fmt()
}

/// A column of a table: its title, and the text of a row in it.
pub struct Column<'t, R> {
    title: &'t str,
    cell: &'t dyn Fn(&R) -> String,
}

pub fn column<'t, R>(title: &'t str, cell: &'t dyn Fn(&R) -> String) -> Column<'t, R> {
    Column { title, cell }
}

/// Columns that are fields of a row: `columns_of![Row; "title" => field, ..]`.
macro_rules! columns_of {
    ($row:ty; $($title:expr => $($field:ident).+),* $(,)?) => {
        [$($crate::report::column($title, &|row: &$row| $crate::report::Cell::cell(&row.$($field).+))),*]
    };
}
pub(crate) use columns_of;

/// A table of rows of one type.
pub fn table_of<'r, R: 'r>(of: &[Column<'_, R>], rows: impl IntoIterator<Item = &'r R>) -> String {
    let header: Vec<_> = of.iter().map(|column| column.title).collect();
    let row = |row: &'r R| of.iter().map(|column| (column.cell)(row)).collect();
    columns(&header, &rows.into_iter().map(row).collect::<Vec<_>>())
}

/// The first rows of a list below a title, and how many more there are.
pub fn list_of<R>(title: &str, of: &[Column<'_, R>], rows: &[R]) -> String {
    let mut text = format!("{title}\n{}", table_of(of, rows.iter().take(LINES_MAX)));
    if rows.len() > LINES_MAX {
        text.push_str(&format!("\nand {} more; --format json has all", rows.len() - LINES_MAX));
    }
    text
}

/// A value that a table shows.
pub trait Cell {
    /// The text in the table.
    fn cell(&self) -> String;
}

impl Cell for u32 {
    fn cell(&self) -> String {
        self.to_string()
    }
}

impl Cell for u64 {
    fn cell(&self) -> String {
        self.to_string()
    }
}

impl Cell for usize {
    fn cell(&self) -> String {
        self.to_string()
    }
}

impl Cell for &str {
    fn cell(&self) -> String {
        (*self).to_owned()
    }
}

impl Cell for String {
    fn cell(&self) -> String {
        self.clone()
    }
}

/// Measured, so two decimals.
impl Cell for f64 {
    fn cell(&self) -> String {
        format!("{self:.2}")
    }
}

impl<T: Cell> Cell for Option<T> {
    fn cell(&self) -> String {
        self.as_ref().map_or_else(|| "-".to_owned(), Cell::cell)
    }
}

impl Cell for Vec<u32> {
    fn cell(&self) -> String {
        self.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
    }
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_short_report_has_ten_lines_and_says_how_many_are_left() {
        let body = |lines: usize| (0..lines).map(|line| format!("{line}\n\n")).collect::<String>();
        let head = || vec!["verdict  yes: all".to_owned()];
        let ten = short(head(), &body(9));
        assert_eq!(ten.lines().count(), SHORT);
        assert!(ten.ends_with("\n8"), "{ten}");
        let cut = short(head(), &body(30));
        assert_eq!(cut.lines().count(), SHORT);
        assert!(cut.ends_with("\n7\nand 22 more lines: -v prints them"), "{cut}");
    }

    #[test]
    fn lines_are_told_until_the_end() {
        let (end, ended) = channel();
        let told = &AtomicU32::new(0);
        thread::scope(|scope| {
            let tell = || _ = told.fetch_add(1, Ordering::Relaxed);
            scope.spawn(move || every(Duration::from_millis(1), &ended, tell));
            while told.load(Ordering::Relaxed) < 3 {
                thread::yield_now();
            }
            drop(end);
        });
    }
}
