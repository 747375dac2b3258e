//! The bare copies of a round: what its machines copy, between the same places and by the same threads, without flags,
//! machines or sums. What a round takes beyond them is the protocol's and the cache's.

mod listing;

use crate::backend::no_payload::NoPayload;
use crate::backend::rank_remap::RankRemap;
use crate::backend::shared::SharedMemory;
use crate::backend::{Backend, Layer, row_copy};
use crate::batch::Batch;
use crate::case::Case;
use crate::driver::idle;
use crate::driver::pin::pin;
use crate::driver::schedule::Schedule;
use crate::driver::threads::{StopOnPanic, Workers};
use crate::driver::{Failure, Options, RankState};
use crate::error::Error;
use crate::global_rank;
use crate::group::{self, of_failure};
use crate::world::World;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use listing::{Copied, Listing, Phase, Source};
use std::thread;
use std::time::Instant;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::protocol::{Choices, Operator, Receive};
use veriep_core::shape::{Product, Protocol};
use veriep_core::units::{CoreId, RankId};

/// The bare copies' times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Roofline {
    /// Of all that dispatch copies.
    pub dispatch: Duration,
    /// Of all that combine copies.
    pub combine: Duration,
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
    ranks: Vec<RankState>,
    /// Whether experts write their results in each round, before combine. Without it what they have written once stands.
    experts_write: bool,
    /// Whether zeros are copied instead.
    is_blank: bool,
}

