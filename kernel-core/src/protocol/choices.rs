//! What may be chosen for a group, and what a shape leaves to be chosen.

use super::Refused;
use crate::fabric::Capabilities;
use crate::layout::affine::Mode;
use crate::layout::direct::{self, Area};
use crate::layout::state::Partition;
use crate::layout::{outputs, row_table};
use crate::place::Place;
use crate::plan::order::SendOrder;
use crate::shape::{Protocol, Shape};

/// Choices that do not change results. Every core of every rank makes the same, for the life of a group. A protocol ignores
/// the fields that do not apply to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Choices {
    /// In which order cores send.
    pub order: SendOrder,
    /// How dispatch tells of records and of their number.
    pub flags: Flags,
    /// Where experts find received rows.
    pub receive: Receive,
    /// Who issues what goes to other servers, in a hierarchy.
    pub stage: Stage,
}

/// Where experts find received rows. What they find there is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Receive {
    /// In `expand_x`: rows are copied out of the window.
    #[default]
    Copy,
    /// In the window, by the [row table](crate::layout::row_table), which is written in place of `expand_x`. A batch's
    /// records are read until its experts have ended, so there must be a dispatch partition for each batch in flight,
    /// and the driver must not begin a batch's combine before its experts have ended.
    InPlace,
    /// In the window, one behind the other, where their sources have put them: the
    /// [direct](super::direct) machines.
    Direct {
        /// As many areas as batches are in flight, 1 or 2.
        areas: u32,
    },
    /// The same, and experts overwrite: what they return for a row takes the row's place. Only unquantised rows are as long
    /// as results.
    Overwrite {
        /// As many areas as batches are in flight, 1 or 2.
        areas: u32,
    },
}

impl Receive {
    /// Every mode that has a name of its own, for one batch in flight.
    pub const MODES: [Self; 3] = [Self::Copy, Self::InPlace, Self::Direct { areas: 1 }];

    /// Its name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::InPlace => "in-place",
            Self::Direct { .. } | Self::Overwrite { .. } => "direct",
        }
    }

    /// What it does, in a line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Copy => "Into the window, then out of it",
            Self::InPlace => "Into the window, where experts read them",
            Self::Direct { .. } | Self::Overwrite { .. } => {
                "Counts first, then each row once, to its final place; results are read where experts left them"
            }
        }
    }

    /// The same with so many batches in flight. Machines know two areas, as two partitions.
    #[must_use]
    pub const fn with_batches(self, in_flight: usize) -> Self {
        let areas = if in_flight < 2 { 1 } else { 2 };
        match self {
            Self::Direct { .. } => Self::Direct { areas },
            Self::Overwrite { .. } => Self::Overwrite { areas },
            other => other,
        }
    }

    /// Whether sources put rows where experts take them, and read results where experts left them: the
    /// [direct](super::direct) machines.
    #[must_use]
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Direct { .. } | Self::Overwrite { .. })
    }

    /// Whether results take the places of the rows that they came from.
    #[must_use]
    pub const fn overwrites(self) -> bool {
        matches!(self, Self::Overwrite { .. })
    }

    /// Every mode, for one batch in flight and for two.
    fn every() -> impl Iterator<Item = Self> {
        let batches = |mode: Self| 1..=1 + usize::from(mode.is_direct());
        let modes = Self::MODES.into_iter().chain([Self::Overwrite { areas: 1 }]);
        modes.flat_map(move |mode| batches(mode).map(move |n| mode.with_batches(n)))
    }

    /// Areas of rows that sources put in place; none if they put records.
    #[must_use]
    pub const fn areas(self) -> u32 {
        if let Self::Direct { areas } | Self::Overwrite { areas } = self { areas } else { 0 }
    }

    /// Whether received rows stay in the window until their experts have ended: then experts run as late as may be, just
    /// before their combine.
    #[must_use]
    pub const fn keeps_rows(self) -> bool {
        !matches!(self, Self::Copy)
    }

    /// Where the first `rows` received rows lie, by the [row table](row_table) `table`: stretches of memory in the order of
    /// the rows, each with its bytes.
    pub fn rows(self, shape: &Shape, rows: u32, table: &[u8]) -> impl Iterator<Item = (Place, u64)> {
        let (entries, in_each) = match self {
            Self::Copy => (0, rows),
            Self::InPlace => (rows, 1),
            Self::Direct { .. } | Self::Overwrite { .. } => (1, rows),
        };
        let copied = (!self.keeps_rows()).then(|| outputs::expand_x(shape, 0));
        let len = u64::from(in_each) * shape.payload_bytes();
        copied.into_iter().chain(row_table::records(table, entries as usize)).map(move |at| (at, len))
    }

    /// Where experts leave what they return in the window; `None` if combine is handed it.
    #[must_use]
    pub fn results(self, table: &[u8]) -> Option<Place> {
        if self.is_direct() { row_table::records(table, 2).nth(1) } else { None }
    }

    /// The area of a batch whose dispatch uses `partition`.
    #[must_use]
    pub const fn area(self, partition: Partition) -> Area {
        let number = if self.areas() > 1 { partition.index() } else { 0 };
        Area { number, overwritten: self.overwrites() }
    }
}

