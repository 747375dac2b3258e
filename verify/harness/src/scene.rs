//! The scenes: a configuration each, with the tokens of every round and its experts. The build script, which asks the reference,
//! reads this file, too.

use veriep_core::inputs::{AddRmsNorm, Inputs};
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::{BatchSizes, Config, Elastic, Given, Limits, Op, Protocol, Shape};
use veriep_core::units::RankId;

/// The members of a scene, which run: its ranks; or those left of an elastic domain, by new id; or the TP peers of its one rank.
pub const MEMBERS: usize = 2;
/// Ranks that have memory, at most: in an elastic domain one is gone.
pub const RANKS: usize = 3;
/// Scenes of [`protocols`].
pub const PROTOCOLS: usize = 7;
/// All scenes.
pub const SCENES: usize = PROTOCOLS + 5;
/// Cores of a member.
pub const CORES: usize = 2;
/// Rounds whose digests are known.
pub const ROUNDS: usize = 50;
/// Bytes of a token's row.
pub const ROW: usize = 2 * H;
const BS: usize = 8;
const K: usize = 4;
const H: usize = 256;
/// Experts of a rank, where it has no TP peer.
const LOCAL: usize = 4;
/// Ranks 2 and 0 are left, with new ids in this order.
pub const ELASTIC_INFO: [i32; 4 + 2 * RANKS] = [1, 2, 0, (MEMBERS * LOCAL) as i32, 1, -1, 0, 2, 0, -1];

/// The same of every token.
const WEIGHTS: [f32; BS * K] = {
    let (mut weights, mut pair) = ([0.0; BS * K], 0);
    while pair < BS * K {
        weights[pair] = [0.5, 0.25, 0.125, 0.0625][pair % K];
        pair += 1;
    }
    weights
};
/// Numbers of bf16.
const ONE: u16 = 0x3F80;
const THREE: u16 = 0x4040;
const ONES: [[u8; 2]; H] = [ONE.to_le_bytes(); H];
const ZEROS: [u8; BS * ROW] = [0; _];

/// A configuration with the choices of its group.
#[derive(Debug)]
pub struct Scene {
    /// Its name in reports.
    pub name: &'static str,
    /// What the door is asked.
    pub config: Config<'static>,
    /// The choices that all cores make.
    pub choices: Choices,
    /// Whether it runs in the memory that the scene before it has left: layers leave nothing behind that the next one minds.
    pub again: bool,
}

/// Returns the configuration that all scenes vary.
fn group() -> Config<'static> {
    Config {
        ep_world_size: MEMBERS as i64,
        moe_expert_num: (MEMBERS * LOCAL) as i64,
        k: K as i64,
        h: H as i64,
        bs: BatchSizes::Uniform(BS as i64),
        aiv_num: CORES as i64,
        hccl_buffsize_mb: 6,
        ..Config::default()
    }
}

/// Returns the choices of separate flags.
fn separate() -> Choices {
    Choices { flags: Flags::Separate, ..Choices::default() }
}

/// Returns the choices of direct placement.
fn direct() -> Choices {
    Choices { receive: Receive::Direct { areas: 2 }, ..Choices::default() }
}

/// Returns a scene of each protocol, in the order of running.
pub fn protocols() -> [Scene; PROTOCOLS] {
    let (group, joint) = (group(), Choices::default());
    let of = |comm_alg| Config { comm_alg, ..group };
    // Each rank is a server.
    let hierarchy = Config { server_ranks: 1, hccl_buffsize_mb: 105, ..of(Protocol::Hierarchy) };
    let by_agents = Choices { stage: Stage::Two, ..joint };
    [
        Scene { name: "joint flags", config: group, choices: joint, again: false },
        Scene { name: "separate flags", config: group, choices: separate(), again: true },
        Scene { name: "direct placement", config: group, choices: direct(), again: true },
        Scene { name: "fullmesh_v2", config: of(Protocol::FullmeshV2), choices: joint, again: false },
        Scene { name: "A2 full mesh", config: of(Protocol::Fullmesh), choices: joint, again: false },
        Scene { name: "hierarchy, agents", config: hierarchy, choices: by_agents, again: false },
        Scene { name: "hierarchy, cores", config: hierarchy, choices: joint, again: false },
    ]
}

/// Returns scenes of what A3 has besides, to run after those.
pub fn layers() -> [Scene; SCENES - PROTOCOLS] {
    let left = Config {
        ep_world_size: RANKS as i64,
        moe_expert_num: (RANKS * LOCAL) as i64,
        given: Given::ELASTIC_INFO,
        ..group()
    };
    let special = Config { zero_expert_num: 1, copy_expert_num: 1, const_expert_num: 1, ..left };
    let normed = Config { comm_quant_mode: 2, op: Op::CombineAddRmsNorm, norm_eps: 0.0, ..special };
    let peers =
        Config { ep_world_size: 1, tp_world_size: 2, moe_expert_num: 1, given: Given::empty(), ..special };
    let (quantised, joint) = (Config { quant_mode: 2, ..left }, Choices::default());
    let in_place = Choices { receive: Receive::InPlace, ..separate() };
    [
        Scene { name: "survivors, int8", config: quantised, choices: joint, again: false },
        Scene { name: "survivors, AddRmsNorm", config: normed, choices: separate(), again: true },
        Scene { name: "survivors, received in place", config: left, choices: in_place, again: true },
        Scene { name: "survivors, direct placement", config: left, choices: direct(), again: true },
        Scene { name: "TP peers", config: peers, choices: separate(), again: false },
    ]
}

