//! The rules of a configuration that our machines run, written a second time as one predicate and without messages, and held
//! against [`Shape::check`] near every bound: if a rule forgets an operand, the two differ there.
//!
//! The size of the windows is taken from [`Buffer`], which has tests of its own.

use core::cell::Cell;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;
use veriep_core::shape::{BatchSizes, Buffer, Config, Given, Limits, Op, Protocol, Shape};

#[path = "../src/tests/random.rs"]
mod random;

const MIB: i64 = 1 << 20;

const SAMPLES: u32 = 100_000;

/// Whether our machines run the configuration.
fn is_legal(c: &Config<'_>) -> bool {
    let on_a3 = matches!(c.comm_alg, Protocol::FullmeshV1 | Protocol::FullmeshV2);
    let on_tree = c.comm_alg == Protocol::Hierarchy;
    experts_are_legal(c, on_a3, on_tree)
        && tokens_are_legal(c, on_a3, on_tree)
        && options_are_legal(c, on_a3, on_tree)
        && memory_is_large_enough(c, on_a3, on_tree)
}

fn experts_are_legal(c: &Config<'_>, on_a3: bool, on_tree: bool) -> bool {
    let (ranks, moe) = (c.ep_world_size, c.moe_expert_num);
    let (shared, shared_ranks) = (c.shared_expert_num, c.shared_expert_rank_num);
    let ranks_are_legal = match (on_a3, on_tree) {
        (true, _) => (2..=768).contains(&ranks),
        (_, false) => (16..=256).contains(&ranks) && ranks % 8 == 0,
        (_, true) => (16..=64).contains(&ranks) && ranks % 8 == 0,
    };
    let shared_are_legal = if on_a3 {
        (0..=4).contains(&shared)
            && (0..ranks).contains(&shared_ranks)
            && (shared_ranks > 0 || shared <= 1)
            && (shared_ranks == 0 || shared > 0 && shared_ranks % shared == 0)
    } else {
        (0..=1).contains(&shared) && shared_ranks == 0
    };
    if !ranks_are_legal || !shared_are_legal {
        return false;
    }
    let moe_ranks = ranks - shared_ranks;
    let moe_max = if on_tree { 512 } else { 1024 };
    let moe_is_legal = (1..=moe_max).contains(&moe) && moe % moe_ranks == 0;
    let local_is_legal = on_a3 || on_tree || moe / moe_ranks <= 24;
    let specials = [c.zero_expert_num, c.copy_expert_num, c.const_expert_num];
    let special_sum: i64 = specials.iter().map(|n| i64::from(i32::try_from(*n).unwrap_or(i32::MAX))).sum();
    let specials_are_legal = specials.iter().all(|n| (0..1 << 31).contains(n))
        && moe + special_sum < 1 << 31
        && (on_a3 || c.const_expert_num == 0)
        && (!on_tree || special_sum == 0);
    let tp_is_legal = match c.tp_world_size {
        0 | 1 => true,
        2 => c.comm_alg == Protocol::FullmeshV1 && moe == moe_ranks,
        _ => false,
    };
    c.server_ranks == 8
        && moe_is_legal
        && local_is_legal
        && specials_are_legal
        && tp_is_legal
        && (1..=16).contains(&c.k)
        && c.k <= moe + special_sum
}

fn tokens_are_legal(c: &Config<'_>, on_a3: bool, on_tree: bool) -> bool {
    let h_is_legal =
        if on_a3 { (1024..=8192).contains(&c.h) } else { (1..=10240).contains(&c.h) && c.h % 32 == 0 };
    let bs_max = if on_a3 || on_tree { 512 } else { 256 };
    let (sizes, idle) = match c.bs {
        BatchSizes::Uniform(bs) => (vec![bs; c.ep_world_size as usize], false),
        BatchSizes::PerRank(list) => (list.to_vec(), true),
        BatchSizes::Own { .. } => panic!("not drawn"),
    };
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let are_even = sizes.iter().all(|bs| *bs == largest);
    h_is_legal
        && sizes.len() == c.ep_world_size as usize
        && sizes.iter().all(|bs| (i64::from(!idle)..=bs_max).contains(bs))
        && largest > 0
        && if c.global_bs == 0 {
            are_even
        } else {
            c.global_bs % c.ep_world_size == 0 && (largest..=65535).contains(&(c.global_bs / c.ep_world_size))
        }
}

