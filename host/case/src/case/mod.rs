//! A case: a configuration and the input tensors of every rank, in memory or in a folder.

mod collect;
pub mod elastic;
mod expert_map;
mod fixes;
mod load;
mod save;
pub mod support;

pub use elastic::Elastic;
pub use expert_map::ExpertMap;
pub use fixes::{check_expert_map, survivors};
pub use load::is_same_file;
pub use load::{Opened, load, open};
pub use save::is_case;

use crate::config::{Config, FILE_NAME};
use crate::error::{Error, Problem};
use crate::global_rank;
use collect::Collected;
use core::ops::ControlFlow;
use std::path::{Path, PathBuf};
use veriep_core::inputs::{AddRmsNorm, InputError, Inputs, Mask, expert_has_row};
use veriep_core::shape::{Given, Op, Shape};
use veriep_core::units::RankId;

/// Name of the tensors' file inside a case.
pub const TENSORS_NAME: &str = "inputs.safetensors";

/// Name of the reference's result beside a case.
pub const EXPECTED_NAME: &str = "expected.safetensors";

/// Name of what experts returned, in a case of combine alone.
pub const RETURNED_NAME: &str = "returned.safetensors";

/// A file of a case that NumPy wrote is in the place of the one of this name.
pub fn npz_of(file: &Path) -> PathBuf {
    file.with_extension("npz")
}

/// The file of a case with these tensors: of this name, or as NumPy writes it.
///
/// # Errors
/// Both are there.
pub fn tensors_file(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let file = folder.join(name);
    let npz = npz_of(&file);
    match (file.exists(), npz.exists()) {
        (true, true) => Err(Error::file(&npz, format_args!("stands beside {name}: only one may be there"))),
        (false, true) => Ok(npz),
        _ => Ok(file),
    }
}

/// The file with what experts returned, in a case of combine alone.
///
/// # Errors
/// There are two.
pub fn returned_file(folder: &Path) -> Result<Option<PathBuf>, Error> {
    tensors_file(folder, RETURNED_NAME).map(|file| Some(file).filter(|file| file.exists()))
}

/// Input tensors that the whole group shares: their names have no rank.
const OF_ALL_RANKS: [&str; 5] =
    ["scales", "const_expert_alpha_1", "const_expert_alpha_2", "const_expert_v", "gamma"];

/// The configuration file of `path`: itself, or the one in a case folder.
pub fn config_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() }
}

/// `x_active_mask` of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnedMask {
    /// Every token is active.
    #[default]
    None,
    /// `[bs]`.
    Tokens(Vec<bool>),
    /// `[bs, k]`.
    Pairs(Vec<bool>),
    /// The rank has no token.
    Abstains,
}

/// In `expert_ids`, where it is allowed: no expert.
pub const NO_EXPERT: i32 = -1;

impl OwnedMask {
    /// A mask that leaves out the pairs of no expert as well as those of `mask`, and all after the ids of `bs` tokens with `k`
    /// pairs each.
    pub fn without_no_expert(mask: Mask<'_>, ids: &[i32], bs: usize, k: usize) -> Self {
        let mut active = match mask {
            Mask::None => vec![true; ids.len()],
            Mask::Abstains => vec![false; ids.len()],
            Mask::Tokens(mask) => mask.iter().flat_map(|&active| core::iter::repeat_n(active, k)).collect(),
            Mask::Pairs(mask) => mask.to_vec(),
        };
        for (active, _) in active.iter_mut().zip(ids).filter(|(_, id)| **id == NO_EXPERT) {
            *active = false;
        }
        active.resize(bs * k, false);
        if active.iter().all(|&active| active) {
            return Self::None;
        }
        // Whole tokens, those that are active first, are less to say.
        let first = active.iter().position(|&active| !active).unwrap_or(bs * k);
        if first % k == 0 && !active[first..].contains(&true) {
            return Self::Tokens((0..bs).map(|token| token < first / k).collect());
        }
        Self::Pairs(active)
    }

    /// The optional input that it is.
    pub fn given(&self) -> Given {
        match self {
            Self::None | Self::Abstains => Given::empty(),
            Self::Tokens(_) => Given::MASK_1D,
            Self::Pairs(_) => Given::MASK_2D,
        }
    }

