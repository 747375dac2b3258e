//! The start of a subcommand in processes that an MPI launcher has started: they connect, and the first one prints for all.

use crate::launcher::{Launched, launched};
use crate::wire::MpiWire;
use core::time::Duration;
use std::process::exit;
use std::thread;
use veriep_case::error::Error;
use veriep_core::protocol::Receive;
use veriep_group::backend::far::Wire;
use veriep_group::world::{Introduced, introduce};

/// How long the first process may take to say why it cannot begin.
const SAYS: Duration = Duration::from_secs(1);

/// Joins the processes that the launcher has started; `verb` is for a hint.
pub fn start(verb: &str) -> Result<(Launched, MpiWire), Error> {
    let no_launcher = || {
        Error::Request(format!(
            "--backend mpi: no mpirun or srun has started this process; \
             hint: mpirun -n 2 veriep {verb} --backend mpi ..."
        ))
    };
    let launched = launched().ok_or_else(no_launcher)?;
    if let Some(processes) = launched.processes.filter(|&processes| launched.process >= processes) {
        let process = launched.process;
        return Err(of_mpi(&format!(
            "process {process} of {processes}: a launcher has left its variables behind"
        )));
    }
    let wire = of_first(&launched, MpiWire::start(&launched).map_err(|why| of_mpi(&why)))?;
    Ok((Launched { process: wire.process(), ..launched }, wire))
}

pub fn of_mpi(why: &str) -> Error {
    Error::Request(format!("--backend mpi: {why}"))
}

/// Process 0 says why it cannot begin; the others only end.
pub fn of_first<T>(launched: &Launched, result: Result<T, Error>) -> Result<T, Error> {
    match result {
        Err(error) if launched.process != 0 => {
            // A launcher ends all as soon as one has failed, also the first before it has said why.
            thread::sleep(SAYS);
            exit(error.status().into())
        }
        result => result,
    }
}

/// What all processes of a group must have alike.
pub struct Alike {
    pub fingerprint: u64,
    /// Workers of each, if the caller has asked for a number.
    pub workers: Option<usize>,
    pub receive: Receive,
}

/// Meets the other processes of a group, which have been asked for the same, or says why it cannot begin.
pub fn meet<T>(
    launched: &Launched,
    wire: MpiWire,
    all_far: bool,
    asked: Result<(T, Alike), Error>,
) -> Result<(T, Introduced<MpiWire>), Error> {
    let (me, all) = (launched.process, wire.processes());
    let said = match &asked {
        Ok((_, alike)) => Ok((alike.fingerprint, alike.workers)),
        Err(error) => Err((error.status(), error.lines().join("; "))),
    };
    let mut introduced =
        of_first(launched, introduce(wire, (me, all), all_far, said).map_err(|why| of_mpi(&why)))?;
    let of_others = refused(&introduced);
    let error = match (of_others, asked) {
        (Some(_), Err(own)) if me == 0 => own,
        (Some(error), _) | (None, Err(error)) => error,
        (None, Ok((mine, alike))) => match is_apart(&introduced, alike.receive) {
            Some(error) => error,
            None => return Ok((mine, introduced)),
        },
    };
    // All have come to the same, and only the first one says so. It says its own error as it is.
    let _ = introduced.finish();
    of_first(launched, Err(error))
}

/// Why some process cannot begin.
fn refused(introduced: &Introduced<MpiWire>) -> Option<Error> {
    let errors = introduced.hellos.iter().enumerate().find_map(|(process, hello)| {
        let (status, line) = hello.error.clone()?;
        let line = if process == 0 { line } else { format!("process {process} on {}: {line}", hello.host) };
        Some(if status == 1 { Error::Wrong(line) } else { Error::Request(line) })
    });
    errors.or_else(|| {
        let process = introduced.differs()?;
        let must = "must have the same case, seed, rounds and options as process 0";
        Some(Error::Request(format!("process {process}: {must}")))
    })
}

/// Ranks that read each other's memory, on several nodes.
fn is_apart(introduced: &Introduced<MpiWire>, receive: Receive) -> Option<Error> {
    let (name, nodes) = (receive.name(), introduced.nodes());
    (receive.is_direct() && nodes > 1).then(|| {
        Error::Request(format!(
            "--receive {name}: its ranks read each other's memory, and those of this group are on {nodes} nodes: \
             must be one node, or --receive copy or in-place"
        ))
    })
}
