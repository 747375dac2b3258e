//! What may be chosen for a group, and what a shape leaves to be chosen.

use crate::layout::landing::{self, Area};
use crate::layout::state::Partition;
use crate::layout::{outputs, row_table};
use crate::place::Place;
use crate::plan::order::SendOrder;
use crate::shape::{CommAlg, Shape};

/// Choices that do not change results. Every core of every rank makes the same, for the life of a group. What a protocol
/// does not have to choose, it does not look at.
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
    /// and the driver lets no combine begin before.
    InPlace,
    /// In the window, one behind the other, where their sources have put them: the
    /// [direct](super::direct) machines.
    Direct {
        /// As many areas as batches are in flight, 1 or 2.
        areas: u32,
    },
}

impl Receive {
    /// Whether received rows stay in the window until their experts have ended: then experts run as late as may be, just
    /// before their combine.
    #[must_use]
    pub const fn keeps_rows(self) -> bool {
        !matches!(self, Self::Copy)
    }

    /// Where experts find so many rows, of which `table` is the [row table](row_table): stretches of memory in the order of
    /// the rows, each with its bytes.
    pub fn rows(self, shape: &Shape, rows: u32, table: &[u8]) -> impl Iterator<Item = (Place, u64)> {
        let (entries, in_each) = match self {
            Self::Copy => (0, rows),
            Self::InPlace => (rows, 1),
            Self::Direct { .. } => (1, rows),
        };
        let copied = (!self.keeps_rows()).then(|| outputs::expand_x(shape, 0));
        let len = u64::from(in_each) * shape.payload_bytes();
        copied.into_iter().chain(row_table::records(table, entries as usize)).map(move |at| (at, len))
    }

    /// Where experts leave what they return in the window; `None` if combine is handed it.
    #[must_use]
    pub fn results(self, table: &[u8]) -> Option<Place> {
        if let Self::Direct { .. } = self { row_table::records(table, 2).nth(1) } else { None }
    }

    /// The area of a batch whose dispatch uses `partition`.
    #[must_use]
    pub const fn area(self, partition: Partition) -> Area {
        match self {
            Self::Direct { areas: 2.. } => Area(partition.index()),
            _ => Area(0),
        }
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
    /// Whether every rank has an agent beside its cores: on the full mesh of A2, and in stage 2 of the hierarchy.
    #[must_use]
    pub fn has_agents(&self, shape: &Shape) -> bool {
        match shape.comm_alg() {
            CommAlg::Fullmesh => true,
            CommAlg::Hierarchy => self.stage == Stage::Two,
            CommAlg::FullmeshV1 | CommAlg::FullmeshV2 => false,
        }
    }

    /// Every combination that makes a difference for `shape`. What its protocol does not look at has its default.
    pub fn all(shape: &Shape) -> impl Iterator<Item = Self> {
        const FLAGS: [Flags; 2] = [Flags::Joint, Flags::Separate];
        const STAGES: [Stage; 2] = [Stage::Two, Stage::Three];
        const RECEIVES: [Receive; 4] =
            [Receive::Copy, Receive::InPlace, Receive::Direct { areas: 1 }, Receive::Direct { areas: 2 }];
        let all = SendOrder::ALL.into_iter().flat_map(|order| {
            FLAGS.into_iter().flat_map(move |flags| {
                STAGES.into_iter().flat_map(move |stage| {
                    RECEIVES.into_iter().map(move |receive| Self { order, flags, receive, stage })
                })
            })
        });
        all.filter(|choices| choices.receive.suits(shape) && choices.differs(shape))
    }

    /// Whether no choice is but another name for its default.
    fn differs(&self, shape: &Shape) -> bool {
        let Self { order, flags, receive, stage } = *self;
        let plain = shape.comm_alg() == CommAlg::FullmeshV1 && !matches!(receive, Receive::Direct { .. });
        let is_a3 = matches!(shape.comm_alg(), CommAlg::FullmeshV1 | CommAlg::FullmeshV2);
        let returns_rows = is_a3 && !matches!(receive, Receive::Direct { .. });
        let cores_issue = shape.comm_alg() == CommAlg::Hierarchy && stage == Stage::Three;
        (plain || flags == Flags::default())
            && (shape.comm_alg() == CommAlg::Hierarchy || stage == Stage::default())
            && (!cores_issue || order == SendOrder::default())
            // Where no rows go back by destination it is another name.
            && (returns_rows || order != SendOrder::Destinations)
    }
}

impl Receive {
    /// Whether a group of `shape` can receive so: only A3 without a TP domain has rows anywhere but in `expand_x`, in
    /// records that are whole. Direct placement reads results as experts left them, and its areas must fit.
    #[must_use]
    pub fn suits(self, shape: &Shape) -> bool {
        let in_window = shape.comm_alg() == CommAlg::FullmeshV1 && shape.tp_world_size() == 1;
        match self {
            Self::Copy => true,
            Self::InPlace => in_window,
            Self::Direct { areas } => {
                let fits = landing::required_bytes(shape, areas) <= shape.window_bytes();
                in_window && shape.result_format().scale.is_none() && fits
            }
        }
    }
}
