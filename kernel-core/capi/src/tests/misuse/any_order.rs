//! Calls in any order: each is answered by a code, and nothing that is not the caller's is touched. `.ci/sanitizer address` looks
//! at the second.

use super::super::vector;
use super::{config, opaque};
use crate::agent::{veriep_agent_awaits, veriep_agent_new, veriep_agent_step};
use crate::codes::*;
use crate::driver::{
    veriep_choices_default, veriep_core_awaits, veriep_core_begin, veriep_core_new, veriep_core_step,
    veriep_fabric_can, veriep_has_agents,
};
use crate::shape::{
    veriep_expert_map_new, veriep_expert_map_translate, veriep_fingerprints_compare, veriep_fingerprints_new,
    veriep_inputs_check, veriep_plan_sends, veriep_received_rows, veriep_shape_new, veriep_shape_sizes,
    veriep_shape_survivors,
};
use crate::types::*;
use core::ffi::{c_char, c_void};
use core::mem::zeroed;
use core::ptr::{null, null_mut};
use core::time::Duration;
use std::boxed::Box;
use std::time::Instant;
use std::vec::Vec;
use std::{env, vec};

/// Memory that a table of functions reaches: some words, from any place on, and answers that a dice decides.
pub(super) struct Memory {
    words: Vec<u64>,
    dice: Dice,
}

/// A table over [`Memory`]; over none it refuses everything with code 77.
pub(super) fn table(memory: *mut Memory) -> veriep_fabric {
    veriep_fabric {
        context: memory.cast(),
        put: Some(put),
        publish: Some(publish),
        quiet: Some(quiet),
        observe: Some(observe),
        store: Some(store),
        bytes: Some(bytes),
        write: Some(write),
        deliver: Some(deliver),
        peer_bytes: Some(peer_bytes),
        send: Some(write_to),
        lend: Some(lend),
        prefetch: None,
    }
}

unsafe fn memory<'a>(context: *mut c_void) -> Result<&'a mut Memory, i32> {
    // SAFETY: the test's own.
    let memory = unsafe { context.cast::<Memory>().as_mut() }.ok_or(77)?;
    if memory.dice.of(200) > 0 { Ok(memory) } else { Err(78) }
}

fn code_of(done: Result<(), i32>) -> i32 {
    done.err().unwrap_or(0)
}

impl Memory {
    fn at(&mut self, offset: u64, len: u64) -> Result<*mut u8, i32> {
        let have = 8 * self.words.len() as u64;
        let len = if len <= have { len } else { return Err(5) };
        let first = offset % (have - len + 1);
        Ok(self.words.as_mut_ptr().cast::<u8>().wrapping_add(first as usize))
    }
}

unsafe extern "C" fn put(
    context: *mut c_void,
    _to: u32,
    at: veriep_place,
    row: *const u8,
    row_len: usize,
    tail: *const u8,
    tail_len: usize,
) -> i32 {
    // SAFETY: what is told is there; `at` stays inside the words.
    code_of((|| unsafe {
        let there = memory(context)?.at(at.offset, (row_len + tail_len) as u64)?;
        row.copy_to(there, row_len);
        tail.copy_to(there.add(row_len), tail_len);
        Ok(())
    })())
}
unsafe extern "C" fn write_to(
    context: *mut c_void,
    to: u32,
    at: veriep_place,
    row: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: as given.
    unsafe { put(context, to, at, row, len, row, 0) }
}
unsafe extern "C" fn write(context: *mut c_void, at: veriep_place, row: *const u8, len: usize) -> i32 {
    // SAFETY: as given.
    unsafe { put(context, 0, at, row, len, row, 0) }
}
unsafe extern "C" fn publish(context: *mut c_void, _to: u32, at: veriep_place, word: u64) -> i32 {
    // SAFETY: as given.
    unsafe { write(context, at, (&raw const word).cast(), 8) }
}
unsafe extern "C" fn store(context: *mut c_void, at: veriep_place, word: u64) -> i32 {
    // SAFETY: as given.
    unsafe { publish(context, 0, at, word) }
}
unsafe extern "C" fn quiet(context: *mut c_void, landed: *mut u32) -> i32 {
    // SAFETY: as given.
    unsafe { code_of(memory(context).map(|memory| landed.write(memory.dice.of(4) as u32))) }
}
unsafe extern "C" fn observe(context: *mut c_void, at: veriep_place, word: *mut u64) -> i32 {
    // What is told may be anything, and often is what flags look like.
    code_of((|| unsafe {
        // SAFETY: as given.
        let memory = memory(context)?;
        let any = [0, 1, 2, 0x3F80_0000_3F80_0000, 0x3F80_0000, memory.dice.next()];
        let there = memory.at(at.offset, 8)?.cast::<u64>();
        // SAFETY: as given.
        let is = there.read_unaligned();
        word.write(if memory.dice.of(3) == 0 { any[memory.dice.of(6)] } else { is });
        Ok(())
    })())
}
unsafe extern "C" fn bytes(context: *mut c_void, at: veriep_place, len: u64, found: *mut *const u8) -> i32 {
    // SAFETY: as given.
    unsafe { peer_bytes(context, 0, at, len, found) }
}
unsafe extern "C" fn peer_bytes(
    context: *mut c_void,
    _rank: u32,
    at: veriep_place,
    len: u64,
    found: *mut *const u8,
) -> i32 {
    // SAFETY: as given.
    code_of((|| unsafe { memory(context)?.at(at.offset, len).map(|there| found.write(there)) })())
}
unsafe extern "C" fn lend(_context: *mut c_void, _at: veriep_place, _len: u64) -> *mut u8 {
    null_mut()
}
unsafe extern "C" fn deliver(
    context: *mut c_void,
    output: veriep_place,
    from: veriep_place,
    len: u64,
) -> i32 {
    // SAFETY: as given; the two may overlap.
    code_of((|| unsafe {
        let memory = memory(context)?;
        let (to, from) = (memory.at(output.offset, len)?, memory.at(from.offset, len)?);
        from.copy_to(to, len as usize);
        Ok(())
    })())
}
unsafe extern "C" fn post(
    context: *mut c_void,
    _to: u32,
    _from: veriep_place,
    _at: veriep_place,
    _len: u64,
    posted: *mut u32,
) -> i32 {
    // SAFETY: as given.
    unsafe { code_of(memory(context).map(|memory| posted.write(memory.dice.of(2) as u32))) }
}

