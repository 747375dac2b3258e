//! Small domains and what their ranks bring, out of a few bytes. Every choice is folded into its range, so that nearly
//! all bytes make a domain that runs.

use crate::tape::Tape;
use crate::tape::read_in_order;
use arbitrary::Unstructured;
use veriep_core::inputs::{AddRmsNorm, Inputs, Mask};
use veriep_core::layout::direct;
use veriep_core::protocol::{Choices, Receive};
use veriep_core::reference::numerics;
use veriep_core::shape::{
    BatchSizes, Buffer, Config, Dtype, Elastic, Given, Limits, Product, Protocol, Shape,
};
use veriep_core::units::RankId;

/// The numbers of a domain, each a byte that is folded into its range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Of [`ALGORITHMS`], and above that the number of the [choices](Choices::all).
    pub protocol: u8,
    pub moe_ranks: u8,
    pub local_experts: u8,
    pub shared_experts: u8,
    pub replicas: u8,
    pub k: u8,
    pub h: u8,
    pub bs: u8,
    pub cores: u8,
    /// Two bits each: zero, copy, const.
    pub specials: u8,
    /// Bits of [`has`](Self::has).
    pub features: u16,
    pub rounds: u8,
    pub seed: u16,
}

read_in_order! {
    Numbers { protocol, moe_ranks, local_experts, shared_experts, replicas, k, h, bs, cores, specials, features, rounds, seed }
}

/// The algorithms, by the low bits of [`Numbers::protocol`].
pub const ALGORITHMS: [Protocol; 4] =
    [Protocol::FullmeshV1, Protocol::FullmeshV2, Protocol::Fullmesh, Protocol::Hierarchy];

/// A bit of [`Numbers::features`]. What does not go with the protocol is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Feature {
    Quantised = 1,
    Smoothed = 1 << 1,
    CommQuant = 1 << 2,
    F16 = 1 << 3,
    RmsNorm = 1 << 4,
    PrefixSums = 1 << 5,
    SharedX = 1 << 6,
    Tp = 1 << 8,
    Elastic = 1 << 9,
    UnevenBs = 1 << 10,
    /// Two batches in flight.
    InFlight = 1 << 11,
    PortOffset = 1 << 12,
    /// Rows of any bits.
    AnyBits = 1 << 13,
    Masked = 1 << 14,
    /// A second row of 200 elements and more: several blocks, tails.
    Wide = 1 << 15,
}

impl Numbers {
    /// Bytes that [`Self::to_bytes`] makes.
    pub const LEN: usize = 15;

    /// The numbers of the first bytes, zeros where there are none; and the bytes after them.
    pub fn from_bytes(bytes: &[u8]) -> (Self, &[u8]) {
        let (head, rest) = bytes.split_at(Self::LEN.min(bytes.len()));
        (Unstructured::new(head).arbitrary().unwrap_or_default(), rest)
    }

    /// The inverse, for seeds.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { protocol, moe_ranks, local_experts, shared_experts, replicas, k, h, bs, .. } = *self;
        let mut bytes = vec![protocol, moe_ranks, local_experts, shared_experts, replicas, k, h, bs];
        bytes.extend([self.cores, self.specials]);
        bytes.extend(self.features.to_le_bytes());
        bytes.push(self.rounds);
        bytes.extend(self.seed.to_le_bytes());
        bytes
    }

    /// Whether that bit is set.
    pub const fn has(&self, feature: Feature) -> bool {
        self.features & feature as u16 != 0
    }

    pub const fn comm_alg(&self) -> Protocol {
        ALGORITHMS[self.protocol as usize % ALGORITHMS.len()]
    }

    /// Batches in flight.
    pub const fn in_flight(&self) -> usize {
        if self.has(Feature::InFlight) { 2 } else { 1 }
    }

    /// One of the choices that `shape` leaves: whatever is added to those is fuzzed, too.
    fn choices(&self, shape: &Shape) -> Option<Choices> {
        let enough = |receive: Receive| receive.areas() >= receive.with_batches(self.in_flight()).areas();
        let all: Vec<_> = Choices::all(shape).filter(|choices| enough(choices.receive)).collect();
        let number = usize::from(self.protocol) / ALGORITHMS.len();
        let choices = *all.get(number % all.len().max(1))?;
        // The rounds are what the low bits say.
        Some(Choices { checked: self.rounds >= 128, ..choices })
    }

    /// Rounds, from 1.
    pub fn rounds(&self) -> usize {
        1 + usize::from(self.rounds % 4)
    }
}

