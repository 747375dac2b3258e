//! The maximum number of steps of an operator, derived from its plan. A core that takes more steps polls by stepping, and would
//! put off the deadline indefinitely.

use veriep_core::layout::block;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::RankId;

/// Steps for each thing that a core has to do, with some to spare: no machine takes more than six.
const EACH: u64 = 16;

/// The most steps of one core in one operator on EP rank `rank`, as if it did all the rank's work alone and looked again for
/// each word that it misses.
pub(crate) fn steps_max(shape: &Shape, rank: RankId) -> u64 {
    let (ranks, cores) = (u64::from(shape.ep_world_size()), u64::from(shape.aiv_num()));
    let experts = u64::from(shape.moe_expert_num() + shape.shared_expert_rank_num());
    let columns = u64::from(shape.k() + shape.shared_expert_num());
    let tokens = u64::from(shape.bs_max());
    let parts = match shape.protocol() {
        Protocol::FullmeshV2 => u64::from(block::count(shape)),
        _ => 1,
    };
    let slots = u64::from(shape.local_experts(rank)) * ranks;
    let sent = tokens * (columns + 1) * parts;
    // Of a hierarchy a rank also passes on what its namesakes send, and returns partial sums to them.
    let passed = match shape.protocol() {
        Protocol::Hierarchy => u64::from(shape.servers()) * tokens * (columns + 1),
        _ => 0,
    };
    let received = shape.rows_max(rank).saturating_mul(u64::from(shape.tp_world_size()) * parts);
    let all = 16 + experts * ranks.min(2) + slots + 4 * ranks + 4 * cores + sent + passed;
    all.saturating_add(received).saturating_mul(EACH)
}
