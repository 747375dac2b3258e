//! A group of A3 whose cores are loom threads: every rank runs its operators in order, and when all have ended, what
//! they put out is compared with the reference.

use super::bent::Bent;
use super::cells::{LoomCells, RankView};
use super::domain::Domain;
use super::memory::{Member, Memory};
use super::places::Places;
use super::round::Traffic;
use crate::defects::Defect;
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::protocol::{Choices, Flags, Receive};
use veriep_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use veriep_core::units::RankId;

/// How dispatch sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Plain(Flags),
    /// fullmesh_v2, a block for each record.
    Blocks,
    /// TP domains: ranks `2n` and `2n + 1` are EP rank `n`, one rank each of two EP domains. Flags are joint.
    Tp,
    /// Rows come in another way than by being copied; flags are joint.
    Receive(Receive),
}

#[derive(Clone, Copy, Debug)]
pub struct Size<'a> {
    /// Cores of each rank. The protocol between ranks does not depend on it, so they may differ; a rank with
    /// several cores runs one operator, unless they [join](Group::joined).
    pub cores: &'a [u32],
    /// E.
    pub experts: u32,
    pub bs: u32,
    pub k: u32,
}

/// Ranks, their rounds and what each rank runs.
#[derive(Debug)]
pub struct Group {
    domain: Domain,
    places: Vec<Places>,
}

impl Size<'_> {
    /// The domain as seen by a rank with `cores` cores. The product would refuse it.
    pub fn shape(&self, cores: u32, layout: Layout) -> Shape {
        let tp_ranks = if layout == Layout::Tp { 2 } else { 1 };
        let config = Config {
            ep_world_size: self.cores.len() as i64 / tp_ranks,
            tp_world_size: tp_ranks,
            moe_expert_num: self.experts.into(),
            k: self.k.into(),
            h: 2,
            comm_alg: if layout == Layout::Blocks { Protocol::FullmeshV2 } else { Protocol::FullmeshV1 },
            bs: BatchSizes::Uniform(self.bs.into()),
            hccl_buffsize_mb: 1,
            aiv_num: cores.into(),
            ..Config::default()
        };
        Shape::new(&config, Limits::None).expect("a valid tiny shape")
    }
}

impl Group {
    /// All ranks run the operators that the letters D and C mean, a C of the oldest round that has none; round `n` has
    /// `traffic[n]`.
    pub fn new(size: Size<'_>, traffic: &[Traffic<'_>], schedule: &str) -> Self {
        Self::with(Layout::Plain(Flags::Joint), size, traffic, schedule)
    }

    /// The same with another way to send.
    pub fn with(layout: Layout, size: Size<'_>, traffic: &[Traffic<'_>], schedule: &str) -> Self {
        let mut choices = Choices::default();
        match layout {
            Layout::Plain(flags) => choices.flags = flags,
            Layout::Receive(receive) => choices.receive = receive,
            Layout::Blocks | Layout::Tp => {}
        }
        let shapes = size.cores.iter().map(|&cores| size.shape(cores, layout));
        let domain = Domain::new(shapes, traffic, schedule, choices);
        let of = |(rank, shape): (_, &Arc<Shape>)| Places::of_a3(shape, Member::of(shape, rank).ep, choices);
        let places = domain.ranks().map(of).collect();
        Self { domain, places }
    }

    /// The same with steps as the host takes them, of several effects in a row. There are more executions, though not more
    /// orders: who takes what has come looks once more and finds nothing.
    #[must_use]
    pub fn in_runs(mut self) -> Self {
        self.domain.one_by_one = false;
        self
    }

    /// The cores of a rank join after each operator; so it can run several.
    #[must_use]
    pub const fn joined(mut self, join: Defect) -> Self {
        self.domain.join = Some(join);
        self
    }

    /// `rank` runs nothing.
    #[must_use]
    pub fn but(mut self, rank: RankId) -> Self {
        self.domain.schedules[rank.index()].clear();
        self
    }

    pub fn body(self) -> impl Fn() + Send + Sync + 'static {
        self.bent(Defect::None)
    }

    /// The body with a defect.
    pub fn bent(self, defect: Defect) -> impl Fn() + Send + Sync + 'static {
        let Self { domain, places } = self;
        let domain = Arc::new(domain);
        move || {
            let (memory, shapes) = (Rc::new(Memory::new(&places)), &domain.shapes);
            domain.run(
                |_| None,
                |rank, core| {
                    let (shape, memory) = (Arc::clone(&shapes[rank.index()]), Rc::clone(&memory));
                    let member = Member::of(&shape, rank);
                    Bent::new(LoomCells::of_core(RankView { memory, shape, member, defect }, core))
                },
            );
        }
    }
}
