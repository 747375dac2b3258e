//! What becomes of a token when its rows are there: the weighted sum, and AddRmsNorm.
//!
//! The sum is taken straight from the window. AddRmsNorm writes four outputs, one effect each, so its row of f32
//! stays in the scratch from one step to the next: to sum again would read all rows of the window again.

use super::{Combine, Phase};
use crate::a3::{Env, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::inputs::Inputs;
use crate::layout::data::combine_row;
use crate::layout::outputs;
use crate::layout::result;
use crate::plan::route::{self, Pair, Source};
use crate::shape::{K_MAX, Op, SHARED_MAX, Shape};
use crate::units::Token;
use crate::vector::{Term, Value, Vector};

/// The terms of a sum. `shared_expert_x` is one only where there are no shared experts' rows.
type Terms<'a> = heapless::Vec<Term<'a>, { K_MAX + SHARED_MAX }>;

impl Combine {
    pub(super) fn sum<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        token: Token,
    ) -> Result<Progress, ProtocolError> {
        let (row, sums) = split(env.shape, ub)?;
        self.sum_terms(env, &*fabric, inputs, token, row, sums)?;
        fabric.write(outputs::x_out(env.shape, token), row)?;
        self.go(match env.shape.op() {
            Op::Combine => next(token),
            Op::CombineAddRmsNorm => Phase::Add { token },
        })
    }

    /// The result of a token into `row`, and unrounded into `sums` if it is to be normalised.
    fn sum_terms<F: Fabric + ?Sized, V: Vector>(
        &self,
        env: &Env<'_, V>,
        fabric: &F,
        inputs: &Inputs<'_>,
        token: Token,
        row: &mut [u8],
        sums: &mut [u8],
    ) -> Result<(), ProtocolError> {
        let dtype = env.shape.dtype();
        let terms = self.terms(env, fabric, inputs, token)?;
        match env.shape.op() {
            Op::Combine => env.vector.weighted_sum(dtype, &terms, row),
            Op::CombineAddRmsNorm => {
                sums.fill(0);
                env.vector.accumulate(dtype, &terms, sums);
                env.vector.narrow(dtype, sums, row);
            }
        }
        Ok(())
    }

    /// Everything that is added up for a token, in order.
    fn terms<'a, F: Fabric + ?Sized, V>(
        &self,
        env: &Env<'_, V>,
        fabric: &'a F,
        inputs: &'a Inputs<'_>,
        token: Token,
    ) -> Result<Terms<'a>, ProtocolError> {
        let shape = env.shape;
        let weights = inputs.weights(shape, token);
        let mut terms = Terms::new();
        for k in 0..shape.combine_columns() {
            let Some(source) = route::source(shape, env.rank, inputs, Pair { token, k }) else { continue };
            let value = match source {
                Source::Home(_) => {
                    let at = combine_row(shape, self.partition, token, k);
                    returned(shape, fabric.bytes(at, shape.result_bytes())?)
                }
                Source::Zero => continue,
                Source::Copy => Value::Row(inputs.row(shape, token)),
                Source::Const(i) => {
                    let (alphas, v) = inputs.const_expert(shape, i);
                    Value::Mix { alphas, rows: [inputs.row(shape, token), v] }
                }
            };
            // Shared experts are behind the last weight: unscaled.
            let weight = weights.get(k as usize).copied().unwrap_or(1.0);
            push(&mut terms, Term { weight, value })?;
        }
        if let Some(row) = inputs.shared_row(shape, token)
            && inputs.token_is_active(shape, token)
        {
            push(&mut terms, Term::row(1.0, row))?;
        }
        Ok(terms)
    }

    pub(super) fn add<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        token: Token,
    ) -> Result<Progress, ProtocolError> {
        let (row, sums) = split(env.shape, ub)?;
        let residual = Term::row(1.0, inputs.residual(env.shape, token));
        env.vector.accumulate(env.shape.dtype(), &[residual], sums);
        env.vector.narrow(env.shape.dtype(), sums, row);
        fabric.write(outputs::x(env.shape, token), row)?;
        self.go(Phase::Rstd { token })
    }

    pub(super) fn rstd<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        token: Token,
    ) -> Result<Progress, ProtocolError> {
        let (_, sums) = split(env.shape, ub)?;
        let rstd = env.vector.rstd(sums, env.shape.norm_eps());
        fabric.write(outputs::rstd(token), &rstd.to_le_bytes())?;
        self.go(Phase::Norm { token, rstd_bits: rstd.to_bits() })
    }

    pub(super) fn norm<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        token: Token,
        rstd: f32,
    ) -> Result<Progress, ProtocolError> {
        let (row, sums) = split(env.shape, ub)?;
        env.vector.normalise(env.shape.dtype(), sums, rstd, inputs.gamma, row);
        fabric.write(outputs::y(env.shape, token), row)?;
        self.go(next(token))
    }
}

/// A returned row as it lies in the window.
fn returned<'a>(shape: &Shape, row: &'a [u8]) -> Value<'a> {
    if shape.comm_quant() {
        let (data, scales) = result::split(shape, row);
        Value::Blocks { data, scales }
    } else {
        Value::Row(row)
    }
}

fn push<'a>(terms: &mut Terms<'a>, term: Term<'a>) -> Result<(), ProtocolError> {
    terms.push(term).map_err(|_| internal("more terms than K and S allow"))
}

/// After a token's last output: the next token.
const fn next(token: Token) -> Phase {
    Phase::Await { token: Token(token.0 + 1), k: 0 }
}

/// The scratch: a row of dtype; behind it, for AddRmsNorm, one of f32.
fn split<'u>(shape: &Shape, ub: &'u mut Ub<'_>) -> Result<(&'u mut [u8], &'u mut [u8]), ProtocolError> {
    let len = shape.row_bytes() as usize;
    let short = internal("scratch is shorter than ub_bytes");
    let (row, rest) = ub.row.split_at_mut_checked(len).ok_or(short)?;
    match shape.op() {
        Op::Combine => Ok((row, &mut [])),
        Op::CombineAddRmsNorm => Ok((row, rest.get_mut(..2 * len).ok_or(short)?)),
    }
}
