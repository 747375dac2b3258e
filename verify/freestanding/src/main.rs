//! Dispatch and combine of two ranks with two cores each, over raw memory, with nothing beneath: no std, no allocator, no
//! C library. It is linked to show that `kernel-core` needs none of them, and run to show that it works so: status 0 if
//! the results are right, else the number of what went wrong.
//!
//! One processor polls all four cores in turn, and on A2 both agents, as a firmware without threads would.
#![no_std]
#![no_main]

mod api;
mod runtime;
mod scene;
mod stack;

use core::array::from_fn;
use core::cell::UnsafeCell;
use core::fmt::Write as _;
use core::hint::black_box;
use core::sync::atomic::{AtomicUsize, Ordering};
use runtime::Console;
use scene::{GROUPS, MESHES, Scene};
use veriep_core::fabric::rank_remap::RankRemap;
use veriep_core::fabric::raw::{Outputs, Peer, RawFabric, RawNic, RowCopy, Segment};
use veriep_core::fabric::{Capabilities, Progress, ProtocolError, Terms};
use veriep_core::inputs::Inputs;
use veriep_core::layout::outputs::capacity;
use veriep_core::layout::state::STATE_BYTES;
use veriep_core::layout::tp;
use veriep_core::place::{Place, Tensor};
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Agent, AgentEnv, CombineInputs, Context, Env, Machine, Operator, Scratch};
use veriep_core::shape::{Elastic, Given, Limits, Op, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Portable;

/// Physical ranks, of which one is gone.
const WHOLE: usize = 3;
/// Those that run: survivors by new id, ranks 2 and 0 of the whole; or all ranks; or both peers of one rank.
const RANKS: usize = 2;
const ELASTIC_INFO: [i32; 4 + 2 * WHOLE] = [1, 2, 0, 4, 1, -1, 0, 2, 0, -1];
const CORES: usize = 2;
const H: usize = 32;
const BS: usize = 2;
const K: usize = 2;
const ROW: usize = 2 * H;
const WINDOW: usize = 6 << 20;
/// Words and relay areas of a hierarchy are as large as its largest shape needs.
const RELAY_WINDOW: usize = 105 << 20;
const TP_WINDOW: usize = 16 << 10;
/// Room for one output tensor; the largest is `expand_x` with 8 rows.
const OUTPUT: usize = 1024;
const ROUNDS: usize = 4;

/// Bytes of stack that a step of any machine may take, fabric and vector unit included.
const STEP_STACK_MAX: usize = 8 << 10;
/// That the door may take, the shape that it returns and a message for each violation included.
const DOOR_STACK_MAX: usize = 6 << 10;
/// That the areas of a rank may take.
const AREAS_STACK_MAX: usize = 2 << 10;
/// That anything else may take.
const REST_STACK_MAX: usize = 16 << 10;

/// The most that a step has taken.
static STEP_STACK: AtomicUsize = AtomicUsize::new(0);

#[repr(C, align(4096))]
struct Rank {
    state: [u8; STATE_BYTES as usize],
    tp_state: [u8; tp::TP_STATE_BYTES as usize],
    tp_window: [u8; TP_WINDOW],
    outputs: [[u8; OUTPUT]; Tensor::ALL.len()],
}

#[repr(transparent)]
struct Memory<T>(UnsafeCell<T>);

// SAFETY: this program has one thread.
unsafe impl<T> Sync for Memory<T> {}

static MEMORY: Memory<[[Rank; WHOLE]; GROUPS]> =
    Memory(UnsafeCell::new([const { [const { Rank::ZERO }; _] }; _]));

impl Rank {
    const ZERO: Self = Self { state: [0; _], tp_state: [0; _], tp_window: [0; _], outputs: [[0; _]; _] };
}

/// Of each rank its window, and the one that its agent sends from.
const WINDOWS_BYTES: usize = MESHES * WHOLE * 2 * WINDOW;
const RELAY_WINDOWS_BYTES: usize = (GROUPS - MESHES) * WHOLE * 2 * RELAY_WINDOW;

// 1.5 GB of zeros from the loader: as the value of a static the compiler would write and copy them, for 20 seconds.
core::arch::global_asm!(
    ".comm WINDOWS, {}, 4096",
    ".comm RELAY_WINDOWS, {}, 4096",
    const WINDOWS_BYTES,
    const RELAY_WINDOWS_BYTES,
);

unsafe extern "C" {
    safe static WINDOWS: Memory<[u8; WINDOWS_BYTES]>;
    safe static RELAY_WINDOWS: Memory<[u8; RELAY_WINDOWS_BYTES]>;
}

/// A rank's memory as a fabric sees it.
#[derive(Clone, Copy)]
struct Regions {
    ep: Peer,
    tp: Peer,
    outputs: Outputs,
}

type Group = [Regions; WHOLE];

/// What went wrong, as an exit status.
#[derive(Clone, Copy)]
enum Wrong {
    Shape = 1,
    Inputs = 2,
    Machine = 3,
    NoProgress = 4,
    Result = 5,
    Stack = 6,
}

/// A core's scratch.
#[derive(Clone, Copy)]
struct Buffers {
    words: [u32; 128],
    /// A row, and for AddRmsNorm one of f32; with a hierarchy a record.
    row: [u8; 1024],
}

fn run() -> i32 {
    match rounds().and_then(|()| rest()) {
        Ok(()) => 0,
        Err(wrong) => wrong as i32,
    }
}

/// Everything that is not a step, and what all of it takes of the stack.
fn rest() -> Result<(), Wrong> {
    let (mut door, mut areas, mut most) = (0, 0, 0);
    scene::all().iter().try_for_each(|scene| {
        let shape = Shape::new(&scene.config, Limits::None).map_err(|_| Wrong::Shape)?;
        let group = memory(scene.group, &shape)?;
        let (peers, weights, x) = (group.map(|regions| regions.ep), [0.5f32; BS * K], rows(|_| 0x3F80));
        let [first, ..] = group;
        // SAFETY: as of the fabric in `poll`, which nothing uses any more.
        let fabric = unsafe { RawFabric::new(&peers, RankId(0), first.outputs) };
        let mut fabric =
            fabric.with_servers(shape.server_ranks()).with_row_copy(black_box(RowCopy::Streaming));
        let ids = scene.ids.first().map_or(&[][..], |ids| ids.as_slice());
        let inputs = Inputs { x: &x, expert_ids: ids, expert_scales: &weights, ..Inputs::default() };
        let ((), depth) = stack::deepest(|| api::of(&scene.config, &inputs, &mut fabric));
        most = most.max(depth);
        door = door.max(stack::deepest(|| api::door(&scene.config)).1);
        areas = areas.max(stack::deepest(|| api::areas(&shape)).1);
        Ok(())
    })?;
    let parts = [
        ("a step", STEP_STACK.load(Ordering::Relaxed), STEP_STACK_MAX),
        ("the door", door, DOOR_STACK_MAX),
        ("areas", areas, AREAS_STACK_MAX),
        ("all else", most, REST_STACK_MAX),
    ];
    for (what, bytes, _) in parts {
        let _ = writeln!(Console, "stack of {what}: {bytes} bytes");
    }
    if parts.iter().all(|(_, bytes, most)| bytes <= most) { Ok(()) } else { Err(Wrong::Stack) }
}

fn rounds() -> Result<(), Wrong> {
    // Layers that share a group's memory leave nothing behind that the next one minds. Agents live as long as their group.
    let mut agents = [const { [const { Agent::new() }; RANKS] }; GROUPS];
    scene::all().iter().try_for_each(|scene| {
        let agents = agents.get_mut(scene.group).ok_or(Wrong::Shape)?;
        let whole = Shape::new(&scene.config, Limits::None).map_err(|_| Wrong::Shape)?;
        let is_elastic = scene.config.given.contains(Given::ELASTIC_INFO);
        let left = is_elastic.then(|| Elastic::check(&whole, &ELASTIC_INFO, &mut |_| ()).ok_or(Wrong::Shape));
        let left = left.transpose()?;
        let left = left.as_ref();
        let shape = left.map_or_else(|| whole.clone(), |left| whole.survivors(left));
        let memory = memory(scene.group, &shape)?;
        // Four rounds: both partitions of both operators are used, and used again.
        (0..ROUNDS).try_for_each(|round| {
            let domain = Domain { shape: &shape, left, memory: &memory };
            one_round(scene, &domain, agents, round)
        })
    })
}

struct Domain<'a> {
    shape: &'a Shape,
    left: Option<&'a Elastic>,
    memory: &'a Group,
}

