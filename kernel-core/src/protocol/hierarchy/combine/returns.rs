//! Results to the relay of their source: the near rank with the same number. Behind them word to all near ranks that there
//! are no more, and word from them.

use super::super::{Bound, Now};
use super::{Row, Turn};
use crate::fabric::{Fabric, Flag, Progress, Wait};
use crate::layout::relay::{self, Part, ROW, behind};
use crate::place::Place;
use crate::plan::split;
use crate::protocol::{Outcome, Types};
use crate::units::{CoreId, RankId, Token};
use core::ops::Range;

/// The role of an expert.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Returns {
    rows: Range<u32>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Near ranks still read their near areas.
    Entered,
    /// Put the next row.
    Put,
    /// Publish its flag.
    Flag,
    /// All flags have landed.
    Quiet,
    /// Say so to a near rank.
    RowsDone { near: u32 },
    /// Hear it of all cores of near ranks; of so many it is known.
    Hear { heard: u32 },
}

phase_names! { Phase of "Return.": Entered Put Flag Quiet RowsDone Hear }

impl Returns {
    pub(super) const fn new() -> Self {
        Self { rows: 0..0, phase: Phase::Entered }
    }

    /// The name of the phase that it is in.
    pub(crate) const fn phase(&self) -> &'static str {
        self.phase.name()
    }

    pub(super) fn begin<V>(&mut self, env: Bound<'_, V>, rows: u32) {
        self.rows = split::rows(env.shape, rows, env.core);
    }

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Types>) -> Outcome {
        let Turn { env, fabric, operands, .. } = cx;
        let (env, fabric) = (*env, &mut **fabric);
        self.phase = match self.phase {
            Phase::Entered => match env.outside(fabric)? {
                Some(wait) => return Ok(Progress::Pending(wait)),
                None => Phase::Put,
            },
            Phase::Put if self.rows.is_empty() => Phase::Quiet,
            Phase::Put => {
                let Row { y, triple, weight } = operands.relayed_row(env.shape, self.rows.start)?;
                let (to, at) = slot(env, triple);
                fabric.put(to, behind(at, ROW), y, &weight)?;
                Phase::Flag
            }
            Phase::Flag => {
                let Row { triple, .. } = operands.relayed_row(env.shape, self.rows.start)?;
                let (to, at) = slot(env, triple);
                fabric.publish(to, at, relay::mark(env.epoch.number, triple.2.pairs))?;
                self.rows.start += 1;
                Phase::Put
            }
            // Publishes are not ordered: without this the next word could be seen before a flag.
            Phase::Quiet if !fabric.quiet()? => return Ok(Progress::Pending(Wait::QUIET)),
            Phase::Quiet => Phase::RowsDone { near: 0 },
            Phase::RowsDone { near } if near >= env.shape.server_ranks() => Phase::Hear { heard: 0 },
            Phase::RowsDone { near } => {
                fabric.publish(
                    env.near(near),
                    relay::rows_done(env.work.number, env.core),
                    env.epoch.number,
                )?;
                Phase::RowsDone { near: near + 1 }
            }
            // As many as there are, and none of them again: they are as many as the server has cores.
            Phase::Hear { heard: before } => {
                let mut heard = before;
                while let Some((near, core)) = unheard(env, heard)
                    && fabric.observe(relay::rows_done(near, core))? >= env.epoch.number
                {
                    heard += 1;
                }
                if heard == before {
                    return Ok(self.missing(env).map_or(Progress::Done, Progress::Pending));
                }
                Phase::Hear { heard }
            }
        };
        Ok(Progress::Stepped)
    }

    /// What is to be heard next of near ranks that may still return rows, if any may.
    pub(super) fn missing<V>(&self, env: Now<'_, V>) -> Option<Wait> {
        let heard = if let Phase::Hear { heard } = self.phase { heard } else { 0 };
        unheard(env, heard).map(|(near, core)| Wait::new(Flag::RowsDone, env.near(near), &[core.0]))
    }
}

/// The near rank to which a row goes, and its slot there.
fn slot<V>(env: Now<'_, V>, (source, token, part): (RankId, Token, Part)) -> (RankId, Place) {
    let (server, number) = env.shape.server_of(source);
    (env.near(number), relay::combine_slot(env.shape, server, token, part.position))
}

/// The near rank, by its number, and its core that come behind so many.
fn unheard<V>(env: Now<'_, V>, heard: u32) -> Option<(u32, CoreId)> {
    let (near, core) = env.shape.by_cores(heard);
    (near < env.shape.server_ranks()).then_some((near, CoreId(core)))
}
