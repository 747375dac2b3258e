//! The theorem, its instances, and what goes wrong outside of it.

use std::time::Instant;
use veriep_core::protocol::{Choices, Flags, Operator, Receive};
use veriep_core::units::RankId;
use veriep_verify::explorer::Model;
use veriep_verify::report;
use veriep_verify::smt::ground;
use veriep_verify::smt::model::{Effect, Harm, INVARIANT, Step};
use veriep_verify::smt::obligation::{
    Clears, Obligation, Theory, hierarchy_has_gates, instances, theorem_file, two_partitions_of_wait_all,
    wait_all_is_a_gate,
};
use veriep_verify::smt::relay::{self, Class};
use veriep_verify::smt::schedule::{Partitions, Schedule};
use veriep_verify::smt::slots;
use veriep_verify::smt::timeline::{Search, Timeline, Traffic};
use veriep_verify::smt::trace::{Event, Expected, Facts, Instance, Reuse, Run};
use veriep_verify::smt::z3::{self, Verdict};

/// Guards that say what a step is, not what makes it safe.
const DESCRIPTIVE: [&str; 3] = ["carries", "issued", "once"];

fn discharge(obligations: &[Obligation]) {
    for obligation in obligations {
        match obligation.discharge() {
            Ok(took) => {
                report::line("z3", &obligation.name, &format!("{:?}, {took:.1?}", obligation.expect));
            }
            Err(why) => panic!("{why}"),
        }
    }
}

fn failing(theory: &Theory) -> Vec<String> {
    let all = theory.theorem().into_iter();
    all.filter_map(|obligation| {
        let answer = z3::run(&obligation.script).unwrap_or_else(|why| panic!("{why}"));
        (answer.verdicts == [Verdict::Sat]).then_some(obligation.name)
    })
    .collect()
}

#[test]
fn with_a_gate_between_two_uses_any_number_of_ranks_is_safe() {
    discharge(&Theory::default().theorem());
}

#[test]
fn where_clears_land_at_once_a_gate_need_not_be_quiet() {
    discharge(&Theory { clears: Clears::Prompt, ..Theory::default() }.theorem());
}

#[test]
fn where_flags_are_epochs_nobody_clears_and_a_gate_need_not_be_quiet() {
    discharge(&Theory { clears: Clears::Epochs, ..Theory::default() }.theorem());
}

#[test]
fn the_hierarchy_keeps_the_premise_for_any_number_of_ranks() {
    let variants = [(2, true), (1, true), (2, false)];
    discharge(&variants.map(|(partitions, is_behind)| hierarchy_has_gates(partitions, is_behind)));
}

#[test]
fn every_schedule_has_the_gates_that_the_documents_claim() {
    discharge(&instances());
    discharge(&[wait_all_is_a_gate(), two_partitions_of_wait_all()]);
}

#[test]
fn the_invariant_leaves_room_for_every_step() {
    let theory = Theory::default();
    discharge(&theory.steps().map(|step| theory.can_be_taken(step)).collect::<Vec<_>>());
}

#[test]
fn without_the_premise_nothing_is_safe() {
    let failing = failing(&Theory { no_premise: true, ..Theory::default() });
    for harm in [Harm::Overwritten, Harm::FlagLost, Harm::InUse] {
        assert!(failing.contains(&format!("I => not: {harm}")), "{failing:?}");
    }
}

#[test]
fn without_any_of_the_guards_an_obligation_fails() {
    let mut guards: Vec<_> = Step::ALL.iter().flat_map(|step| step.guards()).map(|guard| guard.0).collect();
    guards.sort_unstable();
    guards.dedup();
    for guard in guards {
        let failing = failing(&Theory { dropped: Some(guard), ..Theory::default() });
        println!("without {guard:?}: {failing:?}");
        assert_eq!(failing.is_empty(), DESCRIPTIVE.contains(&guard), "{guard}");
    }
}

#[test]
fn while_a_rank_has_not_ended_some_rank_can_move() {
    let all = [Clears::Late, Clears::Prompt, Clears::Epochs];
    discharge(&all.map(|clears| Theory { clears, ..Theory::default() }.goes_on()));
}

