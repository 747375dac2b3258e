//! Defects of memory, fabrics and agents: a layer around the fabric of a core of A3, and what is bent beneath all fabrics. The machines stay as they are, and a model must fail. What a defect needs
//! to be seen, traffic, rounds or cores, is at the test that catches it.

use super::cells::{LoomCells, LoomFabric, RankView, forget, renew, unfenced};
use super::domain::Seated;
use super::memory::Outputs;
use crate::defects::Defect;
use core::sync::atomic::Ordering;
use std::rc::Rc;
use veriep_core::fabric::coherent::Cells;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::Transfer;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::a2_message::{DOORBELL, MESSAGE_SLOT, doorbell};
use veriep_core::layout::a2_window::{buffer_chosen, half_start};
use veriep_core::layout::state::{CORE_RECORD, CORE_WORDS, Operator, Partition, Slots, core_word};
use veriep_core::place::{Place, Region};
use veriep_core::sync::flag::ARRIVED;
use veriep_core::units::RankId;

/// The ordering that a defect makes of the one that a fabric asks for.
pub(super) fn ordering(defect: Defect, by_agent: bool, at: Place, asked: Ordering) -> Ordering {
    let is_relaxed = match (defect, asked) {
        (Defect::RelaxedPublish, Ordering::Release) | (Defect::RelaxedObserve, Ordering::Acquire) => {
            !by_agent
        }
        (Defect::RelaxedTransfer, Ordering::Release) | (Defect::RelaxedAgent, Ordering::Acquire) => by_agent,
        (Defect::RelaxedDoorbell, Ordering::Release) => at == doorbell(),
        _ => false,
    };
    if is_relaxed { Ordering::Relaxed } else { asked }
}

/// Whether rows go past the caches.
pub(super) const fn go_past_caches(defect: Defect) -> bool {
    matches!(
        defect,
        Defect::PastCaches
            | Defect::NoFenceBeforePublish
            | Defect::NoFenceInQuiet
            | Defect::NoFence
            | Defect::NoFenceAtTheEnd
    )
}

impl RankView {
    /// Where a place is, if two are one.
    pub(super) fn folded(&self, at: Place) -> Place {
        let offset = match (self.defect, at.region) {
            (Defect::OneMessageSlot, Region::State) if at.offset < DOORBELL => at.offset % MESSAGE_SLOT,
            (Defect::OneHalf, Region::Window | Region::WindowOut) if at != buffer_chosen(&self.shape) => {
                at.offset % half_start(&self.shape, Partition::P1)
            }
            _ => at.offset,
        };
        Place { offset, ..at }
    }
}

/// What a transfer is delivered in, one after the other.
pub(super) fn in_parts(defect: Defect, transfer: &Transfer) -> Vec<Transfer> {
    let rest = transfer.len.saturating_sub(8);
    if defect != Defect::LastWordFirst || rest == 0 {
        return vec![*transfer];
    }
    let after = |place: Place| Place { offset: place.offset + rest, ..place };
    let last = Transfer { from: after(transfer.from), at: after(transfer.at), len: 8, ..*transfer };
    vec![last, Transfer { len: rest, ..*transfer }]
}

/// A core's fabric, bent as its cells say.
#[derive(Debug)]
pub(super) struct Bent {
    fabric: LoomFabric,
    /// Puts that a later publish lets land.
    puts: Vec<(RankId, Place, Vec<u8>)>,
    /// Clears that the next quiet is to let land.
    clears: Vec<(Place, u64)>,
    /// Clears that land when the operator has ended.
    passed: Vec<(Place, u64)>,
}

impl Bent {
    pub(super) fn new(cells: LoomCells) -> Self {
        Self { fabric: LoomFabric::from(cells), puts: Vec::new(), clears: Vec::new(), passed: Vec::new() }
    }

    fn defect(&self) -> Defect {
        self.fabric.cells().defect()
    }
}

impl Seated for Bent {
    /// The driver has dropped the fabric of the operator before.
    fn begin(&mut self, _: usize, outputs: Rc<Outputs>) {
        drop(renew(&mut self.fabric, outputs));
    }

    fn ended(&mut self) -> Result<(), Fault> {
        if self.defect() == Defect::NoFenceAtTheEnd {
            forget(&mut self.fabric);
        }
        self.passed.drain(..).try_for_each(|(at, word)| self.fabric.store(at, word))
    }
}

