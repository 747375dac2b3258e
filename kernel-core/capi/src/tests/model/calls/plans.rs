//! Inputs, maps of experts, plans.

use super::{List, ORDERS, choices_of, rank_of, shape_of};
use crate::codes::*;
use crate::driver::{veriep_choices_default, veriep_has_agents};
use crate::shape::*;
use crate::tests::model::Args;
use crate::tests::model::dice::Dice;
use crate::tests::model::structures::Fault;
use crate::tests::model::tensors::rust_inputs;
use crate::tests::model::world::{Outcome, PROTOCOLS, World, nothing, rust_choices};
use crate::types::*;
use core::ops::ControlFlow;
use kernel_core::inputs::{ExpertMap, InputError};
use kernel_core::plan::route::{self, Sends};
use kernel_core::plan::split::{self, DispatchShare};
use kernel_core::protocol::Receive;
use kernel_core::shape::Protocol;
use kernel_core::units::{CoreId, RankId};
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

/// A line for each error, and the code.
fn told(
    check: impl FnOnce(&mut dyn FnMut(InputError) -> ControlFlow<()>) -> ControlFlow<()>,
) -> (i32, String) {
    let mut lines = String::new();
    let _ = check(&mut |error| {
        lines += &format!("{error}\n");
        ControlFlow::Continue(())
    });
    (if lines.is_empty() { VERIEP_OK } else { VERIEP_E_INPUTS }, lines)
}

pub(in crate::tests::model) fn inputs_check(world: &mut World, args: &mut Args) -> Outcome {
    let text = args.text(world);
    let (shape, of) = shape_of(world, args, "shape");
    let rank = rank_of(world, args, &of);
    let any = world.dice.below(2) as u32;
    let which = args.number("which", any, 2);
    let mut inputs = world.inputs(world.seats[args.seat].rank, args);
    let inputs_at = args.pointer("inputs", &mut inputs);
    // SAFETY: as above.
    let said = unsafe { veriep_inputs_check(shape, rank, which, inputs_at, text.0, text.1) };
    args.outcome(said, || {
        let (inputs, rank) = (rust_inputs(&inputs), RankId(rank));
        let (code, lines) = told(|found| match which {
            VERIEP_DISPATCH => inputs.check_dispatch(&of, rank, found),
            _ => inputs.check_combine(&of, rank, found),
        });
        (code, Some(lines))
    })
}

pub(in crate::tests::model) fn inputs_batch(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let rank = rank_of(world, args, &of);
    let mut inputs = world.inputs(world.seats[args.seat].rank, args);
    let inputs_at = args.pointer("inputs", &mut inputs);
    let mut batch = 0;
    let to = args.pointer("batch", &raw mut batch);
    // SAFETY: as above.
    let said = unsafe { veriep_inputs_batch(shape, rank, inputs_at, to) };
    args.outcome(said, || {
        assert_eq!(batch, rust_inputs(&inputs).batch(&of, RankId(rank)).0);
        (VERIEP_OK, None)
    })
}

pub(in crate::tests::model) fn expert_map_new(world: &mut World, args: &mut Args) -> Outcome {
    let text = args.text(world);
    let (shape, of) = shape_of(world, args, "shape");
    let out = args.pointer("out", &raw mut *world.map);
    let experts = world.of.moe_expert_num();
    let len = args.length("words", experts as usize);
    let words = args.pointer("words", world.replicas.as_mut_ptr());
    let rows = args.number("rows", world.rows_of_map, world.rows_of_map + 1) as usize;
    // SAFETY: as above.
    let said = unsafe { veriep_expert_map_new(out, shape, words, len, rows, text.0, text.1) };
    args.outcome(said, || {
        let mut lines = String::new();
        let map = ExpertMap::check(&of, &world.replicas[..len], rows, &mut |violation| {
            lines += &format!("{violation}\n");
        });
        world.of_map = map.map(|_| (len, rows));
        (if world.of_map.is_some() { VERIEP_OK } else { VERIEP_E_CONFIG }, Some(lines))
    })
}

