//! What one rank brings to a round, and the door that checks it once.

mod error;

pub use error::InputError;

use crate::shape::{Dtype, Op, QuantMode, Shape};
use crate::units::{RankId, Token};

/// `x_active_mask` (seed 003: `xActiveMaskOptional`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mask<'a> {
    /// Every token is active.
    #[default]
    None,
    /// One flag per token, all true before all false.
    Tokens(&'a [bool]),
    /// One flag per (token, k).
    Pairs(&'a [bool]),
}

/// The tensors of one rank, by reference. Rows are little-endian bytes; a tensor that the shape does not have is
/// empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs<'a> {
    /// `[bs, h]` dtype.
    pub x: &'a [u8],
    /// `[bs, k]`.
    pub expert_ids: &'a [i32],
    /// `[bs, k]`, the weights of combine.
    pub expert_scales: &'a [f32],
    /// `[bs]` or `[bs, k]`.
    pub mask: Mask<'a>,
    /// `[S + E, h]` smooth scales of dynamic quantisation, shared experts first; the same on all ranks.
    pub scales: Option<&'a [f32]>,
    /// `[bs, h]` dtype, added to each result at last: on all ranks or on none, and only where no rank holds shared
    /// experts (seed 003: `sharedExpertXOptional`).
    pub shared_expert_x: Option<&'a [u8]>,
    /// `[q]` dtype, const experts' factors of the token; the same on all ranks.
    pub const_expert_alpha_1: &'a [u8],
    /// `[q]` dtype, their factors of their own rows.
    pub const_expert_alpha_2: &'a [u8],
    /// `[q, h]` dtype, their own rows.
    pub const_expert_v: &'a [u8],
    /// `[bs, h]` dtype, AddRmsNorm.
    pub residual_x: &'a [u8],
    /// `[h]` dtype, AddRmsNorm; the same on all ranks.
    pub gamma: &'a [u8],
}

