//! The validation of a rank's tensors: every error, and the values that are never read.

use core::ops::ControlFlow;
use veriep_core::inputs::{AddRmsNorm, InputError, Inputs, Mask};
use veriep_core::shape::{BatchSizes, Config, Dtype, Limits, Protocol, Shape};
use veriep_core::units::{RankId, Token};

const RANK: RankId = RankId(1);
const H: usize = 4;
const EXPERTS: usize = 8;

/// bf16 and f16 values: the largest finite one, and others that are not finite.
const BF16: [u16; 4] = [0x3F80, 0xFF7F, 0x7F80, 0xFFC1];
const F16: [u16; 4] = [0x3C00, 0xFBFF, 0xFC00, 0x7C01];

/// 4 ranks, 8 MoE and 2 zero experts, K = 3, 3 tokens of 4 values.
fn config() -> Config<'static> {
    Config {
        ep_world_size: 4,
        moe_expert_num: 8,
        zero_expert_num: 2,
        k: 3,
        h: 4,
        bs: BatchSizes::Uniform(3),
        ..Config::default()
    }
}

fn shape(config: &Config<'_>) -> Shape {
    match Shape::new(config, Limits::None) {
        Ok(shape) => shape,
        Err(found) => panic!("{found:?}"),
    }
}

/// Owned tensors, valid until a test changes one.
struct Tensors {
    shape: Shape,
    x: Vec<u16>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    tokens: Option<Vec<bool>>,
    pairs: Option<Vec<bool>>,
    scales: Option<Vec<f32>>,
}

impl Tensors {
    fn of(config: &Config<'_>) -> Self {
        Self {
            shape: shape(config),
            x: vec![if config.dtype == Dtype::F16 { F16[0] } else { BF16[0] }; 3 * H],
            ids: vec![0, 1, 2, 7, 8, 9, 5, 3, 4],
            weights: vec![0.5; 9],
            tokens: None,
            pairs: None,
            scales: None,
        }
    }

    fn plain() -> Self {
        Self::of(&config())
    }

    fn quantised(dtype: Dtype) -> Self {
        Self::of(&Config { quant_mode: 2, dtype, ..config() })
    }

    fn smooth(mut self) -> Self {
        self.scales = Some(vec![1.0; EXPERTS * H]);
        self
    }

    fn check(&self) -> Result<(), InputError> {
        self.with_inputs(|inputs| inputs.check(&self.shape, RANK))
    }

    fn all(&self) -> Vec<InputError> {
        let mut all = Vec::new();
        let _ = self.with_inputs(|inputs| {
            inputs.check_all(&self.shape, RANK, &mut |error| {
                all.push(error);
                ControlFlow::Continue(())
            })
        });
        all
    }

