//! Layers of different sizes on one window: combinations that the argument of docs/doubt/layers.md allows, and others.
//!
//! A partition holds the combine area first and the dispatch area after it. The layer determines the border, so the
//! dispatch area of one layer may overlap the combine area of another.

use crate::fabric::Progress;
use crate::inputs::Inputs;
use crate::place::Tensor;
use crate::protocol::{Choices, Operator};
use crate::reference;
use crate::shape::{Config, Protocol, Shape};
use crate::sim::cluster::{Failure, Planned, Returned, World, schedule as schedule_of};
use crate::sim::{Actor, Dense, Seeded};
use crate::testing::domain::{Dice, Domain, PAIR, Tensors, result_row, shape as shape_of};
use crate::testing::group::{Cluster, memory};
use crate::units::{CoreId, RankId, Token};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The inputs of the rounds, each of a layer of its own.
struct Layers {
    /// The layer of each round.
    shapes: Vec<&'static Shape>,
    /// By round, then rank.
    tensors: Vec<Vec<Tensors>>,
}

impl Layers {
    fn new(alg: Protocol, layers: &[Domain], dice: &mut Dice) -> (Self, &'static Shape) {
        let shape = |domain: Domain| -> &'static Shape {
            Box::leak(Box::new(shape_of(&Config { comm_alg: alg, ..domain.config() })))
        };
        let largest = |of: fn(&Domain) -> i64| layers.iter().map(of).max().unwrap();
        // Memory and scratch suffice for each.
        let (h, bs, k) = (largest(|l| l.h), largest(|l| l.bs), largest(|l| l.k));
        let whole = shape(Domain { h, bs, k, ..layers[0] });
        let shapes: Vec<_> = layers.iter().map(|&layer| shape(layer)).collect();
        assert!(shapes.iter().all(|shape| shape.window_bytes() == whole.window_bytes()), "one window");
        let mut of_rank = |shape: &Shape, rank| Tensors::random(shape, rank, dice);
        let mut of =
            |shape: &&Shape| (0..whole.ep_world_size()).map(|rank| of_rank(shape, RankId(rank))).collect();
        let tensors = shapes.iter().map(&mut of).collect();
        (Self { shapes, tensors }, whole)
    }

    /// Returns the result of rank, token and k in a round.
    fn result(&self, round: usize, rank: u32, token: u32, k: u32) -> Vec<u8> {
        result_row(self.shapes[round], rank + 11 * round as u32, token, k)
    }
}

impl World<Dense, Seeded> for Layers {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        self.tensors[round][member.index()].inputs()
    }

    /// Compares a rank's outputs with the reference, and runs its experts.
    fn ended(&mut self, cluster: &mut Cluster<'_>, i: usize, planned: Planned) -> Result<(), Failure> {
        let Planned { operator, round, .. } = planned;
        let inputs: Vec<_> = self.tensors[round].iter().map(Tensors::inputs).collect();
        let oracle = reference::Cluster {
            shape: self.shapes[round],
            ranks: &inputs,
            elastic_info: None,
            expert_map: None,
        };
        let me = RankId(i as u32);
        let holds = |tensor: Tensor, want: &[u8]| match cluster.output(i, 0, tensor).starts_with(want) {
            true => Ok(()),
            false => Err(Failure::Wrong(format!("{} of rank {i} in {operator:?} {round}", tensor.name()))),
        };
        if operator == Operator::Combine {
            let returned =
                &mut |Token(token), k, row: &mut Vec<u8>| *row = self.result(round, me.0, token, k);
            return holds(Tensor::XOut, &oracle.combine(me, returned));
        }
        let want = oracle.dispatch(me);
        let bytes = |numbers: &[i32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
        let triples = &want.assist_info_for_combine;
        holds(Tensor::EpRecvCounts, &bytes(&want.ep_recv_counts))?;
        holds(Tensor::AssistInfo, &bytes(triples.as_flattened()))?;
        holds(Tensor::ExpandX, &want.expand_x)?;
        let y = triples.iter().flat_map(|&[r, t, k]| self.result(round, r as u32, t as u32, k as u32));
        let (y, assist_info) = (y.collect(), bytes(triples.as_flattened()));
        let ep_recv_counts = bytes(&want.ep_recv_counts);
        cluster.members[i].returned[round] =
            Returned { y, assist_info, ep_recv_counts, ..Returned::default() };
        Ok(())
    }
}

