//! verify

pub mod smt;
