//! Splitting work over the cores of a rank (A3 slides, key designs 2 and 4).

use crate::layout::expr::Expr;
use crate::shape::{Protocol, Shape};
use crate::units::{CoreId, RankId, div_rem};
use core::ops::Range;

/// Returns the share of core `i` when `p` cores split `n` items evenly: the first `n % p` cores get one more.
#[must_use]
pub const fn even(n: u32, p: u32, i: u32) -> Range<u32> {
    nth(div_rem(n, p), i)
}

/// Returns the `i`-th of shares of `each` items, of which the first `rest` have one more.
const fn nth((each, rest): (u32, u32), i: u32) -> Range<u32> {
    let start = each * i + if i < rest { i } else { rest };
    start..start + each + if i < rest { 1 } else { 0 }
}

/// What a share follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shared {
    /// Items to split.
    Items,
    /// Cores that split them.
    Cores,
    /// The core, below these.
    Core,
    /// An item, below the items.
    Item,
}

/// The first item of an [`even`] share, as a formula.
pub const EVEN_START: Expr<Shared> =
    expr!(Shared: ((Items / Cores) * Core) + (min(Core, (Items - ((Items / Cores) * Cores)))));

/// The items of an [`even`] share, as a formula.
pub const EVEN_LENGTH: Expr<Shared> =
    expr!(Shared: (Items / Cores) + (min(1, ((Items - ((Items / Cores) * Cores)) - Core))));

/// The items of a share that gets nothing of the rest, as a formula.
pub const EVEN_EACH: Expr<Shared> = expr!(Shared: Items / Cores);
/// The rest, of which the first shares have one item each, as a formula.
pub const EVEN_REST: Expr<Shared> = expr!(Shared: Items - ((Items / Cores) * Cores));
const LONGER_SHARE: Expr<Shared> = Expr::Sum(&EVEN_EACH, &Expr::Number(1));
const IN_LONGER_SHARES: Expr<Shared> = Expr::Product(&EVEN_REST, &LONGER_SHARE);

/// The number of the share that holds an item, as a formula: of a longer share, or behind all of these.
pub const EVEN_OWNER: Expr<Shared> = Expr::Sum(
    &Expr::Over(&Expr::Min(&Expr::Of(Shared::Item), &IN_LONGER_SHARES), &LONGER_SHARE),
    &Expr::Over(
        &Expr::Less(&Expr::Of(Shared::Item), &IN_LONGER_SHARES),
        &Expr::Max(&EVEN_EACH, &Expr::Number(1)),
    ),
);

/// Returns the number of the share that holds `item`, when `n` items are split evenly over `p`.
#[must_use]
pub const fn even_owner(n: u32, p: u32, item: u32) -> u32 {
    let (each, rest) = div_rem(n, p);
    let longer = rest * (each + 1);
    if item < longer { div_rem(item, each + 1).0 } else { rest + div_rem(item - longer, each).0 }
}

/// The sends of a core in dispatch: a share of the flat `(token, k)` pairs and of the flat `(token, j)` pairs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DispatchShare {
    /// Its range of the `BS * K` pairs `token * K + k`.
    pub moe: Range<u32>,
    /// Its range of the `BS * S` pairs `token * S + j`.
    pub shared: Range<u32>,
}

/// The work of one core in both operators, except for the rows it returns, which only dispatch determines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// The pairs that it sends in dispatch, and whose `expand_idx` it writes. With fullmesh_v2 it sends only the shared
    /// ones of these, and `experts` for the rest.
    pub sends: DispatchShare,
    /// With fullmesh_v2 the MoE experts to which it sends all records of its rank; else none.
    pub experts: Range<u32>,
    /// The destinations, shared-expert ranks then MoE experts, to which it publishes.
    pub destinations: Range<u32>,
    /// The dispatch slots that it awaits, and copies out unless rows are split.
    pub slots: Range<u32>,
    /// The tokens that it waits for and sums in combine.
    pub tokens: Range<u32>,
}

/// Returns the work of `core` of `rank`.
#[must_use]
pub fn work(shape: &Shape, rank: RankId, core: CoreId) -> Work {
    Work {
        sends: dispatch(shape, rank, core),
        experts: experts(shape, core),
        destinations: publish(shape, core),
        slots: slots(shape, rank, core),
        tokens: tokens(shape, rank, core),
    }
}

