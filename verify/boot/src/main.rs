//! Dispatch and combine of two ranks with two cores each, over raw memory and with no operating system: every core, and on A2
//! every agent, on a processor of its own. What comes out is compared with the reference's answer, which the build script has
//! asked for. One program for four architectures; `arch/` is what differs.
#![no_std]
#![no_main]

#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "arch/riscv64.rs")]
#[cfg_attr(target_arch = "wasm32", path = "arch/wasm32.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
mod arch;
mod conformance;
mod late;
mod memory;
mod scene;
mod stack;

use core::cell::UnsafeCell;
use core::fmt::{self, Debug, Write};
use core::sync::atomic::{AtomicUsize, Ordering};
use late::Late;
use memory::{Free, Rank, bytes, bytes_mut};
use scene::{CORES, LOCAL, RANKS, ROUNDS, ROW, Scene, WEIGHTS};
use veriep_core::fabric::raw::{Peer, RawFabric, RawNic, Segment};
use veriep_core::fabric::{Fabric, Progress};
use veriep_core::inputs::Inputs;
use veriep_core::layout::outputs::ep_recv_counts_bytes;
use veriep_core::place::{Place, Tensor};
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::received::expert_rows;
use veriep_core::protocol::{
    Agent, AgentEnv, Choices, CombineInputs, Context, Env, Machine, Operator, Scratch, scratch_bytes,
    scratch_words,
};
use veriep_core::shape::{Limits, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Portable;

/// Processors: the cores of all ranks, then the agents.
const CPUS: usize = RANKS * (CORES + 1);
/// Bytes of stack that a processor may use, the door included.
const STACK_MAX: usize = 32 << 10;

/// What must come of every round.
static GOLDEN: [[[u64; RANKS]; ROUNDS]; 7] = include!(concat!(env!("OUT_DIR"), "/golden.rs"));

static ALL: Barrier = Barrier::new(CPUS);
/// The join of a rank's cores.
static JOINS: [Barrier; RANKS] = [const { Barrier::new(CORES) }; _];
/// Cores that have ended a scene.
static ENDED: AtomicUsize = AtomicUsize::new(0);
/// Results that were not the reference's.
static WRONG: AtomicUsize = AtomicUsize::new(0);

/// What several processors access; the code that does says why it may.
struct Shared<T>(UnsafeCell<T>);

// SAFETY: the code that goes through the pointer proves it.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    const fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// Where `of` processors wait for each other, as often as they like.
struct Barrier {
    arrived: AtomicUsize,
    of: usize,
}

impl Barrier {
    const fn new(of: usize) -> Self {
        Self { arrived: AtomicUsize::new(0), of }
    }

    fn wait(&self) {
        let turn = self.arrived.fetch_add(1, Ordering::AcqRel) / self.of;
        while self.arrived.load(Ordering::Acquire) / self.of == turn {
            arch::relax();
        }
    }
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        arch::print(text);
        Ok(())
    }
}

macro_rules! say {
    ($($what:tt)*) => {{ let _ = writeln!(Console, $($what)*); }};
}

/// Ends everything.
#[cold]
fn fail(what: &str, why: &dyn Debug) -> ! {
    say!("{what}: {why:?}");
    arch::exit(false)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    say!("{info}");
    arch::exit(false)
}

/// What every processor runs, on a stack of its own. Number 0 starts the others.
#[unsafe(no_mangle)]
extern "C" fn enter(processor: usize) {
    stack::paint(processor);
    run(processor);
}

