//! `veriep gen`

use super::source::resolve;
use crate::case::is_case;
use crate::cli::GenArgs;
use crate::error::Error;
use crate::generate::generate;
use crate::report::{Report, note, pairs};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Made {
    ok: bool,
    case: String,
    source: String,
    set: Vec<String>,
    routing: &'static str,
    seed: u64,
    ranks: usize,
    tokens: usize,
    bytes: u64,
}

pub(super) fn run(args: &GenArgs, report: &mut Report) -> Result<(), Error> {
    may_write(&args.out, args.force)?;
    let source = resolve(&args.config)?;
    let options = args.tensors.options(&source, args.seed);
    let routing = options.routing;
    let case = generate(source.config, options, &source.name)?;
    case.save(&args.out)?;
    let bytes = std::fs::read_dir(&args.out)
        .map(|entries| entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|m| m.len()).sum())
        .unwrap_or_default();
    let k = case.shape.k() as usize;
    let made = Made {
        ok: true,
        case: args.out.display().to_string(),
        source: source.name,
        set: args.config.set.clone(),
        routing: routing.name(),
        seed: args.seed,
        ranks: case.ranks.len(),
        tokens: case.ranks.iter().map(|rank| rank.expert_ids.len() / k).sum(),
        bytes,
    };
    report.emit(&made, |made| {
        pairs(&[
            ("case", made.case.clone()),
            ("source", made.source.clone()),
            ("set", made.set.join(" ")),
            ("routing", made.routing.to_owned()),
            ("seed", made.seed.to_string()),
            ("ranks", made.ranks.to_string()),
            ("tokens", made.tokens.to_string()),
            ("bytes", made.bytes.to_string()),
        ])
    })
}

/// Whether `out` may become a case: absent, empty, a case already, or forced.
fn may_write(out: &Path, force: bool) -> Result<(), Error> {
    let entries = match std::fs::read_dir(out) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) if !out.exists() => return Ok(()),
        Err(e) => return Err(Error::file(out, format_args!("cannot be a case folder: {e}"))),
    };
    if entries && !is_case(out) {
        if !force {
            return Err(Error::file(out, "a folder with other files, not a case: --force writes into it"));
        }
        note(&format!("note: {}: writing beside other files", out.display()));
    }
    Ok(())
}
