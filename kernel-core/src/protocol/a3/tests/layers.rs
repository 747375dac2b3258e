//! Layers of different sizes on one window: what the argument of docs/PROTOCOL.md allows, and what not.
//!
//! A partition holds the combine area first and the dispatch area behind it. Where the one ends follows from
//! the layer, so the dispatch area of one layer may lie over the combine area of another.

use super::super::Combine;
use crate::fabric::Progress;
use crate::place::Tensor;
use crate::protocol::Receive;
use crate::reference::Cluster;
use crate::shape::{Config, Shape};
use crate::testing::domain::{Dice, Domain, OwnedMask, PAIR, Tensors, result_row, shape as shape_of};
use crate::testing::group::{Group, Machine, Rows};
use crate::units::{RankId, Token};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// One core per rank; every rank runs the operators on its own, none waits but as the protocol says.
struct Layers {
    group: Group,
    /// The layer of each batch.
    shapes: Vec<Shape>,
    /// By batch, then by rank.
    tensors: Vec<Vec<Tensors>>,
    /// By batch, then by rank: what the experts returned.
    returned: Vec<Vec<Rows>>,
}

impl Layers {
    fn new(alg: &'static str, layers: &[Domain], dice: &mut Dice) -> Self {
        let shape = |domain: Domain| shape_of(&Config { comm_alg: alg, ..domain.config() });
        let largest = |of: fn(&Domain) -> i64| layers.iter().map(of).max().unwrap();
        // Memory and scratch suffice for each.
        let (h, bs, k) = (largest(|l| l.h), largest(|l| l.bs), largest(|l| l.k));
        let whole = Domain { h, bs, k, ..layers[0] };
        let whole = shape(whole);
        let shapes: Vec<_> = layers.iter().map(|&layer| shape(layer)).collect();
        assert!(shapes.iter().all(|shape| shape.window_bytes() == whole.window_bytes()), "one window");
        let ranks = || (0..whole.ep_world_size()).map(RankId);
        let mut of_rank = |shape: &Shape, rank| {
            let random = Tensors::random(shape, rank, dice);
            let mask = if alg == V2 { OwnedMask::None } else { random.mask.clone() };
            Tensors { mask, ..random }
        };
        let mut of = |shape: &Shape| ranks().map(|rank| of_rank(shape, rank)).collect::<Vec<_>>();
        let tensors: Vec<_> = shapes.iter().map(&mut of).collect();
        let mut group = Group::new(&whole, of(&whole));
        group.world.forgive_second_writes();
        let returned = shapes.iter().map(|_| ranks().map(|_| Rows::default()).collect()).collect();
        Self { group, shapes, tensors, returned }
    }

    fn begin(&mut self, rank: usize, operator: char, batch: usize) {
        self.group.cores[rank].machine = match operator {
            'D' => Machine::dispatch(&self.shapes[batch], Receive::Copy),
            _ => Machine::Combine(Combine::new()),
        };
        self.group.tensors[rank] = self.tensors[batch][rank].clone();
        self.group.rows[rank] = self.returned[batch][rank].clone();
    }

    /// What rank, token and k returned in a batch.
    fn result(&self, batch: usize, rank: u32, token: u32, k: u32) -> Vec<u8> {
        result_row(&self.shapes[batch], rank + 11 * batch as u32, token, k)
    }

    /// Holds what a rank has got against the oracle, and runs its experts.
    fn end(&mut self, rank: usize, operator: char, batch: usize) -> Result<(), String> {
        let shape = &self.shapes[batch];
        let inputs: Vec<_> = self.tensors[batch].iter().map(Tensors::inputs).collect();
        let cluster = Cluster { shape, ranks: &inputs, elastic_info: None };
        let me = RankId(rank as u32);
        let output = |tensor| self.group.world.output(me, tensor);
        let holds = |tensor: Tensor, want: &[u8]| match output(tensor).starts_with(want) {
            true => Ok(()),
            false => Err(format!("{} of rank {rank} in {operator}{batch}", tensor.name())),
        };
        if operator == 'C' {
            let returned = &mut |Token(token), k, row: &mut Vec<u8>| {
                *row = self.result(batch, rank as u32, token, k);
            };
            return holds(Tensor::XOut, &cluster.combine(me, returned));
        }
        let want = cluster.dispatch(me);
        let bytes = |numbers: &[i32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
        let triples = &want.assist_info_for_combine;
        let (ep_recv_counts, assist_info) = (bytes(&want.ep_recv_counts), bytes(triples.as_flattened()));
        holds(Tensor::EpRecvCounts, &ep_recv_counts)?;
        holds(Tensor::AssistInfo, &assist_info)?;
        holds(Tensor::ExpandX, &want.expand_x)?;
        let y = triples.iter().flat_map(|&[r, t, k]| self.result(batch, r as u32, t as u32, k as u32));
        self.returned[batch][rank] = Rows { y: y.collect(), assist_info, ep_recv_counts, ..Rows::default() };
        Ok(())
    }

    /// Runs `operators` on every rank, in bursts, so that some run far ahead.
    fn run(mut self, operators: &[(char, usize)], dice: &mut Dice) -> Result<(), String> {
        let ranks = self.group.cores.len();
        let mut at: Vec<usize> = (0..ranks).map(|_| 0).collect();
        (0..ranks).for_each(|rank| self.begin(rank, operators[0].0, operators[0].1));
        let mut idle = 0;
        while at.iter().any(|&done| done < operators.len()) {
            let rank = dice.below(ranks as u32) as usize;
            for _ in 0..dice.below(60) {
                let Some(&(operator, batch)) = operators.get(at[rank]) else { break };
                self.group.shape = self.shapes[batch].clone();
                let progress =
                    self.group.step(rank).map_err(|e| format!("{e} in {operator}{batch}"))?.progress;
                idle = if progress == Progress::Stepped { 0 } else { idle + 1 };
                if idle > 2000 {
                    return Err(format!("hang in {operator}{batch}"));
                }
                if progress == Progress::Done {
                    self.end(rank, operator, batch)?;
                    at[rank] += 1;
                    if let Some(&(operator, batch)) = operators.get(at[rank]) {
                        self.begin(rank, operator, batch);
                    }
                }
            }
        }
        Ok(())
    }
}

/// What goes wrong in 50 runs of `schedule` over `layers` by turns.
fn wrong_runs(alg: &'static str, layers: &[Domain], schedule: &str, rounds: usize) -> Vec<String> {
    let in_flight = schedule.len() / 2;
    let operators: Vec<_> = (0..rounds)
        .flat_map(|round| {
            let mut next = [round * in_flight; 2];
            schedule.chars().map(move |operator| {
                let batch = &mut next[usize::from(operator == 'C')];
                *batch += 1;
                (operator, *batch - 1)
            })
        })
        .collect();
    let of_batches: Vec<_> = layers.iter().copied().cycle().take(rounds * in_flight).collect();
    let wrong = (0..50).filter_map(|seed| {
        let dice = &mut Dice(seed);
        Layers::new(alg, &of_batches, dice).run(&operators, dice).err()
    });
    wrong.collect()
}

const V1: &str = "fullmesh_v1";
const V2: &str = "fullmesh_v2";

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
    // The dispatch of the narrow layer writes where results of the wide one are still read.
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
    // Strict order does not help: results are left where the other layer looks for flags.
    let wrong = wrong_runs(V2, &[WIDE, WIDE, NARROW, NARROW], "DC", 10);
    assert!(!wrong.is_empty());
}
