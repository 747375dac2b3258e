//! `veriep check`: all violations and the sizes; several configurations are layers of one group.

use super::clashes::{Clash, clashes};
use crate::case;
use crate::cli::CheckArgs;
use crate::config::{Config, FILE_NAME};
use crate::error::{Error, Problem};
use crate::report::{Report, columns, pairs};
use kernel_core::shape::{Buffer, Given, Limits, Product, Shape};
use kernel_core::units::RankId;
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Checked {
    ok: bool,
    violations: Vec<Problem>,
    buffer: BufferSizes,
    /// Absent when the configuration is invalid: nothing else follows from it then.
    sizes: Option<Sizes>,
    file: String,
    #[serde(skip)]
    config: Config,
    #[serde(skip)]
    error: Option<Error>,
}

#[derive(Serialize)]
struct BufferSizes {
    required_mb: u64,
    configured_mb: i64,
    max_bs: u64,
    /// What `required_mb` is the sum of.
    terms: Vec<Term>,
}

#[derive(Serialize)]
struct Term {
    name: &'static str,
    bytes: u64,
}

impl From<&Buffer> for BufferSizes {
    fn from(buffer: &Buffer) -> Self {
        let named = buffer.terms.iter().filter(|term| !term.name.is_empty());
        Self {
            required_mb: buffer.required_mb,
            configured_mb: buffer.configured_mb,
            max_bs: buffer.max_bs,
            terms: named.map(|term| Term { name: term.name, bytes: term.bytes }).collect(),
        }
    }
}

#[derive(Serialize)]
struct Sizes {
    local_expert_num: u32,
    rows_max_moe: u64,
    rows_max_shared: Option<u64>,
    row_bytes: u64,
    payload_bytes: u64,
    #[serde(flatten)]
    a3: Option<SizesA3>,
}

#[derive(Serialize)]
struct SizesA3 {
    record_pitch: u64,
    combine_pitch: u64,
    combine_area_bytes: u64,
}

#[derive(Serialize)]
struct Layers {
    ok: bool,
    buffer: LayersBuffer,
    clashes: Vec<Clash>,
    configs: Vec<Checked>,
}

#[derive(Serialize)]
struct LayersBuffer {
    required_mb: u64,
}

pub(super) fn run(args: &CheckArgs, report: &mut Report) -> Result<(), Error> {
    let mut checked = Vec::new();
    let mut unreadable = Vec::new();
    for path in &args.paths {
        match check(path, args.port.port_offset) {
            Ok(one) => checked.push(one),
            Err(error) => unreadable.push(error),
        }
    }
    if !unreadable.is_empty() {
        return end(unreadable);
    }
    if args.paths.len() > 1 {
        return layers(checked, report);
    }
    let Some(mut one) = checked.pop() else {
        return Err(Error::Request("missing argument: CONFIG|CASE".to_owned()));
    };
    let error = one.error.take();
    report.emit(&one, table)?;
    end(error.into_iter().collect())
}

fn layers(mut configs: Vec<Checked>, report: &mut Report) -> Result<(), Error> {
    let named: Vec<_> = configs.iter().map(|one| (one.file.clone(), one.config.clone())).collect();
    let clashes = clashes(&named);
    let mut errors: Vec<_> = configs.iter_mut().filter_map(|one| one.error.take()).collect();
    errors.extend(clashes.iter().map(|clash| Error::Request(clash.message.clone())));
    let required_mb = configs.iter().map(|one| one.buffer.required_mb).max().unwrap_or_default();
    let all = Layers { ok: errors.is_empty(), buffer: LayersBuffer { required_mb }, clashes, configs };
    report.emit(&all, layers_table)?;
    end(errors)
}

fn end(mut errors: Vec<Error>) -> Result<(), Error> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(Error::Many(errors)),
    }
}

