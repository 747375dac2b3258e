//! What tests share: small domains, their tensors, a fabric over vectors, a group in lockstep, golden files.

pub(crate) mod domain;
pub(crate) mod fake;
pub(crate) mod golden;
pub(crate) mod group;
