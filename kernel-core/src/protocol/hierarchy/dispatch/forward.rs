//! What a relay does: every record of its streams to the near ranks that need it, then the counts of its source.

use super::super::stream::{self, Next};
use super::super::{Bound, Now};
use super::send::write_record;
use super::{ENDED, Turn};
use crate::fabric::{Fabric, Progress, ProtocolError, Wait};
use crate::layout::relay::{self, ROW, Tail, behind};
use crate::plan::relay as plan;
use crate::protocol::{Outcome, Types, given};
use crate::shape::K_MAX;
use crate::units::Token;

/// The role of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Forwards {
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Near ranks still read their near areas.
    Entered,
    /// Look for a complete record, first in the stream from `server`.
    Find { server: u32 },
    /// Forward the row at that position of the record that is held.
    Row { server: u32, token: Token, position: u32 },
    /// Tell the rows for that expert of the own server.
    Count { server: u32, near_expert: u32 },
    /// The role has ended.
    Ended,
}

phase_names! { Phase of "Forward.": Entered Find Row Count Ended }

impl Forwards {
    pub(super) const fn new() -> Self {
        Self { phase: Phase::Entered }
    }

    /// The name of the phase that it is in.
    pub(crate) const fn phase(&self) -> &'static str {
        self.phase.name()
    }

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Types>) -> Outcome {
        let env = cx.env;
        self.phase = match self.phase {
            Phase::Entered => match env.outside(cx.fabric)? {
                Some(wait) => return Ok(Progress::Pending(wait)),
                None => Phase::Find { server: env.work.streams.start },
            },
            Phase::Find { server } => match find(cx, server)? {
                Ok(Some(phase)) => phase,
                Ok(None) => Phase::Ended,
                Err(wait) => return Ok(Progress::Pending(wait)),
            },
            Phase::Row { server, token, position } => row(cx, (server, token, position))?,
            Phase::Count { server, near_expert } if near_expert >= plan::near_experts(env.shape) => {
                let ([_, taken], _) = cx.words.stream(env, server)?;
                *taken = ENDED;
                Phase::Find { server: server + 1 }
            }
            Phase::Count { server, near_expert } => {
                let (_, counts) = cx.words.stream(env, server)?;
                let rows = counts.get(near_expert as usize).copied().unwrap_or(0);
                let home = plan::near_home(env.shape, env.work.server, near_expert);
                let source = env.shape.relay(env.rank, server);
                let at = relay::count(env.shape, env.epoch.partition(), home.local_expert, source);
                // Not before this core's puts of these rows: rule 2.
                cx.fabric.publish(home.rank, at, relay::mark(env.epoch.number, rows))?;
                Phase::Count { server, near_expert: near_expert + 1 }
            }
            Phase::Ended => return Ok(Progress::Done),
        };
        Ok(Progress::Stepped)
    }
}

/// What is to be done next: `None` once all streams have ended; what is missing if none of them can go on.
type Found = Result<Option<Phase>, Wait>;

/// Looks through the streams, beginning with `first`; a record that is complete is held.
fn find(cx: &mut Turn<'_, impl Types>, first: u32) -> Result<Found, ProtocolError> {
    let Turn { env, fabric, inputs, words, buffers, .. } = cx;
    let (env, fabric, held) = (*env, &**fabric, &mut *buffers.held);
    let mut missing = None;
    let streams = env.work.streams.clone();
    for server in (first..streams.end).chain(streams.start..first.min(streams.end)) {
        let ([_, taken], _) = words.stream(env, server)?;
        let taken = *taken;
        if taken == ENDED {
            continue;
        }
        let (token, end) = if server == env.work.server {
            let needs = |&t: &u32| plan::pairs(env.shape, inputs.ids(env.shape, Token(t)), server) > 0;
            let token = (taken..env.shape.bs(env.rank)).find(needs);
            if let Some(token) = token {
                write_record(*env, inputs, &mut None, held, Token(token))?;
            }
            (token.unwrap_or_default(), token.is_none())
        } else {
            match stream::next(env, fabric, server, taken)? {
                Next::Missing(wait) => {
                    missing = missing.or(Some(wait));
                    continue;
                }
                Next::End => (0, true),
                Next::Record => (hold(env, fabric, held, server, taken)?, false),
            }
        };
        if end {
            return Ok(Ok(Some(Phase::Count { server, near_expert: 0 })));
        }
        let ([_, next], _) = words.stream(env, server)?;
        *next = if server == env.work.server { token + 1 } else { taken + 1 };
        return Ok(Ok(Some(Phase::Row { server, token: Token(token), position: 0 })));
    }
    Ok(missing.map_or(Ok(None), Err))
}

