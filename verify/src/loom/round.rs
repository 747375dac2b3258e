//! One round: who sends what, and what the reference says that dispatch and combine must put out.

use veriep_core::inputs::{Inputs, Mask};
use veriep_core::layout::record::Triple;
use veriep_core::place::Tensor;
use veriep_core::protocol::CombineInputs;
use veriep_core::reference::Cluster;
use veriep_core::reference::numerics::add_rows;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// Who sends to which experts, `[rank][token][k]`; a token without experts is inactive.
pub type Traffic<'a> = &'a [&'a [&'a [i32]]];

/// A round of the whole domain.
#[derive(Clone, Debug)]
pub struct Round {
    ranks: Vec<RankRound>,
}

#[derive(Clone, Debug, Default)]
struct RankRound {
    x: Vec<u8>,
    expert_ids: Vec<i32>,
    expert_scales: Vec<f32>,
    mask: Vec<bool>,
    /// What dispatch must put out, by number of tensor, and in `x_out` what combine must.
    expected: [Vec<u8>; Tensor::ALL.len()],
    y: Vec<u8>,
}

impl Round {
    /// Round number `number` of a domain. Its rows differ from those of all other ranks, tokens and rounds
    /// below 8, so that a row left over from an earlier one is a wrong result.
    pub fn new(shape: &Shape, number: u32, traffic: Traffic<'_>) -> Self {
        let ranks = (0..).zip(traffic);
        let mut round = Self { ranks: ranks.map(|(rank, t)| bring(shape, number, rank, t)).collect() };
        round.ask_the_oracle(shape);
        round
    }

    /// What `rank` brings.
    pub fn inputs(&self, rank: RankId) -> Inputs<'_> {
        let rank = &self.ranks[rank.index()];
        Inputs {
            x: &rank.x,
            expert_ids: &rank.expert_ids,
            expert_scales: &rank.expert_scales,
            mask: Mask::Pairs(&rank.mask),
            ..Inputs::default()
        }
    }

    /// Rows that `from` sends to the experts of `to`, one for each of its pairs.
    pub(super) fn rows(&self, shape: &Shape, from: RankId, to: RankId) -> u32 {
        let RankRound { expert_ids, mask, .. } = &self.ranks[from.index()];
        let sent = expert_ids.iter().zip(mask).filter(|(_, active)| **active).map(|(id, _)| *id as u32);
        sent.map(|id| u32::from(id / shape.local_expert_num() == to.0)).sum()
    }

    /// What the experts of `rank` return.
    pub fn combine_inputs(&self, rank: RankId) -> CombineInputs<'_> {
        CombineInputs::of(&self.ranks[rank.index()].y, |tensor| self.expected(rank, tensor))
    }

    /// Tokens become flags from end to end, and so does what experts make of them: every bit is set, which the sum keeps
    /// a NaN.
    pub fn fill_with_flags(&mut self, shape: &Shape) {
        for rank in &mut self.ranks {
            rank.x.fill(0xFF);
        }
        self.ask_the_oracle(shape);
    }

    /// What must be at the start of an output of `rank` when its operator has ended.
    pub fn expected(&self, rank: RankId, tensor: Tensor) -> &[u8] {
        &self.ranks[rank.index()].expected[tensor as usize]
    }

    fn ask_the_oracle(&mut self, shape: &Shape) {
        let tp_ranks = shape.tp_world_size();
        let ids: Vec<_> = (0..shape.ep_world_size() * tp_ranks).map(RankId).collect();
        let inputs: Vec<_> = ids.iter().map(|&rank| self.inputs(rank)).collect();
        let cluster = Cluster { shape, ranks: &inputs, elastic_info: None, expert_map: None };
        let of = |&rank: &RankId| {
            // Of a TP domain each rank has a part of the expert: the parts make the result.
            let x_out = cluster.combine(rank, &mut |token, k, row| {
                let of = |tp| expert_result(&cluster, Triple { source: rank, token, k }, tp);
                *row = (1..tp_ranks).map(of).fold(of(0), |sum, other| add_rows(shape.dtype(), &sum, &other));
            });
            // First the rows of the rank, then those of its TP peer.
            let (first, own) = (rank.0 / tp_ranks * tp_ranks, rank.0 % tp_ranks);
            let received = |n| cluster.received(RankId(first + (own + n) % tp_ranks));
            let y = (0..tp_ranks)
                .flat_map(received)
                .flat_map(|(source, token, k)| expert_result(&cluster, Triple { source, token, k }, own))
                .collect();
            (cluster.dispatch(rank), x_out, y)
        };
        let results: Vec<(_, _, Vec<u8>)> = ids.iter().map(of).collect();
        for (own, (dispatched, x_out, y)) in self.ranks.iter_mut().zip(results) {
            own.y = y;
            own.expected = Tensor::ALL.map(|tensor| match tensor {
                Tensor::XOut => x_out.clone(),
                dispatch => dispatched.bytes(dispatch),
            });
        }
    }
}

fn bring(shape: &Shape, number: u32, rank: u32, tokens: &[&[i32]]) -> RankRound {
    let mut own = RankRound::default();
    for (token, experts) in (0..).zip(tokens) {
        // bf16 holds every integer up to 256.
        let value = number * 16 + rank * 4 + token * 2 + 1;
        own.x.extend((0..shape.h()).flat_map(|i| bf16((value + i * 128) as f32)));
        let idle = experts.is_empty();
        own.expert_ids.extend((0..shape.k()).map(|k| if idle { k as i32 } else { experts[k as usize] }));
        own.mask.extend((0..shape.k()).map(|_| !idle));
        own.expert_scales.extend((0..shape.k()).map(|k| (k + 1) as f32));
    }
    own
}

/// What the stand-in expert of a pair, or the part of it that TP rank `tp` has, makes of its token: a factor of its own, exact
/// in bf16.
fn expert_result(cluster: &Cluster<'_>, of: Triple, tp: u32) -> Vec<u8> {
    let Triple { source, token, k } = of;
    let (shape, inputs) = (cluster.shape, &cluster.ranks[source.index()]);
    let expert = inputs.ids(shape, token)[k as usize] as u32 + tp * shape.moe_expert_num();
    let gain = (2 << expert) as f32;
    let row = inputs.row(shape, token).as_chunks().0.iter();
    row.flat_map(|&v| bf16(f32::from_bits(u32::from(u16::from_le_bytes(v)) << 16) * gain)).collect()
}

fn bf16(exact: f32) -> [u8; 2] {
    ((exact.to_bits() >> 16) as u16).to_le_bytes()
}
