//! Groups that a launcher has started, as far as no MPI is needed: what is refused, and who says so. `.ci/mpi` has the MPIs.

use crate::common::{fails, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::tempdir;

/// Runs with the variables of a launcher and no shim but in `home`: none is beside this copy of the program.
fn launched(variables: &[(&str, &str)], home: &Path) -> Output {
    let program = home.join("veriep");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_veriep"), &program).unwrap();
    }
    let mut run = Command::new(program);
    run.args(["run", "--preset", "tiny", "--backend", "mpi"]).env_clear().env("HOME", home);
    run.envs(variables.iter().copied()).output().unwrap()
}

/// The status and what is on stderr.
fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn without_a_launcher_or_a_shim_one_line_says_so_by_the_first_process() {
    let home = tempdir().unwrap();
    let (status, line) = said(&launched(&[], home.path()));
    assert_eq!(status, Some(2));
    assert!(line.starts_with("error: --backend mpi: no mpirun or srun has started this process"), "{line}");
    for (first, second, shim) in [
        (("PMI_RANK", "0"), ("PMI_SIZE", "2"), "libveriep-mpi-mpich.so"),
        (("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), "libveriep-mpi-openmpi.so"),
        (("SLURM_PROCID", "0"), ("VERIEP_MPI", "cray"), "libveriep-mpi-cray.so"),
    ] {
        let (status, line) = said(&launched(&[first, second], home.path()));
        assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.starts_with(&format!("error: --backend mpi: no {shim} in ")), "{line}");
        assert!(line.contains("; hint: veriep mpi-shim --mpicc mpicc."), "{line}");
        // The others are as wrong, and silent.
        assert_eq!(said(&launched(&[(first.0, "1"), second], home.path())), (Some(2), String::new()));
    }
    // What is no option is told once, too.
    let of = |rank| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_veriep"));
        said(&run.args(["run", "--no-such"]).env("PMI_RANK", rank).output().unwrap())
    };
    assert!(of("0").1.starts_with("error: unexpected argument '--no-such'"));
    assert_eq!(of("1"), (Some(2), String::new()));
    let folder = home.path().join(".local/share/veriep");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libveriep-mpi-mpich.so"), "no library").unwrap();
    let (status, line) = said(&launched(&[("PMI_RANK", "0")], home.path()));
    assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.contains("libveriep-mpi-mpich.so: "), "{line}");
    let empty = [("OMPI_COMM_WORLD_RANK", "0"), ("VERIEP_MPI_SHIM", "")];
    let (_, line) = said(&launched(&empty, home.path()));
    assert!(line.starts_with("error: --backend mpi: no libveriep-mpi-openmpi.so in "), "{line}");
    let named = [("PMI_RANK", "0"), ("VERIEP_MPI_SHIM", "/nowhere/shim.so")];
    let (_, line) = said(&launched(&named, home.path()));
    assert!(line.starts_with("error: --backend mpi: /nowhere/shim.so: "), "{line}");
}

#[test]
fn a_shim_is_made_by_a_compiler_that_makes_one() {
    let folder = tempdir().unwrap();
    let made =
        |mpicc: &str| fails(2, &["mpi-shim", "--mpicc", mpicc, "--out", text(&folder.path().join("out"))]);
    assert!(made("no-such-mpicc").starts_with("error: no-such-mpicc: no such program: "));
    let compiler = |name: &str, script: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        text(&path).to_owned()
    };
    assert!(made(&compiler("fails", "echo no mpi.h >&2; exit 1")).ends_with("exit status: 1: no mpi.h"));
    let wordy = compiler("wordy", "printf 'In file:\\nx.c:1: error: no mpi.h\\nstopped.\\n' >&2; exit 1");
    assert!(made(&wordy).ends_with("wordy: exit status: 1: x.c:1: error: no mpi.h"));
    // `-o` and the file's name are before that of the source.
    let other = compiler("other", "echo something >$5");
    assert!(made(&other).ends_with("other: has made no library for an MPI"));
    let marked = compiler("marked", "echo veriep-mpi-shim:1:cray: >$5");
    let made =
        crate::common::json(0, &["mpi-shim", "--mpicc", &marked, "--out", text(&folder.path().join("out"))]);
    assert_eq!(made["shims"][0]["mpi"], "cray", "{made}");
    let left: Vec<_> =
        fs::read_dir(folder.path().join("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["libveriep-mpi-cray.so"]);
}

#[test]
fn options_of_mpi_are_refused_elsewhere() {
    let run = ["run", "--preset", "tiny"];
    let line = fails(2, &[&run[..], &["--all-far"]].concat());
    assert_eq!(line, "error: --all-far: only --backend mpi has it, not threads");
}
