//! Generator of the remaining ranks of an elastic domain.

use super::{shuffle, stream};
use crate::error::Error;
use veriep_core::shape::{Elastic, Shape};

/// The stream of the generator that orders survivors; after those of all ranks.
const STREAM: u64 = u64::MAX;

/// Which ranks of a domain a case is made for.
#[derive(Clone, Copy, Debug)]
pub enum Left<'a> {
    /// All, without `elastic_info`.
    All,
    /// All but these; the seed orders them. Shared-expert ranks become as many as survived and divide evenly; MoE
    /// experts as many as fit, at most as before, but at least one on each rank.
    Without(&'a [u32]),
    /// As these words of `elastic_info` say.
    Info(&'a [i32]),
}

impl Left<'_> {
    /// Whether there is an `elastic_info` that is switched on.
    pub fn is_on(&self) -> bool {
        match self {
            Self::All => false,
            Self::Without(_) => true,
            Self::Info(info) => Elastic::is_on(info),
        }
    }

    /// `elastic_info`, valid or not.
    pub(super) fn info(&self, whole: &Shape, seed: u64) -> Result<Option<Vec<i32>>, Error> {
        match self {
            Self::All => Ok(None),
            Self::Without(dead) => without(whole, dead, seed).map(Some),
            Self::Info(info) => Ok(Some(info.to_vec())),
        }
    }
}

fn without(whole: &Shape, dead: &[u32], seed: u64) -> Result<Vec<i32>, Error> {
    let ranks = whole.ep_world_size();
    if let Some(rank) = dead.iter().find(|&&rank| rank >= ranks) {
        return Err(Error::Request(format!("--dead {rank}: must be in [0, {}]", ranks - 1)));
    }
    let mut left: Vec<u32> = (0..ranks).filter(|rank| !dead.contains(rank)).collect();
    if left.is_empty() {
        return Err(Error::Request(format!("--dead: all {ranks} ranks: at least one must be left")));
    }
    let shared = whole.shared_expert_num().max(1);
    let holding = left.iter().filter(|&&rank| rank < whole.shared_expert_rank_num()).count() as u32;
    let shared_ranks = holding.min(left.len() as u32 - 1) / shared * shared;
    let moe_ranks = left.len() as u32 - shared_ranks;
    let slots = whole.local_expert_num() * ranks;
    let local = (whole.moe_expert_num() / moe_ranks).min(slots / left.len() as u32).max(1);
    shuffle(&mut stream(seed, STREAM), &mut left);
    let mut info = vec![1, left.len() as i32, shared_ranks as i32, (local * moe_ranks) as i32];
    let mut to_new = vec![-1; ranks as usize];
    for (new, &physical) in (0..).zip(&left) {
        to_new[physical as usize] = new;
    }
    info.extend(to_new);
    info.extend(left.iter().map(|&physical| physical as i32));
    info.resize(4 + 2 * ranks as usize, -1);
    Ok(info)
}
