//! aarch64: QEMU's `virt`. PSCI starts the other processors; each switches on its caches, since memory without them takes
//! neither unaligned rows nor atomics. A serial line, and semihosting to end the machine.

use crate::stack::{STACK, STACKS};
use crate::{CPUS, enter};
use core::arch::{asm, global_asm};

/// As much as the machine is given, behind the first GiB.
pub(crate) const MEMORY_END: u64 = (1 << 30) + (1536 << 20);

global_asm!(
    r#"
    .section .text.boot, "ax"
    .global _start, another
_start:
    mov x0, xzr
    // Processor x0.
another:
    // Vector registers.
    mov x1, #(3 << 20)
    msr cpacr_el1, x1
    // Attribute 0: normal memory, written back; attribute 1: devices.
    mov x1, #0xFF
    msr mair_el1, x1
    ldr x1, =table
    msr ttbr0_el1, x1
    // 39 bits of address in blocks of 1 GiB; tables are cached and shared; no upper half; 40 physical bits.
    ldr x1, =(25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23 | 2 << 32)
    msr tcr_el1, x1
    isb
    tlbi vmalle1
    dsb sy
    // Translation and both caches.
    mrs x1, sctlr_el1
    mov x2, #0x1005
    orr x1, x1, x2
    msr sctlr_el1, x1
    isb
    ldr x1, ={stacks}
    add x2, x0, #1
    mov x3, #{stack}
    madd x1, x2, x3, x1
    mov sp, x1
    bl {enter}
1:  wfi
    b 1b
    .ltorg

    .section .data
    .balign 4096
table:
    // Devices, then 2 GiB of memory that all processors share.
    .quad 0x0000000000000405, 0x0000000040000701, 0x0000000080000701
    .fill 509, 8, 0
    "#,
    stack = const STACK,
    stacks = sym STACKS,
    enter = sym enter,
);

unsafe extern "C" {
    fn another();
}

pub(crate) fn start_others() {
    for processor in 1..CPUS as u64 {
        let status: u64;
        // SAFETY: CPU_ON of PSCI takes processor, entry and what is in x0 there, and changes no more than a call may.
        unsafe {
            asm!("hvc #0", inout("x0") 0xC400_0003_u64 => status, in("x1") processor,
                in("x2") another as *const () as u64, in("x3") processor, clobber_abi("C"));
        }
        if status != 0 {
            crate::fail("PSCI", &status);
        }
    }
}

pub(crate) fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack)) };
}

pub(crate) fn print(text: &str) {
    let serial = core::ptr::with_exposed_provenance_mut::<u32>(0x0900_0000);
    // SAFETY: the data register of the serial line; the machine takes bytes at any time.
    text.bytes().for_each(|byte| unsafe { serial.write_volatile(byte.into()) });
}

/// Ends the machine with status 0 if all went well, else with 1.
pub(crate) fn exit(well: bool) -> ! {
    // The application has ended, by itself.
    let reason = [0x20026, u64::from(!well)];
    loop {
        // SAFETY: SYS_EXIT reads two words, and does not come back.
        unsafe { asm!("hlt #0xF000", in("x0") 0x18_u64, in("x1") reason.as_ptr(), options(nostack)) };
    }
}
