//! Requests that do not fit together: one line each, and status 2.

use crate::common::{fails, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;

const TINY: [&str; 2] = ["--preset", "tiny"];

fn refused(more: &[&str]) -> String {
    fails(2, &[&TINY, more].concat())
}

#[test]
fn values_that_are_named_twice() {
    let twice = |option: &str| format!("error: {option}: each value may be named once");
    assert_eq!(refused(&["--receive", "direct", "--experts", "apart,apart"]), twice("--experts"));
    assert_eq!(refused(&["--receive", "copy,direct,copy"]), twice("--receive"));
}

#[test]
fn options_of_mpi_without_it() {
    assert_eq!(refused(&["--all-far"]), "error: --all-far: only --backend mpi has it");
    assert_eq!(refused(&["--against", "mpi-isend"]), "error: --against mpi-isend: only with --backend mpi");
    let line = refused(&["--backend", "threads,mpi"]);
    assert!(line.starts_with("error: --backend mpi: no mpirun or srun has started this process"), "{line}");
}

#[test]
fn a_report_over_an_input() {
    let folder = tempdir().unwrap();
    let config = folder.path().join("config.toml");
    fs::write(&config, "preset = \"tiny\"\n").unwrap();
    let before = fs::read(&config).unwrap();
    let line = fails(2, &[text(&config), "--out", text(&config)]);
    assert!(line.contains("is an input of this run"), "{line}");
    assert!(fs::read(&config).unwrap() == before);
}

fn program(path: &Path, script: &str) {
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The lines on stderr of a measurement against a baseline in this folder, which holds the only mpirun.
fn against(folder: &Path, more: &[&str]) -> Vec<String> {
    let mut command = Command::new(crate::PROGRAM);
    command.args(TINY).args(["--against", "mpi-alltoallv", "--baselines", text(folder)]).args(more);
    let output = command.env("PATH", folder).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn baselines_that_do_not_run() {
    let folder = tempdir().unwrap();
    let (path, baseline) = (text(folder.path()), folder.path().join("mpi-alltoallv"));
    let build = "make -C host/bench/baselines builds it (needs OpenMPI), --baselines FOLDER says where it is";
    let option = "error: --against mpi-alltoallv:";
    assert_eq!(against(folder.path(), &[]), [format!("{option} {path}/mpi-alltoallv: missing: {build}")]);
    fs::write(&baseline, "").unwrap();
    assert_eq!(
        against(folder.path(), &[]),
        [format!("{option} {path}/mpi-alltoallv: not executable: {build}")]
    );
    program(&baseline, "");
    let no_mpirun = "cannot start mpirun: No such file or directory (os error 2): must be OpenMPI's";
    assert_eq!(against(folder.path(), &[]), [format!("{option} {no_mpirun}")]);
    let mpirun = "#!/bin/sh\necho 'baseline: rank 1: no memory' >&2\nexit 3\n";
    program(&folder.path().join("mpirun"), mpirun);
    assert_eq!(
        against(folder.path(), &["--set", "dtype=f16", "--set", "copy_expert_num=1"]),
        ["error: --against: copy_expert_num = 1: must be 0", "error: --against: dtype = f16: must be bf16"]
    );
    assert_eq!(
        against(folder.path(), &["--iters", "1"]),
        ["error: mpi-alltoallv: ep_world_size = 2, bs = 4: exit status: 3: baseline: rank 1: no memory"]
    );
}
