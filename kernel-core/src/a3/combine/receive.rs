//! The receiving half: for each own token await the flags of its rows, clear them, sum the rows.

use super::{Combine, Phase};
use crate::a3::{Env, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::inputs::Inputs;
use crate::layout::data::combine_row;
use crate::layout::outputs;
use crate::layout::state::{combine_slot, combine_status};
use crate::placement::Home;
use crate::plan::route::{self, Pair};
use crate::shape::{K_MAX, SHARED_MAX};
use crate::sync::flag;
use crate::units::Token;
use crate::vector::Vector;

impl Combine {
    pub(super) fn await_token<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        token: Token,
        first: u32,
    ) -> Result<Progress, ProtocolError> {
        if token.0 >= env.work.tokens.end {
            return self.go(Phase::Done);
        }
        let mut k = first;
        while let Some((next, home)) = next_pair(env, inputs, token, k) {
            let at = combine_status(self.partition, combine_slot(env.shape, token, next));
            let source = home.rank;
            let seen = fabric.observe(at)?;
            match flag::arrived(seen) {
                flag::Seen::Flag(_) => k = next + 1,
                flag::Seen::Corrupt => {
                    return Err(ProtocolError::CombineFlag { source, token: token.0, k: next, seen });
                }
                flag::Seen::Empty if k > first => return self.go(Phase::Await { token, k }),
                flag::Seen::Empty => {
                    return Ok(Progress::Pending(Wait::CombineFlag { source, token: token.0, k: next }));
                }
            }
        }
        self.go(Phase::Clear { token, k: 0 })
    }

    pub(super) fn clear<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        token: Token,
        k: u32,
    ) -> Result<Progress, ProtocolError> {
        let Some((k, _)) = next_pair(env, inputs, token, k) else {
            return self.go(Phase::Sum { token });
        };
        fabric.store(combine_status(self.partition, combine_slot(env.shape, token, k)), 0)?;
        self.go(Phase::Clear { token, k: k + 1 })
    }

    pub(super) fn sum<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        ub: &mut Ub<'_>,
        token: Token,
    ) -> Result<Progress, ProtocolError> {
        let shape = env.shape;
        let out = ub
            .row
            .get_mut(..shape.row_bytes() as usize)
            .ok_or(internal("scratch is shorter than ub_bytes"))?;
        self.sum_rows(env, &*fabric, inputs, token, out)?;
        fabric.write(outputs::x_out(shape, token), out)?;
        self.go(Phase::Await { token: Token(token.0 + 1), k: 0 })
    }

    /// The weighted sum of a token's rows, straight from the window, into `out`.
    fn sum_rows<F: Fabric + ?Sized, V: Vector>(
        &self,
        env: &Env<'_, V>,
        fabric: &F,
        inputs: &Inputs<'_>,
        token: Token,
        out: &mut [u8],
    ) -> Result<(), ProtocolError> {
        let shape = env.shape;
        let all_weights = inputs.weights(shape, token);
        let mut rows = heapless::Vec::<&[u8], K_MAX>::new();
        let mut weights = heapless::Vec::<f32, K_MAX>::new();
        let mut shared = heapless::Vec::<&[u8], SHARED_MAX>::new();
        let mut k = 0;
        while let Some((next, _)) = next_pair(env, inputs, token, k) {
            let row = fabric.bytes(combine_row(shape, self.partition, token, next), shape.row_bytes())?;
            let fits = match all_weights.get(next as usize) {
                Some(&w) => rows.push(row).is_ok() && weights.push(w).is_ok(),
                None => shared.push(row).is_ok(),
            };
            if !fits {
                return Err(internal("more rows than K and S allow"));
            }
            k = next + 1;
        }
        env.vector.weighted_sum(shape.dtype(), &rows, &weights, &shared, out);
        Ok(())
    }
}

/// The first column of `token` from `k` on that is sent to an expert, and where that expert lives.
fn next_pair<V>(env: &Env<'_, V>, inputs: &Inputs<'_>, token: Token, k: u32) -> Option<(u32, Home)> {
    (k..env.shape.combine_columns())
        .find_map(|k| Some((k, route::home(env.shape, env.rank, inputs, Pair { token, k })?)))
}
