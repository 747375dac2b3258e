//! The choices of a group, and the ones that a shape allows.

use super::Refused;
use super::kit::Family;
use crate::fabric::{Capabilities, Terms, WORD};
use crate::layout::affine::Mode;
use crate::layout::direct::{self, Area};
use crate::layout::state::{COMBINE_STATUS, DISPATCH_STATUS, Partition, Slots};
use crate::layout::{outputs, row_table};
use crate::place::Place;
use crate::plan::order::SendOrder;
use crate::shape::{Product, Protocol, RowFormat, Seen, Shape};
use crate::sync::call::Untagged;
use crate::units::div_floor;

/// Choices that do not change results. Every core of every rank makes the same choices, for the life of a group. A protocol
/// ignores the fields that do not apply to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Choices {
    /// The order in which cores send.
    pub order: SendOrder,
    /// The flags that announce records and their number in dispatch.
    pub flags: Flags,
    /// The place where experts find received rows.
    pub receive: Receive,
    /// The issuer of messages to other servers, in a hierarchy.
    pub stage: Stage,
    /// Every flag and count has the number of its call beside it ([`Inputs::call`](crate::inputs::Inputs::call)), so that a
    /// rank which leaves out a numbered call is refused by name. Without it words are as the shipped operators write them.
    pub checked: bool,
    /// The distance of the status slots of A3, for memories that write back whole lines.
    pub slots: Slots,
}

/// The place where experts find received rows. The rows are the same in all modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Receive {
    /// In `expand_x`: rows are copied out of the window.
    #[default]
    Copy,
    /// In the window, by the [row table](crate::layout::row_table), which is written in place of `expand_x`. A batch's
    /// records are read until its experts have ended, so there must be a dispatch partition for each batch in flight,
    /// and the driver must not begin a batch's combine before its experts have ended.
    InPlace,
    /// In the window, one after the other, where their sources put them: the [direct](super::direct) machines.
    Direct {
        /// The number of areas, one for each batch in flight: 1 or 2.
        areas: u32,
    },
    /// Like `Direct`, and an expert's result overwrites the row that it was computed from. This needs unquantised rows,
    /// which are as long as results.
    Overwrite {
        /// The number of areas, one for each batch in flight: 1 or 2.
        areas: u32,
    },
}

impl Receive {
    /// Every mode with a name of its own, for one batch in flight.
    pub const MODES: [Self; 3] = [Self::Copy, Self::InPlace, Self::Direct { areas: 1 }];

    /// Returns the mode's name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::InPlace => "in-place",
            Self::Direct { .. } | Self::Overwrite { .. } => "direct",
        }
    }

    /// Returns a description of the mode in one line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Copy => "Copied from the window into expand_x",
            Self::InPlace => "In the window, as they arrived",
            Self::Direct { .. } | Self::Overwrite { .. } => {
                "Placed once at their final place; combine reads results where experts left them"
            }
        }
    }

    /// Returns this mode for `in_flight` batches in flight. There are at most two areas, as there are two partitions.
    #[must_use]
    pub const fn with_batches(self, in_flight: usize) -> Self {
        let areas = if in_flight < 2 { 1 } else { 2 };
        match self {
            Self::Direct { .. } => Self::Direct { areas },
            Self::Overwrite { .. } => Self::Overwrite { areas },
            other => other,
        }
    }

    /// Returns whether sources put rows where experts read them, and read results where experts wrote them: the
    /// [direct](super::direct) machines.
    #[must_use]
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Direct { .. } | Self::Overwrite { .. })
    }

    /// Returns whether results overwrite the rows that they were computed from.
    #[must_use]
    pub const fn overwrites(self) -> bool {
        matches!(self, Self::Overwrite { .. })
    }

    /// Returns every mode, for one batch in flight and for two.
    fn every() -> impl Iterator<Item = Self> {
        let batches = |mode: Self| 1..=1 + usize::from(mode.is_direct());
        let modes = Self::MODES.into_iter().chain([Self::Overwrite { areas: 1 }]);
        modes.flat_map(move |mode| batches(mode).map(move |n| mode.with_batches(n)))
    }

    /// Returns the number of areas of directly placed rows; 0 if sources put records.
    #[must_use]
    pub const fn areas(self) -> u32 {
        if let Self::Direct { areas } | Self::Overwrite { areas } = self { areas } else { 0 }
    }

    /// Returns whether received rows stay in the window until their experts have ended. Then experts run as late as
    /// possible, just before their combine.
    #[must_use]
    pub const fn keeps_rows(self) -> bool {
        !matches!(self, Self::Copy)
    }

    /// Returns the memory that holds the first `rows` received rows, according to the [row table](row_table) `table`:
    /// places in the order of the rows, each with its length in bytes.
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

    /// Returns the place in the window where experts write their results; `None` if they are passed to combine.
    #[must_use]
    pub fn results(self, table: &[u8]) -> Option<Place> {
        if self.is_direct() { row_table::records(table, 2).nth(1) } else { None }
    }

    /// Returns the area of a batch whose dispatch uses `partition`.
    #[must_use]
    pub const fn area(self, partition: Partition) -> Area {
        let number = if self.areas() > 1 { partition.index() } else { 0 };
        Area { number, overwritten: self.overwrites() }
    }
}

