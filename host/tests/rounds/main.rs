//! Whole rounds on every backend, most of them inside the test: the bytes of the oracle, or the words of a failure.

#[path = "../common/mod.rs"]
mod common;

mod a2;
mod all_routings;
mod data_races;
mod elastic;
mod hierarchy;
mod plan_and_run;
mod random_shapes;
#[cfg(feature = "schedule")]
mod replay;
mod stopped;
mod tp;
mod twins;
mod varied;
