//! Cores, in lockstep with those of Rust.

use super::came::check_steps;
use super::memories::{Cache, lacking, mapped_of, reach_of, some};
use super::{List, choices_of, shape_of};
use crate::codes::*;
use crate::driver::{
    veriep_core_awaits, veriep_core_begin, veriep_core_new, veriep_core_resume, veriep_core_send,
    veriep_core_step,
};
use crate::tests::model::Args;
use crate::tests::model::caches::Noted;
use crate::tests::model::mood::{Mood, Moody};
use crate::tests::model::structures::Fault;
use crate::tests::model::tables::table;
use crate::tests::model::tensors::{rust_inputs, rust_operands};
use crate::tests::model::world::{Outcome, Phase, Seat, Twin, World, nothing, rust_choices};
use crate::tests::vector;
use crate::types::*;
use crate::vector::Unit;
use core::cell::Cell;
use core::ptr::{null, null_mut};
use kernel_core::fabric::{Awaited, Capabilities, Fabric, ProtocolError, Terms};
use kernel_core::protocol::{
    CombineInputs, Context, Env, Machine, Operator, Ran, Run, Scratch as KernelScratch, scratch_bytes,
    scratch_words,
};
use kernel_core::shape::Shape;
use kernel_core::units::{CoreId, RankId};
use std::format;
use std::string::String;
use std::vec::Vec;

pub(in crate::tests::model) fn core_new(world: &mut World, args: &mut Args) -> Outcome {
    let text = args.text(world);
    let (shape, of) = shape_of(world, args, "shape");
    let mut chosen = nothing();
    let choices = choices_of(world, args, &mut chosen);
    let any = world.dice.below(16) as u32;
    let can_right = if world.dice.once_in(6) { any } else { 15 };
    let can = args.number("can", can_right, 16);
    let seat = &mut world.seats[args.seat];
    let rank = args.number("rank", seat.rank, of.ep_world_size());
    let core = args.number("core", seat.core, of.aiv_num());
    let tp_rank = args.number("tp_rank", seat.tp_rank, of.tp_world_size());
    let out = args.pointer("out", &raw mut *seat.object);
    // SAFETY: as above.
    let said = unsafe { veriep_core_new(out, shape, rank, tp_rank, core, choices, can, text.0, text.1) };
    args.outcome(said, || {
        let choices = rust_choices(choices);
        let terms = Terms::new(Capabilities::from_bits(can).unwrap());
        match Env::new(&of, RankId(rank), CoreId(core), choices, terms, Unit::PORTABLE) {
            Ok(env) => {
                let env = if of.tp_world_size() > 1 { env.with_tp_rank(RankId(tp_rank)) } else { env };
                let (operator, needs) = (Operator::Dispatch, choices.needs(&of));
                let machine = Machine::begin(operator, &env);
                seat.twin = Some(Twin { env, machine, operator, needs });
                seat.phase = Phase::Idle;
                (VERIEP_OK, Some(String::new()))
            }
            Err(refused) => {
                (seat.twin, seat.phase) = (None, Phase::None);
                (VERIEP_E_REFUSED, Some(format!("{refused}")))
            }
        }
    })
}

/// Begins an operator, or its sending half.
fn begin(world: &mut World, args: &mut Args, phase: Phase) -> Outcome {
    let is_random = world.dice.once_in(8);
    let any = world.dice.below(2) as u32;
    let seat = &mut world.seats[args.seat];
    let has_dispatched = seat.phase == Phase::Done
        && seat.twin.as_ref().is_some_and(|twin| twin.operator == Operator::Dispatch);
    let right = if is_random { any } else { has_dispatched.into() };
    let which = args.number("which", right, 2);
    let core = args.object("core", &raw mut *seat.object, &raw const *world.blank);
    let sends = phase == Phase::Sends;
    // SAFETY: as above.
    let said = unsafe { if sends { veriep_core_send(core, which) } else { veriep_core_begin(core, which) } };
    args.outcome(said, || {
        if sends && world.of.tp_world_size() > 1 {
            return (VERIEP_E_REFUSED, None);
        }
        let twin = seat.twin.as_mut().unwrap();
        twin.operator = if which == VERIEP_DISPATCH { Operator::Dispatch } else { Operator::Combine };
        twin.machine = Machine::begin(twin.operator, &twin.env);
        seat.phase = phase;
        (VERIEP_OK, None)
    })
}

pub(in crate::tests::model) fn core_begin(world: &mut World, args: &mut Args) -> Outcome {
    begin(world, args, Phase::Running)
}

pub(in crate::tests::model) fn core_send(world: &mut World, args: &mut Args) -> Outcome {
    begin(world, args, Phase::Sends)
}