/// Takes a record out of the relay area, checked. Its token.
fn hold<F: Fabric + ?Sized, V>(
    env: Now<'_, V>,
    fabric: &F,
    held: &mut [u8],
    server: u32,
    record: u32,
) -> Result<u32, ProtocolError> {
    let shape = env.shape;
    let (token, pairs) = stream::token_and_pairs(env, fabric, server, record)?;
    if token >= shape.bs(shape.relay(env.rank, server)) {
        return Err(stream::wrong(env, server, record, "token", token));
    }
    let at = env.record(server, record);
    let bytes = fabric.bytes(behind(at, ROW), relay::token_bytes(shape) - ROW)?;
    let to = held.get_mut(ROW as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
    to.ok_or(given("scratch is shorter than scratch_bytes"))?.copy_from_slice(bytes);
    // Ids decide who gets rows: those that name no expert name nobody, and then there are fewer than the source says.
    let here =
        plan::pairs(shape, ids_of(*env, held).get(..shape.k() as usize).unwrap_or(&[]), env.work.server);
    if here == 0 || here != pairs {
        return Err(stream::wrong(env, server, record, "pairs", pairs));
    }
    Ok(token)
}

fn row(
    cx: &mut Turn<'_, impl Types>,
    (server, token, position): (u32, Token, u32),
) -> Result<Phase, ProtocolError> {
    let Turn { env, fabric, words, buffers, .. } = cx;
    let (env, held) = (*env, &*buffers.held);
    let shape = env.shape;
    let ids = ids_of(*env, held);
    let ids = ids.get(..shape.k() as usize).unwrap_or(&[]);
    let Some(forward) = plan::forward(shape, ids, env.work.server, position) else {
        return Ok(Phase::Find { server: server + 1 });
    };
    let source = shape.relay(env.rank, server);
    let (_, counts) = words.stream(env, server)?;
    let slot = counts
        .get_mut(plan::near_expert(shape, forward.home) as usize)
        .ok_or(given("scratch is shorter than scratch_words"))?;
    if *slot >= shape.bs(source) {
        return Err(stream::wrong(env, server, token.0, "rows for one expert", *slot));
    }
    let field = |at: u64| held.get(at as usize..).and_then(|rest| rest.first_chunk()).copied();
    let tail = Tail {
        scale: f32::from_le_bytes(field(relay::record_scale(shape)).unwrap_or_default()),
        source,
        token,
        part: forward.part,
        weight: f32::from_le_bytes(
            field(relay::record_weights(shape) + 4 * u64::from(forward.k)).unwrap_or_default(),
        ),
    };
    let row = held.get(ROW as usize..).and_then(|rest| rest.get(..shape.payload_bytes() as usize));
    let row = row.ok_or(given("scratch is shorter than scratch_bytes"))?;
    let at = relay::dispatch_slot(shape, forward.home.local_expert, source, *slot);
    fabric.put(forward.home.rank, behind(at, ROW), row, &tail.to_bytes())?;
    *slot += 1;
    Ok(Phase::Row { server, token, position: position + 1 })
}

/// The ids of a record, of which K are meant.
fn ids_of<V>(env: Bound<'_, V>, record: &[u8]) -> [i32; K_MAX] {
    let mut ids = [-1; K_MAX];
    let bytes = record.get(relay::record_ids(env.shape) as usize..).unwrap_or(&[]);
    for (id, bytes) in ids.iter_mut().take(env.shape.k() as usize).zip(bytes.as_chunks().0) {
        *id = i32::from_le_bytes(*bytes);
    }
    ids
}