pub(in crate::tests::model) fn expert_map_translate(world: &mut World, args: &mut Args) -> Outcome {
    let text = args.text(world);
    let (shape, of) = shape_of(world, args, "shape");
    let rank = rank_of(world, args, &of);
    let map = args.object("map", &raw mut *world.map, &raw const *world.blank);
    let mut logical = world.inputs(world.seats[args.seat].rank, args);
    let inputs_at = args.pointer("inputs", &mut logical);
    let ids = logical.expert_ids.len / 4;
    let len = match (args.fault("physical"), args.fault("len")) {
        (Some(Fault::Huge), _) => usize::MAX,
        (_, Some(Fault::OneShort)) => ids.wrapping_sub(1),
        (_, Some(Fault::OneBeyond)) => ids.wrapping_add(1),
        _ => ids,
    };
    let physical = args.pointer("physical", world.physical.as_mut_ptr());
    let mut must = world.physical.clone();
    // SAFETY: as above.
    let said =
        unsafe { veriep_expert_map_translate(map, shape, rank, inputs_at, physical, len, text.0, text.1) };
    args.outcome(said, || {
        let (len_of_map, rows) = world.of_map.unwrap();
        let map = ExpertMap::check(&world.of, &world.replicas[..len_of_map], rows, &mut |_| ()).unwrap();
        let inputs = rust_inputs(&logical);
        let (code, lines) = told(|found| map.check_ids(&of, &inputs, found));
        map.translate(&of, RankId(rank), inputs.expert_ids, &mut must[..len]);
        assert_eq!(world.physical, must);
        (code, Some(lines))
    })
}

pub(in crate::tests::model) fn plan_sends(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let rank = rank_of(world, args, &of);
    let mut inputs = world.inputs(world.seats[args.seat].rank, args);
    let inputs_at = args.pointer("inputs", &mut inputs);
    let is_all = world.dice.once_in(2);
    let right = if is_all { VERIEP_NONE } else { world.dice.below(of.aiv_num() as usize) as u32 };
    let core = args.number("core", right, of.aiv_num());
    let order_right = world.dice.below(4) as u32;
    let order = args.number("order", order_right, 4);
    let (at, tokens) = (RankId(rank.min(of.ep_world_size() - 1)), of.bs(RankId(rank)));
    let share = if is_all {
        DispatchShare { moe: 0..tokens * of.k(), shared: 0..tokens * of.shared_expert_num() }
    } else {
        split::dispatch(&of, at, CoreId(right))
    };
    let words = (route::destinations(&of) + route::share_len(&share)) as usize;
    let mut must = Vec::new();
    if args.refused.is_none() {
        let (mut status, mut slots) =
            (vec![0; route::destinations(&of) as usize], vec![0; route::share_len(&share) as usize]);
        let inputs = rust_inputs(&inputs);
        route::walk(&of, at, &inputs, &share, &mut status, &mut slots);
        let sends = Sends::new(&of, at, ORDERS[order as usize], &share);
        must.extend(sends.iter(&inputs, &slots).map(|send| veriep_send {
            token: send.pair.token.0,
            k: send.pair.k,
            rank: send.home.rank.0,
            local_expert: send.home.local_expert,
            slot: send.slot,
        }));
    }
    let mut words_len = args.length("words_len", words);
    if args.fault("words") == Some(Fault::Huge) {
        words_len = usize::MAX;
    }
    let words = args.pointer("words", world.plan_words.as_mut_ptr());
    let list = List::new(world, args, must.len());
    // SAFETY: as above.
    let said = unsafe {
        veriep_plan_sends(
            shape, rank, core, order, inputs_at, words, words_len, list.to, list.room, list.count,
        )
    };
    args.outcome(said, || (list.check(world, &must), None))
}

