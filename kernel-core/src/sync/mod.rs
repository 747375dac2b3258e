//! Synchronisation that all protocols share: the partition selector, the flag words, the core barrier; and the join between
//! operators.

pub mod barrier;
pub mod call;
pub mod event;
pub mod flag;
pub mod join;
pub(crate) mod selector;

#[cfg(test)]
mod tests;
