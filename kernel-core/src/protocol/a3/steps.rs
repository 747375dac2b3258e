//! Single steps of dispatch that all layouts share, in no fixed order.

use super::part::Round;
use super::{Bound, Cx};
use crate::fabric::{Fabric, Flag, ProtocolError, Result, Wait};
use crate::inputs::Inputs;
use crate::layout::outputs;
use crate::layout::record::{Tail, Triple, scale_of, triple_of};
use crate::layout::state::{Operator, Partition, dispatch_slot, dispatch_status, selector, token_flag};
use crate::place::{Place, Tensor};
use crate::placement::Home;
use crate::plan::route::{self, Send};
use crate::plan::split::DispatchShare;
use crate::protocol::{SHORT_WORDS, Types, given, internal, room, take};
use crate::shape::{RowElement, Shape};
use crate::sync::{self, barrier, flag};
use crate::units::{RankId, Token};
use crate::vector::{self, Vector};
use core::ops::Range;

/// The maximum number of a table's entries in one write.
pub(crate) const CHUNK: u32 = 64;

/// Returns the entries of a share, from `first` on, that go into one write.
pub(crate) fn chunk_of(own: &Range<u32>, first: u32) -> Range<u32> {
    first..own.end.min(first + CHUNK)
}

/// Plans the sends, and begins a round with the partition and the last barrier. It has one store.
pub(crate) fn select(cx: &mut Cx<'_, impl Types>, round: &mut Round) -> Result<()> {
    let env = cx.env;
    let epoch = barrier::current_epoch(cx.fabric, env.core)?;
    let share = &env.work.sends;
    let (slots, mut table) = split_words(cx.scratch.words, share)?;
    let send_status = take(&mut table, route::destinations(env.shape) as usize)?;
    route::walk(env.shape, env.rank, cx.inputs, share, send_status, slots);
    *round = Round {
        partition: sync::selector::select(cx.fabric, selector(Operator::Dispatch, env.core))?,
        epoch,
        ..Round::new()
    };
    Ok(())
}

/// The two signals of the rows that a source sends to a local expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// The number of rows; with joint flags also that they have landed.
    Count,
    /// The rows have landed.
    TokenFlag,
}

impl Signal {
    /// Returns the place of the signal, in a status slot.
    const fn at(self, shape: &Shape, partition: Partition, local_expert: u32, source: RankId) -> Place {
        let slot = dispatch_slot(shape, local_expert, source);
        match self {
            Self::Count => dispatch_status(partition, slot),
            Self::TokenFlag => token_flag(partition, slot),
        }
    }

    /// Publishes `words` to the next destinations of this core's share, and returns the destination to continue with.
    #[inline]
    fn publish<F: Fabric + ?Sized, V>(
        self,
        env: Bound<'_, V>,
        fabric: &mut F,
        partition: Partition,
        first: u32,
        words: impl Iterator<Item = u64>,
    ) -> Result<u32> {
        let now = env.run_of(&env.work.destinations, first);
        for (destination, word) in now.clone().zip(words) {
            let home = route::destination_home(env.shape, destination);
            fabric.publish(home.rank, self.at(env.shape, partition, home.local_expert, env.rank), word)?;
        }
        Ok(now.end)
    }

    /// Awaits and clears the words of the first of `own` slots. `missing` gets the place of a word, slot, local expert and
    /// source, and returns the wait for it if it has not arrived. Returns the slot to continue with, or the first one's
    /// wait.
    #[inline]
    fn take<F: Fabric + ?Sized, V>(
        self,
        env: Bound<'_, V>,
        fabric: &mut F,
        partition: Partition,
        own: &Range<u32>,
        mut missing: impl FnMut(&F, Place, (u32, u32, RankId)) -> Result<Option<Wait>>,
    ) -> Result<Result<u32, Wait>> {
        let now = env.run_of(own, own.start);
        for (slot, local_expert, source) in sources_of(env.shape, now.clone()) {
            let at = self.at(env.shape, partition, local_expert, source);
            if let Some(wait) = missing(fabric, at, (slot, local_expert, source))? {
                return Ok(if slot == own.start { Err(wait) } else { Ok(slot) });
            }
            fabric.store(at, 0)?;
        }
        Ok(Ok(now.end))
    }
}

