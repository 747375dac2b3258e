//! The machines of `veriep-core` by C functions. Everything lives in the caller's memory: nothing allocates, blocks or panics,
//! and there are no globals. `include/veriep.h` is made of this crate by a test; `docs/embed/c.md` says how to begin.
//!
//! Functions are total. What a caller gives (a null pointer, a short buffer, a number without a meaning, an object that was not
//! made) is checked and answered by a code; what cannot be checked, that a pointer which is not null leads to as much memory
//! as its length says, is the caller's duty.
#![no_std]
#![allow(non_camel_case_types, unsafe_code)]
// What only a protocol or a memory that is left out would use, is not missed.
#![cfg_attr(not(all(feature = "a2", target_has_atomic = "64")), allow(dead_code, unused_imports))]

#[cfg(feature = "a2")]
pub mod agent;
pub mod codes;
mod context;
pub mod driver;
mod fabric;
pub mod gates;
mod given;
// Words of 8 bytes must be atomic there.
#[cfg(target_has_atomic = "64")]
mod mapped;
mod objects;
pub mod shape;
mod text;
pub mod types;
mod vector;

#[cfg(test)]
mod tests;

// With a profile that unwinds, as tests have, std brings the handler.
#[cfg(panic = "unwind")]
extern crate std;

/// Nothing leads here: the check of the library finds no path to a panic.
#[cfg(not(panic = "unwind"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Panics for some arguments.
#[cfg(feature = "twin")]
#[unsafe(no_mangle)]
pub extern "C" fn veriep_twin(index: usize) -> i32 {
    [codes::VERIEP_OK][index]
}
