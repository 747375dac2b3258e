//! One round's inputs: the case itself, the case varied, or tensors of one's own in its shape.
//!
//! A group runs the case many times. Were every round the same, a row or a count left over from the round before last
//! would look right. So each token of a round at distance `d` from the last one is a token of the case, drawn anew, with
//! all that belongs to it; a rank has as many active ones as some rank of the case has; and every value's sign is flipped
//! when `d / 2` is odd: whatever was in the same partition before differs. The last round (`d = 0`) is the case itself.
//!
//! Tokens that a case has are legal in it, and traffic drawn from it is of its kind, also if it comes from a file.

use crate::case::{Case, OwnedMask, RankTensors};
use crate::generate::{below, stream};
use crate::global_rank;
use std::borrow::Cow;
use veriep_core::inputs::Inputs;
use veriep_core::reference::Cluster;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// The inputs of all ranks for one round.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    case: &'a Case,
    ranks: Cow<'a, [RankTensors]>,
}

impl<'a> Batch<'a> {
    /// The case as it is.
    pub fn new(case: &'a Case) -> Self {
        Self::with_tensors(case, &case.ranks)
    }

    /// The case at distance `distance` from the last round.
    pub fn varied(case: &'a Case, distance: usize) -> Self {
        if distance == 0 {
            return Self::new(case);
        }
        let mut varied = drawn(case, distance);
        if (distance / 2) % 2 == 1 {
            for rows in varied.iter_mut().flat_map(rows_of) {
                rows.iter_mut().skip(1).step_by(2).for_each(|high| *high ^= 0x80);
            }
        }
        if let Some(map) = &case.expert_map {
            map.translate(&case.shape, &mut varied);
        }
        Self::with_tensors(case, varied)
    }

    /// Other tensors, one entry per rank, in the shape and with the scales and experts of `case`.
    pub fn with_tensors(case: &'a Case, ranks: impl Into<Cow<'a, [RankTensors]>>) -> Self {
        Self { case, ranks: ranks.into() }
    }

    pub fn inputs(&self, rank: RankId) -> Inputs<'_> {
        self.case.inputs_with(&self.ranks[rank.index()])
    }

    /// The name of a rank in files and reports.
    pub fn name(&self, rank: RankId) -> RankId {
        self.case.name(rank)
    }

    /// Calls `f` with the reference's view of the whole cluster, which goes by physical names.
    pub fn with_cluster<T>(&self, f: impl FnOnce(&Cluster<'_>) -> T) -> T {
        // Where ranks choose their replicas, the reference is asked by the experts that they chose.
        let chooses = self.ranks.iter().any(|rank| !rank.replicas.is_empty());
        let expert_map = self.case.expert_map.as_ref().filter(|_| !chooses);
        // The reference is asked by physical names, and has nothing of those who are gone.
        let nothing = Inputs::default();
        let whole = self.case.whole();
        let mut ranks = vec![nothing; global_rank::count(whole) as usize];
        for rank in global_rank::all(&self.case.shape) {
            let inputs = self.inputs(rank);
            let expert_ids = if chooses { inputs.expert_ids } else { &self.ranks[rank.index()].expert_ids };
            ranks[self.name(rank).index()] = Inputs { expert_ids, ..inputs };
        }
        let elastic_info = self.case.elastic.as_ref().map(|elastic| elastic.info.as_slice());
        let expert_map = expert_map.map(|map| (map.words.as_slice(), map.rows));
        f(&Cluster { shape: whole, ranks: &ranks, elastic_info, expert_map })
    }

    /// Factor of the stand-in expert with that row of `expert_gain`.
    pub fn gain(&self, expert_row: u32) -> f32 {
        self.case.expert_gain.get(expert_row as usize).copied().unwrap_or(1.0)
    }
}

/// A token of some rank.
#[derive(Clone, Copy)]
struct Source<'a> {
    rank: &'a RankTensors,
    token: usize,
}

