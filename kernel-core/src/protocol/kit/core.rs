//! A core, as all machines see it.

use crate::fabric::{Flag, ProtocolError, Result, Wait};
use crate::inputs::Inputs;
use crate::layout::state::Operator;
use crate::plan::split::{self, DispatchShare};
use crate::plan::{relay, split::Work as PairWork};
use crate::protocol::{Choices, Flags};
use crate::shape::{Product, Protocol, Shape};
use crate::sync::barrier::CoreRef;
use crate::sync::call::{CALLS, Numbering};
use crate::units::{CoreId, RankId};
use crate::vector::Vector;
use core::fmt;
use core::ops::{Deref, Range};

/// The maximum number of effects of one kind (rows put or delivered, words published or cleared) in one step of A3. The
/// overhead of a step is that of half a dozen words.
const RUN: u32 = 16;

/// The families of machines that this build has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// A3, with rows copied out or received in place.
    A3,
    /// fullmesh_v2.
    #[cfg(feature = "a3-v2")]
    V2,
    /// Direct placement.
    #[cfg(feature = "direct")]
    Direct,
    /// The A2 full mesh.
    #[cfg(feature = "a2")]
    A2,
    /// The A2 hierarchy.
    #[cfg(feature = "hierarchy")]
    Hierarchy,
}

impl Family {
    /// Returns the family whose machines a group runs.
    ///
    /// # Errors
    /// The feature that has the machines, if this build lacks it.
    pub(crate) const fn of(shape: &Shape, choices: &Choices) -> Result<Self, &'static str> {
        match shape.protocol() {
            #[cfg(feature = "a2")]
            Protocol::Fullmesh => Ok(Self::A2),
            #[cfg(not(feature = "a2"))]
            Protocol::Fullmesh => Err("a2"),
            #[cfg(feature = "hierarchy")]
            Protocol::Hierarchy => Ok(Self::Hierarchy),
            #[cfg(not(feature = "hierarchy"))]
            Protocol::Hierarchy => Err("hierarchy"),
            #[cfg(not(feature = "a3-v2"))]
            Protocol::FullmeshV2 => Err("a3-v2"),
            #[cfg(feature = "direct")]
            Protocol::FullmeshV1 if choices.receive.is_direct() => Ok(Self::Direct),
            #[cfg(not(feature = "direct"))]
            Protocol::FullmeshV1 if choices.receive.is_direct() => Err("direct"),
            _ if cfg!(not(feature = "tp")) && shape.tp_world_size() > 1 => Err("tp"),
            #[cfg(feature = "a3-v2")]
            Protocol::FullmeshV2 => Ok(Self::V2),
            Protocol::FullmeshV1 => Ok(Self::A3),
        }
    }
}

/// The constants of a core over a group's life.
#[derive(Clone, Debug)]
pub struct Constants {
    pub(crate) fingerprint: u64,
    pub(crate) family: Family,
    pub(crate) rank: RankId,
    pub(crate) tp_rank: RankId,
    pub(crate) id: CoreId,
    pub(crate) choices: Choices,
    pub(crate) work: Work,
    /// The number of calls that tags tell apart; 0 if words have no tags.
    pub(crate) calls: u32,
    /// The maximum number of effects of a step.
    pub(crate) run: u32,
}

impl Constants {
    /// Creates the constants of core `id` of `rank`.
    pub(crate) fn new(shape: &Shape, family: Family, rank: RankId, id: CoreId, choices: Choices) -> Self {
        Self {
            fingerprint: shape.fingerprint(),
            family,
            rank,
            tp_rank: RankId(0),
            id,
            choices,
            work: Work::of(shape, rank, id),
            calls: if choices.checked { CALLS } else { 0 },
            run: if shape.protocol().product() == Product::A3 { RUN } else { 1 },
        }
    }

    /// Returns the part of `share` from `first` on that one step handles.
    pub(crate) fn run_of(&self, share: &Range<u32>, first: u32) -> Range<u32> {
        first..share.end.min(first + self.run)
    }
}

