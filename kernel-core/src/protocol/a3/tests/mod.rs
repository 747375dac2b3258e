//! Both machines in lockstep: what they do step by step, what comes out, what they refuse.

mod corrupt;
mod garbage;
mod layers;
mod overlap;
pub(crate) mod rounds;
mod traces;