/// xorshift64*.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn of(&mut self, n: u64) -> usize {
        ((self.next() >> 16) % n) as usize
    }

    /// Mostly the pointer, else null, or one byte beside it where a byte cannot be meant.
    fn pointer<T>(&mut self, given: *mut T) -> *mut T {
        match self.of(40) {
            0 => null_mut(),
            1 if align_of::<T>() > 1 => given.wrapping_byte_add(1),
            _ => given,
        }
    }

    /// Mostly small numbers, at times large ones.
    fn number(&mut self, most: u64) -> u32 {
        if self.of(20) == 0 { self.next() as u32 } else { self.of(most) as u32 }
    }

    /// Bytes with room for exactly as many; alignment is left to chance as malloc has it, that is to 16.
    fn tensor(&mut self, keep: &mut Vec<Vec<u64>>, bytes: u64) -> veriep_bytes {
        let len = if self.of(30) == 0 { self.of(bytes + 1) } else { bytes as usize };
        let mut words = Vec::with_capacity(len.div_ceil(8));
        let small = self.of(3) > 0;
        words.resize_with(len.div_ceil(8), || {
            if small { self.next() & 0x0000_0001_0000_0001 } else { self.next() }
        });
        keep.push(words);
        let data = keep.last().map_or(null(), Vec::as_ptr).cast();
        veriep_bytes { data: if self.of(40) == 0 { null() } else { data }, len }
    }
}

/// Calls in any order with what may be missing, short or wrong. `VERIEP_SECONDS` says for how long, `VERIEP_SEED` which.
#[test]
fn calls_in_any_order_are_answered() {
    let of = |name, default| env::var(name).map_or(default, |value| value.parse().unwrap());
    let (seconds, seed) = (of("VERIEP_SECONDS", 1), of("VERIEP_SEED", 1));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15 ^ seed);
    let mut answers = [0_u64; 14];
    while Instant::now() < end {
        // SAFETY: pointers are null, misaligned, or lead to as much as is said.
        unsafe { group(&mut dice, &mut answers) };
    }
    // Each is given in the end, or the dice is a bad one: from VERIEP_E_FABRIC to VERIEP_PENDING, but for another version.
    let never: Vec<_> = (0..13).map(|i| i - 10).filter(|&said| answers[(said + 10) as usize] == 0).collect();
    assert_eq!(never, [VERIEP_E_VERSION], "{answers:?}");
}

