//! One round's inputs: the case itself, the case varied, or tensors of one's own in its shape.
//!
//! A group runs the case many times. Were every round the same, a row left over from the round before last
//! would look right. So a round at distance `d` from the last one has the tokens of every rank rotated by `d`, with
//! all that belongs to them, and every value's sign flipped when `d / 2` is odd: whatever was in the same partition before
//! differs. The last round (`d = 0`) is the case itself.

use crate::case::{Case, OwnedMask, RankTensors};
use crate::member;
use kernel_core::inputs::Inputs;
use kernel_core::reference::Cluster;
use kernel_core::shape::Shape;
use kernel_core::units::RankId;
use std::borrow::Cow;

/// The inputs of all ranks for one round.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    case: &'a Case,
    ranks: Cow<'a, [RankTensors]>,
}

impl<'a> Batch<'a> {
    /// The case as it is.
    #[must_use]
    pub fn new(case: &'a Case) -> Self {
        Self::with_tensors(case, &case.ranks)
    }

    /// The case at distance `distance` from the last round.
    #[must_use]
    pub fn varied(case: &'a Case, distance: usize) -> Self {
        let ranks = (0..).map(RankId).zip(&case.ranks);
        let varied: Vec<_> = ranks.map(|(rank, t)| vary(&case.shape, rank, t, distance)).collect();
        Self::with_tensors(case, varied)
    }

    /// Other tensors, one entry per rank, in the shape and with the scales and experts of `case`.
    #[must_use]
    pub fn with_tensors(case: &'a Case, ranks: impl Into<Cow<'a, [RankTensors]>>) -> Self {
        Self { case, ranks: ranks.into() }
    }

    /// What a rank brings.
    #[must_use]
    pub fn inputs(&self, rank: RankId) -> Inputs<'_> {
        self.case.inputs_with(&self.ranks[rank.index()])
    }

    /// The name of a rank in files and reports.
    #[must_use]
    pub fn name(&self, rank: RankId) -> RankId {
        self.case.name(rank)
    }

    /// Calls `f` with the oracle's view of the whole cluster, which goes by physical names.
    pub fn with_cluster<T>(&self, f: impl FnOnce(&Cluster<'_>) -> T) -> T {
        // The oracle is asked by physical names, and has nothing of those who are gone.
        let nothing = Inputs::default();
        let whole = self.case.whole();
        let mut ranks = vec![nothing; member::count(whole) as usize];
        for rank in member::all(&self.case.shape) {
            ranks[self.name(rank).index()] = self.inputs(rank);
        }
        let elastic_info = self.case.elastic.as_ref().map(|elastic| elastic.info.as_slice());
        f(&Cluster { shape: whole, ranks: &ranks, elastic_info })
    }

    /// Factor of the stand-in expert with that row of `expert_gain`.
    #[must_use]
    pub fn gain(&self, expert_row: u32) -> f32 {
        self.case.expert_gain.get(expert_row as usize).copied().unwrap_or(1.0)
    }
}

/// Masks stay in place: a rotated 1-D mask would not be one. With a mask of tokens, a token that quantisation
/// would refuse may be hidden behind it, so only the active ones take part in the rotation.
fn vary(shape: &Shape, rank: RankId, tensors: &RankTensors, distance: usize) -> RankTensors {
    let mut varied = tensors.clone();
    let bs = shape.bs(member::ep_rank(shape, rank)) as usize;
    let turning = match &tensors.mask {
        OwnedMask::None => bs,
        OwnedMask::Tokens(mask) => mask.iter().filter(|&&active| active).count(),
        OwnedMask::Pairs(_) => 0,
    };
    if let Some(by) = distance.checked_rem(turning) {
        let (row, k) = (shape.row_bytes() as usize, shape.k() as usize);
        for rows in rows_of(&mut varied) {
            rows[..turning * row].rotate_left(by * row);
        }
        varied.expert_ids[..turning * k].rotate_left(by * k);
        varied.expert_scales[..turning * k].rotate_left(by * k);
    }
    if (distance / 2) % 2 == 1 {
        for rows in rows_of(&mut varied) {
            rows.iter_mut().skip(1).step_by(2).for_each(|high| *high ^= 0x80);
        }
    }
    varied
}

/// All tensors with a row for each token.
fn rows_of(tensors: &mut RankTensors) -> impl Iterator<Item = &mut Vec<u8>> {
    let residual = Some(&mut tensors.residual_x).filter(|residual| !residual.is_empty());
    core::iter::once(&mut tensors.x).chain(&mut tensors.shared_expert_x).chain(residual)
}
