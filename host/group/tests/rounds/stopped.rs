//! A rank, a core or an agent that dies at any step: a core that waits for it says so, one that needs nothing more of it ends
//! well, and nothing is written that would not have been written otherwise.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Mutex;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::config::Config;
use veriep_case::generate::{Left, Options as Made};
use veriep_case::global_rank;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fabric, Fault, Wait};
use veriep_core::layout::outputs::capacity;
use veriep_core::place::{Place, Tensor};
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::lockstep::{Lockstep, Memory};
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer, Layered};
use veriep_group::driver::schedule::Schedule;
use veriep_group::driver::threads::{Spread, Workers};
use veriep_group::driver::{self, Failure, Hang, Options, RankState, Stopped, Unit, Who};
use veriep_group::world::World;
use veriep_testing::tier;
use veriep_testing::trial::{WORKERS_MAX, make, make_left, small};

/// A write of one rank into the memory of another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Written {
    Put(Vec<u8>),
    Message(Vec<u8>),
    Word(u64),
    Transfer(u64),
}

type Writes = HashSet<(RankId, RankId, Place, Written)>;

/// A layer that remembers all that reaches others.
#[derive(Default)]
struct Recorded {
    writes: Mutex<Writes>,
    /// How long the first put of rank 0 takes.
    pause: Mutex<Duration>,
}

struct RecordedFabric<'b, F> {
    inner: F,
    rank: RankId,
    writes: &'b Mutex<Writes>,
    pause: &'b Mutex<Duration>,
}

struct RecordedNic<'b, N> {
    inner: N,
    rank: RankId,
    writes: &'b Mutex<Writes>,
}

impl<F: Fabric> Middleware for RecordedFabric<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        if self.rank == RankId(0) {
            std::thread::sleep(core::mem::take(&mut *self.pause.lock().unwrap()));
        }
        self.writes.lock().unwrap().insert((self.rank, to, at, Written::Put([row, tail].concat())));
        self.inner.put(to, at, row, tail)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        // Sums leave as they are ready: which number a record gets depends on who was quick.
        let known = if message.len() > 8 { Place::window(0) } else { at };
        self.writes.lock().unwrap().insert((self.rank, to, known, Written::Message(message.to_vec())));
        self.inner.send(to, at, message)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.writes.lock().unwrap().insert((self.rank, to, at, Written::Word(word)));
        self.inner.publish(to, at, word)
    }
}

impl<N: Nic> Nic for RecordedNic<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        let Transfer { to, at, len, .. } = *transfer;
        self.writes.lock().unwrap().insert((self.rank, to, at, Written::Transfer(len)));
        self.inner.post(transfer)
    }
}

impl Layer for Recorded {
    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, _: CoreId, inner: F) -> impl Fabric {
        RecordedFabric { inner, rank, writes: &self.writes, pause: &self.pause }
    }

    fn nic<'b, N: Nic + 'b>(&'b self, rank: RankId, inner: N) -> impl Nic {
        RecordedNic { inner, rank, writes: &self.writes }
    }
}

/// What a group has come to.
struct End {
    /// By rank, then operator: the outputs that are there since it ended; none if it has not.
    outputs: Vec<Vec<Option<Vec<u8>>>>,
    writes: Writes,
    failure: Option<Failure>,
    /// Steps of all cores of each rank, if it ended well.
    steps: u64,
}

const SCHEDULE: &str = "DCDC";

fn in_lockstep(case: &Case, options: Options, memory: Memory, seed: u64) -> End {
    let lockstep = Lockstep::new(case, 2, memory, seed).unwrap();
    end(case, options, recorded(case, lockstep), driver::lockstep::run)
}

/// A memory that remembers, with the ranks of a case.
fn recorded<B>(case: &Case, memory: B) -> Layered<Recorded, Layered<RankRemap, B>> {
    Recorded::default().over(RankRemap::of(case).over(memory))
}