/// A domain that can be run.
#[derive(Clone, Debug)]
pub struct Domain {
    pub numbers: Numbers,
    /// With all ranks.
    pub whole: Shape,
    /// What machines see: of an elastic domain who is left.
    pub shape: Shape,
    /// What the machines choose.
    pub choices: Choices,
    /// Switched on.
    pub elastic: Option<(Vec<i32>, Elastic)>,
}

impl Domain {
    /// The domain of these numbers; `None` if a rule that is not folded away refuses it.
    pub fn new(numbers: Numbers, tape: &mut Tape<'_>) -> Option<Self> {
        let comm_alg = numbers.comm_alg();
        let (plain, hierarchy) = (comm_alg == Protocol::FullmeshV1, comm_alg == Protocol::Hierarchy);
        let a3 = plain || comm_alg == Protocol::FullmeshV2;
        let fold = |n: u8, min: i64, count: u8| min + i64::from(n % count);
        let tp = plain && numbers.has(Feature::Tp);
        let s = if a3 { fold(numbers.shared_experts, 0, 3) } else { 0 };
        let rs = s * fold(numbers.replicas, 1, 2);
        let servers = fold(numbers.moe_ranks, 1, 3);
        // In a hierarchy of that many servers of so many ranks, six ranks at most.
        let near = if hierarchy { fold(numbers.shared_experts, 1, 3).min(6 / servers) } else { 1 };
        let moe_ranks = servers * near;
        let local = if tp { 1 } else { fold(numbers.local_experts, 1, 3) };
        let (r, e) = (moe_ranks + rs, moe_ranks * local);
        // A2 has no const experts, its hierarchy no special ones at all.
        let most = match comm_alg {
            Protocol::FullmeshV1 | Protocol::FullmeshV2 => [3; 3],
            Protocol::Fullmesh => [1, 1, 0],
            _ => [0; 3],
        };
        let special = |i: usize| i64::from(numbers.specials >> (2 * i) & most[i]);
        let specials = [special(0), special(1), special(2)];
        let bs = fold(numbers.bs, 1, 5);
        let h = fold(numbers.h, 1, 12) + if numbers.has(Feature::Wide) { 230 } else { 0 };
        let quantised = numbers.has(Feature::Quantised);
        let elastic = plain && !tp && numbers.has(Feature::Elastic);
        let mut given = Given::empty();
        given.set(Given::SCALES, quantised && !hierarchy && numbers.has(Feature::Smoothed));
        given.set(Given::ELASTIC_INFO, elastic);
        given.set(Given::SHARED_EXPERT_X, a3 && s == 0 && numbers.has(Feature::SharedX));
        // Of half of the numbers some ranks have no tokens.
        let least = i64::from(numbers.bs < 128);
        let uneven: Vec<i64> = (0..r).map(|rank| least + (rank * 7 + bs) % 5).collect();
        let is_uneven = numbers.has(Feature::UnevenBs);
        let has_blocks = (a3 || hierarchy) && !tp;
        let config = Config {
            comm_alg,
            dtype: if numbers.has(Feature::F16) { Dtype::F16 } else { Dtype::Bf16 },
            ep_world_size: r,
            server_ranks: if hierarchy { near } else { Config::default().server_ranks },
            tp_world_size: if tp { 2 } else { 0 },
            moe_expert_num: e,
            shared_expert_num: s,
            shared_expert_rank_num: rs,
            zero_expert_num: specials[0],
            copy_expert_num: specials[1],
            const_expert_num: specials[2],
            k: fold(numbers.k, 1, 4).min(e + specials.iter().sum::<i64>()),
            h: if a3 { h } else { (h + 7) & !7 },
            bs: if is_uneven { BatchSizes::PerRank(&uneven) } else { BatchSizes::Uniform(bs) },
            global_bs: if is_uneven { uneven.iter().max()? * r } else { 0 },
            quant_mode: if quantised { 2 } else { 0 },
            comm_quant_mode: if has_blocks && numbers.has(Feature::CommQuant) { 2 } else { 0 },
            expert_token_nums_type: i64::from(!numbers.has(Feature::PrefixSums)),
            port_offset: if a3 && numbers.has(Feature::PortOffset) { 512 } else { 0 },
            aiv_num: fold(numbers.cores, 1, 5),
            given,
            ..Config::default()
        };
        let whole = shape(&config)?;
        let elastic = if elastic { left(&whole, tape) } else { None };
        let shape = elastic.as_ref().map_or_else(|| whole.clone(), |(_, left)| whole.survivors(left));
        let choices = numbers.choices(&shape)?;
        Some(Self { numbers, whole, shape, choices, elastic })
    }

