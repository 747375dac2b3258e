//! `veriep gen`

use super::source::{inputs, keep_apart, make_case};
use crate::cli::GenArgs;
use crate::report::{Report, note, pairs, progress};
use serde::Serialize;
use std::path::Path;
use veriep_case::case::{TENSORS_NAME, is_case};
use veriep_case::config::FILE_NAME;
use veriep_case::error::Error;
use veriep_group::expected::Expected;

/// The case that was made.
#[derive(Debug, Serialize)]
struct Made<'a> {
    ok: bool,
    case: String,
    source: String,
    set: &'a [String],
    routing: String,
    seed: u64,
    ranks: usize,
    tokens: usize,
    bytes: u64,
}

impl Made<'_> {
    fn table(&self) -> String {
        let mut rows = vec![("case", self.case.clone()), ("source", self.source.clone())];
        rows.extend(self.set.iter().map(|assignment| ("set", assignment.clone())));
        rows.extend([
            ("routing", self.routing.clone()),
            ("seed", self.seed.to_string()),
            ("ranks", self.ranks.to_string()),
            ("tokens", self.tokens.to_string()),
            ("bytes", self.bytes.to_string()),
        ]);
        pairs(&rows)
    }
}

pub(super) fn run(args: &GenArgs, report: &mut Report) -> Result<(), Error> {
    if args.out.is_dir() {
        let files = [FILE_NAME, TENSORS_NAME].map(|name| args.out.join(name));
        keep_apart(&inputs(&args.config), &files.each_ref().map(|file| ("--out", Some(file.as_path()))))?;
    }
    may_write(&args.out, args.force)?;
    let _making = progress(0, "making a case");
    let (case, source) = make_case(&args.config, &args.tensors, args.seed, (0, u64::MAX))?;
    let expected = args.expected.then(|| Expected::of(&case));
    case.save_with(&args.out, expected.as_ref().map(Expected::tensors).transpose()?)?;
    let bytes: u64 = std::fs::read_dir(&args.out)
        .map(|entries| entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|m| m.len()).sum())
        .unwrap_or_default();
    let k = case.shape.k() as usize;
    let tokens: usize = case.ranks.iter().map(|rank| rank.expert_ids.len() / k).sum();
    let made = Made {
        ok: true,
        case: args.out.display().to_string(),
        source: source.name,
        set: &args.config.set,
        routing: source.routing.name().to_owned(),
        seed: args.seed,
        ranks: case.ranks.len(),
        tokens,
        bytes,
    };
    report.emit(&made, Made::table)
}

/// Whether `out` may become a case: absent, empty, or forced.
fn may_write(out: &Path, force: bool) -> Result<(), Error> {
    let entries = match std::fs::read_dir(out) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) if !out.exists() => return Ok(()),
        Err(e) => return Err(Error::file(out, format_args!("cannot be a case folder: {e}"))),
    };
    if !entries {
        return Ok(());
    }
    match (is_case(out), force) {
        (true, false) => Err(Error::file(out, "has a case already: --force replaces it")),
        (true, true) => Ok(()),
        (false, false) => {
            Err(Error::file(out, "a folder with other files, not a case: --force writes into it"))
        }
        (false, true) => {
            note(&format!("note: {}: writing beside other files", out.display()));
            Ok(())
        }
    }
}
