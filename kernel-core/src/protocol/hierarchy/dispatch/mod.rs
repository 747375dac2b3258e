//! Dispatch of one core: send own tokens, forward the tokens of its namesakes, copy out the received rows.
//!
//! ```text
//! Select -> Enter* -> by turns { send:    (Record)* -> End* -> Ring? -> ExpandIdx*
//!                              { forward: Entered -> (Record -> Row*)* -> Count*, stream by stream, for its experts
//!                              { receive: (Count -> Entry -> Nums? -> (X -> Scale? -> Info -> Weight)*)*   -> Done
//! ```
//!
//! The stream of the own server needs no message: its relay forwards the own tokens at once.

mod forward;
mod receive;
mod send;

use super::{Bound, Cx, Env, Epoch, Now, by_turns, split_bytes};
use crate::fabric::{Progress, ProtocolError};
use crate::layout::state::Operator;
use crate::plan::route;
use crate::protocol::{Outcome, Types, given};

/// Replaces the number of forwarded records or tokens of a stream once the stream has ended.
const ENDED: u32 = u32::MAX;

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    epoch: Epoch,
    phase: Phase,
    turn: u8,
    send: send::Send,
    forward: forward::Forwards,
    receive: receive::Receive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Count the own rows and take the epoch.
    Select,
    /// Announce this operator to near ranks (core 0 only).
    Enter { near: u32 },
    /// Send, forward, receive.
    Work,
    /// The operator has ended.
    Done,
}

phase_names! { Phase: Select Enter Work Done }

/// The context of a role of dispatch.
type Turn<'s, T> = super::Turn<'s, T, Words<'s>>;

/// A core's scratch words.
struct Words<'u> {
    /// The slot of each pair of the core's own tokens.
    slots: &'u mut [u32],
    /// Scratch of the walk.
    sent: &'u mut [u32],
    /// The number of sent records, by server.
    records: &'u mut [u32],
    /// The number of processed records of a server's stream, or of own tokens, by server.
    taken: &'u mut [u32],
    /// The number of rows, by forwarded (server, expert).
    rows: &'u mut [u32],
}

/// Returns the word with that number, or an error if the scratch is too short.
fn word(words: &mut [u32], number: u32) -> Result<&mut u32, ProtocolError> {
    words.get_mut(number as usize).ok_or(given("scratch is shorter than scratch_words"))
}

fn split_words<'u, V>(env: Bound<'_, V>, words: &'u mut [u32]) -> Result<Words<'u>, ProtocolError> {
    let short = given("scratch is shorter than scratch_words");
    let pairs = route::share_len(&env.work.pairs) as usize;
    let (slots, rest) = words.split_at_mut_checked(pairs).ok_or(short)?;
    let (sent, rest) = rest.split_at_mut_checked(route::destinations(env.shape) as usize).ok_or(short)?;
    let (records, rest) = rest.split_at_mut_checked(env.shape.servers() as usize).ok_or(short)?;
    let (taken, rows) = rest.split_at_mut_checked(env.shape.servers() as usize).ok_or(short)?;
    Ok(Words { slots, sent, records, taken, rows })
}

impl Dispatch {
    /// Creates a core's dispatch in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            epoch: Epoch::none(Operator::Dispatch),
            phase: Phase::Select,
            turn: 0,
            send: send::Send::new(),
            forward: forward::Forwards::new(),
            receive: receive::Receive::new(),
        }
    }

    /// Returns the name of the machine's phase, for reports. A part's phase follows the name of the part.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        match &self.phase {
            Phase::Work => match self.turn {
                0 => self.send.phase(),
                1 => self.forward.phase(),
                _ => self.receive.phase(),
            },
            phase => phase.name(),
        }
    }

    /// Advances the operator by one step.
    pub(crate) fn advance<T: Types>(&mut self, cx: &mut Cx<'_, T>) -> Outcome {
        let Cx { env, fabric, inputs, operands, scratch } = cx;
        let (env, fabric) = (*env, &mut **fabric);
        match self.phase {
            Phase::Select => {
                let words = split_words(env, scratch.words)?;
                route::walk(env.shape, env.rank, inputs, &env.work.pairs, words.sent, words.slots);
                words.records.fill(0);
                words.taken.fill(0);
                words.rows.fill(0);
                self.send.begin(env, fabric)?;
                self.epoch = Epoch::begin(Operator::Dispatch, fabric, env.core)?;
                self.phase = if env.core.0 == 0 { Phase::Enter { near: 0 } } else { Phase::Work };
            }
            Phase::Enter { near } if near < env.shape.server_ranks() => {
                Now { bound: env, epoch: self.epoch }.enter(fabric, near)?;
                self.phase = Phase::Enter { near: near + 1 };
            }
            Phase::Enter { .. } => self.phase = Phase::Work,
            Phase::Work => {
                let Self { epoch, turn, send, forward, receive, .. } = self;
                let (words, buffers) =
                    (split_words(env, scratch.words)?, split_bytes(env.shape, scratch.row)?);
                let env = Now { bound: env, epoch: *epoch };
                let cx = &mut Turn::<T> { env, fabric, inputs, operands, words, buffers };
                let progress = by_turns::<3>(env.rank, turn, |role| match role {
                    0 => send.step(cx),
                    1 => forward.step(cx),
                    _ => receive.step(cx),
                })?;
                if progress != Progress::Done {
                    return Ok(progress);
                }
                self.phase = Phase::Done;
            }
            Phase::Done => return Ok(Progress::Done),
        }
        Ok(Progress::Stepped)
    }
}

machine! { Dispatch }
