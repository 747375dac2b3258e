//! A fabric of your own: two ranks of two cores over plain memory, polled by one processor as a firmware would.
//!
//! `cargo run --release --example own_fabric --features conformance -- 1000` runs the litmus programs, then 1000 rounds.

use core::error::Error;
use core::ops::Range;
use veriep_core::conformance::{AGAIN_SUITE, Actor, Claim, Extent, ROW_MAX, SUITE};
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::inputs::Inputs;
use veriep_core::layout::outputs::capacity;
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::{Choices, CombineInputs, Operator, Rank, Scratch, scratch_bytes, scratch_words};
use veriep_core::shape::{BatchSizes, Config, Limits, Shape};
use veriep_core::units::RankId;
use veriep_core::vector::Portable;

/// The memory of one rank: flags, rows on their way, and from [`OUTPUTS`] on its outputs.
type Memory = Vec<Vec<u8>>;
const OUTPUTS: usize = 2;

/// Where a place is in a rank's memory: in which part, and at which bytes.
fn find(ranks: &[Memory], rank: RankId, at: Place, len: u64) -> Result<(usize, Range<usize>), Fault> {
    let part = match at.region {
        Region::State => 0,
        Region::Window => 1,
        Region::Output(tensor) => OUTPUTS + tensor as usize,
        _ => usize::MAX,
    };
    let bytes = at.offset as usize..at.offset.saturating_add(len) as usize;
    let there = ranks.get(rank.index()).and_then(|memory| memory.get(part)?.get(bytes.clone()));
    there.map(|_| (part, bytes)).ok_or(Fault::new(rank, at, len))
}

/// One core's view. Only one core steps at a time here and every effect lands at once, so there is nothing to order: a
/// publish cannot overtake a put, and quiet is always true.
struct OwnFabric<'a> {
    ranks: &'a mut [Memory],
    me: RankId,
}

impl Fabric for OwnFabric<'_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let (part, bytes) = find(self.ranks, to, at, (row.len() + tail.len()) as u64)?;
        let (first, behind) = self.ranks[to.index()][part][bytes].split_at_mut(row.len());
        first.copy_from_slice(row);
        behind.copy_from_slice(tail);
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.put(to, at, &word.to_le_bytes(), &[])
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.bytes(at, 8)?.try_into().map(u64::from_le_bytes).map_err(|_| Fault::new(self.me, at, 8))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.write(at, &word.to_le_bytes())
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let (part, bytes) = find(self.ranks, self.me, at, len)?;
        let readable = &self.ranks[self.me.index()][..OUTPUTS];
        readable.get(part).map(|part| &part[bytes]).ok_or(Fault::new(self.me, at, len))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.put(self.me, at, bytes, &[])
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let row = self.bytes(from, len)?.to_vec();
        self.write(output, &row)
    }
}

/// Runs each program that every memory must pass, and that makes no call which this fabric lacks, in 16 orders of steps, with
/// short rows, with rows of more than a packet, and with the longest; then once in a whole window.
fn exam() -> Result<(), Box<dyn Error>> {
    const WINDOW: u64 = 4 << 20;
    let of = |row, window, state| Extent::new(row, window, state).ok_or("no legal row");
    let (short, packets, longest) = (Extent::default(), of(1032, 0, 0)?, of(ROW_MAX, 0, 0)?);
    let extents = [(short, 16), (packets, 16), (longest, 16), (of(1032, WINDOW, STATE_BYTES)?, 1)];
    let required =
        [SUITE, AGAIN_SUITE].into_iter().flatten().filter(|litmus| litmus.claim == Claim::Required);
    for litmus in required.filter(|litmus| litmus.calls().is_empty()) {
        for (extent, repetitions) in extents {
            let mut ranks =
                [(); 3].map(|()| [STATE_BYTES, WINDOW].map(|bytes| vec![0; bytes as usize]).into());
            for repetition in 0..repetitions {
                let ended = litmus.by_turns_in(extent, repetition, 1, |run| {
                    let me = RankId(run.program.rank);
                    run.step(&mut Actor::Core(&mut OwnFabric { ranks: &mut ranks, me }))
                });
                ended.map_err(|failure| format!("{}: {failure}", litmus.name))?;
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds: u32 = std::env::args().nth(1).map_or(Ok(3), |rounds| rounds.parse())?;
    exam()?;
    let config = Config { ep_world_size: 2, moe_expert_num: 4, k: 2, h: 8, aiv_num: 2, ..Config::default() };
    let config = Config { bs: BatchSizes::Uniform(2), hccl_buffsize_mb: 2, ..config };
    let shape = Shape::new(&config, Limits::None).map_err(|all| format!("{all:?}"))?;
    let mut memory = [RankId(0), RankId(1)].map(|rank| {
        let outputs = Tensor::ALL.map(|tensor| capacity(&shape, rank, tensor));
        let sizes = [STATE_BYTES, shape.window_bytes()].into_iter().chain(outputs);
        sizes.map(|bytes| vec![0; bytes as usize]).collect::<Memory>()
    });
    let terms = OwnFabric { ranks: &mut memory, me: RankId(0) }.terms();
    let rank = |rank| Rank::<_, 2>::new(&shape, rank, Choices::default(), terms, Portable);
    let mut ranks = [rank(RankId(0))?, rank(RankId(1))?];
    let mut scratch =
        [(); 2].map(|()| (vec![0; 2 * scratch_words(&shape)], vec![0; 2 * scratch_bytes(&shape)]));
    // Combine reads what dispatch has left.
    let mut given = memory.each_ref().map(|memory| memory[OUTPUTS..].to_vec());
    for round in 0..rounds {
        // Two tokens of bf16 numbers; each goes to two experts with weight 1/2, so combine returns the token.
        let x: Vec<u8> = (0x3F80..0x3F90).flat_map(|i| (i + (round % 64) as u16).to_le_bytes()).collect();
        let inputs =
            Inputs { x: &x, expert_ids: &[0, 3, 2, 1], expert_scales: &[0.5; 4], ..Inputs::default() };
        (0..2).map(RankId).try_for_each(|rank| inputs.check(&shape, rank))?;
        for operator in [Operator::Dispatch, Operator::Combine] {
            ranks.iter_mut().try_for_each(|rank| rank.begin(operator))?;
            while !ranks.iter().all(Rank::is_done) {
                for (me, (rank, (words, row))) in (0..).map(RankId).zip(ranks.iter_mut().zip(&mut scratch)) {
                    let output = |tensor: Tensor| given[me.index()][tensor as usize].as_slice();
                    // The experts return the rows unchanged.
                    let combine_inputs = CombineInputs::of(output(Tensor::ExpandX), output);
                    let fabric = &mut OwnFabric { ranks: &mut memory, me };
                    rank.run(fabric, &inputs, &combine_inputs, Scratch { words, row }, 1).end?;
                }
            }
            given = memory.each_ref().map(|memory| memory[OUTPUTS..].to_vec());
        }
        assert!(memory.iter().all(|rank| rank[OUTPUTS + Tensor::XOut as usize] == x), "round {round}");
    }
    println!("{rounds} rounds: every token came back");
    Ok(())
}
