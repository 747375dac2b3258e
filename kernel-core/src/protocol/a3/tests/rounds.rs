//! Whole rounds of many shapes against the reference. The group examines each step: it has one effect at most, or a run of one
//! kind, and a pending machine is unchanged.

use super::super::{Combine, Dispatch, scratch_bytes, scratch_words};
use crate::fabric::{Flag, Progress, Wait};
use crate::layout::state::{Operator, selector};
use crate::place::Tensor;
use crate::plan::order::SendOrder;
use crate::plan::{route, split};
use crate::protocol::{Choices, Flags, Receive};
use crate::shape::{BatchSizes, Config, Dtype, Shape};
use crate::testing::domain::{Dice, Domain, OwnedMask, PAIR, Tensors, shape as shape_of};
use crate::testing::group::{Group, in_turn};
use crate::testing::random;
use crate::units::{CoreId, RankId};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// What ranks bring besides their tokens.
#[derive(Clone, Copy)]
pub(crate) struct Extras {
    /// Smooth scales.
    pub(crate) smoothed: bool,
    /// What AddRmsNorm reads.
    pub(crate) norm: bool,
}

impl Extras {
    pub(crate) const NONE: Self = Self { smoothed: false, norm: false };
}

/// Random routings and masks, and every other time also `shared_expert_x`, where it is allowed.
fn random_tensors(shape: &Shape, extras: Extras, dice: &mut Dice) -> Vec<Tensors> {
    let shared_expert_x = shape.shared_expert_rank_num() == 0 && dice.below(2) == 0;
    let ranks = (0..shape.ep_world_size()).map(RankId);
    let one = |rank| {
        let tensors = Tensors::random(shape, rank, dice);
        let tensors = if extras.smoothed { tensors.smoothed(shape) } else { tensors };
        let tensors = if extras.norm { tensors.with_add_rms_norm(shape, rank) } else { tensors };
        if shared_expert_x { tensors.with_shared_expert_x(shape, rank) } else { tensors }
    };
    ranks.map(one).collect()
}

/// Rounds with fresh routings and masks on one group, in a random interleaving.
pub(crate) fn assert_rounds(shape: &Shape, rounds: u32, extras: Extras, choices: Choices, dice: &mut Dice) {
    let mut group = Group::new(shape, random_tensors(shape, extras, dice));
    group.choices = choices;
    for round in 0..rounds {
        for (rank, tensors) in (0..).map(RankId).zip(&*group.tensors()) {
            assert_eq!(tensors.inputs().check(shape, rank), Ok(()), "the case must be legal");
        }
        group.one_by_one = if round % 2 == 1 { |_| true } else { |_| false };
        group.begin_dispatch();
        group.run(|n| dice.below(n as u32) as usize, |_, _| ()).unwrap();
        group.begin_combine();
        group.run(|n| dice.below(n as u32) as usize, |_, _| ()).unwrap();
        let mut world = group.memory.clone();
        world.settle();
        for core in (0..shape.aiv_num()).map(CoreId) {
            for kind in [Operator::Dispatch, Operator::Combine] {
                assert_eq!(world.word(RankId(0), selector(kind, core)), u64::from((round + 1) % 2));
            }
        }
        assert!(
            world.no_flag_is_left(shape, choices.receive),
            "a flag is left after round {round} of {shape:?}"
        );
        group.judge.rounds.push(random_tensors(shape, extras, dice));
    }
}

#[test]
fn a_step_has_up_to_sixteen_effects_of_a_kind_unless_they_come_one_by_one() {
    let domain = Domain { r: 3, e: 60, k: 4, h: 2, bs: 6, cores: 1, ..PAIR };
    let receive = [Receive::Copy, Receive::InPlace, Receive::Direct { areas: 1 }];
    for (receive, one_by_one) in receive.into_iter().flat_map(|receive| [(receive, true), (receive, false)]) {
        let shape = domain.shape();
        let mut dice = Dice(5);
        let mut group = Group::new(&shape, random_tensors(&shape, Extras::NONE, &mut dice));
        group.choices.receive = receive;
        group.one_by_one = if one_by_one { |_| true } else { |_| false };
        group.begin_dispatch();
        group.run(|n| dice.below(n as u32) as usize, |_, _| ()).unwrap();
        assert_eq!(group.most_effects, if one_by_one { 1 } else { 16 }, "{receive:?}");
    }
}

