//! The litmus suite of the fabric's contract: each program on a processor of its own.

use crate::{Barrier, arch, fail};
use core::sync::atomic::{AtomicUsize, Ordering};
use harness::memory::Arena;
use veriep_core::conformance::{Actor, Claim, Litmus, Run, STRIDE, SUITES, Who, Why};
use veriep_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, Segment};
use veriep_core::place::Tensor;
use veriep_core::units::RankId;

/// Of each litmus, in places of its own.
const REPETITIONS: u64 = 10;
/// Programs of a litmus at most, and ranks.
const PROGRAMS: usize = 4;
const NO_OUTPUTS: Outputs = [Segment::EMPTY; Tensor::ALL.len()];

/// The repetitions in which a reported program was broken.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

type Group = [Peer; PROGRAMS];

/// Runs what must hold on every memory, and returns how many litmus tests that were. Tells `report` of what no machine needs,
/// and in how many repetitions it was broken.
#[inline(never)]
pub(crate) fn run(processor: usize, arena: &mut Arena, all: &Barrier, report: impl Fn(&str, usize)) -> usize {
    let mut passed = 0;
    for (suite, server_ranks) in SUITES {
        for litmus in suite.iter().filter(|litmus| litmus.claim != Claim::Open) {
            let bytes = REPETITIONS * STRIDE;
            let group: Group = core::array::from_fn(|_| {
                arena.peer(bytes, bytes).unwrap_or_else(|| fail(litmus.name, &"no memory left"))
            });
            for repetition in 0..REPETITIONS {
                all.wait();
                if let Some(&program) = litmus.programs.get(processor) {
                    one(litmus, Run::new(program, repetition), &group, server_ranks);
                }
            }
            all.wait();
            if litmus.claim == Claim::Required {
                passed += 1;
            } else if processor == 0 {
                report(litmus.name, BROKEN.swap(0, Ordering::Relaxed));
            }
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
    match run.to_end(&mut actor, waits) {
        Err(failure) if litmus.claim == Claim::Required || !matches!(failure.why, Why::Seen(_)) => {
            fail(litmus.name, &format_args!("{failure}"));
        }
        Err(_) => _ = BROKEN.fetch_add(1, Ordering::Relaxed),
        Ok(()) => {}
    }
}
