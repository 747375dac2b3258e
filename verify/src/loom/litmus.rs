//! The orderings one by one, without machines: a few lines for each core, over the fabric and the real places.

use super::bent::Bent;
use super::cells::{LoomCells, RankView};
use super::domain::together;
use super::memory::{Member, Memory};
use super::places::Places;
use crate::defects::Defect;
use ::loom::sync::atomic::{AtomicU64, Ordering};
use ::loom::thread;
use core::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::fabric::Fabric;
use veriep_core::layout::data::dispatch_record;
use veriep_core::layout::state::{Partition, Slots};
use veriep_core::place::Place;
use veriep_core::placement::Home;
use veriep_core::plan::counts::ShareSum;
use veriep_core::protocol::Choices;
use veriep_core::shape::Shape;
use veriep_core::sync::{barrier, flag};
use veriep_core::units::{CoreId, RankId};

/// Bytes that a litmus test puts; none of a row that was not put yet.
const ROW: [u8; 4] = [1, 2, 3, 4];

/// One core in a litmus test.
#[derive(Debug)]
pub struct Core {
    fabric: Bent,
    shape: Arc<Shape>,
    rank: RankId,
    core: CoreId,
    epoch: u32,
    /// A word beside the fabric.
    told: Rc<AtomicU64>,
}

pub type Script = fn(&mut Core);

/// Scripts with rank and number of the core that runs each.
pub type Scripts = &'static [(u32, u32, Script)];

/// The body of a litmus test: each of the cores that `scripts` name runs its own.
pub fn litmus(shape: Shape, defect: Defect, scripts: Scripts) -> impl Fn() + Send + Sync + 'static {
    let places: Vec<_> = (0..shape.ep_world_size())
        .map(|rank| {
            let mut places = Places::of_a3(&shape, RankId(rank), Choices::default());
            places.word(token_flag());
            places
        })
        .collect();
    move || {
        let (memory, shape) = (Rc::new(Memory::new(&places)), Arc::new(shape.clone()));
        let told = Rc::new(AtomicU64::new(0));
        let mut threads = scripts.iter().map(|&(rank, core, script)| {
            let (rank, core) = (RankId(rank), CoreId(core));
            let member = Member::of(&shape, rank);
            let (memory, shape, told) = (Rc::clone(&memory), Arc::clone(&shape), Rc::clone(&told));
            let view = RankView { memory, shape: Arc::clone(&shape), member, defect };
            let fabric = Bent::new(LoomCells::of_core(view, core));
            let mut core = Core { fabric, shape, rank, core, epoch: 0, told };
            move || script(&mut core)
        });
        let here = threads.next();
        together(here, threads);
    }
}

/// The flag that all litmus tests but those of barriers use: dispatch slot 0.
pub const fn count_flag() -> Place {
    Slots::Shipped.dispatch_status(Partition::P0, 0)
}

/// Bytes 8..16 of that slot: with flags in two steps, the tokens' own flag.
pub const fn token_flag() -> Place {
    Place::state(count_flag().offset + 8)
}

/// A flag of its own for an answer: dispatch slot 1.
pub const fn answer() -> Place {
    Slots::Shipped.dispatch_status(Partition::P0, 1)
}

pub(super) fn did<R, E: Debug>(result: Result<R, E>) -> R {
    result.expect("a place that the litmus test has")
}

impl Core {
    fn record(&self) -> Place {
        let home = Home { rank: RankId(0), local_expert: 0 };
        dispatch_record(&self.shape, Partition::P0, home, RankId(0), 0)
    }

    /// Puts the row to `rank`, with every byte `plus` more.
    pub fn put(&mut self, rank: u32, plus: u8) {
        let at = self.record();
        did(self.fabric.put(RankId(rank), at, &ROW.map(|byte| byte + plus), &[]));
    }

    /// Publishes a count of 1 to `rank`.
    pub fn publish(&mut self, rank: u32, at: Place) {
        did(self.fabric.publish(RankId(rank), at, flag::status(1)));
    }

    /// Waits until `at` is set and returns the count.
    pub fn await_flag(&self, at: Place) -> u32 {
        loop {
            match flag::dispatch(did(self.fabric.observe(at))) {
                flag::Seen::Flag(count) => return count,
                flag::Seen::Empty => thread::yield_now(),
                flag::Seen::Corrupt => panic!("corrupt flag"),
            }
        }
    }

    pub fn clear(&mut self, at: Place) {
        did(self.fabric.store(at, 0));
    }

    /// The row must have come, with every byte `plus` more.
    pub fn expect_row(&self, plus: u8) {
        let seen = did(self.fabric.bytes(self.record(), ROW.len() as u64));
        assert_eq!(seen, ROW.map(|byte| byte + plus), "the row of a set flag");
    }

    /// Waits until all that it did has landed.
    pub fn quiet(&mut self) {
        while !did(self.fabric.quiet()) {
            thread::yield_now();
        }
    }

    /// Tells the core that is [`told`](Self::told), by other means than the fabric.
    pub fn tell(&self) {
        self.told.store(1, Ordering::Release);
    }

    /// Waits for that.
    pub fn told(&self) {
        while self.told.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
    }

    /// A core barrier that carries `sum`; returns the sum of core `other`.
    pub fn barrier(&mut self, sum: u32, other: u32) -> u32 {
        self.quiet();
        let (core, cores) = (self.core, self.shape.aiv_num());
        let sum = ShareSum { rows: sum, of_last_expert: 0 };
        did(barrier::arrive(&mut self.fabric, self.rank, core, &mut self.epoch, sum));
        let epoch = self.epoch;
        while did(barrier::missing(&self.fabric, cores, core, epoch)).is_some() {
            thread::yield_now();
        }
        did(barrier::sum_of(&self.fabric, CoreId(other), epoch)).rows
    }
}
