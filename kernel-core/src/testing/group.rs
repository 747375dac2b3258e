//! A group in lockstep: every core of every rank, one step at a time, with the duties of a machine checked at
//! each step.

use super::domain::{Tensors, result_row};
use super::fake::World;
use crate::fabric::{Progress, ProtocolError};
use crate::layout::row_table;
use crate::place::Tensor;
use crate::protocol::a3::{Combine, Dispatch, Env, RUN, ub_bytes, ub_words};
use crate::protocol::a3_v2;
use crate::protocol::direct;
use crate::protocol::{Choices, Operands, Receive, Ub};
use crate::reference::{Cluster, Dispatched};
use crate::shape::{CommAlg, Op, Shape};
use crate::units::{CoreId, RankId, Token};
use crate::vector::Portable;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// A machine of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    Dispatch(Dispatch),
    DispatchV2(a3_v2::Dispatch),
    Combine(Combine),
    Direct(direct::Dispatch),
    Pull(direct::Combine),
}

impl Machine {
    /// The dispatch of a shape's layout.
    pub(crate) fn dispatch(shape: &Shape, receive: Receive) -> Self {
        match (shape.comm_alg(), receive) {
            (_, Receive::Direct { .. }) => Self::Direct(direct::Dispatch::new()),
            (CommAlg::FullmeshV2, _) => Self::DispatchV2(a3_v2::Dispatch::new()),
            _ => Self::Dispatch(Dispatch::new()),
        }
    }

    /// The name of its phase.
    pub(crate) fn phase(&self) -> String {
        let text = format!("{self:?}");
        // The innermost: a part of an operator has phases of its own.
        let (_, phase) = text.rsplit_once("phase: ").unwrap();
        // While outputs are written, that is which one.
        let phase = phase.split_once("output: ").map_or(phase, |(_, output)| output);
        phase.chars().take_while(|c| c.is_alphanumeric()).collect()
    }
}

/// A core and its scratch.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) rank: RankId,
    pub(crate) core: CoreId,
    pub(crate) machine: Machine,
    pub(crate) words: Vec<u32>,
    pub(crate) row: Vec<u8>,
}

/// What the experts of a rank returned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    pub(crate) y: Vec<u8>,
    pub(crate) assist_info: Vec<u8>,
    pub(crate) ep_recv_counts: Vec<u8>,
    pub(crate) sent_rows: Vec<u8>,
    pub(crate) row_table: Vec<u8>,
}

/// What one step did.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) progress: Progress,
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) effect: Option<String>,
}

/// Round robin, so that a run is the same every time.
pub(crate) fn in_turn() -> impl FnMut(usize) -> usize {
    let mut turn = 0;
    move |n| {
        turn += 1;
        turn % n
    }
}

/// All cores of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) shape: Shape,
    pub(crate) choices: Choices,
    /// At most one effect in a step.
    pub(crate) one_by_one: bool,
    /// Most effects that a step has had.
    pub(crate) longest_run: usize,
    pub(crate) world: World,
    pub(crate) tensors: Vec<Tensors>,
    pub(crate) rows: Vec<Rows>,
    pub(crate) cores: Vec<Core>,
}

impl Group {
    pub(crate) fn new(shape: &Shape, tensors: Vec<Tensors>) -> Self {
        let ids = (0..shape.ep_world_size())
            .flat_map(|rank| (0..shape.aiv_num()).map(move |core| (RankId(rank), CoreId(core))));
        let core = |(rank, core)| Core {
            rank,
            core,
            machine: Machine::dispatch(shape, Receive::Copy),
            // The scratch holds whatever was there before.
            words: vec![0xDEAD_BEEF; ub_words(shape)],
            row: vec![0xAB; ub_bytes(shape)],
        };
        Self {
            shape: shape.clone(),
            choices: Choices::default(),
            one_by_one: true,
            longest_run: 0,
            world: World::new(shape),
            rows: vec![Rows::default(); tensors.len()],
            tensors,
            cores: ids.map(core).collect(),
        }
    }

