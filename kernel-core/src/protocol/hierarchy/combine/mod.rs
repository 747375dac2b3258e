//! Combine of one core: return rows to relays, sum for other servers, sum own tokens.
//!
//! ```text
//! Select -> Enter* -> alternately { return: Entered -> (Put -> Flag)* -> Quiet -> RowsDone* -> Hear*
//!                              { relay:  (Send)* -> End, stream by stream -> Ring?
//!                              { sum:    (Follow | Sum)*                                         -> Done
//! ```
//!
//! A core ends when it has heard from all near ranks, even those that bring no rows (`docs/spec/hierarchy.md`). Its own server's
//! partial sum does not travel: the core that sums a token computes it from the near area.

mod relays;
mod returns;
mod tokens;

use super::Now;
use super::course::Course;
use super::issue::Issued;
use crate::fabric::{Fabric, ProtocolError, Result};
use crate::layout::record::Triple;
use crate::layout::relay::{self, Part};
use crate::layout::state::Operator;
use crate::protocol::CombineInputs;
use crate::protocol::kit::{Context, Core, Outcome, SHORT_WORDS, given, take};
use crate::shape::Shape;
use crate::units::{RankId, Token, div_ceil, div_floor, nth_piece};

/// The words of an issued stream before its bitmap: the number of sent records, and the token that is looked at first.
pub(super) const HEAD: usize = 2;
/// Replaces the number of a stream's sent or followed records once the stream has ended.
const ENDED: u32 = u32::MAX;

/// Returns the number of words of a bitmap of the tokens of any rank.
pub(super) const fn bitmap_words(shape: &Shape) -> usize {
    div_ceil(shape.bs_max() as u64, 32) as usize
}

/// The combine of one core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    course: Course,
    returns: returns::Returns,
    relays: relays::Relays,
    tokens: tokens::Tokens,
}

/// The context of a role of combine.
type Turn<'s, F> = super::Turn<'s, F, Words<'s>>;

/// A core's scratch words.
struct Words<'u> {
    /// By server: the number of followed records, then by own token the number of its record plus 1.
    followed: &'u mut [u32],
    /// By stream that this core issues: its head, then a bit for each sent token.
    streams: &'u mut [u32],
}

impl Words<'_> {
    fn followed(&mut self, core: Now<'_>, server: u32) -> Result<(&mut u32, &mut [u32])> {
        let len = 1 + (core.work.tokens.end - core.work.tokens.start) as usize;
        let stream = self.followed.get_mut(server as usize * len..).and_then(|rest| rest.get_mut(..len));
        stream.and_then(<[u32]>::split_first_mut).ok_or(SHORT_WORDS)
    }

    fn stream(&mut self, core: Now<'_>, server: u32) -> Result<(&mut [u32; HEAD], &mut [u32])> {
        let len = HEAD + bitmap_words(core.shape);
        let start = (server - core.work.streams.start) as usize * len;
        let stream = self.streams.get_mut(start..).and_then(|rest| rest.get_mut(..len));
        stream.and_then(<[u32]>::split_first_chunk_mut).ok_or(SHORT_WORDS)
    }
}

// Inlined for the same reason as `split_bytes`.
#[inline(always)]
fn split_words<'u>(core: Core<'_>, mut words: &'u mut [u32]) -> Result<Words<'u>> {
    let tokens = (core.work.tokens.end - core.work.tokens.start) as usize;
    let followed = take(&mut words, core.shape.servers() as usize * (1 + tokens))?;
    Ok(Words { followed, streams: words })
}

impl Combine {
    /// Creates a core's combine in its first phase.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            course: Course::new(Operator::Combine),
            returns: returns::Returns::new(),
            relays: relays::Relays::new(),
            tokens: tokens::Tokens::new(),
        }
    }

    /// Returns whether the operator has ended.
    pub(crate) const fn has_ended(&self) -> bool {
        self.course.has_ended()
    }

    /// Returns the name of the machine's phase, for reports. A part's phase follows the name of the part.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        self.course.phase([self.returns.phase(), "Relay", "Sum"])
    }

    /// Advances the operator by one step.
    pub(crate) fn advance<F: Fabric + ?Sized>(&mut self, cx: &mut Context<'_, F>) -> Outcome {
        let Self { course, returns, relays, tokens } = self;
        if course.begins() {
            let core = cx.core;
            returns.begin(core, cx.combine_inputs.relayed_rows(core.shape, core.rank)?);
            let words = split_words(core, cx.scratch.words)?;
            words.followed.fill(0);
            words.streams.fill(0);
            tokens.token = core.work.tokens.start;
            relays.issued = Issued::begin(core, cx.fabric)?;
        }
        course.advance(cx, split_words, |role, cx| match role {
            0 => returns.step(cx),
            1 => relays.step(cx, returns.missing(cx.core)),
            _ => tokens.step(cx),
        })
    }
}

machine! { Combine of Hierarchy }

/// A row to return.
struct Row<'a> {
    y: &'a [u8],
    /// The row's source, token and part.
    triple: (RankId, Token, Part),
    weight: [u8; 4],
}

impl<'a> CombineInputs<'a> {
    /// Returns the number of rows to return: the last entry of `ep_recv_counts`.
    fn relayed_rows(&self, shape: &Shape, rank: RankId) -> Result<u32> {
        let room = |tensor: &[u8], row: u64| div_floor(tensor.len() as u64, row);
        let held = room(self.y, shape.row_bytes())
            .min(room(self.assist_info, Triple::BYTES))
            .min(room(self.expand_scales, 4));
        self.total(shape, rank, 1, held)
    }

    fn relayed_row(&self, shape: &Shape, row: u32) -> Result<Row<'a>> {
        let (Some(y), Some(info), Some(weight)) = (
            nth_piece(self.y, row as usize, shape.row_bytes() as usize),
            nth_piece(self.assist_info, row as usize, Triple::BYTES as usize),
            nth_piece(self.expand_scales, row as usize, 4),
        ) else {
            return Err(given("a returned tensor is shorter than its rows"));
        };
        let triple = relay::read_triple(shape, info).map_err(|seen| ProtocolError::Triple { row, seen })?;
        Ok(Row { y, triple, weight: weight.first_chunk().copied().unwrap_or_default() })
    }
}
