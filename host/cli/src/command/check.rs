//! `veriep check`: all violations and the sizes; several configurations are layers of one group.

use super::notes;
use super::sizes::{arithmetic, placed as placed_row, rows as size_rows};
use super::source::{Source, resolve};
use crate::cli::{CheckArgs, ConfigArgs, ModeArgs};
use crate::report::{Report, columns, pairs};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use veriep_case::case;
use veriep_case::clashes::{Clash, Layer, clashes};
use veriep_case::config::Config;
use veriep_case::error::{Error, Problem};
use veriep_case::hints;
use veriep_case::verdict::Judgement;
use veriep_core::layout::state::Slots;
use veriep_core::protocol::{Choices, Receive};
use veriep_core::shape::{Buffer, Given, Limits, Product};
use veriep_group::expected::Expected;
use veriep_plan::sizes::{BufferSizes, Placed, sizes};

#[derive(Serialize)]
struct Checked {
    /// Whether the operators accept it.
    ok: bool,
    /// The operators whose rules and sizes these are.
    release: &'static str,
    violations: Vec<Problem>,
    /// Why VeriEP cannot run it, although the operators accept it.
    own_limits: Vec<Problem>,
    notes: Vec<String>,
    buffer: BufferSizes,
    /// Absent without direct placement.
    placed: Option<Placed>,
    /// Absent when the configuration is invalid: nothing else follows from it then.
    sizes: Option<BTreeMap<&'static str, Option<u64>>>,
    #[serde(flatten)]
    layer: Layer,
    #[serde(skip)]
    choices: Choices,
    #[serde(skip)]
    judged: Judged,
    #[serde(skip)]
    open: Option<Open>,
    #[serde(skip)]
    error: Option<Error>,
}

/// The parts of the input that were judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Judged {
    #[default]
    Configuration,
    /// The tensors of a case, too.
    Tensors,
    /// These, and the rows that experts returned.
    Returned,
}

/// Why nothing is broken and the answer is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// The case has tensors, and VeriEP has no layout by which to judge them.
    UnreadTensors,
    /// The operators accept some of the tensors that a call may pass, of a mask one of its shapes, and refuse others.
    DependsOnTensors,
    /// A rule is broken by the default of a missing key, and another value may keep it.
    BreaksByDefault,
}

#[derive(Serialize)]
struct Layers {
    ok: bool,
    buffer: LayersBuffer,
    /// Most batches in flight with which no layer overwrites what another still reads.
    /// Absent when the layers cannot share a group at all.
    batches_in_flight_max: Option<u32>,
    clashes: Vec<Clash>,
    configs: Vec<Checked>,
}

#[derive(Serialize)]
struct LayersBuffer {
    required_mb: u64,
}

pub(super) fn run(args: &CheckArgs, report: &mut Report) -> Result<(), Error> {
    let receive = args.mode.experts.of(args.mode.receive)?.with_batches(args.in_flight as usize);
    let mut checked = Vec::new();
    let mut unreadable = Vec::new();
    let of = |path: Option<&PathBuf>| ConfigArgs {
        path: path.cloned(),
        config: args.config.clone(),
        preset: args.preset.clone(),
        set: args.set.clone(),
        release: args.release,
    };
    let mut subjects: Vec<_> = args.paths.iter().map(|path| of(Some(path))).collect();
    if subjects.is_empty() {
        subjects.push(of(None));
    }
    for subject in &subjects {
        match check(subject, &args.mode, receive) {
            Ok(one) => checked.push(one),
            Err(error) => unreadable.push(error),
        }
    }
    if !unreadable.is_empty() {
        return end(unreadable);
    }
    if args.paths.len() > 1 {
        return layers(checked, args.in_flight, report);
    }
    let Some(mut one) = checked.pop() else {
        return Err(Error::Request("missing argument: CONFIG|CASE".to_owned()));
    };
    let error = one.error.take();
    let judgement = judgement(&[&one], end(error.into_iter().collect()));
    report.judge(&judgement, &one, table)
}

