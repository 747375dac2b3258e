//! The litmus suite of the fabric's contract, as the host has it: each program on a processor of its own.

#[path = "../../../host/src/conformance/far_suite.rs"]
#[allow(unreachable_pub)]
mod far_suite;
#[path = "../../../host/src/conformance/litmus.rs"]
#[allow(dead_code, unreachable_pub)]
mod litmus;
#[path = "../../../host/src/conformance/nic_suite.rs"]
#[allow(unreachable_pub)]
mod nic_suite;
#[path = "../../../host/src/conformance/suite.rs"]
#[allow(unreachable_pub)]
mod suite;

use crate::memory::Free;
use crate::{Barrier, arch, fail};
use litmus::{Actor, Claim, Litmus, Run, STRIDE, Step, Who};
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
    for (suites, server_ranks) in
        [([suite::SUITE, nic_suite::NIC_SUITE], 0), ([far_suite::FAR_SUITE, &[]], 2)]
    {
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

fn one(litmus: &Litmus, mut run: Run, peers: &Group, server_ranks: u32) {
    let rank = RankId(run.program.rank);
    // SAFETY: the memory of this litmus, which its programs alone use, each through one of the two.
    let mut fabric = unsafe { RawFabric::new(peers, rank, NO_OUTPUTS) }.with_servers(server_ranks);
    // SAFETY: as above.
    let mut nic = unsafe { RawNic::new(peers, rank) };
    loop {
        let step = run.step(match run.program.who {
            Who::Core(_) => Actor::Core(&mut fabric),
            Who::Agent => Actor::Agent(&mut nic),
        });
        match step {
            Ok(Step::Moved) => {}
            Ok(Step::Waits) => arch::relax(),
            Ok(Step::Done) => return,
            other => fail(litmus.name, &other),
        }
    }
}
