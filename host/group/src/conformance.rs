//! The exam for backends: litmus tests of the contracts of [`Fabric`] and of [`Nic`].
//!
//! A backend whose cores are really concurrent takes [`on_threads`]; one that a single thread drives takes
//! [`in_lockstep`], as does any memory that is [`Stepped`]; backends take [`refusals`], too. A new backend needs three lines in `tests/rounds/conformance.rs`.

pub use veriep_core::conformance as litmus;

use crate::backend::Backend;
use crate::driver::idle;
use crate::driver::lockstep::Clockwork;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use litmus::{Actor, Claim, Extent, Failure, Litmus, Op, ROW_MAX, Run, STRIDE, SUITES, Step, Who, Why};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use veriep_case::parallel::lock;
use veriep_case::verdict::Verdict;
use veriep_core::fabric::nic::{Nic, Transfer};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::place::{Place, Tensor};
use veriep_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use veriep_core::sync::join::Arrivals;
use veriep_core::units::{CoreId, RankId};

/// Most repetitions in one memory.
pub const REPETITIONS_MAX: u64 = STATE_BYTES / STRIDE;
/// One in so many repetitions is made with each of the longer rows, which take as many times as long.
const LONGER: u64 = 20;
/// How long a core may wait for what must come.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a thread at a barrier looks for the others before it sleeps: some microseconds.
const SPINS: u32 = 300;

/// Every litmus of both contracts, and the group that it needs.
pub fn all() -> impl Iterator<Item = (Shape, &'static Litmus)> {
    let group = |server_ranks| if server_ranks == 0 { shape() } else { servers_shape() };
    SUITES
        .into_iter()
        .flat_map(move |(suite, server_ranks)| suite.iter().map(move |litmus| (group(server_ranks), litmus)))
}

/// The group that litmus tests of messages need: two servers of two ranks of two cores.
pub fn servers_shape() -> Shape {
    let servers = Config { server_ranks: 2, hccl_buffsize_mb: 105, ..Config::default() };
    of_two_cores(Protocol::Hierarchy, 4, servers)
}

/// The group that all others need: three ranks of two cores and an agent.
pub fn shape() -> Shape {
    of_two_cores(Protocol::Fullmesh, 3, Config { hccl_buffsize_mb: 8, ..Config::default() })
}

/// A group with an expert and a token for each rank.
fn of_two_cores(comm_alg: Protocol, ranks: i64, config: Config<'_>) -> Shape {
    let (ep_world_size, moe_expert_num, bs) = (ranks, ranks, BatchSizes::Uniform(1));
    let config = Config { comm_alg, ep_world_size, moe_expert_num, k: 1, h: 8, bs, aiv_num: 2, ..config };
    Shape::new(&config, Limits::None).expect("a legal configuration")
}

/// What [`Claim::Open`] demands of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// It may keep more than the contract promises.
    Any,
    /// Whatever the contract leaves open must be seen.
    Weak,
}

/// What came of the programs that every memory must pass. A claim that does not hold is a panic.
#[derive(Clone, Debug, Default)]
pub struct Exam {
    /// Programs whose claim held in every run.
    pub held: Vec<&'static str>,
    /// Programs that were not run, and why.
    pub skipped: Vec<(&'static str, String)>,
}

impl Exam {
    /// Yes if every program was run; a memory on which one was skipped is not known to keep the contract.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        if self.skipped.is_empty() && !self.held.is_empty() { Verdict::Yes } else { Verdict::Unknown }
    }
}

/// Runs of a litmus that share a memory, each in places of its own: to make one costs more than to run.
const RUNS: u64 = 50;

/// The extents in which a program is run: as it is, with rows of more than a packet, and with the longest. A last one has places
/// that lie far apart.
fn extents(shape: &Shape) -> [Extent; 4] {
    let window = shape.window_bytes();
    let rows = [(1032, 0, 0), (ROW_MAX, 0, 0), (1032, window, STATE_BYTES)];
    let [packets, longest, apart] =
        rows.map(|(row, window, state)| Extent::new(row, window, state).expect("a legal length"));
    [Extent::default(), packets, longest, apart]
}

/// How many repetitions fit into one memory. Where places lie far apart, those of the next repetition are among them.
fn places(extent: Extent, shape: &Shape) -> u64 {
    if extent == extents(shape)[3] {
        1
    } else {
        (shape.window_bytes() / extent.stride()).min(REPETITIONS_MAX)
    }
}

