//! The reference implementation: the outputs of dispatch and combine, computed independently from the definition alone.
//!
//! It has the inputs of the whole cluster and computes the outputs of one rank at a time. It has no flags, no layout and no
//! order of events, and shares nothing with the code that it checks: it reads the shape's numbers and the raw tensors, and
//! divides, places, rounds and sums by itself, in the simplest form.
//!
//! It covers the full mesh of A3 and A2, and A2's hierarchy.

mod norm;
pub mod numerics;
#[cfg(test)]
mod tests;

pub use norm::{Normed, Range};

use crate::inputs::{Inputs, Mask};
use crate::place::Tensor;
use crate::shape::{Protocol, Shape, TokenNums};
use crate::units::{RankId, Token};
use alloc::vec;
use alloc::vec::Vec;

/// An EP domain and the inputs of all its ranks to a round.
///
/// # Panics
/// Every method panics on inputs that validation refuses, and on ranks, tokens and experts that do not exist.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// The domain.
    pub shape: &'a Shape,
    /// One entry per EP rank; with a TP domain per number `ep_rank * tp_world_size + tp_rank`, which then stands for a rank
    /// in every method. In an elastic domain by physical rank; the entries of ranks that have left are not read.
    pub ranks: &'a [Inputs<'a>],
    /// `elastic_info` that is switched on; then `shape` is the whole domain, and ranks are given by their physical names.
    pub elastic_info: Option<&'a [i32]>,
    /// The words of `expert_map` and its number of rows; then ids in `ranks` are logical.
    pub expert_map: Option<(&'a [i32], usize)>,
}

/// The domain in which dispatch and combine run: all ranks, or the ranks left.
struct Domain {
    /// The ranks by id in the domain.
    members: Vec<RankId>,
    shared_ranks: u32,
    experts: u32,
    /// The number of shared experts that receive rows.
    shared: u32,
}

/// All outputs of dispatch on one rank, without spare capacity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dispatched {
    /// Received rows, `[rows, h]`, as they travelled.
    pub expand_x: Vec<u8>,
    /// One per received row; empty when unquantised.
    pub dynamic_scales: Vec<f32>,
    /// One per received row: source rank, token, k index (`K + j` for shared expert `j`); empty on A2 full mesh. In a
    /// hierarchy the last one is the number of the token's pairs on this server `<< 16`, plus the number of them with
    /// smaller k.
    pub assist_info_for_combine: Vec<[i32; 3]>,
    /// `[bs, k]` of this rank's own pairs: the ordinal among its pairs for the same expert, or -1.
    pub expand_idx: Vec<i32>,
    /// One per received row in a hierarchy, the weight of its pair; else empty.
    pub expand_scales: Vec<f32>,
    /// One per local expert.
    pub expert_token_nums: Vec<i64>,
    /// Inclusive prefix sums over (local expert, source rank).
    pub ep_recv_counts: Vec<i32>,
    /// TP = 2: the rows of both peers, by TP rank; this rank's rows come first in all of the above, and the peer's
    /// counts begin at 0 again.
    pub tp_recv_counts: Vec<i32>,
}

impl Dispatched {
    /// Returns an output as little-endian bytes; none for one that dispatch does not have, or that contains places of rows.
    #[must_use]
    pub fn bytes(&self, tensor: Tensor) -> Vec<u8> {
        fn le<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
            values.iter().copied().flat_map(bytes).collect()
        }
        match tensor {
            Tensor::ExpandX => self.expand_x.clone(),
            Tensor::DynamicScales => le(&self.dynamic_scales, f32::to_le_bytes),
            Tensor::AssistInfo => le(self.assist_info_for_combine.as_flattened(), i32::to_le_bytes),
            Tensor::ExpandIdx => le(&self.expand_idx, i32::to_le_bytes),
            Tensor::ExpandScales => le(&self.expand_scales, f32::to_le_bytes),
            Tensor::ExpertTokenNums => le(&self.expert_token_nums, i64::to_le_bytes),
            Tensor::EpRecvCounts => le(&self.ep_recv_counts, i32::to_le_bytes),
            Tensor::TpRecvCounts => le(&self.tp_recv_counts, i32::to_le_bytes),
            Tensor::RowTable | Tensor::SentRows => Vec::new(),
            Tensor::XOut | Tensor::X | Tensor::Rstd | Tensor::Y => Vec::new(),
        }
    }
}

