//! Any bytes as a case: `config.toml`, and after a line of its own the bytes of `inputs.safetensors`. A case that is
//! taken is right in all its tensors; what is refused is refused in lines that a person can read, with status 2.

use veriep_case::case::{self, Case};
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_core::units::RankId;

use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// What divides the two files.
pub const DIVIDER: &[u8] = b"\n#---\n";

thread_local! {
    /// The folder in which a thread writes two files for each run; in memory, where the system has such a place.
    static FOLDER: TempDir = {
        let memory = Path::new("/dev/shm");
        let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        made.expect("a folder for files")
    };
}

/// Loads what the bytes mean.
///
/// # Panics
/// If loading panics, or takes a case that breaks a rule. If there is no room for files.
pub fn run(bytes: &[u8]) -> Option<Result<Box<Case>, Vec<String>>> {
    let at = bytes.windows(DIVIDER.len()).position(|window| window == DIVIDER);
    let (config, tensors) = match at {
        Some(at) => (&bytes[..at], &bytes[at + DIVIDER.len()..]),
        None => (&b""[..], bytes),
    };
    let folder = FOLDER.with(|folder| folder.path().to_owned());
    fs::write(folder.join(veriep_case::config::FILE_NAME), config).expect("room for a configuration");
    fs::write(folder.join(case::TENSORS_NAME), tensors).expect("room for tensors");
    Some(match case::load(&folder) {
        Ok(case) => {
            judge(&case);
            Ok(Box::new(case))
        }
        Err(error) => Err(lines(&error, &folder)),
    })
}

fn judge(case: &Case) {
    assert!(case.problems().is_empty(), "{:?}", case.problems());
    assert_eq!(case.ranks.len(), global_rank::count(&case.shape) as usize);
    for number in (0..global_rank::count(&case.shape)).map(RankId) {
        let ep = global_rank::ep_rank(&case.shape, number);
        assert_eq!(case.inputs(number).check(&case.shape, ep), Ok(()));
    }
}

fn lines(error: &Error, folder: &Path) -> Vec<String> {
    assert_eq!(error.status(), 2, "{error}");
    let lines = error.lines();
    assert!((1..=21).contains(&lines.len()), "{lines:?}");
    for line in &lines {
        assert!(!line.is_empty() && line.chars().count() <= 1010, "{line}");
        assert!(line.chars().all(|c| !c.is_control()), "{line:?}");
        assert!(line.contains(&folder.display().to_string()), "no file is named: {line}");
    }
    lines
}
