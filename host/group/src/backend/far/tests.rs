//! Processes inside one: each has memory of its own, and a wire to all others.

use super::stream::{CHUNK_HEAD, Entry, Incoming, Kind, Outgoing};
use super::{FarMemory, Hear, Processes, Wire};
use crate::backend::shared::SharedMemory;
use crate::backend::{Backend, Reader};
use crate::conformance::{on_threads, refusals};
use crate::driver::schedule::Schedule;
use crate::driver::threads::{self, Spread, Workers};
use crate::driver::{self, Unit};
use crate::group::{self, Plan};
use crate::world::World;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use veriep_case::batch::Batch;
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{self, Left, generate_left};
use veriep_case::global_rank;
use veriep_case::parallel::lock;
use veriep_core::fabric::Fabric;
use veriep_core::fabric::nic::Nic;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::{Limits, Shape};
use veriep_core::units::{CoreId, RankId};

type Links = Vec<Mutex<VecDeque<Vec<u8>>>>;

/// A network inside one process, which delays chunks as a seed says: of two that come from different processes either may be
/// the first.
#[derive(Debug)]
pub(crate) struct MemoryWire {
    me: usize,
    processes: usize,
    /// By sender, then receiver.
    links: Arc<Links>,
    dice: ChaCha8Rng,
    came: Vec<u8>,
}

impl MemoryWire {
    /// Creates a network, and returns the end that each process has.
    pub(crate) fn network(processes: usize, seed: u64) -> Vec<Self> {
        let links: Arc<Links> = Arc::new((0..processes * processes).map(|_| Mutex::default()).collect());
        let end = |me| Self {
            me,
            processes,
            links: Arc::clone(&links),
            dice: ChaCha8Rng::seed_from_u64(seed ^ (me as u64) << 32),
            came: Vec::new(),
        };
        (0..processes).map(end).collect()
    }

    fn link(&self, from: usize, to: usize) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        lock(&self.links[from * self.processes + to])
    }
}

impl Wire for MemoryWire {
    fn send(&mut self, to: usize, chunk: Vec<u8>) -> Result<(), String> {
        self.link(self.me, to).push_back(chunk);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(usize, &[u8])>, String> {
        let from = self.dice.random_range(0..self.processes);
        let Some(chunk) = self.link(from, self.me).pop_front() else { return Ok(None) };
        self.came = chunk;
        Ok(Some((from, &self.came)))
    }
}

type Far<W> = FarMemory<SharedMemory, W>;

/// Returns a listener that takes every note for an error.
fn deaf() -> Box<Hear> {
    Box::new(|_, tag, _| Err(format!("a note {tag}: no process takes notes here")))
}

/// All processes of a group, and a thread that polls them.
struct Net<W> {
    processes: Vec<Arc<Far<W>>>,
    of: Vec<usize>,
    stop: Arc<AtomicBool>,
    polls: Option<JoinHandle<()>>,
}

impl<W: Wire + 'static> Net<W> {
    /// Rank `r` is driven by process `of(r)`, and no process maps another one's memory.
    fn new(
        shape: &Shape,
        of: impl Fn(u32) -> usize,
        chunk: usize,
        wires: impl FnOnce(usize) -> Vec<W>,
    ) -> Self {
        Self::bent(shape, of, chunk, wires, (1, |_| ()))
    }

    fn with_batches(
        shape: &Shape,
        of: impl Fn(u32) -> usize,
        chunk: usize,
        wires: impl FnOnce(usize) -> Vec<W>,
        batches: usize,
    ) -> Self {
        Self::bent(shape, of, chunk, wires, (batches, |_| ()))
    }

