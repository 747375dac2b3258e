//! Only Linux has jobs of an MPI.

use crate::against::Programs;
use crate::arguments::BenchArgs;
use crate::measure::Contender;
use veriep::cli::RowCopyArg;
use veriep::report::Format;
use veriep_case::case::Case;
use veriep_case::config::Config;
use veriep_case::error::Error;
use veriep_core::protocol::Receive;
use veriep_core::vector::Any;
use veriep_group::backend::Pages;

/// There is none.
pub(crate) enum Job {}

impl Job {
    pub(crate) fn start(_: &BenchArgs, _: Format) -> Result<Self, Error> {
        Err(Error::Request("--backend mpi: only Linux has it".to_owned()))
    }

    pub(crate) const fn is_first(&self) -> bool {
        match *self {}
    }

    pub(crate) fn of_first<T>(&self, _: Result<T, Error>) -> Result<T, Error> {
        match *self {}
    }

    pub(crate) fn version(&self) -> &str {
        match *self {}
    }

    pub(crate) fn fits(&self, _: &Config) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn contenders<'c>(
        &self,
        _: &BenchArgs,
        _: (&'c Case, usize),
        _: ((Receive, RowCopyArg), Any, Pages),
        _: &Programs,
    ) -> Result<Vec<Contender<'c>>, Error> {
        match *self {}
    }

    pub(crate) fn leave(self) {
        match self {}
    }
}