impl Inputs<'_> {
    /// Checks the inputs of `rank` against the shape, before anything of them is sent.
    ///
    /// Rows of tokens are only looked at when they are quantised, and then only those of active tokens.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, shape: &Shape, rank: RankId) -> Result<(), InputError> {
        let bs = shape.bs(rank);
        self.check_lengths(shape, bs)?;
        self.check_ids(shape, bs)?;
        self.check_mask(shape, bs)?;
        all_finite("expert_scales", self.expert_scales)?;
        if let Some(scales) = self.scales {
            all_finite("scales", scales)?;
        }
        let dtype = shape.dtype();
        elements_finite(dtype, "const_expert_alpha_1", self.const_expert_alpha_1)?;
        elements_finite(dtype, "const_expert_alpha_2", self.const_expert_alpha_2)?;
        elements_finite(dtype, "const_expert_v", self.const_expert_v)?;
        elements_finite(dtype, "gamma", self.gamma)?;
        match shape.quant_mode() {
            QuantMode::None => Ok(()),
            QuantMode::Dynamic => self.check_tokens(shape, bs),
        }
    }

    fn check_lengths(&self, shape: &Shape, bs: u32) -> Result<(), InputError> {
        let (bs, k, h) = (bs as usize, shape.k() as usize, shape.h() as usize);
        elements("x", self.x, bs.saturating_mul(h))?;
        length("expert_ids", self.expert_ids.len(), bs * k)?;
        length("expert_scales", self.expert_scales.len(), bs * k)?;
        match self.mask {
            Mask::None => {}
            Mask::Tokens(mask) => length("x_active_mask", mask.len(), bs)?,
            Mask::Pairs(mask) => length("x_active_mask", mask.len(), bs * k)?,
        }
        self.check_combine_lengths(shape, bs)?;
        let Some(scales) = self.scales else { return Ok(()) };
        if shape.quant_mode() == QuantMode::None {
            return Err(InputError::ScalesUnquantised);
        }
        length("scales", scales.len(), (shape.expert_rows() as usize).saturating_mul(h))?;
        expert_has_row("scales", shape)
    }

    /// Of what combine alone reads.
    fn check_combine_lengths(&self, shape: &Shape, bs: usize) -> Result<(), InputError> {
        let (consts, h) = (shape.const_expert_num() as usize, shape.h() as usize);
        elements("const_expert_alpha_1", self.const_expert_alpha_1, consts)?;
        elements("const_expert_alpha_2", self.const_expert_alpha_2, consts)?;
        elements("const_expert_v", self.const_expert_v, consts.saturating_mul(h))?;
        let (residual, gamma) = match shape.op() {
            Op::Combine => (0, 0),
            Op::CombineAddRmsNorm => (bs.saturating_mul(h), h),
        };
        elements("residual_x", self.residual_x, residual)?;
        elements("gamma", self.gamma, gamma)?;
        let Some(shared) = self.shared_expert_x else { return Ok(()) };
        match shape.shared_expert_rows() {
            0 => elements("shared_expert_x", shared, bs.saturating_mul(h)),
            shared_experts => Err(InputError::SharedExpertX { shared_experts }),
        }
    }

    /// Also of masked pairs.
    fn check_ids(&self, shape: &Shape, bs: u32) -> Result<(), InputError> {
        let end = shape.expert_ids_end();
        for token in (0..bs).map(Token) {
            let ids = self.ids(shape, token);
            for (k, &seen) in (0..).zip(ids) {
                if !u32::try_from(seen).is_ok_and(|id| id < end) {
                    return Err(InputError::ExpertId { token, k, seen, end });
                }
                if ids.iter().take(k as usize).any(|&earlier| earlier == seen) {
                    return Err(InputError::RepeatedExpert { token, expert: seen });
                }
            }
        }
        Ok(())
    }

    fn check_mask(&self, shape: &Shape, bs: u32) -> Result<(), InputError> {
        if let Mask::Tokens(mask) = self.mask {
            let active = mask.iter().take_while(|&&active| active).count();
            let late = (0..).map(Token).zip(mask).skip(active).find(|(_, active)| **active);
            if let Some((token, _)) = late {
                return Err(InputError::MaskOrder { token });
            }
        }
        if !shape.bs_is_uneven() {
            return Ok(());
        }
        match (0..bs).map(Token).find(|&token| !self.token_is_active(shape, token)) {
            Some(token) => Err(InputError::MaskWithUnevenBs { token }),
            None => Ok(()),
        }
    }

    /// Every value that dynamic quantisation will take must be finite, before and after smoothing.
    fn check_tokens(&self, shape: &Shape, bs: u32) -> Result<(), InputError> {
        let dtype = shape.dtype();
        let smooth_max = self.scales.map_or(1.0, largest);
        for token in (0..bs).map(Token).filter(|&token| self.token_is_active(shape, token)) {
            // Without the sign bit both types order as integers, so one pass finds the largest value; if
            // that times the largest scale is finite, then so is every product.
            let (values, _) = self.row(shape, token).as_chunks::<2>();
            let magnitude = |value: &[u8; 2]| u16::from_le_bytes(*value) & 0x7FFF;
            let max = to_f32(dtype, values.iter().map(magnitude).max().unwrap_or(0));
            if (max * smooth_max).is_finite() {
                continue;
            }
            let wrong = |value: &[u8; 2]| !to_f32(dtype, magnitude(value)).is_finite();
            if let Some(element) = position(values, wrong) {
                return Err(InputError::NotFiniteToken { token, element });
            }
            self.check_smoothed(shape, token, values)?;
        }
        Ok(())
    }

    /// Holds the finite values of an active token against each row of `scales` that smooths them.
    fn check_smoothed(&self, shape: &Shape, token: Token, values: &[[u8; 2]]) -> Result<(), InputError> {
        let active = (0..).zip(self.ids(shape, token)).filter(|&(k, _)| self.pair_is_active(shape, token, k));
        // Nothing is sent to special experts, whose ids come behind.
        let moe =
            active.filter_map(|(_, &id)| u32::try_from(id).ok()).filter(|&id| id < shape.moe_expert_num());
        let moe = moe.map(|id| shape.shared_expert_rows().saturating_add(id));
        for expert_row in (0..shape.shared_expert_num()).chain(moe) {
            let Some(smooth) = self.smooth(shape, expert_row) else { continue };
            let overflows = |(value, scale): (&[u8; 2], &f32)| {
                !(to_f32(shape.dtype(), u16::from_le_bytes(*value)) * scale).is_finite()
            };
            if let Some(element) = position(values.iter().zip(smooth), overflows) {
                return Err(InputError::NotFiniteToken { token, element });
            }
        }
        Ok(())
    }

    /// Whether pair `(token, k)` is active.
    #[must_use]
    pub fn pair_is_active(&self, shape: &Shape, token: Token, k: u32) -> bool {
        match self.mask {
            Mask::None => true,
            Mask::Tokens(mask) => mask.get(token.index()).copied().unwrap_or(false),
            Mask::Pairs(mask) => {
                mask.get(token.index() * shape.k() as usize + k as usize).copied().unwrap_or(false)
            }
        }
    }

    /// Whether any pair of `token` is active.
    #[must_use]
    pub fn token_is_active(&self, shape: &Shape, token: Token) -> bool {
        match self.mask {
            Mask::None => true,
            Mask::Tokens(mask) => mask.get(token.index()).copied().unwrap_or(false),
            Mask::Pairs(_) => (0..shape.k()).any(|k| self.pair_is_active(shape, token, k)),
        }
    }

    /// The `x` row of a token; empty when out of range.
    #[must_use]
    pub fn row(&self, shape: &Shape, token: Token) -> &[u8] {
        nth_row(shape, self.x, token.index())
    }

    /// The `shared_expert_x` row of a token, if the rank has that tensor.
    #[must_use]
    pub fn shared_row(&self, shape: &Shape, token: Token) -> Option<&[u8]> {
        self.shared_expert_x.map(|shared| nth_row(shape, shared, token.index()))
    }

    /// The `residual_x` row of a token; empty when out of range.
    #[must_use]
    pub fn residual(&self, shape: &Shape, token: Token) -> &[u8] {
        nth_row(shape, self.residual_x, token.index())
    }

    /// The factors of const expert `i`, of the token and of its own row, and that row.
    #[must_use]
    pub fn const_expert(&self, shape: &Shape, i: u32) -> ([f32; 2], &[u8]) {
        let alpha = |alphas: &[u8]| {
            let bits = alphas.as_chunks::<2>().0.get(i as usize).copied().unwrap_or_default();
            to_f32(shape.dtype(), u16::from_le_bytes(bits))
        };
        let alphas = [alpha(self.const_expert_alpha_1), alpha(self.const_expert_alpha_2)];
        (alphas, nth_row(shape, self.const_expert_v, i as usize))
    }

    /// The `expert_ids` row of a token; empty when out of range.
    #[must_use]
    pub fn ids(&self, shape: &Shape, token: Token) -> &[i32] {
        let k = shape.k() as usize;
        self.expert_ids.get(token.index() * k..).and_then(|rest| rest.get(..k)).unwrap_or(&[])
    }

    /// The `expert_scales` row of a token; empty when out of range.
    #[must_use]
    pub fn weights(&self, shape: &Shape, token: Token) -> &[f32] {
        let k = shape.k() as usize;
        self.expert_scales.get(token.index() * k..).and_then(|rest| rest.get(..k)).unwrap_or(&[])
    }

    /// Row `expert_row` of the smooth scales.
    #[must_use]
    pub fn smooth(&self, shape: &Shape, expert_row: u32) -> Option<&[f32]> {
        let h = shape.h() as usize;
        self.scales.and_then(|s| s.get(expert_row as usize * h..)).and_then(|rest| rest.get(..h))
    }
}

