//! The record of a counterexample: the calls of its machines, as if they had been made in a run.

use core::ops::Range;
use std::sync::{Mutex, MutexGuard};
use veriep_case::parallel::lock;
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::{Fabric, Progress};
use veriep_core::place::Place;
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::{AgentStep, Answer, CoreStep};
use veriep_group::driver::lockstep::Borrowed;
use veriep_trace::events::log::Log;
use veriep_trace::events::recorder::{Book, Recorder};
use veriep_trace::events::{Kind, What};
use veriep_verify::schedule::{Taken, Witness};

/// All calls of steps that were tried, by number.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<Vec<(Kind, What)>>);

impl Calls {
    fn lock(&self) -> MutexGuard<'_, Vec<(Kind, What)>> {
        lock(&self.0)
    }

    /// Records the steps of a counterexample.
    pub(super) fn tell(&self, taken: &[Taken], log: &Log) {
        let calls = self.lock();
        for Taken { actor, planned, calls: own, ended } in taken {
            if actor.core != AGENT {
                log.steps(*actor, *planned, "");
            }
            for &(kind, what) in &calls[own.clone()] {
                match (kind, what.at, what.word) {
                    (Kind::Observe, Some(at), Some(word)) => log.observes(*actor, at, word),
                    (Kind::Observe, ..) => {}
                    _ => log.record(*actor, kind, what),
                }
            }
            if *ended {
                log.stepped(*actor, &Ok(Progress::Done));
            }
        }
    }
}

impl Book for Calls {
    fn record(&self, _: Actor, kind: Kind, what: What) {
        self.lock().push((kind, what));
    }

    fn observes(&self, actor: Actor, at: Place, word: u64) {
        self.record(actor, Kind::Observe, What { at: Some(at), word: Some(word), ..What::default() });
    }
}

impl Witness for Calls {
    fn through(&self, actor: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        step(&mut Recorder { inner: Borrowed(fabric), actor, book: Some(self) })
    }

    fn through_nic(&self, actor: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        step(&mut Recorder { inner: Borrowed(nic), actor, book: Some(self) })
    }

    fn calls(&self) -> usize {
        self.lock().len()
    }

    fn rename(&self, calls: Range<usize>, name: &mut dyn FnMut(&mut Place, &mut Option<u64>)) {
        for (_, What { at, word, .. }) in &mut self.lock()[calls] {
            at.iter_mut().for_each(|at| name(at, word));
        }
    }
}
