//! Only Linux has jobs of an MPI.

use super::Contender;
use super::against::Programs;
use crate::backend::Pages;
use crate::case::Case;
use crate::cli::{BenchArgs, RowCopyArg};
use crate::config::Config;
use crate::error::Error;
use crate::report::Format;
use veriep_core::protocol::Receive;
use veriep_core::vector::Any;

/// There is none.
pub(super) enum Job {}

impl Job {
    pub(super) fn start(_: &BenchArgs, _: Format) -> Result<Self, Error> {
        Err(Error::Request("--backend mpi: only Linux has it".to_owned()))
    }

    pub(super) const fn is_first(&self) -> bool {
        match *self {}
    }

    pub(super) fn of_first<T>(&self, _: Result<T, Error>) -> Result<T, Error> {
        match *self {}
    }

    pub(super) fn version(&self) -> &str {
        match *self {}
    }

    pub(super) fn fits(&self, _: &Config) -> Result<(), Error> {
        match *self {}
    }

    pub(super) fn contenders<'c>(
        &self,
        _: &BenchArgs,
        _: (&'c Case, usize),
        _: ((Receive, RowCopyArg), Any, Pages),
        _: &Programs,
    ) -> Result<Vec<Contender<'c>>, Error> {
        match *self {}
    }

    pub(super) fn leave(self) {
        match self {}
    }
}