pub(in crate::tests::model) fn core_resume(world: &mut World, args: &mut Args) -> Outcome {
    let seat = &mut world.seats[args.seat];
    let core = args.object("core", &raw mut *seat.object, &raw const *world.blank);
    // SAFETY: as above.
    let said = unsafe { veriep_core_resume(core) };
    args.outcome(said, || {
        seat.phase = Phase::Resumed;
        (VERIEP_OK, None)
    })
}

/// Lets a machine go on from a phase; or take one step and note what it waits for.
fn go_on(
    machine: &mut Machine,
    phase: Phase,
    mut cx: Context<'_, dyn Fabric + '_>,
    awaited: Option<&mut Vec<Awaited>>,
    steps: u32,
) -> Ran {
    if phase == Phase::Resumed
        && let Err(error) = machine.resume(cx.core, &*cx.fabric)
    {
        return Ran::failed(error);
    }
    let sends = matches!(phase, Phase::Sends | Phase::Sent);
    match awaited {
        Some(_) if sends && machine.has_sent(cx.core) => Ran { steps: 0, end: Ok(Run::Done) },
        None if sends => machine.send(&mut cx, steps),
        Some(awaited) => machine.awaits(&mut cx, &mut |what| awaited.push(what)).into(),
        None => machine.run(&mut cx, steps),
    }
}

/// The state of a core that has gone on.
fn phase_after(before: Phase, came: &Ran) -> Phase {
    let sends = matches!(before, Phase::Sends | Phase::Sent);
    match &came.end {
        Err(ProtocolError::OtherShape { .. }) => before,
        Err(_) => Phase::Dead,
        Ok(Run::Done) if sends => Phase::Sent,
        // A run of no steps.
        Ok(_) if matches!(before, Phase::Sent | Phase::Done) => before,
        Ok(_) if sends => Phase::Sends,
        Ok(Run::Done) => Phase::Done,
        Ok(_) => Phase::Running,
    }
}

/// A shape that a core or an agent is given: its own, or another one.
pub(super) fn shape_to_go_on_with(world: &mut World, args: &mut Args) -> (*mut veriep_shape, Shape) {
    let (right, of) = if args.fault("shape") == Some(Fault::Wrong) {
        (&raw mut *world.other, &world.of_other)
    } else {
        (&raw mut *world.shape, &world.of)
    };
    (args.object("shape", right, &raw const *world.blank), of.clone())
}

