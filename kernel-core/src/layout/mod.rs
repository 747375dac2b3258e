//! The memory layout: one file per region, with its drawing on top. It is pure arithmetic; each offset formula of the
//! system is here once.

// Its macros are for all behind it.
#[macro_use]
pub mod expr;
pub mod a2_message;
pub mod a2_window;
pub mod affine;
pub mod block;
pub mod data;
pub mod direct;
pub mod event;
pub mod field;
mod fixed;
#[cfg(test)]
mod forward;
#[cfg(test)]
mod lines;
pub mod locate;
pub mod map;
pub mod outputs;
pub mod quantity;
pub mod record;
pub mod relay;
pub(crate) mod result;
pub mod row_table;
pub mod rules;
pub mod state;
pub mod table;
pub mod tp;

// Where addresses have 32 bits there are no such windows.
#[cfg(all(test, target_pointer_width = "64"))]
mod largest;
#[cfg(test)]
mod tests;
