//! Generators of routing: the experts that tokens choose.

use super::{below, shuffle};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use veriep_core::inputs::ExpertMap;
use veriep_core::shape::{Product, Shape};
use veriep_core::units::{ExpertId, RankId, Token};

/// Most servers that one token visits under [`Routing::NodeLimited`].
pub const SERVERS_MAX: usize = 4;
/// Most ids that take part in [`Routing::Zipf`]; special experts may number billions.
const ZIPF_IDS_MAX: u32 = 4096;

/// How tokens choose their K distinct experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// All experts are equally likely, special ones included.
    #[default]
    Uniform,
    /// The i-th most popular expert is drawn with weight 1 / (i + 1); the seed chooses the order.
    Zipf,
    /// One MoE expert, chosen by the seed, is in every token's row; the others are uniform.
    Hot,
    /// Each token has experts of at most 4 servers of 8 ranks (of more, if those hold fewer than K experts), and special
    /// experts.
    NodeLimited,
    /// All loads are equal, as in the sources' arithmetic; on A2 each token visits exactly four servers.
    Ideal,
}

impl Routing {
    pub const ALL: [Self; 5] = [Self::Uniform, Self::Zipf, Self::Hot, Self::NodeLimited, Self::Ideal];

    /// Returns the name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Hot => "hot",
            Self::NodeLimited => "node-limited",
            Self::Ideal => "ideal",
        }
    }

    /// Returns how tokens choose, in a line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Uniform => "All experts are equally likely, special ones included",
            Self::Zipf => {
                "The i-th most popular expert is drawn with weight 1 / (i + 1); the seed chooses the order"
            }
            Self::Hot => {
                "One MoE expert, chosen by the seed, is in every token's row; the others are uniform"
            }
            Self::NodeLimited => {
                "Each token has experts of at most 4 servers of 8 ranks (of more, if those hold fewer than K experts), \
                 and special experts"
            }
            Self::Ideal => {
                "All loads are equal, as in the sources' arithmetic; on A2 each token visits exactly four servers"
            }
        }
    }
}

/// A routing made ready for a shape.
pub(super) struct Router<'a> {
    shape: &'a Shape,
    /// With redundant experts ids are logical.
    pub(super) map: Option<ExpertMap<'a>>,
    /// One past the largest id of a MoE expert.
    moe_end: u32,
    /// One past the largest id.
    ids_end: u32,
    choice: Choice,
}

enum Choice {
    Uniform,
    Zipf { ids: Vec<u32>, weights_until: Vec<u64> },
    Hot(u32),
    Servers(Vec<Vec<u32>>),
    Ideal,
}

impl<'a> Router<'a> {
    pub(super) fn new(
        shape: &'a Shape,
        map: Option<ExpertMap<'a>>,
        routing: Routing,
        rng: &mut ChaCha8Rng,
    ) -> Self {
        let moe_end = map.map_or(shape.moe_expert_num(), |map| map.logical_expert_num());
        let ids_end = moe_end + (shape.expert_ids_end() - shape.moe_expert_num());
        let choice = match routing {
            Routing::Uniform => Choice::Uniform,
            Routing::Zipf => {
                let mut ids: Vec<u32> = (0..ids_end.min(ZIPF_IDS_MAX)).collect();
                shuffle(rng, &mut ids);
                let weights_until = (1..=ids.len() as u64).scan(0, |sum, i| {
                    *sum += (1 << 32) / i;
                    Some(*sum)
                });
                Choice::Zipf { weights_until: weights_until.collect(), ids }
            }
            Routing::Hot => Choice::Hot(below(rng, moe_end)),
            Routing::NodeLimited => Choice::Servers(servers(shape, moe_end, |expert| expert)),
            Routing::Ideal => Choice::Ideal,
        };
        Self { shape, map, moe_end, ids_end, choice }
    }

