//! Messages between servers, landed word by word: late, in any order inside, one after the other from core to rank.

use super::domain::{self, Dice};
use super::fake::World;
use super::nic::Bend;
use crate::layout::relay;
use crate::layout::state::Partition;
use crate::place::Place;
use crate::units::{CoreId, RankId};
use alloc::vec::Vec;

/// A duty of a hierarchy left out, or a rule of its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loose {
    /// Messages of one core to one rank overtake each other.
    Messages,
    /// A record passes for complete once its own flag is there; records are so many bytes apart.
    OwnFlags(u64),
    /// Nobody waits for near ranks to enter.
    Unentered,
    /// Both partitions are one.
    OnePartition,
    /// Quiet says yes before anything has landed.
    Quiet,
}

impl Loose {
    pub(super) fn first_partition(offset: u64) -> u64 {
        let shape = domain::PAIR.shape();
        let of = |p| {
            [relay::end_flag(p, 0), relay::count(&shape, p, 0, RankId(0)), relay::record(&shape, p, 0, 0)]
        };
        let pairs = of(Partition::P0).into_iter().zip(of(Partition::P1));
        let back = pairs.map(|(first, second)| (second.offset, second.offset - first.offset));
        let back = back.filter(|&(start, len)| (start..start + len).contains(&offset));
        offset - back.map(|(_, len)| len).next().unwrap_or(0)
    }

    /// Where somebody looks who looks there.
    pub(super) fn looked_at(self, offset: u64) -> u64 {
        let shape = domain::PAIR.shape();
        let start = |p| relay::record(&shape, p, 0, 0).offset;
        let areas = [Partition::P0, Partition::P1].map(start);
        match self {
            Self::OwnFlags(pitch) => {
                let len = areas[1] - areas[0];
                let area = areas.into_iter().find(|&start| (start + pitch..start + len).contains(&offset));
                let is_flag = area.is_some_and(|start| (offset - start).is_multiple_of(pitch));
                if is_flag { offset - pitch } else { offset }
            }
            _ => offset,
        }
    }

    pub(super) fn is_entered(at: Place) -> bool {
        (0..8).any(|near| relay::entered(near) == at)
    }
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    from: (RankId, CoreId),
    to: RankId,
    /// Words that have not landed.
    left: Vec<(Place, u64)>,
}

impl Message {
    pub(super) fn new(from: (RankId, CoreId), to: RankId, at: Place, bytes: &[u8]) -> Self {
        let place = |i: usize| Place { offset: at.offset + 8 * i as u64, ..at };
        let words = bytes.as_chunks().0.iter().enumerate();
        Self { from, to, left: words.map(|(i, &word)| (place(i), u64::from_le_bytes(word))).collect() }
    }
}

impl World {
    /// Lands up to `words` words of messages, whichever the dice says of those that may.
    pub(crate) fn land_messages(&mut self, words: u32, dice: &mut Dice) {
        let first_of_its_path = |messages: &[Message], i: usize| {
            let path = |message: &Message| (message.from, message.to);
            messages[..i].iter().all(|earlier| path(earlier) != path(&messages[i]))
        };
        let loose = self.bend == Bend::Servers(Loose::Messages);
        let may: Vec<usize> =
            (0..self.messages.len()).filter(|&i| loose || first_of_its_path(&self.messages, i)).collect();
        if may.is_empty() {
            return;
        }
        let i = may[dice.below(may.len() as u32) as usize];
        for _ in 0..words {
            let left = self.messages[i].left.len() as u32;
            if left == 0 {
                break;
            }
            let (at, word) = self.messages[i].left.swap_remove(dice.below(left) as usize);
            let to = self.messages[i].to;
            self.poke_word(to, at, word);
        }
        if self.messages[i].left.is_empty() {
            self.messages.remove(i);
        }
    }

    /// Whether a message has not landed in full.
    pub(crate) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }
}