/// Publishes flag and count to the next destinations of this core's share, as [`select`] counted them for the whole rank.
/// Returns the destination to continue with.
pub(crate) fn publish_counts(cx: &mut Cx<'_, impl Types>, partition: Partition, first: u32) -> Result<u32> {
    let (_, send_status) = split_words(cx.scratch.words, &cx.env.work.sends)?;
    let left = first as usize..cx.env.work.destinations.end as usize;
    let counts = send_status.get(left).ok_or(internal("no such destination"))?;
    Signal::Count.publish(
        cx.env,
        cx.fabric,
        partition,
        first,
        counts.iter().map(|&count| flag::status(count)),
    )
}

/// Publishes `TokenFlag` to the next destinations of this core's share, and returns the destination to continue with.
pub(crate) fn publish_token_flags(
    cx: &mut Cx<'_, impl Types>,
    partition: Partition,
    first: u32,
) -> Result<u32> {
    Signal::TokenFlag.publish(cx.env, cx.fabric, partition, first, core::iter::repeat(flag::ARRIVED))
}

/// Returns the slots with their local experts and sources.
pub(crate) fn sources_of(shape: &Shape, slots: Range<u32>) -> impl Iterator<Item = (u32, u32, RankId)> {
    let (mut local_expert, mut source) = shape.by_ranks(slots.start);
    let ranks = shape.ep_world_size();
    slots.map(move |slot| {
        let now = (slot, local_expert, RankId(source));
        source += 1;
        if source == ranks {
            (local_expert, source) = (local_expert + 1, 0);
        }
        now
    })
}

/// Awaits and clears the counts of the first of `own` slots, and stores each in the count table. `note` gets them with their
/// slots. Returns the slot to continue with, or the wait if the first one's count is missing.
#[inline]
pub(crate) fn await_counts(
    cx: &mut Cx<'_, impl Types>,
    partition: Partition,
    own: &Range<u32>,
    mut note: impl FnMut(u32, u32),
) -> Result<Result<u32, Wait>> {
    let env = cx.env;
    let (_, counts) = split_words(cx.scratch.words, &env.work.sends)?;
    Signal::Count.take(env, cx.fabric, partition, own, |fabric, at, (slot, local_expert, source)| {
        let count = match flag::count(fabric, at, env.waits_for_count(source, local_expert))? {
            Ok(count) => count,
            Err(wait) => return Ok(Some(wait)),
        };
        let max = env.shape.rows_from(source, env.rank);
        if count > max {
            return Err(ProtocolError::Count { source, local_expert, seen: count, max });
        }
        *count_of(env, counts, slot)? = count;
        note(slot, count);
        Ok(None)
    })
}

/// Awaits and clears the `TokenFlag`s of the first of `own` slots, and returns like [`await_counts`].
pub(crate) fn await_token_flags(
    cx: &mut Cx<'_, impl Types>,
    partition: Partition,
    own: &Range<u32>,
) -> Result<Result<u32, Wait>> {
    Signal::TokenFlag.take(cx.env, cx.fabric, partition, own, |fabric, at, (_, local_expert, source)| {
        flag::missing(fabric, at, Wait::new(Flag::Token, source, &[local_expert]))
    })
}

/// Writes `expand_idx` from `pair` of the `own` pairs on, up to the limit of one write; `slots` are the slots of all own
/// pairs. Returns the next pair; `None` when all are written.
pub(crate) fn expand_idx<F: Fabric + ?Sized>(
    fabric: &mut F,
    own: &Range<u32>,
    slots: &[u32],
    pair: u32,
) -> Result<Option<u32>> {
    if pair >= own.end {
        return Ok(None);
    }
    let Range { end, .. } = chunk_of(own, pair);
    let now = (pair - own.start) as usize..(end - own.start) as usize;
    let slots = slots.get(now).ok_or(internal("own pair outside the share"))?;
    // NO_SLOT is the bit pattern of -1.
    write_words(fabric, outputs::element(Tensor::ExpandIdx, pair), slots.iter().copied())?;
    Ok(Some(end))
}

/// The converted row that is in the scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Staged {
    token: Token,
    /// The row of the smooth scales that it was multiplied by. Without smooth scales a token is the same for all experts.
    expert_row: Option<u32>,
    /// The bits of its scale.
    scale: u32,
}

