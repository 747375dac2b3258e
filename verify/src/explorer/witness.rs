//! The calls of a counterexample: what each step of its machines asked of the fabric, for who keeps a record of them.

use core::ops::Range;
use veriep_core::fabric::Fabric;
use veriep_core::fabric::nic::Nic;
use veriep_core::place::Place;
use veriep_core::sim::Actor;
use veriep_core::sim::cluster::{AgentStep, Answer, CoreStep, Planned};

/// An observer of the calls of machines while a counterexample is told.
pub trait Witness {
    /// Lets a core take its step on `fabric`, or on something in front of it.
    fn through(&self, core: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer;

    /// The same of an agent.
    fn through_nic(&self, agent: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer;

    /// How many calls there were so far. Not all of them are on the way into trouble.
    fn calls(&self) -> usize;

    /// Gives places and words of these calls the names that they have in a run: a model has partitions of its own, and may
    /// count from another number. A word that is taken away would not be seen there.
    fn rename(&self, calls: Range<usize>, name: &mut dyn FnMut(&mut Place, &mut Option<u64>));
}

/// A step on the way into trouble.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The core or agent.
    pub actor: Actor,
    /// What it is at.
    pub planned: Planned,
    /// Its calls, by their numbers at the witness.
    pub calls: Range<usize>,
    /// What it has come to; none of a step that was refused.
    pub ended: bool,
}
