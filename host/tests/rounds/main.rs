//! Whole rounds on every backend, most of them inside the test: the bytes of the oracle, or the words of a failure.

#[path = "../common/mod.rs"]
mod common;

mod a2;
mod all_routings;
mod audit;
mod bare_copies;
mod data_races;
mod elastic;
mod expected;
mod hangs;
mod hierarchy;
mod idle;
mod large;
#[cfg(target_os = "linux")]
mod live;
mod plan_and_run;
mod random_shapes;
#[cfg(feature = "schedule")]
mod replay;
mod stopped;
mod tp;
mod twins;
mod unread_ids;
mod varied;
#[cfg(feature = "commands")]
mod virtual_time;