impl Middleware for Bent {
    veriep_core::around! { fabric: LoomFabric, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        match self.defect() {
            Defect::NoPut => {}
            Defect::FlagFirst => self.puts.push((to, at, [row, tail].concat())),
            _ => return self.fabric.put(to, at, row, tail),
        }
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        match self.defect() {
            Defect::RelaxedReady if is_ready_word(at) => {
                self.fabric.cells().store(to, at, word, Ordering::Relaxed)
            }
            Defect::NoFenceBeforePublish | Defect::NoFence => {
                unfenced(&mut self.fabric, |fabric| fabric.publish(to, at, word))
            }
            Defect::FlagFirst => {
                self.fabric.publish(to, at, word)?;
                let mut puts = self.puts.extract_if(.., |(rank, place, _)| {
                    *rank == to && place.region.is_of_tp() == at.region.is_of_tp() || is_core_word(at)
                });
                puts.try_for_each(|(to, at, bytes)| self.fabric.put(to, at, &bytes, &[]))
            }
            Defect::OneBarrierWord => self.fabric.publish(to, first_word(at), word),
            _ => self.fabric.publish(to, at, word),
        }
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        match self.defect() {
            Defect::NoFenceInQuiet | Defect::NoFence => {
                return unfenced(&mut self.fabric, LoomFabric::quiet);
            }
            Defect::LateClear => self.passed.append(&mut self.clears),
            _ => self.clears.drain(..).try_for_each(|(at, word)| self.fabric.store(at, word))?,
        }
        self.fabric.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let (fabric, core) = (&self.fabric, self.fabric.cells().core());
        // The first barrier of a group has the odd word; no core carries a sum there.
        let first = core_word(core, 1);
        let is_of_first = is_core_word(at) && at.offset % CORE_RECORD == first.offset % CORE_RECORD;
        match self.defect() {
            Defect::NoBarrier if is_of_first => fabric.observe(first),
            Defect::BarrierOfLowerCores if is_of_first && at > first => fabric.observe(first),
            Defect::OneBarrierWord if is_core_word(at) => {
                let seen = fabric.observe(first_word(at))?;
                let (sums, epoch) = (seen << 2 >> 2, seen >> 62);
                let asked = fabric.observe(core_word(core, 0))? >> 62;
                let ahead = epoch.wrapping_sub(asked) % 4 == 1;
                let behind = asked.wrapping_sub(epoch) % 4 == 1;
                let shown = if ahead { asked } else { asked.wrapping_sub(2) % 4 };
                Ok(if ahead || behind { shown << 62 | sums } else { seen })
            }
            Defect::OneDispatchPartition if fabric.cells().is_selector(Operator::Dispatch, at) => Ok(0),
            Defect::OneCombinePartition if fabric.cells().is_selector(Operator::Combine, at) => Ok(0),
            Defect::CombineWaitsForDispatch
                if fabric.observe(Slots::Shipped.dispatch_status(Partition::P0, 2))? == 0 =>
            {
                Ok(0)
            }
            Defect::CombineIgnoresFlag if at == Slots::Shipped.combine_status(Partition::P0, 1) => {
                Ok(ARRIVED)
            }
            _ => fabric.observe(at),
        }
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        // A selector is flipped as ever: a core reads it before the next quiet.
        let is_clear = self.fabric.cells().private(at).is_none();
        match self.defect() {
            Defect::NoClear if is_clear => {}
            Defect::ClearsAtQuiet | Defect::LateClear if is_clear => self.clears.push((at, word)),
            _ => return self.fabric.store(at, word),
        }
        Ok(())
    }
}

fn is_ready_word(at: Place) -> bool {
    let ready = |half| [0, 1].map(|rank| Slots::Shipped.combine_status(half, rank));
    [Partition::P0, Partition::P1].map(ready).as_flattened().contains(&at)
}

fn is_core_word(at: Place) -> bool {
    at.region == Region::State && at.offset >= CORE_WORDS
}

/// The place of a core's one word.
fn first_word(at: Place) -> Place {
    if is_core_word(at) { Place::state(at.offset / CORE_RECORD * CORE_RECORD) } else { at }
}
