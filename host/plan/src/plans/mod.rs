//! Plans: who sends what, where and in which order, as data of `veriep_core::plan`.
//!
//! [`summary`] counts what all ranks of A3 do, [`one_core`] has every step of one core; [`a2`] and [`servers`] have the same for the
//! full mesh and the hierarchy of A2.

pub mod a2;
pub mod direct;
pub mod lists;
pub mod one_core;
pub mod ports;
pub mod servers;
pub mod summary;
pub mod tp;

pub use one_core::ranges;

use core::ops::Range;
use serde::Serialize;
use veriep_core::plan::order::SendOrder;
use veriep_spread::shared::SharedSplit;

/// The request for a plan of A3.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub order: SendOrder,
    pub shared: SharedSplit,
    /// The step whose packets are counted by port.
    pub step: u32,
}

/// A range `[start, end)`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ends(pub [u32; 2]);

/// Bounds of a range, as reports have them.
pub const fn ends(range: &Range<u32>) -> Ends {
    Ends([range.start, range.end])
}