named! {
    /// The flags that announce records and their number in dispatch of the plain layout (910C guide, section 2.4).
    #[derive(Default)]
    Flags {
        /// One word with flag and count, published after the records.
        #[default]
        Joint = "joint",
        /// `CountFlag` with the count before the records, `TokenFlag` after them. The receiver computes the rows' destinations
        /// while the rows are still on their way.
        Separate = "separate",
    }
}

/// The issuer of messages to other servers (A2 stages article).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The agent, with one task for each other server.
    Two,
    /// The cores, with one message for each token.
    #[default]
    Three,
}

impl Choices {
    /// Checks that a group of `shape` can make these choices on a memory of these `terms`.
    ///
    /// # Errors
    /// The shape does not allow the choice, this build lacks the machines, or the memory lacks a call that they would make, or has
    /// longer lines than the layout keeps apart.
    pub fn check(self, shape: &Shape, terms: Terms) -> Result<(), Refused> {
        self.family(shape, terms).map(|_| ())
    }

    /// Returns the family of the group's machines, checked like [`check`](Self::check).
    pub(super) fn family(self, shape: &Shape, Terms { calls, line }: Terms) -> Result<Family, Refused> {
        if !self.receive.suits(shape) {
            return Err(Refused::Receive(self.receive));
        }
        self.check_slots(shape)?;
        let family = Family::of(shape, &self).map_err(|feature| Refused::LeftOut { feature })?;
        let missing = self.needs(shape).difference(calls);
        if !missing.is_empty() {
            return Err(Refused::Capabilities { missing });
        }
        let apart = self.keeps_apart(shape);
        if line > apart { Err(Refused::Line { line, apart }) } else { Ok(family) }
    }

    /// Checks that the group has status slots in lines of their own if it chooses them.
    fn check_slots(self, shape: &Shape) -> Result<(), Refused> {
        if self.slots == Slots::Shipped {
            return Ok(());
        }
        if let Some([what, seen, rule]) = self.slots_excluded_by(shape).next() {
            return Err(Refused::Slots { what, seen, rule });
        }
        let slots = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let areas = [
            (
                "local_expert_num * ep_world_size",
                slots(shape.local_expert_num(), shape.ep_world_size()),
                DISPATCH_STATUS,
            ),
            (
                "max_bs * (k + shared_expert_num)",
                slots(shape.bs_max(), shape.combine_columns()),
                COMBINE_STATUS,
            ),
        ];
        let full = areas.into_iter().find(|(_, slots, bytes)| slots * self.slots.bytes() > *bytes);
        match full {
            Some((what, seen, bytes)) => {
                Err(Refused::SlotsRoom { what, seen, most: div_floor(bytes, self.slots.bytes()) })
            }
            None => Ok(()),
        }
    }

    /// Returns each parameter and choice that excludes status slots in lines of their own, with its value and the values that do
    /// not. Where they are excluded, a slot has two words, or words have other neighbours than slots.
    fn slots_excluded_by(self, shape: &Shape) -> impl Iterator<Item = [&'static str; 3]> {
        let protocol = shape.protocol();
        let rules = [
            (protocol.product() != Product::A3, ["product", "a2", "a3"]),
            (protocol == Protocol::FullmeshV2, ["comm_alg", "fullmesh_v2", "\"\" or fullmesh_v1"]),
            (shape.tp_world_size() == 2, ["tp_world_size", "2", "0 or 1"]),
            (self.receive.is_direct(), ["receive", self.receive.name(), "copy or in-place"]),
            (self.flags == Flags::Separate, ["flags", self.flags.name(), "joint"]),
        ];
        rules.into_iter().filter(|(excludes, _)| *excludes).map(|(_, parameter)| parameter)
    }

    /// Returns the longest [line](crate::fabric::Fabric::line) in bytes that the layout keeps apart: no aligned line of that length
    /// has a word that is published or stored and another byte that a group uses.
    ///
    /// On A3 that is a status slot, if it has one word. With separate flags it has two, with a TP domain the peer's slots have a word
    /// and a number, and elsewhere words are among rows or next to each other.
    #[must_use]
    pub fn keeps_apart(self, shape: &Shape) -> u64 {
        if self.slots_excluded_by(shape).next().is_none() { self.slots.bytes() } else { WORD }
    }

