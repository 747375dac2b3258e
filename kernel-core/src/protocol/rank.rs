//! A rank whose cores one processor steps in turn.

use super::halves::IN_TP_DOMAIN;
use super::kit::{SHORT_BYTES, given, take};
use super::{
    Choices, CombineInputs, Context, Env, Gates, Machine, Operator, Ran, Refused, Run, Scratch, Ticket,
};
use super::{scratch_bytes, scratch_words};
use crate::fabric::{Fabric, ProtocolError, Terms};
use crate::inputs::Inputs;
use crate::shape::Shape;
use crate::units::{CoreId, RankId};
use crate::vector::Vector;

const TOO_EARLY: ProtocolError = given("an operator begins before all cores have ended the one before");
const NOT_SENT: ProtocolError = given("an operator is set aside whose sending half has not ended");
const OTHER_RANK: ProtocolError = given("an operator goes on that another rank has set aside");

/// A core of the rank.
#[derive(Clone, Debug)]
struct Seat<V> {
    env: Env<V>,
    machine: Machine,
    /// Whether it has ended the operator.
    is_done: bool,
}

/// How much of an operator a rank takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// All of it, or what follows its sending half.
    Rest,
    /// Its sending half.
    Sends,
}

/// An operator of a rank between its halves. Its scratch is used by no other operator before it has ended.
#[derive(Debug)]
pub struct Sent<const CORES: usize> {
    rank: RankId,
    ticket: Ticket,
    machines: heapless::Vec<Machine, CORES>,
}

/// A rank whose cores, at most `CORES`, one processor steps in turn. It owes its machines the join, and keeps it: an operator
/// begins when every core has ended the one before, and the [gates](Gates) of the rank allow it. A driver runs it like a
/// [`Machine`], and steps the rank's agent, if there is one, beside it.
///
/// An operator may be taken in two halves: [`send`](Self::send), [`run`](Self::run) until that is done,
/// [`set_aside`](Self::set_aside); later [`resume`](Self::resume) and `run` again. Other operators may run between.
#[derive(Clone, Debug)]
pub struct Rank<'s, V, const CORES: usize> {
    shape: &'s Shape,
    rank: RankId,
    gates: Gates,
    /// The operator that runs.
    ticket: Option<Ticket>,
    part: Part,
    seats: heapless::Vec<Seat<V>, CORES>,
}

impl<'s, V: Vector + Clone, const CORES: usize> Rank<'s, V, CORES> {
    /// Creates all cores of `rank`, by the arguments of [`Env::new`]. They have ended their operators.
    ///
    /// # Errors
    /// One of the cores is refused, or the shape has more than `CORES` of them.
    pub fn new(
        shape: &'s Shape,
        rank: RankId,
        choices: Choices,
        terms: Terms,
        vector: V,
    ) -> Result<Self, Refused> {
        let mut seats = heapless::Vec::new();
        for core in (0..shape.aiv_num()).map(CoreId) {
            let env = Env::new(shape, rank, core, choices, terms, vector.clone())?;
            let machine = Machine::begin(Operator::Dispatch, &env);
            let seat = Seat { env, machine, is_done: true };
            seats.push(seat).map_err(|_| Refused::Cores { cores: shape.aiv_num() })?;
        }
        let gates = Gates::new(shape, &choices);
        Ok(Self { shape, rank, gates, ticket: None, part: Part::Rest, seats })
    }

    /// Begins an operator on all cores. A combine is of the oldest dispatch.
    ///
    /// # Errors
    /// One of them has not ended the operator before, or the gates refuse it; nothing is begun.
    pub fn begin(&mut self, operator: Operator) -> Result<(), ProtocolError> {
        self.begin_part(operator, Part::Rest)
    }