fn options_are_legal(c: &Config<'_>, on_a3: bool, on_tree: bool) -> bool {
    let has_tp = c.tp_world_size == 2;
    let given = |flag| c.given.contains(flag);
    let inputs_are_legal = (!given(Given::SCALES) || c.quant_mode == 2 && !on_tree)
        && (!(given(Given::MASK_1D) || given(Given::MASK_2D)) || !on_tree)
        && (!given(Given::ELASTIC_INFO)
            || c.comm_alg == Protocol::FullmeshV1 && !has_tp && !given(Given::EXPERT_MAP))
        && (!given(Given::SHARED_EXPERT_X) || on_a3 && c.shared_expert_rank_num == 0);
    let comm_quant_is_legal = match c.comm_quant_mode {
        0 => true,
        2 => (on_a3 || on_tree) && !has_tp,
        _ => false,
    };
    inputs_are_legal
        && comm_quant_is_legal
        && matches!(c.quant_mode, 0 | 2)
        && matches!(c.expert_token_nums_type, 0 | 1)
        && (1..=48).contains(&c.aiv_num)
        && (if on_a3 { (0..=1 << 30).contains(&c.port_offset) } else { c.port_offset == 0 })
        && c.port_offset % 512 == 0
        && c.norm_eps.is_finite()
        && (on_a3 || c.op == Op::Combine)
}

/// The areas of fixed size, and the windows. All numbers are legal by now.
fn memory_is_large_enough(c: &Config<'_>, on_a3: bool, on_tree: bool) -> bool {
    let capacity = match c.bs {
        _ if c.global_bs > 0 => c.global_bs / c.ep_world_size,
        BatchSizes::Uniform(bs) => bs,
        BatchSizes::PerRank(list) => list.iter().copied().max().unwrap_or(0),
        BatchSizes::Own { .. } => panic!("not drawn"),
    };
    if on_a3 {
        let local = c.moe_expert_num / (c.ep_world_size - c.shared_expert_rank_num);
        let columns = c.k + if c.shared_expert_rank_num > 0 { c.shared_expert_num } else { 0 };
        if local * c.ep_world_size > 2048 || capacity * columns > 10240 {
            return false;
        }
    }
    if on_tree {
        let record = 32 + 2 * c.h + 32 + (c.k + 7) / 8 * 64;
        let records = c.ep_world_size / 8 * (capacity * record + 64);
        if records > 51 * MIB {
            return false;
        }
    }
    let required = i64::try_from(Buffer::new(c).required_mb).unwrap();
    (required..1 << 32).contains(&c.hccl_buffsize_mb)
}

/// A configuration at which a rule with several operands is at its bound.
fn base(protocol: Protocol, number: usize) -> Config<'static> {
    let plain = Config { comm_alg: protocol, hccl_buffsize_mb: 1 << 20, ..Config::default() };
    let on_a3 = matches!(protocol, Protocol::FullmeshV1 | Protocol::FullmeshV2);
    match number {
        // As many experts as K, the special ones included.
        1 if on_a3 => Config { ep_world_size: 2, moe_expert_num: 2, k: 2, ..plain },
        2 if on_a3 => Config {
            ep_world_size: 2,
            moe_expert_num: 2,
            zero_expert_num: 1,
            copy_expert_num: 1,
            const_expert_num: 3,
            k: 7,
            ..plain
        },
        // Shared experts have columns of their own; here the combine slots are full.
        3 if on_a3 => Config {
            shared_expert_num: 4,
            shared_expert_rank_num: 4,
            moe_expert_num: 48,
            k: 16,
            bs: BatchSizes::Uniform(512),
            ..plain
        },
        // The dispatch slots are full.
        4 if on_a3 => Config {
            ep_world_size: 512,
            moe_expert_num: 1024,
            shared_expert_num: 1,
            shared_expert_rank_num: 256,
            ..plain
        },
        // One slot too many.
        5 if on_a3 => Config {
            ep_world_size: 683,
            moe_expert_num: 1023,
            shared_expert_num: 1,
            shared_expert_rank_num: 342,
            ..plain
        },
        6 if protocol == Protocol::FullmeshV1 => Config { tp_world_size: 2, moe_expert_num: 16, ..plain },
        // The relay area is nearly full.
        1 if protocol == Protocol::Hierarchy => {
            Config { ep_world_size: 64, bs: BatchSizes::Uniform(460), ..plain }
        }
        1 => Config { moe_expert_num: 384, ..plain },
        2 if protocol == Protocol::Fullmesh => {
            Config { moe_expert_num: 16, copy_expert_num: 2, zero_expert_num: 1, k: 16, ..plain }
        }
        _ => plain,
    }
}

