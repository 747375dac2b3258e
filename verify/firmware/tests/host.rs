//! The firmware on the machine that builds it.

#[path = "../../../host/src/conformance/litmus.rs"]
#[allow(dead_code, unreachable_pub, reason = "the suite is the host's, which uses all of it")]
mod litmus;
#[path = "../../../host/src/conformance/suite.rs"]
#[allow(dead_code, unreachable_pub, reason = "the suite is the host's, which uses all of it")]
mod suite;

use firmware::{Memory, Rank, View, run};
use litmus::{Actor, Claim, Run, Step};
use std::sync::Mutex;
use suite::SUITE;
use veriep_core::units::RankId;

static MEMORY: Mutex<Memory> = Mutex::new(Memory::ZERO);
static RANKS: Mutex<[Rank; 3]> = Mutex::new([Rank::ZERO; 3]);

/// Partitions are used again many times.
#[test]
fn every_token_comes_back() {
    run(&mut MEMORY.lock().unwrap(), 300).unwrap();
}

/// The exam of `docs/doubt/litmus.md`. A core takes one to eight steps in its turn, by turns in either order.
#[test]
fn the_memory_keeps_the_contract() {
    let required = SUITE.iter().filter(|litmus| litmus.claim == Claim::Required && !litmus.reads_peers());
    let ranks = &mut *RANKS.lock().unwrap();
    for (number, litmus) in required.enumerate() {
        for repetition in 0..16 {
            // In places of its own.
            let place = 16 * number as u64 + repetition;
            let runs: Vec<_> = litmus.programs.iter().map(|&program| Run::new(program, place)).collect();
            let ended = turns(runs, ranks, 1 + repetition / 2, repetition % 2 == 0);
            assert_eq!(ended, Ok(()), "{}", litmus.name);
        }
    }
}

fn turns(mut runs: Vec<Run>, ranks: &mut [Rank], steps: u64, back: bool) -> Result<(), String> {
    if back {
        runs.reverse();
    }
    for _ in 0..100 {
        let mut left = vec![];
        'runs: for mut run in runs {
            for _ in 0..steps {
                let view = &mut View { ranks, own: RankId(run.program.rank) };
                match run.step(Actor::Core(view)) {
                    Ok(Step::Done) => continue 'runs,
                    Ok(Step::Moved | Step::Waits) => {}
                    wrong => return Err(format!("{}: {wrong:x?}", run.position())),
                }
            }
            left.push(run);
        }
        if left.is_empty() {
            return Ok(());
        }
        runs = left;
    }
    Err(format!("stuck: {}", runs[0].position()))
}
