//! The role of a relay: it forwards every record to the near ranks that need it, then the counts of its source.
//!
//! Cores split this work by experts. Each reads all records of a stream, since rows are numbered in the order of records,
//! and forwards the rows for its experts.

use super::super::stream::{self, Next};
use super::super::{Now, row_of};
use super::send::{write_lists, write_record};
use super::{ENDED, Turn, word};
use crate::fabric::{Fabric, Progress, Result, Wait, prefetch, prefetches};
use crate::layout::relay::{self, Part, ROW, Tail, behind};
use crate::plan::relay as plan;
use crate::protocol::kit::{self, Core, Outcome, SHORT_BYTES};
use crate::shape::K_MAX;
use crate::units::Token;
use core::ops::Range;

/// The role of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Forwards {
    phase: Phase,
}

phases! {
    enum Phase of "Forward." in Forwards {
        /// Await the near ranks that still read their near areas.
        Entered => Find,
        /// Find a complete record, first in the stream from `server`.
        Find { server: u32 } => Find | Row | Count | Ended,
        /// Forward the row at that position of the record that is held.
        Row { server: u32, token: Token, position: u32 } => Find | Row,
        /// Publish the number of rows for that expert of its own server.
        Count { server: u32, near_expert: u32 } => Find | Count,
        /// The role has ended.
        Ended =>,
    }
}

go! { Forwards }

impl Forwards {
    pub(super) const fn new() -> Self {
        Self { phase: Phase::Entered }
    }

    /// Returns whether the role has ended.
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Fabric + ?Sized>) -> Outcome {
        let core = cx.core;
        let next = match self.phase {
            Phase::Entered => match core.outside(cx.fabric)? {
                Some(wait) => return Ok(Progress::Pending(wait)),
                None => Phase::Find { server: 0 },
            },
            Phase::Find { server } => match find(cx, server)? {
                Ok(Some(phase)) => phase,
                Ok(None) => Phase::Ended,
                Err(wait) => return Ok(Progress::Pending(wait)),
            },
            Phase::Row { server, token, position } => row(cx, server, token, position)?,
            Phase::Count { server, near_expert } if !experts(core, server).contains(&near_expert) => {
                *word(cx.words.taken, server)? = ENDED;
                Phase::Find { server: server + 1 }
            }
            Phase::Count { server, near_expert } => {
                let rows = *rows_for(core, cx.words.rows, server, near_expert)?;
                let home = plan::near_home(core.shape, core.work.server, near_expert);
                let source = core.shape.relay(core.rank, server);
                let at = relay::count(core.shape, core.epoch.partition(), home.local_expert, source);
                // The count must follow this core's puts of these rows: rule 2.
                cx.fabric.publish(home.rank, at, relay::mark(core.epoch.word, rows))?;
                Phase::Count { server, near_expert: near_expert + 1 }
            }
            Phase::Ended => return Ok(Progress::Done),
        };
        self.go(next)
    }
}

/// Returns the near experts to which this core forwards rows from `server`.
fn experts(core: Now<'_>, server: u32) -> Range<u32> {
    plan::forwarded_to(core.shape, &core.work.forwards, server)
}

/// Returns whether this core forwards any pair of a token from `server`.
fn concerns(core: Now<'_>, server: u32, ids: &[i32]) -> bool {
    let own = experts(core, server);
    plan::pairs_on(core.shape, ids, core.work.server).any(|(_, near_expert)| own.contains(&near_expert))
}

/// Returns the number of rows from `server` for one of this core's experts.
fn rows_for<'u>(core: Now<'_>, rows: &'u mut [u32], server: u32, near_expert: u32) -> Result<&'u mut u32> {
    let number = server * plan::near_experts(core.shape) + near_expert;
    word(rows, number.wrapping_sub(core.work.forwards.start))
}

/// The next phase, `None` once all streams have ended; or the wait if no stream can continue.
type Found = Result<Option<Phase>, Wait>;

/// Searches the streams, beginning with `first`, and copies a complete record into the buffer.
fn find(cx: &mut Turn<'_, impl Fabric + ?Sized>, first: u32) -> Result<Found> {
    let Turn { core, fabric, inputs, words, buffers, .. } = cx;
    let (core, fabric, held) = (*core, &**fabric, &mut *buffers.held);
    let mut missing = None;
    let servers = core.shape.servers();
    for server in (first..servers).chain(0..first.min(servers)) {
        let taken = word(words.taken, server)?;
        if *taken == ENDED || experts(core, server).is_empty() {
            continue;
        }
        let token = if server == core.work.server {
            let needs = |&t: &u32| concerns(core, server, inputs.ids(core.shape, Token(t)));
            let token = (*taken..core.shape.bs(core.rank)).find(needs);
            if let Some(token) = token {
                *taken = token;
                match kit::unconverted(core.shape, inputs, Token(token)) {
                    Some(_) => write_lists(*core, inputs, held, Token(token), 0.0)?,
                    None => write_record(*core, inputs, &mut None, held, Token(token))?,
                }
            }
            token
        } else {
            let before = *taken;
            match pass(core, fabric, server, taken)? {
                Err(_) if *taken > before => return Ok(Ok(Some(Phase::Find { server: server + 1 }))),
                Err(wait) => {
                    missing = missing.or(Some(wait));
                    continue;
                }
                Ok(token) => {
                    if token.is_some() {
                        hold(core, fabric, held, server, *taken)?;
                    }
                    token
                }
            }
        };
        return Ok(Ok(Some(match token {
            None => Phase::Count { server, near_expert: experts(core, server).start },
            Some(token) => {
                *taken += 1;
                Phase::Row { server, token: Token(token), position: 0 }
            }
        })));
    }
    Ok(missing.map_or(Ok(None), Err))
}