proptest! {
    #![proptest_config(random::config(150))]

    #[test]
    fn rounds_of_any_small_domain_agree_with_the_oracle(
        (moe_ranks, local, s, replicas) in (1i64..4, 1i64..4, 0i64..=2, 1i64..3),
        (k, h, bs, cores) in (1i64..=6, 1i64..=19, 1i64..=5, 1i64..=5),
        (quantised, smoothed, f16, plain, prefix_sums, separate) in any::<(bool, bool, bool, bool, bool, bool)>(),
        (comm_quant, norm, special) in any::<(bool, bool, bool)>(), receive in 0..6u32,
        specials in [0i64..=3, 0i64..=3, 0i64..=3],
        seed: u64,
    ) {
        let (rs, e) = (s * replicas, moe_ranks * local);
        let [z, c, q] = if special { specials } else { [0; 3] };
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e + z + c + q), h, bs, cores };
        let shape = shape_of(&Config {
            zero_expert_num: z,
            copy_expert_num: c,
            const_expert_num: q,
            // Pull combine does not support blocks.
            comm_quant_mode: if comm_quant && receive < 2 { 2 } else { 0 },
            quant_mode: if quantised { 2 } else { 0 },
            dtype: if f16 { Dtype::F16 } else { Dtype::Bf16 },
            expert_token_nums_type: if prefix_sums { 0 } else { 1 },
            ..domain.config()
        });
        prop_assert_eq!(shape.dtype() == Dtype::F16, f16);
        let order = if plain { SendOrder::Plain } else { SendOrder::Staggered };
        let flags = if separate { Flags::Separate } else { Flags::Joint };
        let receive = match receive {
            0 => Receive::Copy,
            1 => Receive::InPlace,
            areas if areas < 4 || quantised => Receive::Direct { areas: 1 + areas % 2 },
            areas => Receive::Overwrite { areas: 1 + areas % 2 },
        };
        assert_rounds(&shape, 3, Extras { smoothed: quantised && smoothed, norm }, Choices { order, flags, receive, ..Choices::default() }, &mut Dice(seed));
    }
}

/// Dispatch knows nothing of AddRmsNorm: its shape has the default, and the shape of combine alone has the epsilon.
#[test]
fn a_dispatch_does_not_know_the_epsilon_of_its_combine() {
    let plain = Domain { r: 3, e: 6, k: 2, h: 8, bs: 3, cores: 2, ..PAIR }.config();
    let shape = shape_of(&Config { norm_eps: 1e-3, ..plain });
    let mut dice = Dice(7);
    let mut group =
        Group::new(&shape, random_tensors(&shape, Extras { norm: true, ..Extras::NONE }, &mut dice));
    let of_combine = group.cluster.shape;
    group.cluster.shape = Box::leak(Box::new(shape_of(&plain)));
    group.begin_dispatch();
    group.run(|n| dice.below(n as u32) as usize, |_, _| ()).unwrap();
    group.cluster.shape = of_combine;
    group.begin_combine();
    group.run(|n| dice.below(n as u32) as usize, |_, _| ()).unwrap();
    assert!(!group.output(RankId(0), Tensor::Y).is_empty());
}

#[test]
fn more_cores_than_work_agree_with_the_oracle() {
    let domain = Domain { r: 3, e: 2, s: 1, rs: 1, k: 2, h: 3, bs: 1, cores: 48 };
    assert_rounds(&domain.shape(), 2, Extras::NONE, Choices::default(), &mut Dice(1));
}

#[test]
fn counts_and_indices_longer_than_one_write_agree_with_the_oracle() {
    // 2 * 40 pairs and 70 slots of one expert: each takes two writes.
    let domain = Domain { r: 70, e: 70, k: 40 / 8, h: 1, bs: 16, ..PAIR };
    assert_rounds(&domain.shape(), 1, Extras::NONE, Choices::default(), &mut Dice(2));
}

#[test]
fn an_expert_whose_counts_are_in_two_writes_has_the_rows_of_both() {
    // 12 experts of 6 slots each: the first write of 64 ends in the eleventh.
    let domain = Domain { r: 6, e: 72, k: 8, h: 1, bs: 16, cores: 1, ..PAIR };
    for expert_token_nums_type in [0, 1] {
        let shape = shape_of(&Config { expert_token_nums_type, ..domain.config() });
        assert_rounds(&shape, 1, Extras::NONE, Choices::default(), &mut Dice(6));
    }
}

#[test]
fn every_flag_of_the_most_columns_that_there_are_is_awaited_and_cleared() {
    // K = 16, and a shared expert's column after them.
    let domain = Domain { r: 3, e: 16, s: 1, rs: 1, k: 16, h: 1, bs: 2, cores: 2 };
    assert_rounds(&domain.shape(), 3, Extras::NONE, Choices::default(), &mut Dice(7));
}

