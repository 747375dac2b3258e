//! `elastic_info` of a case: who is left, and under which names.
//!
//! In memory everything goes by new ids: [`Case::shape`](super::Case) is the survivors' and its tensors are in
//! their order. Files, options and reports name physical ranks.

use veriep_core::shape::{Elastic as Left, Shape, Violation};
use veriep_core::units::RankId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// `elastic_info`, switched on.
    pub info: Vec<i32>,
    pub whole: Shape,
    pub left: Left,
}

/// The shape that a case runs in, and how it came to be smaller than `whole`, if `info` makes it so.
///
/// # Errors
/// The rules that `info` breaks.
pub fn survivors(whole: Shape, info: Option<Vec<i32>>) -> Result<(Shape, Option<Elastic>), Vec<Violation>> {
    let Some(info) = info else { return Ok((whole, None)) };
    let mut found = Vec::new();
    match Left::check(&whole, &info, &mut |violation| found.push(*violation)) {
        Some(left) => Ok((whole.survivors(&left), Some(Elastic { info, whole, left }))),
        None if found.is_empty() => Ok((whole, None)),
        None => Err(found),
    }
}

impl Elastic {
    /// The physical name of a new id.
    pub fn name(&self, new: RankId) -> RankId {
        self.left.physical(new).expect("a new id below R'")
    }
}
