//! Own tokens: each is summed as soon as all servers that have a pair of it have sent their part.

use super::super::stream::{self, Next};
use super::super::{Buffers, Now, sum};
use super::{ENDED, Turn};
use crate::fabric::{Fabric, Flag, Progress, Result, Wait, prefetches};
use crate::layout::outputs;
use crate::layout::relay::{self, ROW, behind};
use crate::plan::relay as plan;
use crate::protocol::kit::sum::{as_travelled, fill_output};
use crate::protocol::kit::{Outcome, SHORT_WORDS, Types, internal, room};
use crate::shape::K_MAX;
use crate::units::Token;
use crate::vector::{Term, Vector};

/// The role of the tokens' owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tokens {
    /// The next token to sum.
    pub(super) token: u32,
    /// The stream that is tried first.
    server: u32,
}

impl Tokens {
    pub(super) const fn new() -> Self {
        Self { token: 0, server: 0 }
    }

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Types>) -> Outcome {
        let env = cx.env;
        let mut pending = None;
        if self.token < env.work.tokens.end {
            match self.missing(cx)? {
                None => {
                    self.sum(cx)?;
                    self.token += 1;
                    return Ok(Progress::Stepped);
                }
                wait => pending = wait,
            }
        }
        let servers = env.shape.servers();
        for server in (self.server..servers).chain(0..self.server) {
            if server == env.work.server || *cx.words.followed(env, server)?.0 == ENDED {
                continue;
            }
            match follow(cx, server)? {
                Some(wait) => pending = pending.or(Some(wait)),
                None => {
                    self.server = server;
                    return Ok(Progress::Stepped);
                }
            }
        }
        Ok(pending.map_or(Progress::Done, Progress::Pending))
    }

    /// Returns the wait of the next token.
    fn missing(&self, cx: &mut Turn<'_, impl Types>) -> Result<Option<Wait>> {
        let Turn { env, fabric, inputs, words, .. } = cx;
        let (env, fabric) = (*env, &**fabric);
        let (shape, token) = (env.shape, Token(self.token));
        let ids = inputs.ids(shape, token);
        let here = plan::pairs(shape, ids, env.work.server);
        for (position, (k, near_expert)) in (0..).zip(plan::pairs_on(shape, ids, env.work.server)) {
            let at = relay::combine_slot(shape, env.work.server, token, position);
            let seen = env.epoch.number(fabric, at)?;
            if seen != Some(here) {
                let from = plan::near_home(shape, env.work.server, near_expert).rank;
                let awaited = Wait::new(Flag::Combine, from, &[token.0, k]);
                return seen.map_or(Ok(Some(awaited)), |seen| Err(awaited.refused(seen.into())));
            }
        }
        for server in (0..shape.servers()).filter(|&server| server != env.work.server) {
            let (&mut record, numbers) = words.followed(env, server)?;
            if number_of(env, numbers, token) == 0 && plan::pairs(shape, ids, server) > 0 {
                return Ok(Some(Wait::new(Flag::Record, shape.relay(env.rank, server), &[record])));
            }
        }
        Ok(None)
    }

    fn sum(&self, cx: &mut Turn<'_, impl Types>) -> Result<()> {
        let Turn { env, fabric, inputs, words, buffers, .. } = cx;
        let (env, fabric) = (*env, &mut **fabric);
        let (shape, token) = (env.shape, Token(self.token));
        let ids = inputs.ids(shape, token);
        let Buffers { send, sums, out, .. } = buffers;
        let own = room(send, shape.result_bytes())?;
        let here = plan::pairs(shape, ids, env.work.server);
        if here > 0 {
            sum::partial(env, fabric, (env.work.server, token, here), sums, own)?;
        }
        fill_output(fabric, outputs::x_out(shape, token), out, |fabric, out| {
            let mut terms = heapless::Vec::<Term<'_>, K_MAX>::new();
            for server in (0..shape.servers()).filter(|&server| plan::pairs(shape, ids, server) > 0) {
                let row = if server == env.work.server {
                    &*own
                } else {
                    let (_, numbers) = words.followed(env, server)?;
                    let record = number_of(env, numbers, token).wrapping_sub(1);
                    let at = env.record(server, record);
                    fabric.bytes(behind(at, ROW), shape.result_bytes())?
                };
                terms
                    .push(Term { weight: 1.0, value: as_travelled(shape, row) })
                    .map_err(|_| internal("more servers than K allows"))?;
            }
            env.vector.weighted_sum(shape.dtype(), &terms, prefetches(fabric), out);
            Ok(())
        })
    }
}

/// Returns the entry of a token of the core's share.
fn number_of<V>(env: Now<'_, V>, numbers: &[u32], token: Token) -> u32 {
    numbers.get((token.0 - env.work.tokens.start) as usize).copied().unwrap_or(0)
}

/// Processes all records of a stream that have arrived, and its end. Returns the wait if there is nothing to process.
fn follow(cx: &mut Turn<'_, impl Types>, server: u32) -> Result<Option<Wait>> {
    let Turn { env, fabric, inputs, words, .. } = cx;
    let (env, fabric) = (*env, &**fabric);
    let shape = env.shape;
    let (taken, numbers) = words.followed(env, server)?;
    let before = *taken;
    let needed = |token: u32| plan::pairs(shape, inputs.ids(shape, Token(token)), server);
    loop {
        let record = *taken;
        match stream::next(env, fabric, server, record)? {
            Next::Missing(wait) => return Ok((record == before).then_some(wait)),
            Next::End => {
                let all = (0..shape.bs(env.rank)).filter(|&token| needed(token) > 0).count() as u32;
                if record != all {
                    return Err(stream::wrong(env, server, record, "records", record));
                }
                *taken = ENDED;
                return Ok(None);
            }
            Next::Record => {
                let (token, pairs) = stream::token_and_pairs(env, fabric, server, record)?;
                if token >= shape.bs(env.rank) || pairs == 0 || pairs != needed(token) {
                    return Err(stream::wrong(env, server, record, "token", token));
                }
                if env.work.tokens.contains(&token) {
                    let entry = numbers.get_mut((token - env.work.tokens.start) as usize);
                    let entry = entry.ok_or(SHORT_WORDS)?;
                    if *entry != 0 {
                        return Err(stream::wrong(env, server, record, "token", token));
                    }
                    *entry = record + 1;
                }
                *taken = record + 1;
            }
        }
    }
}
