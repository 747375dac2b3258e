//! A group of A2 whose cores and agents are loom threads. Every rank runs the same operators; what comes out is compared
//! with the reference.

use super::agent::AgentNic;
use super::bent::Bent;
use crate::defects::Defect;
use crate::loom::cells::RankView;
use crate::loom::domain::{Domain, Run};
use crate::loom::memory::{Member, Memory};
use crate::loom::places::Places;
use crate::loom::round::Traffic;
use core::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::layout::a2_window::{FLAG1, tail_flag, window_in};
use veriep_core::layout::state::Partition;
use veriep_core::place::Place;
use veriep_core::protocol::{Choices, Operator};
use veriep_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use veriep_core::units::RankId;

/// Where the agent of a rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agency {
    Thread,
    /// On that of core 0, whenever that waits.
    Folded,
    /// As `Folded`; its transfers are delivered by twos, the second first.
    Late,
}

#[derive(Clone, Copy, Debug)]
pub struct Size<'a> {
    /// Cores of each rank. A rank with several runs one operator, since there is no join here.
    pub cores: &'a [u32],
    /// E.
    pub experts: u32,
    pub bs: u32,
    /// Elements of a row, a multiple of 8.
    pub h: u32,
}

/// Ranks, their rounds and what they run.
#[derive(Debug)]
pub struct Group {
    domain: Domain,
    places: Vec<Places>,
    agencies: Vec<Agency>,
    defect: Defect,
}

impl Size<'_> {
    /// The domain as seen by a rank with `cores` cores. The product would refuse it.
    pub fn shape(&self, cores: u32) -> Shape {
        let config = Config {
            comm_alg: Protocol::Fullmesh,
            ep_world_size: self.cores.len() as i64,
            moe_expert_num: self.experts.into(),
            k: 1,
            h: self.h.into(),
            bs: BatchSizes::Uniform(self.bs.into()),
            hccl_buffsize_mb: 8,
            aiv_num: cores.into(),
            ..Config::default()
        };
        Shape::new(&config, Limits::None).expect("a valid tiny shape")
    }
}

impl Group {
    /// All ranks run the operators that the letters D and C mean, a C of the oldest round that has none; round `n` has
    /// `traffic[n]`, K = 1.
    pub fn new(size: Size<'_>, traffic: &[Traffic<'_>], schedule: &str) -> Self {
        let shapes = size.cores.iter().map(|&cores| size.shape(cores));
        let domain = Domain::new(shapes, traffic, schedule, Choices::default());
        let places = domain.ranks().map(|(rank, shape)| Places::of_a2(shape, rank)).collect();
        let agencies = vec![Agency::Thread; size.cores.len()];
        Self { domain, places, agencies, defect: Defect::None }
    }

    /// The ranks' agents run there.
    #[must_use]
    pub fn agents(mut self, agencies: &[Agency]) -> Self {
        self.agencies = agencies.to_vec();
        self
    }

    /// Tokens of these rounds, and results for them, that are flags from end to end.
    #[must_use]
    pub fn flags(mut self, rounds: &[usize]) -> Self {
        for &round in rounds {
            self.domain.rounds[round].fill_with_flags(&self.domain.shapes[0]);
        }
        self
    }

    pub fn body(self) -> impl Fn() + Send + Sync + 'static {
        let Self { domain, places, agencies, defect } = self;
        let domain = Arc::new(domain);
        move || {
            let memory = Rc::new(Memory::with_windows(&places, &domain.shapes[0]));
            let view = |rank: RankId| {
                let shape = Arc::clone(&domain.shapes[rank.index()]);
                let member = Member::of(&shape, rank);
                RankView { memory: Rc::clone(&memory), shape, member, defect }
            };
            // What an agent has to post.
            let tasks = domain.schedules[0].len() * (domain.shapes.len() - 1);
            let nic = |(rank, _): (RankId, _)| {
                (tasks > 0).then(|| AgentNic::new(view(rank), agencies[rank.index()] == Agency::Late, tasks))
            };
            let nics = RefCell::new(domain.ranks().map(nic).collect::<Vec<_>>());
            let take = |rank: RankId| nics.borrow_mut()[rank.index()].take();
            domain.run(
                |rank| {
                    let own = agencies[rank.index()] == Agency::Thread;
                    let nic = if own { take(rank) } else { None };
                    nic.map(|nic| -> Run { Box::new(move || nic.serve()) })
                },
                |rank, core| {
                    let operators = 0..domain.schedules[rank.index()].len();
                    let awaited = operators.map(|n| awaited(&domain, rank, n)).collect();
                    Bent::new(view(rank), core, awaited, take(rank))
                },
            );
        }
    }

    /// The body with a defect.
    pub fn bent(self, defect: Defect) -> impl Fn() + Send + Sync + 'static {
        Self { defect, ..self }.body()
    }
}

/// The flags that a rank waits for in operator number `n`.
fn awaited(domain: &Domain, rank: RankId, n: usize) -> BTreeSet<Place> {
    let half = Partition::of(n as u64);
    let planned = domain.schedules[rank.index()][n];
    let (operator, round) = (planned.operator, &domain.rounds[planned.round]);
    let of_peer = |(peer, shape): (RankId, &Arc<Shape>)| {
        let at = |at| window_in(shape, half, peer, at);
        let (counts, rows) = match operator {
            Operator::Dispatch => (Some(at(FLAG1)), round.rows(shape, peer, rank)),
            Operator::Combine => (None, round.rows(shape, rank, peer)),
        };
        counts.into_iter().chain([at(tail_flag(shape, operator, rows))])
    };
    domain.ranks().flat_map(of_peer).collect()
}