/// The domain of a scene as its machines know it.
#[derive(Debug)]
pub struct Domain {
    /// The shape; of an elastic domain that of the survivors.
    pub shape: Shape,
    /// The ranks left of an elastic domain.
    pub left: Option<Elastic>,
    /// The combine that its layers call.
    pub combine: Op,
}

impl Domain {
    /// Returns the domain of a scene, if the door lets the scene in.
    #[inline(never)]
    pub fn new(scene: &Scene) -> Option<Self> {
        let whole = Shape::check(&scene.config, Limits::None, &mut |_| ())?;
        if !scene.config.given.contains(Given::ELASTIC_INFO) {
            return Some(Self { shape: whole, left: None, combine: scene.config.op });
        }
        let left = Elastic::check(&whole, &ELASTIC_INFO, &mut |_| ())?;
        Some(Self { shape: whole.survivors(&left), left: Some(left), combine: scene.config.op })
    }

    /// Returns whether combine is followed by AddRmsNorm.
    pub fn is_normed(&self) -> bool {
        self.combine == Op::CombineAddRmsNorm
    }

    /// Returns whether the members are TP peers.
    pub fn has_tp(&self) -> bool {
        self.shape.tp_world_size() == 2
    }

    /// Returns the number of ranks that have memory.
    pub fn ranks(&self) -> u32 {
        let here = self.shape.ep_world_size() * self.shape.tp_world_size();
        self.left.as_ref().map_or(here, Elastic::whole_world_size)
    }

    /// Returns the EP rank of a member, as machines call it: TP peers have the same one.
    pub fn ep(&self, member: usize) -> RankId {
        RankId(if self.has_tp() { 0 } else { member as u32 })
    }

    /// Returns the rank whose memory is a member's.
    pub fn physical(&self, member: usize) -> Option<RankId> {
        let member = RankId(member as u32);
        self.left.as_ref().map_or(Some(member), |left| left.physical(member))
    }
}

/// A member's tokens of a round.
#[derive(Debug)]
pub struct Tokens {
    x: [u8; BS * ROW],
    ids: [i32; BS * K],
}

impl Tokens {
    /// Returns numbers of either sign from 1 to 2, another in each element of each round, and ids that differ by round, member
    /// and token. AddRmsNorm gets numbers of one size, so that the order of its sum does not show.
    pub fn new(domain: &Domain, member: usize, round: usize) -> Self {
        let (least, fraction) = if domain.is_normed() { (ONE | 0x7E, 0) } else { (ONE, 0x7F) };
        let mut x = [0; BS * ROW];
        for (i, element) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let mixed = (((round * MEMBERS + member) * BS * H + i).wrapping_mul(0x9E37_79B1) >> 16) as u16;
            *element = ((mixed & 0x8000) | least | (mixed & fraction)).to_le_bytes();
        }
        let end = domain.shape.expert_ids_end() as usize;
        let id = |pair: usize| (round + member * 3 + (pair / K) * 5 + (pair % K) * 3).checked_rem(end);
        Self { x, ids: core::array::from_fn(|pair| id(pair).unwrap_or(0) as i32) }
    }

    /// Returns them as the operators take them, with the other tensors of the domain.
    pub fn inputs(&self, domain: &Domain) -> Inputs<'_> {
        let of = |has: bool, tensor: &'static [u8]| if has { tensor } else { &[] };
        let has_const = domain.shape.const_expert_num() == 1;
        let norm = AddRmsNorm { residual_x: &ZEROS, gamma: ONES.as_flattened() };
        Inputs {
            x: &self.x,
            expert_ids: &self.ids,
            expert_scales: &WEIGHTS,
            const_expert_alpha_1: of(has_const, &const { THREE.to_le_bytes() }),
            const_expert_alpha_2: of(has_const, &const { ONE.to_le_bytes() }),
            const_expert_v: of(has_const, &const { [0; ROW] }),
            add_rms_norm: domain.is_normed().then_some(norm),
            ..Inputs::default()
        }
    }
}

/// Writes what an expert returns for a row, which has travelled as int8 if there is a scale: the row, doubled by experts of odd
/// numbers.
pub fn expert(expert: u32, row: &[u8], scale: Option<f32>, result: &mut [u8]) {
    let doubled = 0x80 * (expert % 2) as u16;
    let elements = result.as_chunks_mut().0.iter_mut();
    let Some(scale) = scale else {
        let row = row.as_chunks().0.iter();
        elements.zip(row).for_each(|(to, &from)| {
            *to = u16::from_le_bytes(from).wrapping_add(doubled).to_le_bytes();
        });
        return;
    };
    elements.zip(row).for_each(|(to, &from)| {
        // To the nearest of bf16.
        let bits = (f32::from(from.cast_signed()) * scale).to_bits().wrapping_add(0x8000) >> 16;
        *to = (bits as u16).wrapping_add(doubled).to_le_bytes();
    });
}

/// Returns a number that is another one for almost all other `bytes`, and continues what came before.
pub fn digest(so_far: u64, bytes: &[u8]) -> u64 {
    bytes.as_chunks().0.iter().fold(so_far, |so_far, &word| {
        (so_far.rotate_left(5) ^ u64::from(u32::from_le_bytes(word))).wrapping_mul(0x517C_C1B7_2722_0A95)
    })
}
