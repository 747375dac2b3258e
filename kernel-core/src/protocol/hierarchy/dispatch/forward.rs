//! The role of a relay: it forwards every record to the near ranks that need it, then the counts of its source.
//!
//! Cores split this work by experts. Each reads all records of a stream, since rows are numbered in the order of records,
//! and forwards the rows for its experts.

use super::super::stream::{self, Next};
use super::super::{Bound, Now, row_of};
use super::send::{write_lists, write_record};
use super::{ENDED, Turn, word};
use crate::fabric::{Fabric, Progress, Result, Wait, prefetch, prefetches};
use crate::layout::relay::{self, Part, ROW, Tail, behind};
use crate::plan::relay as plan;
use crate::protocol::kit::{self, Outcome, SHORT_BYTES, Types};
use crate::shape::K_MAX;
use crate::units::Token;
use core::ops::Range;

/// The role of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Forwards {
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Await the near ranks that still read their near areas.
    Entered,
    /// Find a complete record, first in the stream from `server`.
    Find { server: u32 },
    /// Forward the row at that position of the record that is held.
    Row { server: u32, token: Token, position: u32 },
    /// Publish the number of rows for that expert of the own server.
    Count { server: u32, near_expert: u32 },
    /// The role has ended.
    Ended,
}

phase_names! { Phase of "Forward." in Forwards: Entered Find Row Count Ended }

impl Forwards {
    pub(super) const fn new() -> Self {
        Self { phase: Phase::Entered }
    }

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Types>) -> Outcome {
        let env = cx.env;
        self.phase = match self.phase {
            Phase::Entered => match env.outside(cx.fabric)? {
                Some(wait) => return Ok(Progress::Pending(wait)),
                None => Phase::Find { server: 0 },
            },
            Phase::Find { server } => match find(cx, server)? {
                Ok(Some(phase)) => phase,
                Ok(None) => Phase::Ended,
                Err(wait) => return Ok(Progress::Pending(wait)),
            },
            Phase::Row { server, token, position } => row(cx, (server, token, position))?,
            Phase::Count { server, near_expert } if !experts(env, server).contains(&near_expert) => {
                *word(cx.words.taken, server)? = ENDED;
                Phase::Find { server: server + 1 }
            }
            Phase::Count { server, near_expert } => {
                let rows = *rows_for(env, cx.words.rows, server, near_expert)?;
                let home = plan::near_home(env.shape, env.work.server, near_expert);
                let source = env.shape.relay(env.rank, server);
                let at = relay::count(env.shape, env.epoch.partition(), home.local_expert, source);
                // The count must follow this core's puts of these rows: rule 2.
                cx.fabric.publish(home.rank, at, relay::mark(env.epoch.number, rows))?;
                Phase::Count { server, near_expert: near_expert + 1 }
            }
            Phase::Ended => return Ok(Progress::Done),
        };
        Ok(Progress::Stepped)
    }
}

/// Returns the near experts to which this core forwards rows from `server`.
fn experts<V>(env: Now<'_, V>, server: u32) -> Range<u32> {
    plan::forwarded_to(env.shape, &env.work.forwards, server)
}

/// Returns whether this core forwards any pair of a token from `server`.
fn concerns<V>(env: Now<'_, V>, server: u32, ids: &[i32]) -> bool {
    let own = experts(env, server);
    plan::pairs_on(env.shape, ids, env.work.server).any(|(_, near_expert)| own.contains(&near_expert))
}

/// Returns the number of rows from `server` for one of this core's experts.
fn rows_for<'u, V>(
    env: Now<'_, V>,
    rows: &'u mut [u32],
    server: u32,
    near_expert: u32,
) -> Result<&'u mut u32> {
    let number = server * plan::near_experts(env.shape) + near_expert;
    word(rows, number.wrapping_sub(env.work.forwards.start))
}

/// The next phase, `None` once all streams have ended; or the wait if no stream can continue.
type Found = Result<Option<Phase>, Wait>;

