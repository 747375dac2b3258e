//! The baseline program that has only an MPI, run in the same job as the state machines. One process is one rank of it, with
//! the tokens and the experts of all ranks that the process drives.

use crate::blocks::System;
use crate::measure::Samples;
use crate::mpi::Point;
use core::time::Duration;
use std::rc::Rc;
use std::thread;
use std::time::Instant;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::result;
use veriep_case::store;
use veriep_case::tolerance::Tolerance;
use veriep_core::place::Tensor;
use veriep_core::placement::Home;
use veriep_core::shape::Protocol;
use veriep_core::units::{RankId, div_rem};
use veriep_core::vector::{Any, Term, Value, Vector, cells};
use veriep_group::compare;
use veriep_group::expert;
use veriep_mpi::start::of_mpi;
use veriep_mpi::wire::{ByProcess, Exchange, MpiWire};

pub(crate) struct Exchanged<'c> {
    case: &'c Case,
    vector: Any,
    point: Rc<Point>,
    by: Exchange,
    /// The expert of each pair of this process: the number of its counter, which is the process times `each` and its expert.
    of_pair: Vec<usize>,
    /// The most experts that a process has.
    each: usize,
    /// By process and expert: rows that come.
    from: Vec<i32>,
    /// The row of each pair in `out`.
    places: Vec<usize>,
    out: ByProcess,
    come: ByProcess,
    expand_x: Vec<u8>,
    y: Vec<u8>,
    x_out: Vec<u8>,
}

impl<'c> Exchanged<'c> {
    pub(crate) fn new(
        case: &'c Case,
        (point, by): (Rc<Point>, Exchange),
        vector: Any,
    ) -> Result<Self, Error> {
        let (shape, world) = (&case.shape, point.cluster.world.clone());
        let local = shape.moe_expert_num() / shape.ep_world_size();
        let first = |process| world.ranks_of(process).next().unwrap_or(RankId(0)).0 * local;
        let most = (0..world.processes()).map(|process| world.ranks_of(process).count()).max().unwrap_or(0);
        let each = most * local as usize;
        let mut of_pair = Vec::new();
        for rank in world.ranks() {
            for &expert in case.inputs(rank).expert_ids {
                let expert = u32::try_from(expert).ok().filter(|&expert| expert < shape.moe_expert_num());
                let expert = expert.ok_or_else(|| of_mpi("every token must have K experts"))?;
                let process = world.process_of(RankId(div_rem(expert, local).0));
                of_pair.push(process * each + (expert - first(process)) as usize);
            }
        }
        let row = shape.row_bytes() as usize;
        let (pairs, tokens) = (of_pair.len(), of_pair.len() / shape.k() as usize);
        let out = ByProcess { bytes: vec![0; pairs * row], ..ByProcess::default() };
        let (come, from, places) = (ByProcess::default(), Vec::new(), vec![0; pairs]);
        let (expand_x, y, x_out) = (Vec::new(), Vec::new(), vec![0; tokens * row]);
        Ok(Self { case, vector, point, by, of_pair, each, from, places, out, come, expand_x, y, x_out })
    }

    fn row(&self) -> usize {
        self.case.shape.row_bytes() as usize
    }

    /// Counts and permutes: what goes to whom.
    fn pack(&mut self, wire: &MpiWire) -> Result<(), String> {
        let (row, each) = (self.row(), self.each);
        let mut to = vec![0; each * wire.processes()];
        self.of_pair.iter().for_each(|&at| to[at] += 1);
        self.from = wire.all_to_all(&to)?;
        let by_process = |counts: &[i32]| counts.chunks(each).map(|counts| counts.iter().sum()).collect();
        let mut next: Vec<_> = ends(&to);
        let ByProcess { counts, offsets, .. } = ByProcess::new(by_process(&to), 0);
        (self.out.counts, self.out.offsets) = (counts, offsets);
        let ByProcess { counts, offsets, .. } = ByProcess::new(by_process(&self.from), 0);
        (self.come.counts, self.come.offsets) = (counts, offsets);
        let rows = self.from.iter().sum::<i32>() as usize;
        for bytes in [&mut self.come.bytes, &mut self.expand_x, &mut self.y] {
            bytes.resize(bytes.len().max(rows * row), 0);
        }
        let k = self.case.shape.k() as usize;
        let world = &self.point.cluster.world;
        let tokens = world.ranks().flat_map(|rank| self.case.inputs(rank).x.chunks_exact(row));
        for (token, pairs) in tokens.zip(self.of_pair.chunks_exact(k).zip(self.places.chunks_exact_mut(k))) {
            for (&at, place) in pairs.0.iter().zip(pairs.1) {
                *place = next[at];
                next[at] += 1;
                self.out.bytes[*place * row..][..row].copy_from_slice(token);
            }
        }
        Ok(())
    }

