//! Shared parts of tests: small domains, their tensors, groups on simulated memory, golden files, random tests.

pub(crate) mod domain;
pub(crate) mod golden;
pub(crate) mod group;
pub(crate) mod phases;
pub(crate) mod random;
