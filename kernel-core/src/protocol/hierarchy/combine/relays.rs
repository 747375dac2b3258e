//! Partial sums for namesakes on other servers: each token leaves as soon as its rows have arrived. An end flag follows the
//! last one, once every near rank has announced that it returns no more rows.

use super::super::issue::{self, Issued};
use super::super::stream::write_front;
use super::super::{Buffers, Now, row_of, sum};
use super::{ENDED, Turn};
use crate::fabric::{Fabric, Progress, ProtocolError, Result, Wait};
use crate::layout::relay;
use crate::protocol::kit::{Outcome, room};
use crate::units::Token;

/// The role of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Relays {
    /// The stream that is tried first.
    server: u32,
    /// The number of completed steps of its end.
    ending: u32,
    pub(super) issued: Issued,
}

impl Relays {
    pub(super) const fn new() -> Self {
        Self { server: 0, ending: 0, issued: Issued::new() }
    }

    /// Advances the role. `missing` is the wait for near ranks that may still return rows; without it no more rows come.
    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Fabric + ?Sized>, missing: Option<Wait>) -> Outcome {
        let Turn { core, fabric, words, buffers, .. } = cx;
        let (core, fabric) = (*core, &mut **fabric);
        let streams = core.work.streams.clone();
        // `clamp` would panic where the ends are in the wrong order.
        let begin = self.server.max(streams.start).min(streams.end);
        let mut all_ended = true;
        for server in (begin..streams.end).chain(streams.start..begin) {
            let ([sent, first], bitmap) = words.stream(core, server)?;
            if server == core.work.server || *sent == ENDED {
                continue;
            }
            all_ended = false;
            if let Some((token, pairs)) = summable(core, fabric, server, (bitmap, *first), missing.is_none())?
            {
                send(core, fabric, buffers, server, *sent, (token, pairs))?;
                (*sent, *first) = (*sent + 1, token.0 + 1);
                mark_sent(bitmap, token);
            } else if missing.is_none() {
                match issue::end(core, fabric, (server, *sent), self.ending)? {
                    Some(step) => {
                        (self.server, self.ending) = (server, step);
                        return Ok(Progress::Stepped);
                    }
                    None => (*sent, self.ending) = (ENDED, 0),
                }
            } else {
                continue;
            }
            self.server = server + 1;
            return Ok(Progress::Stepped);
        }
        match missing {
            Some(wait) if !all_ended => Ok(Progress::Pending(wait)),
            _ => self.issued.step(core, fabric),
        }
    }
}

/// Returns a token that has not been sent and whose rows have all arrived: the next one from `first` on, so that the flags of
/// those before it, which lie far apart, are not read again for each token.
fn summable<F: Fabric + ?Sized>(
    core: Now<'_>,
    fabric: &F,
    server: u32,
    (bitmap, first): (&[u32], u32),
    all_returned: bool,
) -> Result<Option<(Token, u32)>> {
    let max = relay::pairs_max(core.shape);
    for token in unsent(core, server, bitmap, first) {
        let flag = |position| {
            core.epoch.number_of_near(fabric, relay::combine_slot(core.shape, server, token, position))
        };
        let wrong = |position, seen, min, max| wrong(core, (server, token, position), seen, min, max);
        let Some(pairs) = flag(0)? else {
            // Without its first row a token is never sent. The owner misses it, too, but cannot name it.
            if all_returned
                && max > 1
                && let Some(pairs) = flag(1)?
            {
                return Err(wrong(0, 0, pairs, pairs));
            }
            continue;
        };
        if pairs == 0 || pairs > max {
            return Err(wrong(0, pairs, 1, max));
        }
        let mut lacking = None;
        for position in 1..pairs {
            match flag(position)? {
                Some(seen) if seen != pairs => return Err(wrong(position, seen, pairs, pairs)),
                Some(_) => {}
                None => lacking = lacking.or(Some(position)),
            }
        }
        match lacking {
            None => return Ok(Some((token, pairs))),
            Some(position) if all_returned => return Err(wrong(position, 0, pairs, pairs)),
            Some(_) => {}
        }
    }
    Ok(None)
}

/// Returns the tokens of this rank's namesake on `server` whose sums have not left, from `first` on and then those before it.
fn unsent(core: Now<'_>, server: u32, bitmap: &[u32], first: u32) -> impl Iterator<Item = Token> {
    let was_sent =
        |token: &u32| bitmap.get(*token as usize >> 5).is_some_and(|word| word >> (token & 31) & 1 == 1);
    let tokens = core.shape.bs(core.shape.relay(core.rank, server));
    (first..tokens).chain(0..first.min(tokens)).filter(move |token| !was_sent(token)).map(Token)
}

fn wrong(
    core: Now<'_>,
    (server, token, position): (u32, Token, u32),
    seen: u32,
    min: u32,
    max: u32,
) -> ProtocolError {
    let source = core.shape.relay(core.rank, server);
    ProtocolError::Part { source, token: token.0, position, seen, min, max }
}

fn mark_sent(bitmap: &mut [u32], token: Token) {
    if let Some(word) = bitmap.get_mut(token.index() >> 5) {
        *word |= 1 << (token.0 & 31);
    }
}

fn send<F: Fabric + ?Sized>(
    core: Now<'_>,
    fabric: &mut F,
    buffers: &mut Buffers<'_>,
    server: u32,
    record: u32,
    (token, pairs): (Token, u32),
) -> Result<()> {
    let message = room(buffers.send, relay::partial_bytes(core.shape))?;
    let out = row_of(message, core.shape.result_bytes())?;
    sum::partial(core, fabric, (server, token, pairs), buffers.sums, out)?;
    write_front(message, core.epoch, token.0, pairs);
    issue::record(core, fabric, (server, record), message)
}
