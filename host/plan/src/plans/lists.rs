//! Collects what the iterators of `veriep_core::plan` give.

use core::cell::OnceCell;
use std::collections::HashMap;
use veriep_case::case::RankTensors;
use veriep_case::global_rank;
use veriep_core::inputs::Inputs;
use veriep_core::layout::block;
use veriep_core::layout::data::{combine_row, dispatch_record};
use veriep_core::layout::direct::Parts;
use veriep_core::layout::record::sent_bytes;
use veriep_core::layout::state::Partition;
use veriep_core::place::Place;
use veriep_core::plan::experts::ExpertSends;
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::returns::{Received, received, returns};
use veriep_core::plan::route::{self, Send, Sends};
use veriep_core::plan::split;
use veriep_core::protocol::Choices;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, Pair, RankId};
use veriep_spread::incast::{self, Incast, Tally};
use veriep_spread::shared::SharedSplit;

/// Who sends what, as far as it is known. Ranks go by their numbers as members, in an elastic domain by new id.
pub struct Traffic {
    pub shape: Shape,
    pub choices: Choices,
    /// By rank that receives, the row of each source and pair, once it was asked for.
    placed: Vec<OnceCell<HashMap<(RankId, Pair), u32>>>,
    /// The same without port offset.
    pub(super) plain: Shape,
    /// Whether the experts are known; if not, only what goes to shared experts is.
    pub known: bool,
    pub ranks: Vec<RankTensors>,
    /// The names of the ranks in files and reports.
    pub names: Vec<RankId>,
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
    /// Of ranks with these tensors and names.
    pub fn new(
        [shape, plain]: [Shape; 2],
        choices: Choices,
        known: bool,
        ranks: Vec<RankTensors>,
        names: Vec<RankId>,
    ) -> Self {
        let placed = ranks.iter().map(|_| OnceCell::new()).collect();
        Self { shape, choices, placed, plain, known, ranks, names }
    }

