//! The bare copies of a round: what its machines copy, between the same places and by the same threads, without flags,
//! machines or sums. What a round takes beyond them is the protocol's and the cache's.

mod commit;
mod listing;

pub use commit::commit;

use crate::backend::no_payload::{NoPayload, PIECE_MAX};
use crate::backend::rank_remap::RankRemap;
use crate::backend::shared::SharedMemory;
use crate::backend::{Backend, Layer, row_copy};
use crate::driver::idle;
use crate::driver::pin::pin;
use crate::driver::schedule::Schedule;
use crate::driver::threads::{StopOnPanic, Workers};
use crate::driver::{Failure, Options, RankState};
use crate::group::{self, of_failure};
use crate::world::World;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use listing::{Copied, Listing, Phase, Source};
use std::thread;
use std::time::Instant;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::protocol::{Choices, Operator, Receive};
use veriep_core::shape::{Product, Protocol};
use veriep_core::sync::join::Arrivals;
use veriep_core::units::{CoreId, RankId};

/// The bare copies' times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Roofline {
    /// Of all that dispatch copies.
    pub dispatch: Duration,
    /// Of all that combine copies.
    pub combine: Duration,
}

/// The times of the bare copies of one round.
#[derive(Clone, Copy, Debug)]
struct RoundTimes {
    dispatch: Duration,
    /// Of what experts write, if they do.
    experts: Duration,
    combine: Duration,
}

impl RoundTimes {
    fn sum(&self) -> Duration {
        self.dispatch + self.experts + self.combine
    }
}

/// What a phase copies, in all ranks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Bytes.
    pub bytes: u64,
    /// Of these, the bytes that are read from tokens.
    pub tokens: u64,
}

/// Every copy of a round.
#[derive(Debug)]
pub struct Traffic<'a> {
    case: &'a Case,
    receive: Receive,
    batch: Batch<'a>,
    /// Of two rounds, which use both partitions.
    rounds: [Vec<Phase>; 2],
    /// With what the experts have returned.
    pub ranks: Vec<RankState>,
    /// The batch to whose outputs it copies.
    output_batch: usize,
    /// Whether experts write their results in each round, before combine. Without it what they have written once stands.
    experts_write: bool,
    /// Whether zeros are copied instead.
    is_blank: bool,
}

/// How long a group of one thread may stand still while its copies are listed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of rows from which on it matters how they are copied.
pub const MEASURED_FROM: u64 = 1 << 20;
/// Turns of each way to copy rows.
const TURNS: usize = 3;
/// Rounds of such a turn: of each partition one that finds the caches as the way before has left them, and one that counts.
const ROUNDS: usize = 4;
/// Repetitions of the bare copies of a run, of which the median counts.
const REPETITIONS: usize = 5;
/// Rounds from which on a run gains more by the right way than it takes to find it.
pub const WORTH_MEASURING: usize = 20;

/// Copies several times what a round of a case copies, on `threads` threads, and takes medians.
///
/// # Errors
/// As of [`Traffic::new`] and [`Traffic::times`].
pub fn measure(
    memory: &impl Backend,
    (case, choices): (&Case, Choices),
    threads: usize,
) -> Result<Roofline, Error> {
    let times = Traffic::new(case, choices)?.times(memory, threads, REPETITIONS)?;
    let [dispatch, combine] = times.map(|mut times| {
        times.sort_unstable();
        times[REPETITIONS / 2]
    });
    Ok(Roofline { dispatch, combine })
}

/// As [`Traffic::fastest`], of the case itself.
///
/// # Errors
/// As of [`Traffic::new`] and [`Traffic::times`].
pub fn fastest(
    memory: SharedMemory,
    (case, choices): (&Case, Choices),
    threads: usize,
) -> Result<SharedMemory, Error> {
    match case.shape.protocol() {
        // Agents carry all rows.
        Protocol::Fullmesh => Ok(memory),
        _ => Traffic::new(case, choices)?.fastest(memory, threads),
    }
}

