//! The flight record of a run: where it is, and what becomes of it.

use super::Job;
use crate::cli::BackendArg;
use crate::command::record::Subject;
use crate::driver::threads::Workers;
use crate::error::Error;
use crate::events::Unit;
use crate::global_rank;
pub(super) use crate::record::Folder;
use crate::record::{About, End, Notes, Writer, file_name};
use crate::report::{Report, note};
use crate::world::World;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Whether a run of that kind records if nobody says where.
const fn records(backend: BackendArg) -> bool {
    matches!(backend, BackendArg::Processes | BackendArg::Mpi)
}

/// Runs with a folder to record in, if there is to be one. It is kept if the run fails, or somebody has named it.
pub(super) fn around<T>(
    job: &Job<'_>,
    report: &mut Report,
    run: impl FnOnce(Option<Arc<Folder>>) -> Result<T, Error>,
) -> Result<T, Error> {
    let folder = make(job)?;
    let ran = run(folder.clone());
    if let Some(folder) = &folder {
        done(folder, ran.as_ref().err(), report);
    }
    ran
}

/// What becomes of the record at the end. A request that was refused has no use for one.
pub(super) fn done(folder: &Folder, error: Option<&Error>, report: &mut Report) {
    match error {
        Some(error) if error.status() != 2 => report.keeps(folder.path()),
        _ => folder.is_needed_no_more(),
    }
}

/// Where to record: in a folder of that name, in one without a name, or nowhere.
fn asked<'a>(job: &Job<'a>) -> Option<Option<&'a Path>> {
    match job.args.flight.as_deref() {
        Some(none) if none == Path::new("none") => None,
        None if !records(job.args.backend) => None,
        path => Some(path),
    }
}

fn make(job: &Job<'_>) -> Result<Option<Arc<Folder>>, Error> {
    let Some(path) = asked(job) else { return Ok(None) };
    match Folder::make(path, &abouts(job)?) {
        Ok(folder) => Ok(Some(Arc::new(folder))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(taken(path.unwrap_or_else(|| Path::new("--record"))))
        }
        Err(error) => {
            unrecorded(path.unwrap_or(&std::env::temp_dir()), &error);
            Ok(None)
        }
    }
}

fn taken(folder: &Path) -> Error {
    if !folder.is_dir() {
        return Error::file(folder, "must be a folder, for --record");
    }
    Error::file(folder, "has a record already, and none is written over: name another folder")
}

/// Refuses a folder that has a record of that process already.
pub(super) fn must_be_free(job: &Job<'_>, process: usize) -> Result<(), Error> {
    let is_taken = |folder: &&Path| folder.is_file() || folder.join(file_name(process)).exists();
    asked(job).flatten().filter(is_taken).map_or(Ok(()), |folder| Err(taken(folder)))
}

/// The folder in which one process of a group of that name records that somebody else has started, if it is to.
pub(super) fn join(job: &Job<'_>, group: &str, process: usize) -> Result<Option<Folder>, Error> {
    let Some(path) = asked(job) else { return Ok(None) };
    let abouts = abouts(job)?;
    let folder = Folder::join(path, group, &abouts[process]);
    Ok(folder.map_err(|error| unrecorded(path.unwrap_or(&std::env::temp_dir()), &error)).ok())
}

/// What the file of each process is of.
fn abouts(job: &Job<'_>) -> Result<Vec<About>, Error> {
    let Job { case, plan, processes, workers, .. } = job;
    let asked = (job.args.schedule.as_str(), plan.rounds());
    let subject = Subject::of(case, Unit::Ns, plan.options.choices, asked);
    let events = serde_json::to_value(subject.header())
        .map_err(|e| Error::Request(format!("--record: {}: {e}", job.source)))?;
    let about = About::here(events, job.args.backend == BackendArg::Processes);
    let about = |process| About {
        process,
        processes: *processes,
        ranks: World::split(*processes, global_rank::count(&case.shape), process)
            .map(|rank| case.name(rank).0)
            .collect(),
        cores: case.shape.aiv_num(),
        workers: workers.count,
        ..about.clone()
    };
    Ok((0..*processes).map(about).collect())
}

/// What a process records of its own ranks, if it does.
pub(super) type Own = Option<Arc<Writer>>;

/// Begins the record of the ranks of `world`, of process number `process` of a group that records in that folder. Without one,
/// or if that fails, the run goes on.
pub(super) fn begin(
    folder: Option<&Path>,
    process: usize,
    job: &Job<'_>,
    world: &World,
    workers: &Workers,
) -> Own {
    let folder = folder?;
    let here = (world.ranks().count() as u32, job.case.shape.aiv_num());
    let worker_of = |nth: usize, core| workers.worker_of(here, nth as u32, core);
    let begun = Notes::open(folder, process).and_then(|notes| {
        notes.started(std::process::id());
        Writer::new(notes.file(), worker_of)
    });
    begun.map(Arc::new).map_err(|error| unrecorded(folder, &error)).ok()
}

/// A process ends by itself.
pub(super) fn ends(folder: Option<&Path>, process: usize, is_well: bool) {
    // Without a file nobody reads of it.
    if let Some(Ok(notes)) = folder.map(|folder| Notes::open(folder, process)) {
        notes.ended(if is_well { End::Well } else { End::Failed });
    }
}

fn unrecorded(place: &Path, error: &io::Error) {
    note(&format!("note: --record: {}: {error}: the run goes on without a record", place.display()));
}
