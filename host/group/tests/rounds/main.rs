//! Whole rounds on every backend, most of them inside the test: the bytes of the reference, or the words of a failure.

#[path = "../../../../kernel-core/src/tests/random.rs"]
mod random;

mod a2;
mod all_routings;
mod audit;
mod bare_copies;
mod conformance;
mod data_races;
mod expected;
mod halves;
mod hangs;
mod hierarchy;
mod idle;
mod large;
#[cfg(target_os = "linux")]
mod live;
mod random_shapes;
mod stopped;
mod tp;
mod twins;
mod unread_ids;
mod varied;
