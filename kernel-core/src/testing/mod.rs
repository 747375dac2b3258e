//! What tests share: small domains, their tensors, groups on simulated memory, golden files, what random tests draw.

pub(crate) mod domain;
pub(crate) mod golden;
pub(crate) mod group;
pub(crate) mod random;
