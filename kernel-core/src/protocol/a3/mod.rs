//! The A3 protocol (A3 slides): dispatch and combine over one-sided writes into shared memory.
//!
//! A machine is a plain value of one core and one operator. A driver calls `step` until it returns
//! [`Done`](crate::fabric::Progress::Done); each call has one effect that others can see, or a few of one kind, or a few
//! rows each with its flag ([`Env::one_by_one`](super::Env::one_by_one): at most one). Every call gets what the machine does not store: the
//! [`Core`](super::Core), the fabric, the inputs and the [`Scratch`](super::Scratch), which must stay the same from the first step of an
//! operator to its last.
//!
//! The driver must provide the **join**: a core starts an operator only after every core of its rank has ended the one
//! before, and the outputs of that one have landed.

mod combine;
mod dispatch;
mod tp;

pub use combine::Combine;
pub use dispatch::Dispatch;

use crate::plan::{route, split};
use crate::shape::{Protocol, Shape};
use crate::units::{CoreId, RankId, align_up};

/// Returns the words of scratch that any core of the shape needs: slots of its own pairs, then one count per destination,
/// or one per awaited slot and one per local expert; with fullmesh_v2 three per awaited slot.
#[must_use]
pub fn scratch_words(shape: &Shape) -> usize {
    let ranks = shape.ep_world_size();
    let busiest = (0..ranks).map(RankId).max_by_key(|&rank| shape.bs(rank)).unwrap_or_default();
    let cores = (0..shape.aiv_num()).map(CoreId);
    let pairs = cores.map(|core| route::share_len(&split::dispatch(shape, busiest, core)));
    // Core 0 has the largest share; rank 0 holds a shared expert if any rank does, the last rank never.
    let slots = |rank| {
        let slots = split::slots(shape, rank, CoreId(0)).end;
        if shape.protocol() == Protocol::FullmeshV2 { 3 * slots } else { slots + shape.local_experts(rank) }
    };
    let table = route::destinations(shape).max(slots(RankId(0))).max(slots(RankId(ranks.saturating_sub(1))));
    (pairs.max().unwrap_or(0) + table) as usize
}

/// Returns the bytes of scratch that any core of the shape needs: one row as it is computed or as it travels, and the same row in
/// f32 for AddRmsNorm.
#[must_use]
pub fn scratch_bytes(shape: &Shape) -> usize {
    let row = shape.row_bytes().max(shape.payload_bytes()).max(shape.result_bytes());
    let sums = 2 * shape.row_bytes();
    (align_up(row, 32) + sums) as usize
}

#[cfg(test)]
pub(crate) mod tests;
