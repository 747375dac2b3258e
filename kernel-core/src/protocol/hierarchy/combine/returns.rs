//! Results go to the relay of their source: the near rank with the same number. After them the core announces to all near
//! ranks that it returns no more, and awaits the same announcement from them.

use super::super::Now;
use super::{Row, Turn};
use crate::fabric::{Fabric, Flag, Progress, Wait};
use crate::layout::relay::{self, Part, ROW, behind};
use crate::place::Place;
use crate::plan::split;
use crate::protocol::kit::{Core, Outcome};
use crate::units::{CoreId, RankId, Token};
use core::ops::Range;

/// The role of an expert.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Returns {
    rows: Range<u32>,
    phase: Phase,
}

phases! {
    enum Phase of "Return." in Returns {
        /// Await the near ranks that still read their near areas.
        Entered => Put,
        /// Put the next row.
        Put => Flag | Quiet,
        /// Publish its flag.
        Flag => Put,
        /// Wait until all flags have landed.
        Quiet => RowsDone,
        /// Announce the end of the rows to a near rank.
        RowsDone { near: u32 } => RowsDone | Hear,
        /// Await the announcements of all cores of near ranks, of which `heard` have arrived.
        Hear { heard: u32 } => Hear,
    }
}

go! { Returns }

impl Returns {
    pub(super) const fn new() -> Self {
        Self { rows: 0..0, phase: Phase::Entered }
    }

    pub(super) fn begin(&mut self, core: Core<'_>, rows: u32) {
        self.rows = split::rows(core.shape, rows, core.id);
    }

    pub(super) fn step(&mut self, cx: &mut Turn<'_, impl Fabric + ?Sized>) -> Outcome {
        let Turn { core, fabric, combine_inputs, .. } = cx;
        let (core, fabric) = (*core, &mut **fabric);
        let next = match self.phase {
            Phase::Entered => match core.outside(fabric)? {
                Some(wait) => return Ok(Progress::Pending(wait)),
                None => Phase::Put,
            },
            Phase::Put if self.rows.is_empty() => Phase::Quiet,
            Phase::Put => {
                let row = combine_inputs.relayed_row(core.shape, self.rows.start)?;
                let Row { y, triple: (source, token, part), weight } = row;
                let (to, at) = slot(core, source, token, part);
                fabric.put(to, behind(at, ROW), y, &weight)?;
                Phase::Flag
            }
            Phase::Flag => {
                let row = combine_inputs.relayed_row(core.shape, self.rows.start)?;
                let Row { triple: (source, token, part), .. } = row;
                let (to, at) = slot(core, source, token, part);
                fabric.publish(to, at, relay::mark(core.epoch.word, part.pairs))?;
                self.rows.start += 1;
                Phase::Put
            }
            // Publishes are not ordered: without quiet the next word could be seen before a flag.
            Phase::Quiet if !fabric.quiet()? => return Ok(Progress::Pending(Wait::QUIET)),
            Phase::Quiet => Phase::RowsDone { near: 0 },
            Phase::RowsDone { near } if near >= core.shape.server_ranks() => Phase::Hear { heard: 0 },
            Phase::RowsDone { near } => {
                fabric.publish(
                    core.near(near),
                    relay::rows_done(core.work.number, core.id),
                    core.epoch.word,
                )?;
                Phase::RowsDone { near: near + 1 }
            }
            // One step takes all announcements that have arrived, at most one for each core of the server, and reads none
            // of them twice.
            Phase::Hear { heard: before } => {
                let mut heard = before;
                while let Some((near, other)) = unheard(core, heard)
                    && core.epoch.is_reached(fabric.observe(relay::rows_done(near, other))?, || {
                        rows_done(core, near, other)
                    })?
                {
                    heard += 1;
                }
                if heard == before {
                    return Ok(self.missing(core).map_or(Progress::Done, Progress::Pending));
                }
                Phase::Hear { heard }
            }
        };
        self.go(next)
    }

    /// Returns the next announcement to await from near ranks that may still return rows, if there is one.
    pub(super) fn missing(&self, core: Now<'_>) -> Option<Wait> {
        let heard = if let Phase::Hear { heard } = self.phase { heard } else { 0 };
        unheard(core, heard).map(|(near, other)| rows_done(core, near, other))
    }
}

/// Returns the near rank to which a row goes, and the row's slot there.
fn slot(core: Now<'_>, source: RankId, token: Token, part: Part) -> (RankId, Place) {
    let (server, number) = core.shape.server_of(source);
    (core.near(number), relay::combine_slot(core.shape, server, token, part.position))
}

/// Returns the wait for the announcement of a core of near rank number `near`.
fn rows_done(core: Now<'_>, near: u32, other: CoreId) -> Wait {
    Wait::new(Flag::RowsDone, core.near(near), &[other.0])
}

/// Returns the near rank, by its number, and its core whose announcement follows the first `heard` ones.
fn unheard(core: Now<'_>, heard: u32) -> Option<(u32, CoreId)> {
    let (near, other) = core.shape.by_cores(heard);
    (near < core.shape.server_ranks()).then_some((near, CoreId(other)))
}
