//! The A3 protocol (seed 002): dispatch and combine over one-sided writes into shared memory.
//!
//! A machine is a plain value of one core and one operator. Whoever drives it calls `step` until it answers
//! [`Done`](crate::fabric::Progress::Done); each call has at most one effect that others can see. What a machine
//! must not carry comes with every call: the [`Env`], the fabric, the inputs and the scratch [`Ub`], which must
//! be the same from the first step of an operator to its last.
//!
//! The driver owes the **join**: a core starts an operator only after every core of its rank has ended the one
//! before, and the outputs of that one have landed.

mod combine;
mod dispatch;

pub use combine::{Combine, Returned};
pub use dispatch::Dispatch;
pub(crate) use dispatch::{CHUNK, write_words};

use crate::fabric::ProtocolError;
use crate::plan::order::SendOrder;
use crate::plan::split::Work;
use crate::plan::{route, split};
use crate::shape::Shape;
use crate::units::{CoreId, RankId, align_up};

/// What stays the same for a core over a group's life.
#[derive(Clone, Debug)]
pub struct Env<'a, V> {
    shape: &'a Shape,
    rank: RankId,
    core: CoreId,
    order: SendOrder,
    vector: V,
    work: Work,
}

impl<'a, V> Env<'a, V> {
    /// The constants of `core` of `rank`, which sends in `order` and lets `vector` work on rows.
    #[must_use]
    pub fn new(shape: &'a Shape, rank: RankId, core: CoreId, order: SendOrder, vector: V) -> Self {
        Self { shape, rank, core, order, vector, work: split::work(shape, rank, core) }
    }

    /// The work of this core.
    #[must_use]
    pub const fn work(&self) -> &Work {
        &self.work
    }
}

/// A core's scratch for one operator (seed: the unified buffer). Its content need not be kept between
/// operators.
#[derive(Debug)]
pub struct Ub<'a> {
    /// At least [`ub_words`].
    pub words: &'a mut [u32],
    /// At least [`ub_bytes`].
    pub row: &'a mut [u8],
}

/// Words of scratch that any core of the shape needs: slots of its own pairs, then one count per
/// destination or per awaited slot.
#[must_use]
pub fn ub_words(shape: &Shape) -> usize {
    let ranks = shape.ep_world_size();
    let busiest = (0..ranks).map(RankId).max_by_key(|&rank| shape.bs(rank)).unwrap_or_default();
    let cores = (0..shape.aiv_num()).map(CoreId);
    let pairs = cores.map(|core| route::share_len(&split::dispatch(shape, busiest, core)));
    // Core 0 has the largest share; rank 0 holds a shared expert if any does, the last one never.
    let slots = |rank| split::slots(shape, rank, CoreId(0)).end;
    let table = route::destinations(shape).max(slots(RankId(0))).max(slots(RankId(ranks.saturating_sub(1))));
    (pairs.max().unwrap_or(0) + table) as usize
}

/// Bytes of scratch that any core of the shape needs: one row.
#[must_use]
pub const fn ub_bytes(shape: &Shape) -> usize {
    align_up(shape.row_bytes(), 32) as usize
}

fn internal(what: &'static str) -> ProtocolError {
    ProtocolError::Internal(what)
}

#[cfg(test)]
mod tests;