    /// Begins the sending half of an operator on all cores.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn send(&mut self, operator: Operator) -> Result<(), ProtocolError> {
        self.begin_part(operator, Part::Sends)
    }

    fn begin_part(&mut self, operator: Operator, part: Part) -> Result<(), ProtocolError> {
        if !self.is_done() || self.ticket.is_some() {
            return Err(TOO_EARLY);
        }
        if part == Part::Sends && self.shape.tp_world_size() > 1 {
            return Err(IN_TP_DOMAIN);
        }
        self.ticket = Some(self.gates.begin(operator, None)?);
        self.part = part;
        for Seat { env, machine, is_done } in &mut self.seats {
            (*machine, *is_done) = (Machine::begin(operator, env), false);
        }
        Ok(())
    }

    /// Sets an operator aside whose sending half all cores have ended. Another one may begin then.
    ///
    /// # Errors
    /// It has not been sent; nothing has changed.
    pub fn set_aside(&mut self) -> Result<Sent<CORES>, ProtocolError> {
        if self.part != Part::Sends || !self.is_done() {
            return Err(NOT_SENT);
        }
        let ticket = self.ticket.take().ok_or(NOT_SENT)?;
        let mut machines = heapless::Vec::new();
        // There are as many seats as there is room for. Collecting would have a path to a panic.
        self.seats.iter().for_each(|seat| _ = machines.push(seat.machine.clone()));
        Ok(Sent { rank: self.rank, ticket, machines })
    }

    /// Goes on with an operator that was set aside, to its end. `fabric` is the view of any core.
    ///
    /// # Errors
    /// A core has not ended the operator before, the operator is another rank's, or a core's own words hold what no core writes. Nothing
    /// has begun, but the operator cannot be resumed any more.
    pub fn resume<F: Fabric + ?Sized>(&mut self, sent: Sent<CORES>, fabric: &F) -> Result<(), ProtocolError> {
        if !self.is_done() || self.ticket.is_some() {
            return Err(TOO_EARLY);
        }
        if sent.rank != self.rank || sent.machines.len() != self.seats.len() {
            return Err(OTHER_RANK);
        }
        let mut machines = sent.machines;
        for (seat, machine) in self.seats.iter().zip(&mut machines) {
            machine.resume(seat.env.on(self.shape)?, fabric)?;
        }
        for (seat, machine) in self.seats.iter_mut().zip(&machines) {
            (seat.machine, seat.is_done) = (machine.clone(), false);
        }
        (self.ticket, self.part) = (Some(sent.ticket), Part::Rest);
        Ok(())
    }

    /// Returns whether all cores have ended the operator, or its sending half.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.seats.iter().all(|seat| seat.is_done)
    }

    /// Takes at most `budget` steps of each core that has not ended the operator or its sending half. The rank waits when no core
    /// could move.
    ///
    /// One view of the memory serves all cores, and their scratch is one: as many times [`scratch_words`] and
    /// [`scratch_bytes`] as there are cores, which no one else uses before the operator has ended.
    pub fn run<F: Fabric + ?Sized>(
        &mut self,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        combine_inputs: &CombineInputs<'_>,
        scratch: Scratch<'_>,
        budget: u32,
    ) -> Ran {
        let (shape, part, Scratch { mut words, mut row }) = (self.shape, self.part, scratch);
        let (mut steps, mut has_moved, mut missing) = (0u32, false, None);
        for seat in &mut self.seats {
            let ran = match cut(shape, &mut words, &mut row) {
                _ if seat.is_done => continue,
                Ok(scratch) => seat.run(shape, part, fabric, inputs, combine_inputs, scratch, budget),
                Err(error) => Ran::failed(error),
            };
            steps = steps.saturating_add(ran.steps);
            match ran.end {
                Ok(Run::Done) => (seat.is_done, has_moved) = (true, true),
                Ok(Run::Waiting(wait)) => missing = missing.or(Some(wait)),
                Ok(Run::Budget) => {}
                Err(error) => return Ran { steps, end: Err(error) },
            }
        }
        let end = match missing {
            _ if self.is_done() => Run::Done,
            Some(wait) if steps == 0 && !has_moved => Run::Waiting(wait),
            _ => Run::Budget,
        };
        if end == Run::Done
            && part == Part::Rest
            && let Some(ticket) = self.ticket.take()
        {
            self.gates.end(ticket);
        }
        Ran { steps, end: Ok(end) }
    }
}

impl<V: Vector> Seat<V> {
    #[allow(clippy::too_many_arguments, reason = "those of `Rank::run`, and what each core has")]
    fn run<F: Fabric + ?Sized>(
        &mut self,
        shape: &Shape,
        part: Part,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        combine_inputs: &CombineInputs<'_>,
        scratch: Scratch<'_>,
        budget: u32,
    ) -> Ran {
        match self.env.on(shape) {
            Ok(core) => {
                let cx = &mut Context { core, fabric, inputs, combine_inputs, scratch };
                match part {
                    Part::Rest => self.machine.run(cx, budget),
                    Part::Sends => self.machine.send(cx, budget),
                }
            }
            Err(error) => Ran::failed(error),
        }
    }
}

