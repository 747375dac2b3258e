//! The depth of the stack, measured by painting the memory below it and looking for the deepest mark.

use core::arch::asm;

/// How far down is painted. The stack of a process grows as it is touched.
const AREA: usize = 256 << 10;
/// What is left alone right below: whatever the compiler keeps beyond the stack pointer.
const NEAR: usize = 256;
const PAINT: u64 = 0x5AA5_C33C_9669_F00F;

/// Runs and returns how many bytes of stack that took; with fewer than [`NEAR`], that many.
#[inline(never)]
pub(crate) fn deepest<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let top: usize;
    // SAFETY: the area lies below all frames, in the stack's reach, and has no owner: what is called later overwrites it.
    // The direction flag is clear by the ABI.
    unsafe {
        asm!("mov {top}, rsp", "lea rdi, [rsp - {area}]", "rep stosq", top = out(reg) top, area = const AREA,
            inout("rcx") (AREA - NEAR) / 8 => _, in("rax") PAINT, out("rdi") _);
    }
    let result = apart(run);
    let low = top - AREA;
    let clean = (0..(AREA - NEAR) / 8).take_while(|i| {
        // SAFETY: as above; volatile, since the compiler knows of no such object.
        unsafe { core::ptr::with_exposed_provenance::<u64>(low + i * 8).read_volatile() == PAINT }
    });
    (result, AREA - 8 * clean.count())
}

/// In a frame of its own.
#[inline(never)]
fn apart<T>(run: impl FnOnce() -> T) -> T {
    run()
}
