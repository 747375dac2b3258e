//! Calls that make no sense: each is answered by a code.

mod any_order;

use crate::agent::{veriep_agent_new, veriep_agent_step};
use crate::codes::*;
use crate::driver::{
    veriep_choices_default, veriep_core_begin, veriep_core_new, veriep_core_step, veriep_fabric_can,
};
use crate::shape::{
    veriep_config_default, veriep_inputs_check, veriep_received_rows, veriep_shape_areas, veriep_shape_new,
    veriep_shape_sizes,
};
use crate::types::*;
use any_order::table;
use core::ffi::c_char;
use core::mem::{MaybeUninit, zeroed};
use core::ptr::{null, null_mut};
use std::boxed::Box;
use std::string::String;
use std::vec;
use std::vec::Vec;

const OK: i32 = VERIEP_OK;

fn config() -> veriep_config {
    let mut config = MaybeUninit::uninit();
    // SAFETY: all of it is written.
    let mut config = unsafe {
        assert_eq!(veriep_config_default(config.as_mut_ptr(), VERIEP_ABI_VERSION), OK);
        config.assume_init()
    };
    config.limits = VERIEP_LIMITS_NONE;
    (config.ep_world_size, config.moe_expert_num, config.k, config.h) = (1, 2, 2, 32);
    (config.bs, config.aiv_num, config.hccl_buffsize_mb) = (2, 1, 2);
    config
}

fn opaque<T>() -> Box<T> {
    // SAFETY: used for opaque words and plain structures alone.
    Box::new(unsafe { zeroed() })
}

fn shape_of(config: &veriep_config) -> Box<veriep_shape> {
    let (mut shape, mut text) = (opaque(), [0; 200]);
    // SAFETY: all is there.
    let said = unsafe { veriep_shape_new(&raw mut *shape, config, text.as_mut_ptr(), text.len()) };
    assert_eq!(said, OK, "{}", said_in(&text));
    shape
}

fn said_in(text: &[c_char]) -> String {
    text.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte as u8)).collect()
}