/// Checks one file or folder; `Err` when it cannot even be read as one.
fn check(path: &Path, port_offset: i64) -> Result<Checked, Error> {
    if !path.is_dir() {
        return Ok(judge(Config::read(path)?, Given::empty(), port_offset, path.display().to_string()).0);
    }
    let place = path.join(FILE_NAME).display().to_string();
    let (config, tensors) = match case::open(path) {
        Ok(opened) => (opened.config.clone(), Ok(opened)),
        // The sizes of a configuration are of use without its tensors.
        Err(error) => (Config::read(&path.join(FILE_NAME))?, Err(error)),
    };
    let given = tensors.as_ref().map_or(Given::empty(), |opened| opened.given);
    let (mut checked, shape) = judge(config, given, port_offset, place);
    let error = match (tensors, shape) {
        (Err(error), _) => Some(error),
        (Ok(opened), Some(shape)) => opened.read(shape).err(),
        // Without a valid configuration there is no telling what the tensors must be.
        (Ok(_), None) => None,
    };
    if let Some(error) = error {
        let mut problems = error.problems();
        if problems.is_empty() {
            let message = error.to_string();
            problems.push(Problem {
                parameter: case::TENSORS_NAME.to_owned(),
                rule: "must be a readable safetensors file".to_owned(),
                message,
            });
        }
        checked.ok = false;
        checked.violations.extend(problems);
        checked.error = match checked.error.take() {
            Some(of_config) => Some(Error::Many(vec![of_config, error])),
            None => Some(error),
        };
    }
    Ok(checked)
}

/// Judges a configuration alone.
fn judge(mut config: Config, given: Given, port_offset: i64, file: String) -> (Checked, Option<Shape>) {
    config.port_offset = port_offset;
    let core = config.as_core(given);
    let buffer = Buffer::new(&core);
    let (shape, problems) = match Shape::new(&core, Limits::Product) {
        Ok(shape) => (Some(shape), Vec::new()),
        Err(violations) => (None, violations.iter().map(Problem::from).collect()),
    };
    let error =
        (!problems.is_empty()).then(|| Error::Invalid { place: file.clone(), problems: problems.clone() });
    let checked = Checked {
        ok: error.is_none(),
        violations: problems,
        buffer: BufferSizes::from(&buffer),
        sizes: shape.as_ref().map(sizes),
        file,
        config,
        error,
    };
    (checked, shape)
}

fn sizes(shape: &Shape) -> Sizes {
    let shared_ranks = shape.shared_expert_rank_num();
    Sizes {
        local_expert_num: shape.local_expert_num(),
        // TP peers gather each other's rows.
        rows_max_moe: shape.rows_max(RankId(shared_ranks)) * u64::from(shape.tp_world_size()),
        rows_max_shared: (shared_ranks > 0)
            .then(|| shape.rows_max(RankId(0)) * u64::from(shape.tp_world_size())),
        row_bytes: shape.row_bytes(),
        payload_bytes: shape.payload_bytes(),
        a3: (shape.product() == Product::A3).then(|| SizesA3 {
            record_pitch: shape.record_pitch(),
            combine_pitch: shape.combine_pitch(),
            combine_area_bytes: shape.combine_area(),
        }),
    }
}

/// The sizes; violations are printed as errors.
fn table(checked: &Checked) -> String {
    let BufferSizes { required_mb, configured_mb, max_bs, .. } = &checked.buffer;
    let mut rows = vec![
        ("file", checked.file.clone()),
        ("ok", checked.ok.to_string()),
        ("violations", checked.violations.len().to_string()),
        ("required_mb", required_mb.to_string()),
        ("configured_mb", configured_mb.to_string()),
        ("max_bs", max_bs.to_string()),
    ];
    if let Some(sizes) = &checked.sizes {
        rows.push(("local_expert_num", sizes.local_expert_num.to_string()));
        rows.push(("rows_max_moe", sizes.rows_max_moe.to_string()));
        rows.extend(sizes.rows_max_shared.map(|rows| ("rows_max_shared", rows.to_string())));
        rows.push(("row_bytes", sizes.row_bytes.to_string()));
        rows.push(("payload_bytes", sizes.payload_bytes.to_string()));
        if let Some(a3) = &sizes.a3 {
            rows.push(("record_pitch", a3.record_pitch.to_string()));
            rows.push(("combine_pitch", a3.combine_pitch.to_string()));
            rows.push(("combine_area_bytes", a3.combine_area_bytes.to_string()));
        }
    }
    pairs(&rows)
}

fn layers_table(layers: &Layers) -> String {
    let row = |one: &Checked| {
        let BufferSizes { required_mb, configured_mb, max_bs, .. } = &one.buffer;
        let numbers = [required_mb.to_string(), configured_mb.to_string(), max_bs.to_string()];
        [one.file.clone(), one.violations.len().to_string()].into_iter().chain(numbers).collect()
    };
    let mut rows: Vec<Vec<String>> = layers.configs.iter().map(row).collect();
    rows.push(vec!["all".to_owned(), String::new(), layers.buffer.required_mb.to_string()]);
    columns(&["file", "violations", "required_mb", "configured_mb", "max_bs"], &rows)
}
