//! Dispatch and combine of two ranks with two cores each, over raw memory, with nothing beneath: no std, no allocator, no
//! C library. It is linked to show that `kernel-core` needs none of them, and run to show that it works so: status 0 if
//! the results are right, else the number of what went wrong.
//!
//! One processor polls all four cores in turn, and on A2 both agents, as a firmware without threads would.
#![no_std]
#![no_main]

mod api;
mod runtime;
mod stack;

use core::array::from_fn;
use core::fmt::Write as _;
use core::hint::black_box;
use core::sync::atomic::{AtomicUsize, Ordering};
use harness::memory::Arena;
use harness::scene::{self, CORES, Domain, MEMBERS, Tokens};
use harness::{Buffers, GOLDEN, Group};
use runtime::Console;
use veriep_core::fabric::raw::{RowCopy, Segment};
use veriep_core::fabric::{Capabilities, Progress, ProtocolError, Terms};
use veriep_core::inputs::Inputs;
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Agent, AgentEnv, Context, Env, Machine, Operator};
use veriep_core::shape::{Limits, Shape};
use veriep_core::vector::Portable;

/// Both partitions of both operators are used, and used again.
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

const MEMORY_BYTES: usize = 3 << 29;

// Zeros from the loader: as the value of a static the compiler would write and copy them, for 20 seconds.
core::arch::global_asm!(".comm MEMORY, {}, 4096", const MEMORY_BYTES);

unsafe extern "C" {
    static MEMORY: u8;
}

/// All memory, which is not taken yet.
fn arena() -> Arena {
    let block = Segment::new((&raw const MEMORY).cast_mut(), MEMORY_BYTES as u64);
    // SAFETY: this program has one thread, and one arena at a time: `rest` makes them when `rounds` has ended. `poll` keeps the
    // join, and `one_round` asks for experts and results between the operators.
    unsafe { Arena::new(block) }
}

/// What went wrong, as an exit status.
#[derive(Clone, Copy)]
enum Wrong {
    Shape = 1,
    Inputs = 2,
    Machine = 3,
    NoProgress = 4,
    Result = 5,
    Stack = 6,
    Memory = 7,
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
    scene::protocols().iter().chain(&scene::layers()).try_for_each(|scene| {
        let shape = Shape::new(&scene.config, Limits::None).map_err(|_| Wrong::Shape)?;
        let domain = Domain::new(scene).ok_or(Wrong::Shape)?;
        let mut arena = arena();
        let group = arena.group(scene, &domain).ok_or(Wrong::Memory)?;
        let fabric = group.fabric(0).ok_or(Wrong::Memory)?.inner;
        let mut fabric = fabric.with_row_copy(black_box(RowCopy::Streaming));
        let tokens = Tokens::new(&domain, 0, 0);
        let inputs = tokens.inputs(&domain);
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
    let mut arena = arena();
    // Agents live as long as their memory.
    let mut agents = [const { Agent::new() }; MEMBERS];
    let (protocols, layers) = (scene::protocols(), scene::layers());
    protocols.iter().chain(&layers).zip(&GOLDEN).try_for_each(|(scene, golden)| {
        let domain = Domain::new(scene).ok_or(Wrong::Shape)?;
        if !scene.again {
            agents = [const { Agent::new() }; MEMBERS];
        }
        let group = arena.group(scene, &domain).ok_or(Wrong::Memory)?;
        let mut rounds = golden.iter().enumerate().take(ROUNDS);
        rounds.try_for_each(|(round, golden)| one_round(&group, &mut agents, round, golden))
    })
}

fn one_round(
    group: &Group<'_>,
    agents: &mut [Agent; MEMBERS],
    round: usize,
    golden: &[u64; MEMBERS],
) -> Result<(), Wrong> {
    let shape = &group.domain.shape;
    let tokens: [Tokens; MEMBERS] = from_fn(|member| Tokens::new(group.domain, member, round));
    let inputs = tokens.each_ref().map(|tokens| tokens.inputs(group.domain));
    for (member, inputs) in inputs.iter().enumerate() {
        inputs.check(shape, group.domain.ep(member)).map_err(|_| Wrong::Inputs)?;
    }
    poll(group, agents, Operator::Dispatch, &inputs)?;
    let mut received = [0; MEMBERS];
    for (member, received) in received.iter_mut().enumerate() {
        *received = group.experts(member).ok_or(Wrong::Result)?;
    }
    poll(group, agents, Operator::Combine, &inputs)?;
    let mut digests = received.iter().zip(golden).enumerate();
    let right = digests.all(|(member, (&received, &golden))| group.results(member, received) == golden);
    if right { Ok(()) } else { Err(Wrong::Result) }
}

/// What a step is told passes through [`black_box`]: what the compiler knew of it, it would leave out of the machine.
fn env(group: &Group<'_>, member: usize, core: usize) -> Option<Env<Portable>> {
    group.env(member, core, Terms::new(Capabilities::all())).ok().map(black_box)
}

/// Begins an operator on all cores and steps them in turn until all are done. That no core begins an operator before the last one of its
/// rank has ended the one before is the join.
fn poll(
    group: &Group<'_>,
    agents: &mut [Agent; MEMBERS],
    operator: Operator,
    inputs: &[Inputs<'_>; MEMBERS],
) -> Result<(), Wrong> {
    let (scene, shape) = (group.scene, &group.domain.shape);
    let begin = |member, core| Some(Machine::begin(operator, &env(group, member, core)?));
    let mut machines: [[_; CORES]; MEMBERS] = from_fn(|member| from_fn(|core| begin(member, core)));
    let mut buffers = [[Buffers::ZERO; CORES]; MEMBERS];
    loop {
        let (mut done, mut stepped) = (0, false);
        let members = machines.iter_mut().zip(&mut buffers).zip(agents.iter_mut()).zip(inputs);
        for (member, (((machines, buffers), agent), inputs)) in members.enumerate() {
            let mut fabric = group.fabric(member).ok_or(Wrong::Memory)?;
            for (core, (machine, buffers)) in machines.iter_mut().zip(buffers).enumerate() {
                let machine = machine.as_mut().ok_or(Wrong::Machine)?;
                let scratch = black_box(buffers.scratch());
                let (stopped, depth) = stack::deepest(|| {
                    let combine_inputs = &black_box(group.combine_inputs(member, operator));
                    let env = env(group, member, core).ok_or(ProtocolError::OtherMachine)?;
                    let (core, inputs) = (env.on(shape)?, &black_box(*inputs));
                    let fabric = &mut fabric;
                    machine.step(&mut Context { core, fabric, inputs, combine_inputs, scratch })
                });
                STEP_STACK.fetch_max(depth, Ordering::Relaxed);
                match stopped.map_err(|_| Wrong::Machine)? {
                    Progress::Done => done += 1,
                    Progress::Stepped => stepped = true,
                    Progress::Pending(_) => {}
                }
            }
            if scene.choices.has_agents(shape) {
                let env = AgentEnv::new(shape, group.domain.ep(member), black_box(SendOrder::Staggered));
                let mut nic = group.nic(member).ok_or(Wrong::Memory)?;
                let (posted, depth) = stack::deepest(|| agent.step(shape, &env, &mut nic));
                STEP_STACK.fetch_max(depth, Ordering::Relaxed);
                stepped |= posted.map_err(|_| Wrong::Machine)? == Progress::Stepped;
            }
        }
        if done == MEMBERS * CORES {
            return Ok(());
        }
        if !stepped {
            return Err(Wrong::NoProgress);
        }
    }
}
