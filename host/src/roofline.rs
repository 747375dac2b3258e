//! The bare copies of a round: the same rows between the same places by the same threads, without flags,
//! machines or sums; what TP peers lend each other is not among them. What a round takes beyond them is the protocol's and
//! the cache's.

use crate::backend::rank_remap::RankRemap;
use crate::backend::shared::SharedMemory;
use crate::backend::{Backend, Layer, row_copy};
use crate::batch::Batch;
use crate::case::Case;
use crate::driver::idle;
use crate::driver::pin::pin;
use crate::driver::threads::StopOnPanic;
use crate::driver::{Failure, RankState};
use crate::global_rank;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::data::{combine_row, dispatch_record};
use veriep_core::layout::direct::Parts;
use veriep_core::layout::outputs;
use veriep_core::layout::state::Partition;
use veriep_core::placement::Home;
use veriep_core::plan::order::SendOrder;
use veriep_core::plan::route::{self, Send, Sends};
use veriep_core::plan::split;
use veriep_core::protocol::Receive;
use veriep_core::shape::{Product, Shape};
use veriep_core::units::{CoreId, RankId};

/// The bare copies' times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Roofline {
    /// Rows into the windows, then, where they are received so, out of them.
    pub dispatch: Duration,
    /// Rows into the windows, out of them, and the results; with direct placement straight from the peers' windows.
    pub combine: Duration,
}

/// Where every row of a round goes.
pub struct Traffic<'a> {
    shape: &'a Shape,
    receive: Receive,
    batch: Batch<'a>,
    /// By source rank.
    sent: Vec<Vec<Send>>,
    /// By receiving rank, in the order of rows.
    received: Vec<Vec<(RankId, Send)>>,
    /// By source rank, of each row that it sends: its number where it is received.
    rows: Vec<Vec<u32>>,
    /// Whether experts return rows in each round, before combine. Without it what they have returned once stands.
    experts_return: bool,
    /// Whether rows are zeros instead.
    is_blank: bool,
}

/// What is copied between two meetings of all threads.
#[derive(Clone, Copy)]
enum Phase {
    Send,
    CopyOut,
    /// What experts return with direct placement, which is no part of an operator.
    Results,
    GiveBack,
    TakeBack,
}

const PHASES: [Phase; 5] = [Phase::Send, Phase::CopyOut, Phase::Results, Phase::GiveBack, Phase::TakeBack];

/// Bytes of rows from which on it matters how they are copied.
const MEASURED_FROM: u64 = 1 << 20;
/// Turns of each way to copy rows.
const TURNS: usize = 3;
/// Rounds of such a turn: one that finds the caches as the way before has left them, and one of each partition.
const ROUNDS: usize = 3;
/// Rounds from which on a run gains more by the right way than it takes to find it.
pub const WORTH_MEASURING: usize = 20;

/// Copies the rows of batch 0 as often as `rounds` says, on `threads` threads, and takes medians.
pub fn measure(
    memory: &impl Backend,
    (shape, receive): (&Shape, Receive),
    batch: &Batch<'_>,
    ranks: &[RankState],
    threads: usize,
    rounds: usize,
) -> Result<Roofline, Failure> {
    let times = Traffic::new(shape, batch.clone(), receive).times(memory, ranks, threads, rounds)?;
    let median = |operator: fn(&Roofline) -> Duration| median(times.iter().map(operator).collect());
    Ok(Roofline { dispatch: median(|times| times.dispatch), combine: median(|times| times.combine) })
}

