//! The orderings of the agent's seam one by one, without machines: a few lines for each core and agent.

use super::agent::AgentNic;
use super::bent::Bent;
use crate::defects::Defect;
use crate::loom::cells::RankView;
use crate::loom::domain::together;
use crate::loom::litmus::did;
use crate::loom::memory::{Member, Memory};
use crate::loom::places::Places;
use ::loom::thread;
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::fabric::Fabric;
use veriep_core::fabric::nic::{Nic, Transfer};
use veriep_core::layout::a2_message::{doorbell, task_word};
use veriep_core::layout::a2_window::{FLAG1, record, tail_flag, window_in, window_out};
use veriep_core::layout::state::{Operator, Partition};
use veriep_core::place::Place;
use veriep_core::shape::Shape;
use veriep_core::units::{CoreId, RankId};

const P0: Partition = Partition::P0;

/// Core 0 of a rank and its agent, on one thread.
#[derive(Debug)]
pub struct Rank {
    core: Bent,
    agent: AgentNic,
    shape: Arc<Shape>,
    rank: RankId,
}

pub type Script = fn(&mut Rank);

/// Scripts with the rank that runs each: as its core, its agent, or both.
pub type Scripts = &'static [(u32, Script)];

/// The body of a litmus test.
pub fn litmus(shape: Shape, defect: Defect, scripts: Scripts) -> impl Fn() + Send + Sync + 'static {
    let places: Vec<_> = (0..shape.ep_world_size()).map(|rank| Places::of_a2(&shape, RankId(rank))).collect();
    let shape = Arc::new(shape);
    move || {
        let memory = Rc::new(Memory::with_windows(&places, &shape));
        let mut threads = scripts.iter().map(|&(rank, script)| {
            let (memory, shape, rank) = (Rc::clone(&memory), Arc::clone(&shape), RankId(rank));
            let view =
                RankView { memory, shape: Arc::clone(&shape), member: Member::of(&shape, rank), defect };
            let agent = AgentNic::new(view.clone(), false, 1);
            let core = Bent::new(view, CoreId(0), Vec::new(), None);
            let mut rank = Rank { core, agent, shape, rank };
            move || script(&mut rank)
        });
        let here = threads.next();
        together(here, threads);
    }
}

impl Rank {
    /// Writes a row and the last flag behind it for `to`, and a word of its task.
    pub fn write(&mut self, to: u32, value: u64) {
        let shape = Arc::clone(&self.shape);
        let out = |at| window_out(&shape, P0, RankId(to), at);
        did(self.core.write(out(record(&shape, 0)), &value.to_le_bytes()));
        did(self.core.write(out(tail_flag(&shape, Operator::Dispatch, 1)), &u64::MAX.to_le_bytes()));
        did(self.core.store(task_word(P0, RankId(to), 2), value));
    }

    pub fn ring(&mut self, count: u64) {
        let own = did(self.core.observe(doorbell()));
        assert!(own < count, "a doorbell that has been rung");
        did(self.core.publish(self.rank, doorbell(), count));
    }

    /// Waits for the last flag of the window from `source`.
    pub fn wait(&self, source: u32) {
        self.wait_at(tail_flag(&self.shape, Operator::Dispatch, 1), source);
    }

    /// Waits for the first flag, which an answer uses.
    pub fn wait_for_answer(&self, source: u32) {
        self.wait_at(FLAG1, source);
    }

    fn wait_at(&self, at: u64, source: u32) {
        while did(self.core.observe(window_in(&self.shape, P0, RankId(source), at))) == 0 {
            thread::yield_now();
        }
    }

    /// Writes an answer for `to`: FLAG1 alone.
    pub fn write_answer(&mut self, to: u32) {
        let at = window_out(&self.shape, P0, RankId(to), FLAG1);
        did(self.core.write(at, &u64::MAX.to_le_bytes()));
    }

    /// Clears the last flag of the window from `source`.
    pub fn clear(&mut self, source: u32) {
        let at = window_in(&self.shape, P0, RankId(source), tail_flag(&self.shape, Operator::Dispatch, 1));
        did(self.core.store(at, 0));
    }

    /// The row of the window from `source` must be this.
    pub fn expect(&self, source: u32, value: u64) {
        let at = window_in(&self.shape, P0, RankId(source), record(&self.shape, 0));
        assert_eq!(did(self.core.bytes(at, 8)), value.to_le_bytes(), "the row of a set flag");
    }

    /// Waits, as the agent, for the doorbell.
    pub fn wait_for_doorbell(&self, count: u64) {
        while did(self.agent.observe(doorbell())) < count {
            thread::yield_now();
        }
    }

    /// A word of the task for `to`, as the agent sees it, must be this.
    pub fn expect_task(&self, to: u32, value: u64) {
        let word = did(self.agent.observe(task_word(P0, RankId(to), 2)));
        assert_eq!(word, value, "the task behind a doorbell");
    }

    /// Lets the agent send what [`Self::write`] wrote.
    pub fn post(&mut self, to: u32) {
        let start = record(&self.shape, 0);
        self.post_range(to, start, tail_flag(&self.shape, Operator::Dispatch, 1) + 8 - start);
    }

    /// Lets the agent send what [`Self::write_answer`] wrote.
    pub fn post_answer(&mut self, to: u32) {
        self.post_range(to, FLAG1, 8);
    }

    fn post_range(&mut self, to: u32, start: u64, len: u64) {
        let from: Place = window_out(&self.shape, P0, RankId(to), start);
        let at = window_in(&self.shape, P0, self.rank, start);
        did(self.agent.post(&Transfer { to: RankId(to), from, at, len }));
    }
}