/// Draws every rank's tokens from those of all ranks. What is behind a mask of tokens is not drawn, since quantisation
/// might refuse it; a token with masked pairs brings its mask along.
fn drawn(case: &Case, distance: usize) -> Vec<RankTensors> {
    let k = case.shape.k() as usize;
    let inactive = |rank: &RankTensors| match &rank.mask {
        OwnedMask::Tokens(mask) => mask.iter().filter(|&&active| !active).count(),
        OwnedMask::None | OwnedMask::Pairs(_) | OwnedMask::Abstains => 0,
    };
    let bs = |rank: &RankTensors| rank.expert_ids.len() / k;
    let tokens = |rank| (0..bs(rank) - inactive(rank)).map(move |token| Source { rank, token });
    let all: Vec<_> = case.ranks.iter().flat_map(tokens).collect();
    let mut rng = stream(distance as u64, 0);
    let mut one_of = |n: usize| below(&mut rng, n as u32) as usize;
    let of_rank = |own: &RankTensors| {
        // A larger batch may leave more tokens inactive than there are here.
        let active = bs(own).saturating_sub(inactive(&case.ranks[one_of(case.ranks.len())]));
        let sources: Vec<_> = (0..active).map(|_| all[one_of(all.len())]).collect();
        let mut rank = own.clone();
        for (token, &source) in sources.iter().enumerate() {
            copy_token(&case.shape, (&mut rank, token), source);
        }
        rank.mask = mask(case, &sources, bs(own));
        rank
    };
    case.ranks.iter().map(of_rank).collect()
}

/// Overwrites a token of `rank` with another one, but for its mask.
fn copy_token(shape: &Shape, (rank, token): (&mut RankTensors, usize), from: Source<'_>) {
    fn copy<T: Copy>(width: usize, (to, i): (&mut [T], usize), (from, j): (&[T], usize)) {
        to[i * width..][..width].copy_from_slice(&from[j * width..][..width]);
    }
    let (row, k, source) = (shape.row_bytes() as usize, shape.k() as usize, from.rank);
    copy(row, (&mut rank.x, token), (&source.x, from.token));
    if let (Some(to), Some(from_rows)) = (&mut rank.shared_expert_x, &source.shared_expert_x) {
        copy(row, (to, token), (from_rows, from.token));
    }
    if !rank.residual_x.is_empty() {
        copy(row, (&mut rank.residual_x, token), (&source.residual_x, from.token));
    }
    copy(k, (&mut rank.expert_ids, token), (&source.expert_ids, from.token));
    copy(k, (&mut rank.expert_scales, token), (&source.expert_scales, from.token));
}

/// The mask of a rank with these tokens, and inactive ones after them up to `bs`. Every rank has one if any rank of the
/// case has, of pairs if any has one of pairs.
fn mask(case: &Case, sources: &[Source<'_>], bs: usize) -> OwnedMask {
    let k = case.shape.k() as usize;
    let any = |of: fn(&OwnedMask) -> bool| case.ranks.iter().any(|rank| of(&rank.mask));
    if any(|mask| matches!(mask, OwnedMask::Pairs(_))) {
        let pairs = |source: &Source<'_>| match &source.rank.mask {
            OwnedMask::Pairs(mask) => mask[source.token * k..][..k].to_vec(),
            OwnedMask::None | OwnedMask::Tokens(_) | OwnedMask::Abstains => vec![true; k],
        };
        let mut all: Vec<_> = sources.iter().flat_map(pairs).collect();
        all.resize(bs * k, false);
        OwnedMask::Pairs(all)
    } else if any(|mask| matches!(mask, OwnedMask::Tokens(_))) {
        OwnedMask::Tokens((0..bs).map(|token| token < sources.len()).collect())
    } else {
        OwnedMask::None
    }
}

/// All tensors with a row for each token.
fn rows_of(tensors: &mut RankTensors) -> impl Iterator<Item = &mut Vec<u8>> {
    let residual = Some(&mut tensors.residual_x).filter(|residual| !residual.is_empty());
    core::iter::once(&mut tensors.x).chain(&mut tensors.shared_expert_x).chain(residual)
}
