//! What every output must hold, by the naive oracle, once per traffic and tag.

use super::model::{Choice, Model, Product, Setup};
use std::collections::HashMap;
use std::rc::Rc;
use veriep_core::inputs::{Inputs, Mask};
use veriep_core::layout::data::dispatch_record;
use veriep_core::layout::direct;
use veriep_core::layout::state::Partition;
use veriep_core::place::{Place, Tensor};
use veriep_core::placement::Home;
use veriep_core::reference::{Cluster, Dispatched};
use veriep_core::units::{RankId, div_rem};

/// The tensors of one rank for one choice and tag.
#[derive(Clone, Debug)]
pub(super) struct RankTensors {
    x: Vec<u8>,
    expert_ids: Vec<i32>,
    weights: Vec<f32>,
    mask: Vec<bool>,
}

impl RankTensors {
    pub(super) fn new(setup: &Setup<'_>, rank: u32, tag: u32, choice: Choice) -> Self {
        let Model { ranks, experts, tokens, k, .. } = *setup.model;
        // Small whole numbers are exact in bf16; 0 is never sent.
        let value = |token| 1 + (tag * ranks + rank) * tokens + token;
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
        let first = choice.unwrap_or(0).cast_unsigned();
        let id = |pair| {
            let (token, column) = div_rem(pair, k);
            div_rem(first + token + column, ranks * experts).1.cast_signed()
        };
        Self {
            x: (0..tokens).flat_map(row).collect(),
            expert_ids: (0..tokens * k).map(id).collect(),
            weights: vec![1.0; (tokens * k) as usize],
            mask: vec![choice.is_some(); tokens as usize],
        }
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            x: &self.x,
            expert_ids: &self.expert_ids,
            expert_scales: &self.weights,
            mask: Mask::Tokens(&self.mask),
            ..Inputs::default()
        }
    }

    /// What expert `e` returns for the rows that this rank sends it.
    fn results_of(&self, e: u32) -> impl Iterator<Item = u8> + '_ {
        let columns = self.expert_ids.len() / self.mask.len();
        let pairs = (0..self.expert_ids.len()).map(move |pair| (pair / columns, pair % columns));
        let sent = pairs.filter(move |&(token, k)| {
            self.mask[token] && self.expert_ids[token * columns + k].cast_unsigned() == e
        });
        sent.flat_map(|(token, k)| self.returned(token, k))
    }

    /// What comes back for a token from its `k`-th expert.
    fn returned(&self, token: usize, k: usize) -> Vec<u8> {
        let (columns, row) = (self.expert_ids.len() / self.mask.len(), self.x.len() / self.mask.len());
        let e = self.expert_ids[token * columns + k].cast_unsigned();
        self.x[token * row..][..row].chunks_exact(2).flat_map(|element| expert(element, e)).collect()
    }
}

/// An element that is half of A2's flag; no number.
const FLAGS: [u8; 2] = [0xFF; 2];
/// -1 in bf16; as int8 a quarter of A2's flag.
const MINUS_ONE: [u8; 2] = [0x80, 0xBF];

/// The upper half of an f32: exact for whole numbers below 256.
fn bf16(value: u32) -> [u8; 2] {
    ((value as f32).to_bits() >> 16).to_le_bytes()[..2].try_into().unwrap_or_default()
}

/// What the stand-in expert `e` makes of a row: another whole number, all different.
fn expert(row: &[u8], e: u32) -> [u8; 2] {
    if row == FLAGS || row == MINUS_ONE {
        return FLAGS;
    }
    let bits = row.try_into().map(u16::from_le_bytes).unwrap_or_default();
    bf16(f32::from_bits(u32::from(bits) << 16) as u32 + 32 * (e + 1))
}

/// What one rank must have after both operators of a round.
#[derive(Debug)]
pub(super) struct Expected {
    outputs: [Vec<u8>; Tensor::ALL.len()],
    /// What the experts read.
    pub(super) expand_x: Vec<u8>,
    /// Where each row of that lies in the window, if they read it there.
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
    (0..setup.model.ranks)
        .map(|rank| {
            let out = &dispatched[rank as usize];
            let (rows_at, results_at) = places(setup, &tensors, RankId(rank), out, tag);
            let (table, sent_rows) = if setup.model.receive.is_direct() {
                let sent_rows = sent_rows(&tensors[rank as usize], rank, setup, &dispatched);
                (ends(setup, RankId(rank), tag).to_vec(), sent_rows)
            } else {
                (rows_at.clone(), Vec::new())
            };
            let local = |e: &u32| e / setup.model.experts == rank;
            let y = (0..setup.model.ranks * setup.model.experts).filter(local);
            let y = y.flat_map(|e| tensors.iter().flat_map(move |source| source.results_of(e))).collect();
            let x_out = cluster.combine(RankId(rank), &mut |token, k, row| {
                row.clear();
                row.extend(tensors[rank as usize].returned(token.index(), k as usize));
            });
            let outputs = Tensor::ALL.map(|tensor| match tensor {
                Tensor::ExpandX if setup.model.receive.keeps_rows() => Vec::new(),
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
    let parts = direct::Parts::of(setup.shape, rank, setup.model.receive.area(partition(tag)));
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
    let (rows, receive) = (out.assist_info_for_combine.len(), setup.model.receive);
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
        let ids = &tensors[source as usize].expert_ids;
        let e = ids[token as usize * setup.model.k as usize + k as usize].cast_unsigned();
        let home = Home { rank, local_expert: e % setup.model.experts };
        let slot = before.entry((source, e)).or_insert(0);
        *slot += 1;
        let source = RankId(source.cast_unsigned());
        dispatch_record(setup.shape, partition(tag), home, source, *slot - 1)
    };
    (out.assist_info_for_combine.iter().map(record).collect(), Vec::new())
}

/// For each pair of a rank the row that carries its triple at its expert's rank, or -1.
fn sent_rows(own: &RankTensors, rank: u32, setup: &Setup<'_>, dispatched: &[Dispatched]) -> Vec<i32> {
    let row = |pair: usize| {
        let e = own.expert_ids[pair].cast_unsigned();
        let home = &dispatched[(e / setup.model.experts) as usize];
        let (token, k) = div_rem(pair as u32, setup.model.k);
        let triple = [rank, token, k].map(u32::cast_signed);
        home.assist_info_for_combine.iter().position(|seen| *seen == triple).map_or(-1, |row| row as i32)
    };
    (0..own.expert_ids.len()).map(row).collect()
}
