//! `veriep golden`

use super::source::{inputs, keep_apart, open_case};
use crate::atomic_file::check_writable;
use crate::cli::GoldenArgs;
use crate::error::Error;
use crate::expected::Expected;
use crate::report::{Fields, Report, pairs};
use crate::store::write_tensors;

pub(super) fn run(args: &GoldenArgs, report: &mut Report) -> Result<(), Error> {
    check_writable(&args.out)?;
    keep_apart(&inputs(&args.config), &[("--out", Some(&args.out))])?;
    let (case, source) = open_case(&args.config, &args.tensors, args.seed, (0, u64::MAX))?;
    let expected = Expected::of(&case);
    let tensors = expected.tensors()?;
    let written = Fields(vec![
        ("ok", true.into()),
        ("source", source.into()),
        ("result", args.out.display().to_string().into()),
        ("ranks", case.ranks.len().into()),
        ("tensors", tensors.len().into()),
    ]);
    write_tensors(&args.out, tensors)?;
    report.emit(&written, |written| pairs(&written.rows(&["source", "result", "ranks", "tensors"])))
}