    fn with_inputs<T>(&self, f: impl FnOnce(&Inputs<'_>) -> T) -> T {
        let bytes: Vec<u8> = self.x.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mask = match (&self.tokens, &self.pairs) {
            (Some(tokens), _) => Mask::Tokens(tokens),
            (_, Some(pairs)) => Mask::Pairs(pairs),
            _ => Mask::None,
        };
        let scales = self.scales.as_deref();
        f(&Inputs {
            x: &bytes,
            expert_ids: &self.ids,
            expert_scales: &self.weights,
            mask,
            scales,
            ..Inputs::default()
        })
    }

    fn fails(&self, expected: InputError) {
        assert_eq!(self.check(), Err(expected), "{expected}");
        assert_eq!(self.all()[0], expected, "the first of all");
        assert!(expected.to_string().starts_with(expected.tensor()), "{expected}");
        println!("{expected}");
    }
}

fn not_finite(token: u32, element: u32) -> InputError {
    InputError::NotFiniteToken { token: Token(token), element, smooth: None }
}

fn not_finite_smoothed(token: u32, element: u32, row: u32) -> InputError {
    InputError::NotFiniteToken { token: Token(token), element, smooth: Some(row) }
}

#[test]
fn sound_inputs_pass() {
    assert_eq!(Tensors::plain().check(), Ok(()));
    assert_eq!(Tensors::quantised(Dtype::Bf16).smooth().check(), Ok(()));
    assert_eq!(Tensors::quantised(Dtype::F16).check(), Ok(()));
    let mut masked = Tensors::plain();
    masked.tokens = Some(vec![true, true, false]);
    assert_eq!(masked.check(), Ok(()));
    masked.tokens = Some(vec![false; 3]);
    assert_eq!(masked.check(), Ok(()));
    masked.tokens = None;
    masked.pairs = Some(vec![false, true, false, false, false, false, true, true, true]);
    assert_eq!(masked.check(), Ok(()));
}

#[test]
fn every_tensor_must_have_its_length() {
    let length = |tensor, seen, expected| InputError::Length { tensor, seen, expected };
    let mut short = Tensors::plain();
    short.x.pop();
    short.fails(length("x", 11, 12));
    let mut long = Tensors::plain();
    long.ids.push(0);
    long.fails(length("expert_ids", 10, 9));
    let mut short = Tensors::plain();
    short.weights.pop();
    short.fails(length("expert_scales", 8, 9));
    let mut short = Tensors::plain();
    short.tokens = Some(vec![true; 2]);
    short.fails(length("x_active_mask", 2, 3));
    short.tokens = None;
    short.pairs = Some(vec![true; 3]);
    short.fails(length("x_active_mask", 3, 9));
    let mut long = Tensors::quantised(Dtype::Bf16);
    long.scales = Some(vec![1.0; 9 * H]);
    long.fails(length("scales", 36, 32));
}

#[test]
fn half_a_value_is_not_taken_for_none() {
    let tensors = Tensors::plain();
    let inputs =
        |x| Inputs { x, expert_ids: &tensors.ids, expert_scales: &tensors.weights, ..Inputs::default() };
    assert_eq!(inputs(&[0; 24]).check(&tensors.shape, RANK), Ok(()));
    let expected = InputError::Length { tensor: "x", seen: 13, expected: 12 };
    assert_eq!(inputs(&[0; 25]).check(&tensors.shape, RANK), Err(expected));
}

#[test]
fn a_value_of_which_half_is_missing_is_missing() {
    let tensors = Tensors::plain();
    let inputs =
        |x| Inputs { x, expert_ids: &tensors.ids, expert_scales: &tensors.weights, ..Inputs::default() };
    let expected = InputError::Length { tensor: "x", seen: 11, expected: 12 };
    assert_eq!(inputs(&[0; 23]).check(&tensors.shape, RANK), Err(expected));
}

#[test]
fn scales_have_a_row_for_each_shared_expert_too() {
    let config = Config { shared_expert_num: 1, shared_expert_rank_num: 2, quant_mode: 2, ..config() };
    let mut tensors = Tensors::of(&config).smooth();
    let expected = InputError::Length { tensor: "scales", seen: 32, expected: 36 };
    tensors.fails(expected);
    tensors.scales = Some(vec![1.0; 9 * H]);
    assert_eq!(tensors.check(), Ok(()));
}

#[test]
fn scales_without_quantisation_are_refused() {
    Tensors::plain().smooth().fails(InputError::ScalesUnquantised);
}

/// Valid tensors with another id, and if `masked` a mask that switches off that pair, of kind `of_pairs` or its token and
/// those behind.
fn spoilt(place: usize, id: i32, masked: bool, of_pairs: bool) -> Tensors {
    let mut tensors = Tensors::plain();
    tensors.ids[place] = id;
    tensors.pairs = of_pairs.then(|| (0..9).map(|pair| !masked || pair != place).collect());
    tensors.tokens = (!of_pairs).then(|| (0..3).map(|token| !masked || token < place / 3).collect());
    tensors
}

#[test]
fn ids_must_be_known_and_distinct() {
    for of_pairs in [false, true] {
        let spoil = |place, id| spoilt(place, id, false, of_pairs);
        let unknown = |token, k, seen| InputError::ExpertId { token: Token(token), k, seen, end: 10 };
        assert_eq!(spoil(4, 2).check(), Ok(()));
        spoil(4, 10).fails(unknown(1, 1, 10));
        spoil(8, -1).fails(unknown(2, 2, -1));
        spoil(0, i32::MIN).fails(unknown(0, 0, i32::MIN));
        spoil(8, 5).fails(InputError::RepeatedExpert { token: Token(2), expert: 5 });
        spoil(5, 8).fails(InputError::RepeatedExpert { token: Token(1), expert: 8 });
    }
}

#[test]
fn ids_of_masked_pairs_may_be_any_number() {
    for of_pairs in [false, true] {
        for (place, id) in [(4, 10), (8, -1), (0, i32::MIN), (3, i32::MAX), (8, 5), (5, 8), (3, 8)] {
            assert_eq!(spoilt(place, id, true, of_pairs).all(), [], "{id} at {place}, pairs {of_pairs}");
        }
    }
    // The active pair that a masked one repeats keeps its own rules.
    let mut tensors = spoilt(3, 9, true, true);
    tensors.ids[4] = 9;
    tensors.fails(InputError::RepeatedExpert { token: Token(1), expert: 9 });
}

#[test]
fn a_mask_of_tokens_is_true_before_it_is_false() {
    let mut tensors = Tensors::plain();
    tensors.tokens = Some(vec![true, false, true]);
    tensors.fails(InputError::MaskOrder { token: Token(2) });
    tensors.tokens = Some(vec![false, true, true]);
    tensors.fails(InputError::MaskOrder { token: Token(1) });
}

#[test]
fn every_token_is_active_on_a3_when_ranks_differ_in_bs() {
    let config = Config { bs: BatchSizes::PerRank(&[1, 3, 2, 3]), global_bs: 12, ..config() };
    let mut tensors = Tensors::of(&config);
    assert_eq!(tensors.check(), Ok(()));
    tensors.tokens = Some(vec![true; 3]);
    assert_eq!(tensors.check(), Ok(()));
    tensors.tokens = Some(vec![true, true, false]);
    tensors.fails(InputError::MaskWithUnevenBs { token: Token(2) });
    tensors.tokens = None;
    tensors.pairs = Some(vec![true, false, false, false, false, true, true, true, true]);
    assert_eq!(tensors.check(), Ok(()));
    tensors.pairs = Some(vec![true, false, false, false, false, false, true, true, true]);
    tensors.fails(InputError::MaskWithUnevenBs { token: Token(1) });
    // The same rule where ranks are alike and all are below the capacity.
    let mut alike = Tensors::of(&Config { global_bs: 16, ..self::config() });
    alike.tokens = Some(vec![true, true, false]);
    let error = InputError::MaskWithUnevenBs { token: Token(2) };
    alike.fails(error);
    let told =
        "x_active_mask[2] is false: every token must be active on A3 when a rank's bs is below the capacity";
    assert_eq!(error.to_string(), told);
    // On A2 a mask concerns no other rank.
    for config in [Config { global_bs: 16, ..self::config() }, config] {
        let of_a2 = Config { comm_alg: Protocol::Fullmesh, h: 2 * H as i64, hccl_buffsize_mb: 5, ..config };
        let mut tensors = Tensors::of(&of_a2);
        tensors.x = vec![BF16[0]; 3 * 2 * H];
        tensors.tokens = Some(vec![true, false, false]);
        assert_eq!(tensors.check(), Ok(()));
    }
}

#[test]
fn weights_and_scales_must_be_finite() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut tensors = Tensors::plain();
        tensors.weights[4] = bad;
        tensors.tokens = Some(vec![false; 3]);
        let bits = bad.to_bits();
        tensors.fails(InputError::NotFinite { tensor: "expert_scales", row: 1, column: Some(1), bits });
        let mut tensors = Tensors::quantised(Dtype::Bf16).smooth();
        tensors.scales.as_mut().unwrap()[31] = bad;
        tensors.fails(InputError::NotFinite { tensor: "scales", row: 7, column: Some(3), bits });
    }
    let error = InputError::NotFinite { tensor: "scales", row: 7, column: Some(3), bits: 0x7F80_0000 };
    assert_eq!(error.to_string(), "scales[7, 3] = inf: must be finite");
    let error = InputError::NotFinite { tensor: "gain", row: 7, column: None, bits: 0x7FC0_0000 };
    assert_eq!(error.to_string(), "gain[7] = NaN: must be finite");
}

