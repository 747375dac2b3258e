//! Own tokens: each is summed as soon as all servers that have a pair of it have sent their part.

use super::super::stream::{self, Next};
use super::super::{Buffers, Now, sum};
use super::{ENDED, Turn};
use crate::fabric::{Fabric, Flag, Progress, Result, Wait, prefetches};
use crate::layout::outputs;
use crate::layout::relay::{self, ROW, behind};
use crate::plan::relay as plan;
use crate::protocol::kit::sum::{as_travelled, fill_output};
use crate::protocol::kit::{Outcome, SHORT_WORDS, internal, room};
use crate::shape::K_MAX;
use crate::units::Token;
use crate::vector::Term;

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

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Fabric + ?Sized>) -> Outcome {
        let core = cx.core;
        let mut pending = None;
        if !core.is_past_tokens(self.token, cx.inputs) {
            match self.missing(cx)? {
                None => {
                    self.sum(cx)?;
                    self.token += 1;
                    return Ok(Progress::Stepped);
                }
                wait => pending = wait,
            }
        }
        let servers = core.shape.servers();
        for server in (self.server..servers).chain(0..self.server) {
            if server == core.work.server || *cx.words.followed(core, server)?.0 == ENDED {
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
    fn missing(&self, cx: &mut Turn<'_, impl Fabric + ?Sized>) -> Result<Option<Wait>> {
        let Turn { core, fabric, inputs, words, .. } = cx;
        let (core, fabric) = (*core, &**fabric);
        let (shape, token) = (core.shape, Token(self.token));
        let ids = inputs.ids(shape, token);
        let here = plan::pairs(shape, ids, core.work.server);
        for (position, (k, near_expert)) in (0..).zip(plan::pairs_on(shape, ids, core.work.server)) {
            let at = relay::combine_slot(shape, core.work.server, token, position);
            let awaited = || {
                let from = plan::near_home(shape, core.work.server, near_expert).rank;
                Wait::new(Flag::Combine, from, &[token.0, k])
            };
            let seen = core.epoch.number_at(fabric, at, awaited)?;
            if seen != Some(here) {
                let awaited = awaited();
                return seen.map_or(Ok(Some(awaited)), |seen| Err(awaited.refused(seen.into())));
            }
        }
        for server in (0..shape.servers()).filter(|&server| server != core.work.server) {
            let (&mut record, numbers) = words.followed(core, server)?;
            if number_of(core, numbers, token) == 0 && plan::pairs(shape, ids, server) > 0 {
                return Ok(Some(Wait::new(Flag::Record, shape.relay(core.rank, server), &[record])));
            }
        }
        Ok(None)
    }

    fn sum(&self, cx: &mut Turn<'_, impl Fabric + ?Sized>) -> Result<()> {
        let Turn { core, fabric, inputs, words, buffers, .. } = cx;
        let (core, fabric) = (*core, &mut **fabric);
        let (shape, token) = (core.shape, Token(self.token));
        let ids = inputs.ids(shape, token);
        let Buffers { send, sums, out, .. } = buffers;
        let own = room(send, shape.result_bytes())?;
        let here = plan::pairs(shape, ids, core.work.server);
        if here > 0 {
            sum::partial(core, fabric, (core.work.server, token, here), sums, own)?;
        }
        fill_output(fabric, outputs::x_out(shape, token), out, |fabric, out| {
            let mut terms = heapless::Vec::<Term<'_>, K_MAX>::new();
            for server in (0..shape.servers()).filter(|&server| plan::pairs(shape, ids, server) > 0) {
                let row = if server == core.work.server {
                    &*own
                } else {
                    let (_, numbers) = words.followed(core, server)?;
                    let record = number_of(core, numbers, token).wrapping_sub(1);
                    let at = core.record(server, record);
                    fabric.bytes(behind(at, ROW), shape.result_bytes())?
                };
                terms
                    .push(Term { weight: 1.0, value: as_travelled(shape, row) })
                    .map_err(|_| internal("more servers than K allows"))?;
            }
            core.vector.weighted_sum(shape.dtype(), &terms, prefetches(fabric), out);
            Ok(())
        })
    }
}

/// Returns the entry of a token of the core's share.
fn number_of(core: Now<'_>, numbers: &[u32], token: Token) -> u32 {
    numbers.get((token.0 - core.work.tokens.start) as usize).copied().unwrap_or(0)
}

/// Processes all records of a stream that have arrived, and its end. Returns the wait if there is nothing to process.
fn follow(cx: &mut Turn<'_, impl Fabric + ?Sized>, server: u32) -> Result<Option<Wait>> {
    let Turn { core, fabric, inputs, words, .. } = cx;
    let (core, fabric) = (*core, &**fabric);
    let shape = core.shape;
    let (taken, numbers) = words.followed(core, server)?;
    let before = *taken;
    let needed = |token: u32| plan::pairs(shape, inputs.ids(shape, Token(token)), server);
    loop {
        let record = *taken;
        match stream::next(core, fabric, server, record)? {
            Next::Missing(wait) => return Ok((record == before).then_some(wait)),
            Next::End => {
                let all = (0..shape.bs(core.rank)).filter(|&token| needed(token) > 0).count() as u32;
                if record != all {
                    return Err(stream::wrong(core, server, record, "records", record));
                }
                *taken = ENDED;
                return Ok(None);
            }
            Next::Record => {
                let (token, pairs) = stream::token_and_pairs(core, fabric, server, record)?;
                if token >= shape.bs(core.rank) || pairs == 0 || pairs != needed(token) {
                    return Err(stream::wrong(core, server, record, "token", token));
                }
                if core.work.tokens.contains(&token) {
                    let entry = numbers.get_mut((token - core.work.tokens.start) as usize);
                    let entry = entry.ok_or(SHORT_WORDS)?;
                    if *entry != 0 {
                        return Err(stream::wrong(core, server, record, "token", token));
                    }
                    *entry = record + 1;
                }
                *taken = record + 1;
            }
        }
    }
}
