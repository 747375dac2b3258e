//! What one rank brings to a round, and the door that checks it once.

use crate::shape::{Dtype, QuantMode, Shape};
use crate::units::{RankId, Token};
use core::fmt;

/// `x_active_mask` (seed 003: `xActiveMaskOptional`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask<'a> {
    /// Every token is active.
    None,
    /// One flag per token, all true before all false.
    Tokens(&'a [bool]),
    /// One flag per (token, k).
    Pairs(&'a [bool]),
}

/// The tensors of one rank, by reference. Rows are little-endian bytes.
#[derive(Clone, Copy, Debug)]
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
}

/// What is wrong with a rank's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputError {
    /// A tensor has the wrong number of elements.
    Length {
        /// Tensor name.
        tensor: &'static str,
        /// Elements seen.
        seen: usize,
        /// Elements expected.
        expected: usize,
    },
    /// An expert id outside `[0, end)`.
    ExpertId {
        /// Token.
        token: Token,
        /// k index.
        k: u32,
        /// The id.
        seen: i32,
        /// One past the largest legal id.
        end: u32,
    },
    /// The same expert twice in one token's row.
    RepeatedExpert {
        /// Token.
        token: Token,
        /// The expert.
        expert: i32,
    },
    /// A 1-D mask with a true after a false.
    MaskOrder {
        /// First true token after a false one.
        token: Token,
    },
    /// A mask that switches tokens off although ranks differ in BS.
    MaskWithUnevenBs {
        /// First token that is off.
        token: Token,
    },
    /// A number that must be finite.
    NotFinite {
        /// Tensor name.
        tensor: &'static str,
        /// Flat element index.
        index: usize,
    },
    /// A value of an active token that dynamic quantisation cannot take, before or after smoothing.
    NotFiniteToken {
        /// Token.
        token: Token,
        /// Element of the token.
        element: u32,
    },
    /// `scales` without `quant_mode = 2`.
    ScalesUnquantised,
    /// An elastic domain has more MoE experts than the whole one had, so that some have no row of a tensor.
    ExpertRow {
        /// Tensor name.
        tensor: &'static str,
        /// Its rows.
        rows: u32,
        /// The first expert without one.
        expert: u32,
    },
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { tensor, seen, expected } => {
                write!(f, "{tensor} has {seen} elements: must have {expected}")
            }
            Self::ExpertId { token, k, seen, end } => {
                write!(f, "expert_ids[{token}, {k}] = {seen}: must be in [0, {end})")
            }
            Self::RepeatedExpert { token, expert } => {
                write!(
                    f,
                    "expert_ids[{token}] names expert {expert} twice: ids must be distinct within a row"
                )
            }
            Self::MaskOrder { token } => {
                write!(
                    f,
                    "x_active_mask[{token}] is true after a false: a 1-D mask must be all true before all false"
                )
            }
            Self::MaskWithUnevenBs { token } => {
                write!(
                    f,
                    "x_active_mask[{token}] is false: every token must be active when bs differs between ranks"
                )
            }
            Self::NotFinite { tensor, index } => write!(f, "{tensor} element {index} is not finite"),
            Self::NotFiniteToken { token, element } => {
                write!(
                    f,
                    "x[{token}, {element}] is not finite before or after smoothing: quant_mode = 2 needs finite values"
                )
            }
            Self::ExpertRow { tensor, rows, expert } => {
                write!(
                    f,
                    "{tensor} has {rows} rows, none for MoE expert {expert}: must be absent when elastic_info has more MoE experts than moe_expert_num"
                )
            }
            Self::ScalesUnquantised => f.write_str("scales given with quant_mode = 0: must be absent"),
        }
    }
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
        match shape.quant_mode() {
            QuantMode::None => Ok(()),
            QuantMode::Dynamic => self.check_tokens(shape, bs),
        }
    }

    fn check_lengths(&self, shape: &Shape, bs: u32) -> Result<(), InputError> {
        let (bs, k, h) = (bs as usize, shape.k() as usize, shape.h() as usize);
        // Half an element counts as one, so that it cannot look right.
        length("x", self.x.len().div_ceil(2), bs.saturating_mul(h))?;
        length("expert_ids", self.expert_ids.len(), bs * k)?;
        length("expert_scales", self.expert_scales.len(), bs * k)?;
        match self.mask {
            Mask::None => {}
            Mask::Tokens(mask) => length("x_active_mask", mask.len(), bs)?,
            Mask::Pairs(mask) => length("x_active_mask", mask.len(), bs * k)?,
        }
        let Some(scales) = self.scales else { return Ok(()) };
        if shape.quant_mode() == QuantMode::None {
            return Err(InputError::ScalesUnquantised);
        }
        length("scales", scales.len(), (shape.expert_rows() as usize).saturating_mul(h))?;
        expert_has_row("scales", shape)
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
        let len = shape.row_bytes() as usize;
        self.x.get(token.index() * len..).and_then(|rest| rest.get(..len)).unwrap_or(&[])
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
