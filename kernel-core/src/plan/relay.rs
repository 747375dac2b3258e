//! The routes of tokens in an A2 hierarchy: the servers that need a token, and the ranks on each (A2 stages article, stage 2).
//!
//! A token goes once to every other server that has an expert of it, to the namesake of its rank there, the **relay**,
//! which forwards it on that server; in combine the same relay gets the rows of that server and sends one sum. All tokens
//! from one rank to one server, and all sums from one server to one rank, are a **stream**, which one core issues. The rows
//! that a relay forwards are split over its cores by experts.

use super::split;
use crate::layout::expr::Expr;
use crate::layout::relay::Part;
use crate::placement::Home;
use crate::shape::Shape;
use crate::units::{CoreId, RankId, Token};
use core::ops::Range;

/// A row that a relay forwards, or that comes back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// k index of the pair.
    pub k: u32,
    /// The row's part in the sum of the server.
    pub part: Part,
    /// The expert's location, on a rank of that server.
    pub home: Home,
}

/// Returns the pairs of a token on `server`: k index and [number of the expert](near_expert) there, k ascending.
pub(crate) fn pairs_on(shape: &Shape, ids: &[i32], server: u32) -> impl Iterator<Item = (u32, u32)> {
    // A server's experts are numbered in a row, so none of them need be located to be told from others.
    let experts = near_experts(shape);
    let first = server * experts;
    let all = (0..).zip(ids).map(move |(k, id)| (k, id.cast_unsigned().wrapping_sub(first)));
    all.filter(move |&(_, near_expert)| near_expert < experts)
}

/// Returns the number of pairs of a token on `server`; without any the token does not go there.
#[must_use]
pub fn pairs(shape: &Shape, ids: &[i32], server: u32) -> u32 {
    pairs_on(shape, ids, server).count() as u32
}

/// Returns the rows that the relay on `server` forwards of a token, k ascending.
fn forwards_of<'a>(shape: &'a Shape, ids: &'a [i32], server: u32) -> impl Iterator<Item = Forward> + 'a {
    let pairs = pairs(shape, ids, server);
    let row = move |(position, (k, near_expert))| {
        let home = near_home(shape, server, near_expert);
        Forward { k, part: Part { pairs, position }, home }
    };
    (0..).zip(pairs_on(shape, ids, server)).map(row)
}

/// Returns the servers whose streams `core` issues; that of its own server holds its own tokens.
#[must_use]
pub const fn streams(shape: &Shape, core: CoreId) -> Range<u32> {
    split::even(shape.servers(), shape.aiv_num(), core.0)
}

/// Returns the rows that `core` of a relay forwards: for each number `server * near_experts + near_expert` the rows of the
/// stream from that server for that expert. One core forwards all of them, so that it can announce their number (rule 2 of
/// the fabric).
pub(crate) const fn forwards(shape: &Shape, core: CoreId) -> Range<u32> {
    split::even(shape.servers() * near_experts(shape), shape.aiv_num(), core.0)
}

/// Returns the core of a relay that forwards rows of the stream from `server` to `home`.
#[must_use]
pub const fn forwarder(shape: &Shape, server: u32, home: Home) -> CoreId {
    let experts = near_experts(shape);
    let number = server * experts + near_expert(shape, home);
    CoreId(split::even_owner(shape.servers() * experts, shape.aiv_num(), number))
}

/// What the near experts of a share follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forwarded {
    /// An end of the share, as a number `server * near_experts + near_expert`.
    End,
    /// The server.
    Server,
    /// The experts of a server.
    NearExperts,
}

/// The near expert at which the part of a share that belongs to a server begins or ends, as a formula.
pub const FORWARDED_END: Expr<Forwarded> = expr!(Forwarded: min((End - (Server * NearExperts)), NearExperts));

/// Returns the near experts whose rows of the stream from `server` belong to `forwards`.
pub(crate) fn forwarded_to(shape: &Shape, forwards: &Range<u32>, server: u32) -> Range<u32> {
    let experts = near_experts(shape);
    let within = |end: u32| end.saturating_sub(server * experts).min(experts);
    within(forwards.start)..within(forwards.end)
}

/// Returns the number of an expert on its rank's server, in the order of ranks and local experts.
pub(crate) const fn near_expert(shape: &Shape, home: Home) -> u32 {
    shape.server_of(home.rank).1 * shape.local_expert_num() + home.local_expert
}

/// Returns the location of such an expert on `server`.
pub(crate) const fn near_home(shape: &Shape, server: u32, near_expert: u32) -> Home {
    let (number, local_expert) = crate::units::div_rem(near_expert, shape.local_expert_num());
    Home { rank: shape.rank_on(server, number), local_expert }
}

/// Returns the number of experts of a server.
pub(crate) const fn near_experts(shape: &Shape) -> u32 {
    shape.server_ranks() * shape.local_expert_num()
}

