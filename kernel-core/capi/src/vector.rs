//! A table of C functions as a vector unit.

use crate::codes::{
    Said, VERIEP_BF16, VERIEP_E_ARGUMENT, VERIEP_F16, VERIEP_NONE, VERIEP_TERM_BLOCKS, VERIEP_TERM_MIX,
    VERIEP_TERM_ROW,
};
use crate::types::{veriep_term, veriep_vector};
use core::cell::Cell;
use core::ptr;
use kernel_core::shape::{Dtype, K_MAX, SHARED_MAX};
use kernel_core::vector::{NotFinite, Portable, Term, Value, Vector};

/// The caller's table, and the portable unit for each function that it lacks.
#[derive(Clone, Copy)]
pub(crate) struct Unit(*const veriep_vector);

/// Elements of an int8 block.
const BLOCK: usize = 8;

const fn code(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::Bf16 => VERIEP_BF16,
        Dtype::F16 => VERIEP_F16,
    }
}

/// A term as C has it, if its rows have `len` elements.
fn term(term: &Term<'_>, len: usize) -> Option<veriep_term> {
    let (kind, alphas, rows, is_whole) = match term.value {
        Value::Row(row) => (VERIEP_TERM_ROW, [0.0; 2], [row, &[]], row.len() >= 2 * len),
        Value::Blocks { data, scales } => {
            (VERIEP_TERM_BLOCKS, [0.0; 2], [data, scales], have_blocks(len, data, scales))
        }
        Value::Mix { alphas, rows } => {
            (VERIEP_TERM_MIX, alphas, rows, rows.iter().all(|row| row.len() >= 2 * len))
        }
    };
    is_whole.then(|| veriep_term { weight: term.weight, kind, alphas, rows: rows.map(<[u8]>::as_ptr) })
}

impl Unit {
    pub(crate) const PORTABLE: Self = Self(ptr::null());

    /// # Safety
    /// What is neither null nor misaligned is a table of functions that do as it says, for as long as the unit is used.
    pub(crate) unsafe fn new(table: *const veriep_vector) -> Said<Self> {
        if table.is_aligned() { Ok(Self(table)) } else { Err(VERIEP_E_ARGUMENT) }
    }

    fn table(&self) -> Option<&veriep_vector> {
        // SAFETY: the word of who made it.
        unsafe { self.0.as_ref() }
    }
}

/// Whether there is room for so many elements as int8 blocks.
fn have_blocks(len: usize, data: &[u8], scales: &[u8]) -> bool {
    data.len() >= len && scales.len() >= 2 * len.div_ceil(BLOCK)
}

const NO_TERMS: [veriep_term; K_MAX + SHARED_MAX] =
    [veriep_term { weight: 0.0, kind: VERIEP_TERM_ROW, alphas: [0.0; 2], rows: [ptr::null(); 2] };
        K_MAX + SHARED_MAX];

