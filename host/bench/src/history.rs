//! Reports as files: one to keep, and an earlier one to compare with.

use crate::entry::Entry;
use crate::measure::Bench;
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use veriep_case::atomic_file::write_atomically;
use veriep_case::error::Error;

/// Largest report read, in bytes; a grid of a hundred points with a thousand blocks each has less.
const BYTES_MAX: u64 = 64 << 20;
/// What says that two results are of the same thing.
const KEYS: [&str; 12] = [
    "system",
    "receive",
    "experts",
    "row_copy",
    "ep_world_size",
    "bs",
    "h",
    "k",
    "moe_expert_num",
    "quant_mode",
    "dtype",
    "aiv_num",
];
/// What must be equal for times to be comparable.
const ALIKE: [&str; 4] = ["machine", "threads", "vector", "build"];

pub(crate) struct Earlier {
    file: String,
    report: Value,
    results: Vec<Value>,
}

/// This report beside an earlier one.
#[derive(Serialize)]
pub(crate) struct Beside {
    pub(crate) file: String,
    /// What differs between the two and changes times: `machine`, `threads`, `vector`, `build`.
    pub(crate) differs: Vec<&'static str>,
    /// One for each result, in their order.
    pub(crate) results: Vec<Change>,
}

/// Earlier times by these: 2 is twice as fast now. Absent where the earlier report has none of the same.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct Change {
    pub(crate) dispatch: Option<f64>,
    pub(crate) combine: Option<f64>,
    pub(crate) round: Option<f64>,
    /// Whether others wanted the processors then.
    pub(crate) was_busy: bool,
}

impl Earlier {
    /// Reads a report.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let none = |what: &str| Error::file(path, format_args!("not a report of veriep-bench: {what}"));
        let about = fs::metadata(path).map_err(|e| Error::io(path, "open", &e))?;
        if !about.is_file() {
            return Err(Error::file(path, "not a regular file"));
        }
        if about.len() > BYTES_MAX {
            return Err(none(&format!("larger than {BYTES_MAX} bytes")));
        }
        let bytes = fs::read(path).map_err(|e| Error::io(path, "read", &e))?;
        let report: Value = serde_json::from_slice(&bytes).map_err(|e| none(&e.to_string()))?;
        let results = report["results"].as_array().ok_or_else(|| none("missing: results"))?.clone();
        if report["machine"].is_null()
            || !results.iter().all(|result| KEYS.iter().all(|key| result.get(key).is_some()))
        {
            return Err(none("missing: machine, or what a result is of"));
        }
        Ok(Self { file: path.display().to_string(), report, results })
    }

    /// What has changed since.
    pub(crate) fn beside(&self, bench: &Bench) -> Result<Beside, Error> {
        let now = to_json(bench)?;
        let about = |report: &Value, key: &str| match key {
            "build" => report["versions"]["build"].clone(),
            key => report[key].clone(),
        };
        let differs = ALIKE.into_iter().filter(|key| about(&now, key) != about(&self.report, key)).collect();
        let change = |entry: &Entry| -> Result<Change, Error> {
            let mine = to_json(entry)?;
            let is_same = |theirs: &&Value| KEYS.iter().all(|key| theirs[key] == mine[key]);
            let Some(theirs) = self.results.iter().find(is_same) else { return Ok(Change::default()) };
            let ratio = |place: &dyn Fn(&Value) -> Value| {
                let (then, now) = (place(theirs).as_f64()?, place(&mine).as_f64()?);
                (now > 0.0).then(|| then / now)
            };
            Ok(Change {
                dispatch: ratio(&|result| result["dispatch_ms"]["median"].clone()),
                combine: ratio(&|result| result["combine_ms"]["median"].clone()),
                round: ratio(&|result| result["chained"]["round_ms"]["median"].clone()),
                was_busy: theirs["load"]["busy"] == true,
            })
        };
        let results = bench.results.iter().map(change).collect::<Result<_, _>>()?;
        Ok(Beside { file: self.file.clone(), differs, results })
    }
}

/// Writes a report, complete or not at all.
pub(crate) fn export(path: &Path, report: &str) -> Result<(), Error> {
    write_atomically(path, |file| writeln!(file, "{report}"))
}

fn to_json(value: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|e| Error::Wrong(format!("report: not representable as JSON: {e}")))
}