    /// Steps core number `i` once.
    pub(crate) fn step(&mut self, i: usize) -> Result<Step, ProtocolError> {
        let Core { rank, core, machine, words, row } = &mut self.cores[i];
        let env = Env::new(&self.shape, *rank, *core, self.choices, Portable);
        let env = if self.one_by_one { env.one_by_one() } else { env };
        let inputs = self.tensors[rank.index()].inputs();
        let Rows { y, assist_info, ep_recv_counts, sent_rows, row_table } = &self.rows[rank.index()];
        let operands =
            Operands { y, assist_info, ep_recv_counts, sent_rows, row_table, ..Operands::default() };
        let mut ub = Ub { words, row };
        let (before, words_before) = (machine.clone(), ub.words.to_vec());
        let mut fabric = self.world.fabric(*rank, *core);
        let progress = match machine {
            Machine::Dispatch(machine) => machine.step(&env, &mut fabric, &inputs, &mut ub),
            Machine::DispatchV2(machine) => machine.step(&env, &mut fabric, &inputs, &mut ub),
            Machine::Combine(machine) => machine.step(&env, &mut fabric, &inputs, &operands, &mut ub),
            Machine::Direct(machine) => machine.step(&env, &mut fabric, &inputs, &mut ub),
            Machine::Pull(machine) => machine.step(&env, &mut fabric, &inputs, &operands, &mut ub),
        };
        let mut effects = self.world.take_effects();
        let most = if self.one_by_one { 1 } else { RUN as usize };
        let kind = |effect: &String| effect.split_whitespace().next().map(String::from);
        let one_kind = effects.windows(2).all(|two| kind(&two[0]) == kind(&two[1]));
        let rows_and_flags = |(i, effect)| kind(effect).as_deref() == Some(["put", "publish"][i % 2]);
        let is_run = one_kind || effects.iter().enumerate().all(rows_and_flags);
        assert!(effects.len() <= most && is_run, "{before:?} had other effects than a run: {effects:?}");
        self.longest_run = self.longest_run.max(effects.len());
        let progress = progress?;
        if progress != Progress::Stepped {
            assert_eq!(*machine, before, "{progress:?} must not change a machine");
            assert_eq!(*ub.words, words_before, "{progress:?} must not change the scratch");
            assert!(effects.is_empty(), "{progress:?} with an effect: {effects:?}");
        }
        Ok(Step { progress, before: before.phase(), after: machine.phase(), effect: effects.pop() })
    }

    /// Steps all cores until all are done; `pick` chooses the next among the `n` unfinished.
    pub(crate) fn run(
        &mut self,
        mut pick: impl FnMut(usize) -> usize,
        mut seen: impl FnMut(&Core, &Step),
    ) -> Result<(), ProtocolError> {
        let mut running: Vec<usize> = (0..self.cores.len()).collect();
        let mut idle = 0;
        while !running.is_empty() {
            let at = pick(running.len());
            let step = self.step(running[at])?;
            seen(&self.cores[running[at]], &step);
            idle = if step.progress == Progress::Stepped { 0 } else { idle + 1 };
            assert!(idle < 10_000, "hang: {:?}", self.cores);
            if step.progress == Progress::Done {
                running.remove(at);
            }
        }
        Ok(())
    }

    /// Fresh dispatch machines and outputs.
    pub(crate) fn begin_dispatch(&mut self) {
        self.world.reuse_outputs();
        self.cores
            .iter_mut()
            .for_each(|core| core.machine = Machine::dispatch(&self.shape, self.choices.receive));
    }

