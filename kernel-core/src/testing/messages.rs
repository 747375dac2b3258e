//! Messages between servers, landed word by word: late, in any order inside, one after the other from core to rank.

use super::domain::Dice;
use super::fake::World;
use super::nic::Bend;
use crate::place::Place;
use crate::units::{CoreId, RankId};
use alloc::vec::Vec;

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
        let loose = self.bend == Bend::LooseMessages;
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
