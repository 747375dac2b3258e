//! Every execution of the machines that C11 allows, and twins that fail in one of them.
#![cfg(feature = "loom")]

mod a2;
mod cores;
mod layouts;
mod litmus;
mod meetings;
mod orders;
mod ranks;
mod receive;
mod rounds;
mod streaming;
mod tp;