impl<'a> Domain<'a> {
    /// The EP rank of one of those that run: TP peers are the same one.
    fn ep(&self, rank: usize) -> RankId {
        RankId(if self.shape.tp_world_size() == 2 { 0 } else { rank as u32 })
    }

    /// A rank's place in memory.
    fn physical(&self, rank: usize) -> Option<RankId> {
        let rank = RankId(rank as u32);
        self.left.map_or(Some(rank), |left| left.physical(rank))
    }

    fn outputs(&self, rank: usize) -> Option<&'a Outputs> {
        self.memory.get(self.physical(rank)?.index()).map(|regions| &regions.outputs)
    }

    /// How many rows a rank has received: the last of its `ep_recv_counts`.
    fn rows(&self, rank: usize) -> Option<usize> {
        let counts = self.bytes(rank, Tensor::EpRecvCounts).as_chunks().0;
        let entries = self.shape.local_experts(self.ep(rank)) * self.shape.ep_world_size();
        usize::try_from(i32::from_le_bytes(*counts.get(entries.checked_sub(1)? as usize)?)).ok()
    }

    /// An output of an operator that has ended, or a part of it that no core writes any more.
    fn bytes(&self, rank: usize, tensor: Tensor) -> &'a [u8] {
        let segment = self.outputs(rank).and_then(|outputs| outputs.get(tensor as usize));
        let Some(segment) = segment.filter(|segment| !segment.is_empty()) else { return &[] };
        // SAFETY: the segment is part of `MEMORY`. What combine writes is read after its end; the outputs of dispatch,
        // which combine does not write, are read after its end and before the next one's begin.
        unsafe { core::slice::from_raw_parts(segment.base(), segment.len() as usize) }
    }
}

