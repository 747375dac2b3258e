//! The broken twins: each bends one thing that the protocol's argument needs, and a model must then fail.
//! What a twin needs to be seen, traffic, rounds or cores, stands at the test that catches it.

use super::fabric::{Accesses, LoomFabric, forget, unfenced};
use super::twist::Twist;
use core::sync::atomic::Ordering;
use veriep_core::fabric::coherent::Cells;
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::layout::state::{
    CORE_WORDS, Operator, Partition, combine_status, core_word, dispatch_status, selector,
};
use veriep_core::place::{Place, Region};
use veriep_core::sync::flag::ARRIVED;
use veriep_core::units::RankId;

/// A publish is not after the data before it.
#[derive(Clone, Copy, Debug)]
pub struct RelaxedPublish;

impl Twist for RelaxedPublish {
    fn accesses(&self) -> Accesses {
        Accesses { relaxed_stores: true, ..Accesses::default() }
    }
}

/// The word that results of experts lie ready is not after the results.
#[derive(Clone, Copy, Debug)]
pub struct RelaxedReady;

impl Twist for RelaxedReady {
    fn publish(&mut self, fabric: &mut LoomFabric, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        let ready = |half| [0, 1].map(|rank| combine_status(half, rank));
        if [Partition::P0, Partition::P1].map(ready).as_flattened().contains(&at) {
            return fabric.cells().store(to, at, word, Ordering::Relaxed);
        }
        fabric.publish(to, at, word)
    }
}

/// What follows an observe may have come before it.
#[derive(Clone, Copy, Debug)]
pub struct RelaxedObserve;

impl Twist for RelaxedObserve {
    fn accesses(&self) -> Accesses {
        Accesses { relaxed_loads: true, ..Accesses::default() }
    }
}

/// Rows go past the caches. Not broken, but for the fence that is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PastCaches {
    /// No fence is left out.
    #[default]
    Fenced,
    /// The fence before a publish is left out.
    NotBeforePublish,
    /// The fence in quiet is left out.
    NotInQuiet,
    /// Both are left out.
    NotBeforePublishNorInQuiet,
    /// The fence before the fabric is dropped is left out.
    NotAtTheEnd,
}

impl Twist for PastCaches {
    fn accesses(&self) -> Accesses {
        Accesses { streaming: true, ..Accesses::default() }
    }

    fn publish(&mut self, fabric: &mut LoomFabric, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        match self {
            Self::NotBeforePublish | Self::NotBeforePublishNorInQuiet => {
                unfenced(fabric, |fabric| fabric.publish(to, at, word))
            }
            _ => fabric.publish(to, at, word),
        }
    }

    fn quiet(&mut self, fabric: &mut LoomFabric) -> Result<bool, Fault> {
        match self {
            Self::NotInQuiet | Self::NotBeforePublishNorInQuiet => unfenced(fabric, LoomFabric::quiet),
            _ => fabric.quiet(),
        }
    }

    fn ended(&mut self, fabric: &mut LoomFabric) -> Result<(), Fault> {
        if *self == Self::NotAtTheEnd {
            forget(fabric);
        }
        Ok(())
    }
}

/// Puts to a rank come after the next publish to it, or after the word that tells the other cores that they have
/// landed.
#[derive(Clone, Debug, Default)]
pub struct FlagFirst {
    held: Vec<(RankId, Place, Vec<u8>)>,
}

impl Twist for FlagFirst {
    fn put(
        &mut self,
        _: &mut LoomFabric,
        to: RankId,
        at: Place,
        row: &[u8],
        tail: &[u8],
    ) -> Result<(), Fault> {
        self.held.push((to, at, [row, tail].concat()));
        Ok(())
    }

    fn publish(&mut self, fabric: &mut LoomFabric, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        fabric.publish(to, at, word)?;
        let puts = self.held.extract_if(.., |(rank, ..)| *rank == to || is_core_word(at));
        puts.into_iter().try_for_each(|(to, at, bytes)| fabric.put(to, at, &bytes, &[]))
    }
}

/// Puts never land.
#[derive(Clone, Copy, Debug)]
pub struct NoPut;

impl Twist for NoPut {
    fn put(&mut self, _: &mut LoomFabric, _: RankId, _: Place, _: &[u8], _: &[u8]) -> Result<(), Fault> {
        Ok(())
    }
}

/// Dispatch does not wait at its first core barrier: every other core seems to have arrived.
#[derive(Clone, Copy, Debug)]
pub struct NoBarrier;

impl Twist for NoBarrier {
    fn observe(&self, fabric: &LoomFabric, at: Place) -> Result<u64, Fault> {
        // The first barrier of a group has the odd word; nobody carries a sum there.
        let first = core_word(fabric.cells().core(), 1);
        if is_core_word(at) && same_parity(at, first) { fabric.observe(first) } else { fabric.observe(at) }
    }
}

/// A core waits at its first barrier for the cores with lower numbers only.
#[derive(Clone, Copy, Debug)]
pub struct LowerCoresOnly;

