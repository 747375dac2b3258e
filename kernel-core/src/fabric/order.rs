//! Rules 2, 5 and 7 of the contract as a relation, for backends that delay effects: simulators and checkers.

use crate::place::Place;
use crate::units::{CoreId, RankId};

/// The kind of an effect of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A put.
    Put,
    /// A publish.
    Publish,
    /// A store.
    Store,
    /// A part of a message, by the number of the message.
    Message(u32),
}

/// An effect that has been issued and has not landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Issued {
    /// The core that issued it.
    pub from: (RankId, CoreId),
    /// The rank whose memory it changes.
    pub to: RankId,
    /// The place at which it starts.
    pub at: Place,
    /// Its kind.
    pub kind: Kind,
}

impl Issued {
    /// Returns whether this effect must not land before `earlier`, which was issued before it: a publish follows its core's
    /// puts to that rank, one core's stores to one word keep their order, and so do its messages to one rank. Nothing else
    /// is ordered.
    #[must_use]
    pub fn must_follow(&self, earlier: &Self) -> bool {
        let same_path = self.from == earlier.from && self.to == earlier.to;
        let flag_after_data = self.kind == Kind::Publish && earlier.kind == Kind::Put;
        let same_word = self.kind == Kind::Store && earlier.kind == Kind::Store && self.at == earlier.at;
        let next_message = match (self.kind, earlier.kind) {
            (Kind::Message(number), Kind::Message(before)) => number != before,
            _ => false,
        };
        same_path && (flag_after_data || same_word || next_message)
    }
}