/// A memory in which one thread takes steps and lands effects.
pub trait Stepped {
    /// Lets a program take a step.
    ///
    /// # Errors
    /// It cannot go on.
    fn step(&self, run: &mut Run) -> Result<Step, Failure>;

    /// Time passes: something in flight may land.
    fn tick(&self);

    /// Lands one effect in flight. `false` when there is none.
    fn land_one(&self) -> bool;
}

impl<B: Clockwork> Stepped for B {
    fn step(&self, run: &mut Run) -> Result<Step, Failure> {
        let rank = RankId(run.program.rank);
        match run.program.who {
            Who::Core(core) => run.step(&mut Actor::Core(&mut self.fabric(rank, CoreId(core), 0))),
            Who::Agent => run.step(&mut Actor::Agent(&mut self.nic(rank))),
        }
    }

    fn tick(&self) {
        self.simulated().tick();
    }

    fn land_one(&self) -> bool {
        self.simulated().land_one()
    }
}

/// Runs the suites one operation at a time in an order drawn from each seed, on memory made for every 50th. Each memory sees
/// rows of another length.
///
/// # Panics
/// A claim does not hold: litmus, seed and what was seen.
pub fn in_lockstep<B: Stepped>(
    make: impl Fn(&Shape, u64) -> B,
    seeds: Range<u64>,
    strength: Strength,
) -> Exam {
    let mut exam = Exam::default();
    for (shape, litmus) in all() {
        let mut turns = extents(&shape).into_iter().cycle();
        let mut broken = seeds.clone().step_by(RUNS as usize).filter_map(|first| {
            let extent = turns.next()?;
            let backend = make(&shape, first);
            let mut runs = first..seeds.end.min(first + RUNS.min(places(extent, &shape)));
            let broken =
                runs.find_map(|seed| Some((seed, stepped(litmus, &backend, extent, seed, seed - first)?)));
            broken.map(|(seed, why)| format!("{}: seed {seed} on memory {first}: {why}", litmus.name))
        });
        match litmus.claim {
            Claim::Required if seeds.is_empty() => exam.skipped.push((litmus.name, "no seed".to_owned())),
            Claim::Required => {
                assert_eq!(broken.next(), None);
                exam.held.push(litmus.name);
            }
            Claim::Open if strength == Strength::Weak => {
                assert!(broken.next().is_some(), "{}: never seen in seeds {seeds:?}", litmus.name);
            }
            Claim::Open => {}
            Claim::Reported => report(litmus, broken.next()),
        }
    }
    exam
}

/// One run; why it broke, if it did.
fn stepped<B: Stepped>(
    litmus: &Litmus,
    backend: &B,
    extent: Extent,
    seed: u64,
    repetition: u64,
) -> Option<Failure> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let run = |&program| Run::new(program, repetition).in_extent(extent);
    let mut runs: Vec<_> = litmus.programs.iter().map(run).collect();
    let mut idle = 0;
    while !runs.is_empty() {
        let pick = rng.random_range(0..runs.len());
        backend.tick();
        match backend.step(&mut runs[pick]) {
            Ok(Step::Moved) => idle = 0,
            Ok(Step::Waits) => idle += 1,
            Ok(Step::Done) => drop(runs.swap_remove(pick)),
            Err(failure) => return Some(failure),
        }
        // Long enough that every one has had its turn, almost surely; a wrong guess lands something early.
        if idle > 8 * runs.len() {
            idle = 0;
            let waits = |run: &mut Run| matches!(backend.step(run), Ok(Step::Waits));
            if !backend.land_one() && runs.iter_mut().all(waits) {
                return Some(runs[0].failed(Why::Stuck));
            }
        }
    }
    // The next run finds nothing in flight.
    while backend.land_one() {}
    None
}