impl Twist for LowerCoresOnly {
    fn observe(&self, fabric: &LoomFabric, at: Place) -> Result<u64, Fault> {
        let higher = is_core_word(at) && at > core_word(fabric.cells().core(), 1);
        if higher { NoBarrier.observe(fabric, at) } else { fabric.observe(at) }
    }
}

/// A core has one word for all its barriers. Whoever finds a later epoch there than its own takes it for
/// arrived, with the sum that it finds.
#[derive(Clone, Copy, Debug)]
pub struct OneCoreWord;

impl Twist for OneCoreWord {
    fn publish(&mut self, fabric: &mut LoomFabric, to: RankId, at: Place, word: u64) -> Result<(), Fault> {
        fabric.publish(to, first_word(at), word)
    }

    fn observe(&self, fabric: &LoomFabric, at: Place) -> Result<u64, Fault> {
        let seen = fabric.observe(first_word(at))?;
        if !is_core_word(at) {
            return Ok(seen);
        }
        let (sums, epoch) = (seen << 2 >> 2, seen >> 62);
        let asked = fabric.observe(core_word(fabric.cells().core(), 0))? >> 62;
        let ahead = epoch.wrapping_sub(asked) % 4 == 1;
        let behind = asked.wrapping_sub(epoch) % 4 == 1;
        let shown = if ahead { asked } else { asked.wrapping_sub(2) % 4 };
        Ok(if ahead || behind { shown << 62 | sums } else { seen })
    }
}

fn is_core_word(at: Place) -> bool {
    at.region == Region::State && at.offset >= CORE_WORDS
}

fn same_parity(a: Place, b: Place) -> bool {
    a.offset % 16 == b.offset % 16
}

fn first_word(at: Place) -> Place {
    if is_core_word(at) { Place::state(at.offset / 16 * 16) } else { at }
}

/// Operators of a kind have one partition: its selectors never change.
#[derive(Clone, Copy, Debug)]
pub struct OnePartition(pub Operator);

impl Twist for OnePartition {
    fn observe(&self, fabric: &LoomFabric, at: Place) -> Result<u64, Fault> {
        if at == selector(self.0, fabric.cells().core()) { Ok(0) } else { fabric.observe(at) }
    }
}

/// Flags are never cleared.
#[derive(Clone, Copy, Debug)]
pub struct NoClear;

impl Twist for NoClear {
    fn store(&mut self, fabric: &mut LoomFabric, at: Place, word: u64) -> Result<(), Fault> {
        // A selector is flipped as ever.
        if fabric.cells().private(at).is_some() { fabric.store(at, word) } else { Ok(()) }
    }
}

/// Clears land as late as the contract allows: at the next quiet. Not broken.
#[derive(Clone, Debug, Default)]
pub struct ClearsAtQuiet {
    held: Vec<(Place, u64)>,
}

impl Twist for ClearsAtQuiet {
    fn store(&mut self, fabric: &mut LoomFabric, at: Place, word: u64) -> Result<(), Fault> {
        // A core reads its selectors before the next quiet.
        if fabric.cells().private(at).is_some() {
            return fabric.store(at, word);
        }
        self.held.push((at, word));
        Ok(())
    }

    fn quiet(&mut self, fabric: &mut LoomFabric) -> Result<bool, Fault> {
        self.held.drain(..).try_for_each(|(at, word)| fabric.store(at, word))?;
        fabric.quiet()
    }
}

/// Quiet does not wait for clears: they land when the operator that asked for quiet has ended.
#[derive(Clone, Debug, Default)]
pub struct ClearsPastQuiet {
    held: ClearsAtQuiet,
    passed: Vec<(Place, u64)>,
}

impl Twist for ClearsPastQuiet {
    fn store(&mut self, fabric: &mut LoomFabric, at: Place, word: u64) -> Result<(), Fault> {
        self.held.store(fabric, at, word)
    }

    fn quiet(&mut self, fabric: &mut LoomFabric) -> Result<bool, Fault> {
        self.passed.append(&mut self.held.held);
        fabric.quiet()
    }

    fn ended(&mut self, fabric: &mut LoomFabric) -> Result<(), Fault> {
        self.passed.drain(..).try_for_each(|(at, word)| fabric.store(at, word))
    }
}

/// Combine waits for a dispatch flag of the first partition, too.
#[derive(Clone, Copy, Debug)]
pub struct CombineWaitsFor {
    /// That flag's slot.
    pub slot: u32,
}

impl Twist for CombineWaitsFor {
    fn observe(&self, fabric: &LoomFabric, at: Place) -> Result<u64, Fault> {
        let also = fabric.observe(dispatch_status(Partition::P0, self.slot))?;
        if also == 0 { Ok(0) } else { fabric.observe(at) }
    }
}

/// Combine does not wait for one of its flags.
#[derive(Clone, Copy, Debug)]
pub struct CombineIgnores {
    pub flag: Place,
}

impl Twist for CombineIgnores {
    fn observe(&self, fabric: &LoomFabric, at: Place) -> Result<u64, Fault> {
        if at == self.flag { Ok(ARRIVED) } else { fabric.observe(at) }
    }
}
