//! Generator of the map from logical experts to their physical replicas.

use super::{below, shuffle, stream};
use crate::case::ExpertMap;
use crate::error::Error;
use core::iter::repeat;
use veriep_core::shape::Shape;

/// The stream of the generator that deals experts out; that of elastic domains is behind it.
const STREAM: u64 = u64::MAX - 1;

/// Deals all physical experts out to so many logical ones: one to each, and every other one to any.
pub(super) fn draw(shape: &Shape, logical: u32, seed: u64) -> Result<ExpertMap, Error> {
    let experts = shape.moe_expert_num();
    if !(1..=experts).contains(&logical) {
        let rule = format!("must be in [1, moe_expert_num] (moe_expert_num = {experts})");
        return Err(Error::Request(format!("--logical-experts {logical}: {rule}")));
    }
    let mut rng = stream(seed, STREAM);
    let mut physical: Vec<_> = (0..experts.cast_signed()).collect();
    shuffle(&mut rng, &mut physical);
    let (first, others) = physical.split_at(logical as usize);
    let mut rows: Vec<_> = first.iter().map(|&expert| vec![expert]).collect();
    for &expert in others {
        rows[below(&mut rng, logical) as usize].push(expert);
    }
    let width = rows.iter().map(Vec::len).max().unwrap_or_default();
    let words = rows.iter().flat_map(|row| row.iter().copied().chain(repeat(-1)).take(width)).collect();
    Ok(ExpertMap { words, rows: rows.len() })
}