/// Runs each litmus `repetitions` times, one thread for each core, in places of its own each time; with longer rows as often as
/// they fit into a memory, too.
///
/// # Panics
/// A claim does not hold: litmus, repetition and what was seen.
pub fn on_threads<B: Backend>(make: impl Fn(&Shape) -> B, repetitions: u64) -> Exam {
    let mut exam = Exam::default();
    assert!(repetitions <= REPETITIONS_MAX, "more than {REPETITIONS_MAX} repetitions");
    for (shape, litmus) in all() {
        let backend = make(&shape);
        let lacks = litmus.calls() - backend.fabric(RankId(0), CoreId(0), 0).capabilities();
        let skipped = match lacks.is_empty() {
            _ if litmus.racy => Some("it reads what no flag covers".to_owned()),
            _ if repetitions == 0 => Some("no repetition".to_owned()),
            true => None,
            false => Some(format!("the fabric does not have {lacks:?}")),
        };
        if let Some(why) = skipped {
            // What the contract leaves open needs no run.
            exam.skipped.extend((litmus.claim == Claim::Required).then_some((litmus.name, why)));
            continue;
        }
        let repetitions = if repeats_itself(litmus) { repetitions.div_ceil(20) } else { repetitions };
        let broken = raced(litmus, &backend, Extent::default(), repetitions).or_else(|| {
            let [_, longer @ ..] = extents(&shape);
            longer.into_iter().find_map(|extent| {
                raced(litmus, &make(&shape), extent, repetitions.div_ceil(LONGER).min(places(extent, &shape)))
            })
        });
        match litmus.claim {
            Claim::Required => {
                assert_eq!(broken, None, "{}", litmus.name);
                exam.held.push(litmus.name);
            }
            Claim::Reported => report(litmus, broken),
            Claim::Open => {}
        }
    }
    exam
}

/// Whether a run of it takes hundreds of calls.
fn repeats_itself(litmus: &Litmus) -> bool {
    let is_long = |op: &Op| matches!(op, Op::Again { .. } | Op::Stays { .. } | Op::StaysBytes { .. });
    litmus.programs.iter().flat_map(|program| program.ops).any(is_long)
}

/// Says whether what no machine needs was ever seen broken.
fn report(litmus: &Litmus, broken: Option<String>) {
    println!("{}: {}", litmus.name, broken.as_deref().unwrap_or("always, as far as this memory was seen"));
}

/// A barrier whose threads spin before they sleep, since an idle processor takes longer to wake up than most runs take.
struct Barrier {
    threads: u64,
    /// The number of calls of [`wait`](Self::wait) so far, by all threads.
    calls: Arrivals<AtomicU64>,
    asleep: Mutex<()>,
    wakes: Condvar,
}

impl Barrier {
    fn new(threads: usize) -> Self {
        Self {
            threads: threads as u64,
            calls: Arrivals::default(),
            asleep: Mutex::new(()),
            wakes: Condvar::new(),
        }
    }

    /// Waits until all threads have called it as often as this one.
    fn wait(&self) {
        let come = self.calls.arrive();
        let all = come.next_multiple_of(self.threads);
        if come == all {
            drop(lock(&self.asleep));
            self.wakes.notify_all();
            return;
        }
        let have_come = || self.calls.have_come(all);
        for _ in 0..SPINS {
            if have_come() {
                return;
            }
            core::hint::spin_loop();
        }
        drop(self.wakes.wait_while(lock(&self.asleep), |()| !have_come()));
    }
}

