//! The state machines of `kernel-core` under loom: the interleavings and stale values that C11 allows, in larger models with
//! bounded preemptions, and always of the newest seven values of a word.
//!
//! The explorer searches the protocol over many rounds; here it is the *orderings* that are searched: that a
//! publish is a release, an observe an acquire, a clear only relaxed, and that this is enough for every byte of
//! payload. The machines are the real ones, over a [fabric](cells) whose words are loom atomics and whose rows loom
//! watches for racing accesses. Every model must fail with a [defect](crate::defects).
//!
//! ```text
//! search   runs a body under loom, counts executions, catches failures
//! trace    what happened in the execution that failed
//! join     the joins of a rank's cores, meetings of processes: as drivers run them, over loom's words
//! domain   ranks and cores as loom threads, a schedule of operators, the check of what they put out
//! group    a domain of A3
//! round    who sends what in a round, and what the reference makes of it
//! places   which words and stretches of memory are modelled
//! memory   those, as objects of loom
//! cells    what a core or an agent reaches of them
//! litmus   the orderings one by one, without machines
//! a2       the same for A2: windows, message area, agents
//! bent     what a defect bends in a core's fabric
//! ```
//!
//! A failing model prints its last execution, access by access; one with a defect does so with `LOOM_TRACE=1`.
//!
//! A flag that is lost shows as a wait that polls in vain a hundred times over, which is a failure.
//!
//! What loom does not see: load buffering, stores older than the last seven of a word, more than five threads;
//! and its preemption bound is of use with two threads only. Beyond them it explores schedules in which two that
//! wait pass the turn to each other indefinitely while the third, for which they wait, starves.

pub mod a2;
mod bent;
pub mod cells;
mod domain;
pub mod group;
pub mod join;
pub mod litmus;
pub mod memory;
pub mod places;
pub mod round;
pub mod search;
pub mod trace;
