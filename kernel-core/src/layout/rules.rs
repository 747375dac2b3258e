//! The promises of validation about the [quantities](super::quantity) of every legal shape, as data: the premises under which
//! `verify` proves the [table](super::table). They are those of the widest limits, which those of each product are within, and
//! hold for the survivors of an elastic domain as well.

use super::expr::Expr;
use super::quantity::{Kind, Quantity};
use crate::shape::limits::{AIV_NUM, Column, Range};
use crate::shape::sizes::{
    BLOCK, BLOCK_PAYLOAD, COMBINE_STATUS, COUNT_WORDS, DISPATCH_STATUS, FLAG_STEP, HALF_TAIL, RELAY_AREA,
    SCALE_FIELD, SLOT_ALIGN, STATUS_SLOT, TRIPLE, WINDOW_HEAD,
};
use crate::shape::{Product, Protocol};
use core::ops::RangeInclusive;

/// A promise.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// The first is at most the second.
    AtMost(Expr<Quantity>, Expr<Quantity>),
    /// The quantity is one of these.
    OneOf(Quantity, &'static [Expr<Quantity>]),
}

/// Bytes that windows have besides the rows, at least: as the rules of the window have them.
const FULLMESH_EXTRA: u64 = 4 << 20;
const HIERARCHY_EXTRA: u64 = 104 << 20;
/// Rows that a rank can receive for each token of its capacity (A3): one for each status slot.
const ROWS_PER_TOKEN: u64 = DISPATCH_STATUS / STATUS_SLOT;

impl Quantity {
    /// Returns a range that has every value of the quantity, if the limits name one.
    #[must_use]
    pub fn range(self, kind: Kind) -> Option<RangeInclusive<u64>> {
        let column = Column::widest(kind.protocol);
        let of = |Range { min, max }: Range| Some(min.cast_unsigned()..=max.cast_unsigned());
        match self {
            Self::Ranks => of(column.ep_world_size),
            Self::LocalExpertNum | Self::LocalExperts if kind.has_tp => Some(1..=1),
            Self::LocalExpertNum | Self::LocalExperts => {
                let most = column.moe_expert_num.max.min(column.experts_per_rank_max);
                of(Range { max: most, ..column.moe_expert_num })
            }
            Self::K => of(column.k),
            Self::Columns => of(Range { max: column.k.max + column.shared_expert_num.max, ..column.k }),
            Self::Capacity => of(column.bs),
            Self::Tokens => of(Range { min: 0, ..column.bs }),
            Self::WindowMib => of(column.hccl_buffsize_mb),
            Self::PortSteps => {
                of(Range { max: column.port_offset.max / SLOT_ALIGN.cast_signed(), ..column.port_offset })
            }
            Self::Cores => of(AIV_NUM),
            Self::ServerRanks => of(column.server_ranks),
            Self::TpRanks => Some(if kind.has_tp { 2..=2 } else { 1..=1 }),
            Self::Areas if kind.mode.landings > 0 => Some(1..=2),
            Self::PortGap | Self::ScaledResults => Some(0..=1),
            Self::ElementSteps => {
                let of_steps =
                    |elements: i64| elements.cast_unsigned() / super::quantity::element_step(kind.protocol);
                Some(of_steps(column.h.min).max(1)..=of_steps(column.h.max))
            }
            Self::RowsMax | Self::Owners => Some(1..=u32::MAX.into()),
            _ => None,
        }
    }
}

/// Returns the bytes that the window must have, as the rules compute them from a shape's numbers.
#[must_use]
pub const fn required(protocol: Protocol) -> Expr<Quantity> {
    match protocol {
        Protocol::FullmeshV1 => expr!(Quantity:
            (2 * LocalExpertNum * Ranks * Capacity * (up(((up(LongestRow, 32)) + {SCALE_FIELD + TRIPLE}), SLOT_ALIGN)))
            + (2 * Columns * Capacity * CombinePitch) + (4 * Ranks * PortOffset)),
        Protocol::FullmeshV2 => expr!(Quantity:
            (2 * LocalExpertNum * Ranks * Capacity * ((ceil(((up(LongestRow, 32)) + {SCALE_FIELD + TRIPLE}), BLOCK_PAYLOAD)) * {BLOCK}))
            + (2 * Columns * Capacity * CombinePitch) + (4 * Ranks * PortOffset)),
        Protocol::Fullmesh => expr!(Quantity: max(
            (2 * ({HALF_TAIL} + (Ranks * (up(((ToPeer * (max(WindowRecord, RowBytes))) + {2 * WINDOW_HEAD + FLAG_STEP}), SLOT_ALIGN))))),
            ((2 * Ranks * ToPeer * RowBytes) + {FULLMESH_EXTRA})
        )),
        Protocol::Hierarchy => {
            expr!(Quantity: (LocalExpertNum * Ranks * Capacity * NearSlot) + {HIERARCHY_EXTRA})
        }
    }
}

