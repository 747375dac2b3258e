//! The terms of combine and its results, computed by hand.

use super::super::{Normed, Range};
use super::*;
use crate::inputs::InputError;

/// One rank with two experts and one token of two elements; `z`, `c` and `q` special experts.
fn specials([z, c, q]: [i64; 3], k: i64) -> Config<'static> {
    let config = small([1, 2, 0, 0, k, 2, 1]);
    Config { zero_expert_num: z, copy_expert_num: c, const_expert_num: q, ..config }
}

#[test]
fn special_experts_are_computed_and_not_asked_for() {
    // Ids: MoE 0 and 1, zero 2, copy 3, const 4 and 5.
    let tensors = Tensors {
        alpha_1: bf16(&[100.0, 3.0]),
        alpha_2: bf16(&[100.0, -1.0]),
        const_v: bf16(&[7.0, 7.0, 10.0, 20.0]),
        ..Tensors::new(&[1.0, 2.0], &[3, 0, 2, 5], &[0.5, 0.25, 99.0, 2.0])
    };
    let shape = shape(&specials([1, 1, 2], 4));
    assert_eq!(tensors.inputs().check(&shape, RankId(0)), Ok(()));
    // 0.5 * (1, 2) + 0.25 * (8, 16) + 2 * (3 * (1, 2) - (10, 20)).
    let seen = combine(&shape, core::slice::from_ref(&tensors), 0, &|_, _| vec![8.0, 16.0]);
    assert_eq!(seen, (vec![0.5 + 2.0 - 14.0, 1.0 + 4.0 - 28.0], vec![(0, 1)]));
    let sent = &dispatch(&shape, &[tensors])[0];
    assert_eq!(sent.expand_idx, [-1, 0, -1, -1]);
    assert_eq!(sent.ep_recv_counts, [1, 1]);
}

#[test]
fn a_token_may_have_special_experts_alone_and_masks_hide_them_too() {
    let shape = shape(&Config { bs: BatchSizes::Uniform(3), ..specials([2, 2, 0], 2) });
    let tensors = Tensors {
        // Token 0: zero and zero; token 1: copy and copy, the second off; token 2: copy off, zero.
        mask_2d: Some(vec![true, true, true, false, false, true]),
        ..Tensors::new(&[1., 2., 3., 4., 5., 6.], &[3, 2, 4, 5, 5, 2], &[1.0; 6])
    };
    let seen = combine(&shape, core::slice::from_ref(&tensors), 0, &|_, _| panic!("nothing was sent"));
    assert_eq!(seen, (vec![0.0, 0.0, 3.0, 4.0, 0.0, 0.0], vec![]));
    assert_eq!(dispatch(&shape, &[tensors])[0].assist_info_for_combine, [[0; 3]; 0]);
}

#[test]
fn a_const_experts_row_is_rounded_as_f32_and_no_earlier() {
    // (1 + 2^-7)^2 - (1 + 2^-6) = 2^-14, which bf16 products would lose.
    let tensors = Tensors {
        alpha_1: bf16(&[1.0 + 1.0 / 128.0]),
        alpha_2: bf16(&[-1.0]),
        const_v: bf16(&[1.0 + 1.0 / 64.0, 0.0]),
        ..Tensors::new(&[1.0 + 1.0 / 128.0, 0.0], &[2], &[1.0])
    };
    let shape = shape(&specials([0, 0, 1], 1));
    let seen = combine(&shape, &[tensors], 0, &|_, _| panic!("nothing was sent"));
    assert_eq!(seen.0, [1.0 / 16384.0, 0.0]);
}

#[test]
fn terms_are_added_in_the_order_of_k() {
    // 2^24 + 1 is 2^24 in f32, so copy, MoE, const give 0; any other order gives another result.
    let large = 16_777_216.0;
    let tensors = Tensors {
        alpha_1: bf16(&[0.0]),
        alpha_2: bf16(&[1.0]),
        const_v: bf16(&[-1.0, 0.0]),
        ..Tensors::new(&[large, 0.0], &[2, 0, 3], &[1.0, 1.0, large])
    };
    let shape = shape(&specials([0, 1, 1], 3));
    let seen = combine(&shape, &[tensors], 0, &|_, _| vec![1.0, 0.0]);
    assert_eq!(seen.0, [0.0, 0.0]);
}

#[test]
fn shared_expert_x_is_added_last_to_active_tokens() {
    let shape = shape(&Config { given: Given::SHARED_EXPERT_X, ..small([1, 2, 0, 0, 2, 1, 2]) });
    let tensors = Tensors {
        mask_1d: Some(vec![true, false]),
        // 2^-30 is lost unless 1 and -1 have been added before.
        shared_expert_x: Some(bf16(&[1.0 / 1_073_741_824.0, 5.0])),
        ..Tensors::new(&[0.0, 0.0], &[0, 1, 0, 1], &[1.0, -1.0, 1.0, 1.0])
    };
    assert_eq!(tensors.inputs().check(&shape, RankId(0)), Ok(()));
    let seen = combine(&shape, &[tensors], 0, &|_, _| vec![1.0]);
    assert_eq!(seen.0, [1.0 / 1_073_741_824.0, 0.0]);
}

