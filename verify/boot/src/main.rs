//! Dispatch and combine of two ranks with two cores each, over raw memory and with no operating system: every core, and on A2
//! every agent, on a processor of its own. What comes out is compared with the reference's answer, which `verify/harness` knows. One
//! program for four architectures; `arch/` is what differs.
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
mod stack;

use core::cell::UnsafeCell;
use core::fmt::{self, Debug, Write};
use core::sync::atomic::{AtomicUsize, Ordering};
use harness::memory::Arena;
use harness::scene::{self, CORES, Domain, MEMBERS, PROTOCOLS, ROUNDS, Scene, Tokens};
use harness::{Buffers, GOLDEN, Group};
use late::Late;
use veriep_core::fabric::{Fabric, Progress};
use veriep_core::inputs::Inputs;
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Agent, AgentEnv, Context, Env, Machine, Operator};
use veriep_core::vector::Portable;

/// Processors: the cores of all members, then the agents.
const CPUS: usize = MEMBERS * (CORES + 1);
/// Bytes of stack that a processor may use, the door included.
const STACK_MAX: usize = 32 << 10;

static ALL: Barrier = Barrier::new(CPUS);
/// The join of a member's cores.
static JOINS: [Barrier; MEMBERS] = [const { Barrier::new(CORES) }; _];
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
    let mut arena = memory::arena();
    let scenes = scene::protocols();
    for (nth, (scene, golden)) in scenes.iter().zip(&GOLDEN).enumerate() {
        in_scene(scene, golden, nth + 1, processor, &mut arena);
        let wrong = WRONG.load(Ordering::Relaxed);
        if processor == 0 && wrong == 0 {
            say!("{}: {ROUNDS} rounds as the reference says", scene.name);
        } else if processor == 0 {
            fail(scene.name, &format_args!("{wrong} wrong results"));
        }
    }
    let passed = conformance::run(processor, &mut arena, &ALL, |litmus, broken| {
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
    let [first, ..] = scenes;
    in_scene(&first, &GOLDEN[0], PROTOCOLS + 1, processor, &mut arena);
    if processor == 0 {
        fail("twin, rows behind their flags", &"no wrong result");
    }
}

/// A processor's part of the rounds of scene number `nth`; the one behind the last is the twin.
#[inline(never)]
fn in_scene(scene: &Scene, golden: &[[u64; MEMBERS]], nth: usize, processor: usize, arena: &mut Arena) {
    // A domain is large: it is not moved.
    let domain = Domain::new(scene);
    let Some(domain) = &domain else { fail(scene.name, &"refused") };
    let group = arena.group(scene, domain).unwrap_or_else(|| fail(scene.name, &"no room"));
    if let Some(member) = processor.checked_sub(MEMBERS * CORES) {
        if scene.choices.has_agents(&domain.shape) {
            agent(&group, member, nth);
        }
    } else {
        let (member, core) = (processor / CORES, processor % CORES);
        let fabric = group.fabric(member).unwrap_or_else(|| fail(scene.name, &"no such member"));
        let twin = nth > PROTOCOLS;
        let core = Core { group: &group, member, core, twin };
        if twin {
            core.rounds(&mut Late { inner: fabric, kept: None }, golden);
        } else {
            core.rounds(&mut { fabric }, golden);
        }
        ENDED.fetch_add(1, Ordering::AcqRel);
    }
    ALL.wait();
}

/// The agent of a member, until all cores have ended the scene.
fn agent(group: &Group<'_>, member: usize, nth: usize) {
    let (scene, shape) = (group.scene, &group.domain.shape);
    let env = AgentEnv::new(shape, group.domain.ep(member), SendOrder::default());
    let mut agent = Agent::new();
    let mut nic = group.nic(member).unwrap_or_else(|| fail(scene.name, &"no such member"));
    while ENDED.load(Ordering::Acquire) < nth * MEMBERS * CORES {
        match agent.step(shape, &env, &mut nic) {
            Ok(Progress::Stepped) => {}
            Ok(_) => arch::relax(),
            Err(why) => fail("agent", &why),
        }
    }
}

/// A core and what it works on.
struct Core<'a> {
    group: &'a Group<'a>,
    member: usize,
    core: usize,
    twin: bool,
}

impl Core<'_> {
    fn join(&self) {
        JOINS[self.member].wait();
    }

    fn rounds(&self, fabric: &mut dyn Fabric, golden: &[[u64; MEMBERS]]) {
        let (group, member) = (self.group, self.member);
        let env = group.env(member, self.core, fabric.terms()).unwrap_or_else(|why| fail("env", &why));
        for (round, golden) in golden.iter().enumerate() {
            let tokens = Tokens::new(group.domain, member, round);
            let inputs = tokens.inputs(group.domain);
            self.operator(&env, fabric, &inputs, Operator::Dispatch);
            self.join();
            let received = if self.core == 0 { group.experts(member) } else { None };
            self.join();
            self.operator(&env, fabric, &inputs, Operator::Combine);
            self.join();
            if self.core == 0 {
                let right = received.map(|received| group.results(member, received)) == Some(golden[member]);
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
        let combine_inputs = &self.group.combine_inputs(self.member, operator);
        let mut buffers = Buffers::ZERO;
        let core = env.on(&self.group.domain.shape).unwrap_or_else(|error| fail("core", &error));
        let mut cx = Context { core, fabric, inputs, combine_inputs, scratch: buffers.scratch() };
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
}
