//! The kit of all families: steps and parts that more than one family takes, each file one idea. A family's own module has
//! the order of its steps, and the ideas that it alone has.
//!
//! | file | has |
//! |---|---|
//! | `core.rs`, `context.rs`, `scratch.rs` | a core, its constants and its work; everything that a step is given |
//! | `part.rs`, `exchange.rs`, `doorbell.rs` | parts with phases of their own: of dispatch, its exchange of counts, and before an agent sends |
//! | `counts.rs`, `await_run.rs`, `pairs.rs` | words that announce rows; awaiting several of them in one step |
//! | `effects.rs` | several effects in one step, of which the fabric may have room for some |
//! | `record.rs` | records to send |
//! | `rows.rs`, `copy.rs` | received rows in batches; copying their fields, checked |
//! | `sum.rs` | the outputs of a token once its rows have arrived |
//! | `tables.rs` | entries of output tables, written in pieces |

/// Lets a machine, or a part of one, step to another phase.
///
/// A phase carries where its step begins, and what only the phases after it need; the rest is beside it. A part with
/// phases of its own is in the phase of the machine, and its `step` returns [`Done`](crate::fabric::Progress::Done) in
/// the step in which it ends.
macro_rules! go {
    ($of:ident) => {
        impl $of {
            #[inline(always)]
            fn go(&mut self, phase: Phase) -> $crate::protocol::Outcome {
                #[cfg(test)]
                self.phase.follow(&phase);
                self.phase = phase;
                Ok($crate::fabric::Progress::Stepped)
            }
        }
    };
}

/// Implements the interface of a single machine of these families. Phases that are parts are given with the names of their
/// phases.
macro_rules! machine {
    ($machine:ident of $($(#[$built:meta])? $family:ident),+ ($this:ident): $($part:pat => $name:expr),*) => {
        impl $machine {
            /// Returns the name of the machine's phase, for reports. A part's phase follows the name of the part.
            #[must_use]
            pub const fn phase(&$this) -> &'static str {
                match &$this.phase {
                    $($part => $name,)*
                    phase => phase.name(),
                }
            }
        }

        go! { $machine }
        machine! { $machine of $($(#[$built])? $family),+ }
    };
    ($machine:ident of $($(#[$built:meta])? $family:ident),+) => {
        impl $machine {
            /// Advances the operator by one step, which has at most one effect that others can see, or with A3 several of
            /// one kind.
            ///
            /// # Errors
            /// A value read from the fabric or from the inputs contradicts the shape, the fabric refuses, a token cannot be
            /// quantised, or the core runs the machines of another protocol.
            #[inline(always)]
            pub fn step<F: $crate::fabric::Fabric + ?Sized>(
                &mut self,
                cx: &mut $crate::protocol::Context<'_, F>,
            ) -> Result<$crate::fabric::Progress, $crate::fabric::ProtocolError> {
                match cx.core.family {
                    $($(#[$built])? $crate::protocol::kit::Family::$family => $crate::protocol::run::pending_if_busy(self.advance(cx)),)+
                    #[allow(unreachable_patterns, reason = "a build may have one family")]
                    _ => Err($crate::fabric::ProtocolError::OtherMachine),
                }
            }
        }

        impl Default for $machine {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

mod await_run;
mod context;
mod copy;
mod core;
mod counts;
#[cfg(feature = "a2")]
mod doorbell;
mod effects;
mod exchange;
mod pairs;
mod part;
mod record;
mod rows;
mod scratch;
pub(crate) mod sum;
mod tables;

pub use self::core::Core;
pub(crate) use self::core::{Constants, Family, check};
pub(crate) use await_run::{Reached, await_run};
pub use context::Context;
pub(crate) use context::Outcome;
pub(crate) use copy::{
    Column, copy_data, copy_of, copy_scale, copy_scales, copy_triple, copy_triples, tail_of,
};
pub(crate) use counts::{
    await_counts, await_token_flags, begin, count_of, publish_counts, publish_token_flags, slots_of,
    split_words, write_sums,
};
#[cfg(feature = "a2")]
pub(crate) use doorbell::DoorbellSequence;
pub(crate) use effects::was_taken;
pub(crate) use exchange::Exchange;
pub(crate) use pairs::{await_pairs, next_pair};
pub(crate) use part::{Part, Round};
pub(crate) use record::{Staged, payload, record, triple, unconverted, write_payload};
pub(crate) use rows::{Batch, Cursor, Due, ROWS, Slots, Stretch};
pub use scratch::Scratch;
pub(crate) use scratch::{SHORT_BYTES, SHORT_WORDS, room, take};
pub(crate) use tables::{CHUNK, bytes_of, chunk_of, expand_idx, write_first, write_words};

use crate::fabric::{ProtocolError, Result};

/// Creates the error for an argument of the caller that does not fit the shape.
pub(crate) const fn given(what: &'static str) -> ProtocolError {
    ProtocolError::Given(what)
}

pub(crate) const fn internal(what: &'static str) -> ProtocolError {
    ProtocolError::Internal(what)
}

/// Checks that the number of rows announced to a rank, `seen`, is at most `max`.
pub(crate) fn rows_within(seen: u64, max: u64) -> Result<()> {
    if seen > max { Err(ProtocolError::Rows { seen, max }) } else { Ok(()) }
}

/// Returns an entry of a tensor of i32; -1 after the last.
pub(crate) fn entry(tensor: &[u8], number: usize) -> i32 {
    tensor.as_chunks().0.get(number).map_or(-1, |&entry| i32::from_le_bytes(entry))
}