/// A token on its way to a server that has an expert of it, and in combine the sum that comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Crossing {
    /// The token.
    pub token: Token,
    /// The other server.
    pub server: u32,
    /// The number of its rows on that server.
    pub pairs: u32,
}

/// Returns the tokens of a rank that cross to other servers: by token, then server.
pub fn across<'a>(
    shape: &'a Shape,
    rank: RankId,
    all_ids: &'a [i32],
) -> impl Iterator<Item = Crossing> + use<'a> {
    let (own, _) = shape.server_of(rank);
    tokens(shape, all_ids).flat_map(move |(token, ids)| {
        let servers = (0..shape.servers()).filter(move |&server| server != own);
        let crossing = move |server| Crossing { token, server, pairs: pairs(shape, ids, server) };
        servers.map(crossing).filter(|crossing| crossing.pairs > 0)
    })
}

/// Returns the rows that relays forward of the tokens of a rank, and get back: by token, then server, then position. On the
/// own server the rank itself is the relay.
pub fn inside<'a>(
    shape: &'a Shape,
    all_ids: &'a [i32],
) -> impl Iterator<Item = (Token, u32, Forward)> + use<'a> {
    tokens(shape, all_ids).flat_map(move |(token, ids)| {
        let of = move |server| forwards_of(shape, ids, server).map(move |row| (token, server, row));
        (0..shape.servers()).flat_map(of)
    })
}

