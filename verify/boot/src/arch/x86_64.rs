//! x86-64: QEMU's q35, entered in 32-bit mode by the note for Xen's PVH. The first processor wakes the others by INIT and SIPI;
//! a serial line, and a device whose port ends the machine.

#[path = "../../../freestanding/src/memory.rs"]
mod memory;

use crate::stack::{STACK, STACKS};
use crate::{CPUS, enter};
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicUsize, Ordering};

/// As much as the machine is given.
pub(crate) const MEMORY_END: u64 = 1536 << 20;
/// Where the others begin in real mode: an address below 1 MiB that is a multiple of 4096.
const BELOW: usize = 0x8000;
/// Of the local interrupt controller.
const CONTROLLER: usize = 0xFEE0_0000;

/// Processors that have been given a number.
static NUMBERED: AtomicUsize = AtomicUsize::new(1);

global_asm!(
    r#"
    .section .note.Xen, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .long _start

    .section .text.boot, "ax"
    .code32
    .global _start
_start:
    cli
    // Four pages of 1 GiB, each address its own.
    mov dword ptr [tables], offset tables + 4096 + 3
    mov dword ptr [tables + 4096], 0x83
    mov dword ptr [tables + 4096 + 8], 0x40000083
    mov dword ptr [tables + 4096 + 16], 0x80000083
    mov dword ptr [tables + 4096 + 24], 0xC0000083
    xor ebx, ebx
numbered:
    // The stack of processor ebx.
    lea esp, [ebx + 1]
    imul esp, esp, {stack}
    add esp, offset {stacks}
    mov eax, offset tables
    mov cr3, eax
    // Physical address extension, and SSE.
    mov eax, cr4
    or eax, 0x620
    mov cr4, eax
    mov ecx, 0xC0000080
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    and eax, 0xFFFFFFFB
    or eax, 0x80000003
    mov cr0, eax
    lgdt [segments_pointer]
    push 8
    mov eax, offset in_64
    push eax
    retf
    .code64
in_64:
    mov eax, 16
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov esp, esp
    mov edi, ebx
    call {enter}
2:  hlt
    jmp 2b

    .code16
    .global others, others_end
    .balign 8
others:
    jmp 3f
    .balign 8
    // Eight bytes behind `others`.
    .word 31
    .long segments
3:  cli
    xor ax, ax
    mov ds, ax
    .byte 0x66
    lgdt [{below} + 8]
    mov eax, cr0
    or eax, 1
    mov cr0, eax
    // A far jump to a 32-bit segment.
    .byte 0x66, 0xEA
    .long others_32
    .word 24
others_end:
    .code32
others_32:
    mov eax, 16
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov ebx, 1
    lock xadd dword ptr [{numbered}], ebx
    jmp numbered
    .code64

    .section .data
    .balign 8
segments:
    .quad 0, 0x00AF9A000000FFFF, 0x00CF92000000FFFF, 0x00CF9A000000FFFF
segments_pointer:
    .word 31
    .quad segments
    .section .bss
    .balign 4096
tables:
    .skip 8192
    "#,
    stack = const STACK,
    stacks = sym STACKS,
    enter = sym enter,
    below = const BELOW,
    numbered = sym NUMBERED,
);

unsafe extern "C" {
    static others: u8;
    static others_end: u8;
}

pub(crate) fn start_others() {
    let (from, end) = (&raw const others, &raw const others_end);
    let command = core::ptr::with_exposed_provenance_mut::<u32>(CONTROLLER + 0x300);
    // SAFETY: nothing uses the page below, and the code is as long as said. The controller is where it is after reset.
    unsafe {
        let below = core::ptr::with_exposed_provenance_mut::<u8>(BELOW);
        core::ptr::copy_nonoverlapping(from, below, end.addr() - from.addr());
        // All but this one: INIT, then their first instruction. Who has begun ignores the second.
        command.write_volatile(0x000C_4500);
        while NUMBERED.load(Ordering::Acquire) < CPUS {
            (0..10_000).for_each(|_| relax());
            command.write_volatile(0x000C_4600 | (BELOW >> 12) as u32);
        }
    }
}

pub(crate) fn relax() {
    core::hint::spin_loop();
}

pub(crate) fn print(text: &str) {
    for byte in text.bytes() {
        // SAFETY: the data port of the serial line; the machine takes bytes at any time.
        unsafe { asm!("out dx, al", in("dx") 0x3F8_u16, in("al") byte, options(nomem, nostack)) };
    }
}

/// Ends the machine with status 33 if all went well, else with 35.
pub(crate) fn exit(well: bool) -> ! {
    let status: u32 = if well { 16 } else { 17 };
    loop {
        // SAFETY: the port of the device that ends the machine.
        unsafe { asm!("out dx, eax", in("dx") 0xF4_u16, in("eax") status, options(nomem, nostack)) };
    }
}