/// In a frame below the paint's top.
#[inline(never)]
fn run(processor: usize) {
    if processor == 0 {
        arch::start_others();
    }
    let mut free = Free::new();
    for (nth, (scene, golden)) in scene::all().iter().zip(&GOLDEN).enumerate() {
        in_scene(scene, golden, nth + 1, processor, &mut free);
        let wrong = WRONG.load(Ordering::Relaxed);
        if processor == 0 && wrong == 0 {
            say!("{}: {ROUNDS} rounds as the reference says", scene.name);
        } else if processor == 0 {
            fail(scene.name, &format_args!("{wrong} wrong results"));
        }
    }
    let passed = conformance::run(processor, &mut free, &ALL, |litmus, broken| {
        say!("{litmus}: seen otherwise {broken} times");
    });
    ALL.wait();
    // No processor is in a step any more.
    if processor == 0 {
        say!("litmus tests: {passed} passed");
        let stacks: [usize; CPUS] = core::array::from_fn(stack::used);
        say!("bytes of stack by processor: {stacks:?}");
        if stacks.iter().any(|&bytes| bytes > STACK_MAX) {
            fail("more stack than", &STACK_MAX);
        }
    }
    let [first, ..] = scene::all();
    in_scene(&first, &GOLDEN[0], GOLDEN.len() + 1, processor, &mut free);
    if processor == 0 {
        fail("twin, rows behind their flags", &"no wrong result");
    }
}

/// A processor's part of the rounds of scene number `nth`; the one behind the last is the twin.
#[inline(never)]
fn in_scene(scene: &Scene, golden: &[[u64; RANKS]], nth: usize, processor: usize, free: &mut Free) {
    let shape = door(scene);
    let ranks = free.ranks(&shape);
    let peers = ranks.map(|rank| rank.peer);
    if let Some(rank) = processor.checked_sub(RANKS * CORES) {
        if scene.choices.has_agents(&shape) {
            agent(&shape, &peers, RankId(rank as u32), nth);
        }
    } else {
        let (rank, core) = (processor / CORES, processor % CORES);
        let id = RankId(rank as u32);
        // SAFETY: segments of `Free`, which are disjoint. Cores and agents of this scene alone use them; what else does is
        // in `Core`, between operators.
        let fabric = unsafe { RawFabric::new(&peers, id, ranks[rank].outputs) };
        let fabric = fabric.with_servers(shape.server_ranks());
        let twin = nth > GOLDEN.len();
        let core = Core { shape: &shape, choices: scene.choices, memory: &ranks[rank], id, core, twin };
        if twin {
            core.rounds(&mut Late { inner: fabric, kept: None }, golden);
        } else {
            core.rounds(&mut { fabric }, golden);
        }
        ENDED.fetch_add(1, Ordering::AcqRel);
    }
    ALL.wait();
}

#[inline(never)]
fn door(scene: &Scene) -> Shape {
    Shape::new(&scene.config, Limits::None).unwrap_or_else(|why| fail(scene.name, &why))
}

/// The agent of a rank, until all cores have ended the scene.
fn agent(shape: &Shape, peers: &[Peer], rank: RankId, nth: usize) {
    let env = AgentEnv::new(shape, rank, SendOrder::default());
    let mut agent = Agent::new();
    // SAFETY: as of the cores' fabrics; this is the one agent of the rank.
    let mut nic = unsafe { RawNic::new(peers, rank) };
    while ENDED.load(Ordering::Acquire) < nth * RANKS * CORES {
        match agent.step(shape, &env, &mut nic) {
            Ok(Progress::Stepped) => {}
            Ok(_) => arch::relax(),
            Err(why) => fail("agent", &why),
        }
    }
}

/// A core and what it works on.
struct Core<'a> {
    shape: &'a Shape,
    choices: Choices,
    memory: &'a Rank,
    id: RankId,
    core: usize,
    twin: bool,
}

