//! What C sees: the header, and functions that are given what makes no sense.

mod halves;
mod header;
mod large;
mod misuse;
mod model;
mod vector;