    /// Stretches of rows of one process and one expert: where they are in `come`, where by expert, and how many.
    fn stretches(&self) -> Vec<(usize, usize, usize)> {
        let (each, processes) = (self.each, self.from.len() / self.each);
        let (begins, mut next) = (ends(&self.from), 0);
        let all = (0..each).flat_map(|expert| (0..processes).map(move |process| process * each + expert));
        let stretch = |nth: usize| {
            let (to, rows) = (next, self.from[nth] as usize);
            next += rows;
            (begins[nth], to, rows)
        };
        all.map(stretch).collect()
    }

    fn dispatch(&mut self, wire: &MpiWire) -> Result<(), String> {
        let row = self.row();
        if self.by == Exchange::Messages {
            return wire.exchange((&mut self.out, &mut self.come), row, self.by);
        }
        self.pack(wire)?;
        wire.exchange((&mut self.out, &mut self.come), row, self.by)?;
        for (at, to, rows) in self.stretches() {
            self.expand_x[to * row..][..rows * row]
                .copy_from_slice(&self.come.bytes[at * row..][..rows * row]);
        }
        Ok(())
    }

    fn combine(&mut self, wire: &MpiWire) -> Result<(), String> {
        let row = self.row();
        if self.by == Exchange::Messages {
            return wire.exchange((&mut self.come, &mut self.out), row, self.by);
        }
        for (to, at, rows) in self.stretches() {
            self.come.bytes[to * row..][..rows * row].copy_from_slice(&self.y[at * row..][..rows * row]);
        }
        // What comes back is where it was sent from.
        wire.exchange((&mut self.come, &mut self.out), row, self.by)?;
        let (k, dtype) = (self.case.shape.k() as usize, self.case.shape.dtype());
        let world = &self.point.cluster.world;
        let weights = world.ranks().flat_map(|rank| self.case.inputs(rank).expert_scales.chunks_exact(k));
        let tokens = self.places.chunks_exact(k).zip(weights);
        let mut terms = Vec::with_capacity(k);
        for (x_out, (places, weights)) in self.x_out.chunks_exact_mut(row).zip(tokens) {
            terms.clear();
            let term = |(&place, &weight): (&usize, &f32)| Term {
                weight,
                value: Value::Row(&self.out.bytes[place * row..][..row]),
            };
            terms.extend(places.iter().zip(weights).map(term));
            self.vector.weighted_sum(dtype, &terms, true, cells(x_out));
        }
        Ok(())
    }

    /// The stand-in experts on what has come.
    fn experts(&mut self) {
        let (shape, row) = (&self.case.shape, self.row());
        let (world, batch) = (&self.point.cluster.world, Batch::new(self.case));
        let local = (shape.moe_expert_num() / shape.ep_world_size()) as usize;
        let here: Vec<_> = world.ranks().collect();
        let mut y = Vec::with_capacity(self.y.len());
        for (expert, counts) in (0..self.each).map(|e| (e, self.from.iter().skip(e).step_by(self.each))) {
            let Some(&rank) = here.get(expert / local) else { continue };
            let gain = batch.gain(shape.expert_row(Home { rank, local_expert: (expert % local) as u32 }));
            let rows = counts.sum::<i32>() as usize;
            let from = y.len();
            for at in (0..rows).map(|nth| from + nth * row) {
                expert::apply(shape, &self.expand_x[at..][..row], 0.0, gain, &mut y);
            }
        }
        y.resize(self.y.len(), 0);
        self.y = y;
    }

