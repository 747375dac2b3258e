//! Happens-before: the knowledge that cores and agents have of each other.

use super::Line;
use core::ops::Range;
use veriep_case::global_rank;
use veriep_core::shape::Shape;

/// Of each core and agent, how many of its events are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    /// Of that actor.
    pub(super) fn of(&self, actor: usize) -> u32 {
        self.0[actor]
    }

    /// The actor whose clock it is does something.
    pub(super) fn tick(&mut self, actor: usize) {
        self.0[actor] += 1;
    }

    /// All that is known here or there.
    pub(super) fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own = (*own).max(*other));
    }
}

/// The numbers of those who do something: of a rank its cores, its agent and its experts are neighbours, in this order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Actors {
    pub(super) ranks: u32,
    cores: u32,
}

impl Actors {
    pub(super) fn of(shape: &Shape) -> Self {
        Self { ranks: global_rank::count(shape), cores: shape.aiv_num() }
    }

    const fn of_rank(self) -> usize {
        self.cores as usize + 2
    }

    pub(super) const fn count(self) -> usize {
        self.ranks as usize * self.of_rank()
    }

    pub(super) fn clock(self) -> Clock {
        Clock(vec![0; self.count()])
    }

    /// Who an event is of.
    pub(super) fn actor(self, event: &Line) -> Option<usize> {
        let core = event.core.unwrap_or(self.cores);
        let is_there = event.rank < self.ranks
            && event.peer.is_none_or(|peer| peer < self.ranks)
            && (event.core.is_none() || core < self.cores);
        is_there.then_some(event.rank as usize * self.of_rank() + core as usize)
    }

    /// The cores of a rank.
    pub(super) const fn cores(self, rank: u32) -> Range<usize> {
        let first = rank as usize * self.of_rank();
        first..first + self.cores as usize
    }

    /// Whether that is the agent of a rank.
    pub(super) const fn is_agent(self, actor: usize) -> bool {
        actor % self.of_rank() == self.cores as usize
    }

    /// The experts of a rank.
    pub(super) const fn experts(self, rank: u32) -> usize {
        self.cores(rank).end + 1
    }
}
