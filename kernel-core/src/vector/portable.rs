//! The reference implementation: plain loops that a compiler vectorises for whatever it targets.
//!
//! Everything here is inlined, so that a backend can compile it again with wider vectors by calling it from
//! a function with target features of its own.

use super::element::{Bf16, Element, F16, load};
use super::{NotFinite, Term, Value, Vector, quantise};
use crate::shape::Dtype;
use crate::shape::sizes::COMM_BLOCK;

/// The vector unit of any machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Portable;

impl Vector for Portable {
    #[inline(always)]
    fn quantise(
        &self,
        dtype: Dtype,
        row: &[u8],
        smooth: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<f32, NotFinite> {
        match dtype {
            Dtype::Bf16 => quantise::token::<Bf16>(row, smooth, out),
            Dtype::F16 => quantise::token::<F16>(row, smooth, out),
        }
    }

    #[inline(always)]
    fn quantise_blocks(&self, dtype: Dtype, row: &[u8], data: &mut [u8], scales: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => quantise::blocks::<Bf16>(row, data, scales),
            Dtype::F16 => quantise::blocks::<F16>(row, data, scales),
        }
    }

    #[inline(always)]
    fn quantise_sums(&self, dtype: Dtype, sums: &[u8], data: &mut [u8], scales: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => quantise::sums::<Bf16>(sums, data, scales),
            Dtype::F16 => quantise::sums::<F16>(sums, data, scales),
        }
    }

    #[inline(always)]
    fn weighted_sum(&self, dtype: Dtype, terms: &[Term<'_>], out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => sum::<Bf16, 2>(terms, out, |_| ZEROS, round::<Bf16>),
            Dtype::F16 => sum::<F16, 2>(terms, out, |_| ZEROS, round::<F16>),
        }
    }

    #[inline(always)]
    fn accumulate(&self, dtype: Dtype, terms: &[Term<'_>], sums: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => sum::<Bf16, 4>(terms, sums, floats, store),
            Dtype::F16 => sum::<F16, 4>(terms, sums, floats, store),
        }
    }

    #[inline(always)]
    fn narrow(&self, dtype: Dtype, sums: &[u8], out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => narrow::<Bf16>(sums, out),
            Dtype::F16 => narrow::<F16>(sums, out),
        }
    }

    #[inline(always)]
    fn rstd(&self, sums: &[u8], eps: f32) -> f32 {
        rstd(sums, eps)
    }

    #[inline(always)]
    fn normalise(&self, dtype: Dtype, sums: &[u8], rstd: f32, gamma: &[u8], out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => normalise::<Bf16>(sums, rstd, gamma, out),
            Dtype::F16 => normalise::<F16>(sums, rstd, gamma, out),
        }
    }

    #[inline(always)]
    fn add(&self, dtype: Dtype, a: &[u8], b: &[u8], out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => add::<Bf16>(a, b, out),
            Dtype::F16 => add::<F16>(a, b, out),
        }
    }
}

#[inline(always)]
fn add<E: Element>(a: &[u8], b: &[u8], out: &mut [u8]) {
    let sums = a.as_chunks().0.iter().zip(b.as_chunks().0).map(|(&a, &b)| load::<E>(a) + load::<E>(b));
    for (out, sum) in out.as_chunks_mut().0.iter_mut().zip(sums) {
        *out = E::narrow(sum).to_le_bytes();
    }
}

/// Elements summed at a time: their sums stay close to the unit while all terms pass.
const BLOCK: usize = 32;
static_assertions::const_assert!(BLOCK.is_multiple_of(COMM_BLOCK as usize));

type Sums = [f32; BLOCK];

const ZEROS: Sums = [0.0; BLOCK];

/// Sums that go on from a row of f32.
#[inline(always)]
fn floats(row: &[u8]) -> Sums {
    let mut sums = ZEROS;
    sums.iter_mut().zip(row.as_chunks().0).for_each(|(sum, &bytes)| *sum = f32::from_le_bytes(bytes));
    sums
}

#[inline(always)]
fn store(sums: &Sums, out: &mut [u8]) {
    out.as_chunks_mut().0.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum.to_le_bytes());
}

#[inline(always)]
fn round<E: Element>(sums: &Sums, out: &mut [u8]) {
    out.as_chunks_mut().0.iter_mut().zip(sums).for_each(|(to, &sum)| *to = E::narrow(sum).to_le_bytes());
}