/// One row of each token belongs to another rank, in any column, and that rank is slow.
#[test]
fn combine_waits_for_all_active_pairs_beside_any_masked_pair() {
    let shape = Domain { e: 6, k: 3, bs: 1, cores: 1, ..PAIR }.shape();
    for (far, masked) in (0..3).flat_map(|far| (0..3).filter(move |&k| k != far).map(move |k| (far, k))) {
        let mut ids = vec![0, 1];
        ids.insert(far, 3);
        let mask = OwnedMask::Pairs((0..3).map(|k| k != masked).collect());
        let tensors = [(ids, mask), (vec![3, 4, 5], OwnedMask::None)];
        let tensors = (0..).map(RankId).zip(tensors);
        let tensors = tensors.map(|(rank, (ids, mask))| Tensors::new(&shape, rank, ids, mask));
        let mut group = Group::new(&shape, tensors.collect());
        group.begin_dispatch();
        group.run(in_turn(), |_, _| ()).unwrap();
        group.begin_combine();
        let wait = Wait::new(Flag::Combine, RankId(1), &[0, far as u32]);
        let ends = (0..100).map(|_| group.step(0).unwrap().progress).find(|p| *p != Progress::Stepped);
        assert_eq!(ends, Some(Progress::Pending(wait)), "column {masked} is masked");
        group.run(in_turn(), |_, _| ()).unwrap();
    }
}

#[test]
fn ranks_with_different_batches_agree_with_the_oracle() {
    let choices =
        [(Flags::Joint, Receive::Copy), (Flags::Separate, Receive::Copy), (Flags::Joint, Receive::InPlace)];
    // Ranks without tokens among them, also that of a shared expert and all others.
    for (s, bs) in [0, 1].into_iter().flat_map(|s| [[1, 5, 2], [0, 5, 2], [5, 0, 0]].map(|bs| (s, bs))) {
        let domain = Domain { r: 3, e: 6, s, rs: s, k: 2, h: 2, cores: 2, ..PAIR };
        let config = Config { bs: BatchSizes::PerRank(&bs), global_bs: 15, ..domain.config() };
        for (flags, receive) in choices {
            let choices = Choices { flags, receive, ..Choices::default() };
            assert_rounds(&shape_of(&config), 3, Extras::NONE, choices, &mut Dice(3));
        }
    }
}

/// Three replicas, so that two of six sources send to each. Split by slots, one of two cores would copy all rows of the
/// first, and two of four cores none.
#[test]
fn cores_of_a_shared_expert_rank_copy_equally_many_rows() {
    for cores in [2, 3, 4, 6] {
        let shape = Domain { r: 6, e: 3, s: 1, rs: 3, k: 2, h: 2, bs: 24, cores }.shape();
        for receive in [Receive::Copy, Receive::InPlace] {
            assert_rounds(&shape, 3, Extras::NONE, Choices { receive, ..Choices::default() }, &mut Dice(5));
        }
        let full = |rank| Tensors::new(&shape, rank, [0, 1].repeat(24), OwnedMask::None);
        let mut group = Group::new(&shape, (0..6).map(RankId).map(full).collect());
        group.begin_dispatch();
        let mut copied = vec![0; cores as usize];
        group
            .run(in_turn(), |actor, step| {
                let delivers = step.effect.as_ref().is_some_and(|effect| effect.starts_with("deliver"));
                copied[actor.core.index()] += u32::from(delivers && actor.member == RankId(0));
            })
            .unwrap();
        assert_eq!(copied, vec![48 / cores as u32; cores as usize], "{cores} cores");
    }
}

#[test]
fn ten_rounds_turn_epochs_and_partitions_all_the_way_round() {
    let domain = Domain { e: 4, k: 2, cores: 3, ..PAIR };
    assert_rounds(&domain.shape(), 10, Extras::NONE, Choices::default(), &mut Dice(4));
}

#[test]
fn machines_are_small_enough_to_be_copied_about() {
    assert!(size_of::<Dispatch>() <= 512, "{}", size_of::<Dispatch>());
    assert!(size_of::<Combine>() <= 512, "{}", size_of::<Combine>());
}