/// How long a group of one thread may stand still while its copies are listed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of rows from which on it matters how they are copied.
const MEASURED_FROM: u64 = 1 << 20;
/// Turns of each way to copy rows.
const TURNS: usize = 3;
/// Rounds of such a turn: one that finds the caches as the way before has left them, and one of each partition.
const ROUNDS: usize = 3;
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
        let batch = Batch::new(case);
        let memory = SharedMemory::new(case, 1).map_err(Error::of_memory)?;
        let memory = RankRemap::of(case).over(memory);
        let mut ranks: Vec<_> = global_rank::all(&case.shape).map(|_| RankState::new(1)).collect();
        let options = Options { choices, in_step: true, rows_unseen: true, ..Options::default() };
        let (of, ranks_of) = ((case, &batch, options), ranks.as_mut_slice());
        let rounds = match case.shape.product() {
            Product::A3 => listed(NoPayload { crossing: None }.over(&memory), of, ranks_of)?,
            // Flags stand among the rows.
            Product::A2 => listed(memory, of, ranks_of)?,
        };
        let receive = choices.receive;
        Ok(Self { case, receive, batch, rounds, ranks, experts_write: receive.overwrites(), is_blank: false })
    }

    /// Bytes that dispatch sends itself, without an agent.
    fn bytes_sent(&self) -> u64 {
        let of_dispatch = self.rounds[0].iter().filter(|phase| phase.operator == Some(Operator::Dispatch));
        let copies = of_dispatch.flat_map(|phase| phase.copies.iter().flatten());
        copies.filter(|(copied, _)| matches!(copied, Copied::Put { .. })).map(|(_, len)| len).sum()
    }

    /// The memory of a group that copies rows in the way in which these copies take least time on it: each way by turns, on as
    /// many threads as the group has workers. The memory must be new, and is as it was afterwards. Of few bytes, and where
    /// agents carry all rows, nothing is measured, and it stays as it is.
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
                let turn = self.times(&group, threads, ROUNDS)?;
                *time = (*time).min(turn.iter().flat_map(|times| &times[1..]).sum());
            }
        }
        self.blank(&group, threads)?;
        self.experts_write = experts_write;
        let [first, rest @ ..] = least;
        let (_, way) =
            rest.into_iter().fold(first, |best, other| if other.0 < best.0 { other } else { best });
        Ok(group.inner.with_row_copy(way))
    }

    /// Writes zeros wherever these copies have written, in both partitions. Where flags stand among the rows, a group that is
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
        let unit = Schedule::parse("DC")?;
        let (arrived, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = |w: usize| {
            let _stop_if_panicking = StopOnPanic(&stop);
            pin(w);
            let mut outcome = Ok(());
            let mut met = 0;
            let mut of_phase = |phase: &Phase| {
                // As workers wait for each other, so that all begin at once: alone on the machine, a copy is faster. What
                // was copied before is seen behind it.
                met += threads;
                arrived.fetch_add(1, Ordering::AcqRel);
                let must_wait = || arrived.load(Ordering::Acquire) < met && !stop.load(Ordering::Relaxed);
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
            let times: Vec<_> = (0..rounds).map(of_round).collect();
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
        let slowest = |round: usize, phase: usize| by_worker.iter().map(|times| times[round][phase]).max();
        let all = |round, operator| {
            let of = self.phases(round).enumerate().filter(|(_, phase)| phase.operator == Some(operator));
            of.filter_map(|(phase, _)| slowest(round, phase)).sum()
        };
        Ok([Operator::Dispatch, Operator::Combine]
            .map(|operator| (0..rounds).map(|round| all(round, operator)).collect()))
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
        let (mut fabric, mut nic) = (memory.fabric(rank, CoreId(0), 0), memory.nic(rank));
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

/// Lists what two rounds copy, behind one that has filled what experts return.
fn listed<B: Backend>(
    memory: B,
    (case, batch, options): (&Case, &Batch<'_>, Options),
    ranks: &mut [RankState],
) -> Result<[Vec<Phase>; 2], Error> {
    let of = (&case.shape, batch, options);
    let world = World::alone(global_rank::count(&case.shape), 1);
    let alone = Workers { count: 1, deadline: PATIENCE, ..Workers::default() };
    group::repeat(&memory, of, ranks, (&world, &alone), 1)?;
    let listing = Listing::new(&case.shape, ranks, |rank| batch.inputs(rank));
    let memory = listing.over(memory);
    group::repeat(&memory, of, ranks, (&world, &alone), 2)?;
    Ok(memory.layer.phases())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Pages;
    use crate::generate::{self, generate};
    use crate::presets::preset;
    use veriep_core::fabric::Fabric;
    use veriep_core::layout::outputs::capacity;
    use veriep_core::place::{Place, Tensor};
    use veriep_core::protocol::Stage;

    fn case(set: &[&str]) -> Case {
        let (mut config, _) = preset("tiny").unwrap();
        set.iter().for_each(|set| config.set(set).unwrap());
        generate(config, generate::Options { seed: 1, ..Default::default() }, "test").unwrap()
    }

    /// Bytes that an operator copies in each of its phases, of all ranks together.
    fn bytes(traffic: &Traffic<'_>, round: usize, operator: Operator) -> Vec<u64> {
        let phases = traffic.rounds[round].iter().filter(|phase| phase.operator == Some(operator));
        phases.map(|phase| phase.copies.iter().flatten().map(|(_, len)| len).sum()).collect()
    }

    #[test]
    fn rows_are_listed_once_for_each_time_that_they_are_copied() {
        let case = case(&["h=1024", "bs=16", "hccl_buffsize_mb=16"]);
        let sent: u64 = case.ranks.iter().map(|rank| rank.expert_ids.len() as u64).sum();
        let (rows, sums) = (sent * 2048, 2 * 16 * 2048);
        for (receive, dispatch, combine) in [
            (Receive::Copy, vec![rows, rows], vec![rows, rows + sums]),
            (Receive::InPlace, vec![rows], vec![rows, rows + sums]),
            (Receive::Direct { areas: 1 }, vec![rows], vec![rows + sums]),
        ] {
            let choices = Choices { receive, ..Choices::default() };
            let traffic = Traffic::new(&case, choices).unwrap();
            for round in [0, 1] {
                assert_eq!(bytes(&traffic, round, Operator::Dispatch), dispatch, "{receive:?}");
                assert_eq!(bytes(&traffic, round, Operator::Combine), combine, "{receive:?}");
            }
        }
    }

    #[test]
    fn rows_on_a2_go_through_an_agent_and_a_relay() {
        let a2 = ["product=a2", "ep_world_size=16", "moe_expert_num=16", "h=1024", "hccl_buffsize_mb=200"];
        for (comm_alg, dispatch, combine) in [
            // Gathered in the own window, posted, copied out or summed.
            ("comm_alg=fullmesh", 3, 3),
            // To a relay, from there to the experts, copied out; back to a relay, summed there, and summed by the owner.
            ("comm_alg=hierarchy", 3, 3),
        ] {
            let case = case(&[&a2[..], &[comm_alg]].concat());
            let traffic = Traffic::new(&case, Choices::default()).unwrap();
            assert_eq!(bytes(&traffic, 0, Operator::Dispatch).len(), dispatch, "{comm_alg}");
            assert_eq!(bytes(&traffic, 0, Operator::Combine).len(), combine, "{comm_alg}");
        }
    }

    #[test]
    fn a_message_to_a_relay_reads_its_token_unless_it_is_quantised() {
        for (quant_mode, operator, reads) in [
            ("quant_mode=0", Operator::Dispatch, true),
            ("quant_mode=2", Operator::Dispatch, false),
            ("quant_mode=0", Operator::Combine, false),
        ] {
            let servers =
                ["product=a2", "comm_alg=hierarchy", "ep_world_size=16", "moe_expert_num=16", "h=1024"];
            let case = case(&[&servers[..], &["hccl_buffsize_mb=200", quant_mode]].concat());
            let traffic = Traffic::new(&case, Choices::default()).unwrap();
            let phases = traffic.rounds[0].iter().filter(|phase| phase.operator == Some(operator));
            let copies = phases.flat_map(|phase| phase.copies.iter().flatten());
            let tokens: Vec<_> = copies
                .filter_map(|(copied, _)| match copied {
                    Copied::Sent { from, .. } => Some(matches!(from, Source::Token(_))),
                    _ => None,
                })
                .collect();
            assert!(!tokens.is_empty(), "{quant_mode} {operator:?}");
            assert!(tokens.iter().all(|&token| token == reads), "{quant_mode} {operator:?}: {tokens:?}");
        }
    }

    #[test]
    fn memory_on_which_copies_were_measured_is_as_new() {
        const ZEROS: [u8; 4096] = [0; 4096];
        let servers = ["product=a2", "comm_alg=hierarchy", "ep_world_size=16", "moe_expert_num=16", "h=7168"];
        let servers = case(&[&servers[..], &["hccl_buffsize_mb=105"]].concat());
        assert!(Traffic::new(&servers, Choices::default()).unwrap().bytes_sent() > MEASURED_FROM);
        let case = case(&["h=7168", "bs=48", "hccl_buffsize_mb=9"]);
        let direct = [Receive::Direct { areas: 1 }, Receive::Overwrite { areas: 1 }];
        let ways = [Receive::Copy, Receive::InPlace].into_iter().chain(direct);
        let of_way = |receive| (&case, Choices { receive, ..Choices::default() });
        let in_stage = |stage| (&servers, Choices { stage, ..Choices::default() });
        for (case, choices) in ways.map(of_way).chain([Stage::Two, Stage::Three].map(in_stage)) {
            // Zeros that nobody has written are read fastest in large pages.
            let memory = SharedMemory::with_pages(case, 1, Pages::Huge).unwrap();
            let memory = fastest(memory, (case, choices), 2).unwrap();
            for rank in global_rank::all(&case.shape) {
                let fabric = memory.fabric(rank, CoreId(0), 0);
                let is_zero = |bytes: &[u8]| {
                    assert!(
                        bytes.chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()]),
                        "{choices:?}"
                    );
                };
                is_zero(fabric.bytes(Place::window(0), case.shape.window_bytes()).unwrap());
                is_zero(fabric.bytes(Place::window_out(0), case.shape.window_out_bytes()).unwrap());
                for tensor in Tensor::ALL {
                    let len = capacity(&case.shape, rank, tensor) as usize;
                    memory.read_output(rank, 0, tensor, len, &mut |bytes| is_zero(bytes));
                }
            }
        }
    }
}
