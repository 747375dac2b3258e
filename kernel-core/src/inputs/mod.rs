//! The inputs of one rank to a round, and their validation.

mod batch;
mod error;
mod expert_map;

pub use batch::Batch;
pub use error::InputError;
pub use expert_map::ExpertMap;

use crate::shape::element::{Bf16, Element, F16};
use crate::shape::{Dtype, Given, Protocol, Shape};
use crate::units::{RankId, Token, nth_piece};
use core::ops::ControlFlow;

/// `x_active_mask` (V2 reference: `xActiveMaskOptional`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mask<'a> {
    /// Every token is active.
    #[default]
    None,
    /// One flag per token, all true before all false.
    Tokens(&'a [bool]),
    /// One flag per (token, k).
    Pairs(&'a [bool]),
    /// No token is active: the rank [abstains](Inputs::abstaining). Unlike a mask, every protocol takes this.
    Abstains,
}

/// The tensors of AddRmsNorm. A combine that has them adds the residual to each sum and normalises it; one without them is plain.
#[derive(Clone, Copy, Debug)]
pub struct AddRmsNorm<'a> {
    /// `[bs, h]` dtype.
    pub residual_x: &'a [u8],
    /// `[h]` dtype; the same on all ranks.
    pub gamma: &'a [u8],
}

/// The tensors of one rank, by reference. Rows are little-endian bytes; tensors that the shape does not have are empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs<'a> {
    /// `[bs, h]` dtype.
    pub x: &'a [u8],
    /// `[bs, k]`, physical experts: with redundant ones [`ExpertMap`] computes them from the router's output. The id of a
    /// masked pair may be any number.
    pub expert_ids: &'a [i32],
    /// `[bs, k]`, the weights of combine.
    pub expert_scales: &'a [f32],
    /// `[bs]` or `[bs, k]`.
    pub mask: Mask<'a>,
    /// `[S + E, h]` smooth scales of dynamic quantisation, shared experts first; the same on all ranks.
    pub scales: Option<&'a [f32]>,
    /// `[bs, h]` dtype, added to each result at last: on all ranks or on none, and only where no rank holds shared experts
    /// (V2 reference: `sharedExpertXOptional`).
    pub shared_expert_x: Option<&'a [u8]>,
    /// `[q]` dtype, const experts' factors of the token; the same on all ranks.
    pub const_expert_alpha_1: &'a [u8],
    /// `[q]` dtype, const experts' factors of their own rows.
    pub const_expert_alpha_2: &'a [u8],
    /// `[q, h]` dtype, const experts' own rows.
    pub const_expert_v: &'a [u8],
    /// What combine does with its sums, where the protocol [has it](Shape::has_add_rms_norm). Ranks and calls may differ: no rank
    /// sees which combine another calls. All cores of a rank, and both halves, are given the same: nothing else sees it.
    pub add_rms_norm: Option<AddRmsNorm<'a>>,
    /// The number of the call, such as step times layers plus layer: the same on all ranks, in dispatch and in the combine
    /// of its results. Where a group [checks calls](crate::protocol::Choices::checked), a rank that is at another call is
    /// refused. Numbers are compared modulo [`CALLS`](crate::sync::call::CALLS). `None`: each core counts its calls; a rank that
    /// counts and leaves out a call is not seen, whatever numbers the others give.
    pub call: Option<u32>,
    /// The batch that dispatch had, for the check of its combine; `None`: it is not compared.
    pub dispatched: Option<Batch>,
}

/// The operators whose inputs are checked.
#[derive(Clone, Copy)]
enum Reads {
    Dispatch,
    Combine,
    Both,
}

impl Reads {
    /// Returns whether dispatch is one of them, which reads `x` and `scales`.
    const fn dispatch(self) -> bool {
        matches!(self, Self::Dispatch | Self::Both)
    }

