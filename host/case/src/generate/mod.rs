//! Makes cases: a configuration, a routing and a seed give the same tensors, always and everywhere.
//!
//! Every rank draws from a stream of its own, so its tensors depend on no other rank and ranks are made
//! in parallel. Only integers and exactly rounded arithmetic are used: no libm, no platform.

mod elastic;
mod expert_map;
mod hard;
mod routing;

pub use elastic::Left;
pub use routing::{Routing, SERVERS_MAX};

use crate::case::{self, Case, OwnedMask, RankTensors, Weights};
use crate::config::Config;
use crate::error::{Error, Problem};
use crate::global_rank;
use crate::hints;
use crate::memory::has_room;
use crate::parallel;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use routing::Router;
use veriep_core::reference::numerics::to_bytes;
use veriep_core::shape::{Dtype, Given, Limits, Op, Shape};
use veriep_core::units::{RankId, Token};

/// Which `x_active_mask` to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaskKind {
    /// No mask: every token is active.
    #[default]
    None,
    /// `[bs]`: a random number of leading tokens is active.
    Tokens,
    /// `[bs, k]`: an eighth of the tokens is off, and a quarter of the other pairs.
    Pairs,
}

impl MaskKind {
    pub const ALL: [Self; 3] = [Self::None, Self::Tokens, Self::Pairs];

    /// Returns the name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Tokens => "tokens",
            Self::Pairs => "pairs",
        }
    }

    /// Returns what the mask is, in a line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::None => "No mask: every token is active",
            Self::Tokens => "`[bs]`: a random number of leading tokens is active",
            Self::Pairs => "`[bs, k]`: an eighth of the tokens is off, and a quarter of the other pairs",
        }
    }
}

/// What to make besides the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub routing: Routing,
    /// Seed of everything random.
    pub seed: u64,
    pub mask: MaskKind,
    pub smooth_scales: bool,
    pub shared_expert_x: bool,
    /// Whether values tell apart what is nearly right.
    pub hard: bool,
    /// Logical experts, of which the physical ones are replicas; none = no `expert_map`.
    pub logical_experts: Option<u32>,
    /// Bytes of all rows of a round up to which rows have values: of more they are zeros, which take no memory.
    pub values_max: u64,
    /// Whose limits the configuration keeps; tests take shapes smaller than any product's.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            routing: Routing::default(),
            seed: 0,
            mask: MaskKind::default(),
            smooth_scales: false,
            shared_expert_x: false,
            hard: false,
            logical_experts: None,
            values_max: u64::MAX,
            limits: Limits::Product,
        }
    }
}

/// Makes a case. `place` names the configuration in errors.
///
/// # Errors
/// The configuration is invalid, or has tensors that this version does not make.
pub fn generate(config: Config, options: Options, place: &str) -> Result<Case, Error> {
    generate_left(config, options, Left::All, place)
}

/// Makes a case of those who are `left` of a domain.
///
/// # Errors
/// As [`generate`]; also if no rank can be left so.
pub fn generate_left(config: Config, options: Options, left: Left<'_>, place: &str) -> Result<Case, Error> {
    let mut given = match options.mask {
        MaskKind::None => Given::empty(),
        MaskKind::Tokens => Given::MASK_1D,
        MaskKind::Pairs => Given::MASK_2D,
    };
    given.set(Given::SCALES, options.smooth_scales);
    given.set(Given::SHARED_EXPERT_X, options.shared_expert_x);
    given.set(Given::ELASTIC_INFO, left.is_on());
    given.set(Given::EXPERT_MAP, options.logical_experts.is_some());
    let whole = hints::shape(&config, given, options.limits, place)?;
    let info = left.info(&whole, options.seed)?;
    let (shape, elastic) = case::survivors(whole, info, place)?;
    if options.mask != MaskKind::None && !shape.may_have_inactive_tokens() {
        // Otherwise it would hang on the seed: a random mask may have every token active.
        let rule = "must be none on A3 when a rank's bs is below the capacity";
        let problem = Problem::new("x_active_mask", " asked for", rule);
        return Err(Error::Invalid { place: place.to_owned(), problems: vec![problem] });
    }
    let logical = options.logical_experts;
    let expert_map = logical.map(|logical| expert_map::draw(&shape, logical, options.seed)).transpose()?;
    expert_map.iter().try_for_each(|map| case::check_expert_map(&shape, map, place))?;
    let map = expert_map.as_ref().and_then(|map| map.check(&shape).ok());
    let mut rng = stream(options.seed, 0);
    let rows = case::expert_rows(&shape);
    let router = Router::new(&shape, map, options.routing, &mut rng);
    // Without a row for every expert there must be none: all factors are 1 then.
    let expert_gain = match if case::all_have_rows(&shape) { rows } else { 0 } {
        rows if options.hard => hard::gains(rows),
        rows => gains(rows, &mut rng),
    };
    let scales = options
        .smooth_scales
        .then(|| (0..rows * shape.h() as usize).map(|_| 0.5 + unit(rng.next_u32())).collect());
    let op = config.operator();
    let weights = weights(&shape, op, place, &mut rng)?;
    let bytes = row_bytes(&shape, op, options);
    if !has_room(bytes) {
        let line =
            format!("{place}: the rows of all ranks take {bytes} bytes, which this machine does not have");
        return Err(Error::Request(line));
    }
    let ranks = all_ranks(&shape, op, options, &router, &expert_gain);
    let case = Case { config, shape, ranks, scales, weights, expert_gain, elastic, expert_map };
    let problems = case.problems();
    if problems.is_empty() { Ok(case) } else { Err(Error::Invalid { place: place.to_owned(), problems }) }
}