    /// A round whose outputs are the reference's.
    fn checked(&mut self, wire: &MpiWire) -> Result<Result<(), String>, String> {
        let (row, me) = (self.row(), wire.process());
        if self.by == Exchange::Messages {
            self.pack(wire)?;
            let sent = self.out.bytes.clone();
            self.dispatch(wire)?;
            self.out.bytes.fill(0xAA);
            self.combine(wire)?;
            let stays = self.out.offsets[me] as usize * row
                ..(self.out.offsets[me] + self.out.counts[me]) as usize * row;
            self.out.bytes[stays.clone()].copy_from_slice(&sent[stays]);
            return Ok((self.out.bytes == sent)
                .then_some(())
                .ok_or_else(|| "what came back is not what was sent".to_owned()));
        }
        self.x_out.fill(0xAA);
        self.dispatch(wire)?;
        self.experts();
        self.combine(wire)?;
        let batch = Batch::new(self.case);
        let mut seen = self.x_out.as_slice();
        let verdict = batch.with_cluster(|cluster| {
            self.point.cluster.world.ranks().try_for_each(|rank| {
                let must =
                    core::mem::take(&mut compare::expected(cluster, &batch, rank)[Tensor::XOut as usize]);
                let (mine, rest) = seen.split_at(must.len().min(seen.len()));
                seen = rest;
                self.is_right(must, mine).then_some(()).ok_or_else(|| format!("rank{rank}.x_out differs"))
            })
        });
        Ok(verdict)
    }

    /// Whether results are the reference's. That reference of a hierarchy sums each server's results first, which rounds in another way.
    fn is_right(&self, must: Vec<u8>, seen: &[u8]) -> bool {
        let tolerance = match self.case.shape.protocol() {
            Protocol::Hierarchy => Tolerance { ulp: 1, atol: 1e-4, ..Tolerance::default() },
            _ => Tolerance::default(),
        };
        let (name, dtype) = (Tensor::XOut.name().to_owned(), result::element(&self.case.shape));
        let must = store::Tensor { name, dtype, shape: vec![must.len() / 2], data: must.into() };
        must.data.len() == seen.len() && tolerance.judge(&must, seen).wrong == 0
    }

    /// Begins with the others; no other thread uses the MPI meanwhile.
    fn with_wire<T>(
        &mut self,
        work: impl FnOnce(&mut Self, &MpiWire) -> Result<T, String>,
    ) -> Result<T, Error> {
        let point = self.point.clone();
        point.cluster.far.with_wire(|introduced| work(self, introduced.wire())).map_err(|why| of_mpi(&why))
    }
}

/// Where each stretch of so many rows begins, and all of them end.
fn ends(counts: &[i32]) -> Vec<usize> {
    counts.iter().scan(0, |next, &count| Some(core::mem::replace(next, *next + count as usize))).collect()
}

/// Comes to a meeting of all processes.
fn meet(wire: &MpiWire) -> Result<Instant, String> {
    let mut agreement = wire.agree(vec![0])?;
    while wire.agreed(&mut agreement)?.is_none() {
        thread::yield_now();
    }
    Ok(Instant::now())
}

impl System for Exchanged<'_> {
    fn check(&mut self, name: &str) -> Result<(), Error> {
        let at = format!("{name} timing: ");
        self.with_wire(Self::checked)?.map_err(|line| Error::Wrong(at + &line))
    }

    fn single(&mut self, warm_up: u32, iterations: u32) -> Result<Samples, Error> {
        self.with_wire(|system, wire| {
            let mut samples = Samples::default();
            for nth in 0..warm_up + iterations {
                let begun = meet(wire)?;
                system.dispatch(wire)?;
                let dispatch = begun.elapsed();
                let begun = meet(wire)?;
                system.combine(wire)?;
                if nth >= warm_up {
                    samples.dispatch.push(dispatch);
                    samples.combine.push(begun.elapsed());
                }
            }
            Ok(samples)
        })
    }

    fn chain(&mut self, rounds: u32) -> Result<Duration, Error> {
        self.with_wire(|system, wire| {
            let begun = meet(wire)?;
            for _ in 0..rounds {
                system.dispatch(wire)?;
                system.combine(wire)?;
            }
            Ok(begun.elapsed() / rounds)
        })
    }

    /// Of this process.
    fn sent(&self) -> Option<[u64; 2]> {
        let here = self.point.cluster.world.process();
        let of = |rows: &ByProcess| {
            let to_others =
                rows.counts.iter().enumerate().filter(|&(process, &rows)| process != here && rows > 0);
            to_others.fold([0, 0], |[n, bytes], (_, &rows)| [n + 1, bytes + rows as u64 * self.row() as u64])
        };
        // The counts go ahead.
        let others = match self.by {
            Exchange::Alltoallv => self.out.counts.len() as u64 - 1,
            Exchange::Messages => 0,
        };
        let ([there, bytes], [back, more]) = (of(&self.out), of(&self.come));
        Some([there + back + others, bytes + more + others * 4 * self.each as u64])
    }
}