    fn bent(
        shape: &Shape,
        of: impl Fn(u32) -> usize,
        chunk: usize,
        wires: impl FnOnce(usize) -> Vec<W>,
        (batches, bend): (usize, impl Fn(&Far<W>)),
    ) -> Self {
        let of: Vec<usize> = (0..global_rank::count(shape)).map(of).collect();
        let count = of.iter().max().unwrap() + 1;
        let process = |(me, wire)| {
            let near = (0..count).map(|other| other == me).collect();
            let processes = Processes { me, of: of.clone(), near };
            let inner = SharedMemory::new(shape, batches).unwrap();
            let mut far = FarMemory::new(inner, shape, processes, wire, deaf());
            far.chunk = chunk;
            bend(&far);
            Arc::new(far)
        };
        let processes: Vec<_> = wires(count).into_iter().enumerate().map(process).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (all, ended) = (processes.clone(), stop.clone());
        let poll = move || {
            while !ended.load(Ordering::Relaxed) {
                if !all.iter().fold(false, |moved, far| far.poll() | moved) {
                    std::thread::yield_now();
                }
            }
        };
        Self { processes, of, stop, polls: Some(std::thread::spawn(poll)) }
    }
}

impl<W> Drop for Net<W> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(polls) = self.polls.take() {
            polls.join().unwrap();
        }
        if !std::thread::panicking() {
            self.processes.iter().for_each(|far| assert_eq!(far.failed.get(), None));
        }
    }
}

impl<W: Wire + 'static> Backend for Net<W> {
    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> impl Fabric {
        self.processes[self.of[rank.index()]].fabric(rank, core, batch)
    }

    fn nic(&self, rank: RankId) -> impl Nic {
        self.processes[self.of[rank.index()]].nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, tensor: Tensor, len: usize, read: Reader<'_>) {
        self.processes[self.of[rank.index()]].read_output(rank, batch, tensor, len, read);
    }
}

fn network(seed: u64) -> impl FnOnce(usize) -> Vec<MemoryWire> {
    move |processes| MemoryWire::network(processes, seed)
}

#[test]
fn far_memory_keeps_the_contract_wherever_entries_are_cut() {
    // A process each; two of a server in one, so that near and far are mixed.
    for ranks in [1, 2] {
        // Rows of 64 KiB in entries of a few bytes take long.
        for (chunk, repetitions) in [(5, 1), (8, 4), (23, 10), (super::CHUNK, 40)] {
            on_threads(
                |shape| Net::new(shape, |rank| (rank / ranks) as usize, chunk, network(chunk as u64)),
                repetitions,
            );
        }
        refusals(|shape| Net::new(shape, |rank| (rank / ranks) as usize, 64, network(1)));
    }
}

/// Rounds of a group whose ranks all are processes, or two by two, compared with the reference.
fn rounds(config: Config, choices: Choices, ranks: u32, chunk: usize) {
    let options = generate::Options { limits: Limits::None, seed: 7, ..generate::Options::default() };
    let case = generate_left(config, options, Left::All, "test").unwrap();
    let options = driver::Options { choices, ..driver::Options::default() };
    let unit = Schedule::parse("DC").unwrap().repeat(6);
    let net =
        Net::with_batches(&case.shape, |rank| (rank / ranks) as usize, chunk, network(3), unit.batches());
    let plan = Plan { unit, units: 1, last: None, options, check: Some(1) };
    let workers =
        Workers { count: 2, spread: Spread::Cores, pinned: false, deadline: Duration::from_secs(20) };
    let world = World::alone(global_rank::count(&case.shape), workers.count);
    let drive = |unit: &Unit<'_, _>| threads::run(unit, &workers);
    let traffic = |round| Batch::varied(&case, 5 - round);
    group::run(&case.shape, &plan, traffic, (&world, &net), drive, &|| ()).unwrap();
}

