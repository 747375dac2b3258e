//! Prefetching of cache lines, so that a row does not wait at the start of each of its pages.
//!
//! A processor that detects reads or writes of a row fetches ahead of them, but stops at the end of each page of 4 KiB, and
//! fetches little for writes. Rows come from and go to places all over memory, so they are prefetched here, or bypass the
//! caches.
#![allow(unsafe_code)]

use core::ptr;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// The distance in bytes by which a copy prefetches lines.
const COPY: usize = 1024;

/// The bytes of a row that are prefetched at a time.
const AT_ONCE: usize = 512;

/// Prefetches the cache line at `at`, which may be any address.
#[inline(always)]
pub(crate) fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint. It faults nowhere and changes nothing that a program sees; every x86-64 has the instruction.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the cache line at `at` with the intent to write, which avoids a later upgrade from shared to exclusive.
#[inline(always)]
fn fetch_to_write(at: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, as in `fetch`. A processor that does not know it does nothing.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fetch(at);
}

/// Prefetches a line at both ends of a copy of `len` bytes, of which `done` are copied.
#[inline(always)]
pub(crate) fn fetch_ahead(from: *const u8, to: *mut u8, done: usize, len: usize) {
    if done + COPY < len {
        fetch(from.wrapping_add(done + COPY));
        fetch_to_write(to.wrapping_add(done + COPY));
    }
}

/// Prefetches `len` bytes of a row from `from` on, if it reaches that far; near its end also lines after it.
#[inline(always)]
pub(crate) fn fetch_row(row: &[u8], from: usize, len: usize) {
    if let Some(rest) = row.get(from..) {
        for offset in (0..len).step_by(LINE) {
            // The address wraps around, and nothing is read there.
            fetch(rest.as_ptr().wrapping_add(offset));
        }
    }
}

/// Copies a row to memory that is in a near cache, with its lines prefetched if they `can` be.
pub(crate) fn copy_in(row: &[u8], to: &mut [u8], can: bool) {
    for ((at, from), to) in (COPY..).step_by(AT_ONCE).zip(row.chunks(AT_ONCE)).zip(to.chunks_mut(AT_ONCE)) {
        if can {
            fetch_row(row, at, AT_ONCE);
        }
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from);
    }
}

/// Copies `len` bytes with both ends prefetched: faster than a copy without hints, for rows at any place.
///
/// # Safety
/// The requirements of [`ptr::copy_nonoverlapping`].
// The cost of a call is negligible for a row, and it makes copies visible in a profile.
#[inline(never)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let lines = if cfg!(target_arch = "x86_64") { len / LINE } else { 0 };
    for at in (0..lines * LINE).step_by(LINE) {
        fetch_ahead(from, to, at, len);
        // SAFETY: a line within both ranges, which do not overlap.
        unsafe { ptr::copy_nonoverlapping(from.wrapping_add(at), to.wrapping_add(at), LINE) };
    }
    let done = lines * LINE;
    // SAFETY: the rest of the same bytes.
    unsafe { ptr::copy_nonoverlapping(from.wrapping_add(done), to.wrapping_add(done), len - done) };
}

/// Copies `len` bytes past the caches, and returns whether it could. A line of the target that is written only in part goes
/// through them: past them, memory would have to merge it, and what is written next to the row would fetch it again.
///
/// # Safety
/// The requirements of [`ptr::copy_nonoverlapping`]; and a fence must precede any flag that covers the bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn copy_past_caches(from: *const u8, to: *mut u8, len: usize) -> bool {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let begin = to.addr().wrapping_neg() % LINE;
    if begin > len {
        return false;
    }
    let end = begin + (len - begin) / LINE * LINE;
    // SAFETY: all that is copied is within `len` bytes of both. The target of a vector is aligned, a load need not be.
    unsafe {
        ptr::copy_nonoverlapping(from, to, begin);
        for at in (begin..end).step_by(LINE) {
            let source = from.wrapping_add(at).cast::<__m128i>();
            let target = to.wrapping_add(at).cast::<__m128i>();
            for i in 0..LINE / size_of::<__m128i>() {
                _mm_stream_si128(target.wrapping_add(i), _mm_loadu_si128(source.wrapping_add(i)));
            }
        }
        ptr::copy_nonoverlapping(from.wrapping_add(end), to.wrapping_add(end), len - end);
    }
    true
}

/// On other processors rows go through the caches.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_past_caches(_from: *const u8, _to: *mut u8, _len: usize) -> bool {
    false
}

/// Copies `len` bytes, usually the tail of a row: some 40, for which a call would be expensive.
///
/// # Safety
/// The requirements of [`ptr::copy_nonoverlapping`].
#[inline(always)]
pub(crate) unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    const HALF: usize = LINE / 2;
    // SAFETY: the caller's promise; two halves that may overlap cover what is neither shorter than one nor longer than both.
    unsafe {
        if (HALF..=LINE).contains(&len) {
            let last = len - HALF;
            let (first, second) = (from.cast::<[u8; HALF]>(), from.wrapping_add(last).cast::<[u8; HALF]>());
            let (first, second) = (first.read_unaligned(), second.read_unaligned());
            to.cast::<[u8; HALF]>().write_unaligned(first);
            to.wrapping_add(last).cast::<[u8; HALF]>().write_unaligned(second);
        } else {
            ptr::copy_nonoverlapping(from, to, len);
        }
    }
}