/// Sums `terms` block by block into `out`, which has `WIDTH` bytes for each element.
#[inline(always)]
fn sum<E: Element, const WIDTH: usize>(
    terms: &[Term<'_>],
    out: &mut [u8],
    begin: impl Fn(&[u8]) -> Sums,
    end: impl Fn(&Sums, &mut [u8]),
) {
    // Most tokens have rows alone; their loop then has nothing else in it.
    if terms.iter().all(|term| matches!(term.value, Value::Row(_))) {
        sum_blocks::<E, WIDTH, false>(terms, out, begin, end);
    } else {
        sum_blocks::<E, WIDTH, true>(terms, out, begin, end);
    }
}

#[inline(always)]
fn sum_blocks<E: Element, const WIDTH: usize, const MIXED: bool>(
    terms: &[Term<'_>],
    out: &mut [u8],
    begin: impl Fn(&[u8]) -> Sums,
    end: impl Fn(&Sums, &mut [u8]),
) {
    let mut blocks = out.chunks_exact_mut(WIDTH * BLOCK);
    let whole = blocks.len();
    for (i, out) in blocks.by_ref().enumerate() {
        let mut sums = begin(out);
        add_terms::<E, MIXED>(terms, Whole(i), &mut sums);
        end(&sums, out);
    }
    let tail = blocks.into_remainder();
    if !tail.is_empty() {
        let mut sums = begin(tail);
        add_terms::<E, MIXED>(terms, Part(whole), &mut sums);
        end(&sums, tail);
    }
}

#[inline(always)]
fn add_terms<E: Element, const MIXED: bool>(terms: &[Term<'_>], block: impl Cut, sums: &mut Sums) {
    for Term { weight, value } in terms {
        match *value {
            Value::Row(row) => {
                let row = block.cut::<{ 2 * BLOCK }>(row);
                for (sum, &v) in sums.iter_mut().zip(row.as_chunks().0) {
                    *sum += weight * load::<E>(v);
                }
            }
            Value::Blocks { data, scales } if MIXED => {
                let data = block.cut::<BLOCK>(data);
                let scales = block.cut::<{ 2 * BLOCK / COMM_BLOCK as usize }>(scales);
                let blocks = data.as_chunks::<{ COMM_BLOCK as usize }>().0.iter().zip(scales.as_chunks().0);
                let values = blocks.flat_map(|(q, &scale)| q.map(|q| dequantise::<E>(q, load::<E>(scale))));
                sums.iter_mut().zip(values).for_each(|(sum, v)| *sum += weight * v);
            }
            Value::Mix { alphas: [a, b], rows: [x, v] } if MIXED => {
                let (x, v) = (block.cut::<{ 2 * BLOCK }>(x), block.cut::<{ 2 * BLOCK }>(v));
                let pairs = x.as_chunks().0.iter().zip(v.as_chunks().0);
                for (sum, (&x, &v)) in sums.iter_mut().zip(pairs) {
                    *sum += weight * (a * load::<E>(x) + b * load::<E>(v));
                }
            }
            _ => {}
        }
    }
}

/// An element of an int8 block, as if it had come in dtype.
#[inline(always)]
fn dequantise<E: Element>(q: u8, scale: f32) -> f32 {
    E::widen(E::narrow(f32::from(q.cast_signed()) * scale))
}

/// A block of a row, by its number.
trait Cut: Copy {
    /// The `N` bytes of it; zeros where the row has none.
    fn cut<const N: usize>(self, row: &[u8]) -> [u8; N];
}

/// A block that the row has in full.
#[derive(Clone, Copy)]
struct Whole(usize);

/// The last block, which may be shorter.
#[derive(Clone, Copy)]
struct Part(usize);

impl Cut for Whole {
    #[inline(always)]
    fn cut<const N: usize>(self, row: &[u8]) -> [u8; N] {
        row.get(self.0 * N..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
}

impl Cut for Part {
    #[inline(always)]
    fn cut<const N: usize>(self, row: &[u8]) -> [u8; N] {
        let mut padded = [0; N];
        padded.iter_mut().zip(row.get(self.0 * N..).unwrap_or(&[])).for_each(|(to, from)| *to = *from);
        padded
    }
}

#[inline(always)]
fn narrow<E: Element>(sums: &[u8], out: &mut [u8]) {
    for (to, &sum) in out.as_chunks_mut().0.iter_mut().zip(sums.as_chunks().0) {
        *to = E::narrow(f32::from_le_bytes(sum)).to_le_bytes();
    }
}

/// Partial sums that [`rstd`] keeps: element `i` goes to number `i` modulo this.
const LANES: usize = 16;

#[inline(always)]
fn rstd(sums: &[u8], eps: f32) -> f32 {
    let (values, _) = sums.as_chunks::<4>();
    let part = 1.0 / values.len() as f32;
    let square = |&r: &[u8; 4]| f32::from_le_bytes(r) * f32::from_le_bytes(r) * part;
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, r)| *lane += square(r));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, r)| *lane += square(r));
    let total = lanes.into_iter().fold(0.0, |total, lane| total + lane);
    1.0 / libm::sqrtf(total + eps)
}

#[inline(always)]
fn normalise<E: Element>(sums: &[u8], rstd: f32, gamma: &[u8], out: &mut [u8]) {
    let rows = sums.as_chunks().0.iter().zip(gamma.as_chunks().0);
    for (to, (&r, &gamma)) in out.as_chunks_mut().0.iter_mut().zip(rows) {
        let normal = E::widen(E::narrow(f32::from_le_bytes(r) * rstd));
        *to = E::narrow(normal * load::<E>(gamma)).to_le_bytes();
    }
}