impl Cluster<'_> {
    /// Returns the outputs of `rank` after dispatch.
    #[must_use]
    pub fn dispatch(&self, rank: RankId) -> Dispatched {
        let mut out = self.exchanged(rank);
        if self.shape.tp_world_size() == 2 {
            let is_second = rank.0 % 2 == 1;
            let peer = self.exchanged(RankId(if is_second { rank.0 - 1 } else { rank.0 + 1 }));
            let totals = [&out, &peer].map(|of| of.assist_info_for_combine.len() as i32);
            out.tp_recv_counts = if is_second { vec![totals[1], totals[0]] } else { totals.to_vec() };
            out.expand_x.extend(peer.expand_x);
            out.dynamic_scales.extend(peer.dynamic_scales);
            out.assist_info_for_combine.extend(peer.assist_info_for_combine);
            out.ep_recv_counts.extend(peer.ep_recv_counts);
            for (own, of_peer) in out.expert_token_nums.iter_mut().zip(peer.expert_token_nums) {
                *own += of_peer;
            }
        }
        out
    }

    /// Returns the pair of each row that `rank` receives in its own EP domain, in their order: source, token, k (`K + j` for
    /// shared expert `j`).
    #[must_use]
    pub fn received(&self, rank: RankId) -> Vec<(RankId, Token, u32)> {
        let members = self.domain(rank).members;
        let of = |expert_row| {
            (0..).zip(&members).flat_map(move |(id, &source)| {
                self.pairs(id, rank, expert_row).into_iter().map(move |(token, k)| (source, token, k))
            })
        };
        self.hosted(rank).into_iter().flat_map(of).collect()
    }

    /// Returns the outputs of the exchange in `rank`'s own EP domain.
    fn exchanged(&self, rank: RankId) -> Dispatched {
        let members = self.domain(rank).members;
        let mut out = Dispatched { expand_idx: self.slots(rank), ..Dispatched::default() };
        let mut row = Vec::new();
        for expert_row in self.hosted(rank) {
            let rows_before = out.assist_info_for_combine.len();
            for (id, &source) in (0..).zip(&members) {
                for (token, k) in self.pairs(id, rank, expert_row) {
                    let scale = self.sent_row(source, token, expert_row, &mut row);
                    out.expand_x.extend_from_slice(&row);
                    if self.shape.row_format().scale.is_some() {
                        out.dynamic_scales.push(scale);
                    }
                    let mut info = k;
                    if self.shape.protocol() == Protocol::Hierarchy {
                        let weights = self.ranks[source.index()].expert_scales;
                        out.expand_scales.push(weights[(token.0 * self.shape.k() + k) as usize]);
                        // The number of the token's pairs on this server, and of those that precede this one.
                        let here = self.server(source, token, k);
                        let on = |ks: core::ops::Range<u32>| {
                            ks.filter(|&k| self.server(source, token, k) == here).count() as u32
                        };
                        info = on(0..self.shape.k()) << 16 | on(0..k);
                    }
                    out.assist_info_for_combine.push([id as i32, token.0 as i32, info as i32]);
                }
                out.ep_recv_counts.push(out.assist_info_for_combine.len() as i32);
            }
            out.expert_token_nums.push(match self.shape.token_nums() {
                TokenNums::Counts => (out.assist_info_for_combine.len() - rows_before) as i64,
                TokenNums::PrefixSums => out.assist_info_for_combine.len() as i64,
            });
        }
        if self.shape.protocol() == Protocol::Fullmesh {
            // Combine uses counts there.
            out.assist_info_for_combine.clear();
        }
        out
    }

    /// Writes a token of `source` into `out` as it travels to the expert with row `expert_row` of `scales` (shared experts
    /// first, then MoE), and returns its `dynamic_scale`, 0 when unquantised.
    pub fn sent_row(&self, source: RankId, token: Token, expert_row: u32, out: &mut Vec<u8>) -> f32 {
        let (inputs, h) = (&self.ranks[source.index()], self.shape.h() as usize);
        let x = &inputs.x[token.index() * 2 * h..][..2 * h];
        let smooth = inputs.scales.map(|scales| &scales[expert_row as usize * h..][..h]);
        numerics::sent(self.shape, x, smooth, out)
    }

    /// Returns `x_out` of `rank`, `[bs, h]`. `returned` writes the expert's result row of `(token, k)` into its last
    /// argument; it is called for active pairs of MoE experts in order, then for `K + j` of every shared expert `j`.
    pub fn combine(&self, rank: RankId, returned: &mut dyn FnMut(Token, u32, &mut Vec<u8>)) -> Vec<u8> {
        numerics::rounded(self.shape.dtype(), &self.sums(rank, returned))
    }

    /// Returns the sums of combine before they are rounded.
    fn sums(&self, rank: RankId, returned: &mut dyn FnMut(Token, u32, &mut Vec<u8>)) -> Vec<f32> {
        let (inputs, k_num) = (&self.ranks[rank.index()], self.shape.k());
        let Domain { experts, shared, .. } = self.domain(rank);
        let (dtype, h, moe) = (self.shape.dtype(), self.shape.h() as usize, experts as i32);
        let by_servers = self.shape.protocol() == Protocol::Hierarchy;
        let mut row = Vec::new();
        let mut came_back = |token, k| {
            returned(token, k, &mut row);
            match self.shape.result_format().scale.is_some() {
                // The hierarchy sends sums instead of rows.
                true if !by_servers => numerics::through_blocks(dtype, &numerics::values(dtype, &row)),
                _ => numerics::values(dtype, &row),
            }
        };
        let mut sums = Vec::new();
        for token in (0..self.tokens_of(rank)).map(Token) {
            let mut sum = vec![0.0f32; h];
            if by_servers {
                let rows: Vec<_> = (0..k_num).map(|k| came_back(token, k)).collect();
                for partial in self.partial_sums(rank, token, &rows) {
                    numerics::add(&mut sum, &partial, None);
                }
                sums.extend(sum);
                continue;
            }
            for k in (0..k_num).filter(|&k| self.active(rank, token, k)) {
                let weight = inputs.expert_scales[token.index() * k_num as usize + k as usize];
                let value = if self.id(rank, token, k) < moe {
                    Some(came_back(token, k))
                } else {
                    self.special(rank, token, self.id(rank, token, k) - moe)
                };
                if let Some(value) = value {
                    numerics::add(&mut sum, &value, Some(weight));
                }
            }
            if self.token_active(rank, token) {
                for j in 0..shared {
                    numerics::add(&mut sum, &came_back(token, k_num + j), None);
                }
                if let Some(shared) = inputs.shared_expert_x {
                    numerics::add(&mut sum, &self.token_row(shared, token), None);
                }
            }
            sums.extend(sum);
        }
        sums
    }

    /// Returns the message of each server that has a pair of the token: the sum of its rows, as it is after transport. A
    /// hierarchy has neither masks nor special experts.
    fn partial_sums(&self, rank: RankId, token: Token, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (dtype, weights) = (self.shape.dtype(), self.ranks[rank.index()].expert_scales);
        let servers = self.shape.ep_world_size() / self.shape.server_ranks();
        let mut partials = Vec::new();
        for server in 0..servers {
            let mut sum = vec![0.0f32; self.shape.h() as usize];
            let mut pairs = 0;
            for (k, row) in (0..).zip(rows).filter(|&(k, _)| self.server(rank, token, k) == server) {
                let weight = weights[(token.0 * self.shape.k() + k) as usize];
                numerics::add(&mut sum, row, Some(weight));
                pairs += 1;
            }
            if pairs > 0 {
                partials.push(match self.shape.result_format().scale.is_some() {
                    true => numerics::through_blocks(dtype, &sum),
                    false => numerics::values(dtype, &numerics::rounded(dtype, &sum)),
                });
            }
        }
        partials
    }

    /// Returns the server on which the expert of a pair lives.
    fn server(&self, rank: RankId, token: Token, k: u32) -> u32 {
        let experts_of_server =
            self.shape.moe_expert_num() / self.shape.ep_world_size() * self.shape.server_ranks();
        self.id(rank, token, k) as u32 / experts_of_server
    }

    /// Returns the result of the special expert of that number for a token: zero experts first, then copy, then const.
    fn special(&self, rank: RankId, token: Token, number: i32) -> Option<Vec<f32>> {
        let (inputs, dtype) = (&self.ranks[rank.index()], self.shape.dtype());
        let zeros = self.shape.zero_expert_num() as i32;
        let copies = self.shape.copy_expert_num() as i32;
        if number < zeros {
            return None;
        }
        let x = self.token_row(inputs.x, token);
        if number < zeros + copies {
            return Some(x);
        }
        let i = (number - zeros - copies) as usize;
        let alpha_1 = numerics::values(dtype, inputs.const_expert_alpha_1)[i];
        let alpha_2 = numerics::values(dtype, inputs.const_expert_alpha_2)[i];
        let v = self.token_row(inputs.const_expert_v, Token(i as u32));
        Some((0..x.len()).map(|e| alpha_1 * x[e] + alpha_2 * v[e]).collect())
    }

    /// Returns the values of row `token` of a tensor `[.., h]`.
    fn token_row(&self, tensor: &[u8], token: Token) -> Vec<f32> {
        let row = 2 * self.shape.h() as usize;
        numerics::values(self.shape.dtype(), &tensor[token.index() * row..][..row])
    }
}

