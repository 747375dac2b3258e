//! A rank whose words of one kind are lost, whichever words and protocol these are, and however many cores each worker
//! polls: the run ends within a second of the deadline, and names the rank.

use core::time::Duration;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::config::Config;
use veriep_case::generate::Options as Made;
use veriep_case::global_rank;
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::units::RankId;
use veriep_group::backend::Layer;
use veriep_group::backend::inject::{Inject, Lost, Silent};
use veriep_group::backend::shared::SharedMemory;
use veriep_group::driver::schedule::Schedule;
use veriep_group::driver::threads::{self, Spread, Workers};
use veriep_group::driver::{Failure, Options, RankState, Unit};
use veriep_group::world::World;
use veriep_testing::trial::{WORKERS_MAX, make, small};

const DEADLINE: Duration = Duration::from_millis(100);
/// How much later it may end: less than the ten deadlines that are enough in any case.
const MORE: Duration = Duration::from_millis(800);
/// A machine that is busy may be late by chance, but not so often.
const TRIALS: usize = 4;
/// A run that takes longer does not end.
const EVER: Duration = Duration::from_secs(10);

/// A group, and the words that it sends.
struct Group {
    case: Case,
    choices: Choices,
    words: &'static [Option<Lost>],
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
struct Cell {
    silent: Silent,
    workers: Workers,
}

fn group(config: Config, choices: Choices, words: &'static [Option<Lost>]) -> Group {
    Group { case: make(config, Made { seed: 7, ..Made::default() }), choices, words }
}

/// Every token goes to every expert, so each rank waits for every other one.
fn groups(cores: i64) -> Vec<Group> {
    let a3 = || small(3, 3, 3, 2, cores);
    let a2 = || Config { product: "a2".to_owned(), hccl_buffsize_mb: 8, ..a3() };
    let servers = || Config {
        product: "a2".to_owned(),
        comm_alg: "hierarchy".to_owned(),
        server_ranks: 2,
        hccl_buffsize_mb: 106,
        ..small(4, 4, 4, 2, cores)
    };
    let with = Choices::default;
    let joint: &[_] = &[None, Some(Lost::Counts), Some(Lost::Rows)];
    let direct: &[_] = &[None, Some(Lost::Counts), Some(Lost::Grants), Some(Lost::Tokens), Some(Lost::Rows)];
    vec![
        group(a3(), with(), joint),
        group(
            a3(),
            Choices { flags: Flags::Separate, ..with() },
            &[None, Some(Lost::Counts), Some(Lost::Tokens), Some(Lost::Rows)],
        ),
        group(a3(), Choices { receive: Receive::Direct { areas: 1 }, ..with() }, direct),
        group(
            Config { comm_alg: "fullmesh_v2".to_owned(), ..a3() },
            with(),
            &[None, Some(Lost::Counts), Some(Lost::Blocks), Some(Lost::Rows)],
        ),
        group(
            Config { tp_world_size: 2, ..small(2, 2, 2, 2, cores) },
            with(),
            &[None, Some(Lost::Counts), Some(Lost::Rows), Some(Lost::Tp)],
        ),
        group(a2(), with(), &[None, Some(Lost::Ends)]),
        group(servers(), Choices { stage: Stage::Two, ..with() }, &[None, Some(Lost::Ends)]),
        group(servers(), Choices { stage: Stage::Three, ..with() }, &[None]),
    ]
}

/// Drives the group until it gives up. How it did, and how long it took.
fn run(group: &Group, cell: Cell) -> (Option<Failure>, Duration) {
    let (case, Cell { silent, workers }) = (&group.case, cell);
    let schedule = Schedule::parse("DC").unwrap();
    let inject = Inject {
        killed: None,
        slow: None,
        late: None,
        silent: Some(silent),
        twice: None,
        shape: case.shape.clone(),
        choices: group.choices,
    };
    let backend = inject.over(SharedMemory::new(case, 1).unwrap());
    let batches = [Batch::varied(case, 0)];
    let ranks: Vec<_> = global_rank::all(&case.shape).map(|_| RankState::new(1)).collect();
    let unit = Unit {
        shape: &case.shape,
        options: Options { choices: group.choices, ..Options::default() },
        backend: &backend,
        first_round: 0,
        batches: &batches,
        ranks: &ranks,
        operators: schedule.operators(),
        world: &World::alone(ranks.len() as u32, workers.count.max(WORKERS_MAX)),
    };
    let since = Instant::now();
    (threads::run(&unit, &workers).err(), since.elapsed())
}

/// The same, and `None` if it does not end.
fn ends(group: &Arc<Group>, cell: Cell) -> Option<(Option<Failure>, Duration)> {
    let (say, said) = channel();
    let group = Arc::clone(group);
    // Not joined: it may not end.
    thread::spawn(move || say.send(run(&group, cell)));
    said.recv_timeout(EVER).ok()
}

/// What is wrong with how a group ends.
fn wrong(group: &Arc<Group>, cell: Cell) -> Option<String> {
    let mut late = Duration::ZERO;
    for _ in 0..TRIALS {
        let Some((failure, took)) = ends(group, cell) else {
            return Some(format!("{cell:?}: it does not end"));
        };
        let Some(Failure::Hang(hang)) = failure else {
            return Some(format!(
                "{cell:?}: {}",
                failure.map_or("no rank missed it".to_owned(), |f| f.to_string())
            ));
        };
        let named: Vec<_> = hang.suspects().iter().map(|&(rank, _)| rank).collect();
        // A rank that is silent may wait itself for who cannot go on without it.
        if !named.contains(&cell.silent.rank) {
            return Some(format!("{cell:?}: it names {named:?}: {hang}"));
        }
        if took <= DEADLINE + MORE {
            return None;
        }
        late = took;
    }
    Some(format!("{cell:?}: it takes {late:?}, {TRIALS} times"))
}

/// Workers that poll one core each, two, and all of so many ranks; those of two also as the program deals them out by default.
fn workers(ranks: usize, cores: usize) -> Vec<Workers> {
    let of = |count: usize, spread| Workers { count, spread, pinned: false, deadline: DEADLINE };
    let mut all =
        [ranks * cores, (ranks * cores).div_ceil(2), 1].map(|count| of(count, Spread::Cores)).to_vec();
    if cores == 2 {
        all.push(of(ranks, Spread::Ranks));
    }
    all
}

#[test]
fn a_silent_rank_is_named_at_the_deadline_however_many_cores_a_worker_has() {
    let mut cells = Vec::new();
    for cores in [1, 2] {
        for group in groups(cores).into_iter().map(Arc::new) {
            let ranks = global_rank::count(&group.case.shape);
            // Every rank sends to every other one, so one in the middle of them shows no more.
            let silent = if cores == 1 { vec![0, ranks - 1] } else { vec![1] };
            for (rank, &only) in
                silent.into_iter().flat_map(|rank| group.words.iter().map(move |word| (rank, word)))
            {
                for workers in workers(ranks as usize, cores as usize) {
                    let silent = Silent { rank: RankId(rank), only };
                    cells.push((Arc::clone(&group), Cell { silent, workers }));
                }
            }
        }
    }
    let (count, cells) = (cells.len(), Mutex::new(cells.into_iter()));
    let bad = Mutex::new(Vec::new());
    // They sleep most of the time; more at once would wait for processors.
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                loop {
                    let cell = cells.lock().unwrap().next();
                    // A run that does not end would slow down all others.
                    let Some((group, cell)) = cell.filter(|_| bad.lock().unwrap().is_empty()) else { break };
                    bad.lock().unwrap().extend(wrong(&group, cell).map(|why| (group.choices, why)));
                }
            });
        }
    });
    let bad = bad.into_inner().unwrap();
    let told: Vec<_> = bad.iter().take(8).collect();
    assert!(bad.is_empty(), "{} of {count}: {told:#?}", bad.len());
    println!("{count} groups");
}
