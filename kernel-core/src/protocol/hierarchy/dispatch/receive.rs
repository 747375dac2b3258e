//! The role of a receiver: counts from the relays of its server, and after them rows.
//!
//! A core reads the counts of all slots in order, since its share begins after the rows of earlier shares. Rows of a slot
//! are copied as soon as the counts of it and of all earlier slots have arrived.

use super::super::Now;
use super::Turn;
use crate::fabric::{Fabric, Flag, Progress, ProtocolError, Result, Wait};
use crate::layout::outputs;
use crate::layout::record::Triple;
use crate::layout::relay::{self, ROW, Tail, behind};
use crate::place::{Place, Tensor};
use crate::protocol::kit::{self, Core, Due, Outcome, copy_data, rows_within};
use crate::shape::{Shape, TokenNums};
use crate::units::RankId;

/// The role of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Receive {
    slot: u32,
    /// The number of rows of all earlier slots.
    before: u32,
    /// The number of rows of all slots before this one's local expert.
    before_expert: u32,
    /// The number of rows of the slot.
    rows: u32,
    phase: Phase,
}

phases! {
    enum Phase of "Receive." in Receive {
        /// Await the count of the slot.
        Count => Entry,
        /// Write its entry of `ep_recv_counts`.
        Entry => Nums | X,
        /// Write the expert's entry of `expert_token_nums`, after its last source.
        Nums => X,
        /// Copy row `i` of the slot.
        X { i: u32, token: u32 } => Count | Scale | Info,
        /// Copy its scale.
        Scale { i: u32, token: u32 } => Info,
        /// Copy its source: a token that is at least `token`.
        Info { i: u32, token: u32 } => Weight,
        /// Copy its weight.
        Weight { i: u32, token: u32 } => X,
    }
}

go! { Receive }

impl Receive {
    pub(super) const fn new() -> Self {
        Self { slot: 0, before: 0, before_expert: 0, rows: 0, phase: Phase::Count }
    }

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Fabric + ?Sized>) -> Outcome {
        let Turn { core, fabric, .. } = cx;
        let (core, fabric) = (*core, &mut **fabric);
        if self.slot >= core.work.slots.end || core.work.slots.is_empty() {
            return Ok(Progress::Done);
        }
        let shape = core.shape;
        let (local_expert, source) = self.slot_of(shape);
        let is_last = source.0 + 1 == shape.ep_world_size();
        // A field that follows row `i`.
        let tail = |i, field| {
            let slot = relay::dispatch_slot(shape, local_expert, source, i);
            behind(slot, ROW + shape.payload_bytes() + field)
        };
        let next = match self.phase {
            Phase::Count => return self.count(core, fabric),
            Phase::Entry => {
                let sum = self.before + self.rows;
                fabric.write(outputs::element(Tensor::EpRecvCounts, self.slot), &sum.to_le_bytes())?;
                if is_last { Phase::Nums } else { Phase::X { i: 0, token: 0 } }
            }
            Phase::Nums => {
                let sum = self.before + self.rows;
                let nums = match shape.token_nums() {
                    TokenNums::PrefixSums => sum,
                    TokenNums::Counts => sum - self.before_expert,
                };
                let at = outputs::element(Tensor::ExpertTokenNums, local_expert);
                fabric.write(at, &u64::from(nums).to_le_bytes())?;
                Phase::X { i: 0, token: 0 }
            }
            Phase::X { i, .. } if i >= self.rows => {
                self.next_slot();
                return self.go(Phase::Count);
            }
            Phase::X { i, token } => {
                let at = behind(relay::dispatch_slot(shape, local_expert, source, i), ROW);
                copy_data(shape, fabric, at, self.before + i)?;
                match shape.row_format().scale {
                    Some(_) => Phase::Scale { i, token },
                    None => Phase::Info { i, token },
                }
            }
            Phase::Scale { i, token } => {
                kit::copy_scale(fabric, tail(i, 0), self.before + i)?;
                Phase::Info { i, token }
            }
            Phase::Info { i, token } => {
                let due = Due { row: self.before + i, token };
                let token = copy_info(*core, fabric, tail(i, Tail::TRIPLE), source, due)?;
                Phase::Weight { i, token }
            }
            Phase::Weight { i, token } => {
                let weight = kit::copy_of::<4, _>(fabric, tail(i, Tail::WEIGHT))?;
                fabric.write(outputs::element(Tensor::ExpandScales, self.before + i), &weight)?;
                Phase::X { i: i + 1, token }
            }
        };
        self.go(next)
    }

    /// Takes the count of an own slot, or all that have arrived of the slots before them.
    fn count<F: Fabric + ?Sized>(&mut self, core: Now<'_>, fabric: &F) -> Outcome {
        let (shape, first) = (core.shape, self.slot);
        loop {
            let (local_expert, source) = self.slot_of(shape);
            let at = relay::count(shape, core.epoch.partition(), local_expert, source);
            let awaited = || {
                let relay = shape.relay(source, core.work.server);
                Wait::new(Flag::RelayedCount, relay, &[source.0, local_expert])
            };
            let Some(rows) = core.epoch.number_at(fabric, at, awaited)? else {
                return Ok(if self.slot == first { Progress::Pending(awaited()) } else { Progress::Stepped });
            };
            self.take(*core, local_expert, source, rows)?;
            if core.work.slots.contains(&self.slot) {
                return self.go(Phase::Entry);
            }
            self.next_slot();
        }
    }

    /// Returns local expert and source of the slot.
    const fn slot_of(&self, shape: &Shape) -> (u32, RankId) {
        let (local_expert, source) = shape.by_ranks(self.slot);
        (local_expert, RankId(source))
    }

    fn take(&mut self, core: Core<'_>, local_expert: u32, source: RankId, rows: u32) -> Result<()> {
        let max = core.shape.bs(source);
        if rows > max {
            return Err(ProtocolError::Count { source, local_expert, seen: rows, max });
        }
        rows_within(u64::from(self.before) + u64::from(rows), core.shape.rows_max(core.rank))?;
        if source.0 == 0 {
            self.before_expert = self.before;
        }
        self.rows = rows;
        Ok(())
    }

    fn next_slot(&mut self) {
        let before = self.before + self.rows;
        *self = Self { slot: self.slot + 1, before, rows: 0, ..*self };
    }
}

/// Copies the triple at `at` to the outputs, if it is the one that is `due`: from `source`, and not before the least token.
/// Returns the least token that may follow.
fn copy_info<F: Fabric + ?Sized>(
    core: Core<'_>,
    fabric: &mut F,
    at: Place,
    source: RankId,
    due: Due,
) -> Result<u32> {
    let row = due.row;
    let bytes = kit::copy_of::<{ Triple::BYTES as usize }, F>(fabric, at)?;
    let (from, token, _) =
        relay::read_triple(core.shape, &bytes).map_err(|seen| ProtocolError::Triple { row, seen })?;
    if from != source || token.0 < due.token {
        let seen = [from.0.cast_signed(), token.0.cast_signed(), 0];
        return Err(ProtocolError::Triple { row, seen });
    }
    fabric.write(outputs::element(Tensor::AssistInfo, row), &bytes)?;
    Ok(token.0 + 1)
}
