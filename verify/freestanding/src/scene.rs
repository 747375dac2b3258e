//! The configurations that run, with their routings and their expected outputs.

use crate::{BS, CORES, H, K, RANKS, RELAY_WINDOW, WHOLE, WINDOW};
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::{BatchSizes, Config, Given, Op, Protocol};

/// Groups with memory of their own: of the plain layout; of fullmesh_v2, which takes what another layer leaves in its
/// window for flags; of two TP peers; of A2; of each stage of its hierarchy.
pub(crate) const GROUPS: usize = 6;
/// Those that are no hierarchy, which come first.
pub(crate) const MESHES: usize = 4;

/// All of them, in the order of running.
pub(crate) fn all() -> [Scene; 10] {
    let (two, three) = (hierarchy(4, Stage::Two), hierarchy(5, Stage::Three));
    [plain(), everything(), quantised(), in_place(), direct(), blocks(), peers(), a2_mesh(), two, three]
}

/// What the group is asked to do, and what must come of it.
pub(crate) struct Scene {
    /// Whose memory it takes.
    pub(crate) group: usize,
    pub(crate) config: Config<'static>,
    /// What all cores choose.
    pub(crate) choices: Choices,
    pub(crate) ids: [[i32; BS * K]; RANKS],
    /// Elements of x: all of a token are alike.
    pub(crate) first: u16,
    pub(crate) step: u16,
    /// By how many powers of two each token's result is larger than the token.
    pub(crate) doubled: [[i16; BS]; RANKS],
}

/// Dispatch and combine with nothing else to them.
fn plain() -> Scene {
    let config = Config {
        ep_world_size: WHOLE as i64,
        moe_expert_num: 6,
        k: K as i64,
        h: H as i64,
        bs: BatchSizes::Uniform(BS as i64),
        hccl_buffsize_mb: (WINDOW >> 20) as i64,
        aiv_num: CORES as i64,
        given: Given::ELASTIC_INFO,
        ..Config::default()
    };
    // Every token goes to one expert of its own rank and to one of the other: 0.5 * x + 0.5 * x = x. Numbers from
    // 1 to 2.
    Scene {
        group: 0,
        config,
        choices: Choices::default(),
        ids: [[0, 2, 3, 1], [1, 2, 2, 0]],
        first: 0x3F80,
        step: 4,
        doubled: [[0; BS]; RANKS],
    }
}

/// The same with rows that travel as int8. Alike elements come back as they were.
fn quantised() -> Scene {
    let Scene { config, .. } = plain();
    Scene { config: Config { quant_mode: 2, ..config }, ..plain() }
}

/// The same with experts that read rows where they were put.
fn in_place() -> Scene {
    let choices = Choices { receive: Receive::InPlace, flags: Flags::Separate, ..Choices::default() };
    Scene { choices, ..plain() }
}

/// The same with sources that put rows where experts want them, and owners that read results at the experts'.
fn direct() -> Scene {
    Scene { choices: Choices { receive: Receive::Direct { areas: 2 }, ..Choices::default() }, ..plain() }
}

/// The same in blocks, with all ranks there.
fn blocks() -> Scene {
    let Scene { config, .. } = plain();
    let config = Config {
        comm_alg: Protocol::FullmeshV2,
        ep_world_size: RANKS as i64,
        moe_expert_num: 4,
        given: Given::empty(),
        ..config
    };
    Scene { group: 1, config, ..plain() }
}

/// TP = 2: one EP rank, whose peers hold the one expert together.
fn peers() -> Scene {
    let Scene { config, .. } = plain();
    let config = Config {
        ep_world_size: 1,
        tp_world_size: 2,
        moe_expert_num: 1,
        zero_expert_num: 1,
        given: Given::empty(),
        ..config
    };
    // Both return x for each row, and the other pair is worth nothing: 0.5 * (x + x) = x.
    let choices = Choices { flags: Flags::Separate, ..Choices::default() };
    Scene { group: 2, config, choices, ids: [[0, 1, 1, 0], [1, 0, 0, 1]], ..plain() }
}

/// The A2 full mesh, with agents.
fn a2_mesh() -> Scene {
    let Scene { config, .. } = blocks();
    Scene { group: 3, config: Config { comm_alg: Protocol::Fullmesh, ..config }, ..plain() }
}

/// The A2 hierarchy, of two servers with a rank each.
fn hierarchy(group: usize, stage: Stage) -> Scene {
    let Scene { config, .. } = a2_mesh();
    let hccl_buffsize_mb = (RELAY_WINDOW >> 20) as i64;
    let config = Config { comm_alg: Protocol::Hierarchy, server_ranks: 1, hccl_buffsize_mb, ..config };
    Scene { group, config, choices: Choices { stage, ..Choices::default() }, ..plain() }
}

/// Special experts, int8 results, AddRmsNorm and separate flags on top.
fn everything() -> Scene {
    let Scene { config, .. } = plain();
    let config = Config {
        zero_expert_num: 1,
        copy_expert_num: 1,
        const_expert_num: 1,
        comm_quant_mode: 2,
        op: Op::CombineAddRmsNorm,
        norm_eps: 0.0,
        ..config
    };
    // Zero 4, copy 5, const 6 of 3 * x. 0.5 * (x + x) = x, 0.5 * x, 0.5 * (3 * x + x) = 2 * x, also without any row
    // sent. 127 times a power of two stays what it is in int8.
    let ids = [[0, 5, 4, 3], [6, 2, 5, 6]];
    let choices = Choices { flags: Flags::Separate, ..Choices::default() };
    Scene { config, choices, ids, first: 0x3FFE, step: 0x80, doubled: [[0, -1], [1, 1]], ..plain() }
}
