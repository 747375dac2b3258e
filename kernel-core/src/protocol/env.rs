//! The constants of a core, as a driver makes them.

use super::kit::{Constants, Core, Family};
use super::{Choices, Receive};
use crate::fabric::{Capabilities, ProtocolError, Terms};
use crate::layout::state::LINE;
use crate::shape::Shape;
use crate::sync::call::CALLS;
use crate::units::{CoreId, RankId};
use crate::vector::Vector;
use core::fmt;

/// The reason why a core cannot take part in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// The shape has no such core.
    NoCore {
        /// The EP rank, which must be below [`ep_world_size`](Shape::ep_world_size).
        rank: RankId,
        /// The core, which must be below [`aiv_num`](Shape::aiv_num).
        core: CoreId,
    },
    /// The shape has the batch size of another rank alone ([`BatchSizes::Own`](crate::shape::BatchSizes::Own)).
    OtherBatch {
        /// The EP rank that was asked for.
        rank: RankId,
    },
    /// A [`Rank`](crate::protocol::Rank) has no room for so many cores.
    Cores {
        /// The number of cores of a rank, [`aiv_num`](Shape::aiv_num).
        cores: u32,
    },
    /// This build lacks the machines for this shape and these choices.
    LeftOut {
        /// The feature of this crate that has them.
        feature: &'static str,
    },
    /// A group of this shape cannot receive rows in this mode ([`Receive::suits`]).
    Receive(Receive),
    /// The group cannot have status slots in lines of their own ([`Slots`](crate::layout::state::Slots)).
    Slots {
        /// The parameter or choice that excludes them.
        what: &'static str,
        /// Its value.
        seen: &'static str,
        /// The values that do not.
        rule: &'static str,
    },
    /// There is no room for as many of them.
    SlotsRoom {
        /// The number of slots, as a formula.
        what: &'static str,
        /// The number of slots.
        seen: u64,
        /// The number for which there is room.
        most: u64,
    },
    /// The memory lacks calls that the machine makes.
    Capabilities {
        /// The missing calls.
        missing: Capabilities,
    },
    /// The memory writes back longer lines than the layout keeps apart ([`Choices::keeps_apart`]): a rank's word would wipe
    /// another's.
    Line {
        /// The [line](crate::fabric::Fabric::line) of the memory in bytes.
        line: u64,
        /// The longest one in bytes that the layout keeps apart.
        apart: u64,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCore { rank, core } => write!(f, "the shape has no core {core} of rank {rank}"),
            Self::OtherBatch { rank } => write!(f, "the shape does not know the batch size of rank {rank}"),
            Self::Cores { cores } => write!(f, "a rank has no room for {cores} cores"),
            Self::LeftOut { feature } => write!(f, "built without the feature {feature}"),
            Self::Receive(receive) if receive.overwrites() => f.write_str(
                "this shape has no direct placement with rows as long as results, or its window is too small for it",
            ),
            Self::Receive(receive) if receive.is_direct() => {
                f.write_str("this shape has no direct placement, or its window is too small for it")
            }
            Self::Receive(_) => f.write_str("this shape does not receive rows in place"),
            Self::Slots { what, seen, rule } => {
                write!(f, "status slots {LINE} bytes apart: {what} = {seen}: must be {rule}")
            }
            Self::SlotsRoom { what, seen, most } => {
                write!(f, "status slots {LINE} bytes apart: {what} = {seen}: must be at most {most}")
            }
            Self::Capabilities { missing } => {
                f.write_str("the memory has no ")?;
                let mut and = "";
                for (name, _) in missing.iter_names() {
                    write!(f, "{and}{name}")?;
                    and = " and ";
                }
                Ok(())
            }
            Self::Line { line, apart } => write!(
                f,
                "the memory writes back lines of {line} bytes, and this layout keeps words in lines of {apart} bytes"
            ),
        }
    }
}

impl core::error::Error for Refused {}

/// The constants of a core over a group's life, and its vector unit. They determine the machines that the core runs.
#[derive(Clone, Debug)]
pub struct Env<V> {
    constants: Constants,
    vector: V,
}

impl<V> Env<V> {
    /// Creates the constants of `core` of EP rank `rank`, which makes these `choices` on a memory of these `terms`
    /// ([`Fabric::terms`](crate::fabric::Fabric::terms)), and uses `vector` for work on rows.
    ///
    /// # Errors
    /// The shape has no such core, does not allow the choices, or the memory lacks a call that one of the machines would
    /// make ([`Choices::needs`]), or writes back longer lines than the layout keeps apart.
    pub fn new(
        shape: &Shape,
        rank: RankId,
        core: CoreId,
        choices: Choices,
        terms: Terms,
        vector: V,
    ) -> Result<Self, Refused> {
        if rank.0 >= shape.ep_world_size() || core.0 >= shape.aiv_num() {
            return Err(Refused::NoCore { rank, core });
        }
        if !shape.knows_bs(rank) {
            return Err(Refused::OtherBatch { rank });
        }
        let family = choices.family(shape, terms)?;
        Ok(Self { constants: Constants::new(shape, family, rank, core, choices), vector })
    }

    /// Sets the rank's number in its TP domain to `tp_rank`. Only A3 has such domains.
    #[must_use]
    pub fn with_tp_rank(mut self, tp_rank: RankId) -> Self {
        self.constants.tp_rank = tp_rank;
        self
    }

    /// Lets `vector` work on rows from now on.
    pub fn set_vector(&mut self, vector: V) {
        self.vector = vector;
    }

    /// Limits each step to one effect, so that a model checker can explore every order of effects. Steps of A2 machines
    /// never have more than one.
    #[must_use]
    pub fn one_by_one(mut self) -> Self {
        self.constants.run = 1;
        self
    }

    /// Lets words tell only `calls` calls apart, from 1 to [`CALLS`], so that a model checker comes round. Without
    /// [`checked`](Choices::checked) they tell none apart.
    #[must_use]
    pub const fn telling_apart(mut self, calls: u32) -> Self {
        if self.constants.calls > 0 && 0 < calls && calls <= CALLS {
            self.constants.calls = calls;
        }
        self
    }

    /// Returns the choices of the group.
    #[must_use]
    pub const fn choices(&self) -> Choices {
        self.constants.choices
    }

    /// Returns the maximum number of effects of one step.
    #[must_use]
    pub const fn effects_max(&self) -> u32 {
        self.constants.run
    }

    pub(super) const fn family(&self) -> Family {
        self.constants.family
    }
}

impl<V: Vector> Env<V> {
    /// Returns the core on its shape, for a step or for all steps of a group: what is checked here, no step checks again.
    ///
    /// # Errors
    /// The constants were made for another shape.
    #[inline(always)]
    pub fn on<'s>(&'s self, shape: &'s Shape) -> Result<Core<'s>, ProtocolError> {
        Core::new(shape, &self.constants, &self.vector)
    }
}
