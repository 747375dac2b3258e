//! verify

pub mod loom;
