//! The firmware on the machine that builds it.

use firmware::{Memory, run};
use std::sync::Mutex;

static MEMORY: Mutex<Memory> = Mutex::new(Memory::ZERO);

/// Partitions are used again many times.
#[test]
fn every_token_comes_back() {
    run(&mut MEMORY.lock().unwrap(), 300).unwrap();
}
