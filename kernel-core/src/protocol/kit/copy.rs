//! Copying fields of received rows to the outputs, checked.

use super::rows::{Batch, Cursor, Due, ROWS, Stretch};
use super::tables::write_first;
use super::{Context, Core, given};
use crate::fabric::{Fabric, ProtocolError, Result};
use crate::layout::outputs;
use crate::layout::record::{Tail, Triple, scale_of, triple_of};
use crate::place::{Place, Tensor};
use crate::shape::Shape;
use crate::units::RankId;
use core::ops::Range;

/// A field of received rows: its place in the first row of a stretch, and the distance in bytes from a row to the next.
pub(crate) struct Column<P: Fn(&Stretch) -> Place> {
    pub(crate) first: P,
    pub(crate) pitch: u64,
}

/// Copies the data of the received row at `from` to `row` of the outputs.
#[inline(always)]
pub(crate) fn copy_data<F: Fabric + ?Sized>(
    shape: &Shape,
    fabric: &mut F,
    from: Place,
    row: u32,
) -> Result<()> {
    Ok(fabric.deliver(outputs::expand_x(shape, row), from, shape.payload_bytes())?)
}

/// Copies the triple at `from` to the outputs, if it is the one that is `due`: from `source`, for this rank, and not before
/// the least token. Returns the least token that may follow.
pub(crate) fn copy_triple<F: Fabric + ?Sized>(
    core: Core<'_>,
    fabric: &mut F,
    from: Place,
    source: RankId,
    due: Due,
) -> Result<u32> {
    let bytes = copy_of(fabric, from)?;
    let triple = Expected::of(core, source).check(&bytes, due)?;
    fabric.write(outputs::element(Tensor::AssistInfo, due.row), &bytes)?;
    Ok(triple.token.0 + 1)
}

/// Copies the triples of the rows from `at` on like [`copy_triple`], by one write. Returns the least token that may follow.
pub(crate) fn copy_triples(
    cx: &mut Context<'_, impl Fabric + ?Sized>,
    batch: &Batch,
    triples: &Column<impl Fn(&Stretch) -> Place>,
    at: Cursor,
) -> Result<u32> {
    let fabric = &mut *cx.fabric;
    let mut seen: [&[u8]; ROWS as usize] = [&[]; ROWS as usize];
    let mut left = seen.iter_mut();
    for stretch in &batch.stretches {
        let mut from = (triples.first)(stretch);
        for bytes in left.by_ref().take(stretch.len as usize) {
            *bytes = fabric.bytes(from, Triple::BYTES)?;
            // Another processor has written it, so each read waits for a cache line: all are requested at once.
            fabric.prefetch(bytes);
            from.offset += triples.pitch;
        }
    }
    let mut due = at.due();
    let mut checked = [[0; Triple::BYTES as usize]; ROWS as usize];
    let mut left = checked.iter_mut().zip(&seen);
    for stretch in &batch.stretches {
        let expected = Expected::of(cx.core, stretch.source);
        if stretch.index == 0 {
            due.token = 0;
        }
        for (bytes, seen) in left.by_ref().take(stretch.len as usize) {
            *bytes = array_of(seen)?;
            due.token = expected.check(bytes, due)?.token.0 + 1;
            due.row += 1;
        }
    }
    write_first(fabric, outputs::element(Tensor::AssistInfo, at.row), &checked, batch.len)?;
    Ok(due.token)
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
    fn of(core: Core<'_>, source: RankId) -> Self {
        let columns = Triple::columns_on(core.shape, core.rank, source);
        Self { source, tokens: core.shape.bs(source), columns }
    }

    /// Returns the triple if it is valid and the one that is `due`.
    #[inline(always)]
    fn check(&self, bytes: &[u8; Triple::BYTES as usize], due: Due) -> Result<Triple> {
        let triple = Triple::from_any(bytes);
        let is_one = triple.source == self.source
            && (due.token..self.tokens).contains(&triple.token.0)
            && self.columns.contains(&triple.k);
        if is_one { Ok(triple) } else { Err(ProtocolError::Triple { row: due.row, seen: triple.words() }) }
    }
}

/// Copies the scale at `from` to `row` of the outputs.
pub(crate) fn copy_scale<F: Fabric + ?Sized>(fabric: &mut F, from: Place, row: u32) -> Result<()> {
    let bytes = copy_of::<4, F>(fabric, from)?;
    fabric.write(outputs::element(Tensor::DynamicScales, row), &bytes)?;
    Ok(())
}

/// Copies the scales of a batch to `row` of the outputs and those after it, by one write.
pub(crate) fn copy_scales<F: Fabric + ?Sized>(
    fabric: &mut F,
    batch: &Batch,
    scales: &Column<impl Fn(&Stretch) -> Place>,
    row: u32,
) -> Result<()> {
    let mut copied = [[0; 4]; ROWS as usize];
    let mut left = copied.iter_mut();
    for stretch in &batch.stretches {
        let mut from = (scales.first)(stretch);
        for bytes in left.by_ref().take(stretch.len as usize) {
            *bytes = copy_of(fabric, from)?;
            from.offset += scales.pitch;
        }
    }
    write_first(fabric, outputs::element(Tensor::DynamicScales, row), &copied, batch.len)
}

/// Returns the tail of a record, read back. Its triple is checked again, since other ranks can still write there.
pub(crate) fn tail_of(
    cx: &Context<'_, impl Fabric + ?Sized>,
    record: Place,
    source: RankId,
    due: Due,
) -> Result<Tail> {
    let shape = cx.core.shape;
    let bytes = copy_of(cx.fabric, triple_of(shape, record))?;
    let triple = Expected::of(cx.core, source).check(&bytes, due)?;
    let scale = f32::from_le_bytes(copy_of(cx.fabric, scale_of(shape, record))?);
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