/// Fills in terms as C has them. False if a row is shorter than `len` elements.
fn fill(all: &mut [veriep_term], terms: &[Term<'_>], len: usize) -> bool {
    let Some(all) = all.get_mut(..terms.len()) else { return false };
    all.iter_mut().zip(terms).all(|(to, from)| term(from, len).map(|term| *to = term).is_some())
}

/// Calls a function of the table with its context, where there is one and rows are as long as it is told; else does what the
/// portable unit does.
macro_rules! call {
    ($unit:ident.$function:ident($($argument:expr),*) if $is_whole:expr, else $portable:expr) => {
        if let Some(table) = $unit.table() && let Some(function) = table.$function && $is_whole {
            // SAFETY: the function is the caller's, and is given what its declaration says.
            unsafe { function(table.context, $($argument),*) }
        } else {
            $portable
        }
    };
}

impl Vector for Unit {
    #[inline(never)]
    fn quantise(
        &self,
        dtype: Dtype,
        row: &[u8],
        smooth: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<f32, NotFinite> {
        let (len, mut scale) = (row.len() / 2, 0.0);
        let factors = smooth.map_or(ptr::null(), <[f32]>::as_ptr);
        let is_whole = out.len() >= len && smooth.is_none_or(|smooth| smooth.len() >= len);
        let (from, to, scale_at) = (row.as_ptr(), out.as_mut_ptr().cast(), &raw mut scale);
        let element = call!(self.quantise(code(dtype), len, from, factors, to, scale_at) if is_whole,
            else return Portable.quantise(dtype, row, smooth, out));
        if element == VERIEP_NONE { Ok(scale) } else { Err(NotFinite { element }) }
    }

    #[inline(never)]
    fn quantise_blocks(&self, dtype: Dtype, row: &[u8], data: &mut [u8], scales: &mut [u8]) {
        let len = row.len() / 2;
        let (from, to, scales_at) = (row.as_ptr(), data.as_mut_ptr().cast(), scales.as_mut_ptr());
        call!(self.quantise_blocks(code(dtype), len, from, to, scales_at) if have_blocks(len, data, scales),
            else Portable.quantise_blocks(dtype, row, data, scales));
    }

    #[inline(never)]
    fn quantise_sums(&self, dtype: Dtype, sums: &[u8], data: &mut [u8], scales: &mut [u8]) {
        let len = sums.len() / 4;
        let (from, to, scales_at) = (sums.as_ptr(), data.as_mut_ptr().cast(), scales.as_mut_ptr());
        call!(self.quantise_sums(code(dtype), len, from, to, scales_at) if have_blocks(len, data, scales),
            else Portable.quantise_sums(dtype, sums, data, scales));
    }

    #[inline(never)]
    fn weighted_sum(&self, dtype: Dtype, terms: &[Term<'_>], prefetch: bool, out: &[Cell<u8>]) {
        let len = out.len() / 2;
        let mut all = NO_TERMS;
        // Cells are written by who has them.
        let to = out.as_ptr().cast_mut().cast();
        call!(self.weighted_sum(code(dtype), len, all.as_ptr(), terms.len(), to) if fill(&mut all, terms, len),
            else Portable.weighted_sum(dtype, terms, prefetch, out));
    }

    #[inline(never)]
    fn accumulate(&self, dtype: Dtype, terms: &[Term<'_>], prefetch: bool, sums: &mut [u8]) {
        let len = sums.len() / 4;
        let mut all = NO_TERMS;
        let to = sums.as_mut_ptr();
        call!(self.accumulate(code(dtype), len, all.as_ptr(), terms.len(), to) if fill(&mut all, terms, len),
            else Portable.accumulate(dtype, terms, prefetch, sums));
    }

    #[inline(never)]
    fn narrow(&self, dtype: Dtype, sums: &[u8], out: &mut [u8]) {
        let len = sums.len() / 4;
        let (from, to) = (sums.as_ptr(), out.as_mut_ptr());
        call!(self.narrow(code(dtype), len, from, to) if out.len() >= 2 * len,
            else Portable.narrow(dtype, sums, out));
    }

    #[inline(never)]
    fn rstd(&self, sums: &[u8], eps: f32) -> f32 {
        call!(self.rstd(sums.len() / 4, sums.as_ptr(), eps) if true, else Portable.rstd(sums, eps))
    }

    #[inline(never)]
    fn normalise(&self, dtype: Dtype, sums: &[u8], rstd: f32, gamma: &[u8], out: &mut [u8]) {
        let len = sums.len() / 4;
        let (from, factors, to) = (sums.as_ptr(), gamma.as_ptr(), out.as_mut_ptr());
        let is_whole = gamma.len().min(out.len()) >= 2 * len;
        call!(self.normalise(code(dtype), len, from, rstd, factors, to) if is_whole,
            else Portable.normalise(dtype, sums, rstd, gamma, out));
    }

    #[inline(never)]
    fn add(&self, dtype: Dtype, a: &[u8], b: &[u8], out: &mut [u8]) {
        let len = a.len() / 2;
        let (from, and, to) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
        call!(self.add(code(dtype), len, from, and, to) if b.len().min(out.len()) >= 2 * len,
            else Portable.add(dtype, a, b, out));
    }
}
