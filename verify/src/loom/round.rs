//! One round: who sends what, and what the oracle says that dispatch and combine must put out.

use veriep_core::inputs::{Inputs, Mask};
use veriep_core::place::Tensor;
use veriep_core::protocol::Operands;
use veriep_core::reference::{Cluster, Dispatched};
use veriep_core::shape::Shape;
use veriep_core::units::{RankId, Token};

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
    pub fn operands(&self, rank: RankId) -> Operands<'_> {
        Operands {
            y: &self.ranks[rank.index()].y,
            assist_info: self.expected(rank, Tensor::AssistInfo),
            ep_recv_counts: self.expected(rank, Tensor::EpRecvCounts),
            expand_idx: self.expected(rank, Tensor::ExpandIdx),
            ..Operands::default()
        }
    }

    /// Tokens become flags from end to end, and so does what experts make of them: every bit is set, which the sum keeps
    /// a NaN.
    pub fn fill_with_flags(&mut self, shape: &Shape) {
        for rank in &mut self.ranks {
            rank.x.fill(0xFF);
        }
        self.ask_the_oracle(shape);
    }

    /// What must stand at the start of an output of `rank` when its operator has ended.
    pub fn expected(&self, rank: RankId, tensor: Tensor) -> &[u8] {
        &self.ranks[rank.index()].expected[tensor as usize]
    }

    fn ask_the_oracle(&mut self, shape: &Shape) {
        let ids: Vec<_> = (0..shape.ep_world_size()).map(RankId).collect();
        let inputs: Vec<_> = ids.iter().map(|&rank| self.inputs(rank)).collect();
        let cluster = Cluster { shape, ranks: &inputs, elastic_info: None, expert_map: None };
        let results: Vec<_> = ids.iter().map(|&rank| (cluster.dispatch(rank), sum(&cluster, rank))).collect();
        for ((rank, own), (dispatched, x_out)) in (0..).zip(&mut self.ranks).zip(results) {
            own.y = returned_rows(shape, RankId(rank), &dispatched);
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

/// `x_out` of `rank`: what the experts make of its tokens, summed.
fn sum(cluster: &Cluster<'_>, rank: RankId) -> Vec<u8> {
    cluster.combine(rank, &mut |token: Token, k, row| {
        let inputs = &cluster.ranks[rank.index()];
        let expert = inputs.ids(cluster.shape, token)[k as usize];
        row.clear();
        row.extend(expert_result(expert as u32, inputs.row(cluster.shape, token)));
    })
}

/// `y` of `rank` for what dispatch gave it.
fn returned_rows(shape: &Shape, rank: RankId, dispatched: &Dispatched) -> Vec<u8> {
    let mut rows = dispatched.expand_x.chunks_exact(shape.row_bytes() as usize);
    let mut before = 0;
    let mut y = Vec::new();
    let by_expert = dispatched.ep_recv_counts.chunks_exact(shape.ep_world_size() as usize);
    for (local_expert, counts) in (0..).zip(by_expert) {
        let end = counts.last().copied().unwrap_or(0);
        let expert = rank.0 * shape.local_expert_num() + local_expert;
        let own = rows.by_ref().take((end - before) as usize);
        y.extend(own.flat_map(|row| expert_result(expert, row)));
        before = end;
    }
    y
}

/// The stand-in expert: a factor of its own, exact in bf16.
fn expert_result(expert: u32, row: &[u8]) -> impl Iterator<Item = u8> {
    let gain = (2 << expert) as f32;
    row.as_chunks()
        .0
        .iter()
        .flat_map(move |&v| bf16(f32::from_bits(u32::from(u16::from_le_bytes(v)) << 16) * gain))
}

fn bf16(exact: f32) -> [u8; 2] {
    ((exact.to_bits() >> 16) as u16).to_le_bytes()
}
