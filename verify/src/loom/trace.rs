//! A log of the running execution, printed if that execution fails.

use core::cell::RefCell;
use core::fmt;
use veriep_core::place::Place;
use veriep_core::units::{CoreId, RankId};

/// One access of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub rank: RankId,
    pub core: CoreId,
    /// What it did; when it fails, this is the last event.
    pub access: Access,
}

/// What a core may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Put(RankId, Place),
    /// It wrote a word of a rank, also its own.
    Word(RankId, Place, u64),
    /// It saw a word that others write.
    Saw(Place, u64),
    /// It read a row of a rank.
    Read(RankId, Place),
    /// It wrote an output, or what a transfer is to carry.
    Wrote(Place),
    /// The agent of its rank delivered a word.
    Sent(RankId, Place, u64),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, core, access } = self;
        let core = format_args!("rank {rank} core {core}");
        match access {
            Access::Put(to, at) => write!(f, "{core} puts to rank {to} at {at}"),
            Access::Word(to, at, word) => write!(f, "{core} writes {word:#x} to rank {to} at {at}"),
            Access::Saw(at, word) => write!(f, "{core} sees {word:#x} at {at}"),
            Access::Read(of, at) => write!(f, "{core} reads {at} of rank {of}"),
            Access::Wrote(at) => write!(f, "{core} writes {at}"),
            Access::Sent(to, at, word) => {
                write!(f, "agent of rank {rank} delivers {word:#x} to rank {to} at {at}")
            }
        }
    }
}

thread_local! {
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// Forgets the execution before.
pub(super) fn restart() {
    EVENTS.with_borrow_mut(Vec::clear);
}

/// Notes an event, but not what a core sees again and again.
pub(super) fn note(event: Event) {
    EVENTS.with_borrow_mut(|events| {
        if events.last() != Some(&event) {
            events.push(event);
        }
    });
}

/// Prints the events of the execution that ended last.
pub(super) fn print() {
    EVENTS.with_borrow(|events| events.iter().for_each(|event| println!("    {event}")));
}