pub(in crate::tests::model) fn received_rows(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let mut chosen = nothing();
    let choices = choices_of(world, args, &mut chosen);
    let most = (0..of.ep_world_size()).map(|rank| of.rows_max(RankId(rank))).max().unwrap();
    let most = (most * u64::from(of.tp_world_size())) as u32;
    let right = world.dice.pick(&[0, 1, 2, most]).min(most);
    let rows = args.number("rows", right, most + 1);
    let (payload, result, window) = (of.payload_bytes(), of.row_bytes(), of.window_bytes());
    // Places that just fit, or just do not.
    let all = u64::from(rows);
    let places = [0, window - payload, window - all * payload, window - all * result, window];
    let place = |dice: &mut Dice| {
        if dice.once_in(30) { u64::MAX } else { dice.pick(&places) + u64::from(dice.once_in(8)) }
    };
    let mut table: Vec<u64> = (0..rows.min(most).max(2)).map(|_| place(&mut world.dice)).collect();
    let whole = 8 * table.len();
    let len = world.dice.pick(&[whole, whole, whole, whole - 1, 8, 7, 0]);
    let mut row_table = args.bytes("row_table", table.as_mut_ptr().cast(), len.max(1), 1);
    if args.fault("row_table").is_none() {
        row_table.len = len;
    }
    let results = args.pointer("results", &raw mut *world.results);
    let left = (world.results.at, world.results.len);

    // Where rows lie: all in the output, each in its place, or all from the first place on.
    let receive = if args.refused.is_some() { Receive::Copy } else { rust_choices(choices).receive };
    let entries = table[..row_table.len.min(whole) / 8].iter();
    let stretches: Vec<(u32, u64, u64)> = match receive {
        Receive::Copy => vec![(VERIEP_OUTPUT, 0, all * payload)],
        Receive::InPlace => {
            entries.take(rows as usize).map(|place| (VERIEP_WINDOW, *place, payload)).collect()
        }
        _ => entries.take(1).map(|place| (VERIEP_WINDOW, *place, all * payload)).collect(),
    };
    let is_held = |place: u64, len: u64| place.checked_add(len).is_some_and(|end| end <= window);
    let is_whole = stretches.iter().map(|stretch| stretch.2).sum::<u64>() == all * payload;
    let returned =
        (receive.is_direct() && !results.is_null()).then(|| table[..row_table.len.min(whole) / 8].get(1));
    let refusal =
        if stretches.iter().any(|(region, place, len)| *region == VERIEP_WINDOW && !is_held(*place, *len)) {
            Some(VERIEP_E_ARGUMENT)
        } else if !is_whole || returned == Some(None) {
            Some(VERIEP_E_SHORT)
        } else {
            returned.flatten().filter(|place| !is_held(**place, all * result)).map(|_| VERIEP_E_ARGUMENT)
        };
    let at = |region, offset| veriep_place { region, reserved: 0, offset };
    let must: Vec<_> = stretches
        .iter()
        .map(|(region, place, len)| veriep_rows { at: at(*region, *place), len: *len })
        .collect();
    let list = List::new(world, args, must.len());
    let count = *world.count;
    // SAFETY: as above.
    let said = unsafe {
        veriep_received_rows(shape, choices, rows, row_table, list.to, list.room, list.count, results)
    };
    args.outcome(said, || {
        let results = returned.flatten().filter(|_| refusal.is_none());
        let expected = results.map_or(left, |place| (at(VERIEP_WINDOW, *place), all * result));
        let is = &world.results;
        assert_eq!(
            (is.at.region, is.at.offset, is.len),
            (expected.0.region, expected.0.offset, expected.1),
            "results"
        );
        if let Some(code) = refusal {
            assert_eq!((*world.count, &world.list), (count, &list.was), "a refused call changes nothing");
            return (code, None);
        }
        (list.check(world, &must), None)
    })
}

pub(in crate::tests::model) fn has_agents(world: &mut World, args: &mut Args) -> Outcome {
    let (shape, of) = shape_of(world, args, "shape");
    let mut chosen = nothing();
    let choices = choices_of(world, args, &mut chosen);
    // SAFETY: as above.
    let said = unsafe { veriep_has_agents(shape, choices) };
    args.outcome(said, || {
        let stage = if choices.is_null() { VERIEP_STAGE_3 } else { chosen.stage };
        let is_by_agents = match of.protocol() {
            Protocol::Fullmesh => true,
            Protocol::Hierarchy => stage == VERIEP_STAGE_2,
            _ => false,
        };
        (i32::from(is_by_agents), None)
    })
}

/// Those that take nothing.
#[test]
fn versions_and_choices_by_default_are_those_of_the_header() {
    assert_eq!(veriep_abi_version(), VERIEP_ABI_VERSION);
    let choices = veriep_choices_default();
    assert_eq!(rust_choices(&choices), rust_choices(core::ptr::null()));
    assert_eq!(PROTOCOLS.len(), 4);
}