#[test]
fn what_is_missing_or_has_no_meaning_is_a_code() {
    let (shape, config) = (shape_of(&config()), config());
    let mut core = opaque::<veriep_core>();
    let (mut text, mut count) = ([1; 12], 7);
    // SAFETY: what is given is there.
    unsafe {
        assert_eq!(veriep_config_default(null_mut(), VERIEP_ABI_VERSION), VERIEP_E_NULL);
        assert_eq!(veriep_config_default(null_mut(), VERIEP_ABI_VERSION + 1), VERIEP_E_VERSION);
        assert_eq!(veriep_shape_new(null_mut(), &config, null_mut(), 0), VERIEP_E_NULL);
        let mut other = opaque::<veriep_shape>();
        let older = veriep_config { abi_version: 0, ..config };
        assert_eq!(veriep_shape_new(&raw mut *other, &older, null_mut(), 0), VERIEP_E_VERSION);
        let none = veriep_config { comm_alg: 4, ..older };
        let none = veriep_config { abi_version: VERIEP_ABI_VERSION, ..none };
        assert_eq!(veriep_shape_new(&raw mut *other, &none, null_mut(), 0), VERIEP_E_ARGUMENT);
        let wide = veriep_config { k: 99, comm_alg: 0, ..none };
        assert_eq!(veriep_shape_new(&raw mut *other, &wide, text.as_mut_ptr(), 12), VERIEP_E_CONFIG);
        assert_eq!(said_in(&text), "k = 99: mus");
        // What was no shape is none.
        assert_eq!(veriep_shape_sizes(&raw const *other, 0, null_mut()), VERIEP_E_ORDER);
        assert_eq!(veriep_shape_sizes(&raw const *shape, 1, null_mut()), VERIEP_E_ARGUMENT);
        assert_eq!(veriep_shape_sizes(&raw const *shape, 0, null_mut()), VERIEP_E_NULL);
        let odd = (&raw const *shape).byte_add(1);
        assert_eq!(veriep_shape_sizes(odd, 0, null_mut()), VERIEP_E_ARGUMENT);

        let mut areas: Vec<veriep_area> = vec![zeroed()];
        assert_eq!(
            veriep_shape_areas(&raw const *shape, null(), 0, areas.as_mut_ptr(), 1, &mut count),
            VERIEP_E_SHORT
        );
        assert_eq!((count, said_in(&areas[0].name)), (11, "dispatch status".into()));

        let new = |core: *mut veriep_core, rank, tp, n, can, text: &mut [c_char]| {
            veriep_core_new(core, &raw const *shape, rank, tp, n, null(), can, text.as_mut_ptr(), text.len())
        };
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), VERIEP_E_ORDER);
        assert_eq!(new(&raw mut *core, 0, 0, 1, 0, &mut text), VERIEP_E_REFUSED);
        assert_eq!(new(&raw mut *core, 0, 1, 0, 0, &mut text), VERIEP_E_ARGUMENT);
        assert_eq!(new(&raw mut *core, 0, 0, 0, 16, &mut text), VERIEP_E_ARGUMENT);
        assert_eq!(new(&raw mut *core, 0, 0, 0, 0, &mut text), OK);
        let inputs: veriep_inputs = zeroed();
        let table = table(null_mut());
        let mut cx: veriep_context = zeroed();
        (cx.shape, cx.inputs, cx.fabric) = (&raw const *shape, &inputs, &table);
        let step = |core: &mut veriep_core, cx| veriep_core_step(core, cx, 1, null_mut());
        assert_eq!(step(&mut core, &cx), VERIEP_E_ORDER);
        assert_eq!(veriep_core_begin(&raw mut *core, 2), VERIEP_E_ARGUMENT);
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), OK);
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), VERIEP_E_ORDER);
        assert_eq!(step(&mut core, null()), VERIEP_E_NULL);
        let mask = 2_u8;
        let masked = veriep_inputs {
            x_active_mask: veriep_bytes { data: (&raw const mask).cast(), len: 1 },
            mask_kind: VERIEP_MASK_TOKENS,
            ..zeroed()
        };
        assert_eq!(step(&mut core, &veriep_context { inputs: &masked, ..cx }), VERIEP_E_ARGUMENT);
        let lacks = veriep_fabric { put: None, ..table };
        assert_eq!(step(&mut core, &veriep_context { fabric: &lacks, ..cx }), VERIEP_E_NULL);
        assert_eq!(veriep_fabric_can(&lacks), VERIEP_E_NULL);
        let both: veriep_mapped = zeroed();
        assert_eq!(step(&mut core, &veriep_context { mapped: &both, ..cx }), VERIEP_E_ARGUMENT);
        // A fabric that refuses ends the operator, and with it the core.
        let (mut status, mut words, mut bytes): (veriep_status, _, _) = (zeroed(), [0; 4096], [0; 4096]);
        (cx.words, cx.words_len) = (words.as_mut_ptr(), words.len());
        (cx.bytes, cx.bytes_len) = (bytes.as_mut_ptr(), bytes.len());
        let said =
            (0..9).map(|_| veriep_core_step(&raw mut *core, &cx, 1, &mut status)).find(|&said| said < 0);
        assert_eq!((said, status.code, status.rank), (Some(VERIEP_E_FABRIC), 77, VERIEP_NONE));
        assert_eq!(step(&mut core, &cx), VERIEP_E_ORDER);
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), VERIEP_E_ORDER);
    }
}

