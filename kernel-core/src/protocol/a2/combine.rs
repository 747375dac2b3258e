//! A2 combine of one core: reorder the experts' results by rank, send, await, sum own tokens, clear all flags.
//!
//! ```text
//! Select -> Reorder* -> Send* -> Rows* -> Barrier -> Sum* -> Summed -> Clear* -> Done
//! ```
//!
//! A core awaits windows by rank and sums tokens whose rows lie in all of them. Hence a barrier before the sums, and one
//! after them: a word that is cleared may be another core's payload.

use super::exchange::Exchange;
use super::{Bound, Cx, Env, split_words};
use crate::fabric::{Fabric, Flag, Progress, ProtocolError, Wait, prefetches};
use crate::inputs::Inputs;
use crate::layout::a2_window::{row, tail_flag, window_in};
use crate::layout::outputs;
use crate::layout::state::Operator;
use crate::placement::Home;
use crate::plan::permute::{Cumsum, RecvCounts, cumulate};
use crate::plan::route::{self, Source};
use crate::plan::split::{self, DispatchShare};
use crate::protocol::a3::combine::sum::fill_output;
use crate::protocol::{Operands, Outcome, Types, given, internal};
use crate::shape::{K_MAX, Shape};
use crate::units::{ExpertId, Pair, RankId, Token, div_floor, div_rem};
use crate::vector::{Term, Vector};
use core::cell::Cell;

/// The A2 combine of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    exchange: Exchange,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Take the half and count the rows.
    Select,
    /// Write the next result of this core's share into the window to its owner.
    Reorder { row: u32, end: u32 },
    /// Write the last flags of the windows to the ranks of this core's share and have them sent.
    Send,
    /// Await the window of the next rank of this core's share.
    Rows { source: u32 },
    /// Await all cores: then the windows of all ranks have arrived.
    Barrier,
    /// Sum the rows of a token into `x_out`.
    Sum { token: Token },
    /// Await all cores: then all have summed.
    Summed,
    /// Clear the flags in the window of `source`, from a byte on.
    Clear { source: u32, from: u64 },
    /// The operator has ended.
    Done,
}

phase_names! { Phase: Select Reorder Send Rows Barrier Sum Summed Clear Done }

