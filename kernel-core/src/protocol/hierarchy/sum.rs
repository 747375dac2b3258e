//! The sums of combine: over a token's rows inside a server, and over the servers' partial sums.

use super::Now;
use crate::fabric::{Fabric, Result, prefetches};
use crate::layout::relay::{ROW, WEIGHT_BYTES, behind, combine_slot};
use crate::layout::result;
use crate::protocol::kit::{given, internal};
use crate::shape::K_MAX;
use crate::units::Token;
use crate::vector::{Term, cells};

/// Computes the partial sum of a token of this rank's namesake on `server`, of `pairs` rows in the near area, into `out` in
/// its wire format: rounded, or in int8 blocks made from the f32 sum.
pub(super) fn partial<F: Fabric + ?Sized>(
    core: Now<'_>,
    fabric: &F,
    (server, token, pairs): (u32, Token, u32),
    sums: &mut [u8],
    out: &mut [u8],
) -> Result<()> {
    let shape = core.shape;
    let mut terms = heapless::Vec::<Term<'_>, K_MAX>::new();
    for position in 0..pairs {
        let at = behind(combine_slot(shape, server, token, position), ROW);
        let bytes = fabric.bytes(at, shape.row_bytes() + WEIGHT_BYTES)?;
        let (row, weight) =
            bytes.split_last_chunk().ok_or(given("the fabric returned bytes of another length"))?;
        terms
            .push(Term::row(f32::from_le_bytes(*weight), row))
            .map_err(|_| internal("more rows than K allows"))?;
    }
    if shape.result_format().scale.is_some() {
        sums.fill(0);
        core.vector.accumulate(shape.dtype(), &terms, prefetches(fabric), sums);
        let (data, scales) = result::split_mut(shape, out);
        core.vector.quantise_sums(shape.dtype(), sums, data, scales);
    } else {
        core.vector.weighted_sum(shape.dtype(), &terms, prefetches(fabric), cells(out));
    }
    Ok(())
}
