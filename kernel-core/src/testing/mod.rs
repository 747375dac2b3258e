//! What tests share: small domains, their tensors, a fabric over vectors, groups in lockstep, golden files, what random tests draw.

pub(crate) mod a2_group;
pub(crate) mod domain;
pub(crate) mod fake;
pub(crate) mod golden;
pub(crate) mod group;
pub(crate) mod messages;
pub(crate) mod nic;
pub(crate) mod random;
pub(crate) mod servers;
