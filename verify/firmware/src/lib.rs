//! A firmware's two ranks of one core, polled by one processor over memory of its own. `docs/embed/rust.md` tells its story.
#![no_std]

use core::array::from_fn;
use veriep_core::fabric::{Capabilities, Fabric, Fault, ProtocolError, Terms};
use veriep_core::inputs::{InputError, Inputs};
use veriep_core::layout::outputs::capacity;
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::{
    self, Choices, CombineInputs, Operator, Refused, Scratch, scratch_bytes, scratch_words,
};
use veriep_core::shape::{BatchSizes, Config, Limits, Shape};
use veriep_core::units::RankId;
use veriep_core::vector::Portable;

const RANKS: usize = 2;
const WINDOW_MB: usize = 2;
/// Bytes of the largest output tensor, and of a core's scratch.
const OUTPUT: usize = 256;
const SCRATCH: usize = 256;
const X: usize = 32;

/// The memory of a rank: what others write, and what the operators put out.
pub struct Rank {
    state: [u8; STATE_BYTES as usize],
    window: [u8; WINDOW_MB << 20],
    outputs: [[u8; OUTPUT]; Tensor::ALL.len()],
}

/// The memory of both ranks, and what the program keeps for itself.
pub struct Memory {
    ranks: [Rank; RANKS],
    words: [[u32; SCRATCH]; RANKS],
    rows: [[u8; SCRATCH]; RANKS],
}

/// Why a program ends.
#[derive(Debug)]
pub enum Stop {
    /// The configuration breaks a rule: of this parameter.
    Shape(&'static str),
    /// The memory above is smaller than this shape needs.
    Memory,
    /// The core cannot take part.
    Refused(Refused),
    /// The inputs break a rule.
    Inputs(InputError),
    /// An operator has failed: the group is dead.
    Failed(ProtocolError),
    /// A token did not come back as it went.
    Wrong,
}

impl Memory {
    /// What every group begins with.
    pub const ZERO: Self = Self { ranks: [Rank::ZERO; RANKS], words: [[0; _]; _], rows: [[0; _]; _] };
}

impl Rank {
    /// What a rank begins with.
    pub const ZERO: Self = Self { state: [0; _], window: [0; _], outputs: [[0; _]; _] };

    fn region(&self, region: Region) -> Option<&[u8]> {
        match region {
            Region::State => Some(&self.state),
            Region::Window => Some(&self.window),
            Region::Output(tensor) => self.outputs.get(tensor as usize).map(<[u8; OUTPUT]>::as_slice),
            _ => None,
        }
    }

    fn region_mut(&mut self, region: Region) -> Option<&mut [u8]> {
        match region {
            Region::State => Some(&mut self.state),
            Region::Window => Some(&mut self.window),
            Region::Output(tensor) => self.outputs.get_mut(tensor as usize).map(<[u8; OUTPUT]>::as_mut_slice),
            _ => None,
        }
    }
}

/// A core's view. Each effect lands at once, so there is nothing to order. What it does not hold it refuses.
pub struct View<'a> {
    /// Of the whole group.
    pub ranks: &'a mut [Rank],
    /// Whose core it is.
    pub own: RankId,
}

impl View<'_> {
    fn to(&mut self, rank: RankId, at: Place, len: usize) -> Result<&mut [u8], Fault> {
        let region = self.ranks.get_mut(rank.index()).and_then(|rank| rank.region_mut(at.region));
        let rest = region.and_then(|region| region.get_mut(usize::try_from(at.offset).ok()?..));
        rest.and_then(|rest| rest.get_mut(..len)).ok_or(Fault::new(rank, at, len as u64))
    }
}

