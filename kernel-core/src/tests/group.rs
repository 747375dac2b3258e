//! Groups for tests: real machines on simulated memory, compared with the reference at the end of every operator, with a duty
//! left out on request. Tests drive them step by step, or by a seed.

use super::domain::{Dice, Tensors, result_row};
use crate::fabric::nic::Nic;
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::inputs::Inputs;
use crate::layout::a2_window::{FLAG1, next_flag_place, tail_flag, window, window_in};
use crate::layout::data::partition_start;
use crate::layout::outputs::ep_recv_counts_bytes;
use crate::layout::state::{DISPATCH_STATUS, Direct, PARTITION, Partition};
use crate::place::{Place, Tensor};
use crate::plan::relay;
use crate::plan::returns::received;
use crate::protocol::{Choices, Machine, Operator, Receive, Stage};
use crate::reference::{self, Dispatched};
use crate::shape::{Protocol, Shape};
use crate::sim::cluster::{AgentStep, Answer, Core, CoreStep, Failure, Planned, World, schedule};
use crate::sim::duty::{Duty, FaultyNic, Held, Words};
use crate::sim::flight::FlightKind;
use crate::sim::memory::Effect;
use crate::sim::seeded::{self, Seeded};
use crate::sim::storage::{Spot, group_sizes};
use crate::sim::{self, Actor, Chooser, Dense, Faulty, FlightId};
use crate::sync::flag::{self, is_window_flag};
use crate::units::{RankId, Token};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::{Deref, DerefMut};

pub(crate) type Memory = sim::Memory<Dense, Seeded>;
pub(crate) type Cluster<'a, C = Seeded> = sim::Cluster<'a, Dense, C>;
/// The experts' result for (round, source, token, k).
pub(crate) type Result = fn(&Shape, usize, u32, u32, u32) -> Vec<u8>;

/// Lets glibc map large vectors anew. A group's memory is megabytes of zeros, of which it touches little; in memory that was
/// freed glibc writes them, which takes half of the time of all tests.
#[allow(unsafe_code)]
pub(crate) fn map_large_vectors() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
        unsafe extern "C" {
            fn mallopt(parameter: i32, value: i32) -> i32;
        }
        const M_MMAP_THRESHOLD: i32 = -3;
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: the C library's declaration, and a parameter that changes no memory that there is. Advice only: sanitizers
        // refuse it.
        ONCE.call_once(|| _ = unsafe { mallopt(M_MMAP_THRESHOLD, 1 << 20) });
    }
}

/// Creates memory of a shape in which effects land as late as cores allow.
pub(crate) fn memory(shape: &Shape) -> Memory {
    map_large_vectors();
    let mut memory = Memory::new(shape, Dense::new(group_sizes(shape)), Seeded::new(seeded::Memory::Late, 1));
    memory.room = 5;
    memory.sources_checked = true;
    memory
}

/// Operations on memory that only tests use.
impl Memory {
    /// Cuts a rank's window short.
    pub(crate) fn truncate_window(&mut self, rank: RankId, len: usize) {
        let spot = Spot { member: rank, batch: 0, at: Place::window(0) };
        self.storage.members[rank.index()][spot.region()].truncate(len);
    }

    pub(crate) fn transfers(&self) -> Vec<FlightId> {
        let transfers = self.flights().filter(|(_, flight)| matches!(flight.kind, FlightKind::Transfer(_)));
        transfers.map(|(id, _)| id).collect()
    }

    /// Returns whether a put to `rank` has not landed.
    pub(crate) fn has_puts_on_their_way_to(&self, rank: RankId) -> bool {
        self.flights().any(|(_, flight)| flight.kind == FlightKind::Put && flight.to == rank)
    }

