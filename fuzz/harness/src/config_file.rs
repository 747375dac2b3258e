//! Any bytes as `config.toml`: a configuration that survives being written and read again and that the door judges,
//! or one line that names a line of the text.

use crate::shape_layout;
use veriep_case::config::Config;
use veriep_case::error::one_line;
use veriep_core::shape::{Given, Limits};

/// Reads the bytes. The line that is wrong and why, or what the door says.
///
/// # Panics
/// If reading, writing or judging goes wrong.
pub fn run(bytes: &[u8]) -> Option<Result<shape_layout::Verdict, (usize, String)>> {
    let text = core::str::from_utf8(bytes).ok()?;
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(faults) => {
            let (line, what) = (faults.all[0].line, faults.all[0].to_string());
            assert!((1..=text.split('\n').count()).contains(&line), "line {line} of {text:?}: {what}");
            assert!(!what.is_empty() && !what.contains('\n') && what.len() < 2000, "{what:?}");
            assert!(one_line(&what).chars().all(|c| !c.is_control()));
            return Some(Err((line, what)));
        }
    };
    let written = config.to_toml().expect("what came from TOML is TOML");
    let again = Config::parse(&written).unwrap_or_else(|faults| panic!("{written}: {faults}"));
    // Debug, since a NaN is not equal to itself.
    assert_eq!(format!("{again:?}"), format!("{config:?}"), "written and read again");
    Some(Ok(shape_layout::judge(&config.as_core(Given::empty()), Limits::Product)))
}