/// Returns the row and the tail of a record.
// Inlined into the loop over the rows of a step: calls took twice the instructions.
#[inline(always)]
pub(crate) fn record<'r, V: Vector>(
    env: Bound<'_, V>,
    inputs: &'r Inputs<'_>,
    scratch: &'r mut [u8],
    staged: &mut Option<Staged>,
    send: Send,
) -> Result<(&'r [u8], Tail)> {
    let (row, scale) = payload(env.shape, env.vector, inputs, scratch, staged, send)?;
    Ok((row, Tail::new(env.shape, scale, triple(env, send))))
}

/// Returns the triple of a record.
pub(crate) fn triple<V>(env: Bound<'_, V>, Send { pair, .. }: Send) -> Triple {
    Triple { source: env.rank, token: pair.token, k: pair.k }
}

/// Returns the payload of a record and its scale: straight from `x`, or converted in the scratch.
#[inline(always)]
pub(crate) fn payload<'r, V: Vector>(
    shape: &Shape,
    vector: V,
    inputs: &'r Inputs<'_>,
    scratch: &'r mut [u8],
    staged: &mut Option<Staged>,
    Send { pair, home, .. }: Send,
) -> Result<(&'r [u8], f32)> {
    if let Some(x) = unconverted(shape, inputs, pair.token) {
        return Ok((x, 0.0));
    }
    let row = room(scratch, shape.payload_bytes())?;
    let scale = write_payload(shape, vector, inputs, row, staged, (pair.token, home))?;
    Ok((row, scale))
}

/// Returns the payload of a token that is sent as it is: the token itself.
#[inline(always)]
pub(crate) fn unconverted<'r>(shape: &Shape, inputs: &'r Inputs<'_>, token: Token) -> Option<&'r [u8]> {
    let x = inputs.row(shape, token);
    (shape.row_format().element == RowElement::Dtype && !x.is_empty()).then_some(x)
}

/// Writes the payload of a token for an expert into `row`, unless `row` holds it already. Returns its scale.
pub(crate) fn write_payload<V: Vector>(
    shape: &Shape,
    vector: V,
    inputs: &Inputs<'_>,
    row: &mut [u8],
    staged: &mut Option<Staged>,
    (token, home): (Token, Home),
) -> Result<f32> {
    let smooth = inputs.smooth(shape, shape.expert_row(home));
    let expert_row = smooth.map(|_| shape.expert_row(home));
    let scale = match *staged {
        Some(row) if row.token == token && row.expert_row == expert_row => f32::from_bits(row.scale),
        _ => {
            let x = inputs.row(shape, token);
            if x.is_empty() {
                return Err(given("x is shorter than its rows"));
            }
            vector::convert(vector, shape, x, smooth, row)
                .map_err(|_| ProtocolError::NotFinite { token: token.0 })?
        }
    };
    *staged = Some(Staged { token, expert_row, scale: scale.to_bits() });
    Ok(scale)
}

/// The maximum number of rows whose triples, scales or entries of the row table go into one write.
pub(crate) const ROWS: u32 = 16;

/// Consecutive received rows of one slot: the `index`-th of `source` for an expert, and those that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) home: Home,
    pub(crate) source: RankId,
    pub(crate) index: u32,
    pub(crate) len: u32,
    /// The number of rows of earlier stretches.
    pub(crate) before: u32,
}

/// Some consecutive rows of the outputs, at most [`ROWS`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    pub(crate) stretches: heapless::Vec<Stretch, { ROWS as usize }>,
    pub(crate) len: u32,
}

/// Returns the rows from the `index`-th of slot `own.start` on, at most `most`, of the `own` slots, whose counts are
/// `counts` from slot `first` on; and the slot and index to continue with.
pub(crate) fn rows<V>(
    env: Bound<'_, V>,
    (counts, first): (&[u32], u32),
    own: Range<u32>,
    index: u32,
    most: u32,
) -> Result<(Rows, (u32, u32))> {
    let mut rows = Rows::default();
    let mut index = index;
    let end_of_own = own.end;
    for slot in own {
        let count = counts.get((slot - first) as usize);
        let count = *count.ok_or(SHORT_WORDS)?;
        if index < count {
            let (local_expert, source) = env.shape.by_ranks(slot);
            let home = Home { rank: env.rank, local_expert };
            let (len, before) = ((count - index).min(most - rows.len), rows.len);
            // There is room: `most` is not above it, and no stretch is empty.
            _ = rows.stretches.push(Stretch { home, source: RankId(source), index, len, before });
            rows.len += len;
            if rows.len == most {
                let behind = index + len;
                return Ok((rows, if behind == count { (slot + 1, 0) } else { (slot, behind) }));
            }
        }
        index = 0;
    }
    Ok((rows, (end_of_own, 0)))
}