fn layers(mut configs: Vec<Checked>, in_flight: u32, report: &mut Report) -> Result<(), Error> {
    let named: Vec<_> = configs.iter().map(|one| &one.layer).collect();
    let (mut clashes, batches_in_flight_max) = clashes(&named, in_flight);
    // Where a layer does not say a key, its default clashes with none.
    let unsaid: Vec<_> = named.iter().flat_map(|layer| layer.config.origin.missing()).collect();
    clashes.retain(|clash| !unsaid.contains(&clash.parameter));
    let mut errors: Vec<_> = configs.iter_mut().filter_map(|one| one.error.take()).collect();
    errors.extend(clashes.iter().map(|clash| Error::Request(clash.message.clone())));
    let required_mb = configs.iter().map(|one| one.buffer.required_mb).max().unwrap_or_default();
    let buffer = LayersBuffer { required_mb };
    let all = Layers {
        ok: errors.is_empty() && configs.iter().all(|one| one.ok && one.layer.shape.is_some()),
        buffer,
        batches_in_flight_max,
        clashes,
        configs,
    };
    let judgement = judgement(&all.configs.iter().collect::<Vec<_>>(), end(errors));
    report.judge(&judgement, &all, layers_table)
}

/// Whether the configurations are valid, by the rules that were asked.
fn judgement(configs: &[&Checked], outcome: Result<(), Error>) -> Judgement {
    let of = match configs {
        [one] => match one.judged {
            Judged::Configuration => "this configuration, without tensors",
            Judged::Tensors => "this configuration and its tensors",
            Judged::Returned => "this configuration, its tensors and the rows that experts returned",
        }
        .to_owned(),
        layers => {
            let cases = layers.iter().filter(|one| one.judged != Judged::Configuration).count();
            format!("{} configurations on one group, {cases} of them with tensors", layers.len())
        }
    };
    let mut releases: Vec<_> = configs.iter().map(|one| one.release).collect();
    releases.dedup();
    let release = releases.join(", ");
    // An input may say nothing of some keys, and what defaults are worth is not known.
    let mut missing: Vec<_> = configs.iter().flat_map(|one| one.layer.config.origin.missing()).collect();
    missing.sort_unstable();
    missing.dedup();
    let is_open = |why| configs.iter().any(|one| one.open == Some(why));
    match outcome {
        Ok(()) if is_open(Open::UnreadTensors) => Judgement::unknown(
            format!("valid for release {release}: {of}; VeriEP has no layout for it, and read no tensor"),
            ["a configuration that VeriEP runs".to_owned()],
        ),
        Ok(()) if is_open(Open::DependsOnTensors) => Judgement::unknown(
            format!("valid for release {release} with some of the tensors that the call may pass: {of}"),
            ["a case with the tensors that are meant, of x_active_mask with its shape".to_owned()],
        ),
        Ok(())
            if missing.is_empty()
                && configs.len() > 1
                && configs.iter().any(|one| one.layer.shape.is_none()) =>
        {
            Judgement::unknown(
                format!("valid for release {release}: {of}; VeriEP has no layout for one, and compared none"),
                ["configurations that VeriEP runs".to_owned()],
            )
        }
        Ok(()) if !missing.is_empty() => {
            let keys = missing.join(", ");
            let valid = if is_open(Open::BreaksByDefault) { "invalid" } else { "valid" };
            let bound = format!("{valid} for release {release} if defaults are right: {of}");
            Judgement::unknown(bound, vec![format!("--set KEY=VALUE for {keys}")])
        }
        Ok(()) => Judgement::yes(format!("valid for release {release}: {of}")),
        Err(error) => Judgement::no(format!("invalid for release {release}: {of}"), error),
    }
}

fn end(mut errors: Vec<Error>) -> Result<(), Error> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(Error::Many(errors)),
    }
}

