//! The configuration that `--preset`, `--config` and `--set` amount to.

use crate::cli::ConfigArgs;
use crate::config::Config;
use crate::error::Error;
use crate::generate::Routing;
use crate::presets::preset;

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

/// Resolves the arguments.
///
/// # Errors
/// Neither preset nor file is given, the file is malformed, an override does not fit.
pub fn resolve(args: &ConfigArgs) -> Result<Source, Error> {
    let mut source = match (&args.preset, &args.config) {
        (Some(name), _) => {
            let (config, routing) =
                preset(name).ok_or_else(|| Error::Request(format!("--preset {name}: no such preset")))?;
            Source { config, routing, name: format!("preset {name}") }
        }
        (None, Some(file)) => Source {
            config: Config::read(file)?,
            routing: Routing::default(),
            name: file.display().to_string(),
        },
        (None, None) => {
            return Err(Error::Request("missing argument: --preset NAME or --config FILE".to_owned()));
        }
    };
    args.set.iter().try_for_each(|assignment| source.config.set(assignment))?;
    Ok(source)
}
