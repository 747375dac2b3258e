//! Random tests: the same samples in every run, and others on request. Files of other crates include this one.

use proptest::test_runner::{Config, RngSeed};

/// Returns a configuration with that many samples, seeded by `VERIEP_SEED`. It prints both: the test runner shows the line
/// when the test fails.
pub(crate) fn config(cases: u32) -> Config {
    let seed = std::env::var("VERIEP_SEED").map_or(1, |seed| match seed.parse() {
        Ok(seed) => seed,
        Err(_) => panic!("VERIEP_SEED={seed:?}: must be a number from 0 to 2^64 - 1"),
    });
    std::eprintln!("VERIEP_SEED={seed} draws these {cases} samples again");
    Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() }
}
