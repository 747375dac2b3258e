//! Mixture-of-Experts dispatch and combine as polled state machines over one [fabric](fabric).
#![no_std]

#[cfg(feature = "reference")]
extern crate alloc;

pub mod inputs;
pub mod placement;
pub mod shape;
pub mod units;