    pub fn by_reference(&self) -> Mask<'_> {
        match self {
            Self::None => Mask::None,
            Self::Abstains => Mask::Abstains,
            Self::Tokens(mask) => Mask::Tokens(mask),
            Self::Pairs(mask) => Mask::Pairs(mask),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTensors {
    /// `[bs, h]` dtype, little-endian.
    pub x: Vec<u8>,
    /// `[bs, k]`, of logical experts if the case has a map.
    pub expert_ids: Vec<i32>,
    /// `[bs, k]`, of physical experts; empty without a map.
    pub physical_ids: Vec<i32>,
    /// The physical expert that each logical one is on this rank; empty if the map's rule chooses among replicas.
    pub replicas: Vec<i32>,
    /// `[bs, k]`.
    pub expert_scales: Vec<f32>,
    pub mask: OwnedMask,
    /// `[bs, h]` dtype, given by all ranks or by none.
    pub shared_expert_x: Option<Vec<u8>>,
    /// `[bs, h]` dtype, AddRmsNorm; else empty.
    pub residual_x: Vec<u8>,
}

impl RankTensors {
    /// The inputs of a rank with these tensors. They lack what all ranks have in common, such as the tensors of AddRmsNorm.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            x: &self.x,
            expert_ids: if self.physical_ids.is_empty() { &self.expert_ids } else { &self.physical_ids },
            expert_scales: &self.expert_scales,
            mask: self.mask.by_reference(),
            shared_expert_x: self.shared_expert_x.as_deref(),
            ..Inputs::default()
        }
    }
}

/// What the group's ranks have in common besides `scales`, in dtype; empty where the shape has none of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    /// `[q]`.
    pub const_expert_alpha_1: Vec<u8>,
    /// `[q]`.
    pub const_expert_alpha_2: Vec<u8>,
    /// `[q, h]`.
    pub const_expert_v: Vec<u8>,
    /// `[h]`, AddRmsNorm.
    pub gamma: Vec<u8>,
}

impl Weights {
    pub fn tensors(&self, shape: &Shape, op: Op) -> [(&'static str, Vec<usize>, &[u8]); 4] {
        let [alphas, rows, gamma] = Self::shapes(shape, op);
        [
            ("const_expert_alpha_1", alphas.clone(), &self.const_expert_alpha_1),
            ("const_expert_alpha_2", alphas, &self.const_expert_alpha_2),
            ("const_expert_v", rows, &self.const_expert_v),
            ("gamma", gamma, &self.gamma),
        ]
    }

    /// Of the alphas, the const experts' rows, and gamma; 0 where there is none.
    pub fn shapes(shape: &Shape, op: Op) -> [Vec<usize>; 3] {
        let (consts, h) = (shape.const_expert_num() as usize, shape.h() as usize);
        let norm = usize::from(op == Op::CombineAddRmsNorm);
        [vec![consts], vec![consts, h], vec![norm * h]]
    }
}

/// A valid configuration with its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub config: Config,
    /// What it means. Of an elastic domain those who are left.
    pub shape: Shape,
    /// One per rank, by the number in file names: `ep_rank * tp_world_size + tp_rank`; in an elastic domain by new
    /// id.
    pub ranks: Vec<RankTensors>,
    /// `[S + E, h]` smooth scales, shared experts first.
    pub scales: Option<Vec<f32>>,
    pub weights: Weights,
    /// `[S + E]` factors of the stand-in experts, shared experts first; 1 after the end.
    pub expert_gain: Vec<f32>,
    /// How the domain became smaller, if it did.
    pub elastic: Option<Elastic>,
    pub expert_map: Option<ExpertMap>,
}

impl Case {
    /// The name of a rank in files and reports.
    pub fn name(&self, rank: RankId) -> RankId {
        self.elastic.as_ref().map_or(rank, |elastic| elastic.name(rank))
    }

    /// The physical ranks that an elastic domain has lost.
    pub fn dead(&self) -> Vec<u32> {
        let Some(Elastic { whole, left, .. }) = &self.elastic else { return Vec::new() };
        (0..whole.ep_world_size()).filter(|&rank| left.new_id(RankId(rank)).is_none()).collect()
    }

    /// The domain with all its ranks.
    pub fn whole(&self) -> &Shape {
        self.elastic.as_ref().map_or(&self.shape, |elastic| &elastic.whole)
    }