#[test]
fn a_quantised_value_must_be_finite() {
    for (dtype, [_, largest, infinite, nan]) in [(Dtype::Bf16, BF16), (Dtype::F16, F16)] {
        let mut tensors = Tensors::quantised(dtype);
        tensors.x[5] = largest;
        assert_eq!(tensors.check(), Ok(()), "{dtype:?}");
        tensors.x[6] = infinite;
        tensors.fails(not_finite(1, 2));
        tensors.x[4] = nan;
        tensors.fails(not_finite(1, 0));
    }
}

#[test]
fn an_unquantised_payload_is_never_read() {
    let mut tensors = Tensors::plain();
    tensors.x.fill(BF16[3]);
    assert_eq!(tensors.check(), Ok(()));
}

#[test]
fn an_inactive_token_is_never_read() {
    let mut tensors = Tensors::quantised(Dtype::Bf16);
    tensors.x[2 * H] = BF16[3];
    tensors.fails(not_finite(2, 0));
    tensors.tokens = Some(vec![true, true, false]);
    assert_eq!(tensors.check(), Ok(()));
    tensors.tokens = None;
    tensors.pairs = Some(vec![true, true, true, true, true, true, false, false, false]);
    assert_eq!(tensors.check(), Ok(()));
    tensors.pairs.as_mut().unwrap()[7] = true;
    tensors.fails(not_finite(2, 0));
}