    pub(super) fn inputs(&self, rank: RankId) -> Inputs<'_> {
        self.ranks[rank.index()].inputs()
    }

    pub(super) fn all_ranks(&self) -> impl Iterator<Item = RankId> + Clone + use<> {
        (0..self.ranks.len() as u32).map(RankId)
    }

    /// The rank in its EP domain.
    pub(super) const fn ep(&self, rank: RankId) -> RankId {
        global_rank::ep_rank(&self.shape, rank)
    }

    /// Whom `own` calls `to` in its EP domain.
    pub(super) const fn called(&self, own: RankId, to: RankId) -> RankId {
        global_rank::named(self.shape.tp_world_size(), own, to, false)
    }

    /// The other rank of the TP domain, if there is one.
    pub(super) fn peer(&self, own: RankId) -> Option<RankId> {
        let tp = self.shape.tp_world_size();
        let other = RankId(global_rank::tp_rank(&self.shape, own).0 ^ 1);
        (tp == 2).then(|| global_rank::named(tp, own, other, true))
    }

    pub fn name(&self, rank: RankId) -> u32 {
        self.names[rank.index()].0
    }

    pub fn named(&self, name: u32) -> Option<RankId> {
        self.all_ranks().find(|&rank| self.name(rank) == name)
    }

    pub fn cores(&self) -> impl Iterator<Item = CoreId> + use<> {
        (0..self.shape.aiv_num()).map(CoreId)
    }

    /// Rows for every destination, under the all-in rule.
    pub(super) fn send_status(&self, rank: RankId) -> Vec<u32> {
        self.walk(rank, &split::DispatchShare { moe: 0..0, shared: 0..0 }).0
    }

    /// Rows for every destination, and the slots of a share.
    pub(super) fn walk(&self, rank: RankId, share: &split::DispatchShare) -> (Vec<u32>, Vec<u32>) {
        let mut send_status = vec![0; route::destinations(&self.shape) as usize];
        let mut slots = vec![0; route::share_len(share) as usize];
        route::walk(&self.shape, self.ep(rank), &self.inputs(rank), share, &mut send_status, &mut slots);
        (send_status, slots)
    }

    /// Tokens of `rank` that take part.
    pub(super) fn active_tokens(&self, rank: RankId) -> u32 {
        let inputs = self.inputs(rank);
        let tokens = (0..self.shape.bs(self.ep(rank))).map(veriep_core::units::Token);
        tokens.filter(|&token| inputs.token_is_active(&self.shape, token)).count() as u32
    }

    /// The row that `rank`, whatever its part in the group, has for a pair of `source`. Both are ranks of an EP domain.
    pub(super) fn row(&self, rank: RankId, source: RankId, pair: Pair) -> Option<u32> {
        let rows = self.placed[rank.index()].get_or_init(|| {
            let rows = self.received(rank).into_iter().map(|row| (row.source, row.pair));
            rows.zip(0..).collect()
        });
        rows.get(&(source, pair)).copied()
    }

    /// The rows of `rank` for a local expert that precede those of EP rank `source`, and how many it sends itself.
    pub(super) fn rows_before(&self, rank: RankId, local_expert: u32, source: RankId) -> (u32, u32) {
        let rows = self.received(rank).into_iter().map(|row| (row.local_expert, row.source));
        rows.fold((0, 0), |(before, own), at| {
            let slot = (local_expert, source);
            (before + u32::from(at < slot), own + u32::from(at == slot))
        })
    }

    /// The parts of the area where an EP rank receives rows, with direct placement.
    pub(super) const fn parts(&self, rank: RankId) -> Parts {
        Parts::of(&self.shape, rank, self.choices.receive.area(Partition::P0))
    }

    /// Where a send of an EP rank goes in the window of a layout, and how many bytes.
    fn place(&self, layout: &Shape, source: RankId, send: &Send) -> (Place, u64) {
        let home = send.home;
        if !self.choices.receive.is_direct() {
            return (dispatch_record(layout, Partition::P0, home, source, send.slot), sent_bytes(layout));
        }
        // Every pair that is sent has a row.
        let row = self.row(home.rank, source, send.pair).unwrap_or_default();
        (self.parts(home.rank).row(row), layout.payload_bytes())
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
        let (shape, ep) = (&self.shape, self.ep(rank));
        let split::Work { sends: share, experts, .. } = split::work(shape, ep, core);
        let (_, slots) = self.walk(rank, &share);
        let sends = Sends::new(shape, ep, order, &share);
        let inputs = self.inputs(rank);
        let sends: Vec<Send> = match shape.protocol() {
            Protocol::FullmeshV2 => {
                ExpertSends { sends, slots: &slots, experts: &experts }.iter(&inputs).collect()
            }
            _ => sends.iter(&inputs, &slots).collect(),
        };
        let tokens = self.active_tokens(rank);
        let write = |send| {
            let what = shared.resend(shape, ep, send, tokens);
            let (at, bytes) = self.place(layout, ep, &what);
            Write { what, to: self.called(rank, what.home.rank), at, bytes }
        };
        sends.into_iter().map(write).collect()
    }

    /// The same for all cores.
    pub(super) fn all_dispatch(&self, layout: &Shape, order: SendOrder, shared: SharedSplit) -> Writes<Send> {
        let of = |rank| self.cores().map(|core| self.dispatch(layout, rank, core, order, shared)).collect();
        self.all_ranks().map(of).collect()
    }

    /// The rows that `rank` has received itself, in order.
    pub(super) fn received(&self, rank: RankId) -> Vec<Received> {
        received(&self.shape, self.ep(rank), |source| self.inputs(self.called(rank, source))).collect()
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
            let to = self.called(rank, what.source);
            Write { what: (row, what), to, at, bytes: shape.result_bytes() }
        };
        returns(shape, self.ep(rank), core, order, rows).map(write).collect()
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

/// The puts of a record: one, or with fullmesh_v2 one for each block; where, and how many bytes.
pub(super) fn puts(shape: &Shape, record: Place) -> impl Iterator<Item = (Place, u64)> {
    let bytes = sent_bytes(shape);
    let blocks = if shape.protocol() == Protocol::FullmeshV2 { block::count(shape) } else { 0 };
    let whole = (blocks == 0).then_some((record, bytes));
    whole.into_iter().chain((0..blocks).map(move |i| {
        let stream = block::stream(i, bytes);
        (block::block(record, i), stream.end - stream.start)
    }))
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
