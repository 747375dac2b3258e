//! The broken twins: each bends one thing that the protocol's argument needs, and a model must then fail.
//! What a twin needs to be seen, traffic, rounds or cores, stands at the test that catches it.

use super::domain::Seated;
use super::fabric::{LoomCells, LoomFabric, forget, renew, unfenced};
use super::memory::Outputs;
use core::sync::atomic::Ordering;
use std::rc::Rc;
use veriep_core::fabric::coherent::Cells;
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::state::{
    CORE_WORDS, Operator, Partition, combine_status, core_word, dispatch_status,
};
use veriep_core::place::{Place, Region};
use veriep_core::sync::flag::ARRIVED;
use veriep_core::units::RankId;

/// What is bent in the fabric of every core, while the machines stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Twist {
    /// Nothing.
    #[default]
    None,
    /// A publish is not after the data before it.
    RelaxedPublish,
    /// The word that results of experts lie ready is not after the results.
    RelaxedReady,
    /// What follows an observe may have come before it.
    RelaxedObserve,
    /// Rows go past the caches.
    PastCaches(Fences),
    /// Puts to a rank come after the next publish to it, or after the word that tells the other cores that they have
    /// landed.
    FlagFirst,
    /// Puts never land.
    NoPut,
    /// Dispatch does not wait at its first core barrier: every other core seems to have arrived.
    NoBarrier,
    /// A core waits at its first barrier for the cores with lower numbers only.
    LowerCoresOnly,
    /// A core has one word for all its barriers. Whoever finds a later epoch there than its own takes it for
    /// arrived, with the sum that it finds.
    OneCoreWord,
    /// Operators of a kind have one partition: its selectors never change.
    OnePartition(Operator),
    /// Flags are never cleared.
    NoClear,
    /// Clears land as late as the contract allows: at the next quiet. Not broken.
    ClearsAtQuiet,
    /// Quiet does not wait for clears: they land when the operator that asked for quiet has ended.
    ClearsPastQuiet,
    /// Combine waits for a dispatch flag of the first partition, too: that of this slot.
    CombineWaitsFor(u32),
    /// Combine does not wait for this one of its flags.
    CombineIgnores(Place),
}

/// Which fences are left out where rows go past the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fences {
    /// None. Not broken.
    Fenced,
    /// That before a publish.
    NotBeforePublish,
    /// That in quiet.
    NotInQuiet,
    /// Both.
    NotBeforePublishNorInQuiet,
    /// That before the fabric is dropped.
    NotAtTheEnd,
}

/// A core's fabric, bent as its cells say.
#[derive(Debug)]
pub(super) struct Twisted {
    fabric: LoomFabric,
    /// Puts that a later publish lets land.
    puts: Vec<(RankId, Place, Vec<u8>)>,
    /// Clears that the next quiet is to let land.
    clears: Vec<(Place, u64)>,
    /// Clears that land when the operator has ended.
    passed: Vec<(Place, u64)>,
}

impl Twisted {
    pub(super) fn new(cells: LoomCells) -> Self {
        Self { fabric: LoomFabric::from(cells), puts: Vec::new(), clears: Vec::new(), passed: Vec::new() }
    }

    fn twist(&self) -> Twist {
        self.fabric.cells().twist
    }
}

impl Seated for Twisted {
    /// The driver has dropped the fabric of the operator before.
    fn begin(&mut self, _: usize, outputs: Rc<Outputs>) {
        drop(renew(&mut self.fabric, outputs));
    }

    fn ended(&mut self) -> Result<(), Fault> {
        if self.twist() == Twist::PastCaches(Fences::NotAtTheEnd) {
            forget(&mut self.fabric);
        }
        self.passed.drain(..).try_for_each(|(at, word)| self.fabric.store(at, word))
    }
}

impl Middleware for Twisted {
    veriep_core::around! { fabric: LoomFabric, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        match self.twist() {
            Twist::NoPut => {}
            Twist::FlagFirst => self.puts.push((to, at, [row, tail].concat())),
            _ => return self.fabric.put(to, at, row, tail),
        }
        Ok(())
    }

    fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        use Fences::{NotBeforePublish, NotBeforePublishNorInQuiet};
        match self.twist() {
            Twist::RelaxedReady if is_ready_word(at) => {
                self.fabric.cells().store(to, at, word, Ordering::Relaxed)
            }
            Twist::PastCaches(NotBeforePublish | NotBeforePublishNorInQuiet) => {
                unfenced(&mut self.fabric, |fabric| fabric.publish(to, at, word))
            }
            Twist::FlagFirst => {
                self.fabric.publish(to, at, word)?;
                let mut puts = self.puts.extract_if(.., |(rank, place, _)| {
                    *rank == to && place.region.is_of_tp() == at.region.is_of_tp() || is_core_word(at)
                });
                puts.try_for_each(|(to, at, bytes)| self.fabric.put(to, at, &bytes, &[]))
            }
            Twist::OneCoreWord => self.fabric.publish(to, first_word(at), word),
            _ => self.fabric.publish(to, at, word),
        }
    }

    fn quiet(&mut self) -> Result<bool, Fault> {
        use Fences::{NotBeforePublishNorInQuiet, NotInQuiet};
        match self.twist() {
            Twist::PastCaches(NotInQuiet | NotBeforePublishNorInQuiet) => {
                return unfenced(&mut self.fabric, LoomFabric::quiet);
            }
            Twist::ClearsPastQuiet => self.passed.append(&mut self.clears),
            _ => self.clears.drain(..).try_for_each(|(at, word)| self.fabric.store(at, word))?,
        }
        self.fabric.quiet()
    }

    fn observe(&self, at: Place) -> Result<u64, Fault> {
        let (fabric, core) = (&self.fabric, self.fabric.cells().core());
        // The first barrier of a group has the odd word; nobody carries a sum there.
        let first = core_word(core, 1);
        let is_of_first = is_core_word(at) && at.offset % 16 == first.offset % 16;
        match self.twist() {
            Twist::NoBarrier if is_of_first => fabric.observe(first),
            Twist::LowerCoresOnly if is_of_first && at > first => fabric.observe(first),
            Twist::OneCoreWord if is_core_word(at) => {
                let seen = fabric.observe(first_word(at))?;
                let (sums, epoch) = (seen << 2 >> 2, seen >> 62);
                let asked = fabric.observe(core_word(core, 0))? >> 62;
                let ahead = epoch.wrapping_sub(asked) % 4 == 1;
                let behind = asked.wrapping_sub(epoch) % 4 == 1;
                let shown = if ahead { asked } else { asked.wrapping_sub(2) % 4 };
                Ok(if ahead || behind { shown << 62 | sums } else { seen })
            }
            Twist::OnePartition(kind) if fabric.cells().is_selector(kind, at) => Ok(0),
            Twist::CombineWaitsFor(slot) if fabric.observe(dispatch_status(Partition::P0, slot))? == 0 => {
                Ok(0)
            }
            Twist::CombineIgnores(flag) if at == flag => Ok(ARRIVED),
            _ => fabric.observe(at),
        }
    }

    fn store(&mut self, at: Place, word: u64) -> Result<(), Fault> {
        // A selector is flipped as ever: a core reads it before the next quiet.
        let is_clear = self.fabric.cells().private(at).is_none();
        match self.twist() {
            Twist::NoClear if is_clear => {}
            Twist::ClearsAtQuiet | Twist::ClearsPastQuiet if is_clear => self.clears.push((at, word)),
            _ => return self.fabric.store(at, word),
        }
        Ok(())
    }
}

fn is_ready_word(at: Place) -> bool {
    let ready = |half| [0, 1].map(|rank| combine_status(half, rank));
    [Partition::P0, Partition::P1].map(ready).as_flattened().contains(&at)
}

fn is_core_word(at: Place) -> bool {
    at.region == Region::State && at.offset >= CORE_WORDS
}

/// The place of a core's one word.
fn first_word(at: Place) -> Place {
    if is_core_word(at) { Place::state(at.offset / 16 * 16) } else { at }
}