impl<'a> Traffic<'a> {
    /// Lists what a round of a case copies: a group on one thread runs it, over memory of its own. On A3 rows weigh nothing
    /// in it.
    ///
    /// # Errors
    /// There is no memory for it, or the system starts no thread.
    pub fn new(case: &'a Case, choices: Choices) -> Result<Self, Error> {
        Self::of(case, Batch::new(case), choices)
    }

    /// The same of another batch in the shape of `case`.
    fn of(case: &'a Case, batch: Batch<'a>, choices: Choices) -> Result<Self, Error> {
        let memory = SharedMemory::new(case, 1).map_err(Error::of_memory)?;
        let piece_max = match case.shape.product() {
            Product::A3 => PIECE_MAX,
            // Flags are among the rows.
            Product::A2 => usize::MAX,
        };
        let memory = NoPayload { piece_max, crossing: None }.over(RankRemap::of(case).over(memory));
        let mut memory = Listing::new(&case.shape, |rank| batch.inputs(rank)).over(memory);
        let mut ranks: Vec<_> = global_rank::all(&case.shape).map(|_| RankState::new(1)).collect();
        let options =
            Options { choices, in_step: true, rows_unseen: true, experts_idle: true, ..Options::default() };
        let world = World::alone(global_rank::count(&case.shape), 1);
        let alone = Workers { count: 1, deadline: PATIENCE, ..Workers::default() };
        let runs = |memory: &_, ranks: &mut [_], rounds| {
            group::repeat(memory, (&case.shape, &batch, options), ranks, (&world, &alone), rounds)
        };
        // A first one fills what experts return.
        runs(&memory, &mut ranks, 1)?;
        memory.layer.begin(&ranks);
        runs(&memory, &mut ranks, 2)?;
        let rounds = memory.layer.phases();
        let receive = choices.receive;
        let experts_write = receive.overwrites();
        Ok(Self { case, receive, batch, rounds, ranks, output_batch: 0, experts_write, is_blank: false })
    }

    /// The phases of an operator.
    fn phases_of(&self, round: usize, operator: Operator) -> impl Iterator<Item = &Phase> {
        self.rounds[round % 2].iter().filter(move |phase| phase.operator == Some(operator))
    }

    /// Returns what an operator copies in each of its phases. Rounds with even numbers use one partition, the others the
    /// second one.
    #[must_use]
    pub fn copies(&self, round: usize, operator: Operator) -> Vec<Copies> {
        let all = self.phases_of(round, operator).map(|phase| {
            phase.copies.iter().flatten().fold(Copies::default(), |all, &(copied, bytes)| Copies {
                bytes: all.bytes + bytes,
                tokens: all.tokens + if copied.is_of_token() { bytes } else { 0 },
            })
        });
        all.collect()
    }

    /// Returns the bytes of all copies of a round.
    fn bytes_copied(&self, round: usize) -> u64 {
        let copies = self.rounds[round % 2].iter().flat_map(|phase| phase.copies.iter().flatten());
        copies.map(|(_, len)| len).sum()
    }