    /// Returns whether the status areas of all ranks and the flags of blocks are empty; with direct placement, whether
    /// dispatch has left words in one partition only, and all of them there.
    pub(crate) fn no_flag_is_left(&self, shape: &Shape, receive: Receive) -> bool {
        let bytes =
            |rank: u32, at: Place, len| self.read(Spot { member: RankId(rank), batch: 0, at }, len).unwrap();
        let no_block = |rank: u32| {
            [Partition::P0, Partition::P1].into_iter().all(|partition| {
                let start = partition_start(shape, partition) + shape.combine_area();
                let area = bytes(rank, Place::window(start), shape.dispatch_area());
                area.chunks(512).all(|block| block[480..].iter().all(|&b| b == 0))
            })
        };
        let words_are = |rank: u32, p: Partition, word: u64| {
            let sources = (0..shape.ep_world_size()).map(RankId);
            let mut words = sources.flat_map(|s| Direct::ALL.map(|what| what.word(shape, p, s)));
            words.all(|at| self.word(RankId(rank), at) == word)
        };
        let [p, q] = [Partition::P0, Partition::P1];
        (0..shape.ep_world_size()).all(|rank| {
            let left = |from: u64, len| {
                // Many at once: a look at each byte by itself takes most of the time of a test.
                let mut chunks = bytes(rank, Place::state(from), len).chunks(512);
                chunks.any(|chunk| chunk.iter().fold(0, |all, &b| all | b) != 0)
            };
            if receive.is_direct() {
                let told_in = |last, other| words_are(rank, last, flag::ARRIVED) && words_are(rank, other, 0);
                return (told_in(p, q) || told_in(q, p))
                    && [0, PARTITION]
                        .iter()
                        .all(|at| !left(at + DISPATCH_STATUS, PARTITION - DISPATCH_STATUS));
            }
            !left(0, 2 * PARTITION) && (shape.protocol() != Protocol::FullmeshV2 || no_block(rank))
        })
    }
}

/// The inputs of a group, its experts, and the comparison of its outputs with the reference.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    shape: Shape,
    /// The tensors by round, then rank.
    pub(crate) rounds: Vec<Vec<Tensors>>,
    pub(crate) result: Result,
    /// Whether outputs are not compared.
    pub(crate) lenient: bool,
    /// Whether ranks give calls no number, so that cores count them.
    pub(crate) counts: bool,
    /// The number of the first round.
    pub(crate) first_call: u32,
    /// A rank, and the round for which it gives the number after.
    pub(crate) wrong_call: Option<(RankId, usize)>,
    /// Ranks that abstain, and the rounds in which they do.
    pub(crate) abstaining: Vec<(RankId, usize)>,
    /// The duty that is left out.
    pub(crate) duty: Option<Duty>,
    /// Whether A2 clears only the flags that were waited for, as in the seed.
    pub(crate) seed_clears: bool,
    held: RefCell<BTreeMap<Actor, Held>>,
}

/// The effects of one step.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) progress: Progress,
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) effect: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) cluster: Cluster<'static>,
    pub(crate) judge: Judge,
    /// The cores by rank, then the agents.
    pub(crate) actors: Vec<Actor>,
    /// The delay of all effects but messages and transfers.
    pub(crate) near: seeded::Memory,
}

impl Deref for Group {
    type Target = Cluster<'static>;

    fn deref(&self) -> &Cluster<'static> {
        &self.cluster
    }
}

impl DerefMut for Group {
    fn deref_mut(&mut self) -> &mut Cluster<'static> {
        &mut self.cluster
    }
}

/// Picks actors round robin, so that all runs are equal.
pub(crate) fn in_turn() -> impl FnMut(usize) -> usize {
    let mut turn = 0;
    move |n| {
        turn += 1;
        turn % n
    }
}

/// Returns the name of a machine's phase: the innermost, since a part of an operator has phases of its own.
pub(crate) fn phase(machine: Option<&Machine>) -> String {
    let name = machine.map_or("Done", Machine::phase);
    name.rsplit_once('.').map_or(name, |(_, inner)| inner).to_string()
}

/// Returns random inputs without masks for every rank and round.
pub(crate) fn unmasked_rounds(shape: &Shape, rounds: usize, dice: &mut Dice) -> Vec<Vec<Tensors>> {
    let ranks = || (0..shape.ep_world_size()).map(RankId);
    (0..rounds).map(|_| ranks().map(|rank| Tensors::unmasked(shape, rank, dice)).collect()).collect()
}

