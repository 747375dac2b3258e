//! The role of a sender: own tokens go to other servers one by one, followed by the ends of the streams and `expand_idx`.

use super::super::issue::{self, Issued};
use super::super::row_of;
use super::super::stream::write_front;
use super::{Turn, word};
use crate::fabric::{Fabric, Progress, Result};
use crate::inputs::Inputs;
use crate::layout::relay;
use crate::placement::Home;
use crate::plan::relay as plan;
use crate::protocol::kit::{self, Core, Outcome, SHORT_BYTES, Staged, room};
use crate::units::Token;

/// The role of a sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Send {
    phase: Phase,
    /// The token that is quantised in the buffer.
    staged: Option<Staged>,
    pub(super) issued: Issued,
}

phases! {
    enum Phase of "Send." in Send {
        /// Send a token to a server of this core's share, or to the next server that needs it.
        Record { token: u32, server: u32 } => Record | End,
        /// End the stream to a server.
        End { server: u32, step: u32 } => End | Ring,
        /// Ring the agent's doorbell.
        Ring => ExpandIdx,
        /// Write a part of `expand_idx`.
        ExpandIdx { pair: u32 } => ExpandIdx | Ended,
        /// The role has ended.
        Ended =>,
    }
}

go! { Send }

impl Send {
    pub(super) const fn new() -> Self {
        Self { phase: Phase::Record { token: 0, server: 0 }, staged: None, issued: Issued::new() }
    }

    /// Returns whether all streams have ended, and the agent knows.
    pub(super) const fn has_sent(&self) -> bool {
        matches!(self.phase, Phase::ExpandIdx { .. } | Phase::Ended)
    }

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Fabric + ?Sized>) -> Outcome {
        let (core, inputs) = (cx.core, cx.inputs);
        let others = |from| core.work.streams.clone().filter(move |&s| s >= from && s != core.work.server);
        let next = match self.phase {
            Phase::Record { token, server } => {
                let needs =
                    |token, server| plan::pairs(core.shape, inputs.ids(core.shape, Token(token)), server) > 0;
                let of = |token, from| others(from).map(move |server| (token, server));
                let rest = (token + 1..core.shape.bs(core.rank)).flat_map(|token| of(token, 0));
                let own = of(token, server).take_while(|_| token < core.shape.bs(core.rank));
                match own.chain(rest).find(|&(token, server)| needs(token, server)) {
                    Some((token, server)) => {
                        self.record(cx, Token(token), server)?;
                        Phase::Record { token, server: server + 1 }
                    }
                    None => Phase::End { server: 0, step: 0 },
                }
            }
            Phase::End { server, step } => match others(server).next() {
                Some(server) => {
                    let records = *word(cx.words.records, server)?;
                    match issue::end(core, cx.fabric, (server, records), step)? {
                        Some(step) => Phase::End { server, step },
                        None => Phase::End { server: server + 1, step: 0 },
                    }
                }
                None => Phase::Ring,
            },
            Phase::Ring => match self.issued.step(core, cx.fabric)? {
                Progress::Done => Phase::ExpandIdx { pair: core.work.sends.moe.start },
                progress => return Ok(progress),
            },
            Phase::ExpandIdx { pair } => {
                match kit::expand_idx(cx.fabric, &core.work.sends.moe, cx.words.slots, pair)? {
                    Some(pair) => Phase::ExpandIdx { pair },
                    None => Phase::Ended,
                }
            }
            Phase::Ended => return Ok(Progress::Done),
        };
        self.go(next)
    }

    fn record(&mut self, cx: &mut Turn<'_, impl Fabric + ?Sized>, token: Token, server: u32) -> Result<()> {
        let Turn { core, fabric, inputs, words, buffers, .. } = cx;
        let (core, buffer) = (*core, &mut *buffers.send);
        let pairs = plan::pairs(core.shape, inputs.ids(core.shape, token), server);
        write_record(*core, inputs, &mut self.staged, buffer, token)?;
        write_front(buffer, core.epoch, token.0, pairs);
        let record = word(words.records, server)?;
        let message = room(buffer, relay::token_bytes(core.shape))?;
        issue::record(core, *fabric, (server, *record), message)?;
        *record += 1;
        Ok(())
    }
}

/// Writes row, scale, ids and weights of a token into `record`.
pub(super) fn write_record(
    core: Core<'_>,
    inputs: &Inputs<'_>,
    staged: &mut Option<Staged>,
    record: &mut [u8],
    token: Token,
) -> Result<()> {
    let shape = core.shape;
    let row = row_of(record, shape.payload_bytes())?;
    // A hierarchy has no smooth scales, so a token is the same for all experts.
    let any = Home { rank: core.rank, local_expert: 0 };
    let scale = kit::write_payload(core, inputs, row, staged, token, any)?;
    write_lists(core, inputs, record, token, scale)
}

/// Writes scale, ids and weights of a token into `record`.
pub(super) fn write_lists(
    core: Core<'_>,
    inputs: &Inputs<'_>,
    record: &mut [u8],
    token: Token,
    scale: f32,
) -> Result<()> {
    let shape = core.shape;
    let field = |from: u64, to: u64| from as usize..to as usize;
    let (ids, weights) = (relay::record_ids(shape), relay::record_weights(shape));
    let to = record.get_mut(field(relay::record_scale(shape), ids)).and_then(<[u8]>::first_chunk_mut);
    *to.ok_or(SHORT_BYTES)? = scale.to_le_bytes();
    let lists = record.get_mut(field(ids, relay::token_bytes(shape))).ok_or(SHORT_BYTES)?;
    let (ids, weights) = lists.split_at_mut_checked((weights - ids) as usize).ok_or(SHORT_BYTES)?;
    for (to, id) in ids.as_chunks_mut().0.iter_mut().zip(inputs.ids(shape, token)) {
        *to = id.to_le_bytes();
    }
    for (to, weight) in weights.as_chunks_mut().0.iter_mut().zip(inputs.weights(shape, token)) {
        *to = weight.to_le_bytes();
    }
    Ok(())
}
