//! Expected outputs from the reference implementation, once per routing and tag.

use super::model::{Model, Product};
use super::setup::{Choice, Setup};
use std::collections::HashMap;
use std::rc::Rc;
use veriep_core::inputs::{Inputs, Mask};
use veriep_core::layout::data::dispatch_record;
use veriep_core::layout::direct;
use veriep_core::layout::state::Partition;
use veriep_core::place::{Place, Tensor};
use veriep_core::placement::Home;
use veriep_core::reference::numerics::{add_rows, from_bytes, to_bytes};
use veriep_core::reference::{Cluster, Dispatched};
use veriep_core::shape::Dtype;
use veriep_core::units::{RankId, Token, div_rem};

/// The tensors of one rank for one choice and tag.
#[derive(Clone, Debug)]
pub(super) struct RankTensors {
    x: Vec<u8>,
    expert_ids: Vec<i32>,
    weights: Vec<f32>,
    mask: Vec<bool>,
    /// Whether the mask has an entry for each pair; else one for each token.
    pair_masks: bool,
}

impl RankTensors {
    pub(super) fn new(setup: &Setup<'_>, rank: u32, tag: u32, choice: Choice) -> Self {
        let Model { ranks, k, pair_masks, .. } = *setup.model;
        let tokens = setup.model.tokens_of(rank);
        // Small whole numbers are exact in bf16; 0 is never sent.
        let value = |token| 1 + (tag * ranks + rank) * setup.model.tokens + token;
        // A2's flags are looked for at byte 32 of a row: there it holds one.
        let plain = if setup.model.product == Product::A2 { 16 } else { setup.shape.h() as usize };
        let row = |token| {
            // Quantised, minus one is it, in a row whose greatest element is 127.
            let (flag, first) = if setup.model.quantised { (MINUS_ONE, 127) } else { (FLAGS, value(token)) };
            let flags = flag.repeat(setup.shape.h() as usize - plain);
            let rest = bf16(value(token)).repeat(plain - 1);
            match setup.model.product {
                Product::A2 => [Vec::from(bf16(first)), rest, flags].concat(),
                Product::A3 | Product::Hierarchy => bf16(value(token)).repeat(plain),
            }
        };
        let (masked, first) = div_rem(choice.unwrap_or(0).cast_unsigned(), setup.shape.moe_expert_num());
        let id = |pair| {
            let (token, column) = div_rem(pair, k);
            div_rem(first + token + column, setup.shape.moe_expert_num()).1.cast_signed()
        };
        Self {
            x: (0..tokens).flat_map(row).collect(),
            expert_ids: (0..tokens * k).map(id).collect(),
            weights: vec![1.0; (tokens * k) as usize],
            mask: match choice {
                Some(_) if pair_masks => (0..tokens * k).map(|pair| masked >> pair & 1 == 1).collect(),
                _ => vec![choice.is_some(); if pair_masks { tokens * k } else { tokens } as usize],
            },
            pair_masks,
        }
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        let mask = if self.pair_masks { Mask::Pairs } else { Mask::Tokens };
        Inputs {
            x: &self.x,
            expert_ids: &self.expert_ids,
            expert_scales: &self.weights,
            mask: mask(&self.mask),
            ..Inputs::default()
        }
    }

    /// What rank `tp_rank` of a TP domain makes of a token that has come for column `k`: a shared expert's if it is behind all
    /// others.
    fn returned(&self, setup: &Setup<'_>, (token, k): (Token, u32), tp_rank: u32) -> Vec<u8> {
        let e = self.expert(setup, (token, k)) + tp_rank * setup.shape.moe_expert_num();
        let inputs = self.inputs();
        let own = inputs.row(setup.shape, token);
        own.as_chunks().0.iter().flat_map(|&element| expert(element, e)).collect()
    }