impl Group {
    /// Creates a group with one round, whose operators the test [begins](Self::begin_dispatch).
    pub(crate) fn new(shape: &Shape, tensors: Vec<Tensors>) -> Self {
        let result: Result = |shape, _, source, token, k| result_row(shape, source, token, k);
        let mut group = Self::of(shape, Vec::from([tensors]), result);
        group.operators.clear();
        group
    }

    /// Creates a group that runs these rounds, one after the other.
    pub(crate) fn of(shape: &Shape, rounds: Vec<Vec<Tensors>>, result: Result) -> Self {
        // A cluster borrows its shape, and tests return groups from functions.
        let shape: &'static Shape = Box::leak(Box::new(shape.clone()));
        let operators = schedule("DC", rounds.len());
        let cluster = Cluster::new(shape, Choices::default(), memory(shape), operators);
        let judge = Judge::new(shape, rounds, result);
        let mut group = Self { cluster, judge, actors: Vec::new(), near: seeded::Memory::Late };
        group.actors = group.cluster.actors().collect();
        group
    }

    /// Sets another schedule for the same number of rounds.
    pub(crate) fn by(mut self, letters: &str) -> Self {
        self.operators = schedule(letters, self.operators.len() / letters.len());
        self
    }

    /// Sets the stage of the hierarchy.
    pub(crate) fn in_stage(mut self, stage: Stage) -> Self {
        self.choices.stage = stage;
        self.actors = self.cluster.actors().collect();
        self
    }

    /// Returns the tensors of the last round.
    pub(crate) fn tensors(&mut self) -> &mut Vec<Tensors> {
        self.judge.rounds.last_mut().unwrap()
    }

    pub(crate) fn core(&mut self, i: usize) -> &mut Core {
        let Actor { member, core } = self.actors[i];
        &mut self.cluster.members[member.index()].cores[core.index()]
    }

    pub(crate) fn phase(&mut self, i: usize) -> String {
        phase(self.core(i).machine.as_ref())
    }

    pub(crate) fn output(&self, rank: RankId, tensor: Tensor) -> &[u8] {
        self.cluster.output(rank.index(), 0, tensor)
    }

    /// Returns the number of cores.
    pub(crate) fn cores(&self) -> usize {
        self.cluster.members.len() * self.shape.aiv_num() as usize
    }

    pub(crate) fn begin_dispatch(&mut self) {
        self.begin(Operator::Dispatch);
    }

    pub(crate) fn begin_combine(&mut self) {
        self.begin(Operator::Combine);
    }

    /// Begins an operator of the last round on all ranks.
    fn begin(&mut self, operator: Operator) {
        let round = self.judge.rounds.len() - 1;
        self.operators.push(Planned::whole(operator, round));
        self.members.iter_mut().for_each(|member| member.returned.resize_with(round + 1, Default::default));
        self.begin_all();
    }

    /// Changes the choices before any actor has taken a step.
    pub(crate) fn change_choices(&mut self, change: impl FnOnce(&mut Choices)) {
        change(&mut self.choices);
        self.members.iter_mut().flat_map(|member| &mut member.cores).for_each(|core| core.machine = None);
        self.begin_all();
    }

    /// Gives every rank its next operator.
    pub(crate) fn begin_all(&mut self) {
        self.cluster.begin(&mut self.judge).unwrap();
    }

    /// Takes an actor's step, by its number; does nothing for a core between operators.
    pub(crate) fn progress(&mut self, i: usize) -> core::result::Result<Option<Progress>, Failure> {
        self.cluster.step(self.actors[i], &mut self.judge)
    }

    /// Takes an actor's step, and returns whether it moved.
    pub(crate) fn act(&mut self, i: usize) -> core::result::Result<bool, Failure> {
        Ok(matches!(self.progress(i)?, Some(Progress::Stepped | Progress::Done)))
    }

