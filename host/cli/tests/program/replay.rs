//! A counterexample of the explorer, replayed by the lockstep backend: the search and the run mean the same.

use half::bf16;
use veriep_case::batch::Batch;
use veriep_case::case::{Case, OwnedMask, RankTensors, Weights};
use veriep_case::config::Config;
use veriep_group::backend::lockstep::{Lockstep, Memory};
use veriep_group::compare;
use veriep_group::driver::schedule::Schedule;
use veriep_group::driver::{self, Options, RankState, Unit};
use veriep_group::world::World;
use veriep_verify::explorer::{Model, explore};

/// The model's group as a case of its own; every round's rows differ.
fn case(model: &Model) -> Case {
    let ranks = model.ranks as usize;
    Case {
        config: Config::default(),
        shape: model.shape(),
        ranks: vec![tensors(0, None); ranks],
        scales: None,
        weights: Weights::default(),
        expert_gain: (0..ranks).map(|e| 1.0 + e as f32).collect(),
        elastic: None,
        expert_map: None,
    }
}

fn tensors(value: usize, choice: Option<i32>) -> RankTensors {
    RankTensors {
        x: bf16::from_f32(value as f32).to_le_bytes().to_vec(),
        expert_ids: vec![choice.unwrap_or(0)],
        expert_scales: vec![1.0],
        mask: OwnedMask::Tokens(vec![choice.is_some()]),
        ..RankTensors::default()
    }
}

/// Runs the rounds of `traffic` in the order of `steps`. The first round whose result is wrong, or `None`.
fn wrong_round(model: &Model, traffic: &[Vec<Option<i32>>], steps: &[usize]) -> Option<usize> {
    let case = case(model);
    let schedule = Schedule::parse(&model.schedule).expect("balanced");
    let schedule = schedule.repeat(traffic.len().div_ceil(schedule.batches()));
    let batches: Vec<_> = (0..schedule.batches())
        .map(|round| {
            let of_rank = |rank| {
                let choice = traffic.get(round).and_then(|choices| choices[rank]);
                tensors(1 + round * case.ranks.len() + rank, choice)
            };
            Batch::with_tensors(&case, (0..case.ranks.len()).map(of_rank).collect::<Vec<_>>())
        })
        .collect();
    let backend = Lockstep::new(&case.shape, batches.len(), Memory::Strong, 0).expect("memory");
    let ranks: Vec<_> = case.ranks.iter().map(|_| RankState::new(batches.len())).collect();
    let unit = Unit {
        shape: &case.shape,
        options: Options::default(),
        backend: &backend,
        first_round: 0,
        batches: &batches,
        ranks: &ranks,
        operators: schedule.operators(),
        world: &World::alone(ranks.len() as u32, 0),
    };
    if let Err(failure) = driver::lockstep::replay(&unit, steps) {
        println!("{failure}");
        return Some(0);
    }
    let checks = batches
        .iter()
        .enumerate()
        .map(|(number, batch)| compare::check((unit.world, &backend), &case.shape, batch, number, 1, &|| ()));
    checks.into_iter().position(|verdict| verdict.is_err())
}

#[test]
fn a_counterexample_goes_wrong_in_lockstep_too() {
    let model = Model::new(2, "DDDCCC");
    let timeline = explore(&model).counterexample.expect("three batches need three partitions");
    assert!(wrong_round(&model, &timeline.traffic, &timeline.steps).is_some(), "{timeline}");
}

#[test]
fn the_same_traffic_in_a_fair_order_is_right() {
    let model = Model::new(2, "DDDCCC");
    let timeline = explore(&model).counterexample.expect("three batches need three partitions");
    assert_eq!(wrong_round(&model, &timeline.traffic, &[]), None);
}
