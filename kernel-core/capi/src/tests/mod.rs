//! Tests of the C side: the header, and functions that receive invalid arguments.

mod halves;
mod header;
mod large;
mod misuse;
mod model;
mod vector;
