//! Rules 2, 5 and 7 of the contract as a relation, for backends that delay effects: simulators and checkers.

use crate::place::Place;
use crate::units::{CoreId, RankId};

/// What kind of effect a core had.
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
    /// Whose.
    pub from: (RankId, CoreId),
    /// Into whose memory.
    pub to: RankId,
    /// Where it starts.
    pub at: Place,
    /// What.
    pub kind: Kind,
}

impl Issued {
    /// Whether this effect must not land before `earlier`, which was issued before it: a publish follows its
    /// core's puts to that rank, one core's stores to one word keep their order, and so do its messages to one rank.
    /// Nothing else is ordered.
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
