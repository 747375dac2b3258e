//! Resolves CONFIG, CASE, `--preset` and the generator options to a configuration or a case.

use crate::cli::{ConfigArgs, TensorArgs};
use crate::report::progress;
use std::path::{Path, PathBuf};
use veriep_case::atomic_file::resolved;
use veriep_case::case::{self, Case, Opened, RETURNED_NAME, TENSORS_NAME, config_file, npz_of};
use veriep_case::config::{Config, FILE_NAME};
use veriep_case::error::Error;
use veriep_case::generate::{Left, MaskKind, Options, Routing, generate_left};
use veriep_case::presets::preset;

/// A configuration and where it comes from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The configuration with all overrides.
    pub config: Config,
    /// Routing that belongs to it.
    pub routing: Routing,
    /// Its name in reports and errors: the preset or the file.
    pub name: String,
}

/// Makes a case in memory, whose rows have values if all of a round are at most so many bytes; also its source, with the
/// routing really used.
pub fn make_case(
    config: &ConfigArgs,
    tensors: &TensorArgs,
    seed: u64,
    (port_offset, values_max): (i64, u64),
) -> Result<(Case, Source), Error> {
    let mut source = resolve(config)?;
    source.config.port_offset = port_offset;
    source.routing = tensors.routing.unwrap_or(source.routing);
    let options = Options {
        routing: source.routing,
        seed,
        mask: tensors.mask,
        smooth_scales: tensors.smooth_scales,
        shared_expert_x: tensors.shared_expert_x,
        hard: tensors.hard,
        logical_experts: tensors.logical_experts,
        values_max,
        ..Options::default()
    };
    let left = if tensors.dead.is_empty() { Left::All } else { Left::Without(&tensors.dead) };
    let name = format!("{}{}", source.name, tensors_asked_for(tensors));
    let case = generate_left(source.config.clone(), options, left, &name)?;
    Ok((case, source))
}

/// The case folder that the arguments name, opened, with all overrides; none if they name a configuration.
///
/// # Errors
/// A file is missing or malformed, an override does not fit.
pub(super) fn opened(args: &ConfigArgs) -> Result<Option<(Opened, &Path)>, Error> {
    let Some(folder) = args.path.as_deref().filter(|path| path.is_dir()) else { return Ok(None) };
    let mut opened = case::open(folder)?;
    overridden(&mut opened.config, args)?;
    Ok(Some((opened, folder)))
}

/// The case that the arguments name, else one made in memory as they say; and its name.
///
/// # Errors
/// As [`case::load`] and [`make_case`]; options that make tensors, and a case that has them.
pub(super) fn open_case(
    config: &ConfigArgs,
    tensors: &TensorArgs,
    seed: u64,
    (port_offset, values_max): (i64, u64),
) -> Result<(Case, String), Error> {
    let Some((mut opened, folder)) = opened(config)? else {
        let _making = progress(0, "making a case");
        let made = make_case(config, tensors, seed, (port_offset, values_max));
        return made.map(|(case, source)| (case, source.name));
    };
    refuse_options(tensors, folder)?;
    opened.config.port_offset = port_offset;
    Ok((opened.load(folder)?, folder.display().to_string()))
}

/// Refuses options that make tensors, beside a case that has them.
pub(super) fn refuse_options(tensors: &TensorArgs, folder: &Path) -> Result<(), Error> {
    let asked_for = [
        ("--routing", tensors.routing.is_some()),
        ("--mask", tensors.mask != MaskKind::None),
        ("--smooth-scales", tensors.smooth_scales),
        ("--shared-expert-x", tensors.shared_expert_x),
        ("--hard", tensors.hard),
        ("--logical-experts", tensors.logical_experts.is_some()),
        ("--dead", !tensors.dead.is_empty()),
    ];
    if let Some((option, _)) = asked_for.iter().find(|(_, is_given)| *is_given) {
        let folder = folder.display();
        return Err(Error::Request(format!("{option}: {folder} has tensors of its own: must be left out")));
    }
    Ok(())
}