/// Runs `operators` on ranks of one core each, in bursts, so that some ranks run far ahead.
fn run(
    mut layers: Layers,
    whole: &'static Shape,
    operators: &[Planned],
    dice: &mut Dice,
) -> Result<(), Failure> {
    let mut cluster = Cluster::new(whole, Choices::default(), memory(whole), operators.to_vec());
    cluster.memory.rewrites = true;
    cluster.begin(&mut layers)?;
    let mut idle = 0;
    while cluster.members.iter().any(|member| member.ended < operators.len()) {
        let rank = dice.below(whole.ep_world_size()) as usize;
        for _ in 0..dice.below(60) {
            let Some(planned) = operators.get(cluster.members[rank].ended) else { break };
            cluster.shape = layers.shapes[planned.round];
            cluster.members[rank].cores[0].env = Some(cluster.env(rank, CoreId(0)));
            let actor = Actor { member: RankId(rank as u32), core: CoreId(0) };
            let progress = cluster.step(actor, &mut layers)?;
            idle = if progress == Some(Progress::Stepped) { 0 } else { idle + 1 };
            if idle > 2000 {
                return Err(Failure::Hang(Vec::new()));
            }
        }
    }
    Ok(())
}

/// Returns the errors of 50 runs of `schedule` over `layers` in turn.
fn wrong_runs(alg: Protocol, layers: &[Domain], schedule: &str, rounds: usize) -> Vec<String> {
    let in_flight = schedule.len() / 2;
    let operators = schedule_of(schedule, rounds);
    let of_batches: Vec<_> = layers.iter().copied().cycle().take(rounds * in_flight).collect();
    let wrong = (0..50).filter_map(|seed| {
        let dice = &mut Dice(seed);
        let (layers, whole) = Layers::new(alg, &of_batches, dice);
        run(layers, whole, &operators, dice).err().map(|failure| match failure {
            Failure::Wrong(what) => what,
            other => format!("{other:?}"),
        })
    });
    wrong.collect()
}

const V1: Protocol = Protocol::FullmeshV1;
const V2: Protocol = Protocol::FullmeshV2;

/// 1536 and 512 bytes for a result.
const WIDE: Domain = Domain { h: 600, bs: 1, ..PAIR };
const NARROW: Domain = Domain { h: 4, bs: 1, ..PAIR };

#[test]
fn rounds_in_strict_order_may_be_of_any_layers() {
    for layers in [&[WIDE, NARROW][..], &[WIDE, WIDE, NARROW, NARROW], &[NARROW, WIDE, WIDE, NARROW, WIDE]] {
        assert_eq!(wrong_runs(V1, layers, "DC", 10), [""; 0]);
    }
    let three = |layer: Domain| Domain { r: 3, e: 6, k: 2, ..layer };
    assert_eq!(wrong_runs(V1, &[three(WIDE), three(Domain { bs: 3, ..NARROW })], "DC", 6), [""; 0]);
}

#[test]
fn two_batches_in_flight_may_be_of_layers_with_combine_areas_of_one_size() {
    assert_eq!(wrong_runs(V1, &[WIDE], "DDCC", 4), [""; 0]);
    let (many_tokens, many_experts) = (Domain { bs: 2, ..WIDE }, Domain { k: 2, ..WIDE });
    let areas = [many_tokens, many_experts].map(|layer| layer.shape().combine_area());
    assert_eq!(areas[0], areas[1]);
    assert_eq!(wrong_runs(V1, &[many_tokens, many_tokens, many_experts, many_experts], "DDCC", 4), [""; 0]);
}

#[test]
fn catches_two_batches_in_flight_of_layers_with_other_combine_areas() {
    // The dispatch of the narrow layer overwrites results of the wide one that are still needed.
    let wrong = wrong_runs(V1, &[WIDE, WIDE, NARROW, NARROW], "DDCC", 4);
    assert!(wrong.iter().any(|what| what.starts_with("x_out of rank")), "{wrong:?}");
}

#[test]
fn flags_in_blocks_may_be_of_layers_with_combine_areas_of_one_size() {
    let (many_tokens, many_experts) = (Domain { bs: 2, ..WIDE }, Domain { k: 2, ..WIDE });
    for layers in [&[WIDE][..], &[many_tokens, many_experts]] {
        assert_eq!(wrong_runs(V2, layers, "DC", 10), [""; 0]);
    }
    assert_eq!(wrong_runs(V2, &[many_tokens, many_tokens, many_experts, many_experts], "DDCC", 4), [""; 0]);
}

#[test]
fn catches_flags_in_blocks_of_layers_with_other_combine_areas() {
    // Strict order does not help: results remain where the other layer reads flags.
    let wrong = wrong_runs(V2, &[WIDE, WIDE, NARROW, NARROW], "DC", 10);
    assert!(!wrong.is_empty());
}
