//! Broken twins of the protocol: a backend in which one duty is left out. The machines stay as they are.

use host::backend::Backend;
use host::driver::lockstep::Clockwork;
use kernel_core::place::Tensor;
use kernel_core::shape::Shape;
use kernel_core::sim::Actor;
pub(crate) use kernel_core::sim::duty::Duty;
use kernel_core::sim::duty::{Faulty, Held};
use kernel_core::units::{CoreId, RankId};
use std::sync::{Mutex, MutexGuard};

#[derive(Debug)]
pub(crate) struct Twisted<B> {
    inner: B,
    duty: Duty,
    shape: Shape,
    /// By rank, then core.
    held: Vec<Vec<Mutex<Held>>>,
}

impl<B: Backend> Twisted<B> {
    pub(crate) fn new(inner: B, duty: Duty, shape: Shape) -> Self {
        let members = shape.ep_world_size() * shape.tp_world_size();
        let cores = |_| (0..shape.aiv_num()).map(|_| Mutex::default()).collect();
        let held = (0..members).map(cores).collect();
        Self { inner, duty, shape, held }
    }
}

impl<B: Backend> Backend for Twisted<B> {
    type Fabric<'b>
        = Faulty<'b, Box<B::Fabric<'b>>, MutexGuard<'b, Held>>
    where
        Self: 'b;

    fn fabric(&self, rank: RankId, core: CoreId, batch: usize) -> Self::Fabric<'_> {
        let held = self.held[rank.index()][core.index()].lock().unwrap();
        let inner = Box::new(self.inner.fabric(rank, core, batch));
        Faulty::new(inner, &self.duty, &self.shape, Actor { member: rank, core }, held).begin().unwrap()
    }

    type Nic<'b>
        = B::Nic<'b>
    where
        Self: 'b;

    fn nic(&self, rank: RankId) -> Self::Nic<'_> {
        self.inner.nic(rank)
    }

    fn read_output(&self, rank: RankId, batch: usize, t: Tensor, len: usize, read: &mut dyn FnMut(&[u8])) {
        self.inner.read_output(rank, batch, t, len, read);
    }

    fn reuse_outputs(&self) {
        self.inner.reuse_outputs();
    }
}

impl<B: Clockwork> Clockwork for Twisted<B> {
    fn tick(&self) {
        self.inner.tick();
    }

    fn land_one(&self) -> bool {
        self.inner.land_one()
    }
}