/// The memory of a group that copies rows in the way in which bare copies of the case's rows take least time on it: each way
/// by turns, on as many threads as the group has workers. The memory must be new, and is as it was afterwards. On A2, whose rows
/// an interface carries, and of few bytes nothing is measured, and it stays as it is.
///
/// # Errors
/// The system starts no thread.
pub fn fastest(
    memory: SharedMemory,
    case: &Case,
    receive: Receive,
    threads: usize,
) -> Result<SharedMemory, Failure> {
    let shape = &case.shape;
    let mut traffic = Traffic::new(shape, Batch::new(case), receive);
    let rows = traffic.received.iter().map(Vec::len);
    if shape.product() == Product::A2
        || (rows.clone().sum::<usize>() as u64) * shape.payload_bytes() < MEASURED_FROM
    {
        return Ok(memory);
    }
    let returned = |of: u8| {
        let of_rank = |n| RankState::with_returned(vec![of; n * shape.row_bytes() as usize]);
        rows.clone().map(of_rank).collect::<Vec<_>>()
    };
    // Not zeros, which the system does not give memory to.
    let (ranks, blank) = (returned(1), returned(0));
    traffic.experts_return = receive.is_direct();
    let mut group = RankRemap::of(case).over(memory);
    let mut least = row_copy::ALL.map(|way| (Duration::MAX, way));
    for _ in 0..TURNS {
        for (time, way) in &mut least {
            group.inner = group.inner.with_row_copy(*way);
            let turn = traffic.times(&group, &ranks, threads, ROUNDS)?;
            *time = (*time).min(turn.iter().skip(1).map(|round| round.dispatch + round.combine).sum());
        }
    }
    traffic.is_blank = true;
    traffic.times(&group, &blank, threads, 2)?;
    let [first, rest @ ..] = least;
    let (_, way) = rest.into_iter().fold(first, |best, other| if other.0 < best.0 { other } else { best });
    Ok(group.inner.with_row_copy(way))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

impl Traffic<'_> {
    /// The bare copies of so many rounds. As the driver does it: each rank on its worker's thread, a meeting before
    /// each phase, partitions in turn.
    pub fn times(
        &self,
        memory: &impl Backend,
        ranks: &[RankState],
        threads: usize,
        rounds: usize,
    ) -> Result<Vec<Roofline>, Failure> {
        let (arrived, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = |w: usize| {
            let _stop_if_panicking = StopOnPanic(&stop);
            pin(w);
            let mut outcome = Ok(());
            let mut met = 0;
            let mut of_phase = |phase, partition| {
                // As workers wait for each other, so that all begin at once: alone on the machine, a copy is faster. What
                // was copied before is seen behind it.
                met += threads;
                arrived.fetch_add(1, Ordering::AcqRel);
                let must_wait = || arrived.load(Ordering::Acquire) < met && !stop.load(Ordering::Relaxed);
                (1..).take_while(|_| must_wait()).for_each(idle);
                let start = Instant::now();
                let mine = global_rank::all(self.shape).skip(w).step_by(threads);
                for rank in mine.take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let copied = self.copy(memory, phase, partition, (rank, &ranks[rank.index()]));
                    // Even then it goes on: the others wait for it.
                    outcome = outcome.and(copied);
                }
                start.elapsed()
            };
            let partition = |round| if round % 2 == 0 { Partition::P0 } else { Partition::P1 };
            let of_round = |round| PHASES.map(|phase| of_phase(phase, partition(round)));
            let times: Vec<_> = (0..rounds).map(of_round).collect();
            outcome.map(|()| times)
        };
        let by_worker: Vec<Vec<[Duration; PHASES.len()]>> = thread::scope(|scope| -> Result<_, Failure> {
            let _stop_if_panicking = StopOnPanic(&stop);
            let work = &work;
            let start = |w| {
                let started = thread::Builder::new().spawn_scoped(scope, move || work(w));
                // Those that did start are waiting for this one.
                started.inspect_err(|_| stop.store(true, Ordering::Relaxed))
            };
            let workers = (0..threads).map(start).collect::<Result<Vec<_>, _>>();
            let workers = workers.map_err(|e| Failure::Thread(e.to_string()))?;
            let times = workers.into_iter().map(|worker| match worker.join() {
                Ok(Ok(times)) => times,
                // The copies go where the machines just went: a refusal is a defect of this file.
                Ok(Err(fault)) => panic!("bare copy: {fault}"),
                Err(panic) => std::panic::resume_unwind(panic),
            });
            Ok(times.collect())
        })?;
        let slowest = |round: usize, phase: usize| by_worker.iter().map(|times| times[round][phase]).max();
        let both =
            |round, phases: [usize; 2]| phases.into_iter().filter_map(|phase| slowest(round, phase)).sum();
        let of_round = |round| Roofline { dispatch: both(round, [0, 1]), combine: both(round, [3, 4]) };
        Ok((0..rounds).map(of_round).collect())
    }
}