#[test]
fn a_rank_that_ends_without_flags_leaves_others_stuck() {
    let failing = failing(&Theory { dropped: Some("speaks"), ..Theory::default() });
    assert_eq!(failing, ["I & end => I'"]);
    // And without what the invariant knows of it.
    let Obligation { name, script, .. } = Theory::default().goes_on();
    let (_, spoke) = INVARIANT.last().unwrap();
    let script = script.replace(&format!("(assert {})", spoke.replace('@', "")), "");
    discharge(&[Obligation { name: format!("NOT {name}"), script, expect: Verdict::Sat }]);
}

#[test]
fn flags_that_are_behind_each_other_leave_ranks_stuck() {
    let Obligation { name, script, .. } = Theory::default().goes_on();
    let script = script.replace("(< (height (source s j n) i n) (height s j n))", "true");
    discharge(&[Obligation { name: format!("circles: NOT {name}"), script, expect: Verdict::Sat }]);
}

#[test]
fn the_committed_files_are_what_is_proved() {
    let theorem = ("theorem", Clears::Late, include_str!("../smt/theorem.smt2"));
    let epochs = ("epochs", Clears::Epochs, include_str!("../smt/epochs.smt2"));
    for (name, clears, committed) in [theorem, epochs] {
        let now = format!("{}/{name}.smt2", env!("CARGO_TARGET_TMPDIR"));
        let text = theorem_file(name, clears);
        std::fs::write(&now, &text).unwrap_or_else(|error| panic!("{now}: {error}"));
        assert!(committed == text, "verify/smt/{name}.smt2 is out of date: copy {now} over it");
        let answer = z3::run(committed).unwrap_or_else(|why| panic!("{why}"));
        assert!(answer.verdicts.iter().all(|&verdict| verdict == Verdict::Unsat), "{:?}", answer.verdicts);
    }
}

fn search(schedule: Schedule, operators: u32, traffic: Traffic, clears: Clears) -> Search {
    Search { schedule, ranks: 2, operators, traffic, clears, dropped: &[] }
}

fn find(search: &Search) -> Option<Timeline> {
    let start = Instant::now();
    let found = search.run().unwrap_or_else(|why| panic!("{why}"));
    let Search { schedule, ranks, operators, traffic, clears, dropped } = search;
    println!(
        "\n{schedule}; {ranks} ranks, {operators} operators, traffic {traffic:?}, clears {clears:?}, \
         without {dropped:?}: {:.1?}",
        start.elapsed()
    );
    if let Some(timeline) = &found {
        println!("{timeline}");
    }
    found
}

#[test]
fn too_few_partitions_go_wrong_with_two_ranks_even_on_a_strong_memory() {
    for (schedule, operators) in [
        (Schedule::a2(1), 2),
        (Schedule::a3("DC", 1, 2), 3),
        (Schedule::a3("DDCC", 2, 1), 4),
        (Schedule::a3("DDDCCC", 2, 2), 6),
        (Schedule::a3("DDDDCCCC", 2, 3), 8),
    ] {
        let found = find(&search(schedule, operators, Traffic::Free, Clears::Prompt));
        assert!(found.is_some(), "{schedule}");
    }
}

#[test]
fn enough_partitions_do_not() {
    for (schedule, ranks, operators) in [
        (Schedule::a2(2), 3, 5),
        (Schedule::a3("DC", 2, 1), 3, 6),
        (Schedule::a3("DDCC", 2, 2), 3, 8),
        (Schedule::a3("DDDCCC", 2, 3), 2, 12),
    ] {
        let search = Search { ranks, ..search(schedule, operators, Traffic::Free, Clears::Late) };
        assert!(find(&search).is_none(), "{schedule}");
    }
}

#[test]
fn one_dispatch_partition_is_enough_only_with_full_traffic_and_prompt_clears() {
    let one = Schedule::a3("DC", 1, 2);
    assert!(find(&search(one, 7, Traffic::Full, Clears::Prompt)).is_none());
    // Combine is not quiet: that a rank has sent its rows does not say that its clears have landed.
    assert!(find(&search(one, 3, Traffic::Full, Clears::Late)).is_some());
}

