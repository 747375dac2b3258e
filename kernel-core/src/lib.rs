//! Mixture-of-Experts dispatch and combine as polled state machines over one [fabric](fabric).
#![no_std]

#[cfg(any(test, feature = "reference"))]
extern crate alloc;

pub mod inputs;
pub mod placement;
#[cfg(any(test, feature = "reference"))]
pub mod reference;
pub mod shape;
pub mod units;
pub mod vector;