impl<'a> Traffic<'a> {
    /// The rows of `batch`.
    pub fn new(shape: &'a Shape, batch: Batch<'a>, receive: Receive) -> Self {
        let all_ranks = || global_rank::all(shape);
        let sent: Vec<Vec<Send>> = all_ranks().map(|rank| sends_of(shape, &batch, rank)).collect();
        let mut received = vec![Vec::new(); sent.len()];
        for (source, sends) in all_ranks().zip(&sent) {
            for &send in sends {
                let home = global_rank::named(shape.tp_world_size(), source, send.home.rank, false);
                received[home.index()].push((global_rank::ep_rank(shape, source), send));
            }
        }
        for rows in &mut received {
            rows.sort_by_key(|(source, send)| (send.home.local_expert, *source, send.slot));
        }
        let number = |source: RankId, send: &Send| {
            let home = global_rank::named(shape.tp_world_size(), source, send.home.rank, false);
            let key = (send.home.local_expert, global_rank::ep_rank(shape, source), send.slot);
            let rows = &received[home.index()];
            rows.partition_point(|(source, send)| (send.home.local_expert, *source, send.slot) < key) as u32
        };
        let rows = all_ranks().zip(&sent);
        let rows = rows.map(|(rank, sends)| sends.iter().map(|send| number(rank, send)).collect()).collect();
        Self {
            shape,
            receive,
            batch,
            sent,
            received,
            rows,
            experts_return: receive.overwrites(),
            is_blank: false,
        }
    }

    fn copy(
        &self,
        memory: &impl Backend,
        phase: Phase,
        p: Partition,
        (rank, state): (RankId, &RankState),
    ) -> Result<(), Fault> {
        match phase {
            Phase::Send => self.send(memory, p, rank),
            Phase::CopyOut if !self.receive.keeps_rows() => self.copy_out(memory, p, rank),
            Phase::Results if self.experts_return => self.results(memory, (rank, state)),
            Phase::GiveBack if !self.receive.is_direct() => self.give_back(memory, p, rank, state),
            Phase::TakeBack if self.receive.is_direct() => self.pull(memory, rank),
            Phase::TakeBack => self.take_back(memory, p, rank),
            // Rows stay where they are.
            Phase::CopyOut | Phase::Results | Phase::GiveBack => Ok(()),
        }
    }

    fn send(&self, memory: &impl Backend, p: Partition, rank: RankId) -> Result<(), Fault> {
        let mut fabric = memory.fabric(rank, CoreId(0), 0);
        let inputs = self.batch.inputs(rank);
        let payload = self.shape.payload_bytes() as usize;
        let zeros = vec![0; payload];
        let mut sent = self.sent[rank.index()].iter().zip(&self.rows[rank.index()]);
        sent.try_for_each(|(&Send { pair, home, slot }, &number)| {
            let at = if self.receive.is_direct() {
                Parts::of(self.shape, home.rank, self.receive.area(Partition::P0)).row(number)
            } else {
                dispatch_record(self.shape, p, home, global_rank::ep_rank(self.shape, rank), slot)
            };
            let row = if self.is_blank { &zeros } else { inputs.row(self.shape, pair.token) };
            fabric.put(home.rank, at, row.get(..payload).unwrap_or(row), &[])
        })
    }

    fn copy_out(&self, memory: &impl Backend, p: Partition, rank: RankId) -> Result<(), Fault> {
        let mut fabric = memory.fabric(rank, CoreId(0), 0);
        (0..).zip(&self.received[rank.index()]).try_for_each(|(row, (source, send))| {
            let home =
                Home { rank: global_rank::ep_rank(self.shape, rank), local_expert: send.home.local_expert };
            let at = dispatch_record(self.shape, p, home, *source, send.slot);
            fabric.deliver(outputs::expand_x(self.shape, row), at, self.shape.payload_bytes())
        })
    }

    /// As experts return them: all at once.
    fn results(&self, memory: &impl Backend, (rank, state): (RankId, &RankState)) -> Result<(), Fault> {
        let own = global_rank::ep_rank(self.shape, rank);
        let at = Parts::of(self.shape, own, self.receive.area(Partition::P0)).result(0);
        state.with_y(0, |y| memory.fabric(rank, CoreId(0), 0).write(at, y))
    }

    fn give_back(
        &self,
        memory: &impl Backend,
        p: Partition,
        rank: RankId,
        state: &RankState,
    ) -> Result<(), Fault> {
        let mut fabric = memory.fabric(rank, CoreId(0), 0);
        state.with_y(0, |y| {
            let rows = y.chunks_exact(self.shape.row_bytes() as usize);
            let travels = self.shape.result_bytes() as usize;
            rows.zip(&self.received[rank.index()]).try_for_each(|(row, (source, send))| {
                let at = combine_row(self.shape, p, send.pair.token, send.pair.k);
                fabric.put(*source, at, row.get(..travels).unwrap_or(row), &[])
            })
        })
    }