/// Writes the triple at `at` to `row` of the outputs, if it is valid: from `source`, for this rank, and, since tokens rise
/// within a slot, not before token `first`. Returns the least token that may follow.
pub(crate) fn copy_triple<F: Fabric + ?Sized, V>(
    env: Bound<'_, V>,
    fabric: &mut F,
    at: Place,
    source: RankId,
    (row, first): (u32, u32),
) -> Result<u32> {
    let bytes = copy_of(fabric, at)?;
    let triple = Expected::of(env, source).check(&bytes, (row, first))?;
    fabric.write(outputs::element(Tensor::AssistInfo, row), &bytes)?;
    Ok(triple.token.0 + 1)
}

/// Writes the triples of some rows like [`copy_triple`], by one write. A stretch's triples begin at `at` and are `pitch`
/// bytes apart.
pub(crate) fn copy_triples(
    cx: &mut Cx<'_, impl Types>,
    rows: &Rows,
    (at, pitch): (impl Fn(&Stretch) -> Place, u64),
    (mut row, mut first): (u32, u32),
) -> Result<u32> {
    let fabric = &mut *cx.fabric;
    let mut seen: [&[u8]; ROWS as usize] = [&[]; ROWS as usize];
    let mut left = seen.iter_mut();
    for stretch in &rows.stretches {
        let mut at = at(stretch);
        for bytes in left.by_ref().take(stretch.len as usize) {
            *bytes = fabric.bytes(at, Triple::BYTES)?;
            // Another processor has written it, so each read waits for a cache line: all are requested at once.
            fabric.prefetch(bytes);
            at.offset += pitch;
        }
    }
    let all = outputs::element(Tensor::AssistInfo, row);
    let mut triples = [[0; Triple::BYTES as usize]; ROWS as usize];
    let mut left = triples.iter_mut().zip(&seen);
    for stretch in &rows.stretches {
        let expected = Expected::of(cx.env, stretch.source);
        if stretch.index == 0 {
            first = 0;
        }
        for (bytes, seen) in left.by_ref().take(stretch.len as usize) {
            *bytes = array_of(seen)?;
            first = expected.check(bytes, (row, first))?.token.0 + 1;
            row += 1;
        }
    }
    write_first(fabric, all, &triples, rows.len)?;
    Ok(first)
}

/// The valid triples of a slot.
struct Expected {
    source: RankId,
    tokens: u32,
    columns: Range<u32>,
}

impl Expected {
    /// Creates the check of rows from `source`.
    #[inline]
    fn of<V>(env: Bound<'_, V>, source: RankId) -> Self {
        let columns = Triple::columns_on(env.shape, env.rank, source);
        Self { source, tokens: env.shape.bs(source), columns }
    }

    /// Returns the triple of `row`, if it is valid and, since tokens rise within a slot, not before token `first`.
    #[inline(always)]
    fn check(&self, bytes: &[u8; Triple::BYTES as usize], (row, first): (u32, u32)) -> Result<Triple> {
        let triple = Triple::from_any(bytes);
        let is_one = triple.source == self.source
            && (first..self.tokens).contains(&triple.token.0)
            && self.columns.contains(&triple.k);
        if is_one { Ok(triple) } else { Err(ProtocolError::Triple { row, seen: triple.words() }) }
    }
}

/// Writes the scale at `at` to `row` of the outputs.
pub(crate) fn copy_scale<F: Fabric + ?Sized>(fabric: &mut F, at: Place, row: u32) -> Result<()> {
    let bytes = copy_of::<4, F>(fabric, at)?;
    fabric.write(outputs::element(Tensor::DynamicScales, row), &bytes)?;
    Ok(())
}

