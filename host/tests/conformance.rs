//! Every backend takes the same exam.

use host::backend::lockstep::{Lockstep, Memory};
use host::backend::shared::SharedMemory;
use host::conformance::{Strength, in_lockstep, on_threads, refusals};

#[test]
fn shared_memory_keeps_the_contract_on_real_threads() {
    on_threads(|shape| SharedMemory::new(shape, 1).unwrap(), 2000);
    refusals(|shape| SharedMemory::new(shape, 1).unwrap());
}

#[test]
fn strong_lockstep_memory_keeps_the_contract() {
    in_lockstep(
        |shape, seed| Lockstep::new(shape, 1, Memory::Strong, seed).expect("memory"),
        0..300,
        Strength::Any,
    );
    refusals(|shape| Lockstep::new(shape, 1, Memory::Strong, 0).expect("memory"));
}

#[test]
fn weak_lockstep_memory_keeps_the_contract_and_no_more() {
    in_lockstep(
        |shape, seed| Lockstep::new(shape, 1, Memory::Weak, seed).expect("memory"),
        0..1000,
        Strength::Weak,
    );
    refusals(|shape| Lockstep::new(shape, 1, Memory::Weak, 0).expect("memory"));
}
