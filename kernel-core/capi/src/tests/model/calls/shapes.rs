//! Configurations and what follows from them.

use super::{List, assert_same, choices_of, rank_of, region_code, shape_of};
use crate::codes::*;
use crate::shape::*;
use crate::tests::model::Args;
use crate::tests::model::structures::Fault;
use crate::tests::model::world::{Outcome, World, check, nothing, rust_choices};
use crate::types::*;
use core::ffi::c_char;
use core::ptr::null;
use kernel_core::layout::map;
use kernel_core::layout::state::Partition;
use kernel_core::layout::{outputs, tp};
use kernel_core::place::Tensor;
use kernel_core::protocol::{Fingerprints, scratch_bytes, scratch_words};
use kernel_core::shape::{BatchSizes, Config, Elastic, Shape};
use kernel_core::units::RankId;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

pub(in crate::tests::model) fn config_default(world: &mut World, args: &mut Args) -> Outcome {
    let out = args.pointer("out", &raw mut *world.made_config);
    let version = args.number("abi_version", VERIEP_ABI_VERSION, VERIEP_ABI_VERSION + 1);
    // SAFETY: pointers are null, misaligned, or lead to as much as is said; here and below.
    let said = unsafe { veriep_config_default(out, version) };
    args.outcome(said, || {
        let (of, is) = (Config::default(), &world.made_config);
        let bs = if let BatchSizes::Uniform(bs) = of.bs { bs } else { 0 };
        let head = (is.abi_version, is.limits, is.comm_alg, is.op, is.dtype, is.given);
        assert_eq!(head, (VERIEP_ABI_VERSION, VERIEP_LIMITS_PRODUCT, 0, 0, 0, 0));
        let numbers = (is.ep_world_size, is.moe_expert_num, is.k, is.h, is.bs, is.bs_per_rank, is.aiv_num);
        assert_eq!(numbers, (of.ep_world_size, of.moe_expert_num, of.k, of.h, bs, null(), of.aiv_num));
        (VERIEP_OK, None)
    })
}

pub(in crate::tests::model) fn shape_new(world: &mut World, args: &mut Args) -> Outcome {
    let text = args.text(world);
    let mut config = world.c_config();
    config.abi_version = args.number("config.abi_version", VERIEP_ABI_VERSION, VERIEP_ABI_VERSION + 1);
    config.comm_alg = args.number("config.comm_alg", config.comm_alg, 4);
    config.op = args.number("config.op", config.op, 2);
    config.dtype = args.number("config.dtype", config.dtype, 2);
    config.given = args.number("config.given", config.given, 64);
    config.limits = args.number("config.limits", config.limits, 2);
    if args.fault("config.k") == Some(Fault::Wrong) {
        config.k = 99;
    }
    if args.fault("config.bs_per_rank") == Some(Fault::Misaligned) {
        config.bs_per_rank = config.bs_per_rank.wrapping_byte_add(1);
    }
    // Room for one more.
    let longer: Vec<_> = world.bs_per_rank.iter().copied().chain([1]).collect();
    config.bs_per_rank_len = args.length("config.bs_per_rank", config.bs_per_rank_len);
    if args.fault("config.bs_per_rank") == Some(Fault::OneBeyond) {
        config.bs_per_rank = longer.as_ptr();
    }
    let out = args.pointer("out", &raw mut *world.shape);
    let config_at = args.pointer("config", &mut config);
    // SAFETY: as above.
    let said = unsafe { veriep_shape_new(out, config_at, text.0, text.1) };
    args.outcome(said, || {
        let bs_per_rank = &longer[..config.bs_per_rank_len];
        let bs = if bs_per_rank.is_empty() && config.bs_per_rank.is_null() {
            BatchSizes::Uniform(config.bs)
        } else {
            BatchSizes::PerRank(bs_per_rank)
        };
        let (shape, lines) = check(&Config { bs, k: config.k, ..world.config });
        world.shape_is_made = shape.is_some();
        assert_is_shape(&world.shape, shape.as_ref());
        (if shape.is_some() { VERIEP_OK } else { VERIEP_E_CONFIG }, Some(lines))
    })
}

/// The object is this shape, by all numbers that ranks compare; or none.
fn assert_is_shape(object: &veriep_shape, shape: Option<&Shape>) {
    let mut found = nothing::<veriep_fingerprints>();
    // SAFETY: as above.
    let said = unsafe { veriep_fingerprints_new(&mut found, object, null(), null(), null()) };
    match shape {
        None => assert_eq!(said, VERIEP_E_ORDER, "a shape that was refused is none"),
        Some(shape) => {
            let must = Fingerprints::new(shape, rust_choices(null()));
            assert_eq!((said, found.words), (VERIEP_OK, must.0), "the shape that was made");
        }
    }
}