    /// Fills the row of a token of an EP rank with distinct ids.
    pub(super) fn choose(&self, rng: &mut ChaCha8Rng, (rank, token): (RankId, Token), row: &mut [i32]) {
        match &self.choice {
            Choice::Uniform => self.complete(rng, row, 0),
            Choice::Ideal => {
                let ids = ideal(self.shape, rank, token);
                let mut filled = 0;
                for id in ids.take(row.len()).filter(|&id| id < self.moe_end) {
                    if !row[..filled].contains(&id.cast_signed()) {
                        row[filled] = id.cast_signed();
                        filled += 1;
                    }
                }
                self.complete(rng, row, filled);
            }
            Choice::Zipf { ids, weights_until } => {
                let total = weights_until.last().copied().unwrap_or(1);
                distinct(row, 0, || {
                    // 64 random bits scaled to [0, total): the product needs 128.
                    let weight = ((u128::from(rng.next_u64()) * u128::from(total)) >> 64) as u64;
                    ids[weights_until.partition_point(|&until| until <= weight)]
                });
            }
            Choice::Hot(hot) => {
                row[0] = *hot as i32;
                self.complete(rng, row, 1);
                row.swap(0, below(rng, row.len() as u32) as usize);
            }
            Choice::Servers(all) => {
                // Where a logical expert is depends on the token.
                let home = |map: ExpertMap<'_>| {
                    servers(self.shape, self.moe_end, |expert| {
                        let physical = map.physical(self.shape, rank, token, expert.cast_signed());
                        physical.unwrap_or_default().cast_unsigned()
                    })
                };
                let pool = visited(self.map.map(home).as_ref().unwrap_or(all), rng, row.len());
                let visible = pool.len() as u32 + self.ids_end - self.moe_end;
                let filled = row.len().min(visible as usize);
                distinct(&mut row[..filled], 0, || {
                    let drawn = below(rng, visible);
                    let special = || self.moe_end + drawn - pool.len() as u32;
                    pool.get(drawn as usize).copied().unwrap_or_else(special)
                });
                self.complete(rng, row, filled);
            }
        }
    }

    /// Fills the rest of a row uniformly.
    fn complete(&self, rng: &mut ChaCha8Rng, row: &mut [i32], filled: usize) {
        distinct(row, filled, || below(rng, self.ids_end));
    }
}

/// The experts of a token under [`Routing::Ideal`].
fn ideal(shape: &Shape, rank: RankId, token: Token) -> impl Iterator<Item = u32> {
    let (k, local) = (shape.k(), shape.local_expert_num());
    let ranks = shape.ep_world_size() - shape.shared_expert_rank_num();
    let server = if shape.product() == Product::A2 { shape.server_ranks().min(ranks) } else { ranks };
    let servers = ranks / server;
    let visited = (SERVERS_MAX as u32).min(servers).min(k);
    // Servers in even distances, then ranks of them in even distances.
    let (between, ahead) = (servers / visited, (server / k.div_ceil(visited)).max(1));
    let number = rank.0 * shape.bs_max() + token.0;
    (0..k).map(move |i| {
        let (turn, at) = (i / visited, (number + i % visited * between) % servers);
        let place = number / between + turn * ahead;
        (at * server + place % server) * local + (number + turn * ahead / server) % local
    })
}

/// Fills `row[filled..]` with draws, drawing again what is already there. Ends because the door grants
/// that there are at least K ids.
fn distinct(row: &mut [i32], filled: usize, mut draw: impl FnMut() -> u32) {
    for i in filled..row.len() {
        row[i] = loop {
            let id = draw() as i32;
            if !row[..i].contains(&id) {
                break id;
            }
        };
    }
}

/// The MoE experts of each server that has any, of those below `end`; `physical` says which ones they are.
fn servers(shape: &Shape, end: u32, physical: impl Fn(u32) -> u32) -> Vec<Vec<u32>> {
    let mut servers = vec![Vec::new(); shape.ep_world_size().div_ceil(shape.server_ranks()) as usize];
    for expert in 0..end {
        let server = shape.moe_home(ExpertId(physical(expert))).rank.0 / shape.server_ranks();
        servers[server as usize].push(expert);
    }
    servers.retain(|experts| !experts.is_empty());
    servers
}

/// The experts of the servers that one token visits.
fn visited(servers: &[Vec<u32>], rng: &mut ChaCha8Rng, k: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..servers.len()).collect();
    shuffle(rng, &mut order);
    let mut pool = Vec::new();
    for (i, &server) in order.iter().enumerate() {
        if i >= SERVERS_MAX && pool.len() >= k {
            break;
        }
        pool.extend_from_slice(&servers[server]);
    }
    pool
}
