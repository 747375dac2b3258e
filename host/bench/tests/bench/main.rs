//! The program from outside. Baselines run only where they can be built.
#![cfg(target_os = "linux")]

#[path = "../../../cli/tests/common/mod.rs"]
mod common;

mod against;
mod refused;
mod report;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_veriep-bench");

/// `TRYCMD=overwrite` writes new output; numbers that differ from run to run are `[..]`.
#[test]
fn reports_are_those_of_the_snapshot() {
    trycmd::TestCases::new().case("tests/snapshots/*.trycmd");
}
