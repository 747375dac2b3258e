//! Values of a case on which implementations that are nearly right part from the reference.
//!
//! Gains are powers of two, so that everything before the sum is exact. Tokens take turns:
//!
//! - of the even ones weights make the terms of a sum cancel down to about 2^-18 of their size. What is lost when a
//!   product or a partial sum is rounded is then seen in the result: another order of additions, a fused
//!   multiply-add, and sums kept in fewer bits come out differently.
//! - of the odd ones rows are powers of two and weights have few bits, so that a sum is exact in any order, and is in
//!   the middle between two neighbours of `dtype`, above an even one and above an odd one alternately: it must be rounded to
//!   the even one.
//!
//! In odd quantised rows every other number is in the middle between two int8.

use super::{below, unit};
use core::iter;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use veriep_core::reference::numerics::to_bytes;
use veriep_core::shape::{Dtype, Shape};

/// The factors of experts: neighbours differ.
pub(super) fn gains(rows: usize) -> Vec<f32> {
    (0..rows).map(|row| [0.5, 2.0, 1.0, 0.25, 4.0][row % 5]).collect()
}

/// Makes the weights and rows of a rank hard. `shared_expert_x` is then `x` itself.
pub(super) fn make(
    shape: &Shape,
    gains: &[f32],
    rng: &mut ChaCha8Rng,
    ids: &[i32],
    (weights, x): (&mut [f32], &mut [u8]),
    shared_expert_x: bool,
) {
    let (k, row) = (shape.k() as usize, 2 * shape.h() as usize);
    let shared = shape.shared_expert_rows() as usize;
    // What comes unweighted, as a multiple of the row.
    let beside: f32 =
        gains[..shape.shared_expert_num() as usize].iter().sum::<f32>() + f32::from(shared_expert_x);
    let tokens = ids.chunks_exact(k).zip(weights.chunks_exact_mut(k)).zip(x.chunks_exact_mut(row));
    for (number, ((ids, weights), x)) in tokens.enumerate() {
        // How much of the row a term is; nothing of special experts but of copies.
        let copies = (shape.moe_expert_num() + shape.zero_expert_num()) as usize;
        let copies = copies..copies + shape.copy_expert_num() as usize;
        let factors: Vec<f32> = ids
            .iter()
            .map(|&id| {
                let id = id as usize;
                let of_copy = if copies.contains(&id) { 1.0 } else { 0.0 };
                if id < shape.moe_expert_num() as usize { gains[shared + id] } else { of_copy }
            })
            .collect();
        let Some(last) = factors.iter().rposition(|&factor| factor != 0.0) else { continue };
        let is_tie = number % 2 == 1;
        for (weight, factor) in weights.iter_mut().zip(&factors).filter(|(_, factor)| **factor != 0.0) {
            let share = match is_tie {
                true => (below(rng, 129) as f32 - 64.0) / 64.0,
                false => 0.25 + unit(rng.next_u32()),
            };
            *weight = share / factor;
        }
        let others = iter::zip(&*weights, &factors).take(last).map(|(weight, factor)| weight * factor);
        let others = others.sum::<f32>() + beside;
        let whole = match (is_tie, shape.dtype()) {
            // Nothing to cancel: there is one term.
            (false, _) if others == 0.0 => 0.25 + unit(rng.next_u32()),
            (false, _) => others * 2.0f32.powi(-18) * (1.0 + unit(rng.next_u32())),
            // Between two numbers of 8 bits, or of 11.
            (true, Dtype::Bf16) => 1.0 + (2 * (number as u32 / 2 % 64) + 1) as f32 / 256.0,
            (true, Dtype::F16) => 1.0 + (2 * (number as u32 / 2 % 512) + 1) as f32 / 2048.0,
        };
        weights[last] = (whole - others) / factors[last];
        if is_tie {
            let quantised = shape.row_format().scale.is_some();
            tie(shape.dtype(), quantised, x);
        }
    }
}

/// Makes a row of powers of two; where it is quantised, of halves up to 127, which its largest is.
fn tie(dtype: Dtype, quantised: bool, x: &mut [u8]) {
    for (i, element) in x.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let bits = u16::from_le_bytes(*element);
        let mantissa = if dtype == Dtype::Bf16 { 7 } else { 10 };
        let halves = match i {
            0 => 254.0,
            _ => f32::from(bits % 128) - 64.0,
        };
        *element = match quantised {
            false => (bits & !((1 << mantissa) - 1)).to_le_bytes(),
            true => to_bytes(dtype, halves / 2.0),
        };
    }
}