    /// Returns the optional calls that machines make under these choices.
    #[must_use]
    pub fn needs(self, shape: &Shape) -> Capabilities {
        let is_hierarchy = shape.protocol() == Protocol::Hierarchy;
        let mut needed = Capabilities::empty();
        needed.set(Capabilities::PEER_BYTES, self.receive.is_direct());
        needed.set(Capabilities::SEND, is_hierarchy && self.stage == Stage::Three && shape.servers() > 1);
        needed
    }

    /// Returns the consequences of these choices for the memory layout.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        Mode {
            landings: self.receive.areas(),
            overwritten: self.receive.overwrites(),
            separate: matches!(self.flags, Flags::Separate),
            streams: matches!(self.stage, Stage::Two),
            slots: self.slots,
        }
    }

    /// Returns the words of the group without the numbers of calls.
    #[must_use]
    pub const fn untagged(&self) -> Untagged {
        Untagged { checked: self.checked }
    }

    /// Returns whether every rank has an agent beside its cores: on the full mesh of A2, and in stage 2 of the hierarchy.
    #[must_use]
    pub fn has_agents(&self, shape: &Shape) -> bool {
        match shape.protocol() {
            Protocol::Fullmesh => true,
            Protocol::Hierarchy => self.stage == Stage::Two,
            Protocol::FullmeshV1 | Protocol::FullmeshV2 => false,
        }
    }

    /// Returns all combinations that differ for `shape`. Fields that its protocol ignores have their default; calls are
    /// not checked.
    pub fn all(shape: &Shape) -> impl Iterator<Item = Self> {
        const STAGES: [Stage; 2] = [Stage::Two, Stage::Three];
        let all = SendOrder::ALL.into_iter().flat_map(|order| {
            Flags::ALL.into_iter().flat_map(move |flags| {
                STAGES.into_iter().flat_map(move |stage| {
                    Receive::every().flat_map(move |receive| {
                        let with = move |slots| Self { order, flags, receive, stage, checked: false, slots };
                        Slots::ALL.into_iter().map(with)
                    })
                })
            })
        });
        all.filter(|choices| {
            choices.receive.suits(shape) && choices.check_slots(shape).is_ok() && choices.differs(shape)
        })
    }

    /// Returns whether no field is an equivalent of its default.
    fn differs(&self, shape: &Shape) -> bool {
        let Self { order, flags, receive, stage, .. } = *self;
        let is_a3 = matches!(shape.protocol(), Protocol::FullmeshV1 | Protocol::FullmeshV2);
        let plain = shape.protocol() == Protocol::FullmeshV1 && !receive.is_direct();
        let returns_rows = is_a3 && !receive.is_direct();
        let cores_issue = shape.protocol() == Protocol::Hierarchy && stage == Stage::Three;
        (plain || flags == Flags::default())
            && (shape.protocol() == Protocol::Hierarchy || stage == Stage::default())
            && (!cores_issue || order == SendOrder::default())
            // Where no rows return by destination, `Destinations` is equivalent to the default.
            && (returns_rows || order != SendOrder::Destinations)
    }
}

impl Receive {
    /// Returns whether a group of `shape` can use this mode: no parameter excludes it, and the window holds the areas of
    /// direct placement.
    #[must_use]
    pub fn suits(self, shape: &Shape) -> bool {
        self.excluded_by(shape).next().is_none() && self.has_room(shape)
    }

    /// Returns each parameter of `shape` that excludes this mode, with its value and the values that do not.
    pub fn excluded_by(self, shape: &Shape) -> impl Iterator<Item = (&'static str, Seen, &'static str)> {
        let (kept, protocol) = (self.keeps_rows(), shape.protocol());
        let [tokens, results] = [shape.row_format(), shape.result_format()];
        let mode = |format: &RowFormat| Seen::Number(format.element.mode());
        // Only A3 without a TP domain, in contiguous records, can keep rows anywhere but in `expand_x`. Direct results stay
        // in the format that experts write; those that overwrite rows are as long as these.
        let rules = [
            (kept && protocol.product() != Product::A3, ("product", Seen::Word("a2"), "a3")),
            (
                kept && protocol == Protocol::FullmeshV2,
                ("comm_alg", Seen::Word("fullmesh_v2"), "\"\" or fullmesh_v1"),
            ),
            (kept && shape.tp_world_size() == 2, ("tp_world_size", Seen::Number(2), "0 or 1")),
            (self.is_direct() && results.scale.is_some(), ("comm_quant_mode", mode(results), "0")),
            (
                self.overwrites() && tokens.payload_bytes != shape.row_bytes(),
                ("quant_mode", mode(tokens), "0"),
            ),
        ];
        rules.into_iter().filter(|(excludes, _)| *excludes).map(|(_, parameter)| parameter)
    }

    fn has_room(self, shape: &Shape) -> bool {
        let fits = || direct::required_bytes(shape, self.areas(), self.overwrites()) <= shape.window_bytes();
        !self.is_direct() || matches!(self.areas(), 1..=2) && fits()
    }
}