    /// The name by which memory, tensors and the reference know the rank that machines call `ep`.
    pub fn physical(&self, ep: RankId) -> RankId {
        self.elastic.as_ref().and_then(|(_, left)| left.physical(ep)).unwrap_or(ep)
    }

    /// Members by number, `ep * tp_world_size + tp`: of the physical ranks, those that machines call `ep`, `tp`.
    pub fn members(&self) -> impl Iterator<Item = (usize, RankId, RankId)> + '_ {
        let tp = self.shape.tp_world_size();
        let all = (0..self.shape.ep_world_size()).flat_map(move |ep| (0..tp).map(move |t| (ep, t)));
        all.map(move |(ep, t)| ((self.physical(RankId(ep)).0 * tp + t) as usize, RankId(ep), RankId(t)))
    }
}

/// The shape of a configuration with a window just large enough for all that may be chosen, without the product's ranges.
fn shape(config: &Config<'_>) -> Option<Shape> {
    let required_mb = Buffer::with(config, Limits::None).required_mb;
    let of = |mb: u64| {
        let config = Config { hccl_buffsize_mb: i64::try_from(mb).ok()?, ..*config };
        Shape::new(&config, Limits::None).ok()
    };
    let shape = of(required_mb)?;
    // Areas that experts overwrite are smaller.
    let most = direct::required_bytes(&shape, Receive::Direct { areas: 1 }.with_batches(2).areas(), false);
    of(most.div_ceil(1 << 20).max(required_mb))
}

/// Some who are left, in some order; `None` if several draws leave no ranks with enough experts.
fn left(whole: &Shape, tape: &mut Tape<'_>) -> Option<(Vec<i32>, Elastic)> {
    (0..8).find_map(|_| {
        let info = draw(whole, tape)?;
        let left = Elastic::check(whole, &info, &mut |_| ())?;
        Some((info, left))
    })
}

fn draw(whole: &Shape, tape: &mut Tape<'_>) -> Option<Vec<i32>> {
    let ranks = whole.ep_world_size() as usize;
    let mut order: Vec<usize> = (0..ranks).collect();
    for i in (1..ranks).rev() {
        order.swap(i, tape.below(i + 1));
    }
    let survivors = 1 + tape.below(ranks);
    let s = whole.shared_expert_num() as usize;
    let most = (survivors - 1).checked_div(s).unwrap_or(0);
    let shared_ranks = tape.below(most + 1) * s;
    let moe_ranks = survivors - shared_ranks;
    // Slots there are as many as before, and smooth scales have no rows for experts that there were not.
    let slots = whole.dispatch_slots() as usize / survivors;
    let local = slots.min(whole.moe_expert_num() as usize / moe_ranks);
    let experts = moe_ranks * (1 + tape.below(local));
    let mut info = vec![1, survivors as i32, shared_ranks as i32, experts as i32];
    let at = |rank| order[..survivors].iter().position(|&r| r == rank).map_or(-1, |new| new as i32);
    info.extend((0..ranks).map(at));
    info.extend((0..ranks).map(|new| if new < survivors { order[new] as i32 } else { -1 }));
    (local > 0).then_some(info)
}

/// One member's tensors, owned.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    pub x: Vec<u8>,
    pub ids: Vec<i32>,
    pub weights: Vec<f32>,
    pub tokens_mask: Option<Vec<bool>>,
    pub pairs_mask: Option<Vec<bool>>,
    pub scales: Option<Vec<f32>>,
    pub shared_x: Option<Vec<u8>>,
    pub alpha_1: Vec<u8>,
    pub alpha_2: Vec<u8>,
    pub const_v: Vec<u8>,
    /// `residual_x` and `gamma`.
    pub add_rms_norm: Option<[Vec<u8>; 2]>,
}

