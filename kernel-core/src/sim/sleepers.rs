//! The cores that sleep until certain bytes change.

use super::chooser::Actor;
use crate::fabric::Awaited;
use crate::place::{Place, Region};
use crate::units::RankId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of a block.
const BLOCK: u64 = 512;

/// A block of a member's memory, by its number.
type Block = (RankId, Region, u64);

#[derive(Clone, Debug, Default)]
pub(super) struct Sleepers {
    awaited: BTreeMap<Actor, Vec<Awaited>>,
    /// By block, the bytes on which a core sleeps.
    blocks: BTreeMap<Block, Vec<(Range<u64>, Actor)>>,
}

impl Sleepers {
    pub(super) fn add(&mut self, actor: Actor, on: &[Awaited]) {
        for (block, bytes) in on.iter().flat_map(|what| blocks(actor, what)) {
            self.blocks.entry(block).or_default().push((bytes, actor));
        }
        self.awaited.insert(actor, on.to_vec());
    }

    fn wake(&mut self, actor: Actor) {
        for (block, _) in
            self.awaited.remove(&actor).unwrap_or_default().iter().flat_map(|what| blocks(actor, what))
        {
            if let Some(sleepers) = self.blocks.get_mut(&block) {
                sleepers.retain(|sleeper| sleeper.1 != actor);
                if sleepers.is_empty() {
                    self.blocks.remove(&block);
                }
            }
        }
    }

    /// Wakes an actor that awaits just this.
    pub(super) fn wake_of(&mut self, actor: Actor, what: &Awaited) -> bool {
        let wakes = self.awaited.get(&actor).is_some_and(|on| on.contains(what));
        if wakes {
            self.wake(actor);
        }
        wakes
    }

    /// Wakes every core that has read any of these bytes.
    pub(super) fn wake_of_bytes(
        &mut self,
        member: RankId,
        at: Place,
        len: u64,
        mut woken: impl FnMut(Actor),
    ) {
        if self.blocks.is_empty() || len == 0 {
            return;
        }
        let end = at.offset + len;
        for block in at.offset / BLOCK..=(end - 1) / BLOCK {
            let Some(sleepers) = self.blocks.get(&(member, at.region, block)) else { continue };
            let touched = sleepers.iter().filter(|(bytes, _)| bytes.start < end && at.offset < bytes.end);
            let touched: Vec<Actor> = touched.map(|sleeper| sleeper.1).collect();
            for actor in touched {
                // An actor may have read the same bytes twice.
                if self.awaited.contains_key(&actor) {
                    self.wake(actor);
                    woken(actor);
                }
            }
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (Actor, &[Awaited])> {
        self.awaited.iter().map(|(actor, on)| (*actor, on.as_slice()))
    }
}

/// The blocks of memory that hold what an actor awaits, and what that is.
fn blocks(actor: Actor, awaited: &Awaited) -> impl Iterator<Item = (Block, Range<u64>)> + use<> {
    let (at, len) = match *awaited {
        Awaited::Word(at) => (at, 8),
        Awaited::Bytes(at, len) => (at, len),
        Awaited::Quiet | Awaited::Room => (Place::state(0), 0),
    };
    let bytes = at.offset..at.offset + len;
    let numbers = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
    numbers.map(move |block| ((actor.member, at.region, block), bytes.clone()))
}