/// Searches the streams, beginning with `first`, and copies a complete record into the buffer.
fn find(cx: &mut Turn<'_, impl Types>, first: u32) -> Result<Found> {
    let Turn { env, fabric, inputs, words, buffers, .. } = cx;
    let (env, fabric, held) = (*env, &**fabric, &mut *buffers.held);
    let mut missing = None;
    let servers = env.shape.servers();
    for server in (first..servers).chain(0..first.min(servers)) {
        let taken = word(words.taken, server)?;
        if *taken == ENDED || experts(env, server).is_empty() {
            continue;
        }
        let token = if server == env.work.server {
            let needs = |&t: &u32| concerns(env, server, inputs.ids(env.shape, Token(t)));
            let token = (*taken..env.shape.bs(env.rank)).find(needs);
            if let Some(token) = token {
                *taken = token;
                match kit::unconverted(env.shape, inputs, Token(token)) {
                    Some(_) => write_lists(*env, inputs, held, Token(token), 0.0)?,
                    None => write_record(*env, inputs, &mut None, held, Token(token))?,
                }
            }
            token
        } else {
            let before = *taken;
            match pass(env, fabric, server, taken)? {
                Err(_) if *taken > before => return Ok(Ok(Some(Phase::Find { server: server + 1 }))),
                Err(wait) => {
                    missing = missing.or(Some(wait));
                    continue;
                }
                Ok(token) => {
                    if token.is_some() {
                        hold(env, fabric, held, server, *taken)?;
                    }
                    token
                }
            }
        };
        return Ok(Ok(Some(match token {
            None => Phase::Count { server, near_expert: experts(env, server).start },
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
fn pass<F: Fabric + ?Sized, V>(
    env: Now<'_, V>,
    fabric: &F,
    server: u32,
    record: &mut u32,
) -> Result<Result<Option<u32>, Wait>> {
    let shape = env.shape;
    loop {
        match stream::next(env, fabric, server, *record)? {
            Next::Missing(wait) => return Ok(Err(wait)),
            Next::End => return Ok(Ok(None)),
            Next::Record => {}
        }
        let (token, pairs) = stream::token_and_pairs(env, fabric, server, *record)?;
        if token >= shape.bs(shape.relay(env.rank, server)) {
            return Err(stream::wrong(env, server, *record, "token", token));
        }
        let at = behind(env.record(server, *record), relay::record_ids(shape));
        let ids = ids_of(*env, fabric.bytes(at, 4 * u64::from(shape.k()))?);
        let ids = ids.get(..shape.k() as usize).unwrap_or(&[]);
        // Ids determine the rows: one that names no expert gives none, and then there are fewer pairs than stated.
        let here = plan::pairs(shape, ids, env.work.server);
        if here == 0 || here != pairs {
            return Err(stream::wrong(env, server, *record, "pairs", pairs));
        }
        if concerns(env, server, ids) {
            return Ok(Ok(Some(token)));
        }
        *record += 1;
    }
}

/// Copies a record out of the relay area.
fn hold<F: Fabric + ?Sized, V>(
    env: Now<'_, V>,
    fabric: &F,
    held: &mut [u8],
    server: u32,
    record: u32,
) -> Result<()> {
    let end = relay::token_bytes(env.shape);
    let bytes = fabric.bytes(behind(env.record(server, record), ROW), end - ROW)?;
    prefetch::copy_in(bytes, row_of(held, bytes.len() as u64)?, prefetches(fabric));
    Ok(())
}

fn row(cx: &mut Turn<'_, impl Types>, (server, token, position): (u32, Token, u32)) -> Result<Phase> {
    let Turn { env, fabric, inputs, words, buffers, .. } = cx;
    let (env, held) = (*env, &*buffers.held);
    let shape = env.shape;
    let ids = ids_of(*env, held.get(relay::record_ids(shape) as usize..).unwrap_or(&[]));
    let ids = ids.get(..shape.k() as usize).unwrap_or(&[]);
    let own = experts(env, server);
    let mut rest = (0..).zip(plan::pairs_on(shape, ids, env.work.server)).skip(position as usize);
    let Some((position, (k, near_expert))) = rest.find(|(_, (_, near_expert))| own.contains(near_expert))
    else {
        return Ok(Phase::Find { server: server + 1 });
    };
    let home = plan::near_home(shape, env.work.server, near_expert);
    let source = shape.relay(env.rank, server);
    let slot = rows_for(env, words.rows, server, near_expert)?;
    if *slot >= shape.bs(source) {
        return Err(stream::wrong(env, server, token.0, "rows for one expert", *slot));
    }
    let field = |at: u64| held.get(at as usize..).and_then(|rest| rest.first_chunk()).copied();
    let tail = Tail {
        scale: f32::from_le_bytes(field(relay::record_scale(shape)).unwrap_or_default()),
        source,
        token,
        part: Part { pairs: plan::pairs(shape, ids, env.work.server), position },
        weight: f32::from_le_bytes(
            field(relay::record_weights(shape) + 4 * u64::from(k)).unwrap_or_default(),
        ),
    };
    let as_is = if server == env.work.server { kit::unconverted(shape, inputs, token) } else { None };
    let held = || held.get(ROW as usize..).and_then(|rest| rest.get(..shape.payload_bytes() as usize));
    let row = as_is.or_else(held).ok_or(SHORT_BYTES)?;
    let at = relay::dispatch_slot(shape, home.local_expert, source, *slot);
    fabric.put(home.rank, behind(at, ROW), row, tail.to_bytes().as_flattened())?;
    *slot += 1;
    Ok(Phase::Row { server, token, position: position + 1 })
}

/// Returns the K ids at the start of `bytes`.
fn ids_of<V>(env: Bound<'_, V>, bytes: &[u8]) -> [i32; K_MAX] {
    let mut ids = [-1; K_MAX];
    for (id, bytes) in ids.iter_mut().take(env.shape.k() as usize).zip(bytes.as_chunks().0) {
        *id = i32::from_le_bytes(*bytes);
    }
    ids
}
