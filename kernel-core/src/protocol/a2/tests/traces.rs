//! All transitions that ever happen, as text.

use super::{Delivery, a2, plain_result, random_rounds};
use crate::fabric::Progress;
use crate::protocol::Machine;
use crate::shape::Config;
use crate::sim::{Actor, Choice, Chooser};
use crate::testing::domain::{Dice, Domain, PAIR, shape as shape_of};
use crate::testing::golden;
use crate::testing::group::Group;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write;

/// Returns the operator and the phase of a machine.
fn phase(machine: Option<&Machine>) -> String {
    let kind = if matches!(machine, Some(Machine::A2Dispatch(_))) { "Dispatch" } else { "Combine" };
    format!("{kind} {}", machine.map_or("", Machine::phase))
}

/// Runs a group as a seed decides, and records every transition.
fn watched(group: &mut Group, seed: u64, seen: &mut BTreeSet<[String; 3]>) {
    group.choose(Delivery::Weak, seed);
    group.begin_all();
    while let Some(choice) = group.memory.chooser.next() {
        let Choice::Step(Actor { member, core }) = choice else {
            group.cluster.take(choice, &mut group.judge).unwrap();
            continue;
        };
        let machine = |group: &Group| {
            let cores = &group.members[member.index()].cores;
            cores.get(core.index()).and_then(|core| core.machine.clone())
        };
        let before = machine(group);
        let progress = group.cluster.step(Actor { member, core }, &mut group.judge).unwrap();
        let effects = group.memory.take_effects();
        let (Some(_), Some(progress)) = (&before, progress) else { continue };
        let after = if progress == Progress::Done { before.clone() } else { machine(group) };
        let what = match (progress, effects.first()) {
            (Progress::Pending(_), _) => "(pending)".into(),
            (Progress::Done, _) => "(done)".into(),
            (Progress::Stepped, None) => "-".into(),
            (Progress::Stepped, Some(effect)) => {
                let what = effect.to_string();
                let what = what.split_once('+').map_or("", |(what, _)| what);
                what.split_once(" -> ").map_or(what, |(verb, _)| verb).trim_end().into()
            }
        };
        seen.insert([phase(before.as_ref()), what, phase(after.as_ref())]);
    }
    assert!(group.members.iter().all(|member| member.ended == group.operators.len()));
}

/// Every `(phase, effect, next phase)` that random groups ever go through. Any other one is illegal.
#[test]
fn the_transitions_of_both_machines_are_as_committed() {
    let mut seen = BTreeSet::new();
    for seed in 0..120 {
        let mut dice = Dice(seed);
        let [r, cores, bs] = [2, 4, 3].map(|n| 1 + i64::from(dice.below(n)));
        let domain = Domain { r: r + 1, e: 2 * (r + 1), k: 2, h: 16, bs, cores, ..PAIR };
        let quant_mode = if dice.below(2) == 0 { 0 } else { 2 };
        let shape = shape_of(&Config { quant_mode, zero_expert_num: 1, ..a2(domain) });
        let mut group = Group::of(&shape, random_rounds(&shape, 2, true, &mut dice), plain_result);
        watched(&mut group, seed, &mut seen);
    }
    let mut text = String::new();
    for [before, effect, after] in seen {
        writeln!(text, "{before:<22} {effect:<32} {after}").unwrap();
    }
    golden::check("a2_transitions.txt", &text);
}