    /// The expert of a pair; shared ones have the numbers after all others.
    fn expert(&self, setup: &Setup<'_>, (token, k): (Token, u32)) -> u32 {
        let (moe, inputs) = (setup.shape.moe_expert_num(), self.inputs());
        let own = inputs.ids(setup.shape, token);
        own.get(k as usize).map_or(moe + k.saturating_sub(setup.model.k), |id| id.cast_unsigned())
    }
}

/// An element that is half of A2's flag; no number.
const FLAGS: [u8; 2] = [0xFF; 2];
/// -1 in bf16; as int8 a quarter of A2's flag.
const MINUS_ONE: [u8; 2] = [0x80, 0xBF];

/// A whole number below 256, which bf16 holds.
fn bf16(value: u32) -> [u8; 2] {
    to_bytes(Dtype::Bf16, value as f32)
}

/// What the stand-in expert `e` makes of a row: another whole number, all different.
fn expert(element: [u8; 2], e: u32) -> [u8; 2] {
    match element {
        FLAGS | MINUS_ONE => FLAGS,
        whole => bf16(from_bytes(Dtype::Bf16, whole) as u32 + 32 * (e + 1)),
    }
}

/// What one rank must have after both operators of a round.
#[derive(Debug)]
pub(super) struct Expected {
    outputs: [Vec<u8>; Tensor::ALL.len()],
    /// What the experts read.
    pub(super) expand_x: Vec<u8>,
    /// Where each row of that is in the window, if they read it there.
    pub(super) rows_at: Vec<Place>,
    /// Where each result goes, with direct placement.
    pub(super) results_at: Vec<Place>,
    pub(super) y: Vec<u8>,
}

impl Expected {
    pub(super) fn output(&self, tensor: Tensor) -> &[u8] {
        &self.outputs[tensor as usize]
    }
}

/// Expected outputs, by the choices of all ranks and the tag.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    known: HashMap<(Vec<Choice>, u32), Rc<Vec<Expected>>>,
}

impl Oracle {
    pub(super) fn expected(&mut self, setup: &Setup<'_>, choices: &[Choice], tag: u32) -> Rc<Vec<Expected>> {
        let entry = self.known.entry((choices.to_vec(), tag));
        Rc::clone(entry.or_insert_with(|| Rc::new(ask(setup, choices, tag))))
    }

    /// Traffic matrices met.
    pub(super) fn matrices(&self) -> usize {
        self.known.keys().filter(|(_, tag)| *tag == 0).count()
    }
}

fn ask(setup: &Setup<'_>, choices: &[Choice], tag: u32) -> Vec<Expected> {
    let tensors: Vec<_> =
        (0..).zip(choices).map(|(rank, &choice)| RankTensors::new(setup, rank, tag, choice)).collect();
    let ranks: Vec<_> = tensors.iter().map(RankTensors::inputs).collect();
    let cluster = Cluster { shape: setup.shape, ranks: &ranks, elastic_info: None, expert_map: None };
    let dispatched: Vec<_> = (0..setup.model.ranks).map(|rank| cluster.dispatch(RankId(rank))).collect();
    let tp_ranks = setup.model.tp_ranks();
    (0..setup.model.ranks)
        .map(|rank| {
            let out = &dispatched[rank as usize];
            let (rows_at, results_at) = places(setup, &tensors, RankId(rank), out, tag);
            let (table, sent_rows) = if setup.model.choices.receive.is_direct() {
                let sent_rows = sent_rows(&tensors[rank as usize], rank, setup, &dispatched);
                (ends(setup, RankId(rank), tag).to_vec(), sent_rows)
            } else {
                (rows_at.clone(), Vec::new())
            };
            // Of its own rows, then of those of the TP peer.
            let (first, own) = (rank / tp_ranks * tp_ranks, rank % tp_ranks);
            let received = |of: u32| cluster.received(RankId(first + (own + of) % tp_ranks));
            let y = (0..tp_ranks).flat_map(received);
            let y = y.flat_map(|(source, token, k)| tensors[source.index()].returned(setup, (token, k), own));
            let y = y.collect();
            let x_out = cluster.combine(RankId(rank), &mut |token, k, row| {
                let of = |tp_rank| tensors[rank as usize].returned(setup, (token, k), tp_rank);
                *row = (1..tp_ranks).map(of).fold(of(0), |sum, other| add_rows(Dtype::Bf16, &sum, &other));
            });
            let outputs = Tensor::ALL.map(|tensor| match tensor {
                Tensor::ExpandX if setup.model.choices.receive.keeps_rows() => Vec::new(),
                Tensor::XOut => x_out.clone(),
                Tensor::RowTable => table.iter().flat_map(|at| at.offset.to_le_bytes()).collect(),
                Tensor::SentRows => sent_rows.iter().copied().flat_map(i32::to_le_bytes).collect(),
                dispatch => out.bytes(dispatch),
            });
            Expected { outputs, expand_x: out.expand_x.clone(), rows_at, results_at, y }
        })
        .collect()
}

