//! The outputs of a token once its rows have arrived: the weighted sum, and AddRmsNorm.
//!
//! The sum is computed straight from the window. AddRmsNorm writes four outputs, one effect each, so its row of f32 stays
//! in the scratch from one step to the next; computing it again would read all rows of the window again.

use crate::fabric::{Fabric, ProtocolError, prefetches};
use crate::inputs::Inputs;
use crate::layout::data::combine_row;
use crate::layout::outputs;
use crate::layout::result;
use crate::layout::state::Partition;
use crate::place::Place;
use crate::placement::Home;
use crate::plan::route::{self, Source};
use crate::protocol::a3::{Bound, Cx};
use crate::protocol::{Scratch, Types, given, internal};
use crate::shape::element::bits;
use crate::shape::{K_MAX, Op, SHARED_MAX, Shape};
use crate::units::{Pair, Token};
use crate::vector::{Term, Value, Vector, cells};
use core::cell::Cell;

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

/// Writes an output of a token, and returns the next one, if there is one.
#[inline]
pub(crate) fn write<T: Types>(
    cx: &mut Cx<'_, T>,
    (token, output): (Token, Output),
    rows: &impl Rows<T::Fabric>,
) -> Result<Option<Output>, ProtocolError> {
    Ok(match output {
        Output::Sum => {
            write_sum(cx, token, rows)?;
            match cx.env.shape.op() {
                Op::Combine => None,
                Op::CombineAddRmsNorm => Some(Output::Add),
            }
        }
        Output::Add => {
            write_x(cx, token)?;
            Some(Output::Rstd)
        }
        Output::Rstd => Some(Output::Norm { rstd_bits: write_rstd(cx, token)?.to_bits() }),
        Output::Norm { rstd_bits } => {
            write_y(cx, token, f32::from_bits(rstd_bits))?;
            None
        }
    })
}

/// The rows that experts returned for a token.
pub(crate) trait Rows<F: ?Sized> {
    /// Returns the row of column `k`, from the expert at `home`.
    fn row<'f>(
        &self,
        shape: &Shape,
        fabric: &'f F,
        pair: Pair,
        home: Home,
    ) -> Result<Value<'f>, ProtocolError>;
}

/// The rows in the combine area of the own window.
pub(super) struct InWindow {
    pub(super) partition: Partition,
}

impl<F: Fabric + ?Sized> Rows<F> for InWindow {
    fn row<'f>(&self, shape: &Shape, fabric: &'f F, pair: Pair, _: Home) -> Result<Value<'f>, ProtocolError> {
        let at = combine_row(shape, self.partition, pair.token, pair.k);
        Ok(returned(shape, fabric.bytes(at, shape.result_bytes())?))
    }
}

/// Writes `x_out` of a token; for AddRmsNorm the unrounded row stays in the scratch.
fn write_sum<T: Types>(
    cx: &mut Cx<'_, T>,
    token: Token,
    rows: &impl Rows<T::Fabric>,
) -> Result<(), ProtocolError> {
    let (env, inputs) = (cx.env, cx.inputs);
    let (row, sums) = split(env.shape, &mut cx.scratch)?;
    let at = outputs::x_out(env.shape, token);
    let dtype = env.shape.dtype();
    match env.shape.op() {
        Op::Combine => fill_output(cx.fabric, at, row, |fabric, out| {
            let mut terms = Terms::new();
            collect_terms(env, fabric, inputs, token, rows, &mut terms)?;
            env.vector.weighted_sum(dtype, &terms, prefetches(fabric), out);
            Ok(())
        }),
        Op::CombineAddRmsNorm => {
            {
                let mut terms = Terms::new();
                collect_terms(env, &*cx.fabric, inputs, token, rows, &mut terms)?;
                sums.fill(0);
                env.vector.accumulate(dtype, &terms, prefetches(cx.fabric), sums);
            }
            env.vector.narrow(dtype, sums, row);
            Ok(cx.fabric.write(at, row)?)
        }
    }
}