impl Fabric for View<'_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let there = self.to(to, at, row.len() + tail.len())?;
        there.iter_mut().zip(row.iter().chain(tail)).for_each(|(to, &from)| *to = from);
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.put(to, at, &word.to_le_bytes(), &[])
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        Ok(true)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let word = self.bytes(at, 8)?.first_chunk().ok_or(Fault::new(self.own, at, 8))?;
        Ok(u64::from_le_bytes(*word))
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.publish(self.own, at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        let region = self.ranks.get(self.own.index()).and_then(|rank| rank.region(at.region));
        let rest = region.and_then(|region| region.get(usize::try_from(at.offset).ok()?..));
        let bytes = rest.and_then(|rest| rest.get(..usize::try_from(len).ok()?));
        bytes.ok_or(Fault::new(self.own, at, len))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.put(self.own, at, bytes, &[])
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        let mut row = [0; OUTPUT];
        let row = row.get_mut(..len as usize).ok_or(Fault::new(self.own, output, len))?;
        row.copy_from_slice(self.bytes(from, len)?);
        self.write(output, row)
    }
}

/// Runs so many rounds. Experts return what they are given, and weights add up to 1, so each token must come back.
///
/// # Errors
/// Why it ended.
pub fn run(memory: &mut Memory, rounds: u32) -> Result<(), Stop> {
    let config = Config { ep_world_size: 2, moe_expert_num: 4, k: 2, h: 8, aiv_num: 1, ..Config::default() };
    let config = Config { bs: BatchSizes::Uniform(2), hccl_buffsize_mb: WINDOW_MB as i64, ..config };
    let shape = &Shape::new(&config, Limits::None).map_err(|violation| Stop::Shape(violation.parameter))?;
    let ranks: [_; RANKS] = from_fn(|rank| RankId(rank as u32));
    let holds = |rank| Tensor::ALL.iter().all(|&tensor| capacity(shape, rank, tensor) <= OUTPUT as u64);
    if !ranks.into_iter().all(holds) || scratch_words(shape).max(scratch_bytes(shape)) > SCRATCH {
        return Err(Stop::Memory);
    }
    let Memory { ranks: regions, words, rows } = memory;
    let cores = |own| {
        let (choices, terms) = (Choices::default(), Terms::new(Capabilities::empty()));
        protocol::Rank::<_, 1>::new(shape, own, choices, terms, Portable).map_err(Stop::Refused)
    };
    let mut cores = [cores(RankId(0))?, cores(RankId(1))?];
    for round in 0..rounds {
        let x: [u8; X] = from_fn(|i| if i % 2 == 0 { (round as usize + i) as u8 } else { 0x3F });
        let inputs =
            &Inputs { x: &x, expert_ids: &[0, 3, 2, 1], expert_scales: &[0.5; 4], ..Inputs::default() };
        ranks.into_iter().try_for_each(|rank| inputs.check(shape, rank)).map_err(Stop::Inputs)?;
        for operator in [Operator::Dispatch, Operator::Combine] {
            // Experts have returned rows as they came; combine reads what dispatch has left.
            let given = regions.each_ref().map(|rank| {
                [Tensor::ExpandX, Tensor::AssistInfo, Tensor::EpRecvCounts]
                    .map(|tensor| rank.outputs.get(tensor as usize).copied().unwrap_or([0; OUTPUT]))
            });
            cores.iter_mut().try_for_each(|rank| rank.begin(operator)).map_err(Stop::Failed)?;
            while !cores.iter().all(protocol::Rank::is_done) {
                let scratch = words.iter_mut().zip(rows.iter_mut());
                for (((rank, &own), given), (words, row)) in
                    cores.iter_mut().zip(&ranks).zip(&given).zip(scratch)
                {
                    let [y, assist_info, ep_recv_counts] = given;
                    let combine_inputs =
                        CombineInputs { y, assist_info, ep_recv_counts, ..CombineInputs::NONE };
                    let fabric = &mut View { ranks: regions, own };
                    let ran = rank.run(fabric, inputs, &combine_inputs, Scratch { words, row }, 1);
                    ran.end.map_err(Stop::Failed)?;
                }
            }
        }
        let came_back =
            |rank: &Rank| rank.outputs.get(Tensor::XOut as usize).and_then(|out| out.get(..X)) == Some(&x);
        if !regions.iter().all(came_back) {
            return Err(Stop::Wrong);
        }
    }
    Ok(())
}
