//! Members of a group by number, as files have them: `ep_rank * tp_world_size + tp_rank`. Without a TP domain a
//! number is an EP rank.

use veriep_core::fabric::{Flag, ProtocolError, Wait};
use veriep_core::place::Place;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::RankId;

/// How many.
pub const fn count(shape: &Shape) -> u32 {
    shape.ep_world_size() * shape.tp_world_size()
}

/// All numbers.
pub fn all(shape: &Shape) -> impl Iterator<Item = RankId> + use<> {
    (0..count(shape)).map(RankId)
}

pub const fn ep_rank(shape: &Shape, member: RankId) -> RankId {
    RankId(member.0 / shape.tp_world_size())
}

pub const fn tp_rank(shape: &Shape, member: RankId) -> RankId {
    RankId(member.0 % shape.tp_world_size())
}

/// Ranks of a server, if those of other servers are far.
pub fn servers(shape: &Shape) -> Option<u32> {
    (shape.protocol() == Protocol::Hierarchy).then(|| shape.server_ranks())
}

/// The member that `own` calls `to`, in the EP domain or in the TP domain.
pub const fn named(tp_world_size: u32, own: RankId, to: RankId, in_tp: bool) -> RankId {
    let (ep, tp) = (own.0 / tp_world_size, own.0 % tp_world_size);
    if in_tp { RankId(ep * tp_world_size + to.0) } else { RankId(to.0 * tp_world_size + tp) }
}

/// Whose memory `own` reaches at `at` of `to`: the region chooses the domain.
pub const fn reached(tp_world_size: u32, own: RankId, to: RankId, at: Place) -> RankId {
    named(tp_world_size, own, to, at.region.is_of_tp())
}

/// What a machine of `own` waits for, by number.
pub fn of_wait(shape: &Shape, own: RankId, wait: Wait) -> Wait {
    let tp = shape.tp_world_size();
    let mut wait = wait.renamed(|ep| named(tp, own, ep, false));
    if wait.flag == Flag::Tp {
        wait.rank = named(tp, own, wait.rank, true);
    }
    wait
}

/// What a machine of `own` refuses, by number.
pub fn of_error(shape: &Shape, own: RankId, error: ProtocolError) -> ProtocolError {
    error.renamed(|ep| named(shape.tp_world_size(), own, ep, false))
}