    /// Steps core number `i` once; a core that has ended its operator returns done.
    pub(crate) fn step(&mut self, i: usize) -> core::result::Result<Step, ProtocolError> {
        let before = self.phase(i);
        let progress = match self.progress(i) {
            Ok(progress) => progress.unwrap_or(Progress::Done),
            Err(Failure::Core(_, _, error)) => return Err(error),
            Err(other) => panic!("{other:?} in {:?}", self.judge.rounds),
        };
        let effect = self.memory.take_effects().last().map(Effect::to_string);
        Ok(Step { progress, before, after: self.phase(i), effect })
    }

    /// Steps all cores until all are done; `pick` chooses the next among the `n` unfinished.
    pub(crate) fn run(
        &mut self,
        mut pick: impl FnMut(usize) -> usize,
        mut seen: impl FnMut(Actor, &Step),
    ) -> core::result::Result<(), ProtocolError> {
        let mut running: Vec<usize> = (0..self.cores()).collect();
        running.retain(|&i| self.core(i).machine.is_some());
        let mut idle = 0;
        while !running.is_empty() {
            let at = pick(running.len());
            let step = self.step(running[at])?;
            seen(self.actors[running[at]], &step);
            idle = if step.progress == Progress::Stepped { 0 } else { idle + 1 };
            assert!(idle < 10_000, "hang: {:?}", self.members);
            if step.progress == Progress::Done {
                running.remove(at);
            }
        }
        Ok(())
    }

    /// Leaves out a duty.
    pub(crate) fn without(mut self, duty: Duty) -> Self {
        self.memory.broken = duty.broken();
        self.memory.rewrites = true;
        // An effect that was held back lands in a step of another kind.
        self.checked = false;
        self.judge.duty = Some(duty);
        self
    }

    /// Chooses the delay `far` for messages and transfers.
    pub(crate) fn choose(&mut self, far: seeded::Memory, seed: u64) {
        let chooser = Seeded::with(self.near, far, seed);
        self.memory.choose(chooser);
    }

    /// Runs the rest of the schedule as a seed decides.
    pub(crate) fn play(&mut self, far: seeded::Memory, seed: u64) -> core::result::Result<(), Failure> {
        self.choose(far, seed);
        let running: Vec<_> = (0..self.cores()).filter(|&i| self.core(i).machine.is_some()).collect();
        for i in running {
            let actor = self.actors[i];
            self.memory.chooser.may_step(actor);
        }
        self.cluster.run(&mut self.judge)?;
        self.memory.settle();
        let across = |round: usize| {
            let of = |rank| {
                let ids = self.judge.given(round, rank).expert_ids;
                relay::across(self.shape, rank, ids).count() as u64
            };
            self.judge.ranks().map(of).sum::<u64>()
        };
        if self.shape.protocol() == Protocol::Hierarchy && self.choices.stage == Stage::Three {
            // Every token crosses once to each server that needs it, and so does every partial sum.
            let rows = (0..self.judge.rounds.len()).map(across).sum::<u64>();
            assert_eq!(self.memory.rows_sent, 2 * rows);
        }
        Ok(())
    }

    /// Lets actors move until none can that is awake.
    pub(crate) fn run_without(
        &mut self,
        asleep: impl Fn(&Self, Actor) -> bool,
    ) -> core::result::Result<(), Failure> {
        self.begin_all();
        let mut idle = 0;
        // Quiet denies when it is first called.
        while idle < 3 {
            idle += 1;
            for i in 0..self.cores() {
                if !asleep(self, self.actors[i]) && self.act(i)? {
                    idle = 0;
                }
            }
        }
        Ok(())
    }

    /// Returns the places in the windows of any rank of A2 at which a flag could be read and that hold one.
    pub(crate) fn flags_left(&self) -> Vec<(RankId, Place)> {
        let shape = self.shape;
        let ranks = || (0..shape.ep_world_size()).map(RankId);
        let mut left = Vec::new();
        for (rank, peer) in ranks().flat_map(|rank| ranks().map(move |peer| (rank, peer))) {
            for half in [Partition::P0, Partition::P1] {
                let mut at = next_flag_place(shape, 0);
                while at < shape.rank_window() {
                    let place = window_in(shape, half, peer, at);
                    if is_window_flag(self.memory.word(rank, place)) {
                        left.push((rank, place));
                    }
                    at = next_flag_place(shape, at + 1);
                }
            }
        }
        left
    }
}