unsafe fn group(dice: &mut Dice, answers: &mut [u64; 14]) {
    let mut keep = Vec::new();
    let mut config = config();
    config.comm_alg = dice.of(4) as u32;
    config.ep_world_size = 1 + dice.of(3) as i64;
    config.server_ranks = 1;
    config.moe_expert_num = config.ep_world_size * (1 + dice.of(2) as i64);
    config.k = 1 + dice.of(2) as i64;
    config.quant_mode = 2 * (dice.of(4) == 0) as i64;
    config.tp_world_size = 1 + (dice.of(4) == 0) as i64;
    config.aiv_num = 1 + dice.of(3) as i64;
    config.hccl_buffsize_mb = if config.comm_alg == VERIEP_A2_HIERARCHY { 110 } else { 8 };
    config.op = (dice.of(6) == 0) as u32;
    config.given = if dice.of(4) == 0 { dice.number(64) } else { 0 };
    let (mut shape, mut core, mut agent) = (opaque(), opaque::<veriep_core>(), opaque::<veriep_agent>());
    let mut sizes = opaque::<veriep_sizes>();
    let mut text: Vec<c_char> = vec![0; dice.of(200)];
    let mut fingerprints = [opaque::<veriep_fingerprints>(), opaque()];
    let mut memory = Box::new(Memory { words: vec![0; 512 + dice.of(4096)], dice: dice.clone() });
    let mut fabric = table(&raw mut *memory);
    if dice.of(9) == 0 {
        fabric.quiet = None;
    }
    let nic = veriep_nic { context: fabric.context, observe: Some(observe), post: Some(post) };
    let (mut vector, has_vector) = (vector::table(None), dice.of(2) == 0);
    if dice.of(2) == 0 {
        (vector.quantise, vector.add) = (None, None);
    }
    let mut choices = veriep_choices_default();
    (choices.flags, choices.receive) = (dice.number(2), if dice.of(2) == 0 { 0 } else { dice.number(4) });
    (choices.stage, choices.order) = (2 + dice.number(2) % 3, dice.number(4));
    // SAFETY: as of this function.
    unsafe {
        let mut note = |said: i32| {
            answers[(said + 10) as usize] += 1;
            said
        };
        note(veriep_shape_new(&raw mut *shape, &config, text.as_mut_ptr(), text.len()));
        note(veriep_shape_sizes(&raw const *shape, 0, &raw mut *sizes));
        let (bs, k, h) = (2, config.k as u64, config.h as u64);
        let mut inputs: veriep_inputs = zeroed();
        inputs.x = dice.tensor(&mut keep, bs * h * 2);
        inputs.expert_ids = dice.tensor(&mut keep, bs * k * 4);
        inputs.expert_scales = dice.tensor(&mut keep, bs * k * 4);
        inputs.mask_kind = if dice.of(4) == 0 { dice.number(4) } else { 0 };
        inputs.x_active_mask = dice.tensor(&mut keep, bs * (1 + dice.clone().of(2) as u64 * (k - 1)));
        inputs.residual_x = dice.tensor(&mut keep, bs * h * 2);
        inputs.gamma = dice.tensor(&mut keep, h * 2);
        let mut operands: veriep_operands = zeroed();
        operands.y = dice.tensor(&mut keep, sizes.rows_max * h * 2);
        operands.assist_info = dice.tensor(&mut keep, sizes.outputs[VERIEP_ASSIST_INFO as usize]);
        operands.expand_scales = dice.tensor(&mut keep, sizes.outputs[VERIEP_EXPAND_SCALES as usize]);
        operands.ep_recv_counts = dice.tensor(&mut keep, sizes.ep_recv_counts);
        operands.expand_idx = dice.tensor(&mut keep, sizes.outputs[VERIEP_EXPAND_IDX as usize]);
        operands.sent_rows = dice.tensor(&mut keep, sizes.outputs[VERIEP_SENT_ROWS as usize]);
        operands.row_table = dice.tensor(&mut keep, 16);
        let mut words: Vec<u32> =
            vec![0; sizes.scratch_words - dice.of(20) / 19 * sizes.scratch_words.min(1)];
        let mut row: Vec<u8> = vec![0; sizes.scratch_bytes - dice.of(20) / 19 * sizes.scratch_bytes.min(1)];
        let (mut awaited, mut count): (Vec<veriep_awaited>, _) = (Vec::new(), 0);
        awaited.resize_with(dice.of(60), || zeroed());
        let mut state = vec![0_u64; 131_072 - dice.of(2) * 1000];
        let mut window = vec![0_u64; 4096];
        let segment =
            |of: &mut Vec<u64>| veriep_segment { base: of.as_mut_ptr().cast(), len: 8 * of.len() as u64 };
        // Each rank and output is the same memory, which one thread may use so.
        let peer = veriep_peer {
            state: segment(&mut state),
            window: segment(&mut window),
            window_out: segment(&mut window),
        };
        let peers = vec![peer; config.ep_world_size as usize];
        let mut mapped: veriep_mapped = zeroed();
        (mapped.peers, mapped.peers_len) = (peers.as_ptr(), peers.len());
        let mut outputs = vec![0_u64; 256];
        mapped.outputs = [segment(&mut outputs); VERIEP_TENSORS];
        let text = (text.as_mut_ptr(), text.len());
        for _ in 0..60 {
            let shape = dice.pointer(&raw mut *shape);
            let (core, agent) = (dice.pointer(&raw mut *core), dice.pointer(&raw mut *agent));
            let (rank, number) =
                (dice.number(config.ep_world_size as u64), dice.number(config.aiv_num as u64));
            let is_table = dice.of(3) > 0;
            let cx = veriep_context {
                shape,
                fabric: if is_table { dice.pointer(&raw mut fabric) } else { null() },
                mapped: if is_table { null() } else { dice.pointer(&raw mut mapped) },
                inputs: dice.pointer(&raw mut inputs),
                operands: dice.pointer(&raw mut operands),
                words: dice.pointer(words.as_mut_ptr()),
                words_len: words.len(),
                bytes: dice.pointer(row.as_mut_ptr()),
                bytes_len: row.len(),
                nic: if is_table { &nic } else { null() },
                vector: if has_vector { dice.pointer(&raw mut vector) } else { null() },
                text: dice.pointer(text.0),
                text_len: text.1,
            };
            let choices = dice.pointer(&raw mut choices);
            let room = awaited.len();
            let steps = dice.number(40) % 1000;
            let said = match dice.of(17) {
                0 => veriep_core_new(core, shape, rank, 0, number, choices, dice.number(16), text.0, text.1),
                1 => veriep_agent_new(agent, shape, rank, dice.number(4)),
                2 | 3 => veriep_core_begin(core, dice.number(2)),
                4..=8 => veriep_core_step(core, &cx, steps, null_mut()),
                9 => veriep_core_awaits(core, &cx, awaited.as_mut_ptr(), room, &mut count, null_mut()),
                10 => veriep_agent_step(agent, &cx, steps, null_mut()),
                11 => veriep_agent_awaits(agent, &cx, awaited.as_mut_ptr(), room, &mut count, null_mut()),
                12 => veriep_inputs_check(shape, rank, cx.inputs, text.0, text.1),
                13 => {
                    let mut sends: Vec<veriep_send> = Vec::new();
                    sends.resize_with(dice.of(8), || zeroed());
                    let core = if dice.of(2) == 0 { VERIEP_NONE } else { number };
                    // The scratch of a core is its own.
                    let mut words = vec![0; words.len() + dice.of(6)];
                    let (to, len) = (dice.pointer(words.as_mut_ptr()), words.len());
                    veriep_plan_sends(
                        shape,
                        rank,
                        core,
                        dice.number(4),
                        cx.inputs,
                        to,
                        len,
                        sends.as_mut_ptr(),
                        sends.len(),
                        &mut count,
                    )
                }
                14 => {
                    let mut rows: Vec<veriep_rows> = Vec::new();
                    rows.resize_with(dice.of(8), || zeroed());
                    let (table, to) = (operands.row_table, rows.as_mut_ptr());
                    veriep_received_rows(
                        shape,
                        choices,
                        dice.number(9),
                        table,
                        to,
                        rows.len(),
                        &mut count,
                        null_mut(),
                    )
                }
                15 => {
                    let replicas = [0, dice.number(4).cast_signed(), 1, -1];
                    let mut map = opaque::<veriep_expert_map>();
                    let len = replicas.len() - dice.of(9) / 8;
                    let rows = 2 - dice.of(9) / 8;
                    let to = &raw mut *map;
                    note(veriep_expert_map_new(to, shape, replicas.as_ptr(), len, rows, text.0, text.1));
                    let (ids, mut physical) = ([dice.number(2).cast_signed(), 1, 0, 1], [0; 4]);
                    let bytes = veriep_bytes { data: ids.as_ptr().cast(), len: 4 * dice.of(5) };
                    let logical = veriep_inputs { expert_ids: bytes, ..inputs };
                    let (logical, to, len) = (&raw const logical, physical.as_mut_ptr(), dice.of(5));
                    veriep_expert_map_translate(
                        &raw const *map,
                        shape,
                        rank,
                        logical,
                        to,
                        len,
                        text.0,
                        text.1,
                    )
                }
                _ => {
                    let info = [1, 1, 0, dice.number(3).cast_signed(), 0, -1, -1, 0, -1, -1];
                    let mut left = opaque::<veriep_shape>();
                    let len = 4 + 2 * config.ep_world_size as usize;
                    note(veriep_shape_survivors(&raw mut *left, shape, info.as_ptr(), len, text.0, text.1));
                    note(veriep_fingerprints_new(
                        &raw mut *fingerprints[0],
                        shape,
                        choices,
                        null(),
                        c"tp".as_ptr(),
                    ));
                    note(veriep_has_agents(shape, choices));
                    note(veriep_fabric_can(cx.fabric).min(0));
                    veriep_fingerprints_compare(
                        &raw const *fingerprints[0],
                        &raw const *fingerprints[1],
                        null_mut(),
                        text.0,
                        text.1,
                    )
                }
            };
            note(said);
        }
    }
}
