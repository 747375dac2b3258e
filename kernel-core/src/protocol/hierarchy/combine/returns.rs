//! Results go to the relay of their source: the near rank with the same number. After them the core announces to all near
//! ranks that it returns no more, and awaits the same announcement from them.

use super::super::{Bound, Now};
use super::{Row, Turn};
use crate::fabric::{Fabric, Flag, Progress, Wait};
use crate::layout::relay::{self, Part, ROW, behind};
use crate::place::Place;
use crate::plan::split;
use crate::protocol::kit::{Outcome, Types};
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
    /// Await the near ranks that still read their near areas.
    Entered,
    /// Put the next row.
    Put,
    /// Publish its flag.
    Flag,
    /// Wait until all flags have landed.
    Quiet,
    /// Announce the end of the rows to a near rank.
    RowsDone { near: u32 },
    /// Await the announcements of all cores of near ranks, of which `heard` have arrived.
    Hear { heard: u32 },
}

phase_names! { Phase of "Return." in Returns: Entered Put Flag Quiet RowsDone Hear }

impl Returns {
    pub(super) const fn new() -> Self {
        Self { rows: 0..0, phase: Phase::Entered }
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
            // Publishes are not ordered: without quiet the next word could be seen before a flag.
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
            // One step takes all announcements that have arrived, at most one for each core of the server, and reads none
            // of them twice.
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

    /// Returns the next announcement to await from near ranks that may still return rows, if there is one.
    pub(super) fn missing<V>(&self, env: Now<'_, V>) -> Option<Wait> {
        let heard = if let Phase::Hear { heard } = self.phase { heard } else { 0 };
        unheard(env, heard).map(|(near, core)| Wait::new(Flag::RowsDone, env.near(near), &[core.0]))
    }
}

/// Returns the near rank to which a row goes, and the row's slot there.
fn slot<V>(env: Now<'_, V>, (source, token, part): (RankId, Token, Part)) -> (RankId, Place) {
    let (server, number) = env.shape.server_of(source);
    (env.near(number), relay::combine_slot(env.shape, server, token, part.position))
}

/// Returns the near rank, by its number, and its core whose announcement follows the first `heard` ones.
fn unheard<V>(env: Now<'_, V>, heard: u32) -> Option<(u32, CoreId)> {
    let (near, core) = env.shape.by_cores(heard);
    (near < env.shape.server_ranks()).then_some((near, CoreId(core)))
}