#[test]
fn a_token_that_only_goes_to_special_experts_is_active() {
    let mut tensors = Tensors::quantised(Dtype::Bf16);
    tensors.pairs = Some(vec![true, true, true, false, true, true, true, true, true]);
    tensors.x[H + 3] = BF16[2];
    tensors.fails(not_finite(1, 3));
}

#[test]
fn smoothing_is_checked_with_the_experts_that_a_token_goes_to() {
    // Token 0 goes to experts 0, 1, 2; token 1 to expert 7 and both zero experts.
    let mut tensors = Tensors::quantised(Dtype::Bf16).smooth();
    tensors.x[1] = BF16[1];
    let spoil = |tensors: &mut Tensors, expert: usize, element: usize| {
        tensors.scales = Some(vec![1.0; EXPERTS * H]);
        tensors.scales.as_mut().unwrap()[expert * H + element] = -2.0;
    };
    spoil(&mut tensors, 7, 1);
    assert_eq!(tensors.check(), Ok(()), "another token's expert");
    spoil(&mut tensors, 2, 0);
    assert_eq!(tensors.check(), Ok(()), "another element");
    spoil(&mut tensors, 2, 1);
    tensors.fails(not_finite_smoothed(0, 1, 2));
    tensors.pairs = Some(vec![true, true, false, true, true, true, true, true, true]);
    assert_eq!(tensors.check(), Ok(()), "a masked pair");
    tensors.pairs = Some(vec![false, false, true, true, true, true, true, true, true]);
    tensors.fails(not_finite_smoothed(0, 1, 2));
}

