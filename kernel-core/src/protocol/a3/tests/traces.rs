//! The behaviour of the machines as text: every step of small groups, and all transitions that ever happen.

use crate::fabric::Progress;
use crate::plan::order::SendOrder;
use crate::protocol::Flags;
use crate::shape::{Config, Shape};
use crate::sim::Actor;
use crate::testing::domain::{Dice, Domain, OwnedMask, PAIR, Tensors, shape as shape_of};
use crate::testing::golden;
use crate::testing::group::{Group, Step, in_turn};
use crate::units::RankId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;

/// Returns one line for each step; a wait is listed once.
fn trace(group: &mut Group) -> String {
    let mut text = String::new();
    let mut waits = BTreeMap::new();
    let mut line = |actor: Actor, step: &Step| {
        let who = format!("{}.{}", actor.member, actor.core);
        let what = match step.progress {
            Progress::Stepped => {
                waits.remove(&who);
                step.effect.clone().unwrap_or_default()
            }
            Progress::Pending(wait) => {
                if waits.insert(who.clone(), wait) == Some(wait) {
                    return;
                }
                format!("pending: {wait}")
            }
            Progress::Done => "done".to_string(),
        };
        let phases = format!("{} -> {}", step.before, step.after);
        writeln!(text, "{who}  {phases:<25}  {what}").unwrap();
    };
    group.begin_dispatch();
    group.run(in_turn(), &mut line).unwrap();
    group.begin_combine();
    group.run(in_turn(), &mut line).unwrap();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn group(shape: &Shape, tensors: &[(&[i32], OwnedMask)]) -> Group {
    let tensors = (0..).map(RankId).zip(tensors);
    let tensors = tensors.map(|(rank, (ids, mask))| Tensors::new(shape, rank, ids.to_vec(), mask.clone()));
    Group::new(shape, tensors.collect())
}

/// Two tokens for two experts each on each of two ranks; one pair of rank 1 is off.
fn two_ranks(cores: i64) -> Group {
    let shape = Domain { e: 4, k: 2, cores, ..PAIR }.shape();
    let mask = OwnedMask::Pairs(vec![true, true, false, true]);
    group(&shape, &[(&[0, 2, 3, 0], OwnedMask::None), (&[2, 1, 0, 3], mask)])
}

#[test]
fn the_steps_of_small_groups_are_as_committed() {
    let alone = |cores| {
        let shape = Domain { r: 1, k: 1, cores, ..PAIR }.shape();
        group(&shape, &[(&[1, 0], OwnedMask::None)])
    };
    let shared = |cores| {
        let domain = Domain { r: 3, e: 2, s: 1, rs: 1, k: 1, cores, ..PAIR };
        let shape = shape_of(&Config { quant_mode: 2, expert_token_nums_type: 0, ..domain.config() });
        let idle = OwnedMask::Tokens(vec![false, false]);
        let first = OwnedMask::Tokens(vec![true, false]);
        group(&shape, &[(&[1, 0], OwnedMask::None), (&[1, 1], first), (&[0, 0], idle)])
    };
    for cores in 1..=3 {
        golden::check(&format!("trace_1_rank_{cores}_cores.txt"), &trace(&mut alone(cores)));
        golden::check(&format!("trace_2_ranks_{cores}_cores.txt"), &trace(&mut two_ranks(cores)));
        golden::check(&format!("trace_shared_int8_{cores}_cores.txt"), &trace(&mut shared(cores)));
    }
}

#[test]
fn the_steps_in_plain_order_are_as_committed() {
    let mut group = two_ranks(1);
    group.choices.order = SendOrder::Plain;
    golden::check("trace_2_ranks_plain_order.txt", &trace(&mut group));
}

#[test]
fn the_steps_with_separate_flags_are_as_committed() {
    for cores in 1..=2 {
        let mut group = two_ranks(cores);
        group.choices.flags = Flags::Separate;
        golden::check(&format!("trace_2_ranks_separate_flags_{cores}_cores.txt"), &trace(&mut group));
    }
}

/// Returns an effect without its numbers, like `put` or `write x_out`.
fn kind(step: &Step) -> String {
    match (&step.progress, &step.effect) {
        (Progress::Pending(_), _) => "(pending)".to_string(),
        (Progress::Done, _) => "(done)".to_string(),
        (Progress::Stepped, None) => "-".to_string(),
        (Progress::Stepped, Some(effect)) => {
            let mut words = effect.split([' ', '+']).filter(|word| !word.is_empty());
            let (verb, place) = (words.next().unwrap(), words.next().unwrap());
            if place == "->" { verb.to_string() } else { format!("{verb} {place}") }
        }
    }
}

/// Every `(phase, effect, next phase)` that random groups ever go through. Any other one is illegal.
#[test]
fn the_transitions_of_both_machines_are_as_committed() {
    let mut seen = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let [cores, s, bs, h] = [6, 3, 4, 3].map(|n| i64::from(dice.below(n)));
        let domain = Domain { r: s + 2, e: 4, s, rs: s, k: 2, h: h + 1, bs: bs + 1, cores: cores + 1 };
        let quant_mode = if dice.below(2) == 0 { 0 } else { 2 };
        // All groups have the zero expert; the other terms of combine are drawn with dice of their own.
        let mut extra = Dice(seed ^ 0xADD);
        let [copy_expert_num, const_expert_num, comm_quant, norm] =
            [2, 2, 2, 2].map(|n| extra.below(n).into());
        let shape = shape_of(&Config {
            quant_mode,
            zero_expert_num: 1,
            copy_expert_num,
            const_expert_num,
            comm_quant_mode: 2 * comm_quant,
            ..domain.config()
        });
        let ranks = (0..shape.ep_world_size()).map(RankId);
        let one = |rank| {
            let tensors = Tensors::random(&shape, rank, &mut dice);
            if norm == 1 { tensors.with_add_rms_norm(&shape, rank) } else { tensors }
        };
        let tensors: Vec<_> = ranks.map(one).collect();
        let mut group = Group::new(&shape, tensors);
        let [joint, separate, combine] = &mut seen;
        group.choices.flags = if seed % 2 == 0 { Flags::Joint } else { Flags::Separate };
        let dispatch = if seed % 2 == 0 { joint } else { separate };
        let transition = |step: &Step| (step.before.clone(), kind(step), step.after.clone());
        group.begin_dispatch();
        group
            .run(
                |n| dice.below(n as u32) as usize,
                |_, step| {
                    dispatch.insert(transition(step));
                },
            )
            .unwrap();
        group.begin_combine();
        group
            .run(
                |n| dice.below(n as u32) as usize,
                |_, step| {
                    combine.insert(transition(step));
                },
            )
            .unwrap();
    }
    let mut text = String::new();
    for (name, transitions) in
        ["dispatch, joint flags", "dispatch, separate flags", "combine"].iter().zip(seen)
    {
        writeln!(text, "{name}").unwrap();
        for (before, effect, after) in transitions {
            writeln!(text, "  {before:<15} {effect:<32} {after}").unwrap();
        }
    }
    golden::check("transitions.txt", &text);
}