const A3: &[Rule] = &[
    Rule::AtMost(expr!(Quantity: LocalExpertNum * Ranks * StatusSlot), expr!(Quantity: {DISPATCH_STATUS})),
    Rule::AtMost(expr!(Quantity: Capacity * Columns * StatusSlot), expr!(Quantity: {COMBINE_STATUS})),
    Rule::AtMost(expr!(Quantity: RowsMax), expr!(Quantity: Capacity * {ROWS_PER_TOKEN})),
    Rule::OneOf(Quantity::LocalExperts, &[expr!(Quantity: 1), expr!(Quantity: LocalExpertNum)]),
    Rule::AtMost(expr!(Quantity: FirstOwner + Owners), expr!(Quantity: Ranks)),
];

/// On A2 all ranks are alike.
const A2: &[Rule] = &[
    Rule::OneOf(Quantity::LocalExperts, &[expr!(Quantity: LocalExpertNum)]),
    Rule::OneOf(Quantity::FirstOwner, &[expr!(Quantity: 0)]),
    Rule::OneOf(Quantity::Owners, &[expr!(Quantity: Ranks)]),
    Rule::OneOf(Quantity::RowsMax, &[expr!(Quantity: Capacity * Ranks * (min(LocalExpertNum, K)))]),
];

const HIERARCHY: &[Rule] = &[
    Rule::OneOf(Quantity::Ranks, &[expr!(Quantity: Servers * ServerRanks)]),
    Rule::AtMost(expr!(Quantity: LocalExpertNum * Ranks), expr!(Quantity: {COUNT_WORDS})),
    Rule::AtMost(expr!(Quantity: Servers * StreamBytes), expr!(Quantity: {RELAY_AREA})),
];

const ALL: &[Rule] = &[
    Rule::AtMost(expr!(Quantity: Tokens), expr!(Quantity: Capacity)),
    Rule::AtMost(expr!(Quantity: K), expr!(Quantity: Columns)),
    Rule::OneOf(
        Quantity::ResultBytes,
        &[expr!(Quantity: RowBytes), expr!(Quantity: (up(Elements, 32)) + (2 * (ceil(Elements, 8))))],
    ),
];

/// Rows that are overwritten are as long as results.
const OVERWRITTEN: &[Rule] = &[Rule::OneOf(Quantity::Quantised, &[expr!(Quantity: 0)])];
const EITHER: &[Rule] = &[Rule::OneOf(Quantity::Quantised, &[expr!(Quantity: 0), expr!(Quantity: 1)])];
const LANDINGS: &[Rule] =
    &[Rule::AtMost(expr!(Quantity: Areas * LandingBytes), expr!(Quantity: WindowBytes))];

/// Returns the rules of groups of this kind, beside [ranges](Quantity::range) and the size of the window.
pub fn rules(kind: Kind) -> impl Iterator<Item = Rule> {
    let product = match kind.protocol.product() {
        Product::A3 => A3,
        Product::A2 => A2,
    };
    let hierarchy = if kind.protocol == Protocol::Hierarchy { HIERARCHY } else { &[] };
    let payload = if kind.mode.overwritten { OVERWRITTEN } else { EITHER };
    let landings = if kind.mode.landings > 0 { LANDINGS } else { &[] };
    let fits = Rule::AtMost(required(kind.protocol), expr!(Quantity: WindowBytes));
    [ALL, product, hierarchy, payload, landings].into_iter().flatten().copied().chain([fits])
}

/// Returns the bytes that a processor must be able to address: each is at most the largest `isize`.
pub fn addressable(kind: Kind) -> impl Iterator<Item = Expr<Quantity>> {
    let received = match kind.has_tp {
        true => expr!(Quantity: 2 * RowsMax * (RecordPitch + CombinePitch)),
        false => expr!(Quantity: RowsMax * (max(LongestRow, 32))),
    };
    let tokens = expr!(Quantity: Capacity * (max(RowBytes, (Columns * 4))));
    [expr!(Quantity: WindowBytes), tokens, received].into_iter()
}

