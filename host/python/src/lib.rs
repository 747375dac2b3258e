//! The native half of the Python package `veriep`: bytes and JSON in and out. What is pleasant about the package is written in
//! Python, what is right about it in the crates below.

mod group;
mod tensors;

use pyo3::exceptions::{PyIndexError, PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use veriep_case::case::{Case, Opened};
use veriep_case::config::Config;
use veriep_case::error::Error;
use veriep_case::experts::Experts;
use veriep_case::presets::{NAMES, preset};
use veriep_case::store::TensorFile;
use veriep_case::{case, hints};
use veriep_core::layout::state::Slots;
use veriep_core::protocol::{Flags, Receive};
use veriep_core::shape::{Given, Limits};
use veriep_core::units::{CoreId, RankId};
use veriep_group::compared::{Asked, Compared, One, compared};
use veriep_group::expected::Expected;
use veriep_plan::export::Exported;
use veriep_plan::mode::Mode;

use tensors::{Given as Tensors, Taken, given, taken};

/// Names and texts of TOML values.
type Keys = Vec<(String, String)>;
/// `receive`, `experts`, `flags`, `stage`, `slots`, `port_offset`.
type Options = (String, String, Option<String>, Option<u32>, u64, i64);

/// A Python exception of an error.
fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let text = || error.lines().join("\n");
    match (error, error.problems().as_slice()) {
        (_, problems @ [_, ..]) => made(py, "violation", (json(problems),)),
        (Error::Gone { gone, .. }, _) => made(py, "gone", (text(), json(gone))),
        (Error::NoProgress { missing, .. }, _) => made(py, "timeout", (text(), json(missing))),
        (Error::Mismatch(line), _) => made(py, "Mismatch", (line.clone(),)),
        (Error::File(_), _) => PyOSError::new_err(text()),
        _ => PyValueError::new_err(text()),
    }
}

fn json(value: &(impl serde::Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// An exception that Python makes.
fn made<'py>(py: Python<'py>, of: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    let make = || py.import("veriep._errors")?.getattr(of)?.call1(arguments);
    make().map_or_else(|error| error, PyErr::from_value)
}

/// The configuration that keys make of a preset, or of the defaults.
fn config(name: Option<&str>, keys: &Keys) -> PyResult<Config> {
    let of = |name: &str| {
        let known =
            || PyValueError::new_err(format!("preset = {name:?}: must be one of {}", NAMES.join(", ")));
        preset(name).map(|(config, _)| config).ok_or_else(known)
    };
    changed(name.map_or_else(|| Ok(Config::default()), of)?, keys)
}

fn changed(mut config: Config, keys: &Keys) -> PyResult<Config> {
    let mut seen = Vec::new();
    for (key, value) in keys {
        let wrong = |what: String| PyTypeError::new_err(format!("{key} = {value}: {what}"));
        let key = config.assign(key, value).map_err(wrong)?;
        if seen.contains(&key) {
            return Err(PyTypeError::new_err(format!("{key}: given in two spellings")));
        }
        seen.push(key);
    }
    Ok(config)
}

fn mode((receive, experts, flags, stage, slots, port_offset): Options) -> PyResult<Mode> {
    let unknown = |name: &str, seen: &str, legal: &str| {
        PyValueError::new_err(format!("{name} = {seen:?}: must be {legal}"))
    };
    let named = Receive::MODES.into_iter().find(|mode| mode.name() == receive);
    let experts =
        Experts::named(&experts).ok_or_else(|| unknown("experts", &experts, "\"apart\" or \"overwrite\""))?;
    let flags = match flags.as_deref() {
        None => None,
        Some("joint") => Some(Flags::Joint),
        Some("separate") => Some(Flags::Separate),
        Some(other) => return Err(unknown("flags", other, "None, \"joint\" or \"separate\"")),
    };
    if let Some(other) = stage.filter(|stage| ![2, 3].contains(stage)) {
        return Err(PyValueError::new_err(format!("stage = {other}: must be None, 2 or 3")));
    }
    let of_bytes = Slots::ALL.into_iter().find(|of| of.bytes() == slots);
    let legal = Receive::MODES.map(|mode| format!("{:?}", mode.name())).join(", ");
    Ok(Mode {
        receive: named.ok_or_else(|| unknown("receive", &receive, &format!("one of {legal}")))?,
        experts,
        flags,
        stage,
        slots: of_bytes.ok_or_else(|| PyValueError::new_err(format!("slots = {slots}: must be 32 or 64")))?,
        checked: false,
        port_offset,
    })
}

/// A valid configuration with what generators of kernels need of it.
#[pyclass(frozen)]
struct Plan(Exported);

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (preset, keys, options))]
    fn new(py: Python<'_>, preset: Option<&str>, keys: Keys, options: Options) -> PyResult<Self> {
        let exported = Exported::of(config(preset, &keys)?, &mode(options)?, "Shape");
        exported.map(Self).map_err(|error| raised(py, &error))
    }

    /// `plan.json` without anybody's work.
    fn plan(&self) -> String {
        self.0.plan(&[]).to_string()
    }

    /// The work of a core, as JSON.
    fn share(&self, rank: i64, core: i64) -> PyResult<String> {
        let number = |n: i64| u32::try_from(n).ok();
        let core_of = number(rank).map(RankId).zip(number(core).map(CoreId));
        let share = core_of.and_then(|(rank, core)| self.0.share(rank, core));
        let missing = || PyIndexError::new_err(format!("rank {rank}, core {core}: no such core"));
        share.map(|share| share.to_string()).ok_or_else(missing)
    }

    /// Writes all files, and returns their names.
    #[pyo3(signature = (folder, prefix, ranks))]
    fn export(
        &self,
        py: Python<'_>,
        folder: PathBuf,
        prefix: &str,
        ranks: Option<Vec<u32>>,
    ) -> PyResult<[String; 3]> {
        let all: Vec<_> = self.0.ranks().collect();
        let ranks = ranks.map_or_else(|| all.clone(), |ranks| ranks.into_iter().map(RankId).collect());
        if let Some(rank) = ranks.iter().find(|rank| !all.contains(rank)) {
            return Err(PyIndexError::new_err(format!("rank {rank}: must be in [0, {})", all.len())));
        }
        py.detach(|| self.0.write(&folder, prefix, &ranks)).map_err(|error| raised(py, &error))
    }
}