/// The cores of each task of dispatch before receiving.
struct Roles {
    /// The cores that publish counts.
    publish: Range<u32>,
    /// The cores that send to MoE experts.
    moe: Range<u32>,
    /// The cores that send to shared experts.
    shared: Range<u32>,
}

/// What the roles of cores follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Staff {
    /// Cores of a rank.
    Cores,
    /// The first of them, which publish counts and send nothing.
    CountCores,
    /// The last of them, which send to shared experts.
    SharedCores,
    /// K.
    K,
    /// S.
    SharedExperts,
}

/// The first cores of fullmesh_v2, as a formula. In other layouts there are none.
pub const COUNT_CORES: Expr<Staff> = expr!(Staff: min((max((Cores / 8), 1)), (Cores - 1)));

/// The cores that send to shared experts, as a formula.
pub const SHARED_CORES: Expr<Staff> = expr!(Staff:
    max((((Cores - CountCores) * SharedExperts) / (K + SharedExperts)), (min(SharedExperts, 1))));

/// The end of the cores that publish counts, from the first one on, as a formula: all of them unless some only count.
pub const PUBLISH_END: Expr<Staff> = expr!(Staff: CountCores + (Cores * (1 - CountCores)));

/// The end of the cores that send to MoE experts, behind those that only count, as a formula.
pub const MOE_END: Expr<Staff> = expr!(Staff: max((Cores - SharedCores), (CountCores + 1)));

/// Returns the roles of the cores. A single core does everything. Otherwise the last cores send to shared experts, in the
/// ratio of the pairs; with fullmesh_v2 the first ones send nothing, so that counts leave at once.
fn roles(shape: &Shape) -> Roles {
    let (p, first) = (shape.aiv_num(), count_cores(shape));
    let publish = if first == 0 { 0..p } else { 0..first };
    match (p - first, shared_cores(shape)) {
        (_, 0) => Roles { publish, moe: first..p, shared: p..p },
        (1, _) => Roles { publish, moe: first..p, shared: first..p },
        (_, shared) => Roles { publish, moe: first..p - shared, shared: p - shared..p },
    }
}

/// Returns the number of first cores, which publish counts and send nothing: with fullmesh_v2 every eighth core and at
/// least one, unless there is only one. (A count is 8 bytes, a record is thousands.)
pub(crate) fn count_cores(shape: &Shape) -> u32 {
    match (shape.protocol(), shape.aiv_num()) {
        (Protocol::FullmeshV2, p) if p > 1 => div_rem(p, 8).0.max(1),
        _ => 0,
    }
}

/// Returns the number of cores, the last ones, that send to shared experts; 0 without shared-expert ranks.
pub(crate) fn shared_cores(shape: &Shape) -> u32 {
    let s = shape.shared_expert_num();
    if s == 0 {
        return 0;
    }
    let senders = shape.aiv_num() - count_cores(shape);
    div_rem(senders * s, shape.k() + s).0.max(1)
}

/// Returns the share of `core` of `n` items that `cores` split.
fn share(n: u32, cores: &Range<u32>, core: CoreId) -> Range<u32> {
    if cores.contains(&core.0) { even(n, cores.end - cores.start, core.0 - cores.start) } else { 0..0 }
}

/// Returns the pairs that `core` of `rank` sends; with fullmesh_v2 the MoE pairs whose `expand_idx` it writes, and the
/// shared pairs that it sends.
#[must_use]
pub fn dispatch(shape: &Shape, rank: RankId, core: CoreId) -> DispatchShare {
    let roles = roles(shape);
    let moe = match shape.protocol() {
        Protocol::FullmeshV2 => &(0..shape.aiv_num()),
        _ => &roles.moe,
    };
    DispatchShare {
        moe: share(shape.bs(rank) * shape.k(), moe, core),
        shared: share(shape.bs(rank) * shape.shared_expert_num(), &roles.shared, core),
    }
}

/// Returns the MoE experts to which `core` sends with fullmesh_v2.
pub(crate) fn experts(shape: &Shape, core: CoreId) -> Range<u32> {
    match shape.protocol() {
        Protocol::FullmeshV2 => share(shape.moe_expert_num(), &roles(shape).moe, core),
        _ => 0..0,
    }
}

/// Returns the destinations, shared-expert ranks then MoE experts, to which `core` publishes its rank's flags.
#[must_use]
pub fn publish(shape: &Shape, core: CoreId) -> Range<u32> {
    share(shape.shared_expert_rank_num() + shape.moe_expert_num(), &roles(shape).publish, core)
}

