//! What one rank brings to a round, and the door that checks it once.

use crate::shape::Shape;
use crate::units::Token;
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
            Self::ScalesUnquantised => f.write_str("scales given with quant_mode = 0: must be absent"),
        }
    }
}

impl Inputs<'_> {
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