#[test]
fn slips_of_the_caller_leave_a_core_as_it_was() {
    let config = config();
    let (shape, other) = (shape_of(&config), shape_of(&veriep_config { bs: 1, ..config }));
    let direct = veriep_choices { receive: VERIEP_RECEIVE_DIRECT, ..veriep_choices_default() };
    // SAFETY: what is given is there.
    unsafe {
        let (mut words, mut bytes, mut text) = ([0; 4096], [0; 4096], [1; 300]);
        let (inputs, table) = (zeroed::<veriep_inputs>(), table(null_mut()));
        let mut cx: veriep_context = zeroed();
        (cx.shape, cx.inputs, cx.fabric) = (&raw const *shape, &inputs, &table);
        (cx.words, cx.words_len) = (words.as_mut_ptr(), words.len());
        (cx.bytes, cx.bytes_len) = (bytes.as_mut_ptr(), bytes.len());
        (cx.text, cx.text_len) = (text.as_mut_ptr(), text.len());
        let mut core = opaque::<veriep_core>();
        let new = |core: &mut veriep_core, choices, can| {
            veriep_core_new(core, &raw const *shape, 0, 0, 0, choices, can, null_mut(), 0)
        };
        let step = |core: &mut veriep_core, cx: &veriep_context| veriep_core_step(core, cx, 9, null_mut());
        // What combine is given.
        assert_eq!(new(&mut core, null(), 0), OK);
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_COMBINE), OK);
        assert_eq!(step(&mut core, &cx), VERIEP_E_NULL);
        // Another shape.
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_COMBINE), VERIEP_E_ORDER);
        assert_eq!(new(&mut core, null(), 0), OK);
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), OK);
        assert_eq!(step(&mut core, &veriep_context { shape: &raw const *other, ..cx }), VERIEP_E_REFUSED);
        assert!(said_in(&text).starts_with("made for another shape: "), "{}", said_in(&text));
        assert_eq!(step(&mut core, &cx), VERIEP_E_FABRIC);
        // A table that cannot do what was said of it.
        assert_eq!(new(&mut core, &direct, VERIEP_CAN_PEER_BYTES), OK);
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), OK);
        let lacks = veriep_fabric { peer_bytes: None, ..table };
        assert_eq!(step(&mut core, &veriep_context { fabric: &lacks, ..cx }), VERIEP_E_NULL);
        assert_eq!(step(&mut core, &cx), VERIEP_E_FABRIC);
        // Where no rank has an agent.
        let mut agent = opaque::<veriep_agent>();
        assert_eq!(veriep_agent_new(&raw mut *agent, &raw const *shape, 0, 0), VERIEP_E_REFUSED);
        assert_eq!(veriep_agent_step(&raw mut *agent, &cx, 1, null_mut()), VERIEP_E_ORDER);
    }
}

#[test]
fn rows_that_cannot_be_are_refused() {
    let shape = shape_of(&config());
    let bad = [u64::MAX; 2];
    let table = veriep_bytes { data: bad.as_ptr().cast(), len: 16 };
    let none = veriep_bytes { data: null(), len: 0 };
    for receive in 0..6 {
        let choices = veriep_choices { receive, ..veriep_choices_default() };
        let is_copied = receive == VERIEP_RECEIVE_COPY;
        for (rows, table, said) in [
            (u32::MAX, none, VERIEP_E_ARGUMENT),
            (2, none, if is_copied { OK } else { VERIEP_E_SHORT }),
            (2, table, if is_copied { OK } else { VERIEP_E_ARGUMENT }),
            (0, none, OK),
        ] {
            let (mut out, mut count) = ([opaque::<veriep_rows>(), opaque()], 0);
            // SAFETY: what is given is there.
            let found = unsafe {
                let out = (&raw mut *out[0]).cast();
                veriep_received_rows(&raw const *shape, &choices, rows, table, out, 1, &mut count, null_mut())
            };
            assert_eq!(found, said, "receive {receive}, {rows} rows");
        }
    }
}

#[test]
fn a_slip_of_the_caller_leaves_the_core_alive_and_no_old_text() {
    let (shape, mut core) = (shape_of(&config()), opaque::<veriep_core>());
    let mut text = [1; 40];
    // SAFETY: what is given is there.
    unsafe {
        assert_eq!(veriep_core_new(&raw mut *core, &raw const *shape, 0, 0, 0, null(), 0, null_mut(), 0), OK);
        assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), OK);
        let (inputs, table) = (zeroed(), table(null_mut()));
        let mut cx: veriep_context = zeroed();
        (cx.shape, cx.inputs, cx.fabric) = (&raw const *shape, &inputs, &table);
        (cx.text, cx.text_len) = (text.as_mut_ptr(), text.len());
        let mut status = veriep_status { steps: 5, rank: 5, code: 5 };
        for _ in 0..2 {
            // Without scratch.
            assert_eq!(veriep_core_step(&raw mut *core, &cx, 1, &mut status), VERIEP_E_SHORT);
            assert_eq!((text[0], status.steps, status.rank, status.code), (0, 0, VERIEP_NONE, 0));
            text[0] = 1;
        }
        // A mask whose kind was not given.
        let mask = [0_u8; 2];
        let masked = veriep_inputs {
            x_active_mask: veriep_bytes { data: mask.as_ptr().cast(), len: 2 },
            mask_kind: VERIEP_MASK_NONE,
            ..zeroed()
        };
        assert_eq!(veriep_inputs_check(&raw const *shape, 0, &masked, null_mut(), 0), VERIEP_E_ARGUMENT);
    }
}
