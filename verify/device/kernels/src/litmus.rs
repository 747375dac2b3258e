//! The programs of the fabric's contract, each as a block of its own.

use core::sync::atomic::{AtomicU32, Ordering};
use veriep_core::conformance::{Actor, Failure, Run, SUITES, Step, Who, Why};
use veriep_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, Segment};
use veriep_core::place::Tensor;
use veriep_core::units::RankId;

/// Ranks of a litmus at most.
pub const PEERS: usize = 4;
const NO_OUTPUTS: Outputs = [Segment::EMPTY; Tensor::ALL.len()];

/// What a block is given, in memory of the device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Job {
    /// Number of the suite, of the litmus in it, and of the program.
    pub suite: u32,
    pub litmus: u32,
    pub program: u32,
    /// Repetitions, each in places of its own.
    pub repetitions: u32,
    /// Attempts of each wait.
    pub attempts: u32,
    /// Repetitions in which an expectation of the program did not hold.
    pub broken: u32,
    /// Repetitions in which it could not go on for another reason.
    pub stopped: u32,
    /// Where all programs meet before a repetition, a u32.
    pub met: *mut u32,
    pub peers: [Peer; PEERS],
}

/// Runs a program.
///
/// # Safety
/// The job keeps what [`RawFabric::new`] asks for; all programs of the litmus run at once.
pub unsafe fn run(job: *mut Job) {
    // SAFETY: the caller's promise: the job is this block's alone.
    let job = unsafe { &mut *job };
    let Some(&(suite, server_ranks)) = SUITES.get(job.suite as usize) else { return };
    let Some(litmus) = suite.get(job.litmus as usize) else { return };
    let Some(&program) = litmus.programs.get(job.program as usize) else { return };
    let rank = RankId(program.rank);
    // SAFETY: the caller's promise. A program acts through one of the two.
    let mut fabric = unsafe { RawFabric::new(&job.peers, rank, NO_OUTPUTS) }.with_servers(server_ranks);
    // SAFETY: likewise.
    let mut nic = unsafe { RawNic::new(&job.peers, rank) };
    // SAFETY: a u32 that the programs of the litmus alone access, all as an atomic.
    let met = unsafe { AtomicU32::from_ptr(job.met) };
    for repetition in 0..job.repetitions {
        met.fetch_add(1, Ordering::AcqRel);
        while met.load(Ordering::Acquire) < (repetition + 1) * litmus.programs.len() as u32 {}
        let mut actor = match program.who {
            Who::Core(_) => Actor::Core(&mut fabric),
            Who::Agent => Actor::Agent(&mut nic),
        };
        match to_end(Run::new(program, repetition.into()), &mut actor, job.attempts) {
            Ok(()) => {}
            Err(failure) if matches!(failure.why, Why::Seen(_)) => job.broken += 1,
            Err(_) => job.stopped += 1,
        }
    }
}

/// Does all operations of a program. Each of its waits has so many attempts, however many waits there are.
fn to_end(mut run: Run, actor: &mut Actor<'_>, attempts: u32) -> Result<(), Failure> {
    let mut left = attempts;
    loop {
        match run.step(actor)? {
            Step::Moved => left = attempts,
            Step::Waits if left > 0 => left -= 1,
            Step::Waits => return Err(run.failed(Why::Stuck)),
            Step::Done => return Ok(()),
        }
    }
}