/// The regions of all ranks of a group.
fn memory(group: usize, shape: &Shape) -> Result<Group, Wrong> {
    if group >= GROUPS {
        return Err(Wrong::Shape);
    }
    let base = MEMORY.0.get().cast::<Rank>().wrapping_add(group * WHOLE);
    let (windows, nth, bytes) = match group.checked_sub(MESHES) {
        Some(relayed) => (RELAY_WINDOWS.0.get().cast::<u8>(), relayed, RELAY_WINDOW),
        None => (WINDOWS.0.get().cast::<u8>(), group, WINDOW),
    };
    let windows = windows.wrapping_add(nth * WHOLE * 2 * bytes);
    let fits = (0..shape.ep_world_size()).map(RankId).all(|rank| {
        let outputs = Tensor::ALL.iter().all(|&tensor| capacity(shape, rank, tensor) <= OUTPUT as u64);
        outputs && (shape.tp_world_size() == 1 || tp::window_bytes(shape, rank) <= TP_WINDOW as u64)
    });
    if !fits {
        return Err(Wrong::Shape);
    }
    let mut rank = 0;
    Ok([(); WHOLE].map(|()| {
        let this = base.wrapping_add(rank);
        let window = |nth| Segment::new(windows.wrapping_add((2 * rank + nth) * bytes), bytes as u64);
        let (window, window_out) = (window(0), window(1));
        rank += 1;
        let at = |offset: usize, len: usize| Segment::new(this.cast::<u8>().wrapping_add(offset), len as u64);
        let ep =
            Peer { state: at(core::mem::offset_of!(Rank, state), STATE_BYTES as usize), window, window_out };
        let tp = Peer {
            state: at(core::mem::offset_of!(Rank, tp_state), tp::TP_STATE_BYTES as usize),
            window: at(core::mem::offset_of!(Rank, tp_window), TP_WINDOW),
            window_out: Segment::EMPTY,
        };
        let outputs = core::mem::offset_of!(Rank, outputs);
        let outputs = Tensor::ALL.map(|tensor| at(outputs + tensor as usize * OUTPUT, OUTPUT));
        Regions { ep, tp, outputs }
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

fn one_round(
    scene: &Scene,
    domain: &Domain<'_>,
    agents: &mut [Agent; RANKS],
    round: usize,
) -> Result<(), Wrong> {
    let shape = domain.shape;
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
        inputs(rank).check(shape, domain.ep(rank)).map_err(|_| Wrong::Inputs)?;
    }

    let mut scratch = [[Buffers { words: [0; _], row: [0; _] }; CORES]; RANKS];
    let mut y = [[0; OUTPUT]; RANKS];
    poll(domain, scene, agents, Operator::Dispatch, &mut scratch, &inputs, &y)?;

    for (rank, y) in y.iter_mut().enumerate() {
        experts(scene, domain, rank, y).ok_or(Wrong::Result)?;
    }
    poll(domain, scene, agents, Operator::Combine, &mut scratch, &inputs, &y)?;

    let right = (0..RANKS).all(|rank| {
        let doubled = |token| scene.doubled.get(rank).and_then(|of| of.get(token)).copied().unwrap_or(0);
        let result =
            rows(|token| element(scene, rank, token, round).wrapping_add_signed(0x80 * doubled(token)));
        let holds = |tensor, row: &[u8]| domain.bytes(rank, tensor).get(..row.len()) == Some(row);
        // Alike elements are 1 when they are normalised.
        holds(Tensor::XOut, &result) && (!norm || holds(Tensor::X, &result) && holds(Tensor::Y, &one))
    });
    if right { Ok(()) } else { Err(Wrong::Result) }
}

/// The experts of a rank: each returns what it got. In `y`, or beside the rows with direct placement.
fn experts(scene: &Scene, domain: &Domain<'_>, rank: usize, y: &mut [u8; OUTPUT]) -> Option<()> {
    let table = domain.bytes(rank, Tensor::RowTable);
    let window = domain.memory.get(domain.physical(rank)?.index())?.ep.window;
    let row_at = |place: Place, row: usize| {
        let at = usize::try_from(place.offset).ok()? + row * ROW;
        ((at + ROW) as u64 <= window.len()).then(|| window.base().wrapping_add(at))
    };
    let read = |place, row| {
        let from = row_at(place, row)?.cast::<[u8; ROW]>();
        // SAFETY: inside the window, which no core writes between operators.
        Some(unsafe { from.read_unaligned() })
    };
    let receive = scene.choices.receive;
    if receive.keeps_rows() {
        let rows = domain.rows(rank)?;
        let stretches = receive.rows(domain.shape, rows as u32, table);
        let places = stretches.flat_map(|(place, len)| (0..len as usize / ROW).map(move |row| (place, row)));
        for ((row, (place, i)), y) in places.enumerate().zip(y.chunks_exact_mut(ROW)) {
            let seen = read(place, i)?;
            let Some(results) = receive.results(table) else {
                y.copy_from_slice(&seen);
                continue;
            };
            // SAFETY: as above; this is the one who writes.
            unsafe { row_at(results, row)?.cast::<[u8; ROW]>().write_unaligned(seen) };
        }
    } else if domain.shape.row_format().scale.is_some() {
        let scales = domain.bytes(rank, Tensor::DynamicScales).as_chunks().0;
        let rows = domain.bytes(rank, Tensor::ExpandX).chunks_exact(H).zip(scales);
        for ((row, &scale), y) in rows.zip(y.chunks_exact_mut(ROW)).take(domain.rows(rank)?) {
            for (&element, y) in row.iter().zip(y.chunks_exact_mut(2)) {
                let value = f32::from(element.cast_signed()) * f32::from_le_bytes(scale);
                // To the nearest of bf16.
                y.copy_from_slice(&(((value.to_bits() + 0x8000) >> 16) as u16).to_le_bytes());
            }
        }
    } else {
        y.iter_mut().zip(domain.bytes(rank, Tensor::ExpandX)).for_each(|(y, &byte)| *y = byte);
    }
    Some(())
}

/// What a step is told passes through [`black_box`]: what the compiler knew of it, it would leave out of the machine.
fn env(domain: &Domain<'_>, scene: &Scene, rank: usize, core: usize) -> Option<Env<Portable>> {
    let (ep, core) = (domain.ep(rank), CoreId(core as u32));
    let terms = Terms::new(Capabilities::all());
    let env = Env::new(domain.shape, ep, core, scene.choices, terms, Portable).ok()?;
    Some(black_box(if domain.shape.tp_world_size() == 2 {
        env.with_tp_rank(RankId(rank as u32))
    } else {
        env
    }))
}

/// Begins an operator on all cores and steps them in turn until all are done. That no core begins an operator before the last one of its
/// rank has ended the one before is the join.
fn poll<'i>(
    domain: &Domain<'_>,
    scene: &Scene,
    agents: &mut [Agent; RANKS],
    operator: Operator,
    scratch: &mut [[Buffers; CORES]; RANKS],
    inputs: &impl Fn(usize) -> Inputs<'i>,
    y: &[[u8; OUTPUT]; RANKS],
) -> Result<(), Wrong> {
    let shape = domain.shape;
    let (eps, tps) = (domain.memory.map(|regions| regions.ep), domain.memory.map(|regions| regions.tp));
    let has_tp = domain.shape.tp_world_size() == 2;
    let begin = |rank, core| Some(Machine::begin(operator, &env(domain, scene, rank, core)?));
    let mut machines: [[_; CORES]; RANKS] = from_fn(|rank| from_fn(|core| begin(rank, core)));
    loop {
        let (mut done, mut stepped) = (0, false);
        let ranks = machines.iter_mut().zip(scratch.iter_mut()).zip(agents.iter_mut());
        for (rank, ((machines, scratch), agent)) in ranks.enumerate() {
            let physical = domain.physical(rank).ok_or(Wrong::Shape)?;
            let outputs = *domain.outputs(rank).ok_or(Wrong::Shape)?;
            for (core, (machine, scratch)) in machines.iter_mut().zip(scratch).enumerate() {
                // Each TP peer is alone in its EP domain.
                let (eps, own) = if has_tp {
                    (eps.get(rank..=rank).unwrap_or(&[]), RankId(0))
                } else {
                    (&eps[..], physical)
                };
                // SAFETY: the segments lie in `MEMORY`, aligned to 4096, disjoint, and never freed. Only
                // these fabrics touch them, in one thread, and `bytes` between operators. Without a TP domain
                // no call asks for `tps`.
                let inner = unsafe { RawFabric::new(eps, own, outputs).with_tp(&tps, RankId(rank as u32)) };
                let inner = inner.with_servers(domain.shape.server_ranks());
                let mut fabric = RankRemap { inner, left: domain.left };
                let machine = machine.as_mut().ok_or(Wrong::Machine)?;
                let scratch = black_box(Scratch { words: &mut scratch.words, row: &mut scratch.row });
                let (stopped, depth) = stack::deepest(|| {
                    let output = |tensor| black_box(domain.bytes(rank, tensor));
                    let combine_inputs =
                        CombineInputs::of(y.get(rank).map_or(&[][..], |y| black_box(y)), output);
                    let env = env(domain, scene, rank, core).ok_or(ProtocolError::OtherMachine)?;
                    let (core, inputs) = (env.on(shape)?, &black_box(inputs(rank)));
                    let (fabric, combine_inputs) = (&mut fabric, &combine_inputs);
                    machine.step(&mut Context { core, fabric, inputs, combine_inputs, scratch })
                });
                STEP_STACK.fetch_max(depth, Ordering::Relaxed);
                match stopped.map_err(|_| Wrong::Machine)? {
                    Progress::Done => done += 1,
                    Progress::Stepped => stepped = true,
                    Progress::Pending(_) => {}
                }
            }
            if scene.choices.has_agents(domain.shape) {
                let env = AgentEnv::new(domain.shape, physical, black_box(SendOrder::Staggered));
                // SAFETY: as above; this is the one agent of the rank.
                let mut nic = unsafe { RawNic::new(&eps, physical) };
                let (posted, depth) = stack::deepest(|| agent.step(domain.shape, &env, &mut nic));
                STEP_STACK.fetch_max(depth, Ordering::Relaxed);
                stepped |= posted.map_err(|_| Wrong::Machine)? == Progress::Stepped;
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
