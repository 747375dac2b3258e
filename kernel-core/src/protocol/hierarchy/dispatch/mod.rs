//! Dispatch of one core: send own tokens, forward the tokens of its namesakes, copy out the received rows.
//!
//! ```text
//! Select -> Enter* -> alternately { send:    (Record)* -> End* -> Ring? -> ExpandIdx*
//!                              { forward: Entered -> (Record -> Row*)* -> Count*, stream by stream, for its experts
//!                              { receive: (Count -> Entry -> Nums? -> (X -> Scale? -> Info -> Weight)*)*   -> Done
//! ```
//!
//! The stream of its own server needs no message: its relay forwards its own tokens at once.

mod forward;
mod receive;
mod send;

use super::course::Course;
use super::issue::Issued;

use crate::fabric::{Fabric, Result};
use crate::layout::state::Operator;
use crate::plan::route;
use crate::protocol::kit::{Context, Core, Outcome, SHORT_WORDS, take};

/// Replaces the number of forwarded records or tokens of a stream once the stream has ended.
const ENDED: u32 = u32::MAX;

/// The dispatch of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    course: Course,
    send: send::Send,
    forward: forward::Forwards,
    receive: receive::Receive,
}

/// The context of a role of dispatch.
type Turn<'s, F> = super::Turn<'s, F, Words<'s>>;

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
fn word(words: &mut [u32], number: u32) -> Result<&mut u32> {
    words.get_mut(number as usize).ok_or(SHORT_WORDS)
}

// Inlined for the same reason as `split_bytes`.
#[inline(always)]
fn split_words<'u>(core: Core<'_>, mut words: &'u mut [u32]) -> Result<Words<'u>> {
    let servers = core.shape.servers() as usize;
    let slots = take(&mut words, route::share_len(&core.work.sends) as usize)?;
    let sent = take(&mut words, route::destinations(core.shape) as usize)?;
    let records = take(&mut words, servers)?;
    Ok(Words { slots, sent, records, taken: take(&mut words, servers)?, rows: words })
}

impl Dispatch {
    /// Creates a core's dispatch in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            course: Course::new(Operator::Dispatch),
            send: send::Send::new(),
            forward: forward::Forwards::new(),
            receive: receive::Receive::new(),
        }
    }

    /// Returns whether the core has sent its own tokens, and forwarded those of its namesakes.
    pub(crate) const fn has_sent(&self) -> bool {
        self.send.has_sent() && self.forward.has_ended()
    }

    /// Returns the name of the machine's phase, for reports. A part's phase follows the name of the part.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        self.course.phase([self.send.phase(), self.forward.phase(), self.receive.phase()])
    }

    /// Advances the operator by one step.
    #[inline(always)]
    pub(crate) fn advance<F: Fabric + ?Sized>(&mut self, cx: &mut Context<'_, F>) -> Outcome {
        let Self { course, send, forward, receive } = self;
        if course.begins() {
            let core = cx.core;
            let words = split_words(core, cx.scratch.words)?;
            route::walk(core.shape, core.rank, cx.inputs, &core.work.sends, words.sent, words.slots);
            words.records.fill(0);
            words.taken.fill(0);
            words.rows.fill(0);
            send.issued = Issued::begin(core, cx.fabric)?;
        }
        course.advance(cx, split_words, |role, cx| match role {
            0 => send.step(cx),
            1 => forward.step(cx),
            _ => receive.step(cx),
        })
    }
}

machine! { Dispatch of Hierarchy }