/// Checks a configuration or case; `Err` when it cannot even be read as one.
fn check(args: &ConfigArgs, mode: &ModeArgs, receive: Receive) -> Result<Checked, Error> {
    let Source { config, name, .. } = resolve(args)?;
    let Some(folder) = args.path.as_deref().filter(|path| path.is_dir()) else {
        return Ok(of_configuration(config, (mode, receive), name));
    };
    // The sizes of a configuration are of use without its tensors.
    let mut tensors = case::open(folder).map(|opened| opened.for_oracle(folder));
    let given = match &mut tensors {
        Ok(opened) => {
            opened.config = config.clone();
            opened.given()?
        }
        Err(_) => Given::empty(),
    };
    let mut checked = judge(config, given, (mode, receive), name);
    // What shapes must be depends on the keys that are missing.
    if !checked.layer.config.origin.missing().is_empty() {
        return Ok(checked);
    }
    checked.judged = Judged::Tensors;
    checked.layer.elastic_info = tensors.as_ref().ok().and_then(|opened| opened.elastic_info.clone());
    let (file, error) = match (tensors, &checked.layer.shape) {
        (Err(error), _) => (case::TENSORS_NAME, error),
        (Ok(opened), Some(shape)) => match opened.read(shape.clone()) {
            Ok(case) => match Expected::check_returned(&case, folder) {
                Ok(has_returned) => {
                    checked.judged = if has_returned { Judged::Returned } else { Judged::Tensors };
                    return Ok(checked);
                }
                Err(error) => (case::RETURNED_NAME, error),
            },
            Err(error) => (case::TENSORS_NAME, error),
        },
        // Without a shape there is no telling what the tensors must be.
        (Ok(_), None) => {
            checked.judged = Judged::Configuration;
            // What defaults break comes first: with other values there may be a layout.
            checked.open = checked.open.or(Some(Open::UnreadTensors));
            checked.ok = false;
            return Ok(checked);
        }
    };
    let mut problems = error.problems();
    if problems.is_empty() {
        let rule = "must be a readable safetensors file";
        let message = error.to_string();
        problems.push(Problem { message, ..Problem::new(file, "", rule) });
    }
    checked.ok = false;
    checked.violations.extend(problems);
    checked.error = match checked.error.take() {
        Some(of_config) => Some(Error::Many(vec![of_config, error])),
        None => Some(error),
    };
    Ok(checked)
}

/// Judges a configuration with the tensors that a call passes. Which of both shapes a mask has, a call does not tell, nor whether
/// the name of another tensor stands for None.
fn of_configuration(config: Config, mode: (&ModeArgs, Receive), name: String) -> Checked {
    let passed = config.origin.given();
    let masks = Given::MASK_1D | Given::MASK_2D;
    let mut may_be = vec![passed];
    if passed.contains(masks) {
        let without = |given: Given| given - masks;
        may_be = may_be
            .into_iter()
            .flat_map(|given| [Given::MASK_1D, Given::MASK_2D].map(|mask| without(given) | mask))
            .collect();
    }
    for tensor in [Given::SCALES, Given::ELASTIC_INFO, Given::SHARED_EXPERT_X] {
        if passed.contains(tensor) {
            may_be.extend(may_be.clone().into_iter().map(|given| given - tensor));
        }
    }
    let mut judged: Vec<_> =
        may_be.into_iter().map(|given| judge(config.clone(), given, mode, name.clone())).collect();
    let accepted = judged.iter().position(|checked| checked.error.is_none());
    let depends = accepted.is_some() && judged.iter().any(|checked| checked.error.is_some());
    let mut checked = judged.swap_remove(accepted.unwrap_or(0));
    if depends {
        checked.ok = false;
        checked.open = Some(Open::DependsOnTensors);
    }
    checked
}

/// Judges a configuration alone.
fn judge(mut config: Config, given: Given, (mode, receive): (&ModeArgs, Receive), file: String) -> Checked {
    config.port_offset = mode.port_offset;
    let core = config.as_core(given);
    let (release, algorithm) = (config.release(), config.algorithm());
    let (shape, choices, error) = match hints::accepted(&config, given, Limits::Product, &file) {
        Ok(shape) => match mode.mode().receiving(&shape, receive) {
            Ok(choices) => (Some(shape), choices, None),
            Err(error) => (Some(shape), Choices::default(), Some(error)),
        },
        Err(error) => (None, Choices::default(), Some(error)),
    };
    // Only our layout has port offsets and other slots than the shipped ones: with one the question is whether we can run it.
    let asks_for_ours = mode.port_offset != 0 || mode.slots != Slots::Shipped;
    let (own_limits, violations): (Vec<_>, Vec<_>) =
        error.iter().flat_map(Error::problems).partition(|problem| problem.own_limit && !asks_for_ours);
    // Our own limits are no reason for the operators to refuse it.
    let error = if asks_for_ours { error } else { error.and_then(Error::without_own_limits) };
    let is_certain = certain(&config, given);
    let (violations, by_default): (Vec<_>, Vec<_>) = violations.into_iter().partition(is_certain);
    let error = if by_default.is_empty() { error } else { error.and_then(|error| error.only(&violations)) };
    let placed = shape.as_ref().and_then(|shape| Placed::of(shape, receive));
    let asked = release.buffer(algorithm, &core);
    let layout = algorithm.protocol().map(|_| Buffer::new(&core));
    let buffer = BufferSizes::new(&asked, layout.as_ref(), placed.as_ref());
    let mut notes = config.notes();
    let told = by_default
        .iter()
        .map(|problem| format!("with the defaults that stand for them: {}", problem.message));
    notes.extend(told);
    release.notes(algorithm, &core, &mut |note| notes.push(note.to_owned()));
    notes.extend(notes::notes(&config, &asked));
    Checked {
        ok: error.is_none() && config.origin.missing().is_empty(),
        release: release.name(),
        violations,
        own_limits,
        notes,
        buffer,
        placed,
        sizes: shape.as_ref().map(|shape| sizes(shape, choices).into_iter().collect()),
        choices,
        layer: Layer { file, config, shape, elastic_info: None },
        judged: Judged::Configuration,
        open: (!by_default.is_empty()).then_some(Open::BreaksByDefault),
        error,
    }
}

