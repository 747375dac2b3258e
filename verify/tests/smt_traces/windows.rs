//! Events on the windows of an A2 group as events of the model.

use crate::memory::Log;
use core::ops::Range;
use std::collections::BTreeMap;
use veriep_core::fabric::Fabric;
use veriep_core::layout::a2_window::{
    FLAG, FLAG1, buffer_chosen, next_flag_place, sent_bytes, tail_flag, window_in,
};
use veriep_core::layout::state::Partition;
use veriep_core::place::{Place, Region};
use veriep_core::plan::split;
use veriep_core::protocol::Operator;
use veriep_core::sim::chooser::Actor;
use veriep_core::units::RankId;
use veriep_verify::smt::model::Step;
use veriep_verify::smt::slots;
use veriep_verify::smt::trace::Event;

/// What the model must know of the windows.
#[derive(Default)]
pub(crate) struct Windows {
    /// By operator, rank, source: the rows of a window. Empty on A3.
    rows: Vec<Vec<Vec<u32>>>,
    /// Transfers that the agent of each rank has posted.
    posted: BTreeMap<RankId, u32>,
    /// Clears of a window, by rank, operator and source, that have not landed.
    unlanded: BTreeMap<(RankId, u32, u32), u32>,
}

impl Windows {
    pub(crate) fn new(rows: Vec<Vec<Vec<u32>>>) -> Self {
        Self { rows, ..Self::default() }
    }
}

impl Log<'_> {
    pub(crate) fn is_a2(&self) -> bool {
        !self.windows.rows.is_empty()
    }

    /// The operator of the transfer that an agent posts now.
    pub(crate) fn posts(&mut self, rank: RankId) -> u32 {
        let posted = self.windows.posted.entry(rank).or_default();
        *posted += 1;
        (*posted - 1) / (self.shape.ep_world_size() - 1)
    }

    /// The source of a window, and where a place is in it.
    fn inside(&self, at: Place) -> Option<(u32, usize)> {
        let (half, pitch) = (self.shape.window_bytes() / 2, self.shape.rank_window());
        let is_window = at.region == Region::Window && at != buffer_chosen(self.shape);
        is_window.then(|| ((at.offset % half / pitch) as u32, (at.offset % half % pitch) as usize))
    }

    fn kind(&self, n: u32) -> Operator {
        self.schedule.operator(n)
    }

    fn rows(&self, n: u32, rank: RankId, source: u32) -> u32 {
        self.windows.rows[n as usize][rank.index()][source as usize]
    }

    fn of_window(&mut self, step: Step, rank: RankId, slot: usize, n: u32) {
        self.trace.push(Event { step, rank: rank.index(), slot, n });
    }

    /// A piece of a transfer has arrived.
    pub(crate) fn arrived(&mut self, rank: RankId, at: Place, bytes: u64, n: u32) {
        let Some((source, start)) = self.inside(at) else { return };
        let len = sent_bytes(self.shape, self.kind(n), self.rows(n, rank, source)) as usize;
        let piece = start..start + bytes as usize;
        for (step, slot) in slots::a2_arrival(self.kind(n), source as usize, len, &piece) {
            self.of_window(step, rank, slot, n);
        }
    }

    /// A core has read some of a window.
    pub(crate) fn read(&mut self, core: Actor, at: Place) {
        let (n, inside) = (self.n(core), self.inside(at));
        if let Some((source, start)) = inside {
            self.of_window(Step::Read, core.member, slots::a2(self.kind(n), source as usize, start), n);
        }
    }

    /// A core has observed a word of a window: one of counts, or perhaps a flag.
    pub(crate) fn observed(&mut self, core: Actor, at: Place, word: u64) {
        let (n, rank) = (self.n(core), core.member);
        let Some((source, start)) = self.inside(at) else { return };
        let tail = tail_flag(self.shape, self.kind(n), self.rows(n, rank, source)) as usize;
        let is_dispatch = self.kind(n) == Operator::Dispatch;
        if is_dispatch && start < FLAG1 as usize {
            self.read(core, at);
        } else if word as u32 == FLAG && (start == tail || is_dispatch && start == FLAG1 as usize) {
            let slot = slots::a2(self.kind(n), source as usize, start);
            let event = Event { step: Step::Take, rank: rank.index(), slot, n };
            // It looks there again to clear it.
            if self.seen.insert(event) {
                self.trace.push(event);
            }
        }
    }

    /// A core stores a word, or that has landed.
    pub(crate) fn stores(&mut self, core: Actor, at: Place, n: u32, by: i32) {
        if let Some((source, _)) = self.inside(at) {
            let unlanded = self.windows.unlanded.entry((core.member, n, source)).or_default();
            *unlanded = unlanded.saturating_add_signed(by);
        }
    }

    /// A core is quiet: the windows of its share that came for the operator before are clear, if nothing in them is a flag to
    /// anybody.
    pub(crate) fn clears(&mut self, core: Actor, fabric: &dyn Fabric) {
        let (n, rank) = (self.n(core), core.member);
        let Some(before) = n.checked_sub(1) else { return };
        let half = if self.schedule.partition(before) == 0 { Partition::P0 } else { Partition::P1 };
        let most = self.shape.rows_to_peer_max(RankId(0));
        let end = [Operator::Dispatch, Operator::Combine].map(|kind| sent_bytes(self.shape, kind, most));
        let places = core::iter::successors(Some(next_flag_place(self.shape, 0)), |&at| {
            Some(next_flag_place(self.shape, at + 1))
        });
        let places: Vec<_> = places.take_while(|&at| at < end[0].max(end[1])).collect();
        for source in split::ranks(self.shape, core.core) {
            let is_flag = |&at: &u64| {
                let word = fabric.observe(window_in(self.shape, half, RankId(source), at));
                word.is_ok_and(|word| word as u32 == FLAG)
            };
            let is_clear = !places.iter().any(is_flag);
            if is_clear && self.windows.unlanded.get(&(rank, before, source)).is_none_or(|&left| left == 0) {
                self.each_slot(Step::Clear, rank, before, source);
            }
        }
    }

    /// All cores of a rank are quiet: its window to itself has landed.
    pub(crate) fn own_window(&mut self, rank: RankId, n: u32) {
        self.each_slot(Step::Write, rank, n, rank.0);
        self.each_slot(Step::Land, rank, n, rank.0);
    }

    fn each_slot(&mut self, step: Step, rank: RankId, n: u32, source: u32) {
        let slots: Range<usize> = 2 * source as usize..2 * source as usize + 2;
        let expected = slots::a2_window(self.kind(n), self.shape.ep_world_size() as usize);
        for slot in slots.filter(|&slot| expected[slot].is_some()) {
            self.of_window(step, rank, slot, n);
        }
    }
}