/// Writes an output as long as `scratch`, as one effect: in place if the fabric lends its memory, else by way of the
/// scratch.
pub(crate) fn fill_output<F: Fabric + ?Sized>(
    fabric: &mut F,
    at: Place,
    scratch: &mut [u8],
    fill: impl FnOnce(&F, &[Cell<u8>]) -> Result<(), ProtocolError>,
) -> Result<(), ProtocolError> {
    if let Some(lent) = fabric.lend(at, scratch.len() as u64) {
        return fill(fabric, lent);
    }
    fill(fabric, cells(scratch))?;
    Ok(fabric.write(at, scratch)?)
}

/// Collects everything that is added up for a token, in order.
fn collect_terms<'a, F: Fabric + ?Sized, V>(
    env: Bound<'_, V>,
    fabric: &'a F,
    inputs: &'a Inputs<'_>,
    token: Token,
    rows: &impl Rows<F>,
    terms: &mut Terms<'a>,
) -> Result<(), ProtocolError> {
    let shape = env.shape;
    let weights = inputs.weights(shape, token);
    for k in 0..shape.combine_columns() {
        let pair = Pair { token, k };
        let Some(source) = route::source(shape, env.rank, inputs, pair) else { continue };
        let value = match source {
            Source::Home(home) => rows.row(shape, fabric, pair, home)?,
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

/// Adds the residual to the row in the scratch and writes `x`.
fn write_x(cx: &mut Cx<'_, impl Types>, token: Token) -> Result<(), ProtocolError> {
    let (row, sums) = split(cx.env.shape, &mut cx.scratch)?;
    let residual = Term::row(1.0, cx.inputs.residual(cx.env.shape, token));
    cx.env.vector.accumulate(cx.env.shape.dtype(), &[residual], false, sums);
    cx.env.vector.narrow(cx.env.shape.dtype(), sums, row);
    cx.fabric.write(outputs::x(cx.env.shape, token), row)?;
    Ok(())
}

/// Writes `rstd` of the row in the scratch, and returns it.
fn write_rstd(cx: &mut Cx<'_, impl Types>, token: Token) -> Result<f32, ProtocolError> {
    let (_, sums) = split(cx.env.shape, &mut cx.scratch)?;
    let rstd = cx.env.vector.rstd(sums, cx.env.shape.norm_eps());
    cx.fabric.write(outputs::rstd(token), &bits(rstd).to_le_bytes())?;
    Ok(rstd)
}

/// Normalises the row in the scratch and writes `y`.
fn write_y(cx: &mut Cx<'_, impl Types>, token: Token, rstd: f32) -> Result<(), ProtocolError> {
    let (row, sums) = split(cx.env.shape, &mut cx.scratch)?;
    cx.env.vector.normalise(cx.env.shape.dtype(), sums, rstd, cx.inputs.gamma, row);
    cx.fabric.write(outputs::y(cx.env.shape, token), row)?;
    Ok(())
}

/// Returns a returned row as a value, in the format in which it travels.
pub(crate) fn returned<'a>(shape: &Shape, row: &'a [u8]) -> Value<'a> {
    match shape.result_format().scale {
        Some(_) => {
            let (data, scales) = result::split(shape, row);
            Value::Blocks { data, scales }
        }
        None => Value::Row(row),
    }
}

fn push<'a>(terms: &mut Terms<'a>, term: Term<'a>) -> Result<(), ProtocolError> {
    terms.push(term).map_err(|_| internal("more terms than K and S allow"))
}

/// Splits the scratch into a row of dtype and, for AddRmsNorm, one of f32.
fn split<'u>(
    shape: &Shape,
    scratch: &'u mut Scratch<'_>,
) -> Result<(&'u mut [u8], &'u mut [u8]), ProtocolError> {
    let len = shape.row_bytes() as usize;
    let short = given("scratch is shorter than scratch_bytes");
    let (row, rest) = scratch.row.split_at_mut_checked(len).ok_or(short)?;
    match shape.op() {
        Op::Combine => Ok((row, &mut [])),
        Op::CombineAddRmsNorm => Ok((row, rest.get_mut(..2 * len).ok_or(short)?)),
    }
}
