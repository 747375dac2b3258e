//! `veriep golden`

use super::source::{inputs, keep_apart, open_case, opened, refuse_options};
use crate::cli::GoldenArgs;
use crate::report::{Report, pairs};
use serde::Serialize;
use std::path::Path;
use veriep_case::atomic_file::check_writable;
use veriep_case::case::returned_file;
use veriep_case::error::Error;
use veriep_case::store::{refuse_numpy_name, write_tensors};
use veriep_group::expected::Expected;

/// The result that was written.
#[derive(Debug, Serialize)]
struct Written {
    ok: bool,
    source: String,
    result: String,
    ranks: usize,
    tensors: usize,
}

impl Written {
    fn table(&self) -> String {
        pairs(&[
            ("source", self.source.clone()),
            ("result", self.result.clone()),
            ("ranks", self.ranks.to_string()),
            ("tensors", self.tensors.to_string()),
        ])
    }
}

pub(super) fn run(args: &GoldenArgs, report: &mut Report) -> Result<(), Error> {
    refuse_numpy_name(&args.out)?;
    check_writable(&args.out)?;
    keep_apart(&inputs(&args.config), &[("--out", Some(&args.out))])?;
    let has_returned = |path: &Path| returned_file(path).map(|file| file.is_some());
    let folder = match args.config.path.as_deref() {
        Some(path) if has_returned(path)? => Some(path),
        _ => None,
    };
    let (case, source) = match (folder, opened(&args.config)?) {
        (Some(folder), Some((opened, _))) => {
            refuse_options(&args.tensors, folder)?;
            (opened.for_oracle(folder).load(folder)?, folder.display().to_string())
        }
        _ => open_case(&args.config, &args.tensors, args.seed, (0, u64::MAX))?,
    };
    let expected =
        folder.map_or_else(|| Ok(Expected::of(&case)), |folder| Expected::of_folder(&case, folder))?;
    let tensors = expected.tensors()?;
    let written = Written {
        ok: true,
        source,
        result: args.out.display().to_string(),
        ranks: case.ranks.len(),
        tensors: tensors.len(),
    };
    write_tensors(&args.out, tensors)?;
    report.emit(&written, Written::table)
}
