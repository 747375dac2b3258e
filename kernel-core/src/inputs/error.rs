//! Errors of the inputs' validation.

use crate::shape::{Protocol, Seen};
use crate::units::Token;
use core::fmt;

/// An error in a rank's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// An optional tensor that the machines of this protocol do not read.
    NotTaken {
        /// Tensor name.
        tensor: &'static str,
        /// The protocol.
        protocol: Protocol,
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
    /// A combine whose active pairs are not those of its dispatch.
    OtherBatch,
    /// A 1-D mask with a true after a false.
    MaskOrder {
        /// First true token after a false one.
        token: Token,
    },
    /// A mask that switches tokens off although batches are smaller than the capacity (A3).
    MaskWithUnevenBs {
        /// First token that is off.
        token: Token,
    },
    /// A number that must be finite.
    NotFinite {
        /// Tensor name.
        tensor: &'static str,
        /// Row: a token, or an expert of `scales`.
        row: u32,
        /// Column in the row; `None` for a tensor with one dimension.
        column: Option<u32>,
        /// The bits of the number.
        bits: u32,
    },
    /// A value of an active token that dynamic quantisation does not support, before or after smoothing.
    NotFiniteToken {
        /// Token.
        token: Token,
        /// Element of the token.
        element: u32,
        /// The row of `scales` that makes the product infinite; `None` if the value itself is not finite.
        smooth: Option<u32>,
    },
    /// `scales` without `quant_mode = 2`.
    ScalesUnquantised,
    /// `shared_expert_x` although ranks hold shared experts, or did before an elastic domain lost them.
    SharedExpertX {
        /// The number of shared experts.
        shared_experts: u32,
    },
    /// An elastic domain has more MoE experts than the whole domain had, so some have no row of a tensor.
    ExpertRow {
        /// Tensor name.
        tensor: &'static str,
        /// The number of its rows.
        rows: u32,
        /// The first expert without a row.
        expert: u32,
    },
}

impl InputError {
    /// Returns the name of the wrong tensor.
    #[must_use]
    pub const fn tensor(&self) -> &'static str {
        match self {
            Self::Length { tensor, .. }
            | Self::NotTaken { tensor, .. }
            | Self::NotFinite { tensor, .. }
            | Self::ExpertRow { tensor, .. } => tensor,
            Self::ExpertId { .. } | Self::RepeatedExpert { .. } | Self::OtherBatch => "expert_ids",
            Self::MaskOrder { .. } | Self::MaskWithUnevenBs { .. } => "x_active_mask",
            Self::NotFiniteToken { .. } => "x",
            Self::ScalesUnquantised => "scales",
            Self::SharedExpertX { .. } => "shared_expert_x",
        }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { tensor, seen, expected } => {
                write!(f, "{tensor} has {seen} elements: must have {expected}")
            }
            Self::NotTaken { tensor, protocol } => {
                let place = match protocol {
                    Protocol::FullmeshV1 | Protocol::FullmeshV2 => "a3",
                    Protocol::Fullmesh => "a2 fullmesh",
                    Protocol::Hierarchy => "a2 hierarchy",
                };
                write!(f, "{tensor} is given: must be absent on {place}")
            }
            Self::ExpertId { token, k, seen, end } => {
                write!(f, "expert_ids[{token}, {k}] = {seen}: must be in [0, {end})")
            }
            Self::RepeatedExpert { token, expert } => write!(
                f,
                "expert_ids[{token}] names expert {expert} twice: ids must be distinct within a row"
            ),
            Self::OtherBatch => f.write_str(
                "expert_ids and x_active_mask give other active pairs than those of dispatch: must be the same batch",
            ),
            Self::MaskOrder { token } => write!(
                f,
                "x_active_mask[{token}] is true after a false: a 1-D mask must be all true before all false"
            ),
            Self::MaskWithUnevenBs { token } => write!(
                f,
                "x_active_mask[{token}] is false: every token must be active on A3 when a rank's bs is below the capacity"
            ),
            Self::NotFinite { tensor, row, column, bits } => {
                write!(f, "{tensor}[{row}")?;
                if let Some(column) = column {
                    write!(f, ", {column}")?;
                }
                write!(f, "] = {}: must be finite", Seen::NotFinite(f32::from_bits(bits)))
            }
            Self::NotFiniteToken { token, element, smooth } => {
                write!(f, "x[{token}, {element}]")?;
                if let Some(row) = smooth {
                    write!(f, " times scales[{row}, {element}]")?;
                }
                f.write_str(" is not finite: quant_mode = 2 needs finite values")
            }
            Self::ExpertRow { tensor, rows, expert } => write!(
                f,
                "{tensor} has {rows} rows, none for MoE expert {expert}: must be absent when elastic_info has more MoE experts than moe_expert_num"
            ),
            Self::SharedExpertX { shared_experts } => write!(
                f,
                "shared_expert_x given with {shared_experts} shared experts: must be absent when ranks hold shared experts"
            ),
            Self::ScalesUnquantised => f.write_str("scales given without quant_mode = 2: must be absent"),
        }
    }
}

impl core::error::Error for InputError {}