/// A file that an option asks for, if it does.
pub(super) type Output<'a> = (&'static str, Option<&'a Path>);

/// The files that a configuration or case is read from.
pub fn inputs(args: &ConfigArgs) -> Vec<PathBuf> {
    // A folder that stands for its configuration is a case all the same.
    let (folders, files): (Vec<_>, Vec<_>) =
        args.path.iter().chain(&args.config).partition(|path| path.is_dir());
    let names = [FILE_NAME, TENSORS_NAME, RETURNED_NAME];
    let of_case = folders.into_iter().flat_map(|folder| names.map(|name| folder.join(name)));
    let of_case = of_case.flat_map(|file| [npz_of(&file), file]);
    of_case.chain(files.into_iter().cloned()).collect()
}

/// Refuses to write over what a command reads, and two results into one file.
///
/// # Errors
/// A file of `written` is an input, or the same as another one.
pub fn keep_apart(inputs: &[PathBuf], written: &[Output<'_>]) -> Result<(), Error> {
    let inputs: Vec<_> = inputs.iter().map(|input| resolved(input)).collect();
    let mut others: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in written.iter().filter_map(|(option, path)| Some((*option, (*path)?))) {
        let file = resolved(path);
        if inputs.contains(&file) {
            let wrong = format_args!("is an input of this run: {option} must name another file");
            return Err(Error::file(path, wrong));
        }
        if let Some((other, _)) = others.iter().find(|(_, other)| *other == file) {
            return Err(Error::file(path, format_args!("{other} and {option} must name different files")));
        }
        others.push((option, file));
    }
    Ok(())
}

/// The options that make tensors which no configuration asks for, so that what is wrong with those tells where they come
/// from.
fn tensors_asked_for(tensors: &TensorArgs) -> String {
    let dead: Vec<_> = tensors.dead.iter().map(u32::to_string).collect();
    let dead = (!dead.is_empty()).then(|| format!(" --dead {}", dead.join(",")));
    let mask = (tensors.mask != MaskKind::None).then(|| format!(" --mask {}", tensors.mask.name()));
    let logical = tensors.logical_experts.map(|number| format!(" --logical-experts {number}"));
    [dead, mask, logical].into_iter().flatten().collect()
}

/// Resolves the arguments of a configuration; a case folder stands for its `config.toml`, and the name of a preset for it.
///
/// # Errors
/// Neither preset nor file is given, the file is malformed, an override does not fit.
pub fn resolve(args: &ConfigArgs) -> Result<Source, Error> {
    let path = args.path.as_ref().or(args.config.as_ref());
    // A preset's name works wherever a file does, unless there is such a file.
    let named = path.filter(|path| !path.exists()).and_then(|path| path.to_str());
    let named = named.filter(|name| preset(name).is_some());
    let mut source = match (args.preset.as_deref().or(named), path) {
        (Some(name), _) => {
            let (config, routing) =
                preset(name).ok_or_else(|| Error::Request(format!("--preset {name}: no such preset")))?;
            Source { config, routing, name: format!("preset {name}") }
        }
        (None, Some(path)) => {
            let file = config_file(path);
            let config = Config::read_changed(&file, |config| overridden(config, args))?;
            return Ok(Source { config, routing: Routing::default(), name: file.display().to_string() });
        }
        (None, None) => {
            return Err(Error::Request("missing argument: CONFIG, CASE or --preset NAME".to_owned()));
        }
    };
    overridden(&mut source.config, args)?;
    Ok(source)
}

/// Applies what the arguments say of single keys.
fn overridden(config: &mut Config, args: &ConfigArgs) -> Result<(), Error> {
    args.set.iter().try_for_each(|assignment| config.set(assignment))?;
    if let Some(release) = args.release {
        config.release = release.name().to_owned();
    }
    Ok(())
}
