//! Collects what the iterators of `kernel_core::plan` give.

use crate::case::RankTensors;
use kernel_core::inputs::Inputs;
use kernel_core::layout::data::{combine_row, dispatch_record};
use kernel_core::layout::record::sent_bytes;
use kernel_core::layout::state::Partition;
use kernel_core::place::Place;
use kernel_core::plan::incast::{self, Incast, Tally};
use kernel_core::plan::order::SendOrder;
use kernel_core::plan::returns::{Received, received, returns};
use kernel_core::plan::route::{self, Send, Sends};
use kernel_core::plan::shared::SharedSplit;
use kernel_core::plan::split;
use kernel_core::shape::Shape;
use kernel_core::units::{CoreId, RankId};

/// Who sends what, as far as it is known.
pub(super) struct Traffic {
    pub(super) shape: Shape,
    /// The same without port offset.
    pub(super) plain: Shape,
    /// Whether the experts are known; if not, only what goes to shared experts is.
    pub(super) known: bool,
    pub(super) ranks: Vec<RankTensors>,
}

/// A row that a core writes into another rank's window, in partition 0.
#[derive(Clone, Copy)]
pub(super) struct Write<T> {
    pub(super) what: T,
    pub(super) to: RankId,
    pub(super) at: Place,
    pub(super) bytes: u64,
}

/// What each core of each rank writes, in its order.
pub(super) type Writes<T> = Vec<Vec<Vec<Write<T>>>>;

impl Traffic {
    pub(super) fn inputs(&self, rank: RankId) -> Inputs<'_> {
        self.ranks[rank.index()].inputs()
    }

    pub(super) fn all_ranks(&self) -> impl Iterator<Item = RankId> + Clone + use<> {
        (0..self.shape.ep_world_size()).map(RankId)
    }

    pub(super) fn cores(&self) -> impl Iterator<Item = CoreId> + use<> {
        (0..self.shape.aiv_num()).map(CoreId)
    }

    /// Rows for every destination, under the all-in rule.
    pub(super) fn send_status(&self, rank: RankId) -> Vec<u32> {
        self.walk(rank, &split::DispatchShare { moe: 0..0, shared: 0..0 }).0
    }

    fn walk(&self, rank: RankId, share: &split::DispatchShare) -> (Vec<u32>, Vec<u32>) {
        let mut send_status = vec![0; route::destinations(&self.shape) as usize];
        let mut slots = vec![0; route::share_len(share) as usize];
        route::walk(&self.shape, rank, &self.inputs(rank), share, &mut send_status, &mut slots);
        (send_status, slots)
    }

    /// Tokens of `rank` that take part.
    pub(super) fn active_tokens(&self, rank: RankId) -> u32 {
        let inputs = self.inputs(rank);
        let tokens = (0..self.shape.bs(rank)).map(kernel_core::units::Token);
        tokens.filter(|&token| inputs.token_is_active(&self.shape, token)).count() as u32
    }

    /// What `core` of `rank` sends in dispatch, in order, into windows of shape `layout`.
    pub(super) fn dispatch(
        &self,
        layout: &Shape,
        rank: RankId,
        core: CoreId,
        order: SendOrder,
        shared: SharedSplit,
    ) -> Vec<Write<Send>> {
        let shape = &self.shape;
        let share = split::dispatch(shape, rank, core);
        let (_, slots) = self.walk(rank, &share);
        let sends = Sends { shape, rank, order, share: &share, slots: &slots };
        let tokens = self.active_tokens(rank);
        let write = |send| {
            let what = shared.resend(shape, rank, send, tokens);
            let at = dispatch_record(layout, Partition::P0, what.home, rank, what.slot);
            Write { what, to: what.home.rank, at, bytes: sent_bytes(layout) }
        };
        sends.iter(&self.inputs(rank)).map(write).collect()
    }

    /// The same for all cores.
    pub(super) fn all_dispatch(&self, layout: &Shape, order: SendOrder, shared: SharedSplit) -> Writes<Send> {
        let of = |rank| self.cores().map(|core| self.dispatch(layout, rank, core, order, shared)).collect();
        self.all_ranks().map(of).collect()
    }

    /// The rows that `rank` has received, in order.
    pub(super) fn received(&self, rank: RankId) -> Vec<Received> {
        received(&self.shape, rank, |source| self.inputs(source)).collect()
    }

    /// What `core` of `rank` sends back of `rows` in combine, in order, each with its number.
    pub(super) fn combine(
        &self,
        rows: &[Received],
        rank: RankId,
        core: CoreId,
        order: SendOrder,
    ) -> Vec<Write<(u32, Received)>> {
        let shape = &self.shape;
        let write = |row: u32| {
            let what = rows[row as usize];
            let at = combine_row(shape, Partition::P0, what.pair.token, what.pair.k);
            Write { what: (row, what), to: what.source, at, bytes: shape.result_bytes() }
        };
        returns(shape, rank, core, order, rows.len() as u32).map(write).collect()
    }

    /// The same for all cores, given what all ranks have received.
    pub(super) fn all_combine(
        &self,
        received: &[Vec<Received>],
        order: SendOrder,
    ) -> Writes<(u32, Received)> {
        let of = |(rank, rows): (RankId, &Vec<_>)| {
            self.cores().map(|core| self.combine(rows, rank, core, order)).collect()
        };
        self.all_ranks().zip(received).map(of).collect()
    }
}

/// The incast of every step.
pub(super) fn incasts<T>(writes: &Writes<T>) -> Vec<Incast> {
    let steps = writes.iter().flatten().map(Vec::len).max().unwrap_or(0);
    let mut tallies = vec![Tally::default(); writes.len()];
    let at = |step: usize| {
        let of_rank = |(rank, cores): (RankId, &Vec<Vec<Write<T>>>)| -> Vec<_> {
            cores.iter().filter_map(|list| Some((rank, list.get(step)?.to))).collect()
        };
        incast::step((0..).map(RankId).zip(writes).flat_map(of_rank), &mut tallies)
    };
    (0..steps).map(at).collect()
}
