//! Splitting work over the cores of a rank (seed 002, key designs 2 and 4).

use crate::shape::Shape;
use crate::units::{CoreId, RankId, div_rem};
use core::ops::Range;

/// The share of core `i` when `p` cores split `n` items evenly: the first `n % p` cores get one more.
#[must_use]
pub const fn even(n: u32, p: u32, i: u32) -> Range<u32> {
    let (each, rest) = div_rem(n, p);
    let start = each * i + if i < rest { i } else { rest };
    start..start + each + if i < rest { 1 } else { 0 }
}

/// What a core sends in dispatch: a share of the flat `(token, k)` pairs and of the flat `(token, j)` pairs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DispatchShare {
    /// Of `BS * K` pairs, `pair = token * K + k`.
    pub moe: Range<u32>,
    /// Of `BS * S` pairs, `pair = token * S + j`.
    pub shared: Range<u32>,
}

/// All that one core does in both operators, but the rows it returns, which only dispatch tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// What it sends in dispatch.
    pub sends: DispatchShare,
    /// The destinations, shared-expert ranks then MoE experts, to which it publishes.
    pub destinations: Range<u32>,
    /// The dispatch slots that it awaits and copies out.
    pub slots: Range<u32>,
    /// The tokens that it waits for and sums in combine.
    pub tokens: Range<u32>,
}

/// The work of `core` of `rank`.
#[must_use]
pub fn work(shape: &Shape, rank: RankId, core: CoreId) -> Work {
    Work {
        sends: dispatch(shape, rank, core),
        destinations: publish(shape, core),
        slots: slots(shape, rank, core),
        tokens: tokens(shape, rank, core),
    }
}

/// Cores that send to shared experts, the last ones; 0 without shared-expert ranks.
#[must_use]
pub const fn shared_cores(shape: &Shape) -> u32 {
    let s = shape.shared_expert_num();
    if s == 0 {
        return 0;
    }
    let cores = div_rem(shape.aiv_num() * s, shape.k() + s).0;
    if cores == 0 { 1 } else { cores }
}

/// The pairs that `core` of `rank` sends. With one core it sends both kinds.
#[must_use]
pub fn dispatch(shape: &Shape, rank: RankId, core: CoreId) -> DispatchShare {
    let (p, i) = (shape.aiv_num(), core.0);
    let pairs = shape.bs(rank) * shape.k();
    let shared_pairs = shape.bs(rank) * shape.shared_expert_num();
    let on_shared = shared_cores(shape);
    if p == 1 {
        return DispatchShare { moe: 0..pairs, shared: 0..shared_pairs };
    }
    let on_moe = p - on_shared;
    if i < on_moe {
        DispatchShare { moe: even(pairs, on_moe, i), shared: 0..0 }
    } else {
        DispatchShare { moe: 0..0, shared: even(shared_pairs, on_shared, i - on_moe) }
    }
}

/// The destinations, shared-expert ranks then MoE experts, to which `core` publishes its rank's flags.
#[must_use]
pub const fn publish(shape: &Shape, core: CoreId) -> Range<u32> {
    even(shape.shared_expert_rank_num() + shape.moe_expert_num(), shape.aiv_num(), core.0)
}

/// The dispatch slots of `rank` that `core` awaits and copies out.
#[must_use]
pub const fn slots(shape: &Shape, rank: RankId, core: CoreId) -> Range<u32> {
    even(shape.local_experts(rank) * shape.ep_world_size(), shape.aiv_num(), core.0)
}

/// The received rows that `core` sends back in combine.
#[must_use]
pub const fn rows(shape: &Shape, rows: u32, core: CoreId) -> Range<u32> {
    even(rows, shape.aiv_num(), core.0)
}

/// The tokens of `rank` that `core` waits for and sums in combine.
#[must_use]
pub fn tokens(shape: &Shape, rank: RankId, core: CoreId) -> Range<u32> {
    even(shape.bs(rank), shape.aiv_num(), core.0)
}
