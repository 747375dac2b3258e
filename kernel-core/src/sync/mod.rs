//! Synchronisation that all protocols share: the partition selector, the flag words, the core barrier.

pub mod barrier;
pub mod event;
pub mod flag;
pub(crate) mod selector;

#[cfg(test)]
mod tests;