/// Passes over complete records, from number `record` on, until one concerns this core. All are checked. Returns that one's
/// token, `None` at the end of the stream; or the wait for a record that has not arrived.
fn pass<F: Fabric + ?Sized>(
    core: Now<'_>,
    fabric: &F,
    server: u32,
    record: &mut u32,
) -> Result<Result<Option<u32>, Wait>> {
    let shape = core.shape;
    loop {
        match stream::next(core, fabric, server, *record)? {
            Next::Missing(wait) => return Ok(Err(wait)),
            Next::End => return Ok(Ok(None)),
            Next::Record => {}
        }
        let (token, pairs) = stream::token_and_pairs(core, fabric, server, *record)?;
        if token >= shape.bs(shape.relay(core.rank, server)) {
            return Err(stream::wrong(core, server, *record, "token", token));
        }
        let at = behind(core.record(server, *record), relay::record_ids(shape));
        let ids = ids_of(*core, fabric.bytes(at, 4 * u64::from(shape.k()))?);
        let ids = ids.get(..shape.k() as usize).unwrap_or(&[]);
        // Ids determine the rows: one that names no expert gives none, and then there are fewer pairs than stated.
        let here = plan::pairs(shape, ids, core.work.server);
        if here == 0 || here != pairs {
            return Err(stream::wrong(core, server, *record, "pairs", pairs));
        }
        if concerns(core, server, ids) {
            return Ok(Ok(Some(token)));
        }
        *record += 1;
    }
}

/// Copies a record out of the relay area.
fn hold<F: Fabric + ?Sized>(
    core: Now<'_>,
    fabric: &F,
    held: &mut [u8],
    server: u32,
    record: u32,
) -> Result<()> {
    let end = relay::token_bytes(core.shape);
    let bytes = fabric.bytes(behind(core.record(server, record), ROW), end - ROW)?;
    prefetch::copy_in(bytes, row_of(held, bytes.len() as u64)?, prefetches(fabric));
    Ok(())
}

fn row(cx: &mut Turn<'_, impl Fabric + ?Sized>, server: u32, token: Token, position: u32) -> Result<Phase> {
    let Turn { core, fabric, inputs, words, buffers, .. } = cx;
    let (core, held) = (*core, &*buffers.held);
    let shape = core.shape;
    let ids = ids_of(*core, held.get(relay::record_ids(shape) as usize..).unwrap_or(&[]));
    let ids = ids.get(..shape.k() as usize).unwrap_or(&[]);
    let own = experts(core, server);
    let mut rest = (0..).zip(plan::pairs_on(shape, ids, core.work.server)).skip(position as usize);
    let Some((position, (k, near_expert))) = rest.find(|(_, (_, near_expert))| own.contains(near_expert))
    else {
        return Ok(Phase::Find { server: server + 1 });
    };
    let home = plan::near_home(shape, core.work.server, near_expert);
    let source = shape.relay(core.rank, server);
    let slot = rows_for(core, words.rows, server, near_expert)?;
    if *slot >= shape.bs(source) {
        return Err(stream::wrong(core, server, token.0, "rows for one expert", *slot));
    }
    let field = |at: u64| held.get(at as usize..).and_then(|rest| rest.first_chunk()).copied();
    let tail = Tail {
        scale: f32::from_le_bytes(field(relay::record_scale(shape)).unwrap_or_default()),
        source,
        token,
        part: Part { pairs: plan::pairs(shape, ids, core.work.server), position },
        weight: f32::from_le_bytes(
            field(relay::record_weights(shape) + 4 * u64::from(k)).unwrap_or_default(),
        ),
    };
    let as_is = if server == core.work.server { kit::unconverted(shape, inputs, token) } else { None };
    let held = || held.get(ROW as usize..).and_then(|rest| rest.get(..shape.payload_bytes() as usize));
    let row = as_is.or_else(held).ok_or(SHORT_BYTES)?;
    let at = relay::dispatch_slot(shape, home.local_expert, source, *slot);
    fabric.put(home.rank, behind(at, ROW), row, tail.to_bytes().as_flattened())?;
    *slot += 1;
    Ok(Phase::Row { server, token, position: position + 1 })
}

/// Returns the K ids at the start of `bytes`.
fn ids_of(core: Core<'_>, bytes: &[u8]) -> [i32; K_MAX] {
    let mut ids = [-1; K_MAX];
    for (id, bytes) in ids.iter_mut().take(core.shape.k() as usize).zip(bytes.as_chunks().0) {
        *id = i32::from_le_bytes(*bytes);
    }
    ids
}