#[test]
fn smoothing_is_checked_with_shared_experts_for_every_active_token() {
    let config = Config { shared_expert_num: 2, shared_expert_rank_num: 2, quant_mode: 2, ..config() };
    let mut tensors = Tensors::of(&config);
    let mut scales = vec![1.0; 10 * H];
    scales[H + 2] = 1.5;
    tensors.scales = Some(scales);
    assert_eq!(tensors.check(), Ok(()));
    tensors.x[H + 2] = BF16[1];
    tensors.fails(not_finite_smoothed(1, 2, 1));
    // Token 1 then goes only to a special expert and the shared ones.
    tensors.pairs = Some(vec![true, true, true, false, true, false, true, true, true]);
    tensors.fails(not_finite_smoothed(1, 2, 1));
    tensors.pairs = Some(vec![true, true, true, false, false, false, true, true, true]);
    assert_eq!(tensors.check(), Ok(()));
}

#[test]
fn a_scale_below_one_does_not_hide_an_infinite_value() {
    let mut tensors = Tensors::quantised(Dtype::F16).smooth();
    tensors.scales.as_mut().unwrap().fill(0.0);
    tensors.x[0] = F16[2];
    tensors.fails(not_finite(0, 0));
}

#[test]
fn the_smooth_rows_of_moe_experts_come_after_the_shared_ones() {
    let config = Config { shared_expert_num: 2, shared_expert_rank_num: 2, quant_mode: 2, ..config() };
    let mut tensors = Tensors::of(&config);
    let mut scales = vec![1.0; 10 * H];
    // Row 2 + 7: only token 1 goes to it.
    scales[9 * H] = 4.0;
    tensors.scales = Some(scales);
    tensors.x[0] = BF16[1];
    assert_eq!(tensors.check(), Ok(()));
    tensors.x[H] = BF16[1];
    tensors.fails(not_finite_smoothed(1, 0, 9));
}

