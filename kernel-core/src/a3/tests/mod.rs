//! Both machines in lockstep: what they do step by step, what comes out, what they refuse.

mod corrupt;
mod garbage;
mod overlap;
mod rounds;
mod traces;