#[test]
fn broken_machines_go_wrong_with_the_right_partitions() {
    let right = search(Schedule::a3("DC", 2, 2), 6, Traffic::Free, Clears::Late);
    let prompt = Search { clears: Clears::Prompt, ..right };
    for search in [
        Search { dropped: &["join", "inside"], ..prompt },
        Search { dropped: &["waits"], ..prompt },
        Search { dropped: &["clears"], ..right },
        Search { dropped: &["hush"], ..right },
    ] {
        assert!(find(&search).is_some(), "{:?}", search.dropped);
    }
    assert!(find(&right).is_none() && find(&prompt).is_none());
}

/// A group whose ranks send a row to every expert in every round.
fn all_to_all(model: &Model, choices: Choices, partitions: Partitions) -> Instance {
    let (shape, schedule) = (model.shape(), Schedule { word: "DDCC", partitions });
    let ranks = model.ranks as usize;
    let quiets = false;
    let of = |n: u32, rank: usize| match (partitions, schedule.operator(n)) {
        (Partitions::Shared(_), kind) => slots::a2_window(kind, ranks),
        (_, Operator::Dispatch) => slots::a3_dispatch(&shape, choices, RankId(rank as u32), |_, _| 1),
        // A word of each rank, or a row of each.
        (_, Operator::Combine) => (0..ranks)
            .map(|source| Some(Expected { source, carries: true, quiets, ..Expected::default() }))
            .collect(),
    };
    let expected = (0..12).map(|n| (0..ranks).map(|rank| of(n, rank)).collect());
    Instance { schedule, clears: Clears::Late, expected: expected.collect() }
}

#[test]
fn the_slots_of_every_layout_keep_the_premise() {
    let a3 = |model: Model, choices| all_to_all(&model, choices, Partitions::PerKind(2, 2));
    let plain = || Model::new(3, "DDCC");
    let direct = Choices { receive: Receive::Direct { areas: 2 }, ..Choices::default() };
    let a2 = |halves| all_to_all(&plain().a2(), Choices::default(), Partitions::Shared(halves));
    for mut instance in [
        a3(plain(), Choices::default()),
        a3(plain(), Choices { flags: Flags::Separate, ..Choices::default() }),
        a3(plain().blocks(2), Choices::default()),
        a3(plain(), direct),
        a2(2),
    ] {
        assert_eq!(instance.ungated(), None, "{}", instance.schedule);
        let flags = instance.expected.iter_mut().flatten().flatten().flatten();
        flags.for_each(|flag| flag.quiets = false);
        assert!(instance.ungated().is_some(), "{}: no core is quiet", instance.schedule);
    }
    assert!(a2(1).ungated().is_some());
}

#[test]
fn the_slots_of_the_hierarchy_keep_the_premise() {
    // Every rank sends a token to each server, across to another number.
    let model = Model { k: 2, ..Model::new(4, "DC").hierarchy(2) };
    let (shape, ids) = (model.shape(), [[3, 0], [2, 1], [1, 2], [0, 3]]);
    let ids: Vec<_> = ids.iter().map(|ids| &ids[..]).collect();
    let instance = |partitions| {
        let schedule = Schedule::a2(partitions);
        let of = |n, rank| relay::expected(&shape, schedule.operator(n), RankId(rank), &ids);
        let expected = (0..6).map(|n| (0..4).map(|rank| of(n, rank)).collect());
        Instance { schedule, clears: Clears::Epochs, expected: expected.collect() }
    };
    assert_eq!((instance(2).ungated(), instance(2).unsent()), (None, None));
    assert!(instance(1).ungated().is_some());
    let behind = |change: &dyn Fn(&mut Expected)| {
        let mut instance = instance(2);
        instance.expected.iter_mut().flatten().flatten().flatten().for_each(change);
        instance
    };
    let entered = relay::slot(&shape, Class::Entered, 1);
    assert!(behind(&|flag| flag.behind &= !(1 << entered)).ungated().is_some());
    assert!(behind(&|flag| flag.behind |= 1 << entered).unsent().is_some(), "entered is behind itself");
}

fn pick(seed: &mut u64, n: u32) -> u32 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 33) as u32 % n
}

const RANKS: usize = 3;
const OPERATORS: u32 = 6;