/// Repetitions until one breaks; why it did.
fn raced<B: Backend>(litmus: &Litmus, backend: &B, extent: Extent, repetitions: u64) -> Option<String> {
    let start = Barrier::new(litmus.programs.len());
    let broken = Mutex::new(None);
    let stop = AtomicBool::new(false);
    let work = |program| {
        for repetition in 0..repetitions {
            start.wait();
            let ended = to_end(Run::new(program, repetition).in_extent(extent), backend, &stop);
            // The first that fails stops the others.
            if let Err(why) = ended
                && !stop.swap(true, Ordering::Relaxed)
            {
                let mut broken = lock(&broken);
                *broken = Some(format!("repetition {repetition}: {why}"));
            }
            // All see the same answer: it cannot change before the next repetition begins.
            start.wait();
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            litmus.programs.iter().map(|&program| scope.spawn(move || work(program))).collect();
        // The end of the scope would wait too, but ThreadSanitizer only knows a join.
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    broken.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn to_end<B: Backend>(run: Run, backend: &B, stop: &AtomicBool) -> Result<(), Failure> {
    let since = Instant::now();
    let mut passes = 0;
    let waits = || {
        passes += 1;
        idle(passes);
        !stop.load(Ordering::Relaxed) && since.elapsed() < PATIENCE
    };
    let rank = RankId(run.program.rank);
    match run.program.who {
        Who::Core(core) => run.to_end(&mut Actor::Core(&mut backend.fabric(rank, CoreId(core), 0)), waits),
        Who::Agent => run.to_end(&mut Actor::Agent(&mut backend.nic(rank)), waits),
    }
}

/// Asks for places that no memory has: each must be refused, and nothing written.
///
/// # Panics
/// One was granted.
pub fn refusals<B: Backend>(make: impl Fn(&Shape) -> B) {
    let shape = shape();
    let backend = make(&shape);
    let mut fabric = backend.fabric(RankId(0), CoreId(0), 0);
    let window = shape.window_bytes();
    let (absent, peer) = (RankId(3), RankId(1));
    let far = Place::window(u64::MAX - 7);
    let crooked = Place::state(4);
    let x_out = |offset| Place::output(Tensor::XOut, offset);
    let mut refused = |what: &str, of: &mut dyn FnMut(&mut dyn Fabric) -> Result<(), Fault>| {
        assert!(of(&mut fabric).is_err(), "granted: {what}");
    };
    refused("a put to a rank that is not there", &mut |f| f.put(absent, Place::window(0), &[1], &[]));
    refused("a put over the end", &mut |f| f.put(peer, Place::window(window - 8), &[1; 8], &[1]));
    refused("a put whose end wraps", &mut |f| f.put(peer, far, &[1; 8], &[1; 8]));
    refused("a put to another rank's output", &mut |f| f.put(peer, x_out(0), &[1], &[]));
    refused("a publish to a rank that is not there", &mut |f| f.publish(absent, Place::state(0), 1));
    refused("a publish past the end", &mut |f| f.publish(peer, Place::state(STATE_BYTES), 1));
    refused("a crooked publish", &mut |f| f.publish(peer, crooked, 1));
    refused("a crooked store", &mut |f| f.store(crooked, 1));
    refused("a store past the end", &mut |f| f.store(Place::state(STATE_BYTES), 1));
    refused("a crooked observe", &mut |f| f.observe(crooked).map(drop));
    refused("an observe past the end", &mut |f| f.observe(Place::window(window)).map(drop));
    refused("bytes over the end", &mut |f| f.bytes(Place::window(window - 4), 5).map(drop));
    refused("bytes whose end wraps", &mut |f| f.bytes(far, u64::MAX).map(drop));
    refused("a write whose end wraps", &mut |f| f.write(x_out(u64::MAX), &[1, 1]));
    refused("a delivery from past the end", &mut |f| f.deliver(x_out(0), Place::window(window), 1));
    refused("a delivery whose end wraps", &mut |f| f.deliver(x_out(u64::MAX), Place::window(0), 2));
    let mut peer_bytes = |what, rank, at, len| refused(what, &mut |f| f.peer_bytes(rank, at, len).map(drop));
    peer_bytes("bytes of a rank that is not there", absent, Place::window(0), 8);
    peer_bytes("a peer's bytes over the end", peer, Place::window(window - 4), 5);
    peer_bytes("a peer's bytes whose end wraps", peer, far, u64::MAX);
    // A memory may lend nothing at all.
    assert!(fabric.lend(Place::window(0), 8).is_none(), "lent: a window");
    assert!(fabric.lend(x_out(u64::MAX), 2).is_none(), "lent: an output whose end wraps");
    if let Some(lent) = fabric.lend(x_out(8), 4) {
        lent.iter().zip([5, 6, 7, 8]).for_each(|(byte, value)| byte.set(value));
        backend.read_output(RankId(0), 0, Tensor::XOut, 14, &mut |bytes| {
            assert_eq!(bytes[6..], [0, 0, 5, 6, 7, 8, 0, 0], "what was written to lent bytes");
        });
    }
    let start = fabric.observe(Place::state(0)).expect("the first word");
    assert_eq!(start, 0, "a refused publish was written");
    claims(&mut fabric, None);
    drop(fabric);
    nic_refusals(&shape, &backend);
    far_refusals(&make(&servers_shape()));
}

fn far_refusals<B: Backend>(backend: &B) {
    let shape = servers_shape();
    let window = shape.window_bytes();
    let mut fabric = backend.fabric(RankId(0), CoreId(0), 0);
    let (near, far) = (RankId(1), RankId(2));
    let row = Place::window(0);
    let refused = [
        ("a put to a far rank", fabric.put(far, row, &[1; 8], &[])),
        ("a publish to a far rank", fabric.publish(far, row, 1)),
        ("a message to a near rank", fabric.send(near, row, &[1; 8])),
        ("a message to this rank", fabric.send(RankId(0), row, &[1; 8])),
        ("a message to a rank that is not there", fabric.send(RankId(4), row, &[1; 8])),
        ("a part of a word", fabric.send(far, row, &[1; 12])),
        ("a crooked message", fabric.send(far, Place::window(4), &[1; 8])),
        ("a message over the end", fabric.send(far, Place::window(window - 8), &[1; 16])),
        ("a message whose end wraps", fabric.send(far, Place::window(u64::MAX - 7), &[1; 16])),
        ("a message to an output", fabric.send(far, Place::output(Tensor::XOut, 0), &[1; 8])),
    ];
    for (what, outcome) in refused {
        assert!(outcome.is_err(), "granted: {what}");
    }
    drop(fabric);
    for rank in [near, far] {
        let fabric = backend.fabric(rank, CoreId(0), 0);
        for at in [0, window - 8] {
            let seen = fabric.observe(Place::window(at)).expect("a word of the window");
            assert_eq!(seen, 0, "what was refused was written at {rank}");
        }
    }
    claims(&mut backend.fabric(RankId(0), CoreId(0), 0), Some(far));
}

/// An optional call that the fabric of rank 0 claims works, and one that it does not claim fails. Without a `far` rank
/// there is no rank to send to.
fn claims(fabric: &mut dyn Fabric, far: Option<RankId>) {
    let claimed = fabric.capabilities();
    let row = Place::window(0);
    let mut works = vec![
        (Capabilities::PEER_BYTES, fabric.peer_bytes(RankId(1), row, 8).is_ok()),
        (Capabilities::LEND, fabric.lend(Place::output(Tensor::XOut, 0), 8).is_some()),
    ];
    works.extend(far.map(|far| (Capabilities::SEND, fabric.send(far, row, &[1; 8]).is_ok())));
    for (capability, works) in works {
        let claimed = claimed.contains(capability);
        assert_eq!(claimed, works, "{capability:?}: claimed {claimed}, works {works}");
    }
}

fn nic_refusals<B: Backend>(shape: &Shape, backend: &B) {
    let (window, window_out) = (shape.window_bytes(), shape.window_out_bytes());
    // Where writes land at once, a transfer that is not refused is seen.
    let row = backend.fabric(RankId(0), CoreId(0), 0).write(Place::window_out(0), &[9; 64]);
    assert_eq!(row, Ok(()), "a row of WindowsOut");
    let good = Transfer { to: RankId(1), from: Place::window_out(0), at: Place::window(0), len: 64 };
    let from = |offset| Transfer { from: Place::window_out(offset), ..good };
    let at = |offset| Transfer { at: Place::window(offset), ..good };
    let refused = [
        ("a transfer to a rank that is not there", Transfer { to: RankId(3), ..good }),
        ("an empty transfer", Transfer { len: 0, ..good }),
        ("a part of a word", Transfer { len: 60, ..good }),
        ("a crooked source", from(4)),
        ("a crooked destination", at(4)),
        ("a source over the end", from(window_out - 56)),
        ("a destination over the end", at(window - 56)),
        ("a source whose end wraps", from(u64::MAX - 7)),
        ("a destination whose end wraps", at(u64::MAX - 7)),
        ("a length that wraps", Transfer { len: u64::MAX - 7, ..good }),
        ("a source in WindowsIn", Transfer { from: Place::window(0), ..good }),
        ("a destination in the state region", Transfer { at: Place::state(0), ..good }),
        ("a destination in WindowsOut", Transfer { at: Place::window_out(0), ..good }),
        ("a destination in an output", Transfer { at: Place::output(Tensor::XOut, 0), ..good }),
    ];
    let mut nic = backend.nic(RankId(0));
    for (what, transfer) in refused {
        assert!(nic.post(&transfer).is_err(), "granted: {what}");
    }
    for at in [Place::state(4), Place::state(STATE_BYTES)] {
        assert!(nic.observe(at).is_err(), "granted: an observe at {at}");
    }
    drop(nic);
    let fabric = backend.fabric(RankId(1), CoreId(0), 0);
    for (at, what) in [(0, "first"), (window - 56, "last")] {
        let seen = fabric.observe(Place::window(at)).expect("a word of the window");
        assert_eq!(seen, 0, "a refused transfer was written: its {what} words");
    }
}
