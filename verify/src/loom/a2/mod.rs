//! A2's machines and agents under loom.
//!
//! ```text
//! memory   words of the windows and of the message area
//! fabric   a core's view and an agent's
//! group    cores and agents as loom threads, a schedule, the check of what comes out
//! litmus   the orderings of the agent's seam one by one
//! ```
//!
//! A window is far larger than what is meant in it, so only that is modelled: counts, rows and the places of flags
//! that the shape can have. Words that an atomic access may meet while another writes are loom's atomics: flags and the
//! doorbell. All others, counts, rows, task records and the whole of WindowsOut, are words that loom watches: an access
//! to one that is not ordered with its last write is a failure, whatever it sees. That is more than C11 asks of those
//! which backends access atomically, and says that flags cover them.
//!
//! A transfer is delivered by the thread that posts it, word by word, each a release. Delivered later it is by
//! [`Agency::Late`](group::Agency::Late): the next transfer first.

pub mod fabric;
pub mod group;
pub mod litmus;
pub mod memory;

/// What is broken: one duty of the protocol or one rule of the contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bend {
    #[default]
    None,
    RelaxedTransfer,
    /// The last word of a transfer is delivered first.
    LastWordFirst,
    RelaxedDoorbell,
    /// The agent does not acquire what it observes.
    RelaxedAgent,
    /// A core does not acquire what it observes.
    RelaxedObserve,
    /// What a core wrote for a transfer lands behind the doorbell.
    LateWrites,
    /// Task records do.
    LateTasks,
    /// Both halves of the message area are one.
    OneMessageSlot,
    /// Both halves of the windows are one.
    OneHalf,
    /// Core 0 flips `bufferChosen` as soon as it has read it.
    EarlyFlip,
    NoClears,
    /// Only what was waited for is cleared, as in the seed.
    SeedClears,
}
