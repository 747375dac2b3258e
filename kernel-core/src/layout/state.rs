//! The A3 state region, 1 MiB per rank, zeroed when the group is created (A3 slides, key design 1).
//!
//! ```text
//!   0 KiB  partition 0: dispatch status   64 KiB   slot = local_expert * R + source_rank, 32 B:
//!                                                  flag and count 8 B, TokenFlag 8 B; rest unused
//!  64 KiB               combine status   320 KiB   slot = token * (K + S) + k,           32 B
//! 384 KiB  partition 1: dispatch status   64 KiB
//! 448 KiB               combine status   320 KiB
//! 768 KiB  selector records, dispatch     24 KiB   one per core, 512 B apart
//! 818 KiB  selector records, combine      24 KiB
//! 848 KiB  core words                     24 KiB   one record per core, 512 B apart:
//!                                                  two words, used in turn (epoch parity), in lines of their own
//! 896 KiB  core sums                      12 KiB   with direct placement: a table for each core that has sources,
//!                                                  L entries of 4 B, in whole lines
//! ```
//!
//! The 24 bytes after a combine flag are deliberately absent, since they are never read. With [`Slots::Lines`] slots have 64 B, in the
//! same areas.
//!
//! With direct placement dispatch status has a record for each source rank, which that rank writes, in whole lines:
//!
//! ```text
//!   +0        three words of 8 B: counts, grants and rows have arrived
//!   +24       counts, L entries of 4 B: rows of the source for each local expert
//!   +24 + 4L  grants, L entries of 4 B: the first row for the receiver's rows at each expert of the source
//! ```

use super::affine::{Index, Mode, Named};
use super::field::FieldName;
use super::fixed::Fixed;
use super::quantity::{Memory, number};
use super::table::places;
use crate::place::{Place, Region};
pub use crate::shape::sizes::{COMBINE_STATUS, DISPATCH_STATUS, STATUS_SLOT};
use crate::shape::{CORES_MAX, RANKS_MAX, Shape};
use crate::units::{CoreId, Offset, RankId, Token};

use static_assertions::const_assert;

const KIB: u64 = 1024;
/// The length of the state region in bytes.
pub const STATE_BYTES: u64 = 1024 * KIB;
/// The length in bytes of a partition's status areas.
pub const PARTITION: u64 = DISPATCH_STATUS + COMBINE_STATUS;
/// The distance in bytes between the records of two cores.
pub const CORE_RECORD: u64 = 512;
/// The start of dispatch's selector records.
pub const DISPATCH_SELECTORS: Offset = 768 * KIB;
/// The start of combine's selector records.
pub const COMBINE_SELECTORS: Offset = 818 * KIB;
/// The start of the core words.
pub const CORE_WORDS: Offset = 848 * KIB;
/// The start of the sums that cores exchange with direct placement.
pub const CORE_SUMS: Offset = 896 * KIB;
/// The length in bytes of a line: the alignment of data that different ranks or cores write with direct placement, and the distance
/// of a core's two words.
pub const LINE: u64 = 64;

const_assert!(PARTITION == 384 * KIB);
const_assert!(RANKS_MAX as u64 * STATUS_SLOT <= COMBINE_STATUS);
const_assert!(2 * PARTITION == DISPATCH_SELECTORS);
const_assert!(DISPATCH_SELECTORS + CORES_MAX as u64 * CORE_RECORD <= COMBINE_SELECTORS);
const_assert!(COMBINE_SELECTORS + CORES_MAX as u64 * CORE_RECORD <= CORE_WORDS);
const_assert!(CORE_WORDS + CORES_MAX as u64 * CORE_RECORD <= CORE_SUMS);
// There are no more tables than sources.
const_assert!(CORE_SUMS + DISPATCH_STATUS / STATUS_SLOT * 4 + CORES_MAX as u64 * LINE <= STATE_BYTES);

