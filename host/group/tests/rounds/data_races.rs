//! Rounds for ThreadSanitizer: the protocol on real threads, which it must find clean, and seeded races, which it must report.
//! `.ci/sanitizer thread` runs both. Without the sanitizer the seeded races pass, because the processor keeps the order that
//! they forget to ask for.

use core::hint::black_box;
use std::sync::Barrier;
use std::thread;
use veriep_case::config::Config;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::data::combine_row;
use veriep_core::layout::state::{DISPATCH_SELECTORS, DISPATCH_STATUS, PARTITION, Partition};
use veriep_core::place::{Place, Tensor};
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId, Token};
use veriep_group::backend::Backend;
use veriep_group::backend::lockstep::Memory;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::conformance::litmus::{Actor, Op, Program, Run, Step, Who};
use veriep_group::conformance::{on_threads, shape};
use veriep_group::driver::threads::Spread;
use veriep_testing::trial::{Trial, seeded, small};

/// Two ranks of three cores, with and without quantisation, on both products: A2's agents write where cores read.
fn configs() -> [(Config, &'static str); 4] {
    let plain = small(2, 4, 2, 3, 3);
    let quantised = Config { quant_mode: 2, ..plain.clone() };
    let a2 = |config| Config { product: "a2".to_owned(), hccl_buffsize_mb: 5, ..config };
    [(quantised.clone(), "DC"), (plain.clone(), "DDCC"), (a2(quantised), "DC"), (a2(plain), "DDCC")]
}

/// Threads, so that each core and each agent has one of its own.
const APART: usize = 2 * (3 + 1);

#[test]
fn rounds_with_a_thread_for_each_core_give_the_bytes_of_lockstep() {
    for (config, schedule) in configs() {
        let case = seeded(config, 1);
        let trial = Trial::new(&case, schedule, 8);
        let expected = trial.in_lockstep(Memory::Strong, 0).unwrap();
        for (workers, spread) in [(APART, Spread::Cores), (2, Spread::Cores), (2, Spread::Ranks)] {
            assert_eq!(trial.on_threads(workers, spread).unwrap(), expected, "{spread:?} on {workers}");
        }
    }
}

#[test]
#[ignore = "a race on purpose: .ci/sanitizer thread runs it and demands the report"]
fn seeded_race_relaxed_publish_under_the_protocol() {
    for (config, schedule) in configs() {
        let case = seeded(config, 1);
        let trial = Trial::new(&case, schedule, 8);
        let backend = Relaxed(SharedMemory::new(&case.shape, schedule.len() / 2 * 8).unwrap());
        trial.threaded(&backend, APART, Spread::Cores).unwrap();
    }
}

/// A core that reads a returned row after its next dispatch's flag reads what the next but one combine may be writing. It is on the
/// path by which memory is used again, and nothing else in the driver may hide it.
#[test]
#[ignore = "a race on purpose: .ci/sanitizer thread runs it and demands the report"]
fn seeded_race_a_row_read_behind_the_next_flag() {
    let case = seeded(small(2, 4, 2, 3, 3), 1);
    let trial = Trial::new(&case, "DC", 8);
    let backend = LateReader { memory: SharedMemory::new(&case.shape, 8).unwrap(), shape: &case.shape };
    trial.threaded(&backend, APART, Spread::Cores).unwrap();
}

#[test]
#[ignore = "a race on purpose: .ci/sanitizer thread runs it and demands the report"]
fn seeded_race_relaxed_publish_under_the_litmus_suite() {
    on_threads(|shape| Relaxed(SharedMemory::new(shape, 1).unwrap()), 200);
}

#[test]
#[ignore = "a race on purpose: .ci/sanitizer thread runs it and demands the report"]
fn seeded_race_a_row_read_without_its_flag() {
    const ROW: Place = Place::window(0);
    const FLAG: Place = Place::state(0);
    const WRITER: &[Op] =
        &[Op::Put { to: 1, at: ROW, byte: 7, len: 200 }, Op::Publish { to: 1, at: FLAG, word: 1 }];
    const READER: &[Op] = &[Op::ExpectWhole { at: ROW, len: 200 }];
    let shape = shape();
    let backend = SharedMemory::new(&shape, 1).unwrap();
    let programs = [(0, WRITER), (1, READER)].map(|(rank, ops)| Program { rank, who: Who::Core(0), ops });
    let start = Barrier::new(programs.len());
    let work = |program: Program| {
        let mut run = Run::new(program, 0);
        let mut fabric = backend.fabric(RankId(program.rank), CoreId(0), 0);
        start.wait();
        // What is read does not matter: that it is read is the race.
        while matches!(run.step(&mut Actor::Core(&mut fabric)), Ok(Step::Moved)) {}
    };
    thread::scope(|scope| {
        let work = &work;
        for thread in programs.map(|program| scope.spawn(move || work(program))) {
            thread.join().unwrap();
        }
    });
}

/// Shared memory whose flags are plain relaxed stores: nothing is ordered before them.
struct Relaxed(SharedMemory);

struct RelaxedFabric<'b, F> {
    memory: &'b SharedMemory,
    inner: F,
    core: CoreId,
}

impl Backend for Relaxed {
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        RelaxedFabric { memory: &self.0, inner: self.0.fabric(rank, core, batch), core }
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        self.0.nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, t: Tensor, len: usize, read: &mut dyn FnMut(&[u8])) {
        self.0.read_output(rank, batch, t, len, read);
    }
}

impl<F: Fabric> Middleware for RelaxedFabric<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        // What the fabric of a core there would call a store.
        self.memory.fabric(to, self.core, 0).store(at, word)
    }
}

/// Shared memory whose cores read a returned row once more, after the flags of a dispatch in the same partition.
struct LateReader<'a> {
    memory: SharedMemory,
    shape: &'a Shape,
}

struct LateFabric<'b, F> {
    inner: F,
    shape: &'b Shape,
}

impl Backend for LateReader<'_> {
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        LateFabric { inner: self.memory.fabric(rank, core, batch), shape: self.shape }
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        self.memory.nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, t: Tensor, len: usize, read: &mut dyn FnMut(&[u8])) {
        self.memory.read_output(rank, batch, t, len, read);
    }
}

impl<F: Fabric> Middleware for LateFabric<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.inner.publish(to, at, word)?;
        let half = if at.offset < PARTITION { Partition::P0 } else { Partition::P1 };
        if at.offset < DISPATCH_SELECTORS && at.offset % PARTITION < DISPATCH_STATUS {
            let row = combine_row(self.shape, half, Token(0), 0);
            // What is read does not matter: that it is read is the race.
            black_box(self.inner.bytes(row, 8)?.to_vec());
        }
        Ok(())
    }
}