impl Tensors {
    /// Of EP rank `ep`, by the name that machines have for it. Routing and masks are steered, rows are dice.
    pub fn new(domain: &Domain, ep: RankId, tape: &mut Tape<'_>) -> Self {
        let (shape, numbers) = (&domain.shape, domain.numbers);
        let (bs, k, h) = (shape.bs(ep) as usize, shape.k() as usize, shape.h() as usize);
        let mut ids = Vec::new();
        for _ in 0..bs {
            let mut all: Vec<i32> = (0..shape.expert_ids_end().cast_signed()).collect();
            ids.extend((0..k).map(|_| all.swap_remove(tape.below(all.len()))));
        }
        let masked = numbers.has(Feature::Masked) && shape.may_have_inactive_tokens();
        let masked = masked && shape.protocol() != Protocol::Hierarchy;
        let kind = if masked { tape.below(3) } else { 0 };
        let active = if kind == 1 { tape.below(bs + 1) } else { 0 };
        let any_bits = numbers.has(Feature::AnyBits) && shape.row_format().scale.is_none();
        let mut rows = |n: usize, any_bits: bool| {
            let element = |_| match tape.dice() {
                bits if any_bits => (bits as u16).to_le_bytes(),
                bits => numerics::to_bytes(shape.dtype(), (bits % 251) as f32 / 4.0 - 30.0),
            };
            (0..n).flat_map(element).collect::<Vec<u8>>()
        };
        let consts = shape.const_expert_num() as usize;
        let norm = shape.has_add_rms_norm() && numbers.has(Feature::RmsNorm);
        let with_shared_x = numbers.has(Feature::SharedX) && shape.shared_expert_rows() == 0;
        // The door refuses it on A2.
        let with_shared_x = with_shared_x && shape.product() == Product::A3;
        let smooth = shape.row_format().scale.is_some()
            && shape.protocol() != Protocol::Hierarchy
            && numbers.has(Feature::Smoothed);
        let x = rows(bs * h, any_bits);
        let shared_x = with_shared_x.then(|| rows(bs * h, any_bits));
        let residual_x = norm.then(|| rows(bs * h, false));
        // The same on all ranks.
        let common = |n: usize, from: f32| {
            let element = |i| numerics::to_bytes(shape.dtype(), from - (i % 13) as f32 / 8.0);
            (0..n).flat_map(element).collect::<Vec<u8>>()
        };
        let scales = (0..shape.expert_rows() as usize * h).map(|i| 0.5 + (i % 7) as f32);
        Self {
            x,
            ids,
            weights: (0..bs * k).map(|i| 0.25 + (i % 5) as f32).collect(),
            tokens_mask: (kind == 1).then(|| (0..bs).map(|token| token < active).collect()),
            pairs_mask: (kind == 2).then(|| (0..bs * k).map(|_| tape.byte() & 1 == 0).collect()),
            scales: smooth.then(|| scales.collect()),
            shared_x,
            alpha_1: common(consts, 0.75),
            alpha_2: common(consts, 1.25),
            const_v: common(consts * h, 2.5),
            add_rms_norm: residual_x.map(|residual_x| [residual_x, common(h, 1.5)]),
        }
    }

    /// By reference.
    pub fn inputs(&self) -> Inputs<'_> {
        let norm = self.add_rms_norm.as_ref();
        Inputs {
            x: &self.x,
            expert_ids: &self.ids,
            expert_scales: &self.weights,
            mask: match (&self.tokens_mask, &self.pairs_mask) {
                (Some(mask), _) => Mask::Tokens(mask),
                (_, Some(mask)) => Mask::Pairs(mask),
                _ => Mask::None,
            },
            scales: self.scales.as_deref(),
            shared_expert_x: self.shared_x.as_deref(),
            const_expert_alpha_1: &self.alpha_1,
            const_expert_alpha_2: &self.alpha_2,
            const_expert_v: &self.const_v,
            add_rms_norm: norm.map(|[residual_x, gamma]| AddRmsNorm { residual_x, gamma }),
            call: None,
            dispatched: None,
        }
    }
}
