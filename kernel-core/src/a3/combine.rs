//! A3 combine of one core: for each received row put and publish; for each own token await, clear, sum.
//!
//! ```text
//! Select -> (Put -> Publish)* -> (Await -> Clear* -> Sum)* -> Done
//! ```
//!
//! The core that puts a row publishes its flag, so nothing has to be quiet in between.

use super::{Env, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::inputs::Inputs;
use crate::layout::data::combine_row;
use crate::layout::outputs;
use crate::layout::record::Triple;
use crate::layout::state::{Kind, Partition, combine_slot, combine_status};
use crate::placement::Home;
use crate::plan::route::{self, Pair};
use crate::plan::split;
use crate::shape::{K_MAX, SHARED_MAX, Shape};
use crate::sync::{flag, selector};
use crate::units::{RankId, Token};
use crate::vector::Vector;

/// What the experts return on one rank, with dispatch's outputs that say whose rows they are.
#[derive(Clone, Copy, Debug)]
pub struct Returned<'a> {
    /// One row of dtype per row of `expand_x`.
    pub y: &'a [u8],
    /// `assist_info_for_combine`, three little-endian i32 per row.
    pub assist_info: &'a [u8],
    /// `ep_recv_counts` (seed 003: `epSendCounts`), little-endian i32; the last entry is the number of rows.
    pub ep_recv_counts: &'a [u8],
}

/// The combine of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    partition: Partition,
    /// Rows that this rank returns.
    rows: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Take the partition, count the rows.
    Select,
    /// Put the `item`-th row of this core's share at its owner.
    Put { item: u32 },
    /// Publish that row's flag.
    Publish { item: u32 },
    /// Await the flags of a token, from column `k` on.
    Await { token: Token, k: u32 },
    /// Clear them, from column `k` on.
    Clear { token: Token, k: u32 },
    /// Sum the token's rows into `x_out`.
    Sum { token: Token },
    /// The operator has ended.
    Done,
}

impl Combine {
    /// A core's next combine.
    #[must_use]
    pub const fn new() -> Self {
        Self { partition: Partition::P0, rows: 0, phase: Phase::Select }
    }

    /// Goes on with the operator: at most one effect that others can see.
    ///
    /// # Errors
    /// A value read from the fabric or from `returned` contradicts the shape, or the fabric refuses.
    pub fn step<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        returned: &Returned<'_>,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        match self.phase {
            Phase::Select => self.select(env, fabric, returned),
            Phase::Put { item } => self.put(env, fabric, returned, item),
            Phase::Publish { item } => self.publish(env, fabric, returned, item),
            Phase::Await { token, k } => self.await_token(env, fabric, inputs, token, k),
            Phase::Clear { token, k } => self.clear(env, fabric, inputs, token, k),
            Phase::Sum { token } => self.sum(env, fabric, inputs, ub, token),
            Phase::Done => Ok(Progress::Done),
        }
    }

    fn go(&mut self, phase: Phase) -> Result<Progress, ProtocolError> {
        self.phase = phase;
        Ok(Progress::Stepped)
    }

    fn select<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        returned: &Returned<'_>,
    ) -> Result<Progress, ProtocolError> {
        self.rows = returned.rows(env.shape, env.rank)?;
        self.partition = selector::select(fabric, Kind::Combine, env.core)?;
        self.go(Phase::Put { item: 0 })
    }

    fn put<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        returned: &Returned<'_>,
        item: u32,
    ) -> Result<Progress, ProtocolError> {
        let Some((row, triple)) = self.nth_row(env, returned, item)? else {
            let first = Token(env.work.tokens.start);
            return self.go(Phase::Await { token: first, k: 0 });
        };
        let len = env.shape.row_bytes() as usize;
        let y = returned
            .y
            .get(row as usize * len..)
            .and_then(|rest| rest.get(..len))
            .ok_or(internal("y is shorter than its rows"))?;
        let at = combine_row(env.shape, self.partition, triple.token, triple.k);
        fabric.put(triple.source, at, y, &[])?;
        self.go(Phase::Publish { item })
    }

    fn publish<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        returned: &Returned<'_>,
        item: u32,
    ) -> Result<Progress, ProtocolError> {
        let (_, triple) =
            self.nth_row(env, returned, item)?.ok_or(internal("publishing a row that was not put"))?;
        let slot = combine_slot(env.shape, triple.token, triple.k);
        fabric.publish(triple.source, combine_status(self.partition, slot), flag::ARRIVED)?;
        self.go(Phase::Put { item: item + 1 })
    }

    /// The `item`-th row that this core returns, and whose it is; `None` behind the last.
    fn nth_row<V>(
        &self,
        env: &Env<'_, V>,
        returned: &Returned<'_>,
        item: u32,
    ) -> Result<Option<(u32, Triple)>, ProtocolError> {
        let share = split::rows(env.shape, self.rows, env.core);
        if item >= share.end - share.start {
            return Ok(None);
        }
        let row = env.choices.order.item(&share, env.rank, item);
        let at = row as usize * Triple::BYTES as usize;
        let bytes = returned.assist_info.get(at..).and_then(|b| b.get(..Triple::BYTES as usize));
        let triple = Triple::from_bytes(env.shape, bytes.unwrap_or(&[]))
            .map_err(|seen| ProtocolError::Triple { row, seen })?;
        if !triple.may_be_on(env.shape, env.rank) {
            return Err(ProtocolError::Triple { row, seen: triple.words() });
        }
        Ok(Some((row, triple)))
    }

    fn await_token<F: Fabric + ?Sized, V: Vector>(
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

    fn clear<F: Fabric + ?Sized, V: Vector>(
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

    fn sum<F: Fabric + ?Sized, V: Vector>(
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

impl Default for Combine {
    fn default() -> Self {
        Self::new()
    }
}

impl Returned<'_> {
    /// The rows that `rank` returns: the last entry of `ep_recv_counts`, checked.
    fn rows(&self, shape: &Shape, rank: RankId) -> Result<u32, ProtocolError> {
        let entries = shape.local_experts(rank) as usize * shape.ep_world_size() as usize;
        let last = self.ep_recv_counts.chunks_exact(4).nth(entries.saturating_sub(1));
        let seen = last.and_then(|b| b.try_into().ok()).map_or(-1, i32::from_le_bytes);
        let held = (self.y.len() as u64).min(shape.rows_max(rank) * shape.row_bytes());
        let max = crate::units::div_floor(held, shape.row_bytes());
        match u32::try_from(seen) {
            Ok(rows) if u64::from(rows) <= max => Ok(rows),
            _ => Err(ProtocolError::RecvCounts { seen: seen.into(), max }),
        }
    }
}

/// The first column of `token` from `k` on that is sent to an expert, and where that expert lives.
fn next_pair<V>(env: &Env<'_, V>, inputs: &Inputs<'_>, token: Token, k: u32) -> Option<(u32, Home)> {
    (k..env.shape.combine_columns())
        .find_map(|k| Some((k, route::home(env.shape, env.rank, inputs, Pair { token, k })?)))
}

static_assertions::const_assert!(size_of::<Combine>() <= 512);