    /// Returns the bytes that dispatch sends itself, without an agent.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        let copies = self.phases_of(0, Operator::Dispatch).flat_map(|phase| phase.copies.iter().flatten());
        copies.filter(|(copied, _)| matches!(copied, Copied::Put { .. })).map(|(_, len)| len).sum()
    }

    /// The memory of a group that copies rows in the way in which whole rounds of these copies take least time on it: each way
    /// alternately, on as many threads as the group has workers. What experts write counts, too. Copies past the caches must gain
    /// a tenth, since experts read the rows next, which bare copies do not. The memory must be new, and is as it was afterwards.
    /// Of few bytes, and where agents carry all rows, nothing is measured, and it stays as it is.
    ///
    /// # Errors
    /// As of [`times`](Self::times).
    pub fn fastest(&mut self, memory: SharedMemory, threads: usize) -> Result<SharedMemory, Error> {
        if self.bytes_sent() < MEASURED_FROM {
            return Ok(memory);
        }
        let experts_write = core::mem::replace(&mut self.experts_write, self.receive.is_direct());
        let mut group = RankRemap::of(self.case).over(memory);
        let mut least = row_copy::ALL.map(|way| (Duration::MAX, way));
        for _ in 0..TURNS {
            for (time, way) in &mut least {
                group.inner = group.inner.with_row_copy(*way);
                let turn = self.times_of(&group, threads, 0..ROUNDS)?;
                *time = (*time).min(turn[ROUNDS / 2..].iter().map(RoundTimes::sum).sum());
            }
        }
        self.blank(&group, threads)?;
        self.experts_write = experts_write;
        let cost = |(time, way): (Duration, RowCopy)| match way {
            RowCopy::Streaming => time * 11 / 10,
            RowCopy::Ahead | RowCopy::Plain => time,
        };
        let [first, rest @ ..] = least;
        let (_, way) =
            rest.into_iter().fold(first, |best, other| if cost(other) < cost(best) { other } else { best });
        Ok(group.inner.with_row_copy(way))
    }

    /// Writes zeros wherever these copies have written, in both partitions. Where flags are among the rows, a group that is
    /// between two rounds can then go on.
    ///
    /// # Errors
    /// As of [`times`](Self::times).
    pub fn blank(&mut self, memory: &impl Backend, threads: usize) -> Result<(), Error> {
        self.is_blank = true;
        let times = self.times(memory, threads, 2);
        self.is_blank = false;
        times.map(drop)
    }

    /// The times of the bare copies of so many rounds, of dispatch and of combine. As the driver does it: each rank on its
    /// worker's thread, a meeting before each phase, partitions in turn.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn times(
        &self,
        memory: &impl Backend,
        threads: usize,
        rounds: usize,
    ) -> Result<[Vec<Duration>; 2], Error> {
        let rounds = self.times_of(memory, threads, 0..rounds)?;
        let of = |time: fn(&RoundTimes) -> Duration| rounds.iter().map(time).collect();
        Ok([of(|round| round.dispatch), of(|round| round.combine)])
    }

    /// The same of the rounds with these numbers.
    fn times_of(
        &self,
        memory: &impl Backend,
        threads: usize,
        rounds: Range<usize>,
    ) -> Result<Vec<RoundTimes>, Error> {
        let unit = Schedule::parse("DC")?;
        let (arrived, stop) = (Arrivals::<AtomicU64>::default(), AtomicBool::new(false));
        let work = |w: usize| {
            let _stop_if_panicking = StopOnPanic(&stop);
            pin(w);
            let mut outcome = Ok(());
            let mut met = 0;
            let mut of_phase = |phase: &Phase| {
                // As workers wait for each other, so that all begin at once: alone on the machine, a copy is faster. What
                // was copied before is seen after it.
                met += threads as u64;
                arrived.arrive();
                let must_wait = || !arrived.have_come(met) && !stop.load(Ordering::Relaxed);
                (1..).take_while(|_| must_wait()).for_each(idle);
                let start = Instant::now();
                let mine = global_rank::all(&self.case.shape).skip(w).step_by(threads);
                for rank in mine.take_while(|_| !stop.load(Ordering::Relaxed)) {
                    // Even then it goes on: the others wait for it.
                    outcome = outcome.and(self.copy(memory, rank, &phase.copies[rank.index()]));
                }
                start.elapsed()
            };
            let of_round = |round: usize| self.phases(round).map(&mut of_phase).collect();
            let times: Vec<_> = rounds.clone().map(of_round).collect();
            outcome.map(|()| times)
        };
        let by_worker: Vec<Vec<Vec<Duration>>> = thread::scope(|scope| {
            let _stop_if_panicking = StopOnPanic(&stop);
            let work = &work;
            let start = |w| {
                let started = thread::Builder::new().spawn_scoped(scope, move || work(w));
                // Those that did start are waiting for this one.
                started.inspect_err(|_| stop.store(true, Ordering::Relaxed))
            };
            let workers = (0..threads).map(start).collect::<Result<Vec<_>, _>>();
            let workers = workers.map_err(|e| of_failure(0, &unit, &Failure::Thread(e.to_string())))?;
            let times = workers.into_iter().map(|worker| match worker.join() {
                Ok(Ok(times)) => times,
                // The copies go where the machines just went: a refusal is a defect of this file.
                Ok(Err(fault)) => panic!("bare copy: {fault}"),
                Err(panic) => std::panic::resume_unwind(panic),
            });
            Ok::<_, Error>(times.collect())
        })?;
        let first = rounds.start;
        let slowest =
            |round: usize, phase: usize| by_worker.iter().map(|times| times[round - first][phase]).max();
        let all = |round, operator| {
            let of = self.phases(round).enumerate().filter(|(_, phase)| phase.operator == operator);
            of.filter_map(|(phase, _)| slowest(round, phase)).sum()
        };
        let of_round = |round| RoundTimes {
            dispatch: all(round, Some(Operator::Dispatch)),
            experts: all(round, None),
            combine: all(round, Some(Operator::Combine)),
        };
        Ok(rounds.map(of_round).collect())
    }

    /// Returns the bytes of a copy, as many as `scratch` has. A record is longer than its token: its bytes begin where the
    /// token begins or, if too few follow, are the last ones of all tokens.
    fn row<'r>(&self, from: Source, [tokens, results]: [&'r [u8]; 2], scratch: &'r [u8]) -> &'r [u8] {
        let len = scratch.len();
        let at = |rows: &'r [u8], at: usize| {
            let at = at.min(rows.len().saturating_sub(len));
            rows.get(at..).and_then(|rest| rest.get(..len))
        };
        let row = match from {
            _ if self.is_blank => None,
            Source::Token(start) => at(tokens, start),
            Source::Result(start) => at(results, start),
            Source::Scratch => None,
        };
        row.unwrap_or(scratch)
    }

    fn phases(&self, round: usize) -> impl Iterator<Item = &Phase> {
        self.rounds[round % 2].iter().filter(|phase| self.experts_write || phase.operator.is_some())
    }

    /// Copies what `rank` copies in a phase.
    fn copy(&self, memory: &impl Backend, rank: RankId, copies: &[(Copied, u64)]) -> Result<(), Fault> {
        let (mut fabric, mut nic) = (memory.fabric(rank, CoreId(0), self.output_batch), memory.nic(rank));
        let longest = copies.iter().map(|&(_, len)| len).max().unwrap_or(0);
        let mut scratch = vec![0; longest as usize];
        let tokens = self.batch.inputs(rank).x;
        self.ranks[rank.index()].with_y(0, |results| {
            copies.iter().try_for_each(|&(copied, len)| {
                let scratch = &mut scratch[..len as usize];
                if self.is_blank {
                    scratch.fill(0);
                }
                let row = |from, scratch| self.row(from, [tokens, results], scratch);
                match copied {
                    Copied::Put { to, at, from } => fabric.put(to, at, row(from, scratch), &[]),
                    Copied::Sent { to, at, from } => fabric.send(to, at, row(from, scratch)),
                    Copied::Written { at, from } => fabric.write(at, row(from, scratch)),
                    Copied::Delivered { output, from } => fabric.deliver(output, from, len),
                    Copied::Read { at } => read(scratch, fabric.bytes(at, len)?),
                    Copied::Pulled { from, at } => read(scratch, fabric.peer_bytes(from, at, len)?),
                    Copied::Posted(transfer) => {
                        if self.is_blank {
                            // Flags and counts, too, which no copy writes.
                            fabric.write(transfer.from, scratch)?;
                        }
                        nic.post(&transfer).map(drop)
                    }
                }
            })
        })
    }
}
/// Takes a row into scratch, where a sum would read it.
fn read(scratch: &mut [u8], row: &[u8]) -> Result<(), Fault> {
    scratch.copy_from_slice(row);
    core::hint::black_box(scratch);
    Ok(())
}