    /// What `rank` brings to a round.
    pub fn inputs(&self, rank: RankId) -> Inputs<'_> {
        self.inputs_with(&self.ranks[rank.index()])
    }

    /// What a rank with other tensors brings.
    pub fn inputs_with<'a>(&'a self, rank: &'a RankTensors) -> Inputs<'a> {
        let norm = AddRmsNorm { residual_x: &rank.residual_x, gamma: &self.weights.gamma };
        Inputs {
            scales: self.scales.as_deref(),
            const_expert_alpha_1: &self.weights.const_expert_alpha_1,
            const_expert_alpha_2: &self.weights.const_expert_alpha_2,
            const_expert_v: &self.weights.const_expert_v,
            add_rms_norm: (self.config.operator() == Op::CombineAddRmsNorm).then_some(norm),
            ..rank.inputs()
        }
    }

    /// Everything that is wrong with the values of the tensors: ids, masks, numbers that must be finite; and what
    /// some ranks have that all must.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Collected::default();
        self.judge(&mut problems);
        problems.end()
    }

    fn judge(&self, problems: &mut Collected) {
        for number in 0..self.ranks.len() as u32 {
            let ep_rank = global_rank::ep_rank(&self.shape, RankId(number));
            let name = self.name(RankId(number));
            let mut found = |error: InputError| {
                let tensor = match (OF_ALL_RANKS.contains(&error.tensor()), number) {
                    (false, _) => format!("rank{name}.{}", error.tensor()),
                    (true, 0) => error.tensor().to_owned(),
                    // They belong to all ranks: once is enough.
                    (true, _) => return ControlFlow::Continue(()),
                };
                // Who read the tensor has said so if its shape is wrong.
                if !matches!(error, InputError::Length { .. }) || problems.is_sound(&tensor) {
                    problems.add(&tensor, |tensor| input_problem(tensor, &error));
                }
                ControlFlow::Continue(())
            };
            let map = self.expert_map.as_ref().and_then(|map| map.check(&self.shape).ok());
            if let Some(map) = &map {
                let logical = &self.ranks[number as usize];
                let logical = Inputs { expert_ids: &logical.expert_ids, ..logical.inputs() };
                let _ = map.check_ids(&self.shape, &logical, &mut found);
            }
            let _ = self.inputs(RankId(number)).check_all(&self.shape, ep_rank, &mut |error| match error {
                // They have been told as the file has them.
                InputError::ExpertId { .. } | InputError::RepeatedExpert { .. } if map.is_some() => {
                    ControlFlow::Continue(())
                }
                error => found(error),
            });
        }
        if !self.expert_gain.is_empty()
            && let Err(error) = expert_has_row("expert_gain", &self.shape)
        {
            problems.add("expert_gain", |tensor| input_problem(tensor, &error));
        }
        for (i, gain) in self.expert_gain.iter().enumerate().filter(|(_, gain)| !gain.is_finite()) {
            problems.add("expert_gain", |tensor| {
                Problem::new(tensor, &format!("[{i}] = {gain}"), "must be finite")
            });
        }
        let without = self.ranks.iter().position(|rank| rank.shared_expert_x.is_none());
        if let Some(without) = without.filter(|_| self.ranks.iter().any(|r| r.shared_expert_x.is_some())) {
            let name = format!("rank{}.shared_expert_x", self.name(RankId(without as u32)));
            problems.add(&name, |tensor| {
                Problem::new(tensor, ": missing", "must be given by all ranks or by none")
            });
        }
    }
}

/// Bytes of all rows of a round, where they are sent, received and returned.
pub fn round_bytes(shape: &Shape) -> u64 {
    let of_rank = |rank| u64::from(shape.bs(RankId(rank)) * shape.combine_columns());
    let rows: u64 = (0..shape.ep_world_size()).map(of_rank).sum();
    rows * 2 * (shape.record_pitch() + shape.combine_pitch())
}

/// Rows of `scales` and `expert_gain`: S + E.
pub const fn expert_rows(shape: &Shape) -> usize {
    shape.expert_rows() as usize
}

/// Whether every MoE expert has a row there; of an elastic domain not all need to.
pub fn all_have_rows(shape: &Shape) -> bool {
    expert_has_row("expert_gain", shape).is_ok()
}

/// An input error under the name of its tensor in the file.
pub fn input_problem(tensor: &str, error: &InputError) -> Problem {
    let text = error.to_string();
    let rule = text.split_once(": ").map_or(text.as_str(), |(_, rule)| rule).to_owned();
    let rest = text.strip_prefix(error.tensor()).unwrap_or(&text);
    Problem { message: format!("{tensor}{rest}"), ..Problem::new(tensor, "", rule) }
}