/// Takes the scratch of the next core.
fn cut<'u>(
    shape: &Shape,
    words: &mut &'u mut [u32],
    row: &mut &'u mut [u8],
) -> Result<Scratch<'u>, ProtocolError> {
    let words = take(words, scratch_words(shape))?;
    let row = row.split_off_mut(..scratch_bytes(shape)).ok_or(SHORT_BYTES)?;
    Ok(Scratch { words, row })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Capabilities, Flag};
    use crate::layout::outputs::capacity;
    use crate::place::Tensor;
    use crate::sim::storage::{group_sizes, region_sizes};
    use crate::sim::{Dense, Memory, Seeded, seeded};
    use crate::testing::domain::{Domain, PAIR};
    use crate::vector::Portable;
    use alloc::vec;
    use alloc::vec::Vec;

    const RANKS: u32 = 2;

    type Two<'s> = Rank<'s, Portable, 2>;

    fn new<const CORES: usize>(shape: &Shape, rank: u32) -> Result<Rank<'_, Portable, CORES>, Refused> {
        Rank::new(shape, RankId(rank), Choices::default(), Terms::new(Capabilities::all()), Portable)
    }

    fn memory(shape: &Shape) -> Memory<Dense, Seeded> {
        Memory::new(shape, Dense::new(group_sizes(shape)), Seeded::new(seeded::Memory::Strong, 1))
    }

    fn scratch_of(shape: &Shape, cores: usize) -> (Vec<u32>, Vec<u8>) {
        (vec![0; cores * scratch_words(shape)], vec![0; cores * scratch_bytes(shape)])
    }

    #[test]
    fn a_rank_keeps_the_join_and_its_tokens_come_back() {
        let shape = &Domain { r: RANKS.into(), e: 4, k: 2, h: 4, bs: 2, cores: 2, ..PAIR }.shape();
        let mut memory = memory(shape);
        let mut ranks: Vec<Two<'_>> = (0..RANKS).map(|rank| new(shape, rank).unwrap()).collect();
        let mut scratch = [(); RANKS as usize].map(|()| scratch_of(shape, 2));
        let x: Vec<u8> = (0x3F80u16..0x3F88).flat_map(u16::to_le_bytes).collect();
        let inputs =
            Inputs { x: &x, expert_ids: &[0, 3, 2, 1], expert_scales: &[0.5; 4], ..Inputs::default() };
        let mut run = |ranks: &mut [Two<'_>], rank: usize| {
            let number = RankId(rank as u32);
            let of = |tensor| memory.output(number, 0, tensor, capacity(shape, number, tensor)).to_vec();
            let given = Tensor::ALL.map(of);
            let output = |tensor: Tensor| given[tensor as usize].as_slice();
            // The experts return the rows unchanged.
            let combine_inputs = CombineInputs::of(output(Tensor::ExpandX), output);
            let (words, row) = &mut scratch[rank];
            memory.begin_step();
            let fabric = &mut memory.fabric(number, CoreId(0), 0);
            ranks[rank].run(fabric, &inputs, &combine_inputs, Scratch { words, row }, 3)
        };
        for operator in [Operator::Dispatch, Operator::Combine] {
            assert!(ranks.iter_mut().all(|rank| rank.is_done() && rank.begin(operator).is_ok()));
            // Alone a rank comes to wait for the other one, and may not begin anything.
            let stopped = (0..1000).map(|_| run(&mut ranks, 0).end).find(|end| *end != Ok(Run::Budget));
            let Some(Ok(Run::Waiting(wait))) = stopped else { panic!("{stopped:?}") };
            assert_ne!(wait.flag, Flag::Quiet);
            assert_eq!((ranks[0].is_done(), ranks[0].begin(Operator::Dispatch)), (false, Err(TOO_EARLY)));
            while !ranks.iter().all(Rank::is_done) {
                (0..2).for_each(|rank| assert!(run(&mut ranks, rank).end.is_ok()));
            }
            assert_eq!(run(&mut ranks, 0), Ran { steps: 0, end: Ok(Run::Done) });
        }
        for rank in (0..RANKS).map(RankId) {
            assert_eq!(memory.output(rank, 0, Tensor::XOut, capacity(shape, rank, Tensor::XOut)), x);
        }
    }

    /// Two batches in the usual overlap, `Ds1 Cs0 Dr1 Cr0`, each with outputs and scratch of its own.
    #[test]
    fn ranks_overlap_two_batches_in_halves() {
        let shape = &Domain { r: RANKS.into(), e: 4, k: 2, h: 4, bs: 2, cores: 2, ..PAIR }.shape();
        let sizes: Vec<_> = (0..RANKS).map(|rank| region_sizes(shape, Some(RankId(rank)), 2)).collect();
        let mut memory = Memory::new(shape, Dense::new(sizes), Seeded::new(seeded::Memory::Strong, 1));
        let mut ranks: Vec<Two<'_>> = (0..RANKS).map(|rank| new(shape, rank).unwrap()).collect();
        let mut scratch = [(); 2 * RANKS as usize].map(|()| scratch_of(shape, 2));
        let x = [0x3F80u16, 0x4080]
            .map(|first| (first..first + 8).flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
        let mut run = |ranks: &mut [Two<'_>], memory: &mut Memory<Dense, Seeded>, batch: usize| {
            let inputs = Inputs {
                x: &x[batch],
                expert_ids: &[0, 3, 2, 1],
                expert_scales: &[0.5; 4],
                ..Inputs::default()
            };
            while !ranks.iter().all(Rank::is_done) {
                for (rank, number) in ranks.iter_mut().zip((0..).map(RankId)) {
                    let of = |tensor| {
                        memory.output(number, batch, tensor, capacity(shape, number, tensor)).to_vec()
                    };
                    let given = Tensor::ALL.map(of);
                    let output = |tensor: Tensor| given[tensor as usize].as_slice();
                    let combine_inputs = CombineInputs::of(output(Tensor::ExpandX), output);
                    let (words, row) = &mut scratch[2 * number.index() + batch];
                    memory.begin_step();
                    let fabric = &mut memory.fabric(number, CoreId(0), batch);
                    let ran = rank.run(fabric, &inputs, &combine_inputs, Scratch { words, row }, 3);
                    assert!(ran.end.is_ok(), "{ran:?}");
                }
            }
        };
        let all = |ranks: &mut [Two<'_>], begin: &dyn Fn(&mut Two<'_>)| ranks.iter_mut().for_each(begin);
        all(&mut ranks, &|rank| rank.begin(Operator::Dispatch).unwrap());
        run(&mut ranks, &mut memory, 0);
        let mut sent = Vec::new();
        for (operator, batch) in [(Operator::Dispatch, 1), (Operator::Combine, 0)] {
            all(&mut ranks, &|rank| rank.send(operator).unwrap());
            assert_eq!(ranks[0].set_aside().err(), Some(NOT_SENT));
            run(&mut ranks, &mut memory, batch);
            // What is sent must be set aside before anything else begins.
            assert_eq!(ranks[0].begin(Operator::Dispatch), Err(TOO_EARLY));
            sent.push((batch, ranks.iter_mut().map(|rank| rank.set_aside().unwrap()).collect::<Vec<_>>()));
        }
        for (batch, of) in sent {
            for (number, (rank, sent)) in (0..).map(RankId).zip(ranks.iter_mut().zip(of)) {
                rank.resume(sent, &memory.fabric(number, CoreId(0), batch)).unwrap();
            }
            run(&mut ranks, &mut memory, batch);
        }
        all(&mut ranks, &|rank| rank.begin(Operator::Combine).unwrap());
        run(&mut ranks, &mut memory, 1);
        for rank in (0..RANKS).map(RankId) {
            for (batch, x) in x.iter().enumerate() {
                let seen = memory.output(rank, batch, Tensor::XOut, capacity(shape, rank, Tensor::XOut));
                assert_eq!(seen, x, "rank {rank} batch {batch}");
            }
        }
    }

    #[test]
    fn a_rank_refuses_an_operator_that_its_gates_refuse() {
        let shape = &Domain { cores: 2, ..PAIR }.shape();
        let mut rank: Two<'_> = new(shape, 0).unwrap();
        // No dispatch has been received.
        assert!(matches!(rank.begin(Operator::Combine), Err(ProtocolError::Given(_))));
        for operator in [Operator::Dispatch, Operator::Dispatch, Operator::Combine, Operator::Combine] {
            let ticket = rank.gates.begin(operator, None).unwrap();
            rank.gates.end(ticket);
        }
        // Two combines without a dispatch between: other ranks may still read what the first has written.
        assert!(matches!(rank.begin(Operator::Combine), Err(ProtocolError::Given(_))));
        assert!(rank.is_done());
        assert_eq!(rank.begin(Operator::Dispatch), Ok(()));
    }

    #[test]
    fn a_rank_with_more_cores_than_there_is_room_for_is_refused() {
        let shape = &Domain { cores: 3, ..PAIR }.shape();
        assert_eq!(new::<2>(shape, 0).err(), Some(Refused::Cores { cores: 3 }));
        assert_eq!(new::<3>(shape, 0).err(), None);
        assert!(matches!(new::<3>(shape, 9).err(), Some(Refused::NoCore { .. })));
    }

    #[test]
    fn scratch_for_fewer_cores_is_refused() {
        let shape = &Domain { cores: 2, ..PAIR }.shape();
        let (mut memory, mut rank) = (memory(shape), new::<2>(shape, 0).unwrap());
        assert_eq!(rank.begin(Operator::Dispatch), Ok(()));
        let (mut words, _) = scratch_of(shape, 2);
        let (_, mut row) = scratch_of(shape, 1);
        let scratch = Scratch { words: &mut words, row: &mut row };
        let fabric = &mut memory.fabric(RankId(0), CoreId(0), 0);
        let ran = rank.run(fabric, &Inputs::default(), &CombineInputs::NONE, scratch, 0);
        assert_eq!(ran, Ran::failed(SHORT_BYTES));
    }
}
