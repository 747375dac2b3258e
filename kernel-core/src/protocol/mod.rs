//! The machines: one core's dispatch or combine, by protocol.

pub mod a2;
pub mod a3;
pub mod a3_v2;
pub mod direct;
pub mod hierarchy;
