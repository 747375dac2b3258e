//! A3 combine of one core: put and publish each received row; for each own token await, clear and sum, and for AddRmsNorm
//! add the residual and normalise.
//!
//! ```text
//! Select -> Lend? -> (Put -> Publish)* -> (Await -> Clear* -> Sum -> (Add -> Rstd -> Norm)?)* -> Done
//! ```
//!
//! The core that puts a row publishes its flag, so no quiet is needed in between.

mod receive;
mod send;

use super::tp::{Add, built};
use crate::fabric::{Fabric, Progress};
use crate::layout::data::combine_row;
use crate::layout::record::Triple;
use crate::layout::state::Partition;
use crate::plan::order::Path;
use crate::protocol::kit::sum::{self, Output};
use crate::protocol::kit::{Context, Outcome};
use crate::sync::selector::Turn;
use crate::units::Token;
use core::ops::Range;

/// The combine of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    turn: Turn,
    /// The rows that this core returns.
    share: Range<u32>,
    /// The order in which it returns them.
    path: Path,
    /// The partition that holds the TP peer's results for them, if there is a peer.
    lent: Option<Partition>,
    phase: Phase,
}

phases! {
    enum Phase {
        /// Take the partition and count the rows.
        Select => Lend | Put,
        /// TP = 2: exchange results with the peer, which has `others` rows; this rank returns `rows`.
        Lend { add: Add, rows: u32, others: u32 } => Put,
        /// Put the `item`-th row of this core's share at its owner.
        Put { item: u32 } => Put | Publish | Await,
        /// Publish the flag of that row, whose source is `triple`.
        Publish { item: u32, triple: Triple } => Put | Publish | Await,
        /// Await the flags of a token, from column `k` on.
        Await { token: Token, k: u32 } => Await | Clear | Done,
        /// Clear them, from column `k` on.
        Clear { token: Token, k: u32 } => Clear | Write,
        /// Write the outputs of the token, its sum first.
        Write { token: Token, output: Output } => Await | Write,
        /// The operator has ended.
        Done =>,
    }
}

impl Combine {
    /// Creates a core's combine in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self { turn: Turn::NONE, share: 0..0, path: Path::EMPTY, lent: None, phase: Phase::Select }
    }

    /// Returns whether the core has returned all its rows.
    pub(crate) const fn has_sent(&self) -> bool {
        matches!(self.phase, Phase::Await { .. } | Phase::Clear { .. } | Phase::Write { .. } | Phase::Done)
    }

    /// Advances the operator by one step.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Fabric + ?Sized>) -> Outcome {
        match self.phase {
            Phase::Select => self.select(cx),
            Phase::Lend { ref mut add, rows, others } => {
                built()?;
                let progress = add.step(cx, rows, others)?;
                self.lent = Some(add.partition());
                progress.then(|| self.go(Phase::Put { item: 0 }))
            }
            Phase::Put { item } => self.send(cx, item, None),
            Phase::Publish { item, triple } => self.send(cx, item, Some(triple)),
            Phase::Await { token, k } => self.await_token(cx, token, k),
            Phase::Clear { token, k } => self.clear(cx, token, k),
            Phase::Write { token, output } => {
                let (shape, partition) = (cx.core.shape, self.turn.partition);
                let next = sum::write(cx, token, output, |fabric, pair, _| {
                    let at = combine_row(shape, partition, pair.token, pair.k);
                    Ok(sum::as_travelled(shape, fabric.bytes(at, shape.result_bytes())?))
                })?;
                self.go(match next {
                    Some(output) => Phase::Write { token, output },
                    None => Phase::Await { token: Token(token.0 + 1), k: 0 },
                })
            }
            Phase::Done => Ok(Progress::Done),
        }
    }
}

machine! { Combine of A3, #[cfg(feature = "a3-v2")] V2 (self):
    Phase::Lend { add, .. } => add.phase(),
    Phase::Write { output, .. } => output.name()
}