impl Core<'_> {
    fn join(&self) {
        JOINS[self.id.index()].wait();
    }

    fn rounds(&self, fabric: &mut dyn Fabric, golden: &[[u64; RANKS]]) {
        let core = CoreId(self.core as u32);
        let env = Env::new(self.shape, self.id, core, self.choices, fabric.terms(), Portable);
        let env = env.unwrap_or_else(|why| fail("env", &why));
        for (round, golden) in golden.iter().enumerate() {
            if self.core == 0 {
                // SAFETY: the other core has not been told yet that the round begins.
                unsafe { bytes_mut(self.memory.x) }.copy_from_slice(&scene::x(self.id.index(), round));
            }
            self.join();
            let ids = scene::ids(self.id.index(), round);
            // SAFETY: written again only after a join in the next round.
            let x = unsafe { bytes(self.memory.x) };
            let inputs = Inputs { x, expert_ids: &ids, expert_scales: &WEIGHTS, ..Inputs::default() };
            self.operator(&env, fabric, &inputs, Operator::Dispatch);
            self.join();
            let received = if self.core == 0 { self.experts() } else { 0 };
            self.join();
            self.operator(&env, fabric, &inputs, Operator::Combine);
            self.join();
            if self.core == 0 {
                // SAFETY: no core has begun another combine.
                let x_out = unsafe { bytes(self.memory.output(Tensor::XOut)) };
                let right = scene::digest(received, x_out) == golden[self.id.index()];
                let wrong = WRONG.fetch_add(usize::from(!right), Ordering::Relaxed);
                // What the twin is for has come, and that is the end. If both ranks see it, one of them says so.
                if self.twin && !right && wrong == 0 {
                    say!("twin, rows behind their flags: wrong results in round {round}");
                    arch::exit(true);
                }
            }
        }
    }

    fn operator(
        &self,
        env: &Env<Portable>,
        fabric: &mut dyn Fabric,
        inputs: &Inputs<'_>,
        operator: Operator,
    ) {
        // SAFETY: combine reads what its rank's dispatch and experts have left; dispatch reads nothing of it.
        let of = |tensor| unsafe { bytes(self.memory.output(tensor)) };
        let combine_inputs = match operator {
            Operator::Dispatch => CombineInputs::NONE,
            // SAFETY: as above.
            Operator::Combine => CombineInputs::of(unsafe { bytes(self.memory.y) }, of),
        };
        let (mut words, mut row) = ([0; 256], [0; 6 * ROW]);
        if scratch_words(self.shape) > words.len() || scratch_bytes(self.shape) > row.len() {
            fail("scratch", &(scratch_words(self.shape), scratch_bytes(self.shape)));
        }
        let core = env.on(self.shape).unwrap_or_else(|error| fail("core", &error));
        let scratch = Scratch { words: &mut words, row: &mut row };
        let mut cx = Context { core, fabric, inputs, combine_inputs: &combine_inputs, scratch };
        let mut machine = Machine::begin(operator, env);
        loop {
            match machine.step(&mut cx) {
                Ok(Progress::Done) => return,
                Ok(Progress::Stepped) => {}
                Ok(Progress::Pending(_)) => arch::relax(),
                Err(why) => fail("core", &why),
            }
        }
    }

    /// The experts of the rank, which find and leave rows where the choices say; and what was received, as a digest.
    fn experts(&self) -> u64 {
        // SAFETY: dispatch has ended on this rank, and no core begins combine before this core's next join. Others do not
        // write what is read here.
        let of = |segment| unsafe { bytes(segment) };
        let table = of(self.memory.output(Tensor::RowTable));
        let counts = of(self.memory.output(Tensor::EpRecvCounts));
        let Some(counts) = counts.get(..ep_recv_counts_bytes(self.shape, self.id) as usize) else { return 0 };
        let ends: [usize; LOCAL] = core::array::from_fn(|expert| {
            let rows = expert_rows(self.shape, self.id, expert as u32, counts);
            rows.map_or(0, |rows| rows.end as usize)
        });
        let receive = self.choices.receive;
        let results = receive.results(table);
        let mut digest = scene::digest(0, counts);
        let mut row = 0;
        for (place, len) in receive.rows(self.shape, ends[LOCAL - 1] as u32, table) {
            let stretch = of(self.memory.at(place, len));
            digest = scene::digest(digest, stretch);
            for received in stretch.chunks_exact(ROW) {
                let offset = (row * ROW) as u64;
                let result = match results {
                    Some(at) => self.memory.at(Place { offset: at.offset + offset, ..at }, ROW as u64),
                    None => Segment::new(self.memory.y.base().wrapping_add(row * ROW), ROW as u64),
                };
                // SAFETY: results are not rows; only this core writes them now.
                let result = unsafe { bytes_mut(result) };
                result.copy_from_slice(received);
                let expert = ends.iter().take_while(|&&end| end <= row).count();
                scene::expert(self.id.index() * LOCAL + expert, result);
                row += 1;
            }
        }
        digest
    }
}
