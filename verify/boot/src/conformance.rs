//! The litmus suite of the fabric's contract: each program on a processor of its own.

use crate::memory::Free;
use crate::{Barrier, arch, fail};
use veriep_core::conformance::{Actor, Claim, FAR_SUITE, Litmus, NIC_SUITE, Run, STRIDE, SUITE, Who};
use veriep_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, Segment};
use veriep_core::place::Tensor;
use veriep_core::units::RankId;

/// Of each litmus, in places of its own.
const REPETITIONS: u64 = 10;
/// Programs of a litmus at most, and ranks.
const PROGRAMS: usize = 4;
const NO_OUTPUTS: Outputs = [Segment::EMPTY; Tensor::ALL.len()];

type Group = [Peer; PROGRAMS];

/// Runs what must hold on every memory, and returns how many litmus tests that were.
#[inline(never)]
pub(crate) fn run(processor: usize, free: &mut Free, all: &Barrier) -> usize {
    let mut passed = 0;
    // Of a hierarchy there are servers of two ranks.
    for (suites, server_ranks) in [([SUITE, NIC_SUITE], 0), ([FAR_SUITE, &[]], 2)] {
        for litmus in suites.into_iter().flatten().filter(|litmus| litmus.claim == Claim::Required) {
            let bytes = REPETITIONS * STRIDE;
            let group: Group = core::array::from_fn(|_| free.peer(bytes, bytes));
            for repetition in 0..REPETITIONS {
                all.wait();
                if let Some(&program) = litmus.programs.get(processor) {
                    one(litmus, Run::new(program, repetition), &group, server_ranks);
                }
            }
            passed += 1;
        }
    }
    passed
}

fn one(litmus: &Litmus, run: Run, peers: &Group, server_ranks: u32) {
    let rank = RankId(run.program.rank);
    // SAFETY: the memory of this litmus, which its programs alone use, each through one of the two.
    let mut fabric = unsafe { RawFabric::new(peers, rank, NO_OUTPUTS) }.with_servers(server_ranks);
    // SAFETY: as above.
    let mut nic = unsafe { RawNic::new(peers, rank) };
    let mut actor = match run.program.who {
        Who::Core(_) => Actor::Core(&mut fabric),
        Who::Agent => Actor::Agent(&mut nic),
    };
    let waits = || {
        arch::relax();
        true
    };
    if let Err(failure) = run.to_end(&mut actor, waits) {
        fail(litmus.name, &format_args!("{failure}"));
    }
}
