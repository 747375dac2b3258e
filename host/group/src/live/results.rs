//! The tensors that a member brings to a combine.

use super::Route;
use super::tokens::{padded_weights, refused};
use veriep_case::case::RankTensors;
use veriep_case::error::Error;
use veriep_core::inputs::Inputs;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::RankId;

/// Results of experts and what combine adds to them, by reference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Results<'a> {
    /// A row `[h]` for each row that dispatch has brought, in the same order.
    pub y: &'a [u8],
    /// `[n, k]` weights, if they differ from those of dispatch or were not known then.
    pub expert_scales: Option<&'a [f32]>,
    /// `[n, h]` dtype, added to each sum at last: on all ranks or on none.
    pub shared_expert_x: Option<&'a [u8]>,
    /// `[q]` dtype, const experts' factors of the token; the same on all ranks.
    pub const_expert_alpha_1: &'a [u8],
    /// `[q]` dtype, const experts' factors of their own rows; the same on all ranks.
    pub const_expert_alpha_2: &'a [u8],
    /// `[q, h]` dtype, const experts' own rows; the same on all ranks.
    pub const_expert_v: &'a [u8],
}

/// The tensors of combine for all `bs` tokens of a rank.
#[derive(Debug, Default)]
pub(super) struct Padded {
    expert_scales: Option<Vec<f32>>,
    shared_expert_x: Option<Vec<u8>>,
    /// Zeros in place of const experts' tensors that the caller does not give.
    no_alphas: Vec<u8>,
    no_rows: Vec<u8>,
}

impl Results<'_> {
    /// The tensors of a batch with its inactive tokens after those of the caller.
    pub(super) fn padded(&self, shape: &Shape, rank: RankId, route: &Route) -> Result<Padded, Error> {
        let (k, n) = (shape.k() as usize, route.tokens);
        let must_be = |name: &str, seen: usize, what: &str, rule: usize| {
            Err(refused(name, &format!(": {seen} {what}"), format!("must be {rule} for {n} tokens")))
        };
        let expert_scales = match self.expert_scales {
            Some(weights) if weights.len() != n * k => {
                return must_be("expert_scales", weights.len(), "values", n * k);
            }
            Some(weights) => {
                let weights = padded_weights(weights, &route.tensors.expert_ids);
                if shape.protocol() == Protocol::Hierarchy && weights != route.tensors.expert_scales {
                    let rule = "must be those of dispatch: the hierarchy of A2 sends them there";
                    return Err(refused("expert_scales", " differ", rule));
                }
                Some(weights)
            }
            None if !route.has_weights && n > 0 => {
                let rule = "must be given to dispatch or to combine";
                return Err(refused("expert_scales", " is missing", rule));
            }
            None => None,
        };
        let row = shape.row_bytes() as usize;
        let shared_expert_x = match self.shared_expert_x {
            Some(rows) if rows.len() != n * row => {
                return must_be("shared_expert_x", rows.len(), "bytes", n * row);
            }
            Some(rows) => {
                let mut rows = rows.to_vec();
                rows.resize(shape.bs(rank) as usize * row, 0);
                Some(rows)
            }
            None => None,
        };
        Ok(Padded { expert_scales, shared_expert_x, no_alphas: Vec::new(), no_rows: Vec::new() })
    }

    /// The tensors of a batch whose results are not wanted.
    pub(super) fn zeros(shape: &Shape, route: &Route) -> Padded {
        let consts = shape.const_expert_num() as usize;
        let row = shape.row_bytes() as usize;
        Padded {
            expert_scales: Some(vec![0.0; route.tensors.expert_ids.len()]),
            shared_expert_x: None,
            no_alphas: vec![0; consts * row / shape.h().max(1) as usize],
            no_rows: vec![0; consts * row],
        }
    }
}

impl Padded {
    /// What the machines read, with the const experts of `results` unless these are zeros.
    pub(super) fn inputs<'i>(&'i self, of: &'i RankTensors, results: &Results<'i>) -> Inputs<'i> {
        let inputs = of.inputs();
        let or_zeros = |given: &'i [u8], zeros: &'i [u8]| if given.is_empty() { zeros } else { given };
        Inputs {
            expert_scales: self.expert_scales.as_deref().unwrap_or(inputs.expert_scales),
            shared_expert_x: self.shared_expert_x.as_deref(),
            const_expert_alpha_1: or_zeros(results.const_expert_alpha_1, &self.no_alphas),
            const_expert_alpha_2: or_zeros(results.const_expert_alpha_2, &self.no_alphas),
            const_expert_v: or_zeros(results.const_expert_v, &self.no_rows),
            ..inputs
        }
    }
}
