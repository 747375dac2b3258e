//! Dispatch and combine of two ranks with two cores each, all that is left of an elastic domain of three, over raw memory, with nothing beneath: no std, no
//! allocator, no C library. It is linked to show that `kernel-core` needs none of them, and run to show that
//! it works so: status 0 if the results are right, else the number of what went wrong.
//!
//! One processor polls all four cores in turn, as a firmware without threads would.
#![no_std]
#![no_main]

mod runtime;

use core::cell::UnsafeCell;
use kernel_core::a3::{Choices, Combine, Dispatch, Env, Flags, Returned, Ub};
use kernel_core::a3_v2;
use kernel_core::fabric::Progress;
use kernel_core::fabric::raw::{Outputs, Peer, RawFabric, Segment};
use kernel_core::fabric::survivors::Survivors;
use kernel_core::inputs::Inputs;
use kernel_core::layout::outputs::capacity;
use kernel_core::layout::state::STATE_BYTES;
use kernel_core::place::Tensor;
use kernel_core::shape::{BatchSizes, CommAlg, Config, Elastic, Given, Limits, Op, Shape};
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

/// Of the plain layout, and of fullmesh_v2, which takes what another layer leaves in its window for flags.
const GROUPS: usize = 2;

struct Memory(UnsafeCell<[[Rank; WHOLE]; GROUPS]>);

// SAFETY: this program has one thread.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new(
    [const { [const { Rank { state: [0; _], window: [0; _], outputs: [[0; _]; _] } }; _] }; _],
));

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
    /// A row, and for AddRmsNorm one of f32.
    row: [u8; 3 * ROW],
}

/// What the group is asked to do, and what must come of it.
struct Scene {
    config: Config<'static>,
    flags: Flags,
    ids: [[i32; BS * K]; RANKS],
    /// Elements of x: all of a token are alike.
    first: u16,
    step: u16,
    /// By how many powers of two each token's result is larger than the token.
    doubled: [[i16; BS]; RANKS],
}

/// Dispatch and combine with nothing else to them.
fn plain() -> Scene {
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
    // Every token goes to one expert of its own rank and to one of the other: 0.5 * x + 0.5 * x = x. Numbers from
    // 1 to 2.
    let flags = Flags::Joint;
    Scene {
        config,
        flags,
        ids: [[0, 2, 3, 1], [1, 2, 2, 0]],
        first: 0x3F80,
        step: 4,
        doubled: [[0; BS]; RANKS],
    }
}

/// The same in blocks, with all ranks there.
fn blocks() -> Scene {
    let Scene { config, .. } = plain();
    let config = Config {
        comm_alg: "fullmesh_v2",
        ep_world_size: RANKS as i64,
        moe_expert_num: 4,
        given: Given::empty(),
        ..config
    };
    Scene { config, ..plain() }
}

/// Special experts, int8 results, AddRmsNorm and separate flags on top.
fn everything() -> Scene {
    let Scene { config, .. } = plain();
    let config = Config {
        zero_expert_num: 1,
        copy_expert_num: 1,
        const_expert_num: 1,
        comm_quant_mode: 2,
        op: "combine_add_rms_norm",
        norm_eps: 0.0,
        ..config
    };
    // Zero 4, copy 5, const 6 of 3 * x. 0.5 * (x + x) = x, 0.5 * x, 0.5 * (3 * x + x) = 2 * x, also without any row
    // sent. 127 times a power of two stays what it is in int8.
    let ids = [[0, 5, 4, 3], [6, 2, 5, 6]];
    Scene { config, flags: Flags::Separate, ids, first: 0x3FFE, step: 0x80, doubled: [[0, -1], [1, 1]] }
}

fn run() -> i32 {
    match rounds() {
        Ok(()) => 0,
        Err(wrong) => wrong as i32,
    }
}

fn rounds() -> Result<(), Wrong> {
    // One group after the other on the same memory: a layer leaves nothing behind that the next one minds.
    [plain(), everything(), blocks()].iter().try_for_each(|scene| {
        let whole = Shape::new(&scene.config, Limits::None).map_err(|_| Wrong::Shape)?;
        let is_elastic = scene.config.given.contains(Given::ELASTIC_INFO);
        let left =
            if is_elastic { Elastic::new(&whole, &ELASTIC_INFO).map_err(|_| Wrong::Shape)? } else { None };
        let left = left.as_ref();
        let shape = left.map_or_else(|| whole.clone(), |left| whole.survivors(left));
        let peers = memory(&shape)?;
        // Four rounds: both partitions of both operators are used, and used again.
        (0..ROUNDS).try_for_each(|round| one_round(scene, &shape, left, &peers, round))
    })
}

