//! `veriep golden`

use super::source::{inputs, keep_apart, open_case};
use crate::atomic_file::check_writable;
use crate::cli::GoldenArgs;
use crate::error::Error;
use crate::expected::Expected;
use crate::report::{Report, pairs};
use crate::store::write_tensors;
use serde::Serialize;

#[derive(Serialize)]
struct Written {
    ok: bool,
    source: String,
    result: String,
    ranks: usize,
    tensors: usize,
}

pub(super) fn run(args: &GoldenArgs, report: &mut Report) -> Result<(), Error> {
    check_writable(&args.out)?;
    keep_apart(&inputs(&args.config), &[("--out", Some(&args.out))])?;
    let (case, source) = open_case(&args.config, &args.tensors, args.seed, (0, u64::MAX))?;
    let expected = Expected::of(&case);
    let tensors = expected.tensors()?;
    let result = args.out.display().to_string();
    let written = Written { ok: true, source, result, ranks: case.ranks.len(), tensors: tensors.len() };
    write_tensors(&args.out, tensors)?;
    report.emit(&written, table)
}

fn table(written: &Written) -> String {
    pairs(&[
        ("source", written.source.clone()),
        ("result", written.result.clone()),
        ("ranks", written.ranks.to_string()),
        ("tensors", written.tensors.to_string()),
    ])
}