/// The work of one core in both operators, except for the rows it returns, which only dispatch determines. A family ignores
/// what it does not split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// The pairs that it sends in dispatch, and whose `expand_idx` it writes; on A2 those of its tokens. With fullmesh_v2 it
    /// sends only the shared ones of these, and `experts` for the rest.
    pub(crate) sends: DispatchShare,
    /// With fullmesh_v2 the MoE experts to which it sends all records of its rank; else none.
    pub(crate) experts: Range<u32>,
    /// The destinations, shared-expert ranks then MoE experts, to which it publishes.
    pub(crate) destinations: Range<u32>,
    /// The dispatch slots that it awaits, and copies out unless rows are split; their entries of `ep_recv_counts`.
    pub(crate) slots: Range<u32>,
    /// The tokens that it waits for and sums in combine.
    pub(crate) tokens: Range<u32>,
    /// The ranks to which it sends, and whose words or windows it awaits (direct placement, A2 full mesh).
    pub(crate) ranks: Range<u32>,
    /// The entries of `expert_token_nums` that it writes (A2 full mesh).
    pub(crate) token_nums: Range<u32>,
    /// The server of the rank (hierarchy).
    pub(crate) server: u32,
    /// The number of the rank on its server (hierarchy).
    pub(crate) number: u32,
    /// The servers whose streams it issues (hierarchy).
    pub(crate) streams: Range<u32>,
    /// The (server, expert) pairs that it forwards in dispatch (hierarchy).
    pub(crate) forwards: Range<u32>,
}

impl Work {
    /// Returns the work of core `id` of `rank`.
    fn of(shape: &Shape, rank: RankId, id: CoreId) -> Self {
        let PairWork { sends, experts, destinations, slots, tokens } = split::work(shape, rank, id);
        let of_tokens = DispatchShare { moe: tokens.start * shape.k()..tokens.end * shape.k(), shared: 0..0 };
        let (server, number) = match shape.protocol() {
            Protocol::Hierarchy => shape.server_of(rank),
            _ => (0, 0),
        };
        Self {
            sends: if shape.protocol().product() == Product::A2 { of_tokens } else { sends },
            experts,
            destinations,
            slots,
            tokens,
            ranks: split::ranks(shape, id),
            token_nums: split::even(shape.local_expert_num(), shape.aiv_num(), id.0),
            server,
            number,
            streams: relay::streams(shape, id),
            forwards: relay::forwards(shape, id),
        }
    }
}

/// A core in a step: its constants, the shape that they were made for, and its vector unit. It dereferences to its
/// constants: `core.rank`, `core.work` and `core.choices` are theirs.
#[derive(Clone, Copy)]
pub struct Core<'s> {
    pub(crate) shape: &'s Shape,
    constants: &'s Constants,
    pub(crate) vector: &'s dyn Vector,
}

impl<'s> Core<'s> {
    /// Refuses constants that were made for another shape.
    pub(crate) fn new(shape: &'s Shape, constants: &'s Constants, vector: &'s dyn Vector) -> Result<Self> {
        check(shape, constants.fingerprint)?;
        Ok(Self { shape, constants, vector })
    }
}

/// Checks that what has this fingerprint was made for `shape`.
#[inline(always)]
pub(crate) fn check(shape: &Shape, fingerprint: u64) -> Result<()> {
    if shape.fingerprint() != fingerprint {
        return Err(ProtocolError::OtherShape { made_for: fingerprint, given: shape.fingerprint() });
    }
    Ok(())
}

impl Deref for Core<'_> {
    type Target = Constants;

    #[inline(always)]
    fn deref(&self) -> &Constants {
        self.constants
    }
}

impl fmt::Debug for Core<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.constants.fmt(f)
    }
}

impl Core<'_> {
    /// Returns how the words of an operator on these inputs are numbered.
    pub(crate) fn numbering(&self, kind: Operator, inputs: &Inputs<'_>) -> Numbering {
        Numbering { kind, given: inputs.call, calls: self.calls }
    }

    /// Returns whether the core has summed all its tokens once it has come to `token`. A rank that abstains has none to sum.
    #[inline(always)]
    pub(crate) fn is_past_tokens(&self, token: u32, inputs: &Inputs<'_>) -> bool {
        token >= self.work.tokens.end || inputs.abstains()
    }

    pub(crate) fn core_ref(&self) -> CoreRef {
        CoreRef { rank: self.rank, core: self.id, cores: self.shape.aiv_num() }
    }

    /// Returns the wait of a core that lacks a count (A3).
    pub(crate) fn waits_for_count(&self, source: RankId, local_expert: u32) -> Wait {
        let is_apart = self.choices.flags == Flags::Separate || self.shape.protocol() == Protocol::FullmeshV2;
        let flag = if is_apart { Flag::Count } else { Flag::Dispatch };
        Wait::new(flag, source, &[local_expert])
    }
}