#[test]
fn every_protocol_runs_over_wires() {
    let small = Config {
        ep_world_size: 4,
        moe_expert_num: 8,
        k: 2,
        h: 32,
        bs: Bs::Uniform(3),
        aiv_num: 2,
        hccl_buffsize_mb: 105,
        ..Config::default()
    };
    let copied = Choices::default();
    let named = |comm_alg: &str| Config { comm_alg: comm_alg.to_owned(), ..small.clone() };
    let a2 = |comm_alg: &str| Config { product: "a2".to_owned(), server_ranks: 2, ..named(comm_alg) };
    for (config, choices) in [
        (small.clone(), copied),
        (small.clone(), Choices { flags: Flags::Separate, ..copied }),
        (small.clone(), Choices { receive: Receive::InPlace, ..copied }),
        (named("fullmesh_v2"), copied),
        (Config { tp_world_size: 2, moe_expert_num: 4, ..small.clone() }, copied),
        (a2(""), copied),
        (a2("hierarchy"), copied),
        (a2("hierarchy"), Choices { stage: Stage::Two, ..copied }),
    ] {
        for (ranks, chunk) in [(1, 61), (2, super::CHUNK)] {
            rounds(config.clone(), choices, ranks, chunk);
        }
    }
}

/// A wire on which the entries of a chunk come from the last to the first.
#[derive(Debug)]
struct Backwards(MemoryWire);

impl Wire for Backwards {
    fn send(&mut self, to: usize, chunk: Vec<u8>) -> Result<(), String> {
        let (head, mut data) = chunk.split_at(CHUNK_HEAD);
        let mut all = Vec::new();
        while let Some((entry, rest)) = data
            .get(16..24)
            .and_then(|len| data.split_at_checked(24 + u64::from_le_bytes(*len.first_chunk()?) as usize))
        {
            all.push(entry);
            data = rest;
        }
        if !data.is_empty() {
            // It is cut: where the next one begins is not known here.
            return self.0.send(to, chunk);
        }
        all.push(head);
        all.reverse();
        self.0.send(to, all.concat())
    }

    fn receive(&mut self) -> Result<Option<(usize, &[u8])>, String> {
        self.0.receive()
    }
}

#[test]
fn a_flag_ahead_of_its_rows_is_caught() {
    let wires = |processes| MemoryWire::network(processes, 1).into_iter().map(Backwards).collect();
    let run = || on_threads(|shape| Net::new(shape, |rank| rank as usize, super::CHUNK, wires), 1000);
    let panic = catch_unwind(run).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("seen"), "{panic:?}");
}

#[test]
fn entries_acknowledged_before_they_are_applied_are_caught() {
    let early = |far: &Far<MemoryWire>| far.engine().early = true;
    let run = || {
        on_threads(
            |shape| Net::bent(shape, |rank| rank as usize, super::CHUNK, network(1), (1, early)),
            1000,
        );
    };
    let panic = catch_unwind(run).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("seen"), "{panic:?}");
}

/// A chunk of process 1 with one entry, and what is wrong with it after a change.
fn said(change: impl Fn(&mut Vec<u8>)) -> Result<u64, String> {
    let mut out = Outgoing::default();
    let entry = Entry { kind: Kind::Words, member: RankId(0), at: Place::state(8), len: 8 };
    out.add((entry, [&[1; 8], &[]]), 100, &mut |_| unreachable!()).unwrap();
    let mut chunk = out.close(1, 0);
    change(&mut chunk);
    Incoming::default().take(1, &chunk, 64, 0..=5, &mut |seen, bytes| {
        assert_eq!((seen, bytes), (entry, &[1; 8][..]));
        Ok(())
    })
}

#[test]
fn what_lies_on_a_wire_is_refused() {
    assert_eq!(said(|_| ()), Ok(0));
    assert_eq!(said(|chunk| chunk[24] = 5), Ok(5));
    let wrong = |change: &dyn Fn(&mut Vec<u8>)| said(change).unwrap_err();
    assert_eq!(wrong(&|chunk| chunk.truncate(31)), "a chunk of 31 bytes: must have 32 at least");
    assert!(wrong(&|chunk| chunk[0] = 0).ends_with("of process 1: not one of this program and process"));
    assert!(wrong(&|chunk| chunk[8] = 2).ends_with("of process 2: not one of this program and process"));
    assert_eq!(wrong(&|chunk| chunk[16] = 2), "chunk 2: must be 1");
    assert_eq!(wrong(&|chunk| chunk[24] = 6), "entries applied = 6: must be in 0..=5");
    assert!(wrong(&|chunk| chunk[CHUNK_HEAD + 4] = 9).ends_with("no such kind"));
    assert!(wrong(&|chunk| chunk[CHUNK_HEAD + 5] = 9).ends_with("no such kind"));
    assert_eq!(wrong(&|chunk| chunk[CHUNK_HEAD + 16] = 65), "an entry of 65 bytes: must have 64 at most");
    // An end that has not come is waited for.
    assert_eq!(said(|chunk| chunk.truncate(60)), Ok(0));
}

