//! Parameters of the memory: a [`Pace`] within the contract, and a [`Fault`] that breaks it.

use crate::fabric::{Capabilities, Terms};
use crate::place::Region;

/// The kind of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Put,
    Publish,
    Store,
    /// Into WindowsOut, or the window of the same rank.
    Write,
    Message,
    Transfer,
}

/// The time that an effect takes, in steps of any core.
#[derive(Clone, Copy, Debug)]
pub(super) enum Late {
    UpTo(u64),
    /// So many bytes in a step.
    ByLength(u64),
    /// The farther the number of the rank, the longer.
    ByRank(u64),
    /// Until the contract demands it.
    Forced,
    /// All at the next multiple.
    Batches(u64),
}

/// The order in which the pieces of a put land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Any,
    Backwards,
}

/// The behaviour of a memory within the contract.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) rows: Late,
    pub(super) words: Late,
    pub(super) stores: Late,
    /// Puts land in pieces of so many bytes; 0 is whole.
    pub(super) pieces: usize,
    pub(super) order: Order,
    /// The number of times that quiet says no although it could say yes.
    pub(super) denials: u32,
    /// Every so many posts an agent is told that there is no room; 0 is never.
    pub(super) busy: u64,
    /// Every so many effects of a core find no room; 0 is never.
    pub(super) full: u64,
}

/// A put, or a piece of one, that a flag does not wait for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    All,
    /// Of puts longer than this.
    Above(usize),
    Below(usize),
    /// Those pieces of a put that are after so many bytes.
    Behind(usize),
    /// Pieces of the row, or of the tail.
    Row,
    Tail,
    /// Of every so many puts of a core the last.
    Nth(u64),
    /// While so many puts of the core are under way.
    Outstanding(usize),
    /// Every second unit of so many bytes.
    Stripe(u64),
    /// Not at a multiple.
    Unaligned(u64),
    /// The part of a put after a multiple that it crosses.
    Crossing(u64),
    OwnRank,
    OtherRanks,
    /// The first after a quiet.
    FirstAfterQuiet,
    /// Every core but the first of its rank.
    OtherCores,
    /// The place has been put to before.
    Again,
    /// The core has put so many bytes since it was quiet.
    SinceQuiet(u64),
    NoTail,
    /// It ends at a multiple.
    EndsAt(u64),
    /// To ranks from this number on.
    FromRank(u32),
    /// After so many calls.
    After(u64),
}

/// The time at which a put lands that a flag has not waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    Quiet,
    Steps(u64),
    Never,
}

/// A breach of the contract.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A publish does not wait for such puts.
    Loose(Which, When),
    /// An effect lands again so many calls later.
    Echo(Kind, u64),
    /// Of every so many effects of a core one is lost.
    Lost(Kind, u64),
    /// A put like that never comes.
    LostPut(Which),
    /// The whole line is written back, as it was when the effect was issued.
    Line(&'static [Kind], u64),
    /// A put writes whole blocks: zeros after its end.
    Padded(u64),
    /// A put is cut at a multiple of so many bytes.
    Cut(u64),
    /// A core keeps lines of so many bytes, and those after them, for so many reads.
    Stale {
        line: u64,
        ahead: u64,
        reads: u64,
        looks: Looks,
    },
    /// Quiet does not wait for these.
    Quiet(Kind),
    QuietOfRank {
        own: bool,
    },
    QuietAbove(usize),
    QuietAtSecondAsking,
    /// Places are taken modulo a power of two, also by readers.
    Wrap(Region, u64, bool),
    /// A word lands in two halves.
    Torn,
    /// A publish adds, or only sets bits.
    Adds,
    Ors,
    /// Only the low half of a word is written.
    Half,
    /// A publish waits until its core does something else.
    Unflushed,
    /// A core does not repeat what it has published last to a word.
    Unrepeated,
    /// A core observes its own publish, not the puts before it.
    OwnPublish,
    /// A core does not observe its own store.
    OwnStore,
    /// Stores to one word change their order.
    Stores,
    /// A store is dropped when others are publishing to its line.
    StoreContended(u64),
    /// Transfers that are longer land from their end.
    Backwards(u64),
    LastFirst(u64),
    /// The agent remembers what it has read of a source.
    Remembers,
    /// It sees a word before it has landed.
    Peeks,
    /// A message does not wait for such a one before it.
    Overtakes(usize),
    /// Words of a message are torn.
    TornMessage,
    /// A word that has landed is put back after so many calls, and comes again.
    Undone(u64),
    /// Transfers that are longer than this lose their end.
    CutTransfer(u64),
    /// A transfer is delivered twice, so many calls later.
    EchoTransfer(u64),
    /// A publish takes away the one that its core has under way to the same line.
    Merges(u64),
    /// A publish is dropped when so many are under way to its rank.
    Incast(usize),
    /// Quiet waits for effects on the rank that came last.
    QuietOfLast,
    /// A put is read when it lands: the next one of its core may be there then.
    LateSource,
    /// Every so many publishes of a core one lands at the next rank, too.
    Multicast(u64),
}

/// The call at which a core that keeps lines looks into the memory again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// By every observe, at everything: that is right.
    All,
    /// By every observe, at the line of the word.
    Line,
    /// By quiet.
    Quiet,
}

/// A memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Animal {
    pub(super) name: &'static str,
    pub(super) pace: Pace,
    pub(super) fault: Option<Fault>,
    /// Whether cores publish after completions.
    pub(super) completions: bool,
    /// The line that it states, in bytes.
    pub(super) line: u64,
}

impl Animal {
    /// Returns the terms on which it serves a group.
    pub(super) fn terms(&self) -> Terms {
        let without = if self.completions { Capabilities::SEND } else { Capabilities::empty() };
        Terms { calls: Capabilities::all() - without, line: self.line }
    }

    pub(super) const fn is_right(&self) -> bool {
        match self.fault {
            // It keeps to the line that it states.
            Some(Fault::Line(_, line)) => line <= self.line,
            None | Some(Fault::Stale { looks: Looks::All, .. }) => true,
            // Their quiet waits for all.
            Some(Fault::Loose(_, When::Quiet | When::Steps(_))) => self.completions,
            Some(_) => false,
        }
    }
}