/// One of the two partitions, which operators use in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Partition {
    /// The first.
    P0,
    /// The second.
    P1,
}

impl Partition {
    /// Returns the partition of an operator by its number among those that use them in turn, from 0 on.
    #[inline(always)]
    #[must_use]
    pub const fn of(number: u64) -> Self {
        if number.is_multiple_of(2) { Self::P0 } else { Self::P1 }
    }

    /// Returns 0 or 1.
    #[must_use]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Returns the other partition, which the next operator of the kind uses.
    #[must_use]
    pub const fn flipped(self) -> Self {
        match self {
            Self::P0 => Self::P1,
            Self::P1 => Self::P0,
        }
    }
}

named! {
    /// The operators; each has partitions of its own.
    Operator {
        /// Dispatch.
        Dispatch = "dispatch",
        /// Combine.
        Combine = "combine",
    }
}

named! {
    /// The distance of the status slots of A3, by its name in bytes.
    #[derive(Default)]
    Slots {
        /// As the shipped operators have it. Two ranks publish into one line of 64 bytes.
        #[default]
        Shipped = "32",
        /// Each slot has a line of its own, so half as many fit.
        Lines = "64",
    }
}

impl Slots {
    /// Returns the distance of two slots in bytes, which is also the length of a slot.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Shipped => STATUS_SLOT,
            Self::Lines => LINE,
        }
    }

    /// Returns the place of the status word of dispatch slot `slot`.
    #[inline(always)]
    #[must_use]
    pub const fn dispatch_status(self, partition: Partition, slot: u32) -> Place {
        const SHIPPED: Fixed<2> =
            Named::DispatchStatus.fixed_of(Slots::Shipped, [Index::Partition, Index::Source]);
        const LINES: Fixed<2> =
            Named::DispatchStatus.fixed_of(Slots::Lines, [Index::Partition, Index::Source]);
        match self {
            Self::Shipped => SHIPPED.at(partition.index(), slot),
            Self::Lines => LINES.at(partition.index(), slot),
        }
    }

    /// Returns the place of `TokenFlag` of dispatch slot `slot`: the second word of its slot, used when flags are separate.
    #[inline(always)]
    #[must_use]
    pub const fn token_flag(self, partition: Partition, slot: u32) -> Place {
        let status = self.dispatch_status(partition, slot);
        const FLAG: u64 = Named::DispatchStatus.field(FieldName::TokenFlag);
        Place { offset: status.offset + FLAG, ..status }
    }

    /// Returns the place of the status word of combine slot `slot`.
    #[inline(always)]
    #[must_use]
    pub const fn combine_status(self, partition: Partition, slot: u32) -> Place {
        const SHIPPED: Fixed<2> = Named::CombineStatus.fixed_of(Slots::Shipped, [Index::Partition, Index::K]);
        const LINES: Fixed<2> = Named::CombineStatus.fixed_of(Slots::Lines, [Index::Partition, Index::K]);
        match self {
            Self::Shipped => SHIPPED.at(partition.index(), slot),
            Self::Lines => LINES.at(partition.index(), slot),
        }
    }
}

/// Returns the number of a dispatch status slot on its receiver: local expert major, source rank minor.
#[must_use]
pub const fn dispatch_slot(shape: &Shape, local_expert: u32, source: RankId) -> u32 {
    local_expert * shape.ep_world_size() + source.0
}

/// Returns the number of a combine slot on the token's owner, which is also the number of its row in the data region.
#[must_use]
pub const fn combine_slot(shape: &Shape, token: Token, k: u32) -> u32 {
    token.0 * shape.combine_columns() + k
}

/// The messages of a rank to another in a dispatch with direct placement: a word each, the first two after a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direct {
    /// The numbers of the sender's rows for each local expert of the receiver.
    Counts,
    /// The first row for the receiver's rows at each of the sender's local experts.
    Grants,
    /// The sender's rows have landed.
    TokenFlags,
}

