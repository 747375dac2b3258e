//! Sizes, layouts, plans, exports and diagnoses of a configuration, as data. Nothing is run, and nothing is printed.
//!
//! | you want | begin with |
//! |---|---|
//! | the size of the window, term by term | [`sizes::BufferSizes`] |
//! | the memory of a rank | [`layout::layout`] |
//! | maps of memory, events and shares of work for a generator of kernels | [`export::Exported`] |
//! | who sends what, where and in which order | [`plans`] |
//! | the rank that holds up a group that hangs, from dumps of its memory | [`diagnose::diagnose`] |
//! | the choices that a request makes for a group | [`mode::Mode`] |

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod diagnose;
pub mod export;
pub mod layout;
pub mod mode;
pub mod plans;
pub mod sizes;