/// A list of batch sizes.
#[derive(Clone, Copy, Debug)]
enum List {
    None,
    Even,
    OneLater,
    OneIdle,
    AllIdle,
    OneTooLong,
    OneMissing,
    OneBelow,
}

/// One operand of a rule, and which of its telling values it gets.
#[derive(Clone, Copy, Debug)]
struct Change {
    operand: usize,
    value: Index,
}

/// The neighbourhood of some numbers.
fn near(numbers: &[i64]) -> Vec<i64> {
    numbers.iter().flat_map(|n| [n - 1, *n, n + 1]).collect()
}

type Values = fn(&Config<'_>) -> Vec<i64>;
type Operand = (Values, fn(&mut Config<'_>, i64));

fn moe_ranks(c: &Config<'_>) -> i64 {
    (c.ep_world_size - c.shared_expert_rank_num).max(1)
}

/// The bounds that special experts have together with the others.
fn specials_left(c: &Config<'_>) -> Vec<i64> {
    let others = c.moe_expert_num + c.zero_expert_num + c.copy_expert_num + c.const_expert_num;
    near(&[0, 3, c.k - c.moe_expert_num, i64::from(i32::MAX), i64::from(i32::MAX) - others])
}

/// The tokens with which a slot or a relay area is just full.
fn tokens(c: &Config<'_>) -> Vec<i64> {
    let columns = (c.k + if c.shared_expert_rank_num > 0 { c.shared_expert_num } else { 0 }).max(1);
    let record = (64 + 2 * c.h + (c.k + 7) / 8 * 64).max(1);
    near(&[1, 16, 256, 512, 10240 / columns, 51 * MIB / (c.ep_world_size / 8).max(1) / record])
}

const OPERANDS: [Operand; 21] = [
    (|_| near(&[2, 16, 64, 256, 768, 24]), |c, n| c.ep_world_size = n),
    (|_| vec![0, 1, 7, 8, 16], |c, n| c.server_ranks = n),
    (|_| vec![-1, 0, 1, 2, 3], |c, n| c.tp_world_size = n),
    (
        |c| {
            let ranks = moe_ranks(c);
            near(&[
                1,
                512,
                1024,
                ranks,
                4 * ranks,
                24 * ranks,
                25 * ranks,
                2048 / c.ep_world_size.max(1) * ranks,
            ])
        },
        |c, n| c.moe_expert_num = n,
    ),
    (|_| near(&[0, 4]), |c, n| c.shared_expert_num = n),
    (
        |c| near(&[0, c.shared_expert_num, 2 * c.shared_expert_num, c.ep_world_size]),
        |c, n| c.shared_expert_rank_num = n,
    ),
    (specials_left, |c, n| c.zero_expert_num = n),
    (specials_left, |c, n| c.copy_expert_num = n),
    (specials_left, |c, n| c.const_expert_num = n),
    (
        |c| {
            let experts = c.moe_expert_num + c.zero_expert_num + c.copy_expert_num + c.const_expert_num;
            near(&[1, 16, c.moe_expert_num, experts])
        },
        |c, n| c.k = n,
    ),
    (|_| near(&[0, 32, 1024, 7168, 8192, 10240, 10272]), |c, n| c.h = n),
    (tokens, |c, n| c.bs = BatchSizes::Uniform(n)),
    (|c| tokens(c).into_iter().map(|n| n * c.ep_world_size).collect(), |c, n| c.global_bs = n),
    (|c| near(&[0, 65535 * c.ep_world_size, 16 * c.ep_world_size]), |c, n| c.global_bs = n),
    (|_| vec![-1, 0, 1, 2, 3], |c, n| c.quant_mode = n),
    (|_| vec![-1, 0, 1, 2, 3], |c, n| c.comm_quant_mode = n),
    (|_| near(&[0, 1]), |c, n| c.expert_token_nums_type = n),
    (|c| near(&[2, Buffer::new(c).required_mb as i64, 1 << 32]), |c, n| c.hccl_buffsize_mb = n),
    (|_| vec![-512, 0, 256, 511, 512, 768, 1 << 30, (1 << 30) + 512], |c, n| c.port_offset = n),
    (|_| near(&[1, 48]), |c, n| c.aiv_num = n),
    (|_| (0..64).collect(), |c, n| c.given = Given::from_bits_truncate(n as u32)),
];

impl List {
    fn sizes(self, ranks: i64) -> Option<Vec<i64>> {
        let mut all = vec![16; usize::try_from(ranks).unwrap_or(0).min(1000)];
        let last = all.len().checked_sub(1)?;
        match self {
            Self::None => return None,
            Self::Even => {}
            Self::OneLater => all[last] = 15,
            Self::OneIdle => all[last] = 0,
            Self::AllIdle => all.fill(0),
            Self::OneTooLong => all[last] = 513,
            Self::OneMissing => drop(all.pop()),
            Self::OneBelow => all[last] = -1,
        }
        Some(all)
    }
}

const PROTOCOLS: [Protocol; 4] =
    [Protocol::FullmeshV1, Protocol::FullmeshV2, Protocol::Fullmesh, Protocol::Hierarchy];

const LISTS: [List; 7] = [
    List::Even,
    List::OneLater,
    List::OneIdle,
    List::AllIdle,
    List::OneTooLong,
    List::OneMissing,
    List::OneBelow,
];

#[test]
fn rules_and_predicate_agree_near_every_bound() {
    let change = (0..OPERANDS.len(), any::<Index>()).prop_map(|(operand, value)| Change { operand, value });
    let sample = (
        select(&PROTOCOLS[..]),
        0..7_usize,
        prop_oneof![
            3 => prop::collection::vec(change.clone(), 1),
            2 => prop::collection::vec(change.clone(), 2),
            1 => prop::collection::vec(change, 3..6),
        ],
        prop_oneof![9 => Just(List::None), 1 => select(&LISTS[..])],
        prop::bool::weighted(0.05),
        prop_oneof![9 => Just(1e-6), 1 => select(&[0.0, f32::MAX, f32::NAN, f32::INFINITY][..])],
    );
    let (legal, illegal) = (Cell::new(0), Cell::new(0));
    let judge = |(protocol, number, changes, list, has_norm, norm_eps)| {
        let mut config = Config { norm_eps, ..base(protocol, number) };
        if has_norm {
            config.op = Op::CombineAddRmsNorm;
        }
        for Change { operand, value } in changes {
            let (values, set): Operand = OPERANDS[operand];
            let values = values(&config);
            set(&mut config, values[value.index(values.len())]);
        }
        let sizes: Option<Vec<i64>> = List::sizes(list, config.ep_world_size);
        if let Some(sizes) = &sizes {
            config.bs = BatchSizes::PerRank(sizes);
        }
        let mut broken = Vec::new();
        let shape =
            Shape::check(&config, Limits::Product, &mut |violation| broken.push(violation.to_string()));
        let is_legal = is_legal(&config);
        let count = if is_legal { &legal } else { &illegal };
        count.set(count.get() + 1);
        prop_assert_eq!(shape.is_some(), is_legal, "{:?}: {:?}", config, broken);
        Ok(())
    };
    TestRunner::new(random::config(SAMPLES)).run(&sample, judge).unwrap();
    // The samples say something of both answers.
    assert!(legal.get() > SAMPLES / 10 && illegal.get() > SAMPLES / 10, "{legal:?} {illegal:?}");
}
