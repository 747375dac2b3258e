//! The tokens that a member brings to a round: any number up to `bs`, with any of their pairs left out.

use core::ops::ControlFlow;
use veriep_case::case::{ExpertMap, NO_EXPERT, OwnedMask, RankTensors, input_problem};
use veriep_case::config::Config;
use veriep_case::error::{Error, Problem};
use veriep_case::hints;
use veriep_core::inputs::{self, Mask, all_finite};
use veriep_core::shape::{Limits, Protocol, Shape};
use veriep_core::units::RankId;

/// Tokens by reference, `n` of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens<'a> {
    /// The number of the layer that they go through.
    pub layer: usize,
    /// `[n, h]` dtype.
    pub x: &'a [u8],
    /// `[n, k]`; -1 is no expert. In a group with an expert map they are logical experts.
    pub expert_ids: &'a [i32],
    /// `[n, k]`, or empty where only combine will know the weights.
    pub expert_scales: &'a [f32],
    /// `[n]` or `[n, k]`.
    pub mask: Mask<'a>,
    /// `[S + E, h]` smooth scales of dynamic quantisation, shared experts first; the same on all ranks.
    pub scales: Option<&'a [f32]>,
    /// The number of the call, the same on all ranks, such as step times layers plus layer. A rank that leaves out a call is
    /// then refused by name. `None`: the member counts its calls, so that one which it leaves out is not seen.
    pub call: Option<u32>,
}

/// Something about a group's member that breaks a rule.
pub(super) fn refused(parameter: &str, seen: &str, rule: impl Into<String>) -> Error {
    Error::Invalid { place: "Group".to_owned(), problems: vec![Problem::new(parameter, seen, rule)] }
}

impl Tokens<'_> {
    /// The tensors of a rank with these tokens and inactive ones after them; without `x` where that is of the right length
    /// already, and combine does not read it.
    pub(super) fn padded(
        &self,
        config: &Config,
        shape: &Shape,
        rank: RankId,
        limits: Limits,
        map: Option<&ExpertMap>,
    ) -> Result<RankTensors, Error> {
        let (bs, k, row) = (shape.bs(rank) as usize, shape.k() as usize, shape.row_bytes() as usize);
        let n = self.expert_ids.len() / k;
        if n > bs {
            return Err(refused(
                "expert_ids",
                &format!(": {n} tokens"),
                format!("must be at most bs = {bs}"),
            ));
        }
        let pairs = n * k;
        let weights = match self.expert_scales {
            [] if shape.protocol() != Protocol::Hierarchy => 0,
            _ => pairs,
        };
        let lengths = [
            ("expert_ids", self.expert_ids.len(), pairs),
            ("expert_scales", self.expert_scales.len(), weights),
            ("x", self.x.len(), n * row),
        ];
        if let Some((name, seen, rule)) = lengths.into_iter().find(|(_, seen, rule)| seen != rule) {
            let (what, rule) = if name == "x" { ("bytes", rule) } else { ("values", rule) };
            return Err(refused(name, &format!(": {seen} {what}"), format!("must be {rule} for {n} tokens")));
        }
        let mut mask = self.mask_of(bs, k, n)?;
        let given = mask.given();
        if !given.is_empty() {
            // Fewer tokens or pairs are a mask, which not every layout has.
            let masked = hints::shape(config, given, limits, "Group");
            if masked.is_err() && n == 0 {
                mask = OwnedMask::Abstains;
            } else if masked.is_err() && matches!(self.mask, Mask::None) {
                let seen = format!(": {n} tokens, {} of {pairs} ids -1", count(self.expert_ids));
                let rule = format!("must be bs = {bs} tokens and no -1: this layout has no masks");
                return Err(refused("expert_ids", &seen, rule));
            }
            if n > 0 {
                masked?;
            }
        }
        let mut expert_ids = self.expert_ids.to_vec();
        expert_ids.resize(bs * k, NO_EXPERT);
        let expert_scales = padded_weights(self.expert_scales, &expert_ids);
        let reads_tokens = shape.copy_expert_num() > 0 || shape.const_expert_num() > 0;
        let is_needed = n < bs || reads_tokens;
        let mut x = if is_needed { self.x.to_vec() } else { Vec::new() };
        if is_needed {
            x.resize(bs * row, 0);
        }
        let mut tensors = RankTensors { x, expert_ids, expert_scales, mask, ..RankTensors::default() };
        if let Some(map) = map.and_then(|map| map.check(shape).ok()) {
            check(&mut |found| map.check_ids(shape, &tensors.inputs(), found))?;
            tensors.translate_of(&map, shape, rank);
        }
        Ok(tensors)
    }

    fn mask_of(&self, bs: usize, k: usize, n: usize) -> Result<OwnedMask, Error> {
        let must_be = |seen: usize, rule: usize| {
            let seen = format!(": {seen} values");
            Err(refused("x_active_mask", &seen, format!("must be {rule} for {n} tokens")))
        };
        match self.mask {
            Mask::Tokens(mask) if mask.len() != n => return must_be(mask.len(), n),
            Mask::Pairs(mask) if mask.len() != n * k => return must_be(mask.len(), n * k),
            _ => {}
        }
        Ok(OwnedMask::without_no_expert(self.mask, self.expert_ids, bs, k))
    }
}

fn count(ids: &[i32]) -> usize {
    ids.iter().filter(|id| **id == NO_EXPERT).count()
}

/// The weights of these pairs, which must be numbers also where there is no expert.
pub(super) fn padded_weights(given: &[f32], expert_ids: &[i32]) -> Vec<f32> {
    let mut weights = given.to_vec();
    weights.resize(expert_ids.len(), 0.0);
    for (weight, _) in weights.iter_mut().zip(expert_ids).filter(|(_, id)| **id == NO_EXPERT) {
        *weight = 0.0;
    }
    weights
}

/// Refuses weights that are not finite.
pub(super) fn check_weights(tensors: &RankTensors, k: u32) -> Result<(), Error> {
    let (weights, columns) = (&tensors.expert_scales, Some(k as usize));
    check(&mut |found| all_finite("expert_scales", weights, columns, found).map_continue(drop))
}

/// All that a check of inputs finds.
pub(super) fn check(of: &mut dyn FnMut(&mut inputs::Found<'_>) -> ControlFlow<()>) -> Result<(), Error> {
    let mut problems = Vec::new();
    let _ = of(&mut |error| {
        problems.push(input_problem(error.tensor(), &error));
        ControlFlow::Continue(())
    });
    if problems.is_empty() { Ok(()) } else { Err(Error::Invalid { place: "Group".to_owned(), problems }) }
}