/// The numbers that machines count in 32 bits.
pub const COUNTED: &[Expr<Quantity>] = &[
    expr!(Quantity: LocalExperts * Ranks),
    expr!(Quantity: LocalExpertNum * Ranks),
    expr!(Quantity: Capacity * Columns),
    expr!(Quantity: ToPeer + 1),
    expr!(Quantity: RowsMax * TpRanks),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::affine::Mode;
    use crate::layout::quantity::Memory;
    use crate::layout::tests::any_config;
    use crate::protocol::Choices;
    use crate::shape::{BatchSizes, Buffer, Config, Elastic, Limits, Shape};
    use crate::testing::domain::{Domain, shape as shape_of};
    use crate::testing::random;
    use crate::units::RankId;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Asserts what the rules promise about one memory.
    fn keeps(memory: &Memory<'_>) {
        let kind = Kind::of(memory.shape, memory.mode);
        for quantity in Quantity::ALL {
            let seen = quantity.value(memory);
            if let Some(range) = quantity.range(kind) {
                assert!(range.contains(&seen), "{quantity:?} = {seen} of {:?}", memory.shape);
            }
        }
        for rule in rules(kind) {
            let holds = match rule {
                Rule::AtMost(small, large) => memory.value(&small) <= memory.value(&large),
                Rule::OneOf(quantity, values) => {
                    values.iter().any(|value| memory.value(value) == quantity.value(memory))
                }
            };
            assert!(holds, "{rule:?} of {:?}", memory.shape);
        }
        for bytes in addressable(kind) {
            assert!(memory.value(&bytes) <= isize::MAX as u64);
        }
    }

    fn keep(shape: &Shape) {
        let modes: Vec<Mode> = Choices::all(shape).map(|choices| choices.mode()).collect();
        for mode in modes {
            for rank in [0, shape.shared_expert_rank_num(), shape.ep_world_size() - 1].map(RankId) {
                keeps(&Memory { shape, mode, rank });
            }
        }
    }

    /// Checks a shape, and that the window's rule is the one of the door.
    fn kept(config: &Config<'_>) -> Shape {
        let shape = shape_of(config);
        keep(&shape);
        let memory = Memory { shape: &shape, mode: Mode::default(), rank: RankId(0) };
        let bytes = Buffer::with(config, Limits::None).bytes();
        assert_eq!(memory.value(&required(shape.protocol())), bytes, "{config:?}");
        shape
    }

    /// The domain without its last MoE rank and that rank's experts, if one is left.
    fn smaller(whole: &Shape) -> Option<Shape> {
        let (ranks, shared) = (whole.ep_world_size() as i32, whole.shared_expert_rank_num() as i32);
        let left = ranks - 1;
        let experts = (left - shared) * whole.local_expert_num() as i32;
        let there = |n: i32| if n < left { n } else { -1 };
        let tables = (0..ranks).chain(0..ranks).map(there);
        let info: Vec<i32> = [1, left, shared, experts].into_iter().chain(tables).collect();
        Some(whole.survivors(&Elastic::check(whole, &info, &mut |_| ())?))
    }

    proptest! {
        #![proptest_config(random::config(256))]

        #[test]
        fn every_shape_keeps_the_rules(
            config in any_config(), blocks: bool,
            (servers, near, local, k, h, bs) in (1i64..9, 1i64..9, 1i64..5, 1i64..=16, 1i64..2000, 1i64..40),
            quant_mode in prop_oneof![Just(0), Just(2)],
        ) {
            let comm_alg = if blocks { Protocol::FullmeshV2 } else { Protocol::FullmeshV1 };
            let whole = kept(&Config { comm_alg, ..config });
            smaller(&whole).iter().for_each(keep);
            for comm_alg in [Protocol::Fullmesh, Protocol::Hierarchy] {
                let (r, e) = (servers * near, servers * near * local);
                let domain = Domain { r, e, s: 0, rs: 0, k: k.min(e), h: 8 * h, bs, cores: 3 };
                kept(&Config { comm_alg, server_ranks: near, quant_mode, ..domain.config() });
            }
        }

        #[test]
        fn with_a_tp_domain_too(ranks in 1i64..12, h in 1i64..700, bs in 1i64..40) {
            let domain = Domain { r: ranks, e: ranks, s: 0, rs: 0, k: 1, h, bs, cores: 3 };
            kept(&Config { tp_world_size: 2, ..domain.config() });
        }
    }

    #[test]
    fn survivors_are_among_the_shapes() {
        let whole = shape_of(&Config {
            bs: BatchSizes::Uniform(3),
            ..Domain { r: 6, e: 10, s: 1, rs: 1, k: 2, h: 8, bs: 3, cores: 2 }.config()
        });
        assert_eq!(smaller(&whole).map(|shape| shape.ep_world_size()), Some(5));
    }
}
