//! A2's machines and agents under loom.
//!
//! ```text
//! agent    an agent and its interface
//! bent     a core's fabric, and what a defect bends in it
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

pub mod agent;
pub mod bent;
pub mod group;
pub mod litmus;