/// What a case is: a folder, or tensors; with keys that say its configuration, or change it.
fn opened(
    folder: Option<PathBuf>,
    tensors: Tensors<'_>,
    preset: Option<&str>,
    keys: &Keys,
) -> PyResult<Result<Opened, Error>> {
    let Some(folder) = folder else {
        let config = config(preset, keys)?;
        return Ok(TensorFile::of_tensors("case", given(&tensors)?).and_then(|file| Opened::of(config, file)));
    };
    let mut opened = case::open(&folder);
    if let Ok(opened) = &mut opened {
        opened.config = changed(opened.config.clone(), keys)?;
    }
    Ok(opened)
}

/// A case's folder, or its tensors; a preset, and keys.
type Subject<'a> = (Option<PathBuf>, Tensors<'a>, Option<String>, Keys);

fn load((folder, tensors, preset, keys): Subject<'_>) -> PyResult<Result<Case, Error>> {
    let place = folder.clone().unwrap_or_else(|| PathBuf::from("case"));
    Ok(opened(folder, tensors, preset.as_deref(), &keys)?.and_then(|opened| opened.load(&place)))
}

/// Every problem, as a list of JSON; without tensors of the configuration alone.
#[pyfunction]
fn check(py: Python<'_>, subject: Subject<'_>, options: Options, of_case: bool) -> PyResult<String> {
    let mode = mode(options)?;
    let port_offset = mode.port_offset;
    let shape = if of_case {
        let (folder, tensors, preset, keys) = subject;
        let opened = opened(folder, tensors, preset.as_deref(), &keys)?;
        opened.and_then(|mut opened| {
            opened.config.port_offset = port_offset;
            let given = opened.given()?;
            let shape = hints::accepted(&opened.config, given, Limits::Product, "check")?;
            opened.read(shape).map(|case| case.shape)
        })
    } else {
        let config = Config { port_offset, ..config(subject.2.as_deref(), &subject.3)? };
        hints::accepted(&config, Given::empty(), Limits::Product, "check")
    };
    let problems = match shape.and_then(|shape| case::support::receives(&shape, mode.receive)) {
        Ok(()) => Vec::new(),
        Err(error) if error.problems().is_empty() => return Err(raised(py, &error)),
        Err(error) => error.problems(),
    };
    serde_json::to_string(&problems).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// What the reference says of a case: of both operators, of dispatch, or of combine for the rows returned.
#[pyfunction]
#[pyo3(signature = (subject, half, returned))]
fn reference(
    py: Python<'_>,
    subject: Subject<'_>,
    half: &str,
    returned: Tensors<'_>,
) -> PyResult<Vec<Taken>> {
    let case = load(subject)?.map_err(|error| raised(py, &error))?;
    let returned = given(&returned)?;
    let tensors = py.detach(|| {
        let expected = match half {
            "dispatch" => Expected::dispatched(&case),
            "combine" => Expected::combined(&case, &mut TensorFile::of_tensors("returned", returned)?)?,
            _ => Expected::of(&case),
        };
        Ok(taken(expected.tensors()?))
    });
    tensors.map_err(|error: Error| raised(py, &error))
}

/// A verdict with its bound and what became of each tensor, as JSON, and a line of each tensor that is wrong.
#[pyfunction]
fn compare(
    py: Python<'_>,
    expected: Tensors<'_>,
    seen: Tensors<'_>,
    near: (u64, f64, f64),
    ranks: Vec<u32>,
    tensors: Vec<String>,
    tail: (bool, Option<String>),
) -> PyResult<(String, Vec<String>)> {
    let ((ulp, rtol, atol), (padded, padded_with)) = (near, tail);
    let padded_with = padded_with.map(|value| value.parse().map_err(PyValueError::new_err)).transpose()?;
    let asked = Asked { ulp, rtol, atol, ranks, tensors, padded, padded_with };
    let (expected, seen) = (given(&expected)?, given(&seen)?);
    let judged = py.detach(|| compared(&asked, &expected, &mut TensorFile::of_tensors("seen", seen)?));
    let Compared { judgement, tensors, .. } = judged.map_err(|error| raised(py, &error))?;
    let lines = tensors.iter().filter(|one| !one.is_right()).map(One::line).collect();
    let text = serde_json::to_string(&(judgement, tensors));
    Ok((text.map_err(|error| PyValueError::new_err(error.to_string()))?, lines))
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::group::{Handle, Member, Sent};
    #[pymodule_export]
    use super::{Plan, check, compare, reference};
}