#[test]
fn all_errors_are_reported_tensor_by_tensor() {
    let mut tensors = Tensors::quantised(Dtype::Bf16).smooth();
    tensors.ids = vec![0, 0, 99, -1, 8, 9, 5, 5, 5];
    tensors.weights[0] = f32::NAN;
    tensors.weights[8] = f32::INFINITY;
    tensors.tokens = Some(vec![false, true, true]);
    tensors.x[2 * H] = BF16[3];
    tensors.x[2 * H + 1] = BF16[3];
    tensors.scales.as_mut().unwrap()[5] = f32::NAN;
    let seen: Vec<_> = tensors.all().iter().map(ToString::to_string).collect();
    // Token 0 is inactive.
    let expected = [
        "expert_ids[1, 0] = -1: must be in [0, 10)",
        "expert_ids[2] names expert 5 twice: ids must be distinct within a row",
        "expert_ids[2] names expert 5 twice: ids must be distinct within a row",
        "x_active_mask[1] is true after a false: a 1-D mask must be all true before all false",
        "x_active_mask[2] is true after a false: a 1-D mask must be all true before all false",
        "expert_scales[0, 0] = NaN: must be finite",
        "expert_scales[2, 2] = inf: must be finite",
        "scales[1, 1] = NaN: must be finite",
        "x[2, 0] is not finite: quant_mode = 2 needs finite values",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_tensor_of_the_wrong_length_hides_nothing_wrong_in_another() {
    let mut tensors = Tensors::plain();
    tensors.x.pop();
    tensors.tokens = Some(vec![false, true]);
    tensors.ids[0] = 10;
    tensors.weights[0] = f32::NAN;
    let seen = |tensors: &Tensors| tensors.all().iter().map(InputError::tensor).collect::<Vec<_>>();
    // Which ids the mask leaves is not known.
    assert_eq!(seen(&tensors), ["x", "x_active_mask", "expert_scales"]);
    tensors.tokens = None;
    assert_eq!(seen(&tensors), ["x", "expert_ids", "expert_scales"]);
}

/// Two const experts.
fn everything() -> Config<'static> {
    Config { const_expert_num: 2, ..config() }
}

fn norm<'a>(residual_x: &'a [u8], gamma: &'a [u8]) -> Option<AddRmsNorm<'a>> {
    Some(AddRmsNorm { residual_x, gamma })
}

/// The bf16 elements `[1, 1, ..]` with a different one at `index`.
fn ones(len: usize, index: usize, bits: u16) -> Vec<u8> {
    (0..len).flat_map(|i| if i == index { bits } else { 0x3F80 }.to_le_bytes()).collect()
}

#[test]
fn inputs_of_combine_have_their_length_and_finite_parameters() {
    let tensors = Tensors::of(&everything());
    let x: Vec<u8> = tensors.x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (alphas, rows, gamma) = (ones(2, 9, 0), ones(2 * H, 99, 0), ones(H, 9, 0));
    let sound = Inputs {
        x: &x,
        expert_ids: &tensors.ids,
        expert_scales: &tensors.weights,
        const_expert_alpha_1: &alphas,
        const_expert_alpha_2: &alphas,
        const_expert_v: &rows,
        add_rms_norm: norm(&x, &gamma),
        ..Inputs::default()
    };
    let check = |inputs: Inputs<'_>| inputs.check(&tensors.shape, RANK);
    assert_eq!(check(sound), Ok(()));
    // Tensors that are added to rows of tokens may have any values, like the rows.
    let nan = ones(3 * H, 5, 0x7FC0);
    assert_eq!(
        check(Inputs { add_rms_norm: norm(&nan, &gamma), shared_expert_x: Some(&nan), ..sound }),
        Ok(())
    );

    let length = |tensor, seen, expected| Err(InputError::Length { tensor, seen, expected });
    let none: &[u8] = &[];
    let cut = &alphas[..3];
    assert_eq!(check(Inputs { const_expert_alpha_1: none, ..sound }), length("const_expert_alpha_1", 0, 2));
    assert_eq!(check(Inputs { const_expert_alpha_2: &rows, ..sound }), length("const_expert_alpha_2", 8, 2));
    assert_eq!(check(Inputs { const_expert_v: cut, ..sound }), length("const_expert_v", 1, 8));
    assert_eq!(check(Inputs { add_rms_norm: norm(&gamma, &gamma), ..sound }), length("residual_x", 4, 12));
    assert_eq!(check(Inputs { add_rms_norm: norm(&x, &x), ..sound }), length("gamma", 12, 4));
    assert_eq!(check(Inputs { shared_expert_x: Some(none), ..sound }), length("shared_expert_x", 0, 12));

    let not_finite = |tensor, row, column, bits: u16| {
        Err(InputError::NotFinite { tensor, row, column, bits: u32::from(bits) << 16 })
    };
    // One without AddRmsNorm is plain combine.
    assert_eq!(check(Inputs { add_rms_norm: None, ..sound }), Ok(()));

    let (alphas, rows, gamma) = (ones(2, 1, 0x7F80), ones(2 * H, 7, 0xFFC0), ones(H, 3, 0xFF80));
    let wrong = [
        (
            Inputs { const_expert_alpha_1: &alphas, ..sound },
            not_finite("const_expert_alpha_1", 1, None, 0x7F80),
        ),
        (
            Inputs { const_expert_alpha_2: &alphas, ..sound },
            not_finite("const_expert_alpha_2", 1, None, 0x7F80),
        ),
        (Inputs { const_expert_v: &rows, ..sound }, not_finite("const_expert_v", 1, Some(3), 0xFFC0)),
        (Inputs { add_rms_norm: norm(&x, &gamma), ..sound }, not_finite("gamma", 3, None, 0xFF80)),
    ];
    for (inputs, expected) in wrong {
        assert_eq!(check(inputs), expected);
    }
}

/// All errors of what one operator reads.
fn all_of(
    check: impl FnOnce(&mut dyn FnMut(InputError) -> ControlFlow<()>) -> ControlFlow<()>,
) -> Vec<InputError> {
    let mut all = Vec::new();
    let _ = check(&mut |error| {
        all.push(error);
        ControlFlow::Continue(())
    });
    all
}

#[test]
fn an_operator_is_given_what_it_reads_and_no_more() {
    let tensors = Tensors::of(&everything());
    let x: Vec<u8> = tensors.x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (alphas, rows, gamma) = (ones(2, 9, 0), ones(2 * H, 99, 0), ones(H, 9, 0));
    let wrong: &[u8] = &[0, 0];
    // What combine reads is wrong here, what dispatch reads below.
    let add_rms_norm = norm(wrong, wrong);
    let sent = Inputs { x: &x, expert_ids: &tensors.ids, add_rms_norm, ..Inputs::default() };
    let dispatch = |inputs: Inputs<'_>, shape| all_of(|found| inputs.check_dispatch(shape, RANK, found));
    let combine = |inputs: Inputs<'_>, shape| all_of(|found| inputs.check_combine(shape, RANK, found));
    let length = |tensor, seen, expected| InputError::Length { tensor, seen, expected };

    assert_eq!(dispatch(sent, &tensors.shape), []);
    assert_eq!(dispatch(Inputs { x: wrong, ..sent }, &tensors.shape), [length("x", 1, 12)]);
    let unquantised = Inputs { scales: Some(&[]), ..sent };
    assert_eq!(dispatch(unquantised, &tensors.shape), [InputError::ScalesUnquantised]);

    let returned = Inputs {
        x: &x,
        scales: Some(&[]),
        expert_ids: &tensors.ids,
        expert_scales: &tensors.weights,
        const_expert_alpha_1: &alphas,
        const_expert_alpha_2: &alphas,
        const_expert_v: &rows,
        add_rms_norm: norm(&x, &gamma),
        ..Inputs::default()
    };
    assert_eq!(combine(returned, &tensors.shape), []);
    let unweighted = Inputs { expert_scales: &[], ..returned };
    assert_eq!(combine(unweighted, &tensors.shape), [length("expert_scales", 0, 9)]);
    // Combine may be called by another program than dispatch, so it looks at the ids again.
    let mut ids = tensors.ids.clone();
    ids[0] = -1;
    assert!(matches!(
        combine(Inputs { expert_ids: &ids, ..returned }, &tensors.shape)[..],
        [InputError::ExpertId { seen: -1, .. }]
    ));
    // A const expert mixes the token into its result. Without such experts combine does not know the token.
    assert_eq!(combine(Inputs { x: &[], ..returned }, &tensors.shape), [length("x", 0, 12)]);
    let plain = Tensors::plain();
    let summed = Inputs { expert_ids: &plain.ids, expert_scales: &plain.weights, ..Inputs::default() };
    assert_eq!(combine(summed, &plain.shape), []);
    assert_eq!(dispatch(summed, &plain.shape), [length("x", 0, 12)]);
}

#[test]
fn dispatch_wants_weights_in_the_hierarchy_alone() {
    let hierarchy = Config {
        comm_alg: Protocol::Hierarchy,
        ep_world_size: 4,
        server_ranks: 2,
        zero_expert_num: 0,
        moe_expert_num: 12,
        h: 8,
        ..config()
    };
    for (config, weights) in [
        (hierarchy, &[InputError::Length { tensor: "expert_scales", seen: 0, expected: 9 }][..]),
        (Config { comm_alg: Protocol::Fullmesh, ..hierarchy }, &[]),
        (Config { comm_alg: Protocol::FullmeshV1, ..hierarchy }, &[]),
    ] {
        let mut tensors = Tensors::of(&config);
        (tensors.x, tensors.weights) = (vec![BF16[0]; 3 * 8], Vec::new());
        let found =
            tensors.with_inputs(|inputs| all_of(|found| inputs.check_dispatch(&tensors.shape, RANK, found)));
        assert_eq!(found, weights, "{config:?}");
    }
}

#[test]
fn tensors_that_the_shape_does_not_have_must_be_empty() {
    let tensors = Tensors::plain();
    let x: Vec<u8> = tensors.x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let plain =
        Inputs { x: &x, expert_ids: &tensors.ids, expert_scales: &tensors.weights, ..Inputs::default() };
    let extra: &[u8] = &[0, 0];
    let wrong = [
        (Inputs { const_expert_alpha_1: extra, ..plain }, "const_expert_alpha_1"),
        (Inputs { const_expert_alpha_2: extra, ..plain }, "const_expert_alpha_2"),
        (Inputs { const_expert_v: extra, ..plain }, "const_expert_v"),
    ];
    assert_eq!(plain.check(&tensors.shape, RANK), Ok(()));
    for (inputs, tensor) in wrong {
        let expected = InputError::Length { tensor, seen: 1, expected: 0 };
        assert_eq!(inputs.check(&tensors.shape, RANK), Err(expected));
    }
}

#[test]
fn shared_expert_x_is_refused_where_ranks_hold_shared_experts() {
    let config = Config { shared_expert_num: 1, shared_expert_rank_num: 2, ..config() };
    let tensors = Tensors::of(&config);
    let x: Vec<u8> = tensors.x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let inputs = Inputs {
        x: &x,
        expert_ids: &tensors.ids,
        expert_scales: &tensors.weights,
        shared_expert_x: Some(&x),
        ..Inputs::default()
    };
    let refused = inputs.check(&tensors.shape, RANK).unwrap_err();
    assert_eq!(refused, InputError::SharedExpertX { shared_experts: 1 });
    assert_eq!(
        refused.to_string(),
        "shared_expert_x given with 1 shared experts: must be absent when ranks hold shared experts"
    );
}

/// The hierarchy has no masks, no smooth scales and no shared experts' tokens. Its machines would send masked pairs all the same,
/// and another rank would then report a triple that it cannot have.
#[test]
fn tensors_that_the_machines_do_not_read_are_refused() {
    let servers = Config {
        comm_alg: Protocol::Hierarchy,
        ep_world_size: 4,
        server_ranks: 2,
        zero_expert_num: 0,
        moe_expert_num: 12,
        quant_mode: 2,
        h: 8,
        ..config()
    };
    let fullmesh = Config { comm_alg: Protocol::Fullmesh, quant_mode: 0, ..servers };
    let mut tensors = Tensors::of(&servers);
    tensors.x = vec![BF16[0]; 3 * 8];
    tensors.with_inputs(|plain| {
        let (mask, pairs) = ([true, true, false], [true; 9]);
        let (scales, shared) = (vec![1.0; 12 * 8], vec![0; 3 * 2 * 8]);
        let given = |inputs: Inputs<'_>, config: &Config<'_>| inputs.check(&shape(config), RANK);
        let refused = |tensor, protocol| Err(InputError::NotTaken { tensor, protocol });
        assert_eq!(given(*plain, &servers), Ok(()));
        for mask in [Mask::Tokens(&mask), Mask::Pairs(&pairs)] {
            let masked = Inputs { mask, ..*plain };
            assert_eq!(given(masked, &servers), refused("x_active_mask", Protocol::Hierarchy));
            assert_eq!(given(masked, &fullmesh), Ok(()));
        }
        let scaled = Inputs { scales: Some(&scales), ..*plain };
        assert_eq!(given(scaled, &servers), refused("scales", Protocol::Hierarchy));
        let shared = Inputs { shared_expert_x: Some(&shared), ..*plain };
        assert_eq!(given(shared, &fullmesh), refused("shared_expert_x", Protocol::Fullmesh));
        for (config, protocol) in [(&servers, Protocol::Hierarchy), (&fullmesh, Protocol::Fullmesh)] {
            let normed = Inputs { add_rms_norm: norm(&[], &[]), ..*plain };
            assert_eq!(given(normed, config), refused("gamma", protocol));
        }
        let line = given(shared, &servers).unwrap_err().to_string();
        assert_eq!(line, "shared_expert_x is given: must be absent on a2 hierarchy");
    });
}
