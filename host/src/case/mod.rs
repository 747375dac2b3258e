//! A case: a configuration and the input tensors of every rank, in memory or in a folder.

pub mod elastic;
mod load;
mod save;
pub mod support;

pub use elastic::Elastic;
pub use load::{Opened, load, open};
pub use save::is_case;

use crate::config::{Config, FILE_NAME};
use crate::error::Problem;
use kernel_core::inputs::{InputError, Inputs, Mask, expert_has_row};
use kernel_core::shape::{Given, Shape};
use kernel_core::units::RankId;
use std::path::{Path, PathBuf};

/// Name of the tensors' file inside a case.
pub const TENSORS_NAME: &str = "inputs.safetensors";

/// The configuration file of `path`: itself, or the one in a case folder.
#[must_use]
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
}

/// The input tensors of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTensors {
    /// `[bs, h]` dtype, little-endian.
    pub x: Vec<u8>,
    /// `[bs, k]`.
    pub expert_ids: Vec<i32>,
    /// `[bs, k]`.
    pub expert_scales: Vec<f32>,
    /// Optional mask.
    pub mask: OwnedMask,
}

impl RankTensors {
    /// What a rank with these tensors brings to a round, with the group's smooth scales.
    #[must_use]
    pub fn inputs<'a>(&'a self, scales: Option<&'a [f32]>) -> Inputs<'a> {
        Inputs {
            x: &self.x,
            expert_ids: &self.expert_ids,
            expert_scales: &self.expert_scales,
            mask: match &self.mask {
                OwnedMask::None => Mask::None,
                OwnedMask::Tokens(mask) => Mask::Tokens(mask),
                OwnedMask::Pairs(mask) => Mask::Pairs(mask),
            },
            scales,
        }
    }
}

/// A valid configuration with its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// As given.
    pub config: Config,
    /// What it means. Of an elastic domain those who are left.
    pub shape: Shape,
    /// One per rank, by the number in file names: `ep_rank * tp_world_size + tp_rank`; in an elastic domain by new
    /// id.
    pub ranks: Vec<RankTensors>,
    /// `[S + E, h]` smooth scales, shared experts first.
    pub scales: Option<Vec<f32>>,
    /// `[S + E]` factors of the stand-in experts, shared experts first; 1 behind the end.
    pub expert_gain: Vec<f32>,
    /// How the domain became smaller, if it did.
    pub elastic: Option<Elastic>,
}

impl Case {
    /// The name of a rank in files and reports.
    #[must_use]
    pub fn name(&self, rank: RankId) -> RankId {
        self.elastic.as_ref().map_or(rank, |elastic| elastic.name(rank))
    }

    /// The physical ranks that an elastic domain has lost.
    #[must_use]
    pub fn dead(&self) -> Vec<u32> {
        let Some(Elastic { whole, left, .. }) = &self.elastic else { return Vec::new() };
        (0..whole.ep_world_size()).filter(|&rank| left.new_id(RankId(rank)).is_none()).collect()
    }

    /// The domain with all its ranks.
    #[must_use]
    pub fn whole(&self) -> &Shape {
        self.elastic.as_ref().map_or(&self.shape, |elastic| &elastic.whole)
    }

    /// What `rank` brings to a round.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn inputs(&self, rank: RankId) -> Inputs<'_> {
        self.ranks[rank.index()].inputs(self.scales.as_deref())
    }

    /// Everything that is wrong with the values of the tensors: ids, masks, numbers that must be finite.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for number in 0..self.ranks.len() as u32 {
            let ep_rank = RankId(number / self.shape.tp_world_size());
            if let Err(error) = self.inputs(RankId(number)).check(&self.shape, ep_rank) {
                let problem = input_problem(self.name(RankId(number)).0, &error);
                // `scales` belong to all ranks: one line is enough.
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
        if !self.expert_gain.is_empty()
            && let Err(error) = expert_has_row("expert_gain", &self.shape)
        {
            problems.push(input_problem(0, &error));
        }
        if let Some((i, gain)) = self.expert_gain.iter().enumerate().find(|(_, gain)| !gain.is_finite()) {
            problems.push(Problem::new("expert_gain", &format!("[{i}] = {gain}"), "must be finite"));
        }
        problems
    }
}

/// Ranks that files name: all TP ranks of all EP ranks.
#[must_use]
pub const fn rank_count(shape: &Shape) -> u32 {
    shape.ep_world_size() * shape.tp_world_size()
}

/// Rows of `scales` and `expert_gain`: S + E.
#[must_use]
pub const fn expert_rows(shape: &Shape) -> usize {
    shape.expert_rows() as usize
}

/// Whether every MoE expert has a row there; of an elastic domain not all need to.
#[must_use]
pub fn all_have_rows(shape: &Shape) -> bool {
    expert_has_row("expert_gain", shape).is_ok()
}

/// The optional inputs that `ranks` and `scales` amount to.
#[must_use]
pub fn given(masks: impl IntoIterator<Item = OwnedMask>, scales: bool) -> Given {
    let mut given = Given::empty();
    given.set(Given::SCALES, scales);
    for mask in masks {
        given |= match mask {
            OwnedMask::None => Given::empty(),
            OwnedMask::Tokens(_) => Given::MASK_1D,
            OwnedMask::Pairs(_) => Given::MASK_2D,
        };
    }
    given
}

/// An input error of a rank under the name of its tensor in the file.
fn input_problem(rank: u32, error: &InputError) -> Problem {
    let text = error.to_string();
    let tensor = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
    let of_all_ranks = ["scales", "expert_gain"].contains(&tensor);
    let prefix = if of_all_ranks { String::new() } else { format!("rank{rank}.") };
    let rule = text.split_once(": ").map_or("must be finite", |(_, rule)| rule);
    Problem {
        parameter: format!("{prefix}{tensor}"),
        rule: rule.to_owned(),
        message: format!("{prefix}{text}"),
    }
}