pub(in crate::tests::model) fn shape_survivors(world: &mut World, args: &mut Args) -> Outcome {
    let text = args.text(world);
    let (whole, of) = shape_of(world, args, "whole");
    let out = args.pointer("out", &raw mut *world.left);
    let ranks = of.ep_world_size() as i32;
    // One rank leaves, or none.
    let gone = if ranks > 1 && world.dice.once_in(2) { world.dice.below(2) as i32 } else { -1 };
    let left: Vec<_> = (0..ranks).filter(|rank| *rank != gone).collect();
    let experts = of.moe_expert_num() as i32;
    let is_shared = gone >= 0 && (gone as u32) < of.shared_expert_rank_num();
    let moe_ranks = ranks - of.shared_expert_rank_num() as i32;
    let experts_left =
        if gone < 0 || is_shared { experts } else { experts / moe_ranks * (moe_ranks - 1).max(1) };
    let shared_left = of.shared_expert_rank_num() as i32 - i32::from(is_shared);
    let mut info = vec![1, left.len() as i32, shared_left, experts_left];
    info.extend((0..ranks).map(|rank| left.iter().position(|one| *one == rank).map_or(-1, |id| id as i32)));
    info.extend((0..ranks as usize).map(|id| left.get(id).copied().unwrap_or(-1)));
    if args.fault("elastic_info") == Some(Fault::Wrong) {
        let at = world.dice.below(info.len());
        info[at] = world.dice.pick(&[0, -1, 3, i32::MAX]);
    }
    let len = args.length("elastic_info", info.len());
    info.push(0);
    let words = args.pointer("elastic_info", info.as_mut_ptr());
    // SAFETY: as above.
    let said = unsafe { veriep_shape_survivors(out, whole, words, len, text.0, text.1) };
    args.outcome(said, || {
        let mut lines = String::new();
        let left = Elastic::check(&of, &info[..len], &mut |violation| lines += &format!("{violation}\n"));
        world.of_left = left.map(|left| of.survivors(&left));
        assert_is_shape(&world.left, world.of_left.as_ref());
        (if world.of_left.is_some() { VERIEP_OK } else { VERIEP_E_CONFIG }, Some(lines))
    })
}

pub(in crate::tests::model) fn shape_sizes(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let rank = rank_of(world, args, &of);
    let out = args.pointer("out", &raw mut *world.sizes);
    // SAFETY: as above.
    let said = unsafe { veriep_shape_sizes(shape, rank, out) };
    args.outcome(said, || {
        let rank = RankId(rank);
        let has_tp = u64::from(of.tp_world_size() > 1);
        let must = veriep_sizes {
            state: 1 << 20,
            window: of.window_bytes(),
            window_out: of.window_out_bytes(),
            tp_state: has_tp << 20,
            tp_window: if has_tp == 1 { tp::window_bytes(&of, rank) } else { 0 },
            outputs: Tensor::ALL.map(|tensor| outputs::capacity(&of, rank, tensor)),
            ep_recv_counts: outputs::ep_recv_counts_bytes(&of, rank),
            rows_max: of.rows_max(rank),
            row: of.payload_bytes(),
            scratch_words: scratch_words(&of),
            scratch_bytes: scratch_bytes(&of),
            ep_world_size: of.ep_world_size(),
            local_experts: of.local_experts(rank),
            bs: of.bs(rank),
            aiv_num: of.aiv_num(),
        };
        assert_same(&*world.sizes, &must, "sizes");
        (VERIEP_OK, None)
    })
}

pub(in crate::tests::model) fn shape_areas(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let rank = rank_of(world, args, &of);
    let mut chosen = nothing();
    let choices = choices_of(world, args, &mut chosen);
    let must: Vec<_> = if args.refused.is_some() {
        Vec::new()
    } else {
        map::areas(&of, rust_choices(choices).mode(), RankId(rank))
            .map(|area| {
                let mut name = [0; 32];
                name.iter_mut().zip(area.named.name().bytes()).for_each(|(to, byte)| *to = byte as c_char);
                let partition = match area.partition {
                    None => VERIEP_NONE,
                    Some(Partition::P0) => 0,
                    Some(Partition::P1) => 1,
                };
                let (region, start) = (region_code(area.start.region), area.start.offset);
                veriep_area {
                    name,
                    region,
                    partition,
                    start,
                    count: area.count,
                    stride: area.stride,
                    slot: area.slot,
                }
            })
            .collect()
    };
    let list = List::new(world, args, must.len());
    // SAFETY: as above.
    let said = unsafe { veriep_shape_areas(shape, choices, rank, list.to, list.room, list.count) };
    args.outcome(said, || (list.check(world, &must), None))
}

pub(in crate::tests::model) fn fingerprints_new(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let mut chosen = nothing();
    let choices = choices_of(world, args, &mut chosen);
    let (ep, tp) = (c"one group", c"another");
    let group_ep = args.pointer("group_ep", ep.as_ptr().cast_mut());
    let group_tp = args.pointer("group_tp", tp.as_ptr().cast_mut());
    let out = args.pointer("out", &raw mut *world.own);
    // SAFETY: as above.
    let said = unsafe { veriep_fingerprints_new(out, shape, choices, group_ep, group_tp) };
    args.outcome(said, || {
        let ep = if group_ep.is_null() { &[] } else { ep.to_bytes() };
        let tp = if group_tp.is_null() { &[] } else { tp.to_bytes() };
        let must = Fingerprints::new(&of, rust_choices(choices)).named(ep, tp);
        assert_eq!(world.own.words, must.0);
        (VERIEP_OK, None)
    })
}

pub(in crate::tests::model) fn fingerprints_compare(world: &mut World, args: &mut Args) -> Outcome {
    let text = args.text(world);
    let mut theirs = veriep_fingerprints { words: world.own.words };
    let is_other = world.dice.once_in(2);
    if is_other {
        let at = world.dice.below(VERIEP_FINGERPRINTS);
        theirs.words[at] ^= 1;
    }
    let (own, other) = (Fingerprints(world.own.words), Fingerprints(theirs.words));
    let own_at = args.pointer("own", &raw mut *world.own);
    let other_at = args.pointer("other", &mut theirs);
    let whole = args.pointer("whole", &raw mut *world.whole);
    // SAFETY: as above.
    let said = unsafe { veriep_fingerprints_compare(own_at, other_at, whole, text.0, text.1) };
    args.outcome(said, || {
        if !whole.is_null() {
            assert_eq!(*world.whole, own.whole());
        }
        let difference = own.first_difference(&other);
        let code = if is_other { VERIEP_E_CONFIG } else { VERIEP_OK };
        (code, Some(difference.map(String::from).unwrap_or_default()))
    })
}
