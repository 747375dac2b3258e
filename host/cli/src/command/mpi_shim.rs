//! `veriep mpi-shim`

use crate::cli::MpiShimArgs;
use crate::report::{Report, columns};
use serde::Serialize;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use veriep_case::error::Error;
use veriep_mpi::wire::{MARK, SHIM, file_name, home};

/// A library for each MPI.
#[derive(Serialize)]
struct Made {
    ok: bool,
    shims: Vec<Shim>,
}

#[derive(Serialize)]
struct Shim {
    mpi: String,
    mpicc: String,
    path: PathBuf,
}

pub(super) fn run(args: &MpiShimArgs, report: &mut Report) -> Result<(), Error> {
    let nowhere = || Error::Request("no home folder: --out FOLDER says where the library goes".to_owned());
    let out = args.out.clone().or_else(home).ok_or_else(nowhere)?;
    fs::create_dir_all(&out).map_err(|e| Error::File(format!("{}: cannot make it: {e}", out.display())))?;
    let mut shims = Vec::new();
    match &args.mpicc {
        Some(mpicc) => shims.extend(compile(mpicc, &out)?),
        None => {
            for mpicc in ["mpicc.openmpi", "mpicc.mpich"] {
                shims.extend(compile(Path::new(mpicc), &out)?);
            }
            if shims.is_empty() {
                shims.extend(compile(Path::new("mpicc"), &out)?);
            }
        }
    }
    if shims.is_empty() {
        let mpicc = args.mpicc.as_deref().unwrap_or(Path::new("mpicc")).display();
        return Err(Error::Request(format!(
            "{mpicc}: no such program: the C compiler of an MPI must be installed, or --mpicc must name it"
        )));
    }
    report.emit(&Made { ok: true, shims }, |made| {
        let row = |shim: &Shim| vec![shim.mpi.clone(), shim.mpicc.clone(), shim.path.display().to_string()];
        columns(&["MPI", "compiler", "library"], &made.shims.iter().map(row).collect::<Vec<_>>())
    })
}

/// Compiles by that compiler, if it is there.
fn compile(mpicc: &Path, out: &Path) -> Result<Option<Shim>, Error> {
    let name = mpicc.display().to_string();
    let of_file = |e: std::io::Error| Error::File(format!("{}: cannot write: {e}", out.display()));
    let folder = tempfile::tempdir_in(out).map_err(of_file)?;
    let (source, made) = (folder.path().join("shim.c"), folder.path().join("shim.so"));
    fs::write(&source, SHIM).map_err(of_file)?;
    let ran = Command::new(mpicc).args(["-O2", "-fPIC", "-shared", "-o"]).arg(&made).arg(&source).output();
    let ran = match ran {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::Request(format!("{name}: cannot be started: {e}"))),
        Ok(ran) => ran,
    };
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        // A compiler says much; where it begins to be wrong is enough.
        let is_error = |line: &&str| line.contains("error");
        let said = said.lines().find(is_error).or(said.lines().next()).unwrap_or("").trim();
        return Err(Error::Request(format!("{name}: {}: {said}", ran.status)));
    }
    let bytes = match fs::read(&made) {
        // A program that compiles nothing may end well, too.
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.map_err(of_file)?,
    };
    let mpi =
        mpi_of(&bytes).ok_or_else(|| Error::Request(format!("{name}: has made no library for an MPI")))?;
    let path = out.join(file_name(&mpi));
    // As a whole: a group may be about to load the one that was there.
    fs::rename(&made, &path).map_err(of_file)?;
    Ok(Some(Shim { mpi, mpicc: name, path }))
}

/// The MPI that a library's file names.
fn mpi_of(library: &[u8]) -> Option<String> {
    let mark = MARK.as_bytes();
    let at = library.windows(mark.len()).position(|window| window == mark)?;
    let name = library.get(at + mark.len()..)?.split(|&byte| byte == b':').next()?;
    String::from_utf8(name.to_owned()).ok().filter(|name| name.len() < 32)
}
