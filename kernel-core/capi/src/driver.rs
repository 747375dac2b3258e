//! A core of a rank: made once, begun for each operator, stepped until it is done.

use crate::codes::{
    self, Said, VERIEP_E_ARGUMENT, VERIEP_E_ORDER, VERIEP_E_REFUSED, VERIEP_E_SHORT, VERIEP_OK,
    VERIEP_PENDING, code,
};
use crate::context::{List, awaited, context, report};
use crate::fabric::{Table, capabilities, check};
use crate::given::{self, read, slice_mut};
#[cfg(target_has_atomic = "64")]
use crate::mapped::Mapped;
use crate::objects::{self, Core, Phase};
use crate::text::Text;
use crate::types::{
    veriep_awaited, veriep_choices, veriep_context, veriep_core, veriep_fabric, veriep_shape, veriep_status,
};
use crate::vector::Unit;
use core::ffi::c_char;
#[cfg(target_has_atomic = "64")]
use kernel_core::fabric::raw::RawFabric;
use kernel_core::fabric::{Capabilities, Fabric, ProtocolError, Terms};
use kernel_core::protocol::{
    CombineInputs, Context, Env, Machine, Operator, Ran, Refused, Run, Scratch, scratch_bytes, scratch_words,
};
use kernel_core::shape::{Protocol, Shape};
use kernel_core::units::{CoreId, RankId};

/// What is chosen by default: `VERIEP_ORDER_STAGGERED`, `VERIEP_FLAGS_JOINT`, `VERIEP_RECEIVE_COPY`, `VERIEP_STAGE_3`,
/// `VERIEP_SLOTS_32`, and calls are checked.
#[unsafe(no_mangle)]
pub extern "C" fn veriep_choices_default() -> veriep_choices {
    veriep_choices {
        order: codes::VERIEP_ORDER_STAGGERED,
        flags: codes::VERIEP_FLAGS_JOINT,
        receive: codes::VERIEP_RECEIVE_COPY,
        stage: codes::VERIEP_STAGE_3,
        checked: 1,
        slots: codes::VERIEP_SLOTS_32,
    }
}

/// 1 if each rank has an agent beside its cores under these choices (null: by default), 0 if not, or a code below 0.
///
/// # Safety
/// Pointers that are not null lead to what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_has_agents(
    shape: *const veriep_shape,
    choices: *const veriep_choices,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let shape = objects::get::<Shape>(shape)?;
        Ok(codes::choices(choices)?.has_agents(shape).into())
    })())
}

/// `VERIEP_CAN_*` of a table; a code below 0 for a table without one of the functions that all have.
///
/// # Safety
/// A pointer that is not null leads to a table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_fabric_can(fabric: *const veriep_fabric) -> i32 {
    // SAFETY: the caller's.
    let table = unsafe { read(fabric) };
    code(table.and_then(|table| {
        check(table, Capabilities::empty()).map(|()| capabilities(table).bits().cast_signed())
    }))
}

/// Makes core `core` of EP rank `rank`, in an elastic domain by its new id, which is number `tp_rank` of its TP domain (0
/// without one), for a fabric that can do `can` (`VERIEP_CAN_*`; mapped memory can do all four). `choices` may be null.
///
/// # Safety
/// Pointers that are not null lead to what they say; `text` has `text_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_core_new(
    out: *mut veriep_core,
    shape: *const veriep_shape,
    rank: u32,
    tp_rank: u32,
    core: u32,
    choices: *const veriep_choices,
    can: u32,
    text: *mut c_char,
    text_len: usize,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut text = Text::new(text, text_len)?;
        given::write(out)?;
        let shape = objects::get::<Shape>(shape)?;
        if tp_rank >= shape.tp_world_size() {
            return Err(VERIEP_E_ARGUMENT);
        }
        let can = Capabilities::from_bits(can).ok_or(VERIEP_E_ARGUMENT)?;
        let choices = codes::choices(choices)?;
        objects::forget::<Core>(out)?;
        let env = Env::new(shape, RankId(rank), CoreId(core), choices, Terms::new(can), Unit::PORTABLE);
        let env = env.map_err(|refused| {
            text.say(&refused);
            VERIEP_E_REFUSED
        })?;
        let env = if shape.tp_world_size() > 1 { env.with_tp_rank(RankId(tp_rank)) } else { env };
        let machine = Machine::begin(Operator::Dispatch, &env);
        let (needs, has_halves) = (choices.needs(shape), shape.tp_world_size() == 1);
        let (operator, phase) = (Operator::Dispatch, Phase::Idle);
        objects::put(out, Core { env, rank, tp_rank, needs, has_halves, operator, phase, machine })
    })())
}