impl<C: Chooser> World<Dense, C> for Judge {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        let shift = u32::from(self.wrong_call == Some((member, round)));
        let call = (!self.counts).then(|| self.first_call + round as u32 + shift);
        Inputs { call, ..self.given(round, member) }
    }

    fn begins(
        &mut self,
        cluster: &mut Cluster<'_, C>,
        i: usize,
        planned: Planned,
    ) -> core::result::Result<(), Failure> {
        if self.seed_clears {
            self.allow_seed_clears(cluster, i, planned);
        }
        Ok(())
    }

    fn ended(
        &mut self,
        cluster: &mut Cluster<'_, C>,
        i: usize,
        planned: Planned,
    ) -> core::result::Result<(), Failure> {
        let shape = cluster.shape;
        match planned.operator {
            Operator::Dispatch => {
                if !self.lenient {
                    self.check_dispatch(cluster, i, planned.round)?;
                }
                let inputs = |source: RankId| self.given(planned.round, source);
                let rows = received(shape, RankId(i as u32), inputs);
                let result = |row: crate::plan::returns::Received| {
                    (self.result)(shape, planned.round, row.source.0, row.pair.token.0, row.pair.k)
                };
                let y = rows.flat_map(result).collect();
                cluster.members[i].returned[planned.round] = cluster.returned(i, planned.round, y);
            }
            Operator::Combine if self.given(planned.round, RankId(i as u32)).abstains() => {}
            Operator::Combine if !self.lenient => self.check_combine(cluster, i, planned.round)?,
            Operator::Combine => {}
        }
        Ok(())
    }

    fn through(&self, actor: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        let (Some(duty), shape) = (&self.duty, &self.shape) else { return step(fabric) };
        let mut held = self.held.borrow_mut();
        let held = held.entry(actor).or_default();
        step(&mut Faulty::new(fabric, duty, shape, actor, held).begin()?)
    }

    fn through_nic(&self, _: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        let (Some(duty), shape) = (&self.duty, &self.shape) else { return step(nic) };
        step(&mut FaultyNic { inner: nic, duty, shape })
    }
}

impl Judge {
    pub(crate) fn new(shape: &Shape, rounds: Vec<Vec<Tensors>>, result: Result) -> Self {
        let (duty, held) = (None, RefCell::default());
        Self {
            shape: shape.clone(),
            rounds,
            result,
            lenient: false,
            counts: false,
            first_call: 0,
            wrong_call: None,
            abstaining: Vec::new(),
            duty,
            seed_clears: false,
            held,
        }
    }

    fn ranks(&self) -> impl Iterator<Item = RankId> {
        (0..self.shape.ep_world_size()).map(RankId)
    }

