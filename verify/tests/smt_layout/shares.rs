//! Work that is split: proved for all numbers by two solvers. A formula with a mistake is refuted by numbers for which the core
//! splits it another way.

use super::eval::{Values, model};
use veriep_core::layout::direct::{Area, Parts};
use veriep_core::layout::expr::Expr;
use veriep_core::layout::state::Partition;
use veriep_core::plan::counts::{NEXT_FIRST, Stretch, transposed_prefix};
use veriep_core::plan::relay::{FORWARDED_END, Forwarded};
use veriep_core::plan::split::{self, Shared, Staff};
use veriep_core::shape::{BatchSizes, Buffer, Config, Limits, Protocol, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_verify::report;
use veriep_verify::smt::layout::work::{self, Questions, Roles};
use veriep_verify::smt::z3::{self, Solver, Verdict};

fn verdicts(script: &str) -> Vec<[Verdict; 2]> {
    let of = |solver| z3::run_by(solver, script).unwrap_or_else(|why| panic!("{why}")).verdicts;
    of(Solver::Z3).into_iter().zip(of(Solver::Cvc5)).map(|(a, b)| [a, b]).collect()
}

/// Asserts that both solvers prove all that is asked.
fn assert_proved(questions: &Questions) {
    let verdicts = verdicts(&questions.script());
    assert!(!verdicts.is_empty(), "no answer");
    assert!(verdicts.iter().all(|both| *both == [Verdict::Unsat; 2]), "{verdicts:?}");
}

/// Small numbers for which a formula with a mistake goes wrong, with real products.
fn refuted(name: &str, questions: &Questions) -> Values {
    let answer = z3::run(&questions.counterexamples(4)).unwrap_or_else(|why| panic!("{why}"));
    let wrong = answer.verdicts.iter().filter(|verdict| **verdict == Verdict::Sat).count();
    assert!(wrong > 0, "{name}: {:?}", answer.verdicts);
    let values = model(&answer.text);
    report::line("z3", &format!("twin: {name}"), &format!("{wrong} questions refuted, {values:?}"));
    values
}

#[test]
fn shares_of_any_number_of_items_over_any_number_of_cores_cover_each_once() {
    assert_proved(&work::shares(&split::EVEN_LENGTH));
    let values = refuted("the first shares get nothing more", &work::shares(&split::EVEN_EACH));
    let (items, cores) = (values["items"] as u32, values["cores"] as u32);
    let all = |length: &dyn Fn(u32) -> u32| (0..cores).map(length).sum::<u32>();
    assert_eq!(all(&|core| split::even(items, cores, core).len() as u32), items);
    assert_ne!(all(&|_| items / cores), items);
}

#[test]
fn the_owner_of_any_item_is_the_core_whose_share_has_it() {
    assert_proved(&work::owners(&split::EVEN_OWNER));
    let each = Expr::Max(&split::EVEN_EACH, &Expr::Number(1));
    let all_alike = Expr::Over(&Expr::Of(Shared::Item), Box::leak(Box::new(each)));
    let values = refuted("owners as if no share were longer", &work::owners(&all_alike));
    let [items, cores, item] = ["items", "cores", "item"].map(|name| values[name] as u32);
    let owner = item / (items / cores).max(1);
    assert!(owner >= cores || !split::even(items, cores, owner).contains(&item), "{values:?}");
    assert!(split::even(items, cores, split::even_owner(items, cores, item)).contains(&item));
}

/// The cores that publish counts, that send to MoE experts, and that send to shared experts, as ranges: of a core's formulas, or as
/// its machines have them.
type Tasks = [core::ops::Range<u32>; 3];

/// The formulas for these numbers.
fn tasks(roles: &Roles, values: &Values) -> Tasks {
    let get = |name: &str| values[name] as u64;
    let value = |formula: &Expr<Staff>, [counts, shared]: [u64; 2]| {
        formula.value(&|of| match of {
            Staff::Cores => get("cores"),
            Staff::CountCores => counts,
            Staff::SharedCores => shared,
            Staff::K => get("k"),
            Staff::SharedExperts => get("shared_experts"),
        })
    };
    let counts = value(&roles.count_cores, [0, 0]);
    let shared = value(&roles.shared_cores, [counts, 0]);
    let [publish, moe] = [&roles.publish_end, &roles.moe_end].map(|of| value(of, [counts, shared]));
    let cores = get("cores");
    [0..publish, counts..moe, cores.saturating_sub(shared)..cores]
        .map(|range| range.start as u32..range.end as u32)
}

/// The cores to which machines give work, in a shape with these numbers and more of everything than cores.
fn tasks_of_machines(has_count_cores: bool, values: &Values) -> Tasks {
    let get = |name: &str| values[name] as i64;
    let config = Config {
        comm_alg: if has_count_cores { Protocol::FullmeshV2 } else { Protocol::FullmeshV1 },
        ep_world_size: 8 + get("shared_experts"),
        moe_expert_num: 8,
        shared_expert_num: get("shared_experts"),
        shared_expert_rank_num: get("shared_experts"),
        k: get("k"),
        h: 8,
        bs: BatchSizes::Uniform(8),
        aiv_num: get("cores"),
        ..Config::default()
    };
    let hccl_buffsize_mb = Buffer::with(&config, Limits::None).required_mb as i64;
    let shape = Shape::new(&Config { hccl_buffsize_mb, ..config }, Limits::None).unwrap();
    let all: Vec<_> = (0..shape.aiv_num()).map(|n| split::work(&shape, RankId(0), CoreId(n))).collect();
    let cores = |works: &dyn Fn(&split::Work) -> bool| {
        let has: Vec<_> = (0..).zip(&all).filter(|(_, work)| works(work)).map(|(n, _)| n).collect();
        has.first().copied().unwrap_or(shape.aiv_num())..has.last().map_or(shape.aiv_num(), |last| last + 1)
    };
    [
        cores(&|work| !work.destinations.is_empty()),
        cores(&|work| !if has_count_cores { &work.experts } else { &work.sends.moe }.is_empty()),
        cores(&|work| !work.sends.shared.is_empty()),
    ]
}

const CORES: Expr<Staff> = Expr::Of(Staff::Cores);
const SHARED_EXPERTS: Expr<Staff> = Expr::Of(Staff::SharedExperts);
const SENDERS: Expr<Staff> = Expr::Less(&CORES, &Expr::Of(Staff::CountCores));
const ALL_COLUMNS: Expr<Staff> = Expr::Sum(&Expr::Of(Staff::K), &SHARED_EXPERTS);
/// Without one core at least.
const FEW_SHARED_CORES: Expr<Staff> = Expr::Over(&Expr::Product(&SENDERS, &SHARED_EXPERTS), &ALL_COLUMNS);
/// Without one core at least.
const FEW_MOE_CORES: Expr<Staff> = Expr::Less(&CORES, &Expr::Of(Staff::SharedCores));
/// Also where there is no other core.
const ALWAYS_COUNT: Expr<Staff> = Expr::Max(&Expr::Over(&CORES, &Expr::Number(8)), &Expr::Number(1));

#[test]
fn each_task_of_a_rank_has_cores_and_each_core_a_task() {
    for has_count_cores in [false, true] {
        let right = Roles::of(has_count_cores);
        assert_proved(&work::roles(&right));
        let mut twins = vec![
            ("no core for few shared pairs", Roles { shared_cores: FEW_SHARED_CORES, ..right }),
            ("no core for MoE experts beside one for shared ones", Roles { moe_end: FEW_MOE_CORES, ..right }),
        ];
        if has_count_cores {
            twins.extend([
                ("a single core that only counts", Roles { count_cores: ALWAYS_COUNT, ..right }),
                ("counts by cores that send", Roles { publish_end: CORES, ..right }),
            ]);
        }
        for (name, twin) in twins {
            let values = refuted(name, &work::roles(&twin));
            let of_machines = tasks_of_machines(has_count_cores, &values);
            assert_eq!(tasks(&right, &values), of_machines, "{values:?}");
            assert_ne!(tasks(&twin, &values), of_machines, "{name}: {values:?}");
        }
    }
}

#[test]
fn a_relay_forwards_each_row_by_the_core_whose_share_has_it() {
    assert_proved(&work::forwards(&FORWARDED_END));
    let first = Expr::Product(&Expr::Of(Forwarded::Server), &Expr::Of(Forwarded::NearExperts));
    let all_behind = Expr::Less(&Expr::Of(Forwarded::End), Box::leak(Box::new(first)));
    let values = refuted("experts of the servers behind", &work::forwards(&all_behind));
    let [server, experts, end] = ["server", "near_experts", "end"].map(|name| values[name] as u64);
    let value = |formula: Expr<Forwarded>| {
        formula.value(&|of| match of {
            Forwarded::End => end,
            Forwarded::Server => server,
            Forwarded::NearExperts => experts,
        })
    };
    assert!(value(all_behind) > experts && value(FORWARDED_END) == experts, "{values:?}");
}

/// Rows of direct placement are granted so, received rows written so, and rows of a window found so.
#[test]
fn no_row_is_of_two_sources_or_of_two_experts_and_none_is_left_out() {
    assert_proved(&work::stretches(&NEXT_FIRST));
    let one_short = Expr::Less(&NEXT_FIRST, &Expr::Number(1));
    let values = refuted("rows granted twice", &work::stretches(&one_short));
    let [before, rows] = ["first", "rows"].map(|name| values[name] as u32);
    let next = |formula: Expr<Stretch>| {
        formula.value(&|of| match of {
            Stretch::First => before.into(),
            Stretch::Rows => rows.into(),
        }) as u32
    };
    // One source with rows for three experts.
    let mut ends = [0; 3];
    transposed_prefix(&[before, rows, 1], 3, &mut ends);
    let [_, end, _] = ends;
    assert_eq!(next(NEXT_FIRST), end);
    let config = Config { ep_world_size: 2, moe_expert_num: 6, k: 3, h: 8, ..Config::default() };
    let shape = Shape::new(&config, Limits::None).unwrap();
    let parts = Parts::of(&shape, RankId(0), Area::default());
    let last_before = parts.row(end.checked_sub(1).unwrap());
    assert_eq!(parts.row(next(one_short)), last_before, "{values:?}");
}

#[test]
fn the_partition_of_an_operator_is_that_of_the_theorem() {
    let of_code = [Partition::P0, Partition::P1].map(|partition| partition.flipped().index());
    let counted = [0, 1].map(|number| Partition::of(number).index());
    assert!((0..100).all(|number| Partition::of(number) == Partition::of(number + 2)));
    assert_eq!(verdicts(&work::partitions(of_code, counted)), [[Verdict::Unsat; 2]; 3]);
    assert_eq!(
        verdicts(&work::partitions([1, 1], [1, 0]))[1..],
        [[Verdict::Sat; 2]; 2],
        "a record that stays at 1, counts from 1 on"
    );
}