/// Begins an operator, `VERIEP_DISPATCH` or `VERIEP_COMBINE`. All cores of this rank must have ended the one before.
///
/// # Safety
/// A pointer that is not null leads to a core that no other call uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_core_begin(core: *mut veriep_core, which: u32) -> i32 {
    // SAFETY: the caller's.
    code(unsafe { begin(core, which, Phase::Running) })
}

/// Begins the sending half of an operator: a step answers `VERIEP_OK` once everything is sent. Then other operators may run, each by
/// another `veriep_core` of this core with scratch of its own, before `veriep_core_resume`. All cores of this rank must have ended the
/// operator or half before. `VERIEP_E_REFUSED` in a TP domain.
///
/// # Safety
/// As of `veriep_core_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_core_send(core: *mut veriep_core, which: u32) -> i32 {
    // SAFETY: the caller's.
    code(unsafe { begin(core, which, Phase::Sends) })
}

/// # Safety
/// As of [`veriep_core_begin`].
unsafe fn begin(core: *mut veriep_core, which: u32, phase: Phase) -> Said {
    // SAFETY: the caller's.
    let core = unsafe { objects::get_mut::<Core>(core) }?;
    if !matches!(core.phase, Phase::Idle | Phase::Done) {
        return Err(VERIEP_E_ORDER);
    }
    let operator = codes::operator(which)?;
    if phase == Phase::Sends && !core.has_halves {
        return Err(VERIEP_E_REFUSED);
    }
    core.operator = operator;
    core.machine = Machine::begin(operator, &core.env);
    core.phase = phase;
    Ok(VERIEP_OK)
}

/// Begins the other half of an operator that has been sent: a step answers `VERIEP_OK` when the operator has ended. All cores of this
/// rank must have ended the operator or half before.
///
/// # Safety
/// As of `veriep_core_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_core_resume(core: *mut veriep_core) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let core = objects::get_mut::<Core>(core)?;
        if core.phase != Phase::Sent {
            return Err(VERIEP_E_ORDER);
        }
        core.phase = Phase::Resumed;
        Ok(VERIEP_OK)
    })())
}

/// Goes on with the operator, or the half that was begun, by at most `steps` steps: `VERIEP_STEPPED`, `VERIEP_PENDING`, `VERIEP_OK`
/// when it has ended, or a code below 0. `status` may be null.
///
/// # Safety
/// Pointers that are not null lead to what they say, and to as much; no other call uses the core meanwhile. Memory is used as
/// `docs/embed/c.md` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_core_step(
    core: *mut veriep_core,
    cx: *const veriep_context,
    steps: u32,
    status: *mut veriep_status,
) -> i32 {
    // SAFETY: the caller's.
    code(unsafe {
        drive(core, cx, status, false, &mut |machine, cx, sends| {
            if sends { machine.send(cx, steps) } else { machine.run(cx, steps) }
        })
    })
}

/// Takes one more step of a core that is pending, which changes nothing if it still is, and tells all that it awaits: only a
/// change of one of these lets it move, so until then its driver may sleep. Writes at most `room` of them to `out`, their
/// number to `count`, and what is missing to the context's text. `VERIEP_PENDING`, or another code if it has moved or failed:
/// then `count` is 0, and what it wrote to `out` means nothing. `VERIEP_E_SHORT` if there are more than `room`: `count` is then
/// right, and the core as pending as before.
///
/// # Safety
/// As of `veriep_core_step`; `out` has `room` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn veriep_core_awaits(
    core: *mut veriep_core,
    cx: *const veriep_context,
    out: *mut veriep_awaited,
    room: usize,
    count: *mut usize,
    status: *mut veriep_status,
) -> i32 {
    // SAFETY: the caller's.
    code((|| unsafe {
        let mut list = List::new(out, room, count)?;
        let said = drive(core, cx, status, true, &mut |machine, cx, sends| {
            if sends && machine.has_sent(cx.core) {
                return Ran { steps: 0, end: Ok(Run::Done) };
            }
            machine.awaits(cx, &mut |what| list.add(awaited(what))).into()
        })?;
        // A list that was cut would let its reader sleep too long. What has moved awaits nothing.
        if said == VERIEP_PENDING { list.end().map(|_| said) } else { list.none(said) }
    })())
}