/// Writes the scales of some rows, by one write; they lie as in [`copy_triples`].
pub(crate) fn copy_scales<F: Fabric + ?Sized>(
    fabric: &mut F,
    rows: &Rows,
    (at, pitch): (impl Fn(&Stretch) -> Place, u64),
    row: u32,
) -> Result<()> {
    let mut scales = [[0; 4]; ROWS as usize];
    let mut left = scales.iter_mut();
    for stretch in &rows.stretches {
        let mut at = at(stretch);
        for bytes in left.by_ref().take(stretch.len as usize) {
            *bytes = copy_of(fabric, at)?;
            at.offset += pitch;
        }
    }
    write_first(fabric, outputs::element(Tensor::DynamicScales, row), &scales, rows.len)
}

/// Writes the first `count` entries into an output.
pub(crate) fn write_first<const N: usize, F: Fabric + ?Sized>(
    fabric: &mut F,
    at: Place,
    entries: &[[u8; N]; ROWS as usize],
    count: u32,
) -> Result<()> {
    let entries = entries.get(..count as usize).ok_or(internal("more rows than a write carries"))?;
    fabric.write(at, entries.as_flattened())?;
    Ok(())
}

/// Returns the tail of a record, read back. Its triple is checked again, since other ranks can still write there.
pub(crate) fn tail_of(cx: &Cx<'_, impl Types>, at: Place, source: RankId, rows: (u32, u32)) -> Result<Tail> {
    let (shape, fabric) = (cx.env.shape, &*cx.fabric);
    let bytes = copy_of(fabric, triple_of(shape, at))?;
    let triple = Expected::of(cx.env, source).check(&bytes, rows)?;
    let scale = f32::from_le_bytes(copy_of(fabric, scale_of(shape, at))?);
    Ok(Tail::new(shape, scale, triple))
}

/// Splits the scratch words into the slots of the share and the table of counts.
#[inline(always)]
pub(crate) fn split_words<'u>(
    mut words: &'u mut [u32],
    share: &DispatchShare,
) -> Result<(&'u mut [u32], &'u mut [u32])> {
    Ok((take(&mut words, route::share_len(share) as usize)?, words))
}

/// Returns the entry of the count table for a slot of the own share.
pub(crate) fn count_of<'u, V>(env: Bound<'_, V>, counts: &'u mut [u32], slot: u32) -> Result<&'u mut u32> {
    counts.get_mut((slot - env.work.slots.start) as usize).ok_or(SHORT_WORDS)
}

/// Writes the running sums of the counts of some slots, at most [`CHUNK`], starting from `rows`: entries of
/// `ep_recv_counts`. Returns the last sum.
pub(crate) fn write_sums(
    cx: &mut Cx<'_, impl Types>,
    slots: Range<u32>,
    at: Place,
    mut rows: u32,
) -> Result<u32> {
    let (_, counts) = split_words(cx.scratch.words, &cx.env.work.sends)?;
    let len = slots.len();
    let mut sums = [0; CHUNK as usize];
    for (sum, slot) in sums.iter_mut().zip(slots) {
        // This cannot overflow: the sums of all cores are within the capacity.
        rows = rows.saturating_add(*count_of(cx.env, counts, slot)?);
        *sum = rows;
    }
    write_words(cx.fabric, at, sums.iter().copied().take(len))?;
    Ok(rows)
}

/// Writes words, at most [`CHUNK`], into an output.
pub(crate) fn write_words<F: Fabric + ?Sized>(
    fabric: &mut F,
    at: Place,
    words: impl Iterator<Item = u32>,
) -> Result<()> {
    let (bytes, len) = bytes_of(words);
    fabric.write(at, bytes.get(..len).unwrap_or(&[]))?;
    Ok(())
}

/// Returns the bytes of some words, at most [`CHUNK`], and their number.
pub(crate) fn bytes_of(words: impl Iterator<Item = u32>) -> ([u8; CHUNK as usize * 4], usize) {
    let mut bytes = [0; CHUNK as usize * 4];
    let mut len = 0;
    for (out, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *out = word.to_le_bytes();
        len += 4;
    }
    (bytes, len)
}

/// Returns a copy of `N` bytes of the window, so that the checked bytes are the written ones.
pub(crate) fn copy_of<const N: usize, F: Fabric + ?Sized>(fabric: &F, at: Place) -> Result<[u8; N]> {
    array_of(fabric.bytes(at, N as u64)?)
}

/// Converts what a fabric returned for `N` bytes.
fn array_of<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| given("the fabric returned bytes of another length"))
}
