//! The outputs of a token once its rows have arrived: the weighted sum, and AddRmsNorm.
//!
//! The sum is computed straight from the window. AddRmsNorm writes four outputs, one effect each, so its row of f32 stays
//! in the scratch from one step to the next; computing it again would read all rows of the window again.

use super::{Context, Core, SHORT_BYTES, Scratch, given, internal, room};
use crate::fabric::{Fabric, ProtocolError, Result, prefetches};
use crate::inputs::Inputs;
use crate::layout::outputs;
use crate::layout::result;
use crate::place::{Place, Tensor};
use crate::placement::Home;
use crate::plan::route::{self, Source};
use crate::shape::element::bits;
use crate::shape::{K_MAX, SHARED_MAX, Shape};
use crate::units::{Pair, Token};
use crate::vector::{Term, Value, cells};
use core::cell::Cell;

const LOST_NORM: ProtocolError = given("the inputs of combine change between its steps: AddRmsNorm is gone");

/// The terms of a sum. `shared_expert_x` is a term only where shared experts return no rows.
type Terms<'a> = heapless::Vec<Term<'a>, { K_MAX + SHARED_MAX }>;

/// An output of a token, computed from the results of its experts. They are written in this order; without AddRmsNorm there
/// is only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Output {
    /// The sum: `x_out`.
    Sum,
    /// The sum plus the residual: `x`.
    Add,
    /// `rstd` of `x`.
    Rstd,
    /// `x` normalised by `rstd`: `y`.
    Norm { rstd_bits: u32 },
}

phase_names! { Output: Sum Add Rstd Norm }

/// Writes an output of a token, and returns the next one, if there is one. For AddRmsNorm the unrounded row stays in the
/// scratch. `returned` returns the row of a pair, from the expert at its home.
#[inline]
pub(crate) fn write<F: Fabric + ?Sized>(
    cx: &mut Context<'_, F>,
    token: Token,
    output: Output,
    returned: impl Fn(&F, Pair, Home) -> Result<Value<'_>>,
) -> Result<Option<Output>> {
    let (core, inputs) = (cx.core, cx.inputs);
    let (shape, dtype) = (core.shape, core.shape.dtype());
    let (row, rest) = split(shape, &mut cx.scratch)?;
    let Some(norm) = inputs.add_rms_norm else {
        if output != Output::Sum {
            return Err(LOST_NORM);
        }
        write_x_out(core, cx.fabric, inputs, token, row, returned)?;
        return Ok(None);
    };
    let sums = room(rest, 2 * shape.row_bytes())?;
    Ok(match output {
        Output::Sum => {
            {
                let mut terms = Terms::new();
                collect_terms(core, &*cx.fabric, inputs, token, returned, &mut terms)?;
                sums.fill(0);
                core.vector.accumulate(dtype, &terms, prefetches(cx.fabric), sums);
            }
            core.vector.narrow(dtype, sums, row);
            cx.fabric.write(outputs::x_out(shape, token), row)?;
            // Once the write is taken: the next step may be taken more than once.
            core.vector.accumulate(dtype, &[Term::row(1.0, norm.residual(shape, token))], false, sums);
            Some(Output::Add)
        }
        Output::Add => {
            core.vector.narrow(dtype, sums, row);
            cx.fabric.write(outputs::entry(shape, Tensor::X, token.0), row)?;
            Some(Output::Rstd)
        }
        Output::Rstd => {
            let rstd = core.vector.rstd(sums, shape.norm_eps());
            cx.fabric.write(outputs::element(Tensor::Rstd, token.0), &bits(rstd).to_le_bytes())?;
            Some(Output::Norm { rstd_bits: rstd.to_bits() })
        }
        Output::Norm { rstd_bits } => {
            core.vector.normalise(dtype, sums, f32::from_bits(rstd_bits), norm.gamma, row);
            cx.fabric.write(outputs::entry(shape, Tensor::Y, token.0), row)?;
            None
        }
    })
}

/// Writes the weighted sum of a token's rows to `x_out`. `returned` is as for [`write`].
pub(crate) fn write_x_out<F: Fabric + ?Sized>(
    core: Core<'_>,
    fabric: &mut F,
    inputs: &Inputs<'_>,
    token: Token,
    row: &mut [u8],
    returned: impl Fn(&F, Pair, Home) -> Result<Value<'_>>,
) -> Result<()> {
    fill_output(fabric, outputs::x_out(core.shape, token), row, |fabric, out| {
        let mut terms = Terms::new();
        collect_terms(core, fabric, inputs, token, returned, &mut terms)?;
        core.vector.weighted_sum(core.shape.dtype(), &terms, prefetches(fabric), out);
        Ok(())
    })
}

/// Writes an output as long as `scratch`, as one effect: in place if the fabric lends its memory, else by way of the
/// scratch.
pub(crate) fn fill_output<F: Fabric + ?Sized>(
    fabric: &mut F,
    at: Place,
    scratch: &mut [u8],
    fill: impl FnOnce(&F, &[Cell<u8>]) -> Result<()>,
) -> Result<()> {
    if let Some(lent) = fabric.lend(at, scratch.len() as u64) {
        return fill(fabric, lent);
    }
    fill(fabric, cells(scratch))?;
    Ok(fabric.write(at, scratch)?)
}

/// Collects everything that is added up for a token, in order.
fn collect_terms<'a, F: Fabric + ?Sized>(
    core: Core<'_>,
    fabric: &'a F,
    inputs: &'a Inputs<'_>,
    token: Token,
    returned: impl Fn(&F, Pair, Home) -> Result<Value<'_>>,
    terms: &mut Terms<'a>,
) -> Result<()> {
    let shape = core.shape;
    let weights = inputs.weights(shape, token);
    for k in 0..shape.combine_columns() {
        let pair = Pair { token, k };
        let Some(source) = route::source(shape, core.rank, inputs, pair) else { continue };
        let value = match source {
            Source::Home(home) => returned(fabric, pair, home)?,
            Source::Zero => continue,
            Source::Copy => Value::Row(inputs.row(shape, token)),
            Source::Const(i) => {
                let (alphas, v) = inputs.const_expert(shape, i);
                Value::Mix { alphas, rows: [inputs.row(shape, token), v] }
            }
        };
        // The columns of shared experts follow the last weight and are unscaled.
        let weight = weights.get(k as usize).copied().unwrap_or(1.0);
        push(terms, Term { weight, value })?;
    }
    if let Some(row) = inputs.shared_row(shape, token)
        && inputs.token_is_active(shape, token)
    {
        push(terms, Term::row(1.0, row))?;
    }
    Ok(())
}

/// Returns the row of a result as a value in the format in which results travel.
pub(crate) fn as_travelled<'a>(shape: &Shape, row: &'a [u8]) -> Value<'a> {
    match shape.result_format().scale {
        Some(_) => {
            let (data, scales) = result::split(shape, row);
            Value::Blocks { data, scales }
        }
        None => Value::Row(row),
    }
}

fn push<'a>(terms: &mut Terms<'a>, term: Term<'a>) -> Result<()> {
    terms.push(term).map_err(|_| internal("more terms than K and S allow"))
}

/// Splits the scratch into a row of dtype and the rest, where AddRmsNorm keeps one of f32.
fn split<'u>(shape: &Shape, scratch: &'u mut Scratch<'_>) -> Result<(&'u mut [u8], &'u mut [u8])> {
    let len = shape.row_bytes() as usize;
    scratch.row.split_at_mut_checked(len).ok_or(SHORT_BYTES)
}
