//! Calls that make no sense: each is answered by a code.

use super::model::tables::table;
use crate::codes::*;
use crate::driver::{veriep_core_begin, veriep_core_new, veriep_core_step, veriep_fabric_can};
use crate::shape::{
    veriep_config_default, veriep_fingerprints_compare, veriep_fingerprints_new, veriep_shape_areas,
    veriep_shape_new, veriep_shape_sizes,
};
use crate::types::*;
use core::ffi::c_char;
use core::mem::{MaybeUninit, zeroed};
use core::ptr::{null, null_mut};
use std::boxed::Box;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

const OK: i32 = VERIEP_OK;

pub(super) fn config() -> veriep_config {
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

pub(super) fn opaque<T>() -> Box<T> {
    // SAFETY: used for opaque words and plain structures alone.
    Box::new(unsafe { zeroed() })
}

pub(super) fn shape_of(config: &veriep_config) -> Box<veriep_shape> {
    let (mut shape, mut text) = (opaque(), [0; 200]);
    // SAFETY: all is there.
    let said = unsafe { veriep_shape_new(&raw mut *shape, config, text.as_mut_ptr(), text.len()) };
    assert_eq!(said, OK, "{}", said_in(&text));
    shape
}

pub(super) fn said_in(text: &[c_char]) -> String {
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

/// The door is the first step: what a table states is not known before.
#[test]
fn a_table_with_longer_lines_than_the_choices_keep_apart_is_refused() {
    let shape = shape_of(&config());
    let shipped = crate::driver::veriep_choices_default();
    // SAFETY: what is given is there.
    unsafe {
        for (slots, apart) in [(VERIEP_SLOTS_32, 32), (VERIEP_SLOTS_64, 64)] {
            let choices = veriep_choices { slots, ..shipped };
            for line in [0, 8, 16, 32, 48, 64, 65, 128] {
                let (mut core, mut text) = (opaque::<veriep_core>(), [0; 200]);
                assert_eq!(
                    veriep_core_new(&raw mut *core, &raw const *shape, 0, 0, 0, &choices, 0, null_mut(), 0),
                    OK
                );
                assert_eq!(veriep_core_begin(&raw mut *core, VERIEP_DISPATCH), OK);
                let inputs: veriep_inputs = zeroed();
                let table = veriep_fabric { line, ..table(null_mut()) };
                let (mut words, mut bytes) = ([0; 4096], [0; 4096]);
                let mut cx: veriep_context = zeroed();
                (cx.shape, cx.inputs, cx.fabric) = (&raw const *shape, &inputs, &table);
                (cx.words, cx.words_len) = (words.as_mut_ptr(), words.len());
                (cx.bytes, cx.bytes_len) = (bytes.as_mut_ptr(), bytes.len());
                (cx.text, cx.text_len) = (text.as_mut_ptr(), text.len());
                let said = veriep_core_step(&raw mut *core, &cx, 1, null_mut());
                if line == 48 || line == 65 {
                    assert_eq!(said, VERIEP_E_ARGUMENT, "{line}");
                    continue;
                }
                if line <= apart {
                    // The memory refuses everything, so it was asked.
                    assert_eq!(said, VERIEP_E_FABRIC, "{line}, {apart}");
                    continue;
                }
                let why = format!(
                    "the memory writes back lines of {line} bytes, and this layout keeps words in lines of {apart} bytes"
                );
                assert_eq!((said, said_in(&text)), (VERIEP_E_REFUSED, why));
            }
        }
    }
}

/// Ranks of different sizes, none of which knows another's, make shapes that understand each other, each its own cores alone.
#[test]
fn a_rank_that_knows_its_own_batch_alone_makes_its_own_cores() {
    let of = |rank, bs| {
        let of_all = veriep_config { ep_world_size: 2, global_bs: 2 * 3, ..config() };
        shape_of(&veriep_config { bs, bs_rank: rank, ..of_all })
    };
    let shapes = [of(0, 1), of(1, 3)];
    let (mut core, mut text) = (opaque::<veriep_core>(), [0; 200]);
    // SAFETY: all is there.
    unsafe {
        let mut new = |shape: &veriep_shape, rank| {
            let text_len = text.len();
            let said =
                veriep_core_new(&raw mut *core, shape, rank, 0, 0, null(), 0, text.as_mut_ptr(), text_len);
            (said, said_in(&text))
        };
        for (rank, shape) in (0..).zip(&shapes) {
            let said = format!("the shape does not know the batch size of rank {}", 1 - rank);
            assert_eq!(new(shape, 1 - rank), (VERIEP_E_REFUSED, said));
            assert_eq!(new(shape, rank).0, OK);
        }
        let prints = shapes.each_ref().map(|shape| {
            let mut prints = opaque::<veriep_fingerprints>();
            assert_eq!(
                veriep_fingerprints_new(&raw mut *prints, &raw const **shape, null(), null(), null()),
                OK
            );
            prints
        });
        let [own, other] = prints.each_ref().map(|prints| &raw const **prints);
        assert_eq!(veriep_fingerprints_compare(own, other, null_mut(), null_mut(), 0), OK);

        let sizes = [1_i64, 3];
        let both = veriep_config {
            ep_world_size: 2,
            global_bs: 2 * 3,
            bs_per_rank: sizes.as_ptr(),
            bs_per_rank_len: 2,
            bs_rank: 0,
            ..config()
        };
        let mut shape = opaque::<veriep_shape>();
        assert_eq!(veriep_shape_new(&raw mut *shape, &both, null_mut(), 0), VERIEP_E_ARGUMENT);
    }
}
