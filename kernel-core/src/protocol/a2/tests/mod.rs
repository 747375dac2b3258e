//! Tests of the A2 machines and agents, over the fabric of the tests.

mod corrupt;
mod edges;
mod frozen;
mod garbage;
mod positions;
mod refused;
mod rounds;
mod stale;
mod traces;
mod twins;

use crate::shape::{BatchSizes, Config, Dtype, Protocol, Shape};
use crate::sim::cluster::Failure;
pub(super) use crate::sim::seeded::Memory as Delivery;
use crate::testing::domain::{Dice, Domain, OwnedMask, PAIR, Tensors, row, shape as shape_of};
use crate::testing::group::Group;
use crate::units::RankId;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Two ranks, two experts each, rows of eight elements.
const TWO: Domain = Domain { e: 4, k: 2, h: 8, ..PAIR };

fn a2(domain: Domain) -> Config<'static> {
    Config { comm_alg: Protocol::Fullmesh, ..domain.config() }
}

/// Returns the experts' result: small and different for each row.
fn plain_result(shape: &Shape, round: usize, source: u32, token: u32, k: u32) -> Vec<u8> {
    let number = round as u32 * 31 + source * 53 + token * 17 + k * 5;
    row(shape.dtype(), shape.h(), |i| ((number + i) % 127) as f32 - 60.0)
}

/// Returns elements that look like flags, all or most of them.
fn flag_elements(len: u32, dice: &mut Dice) -> Vec<u8> {
    let others = dice.below(3);
    let element = |dice: &mut Dice| match dice.below(8) {
        0 if others > 0 => 0x3F80,
        1 if others > 0 => 0u16,
        2 if others > 1 => dice.next() as u16,
        _ => 0xFFFF,
    };
    (0..len).flat_map(|_| element(dice).to_le_bytes()).collect()
}

/// Returns rows of the experts that look like flags.
fn flag_result(shape: &Shape, round: usize, source: u32, token: u32, k: u32) -> Vec<u8> {
    let seed = [round as u32, source, token, k].iter().fold(7, |seed, &n| seed * 31 + u64::from(n));
    flag_elements(shape.h(), &mut Dice(seed))
}

/// Replaces the tokens by ones that look like flags when they travel.
fn flag_tokens(shape: &Shape, mut tensors: Tensors, dice: &mut Dice) -> Tensors {
    let elements = tensors.x.len() as u32 / 2;
    tensors.x = match shape.row_format().scale {
        None => flag_elements(elements, dice),
        // A row with one element of 127, and -1 everywhere else, does not change when quantised.
        Some(_) => {
            let peak = dice.below(shape.h());
            row(shape.dtype(), elements, |i| if i % shape.h() == peak { 127.0 } else { -1.0 })
        }
    };
    tensors
}

/// Random tensors of all ranks for a number of rounds.
fn random_rounds(shape: &Shape, rounds: usize, flags: bool, dice: &mut Dice) -> Vec<Vec<Tensors>> {
    let ranks = || (0..shape.ep_world_size()).map(RankId);
    let one = |rank, dice: &mut Dice| {
        let tensors = Tensors::random(shape, rank, dice);
        match (flags, shape.row_format().scale) {
            (true, _) => flag_tokens(shape, tensors, dice),
            (false, Some(_)) if dice.below(2) == 0 => tensors.smoothed(shape),
            (false, _) => tensors,
        }
    };
    (0..rounds).map(|_| ranks().map(|rank| one(rank, dice)).collect()).collect()
}

/// Small domains, without the product's limits.
fn any_shape() -> impl Strategy<Value = Shape> {
    let sizes = (2i64..=5, 1i64..=4, 1i64..=4, 1i64..=6, 1i64..=8);
    let kinds = (any::<bool>(), any::<bool>(), any::<bool>(), proptest::option::of(1i64..=5));
    let specials = (0i64..3, 0i64..3);
    (sizes, kinds, specials).prop_map(
        |((r, local, k, h, cores), (quantised, f16, prefix, uneven), (zero, copy))| {
            let e = r * local;
            let domain = Domain { r, e, k: k.min(e), h: 8 * h, bs: 3, cores, ..PAIR };
            let sizes: Vec<i64> = (0..r).map(|rank| (1 + rank * uneven.unwrap_or(0)) % 4).collect();
            let mut config = Config {
                quant_mode: if quantised { 2 } else { 0 },
                dtype: if f16 { Dtype::F16 } else { Dtype::Bf16 },
                expert_token_nums_type: i64::from(!prefix),
                zero_expert_num: zero,
                copy_expert_num: copy,
                ..a2(domain)
            };
            if uneven.is_some() {
                config.bs = BatchSizes::PerRank(&sizes);
                config.global_bs = r * sizes.iter().max().unwrap();
            }
            shape_of(&config)
        },
    )
}

/// Tensors with these ids, all active.
fn routed(shape: &Shape, rank: u32, ids: &[i32]) -> Tensors {
    Tensors::new(shape, RankId(rank), ids.to_vec(), OwnedMask::None)
}

fn run(group: &mut Group, delivery: Delivery, seed: u64) -> Result<(), Failure> {
    group.play(delivery, seed)
}