    /// As [`take_back`](Self::take_back), from where experts have left the rows.
    fn pull(&self, memory: &impl Backend, rank: RankId) -> Result<(), Fault> {
        self.take(memory, rank, |fabric, i, send, scratch| {
            let parts = Parts::of(self.shape, send.home.rank, self.receive.area(Partition::P0));
            let at = parts.result(self.rows[rank.index()][i]);
            let row = fabric.peer_bytes(send.home.rank, at, self.shape.result_bytes())?;
            scratch[..row.len()].copy_from_slice(row);
            Ok(())
        })
    }

    /// Reads each returned row into one row of scratch, where a sum would read it, and writes the results.
    fn take_back(&self, memory: &impl Backend, p: Partition, rank: RankId) -> Result<(), Fault> {
        self.take(memory, rank, |fabric, _, send, scratch| {
            let at = combine_row(self.shape, p, send.pair.token, send.pair.k);
            let row = fabric.bytes(at, self.shape.result_bytes())?;
            scratch[..row.len()].copy_from_slice(row);
            Ok(())
        })
    }

    fn take<B: Backend>(
        &self,
        memory: &B,
        rank: RankId,
        read: impl Fn(&B::Fabric<'_>, usize, &Send, &mut [u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut fabric = memory.fabric(rank, CoreId(0), 0);
        let (travels, out) = (self.shape.result_bytes() as usize, self.shape.row_bytes() as usize);
        let mut scratch = vec![0; travels.max(out)];
        let mut token = None;
        for (i, send) in self.sent[rank.index()].iter().enumerate() {
            if let Some(before) = token.replace(send.pair.token).filter(|&before| before != send.pair.token) {
                fabric.write(outputs::x_out(self.shape, before), &scratch[..out])?;
            }
            read(&fabric, i, send, &mut scratch)?;
            core::hint::black_box(&mut scratch);
        }
        match token {
            Some(token) => fabric.write(outputs::x_out(self.shape, token), &scratch[..out]),
            None => Ok(()),
        }
    }
}

/// Every row that a rank sends, in the order of its cores.
fn sends_of(shape: &Shape, batch: &Batch<'_>, rank: RankId) -> Vec<Send> {
    let inputs = batch.inputs(rank);
    let rank = global_rank::ep_rank(shape, rank);
    let mut all = Vec::new();
    for core in (0..shape.aiv_num()).map(CoreId) {
        let share = split::dispatch(shape, rank, core);
        let mut send_status = vec![0; route::destinations(shape) as usize];
        let mut slots = vec![0; route::share_len(&share) as usize];
        route::walk(shape, rank, &inputs, &share, &mut send_status, &mut slots);
        let sends = Sends::new(shape, rank, SendOrder::Staggered, &share);
        all.extend(sends.iter(&inputs, &slots));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{self, generate};
    use crate::presets::preset;
    use veriep_core::layout::outputs::capacity;
    use veriep_core::place::{Place, Tensor};

    #[test]
    fn memory_on_which_copies_were_measured_is_as_new() {
        let (mut config, _) = preset("tiny").unwrap();
        for set in ["h=7168", "bs=48", "hccl_buffsize_mb=64"] {
            config.set(set).unwrap();
        }
        let case = generate(config, generate::Options { seed: 1, ..Default::default() }, "test").unwrap();
        let direct = [Receive::Direct { areas: 1 }, Receive::Overwrite { areas: 1 }];
        for receive in [Receive::Copy, Receive::InPlace].into_iter().chain(direct) {
            let memory = fastest(SharedMemory::new(&case, 1).unwrap(), &case, receive, 2).unwrap();
            for rank in global_rank::all(&case.shape) {
                let fabric = memory.fabric(rank, CoreId(0), 0);
                let is_zero = |bytes: &[u8]| assert!(bytes.iter().all(|&byte| byte == 0), "{receive:?}");
                is_zero(fabric.bytes(Place::window(0), case.shape.window_bytes()).unwrap());
                for tensor in Tensor::ALL {
                    let len = capacity(&case.shape, rank, tensor) as usize;
                    memory.read_output(rank, 0, tensor, len, &mut |bytes| is_zero(bytes));
                }
            }
        }
    }
}