/// Tells violations that no value of the keys that are missing mends from those that are there by default.
fn certain(config: &Config, given: Given) -> impl Fn(&Problem) -> bool {
    let missing = config.origin.missing();
    // What follows from several keys may follow from one that is missing.
    let is_stated = move |key: &String| {
        let is_key = Config::key_of(&format!("{key}=")) == Some(key.as_str());
        is_key && !missing.contains(&key.as_str())
    };
    let missing = config.origin.missing();
    let by_itself = move |problem: &Problem| {
        !missing.contains(&problem.parameter.as_str()) && problem.reads.iter().all(&is_stated)
    };
    let is_missing = |key| config.origin.missing().contains(&key);
    // Each product has ranges of its own.
    let breaks_with = |product: &&str| {
        let config = Config { product: (*product).to_owned(), ..config.clone() };
        let error = hints::accepted(&config, given, Limits::Product, "").err();
        error.iter().flat_map(Error::problems).any(|problem| !problem.own_limit && by_itself(&problem))
    };
    let is_whole = config.origin.missing().is_empty();
    let breaks = !is_missing("product") || Product::WORDS.iter().map(|(name, _)| name).all(breaks_with);
    move |problem| is_whole || breaks && by_itself(problem)
}

/// The sizes; violations are printed as errors.
fn table(checked: &Checked) -> String {
    let mut rows = vec![
        ("file", checked.layer.file.clone()),
        ("release", checked.release.to_owned()),
        ("violations", checked.violations.len().to_string()),
    ];
    rows.extend(size_rows(&checked.buffer));
    rows.extend(checked.placed.iter().map(placed_row));
    let sizes = checked.layer.shape.iter().flat_map(|shape| sizes(shape, checked.choices));
    rows.extend(sizes.filter_map(|(name, size)| Some((name, size?.to_string()))));
    // First, since a short table ends early.
    let limits = checked.own_limits.iter().map(|problem| format!("not run here: {}\n\n", problem.message));
    let notes = checked.notes.iter().map(|note| format!("note: {note}\n\n"));
    let more: String = limits.chain(notes).collect();
    format!("{more}{}\n\n{}", pairs(&rows), arithmetic(&checked.buffer))
}

fn layers_table(layers: &Layers) -> String {
    let row = |one: &Checked| {
        let BufferSizes { required_mb, configured_mb, max_bs, .. } = &one.buffer;
        let numbers = [required_mb.to_string(), configured_mb.to_string(), max_bs.to_string()];
        [one.layer.file.clone(), one.violations.len().to_string()].into_iter().chain(numbers).collect()
    };
    let mut rows: Vec<Vec<String>> = layers.configs.iter().map(row).collect();
    rows.push(vec!["all".to_owned(), String::new(), layers.buffer.required_mb.to_string()]);
    let table = columns(&["file", "violations", "required_mb", "configured_mb", "max_bs"], &rows);
    let in_flight = layers.batches_in_flight_max.map_or_else(|| "-".to_owned(), |max| max.to_string());
    format!(" batches_in_flight_max  {in_flight}\n\n{table}")
}