    /// Returns whether combine is one of them, which reads what is added to results.
    const fn combine(self) -> bool {
        matches!(self, Self::Combine | Self::Both)
    }

    /// Returns whether one of them reads `x`: combine does for experts whose result depends on nothing but the token.
    const fn x(self, shape: &Shape) -> bool {
        self.dispatch() || shape.copy_expert_num() > 0 || shape.const_expert_num() > 0
    }

    /// Returns whether one of them reads `expert_scales`: dispatch sends them in the hierarchy alone.
    const fn weights(self, shape: &Shape) -> bool {
        self.combine() || matches!(shape.protocol(), Protocol::Hierarchy)
    }
}

/// The receiver of errors. It breaks to stop the check.
pub type Found<'a> = dyn FnMut(InputError) -> ControlFlow<()> + 'a;

impl Inputs<'_> {
    /// Returns the inputs of a rank that has nothing to send, or whose batch was refused, and takes part all the same: its
    /// peers need its flags, and its experts serve them. Machines read no tensor of it, and combine writes none of the rank's
    /// outputs.
    #[must_use]
    pub const fn abstaining(call: Option<u32>) -> Self {
        Inputs {
            x: &[],
            expert_ids: &[],
            expert_scales: &[],
            mask: Mask::Abstains,
            scales: None,
            shared_expert_x: None,
            const_expert_alpha_1: &[],
            const_expert_alpha_2: &[],
            const_expert_v: &[],
            add_rms_norm: None,
            call,
            dispatched: None,
        }
    }

    /// Returns whether the rank abstains.
    #[inline]
    #[must_use]
    pub const fn abstains(&self) -> bool {
        matches!(self.mask, Mask::Abstains)
    }

    /// Checks the inputs of `rank` to a whole round, dispatch and combine, against the shape, before anything of them is sent.
    ///
    /// Rows of tokens are only read when they are quantised, and then only the rows of active tokens.
    ///
    /// # Errors
    /// The first error.
    pub fn check(&self, shape: &Shape, rank: RankId) -> Result<(), InputError> {
        let mut first = Ok(());
        let _ = self.check_all(shape, rank, &mut |error| {
            first = Err(error);
            ControlFlow::Break(())
        });
        first
    }

    /// Calls `found` with all errors, until it breaks: for a token that cannot be quantised one element, otherwise every
    /// wrong value. The contents of a tensor of the wrong length are not checked.
    pub fn check_all(&self, shape: &Shape, rank: RankId, found: &mut Found<'_>) -> ControlFlow<()> {
        self.check_reads(Reads::Both, shape, rank, found)
    }

    /// Checks like [`check_all`](Self::check_all) what dispatch reads: `x`, `expert_ids`, `mask` and `scales`, in the hierarchy
    /// also `expert_scales`. Other tensors may be absent, or anything.
    pub fn check_dispatch(&self, shape: &Shape, rank: RankId, found: &mut Found<'_>) -> ControlFlow<()> {
        self.check_reads(Reads::Dispatch, shape, rank, found)
    }

    /// Checks like [`check_all`](Self::check_all) what combine reads: `expert_ids`, `mask`, `expert_scales` and what is added
    /// to results, with copy or const experts also `x`. Other tensors may be absent, or anything.
    pub fn check_combine(&self, shape: &Shape, rank: RankId, found: &mut Found<'_>) -> ControlFlow<()> {
        self.check_reads(Reads::Combine, shape, rank, found)
    }

    fn check_reads(
        &self,
        reads: Reads,
        shape: &Shape,
        rank: RankId,
        found: &mut Found<'_>,
    ) -> ControlFlow<()> {
        if reads.combine()
            && let Err(error) = self.is_dispatched(shape, rank)
        {
            found(error)?;
        }
        // Then no tensor is read.
        if self.abstains() {
            return ControlFlow::Continue(());
        }
        self.check_taken(reads, shape, found)?;
        let bs = shape.bs(rank);
        let (tokens, k, h) = (bs as usize, shape.k() as usize, shape.h() as usize);
        let x = reads.x(shape) && elements("x", self.x, tokens.saturating_mul(h), found)?;
        let ids = length("expert_ids", self.expert_ids.len(), tokens * k, found)?;
        let weights =
            reads.weights(shape) && length("expert_scales", self.expert_scales.len(), tokens * k, found)?;
        let mask = match self.mask {
            Mask::None | Mask::Abstains => true,
            Mask::Tokens(mask) => length("x_active_mask", mask.len(), tokens, found)?,
            Mask::Pairs(mask) => length("x_active_mask", mask.len(), tokens * k, found)?,
        };
        let scales = reads.dispatch() && self.check_scales_length(shape, found)?;
        if reads.combine() {
            self.check_returned(shape, tokens, found)?;
        }
        if ids && mask {
            self.check_ids(shape, bs, shape.expert_ids_end(), found)?;
        }
        if mask {
            self.check_mask(shape, bs, found)?;
        }
        if weights {
            all_finite("expert_scales", self.expert_scales, Some(k), found)?;
        }
        let finite = match self.scales {
            Some(values) if scales => all_finite("scales", values, Some(h), found)?,
            _ => true,
        };
        if reads.dispatch() && shape.row_format().scale.is_some() && x && ids && mask && scales {
            // A wrong scale would make every token wrong to which it applies.
            let smooth = self.scales.filter(|_| finite);
            Inputs { scales: smooth, ..*self }.check_tokens(shape, bs, found)?;
        }
        ControlFlow::Continue(())
    }

    /// Checks that no tensor is given that the machines would not read: they would answer for other inputs.
    fn check_taken(&self, reads: Reads, shape: &Shape, found: &mut Found<'_>) -> ControlFlow<()> {
        let mask = match self.mask {
            Mask::None | Mask::Abstains => Given::empty(),
            Mask::Tokens(_) => Given::MASK_1D,
            Mask::Pairs(_) => Given::MASK_2D,
        };
        let scales = if self.scales.is_some() { Given::SCALES } else { Given::empty() };
        taken("x_active_mask", mask, shape, found)?;
        if reads.dispatch() { taken("scales", scales, shape, found) } else { ControlFlow::Continue(()) }
    }

    fn check_scales_length(&self, shape: &Shape, found: &mut Found<'_>) -> ControlFlow<(), bool> {
        let Some(scales) = self.scales else { return ControlFlow::Continue(true) };
        if shape.row_format().scale.is_none() {
            found(InputError::ScalesUnquantised)?;
            return ControlFlow::Continue(false);
        }
        if !length(
            "scales",
            scales.len(),
            (shape.expert_rows() as usize).saturating_mul(shape.h() as usize),
            found,
        )? {
            return ControlFlow::Continue(false);
        }
        match expert_has_row("scales", shape) {
            Ok(()) => ControlFlow::Continue(true),
            Err(error) => {
                found(error)?;
                ControlFlow::Continue(false)
            }
        }
    }

    /// Checks the inputs that only combine reads. Of these, only the model's parameters must be finite.
    fn check_returned(&self, shape: &Shape, tokens: usize, found: &mut Found<'_>) -> ControlFlow<()> {
        let (consts, h) = (shape.const_expert_num() as usize, shape.h() as usize);
        let mut of_the_model = |tensor, bytes: &[u8], expected, columns| -> ControlFlow<()> {
            if elements(tensor, bytes, expected, found)? {
                let value = |&bits: &[u8; 2]| to_f32(shape.dtype(), u16::from_le_bytes(bits));
                each_finite(tensor, bytes.as_chunks().0.iter().map(value), columns, found)?;
            }
            ControlFlow::Continue(())
        };
        of_the_model("const_expert_alpha_1", self.const_expert_alpha_1, consts, None)?;
        of_the_model("const_expert_alpha_2", self.const_expert_alpha_2, consts, None)?;
        of_the_model("const_expert_v", self.const_expert_v, consts.saturating_mul(h), Some(h))?;
        match self.add_rms_norm {
            Some(AddRmsNorm { residual_x, gamma }) if shape.has_add_rms_norm() => {
                of_the_model("gamma", gamma, h, None)?;
                elements("residual_x", residual_x, tokens.saturating_mul(h), found)?;
            }
            Some(_) => found(InputError::NotTaken { tensor: "gamma", protocol: shape.protocol() })?,
            None => {}
        }
        let Some(shared) = self.shared_expert_x else { return ControlFlow::Continue(()) };
        taken("shared_expert_x", Given::SHARED_EXPERT_X, shape, found)?;
        match shape.shared_expert_rows() {
            0 => elements("shared_expert_x", shared, tokens.saturating_mul(h), found).map_continue(drop),
            shared_experts => found(InputError::SharedExpertX { shared_experts }),
        }
    }

    /// Checks the ids of active pairs. Those of masked pairs are whatever the padding of a batch left there.
    fn check_ids(&self, shape: &Shape, bs: u32, end: u32, found: &mut Found<'_>) -> ControlFlow<()> {
        for token in (0..bs).map(Token) {
            let active = || self.active_ids(shape, token);
            for (k, seen) in active() {
                if !u32::try_from(seen).is_ok_and(|id| id < end) {
                    found(InputError::ExpertId { token, k, seen, end })?;
                } else if active().take_while(|&(column, _)| column < k).any(|(_, earlier)| earlier == seen) {
                    found(InputError::RepeatedExpert { token, expert: seen })?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn check_mask(&self, shape: &Shape, bs: u32, found: &mut Found<'_>) -> ControlFlow<()> {
        if let Mask::Tokens(mask) = self.mask {
            let active = mask.iter().take_while(|&&active| active).count();
            let late = (0..).map(Token).zip(mask).skip(active).filter(|(_, active)| **active);
            for (token, _) in late {
                found(InputError::MaskOrder { token })?;
            }
        }
        if shape.may_have_inactive_tokens() {
            return ControlFlow::Continue(());
        }
        for token in (0..bs).map(Token).filter(|&token| !self.token_is_active(shape, token)) {
            found(InputError::MaskWithUnevenBs { token })?;
        }
        ControlFlow::Continue(())
    }

    /// Checks that every value that will be quantised dynamically is finite, before and after smoothing.
    fn check_tokens(&self, shape: &Shape, bs: u32, found: &mut Found<'_>) -> ControlFlow<()> {
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
            let itself = position(values, wrong).map(|element| (element, None));
            if let Some((element, smooth)) = itself.or_else(|| self.overflow(shape, token, values)) {
                found(InputError::NotFiniteToken { token, element, smooth })?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the first of the finite values of an active token that a row of `scales` makes infinite, and that row.
    fn overflow(&self, shape: &Shape, token: Token, values: &[[u8; 2]]) -> Option<(u32, Option<u32>)> {
        // Special experts, whose ids follow, receive nothing.
        let moe = self.active_ids(shape, token).filter_map(|(_, id)| u32::try_from(id).ok());
        let moe = moe.filter(|&id| id < shape.moe_expert_num());
        let moe = moe.map(|id| shape.shared_expert_rows().saturating_add(id));
        let rows = (0..shape.shared_expert_num()).chain(moe);
        rows.filter_map(|row| Some((row, self.smooth(shape, row)?))).find_map(|(row, smooth)| {
            let element = position(values.iter().zip(smooth), |(value, scale): (&[u8; 2], &f32)| {
                !(to_f32(shape.dtype(), u16::from_le_bytes(*value)) * scale).is_finite()
            });
            Some((element?, Some(row)))
        })
    }

    /// Returns the columns and ids of a token's active pairs.
    fn active_ids(&self, shape: &Shape, token: Token) -> impl Iterator<Item = (u32, i32)> {
        let ids = (0..).zip(self.ids(shape, token).iter().copied());
        ids.filter(move |&(k, _)| self.pair_is_active(shape, token, k))
    }

    /// Returns whether pair `(token, k)` is active.
    #[inline]
    #[must_use]
    pub fn pair_is_active(&self, shape: &Shape, token: Token, k: u32) -> bool {
        match self.mask {
            Mask::None => true,
            Mask::Abstains => false,
            Mask::Tokens(mask) => mask.get(token.index()).copied().unwrap_or(false),
            Mask::Pairs(mask) => {
                mask.get(token.index() * shape.k() as usize + k as usize).copied().unwrap_or(false)
            }
        }
    }

    /// Returns whether any pair of `token` is active.
    #[inline]
    #[must_use]
    pub fn token_is_active(&self, shape: &Shape, token: Token) -> bool {
        match self.mask {
            Mask::None => true,
            Mask::Abstains => false,
            Mask::Tokens(mask) => mask.get(token.index()).copied().unwrap_or(false),
            Mask::Pairs(_) => (0..shape.k()).any(|k| self.pair_is_active(shape, token, k)),
        }
    }

    /// Returns the `x` row of a token; empty when out of range.
    #[inline]
    #[must_use]
    pub fn row(&self, shape: &Shape, token: Token) -> &[u8] {
        nth_row(shape, self.x, token.index())
    }

    /// Returns the `shared_expert_x` row of a token, if the rank has that tensor.
    pub(crate) fn shared_row(&self, shape: &Shape, token: Token) -> Option<&[u8]> {
        self.shared_expert_x.map(|shared| nth_row(shape, shared, token.index()))
    }

    /// Returns the factors of const expert `i`, of the token and of its own row, and that row.
    pub(crate) fn const_expert(&self, shape: &Shape, i: u32) -> ([f32; 2], &[u8]) {
        let alpha = |alphas: &[u8]| {
            let bits = alphas.as_chunks::<2>().0.get(i as usize).copied().unwrap_or_default();
            to_f32(shape.dtype(), u16::from_le_bytes(bits))
        };
        let alphas = [alpha(self.const_expert_alpha_1), alpha(self.const_expert_alpha_2)];
        (alphas, nth_row(shape, self.const_expert_v, i as usize))
    }

    /// Returns the `expert_ids` row of a token; empty when out of range, or when the rank abstains.
    #[inline]
    #[must_use]
    pub fn ids(&self, shape: &Shape, token: Token) -> &[i32] {
        if self.abstains() {
            return &[];
        }
        nth_piece(self.expert_ids, token.index(), shape.k() as usize).unwrap_or(&[])
    }

    /// Returns entry `k` of the `expert_ids` row of a token, if there is one.
    #[inline]
    pub(crate) fn id(&self, shape: &Shape, token: Token, k: u32) -> Option<i32> {
        let in_row = k < shape.k();
        self.expert_ids.get(token.index() * shape.k() as usize + k as usize).copied().filter(|_| in_row)
    }

    /// Returns the `expert_scales` row of a token; empty when out of range.
    #[inline]
    pub(crate) fn weights(&self, shape: &Shape, token: Token) -> &[f32] {
        nth_piece(self.expert_scales, token.index(), shape.k() as usize).unwrap_or(&[])
    }

    /// Returns row `expert_row` of the smooth scales.
    pub(crate) fn smooth(&self, shape: &Shape, expert_row: u32) -> Option<&[f32]> {
        nth_piece(self.scales?, expert_row as usize, shape.h() as usize)
    }
}

impl<'a> AddRmsNorm<'a> {
    /// Returns the `residual_x` row of a token; empty when out of range.
    pub(crate) fn residual(&self, shape: &Shape, token: Token) -> &'a [u8] {
        nth_row(shape, self.residual_x, token.index())
    }
}

/// Returns row `row` of a tensor of rows; empty when out of range.
fn nth_row<'a>(shape: &Shape, rows: &'a [u8], row: usize) -> &'a [u8] {
    nth_piece(rows, row, shape.row_bytes() as usize).unwrap_or(&[])
}

/// Checks that a tensor of dtype has the right number of elements. Half an element too many counts as one, half an element
/// too few as none, so that neither seems right.
fn elements(
    tensor: &'static str,
    bytes: &[u8],
    expected: usize,
    found: &mut Found<'_>,
) -> ControlFlow<(), bool> {
    let (whole, half) = (bytes.len() / 2, bytes.len() % 2);
    let seen = if whole == expected { whole + half } else { whole };
    length(tensor, seen, expected, found)
}

/// Checks that every MoE expert has a row of a tensor with a row for each expert, `scales` or `expert_gain`.
///
/// # Errors
/// An elastic domain has more MoE experts than the whole domain.
pub fn expert_has_row(tensor: &'static str, shape: &Shape) -> Result<(), InputError> {
    let (rows, expert) = (shape.expert_rows(), shape.expert_rows() - shape.shared_expert_rows());
    if shape.moe_expert_num() <= expert {
        Ok(())
    } else {
        Err(InputError::ExpertRow { tensor, rows, expert })
    }
}

/// Checks that the machines read a tensor that is given.
fn taken(tensor: &'static str, flag: Given, shape: &Shape, found: &mut Found<'_>) -> ControlFlow<()> {
    if shape.takes(flag) {
        return ControlFlow::Continue(());
    }
    found(InputError::NotTaken { tensor, protocol: shape.protocol() })
}

/// Checks that a tensor has the right number of elements.
fn length(
    tensor: &'static str,
    seen: usize,
    expected: usize,
    found: &mut Found<'_>,
) -> ControlFlow<(), bool> {
    if seen != expected {
        found(InputError::Length { tensor, seen, expected })?;
    }
    ControlFlow::Continue(seen == expected)
}

/// Checks that all numbers of a tensor are finite, rows of `columns` or single ones, and calls `found` with each that is not.
/// Returns whether all are.
pub fn all_finite(
    tensor: &'static str,
    values: &[f32],
    columns: Option<usize>,
    found: &mut Found<'_>,
) -> ControlFlow<(), bool> {
    if largest(values).is_finite() {
        return ControlFlow::Continue(true);
    }
    each_finite(tensor, values.iter().copied(), columns, found)?;
    ControlFlow::Continue(false)
}

fn each_finite(
    tensor: &'static str,
    values: impl Iterator<Item = f32>,
    columns: Option<usize>,
    found: &mut Found<'_>,
) -> ControlFlow<()> {
    for (index, value) in values.enumerate().filter(|(_, value)| !value.is_finite()) {
        let (row, column) = match columns {
            Some(columns) => (index.checked_div(columns), index.checked_rem(columns)),
            None => (Some(index), None),
        };
        let row = row.unwrap_or(0) as u32;
        found(InputError::NotFinite {
            tensor,
            row,
            column: column.map(|c| c as u32),
            bits: value.to_bits(),
        })?;
    }
    ControlFlow::Continue(())
}

/// Returns the largest magnitude, not finite if any is not: magnitudes order as integers, which are fast.
fn largest(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |max, value| max.max(value.abs().to_bits())))
}

/// Returns the place of the first item for which `wrong` returns true.
fn position<T>(items: impl IntoIterator<Item = T>, mut wrong: impl FnMut(T) -> bool) -> Option<u32> {
    (0..).zip(items).find_map(|(place, item)| wrong(item).then_some(place))
}

fn to_f32(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::Bf16 => Bf16::widen(bits),
        Dtype::F16 => F16::widen(bits),
    }
}