fn drive_core(world: &mut World, args: &mut Args, awaits: bool) -> Outcome {
    let (mood, without) = (world.mood(), some(world));
    let steps = world.dice.pick(&[0, 1, 2, 40, 1000, 1000]);
    let (tells, has_vector) = (world.tells(), world.dice.once_in(2));
    let takes_no_operands = world.dice.once_in(2);
    let (shape_at, of) = shape_to_go_on_with(world, args);
    let (rank, tp_rank) = (world.seats[args.seat].rank, world.seats[args.seat].tp_rank);
    let mut inputs = world.inputs(rank, args);
    let (mut operands, of_twin) = (world.operands(0, rank, args), world.operands(1, rank, args));
    let is_dispatch =
        world.seats[args.seat].twin.as_ref().is_none_or(|twin| twin.operator == Operator::Dispatch);
    let mut operands_at = args.pointer("operands", &mut operands);
    if takes_no_operands && is_dispatch && args.refused.is_none() {
        operands_at = null_mut();
    }

    // The memory of C.
    let (memory, twins_memory) = (&world.memories[0], &world.memories[1]);
    let reach = memory.reach(rank);
    let mut moody = Moody::new(reach.fabric(&of, rank, tp_rank), mood, rank);
    let (mut fabric, can) = lacking(args, table(&raw mut moody), without);
    let cache = Cache { memory, told: Cell::default() };
    let (mut peers, mut tp) = (Vec::new(), Vec::new());
    let mut mapped = mapped_of(args, &cache, tells, rank, &mut peers, &mut tp);
    let is_both = args.fault("cx.fabric and cx.mapped").is_some();
    let fabric_at = args.pointer("fabric", &mut fabric);
    let mapped_at = args.pointer("mapped", &mut mapped);

    let mut calls = [[0; 9]; 2];
    let [calls_of_c, calls_of_twin] = &mut calls;
    let [mut units, mut twins_units] = [calls_of_c, calls_of_twin].map(|calls| vector::table(Some(calls)));
    if takes_no_operands {
        (units.quantise, units.add, twins_units.quantise, twins_units.add) = (None, None, None, None);
    }
    let units_at = args.pointer("vector", &mut units);
    let has_vector = has_vector || args.slip("vector").is_some();

    // What the twin comes to.
    let Seat { object, twin, scratch: [own, twins], phase, .. } = &mut world.seats[args.seat];
    let (mut came, mut awaited) = (Ran { steps: 0, end: Ok(Run::Budget) }, Vec::new());
    let told = Cell::default();
    let words_len = args.length("words_len", scratch_words(&of));
    let bytes_len = args.length("bytes_len", scratch_bytes(&of));
    let mut asked = (Vec::new(), (0, 0));
    if args.refused.is_none() {
        let twin = twin.as_mut().unwrap();
        let takes_units = has_vector && !units_at.is_null();
        // SAFETY: as above.
        let unit = unsafe { Unit::new(if takes_units { &raw const twins_units } else { null() }) };
        twin.env.set_vector(unit.unwrap());
        let whole = twins_memory.reach(rank);
        let cut;
        let mut by_table = Moody::new(whole.fabric(&of, rank, tp_rank), Mood { can, ..mood }, rank);
        let (mut by_address, mut by_caches);
        let fabric: &mut dyn Fabric = if args.is_table {
            &mut by_table
        } else if tells.writes || tells.reads {
            cut = reach_of(twins_memory, rank, &mapped);
            let inner = cut.fabric(&of, rank, tp_rank);
            by_caches = Noted { inner, memory: twins_memory, own: (rank, tp_rank), tells, told: &told };
            &mut by_caches
        } else {
            cut = reach_of(twins_memory, rank, &mapped);
            by_address = cut.fabric(&of, rank, tp_rank);
            &mut by_address
        };
        let combine_inputs =
            if operands_at.is_null() { CombineInputs::NONE } else { rust_operands(&of_twin) };
        let scratch =
            KernelScratch { words: &mut twins.words[..words_len], row: &mut twins.bytes[..bytes_len] };
        let (inputs, combine_inputs) = (&rust_inputs(&inputs), &combine_inputs);
        came = match twin.env.on(&of) {
            Ok(core) => {
                let cx = Context { core, fabric, inputs, combine_inputs, scratch };
                go_on(&mut twin.machine, *phase, cx, awaits.then_some(&mut awaited), steps)
            }
            Err(error) => Ran::failed(error),
        };
        asked = (by_table.calls(), by_table.prefetched());
        *phase = phase_after(*phase, &came);
    }

    // The same by C.
    let core = args.object("core", &raw mut **object, &raw const *world.blank);
    let inputs_at = args.pointer("inputs", &mut inputs);
    let words_at = args.pointer("words", own.words.as_mut_ptr());
    let bytes_at = args.pointer("bytes", own.bytes.as_mut_ptr());
    let huge =
        |args: &mut Args, name, len| if args.fault(name) == Some(Fault::Huge) { usize::MAX } else { len };
    let (words_len, bytes_len) = (huge(args, "words", words_len), huge(args, "bytes", bytes_len));
    let list = awaits.then(|| {
        List::<veriep_awaited>::new_in(
            &mut world.dice,
            &mut world.list,
            &raw mut *world.count,
            args,
            awaited.len(),
        )
    });
    let text_len = args.length("text", world.text.len());
    let cx = veriep_context {
        shape: shape_at,
        fabric: if args.is_table { fabric_at } else { null() },
        mapped: if !args.is_table || is_both { mapped_at } else { null() },
        inputs: inputs_at,
        operands: operands_at,
        words: words_at,
        words_len,
        bytes: bytes_at,
        bytes_len,
        nic: null(),
        vector: if has_vector { units_at } else { null() },
        text: args.pointer("text", world.text.as_mut_ptr()),
        text_len,
    };
    let cx_at = args.pointer("cx", (&raw const cx).cast_mut());
    let status = args.pointer("status", &raw mut *world.status);
    // SAFETY: as above.
    let said = unsafe {
        match &list {
            Some(list) => veriep_core_awaits(core, cx_at, list.to, list.room, list.count, status),
            None => veriep_core_step(core, cx_at, steps, status),
        }
    };
    let asked_by_c = (moody.calls(), moody.prefetched());
    drop(moody);
    if args.refused.is_none() {
        assert_eq!(asked_by_c, asked, "calls of the fabric, and what is announced to be read");
        assert_eq!(calls[0], calls[1], "calls of the vector unit");
        assert_eq!(own.words, twins.words, "scratch words");
        assert_eq!(own.bytes, twins.bytes, "scratch bytes");
        assert_eq!(cache.told.take(), told.take(), "what caches are told");
    }
    args.outcome(said, || {
        check_steps(world, args, &came, status, list.as_ref().map(|list| (list, &awaited[..])))
    })
}

pub(in crate::tests::model) fn core_step(world: &mut World, args: &mut Args) -> Outcome {
    drive_core(world, args, false)
}

pub(in crate::tests::model) fn core_awaits(world: &mut World, args: &mut Args) -> Outcome {
    drive_core(world, args, true)
}