fn tokens<'a>(shape: &Shape, all_ids: &'a [i32]) -> impl Iterator<Item = (Token, &'a [i32])> + use<'a> {
    (0..).map(Token).zip(all_ids.chunks_exact((shape.k() as usize).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{BatchSizes, Config, Protocol};
    use crate::testing::domain::{Domain, PAIR, try_shape};
    use alloc::vec;
    use alloc::vec::Vec;

    /// Every hierarchy of up to 3 servers of up to 3 ranks, up to 2 experts per rank and K up to 3.
    fn small_domains() -> impl Iterator<Item = Shape> {
        let sizes = (1..=3).flat_map(|servers| (1..=3).map(move |near| (servers, near)));
        sizes.flat_map(|(servers, near)| (1..=2).map(move |l| (servers, near, l))).flat_map(
            |(servers, near, l)| {
                (1..=3i64).filter_map(move |k| {
                    let r = servers * near;
                    try_shape(&Config {
                        comm_alg: Protocol::Hierarchy,
                        server_ranks: near,
                        ..Domain { r, e: r * l, k, h: 8, ..PAIR }.config()
                    })
                })
            },
        )
    }

    /// Returns the number of tokens of a rank that cross to other servers, and of rows that are forwarded within a server
    /// to another rank: the two kinds of writes of a dispatch.
    fn crossings(shape: &Shape, rank: RankId, all_ids: &[i32]) -> (u64, u64) {
        let moves =
            |&(_, server, forward): &(Token, u32, Forward)| forward.home.rank != shape.relay(rank, server);
        let inside = inside(shape, all_ids).filter(moves).count();
        (across(shape, rank, all_ids).count() as u64, inside as u64)
    }

    /// All rows of `k` distinct ids.
    fn rows_of_ids(experts: u32, k: u32) -> Vec<Vec<i32>> {
        let ids = 0..experts.cast_signed();
        (0..k).fold(vec![vec![]], |rows, _| {
            let longer = |row: Vec<i32>| {
                let free: Vec<i32> = ids.clone().filter(|id| !row.contains(id)).collect();
                free.into_iter().map(move |id| [&row[..], &[id]].concat())
            };
            rows.into_iter().flat_map(longer).collect()
        })
    }

    #[test]
    fn every_pair_reaches_only_its_expert_over_one_relay() {
        let mut rows = 0;
        for shape in small_domains() {
            let (near, local) = (shape.server_ranks(), shape.local_expert_num());
            for ids in rows_of_ids(shape.moe_expert_num(), shape.k()) {
                // The destinations of the token, and the k of each, computed directly.
                let rank_of = |id: i32| id.cast_unsigned() / local;
                let mut reached = vec![];
                for server in 0..shape.servers() {
                    let needed = ids.iter().filter(|&&id| rank_of(id) / near == server).count() as u32;
                    assert_eq!(pairs(&shape, &ids, server), needed, "{ids:?} on {server} of {shape:?}");
                    assert!(needed <= crate::layout::relay::pairs_max(&shape));
                    assert_eq!(forwards_of(&shape, &ids, server).count(), needed as usize);
                    let mut last = None;
                    for (position, Forward { k, part, home }) in (0..).zip(forwards_of(&shape, &ids, server))
                    {
                        assert_eq!(part, Part { pairs: needed, position });
                        assert!(last < Some(k), "the order of k is that of positions");
                        assert_eq!(home.rank.0 / near, server, "a relay forwards inside its server");
                        last = Some(k);
                        reached.push((k, home.rank.0, home.local_expert));
                        let number = near_expert(&shape, home);
                        assert!(number < near_experts(&shape));
                        assert_eq!(near_home(&shape, server, number), home);
                    }
                }
                reached.sort_unstable();
                let expected: Vec<_> =
                    (0..).zip(&ids).map(|(k, &id)| (k, rank_of(id), id.cast_unsigned() % local)).collect();
                assert_eq!(reached, expected);
                rows += 1;
            }
        }
        assert!(rows > 9_000, "{rows}");
    }

    #[test]
    fn a_token_crosses_to_a_server_once() {
        for shape in small_domains() {
            for rank in (0..shape.ep_world_size()).map(RankId) {
                for server in 0..shape.servers() {
                    let relay = shape.relay(rank, server);
                    assert_eq!(relay.0 / shape.server_ranks(), server);
                    assert_eq!(relay.0 % shape.server_ranks(), rank.0 % shape.server_ranks());
                    assert_eq!(shape.relay(relay, shape.server_of(rank).0), rank, "and back");
                }
                let ids: Vec<i32> = (0..shape.k().cast_signed()).collect();
                let (near, local) = (shape.server_ranks(), shape.local_expert_num());
                let homes: Vec<u32> = ids.iter().map(|id| id.cast_unsigned() / local).collect();
                let mut servers: Vec<u32> = homes.iter().map(|home| home / near).collect();
                servers.dedup();
                let across = servers.iter().filter(|&&server| server != rank.0 / near).count() as u64;
                let inside = homes.iter().filter(|&&home| home % near != rank.0 % near).count() as u64;
                assert_eq!(crossings(&shape, rank, &ids), (across, inside), "{rank} of {shape:?}");
            }
        }
    }

    #[test]
    fn the_seeds_decode_crosses_by_seven_eighths_of_four_servers_a_token() {
        // The A2 stages article: BS * H * 4 * 2 * 7 / 8 = 802 816 B across, twice that inside.
        let config = Config {
            comm_alg: Protocol::Hierarchy,
            ep_world_size: 64,
            moe_expert_num: 256,
            ..Config::default()
        };
        let shape = crate::testing::domain::shape(&config);
        // Token t of rank r: two experts on each of four servers, with all servers and all their ranks in turn.
        let mut sums = (0, 0);
        for rank in 0..64u32 {
            let ids: Vec<i32> = (0..16u32)
                .flat_map(|t| {
                    (0..8).map(move |k| {
                        let (server, number) =
                            ((rank + t + 2 * (k / 2)) % 8, (rank / 8 + t / 2 + 4 * (k % 2)) % 8);
                        ((server * 8 + number) * 4).cast_signed()
                    })
                })
                .collect();
            let (across, inside) = crossings(&shape, RankId(rank), &ids);
            sums = (sums.0 + across, sums.1 + inside);
        }
        assert_eq!(sums.0 * shape.row_bytes() / 64, 802_816);
        assert_eq!(sums.1 * shape.row_bytes() / 64, 1_605_632);
    }

    fn servers(cores: i64) -> Shape {
        let domain = Domain { r: 64, e: 128, s: 0, rs: 0, k: 8, h: 32, bs: 16, cores };
        crate::testing::domain::shape(&Config { comm_alg: Protocol::Hierarchy, ..domain.config() })
    }

    #[test]
    fn the_rows_of_a_relay_are_split_over_all_cores() {
        for cores in 1..=48 {
            let shape = servers(cores);
            let all = || (0..shape.aiv_num()).map(CoreId);
            for server in 0..shape.servers() {
                let of = |core| forwarded_to(&shape, &forwards(&shape, core), server).map(move |e| (core, e));
                let seen: Vec<_> = all().flat_map(of).collect();
                for share in all().map(|core| forwards(&shape, core)) {
                    let end = |end: u32| {
                        FORWARDED_END.value(&|of| match of {
                            Forwarded::End => end.into(),
                            Forwarded::Server => server.into(),
                            Forwarded::NearExperts => near_experts(&shape).into(),
                        }) as u32
                    };
                    assert_eq!(end(share.start)..end(share.end), forwarded_to(&shape, &share, server));
                }
                let home = |e| near_home(&shape, 1, e);
                let experts = 0..near_experts(&shape);
                let want: Vec<_> = experts.map(|e| (forwarder(&shape, server, home(e)), e)).collect();
                assert_eq!(seen, want, "stream from {server}, {cores} cores");
            }
            let sizes: Vec<_> = all().map(|core| forwards(&shape, core).len()).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{cores} cores");
        }
    }

    #[test]
    fn every_stream_has_one_core() {
        for cores in 1..=10 {
            let config = Config { aiv_num: cores, bs: BatchSizes::Uniform(1), ..Config::default() };
            let config = Config { comm_alg: Protocol::Hierarchy, ep_world_size: 64, ..config };
            let shape = crate::testing::domain::shape(&config);
            let all = (0..shape.aiv_num()).flat_map(|core| streams(&shape, CoreId(core)));
            assert_eq!(all.collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        }
    }
}