/// How dispatch of the plain layout tells of records and of their number (seed 004 section 2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flags {
    /// One word with flag and count, behind the records.
    #[default]
    Joint,
    /// `CountFlag` with the count before the records, `TokenFlag` behind them: the receiver knows where rows go
    /// while they are still on their way.
    Separate,
}

/// Who issues what goes to other servers (seed 001).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The agent: one task for each other server.
    Two,
    /// The cores: a message for each token.
    #[default]
    Three,
}

impl Choices {
    /// Whether a group of `shape` can make these choices on a memory with these `capabilities`.
    ///
    /// # Errors
    /// The shape has no such choice, this build has no such machines, or the memory lacks a call that they would make.
    pub fn check(self, shape: &Shape, capabilities: Capabilities) -> Result<(), Refused> {
        if !self.receive.suits(shape) {
            return Err(Refused::Receive(self.receive));
        }
        if let Some(feature) = left_out(shape, self) {
            return Err(Refused::LeftOut { feature });
        }
        let missing = self.needs(shape).difference(capabilities);
        if missing.is_empty() { Ok(()) } else { Err(Refused::Capabilities { missing }) }
    }

    /// The optional calls that machines make under these choices.
    #[must_use]
    pub fn needs(self, shape: &Shape) -> Capabilities {
        let is_hierarchy = shape.protocol() == Protocol::Hierarchy;
        let mut needed = Capabilities::empty();
        needed.set(Capabilities::PEER_BYTES, self.receive.is_direct());
        needed.set(Capabilities::SEND, is_hierarchy && self.stage == Stage::Three && shape.servers() > 1);
        needed
    }

    /// What they mean for where things lie.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        Mode {
            landings: self.receive.areas(),
            overwritten: self.receive.overwrites(),
            separate: matches!(self.flags, Flags::Separate),
            streams: matches!(self.stage, Stage::Two),
        }
    }

    /// Whether every rank has an agent beside its cores: on the full mesh of A2, and in stage 2 of the hierarchy.
    #[must_use]
    pub fn has_agents(&self, shape: &Shape) -> bool {
        match shape.protocol() {
            Protocol::Fullmesh => true,
            Protocol::Hierarchy => self.stage == Stage::Two,
            Protocol::FullmeshV1 | Protocol::FullmeshV2 => false,
        }
    }

    /// All combinations that differ for `shape`. Fields that its protocol ignores have their default.
    pub fn all(shape: &Shape) -> impl Iterator<Item = Self> {
        const FLAGS: [Flags; 2] = [Flags::Joint, Flags::Separate];
        const STAGES: [Stage; 2] = [Stage::Two, Stage::Three];
        let all = SendOrder::ALL.into_iter().flat_map(|order| {
            FLAGS.into_iter().flat_map(move |flags| {
                STAGES.into_iter().flat_map(move |stage| {
                    Receive::every().map(move |receive| Self { order, flags, receive, stage })
                })
            })
        });
        all.filter(|choices| choices.receive.suits(shape) && choices.differs(shape))
    }

    /// Whether no choice is but another name for its default.
    fn differs(&self, shape: &Shape) -> bool {
        let Self { order, flags, receive, stage } = *self;
        let is_a3 = matches!(shape.protocol(), Protocol::FullmeshV1 | Protocol::FullmeshV2);
        let plain = shape.protocol() == Protocol::FullmeshV1 && !receive.is_direct();
        let returns_rows = is_a3 && !receive.is_direct();
        let cores_issue = shape.protocol() == Protocol::Hierarchy && stage == Stage::Three;
        (plain || flags == Flags::default())
            && (shape.protocol() == Protocol::Hierarchy || stage == Stage::default())
            && (!cores_issue || order == SendOrder::default())
            // Where no rows go back by destination it is another name.
            && (returns_rows || order != SendOrder::Destinations)
    }
}

impl Receive {
    /// Whether a group of `shape` can receive so: only A3 without a TP domain has rows anywhere but in `expand_x`, in
    /// records that are whole. Direct placement reads results as experts left them, and its areas must fit; experts overwrite
    /// rows that are as long as results.
    #[must_use]
    pub fn suits(self, shape: &Shape) -> bool {
        let in_window = shape.protocol() == Protocol::FullmeshV1 && shape.tp_world_size() == 1;
        let fits = || {
            shape.result_format().scale.is_none()
                && !(self.overwrites() && shape.row_format().scale.is_some())
                && matches!(self.areas(), 1..=2)
                && direct::required_bytes(shape, self.areas(), self.overwrites()) <= shape.window_bytes()
        };
        !self.keeps_rows() || in_window && (!self.is_direct() || fits())
    }
}

/// The feature that a group would need and that is left out.
fn left_out(shape: &Shape, choices: Choices) -> Option<&'static str> {
    let (built, feature) = match (shape.protocol(), choices.receive) {
        (Protocol::Fullmesh, _) => (cfg!(feature = "a2"), "a2"),
        (Protocol::Hierarchy, _) => (cfg!(feature = "hierarchy"), "hierarchy"),
        (Protocol::FullmeshV2, _) if !cfg!(feature = "a3-v2") => (false, "a3-v2"),
        (_, receive) if receive.is_direct() => (cfg!(feature = "direct"), "direct"),
        _ => (cfg!(feature = "tp") || shape.tp_world_size() == 1, "tp"),
    };
    (!built).then_some(feature)
}