impl Combine {
    /// Creates a core's combine in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self { exchange: Exchange::new(), phase: Phase::Select }
    }

    /// Advances the operator by one step.
    pub(crate) fn advance(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        match self.phase {
            Phase::Select => self.select(cx),
            Phase::Reorder { row, end } => self.reorder(cx, row, end),
            Phase::Send => self.send(cx),
            Phase::Rows { source } => self.await_rows(cx, source),
            Phase::Barrier => self.cross(cx, Phase::Sum { token: Token(cx.env.work.tokens.start) }),
            Phase::Sum { token } => self.sum(cx, token),
            Phase::Summed => self.cross(cx, Phase::Clear { source: cx.env.work.ranks.start, from: 0 }),
            Phase::Clear { source, from } => self.clear(cx, source, from),
            Phase::Done => Ok(Progress::Done),
        }
    }

    fn cross(&mut self, cx: &mut Cx<'_, impl Types>, then: Phase) -> Outcome {
        match self.exchange.cross(cx.env, cx.fabric)? {
            Some(progress) => Ok(progress),
            None => self.go(then),
        }
    }

    fn select(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        let words = split_words(cx.env, cx.scratch.words)?;
        let rows = cx.operands.read_counts(cx.env.shape, words.sums)?;
        // Dispatch has already determined the slots.
        let none = DispatchShare { moe: 0..0, shared: 0..0 };
        route::walk(cx.env.shape, cx.env.rank, cx.inputs, &none, words.sent, &mut []);
        cumulate(words.sent);
        self.exchange = Exchange::begin(cx.env, cx.fabric)?;
        let share = split::rows(cx.env.shape, rows, cx.env.core);
        self.go(Phase::Reorder { row: share.start, end: share.end })
    }

    fn reorder(&mut self, cx: &mut Cx<'_, impl Types>, next: u32, end: u32) -> Outcome {
        if next >= end {
            return self.go(Phase::Send);
        }
        let words = split_words(cx.env, cx.scratch.words)?;
        let (owner, position) = RecvCounts { shape: cx.env.shape, sums: words.sums }.source_of(next);
        let len = cx.env.shape.row_bytes() as usize;
        let y = cx.operands.y.get(next as usize * len..).and_then(|rest| rest.get(..len));
        let y = y.ok_or(given("y is shorter than its rows"))?;
        self.exchange.write_out(cx.env, cx.fabric, owner, row(cx.env.shape, position), y)?;
        self.go(Phase::Reorder { row: next + 1, end })
    }

    fn send(&mut self, cx: &mut Cx<'_, impl Types>) -> Outcome {
        let words = split_words(cx.env, cx.scratch.words)?;
        let counts = RecvCounts { shape: cx.env.shape, sums: words.sums };
        match self.exchange.send(cx.env, cx.fabric, Operator::Combine, |to| counts.rows_from(to))? {
            Some(progress) => Ok(progress),
            None => self.go(Phase::Rows { source: cx.env.work.ranks.start }),
        }
    }

    fn await_rows(&mut self, cx: &mut Cx<'_, impl Types>, source: u32) -> Outcome {
        if source >= cx.env.work.ranks.end {
            return self.go(Phase::Barrier);
        }
        let words = split_words(cx.env, cx.scratch.words)?;
        let rows = Cumsum { shape: cx.env.shape, sums: words.sent }.rows_to(RankId(source));
        let at = tail_flag(cx.env.shape, Operator::Combine, rows);
        if !self.exchange.flag_is_in(cx.env, cx.fabric, RankId(source), at)? {
            return Ok(Progress::Pending(Wait::new(Flag::WindowRows, RankId(source), &[rows])));
        }
        self.go(Phase::Rows { source: source + 1 })
    }

    fn sum(&mut self, cx: &mut Cx<'_, impl Types>, token: Token) -> Outcome {
        if token.0 >= cx.env.work.tokens.end {
            return self.go(Phase::Summed);
        }
        let shape = cx.env.shape;
        let words = split_words(cx.env, cx.scratch.words)?;
        let sent = Cumsum { shape, sums: words.sent };
        let out = cx
            .scratch
            .row
            .get_mut(..shape.row_bytes() as usize)
            .ok_or(given("scratch is shorter than scratch_bytes"))?;
        fill_output(cx.fabric, outputs::x_out(shape, token), out, |fabric, out| {
            self.sum_rows(cx.env, fabric, cx.inputs, cx.operands, &sent, token, out)
        })?;
        self.go(Phase::Sum { token: Token(token.0 + 1) })
    }

    /// Computes the weighted sum of a token's rows, straight from the windows, into `out`.
    #[expect(clippy::too_many_arguments, reason = "everything is an argument of a step")]
    fn sum_rows<F: Fabric + ?Sized, V: Vector>(
        &self,
        env: Bound<'_, V>,
        fabric: &F,
        inputs: &Inputs<'_>,
        operands: &Operands<'_>,
        sent: &Cumsum<'_>,
        token: Token,
        out: &[Cell<u8>],
    ) -> Result<(), ProtocolError> {
        let shape = env.shape;
        let mut terms = heapless::Vec::<Term<'_>, K_MAX>::new();
        for (k, &weight) in (0..shape.k()).zip(inputs.weights(shape, token)) {
            let pair = Pair { token, k };
            let row = match route::source(shape, env.rank, inputs, pair) {
                Some(Source::Home(home)) => self.row_of(env, fabric, operands, sent, pair, home)?,
                Some(Source::Copy) => inputs.row(shape, token),
                // A2 has no const experts.
                Some(Source::Zero | Source::Const(_)) | None => continue,
            };
            terms.push(Term::row(weight, row)).map_err(|_| internal("more rows than K allows"))?;
        }
        env.vector.weighted_sum(shape.dtype(), &terms, prefetches(fabric), out);
        Ok(())
    }

    /// Returns the row that came back for a pair (seed 000 section 3.4.2: `TokenAddr`).
    fn row_of<'f, F: Fabric + ?Sized, V>(
        &self,
        env: Bound<'_, V>,
        fabric: &'f F,
        operands: &Operands<'_>,
        sent: &Cumsum<'_>,
        pair: Pair,
        home: Home,
    ) -> Result<&'f [u8], ProtocolError> {
        let shape = env.shape;
        let slots = sent.rows(ExpertId(home.rank.0 * shape.local_expert_num() + home.local_expert));
        let seen = operands.slot(shape, pair);
        let Some(slot) = u32::try_from(seen).ok().filter(|&slot| slot < slots) else {
            let (token, k) = (pair.token.0, pair.k);
            return Err(ProtocolError::ExpandIdx { token, k, seen: seen.into(), slots });
        };
        let at = window_in(shape, self.exchange.half, home.rank, row(shape, sent.position(home, slot)));
        Ok(fabric.bytes(at, shape.row_bytes())?)
    }

    fn clear(&mut self, cx: &mut Cx<'_, impl Types>, source: u32, from: u64) -> Outcome {
        let words = split_words(cx.env, cx.scratch.words)?;
        let sent = Cumsum { shape: cx.env.shape, sums: words.sent };
        let next = self.exchange.clear(
            cx.env,
            cx.fabric,
            Operator::Combine,
            |rank| sent.rows_to(rank),
            (source, from),
        )?;
        self.go(match next {
            Some((source, from)) => Phase::Clear { source, from },
            None => Phase::Done,
        })
    }
}

machine! { Combine(self): Phase::Send => self.exchange.phase() }

impl Operands<'_> {
    /// Reads `ep_recv_counts` into `sums` and checks every entry. Returns the number of rows.
    fn read_counts(&self, shape: &Shape, sums: &mut [u32]) -> Result<u32, ProtocolError> {
        let mut min = 0;
        for (slot, entry) in (0..).zip(sums.iter_mut()) {
            let seen = entry_of(self.ep_recv_counts, slot);
            let source = RankId(div_rem(slot, shape.ep_world_size()).1);
            let max = min + shape.bs(source);
            match u32::try_from(seen) {
                Ok(sum) if min <= sum && sum <= max => *entry = sum,
                _ => return Err(ProtocolError::RecvCount { slot, seen: seen.into(), min, max }),
            }
            min = *entry;
        }
        let counts = RecvCounts { shape, sums };
        for source in (0..shape.ep_world_size()).map(RankId) {
            let (seen, max) = (counts.rows_from(source).into(), shape.rows_to_peer_max(source).into());
            if seen > max {
                return Err(ProtocolError::Rows { seen, max });
            }
        }
        let max = div_floor(self.y.len() as u64, shape.row_bytes());
        if u64::from(min) > max {
            return Err(ProtocolError::RecvCounts { seen: min.into(), max });
        }
        Ok(min)
    }

    /// Returns the entry of `expand_idx` for a pair.
    fn slot(&self, shape: &Shape, Pair { token, k }: Pair) -> i32 {
        entry_of(self.expand_idx, token.0 * shape.k() + k)
    }
}

/// Returns entry `i` of little-endian i32; -1 after the last.
fn entry_of(bytes: &[u8], i: u32) -> i32 {
    let entry = bytes.get(i as usize * 4..).and_then(|rest| rest.first_chunk());
    entry.copied().map_or(-1, i32::from_le_bytes)
}