/// The generator of one stream: 0 for what all ranks share, `rank + 1` for a rank.
pub fn stream(seed: u64, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

/// Bytes of the rows that all ranks bring.
fn row_bytes(shape: &Shape, op: Op, options: Options) -> usize {
    let norm = op == Op::CombineAddRmsNorm;
    let tensors = 1 + usize::from(options.shared_expert_x) + usize::from(norm);
    let ranks = (0..global_rank::count(shape)).map(|rank| global_rank::ep_rank(shape, RankId(rank)));
    let tokens: usize = ranks.map(|ep_rank| shape.bs(ep_rank) as usize).sum();
    tokens * tensors * shape.row_bytes() as usize
}

fn all_ranks(
    shape: &Shape,
    op: Op,
    options: Options,
    router: &Router<'_>,
    gains: &[f32],
) -> Vec<RankTensors> {
    let mut ranks = vec![RankTensors::default(); global_rank::count(shape) as usize];
    parallel::each(&mut ranks, |rank, tensors| {
        *tensors = one_rank(shape, op, options, (router, gains), rank as u32);
    });
    ranks
}

fn one_rank(
    shape: &Shape,
    op: Op,
    options: Options,
    (router, gains): (&Router<'_>, &[f32]),
    rank: u32,
) -> RankTensors {
    let mut rng = stream(options.seed, u64::from(rank) + 1);
    let ep_rank = global_rank::ep_rank(shape, RankId(rank));
    let bs = shape.bs(ep_rank) as usize;
    let k = shape.k() as usize;
    let mut expert_ids = vec![0; bs * k];
    let mut expert_scales = vec![0.0; bs * k];
    let tokens = expert_ids.chunks_exact_mut(k).zip(expert_scales.chunks_exact_mut(k));
    for (token, (ids, weights)) in (0..).map(Token).zip(tokens) {
        router.choose(&mut rng, (ep_rank, token), ids);
        choose_weights(&mut rng, weights);
    }
    let mut tensors = RankTensors { expert_ids, ..RankTensors::default() };
    if let Some(map) = &router.map {
        tensors.translate(map, shape, RankId(rank));
    }
    let mask = match options.mask {
        MaskKind::None => OwnedMask::None,
        MaskKind::Tokens => {
            let active = below(&mut rng, bs as u32 + 1) as usize;
            OwnedMask::Tokens((0..bs).map(|token| token < active).collect())
        }
        MaskKind::Pairs => OwnedMask::Pairs(pair_mask(&mut rng, bs, k)),
    };
    let has_values = case::round_bytes(shape) <= options.values_max;
    let elements = bs * shape.h() as usize;
    let rows = |rng: &mut ChaCha8Rng| match has_values {
        true => values(rng, shape.dtype(), elements),
        false => vec![0; 2 * elements],
    };
    let mut x = rows(&mut rng);
    let is_hard = options.hard && !gains.is_empty();
    if is_hard {
        let values = (expert_scales.as_mut_slice(), x.as_mut_slice());
        hard::make(shape, gains, &mut rng, tensors.inputs().expert_ids, values, options.shared_expert_x);
    }
    let mut more = |wanted: bool| wanted.then(|| rows(&mut rng));
    let shared_expert_x = more(options.shared_expert_x).map(|row| if is_hard { x.clone() } else { row });
    let residual_x = more(op == Op::CombineAddRmsNorm).unwrap_or_default();
    RankTensors { x, expert_scales, mask, shared_expert_x, residual_x, ..tensors }
}

/// What const experts and AddRmsNorm have.
fn weights(shape: &Shape, op: Op, place: &str, rng: &mut ChaCha8Rng) -> Result<Weights, Error> {
    let [alphas, consts, gamma] = Weights::shapes(shape, op).map(|dims| dims.iter().product::<usize>());
    // Const experts may number billions.
    if !has_room(2 * consts) {
        let seen = format!(" = {}", shape.const_expert_num());
        let rule = format!("const_expert_v must fit this machine's memory ({} bytes)", 2 * consts);
        let problem = Problem::new("const_expert_num", &seen, rule);
        return Err(Error::Invalid { place: place.to_owned(), problems: vec![problem] });
    }
    let dtype = shape.dtype();
    Ok(Weights {
        const_expert_alpha_1: values(rng, dtype, alphas),
        const_expert_alpha_2: values(rng, dtype, alphas),
        const_expert_v: values(rng, dtype, consts),
        // Near 1, as trained ones are.
        gamma: (0..gamma).flat_map(|_| to_bytes(dtype, 0.5 + unit(rng.next_u32()))).collect(),
    })
}

/// Positive weights whose sum is 1 but for rounding.
fn choose_weights(rng: &mut ChaCha8Rng, weights: &mut [f32]) {
    for weight in &mut *weights {
        *weight = 0.1 + unit(rng.next_u32());
    }
    let sum: f32 = weights.iter().sum();
    for weight in weights {
        *weight /= sum;
    }
}

fn pair_mask(rng: &mut ChaCha8Rng, bs: usize, k: usize) -> Vec<bool> {
    let mut mask = Vec::with_capacity(bs * k);
    for _ in 0..bs {
        let token_is_on = below(rng, 8) != 0;
        mask.extend((0..k).map(|_| token_is_on && below(rng, 4) != 0));
    }
    mask
}

/// Near-normal values of deviation 1, as little-endian bytes: sums of four uniform 16-bit numbers.
fn values(rng: &mut ChaCha8Rng, dtype: Dtype, elements: usize) -> Vec<u8> {
    const MEAN: i32 = 2 * 0xFFFF;
    const DEVIATION: f32 = 37837.0;
    let mut bytes = Vec::with_capacity(2 * elements);
    let mut random = [0; 4096];
    while bytes.len() < 2 * elements {
        rng.fill_bytes(&mut random);
        let left = elements - bytes.len() / 2;
        for quarters in random.as_chunks::<8>().0.iter().take(left) {
            let sum: i32 = quarters.as_chunks().0.iter().map(|&q| i32::from(u16::from_le_bytes(q))).sum();
            let value = (sum - MEAN) as f32 / DEVIATION;
            bytes.extend(to_bytes(dtype, value));
        }
    }
    bytes
}

/// A different factor for every expert, in [0.5, 1.5): a row that reaches the wrong expert shows.
fn gains(rows: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let mut places: Vec<usize> = (0..rows).collect();
    shuffle(rng, &mut places);
    let step = 1.0 / rows as f32;
    places.into_iter().map(|place| 0.5 + step * (place as f32 + 0.25 + 0.5 * unit(rng.next_u32()))).collect()
}

/// A number in [0, n).
pub fn below(rng: &mut ChaCha8Rng, n: u32) -> u32 {
    ((u64::from(rng.next_u32()) * u64::from(n)) >> 32) as u32
}

/// 24 random bits as a number in [0, 1).
fn unit(bits: u32) -> f32 {
    (bits >> 8) as f32 / 16_777_216.0
}

fn shuffle<T>(rng: &mut ChaCha8Rng, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(rng, i as u32 + 1) as usize);
    }
}