/// A lie about one number of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Lower,
    Higher,
    Zero,
    /// As in the chunk before.
    Again,
}

/// Process 1 has applied two of three entries and has sent one that has been applied; then comes its next chunk, after a change of
/// the number of `len` bytes at `at`. Returns `None` if that changes nothing, else the reason of the refusal, if there is one.
fn changed(at: usize, len: usize, change: Change) -> Option<Option<String>> {
    let shape = crate::conformance::shape();
    let mut wires = MemoryWire::network(2, 1);
    let (mut liar, wire) = (wires.pop().unwrap(), wires.pop().unwrap());
    let processes = Processes { me: 0, of: vec![0, 1, 1], near: vec![true, false] };
    let far = FarMemory::new(SharedMemory::new(&shape, 1).unwrap(), &shape, processes, wire, deaf());
    for word in 0..3 {
        far.fabric(RankId(0), CoreId(0), 0).publish(RankId(1), Place::state(0), word).unwrap();
    }
    let mut out = Outgoing::default();
    let mut chunk = |offset| {
        let entry = Entry { kind: Kind::Words, member: RankId(0), at: Place::state(offset), len: 8 };
        out.add((entry, [&[1; 8], &[]]), 100, &mut |_| unreachable!()).unwrap();
        out.close(1, 2)
    };
    let mut says = |chunk: Vec<u8>| {
        liar.send(0, chunk).unwrap();
        (0..100).for_each(|_| _ = far.poll());
        far.failed().map(str::to_owned)
    };
    let (before, mut next) = (chunk(16), chunk(24));
    let number = |chunk: &[u8]| chunk[at..at + len].iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
    let (old, truth) = (number(&before), number(&next));
    let lie = match change {
        Change::Lower => truth.wrapping_sub(1),
        Change::Higher => truth.wrapping_add(1),
        Change::Zero => 0,
        Change::Again => old,
    };
    assert_eq!(says(before), None);
    next[at..at + len].copy_from_slice(&lie.to_le_bytes()[..len]);
    (lie != truth).then(|| says(next))
}

/// Every number in the head of a chunk and of its entry, after some progress: whatever cannot be is refused. What is not is
/// listed: it could be true.
#[test]
fn a_number_on_a_wire_that_cannot_follow_from_those_before_is_refused() {
    use Change::{Again, Higher, Lower, Zero};
    const ENTRY: usize = CHUNK_HEAD;
    let fields = [
        ("magic", 0, 8),
        ("sender", 8, 8),
        ("number", 16, 8),
        ("applied", 24, 8),
        ("member", ENTRY, 4),
        ("region", ENTRY + 4, 1),
        ("kind", ENTRY + 5, 3),
        ("offset", ENTRY + 8, 8),
        ("len", ENTRY + 16, 8),
    ];
    let mut could_be = Vec::new();
    for (name, at, len) in fields {
        for change in [Lower, Higher, Zero, Again] {
            if changed(at, len, change) == Some(None) {
                could_be.push((name, change));
            }
        }
    }
    let expected = [
        // The third entry may have been applied, too.
        ("applied", Higher),
        // Another place, or the same bytes as a row.
        ("region", Higher),
        ("kind", Lower),
        ("kind", Zero),
        ("offset", Zero),
        ("offset", Again),
        // The end may come with the next chunk.
        ("len", Higher),
        ("len", Zero),
    ];
    assert_eq!(could_be, expected);
}