    /// Returns what a rank brings to a round.
    fn given(&self, round: usize, rank: RankId) -> Inputs<'_> {
        if self.abstaining.contains(&(rank, round)) {
            return Inputs::abstaining(None);
        }
        self.rounds[round][rank.index()].inputs()
    }

    fn oracle<T>(&self, shape: &Shape, round: usize, ask: impl FnOnce(&reference::Cluster<'_>) -> T) -> T {
        let inputs: Vec<_> = self.ranks().map(|rank| self.given(round, rank)).collect();
        ask(&reference::Cluster { shape, ranks: &inputs, elastic_info: None, expert_map: None })
    }

    fn check_dispatch<C: Chooser>(
        &self,
        cluster: &Cluster<'_, C>,
        i: usize,
        round: usize,
    ) -> core::result::Result<(), Failure> {
        let want: Dispatched = self.oracle(cluster.shape, round, |oracle| oracle.dispatch(RankId(i as u32)));
        for tensor in [
            Tensor::EpRecvCounts,
            Tensor::ExpertTokenNums,
            Tensor::AssistInfo,
            Tensor::ExpandIdx,
            Tensor::DynamicScales,
            Tensor::ExpandScales,
        ] {
            compare(cluster, i, round, tensor, &want.bytes(tensor))?;
        }
        // Machines do not change the bytes after the counts.
        let behind = ep_recv_counts_bytes(cluster.shape, cluster.members[i].ep) as usize;
        let behind = &cluster.output(i, round, Tensor::EpRecvCounts)[behind..];
        same(behind, &alloc::vec![0; behind.len()], || format!("what follows the counts of rank {i}"))?;
        let rows = want.expand_x.len() / cluster.shape.payload_bytes() as usize;
        let table = cluster.output(i, round, Tensor::RowTable).to_vec();
        let what = || format!("rows of rank {i} in round {round}");
        let seen = cluster
            .rows(i, round, rows, &table)
            .map_err(|fault| Failure::Wrong(format!("{}: {fault}", what())))?;
        same(&seen, &want.expand_x, what)
    }

    fn check_combine<C: Chooser>(
        &self,
        cluster: &Cluster<'_, C>,
        i: usize,
        round: usize,
    ) -> core::result::Result<(), Failure> {
        let shape = cluster.shape;
        let returned = &mut |token: Token, k, row: &mut Vec<u8>| {
            *row = (self.result)(shape, round, i as u32, token.0, k);
        };
        self.oracle(shape, round, |oracle| {
            let rank = RankId(i as u32);
            if self.given(round, rank).add_rms_norm.is_none() {
                return compare(cluster, i, round, Tensor::XOut, &oracle.combine(rank, returned));
            }
            let want = oracle.combine_add_rms_norm(rank, returned);
            compare(cluster, i, round, Tensor::XOut, &want.x_out)?;
            compare(cluster, i, round, Tensor::X, &want.x)?;
            let rstd = cluster.output(i, round, Tensor::Rstd).as_chunks().0;
            let rstd: Vec<_> = rstd.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            assert_eq!(rstd.len(), want.rstd.len());
            for (seen, range) in rstd.iter().zip(&want.rstd) {
                assert!(range.holds(*seen), "rstd {seen} of rank {rank}, {range:?}");
            }
            compare(cluster, i, round, Tensor::Y, &oracle.y(rank, &want, &rstd))
        })
    }

    /// Returns the places of the flags that the operator waits for, which the seed's scheme would clear.
    fn allow_seed_clears<C: Chooser>(&mut self, cluster: &Cluster<'_, C>, i: usize, planned: Planned) {
        let (shape, rank) = (cluster.shape, RankId(i as u32));
        let half = Partition::of(cluster.members[i].ended as u64);
        let mut places = match self.duty.take() {
            Some(Duty::Clear(Words::AllBut(places))) => places,
            _ => Default::default(),
        };
        places.retain(|&(other, _)| other != rank);
        for peer in (0..shape.ep_world_size()).map(RankId) {
            let (kind, receiver, source) = match planned.operator {
                Operator::Dispatch => (Operator::Dispatch, rank, peer),
                Operator::Combine => (Operator::Combine, peer, rank),
            };
            let inputs = |source: RankId| self.given(planned.round, source);
            let rows = received(shape, receiver, inputs).filter(|row| row.source == source).count();
            let start = window(shape, half, peer);
            places.insert((rank, start + tail_flag(shape, kind, rows as u32)));
            if kind == Operator::Dispatch {
                places.insert((rank, start + FLAG1));
            }
        }
        self.duty = Some(Duty::Clear(Words::AllBut(places)));
    }
}

fn compare<C: Chooser>(
    cluster: &Cluster<'_, C>,
    i: usize,
    round: usize,
    tensor: Tensor,
    want: &[u8],
) -> core::result::Result<(), Failure> {
    let seen = &cluster.output(i, round, tensor)[..want.len()];
    same(seen, want, || format!("{} of rank {i} in round {round}", tensor.name()))
}

fn same(seen: &[u8], want: &[u8], what: impl FnOnce() -> String) -> core::result::Result<(), Failure> {
    let wrong = seen.iter().zip(want).position(|(a, b)| a != b);
    let ends = |at: usize| format!("{} differs at byte {at}: {seen:?}, not {want:?}", what());
    wrong.map_or(Ok(()), |at| Err(Failure::Wrong(ends(at))))
}
