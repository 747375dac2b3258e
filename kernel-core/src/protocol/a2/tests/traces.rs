//! All transitions that ever happen, as text.

use super::{a2, plain_result, random_rounds, run};
use crate::shape::Config;
use crate::testing::a2_group::{Delivery, Group};
use crate::testing::domain::{Dice, Domain, PAIR, shape as shape_of};
use crate::testing::golden;
use alloc::collections::BTreeSet;
use alloc::string::String;
use core::fmt::Write;

/// Every `(phase, effect, next phase)` that random groups ever go through. What is not in it is illegal.
#[test]
fn the_transitions_of_both_machines_are_as_committed() {
    let mut seen = BTreeSet::new();
    for seed in 0..120 {
        let mut dice = Dice(seed);
        let [r, cores, bs] = [2, 4, 3].map(|n| 1 + i64::from(dice.below(n)));
        let domain = Domain { r: r + 1, e: 2 * (r + 1), k: 2, h: 16, bs, cores, ..PAIR };
        let quant_mode = if dice.below(2) == 0 { 0 } else { 2 };
        let shape = shape_of(&Config { quant_mode, zero_expert_num: 1, ..a2(domain) });
        let mut group = Group::new(&shape, random_rounds(&shape, 2, true, &mut dice), plain_result);
        group.record = true;
        assert_eq!(run(&mut group, Delivery::Weak, seed), Ok(()));
        seen.append(&mut group.transitions);
    }
    let mut text = String::new();
    for [before, effect, after] in seen {
        writeln!(text, "{before:<22} {effect:<32} {after}").unwrap();
    }
    golden::check("a2_transitions.txt", &text);
}