fn some_instance(seed: &mut u64) -> Instance {
    let word = ["DC", "DDCC", "DDDCCC"][pick(seed, 3) as usize];
    let schedule = Schedule::a3(word, 1 + pick(seed, 2), 1 + pick(seed, 3));
    let mut slot = |all: bool, j: usize| {
        let source = if all { j } else { pick(seed, RANKS as u32) as usize };
        let [carries, quiets] = [4, 2].map(|of| pick(seed, of) > 0);
        let behind = if pick(seed, 4) == 0 { u64::from(pick(seed, 1 << RANKS)) } else { 0 };
        let reuse = [Reuse::Partition, Reuse::Every, Reuse::Never][pick(seed, 3) as usize];
        (all || pick(seed, 2) == 0).then_some(Expected { source, carries, quiets, behind, reuse })
    };
    let expected = (0..OPERATORS).map(|n| {
        (0..RANKS).map(|_| (0..RANKS).map(|j| slot(schedule.waits_for_all(n), j)).collect()).collect()
    });
    Instance { schedule, clears: Clears::Late, expected: expected.collect() }
}

fn all_events() -> impl Iterator<Item = Event> {
    Step::ALL.into_iter().flat_map(|step| {
        (0..RANKS * RANKS * OPERATORS as usize).map(move |i| {
            let (rank, slot, n) = (i % RANKS, i / RANKS % RANKS, (i / RANKS / RANKS) as u32);
            Event { step, rank, slot, n }
        })
    })
}

/// A state after some steps of the model, harmless or not, or any state whatever.
fn some_state<'i>(instance: &'i Instance, seed: &mut u64, reachable: bool) -> Run<'i> {
    let mut run = Run::new(instance);
    if reachable {
        for _ in 0..pick(seed, 150) {
            let enabled: Vec<_> = all_events()
                .filter(|event| {
                    event.step.effect() != Effect::None && (event.step != Step::Quiet || event.slot == 0)
                })
                .filter(|event| event.step.guards().iter().all(|(guard, _)| run.holds(guard, event)))
                .collect();
            run.apply(&enabled[pick(seed, enabled.len() as u32) as usize]);
        }
        return run;
    }
    for rank in 0..RANKS {
        run.facts.ended[rank] = pick(seed, 5);
        run.facts.begun[rank] = run.facts.ended[rank] + pick(seed, 2);
        run.facts.hushed[rank] = pick(seed, 6);
    }
    for event in all_events().filter(|event| event.step == Step::Land) {
        let key = (event.rank, event.slot, event.n);
        let Facts { landed, taken, cleared, .. } = &mut run.facts;
        for set in [landed, taken, cleared] {
            if pick(seed, 2) == 0 {
                set.insert(key);
            }
        }
    }
    run
}

#[test]
fn the_guards_in_rust_and_in_smt_say_the_same() {
    let (mut seed, mut claims, mut taken) = (0x5EED, 0, [0; Step::ALL.len()]);
    for i in 0..60 {
        let instance = some_instance(&mut seed);
        let reachable = i % 2 == 0;
        let run = some_state(&instance, &mut seed, reachable);
        let agree: String = all_events().map(|event| ground::agrees(&run, &event)).collect();
        let mut define =
            [ground::sorts(RANKS, RANKS), ground::rigid(&instance), ground::state(&run, "")].concat();
        let enabled: Vec<_> = all_events()
            .filter(|event| event.step.guards().iter().all(|(guard, _)| run.holds(guard, event)))
            .collect();
        let mut goals = vec![format!("(and {agree})")];
        if let Some(event) = enabled.get(pick(&mut seed, enabled.len().max(1) as u32) as usize) {
            let mut after = run.clone();
            after.apply(event);
            let (effect, same) = ground::same_effect(event.step, event, &after);
            define.push_str(&effect);
            goals.push(same);
        }
        if reachable {
            goals.push(ground::invariant());
        }
        let goals: String =
            goals.iter().map(|goal| format!("(push)(assert (not {goal}))(check-sat)(pop)\n")).collect();
        let answer = z3::run(&format!("{define}{goals}")).unwrap_or_else(|why| panic!("{why}"));
        assert!(
            answer.verdicts.iter().all(|&v| v == Verdict::Unsat),
            "state {i}: {:?}\n{run:#?}",
            answer.verdicts
        );
        claims += all_events().count();
        enabled.iter().for_each(|event| taken[event.step as usize] += 1);
    }
    println!("{claims} steps compared; enabled by kind {taken:?}");
    assert!(taken.iter().all(|&n| n > 0), "{taken:?}");
}
