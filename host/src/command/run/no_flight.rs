//! Where there is no flight recorder: only Linux has it.

use super::Job;
use crate::driver::threads::Workers;
use crate::error::Error;
use crate::events::log::Log;
use crate::report::Report;
use crate::world::World;
use std::path::Path;
use std::sync::Arc;

/// Nowhere.
#[derive(Debug)]
pub(super) enum Folder {}

impl Folder {
    pub(super) const fn path(&self) -> &Path {
        match *self {}
    }
}

/// Refuses a folder.
pub(super) fn around<T>(
    job: &Job<'_>,
    _report: &mut Report,
    run: impl FnOnce(Option<Arc<Folder>>) -> Result<T, Error>,
) -> Result<T, Error> {
    match &job.args.flight {
        Some(path) if path != Path::new("none") => {
            Err(Error::Request(format!("--record {}: only Linux has it", path.display())))
        }
        _ => run(None),
    }
}

/// Nothing is recorded.
pub(super) type Own = Option<Arc<Log>>;

pub(super) const fn begin(_: Option<&Path>, _: usize, _: &Job<'_>, _: &World, _: &Workers) -> Own {
    None
}

pub(super) const fn ends(_: Option<&Path>, _: usize, _is_well: bool) {}
