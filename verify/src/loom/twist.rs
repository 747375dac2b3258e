//! Hooks by which a twin bends one effect of the fabric while the machines stay as they are.

use super::domain::Seated;
use super::fabric::{Accesses, LoomFabric, renew};
use super::memory::Outputs;
use std::rc::Rc;
use veriep_core::fabric::{Capabilities, Fabric, Fault};
use veriep_core::place::Place;
use veriep_core::units::RankId;

/// One core's twist. Whatever it leaves out is as the fabric does it.
pub trait Twist {
    /// How memory is accessed.
    fn accesses(&self) -> Accesses {
        Accesses::default()
    }

    /// Instead of [`Fabric::put`].
    fn put(
        &mut self,
        fabric: &mut LoomFabric,
        to: RankId,
        at: Place,
        row: &[u8],
        tail: &[u8],
    ) -> Result<(), Fault> {
        fabric.put(to, at, row, tail)
    }

    /// Instead of [`Fabric::publish`].
    fn publish(&mut self, fabric: &mut LoomFabric, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        fabric.publish(to, at, word)
    }

    /// Instead of [`Fabric::quiet`].
    fn quiet(&mut self, fabric: &mut LoomFabric) -> Result<bool, Fault> {
        fabric.quiet()
    }

    /// Instead of [`Fabric::observe`].
    fn observe(&self, fabric: &LoomFabric, at: Place) -> Result<u64, Fault> {
        fabric.observe(at)
    }

    /// Instead of [`Fabric::store`].
    fn store(&mut self, fabric: &mut LoomFabric, at: Place, word: u64) -> Result<(), Fault> {
        fabric.store(at, word)
    }

    /// After the core has ended an operator.
    fn ended(&mut self, fabric: &mut LoomFabric) -> Result<(), Fault> {
        let _ = fabric;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Faithful;

impl Twist for Faithful {}

#[derive(Debug)]
pub struct Twisted<T> {
    pub fabric: LoomFabric,
    pub twist: T,
}

impl<T: Twist> Seated for Twisted<T> {
    /// The driver has dropped the fabric of the operator before.
    fn begin(&mut self, _: usize, outputs: Rc<Outputs>) {
        drop(renew(&mut self.fabric, outputs));
    }

    fn ended(&mut self) -> Result<(), Fault> {
        self.twist.ended(&mut self.fabric)
    }
}

impl<T: Twist> Fabric for Twisted<T> {
    fn capabilities(&self) -> Capabilities {
        self.fabric.capabilities()
    }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.twist.put(&mut self.fabric, to, at, row, tail)
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.twist.publish(&mut self.fabric, to, at, word)
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        self.twist.quiet(&mut self.fabric)
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.twist.observe(&self.fabric, at)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        self.twist.store(&mut self.fabric, at, word)
    }

    fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.fabric.bytes(at, len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        self.fabric.write(at, bytes)
    }

    fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault> {
        self.fabric.deliver(output, from, len)
    }

    fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.fabric.peer_bytes(rank, at, len)
    }
}
