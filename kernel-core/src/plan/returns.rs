//! The rows that a rank has received, and so returns in combine (A3 slides, key design 3), computed from the routing of all
//! ranks. The machines derive them from flags and triples instead.

use super::order::{Path, SendOrder};
use super::route;
use super::split;
use crate::inputs::Inputs;
use crate::layout::record::Triple;
use crate::placement::Home;
use crate::shape::Shape;
use crate::units::{CoreId, Pair, RankId, Token};

/// A row that a rank has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Received {
    /// The local expert of the row.
    pub local_expert: u32,
    /// The owner of the token, which gets the result back.
    pub source: RankId,
    /// The token and k index.
    pub pair: Pair,
}

/// Returns the rows of `rank` in the order of `expand_x`: by local expert, source, slot. `inputs` returns a rank's inputs.
pub fn received<'a>(
    shape: &'a Shape,
    rank: RankId,
    inputs: impl Fn(RankId) -> Inputs<'a>,
) -> impl Iterator<Item = Received> {
    let sources = shape.ep_world_size();
    let slots = (0..shape.local_experts(rank)).flat_map(move |e| (0..sources).map(move |s| (e, RankId(s))));
    slots.flat_map(move |(local_expert, source)| {
        let inputs = inputs(source);
        let columns = Triple::columns_on(shape, rank, source);
        let tokens = (0..shape.bs(source)).map(Token);
        let pairs = tokens.flat_map(move |token| columns.clone().map(move |k| Pair { token, k }));
        pairs.filter_map(move |pair| {
            let home = route::home(shape, source, &inputs, pair)?;
            (home == Home { rank, local_expert }).then_some(Received { local_expert, source, pair })
        })
    })
}

/// Returns the numbers of the rows that `core` of `rank` returns, in its order, when the rank has received these `rows`.
pub fn returns(
    shape: &Shape,
    rank: RankId,
    core: CoreId,
    order: SendOrder,
    rows: &[Received],
) -> impl Iterator<Item = u32> + Clone + use<> {
    let share = split::rows(shape, rows.len() as u32, core);
    let source = |item| rows.get((share.start + item) as usize).map(|row| row.source).ok_or(());
    let path = order.path_by(share.end - share.start, rank, source).unwrap_or(Path::EMPTY);
    (0..path.len()).map(move |i| share.start + path.item(i))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::record::Triple;
    use crate::reference::Cluster;
    use crate::shape::Config;
    use crate::testing::domain::{Dice, Domain, Tensors, shape as shape_of};
    use crate::testing::random;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(random::config(256))]

        #[test]
        fn a_rank_returns_the_rows_that_it_received_by_the_oracle(
            moe_ranks in 1i64..6, local in 1i64..4, s in 0i64..=4, replicas in 1i64..3,
            k in 1i64..=6, bs in 1i64..=6, zero_expert_num in 0i64..3, seed: u64,
        ) {
            let (rs, e) = (s * replicas, moe_ranks * local);
            let domain = Domain { r: moe_ranks + rs, e, s, rs, k: k.min(e), h: 1, bs, cores: 3 };
            let shape = shape_of(&Config { zero_expert_num, ..domain.config() });
            let mut dice = Dice(seed);
            let ranks = (0..shape.ep_world_size()).map(RankId);
            let tensors: Vec<_> = ranks.map(|rank| Tensors::random(&shape, rank, &mut dice)).collect();
            let inputs: Vec<_> = tensors.iter().map(Tensors::inputs).collect();
            let cluster = Cluster { shape: &shape, ranks: &inputs, elastic_info: None, expert_map: None };
            for rank in (0..shape.ep_world_size()).map(RankId) {
                let rows: Vec<_> = received(&shape, rank, |source| inputs[source.index()]).collect();
                let triples: Vec<_> = rows
                    .iter()
                    .map(|row| Triple { source: row.source, token: row.pair.token, k: row.pair.k }.words())
                    .collect();
                prop_assert_eq!(&triples, &cluster.dispatch(rank).assist_info_for_combine, "rank {}", rank);
                for order in SendOrder::ALL {
                    let cores = (0..shape.aiv_num()).map(CoreId);
                    let all = cores.flat_map(|core| returns(&shape, rank, core, order, &rows));
                    let mut all: Vec<_> = all.collect();
                    all.sort_unstable();
                    prop_assert!(all.into_iter().eq(0..rows.len() as u32), "each row once");
                }
            }
        }
    }
}
