//! A concrete state of the Rust side as SMT text, so that z3 can say whether both sides mean the same.

use super::model::{Harm, INVARIANT, STATE, Step};
use super::obligation::Theory;
use super::trace::{Event, Facts, Instance, Run, bits};
use core::fmt::Write;
use std::collections::BTreeSet;

/// Sorts with so many elements.
pub fn sorts(ranks: usize, slots: usize) -> String {
    let names = |letter, n| (0..n).map(|i| format!("({letter}{i})")).collect::<String>();
    format!("(declare-datatypes ((Rank 0) (Slot 0)) (({}) ({})))\n", names('r', ranks), names('j', slots))
}

pub fn rigid(instance: &Instance) -> String {
    let (mut expects, mut carries, mut source) = (String::new(), String::new(), "r0".to_owned());
    let (mut quiets, mut behind, mut reuse) = (String::new(), String::new(), String::new());
    for n in 0..instance.operators() {
        for rank in 0..instance.ranks() {
            for (slot, expected) in instance.slots(rank, n).iter().enumerate() {
                let Some(expected) = expected else { continue };
                let here = point(&(rank, slot, n));
                source = format!("(ite {here} r{} {source})", expected.source);
                expects.push_str(&here);
                if expected.carries {
                    carries.push_str(&here);
                }
                if expected.quiets {
                    quiets.push_str(&here);
                }
                for own in bits(expected.behind) {
                    let _ = write!(behind, "(and {here} (= i j{own}))");
                }
                for m in (0..n).filter(|&m| instance.reuse((rank, slot), m, n)) {
                    let _ = write!(reuse, "(and {here} (= m {m}))");
                }
            }
        }
    }
    let of_slot = "((s Rank) (j Slot) (n Int))";
    format!(
        "(define-fun expects {of_slot} Bool (or false {expects}))
(define-fun carries {of_slot} Bool (or false {carries}))
(define-fun source {of_slot} Rank {source})
(define-fun quiets {of_slot} Bool (or false {quiets}))
(define-fun behind ((s Rank) (j Slot) (n Int) (i Slot)) Bool (or false {behind}))
(define-fun reuse ((s Rank) (j Slot) (m Int) (n Int)) Bool (or false {reuse}))\n"
    )
}

/// The state, its functions named with a suffix.
pub fn state(run: &Run<'_>, suffix: &str) -> String {
    let Facts { begun, ended, hushed, landed, taken, cleared } = &run.facts;
    let mut text = String::new();
    let counts = [("begun", begun), ("ended", ended), ("hushed", hushed)];
    for (name, values) in counts {
        let value = values
            .iter()
            .enumerate()
            .fold("0".to_owned(), |rest, (rank, value)| format!("(ite (= r r{rank}) {value} {rest})"));
        let _ = writeln!(text, "(define-fun {name}{suffix} ((r Rank)) Int {value})");
    }
    let facts = [("landed", landed), ("taken", taken), ("cleared", cleared)];
    for (name, set) in facts {
        let _ = writeln!(
            text,
            "(define-fun {name}{suffix} ((s Rank) (j Slot) (n Int)) Bool (or false {}))",
            points(set)
        );
    }
    text
}

/// A formula that is true if the texts say of a step in the state what [`Run`] says: whether it can be taken,
/// and whether it then does harm.
pub fn agrees(run: &Run<'_>, event: &Event) -> String {
    let holds = event.step.guards().iter().all(|(guard, _)| run.holds(guard, event));
    let guards: String = event.step.guards().iter().map(|(_, text)| *text).collect();
    let mut claims = format!("(= {holds} (and {guards}))");
    if holds {
        for harm in Harm::ALL.into_iter().filter(|harm| harm.absent().0 == event.step) {
            let _ = write!(claims, "(= {} {})", !run.is_harm(harm, event), harm.absent().1);
        }
    }
    let Event { rank, slot, n, .. } = event;
    format!("(let ((S r{rank}) (J j{slot}) (N {n})) (and {claims}))\n").replace('@', "")
}

/// A formula that is true if the text's state after a step is `after`; goes with [`state`] of both, suffixes
/// none and `_2`.
pub fn same_effect(step: Step, event: &Event, after: &Run<'_>) -> (String, String) {
    let Event { rank, slot, n, .. } = event;
    let define = format!(
        "(define-fun S () Rank r{rank}) (define-fun J () Slot j{slot}) (define-fun N () Int {n})\n{}{}",
        Theory::default().next_state(step),
        state(after, "_2")
    );
    let same: String = STATE
        .iter()
        .map(|(name, signature, ..)| {
            if signature.contains("Slot") {
                format!("(forall ((s Rank) (j Slot) (n Int)) (= ({name}_1 s j n) ({name}_2 s j n)))")
            } else {
                format!("(forall ((r Rank)) (= ({name}_1 r) ({name}_2 r)))")
            }
        })
        .collect();
    (define, format!("(and {same})"))
}

/// The invariant as one formula about the state without suffix.
pub fn invariant() -> String {
    let all: String = INVARIANT.iter().map(|(_, formula)| formula.replace('@', "")).collect();
    format!("(and {all})")
}

fn points(set: &BTreeSet<(usize, usize, u32)>) -> String {
    set.iter().map(point).collect()
}

fn point((rank, slot, n): &(usize, usize, u32)) -> String {
    format!("(and (= s r{rank}) (= j j{slot}) (= n {n}))")
}
