//! The receiving half: for each own token await the flags of its rows and clear them.

use super::{Combine, Phase};
use crate::fabric::{Fabric, Flag, Wait};
use crate::layout::state::combine_slot;
use crate::protocol::kit::sum::Output;
use crate::protocol::kit::{Context, Outcome, await_pairs, next_pair, was_taken};
use crate::sync::flag;
use crate::units::Token;

impl Combine {
    pub(super) fn await_token(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        token: Token,
        first: u32,
    ) -> Outcome {
        if cx.core.is_past_tokens(token.0, cx.inputs) {
            return self.go(Phase::Done);
        }
        let reached = await_pairs(cx.core, cx.inputs, token, first, |k, home| {
            let at = cx
                .core
                .choices
                .slots
                .combine_status(self.turn.partition, combine_slot(cx.core.shape, token, k));
            flag::missing(cx.fabric, at, self.turn.tags, Wait::new(Flag::Combine, home.rank, &[token.0, k]))
        })?;
        match reached {
            Some(reached) => reached.then(|k| self.go(Phase::Await { token, k })),
            None => self.go(Phase::Clear { token, k: 0 }),
        }
    }

    pub(super) fn clear(
        &mut self,
        cx: &mut Context<'_, impl Fabric + ?Sized>,
        token: Token,
        first: u32,
    ) -> Outcome {
        let mut k = first;
        for _ in 0..cx.core.run {
            let Some((next, _)) = next_pair(cx.core, cx.inputs, token, k) else {
                return self.go(Phase::Write { token, output: Output::Sum });
            };
            let at = cx
                .core
                .choices
                .slots
                .combine_status(self.turn.partition, combine_slot(cx.core.shape, token, next));
            if !was_taken(k > first, cx.fabric.store(at, 0))? {
                break;
            }
            k = next + 1;
        }
        self.go(Phase::Clear { token, k })
    }
}