proptest! {
    #![proptest_config(random::config(256))]

    #[test]
    fn the_scratch_suffices_for_any_core_of_any_rank(
        (moe_ranks, local, s, replicas) in (1i64..9, 1i64..6, 0i64..=4, 1i64..4),
        (k, h, bs, cores) in (1i64..=16, 1i64..=100, 1i64..=40, 1i64..=48),
    ) {
        let (rs, e) = (s * replicas, moe_ranks * local);
        let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e), h, bs, cores };
        let shape = domain.shape();
        let mut most = 0;
        for rank in (0..shape.ep_world_size()).map(RankId) {
            for core in (0..shape.aiv_num()).map(CoreId) {
                let pairs = route::share_len(&split::dispatch(&shape, rank, core)) as usize;
                let slots = split::slots(&shape, rank, core).len() + shape.local_experts(rank) as usize;
                let table = slots.max(route::destinations(&shape) as usize);
                most = most.max(pairs + table);
            }
        }
        // The core with the most pairs may have one slot fewer than another.
        prop_assert!((most..=most + 1).contains(&scratch_words(&shape)), "{} for {most}", scratch_words(&shape));
        prop_assert_eq!(scratch_bytes(&shape) as u64, shape.row_bytes().next_multiple_of(32) + 2 * shape.row_bytes());
    }
}

#[test]
fn the_scratch_has_a_row_as_the_longest_format_and_as_f32() {
    let bytes = |h, comm_quant_mode| {
        scratch_bytes(&shape_of(&Config { comm_quant_mode, ..Domain { h, ..PAIR }.config() }))
    };
    // 7168 elements: 14 336 B; as blocks 7168 + 2 * 896 = 8960 B; as f32 28 672 B.
    assert_eq!(bytes(7168, 0), 14_336 + 28_672);
    assert_eq!(bytes(7168, 2), 14_336 + 28_672);
    // 4 elements: 8 B; as blocks 32 + 2 B; as f32 16 B.
    assert_eq!(bytes(4, 0), 32 + 16);
    assert_eq!(bytes(4, 2), 64 + 16);
}

/// One rank, two tokens, K = 3 of one MoE, one zero, one copy and two const experts.
fn specials(ids: &[i32], mask: OwnedMask) -> Group {
    let domain = Domain { r: 1, e: 1, k: 3, h: 3, ..PAIR };
    let config = Config { zero_expert_num: 1, copy_expert_num: 1, const_expert_num: 2, ..domain.config() };
    let shape = shape_of(&config);
    Group::new(&shape, vec![Tensors::new(&shape, RankId(0), ids.to_vec(), mask)])
}

fn run(group: &mut Group) {
    group.begin_dispatch();
    group.run(in_turn(), |_, _| ()).unwrap();
    group.begin_combine();
    group.run(in_turn(), |_, _| ()).unwrap();
}

#[test]
fn tokens_with_special_experts_alone_wait_for_no_rank() {
    let mut group = specials(&[1, 2, 3, 4, 3, 2], OwnedMask::None);
    run(&mut group);
    // The copy and the const experts contribute.
    assert!(group.output(RankId(0), Tensor::XOut).iter().any(|&b| b != 0));
    // A token whose only active pair is a zero expert is active, and zero.
    let zero_alone = vec![true, false, false, false, false, false];
    let mut group = specials(&[1, 2, 3, 0, 3, 2], OwnedMask::Pairs(zero_alone));
    run(&mut group);
    assert!(group.output(RankId(0), Tensor::XOut).iter().all(|&b| b == 0));
}

#[test]
fn terms_are_added_in_the_order_of_k() {
    // Const -x, MoE, copy x; then copy, MoE, const. Next to x = 2^24 an odd number loses its last place or not, depending
    // on the sign of the sum to which it is added.
    let mut group = specials(&[3, 0, 2, 2, 0, 3], OwnedMask::None);
    group.tensors()[0].x = [0x80, 0x4B].repeat(6);
    group.tensors()[0].weights = vec![1.0; 6];
    group.tensors()[0].alpha_1 = [0x80, 0xBF].repeat(2);
    group.tensors()[0].alpha_2 = vec![0; 4];
    run(&mut group);
    let x_out = group.output(RankId(0), Tensor::XOut).as_chunks().0.iter();
    let x_out: Vec<f32> = x_out.map(|&bytes| half::bf16::from_le_bytes(bytes).to_f32()).collect();
    // The experts return -55, -54, -53 and -38, -37, -36.
    assert_eq!(x_out, [-56.0, -54.0, -52.0, -38.0, -37.0, -36.0]);
}

#[test]
fn a_zero_expert_adds_nothing_whatever_the_weight() {
    let mut group = specials(&[1, 0, 2, 0, 1, 2], OwnedMask::None);
    // Neither passes the check of the inputs; 0 times either would be NaN.
    group.tensors()[0].weights[0] = f32::INFINITY;
    group.tensors()[0].weights[4] = f32::NAN;
    run(&mut group);
    let x_out = group.output(RankId(0), Tensor::XOut).as_chunks().0.iter().copied();
    assert!(x_out.map(half::bf16::from_le_bytes).all(half::bf16::is_finite));
}