impl Cluster<'_> {
    /// Returns the domain of `rank`: all ranks with its TP rank, or those left by `elastic_info`: head of four words, then
    /// physical to new, then new to physical.
    fn domain(&self, rank: RankId) -> Domain {
        let (whole, tp) = (self.shape.ep_world_size(), self.shape.tp_world_size());
        let Some(info) = self.elastic_info else {
            return Domain {
                members: (0..whole).map(|ep| RankId(ep * tp + rank.0 % tp)).collect(),
                shared_ranks: self.shape.shared_expert_rank_num(),
                experts: self.shape.moe_expert_num(),
                shared: self.shape.shared_expert_num(),
            };
        };
        let mut members = vec![RankId(u32::MAX); info[1] as usize];
        for (physical, &new) in (0..whole).zip(&info[4..]) {
            if new >= 0 {
                members[new as usize] = RankId(physical);
            }
        }
        let shared_ranks = info[2] as u32;
        let shared = if shared_ranks == 0 { 0 } else { self.shape.shared_expert_num() };
        Domain { members, shared_ranks, experts: info[3] as u32, shared }
    }

    /// Returns the id of a rank in the domain.
    fn id_of(&self, rank: RankId) -> u32 {
        self.domain(rank).members.iter().position(|&member| member == rank).unwrap() as u32
    }

    /// Returns the experts that live on `rank`, in local order, by their row of `scales`.
    fn hosted(&self, rank: RankId) -> Vec<u32> {
        let Domain { members, shared_ranks, experts, shared } = self.domain(rank);
        let id = self.id_of(rank);
        if id < shared_ranks {
            let replicas = shared_ranks / shared;
            return vec![id / replicas];
        }
        let per_rank = experts / (members.len() as u32 - shared_ranks);
        // Rows of `scales` include the shared experts even when no rank holds them any more.
        let first = self.shape.shared_expert_num() + (id - shared_ranks) * per_rank;
        (first..first + per_rank).collect()
    }

    /// Returns the active pairs that the member with that id sends to an expert on `rank`, in slot order.
    fn pairs(&self, source_id: u32, rank: RankId, expert_row: u32) -> Vec<(Token, u32)> {
        let Domain { members, shared_ranks, .. } = self.domain(rank);
        let (k_num, shared) = (self.shape.k(), self.shape.shared_expert_num());
        let source = members[source_id as usize];
        let tokens = (0..self.tokens_of(source)).map(Token);
        if expert_row < shared {
            // All-in: a source sends all its tokens to one replica, whose number is its own modulo the number of replicas.
            let replicas = shared_ranks / shared;
            if self.id_of(rank) != expert_row * replicas + source_id % replicas {
                return Vec::new();
            }
            let active = tokens.filter(|&token| self.token_active(source, token));
            return active.map(|token| (token, k_num + expert_row)).collect();
        }
        let id = (expert_row - shared) as i32;
        tokens
            .flat_map(|token| (0..k_num).map(move |k| (token, k)))
            .filter(|&(token, k)| self.active(source, token, k) && self.id(source, token, k) == id)
            .collect()
    }

    /// Returns `expand_idx` of `rank`.
    fn slots(&self, rank: RankId) -> Vec<i32> {
        let mut sent = vec![0; self.domain(rank).experts as usize];
        let mut slots = Vec::new();
        for token in (0..self.tokens_of(rank)).map(Token) {
            for k in 0..self.shape.k() {
                let id = self.active(rank, token, k).then(|| self.id(rank, token, k) as usize);
                match id.and_then(|id| sent.get_mut(id)) {
                    Some(count) => {
                        slots.push(*count);
                        *count += 1;
                    }
                    None => slots.push(-1),
                }
            }
        }
        slots
    }

    /// Returns BS of a rank, which is the same for TP peers.
    fn tokens_of(&self, rank: RankId) -> u32 {
        self.shape.bs(RankId(rank.0 / self.shape.tp_world_size()))
    }

    /// Returns the physical expert that the active pair `(token, k)` of `rank` names, or the special one.
    #[must_use]
    pub fn id(&self, rank: RankId, token: Token, k: u32) -> i32 {
        let id = self.ranks[rank.index()].expert_ids[(token.0 * self.shape.k() + k) as usize];
        let Some((words, logical)) = self.expert_map else { return id };
        if id >= logical as i32 {
            return id - logical as i32 + self.shape.moe_expert_num() as i32;
        }
        let row = words.chunks(words.len() / logical).nth(id as usize).unwrap();
        let mut replicas = row.to_vec();
        replicas.retain(|&physical| physical != -1);
        let ep_rank = rank.0 / self.shape.tp_world_size();
        replicas[(ep_rank + token.0) as usize % replicas.len()]
    }

    fn active(&self, rank: RankId, token: Token, k: u32) -> bool {
        match self.ranks[rank.index()].mask {
            Mask::None => true,
            Mask::Abstains => false,
            Mask::Tokens(mask) => mask[token.index()],
            Mask::Pairs(mask) => mask[(token.0 * self.shape.k() + k) as usize],
        }
    }

    fn token_active(&self, rank: RankId, token: Token) -> bool {
        (0..self.shape.k()).any(|k| self.active(rank, token, k))
    }
}
