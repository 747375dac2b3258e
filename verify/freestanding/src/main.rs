//! Dispatch and combine of two ranks with two cores each, all that is left of an elastic domain of three, over raw memory, with nothing beneath: no std, no
//! allocator, no C library. It is linked to show that `kernel-core` needs none of them, and run to show that
//! it works so: status 0 if the results are right, else the number of what went wrong.
//!
//! One processor polls all four cores in turn, as a firmware without threads would.
#![no_std]
#![no_main]

mod runtime;

use core::cell::UnsafeCell;
use kernel_core::a3::{Choices, Combine, Dispatch, Env, Returned, Ub};
use kernel_core::fabric::Progress;
use kernel_core::fabric::raw::{Outputs, Peer, RawFabric, Segment};
use kernel_core::fabric::survivors::Survivors;
use kernel_core::inputs::{Inputs, Mask};
use kernel_core::layout::outputs::capacity;
use kernel_core::layout::state::STATE_BYTES;
use kernel_core::place::Tensor;
use kernel_core::shape::{BatchSizes, Config, Elastic, Given, Limits, Shape};
use kernel_core::units::{CoreId, RankId};
use kernel_core::vector::Portable;

/// Physical ranks, of which one is gone.
const WHOLE: usize = 3;
/// The survivors, by new id: ranks 2 and 0 of the whole.
const RANKS: usize = 2;
const ELASTIC_INFO: [i32; 4 + 2 * WHOLE] = [1, 2, 0, 4, 1, -1, 0, 2, 0, -1];
const CORES: usize = 2;
const H: usize = 32;
const BS: usize = 2;
const K: usize = 2;
const ROW: usize = 2 * H;
const WINDOW: usize = 2 << 20;
/// Room for one output tensor; the largest is `expand_x` with 8 rows.
const OUTPUT: usize = 1024;
const ROUNDS: usize = 4;

#[repr(C, align(4096))]
struct Rank {
    state: [u8; STATE_BYTES as usize],
    window: [u8; WINDOW],
    outputs: [[u8; OUTPUT]; Tensor::ALL.len()],
}

struct Memory(UnsafeCell<[Rank; WHOLE]>);

// SAFETY: this program has one thread.
unsafe impl Sync for Memory {}

static MEMORY: Memory =
    Memory(UnsafeCell::new([const { Rank { state: [0; _], window: [0; _], outputs: [[0; _]; _] } }; WHOLE]));

/// What went wrong, as an exit status.
#[derive(Clone, Copy)]
enum Wrong {
    Shape = 1,
    Inputs = 2,
    Machine = 3,
    NoProgress = 4,
    Result = 5,
}

/// A core's scratch.
#[derive(Clone, Copy)]
struct Scratch {
    words: [u32; 64],
    row: [u8; ROW],
}

fn run() -> i32 {
    match rounds() {
        Ok(()) => 0,
        Err(wrong) => wrong as i32,
    }
}

fn rounds() -> Result<(), Wrong> {
    let config = Config {
        ep_world_size: WHOLE as i64,
        moe_expert_num: 6,
        k: K as i64,
        h: H as i64,
        bs: BatchSizes::Uniform(BS as i64),
        hccl_buffsize_mb: (WINDOW >> 20) as i64,
        aiv_num: CORES as i64,
        given: Given::ELASTIC_INFO,
        ..Config::default()
    };
    let whole = Shape::new(&config, Limits::None).map_err(|_| Wrong::Shape)?;
    let left = Elastic::new(&whole, &ELASTIC_INFO).ok().flatten().ok_or(Wrong::Shape)?;
    let shape = whole.survivors(&left);
    let peers = memory(&shape)?;
    // Four rounds: both partitions of both operators are used, and used again.
    (0..ROUNDS).try_for_each(|round| one_round(&shape, &left, &peers, round))
}

/// The regions of all ranks.
fn memory(shape: &Shape) -> Result<[(Peer, Outputs); WHOLE], Wrong> {
    let base: *mut Rank = MEMORY.0.get().cast();
    let fits = (0..RANKS as u32)
        .all(|rank| Tensor::ALL.iter().all(|&tensor| capacity(shape, RankId(rank), tensor) <= OUTPUT as u64));
    if !fits {
        return Err(Wrong::Shape);
    }
    let mut rank = 0;
    Ok([(); WHOLE].map(|()| {
        let this = base.wrapping_add(rank);
        rank += 1;
        let at = |offset: usize, len: usize| Segment::new(this.cast::<u8>().wrapping_add(offset), len as u64);
        let peer = Peer {
            state: at(core::mem::offset_of!(Rank, state), STATE_BYTES as usize),
            window: at(core::mem::offset_of!(Rank, window), WINDOW),
            window_out: Segment::EMPTY,
        };
        let outputs = core::mem::offset_of!(Rank, outputs);
        (peer, Tensor::ALL.map(|tensor| at(outputs + tensor as usize * OUTPUT, OUTPUT)))
    }))
}

/// A bf16 number, at least 1 and below 2, that differs by rank, token and round.
fn element(rank: usize, token: usize, round: usize) -> [u8; 2] {
    (0x3F80 + (16 * round + 4 * rank + token) as u16).to_le_bytes()
}

