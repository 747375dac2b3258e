//! The orderings of the agent's seam one by one, without machines: a few lines for each core and agent.

use super::Bend;
use super::fabric::{AgentNic, CoreFabric, RankView};
use super::memory::{Memory, Places};
use crate::loom::domain::together;
use crate::loom::litmus::did;
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

/// One core in a litmus test.
#[derive(Debug)]
pub struct Core {
    fabric: CoreFabric,
    shape: Arc<Shape>,
}

/// One agent in a litmus test.
#[derive(Debug)]
pub struct Agent {
    nic: AgentNic,
    shape: Arc<Shape>,
    rank: RankId,
}

#[derive(Clone, Copy, Debug)]
pub enum Script {
    /// Core 0 of a rank.
    Core(u32, fn(&mut Core)),
    Agent(u32, fn(&mut Agent)),
    /// Both on one thread.
    Both(u32, fn(&mut Core, &mut Agent)),
}

/// The body of a litmus test.
pub fn litmus(shape: Shape, bend: Bend, scripts: &'static [Script]) -> impl Fn() + Send + Sync + 'static {
    let places: Vec<_> = (0..shape.ep_world_size()).map(|rank| Places::of(&shape, RankId(rank))).collect();
    let shape = Arc::new(shape);
    move || {
        let memory = Rc::new(Memory::new(&shape, &places));
        let mut threads = scripts.iter().map(|&script| {
            let (Script::Core(rank, _) | Script::Agent(rank, _) | Script::Both(rank, _)) = script;
            let (memory, shape, rank) = (Rc::clone(&memory), Arc::clone(&shape), RankId(rank));
            let view = RankView { memory, shape: Arc::clone(&shape), rank, bend };
            let mut agent =
                Agent { nic: AgentNic::new(view.clone(), false, 1), shape: Arc::clone(&shape), rank };
            let mut core = Core { fabric: CoreFabric::new(view, CoreId(0), Vec::new(), None), shape };
            move || match script {
                Script::Core(_, run) => run(&mut core),
                Script::Agent(_, run) => run(&mut agent),
                Script::Both(_, run) => run(&mut core, &mut agent),
            }
        });
        let here = threads.next();
        together(here, threads);
    }
}

impl Core {
    /// Writes a row and the last flag behind it for `to`, and a word of its task.
    pub fn write(&mut self, to: u32, value: u64) {
        let shape = Arc::clone(&self.shape);
        let out = |at| window_out(&shape, P0, RankId(to), at);
        did(self.fabric.write(out(record(&shape, 0)), &value.to_le_bytes()));
        did(self.fabric.write(out(tail_flag(&shape, Operator::Dispatch, 1)), &u64::MAX.to_le_bytes()));
        did(self.fabric.store(task_word(P0, RankId(to), 2), value));
    }

    pub fn ring(&mut self, count: u64) {
        let own = did(self.fabric.observe(doorbell()));
        assert!(own < count, "a doorbell that has been rung");
        let rank = self.rank();
        did(self.fabric.publish(rank, doorbell(), count));
    }

    fn rank(&self) -> RankId {
        self.fabric.rank()
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
        while did(self.fabric.observe(window_in(&self.shape, P0, RankId(source), at))) == 0 {
            thread::yield_now();
        }
    }

    /// Writes an answer for `to`: FLAG1 alone.
    pub fn write_answer(&mut self, to: u32) {
        let at = window_out(&self.shape, P0, RankId(to), FLAG1);
        did(self.fabric.write(at, &u64::MAX.to_le_bytes()));
    }

    /// Clears the last flag of the window from `source`.
    pub fn clear(&mut self, source: u32) {
        let at = window_in(&self.shape, P0, RankId(source), tail_flag(&self.shape, Operator::Dispatch, 1));
        did(self.fabric.store(at, 0));
    }

    /// The row of the window from `source` must be this.
    pub fn expect(&self, source: u32, value: u64) {
        let at = window_in(&self.shape, P0, RankId(source), record(&self.shape, 0));
        assert_eq!(did(self.fabric.bytes(at, 8)), value.to_le_bytes(), "the row of a set flag");
    }
}

impl Agent {
    /// Waits for the doorbell.
    pub fn wait(&self, count: u64) {
        while did(self.nic.observe(doorbell())) < count {
            thread::yield_now();
        }
    }

    /// A word of the task for `to` must be this.
    pub fn expect(&self, to: u32, value: u64) {
        assert_eq!(did(self.nic.observe(task_word(P0, RankId(to), 2))), value, "the task behind a doorbell");
    }

    /// Sends what [`Core::write`] wrote.
    pub fn post(&mut self, to: u32) {
        let start = record(&self.shape, 0);
        self.post_range(to, start, tail_flag(&self.shape, Operator::Dispatch, 1) + 8 - start);
    }

    /// Sends what [`Core::write_answer`] wrote.
    pub fn post_answer(&mut self, to: u32) {
        self.post_range(to, FLAG1, 8);
    }

    fn post_range(&mut self, to: u32, start: u64, len: u64) {
        let from: Place = window_out(&self.shape, P0, RankId(to), start);
        let at = window_in(&self.shape, P0, self.rank, start);
        did(self.nic.post(&Transfer { to: RankId(to), from, at, len }));
    }
}