/// Row `row` of a tensor of rows; empty when out of range.
fn nth_row<'a>(shape: &Shape, rows: &'a [u8], row: usize) -> &'a [u8] {
    let len = shape.row_bytes() as usize;
    rows.get(row * len..).and_then(|rest| rest.get(..len)).unwrap_or(&[])
}

/// The length of a tensor of dtype. Half an element counts as one, so that it cannot look right.
fn elements(tensor: &'static str, bytes: &[u8], expected: usize) -> Result<(), InputError> {
    length(tensor, bytes.len().div_ceil(2), expected)
}

/// Whether every MoE expert has a row of a tensor with a row for each expert, `scales` or `expert_gain`.
///
/// # Errors
/// An elastic domain has more MoE experts than the whole one.
pub fn expert_has_row(tensor: &'static str, shape: &Shape) -> Result<(), InputError> {
    let (rows, expert) = (shape.expert_rows(), shape.expert_rows() - shape.shared_expert_rows());
    if shape.moe_expert_num() <= expert {
        Ok(())
    } else {
        Err(InputError::ExpertRow { tensor, rows, expert })
    }
}

fn length(tensor: &'static str, seen: usize, expected: usize) -> Result<(), InputError> {
    if seen == expected { Ok(()) } else { Err(InputError::Length { tensor, seen, expected }) }
}

fn all_finite(tensor: &'static str, values: &[f32]) -> Result<(), InputError> {
    if largest(values).is_finite() {
        return Ok(());
    }
    let index = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
    Err(InputError::NotFinite { tensor, index })
}

/// The same for elements of dtype.
fn elements_finite(dtype: Dtype, tensor: &'static str, bytes: &[u8]) -> Result<(), InputError> {
    let wrong = |&bits: &[u8; 2]| !to_f32(dtype, u16::from_le_bytes(bits)).is_finite();
    match bytes.as_chunks::<2>().0.iter().position(wrong) {
        Some(index) => Err(InputError::NotFinite { tensor, index }),
        None => Ok(()),
    }
}

/// The largest magnitude, not finite if any is not: magnitudes order as integers, and those are fast.
fn largest(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |max, value| max.max(value.abs().to_bits())))
}

/// The place of the first item that `wrong` says yes to.
fn position<T>(items: impl IntoIterator<Item = T>, mut wrong: impl FnMut(T) -> bool) -> Option<u32> {
    (0..).zip(items).find_map(|(place, item)| wrong(item).then_some(place))
}

fn to_f32(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::Bf16 => half::bf16::from_bits(bits).to_f32(),
        Dtype::F16 => half::f16::from_bits(bits).to_f32(),
    }
}
