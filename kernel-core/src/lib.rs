//! Mixture-of-Experts dispatch and combine as polled state machines over one [fabric].
#![no_std]

#[cfg(any(test, feature = "reference"))]
extern crate alloc;

pub mod a3;
pub mod fabric;
pub mod inputs;
pub mod layout;
pub mod place;
pub mod placement;
pub mod plan;
#[cfg(any(test, feature = "reference"))]
pub mod reference;
pub mod shape;
pub mod sync;
pub mod units;
pub mod vector;
