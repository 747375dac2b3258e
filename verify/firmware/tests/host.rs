//! The firmware on the machine that builds it.

use firmware::{Memory, Rank, View, run};
use std::sync::Mutex;
use veriep_core::conformance::{AGAIN_SUITE, Actor, Claim, SUITE};
use veriep_core::fabric::Fabric;
use veriep_core::units::RankId;

static MEMORY: Mutex<Memory> = Mutex::new(Memory::ZERO);
static RANKS: Mutex<[Rank; 3]> = Mutex::new([Rank::ZERO; 3]);

/// Partitions are used again many times.
#[test]
fn every_token_comes_back() {
    run(&mut MEMORY.lock().unwrap(), 300).unwrap();
}

/// The exam of `docs/doubt/litmus.md` from this place on, with the view of this rank for each.
fn exam(mut place: u64, own: impl Fn(RankId) -> RankId) -> Result<(), String> {
    let ranks = &mut *RANKS.lock().unwrap();
    let can = View { ranks, own: RankId(0) }.capabilities();
    let all = [SUITE, AGAIN_SUITE].into_iter().flatten();
    for litmus in all.filter(|litmus| litmus.claim == Claim::Required && can.contains(litmus.calls())) {
        for _ in 0..16 {
            let ended = litmus.by_turns(place, 1, |run| {
                let own = own(RankId(run.program.rank));
                run.step(&mut Actor::Core(&mut View { ranks, own }))
            });
            ended.map_err(|failure| format!("{}: {failure}", litmus.name))?;
            place += 1;
        }
    }
    Ok(())
}

#[test]
fn the_memory_keeps_the_contract() {
    assert_eq!(exam(0, |rank| rank), Ok(()));
}

#[test]
fn a_view_of_the_wrong_rank_is_caught() {
    let why = exam(1024, |_| RankId(0)).unwrap_err();
    assert!(
        why.starts_with("a put lands whole before the flag behind it: rank 1 Core(0), operation 0"),
        "{why}"
    );
    assert!(why.ends_with("stuck"), "{why}");
}