/// The partition of the dispatch of a batch: tags are even in number.
fn partition(tag: u32) -> Partition {
    if tag.is_multiple_of(2) { Partition::P0 } else { Partition::P1 }
}

/// Where rows begin and where results go with direct placement.
fn ends(setup: &Setup<'_>, rank: RankId, tag: u32) -> [Place; 2] {
    let parts = direct::Parts::of(setup.shape, rank, setup.model.choices.receive.area(partition(tag)));
    [parts.row(0), parts.result(0)]
}

/// Where experts find each row of `rank` and leave its result, if not in outputs.
fn places(
    setup: &Setup<'_>,
    tensors: &[RankTensors],
    rank: RankId,
    out: &Dispatched,
    tag: u32,
) -> (Vec<Place>, Vec<Place>) {
    let (rows, receive) = (out.assist_info_for_combine.len(), setup.model.choices.receive);
    if !receive.keeps_rows() {
        return (Vec::new(), Vec::new());
    }
    if receive.is_direct() {
        let [first, result] = ends(setup, rank, tag);
        let behind = |first: Place, pitch: u64| {
            (0..rows as u64).map(move |i| Place { offset: first.offset + i * pitch, ..first }).collect()
        };
        return (behind(first, setup.shape.payload_bytes()), behind(result, setup.shape.row_bytes()));
    }
    let mut before = HashMap::new();
    let record = |&[source, token, k]: &[i32; 3]| {
        let pair = (Token(token.cast_unsigned()), k.cast_unsigned());
        let e = tensors[source as usize].expert(setup, pair);
        let home = Home { rank, local_expert: e % setup.model.experts };
        let slot = before.entry((source, e)).or_insert(0);
        *slot += 1;
        let source = RankId(source.cast_unsigned());
        dispatch_record(setup.shape, partition(tag), home, source, *slot - 1)
    };
    (out.assist_info_for_combine.iter().map(record).collect(), Vec::new())
}

/// For each pair of a rank, those of shared experts included, the row that carries its triple at its expert's rank, or -1.
fn sent_rows(own: &RankTensors, rank: u32, setup: &Setup<'_>, dispatched: &[Dispatched]) -> Vec<i32> {
    let (tokens, k) = (setup.model.tokens_of(rank), setup.model.k);
    let pairs = (0..tokens).flat_map(|token| (0..k).map(move |k| (token, k)));
    let shared = setup.shape.shared_expert_num();
    let shared = (0..tokens).flat_map(|token| (k..k + shared).map(move |k| (token, k)));
    let row = |(token, k): (u32, u32)| {
        let home = &dispatched[setup.rank_of(own.expert(setup, (Token(token), k))).index()];
        let triple = [rank, token, k].map(u32::cast_signed);
        home.assist_info_for_combine.iter().position(|seen| *seen == triple).map_or(-1, |row| row as i32)
    };
    pairs.chain(shared).map(row).collect()
}