#[test]
fn a_lie_names_its_sender_and_ends_the_group() {
    let shape = crate::conformance::shape();
    let mut wires = MemoryWire::network(2, 1);
    let (mut liar, wire) = (wires.pop().unwrap(), wires.pop().unwrap());
    let processes = Processes { me: 0, of: vec![0, 1, 1], near: vec![true, false] };
    let far = FarMemory::new(SharedMemory::new(&shape, 1).unwrap(), &shape, processes, wire, deaf());
    let entry =
        |member, region, offset| Entry { kind: Kind::Row, member, at: Place { region, offset }, len: 8 };
    let mut out = Outgoing::default();
    let mut lies = |entry| {
        out.add((entry, [&[1; 8], &[]]), 100, &mut |_| unreachable!()).unwrap();
        liar.send(0, out.close(1, 0)).unwrap();
        (0..100).for_each(|_| {
            far.poll();
        });
        far.failed().map(str::to_owned)
    };
    assert_eq!(lies(entry(RankId(0), Region::Window, 0)), None);
    let why = "process 1 has sent something wrong: no access to 8 bytes at window+0x800000 of rank 0";
    assert_eq!(lies(entry(RankId(0), Region::Window, 8 << 20)).as_deref(), Some(why));
    let mut fabric = far.fabric(RankId(0), CoreId(0), 0);
    assert!(fabric.quiet().is_err() && fabric.publish(RankId(1), Place::state(0), 1).is_err());
}

#[test]
fn a_chunk_that_comes_twice_or_too_early_is_refused() {
    let mut out = Outgoing::default();
    let mut chunk = || out.close(1, 0);
    let (first, second, third) = (chunk(), chunk(), chunk());
    let mut came = Incoming::default();
    let mut take = |chunk: &[u8]| came.take(1, chunk, 0, 0..=0, &mut |_, _| Ok(()));
    assert_eq!(take(&first), Ok(0));
    assert_eq!(take(&first).unwrap_err(), "chunk 1: must be 2");
    assert_eq!(take(&third).unwrap_err(), "chunk 3: must be 2");
    assert_eq!(take(&second), Ok(0));
}

#[test]
fn notes_come_in_their_order_until_all_have_left() {
    let shape = crate::conformance::shape();
    let ends = |heard: Arc<Mutex<Vec<(usize, u32, usize)>>>| {
        let shape = &shape;
        let end = move |(me, wire)| {
            let processes = Processes { me, of: vec![0, 1, 1], near: vec![me == 0, me == 1] };
            let heard = heard.clone();
            let hear = move |from, tag, note: &[u8]| {
                heard.lock().unwrap().push((from, tag, note.len()));
                Ok(())
            };
            let inner = SharedMemory::new(shape, 1).unwrap();
            let far = FarMemory::new(inner, shape, processes, wire, Box::new(hear));
            FarMemory { chunk: 13, ..far }
        };
        MemoryWire::network(2, 1).into_iter().enumerate().map(end).collect::<Vec<_>>()
    };
    let heard = Arc::default();
    let all = ends(Arc::clone(&heard));
    for (tag, len) in [(7, 100), (8, 0), (9, 14)] {
        all[0].note(1, tag, &vec![5; len]);
    }
    let leave = |far: &Far<MemoryWire>| far.close(Duration::from_secs(20)).unwrap();
    std::thread::scope(|scope| all.iter().for_each(|far| drop(scope.spawn(move || leave(far)))));
    assert_eq!(*heard.lock().unwrap(), [(0, 7, 100), (0, 8, 0), (0, 9, 14)]);
    // After that nothing goes out.
    all[0].note(1, 10, &[]);
    assert!(!all[0].poll() && !all[1].poll() && all[1].failed().is_none());
}

#[test]
fn who_waits_for_another_to_leave_does_not_wait_for_ever() {
    let shape = crate::conformance::shape();
    let wire = MemoryWire::network(2, 1).remove(0);
    let processes = Processes { me: 0, of: vec![0, 1, 1], near: vec![true, false] };
    let far = FarMemory::new(SharedMemory::new(&shape, 1).unwrap(), &shape, processes, wire, deaf());
    assert_eq!(far.close(Duration::from_millis(20)).unwrap_err(), "process 1 does not leave");
}