fn one_round(
    shape: &Shape,
    left: &Elastic,
    memory: &[(Peer, Outputs); WHOLE],
    round: usize,
) -> Result<(), Wrong> {
    let peers = memory.map(|(peer, _)| peer);
    let mut x = [[0; BS * ROW]; RANKS];
    for (rank, x) in x.iter_mut().enumerate() {
        for (i, value) in x.chunks_exact_mut(2).enumerate() {
            value.copy_from_slice(&element(rank, if i < H { 0 } else { 1 }, round));
        }
    }
    // Every token goes to one expert of its own rank and to one of the other.
    let ids: [[i32; BS * K]; RANKS] = [[0, 2, 3, 1], [1, 2, 2, 0]];
    let weights = [0.5f32; BS * K];
    let inputs = |rank: usize| Inputs {
        x: x.get(rank).map_or(&[], |x| x.as_slice()),
        expert_ids: ids.get(rank).map_or(&[], |ids| ids.as_slice()),
        expert_scales: &weights,
        mask: Mask::None,
        scales: None,
    };
    for rank in 0..RANKS {
        inputs(rank).check(shape, RankId(rank as u32)).map_err(|_| Wrong::Inputs)?;
    }

    let mut scratch = [[Scratch { words: [0; 64], row: [0; ROW] }; CORES]; RANKS];
    let mut dispatch = [[(); CORES]; RANKS].map(|cores| cores.map(|()| Dispatch::new()));
    poll(left, memory, &peers, &mut dispatch, &mut scratch, |rank, core, machine, fabric, ub| {
        machine.step(&env(shape, rank, core), fabric, &inputs(rank), ub)
    })?;

    // The experts: each returns what it got.
    let mut combine = [[(); CORES]; RANKS].map(|cores| cores.map(|()| Combine::new()));
    poll(left, memory, &peers, &mut combine, &mut scratch, |rank, core, machine, fabric, ub| {
        let output =
            |tensor| outputs_of(left, memory, rank).map_or(&[][..], |outputs| bytes(outputs, tensor));
        let returned = Returned {
            y: output(Tensor::ExpandX),
            assist_info: output(Tensor::AssistInfo),
            ep_recv_counts: output(Tensor::EpRecvCounts),
        };
        machine.step(&env(shape, rank, core), fabric, &inputs(rank), &returned, ub)
    })?;

    // 0.5 * x + 0.5 * x = x.
    let x_out = |rank| outputs_of(left, memory, rank).map_or(&[][..], |outputs| bytes(outputs, Tensor::XOut));
    let right = x.iter().enumerate().all(|(rank, x)| x_out(rank).get(..x.len()) == Some(x.as_slice()));
    if right { Ok(()) } else { Err(Wrong::Result) }
}

/// The output tensors of a survivor.
fn outputs_of<'m>(left: &Elastic, memory: &'m [(Peer, Outputs); WHOLE], rank: usize) -> Option<&'m Outputs> {
    let physical = left.physical(RankId(rank as u32))?;
    memory.get(physical.index()).map(|(_, outputs)| outputs)
}

fn env(shape: &Shape, rank: usize, core: usize) -> Env<'_, Portable> {
    Env::new(shape, RankId(rank as u32), CoreId(core as u32), Choices::default(), Portable)
}

/// An output tensor of an operator that has ended, or a part of it that no core writes any more.
fn bytes(outputs: &Outputs, tensor: Tensor) -> &[u8] {
    let segment = outputs.get(tensor as usize).copied().unwrap_or(Segment::EMPTY);
    if segment.is_empty() {
        return &[];
    }
    // SAFETY: the segment is part of `MEMORY`. Combine writes `x_out` alone, which is read after its end;
    // the outputs of dispatch are read after its end and before the next one's begin.
    unsafe { core::slice::from_raw_parts(segment.base(), segment.len() as usize) }
}

/// Steps all machines in turn until all are done. That no core begins an operator before the last one of its
/// rank has ended the one before is the join.
fn poll<M>(
    left: &Elastic,
    memory: &[(Peer, Outputs); WHOLE],
    peers: &[Peer; WHOLE],
    machines: &mut [[M; CORES]; RANKS],
    scratch: &mut [[Scratch; CORES]; RANKS],
    mut step: impl FnMut(
        usize,
        usize,
        &mut M,
        &mut Survivors<'_, RawFabric<'_>>,
        &mut Ub<'_>,
    ) -> Result<Progress, kernel_core::fabric::ProtocolError>,
) -> Result<(), Wrong> {
    loop {
        let (mut done, mut stepped) = (0, false);
        let ranks = machines.iter_mut().zip(scratch.iter_mut());
        for (rank, (machines, scratch)) in ranks.enumerate() {
            let physical = left.physical(RankId(rank as u32)).ok_or(Wrong::Shape)?;
            let outputs = outputs_of(left, memory, rank).ok_or(Wrong::Shape)?;
            for (core, (machine, scratch)) in machines.iter_mut().zip(scratch).enumerate() {
                // SAFETY: the segments lie in `MEMORY`, aligned to 4096, disjoint, and alive for ever. Only
                // these fabrics touch them, in one thread, and `bytes` between operators.
                let inner = unsafe { RawFabric::new(peers, physical, *outputs) };
                let mut fabric = Survivors { inner, left: Some(left) };
                let mut ub = Ub { words: &mut scratch.words, row: &mut scratch.row };
                match step(rank, core, machine, &mut fabric, &mut ub).map_err(|_| Wrong::Machine)? {
                    Progress::Done => done += 1,
                    Progress::Stepped => stepped = true,
                    Progress::Pending(_) => {}
                }
            }
        }
        if done == RANKS * CORES {
            return Ok(());
        }
        if !stepped {
            return Err(Wrong::NoProgress);
        }
    }
}