/// Returns the dispatch slots of `rank` that `core` awaits and copies out.
#[must_use]
pub const fn slots(shape: &Shape, rank: RankId, core: CoreId) -> Range<u32> {
    nth(shape.by_cores(shape.local_experts(rank) * shape.ep_world_size()), core.0)
}

/// Returns whether cores of `rank` can copy rows out of each other's slots. On a shared-expert rank few sources send, and
/// if no share of slots has two of them, the sums of shares are the numbers of rows of each source.
pub(crate) const fn copies_by_rows(shape: &Shape, rank: RankId) -> bool {
    shape.shared_expert_of(rank).is_some()
        && shape.aiv_num() > 1
        && slots(shape, rank, CoreId(0)).end <= shape.shared_replicas()
}

/// Returns the received rows that `core` sends back in combine.
#[inline]
#[must_use]
pub const fn rows(shape: &Shape, rows: u32, core: CoreId) -> Range<u32> {
    nth(shape.by_cores(rows), core.0)
}

/// Returns the tokens of `rank` that `core` waits for and sums in combine.
#[must_use]
pub fn tokens(shape: &Shape, rank: RankId, core: CoreId) -> Range<u32> {
    nth(shape.by_cores(shape.bs(rank)), core.0)
}

/// Returns the ranks to which `core` publishes and from which it awaits on A2, and in pull combine.
#[must_use]
pub const fn ranks(shape: &Shape, core: CoreId) -> Range<u32> {
    nth(shape.by_cores(shape.ep_world_size()), core.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Config;
    use crate::testing::domain::{Domain, PAIR};
    use alloc::vec::Vec;

    /// Asserts that the shares of all cores follow each other from 0 to `n`.
    fn assert_partition(shares: impl Iterator<Item = Range<u32>>, n: u32) {
        let mut next = 0;
        for share in shares.filter(|share| !share.is_empty()) {
            assert_eq!(share.start, next, "gap or overlap");
            next = share.end;
        }
        assert_eq!(next, n, "items left out");
    }

    #[test]
    fn even_shares_follow_each_other_and_differ_by_one_at_most() {
        for n in 0..=200 {
            for p in 1..=48 {
                assert_partition((0..p).map(|i| even(n, p, i)), n);
                for i in 0..p {
                    let share = even(n, p, i);
                    assert_eq!(share.start, n / p * i + (n % p).min(i), "n {n}, p {p}, core {i}");
                    let len = share.end - share.start;
                    assert_eq!(len, n / p + u32::from(i < n % p), "n {n}, p {p}, core {i}");
                    let of = |shared| match shared {
                        Shared::Items => n.into(),
                        Shared::Cores => p.into(),
                        Shared::Core => u64::from(i),
                        Shared::Item => 0,
                    };
                    let formulas = [EVEN_START, EVEN_LENGTH].map(|formula| formula.value(&of));
                    assert_eq!(formulas, [share.start, len].map(u64::from), "n {n}, p {p}, core {i}");
                }
            }
        }
    }

    #[test]
    fn the_owner_of_an_item_is_the_share_that_holds_it() {
        for (n, p) in (0..60).flat_map(|n| (1..=48).map(move |p| (n, p))) {
            for item in 0..n {
                let owner = even_owner(n, p, item);
                let of = |shared| match shared {
                    Shared::Items => n.into(),
                    Shared::Cores => p.into(),
                    Shared::Core => 0,
                    Shared::Item => u64::from(item),
                };
                assert_eq!(EVEN_OWNER.value(&of), owner.into(), "{item} of {n} over {p}");
                assert!(owner < p && even(n, p, owner).contains(&item), "{item} of {n} over {p}: {owner}");
            }
        }
    }

    #[test]
    fn seven_items_over_three_cores_are_three_and_two_and_two() {
        assert_eq!([0, 1, 2].map(|i| even(7, 3, i)), [0..3, 3..5, 5..7]);
        assert_eq!([0, 1, 2].map(|i| even(2, 3, i)), [0..1, 1..2, 2..2]);
    }

    fn shapes() -> impl Iterator<Item = Shape> {
        let cores = [1, 2, 3, 5, 8, 47, 48];
        let experts = [(0, 0), (1, 1), (1, 3), (2, 2), (3, 6), (4, 4)];
        cores.into_iter().flat_map(move |cores| {
            experts.into_iter().flat_map(move |(s, rs)| {
                [1, 2, 5, 8].into_iter().flat_map(move |k| {
                    [1, 2, 7, 16].map(|bs| Domain { r: rs + 3, e: 9, s, rs, k, h: 1, bs, cores }.shape())
                })
            })
        })
    }

    fn cores(shape: &Shape) -> impl Iterator<Item = CoreId> + use<> {
        (0..shape.aiv_num()).map(CoreId)
    }

    #[test]
    fn formulas_of_roles_are_what_machines_compute() {
        let in_blocks = |shape: &Shape| {
            let config = Domain {
                r: i64::from(shape.ep_world_size()),
                e: 9,
                s: shape.shared_expert_num().into(),
                rs: shape.shared_expert_rank_num().into(),
                k: shape.k().into(),
                h: 1,
                bs: 1,
                cores: shape.aiv_num().into(),
            }
            .config();
            crate::testing::domain::shape(&Config { comm_alg: Protocol::FullmeshV2, ..config })
        };
        for shape in shapes().flat_map(|shape| [in_blocks(&shape), shape]) {
            let Roles { publish, moe, shared } = roles(&shape);
            let of = |staff| match staff {
                Staff::Cores => shape.aiv_num().into(),
                Staff::CountCores => count_cores(&shape).into(),
                Staff::SharedCores => shared_cores(&shape).into(),
                Staff::K => shape.k().into(),
                Staff::SharedExperts => u64::from(shape.shared_expert_num()),
            };
            let value = |formula: Expr<Staff>| formula.value(&of) as u32;
            let first = if shape.protocol() == Protocol::FullmeshV2 { value(COUNT_CORES) } else { 0 };
            assert_eq!(
                (first, value(SHARED_CORES)),
                (count_cores(&shape), shared_cores(&shape)),
                "{shape:?}"
            );
            let p = shape.aiv_num();
            let from_formulas = [0..value(PUBLISH_END), first..value(MOE_END), p - value(SHARED_CORES)..p];
            assert_eq!(from_formulas, [publish, moe, shared], "{shape:?}");
        }
    }

    #[test]
    fn every_pair_is_sent_by_exactly_one_core() {
        for shape in shapes() {
            let rank = RankId(1);
            let shares: Vec<_> = cores(&shape).map(|core| dispatch(&shape, rank, core)).collect();
            let bs = shape.bs(rank);
            assert_partition(shares.iter().map(|share| share.moe.clone()), bs * shape.k());
            assert_partition(shares.iter().map(|share| share.shared.clone()), bs * shape.shared_expert_num());
        }
    }

    #[test]
    fn the_last_cores_send_to_shared_experts_in_proportion() {
        for shape in shapes() {
            let (p, k, s) = (shape.aiv_num(), shape.k(), shape.shared_expert_num());
            let expected = if s == 0 { 0 } else { (p * s / (k + s)).max(1) };
            assert_eq!(shared_cores(&shape), expected, "{shape:?}");
            if p == 1 {
                continue;
            }
            for core in cores(&shape) {
                let DispatchShare { moe, shared } = dispatch(&shape, RankId(0), core);
                let on_shared = core.0 >= p - expected;
                assert!(if on_shared { moe.is_empty() } else { shared.is_empty() }, "{core} of {shape:?}");
            }
        }
    }

    #[test]
    fn of_48_cores_five_send_to_one_shared_expert_beside_eight_others() {
        let shape = Domain { r: 4, e: 9, s: 1, rs: 1, k: 8, h: 1, bs: 16, cores: 48 }.shape();
        assert_eq!(shared_cores(&shape), 5);
        let share = |core| dispatch(&shape, RankId(3), CoreId(core));
        // 128 pairs over 43 cores: 42 take three, the last takes two; 16 over 5: four, then three each.
        assert_eq!(share(0), DispatchShare { moe: 0..3, shared: 0..0 });
        assert_eq!(share(42), DispatchShare { moe: 126..128, shared: 0..0 });
        assert_eq!(share(43), DispatchShare { moe: 0..0, shared: 0..4 });
        assert_eq!(share(47), DispatchShare { moe: 0..0, shared: 13..16 });
    }

    #[test]
    fn a_single_core_sends_both_kinds() {
        let shape = Domain { r: 4, e: 6, s: 1, rs: 2, k: 2, h: 1, bs: 5, cores: 1 }.shape();
        assert_eq!(dispatch(&shape, RankId(0), CoreId(0)), DispatchShare { moe: 0..10, shared: 0..5 });
    }

    #[test]
    fn destinations_slots_rows_and_tokens_are_split_without_gaps() {
        for shape in shapes() {
            let destinations = shape.shared_expert_rank_num() + shape.moe_expert_num();
            assert_partition(cores(&shape).map(|core| publish(&shape, core)), destinations);
            for rank in (0..shape.ep_world_size()).map(RankId) {
                let n = shape.local_experts(rank) * shape.ep_world_size();
                assert_partition(cores(&shape).map(|core| slots(&shape, rank, core)), n);
                assert_partition(cores(&shape).map(|core| tokens(&shape, rank, core)), shape.bs(rank));
            }
            for n in [0, 1, 13] {
                assert_partition(cores(&shape).map(|core| rows(&shape, n, core)), n);
            }
        }
    }

    /// The preset `a3-288` with more cores: 9 of 288 sources send 48 rows each to a shared-expert rank.
    #[test]
    fn no_core_of_a_shared_expert_rank_copies_far_more_rows_than_another() {
        let least_and_most = |rows: &mut dyn Iterator<Item = u32>| {
            rows.fold((u32::MAX, 0), |(least, most), n| (least.min(n), most.max(n)))
        };
        for (number, by_slots, copied) in [
            (8, (48, 96), None),
            (9, (48, 48), Some((48, 48))),
            (24, (0, 48), Some((18, 18))),
            (40, (0, 48), Some((10, 11))),
            (48, (0, 48), Some((9, 9))),
        ] {
            let shape = Domain { r: 288, e: 256, s: 1, rs: 32, k: 8, h: 1, bs: 48, cores: number }.shape();
            for rank in (0..32).map(RankId) {
                let rows =
                    |slots: Range<u32>| slots.map(|source| shape.rows_from(RankId(source), rank)).sum();
                let of_slots = least_and_most(&mut cores(&shape).map(|core| rows(slots(&shape, rank, core))));
                assert_eq!(of_slots, by_slots, "rank {rank}, {number} cores");
                let total = rows(0..288);
                let of_rows = least_and_most(
                    &mut cores(&shape).map(|core| super::rows(&shape, total, core).len() as u32),
                );
                assert_eq!(
                    copies_by_rows(&shape, rank).then_some(of_rows),
                    copied,
                    "rank {rank}, {number} cores"
                );
            }
            assert!(!copies_by_rows(&shape, RankId(32)), "sources of a MoE rank all send");
        }
    }

    #[test]
    fn with_fullmesh_v2_cores_publish_counts_or_send_records() {
        for (cores, (s, rs), experts) in [1, 2, 3, 8, 15, 16, 48].into_iter().flat_map(|cores| {
            [(0, 0), (1, 2), (4, 4)].into_iter().flat_map(move |s| [2, 9].map(|e| (cores, s, e)))
        }) {
            let domain = Domain { r: rs + 1, e: experts, s, rs, k: 2, h: 1, bs: 5, cores };
            let shape =
                crate::testing::domain::shape(&Config { comm_alg: Protocol::FullmeshV2, ..domain.config() });
            let all: Vec<_> =
                (0..shape.aiv_num()).map(|core| work(&shape, RankId(0), CoreId(core))).collect();
            assert_partition(all.iter().map(|work| work.experts.clone()), shape.moe_expert_num());
            assert_partition(all.iter().map(|work| work.sends.moe.clone()), 10);
            assert_partition(all.iter().map(|work| work.sends.shared.clone()), 5 * s as u32);
            assert_partition(all.iter().map(|work| work.destinations.clone()), (rs + experts) as u32);
            let counting = count_cores(&shape) as usize;
            assert_eq!(counting, if cores == 1 { 0 } else { (cores as usize / 8).max(1) });
            for (core, work) in all.iter().enumerate() {
                let sends = !work.experts.is_empty() || !work.sends.shared.is_empty();
                assert!(!sends || core >= counting, "core {core} counts and sends");
                assert!(work.destinations.is_empty() || core < counting || cores == 1, "core {core} counts");
            }
        }
    }

    #[test]
    fn each_rank_splits_its_own_batch() {
        let mut config = Domain { r: 3, e: 3, cores: 2, ..PAIR }.config();
        config.bs = crate::shape::BatchSizes::PerRank(&[1, 4, 2]);
        config.global_bs = 12;
        let shape = crate::testing::domain::shape(&config);
        let moe = |rank| dispatch(&shape, RankId(rank), CoreId(0)).moe;
        assert_eq!([0, 1, 2].map(moe), [0..1, 0..2, 0..1]);
    }
}
