//! The kernels.

use crate::job::run;
use crate::litmus;
use crate::warp::Warp;
use crate::{Job, Said};
use core::arch::nvptx::{_block_idx_x, _thread_idx_x};
use veriep_core::fabric::Fabric;
use veriep_core::fabric::raw::RawFabric;
use veriep_core::place::Place;
use veriep_core::units::RankId;

/// The job of this block, and the number of this thread in it.
///
/// # Safety
/// There is a job for each block.
unsafe fn own<J>(jobs: *mut J) -> (*mut J, u32) {
    // SAFETY: the caller's promise; every block and thread has a number.
    unsafe { (jobs.add(_block_idx_x() as usize), _thread_idx_x() as u32) }
}

/// Every core of all jobs as one thread.
///
/// # Safety
/// There is a [`Job`] for each block, which keeps what [`RawFabric::new`] asks for; blocks run all at once.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn veriep_thread(jobs: *mut Job) {
    // SAFETY: the caller's promise.
    unsafe {
        let (job, lane) = own(jobs);
        if lane == 0 {
            run(job, lane, |fabric, _| fabric);
        }
    }
}

/// Every core of all jobs as a warp of 32 threads.
///
/// # Safety
/// As of [`veriep_thread`].
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn veriep_warp(jobs: *mut Job) {
    // SAFETY: the caller's promise.
    unsafe {
        let (job, lane) = own(jobs);
        run(job, lane, |inner, copy| Warp { inner, copy, lane });
    }
}

/// A program of a litmus for each block.
///
/// # Safety
/// There is a [`litmus::Job`] for each block; blocks run all at once.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn veriep_litmus(jobs: *mut litmus::Job) {
    // SAFETY: the caller's promise.
    unsafe {
        let (job, lane) = own(jobs);
        if lane == 0 {
            litmus::run(job);
        }
    }
}

/// One publish, and one observe after it, for a reader of the instructions.
///
/// # Safety
/// As of [`RawFabric::new`].
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn veriep_words(job: *mut Job) {
    // SAFETY: the caller's promise.
    let job = unsafe { &mut *job };
    // SAFETY: likewise.
    let mut fabric = unsafe { RawFabric::new(&job.peers, RankId(0), job.outputs) };
    let published = fabric.publish(RankId(1), Place::state(0), 1);
    let seen = fabric.observe(Place::state(0));
    job.said = if published.is_ok() && seen == Ok(1) { Said::Done } else { Said::Error };
}

/// What the compiler calls to compare slices; there is no library on a device that has it.
///
/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    for i in 0..len {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (a.add(i).read(), b.add(i).read()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
