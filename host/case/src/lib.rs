//! Cases of MoE dispatch and combine, as files and in memory. Nothing here runs an operator.
//!
//! | you have | you want | begin with |
//! |---|---|---|
//! | a TOML or JSON file, or a pasted call of torch_npu | a checked configuration | [`config::Config`], [`hints::shape`] |
//! | a new key of configurations | to declare it | its row in `config/table.rs` |
//! | a broken configuration | every rule that it breaks, each with a cure | [`hints`], [`clashes`] for layers of one group |
//! | a configuration and a seed | tensors, the same everywhere | [`generate`] |
//! | a folder or a file of tensors | a case, a result | [`case`], [`store`], [`result`] |
//! | two values of a tensor | whether one is near enough to the other | [`tolerance`]; `veriep_group::compared` judges whole results |
//!
//! Every failure is an [`error::Error`]: one line, and the exit status of the program.

#![allow(missing_docs, reason = "a name that says it all needs no line beside it")]

pub mod atomic_file;
pub mod batch;
pub mod case;
pub mod clashes;
pub mod config;
pub mod dump;
pub mod error;
pub mod experts;
pub mod generate;
pub mod global_rank;
pub mod hints;
pub mod memory;
pub mod padding;
pub mod parallel;
pub mod presets;
#[cfg(test)]
#[path = "../../../kernel-core/src/tests/random.rs"]
mod random;
pub mod result;
pub mod stderr;
pub mod store;
pub mod tolerance;
pub mod verdict;