#[test]
fn shared_expert_x_is_refused_where_ranks_hold_shared_experts() {
    let tensors = Tensors { shared_expert_x: Some(bf16(&[0.0])), ..shared().swap_remove(0) };
    let refused = tensors.inputs().check(&shape(&small([6, 2, 2, 4, 1, 1, 1])), RankId(0));
    assert_eq!(refused, Err(InputError::SharedExpertX { shared_experts: 2 }));
}

#[test]
fn blocks_of_eight_are_quantised_as_on_paper() {
    let through = numerics::through_blocks;
    // m = 127, so s = 1: ties go to the even neighbour. The second block is short and has a scale of its own:
    // s = 1 / 127, as bf16 2^-7 * 1.0078125; -0.5 / s = -63.5, a tie again.
    let row = [127.0, 63.5, -0.5, 1.5, -2.5, 0.0, -127.0, 64.0, 1.0, -0.5];
    let seen = through(Dtype::Bf16, &row);
    assert_eq!(seen, [127.0, 64.0, 0.0, 2.0, -2.0, 0.0, -127.0, 64.0, 1.0, -0.503_906_25]);
    // s = 515.7795...; q = 127, 64. The scale travels as 516, and 127 * 516 exceeds the range of f16.
    assert_eq!(through(Dtype::F16, &[65504.0, 32752.0]), [f32::INFINITY, 33024.0]);
    // 0.578125 / s is below 63.5: multiplied by 1 / s or by 127 / m it would become 64.
    let scale = half::bf16::from_f32(1.15625 / 127.0).to_f32();
    let rounded = |q: f32| half::bf16::from_f32(q * scale).to_f32();
    assert_eq!(through(Dtype::Bf16, &[1.15625, 0.578_125]), [rounded(127.0), rounded(63.0)]);
}

