//! Copying fields of received rows to the outputs, checked.

use super::rows::{ROWS, Rows, Stretch};
use super::tables::write_first;
use super::{Bound, Cx, Types, given};
use crate::fabric::{Fabric, ProtocolError, Result};
use crate::layout::outputs;
use crate::layout::record::{Tail, Triple, scale_of, triple_of};
use crate::place::{Place, Tensor};
use crate::units::RankId;
use core::ops::Range;
/// Writes the triple at `at` to `row` of the outputs, if it is valid: from `source`, for this rank, and, since tokens rise
/// within a slot, not before token `first`. Returns the least token that may follow.
pub(crate) fn copy_triple<F: Fabric + ?Sized, V>(
    env: Bound<'_, V>,
    fabric: &mut F,
    at: Place,
    source: RankId,
    (row, first): (u32, u32),
) -> Result<u32> {
    let bytes = copy_of(fabric, at)?;
    let triple = Expected::of(env, source).check(&bytes, (row, first))?;
    fabric.write(outputs::element(Tensor::AssistInfo, row), &bytes)?;
    Ok(triple.token.0 + 1)
}

/// Writes the triples of some rows like [`copy_triple`], by one write. A stretch's triples begin at `at` and are `pitch`
/// bytes apart.
pub(crate) fn copy_triples(
    cx: &mut Cx<'_, impl Types>,
    rows: &Rows,
    (at, pitch): (impl Fn(&Stretch) -> Place, u64),
    (mut row, mut first): (u32, u32),
) -> Result<u32> {
    let fabric = &mut *cx.fabric;
    let mut seen: [&[u8]; ROWS as usize] = [&[]; ROWS as usize];
    let mut left = seen.iter_mut();
    for stretch in &rows.stretches {
        let mut at = at(stretch);
        for bytes in left.by_ref().take(stretch.len as usize) {
            *bytes = fabric.bytes(at, Triple::BYTES)?;
            // Another processor has written it, so each read waits for a cache line: all are requested at once.
            fabric.prefetch(bytes);
            at.offset += pitch;
        }
    }
    let all = outputs::element(Tensor::AssistInfo, row);
    let mut triples = [[0; Triple::BYTES as usize]; ROWS as usize];
    let mut left = triples.iter_mut().zip(&seen);
    for stretch in &rows.stretches {
        let expected = Expected::of(cx.env, stretch.source);
        if stretch.index == 0 {
            first = 0;
        }
        for (bytes, seen) in left.by_ref().take(stretch.len as usize) {
            *bytes = array_of(seen)?;
            first = expected.check(bytes, (row, first))?.token.0 + 1;
            row += 1;
        }
    }
    write_first(fabric, all, &triples, rows.len)?;
    Ok(first)
}

/// The valid triples of a slot.
struct Expected {
    source: RankId,
    tokens: u32,
    columns: Range<u32>,
}

impl Expected {
    /// Creates the check of rows from `source`.
    #[inline]
    fn of<V>(env: Bound<'_, V>, source: RankId) -> Self {
        let columns = Triple::columns_on(env.shape, env.rank, source);
        Self { source, tokens: env.shape.bs(source), columns }
    }

    /// Returns the triple of `row`, if it is valid and, since tokens rise within a slot, not before token `first`.
    #[inline(always)]
    fn check(&self, bytes: &[u8; Triple::BYTES as usize], (row, first): (u32, u32)) -> Result<Triple> {
        let triple = Triple::from_any(bytes);
        let is_one = triple.source == self.source
            && (first..self.tokens).contains(&triple.token.0)
            && self.columns.contains(&triple.k);
        if is_one { Ok(triple) } else { Err(ProtocolError::Triple { row, seen: triple.words() }) }
    }
}

/// Writes the scale at `at` to `row` of the outputs.
pub(crate) fn copy_scale<F: Fabric + ?Sized>(fabric: &mut F, at: Place, row: u32) -> Result<()> {
    let bytes = copy_of::<4, F>(fabric, at)?;
    fabric.write(outputs::element(Tensor::DynamicScales, row), &bytes)?;
    Ok(())
}

/// Writes the scales of some rows, by one write; they lie as in [`copy_triples`].
pub(crate) fn copy_scales<F: Fabric + ?Sized>(
    fabric: &mut F,
    rows: &Rows,
    (at, pitch): (impl Fn(&Stretch) -> Place, u64),
    row: u32,
) -> Result<()> {
    let mut scales = [[0; 4]; ROWS as usize];
    let mut left = scales.iter_mut();
    for stretch in &rows.stretches {
        let mut at = at(stretch);
        for bytes in left.by_ref().take(stretch.len as usize) {
            *bytes = copy_of(fabric, at)?;
            at.offset += pitch;
        }
    }
    write_first(fabric, outputs::element(Tensor::DynamicScales, row), &scales, rows.len)
}

/// Returns the tail of a record, read back. Its triple is checked again, since other ranks can still write there.
pub(crate) fn tail_of(cx: &Cx<'_, impl Types>, at: Place, source: RankId, rows: (u32, u32)) -> Result<Tail> {
    let (shape, fabric) = (cx.env.shape, &*cx.fabric);
    let bytes = copy_of(fabric, triple_of(shape, at))?;
    let triple = Expected::of(cx.env, source).check(&bytes, rows)?;
    let scale = f32::from_le_bytes(copy_of(fabric, scale_of(shape, at))?);
    Ok(Tail::new(shape, scale, triple))
}

/// Returns a copy of `N` bytes of the window, so that the checked bytes are the written ones.
pub(crate) fn copy_of<const N: usize, F: Fabric + ?Sized>(fabric: &F, at: Place) -> Result<[u8; N]> {
    array_of(fabric.bytes(at, N as u64)?)
}

/// Converts what a fabric returned for `N` bytes.
fn array_of<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| given("the fabric returned bytes of another length"))
}
