//! Result records of searches, models, obligations and traces, from which CLAIMS.md is generated.

use std::fs::OpenOptions;
use std::io::Write;

/// Says in one line what `tool` found out about `subject`: on standard output, and at the end of the file that the
/// environment variable `VERIEP_REPORT` names, if there is one.
pub fn line(tool: &str, subject: &str, result: &str) {
    let line = format!("{tool:<8}  {subject:<56}  {}\n", result.replace('\n', " "));
    print!("{line}");
    if let Some(path) = std::env::var_os("VERIEP_REPORT") {
        let file = OpenOptions::new().append(true).create(true).open(&path);
        // Tests run at once: a line is one write.
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            panic!("VERIEP_REPORT={}: {error}", path.display());
        }
    }
}
