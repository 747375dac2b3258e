//! Any configuration at the door. Refused, it says why; taken, no two areas overlap, everything is inside its region,
//! aligned, look-ups go back and forth, and the sizes fit each other.

mod areas;

use crate::tape::read_in_order;
use arbitrary::{Arbitrary, Unstructured};
use areas::{disjoint, fields, landings, places, relays, triples, windows};
use veriep_core::layout::row_table;
use veriep_core::placement::Home;
use veriep_core::plan::route;
use veriep_core::protocol::Choices;
use veriep_core::shape::{
    BatchSizes, Buffer, Config, Dtype, Given, Limit, Limits, Op, Product, Protocol, Shape,
};
use veriep_core::units::{ExpertId, RankId};

/// A configuration, mostly of small or telling numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Given32 {
    pub words: [u8; 4],
    pub limits: bool,
    pub ep_world_size: Number,
    pub tp_world_size: Number,
    pub moe_expert_num: Number,
    pub shared_expert_num: Number,
    pub shared_expert_rank_num: Number,
    pub specials: [Number; 3],
    pub k: Number,
    pub h: Number,
    pub bs: Number,
    pub global_bs: Number,
    pub modes: [Number; 3],
    pub hccl_buffsize_mb: Option<Number>,
    pub port_offset: Number,
    pub aiv_num: Number,
    pub norm_eps: f64,
    pub given: u8,
    /// Batch sizes by rank.
    pub list: Option<Vec<Number>>,
}

read_in_order! {
    Given32 { words, limits, ep_world_size, tp_world_size, moe_expert_num, shared_expert_num, shared_expert_rank_num, specials, k, h, bs, global_bs, modes, hccl_buffsize_mb, port_offset, aiv_num, norm_eps, given, list }
}

/// A number: as a rule a small one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    Small(u8),
    Medium(u16),
    /// 2 to that power, and one of its neighbours.
    Power(u8, i8),
    Any(i64),
}

impl<'a> Arbitrary<'a> for Number {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(match bytes.arbitrary::<u32>()? >> 30 {
            0 => Self::Small(bytes.arbitrary()?),
            1 => Self::Medium(bytes.arbitrary()?),
            2 => Self::Power(bytes.arbitrary()?, bytes.arbitrary()?),
            _ => Self::Any(bytes.arbitrary()?),
        })
    }
}

impl Number {
    /// The upper two bits of a word choose the variant.
    fn write(self, bytes: &mut Vec<u8>) {
        let (variant, number) = match self {
            Self::Small(n) => (0u32, vec![n]),
            Self::Medium(n) => (1, n.to_le_bytes().to_vec()),
            Self::Power(n, off) => (2, vec![n, off.cast_unsigned()]),
            Self::Any(n) => (3, n.to_le_bytes().to_vec()),
        };
        bytes.extend((variant << 30 | 1).to_le_bytes());
        bytes.extend(number);
    }

    const fn get(self) -> i64 {
        match self {
            Self::Small(n) => n as i64,
            Self::Medium(n) => n as i64,
            Self::Power(n, off) => (1i64 << (n % 63)).wrapping_add((off % 3) as i64),
            Self::Any(n) => n,
        }
    }
}

impl Given32 {
    /// Sixteen ranks, one expert each.
    pub const fn plain() -> Self {
        Self {
            words: [0; 4],
            limits: true,
            ep_world_size: Number::Small(16),
            tp_world_size: Number::Small(0),
            moe_expert_num: Number::Small(16),
            shared_expert_num: Number::Small(0),
            shared_expert_rank_num: Number::Small(0),
            specials: [Number::Small(0); 3],
            k: Number::Small(8),
            h: Number::Medium(1024),
            bs: Number::Small(16),
            global_bs: Number::Small(0),
            modes: [Number::Small(0), Number::Small(0), Number::Small(1)],
            hccl_buffsize_mb: None,
            port_offset: Number::Small(0),
            aiv_num: Number::Small(8),
            norm_eps: 1e-6,
            given: 0,
            list: None,
        }
    }

    /// The bytes that mean these, for seeds without a list.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.words.to_vec();
        bytes.push(self.limits.into());
        let mut put = |numbers: &[Number]| numbers.iter().for_each(|number| number.write(&mut bytes));
        put(&[self.ep_world_size, self.tp_world_size, self.moe_expert_num, self.shared_expert_num]);
        put(&[self.shared_expert_rank_num]);
        put(&self.specials);
        put(&[self.k, self.h, self.bs, self.global_bs]);
        put(&self.modes);
        bytes.push(self.hccl_buffsize_mb.is_some().into());
        if let Some(number) = self.hccl_buffsize_mb {
            number.write(&mut bytes);
        }
        self.port_offset.write(&mut bytes);
        self.aiv_num.write(&mut bytes);
        bytes.extend(self.norm_eps.to_le_bytes());
        bytes.push(self.given);
        bytes.push(self.list.is_some().into());
        bytes
    }
}

