//! Both machines in lockstep: their steps, their results, and the values that they refuse.

mod corrupt;
mod garbage;
mod layers;
mod overlap;
pub(crate) mod rounds;
mod traces;
