//! The copy routine for rows if [`roofline::fastest`](crate::roofline::fastest) has not measured one on this memory.

use veriep_core::fabric::raw::RowCopy;

/// All ways to copy rows.
pub const ALL: [RowCopy; 3] = [RowCopy::Ahead, RowCopy::Plain, RowCopy::Streaming];

/// How a processor of this kind usually copies rows fastest that stay in so many bytes of memory, those of all ranks together.
///
/// AMD's processors with a fast short `rep movsb` write whole lines without fetching them first, and past the caches what does
/// not stay there anyway. Intel's gain most where lines are asked for ahead, however many rows there are.
#[must_use]
pub fn usual(bytes: u64) -> RowCopy {
    match last_cache_of_amd() {
        Some(cache) if bytes > cache / 2 => RowCopy::Streaming,
        Some(_) => RowCopy::Plain,
        None => RowCopy::Ahead,
    }
}

/// Bytes of the last cache, if the processor is AMD's and has that `rep movsb`.
fn last_cache_of_amd() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        const FEATURES: u32 = 7;
        const FSRM: u32 = 1 << 4;
        const CACHES: u32 = 0x8000_001D;
        const L3: u32 = 3;
        let first = __cpuid(0);
        let vendor = [first.ebx, first.edx, first.ecx].map(u32::to_le_bytes);
        let has = |leaf| __cpuid(leaf & 0x8000_0000).eax >= leaf;
        let fast = vendor.as_flattened() == b"AuthenticAMD"
            && has(FEATURES)
            && __cpuid_count(FEATURES, 0).edx & FSRM != 0
            && has(CACHES);
        if fast {
            let l3 = __cpuid_count(CACHES, L3);
            let ways = u64::from(l3.ebx >> 22) + 1;
            let partitions = u64::from(l3.ebx >> 12 & 0x3FF) + 1;
            let line = u64::from(l3.ebx & 0xFFF) + 1;
            let sets = u64::from(l3.ecx) + 1;
            return Some(ways * partitions * line * sets);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_caches_goes_past_them_or_never_does() {
        let of = usual;
        match last_cache_of_amd() {
            Some(cache) => {
                assert!((1 << 20..1 << 40).contains(&cache), "{cache} bytes of cache");
                assert_eq!((of(cache / 2), of(cache / 2 + 1)), (RowCopy::Plain, RowCopy::Streaming));
            }
            None => assert_eq!((of(0), of(u64::MAX)), (RowCopy::Ahead, RowCopy::Ahead)),
        }
    }
}
