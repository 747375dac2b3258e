//! Random tests: the same samples in every run, and others for who asks. Files of other crates include this one.

use proptest::test_runner::{Config, RngSeed};

/// So many samples, drawn by `VERIEP_SEED`. The line that it prints is seen when the test fails.
pub(crate) fn config(cases: u32) -> Config {
    let seed = std::env::var("VERIEP_SEED").map_or(1, |seed| seed.parse().expect("VERIEP_SEED is a number"));
    std::eprintln!("VERIEP_SEED={seed} draws these samples again");
    Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() }
}
