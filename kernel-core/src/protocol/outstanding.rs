//! The puts, publishes and messages that a core has under way at once: the size of the queue that a network needs for it.

use super::kit::CHUNK;
use super::{Choices, Flags};
use crate::inputs::Inputs;
use crate::layout::block;
use crate::placement::Home;
use crate::plan::{route, split};
use crate::shape::{Protocol, Shape};
use crate::units::{CoreId, Pair, RankId, Token, div_ceil};

/// The rows of one core in a round, which follow from the routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreRows {
    /// The pairs that it sends in dispatch.
    pub sent: u64,
    /// The rows that it returns in combine.
    pub returned: u64,
}

impl CoreRows {
    /// Returns the most rows that `core` of `rank` can have.
    #[must_use]
    pub fn most(shape: &Shape, rank: RankId, core: CoreId) -> Self {
        let split::Work { sends, experts, .. } = split::work(shape, rank, core);
        let moe = match shape.protocol() {
            Protocol::FullmeshV2 => {
                u64::from(shape.bs(rank)) * u64::from(shape.k().min(experts.len() as u32))
            }
            _ => sends.moe.len() as u64,
        };
        let returned = split::rows(shape, shape.rows_max(rank) as u32, core);
        Self { sent: moe + sends.shared.len() as u64, returned: returned.len() as u64 }
    }

    /// Returns its rows with these inputs of its rank, which has received so many.
    #[must_use]
    pub fn of(shape: &Shape, rank: RankId, core: CoreId, inputs: &Inputs<'_>, received: u32) -> Self {
        let split::Work { sends, experts, .. } = split::work(shape, rank, core);
        let home = |pair| route::home(shape, rank, inputs, pair);
        let is_own = |Home { rank, local_expert }: &Home| {
            let destination = route::destination_of(shape, *rank, *local_expert);
            destination
                .checked_sub(shape.shared_expert_rank_num())
                .is_some_and(|expert| experts.contains(&expert))
        };
        let moe = match shape.protocol() {
            Protocol::FullmeshV2 => {
                let pairs = (0..shape.bs(rank)).map(Token);
                let pairs = pairs.flat_map(|token| (0..shape.k()).map(move |k| Pair { token, k }));
                pairs.filter_map(home).filter(is_own).count()
            }
            _ => sends.moe.filter_map(|i| home(route::moe_pair(shape, i))).count(),
        };
        let shared = sends.shared.filter_map(|i| home(route::shared_pair(shape, i))).count();
        let returned = split::rows(shape, received, core).len() as u64;
        Self { sent: (moe + shared) as u64, returned }
    }
}

/// Effects of a core between its quiets, where each dispatch is followed by its combine. Dispatch is quiet once, combine never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// From the beginning of a dispatch to its quiet.
    pub before: u64,
    /// From there to the end of the combine after it.
    pub behind: u64,
}

impl Outstanding {
    /// Returns the effects of `core` of `rank` in a round with these rows; `None` on A2, where agents carry rows, and with a TP
    /// domain.
    #[must_use]
    pub fn of(shape: &Shape, choices: Choices, rank: RankId, core: CoreId, rows: CoreRows) -> Option<Self> {
        let CoreRows { sent, returned } = rows;
        if shape.tp_world_size() > 1 {
            return None;
        }
        // Of the core barrier. It is left out where a core is alone.
        let arrival = u64::from(shape.aiv_num() > 1);
        let words = split::publish(shape, core).len() as u64;
        // Each row that returns has a flag.
        let combine = 2 * returned;
        Some(match (shape.protocol(), choices.flags) {
            (Protocol::FullmeshV1, _) if choices.receive.is_direct() => Self::direct(shape, rank, core, sent),
            (Protocol::FullmeshV1, Flags::Joint) => {
                Self { before: sent, behind: 2 * arrival + words + combine }
            }
            (Protocol::FullmeshV1, Flags::Separate) => {
                Self { before: words + sent + arrival, behind: arrival + words + combine }
            }
            (Protocol::FullmeshV2, _) => {
                let blocks = 2 * sent * u64::from(block::count(shape));
                Self { before: 0, behind: 2 * arrival + words + blocks + combine }
            }
            (Protocol::Fullmesh | Protocol::Hierarchy, _) => return None,
        })
    }

    fn direct(shape: &Shape, rank: RankId, core: CoreId, sent: u64) -> Self {
        let pieces = |rank| div_ceil(shape.local_experts(rank).into(), CHUNK.into());
        let ranks = split::ranks(shape, core);
        let arrival = u64::from(shape.aiv_num() > 1);
        let counts: u64 = ranks.clone().map(|to| pieces(RankId(to)) + 1).sum();
        let grants = ranks.len() as u64 * (pieces(rank) + 1);
        let sums = if ranks.is_empty() { 0 } else { arrival * pieces(rank) };
        // A row, and scale and triple.
        let before = counts + sums + arrival + grants + 2 * sent;
        // `TokenFlag`s, and in combine the word that results are ready, each to all ranks.
        Self { before, behind: 2 * arrival + 2 * ranks.len() as u64 }
    }

    /// Returns the most effects that are under way at once, if every round is such a one.
    #[must_use]
    pub const fn most(self) -> u64 {
        self.before + self.behind
    }

    /// Returns the most effects that any core of the group can have under way, with any inputs; `None` as for
    /// [`of`](Self::of).
    #[must_use]
    pub fn most_of_any(shape: &Shape, choices: Choices) -> Option<u64> {
        let ranks = (0..shape.ep_world_size()).map(RankId);
        let cores = ranks.flat_map(|rank| (0..shape.aiv_num()).map(move |core| (rank, CoreId(core))));
        let most = cores.map(|(rank, core)| {
            Self::of(shape, choices, rank, core, CoreRows::most(shape, rank, core)).map(Self::most)
        });
        most.max().flatten()
    }
}
