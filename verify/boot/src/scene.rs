//! The configurations that boot: groups of two ranks of two cores, with the inputs of each round. The build script, which asks
//! the reference, reads this file, too.

use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::{BatchSizes, Config, Protocol};

pub(crate) const RANKS: usize = 2;
pub(crate) const CORES: usize = 2;
pub(crate) const ROUNDS: usize = 50;
pub(crate) const BS: usize = 8;
pub(crate) const K: usize = 4;
/// Entries of `expert_ids`.
pub(crate) const IDS: usize = BS * K;
/// Bytes of a row.
pub(crate) const ROW: usize = 2 * H;
const H: usize = 256;
const EXPERTS: usize = 8;
/// Experts of a rank.
pub(crate) const LOCAL: usize = EXPERTS / RANKS;

/// The same of every token.
pub(crate) const WEIGHTS: [f32; IDS] = {
    let (mut weights, mut pair) = ([0.0; IDS], 0);
    while pair < IDS {
        weights[pair] = [0.5, 0.25, 0.125, 0.0625][pair % K];
        pair += 1;
    }
    weights
};

pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) config: Config<'static>,
    pub(crate) choices: Choices,
}

/// All of them, in the order of running. The first is also the twin's.
pub(crate) fn all() -> [Scene; 7] {
    let scene = |name, comm_alg, choices| {
        // Each rank is a server where rows travel by servers.
        let is_hierarchy = comm_alg == Protocol::Hierarchy;
        let (server_ranks, hccl_buffsize_mb) = if is_hierarchy { (1, 105) } else { (8, 6) };
        let config = Config {
            comm_alg,
            ep_world_size: RANKS as i64,
            server_ranks,
            moe_expert_num: EXPERTS as i64,
            k: K as i64,
            h: H as i64,
            bs: BatchSizes::Uniform(BS as i64),
            aiv_num: CORES as i64,
            hccl_buffsize_mb,
            ..Config::default()
        };
        Scene { name, config, choices }
    };
    let plain = Choices::default();
    let direct = Receive::Direct { areas: 2 };
    [
        scene("joint flags", Protocol::FullmeshV1, plain),
        scene("separate flags", Protocol::FullmeshV1, Choices { flags: Flags::Separate, ..plain }),
        scene("fullmesh_v2", Protocol::FullmeshV2, plain),
        scene("direct placement", Protocol::FullmeshV1, Choices { receive: direct, ..plain }),
        scene("A2 full mesh", Protocol::Fullmesh, plain),
        scene("hierarchy, agents", Protocol::Hierarchy, Choices { stage: Stage::Two, ..plain }),
        scene("hierarchy, cores", Protocol::Hierarchy, plain),
    ]
}

/// Tokens: numbers from 1 to 2 and from -2 to -1, another in each element of each round.
pub(crate) fn x(rank: usize, round: usize) -> [u8; BS * ROW] {
    let mut x = [0; BS * ROW];
    for (i, element) in x.chunks_exact_mut(2).enumerate() {
        let mixed = ((round * RANKS + rank) * BS * H + i).wrapping_mul(0x9E37_79B1) >> 16;
        let (sign, fraction) = (mixed as u16 & 0x8000, mixed as u16 & 0x7F);
        element.copy_from_slice(&(sign | 0x3F80 | fraction).to_le_bytes());
    }
    x
}

/// `expert_ids`, which differ by round, rank and token.
pub(crate) fn ids(rank: usize, round: usize) -> [i32; IDS] {
    core::array::from_fn(|pair| ((round + rank * 3 + (pair / K) * 5 + (pair % K) * 3) % EXPERTS) as i32)
}

/// What an expert makes of a row: those of odd numbers double it.
pub(crate) fn expert(expert: usize, row: &mut [u8]) {
    for element in row.as_chunks_mut().0 {
        *element = u16::from_le_bytes(*element).wrapping_add(0x80 * (expert % 2) as u16).to_le_bytes();
    }
}

/// A number that is another one for almost all other `bytes`, and continues what came before.
pub(crate) fn digest(so_far: u64, bytes: &[u8]) -> u64 {
    bytes.as_chunks().0.iter().fold(so_far, |so_far, &word| {
        (so_far.rotate_left(5) ^ u64::from(u32::from_le_bytes(word))).wrapping_mul(0x517C_C1B7_2722_0A95)
    })
}
