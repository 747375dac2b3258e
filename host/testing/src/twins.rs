//! Broken twins of the protocol: a layer in which one duty is left out. The machines stay as they are.

use std::sync::Mutex;
use veriep_core::fabric::Fabric;
use veriep_core::shape::Shape;
use veriep_core::sim::Actor;
pub use veriep_core::sim::duty::Duty;
use veriep_core::sim::duty::{Faulty, Held};
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::Layer;

#[derive(Debug)]
pub struct Twisted {
    duty: Duty,
    shape: Shape,
    /// By rank, then core.
    held: Vec<Vec<Mutex<Held>>>,
}

impl Twisted {
    pub fn new(duty: Duty, shape: Shape) -> Self {
        let members = shape.ep_world_size() * shape.tp_world_size();
        let cores = |_| (0..shape.aiv_num()).map(|_| Mutex::default()).collect();
        let held = (0..members).map(cores).collect();
        Self { duty, shape, held }
    }
}

impl Layer for Twisted {
    fn fabric<'b, F: Fabric + 'b>(&'b self, rank: RankId, core: CoreId, inner: F) -> impl Fabric {
        let held = self.held[rank.index()][core.index()].lock().unwrap();
        let actor = Actor { member: rank, core };
        Faulty::new(Box::new(inner), &self.duty, &self.shape, actor, held).begin().unwrap()
    }
}
