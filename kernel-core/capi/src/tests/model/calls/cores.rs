//! Cores, in lockstep with those of Rust.

use super::came::{Came, check_steps};
use super::memories::{Cache, lacking, mapped_of, some};
use super::{List, choices_of, shape_of};
use crate::codes::*;
use crate::driver::{veriep_core_awaits, veriep_core_begin, veriep_core_new, veriep_core_step};
use crate::tests::model::Args;
use crate::tests::model::caches::Noted;
use crate::tests::model::mood::{Mood, Moody};
use crate::tests::model::structures::Fault;
use crate::tests::model::tables::table;
use crate::tests::model::tensors::{rust_inputs, rust_operands};
use crate::tests::model::world::{Outcome, Phase, Seat, Twin, World, nothing, rust_choices};
use crate::tests::vector;
use crate::types::*;
use core::cell::Cell;
use core::ptr::{null, null_mut};
use kernel_core::fabric::{Capabilities, Fabric, Progress, ProtocolError};
use kernel_core::protocol::{
    Context, Env, Machine, Operands, Operator, Scratch, scratch_bytes, scratch_words,
};
use kernel_core::units::{CoreId, RankId};
use kernel_core::vector::Portable;
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
        let who = (RankId(rank), CoreId(core));
        let can = Capabilities::from_bits(can).unwrap();
        match Env::new(&of, who, choices, can, Portable) {
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

pub(in crate::tests::model) fn core_begin(world: &mut World, args: &mut Args) -> Outcome {
    let is_random = world.dice.once_in(8);
    let any = world.dice.below(2) as u32;
    let seat = &mut world.seats[args.seat];
    let has_dispatched = seat.phase == Phase::Done
        && seat.twin.as_ref().is_some_and(|twin| twin.operator == Operator::Dispatch);
    let right = if is_random { any } else { has_dispatched.into() };
    let which = args.number("which", right, 2);
    let core = args.object("core", &raw mut *seat.object, &raw const *world.blank);
    // SAFETY: as above.
    let said = unsafe { veriep_core_begin(core, which) };
    args.outcome(said, || {
        let twin = seat.twin.as_mut().unwrap();
        twin.operator = if which == VERIEP_DISPATCH { Operator::Dispatch } else { Operator::Combine };
        twin.machine = Machine::begin(twin.operator, &twin.env);
        seat.phase = Phase::Running;
        (VERIEP_OK, None)
    })
}

fn drive_core(world: &mut World, args: &mut Args, awaits: bool) -> Outcome {
    let (mood, without) = (world.mood(), some(world));
    let steps = world.dice.pick(&[0, 1, 2, 40, 1000, 1000]);
    let (has_caches, has_vector) = (world.dice.once_in(3), world.dice.once_in(2));
    let takes_no_operands = world.dice.once_in(2);
    let is_other = args.fault("shape") == Some(Fault::Wrong);
    let (own_shape, other_shape) = (&raw mut *world.shape, &raw mut *world.other);
    let shape_at = if is_other { other_shape } else { own_shape };
    let shape_at = args.object("shape", shape_at, &raw const *world.blank);
    let of = if is_other { world.of_other.clone() } else { world.of.clone() };
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
    let mut moody = Moody::new(memory.fabric(&of, rank, tp_rank), mood, rank);
    let (mut fabric, can) = lacking(args, table(&raw mut moody), without);
    let cache = Cache { memory, told: Cell::default() };
    let (mut peers, mut tp) = (Vec::new(), Vec::new());
    let mut mapped = mapped_of(args, &cache, has_caches, rank, &mut peers, &mut tp);
    let is_both = args.fault("cx.fabric and cx.mapped").is_some();
    let fabric_at = args.pointer("fabric", &mut fabric);
    let mapped_at = args.pointer("mapped", &mut mapped);

    // What the twin comes to.
    let Seat { object, twin, scratch: [own, twins], phase, .. } = &mut world.seats[args.seat];
    let (mut came, mut awaited): (Came, _) = ((0, Ok(None)), Vec::new());
    let told = Cell::default();
    let words_len = args.length("words_len", scratch_words(&of));
    let bytes_len = args.length("bytes_len", scratch_bytes(&of));
    if args.refused.is_none() {
        let twin = twin.as_mut().unwrap();
        let (mut by_table, mut by_address, mut by_caches);
        let fabric: &mut dyn Fabric = if args.is_table {
            let mood = Mood { can, ..mood };
            by_table = Moody::new(twins_memory.fabric(&of, rank, tp_rank), mood, rank);
            &mut by_table
        } else if has_caches {
            let inner = twins_memory.fabric(&of, rank, tp_rank);
            by_caches = Noted { inner, memory: twins_memory, own: (rank, tp_rank), told: &told };
            &mut by_caches
        } else {
            by_address = twins_memory.fabric(&of, rank, tp_rank);
            &mut by_address
        };
        let inputs = rust_inputs(&inputs);
        let operands = if operands_at.is_null() { Operands::default() } else { rust_operands(&of_twin) };
        let scratch = Scratch { words: &mut twins.words[..words_len], row: &mut twins.bytes[..bytes_len] };
        let env = &twin.env;
        let mut cx = Context { shape: &of, env, fabric, inputs: &inputs, operands: &operands, scratch };
        if awaits {
            let progress = twin.machine.awaits(&mut cx, &mut |what| awaited.push(what));
            came = (u32::from(progress == Ok(Progress::Stepped)), progress.map(Some));
        } else {
            came.1 = twin.machine.run(&mut cx, steps, &mut came.0);
        }
        *phase = match &came.1 {
            Err(ProtocolError::OtherShape { .. }) => *phase,
            Err(_) => Phase::Dead,
            Ok(Some(Progress::Done)) => Phase::Done,
            Ok(_) => Phase::Running,
        };
    }

    // The same by C.
    let mut table_of_units = vector::table(None);
    if takes_no_operands {
        (table_of_units.quantise, table_of_units.add) = (None, None);
    }
    let vector_at = args.pointer("vector", &mut table_of_units);
    let has_slip = args.slip("vector").is_some();
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
        vector: if has_vector || has_slip { vector_at } else { null() },
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
    drop(moody);
    if args.refused.is_none() {
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
