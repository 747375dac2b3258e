//! A rank whose cores one processor steps in turn.

use super::kit::{SHORT_BYTES, given, take};
use super::{Choices, CombineInputs, Context, Env, Machine, Operator, Ran, Refused, Run, Scratch};
use super::{scratch_bytes, scratch_words};
use crate::fabric::{Capabilities, Fabric, ProtocolError};
use crate::inputs::Inputs;
use crate::shape::Shape;
use crate::units::{CoreId, RankId};
use crate::vector::Vector;

const TOO_EARLY: ProtocolError = given("an operator begins before all cores have ended the one before");

/// A core of the rank.
#[derive(Clone, Debug)]
struct Seat<V> {
    env: Env<V>,
    machine: Machine,
    /// Whether it has ended the operator.
    is_done: bool,
}

/// A rank whose cores, at most `CORES`, one processor steps in turn. It owes its machines the join, and keeps it: an operator
/// begins when every core has ended the one before. A driver runs it like a [`Machine`], and steps the rank's agent, if there
/// is one, beside it.
#[derive(Clone, Debug)]
pub struct Rank<'s, V, const CORES: usize> {
    shape: &'s Shape,
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
        capabilities: Capabilities,
        vector: V,
    ) -> Result<Self, Refused> {
        let mut seats = heapless::Vec::new();
        for core in (0..shape.aiv_num()).map(CoreId) {
            let env = Env::new(shape, rank, core, choices, capabilities, vector.clone())?;
            let machine = Machine::begin(Operator::Dispatch, &env);
            let seat = Seat { env, machine, is_done: true };
            seats.push(seat).map_err(|_| Refused::Cores { cores: shape.aiv_num() })?;
        }
        Ok(Self { shape, seats })
    }

    /// Begins an operator on all cores.
    ///
    /// # Errors
    /// One of them has not ended the operator before; nothing is begun.
    pub fn begin(&mut self, operator: Operator) -> Result<(), ProtocolError> {
        if !self.is_done() {
            return Err(TOO_EARLY);
        }
        for Seat { env, machine, is_done } in &mut self.seats {
            (*machine, *is_done) = (Machine::begin(operator, env), false);
        }
        Ok(())
    }

    /// Returns whether all cores have ended the operator.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.seats.iter().all(|seat| seat.is_done)
    }

    /// Takes at most `budget` steps of each core that has not ended the operator. The rank waits when no core could move.
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
        let (shape, Scratch { mut words, mut row }) = (self.shape, scratch);
        let (mut steps, mut has_moved, mut missing) = (0u32, false, None);
        for seat in &mut self.seats {
            let ran = match cut(shape, &mut words, &mut row) {
                _ if seat.is_done => continue,
                Ok(scratch) => seat.run(shape, fabric, inputs, combine_inputs, scratch, budget),
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
        Ran { steps, end: Ok(end) }
    }
}

impl<V: Vector> Seat<V> {
    fn run<F: Fabric + ?Sized>(
        &mut self,
        shape: &Shape,
        fabric: &mut F,
        inputs: &Inputs<'_>,
        combine_inputs: &CombineInputs<'_>,
        scratch: Scratch<'_>,
        budget: u32,
    ) -> Ran {
        match self.env.on(shape) {
            Ok(core) => {
                let cx = &mut Context { core, fabric, inputs, combine_inputs, scratch };
                self.machine.run(cx, budget)
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
    use crate::fabric::Flag;
    use crate::layout::outputs::capacity;
    use crate::place::Tensor;
    use crate::sim::storage::group_sizes;
    use crate::sim::{Dense, Memory, Seeded, seeded};
    use crate::testing::domain::{Domain, PAIR};
    use crate::vector::Portable;
    use alloc::vec;
    use alloc::vec::Vec;

    const RANKS: u32 = 2;

    type Two<'s> = Rank<'s, Portable, 2>;

    fn new<const CORES: usize>(shape: &Shape, rank: u32) -> Result<Rank<'_, Portable, CORES>, Refused> {
        Rank::new(shape, RankId(rank), Choices::default(), Capabilities::all(), Portable)
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
        assert_eq!(rank.begin(Operator::Combine), Ok(()));
        let (mut words, _) = scratch_of(shape, 2);
        let (_, mut row) = scratch_of(shape, 1);
        let scratch = Scratch { words: &mut words, row: &mut row };
        let fabric = &mut memory.fabric(RankId(0), CoreId(0), 0);
        let ran = rank.run(fabric, &Inputs::default(), &CombineInputs::NONE, scratch, 0);
        assert_eq!(ran, Ran::failed(SHORT_BYTES));
    }
}
