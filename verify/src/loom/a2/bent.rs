//! Defects of A2's fabric: a layer around that of a core, which also lets an agent go on whenever its core waits.

use super::agent::AgentNic;
use crate::defects::Defect;
use crate::loom::cells::{LoomCells, LoomFabric, RankView, renew};
use crate::loom::domain::Seated;
use crate::loom::memory::Outputs;
use ::loom::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::rc::Rc;
use veriep_core::fabric::coherent::Cells;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::{Fabric, Fault, Progress, ProtocolError};
use veriep_core::layout::a2_message::doorbell;
use veriep_core::layout::a2_window::buffer_chosen;
use veriep_core::place::{Place, Region};
use veriep_core::units::{CoreId, RankId};

/// A core's fabric, bent as its view says.
#[derive(Debug)]
pub struct Bent {
    fabric: LoomFabric,
    /// By operator: the flags that it waits for.
    awaited: Vec<BTreeSet<Place>>,
    operator: usize,
    /// Words that land after the doorbell.
    late: Vec<(Place, u64)>,
    /// The interface of an agent that goes on whenever this core waits.
    agent: Option<AgentNic>,
}

impl Bent {
    /// The fabric of `core`, which waits for the flags `awaited` of each operator.
    pub fn new(view: RankView, core: CoreId, awaited: Vec<BTreeSet<Place>>, agent: Option<AgentNic>) -> Self {
        let fabric = LoomFabric::from(LoomCells::of_core(view, core));
        Self { fabric, awaited, operator: 0, late: Vec::new(), agent }
    }

    fn defect(&self) -> Defect {
        self.fabric.cells().defect()
    }

    fn is_buffer_chosen(&self, at: Place) -> bool {
        at == buffer_chosen(&self.fabric.cells().view().shape)
    }
}

impl Middleware for Bent {
    veriep_core::around! { fabric: LoomFabric, its capabilities }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        self.fabric.publish(to, at, word)?;
        if at == doorbell() {
            let late = core::mem::take(&mut self.late);
            late.into_iter().try_for_each(|(at, word)| match at.region {
                Region::WindowOut => self.fabric.write(at, &word.to_le_bytes()),
                _ => self.fabric.store(at, word),
            })?;
        }
        Ok(())
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let (cells, word) = (self.fabric.cells(), self.fabric.observe(at)?);
        if self.defect() == Defect::EarlyFlip && cells.core().0 == 0 && self.is_buffer_chosen(at) {
            cells.store(cells.own(at), at, word ^ 1, Ordering::Relaxed)?;
        }
        Ok(word)
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        let flips = self.is_buffer_chosen(at);
        let clears = at.region == Region::Window && !flips;
        match self.defect() {
            Defect::EarlyFlip if flips => Ok(()),
            Defect::NoClear if clears => Ok(()),
            Defect::SeedClears if clears && !self.awaited[self.operator].contains(&at) => Ok(()),
            Defect::LateTasks if at.region == Region::State => {
                self.late.push((at, word));
                Ok(())
            }
            _ => self.fabric.store(at, word),
        }
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault> {
        if at.region != Region::WindowOut || self.defect() != Defect::LateWrites {
            return self.fabric.write(at, bytes);
        }
        let words = (0..).step_by(8).zip(bytes.as_chunks().0);
        let late =
            words.map(|(shift, &word)| (Place { offset: at.offset + shift, ..at }, u64::from_le_bytes(word)));
        self.late.extend(late);
        Ok(())
    }
}

impl Seated for Bent {
    /// The driver has dropped the fabric of the operator before.
    fn begin(&mut self, n: usize, outputs: Rc<Outputs>) {
        self.operator = n;
        drop(renew(&mut self.fabric, outputs));
    }

    /// Who waits lets his agent go on.
    fn answer(&mut self, progress: Progress) -> Result<Progress, ProtocolError> {
        let (Progress::Pending(_), Some(nic)) = (progress, &mut self.agent) else { return Ok(progress) };
        Ok(if nic.step()? == Progress::Stepped { Progress::Stepped } else { progress })
    }

    fn leave(&mut self) {
        self.agent.take().into_iter().for_each(AgentNic::serve);
    }
}
