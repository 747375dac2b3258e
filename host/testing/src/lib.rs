//! Groups inside tests: [`trial`] runs small ones over every memory, [`twins`] leaves out what a protocol needs, and [`tier`]
//! says how much of a test is run.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod trial;
pub mod twins;

/// What a test tries: `all` in `.ci/prove`, which sets `VERIEP_THOROUGH`, else a `few` that stand for all.
pub fn tier<T>(few: T, all: T) -> T {
    if std::env::var_os("VERIEP_THOROUGH").is_some() { all } else { few }
}
