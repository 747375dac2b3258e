//! The machines of `veriep-core` as kernels of a GPU, and what they are given. A block is a core of a rank, or a rank's agent;
//! its first thread polls the machine, or all 32 threads of a warp do. Nothing of the core is changed for it.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]

#[cfg(target_arch = "nvptx64")]
mod entry;
pub mod job;
pub mod litmus;
#[cfg(target_arch = "nvptx64")]
mod warp;

use veriep_core::fabric::raw::{Outputs, Peer, Segment};
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::{BatchSizes, Config, Protocol};

/// Ranks of every scene.
pub const RANKS: u32 = 2;
/// Vector cores of a rank.
pub const CORES: u32 = 2;

/// Threads of a warp.
pub const LANES: u32 = 32;

/// A configuration with the choices of its group.
#[derive(Debug)]
pub struct Scene {
    /// Its name in reports.
    pub name: &'static str,
    pub config: Config<'static>,
    /// The choices that all cores make.
    pub choices: Choices,
}

/// How many scenes there are.
pub const SCENES: u32 = if cfg!(feature = "all") { 8 } else { SCENES_OF_A3 };

/// How many of them, from the first on, a build without feature `all` has.
pub const SCENES_OF_A3: u32 = 3;

/// A scene by its number: first A3 with rows copied or received in place, then all else.
pub fn scene(number: u32) -> Scene {
    let plain = Config {
        ep_world_size: RANKS as i64,
        moe_expert_num: 8,
        k: 3,
        h: 512,
        bs: BatchSizes::Uniform(8),
        hccl_buffsize_mb: 8,
        aiv_num: CORES as i64,
        ..Config::default()
    };
    let a2 = Config { comm_alg: Protocol::Fullmesh, ..plain };
    let hierarchy = Config { comm_alg: Protocol::Hierarchy, server_ranks: 1, hccl_buffsize_mb: 105, ..plain };
    let (joint, separate) = (Choices::default(), Choices { flags: Flags::Separate, ..Choices::default() });
    let receive = |receive| Choices { receive, ..joint };
    let (name, config, choices) = match number {
        0 => ("joint flags", plain, joint),
        1 => ("separate flags, int8", Config { quant_mode: 2, ..plain }, separate),
        2 => ("received in place", plain, receive(Receive::InPlace)),
        3 => ("direct placement", plain, receive(Receive::Direct { areas: 1 })),
        4 => ("fullmesh_v2", Config { comm_alg: Protocol::FullmeshV2, ..plain }, separate),
        5 => ("A2 full mesh, with agents", a2, joint),
        6 => ("A2 hierarchy, by agents", hierarchy, Choices { stage: Stage::Two, ..joint }),
        _ => ("A2 hierarchy, by cores", hierarchy, Choices { stage: Stage::Three, ..joint }),
    };
    Scene { name, config, choices }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    Dispatch,
    Combine,
    /// An agent, for as long as cores of its rank run.
    Agent,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Said {
    Nothing,
    /// The operator ended.
    Done,
    /// It made as many attempts as it may, and was still waiting.
    Waits,
    Error,
    /// The door refused the configuration, or the core its choices.
    Refused,
}

/// What a block is given, in memory of the device; all pointers are of the device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Job {
    /// Number of the [`scene`].
    pub scene: u32,
    pub role: Role,
    pub rank: u32,
    pub core: u32,
    /// Lanes of a warp that copy rows: all 32, or fewer in a twin, which must be found wrong.
    pub lanes: u32,
    /// Attempts after which it gives up.
    pub attempts: u32,
    /// Its answer.
    pub said: Said,
    /// Memory of all ranks.
    pub peers: [Peer; RANKS as usize],
    /// Outputs of this rank, of the last dispatch also.
    pub outputs: Outputs,
    /// Tokens.
    pub x: Segment,
    /// `[bs, k]` of i32.
    pub expert_ids: Segment,
    /// `[bs, k]` of f32.
    pub expert_scales: Segment,
    /// Results of experts.
    pub y: Segment,
    /// Scratch words, for each thread of the block.
    pub words: Segment,
    /// Scratch bytes, for each thread of the block.
    pub row: Segment,
    /// How many cores of the rank have ended, a u32.
    pub ended: *mut u32,
    /// The rank's agent, which lives as long as the group: [`AGENT_BYTES`], zero before its first job.
    pub agent: *mut u8,
}

/// Room for an agent and the word that says that there is one.
pub const AGENT_BYTES: usize = 1024;