    /// Runs the experts, then fresh combine machines.
    pub(crate) fn begin_combine(&mut self) {
        for rank in (0..self.shape.ep_world_size()).map(RankId) {
            let counts = self.world.output(rank, Tensor::EpRecvCounts).to_vec();
            let n = i32::from_le_bytes(*counts.last_chunk().unwrap()) as usize;
            let triples = self.world.output(rank, Tensor::AssistInfo)[..n * 12].to_vec();
            let word = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap());
            let y = triples
                .chunks(12)
                .flat_map(|t| result_row(&self.shape, word(&t[..4]), word(&t[4..8]), word(&t[8..])));
            let y: Vec<u8> = y.collect();
            let [sent_rows, row_table] =
                [Tensor::SentRows, Tensor::RowTable].map(|tensor| self.world.output(rank, tensor).to_vec());
            if matches!(self.choices.receive, Receive::Direct { .. }) {
                let results = row_table::records(&row_table, 2).nth(1).unwrap();
                self.world.poke(rank, results, &y);
            }
            self.rows[rank.index()] =
                Rows { y, assist_info: triples.clone(), ep_recv_counts: counts, sent_rows, row_table };
        }
        let machine = match self.choices.receive {
            Receive::Direct { .. } => Machine::Pull(direct::Combine::new()),
            _ => Machine::Combine(Combine::new()),
        };
        self.cores.iter_mut().for_each(|core| core.machine = machine.clone());
    }

    /// Compares the outputs of dispatch on every rank with the oracle's.
    pub(crate) fn check_dispatch(&self) {
        let inputs: Vec<_> = self.tensors.iter().map(Tensors::inputs).collect();
        let cluster = Cluster { shape: &self.shape, ranks: &inputs, elastic_info: None };
        for rank in (0..self.shape.ep_world_size()).map(RankId) {
            let want: Dispatched = cluster.dispatch(rank);
            let bytes = |tensor, words: Vec<u8>| {
                let seen = &self.world.output(rank, tensor)[..words.len()];
                assert_eq!(seen, words, "{} of rank {rank} in {:?}", tensor.name(), self.tensors);
            };
            let i32s = |values: &[i32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
            bytes(Tensor::EpRecvCounts, i32s(&want.ep_recv_counts));
            bytes(
                Tensor::ExpertTokenNums,
                want.expert_token_nums.iter().flat_map(|v| v.to_le_bytes()).collect(),
            );
            bytes(Tensor::AssistInfo, i32s(want.assist_info_for_combine.as_flattened()));
            bytes(Tensor::ExpandIdx, i32s(&want.expand_idx));
            bytes(Tensor::DynamicScales, want.dynamic_scales.iter().flat_map(|v| v.to_le_bytes()).collect());
            match self.choices.receive {
                Receive::Copy => bytes(Tensor::ExpandX, want.expand_x),
                Receive::Direct { .. } => {
                    let first = row_table::records(self.world.output(rank, Tensor::RowTable), 2).next();
                    let seen = self.world.check(rank, first.unwrap(), want.expand_x.len() as u64).unwrap();
                    assert_eq!(seen, want.expand_x, "rows on rank {rank} in {:?}", self.tensors);
                }
                Receive::InPlace => {
                    let rows = want.assist_info_for_combine.len();
                    let len = self.shape.payload_bytes();
                    let table = row_table::records(self.world.output(rank, Tensor::RowTable), rows);
                    let seen: Vec<_> = table
                        .flat_map(|record| self.world.check(rank, record, len).unwrap().to_vec())
                        .collect();
                    assert_eq!(seen, want.expand_x, "rows in place on rank {rank} in {:?}", self.tensors);
                }
            }
        }
    }

    /// Compares what combine put out on every rank with the oracle's.
    pub(crate) fn check_combine(&self) {
        let inputs: Vec<_> = self.tensors.iter().map(Tensors::inputs).collect();
        let cluster = Cluster { shape: &self.shape, ranks: &inputs, elastic_info: None };
        for rank in (0..self.shape.ep_world_size()).map(RankId) {
            let equal = |tensor: Tensor, want: Vec<u8>| {
                let seen = self.world.output(rank, tensor);
                assert_eq!(seen, want, "{} of rank {rank}: {:?}", tensor.name(), self.tensors);
            };
            let returned = &mut |token: Token, k, row: &mut Vec<u8>| {
                *row = result_row(&self.shape, rank.0, token.0, k);
            };
            if self.shape.op() == Op::Combine {
                equal(Tensor::XOut, cluster.combine(rank, returned));
                continue;
            }
            let want = cluster.combine_add_rms_norm(rank, returned);
            equal(Tensor::XOut, want.x_out.clone());
            equal(Tensor::X, want.x.clone());
            let rstd = self.world.output(rank, Tensor::Rstd).as_chunks().0;
            let rstd: Vec<_> = rstd.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            assert_eq!(rstd.len(), want.rstd.len());
            for (seen, range) in rstd.iter().zip(&want.rstd) {
                assert!(range.holds(*seen), "rstd {seen} of rank {rank}, {range:?}: {:?}", self.tensors);
            }
            equal(Tensor::Y, cluster.y(rank, &want, &rstd));
        }
    }
}