const PRODUCTS: [&str; 3] = ["a3", "a2", "a4"];
const ALGS: [&str; 6] = ["", "fullmesh_v1", "fullmesh_v2", "fullmesh", "hierarchy", "\u{e9}"];
const OPS: [&str; 3] = ["combine", "combine_add_rms_norm", ""];
const DTYPES: [&str; 3] = ["bf16", "f16", "f32"];

/// What became of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The parameters that are wrong.
    Refused(Vec<&'static str>),
    Valid(Box<Shape>),
}

/// Judges the configuration that the bytes mean.
///
/// # Panics
/// If the door takes what does not fit, or refuses without a reason.
pub fn run(bytes: &[u8]) -> Option<Verdict> {
    let given: Given32 = Unstructured::new(bytes).arbitrary().ok()?;
    let word = |i: usize, words: &[&'static str]| words[usize::from(given.words[i]) % words.len()];
    let list: Option<Vec<i64>> =
        given.list.as_ref().map(|list| list.iter().map(|number| number.get()).collect());
    let limits = if given.limits { Limits::Product } else { Limits::None };
    // What a word means the core's tables say; a host refuses those that are not in them.
    let product = named(&Product::WORDS, word(0, &PRODUCTS));
    let layout = Protocol::WORDS.iter().find(|(of, name, _)| (Some(*of), *name) == (product, word(1, &ALGS)));
    let (op, dtype) = (named(&Op::WORDS, word(2, &OPS)), named(&Dtype::WORDS, word(3, &DTYPES)));
    let (Some(&(.., comm_alg)), Some(op), Some(dtype)) = (layout, op, dtype) else {
        let known = [("product", product.is_some()), ("comm_alg", layout.is_some()), ("op", op.is_some())];
        let known = known.into_iter().chain([("dtype", dtype.is_some())]);
        return Some(Verdict::Refused(known.filter(|(_, known)| !known).map(|(name, _)| name).collect()));
    };
    let mut config = Config {
        comm_alg,
        op,
        dtype,
        ep_world_size: given.ep_world_size.get(),
        server_ranks: Config::default().server_ranks,
        tp_world_size: given.tp_world_size.get(),
        moe_expert_num: given.moe_expert_num.get(),
        shared_expert_num: given.shared_expert_num.get(),
        shared_expert_rank_num: given.shared_expert_rank_num.get(),
        zero_expert_num: given.specials[0].get(),
        copy_expert_num: given.specials[1].get(),
        const_expert_num: given.specials[2].get(),
        k: given.k.get(),
        h: given.h.get(),
        bs: list.as_deref().map_or(BatchSizes::Uniform(given.bs.get()), BatchSizes::PerRank),
        global_bs: given.global_bs.get(),
        quant_mode: given.modes[0].get(),
        comm_quant_mode: given.modes[1].get(),
        expert_token_nums_type: given.modes[2].get(),
        hccl_buffsize_mb: 0,
        port_offset: given.port_offset.get(),
        aiv_num: given.aiv_num.get(),
        norm_eps: given.norm_eps as f32,
        given: Given::from_bits_truncate(given.given.into()),
    };
    let buffer = Buffer::with(&config, limits);
    // Just what is required, unless a size is given.
    let required = i64::try_from(buffer.required_mb).unwrap_or(i64::MAX);
    config.hccl_buffsize_mb = given.hccl_buffsize_mb.map_or(required, Number::get);
    Some(judge(&config, limits))
}

fn named<T: Copy>(words: &[(&str, T)], word: &str) -> Option<T> {
    words.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

/// Judges a configuration.
pub fn judge(config: &Config<'_>, limits: Limits) -> Verdict {
    let buffer = Buffer::with(config, limits);
    assert_eq!(buffer.bytes(), buffer.terms.iter().fold(0, |sum: u64, term| sum.saturating_add(term.bytes)));
    for term in buffer.terms.iter().filter(|term| !term.name.is_empty()) {
        let product = term.operands().fold(1u64, |product, factor| product.saturating_mul(factor.value));
        assert_eq!(term.bytes, product, "{}", term.name);
    }
    let mut broken = Vec::new();
    let shape = Shape::check(config, limits, &mut |violation| {
        assert!(!violation.to_string().is_empty());
        broken.push(violation.parameter);
    });
    assert_eq!(shape.is_none(), !broken.is_empty(), "{broken:?}");
    let Some(shape) = shape else { return Verdict::Refused(broken) };
    assert_eq!(Shape::new(config, limits).as_ref(), Ok(&shape), "the door is a function");
    assert_eq!(buffer.required_mb, required_mb(&shape, limits), "required_mb, by the formulas");
    // A capacity may exceed the range of a batch.
    let has_room = buffer.max_bs >= u64::from(shape.bs_max()) || buffer.max_bs_limit == Limit::Range;
    assert!(buffer.fits() && has_room, "{buffer:?}");
    sizes(config, limits, &buffer, &shape);
    homes(&shape);
    fields(&shape);
    triples(&shape);
    let ranks = shape.ep_world_size();
    let rs = shape.shared_expert_rank_num();
    for rank in [0, rs.saturating_sub(1), rs, ranks / 2, ranks - 1].map(RankId) {
        disjoint(&shape, rank, Choices::default());
    }
    // Rows that experts read in place are in records; with direct placement they have areas of their own.
    if row_table::is_possible(&shape) {
        landings(config, limits, &shape);
    }
    match (shape.product(), shape.protocol()) {
        (Product::A3, _) => places(&shape),
        (Product::A2, Protocol::Hierarchy) => relays(&shape),
        (Product::A2, _) => windows(&shape),
    }
    Verdict::Valid(Box::new(shape))
}

/// The smallest number of MiB, by the formulas for people, in numbers that cannot overflow.
fn required_mb(shape: &Shape, limits: Limits) -> u64 {
    let [bs, r, l, k, h] =
        [shape.bs_max(), shape.ep_world_size(), shape.local_expert_num(), shape.k(), shape.h()]
            .map(u128::from);
    let up = |n: u128, to: u128| n.div_ceil(to) * to;
    let row = up(2 * h, 32) + 64;
    let combined = |pitch: u128| {
        let offsets = 2 * r * u128::from(shape.port_offset());
        let s = u128::from(shape.shared_expert_num());
        // Seven ports take packets of 512 B alternately.
        let result = up(2 * h, 512);
        let result = if offsets > 0 && result.is_multiple_of(7 * 512) { result + 512 } else { result };
        let of_ep = 2 * (l * bs * r * pitch + (k + s) * bs * result + offsets);
        // A MoE rank of a TP domain has one expert, for which every token may come.
        let of_tp = if shape.tp_world_size() == 2 { 2 * bs * r * (pitch + result) } else { 0 };
        of_ep.max(of_tp)
    };
    let bytes = match shape.protocol() {
        Protocol::FullmeshV1 => combined(up(row, 512)),
        Protocol::FullmeshV2 => combined(row.div_ceil(480) * 512),
        Protocol::Fullmesh => {
            // By halves: 1 MiB, and for each rank what it sends at most, with counts, gap and flag.
            let is_quantised = shape.payload_bytes() < shape.row_bytes();
            let record = if is_quantised { (h + 32).max(2 * h) } else { 2 * h };
            let window = up(bs * l.min(k) * record + 512 + 512 + 32, 512);
            let halves = 2 * ((1 << 20) + r * window);
            (bs * r * l.min(k) * h * 4 + (4 << 20)).max(halves)
        }
        Protocol::Hierarchy => l * r * bs * (2 * h + 16 * up(k, 8)) + (104 << 20),
        other => unreachable!("{other:?} is not fuzzed"),
    };
    let least = if limits == Limits::Product { 2 } else { 1 };
    u64::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u64::MAX).max(least)
}

/// `max_bs` is the largest that the door takes, `required_mb` the smallest.
fn sizes(config: &Config<'_>, limits: Limits, buffer: &Buffer, shape: &Shape) {
    let takes = |config: Config<'_>| Shape::new(&config, limits).is_ok();
    let mb = buffer.required_mb as i64;
    assert!(takes(Config { hccl_buffsize_mb: mb, ..*config }), "required_mb = {mb} does not suffice");
    assert!(!takes(Config { hccl_buffsize_mb: mb - 1, ..*config }), "{} MiB suffice, too", mb - 1);
    if shape.bs_is_uneven() {
        return;
    }
    let with = |bs: u64| {
        let bs = BatchSizes::Uniform(bs as i64);
        takes(Config { bs, global_bs: 0, ..*config })
    };
    assert!(with(buffer.max_bs), "max_bs = {} is refused", buffer.max_bs);
    let more = with(buffer.max_bs + 1);
    assert!(!more, "max_bs = {} is not the largest ({:?})", buffer.max_bs, buffer.max_bs_limit);
    assert!(buffer.max_bs_limit != Limit::Window || shape.window_bytes() > 0);
}

/// Experts to homes and back.
fn homes(shape: &Shape) {
    let destinations = route::destinations(shape);
    let step = (destinations / 64).max(1);
    for destination in (0..destinations).step_by(step as usize).chain([destinations - 1]) {
        let Home { rank, local_expert } = route::destination_home(shape, destination);
        assert!(rank.0 < shape.ep_world_size() && local_expert < shape.local_experts(rank));
        assert_eq!(route::destination_of(shape, rank, local_expert), destination);
    }
    for e in [0, shape.moe_expert_num() / 2, shape.moe_expert_num() - 1] {
        let home = shape.moe_home(ExpertId(e));
        assert!(shape.shared_expert_of(home.rank).is_none());
        assert_eq!(shape.expert_row(home), shape.shared_expert_rows() + e);
    }
}