#[test]
fn a_block_that_is_not_finite_is_nan_alone_and_one_of_zeros_stays() {
    let row =
        [&[1.0; 8][..], &[0.0, -0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[1.0, f32::INFINITY, 2.0]].concat();
    let seen = numerics::through_blocks(Dtype::Bf16, &row);
    assert!(seen[..8].iter().all(|v| v.is_finite()) && seen[16..].iter().all(|v| v.is_nan()));
    assert_eq!(seen[8..16], [0.0; 8]);
}

#[test]
fn returned_rows_are_quantised_and_local_ones_are_not() {
    let config = specials([0, 1, 0], 2);
    let config = Config { comm_quant_mode: 2, given: Given::SHARED_EXPERT_X, ..config };
    // 0.25 of 127 is 0 in int8: it remains only in the copy and in shared_expert_x.
    let tensors = Tensors {
        shared_expert_x: Some(bf16(&[0.0, 0.25])),
        ..Tensors::new(&[127.0, 0.25], &[0, 2], &[1.0, 1.0])
    };
    let seen = combine(&shape(&config), &[tensors], 0, &|_, _| vec![127.0, 0.25]);
    assert_eq!(seen.0, [254.0, 0.5]);
    // Rows of shared experts travel too: 0.5 * 0 + 0.
    let config = Config { comm_quant_mode: 2, ..small([2, 1, 1, 1, 1, 2, 1]) };
    let tensors = Tensors::new(&[127.0, 0.25], &[0], &[0.5]);
    let seen = combine(&shape(&config), &[tensors.clone(), tensors], 1, &|_, _| vec![127.0, 0.25]);
    assert_eq!(seen.0, [190.0, 0.0]);
}

fn norm(h: i64, eps: f32) -> Shape {
    let config = Config { norm_eps: eps, ..small([1, 1, 0, 0, 1, h, 1]) };
    shape(&config)
}

/// One token whose expert returns `row`.
fn normed(shape: &Shape, row: &[f32], residual: &[f32]) -> Normed {
    let h = shape.h() as usize;
    let tensors = Tensors {
        add_rms_norm: Some([bf16(residual), bf16(&vec![1.0; h])]),
        ..Tensors::new(&vec![0.0; h], &[0], &[1.0])
    };
    let ranks = [tensors.inputs()];
    assert_eq!(ranks[0].check(shape, RankId(0)), Ok(()));
    Cluster { shape, ranks: &ranks, elastic_info: None, expert_map: None }
        .combine_add_rms_norm(RankId(0), &mut |_, _, out| *out = bf16(row))
}

#[test]
fn a_row_is_normalised_as_on_paper() {
    let shape = norm(4, 0.0);
    let seen = normed(&shape, &[0.5, 2.0, 2.0, -3.0], &[0.5, 0.0, 0.0, -1.0]);
    assert_eq!(seen.x_out, bf16(&[0.5, 2.0, 2.0, -3.0]));
    assert_eq!(seen.x, bf16(&[1.0, 2.0, 2.0, -4.0]));
    // (1 + 4 + 4 + 16) / 4 = 6.25, whose root is 2.5.
    let [Range { smallest, largest, exact }] = seen.rstd[..] else { panic!("one token") };
    assert_eq!(exact, 0.4);
    assert!(smallest <= 0.4 && 0.4 <= largest && largest - smallest < 1e-6, "{smallest} {largest}");
    // In bf16 0.4 is 205 / 512, the products are exact; gamma makes it (1, -1, 2, 0.5) times that.
    let gamma = bf16(&[1.0, -1.0, 2.0, 0.5]);
    let add_rms_norm = Some(AddRmsNorm { residual_x: &[], gamma: &gamma });
    let inputs = [Inputs { add_rms_norm, ..Inputs::default() }];
    let y = Cluster { shape: &shape, ranks: &inputs, elastic_info: None, expert_map: None }.y(
        RankId(0),
        &seen,
        &[0.4],
    );
    let n = 205.0 / 512.0;
    assert_eq!(numerics::values(Dtype::Bf16, &y), [n, -2.0 * n, 4.0 * n, -2.0 * n]);
}

#[test]
fn the_residual_is_added_before_anything_is_rounded_to_dtype() {
    let config = small([1, 1, 0, 0, 1, 1, 1]);
    let shape = shape(&Config { const_expert_num: 1, ..config });
    // The sum is 1 + 2^-9, in bf16 1; with the residual -1 it is 2^-9.
    let tensors = Tensors {
        alpha_1: bf16(&[1.0]),
        alpha_2: bf16(&[1.0]),
        const_v: bf16(&[1.0 / 512.0]),
        add_rms_norm: Some([bf16(&[-1.0]), bf16(&[1.0])]),
        ..Tensors::new(&[1.0], &[1], &[1.0])
    };
    let ranks = [tensors.inputs()];
    let seen = Cluster { shape: &shape, ranks: &ranks, elastic_info: None, expert_map: None }
        .combine_add_rms_norm(RankId(0), &mut |_, _, _| ());
    assert_eq!((seen.x_out, seen.x), (bf16(&[1.0]), bf16(&[1.0 / 512.0])));
}

#[test]
fn epsilon_is_added_to_the_mean_and_an_inactive_token_has_its_residual() {
    let shape = norm(2, 12.0);
    let tensors = Tensors {
        mask_1d: Some(vec![false]),
        add_rms_norm: Some([bf16(&[2.0, -2.0]), bf16(&[1.0, 1.0])]),
        ..Tensors::new(&[9.0, 9.0], &[0], &[1.0])
    };
    let ranks = [tensors.inputs()];
    let cluster = Cluster { shape: &shape, ranks: &ranks, elastic_info: None, expert_map: None };
    let seen = cluster.combine_add_rms_norm(RankId(0), &mut |_, _, _| panic!("inactive"));
    assert_eq!((&seen.x_out, &seen.x), (&bf16(&[0.0, 0.0]), &bf16(&[2.0, -2.0])));
    // 1 / sqrt(4 + 12).
    assert!(seen.rstd[0].holds(0.25) && !seen.rstd[0].holds(0.5));
}

#[test]
fn the_range_of_rstd_holds_every_order_and_little_else() {
    let shape = norm(4, 0.0);
    // Quarters of 2^24 + 1 + 1 + 1: added from the left it stays 2^22, from the right it becomes more.
    let seen = normed(&shape, &[4096.0, 1.0, 1.0, 1.0], &[0.0; 4]).rstd[0];
    let of = |sum: f32| 1.0 / libm::sqrtf(sum);
    assert!(seen.holds(of(4_194_304.0)) && seen.holds(of(4_194_305.0)));
    assert!(!seen.holds(of(4_194_310.0)) && !seen.holds(of(4_194_300.0)) && !seen.holds(f32::NAN));
    let seen = normed(&shape, &[f32::NAN, 1.0, 1.0, 1.0], &[0.0; 4]).rstd[0];
    assert!(seen.holds(f32::NAN) && !seen.holds(0.0));
    let seen = normed(&shape, &[f32::INFINITY, 1.0, 1.0, 1.0], &[0.0; 4]).rstd[0];
    assert!(seen.holds(0.0) && !seen.holds(f32::NAN) && !seen.holds(1e-30));
    // A negative number has no root.
    let seen = normed(&norm(4, -2.0), &[1.0; 4], &[0.0; 4]).rstd[0];
    assert!(seen.holds(f32::NAN) && !seen.holds(1.0));
}
