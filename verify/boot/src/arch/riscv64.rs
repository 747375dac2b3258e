//! riscv64: QEMU's `virt` in machine mode, without firmware. All processors begin at once; a serial line, and the test device,
//! which ends the machine.

use crate::enter;
use crate::stack::{STACK, STACKS};
use core::arch::global_asm;

/// As much as the machine is given.
pub(crate) const MEMORY_END: u64 = (2 << 30) + (1536 << 20);

global_asm!(
    r#"
    .section .text.boot, "ax"
    .global _start
_start:
    csrr a0, mhartid
    // Floating point.
    li t0, 0x6000
    csrs mstatus, t0
    la sp, {stacks}
    addi t0, a0, 1
    li t1, {stack}
    mul t0, t0, t1
    add sp, sp, t0
    call {enter}
1:  wfi
    j 1b
    "#,
    stack = const STACK,
    stacks = sym STACKS,
    enter = sym enter,
);

pub(crate) fn start_others() {}

pub(crate) fn relax() {
    core::hint::spin_loop();
}

pub(crate) fn print(text: &str) {
    let serial = core::ptr::with_exposed_provenance_mut::<u8>(0x1000_0000);
    // SAFETY: the data register of the serial line; the machine takes bytes at any time.
    text.bytes().for_each(|byte| unsafe { serial.write_volatile(byte) });
}

/// Ends the machine with status 0 if all went well, else with 1.
pub(crate) fn exit(well: bool) -> ! {
    let test = core::ptr::with_exposed_provenance_mut::<u32>(0x10_0000);
    loop {
        // SAFETY: the register of the test device.
        unsafe { test.write_volatile(if well { 0x5555 } else { 1 << 16 | 0x3333 }) };
    }
}