/// The regions of all ranks.
fn memory(shape: &Shape) -> Result<[(Peer, Outputs); WHOLE], Wrong> {
    let group = if shape.comm_alg() == CommAlg::FullmeshV2 { 1 } else { 0 };
    let base = MEMORY.0.get().cast::<Rank>().wrapping_add(group * WHOLE);
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

/// The bits of a bf16 number that differs by rank, token and round.
fn element(scene: &Scene, rank: usize, token: usize, round: usize) -> u16 {
    scene.first.wrapping_add(scene.step.wrapping_mul((4 * round + 2 * rank + token) as u16))
}

/// A row for each token, its elements all of these bits.
fn rows(bits: impl Fn(usize) -> u16) -> [u8; BS * ROW] {
    let mut rows = [0; BS * ROW];
    for (token, row) in rows.chunks_exact_mut(ROW).enumerate() {
        row.chunks_exact_mut(2).for_each(|element| element.copy_from_slice(&bits(token).to_le_bytes()));
    }
    rows
}

/// The dispatch of either layout.
enum AnyDispatch {
    Plain(Dispatch),
    Blocks(a3_v2::Dispatch),
}

fn one_round(
    scene: &Scene,
    shape: &Shape,
    left: Option<&Elastic>,
    memory: &[(Peer, Outputs); WHOLE],
    round: usize,
) -> Result<(), Wrong> {
    let peers = memory.map(|(peer, _)| peer);
    let mut x = [[0; BS * ROW]; RANKS];
    for (rank, x) in x.iter_mut().enumerate() {
        *x = rows(|token| element(scene, rank, token, round));
    }
    let weights = [0.5f32; BS * K];
    let (one, three, zeros) = (rows(|_| 0x3F80), 0x4040u16.to_le_bytes(), [0; BS * ROW]);
    let norm = shape.op() == Op::CombineAddRmsNorm;
    let of_norm = |row| if norm { row } else { &[][..] };
    let consts = shape.const_expert_num() as usize;
    let inputs = |rank: usize| Inputs {
        x: x.get(rank).map_or(&[], |x| x.as_slice()),
        expert_ids: scene.ids.get(rank).map_or(&[], |ids| ids.as_slice()),
        expert_scales: &weights,
        const_expert_alpha_1: three.get(..2 * consts).unwrap_or(&[]),
        const_expert_alpha_2: one.get(..2 * consts).unwrap_or(&[]),
        const_expert_v: zeros.get(..consts * ROW).unwrap_or(&[]),
        residual_x: of_norm(&zeros),
        gamma: of_norm(one.get(..ROW).unwrap_or(&[])),
        ..Inputs::default()
    };
    for rank in 0..RANKS {
        inputs(rank).check(shape, RankId(rank as u32)).map_err(|_| Wrong::Inputs)?;
    }

    let mut scratch = [[Scratch { words: [0; 64], row: [0; 3 * ROW] }; CORES]; RANKS];
    let mut dispatch = [[(); CORES]; RANKS].map(|cores| {
        cores.map(|()| match shape.comm_alg() {
            CommAlg::FullmeshV2 => AnyDispatch::Blocks(a3_v2::Dispatch::new()),
            _ => AnyDispatch::Plain(Dispatch::new()),
        })
    });
    poll(left, memory, &peers, &mut dispatch, &mut scratch, |rank, core, machine, fabric, ub| {
        let env = env(shape, scene.flags, rank, core);
        match machine {
            AnyDispatch::Plain(machine) => machine.step(&env, fabric, &inputs(rank), ub),
            AnyDispatch::Blocks(machine) => machine.step(&env, fabric, &inputs(rank), ub),
        }
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
        machine.step(&env(shape, scene.flags, rank, core), fabric, &inputs(rank), &returned, ub)
    })?;

    let right = (0..RANKS).all(|rank| {
        let Some(outputs) = outputs_of(left, memory, rank) else { return false };
        let doubled = |token| scene.doubled.get(rank).and_then(|of| of.get(token)).copied().unwrap_or(0);
        let result =
            rows(|token| element(scene, rank, token, round).wrapping_add_signed(0x80 * doubled(token)));
        let holds = |tensor, row: &[u8]| bytes(outputs, tensor).get(..row.len()) == Some(row);
        // Alike elements are 1 when they are normalised.
        holds(Tensor::XOut, &result) && (!norm || holds(Tensor::X, &result) && holds(Tensor::Y, &one))
    });
    if right { Ok(()) } else { Err(Wrong::Result) }
}

/// A rank's place in memory.
fn physical(left: Option<&Elastic>, rank: usize) -> Option<RankId> {
    let rank = RankId(rank as u32);
    left.map_or(Some(rank), |left| left.physical(rank))
}

/// The output tensors of a rank.
fn outputs_of<'m>(
    left: Option<&Elastic>,
    memory: &'m [(Peer, Outputs); WHOLE],
    rank: usize,
) -> Option<&'m Outputs> {
    let physical = physical(left, rank)?;
    memory.get(physical.index()).map(|(_, outputs)| outputs)
}

fn env(shape: &Shape, flags: Flags, rank: usize, core: usize) -> Env<'_, Portable> {
    let choices = Choices { flags, ..Choices::default() };
    Env::new(shape, RankId(rank as u32), CoreId(core as u32), choices, Portable)
}

/// An output tensor of an operator that has ended, or a part of it that no core writes any more.
fn bytes(outputs: &Outputs, tensor: Tensor) -> &[u8] {
    let segment = outputs.get(tensor as usize).copied().unwrap_or(Segment::EMPTY);
    if segment.is_empty() {
        return &[];
    }
    // SAFETY: the segment is part of `MEMORY`. What combine writes is read after its end; the outputs of dispatch,
    // which combine does not write, are read after its end and before the next one's begin.
    unsafe { core::slice::from_raw_parts(segment.base(), segment.len() as usize) }
}

/// Steps all machines in turn until all are done. That no core begins an operator before the last one of its
/// rank has ended the one before is the join.
fn poll<M>(
    left: Option<&Elastic>,
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
            let physical = physical(left, rank).ok_or(Wrong::Shape)?;
            let outputs = outputs_of(left, memory, rank).ok_or(Wrong::Shape)?;
            for (core, (machine, scratch)) in machines.iter_mut().zip(scratch).enumerate() {
                // SAFETY: the segments lie in `MEMORY`, aligned to 4096, disjoint, and alive for ever. Only
                // these fabrics touch them, in one thread, and `bytes` between operators.
                let inner = unsafe { RawFabric::new(peers, physical, *outputs) };
                let mut fabric = Survivors { inner, left };
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