fn end<B: Backend>(
    case: &Case,
    options: Options,
    backend: Layered<Recorded, B>,
    drive: impl FnOnce(&Unit<'_, Layered<Recorded, B>>) -> Result<u64, Failure>,
) -> End {
    let schedule = Schedule::parse(SCHEDULE).unwrap();
    let batches: Vec<_> = (0..2).map(|distance| Batch::varied(case, distance)).collect();
    let ranks: Vec<_> = global_rank::all(&case.shape).map(|_| RankState::new(2)).collect();
    let unit = Unit {
        shape: &case.shape,
        options,
        backend: &backend,
        first_round: 0,
        batches: &batches,
        ranks: &ranks,
        operators: schedule.operators(),
        world: &World::alone(ranks.len() as u32, WORKERS_MAX),
    };
    let ran = drive(&unit);
    let of_operator = |rank: RankId, operator: usize| {
        ranks[rank.index()].has_ended(operator).then(|| {
            let planned = schedule.operators()[operator];
            let mut all = Vec::new();
            let is_written = |t: &Tensor| t.is_of_combine() != planned.is_dispatch() && !t.is_of_norm();
            for tensor in Tensor::ALL.into_iter().filter(is_written) {
                let len = capacity(&case.shape, global_rank::ep_rank(&case.shape, rank), tensor) as usize;
                backend
                    .read_output(rank, planned.round, tensor, len, &mut |bytes| all.extend_from_slice(bytes));
            }
            all
        })
    };
    let operators = schedule.operators().len();
    let outputs = global_rank::all(&case.shape)
        .map(|rank| (0..operators).map(|operator| of_operator(rank, operator)).collect())
        .collect();
    let steps = *ran.as_ref().unwrap_or(&0);
    let writes = backend.layer.writes.into_inner().unwrap();
    End { outputs, writes, failure: ran.err(), steps }
}

/// Judges a group of which a member died, by what it does when none does. Returns whether any member missed the dead.
fn judge(case: &Case, stopped: Stopped, whole: &End, seen: &End) -> bool {
    for (rank, (seen, whole)) in seen.outputs.iter().zip(&whole.outputs).enumerate() {
        for (operator, (seen, whole)) in seen.iter().zip(whole).enumerate() {
            assert!(
                seen.is_none() || seen == whole,
                "{stopped:?}: outputs of rank {rank}, operator {operator}"
            );
        }
    }
    let stray = seen.writes.difference(&whole.writes).next();
    assert_eq!(stray, None, "{stopped:?}: a write that a whole group does not make");
    let all_others_ended = global_rank::all(&case.shape)
        .filter(|&rank| rank != stopped.rank)
        .all(|rank| seen.outputs[rank.index()].iter().all(Option::is_some));
    match &seen.failure {
        Some(Failure::Hang(hang)) if !all_others_ended => {
            blamed(hang, stopped);
            true
        }
        // No member needs anything more of it.
        Some(Failure::Hang(_)) if all_others_ended => false,
        // It died when all was done.
        None => false,
        Some(failure) => panic!("{stopped:?}: {failure}"),
    }
}

/// The report names the dead alone: the rank, with what its witnesses miss of it; or, where its own rank was the first
/// to miss it, the core.
fn blamed(hang: &Hang, stopped: Stopped) {
    let (suspects, roots, line) = (hang.suspects(), hang.roots(), hang.to_string());
    assert!(!roots.is_empty(), "{stopped:?}: {line}");
    if let Who::Core(dead) = stopped.who
        && roots.iter().all(|missing| missing.wait == Wait::barrier(dead) && missing.rank == stopped.rank)
    {
        assert!(line.contains(&format!("core {dead} has not come to the core barrier")), "{line}");
        return;
    }
    let ranks: Vec<_> = suspects.iter().map(|&(rank, _)| rank).collect();
    assert_eq!(ranks, [stopped.rank], "{stopped:?}: {line}");
    assert!(line.contains(&format!("waiting for rank {}", stopped.rank)), "{line}");
    for missing in roots {
        // A core that lives may miss what its own rank owes it.
        let is_witness = missing.rank != stopped.rank || matches!(stopped.who, Who::Core(_));
        assert!(is_witness && missing.wait.source() == Some(stopped.rank), "{line}");
    }
}

/// Lets each actor die at every step.
fn everybody_dies(case: &Case, flags: Flags) {
    everybody_dies_with(case, with(Choices { flags, ..Choices::default() }));
}

/// The same with other choices.
fn everybody_dies_with(case: &Case, options: Options) {
    let whole = in_lockstep(case, options, Memory::Strong, 1);
    assert!(whole.failure.is_none() && whole.outputs.iter().flatten().all(Option::is_some));
    let cores = (0..case.shape.aiv_num()).map(|core| Who::Core(CoreId(core)));
    let agent = options.choices.has_agents(&case.shape).then_some(Who::Agent);
    let all: Vec<_> = core::iter::once(Who::Rank).chain(cores).chain(agent).collect();
    let (mut tried, mut missed) = (0, 0);
    for rank in global_rank::all(&case.shape) {
        for &who in &all {
            for after in (0..whole.steps).step_by(tier(7, 1)) {
                let stopped = Stopped { rank, who, after };
                let options = Options { stopped: Some(stopped), ..options };
                let seen = in_lockstep(case, options, Memory::Strong, after);
                tried += 1;
                missed += usize::from(judge(case, stopped, &whole, &seen));
                if seen.failure.is_none() {
                    break;
                }
                if after % 16 == 0 {
                    judge(case, stopped, &whole, &in_lockstep(case, options, Memory::Weak, after));
                }
            }
        }
    }
    println!("{tried} deaths, of which {missed} are missed by a member");
    assert!(missed > tried / 4 && missed < tried);
}

fn made(config: Config) -> Case {
    make(config, Made { seed: 7, ..Made::default() })
}

#[test]
fn whoever_dies_in_a3_is_named() {
    everybody_dies(&made(small(3, 3, 2, 2, 2)), Flags::Joint);
}

#[test]
fn whoever_dies_in_a3_with_separate_flags_is_named() {
    everybody_dies(&made(small(3, 3, 2, 2, 2)), Flags::Separate);
}

#[test]
fn whoever_dies_in_a3_with_shared_experts_and_int8_is_named() {
    let shared =
        Config { shared_expert_rank_num: 1, quant_mode: 2, comm_quant_mode: 2, ..small(3, 2, 2, 2, 2) };
    everybody_dies(&made(shared), Flags::Joint);
}

#[test]
fn whoever_dies_in_fullmesh_v2_is_named() {
    let v2 = Config { comm_alg: "fullmesh_v2".to_owned(), ..small(3, 3, 2, 2, 2) };
    everybody_dies(&made(v2), Flags::Joint);
}

#[test]
fn whoever_dies_in_an_elastic_domain_is_named() {
    let case = make_left(small(4, 8, 2, 2, 1), Made { seed: 7, ..Made::default() }, Left::Without(&[1]));
    everybody_dies(&case, Flags::Joint);
}

#[test]
fn whoever_dies_in_a_tp_domain_is_named() {
    let tp = Config { tp_world_size: 2, ..small(2, 2, 1, 2, 2) };
    everybody_dies(&made(tp), Flags::Joint);
}

#[test]
fn whoever_dies_in_a2_is_named() {
    let a2 = Config { product: "a2".to_owned(), hccl_buffsize_mb: 8, ..small(2, 4, 2, 2, 2) };
    everybody_dies(&made(a2), Flags::Joint);
    let a2 = Config { product: "a2".to_owned(), hccl_buffsize_mb: 8, ..small(3, 3, 1, 1, 1) };
    everybody_dies(&made(a2), Flags::Joint);
}

#[test]
fn whoever_dies_with_rows_in_place_or_placed_directly_is_named() {
    for receive in [Receive::InPlace, Receive::Direct { areas: 1 }] {
        let case = made(small(3, 3, 2, 2, 2));
        everybody_dies_with(&case, with(Choices { receive, ..Choices::default() }));
    }
}

fn hierarchy() -> Config {
    Config {
        product: "a2".to_owned(),
        comm_alg: "hierarchy".to_owned(),
        server_ranks: 2,
        hccl_buffsize_mb: 106,
        ..small(4, 4, 2, 2, 1)
    }
}

#[test]
fn whoever_dies_in_a_hierarchy_is_named() {
    for stage in [Stage::Two, Stage::Three] {
        everybody_dies_with(&made(hierarchy()), with(Choices { stage, ..Choices::default() }));
    }
}

/// Lets rank 1 die on threads, its core, its agent, and runs the next group each time.
fn dies_on_threads(case: &Case, options: Options) {
    // A hang is one only after all workers have tried in vain, however busy the machine is: short is enough.
    let workers = Workers {
        count: 2,
        spread: Spread::Cores,
        deadline: Duration::from_millis(100),
        ..Workers::default()
    };
    let run = |stopped, workers: Workers| {
        let memory = SharedMemory::new(case, 2).unwrap();
        let backend = recorded(case, memory);
        let options = Options { stopped, ..options };
        end(case, options, backend, |unit| driver::threads::run(unit, &workers).map(|times| times.steps))
    };
    let patient = Workers { deadline: Duration::from_secs(60), ..workers };
    let whole = run(None, patient);
    assert!(whole.failure.is_none());
    let rank = [0, 9, 30, 60].map(|after| (Who::Rank, after));
    let agent = options.choices.has_agents(&case.shape).then_some((Who::Agent, 1));
    let mut missed = 0;
    for (who, after) in rank.into_iter().chain([(Who::Core(CoreId(0)), 5)]).chain(agent) {
        let stopped = Stopped { rank: RankId(1), who, after };
        missed += usize::from(judge(case, stopped, &whole, &run(Some(stopped), workers)));
        let next = run(None, patient);
        assert!(next.failure.is_none() && next.outputs == whole.outputs, "after {stopped:?}");
    }
    assert!(missed >= 2, "{missed}");
}

#[test]
fn who_takes_more_steps_than_an_operator_can_have_is_named() {
    let case = made(small(3, 3, 2, 2, 2));
    let workers = Workers { count: 2, deadline: Duration::from_secs(60), ..Workers::default() };
    let run = |steps_max| {
        let backend = recorded(&case, SharedMemory::new(&case, 2).unwrap());
        let options = Options { steps_max, ..Options::default() };
        let ran = |unit: &Unit<'_, _>| driver::threads::run(unit, &workers).map(|times| times.steps);
        end(&case, options, backend, ran).failure
    };
    // The number of the plan suffices; all other tests see that no core takes more.
    assert!(run(None).is_none());
    let failure = run(Some(3)).unwrap();
    assert!(matches!(failure, Failure::Polls { steps: 4.., .. }), "{failure}");
    assert!(failure.to_string().contains("polls by stepping"), "{failure}");
    let lockstep = Lockstep::new(&case, 2, Memory::Strong, 7).unwrap();
    let options = Options { steps_max: Some(3), ..Options::default() };
    let failure = end(&case, options, recorded(&case, lockstep), driver::lockstep::run).failure;
    assert!(matches!(failure, Some(Failure::Polls { steps: 4, .. })), "{failure:?}");
}

fn with(choices: Choices) -> Options {
    Options { choices, ..Options::default() }
}

#[test]
fn whoever_dies_on_threads_in_a3_is_named_and_the_next_group_is_well() {
    let case = made(small(3, 3, 2, 2, 2));
    let places = [Receive::InPlace, Receive::Direct { areas: 1 }];
    let places = places.map(|receive| Choices { receive, ..Choices::default() });
    let separate = Choices { flags: Flags::Separate, ..Choices::default() };
    for machines in [Choices::default(), separate].into_iter().chain(places) {
        dies_on_threads(&case, with(machines));
    }
}

#[test]
fn whoever_dies_on_threads_in_any_domain_is_named_and_the_next_group_is_well() {
    let v2 = Config { comm_alg: "fullmesh_v2".to_owned(), ..small(3, 3, 2, 2, 2) };
    let tp = Config { tp_world_size: 2, ..small(2, 2, 1, 2, 2) };
    let a2 = Config { product: "a2".to_owned(), hccl_buffsize_mb: 8, ..small(3, 3, 2, 2, 2) };
    for config in [v2, tp, a2] {
        dies_on_threads(&made(config), Options::default());
    }
    let elastic = make_left(small(4, 8, 2, 2, 1), Made { seed: 7, ..Made::default() }, Left::Without(&[3]));
    dies_on_threads(&elastic, Options::default());
    for stage in [Stage::Two, Stage::Three] {
        dies_on_threads(&made(hierarchy()), with(Choices { stage, ..Choices::default() }));
    }
}

#[test]
fn a_rank_that_is_slower_than_the_deadline_is_not_dead() {
    let case = made(small(2, 4, 2, 2, 1));
    let workers = Workers {
        count: 2,
        spread: Spread::Ranks,
        deadline: Duration::from_millis(50),
        ..Workers::default()
    };
    let backend = recorded(&case, SharedMemory::new(&case, 2).unwrap());
    *backend.layer.pause.lock().unwrap() = 4 * workers.deadline;
    let seen = end(&case, Options::default(), backend, |unit| {
        driver::threads::run(unit, &workers).map(|times| times.steps)
    });
    assert!(seen.failure.is_none(), "{:?}", seen.failure);
}
