//! `veriep gen`

use super::source::{inputs, keep_apart, make_case};
use crate::case::{TENSORS_NAME, is_case};
use crate::cli::{GenArgs, name_of};
use crate::config::FILE_NAME;
use crate::error::Error;
use crate::expected::Expected;
use crate::report::{Report, note, pairs, progress};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Made {
    ok: bool,
    case: String,
    source: String,
    set: Vec<String>,
    routing: String,
    seed: u64,
    ranks: usize,
    tokens: usize,
    bytes: u64,
}

pub(super) fn run(args: &GenArgs, report: &mut Report) -> Result<(), Error> {
    may_write(&args.out, args.force)?;
    if args.out.is_dir() {
        let files = [FILE_NAME, TENSORS_NAME].map(|name| args.out.join(name));
        keep_apart(&inputs(&args.config), &files.each_ref().map(|file| ("--out", Some(file.as_path()))))?;
    }
    let _making = progress(0, "making a case");
    let (case, source) = make_case(&args.config, &args.tensors, args.seed, (0, u64::MAX))?;
    let expected = args.expected.then(|| Expected::of(&case));
    case.save_with(&args.out, expected.as_ref().map(Expected::tensors).transpose()?)?;
    let bytes = std::fs::read_dir(&args.out)
        .map(|entries| entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|m| m.len()).sum())
        .unwrap_or_default();
    let k = case.shape.k() as usize;
    let made = Made {
        ok: true,
        case: args.out.display().to_string(),
        source: source.name,
        set: args.config.set.clone(),
        routing: name_of(source.routing),
        seed: args.seed,
        ranks: case.ranks.len(),
        tokens: case.ranks.iter().map(|rank| rank.expert_ids.len() / k).sum(),
        bytes,
    };
    report.emit(&made, table)
}

fn table(made: &Made) -> String {
    let mut rows = vec![("case", made.case.clone()), ("source", made.source.clone())];
    rows.extend(made.set.iter().map(|assignment| ("set", assignment.clone())));
    rows.push(("routing", made.routing.clone()));
    rows.push(("seed", made.seed.to_string()));
    rows.push(("ranks", made.ranks.to_string()));
    rows.push(("tokens", made.tokens.to_string()));
    rows.push(("bytes", made.bytes.to_string()));
    pairs(&rows)
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
