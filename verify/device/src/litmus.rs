//! The fabric's contract as litmus programs: what must hold may never be seen broken, and what it leaves open is counted.

use crate::gpu::{Device, Wrong};
use device_kernels::litmus::{Job, PEERS, run};
use veriep_core::conformance::{Claim, Litmus, STRIDE, SUITES};
use veriep_core::fabric::raw::Peer;
use veriep_core::layout::state::STATE_BYTES;

/// Attempts of a wait, of which a good one takes some thousands. Threads may wait while the system runs others for a second.
const fn attempts(device: Device) -> u32 {
    match device {
        Device::Processor => 500_000_000,
        Device::Gpu { .. } => 20_000_000,
    }
}

/// As many repetitions as fit into the state region.
pub(crate) const REPETITIONS_MAX: u32 = (STATE_BYTES / STRIDE) as u32;

/// Runs every litmus `repetitions` times, each of its programs as a block. Returns what is broken, if anything is.
pub(crate) fn all(device: Device, repetitions: u32) -> Result<Option<String>, Wrong> {
    let mut passed = 0;
    for (suite, (litmuses, _)) in (0..).zip(SUITES) {
        for (number, litmus) in (0..).zip(litmuses).filter(|(_, litmus)| !litmus.racy) {
            let [broken, stopped] = one(device, (suite, number), litmus, repetitions)?;
            if stopped > 0 || broken > 0 && litmus.claim == Claim::Required {
                let name = litmus.name;
                return Ok(Some(format!(
                    "{name}: broken {broken} times, stopped {stopped} of {repetitions}"
                )));
            }
            passed += u32::from(litmus.claim == Claim::Required);
            if litmus.claim != Claim::Required {
                println!("  left open: {}: seen otherwise {broken} times of {repetitions}", litmus.name);
            }
        }
    }
    println!("litmus tests that must hold: {passed} held {repetitions} times each");
    Ok(None)
}

/// Runs a litmus. How many times a program was broken, and how many times it could not go on.
fn one(
    device: Device,
    (suite, number): (u32, u32),
    litmus: &Litmus,
    repetitions: u32,
) -> Result<[u32; 2], Wrong> {
    let kernel = device.kernel("veriep_litmus")?;
    let window = (u64::from(repetitions) * STRIDE) as usize;
    let regions = (0..PEERS)
        .map(|_| Ok([device.zeros(STATE_BYTES as usize)?, device.zeros(window)?, device.zeros(window)?]));
    let regions = regions.collect::<Result<Vec<_>, Wrong>>()?;
    let peer = |at: usize| {
        let [state, window, window_out] = regions[at].each_ref().map(|region| region.segment());
        Peer { state, window, window_out }
    };
    let met = device.zeros(8)?;
    let job = |program| Job {
        suite,
        litmus: number,
        program,
        repetitions,
        attempts: attempts(device),
        broken: 0,
        stopped: 0,
        met: met.segment().base().cast(),
        peers: core::array::from_fn(peer),
    };
    let jobs: Vec<_> = (0..litmus.programs.len() as u32).map(job).collect();
    // SAFETY: the buffers above live, and each job is another program.
    let jobs = unsafe { kernel.launch(&jobs, 1, run)? };
    Ok(jobs.iter().fold([0; 2], |[broken, stopped], job| [broken + job.broken, stopped + job.stopped]))
}
