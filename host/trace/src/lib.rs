//! Events of a group, recorded and judged.
//!
//! | you have | you want | begin with |
//! |---|---|---|
//! | a group of this library | a record of its events | [`events::log::Log`], which takes them from threads and gives each its time; [`events::lines`] writes JSON lines |
//! | a record | a timeline: one page, or a Chrome trace | [`events::timeline`], [`events::page`], [`events::chrome`] |
//! | a record of any implementation | to know whether it keeps the contract of the memory | [`conform::conform`] |

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod conform;
pub mod events;
pub mod queue;