type Cx<'c> = Context<'c, dyn Fabric + 'c>;

/// Opens what the caller gave, lets `step` go on, and reports. Both kinds of memory are one type behind a pointer: the
/// machines are in the library once. `step` is told whether only the sending half was begun.
///
/// # Safety
/// As of [`veriep_core_step`].
unsafe fn drive(
    core: *mut veriep_core,
    cx: *const veriep_context,
    status: *mut veriep_status,
    tells: bool,
    step: &mut dyn FnMut(&mut Machine, &mut Cx<'_>, bool) -> Ran,
) -> Said {
    // SAFETY: the caller's.
    unsafe {
        let core = objects::get_mut::<Core>(core)?;
        let (given, is_table) = context(cx, status, |cx| !cx.fabric.is_null())?;
        if matches!(core.phase, Phase::Idle | Phase::Dead) {
            return Err(VERIEP_E_ORDER);
        }
        let sends = matches!(core.phase, Phase::Sends | Phase::Sent);
        let shape = objects::get::<Shape>(given.shape)?;
        let inputs = &given::inputs(read(given.inputs)?)?;
        let combine_inputs = &if given.operands.is_null() && core.operator == Operator::Dispatch {
            CombineInputs::NONE
        } else {
            given::operands(read(given.operands)?)?
        };
        let words = slice_mut(given.words, given.words_len)?;
        let row = slice_mut(given.bytes, given.bytes_len)?;
        let rank = RankId(core.rank);
        let mut table;
        #[cfg(target_has_atomic = "64")]
        let mut mapped;
        let fabric: &mut dyn Fabric = if is_table {
            table = Table::new(read(given.fabric)?, core.needs, rank)?;
            let (line, apart) = (table.line(), core.env.choices().keeps_apart(shape));
            if !line.is_power_of_two() {
                return Err(VERIEP_E_ARGUMENT);
            }
            if line > apart {
                Text::new(given.text, given.text_len)?.say(&Refused::Line { line, apart });
                return Err(VERIEP_E_REFUSED);
            }
            &mut table
        } else {
            #[cfg(not(target_has_atomic = "64"))]
            return Err(VERIEP_E_REFUSED);
            #[cfg(target_has_atomic = "64")]
            {
                let tp_rank = RankId(core.tp_rank);
                // After a `?` it would take its stack twice.
                mapped = Mapped::new(given.mapped, rank, tp_rank, |peers, tp, outputs| {
                    RawFabric::new(peers, rank, outputs).with_tp(tp, tp_rank).with_servers(servers(shape))
                });
                mapped.as_mut().map_err(|code| *code)?
            }
        };
        if words.len() < scratch_words(shape) || row.len() < scratch_bytes(shape) {
            return Err(VERIEP_E_SHORT);
        }
        core.env.set_vector(Unit::new(given.vector)?);
        let scratch = Scratch { words, row };
        let (machine, is_resumed) = (&mut core.machine, core.phase == Phase::Resumed);
        let ran = match core.env.on(shape) {
            Ok(on) => match if is_resumed { machine.resume(on, &*fabric) } else { Ok(()) } {
                Ok(()) => {
                    step(machine, &mut Context { core: on, fabric, inputs, combine_inputs, scratch }, sends)
                }
                Err(error) => Ran::failed(error),
            },
            Err(error) => Ran::failed(error),
        };
        core.phase = match ran.end {
            Err(ProtocolError::OtherShape { .. }) => core.phase,
            Err(_) => Phase::Dead,
            Ok(Run::Done) if sends => Phase::Sent,
            Ok(Run::Done) => Phase::Done,
            // A run of no steps does not take back what has ended.
            Ok(Run::Budget) if matches!(core.phase, Phase::Sent | Phase::Done) => core.phase,
            Ok(Run::Waiting(_) | Run::Budget) if sends => Phase::Sends,
            Ok(Run::Waiting(_) | Run::Budget) => Phase::Running,
        };
        report(given, status, ran, tells)
    }
}

/// Ranks of a server, where others are far; else 0.
fn servers(shape: &Shape) -> u32 {
    if shape.protocol() == Protocol::Hierarchy { shape.server_ranks() } else { 0 }
}