impl Direct {
    /// All messages, in the order of their words.
    pub const ALL: [Self; 3] = [Self::Counts, Self::Grants, Self::TokenFlags];

    /// Returns the distance in bytes between the records of two sources.
    #[must_use]
    pub const fn pitch(shape: &Shape) -> u64 {
        number::DirectPitch(&Memory::of_any(shape))
    }

    /// Returns the offset of the word in a record.
    const fn field(self) -> Offset {
        match self {
            Self::Counts => const { Named::DirectRecords.field(FieldName::CountsTold) },
            Self::Grants => const { Named::DirectRecords.field(FieldName::GrantsTold) },
            Self::TokenFlags => const { Named::DirectRecords.field(FieldName::RowsLanded) },
        }
    }

    /// Returns the place of the word in the record of `source`.
    #[must_use]
    pub const fn word(self, shape: &Shape, partition: Partition, source: RankId) -> Place {
        let record = places::DirectRecords(&Memory::of_any(shape), [partition.index(), source.0]);
        Place { offset: record.offset + self.field(), ..record }
    }

    /// Returns the place of a local expert's entry in the table that the word covers, of counts or of grants.
    #[must_use]
    pub const fn entry(
        self,
        shape: &Shape,
        partition: Partition,
        source: RankId,
        local_expert: u32,
    ) -> Place {
        let memory = Memory::of_any(shape);
        let record = places::DirectRecords(&memory, [partition.index(), source.0]);
        let entry = match self {
            Self::Counts => places::CountTable(&memory, [local_expert]),
            _ => places::GrantTable(&memory, [local_expert]),
        };
        Place { offset: record.offset + entry.offset, ..record }
    }

    /// Returns the message whose word is at `at`, if it is one of dispatch.
    #[must_use]
    pub fn of(shape: &Shape, at: Place) -> Option<Self> {
        let mode = Mode { landings: 1, ..Mode::default() };
        let memory = Memory { shape, mode, rank: RankId(0) };
        let record = Named::DirectRecords.find(&memory, at.offset).filter(|_| at.region == Region::State)?;
        Self::ALL.into_iter().find(|&word| record.inside == word.field())
    }
}

/// Returns the place of the sums of a core that has sources: their rows for each local expert.
#[must_use]
pub const fn core_sums(shape: &Shape, core: CoreId) -> Place {
    places::CoreSums(&Memory::of_any(shape), [core.0])
}

/// Returns the place of rank `source`'s word that its results are ready (pull combine): a combine slot.
#[must_use]
pub const fn results_ready(partition: Partition, source: RankId) -> Place {
    const WORDS: Fixed<2> = Named::ResultsReady.fixed([Index::Partition, Index::Source]);
    WORDS.at(partition.index(), source.0)
}

/// Returns the place of a core's selector record for an operator kind. It is private to that core.
#[must_use]
pub const fn selector(kind: Operator, core: CoreId) -> Place {
    const OF_DISPATCH: Fixed<1> = Named::DispatchSelectors.fixed([Index::Core]);
    const OF_COMBINE: Fixed<1> = Named::CombineSelectors.fixed([Index::Core]);
    match kind {
        Operator::Dispatch => OF_DISPATCH.at(core.0),
        Operator::Combine => OF_COMBINE.at(core.0),
    }
}

/// Returns the place of a core's barrier word for an epoch; odd and even epochs have words of their own.
#[must_use]
pub const fn core_word(core: CoreId, epoch: u32) -> Place {
    const RECORDS: Fixed<1> = Named::CoreWords.fixed([Index::Core]);
    const EVEN: u64 = Named::CoreWords.field(FieldName::EvenEpochs);
    const ODD: u64 = Named::CoreWords.field(FieldName::OddEpochs);
    let record = RECORDS.at(core.0);
    Place { offset: record.offset + if epoch.is_multiple_of(2) { EVEN } else { ODD }, ..record }
}
