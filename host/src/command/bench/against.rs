//! Baselines: programs of their own on the same inputs, started by mpirun. Their sources are in `host/baselines`.

use super::live::{deadline, of_sizes};
use super::machine::Ticks;
use super::{Measured, Samples};
use crate::case::Case;
use crate::cli::{Baseline, BenchArgs};
use crate::command::traffic::Bytes;
use crate::config::{Bs, Config};
use crate::error::{Error, Problem};
use crate::expected::Expected;
use crate::store::bytes_of;
use core::time::Duration;
use kernel_core::place::Tensor;
use kernel_core::shape::QuantMode;
use kernel_core::units::RankId;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// Names a folder of built baselines.
const FOLDER: &str = "VERIEP_BASELINES";
/// Memory, so that no disk is measured.
const MEMORY_FOLDER: &str = "/dev/shm";
/// What to do if one is missing.
const BUILD: &str = "make -C host/baselines builds it (needs OpenMPI), --baselines FOLDER says where it is";

/// The programs asked for, all there.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
    asked: Vec<Baseline>,
    mpi_version: Option<String>,
}

/// What a baseline prints: nanoseconds by iteration.
#[derive(Debug, Deserialize)]
struct Printed {
    dispatch_ns: Vec<u64>,
    combine_ns: Vec<u64>,
    /// By chain.
    round_ns: Vec<u64>,
}

impl From<Printed> for Measured {
    fn from(printed: Printed) -> Self {
        let of = |times: Vec<u64>| times.into_iter().map(Duration::from_nanos).collect::<Vec<_>>();
        let single = Samples { dispatch: of(printed.dispatch_ns), combine: of(printed.combine_ns) };
        Self { single, chained: of(printed.round_ns), ..Self::default() }
    }
}

/// What a baseline copies in dispatch and combine.
pub(super) fn moved(system: &str, bytes: &Bytes) -> (u64, u64) {
    // Permuted, transferred, permuted; or straight to the final place and read there.
    let copies = if system == Baseline::MpiAlltoallv.name() { 3 } else { 1 };
    (copies * bytes.payload, copies * bytes.results + bytes.written)
}

impl Programs {
    /// Looks for the programs and for mpirun.
    ///
    /// # Errors
    /// One of them is missing.
    pub(super) fn find(args: &BenchArgs) -> Result<Self, Error> {
        let asked = args.against.clone();
        let folder = folder(args);
        if asked.is_empty() {
            return Ok(Self { folder, asked, mpi_version: None });
        }
        for baseline in &asked {
            let program = folder.join(baseline.name());
            if !program.is_file() {
                return Err(Error::Request(format!(
                    "--against {}: {}: missing: {BUILD}",
                    baseline.name(),
                    program.display()
                )));
            }
        }
        let version = Command::new("mpirun").arg("--version").stdin(Stdio::null()).output().map_err(|e| {
            Error::Request(format!(
                "--against {}: cannot start mpirun: {e}: must be OpenMPI's",
                asked[0].name()
            ))
        })?;
        let version = String::from_utf8_lossy(&version.stdout);
        Ok(Self { folder, asked, mpi_version: version.lines().next().map(str::to_owned) })
    }

    /// What mpirun says it is.
    pub(super) fn mpi_version(&self) -> Option<String> {
        self.mpi_version.clone()
    }

    /// Whether the programs can do what `config` asks.
    ///
    /// # Errors
    /// Each parameter whose value they do not have.
    pub(super) fn comparable(&self, config: &Config) -> Result<(), Error> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, parameter: &str, seen: String, value: &str| {
            if !holds {
                problems.push(Problem::new(parameter, &format!(" = {seen}"), format!("must be {value}")));
            }
        };
        let numbers = [
            ("shared_expert_num", config.shared_experts(), 0),
            ("zero_expert_num", config.zero_expert_num, 0),
            ("copy_expert_num", config.copy_expert_num, 0),
            ("const_expert_num", config.const_expert_num, 0),
            ("comm_quant_mode", config.comm_quant_mode, 0),
        ];
        for (parameter, seen, value) in numbers {
            must(seen == value, parameter, seen.to_string(), &value.to_string());
        }
        must(config.dtype == "bf16", "dtype", config.dtype.clone(), "bf16");
        must(config.op == "combine", "op", config.op.clone(), "combine");
        must(config.tp_world_size < 2, "tp_world_size", config.tp_world_size.to_string(), "0 or 1");
        must(matches!(config.bs, Bs::Uniform(_)), "bs", "a list".to_owned(), "the same on all ranks");
        if self.asked.contains(&Baseline::MpiAlltoallv) {
            must(config.quant_mode == 0, "quant_mode", config.quant_mode.to_string(), "0 (mpi-alltoallv)");
        }
        if self.asked.is_empty() || problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid { place: "--against".to_owned(), problems })
    }

    /// Measures a program on `case`, and compares what it has put out before and after.
    ///
    /// # Errors
    /// It fails, takes too long, or puts out something else than is expected.
    pub(super) fn measure(
        &self,
        baseline: Baseline,
        args: &BenchArgs,
        case: &Case,
        expected: &Expected<'_>,
    ) -> Result<Measured, Error> {
        let name = baseline.name();
        let files = write_inputs(case)?;
        let before = Ticks::now();
        let output = self.start(baseline, args, case, files.path())?;
        let stolen_share = Ticks::stolen_since(before);
        let printed: Printed = serde_json::from_slice(&output.stdout)
            .map_err(|e| Error::Wrong(format!("{name}: {}: printed no times: {e}", of_sizes(case))))?;
        for when in ["before", "after"] {
            compare(case, expected, files.path(), when)
                .map_err(|line| Error::Wrong(format!("{name}: {}: {line}", of_sizes(case))))?;
        }
        Ok(Measured { stolen_share, ..printed.into() })
    }

    fn start(
        &self,
        baseline: Baseline,
        args: &BenchArgs,
        case: &Case,
        folder: &Path,
    ) -> Result<Output, Error> {
        let (shape, limit) = (&case.shape, deadline(args));
        let (name, start) = (baseline.name(), Instant::now());
        let mut command = Command::new("mpirun");
        // Ranks choose their processors themselves. Shared memory is all that one machine needs.
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]);
        command.args([
            "--timeout",
            &limit.as_secs().max(1).to_string(),
            "-n",
            &shape.ep_world_size().to_string(),
        ]);
        command.arg(self.folder.join(name)).arg(folder);
        let quantised = u32::from(shape.quant_mode() == QuantMode::Dynamic);
        let sizes = [
            shape.moe_expert_num(),
            shape.k(),
            shape.h(),
            shape.bs_max(),
            quantised,
            args.warm_up,
            args.iters,
        ];
        let output = command
            .args(sizes.map(|size| size.to_string()))
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Error::Request(format!("{name}: cannot start mpirun: {e}")))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        if start.elapsed() >= limit {
            let line = format!("{name}: {}: not done after {} s", of_sizes(case), limit.as_secs_f64());
            return Err(Error::NoProgress { line, missing: Vec::new() });
        }
        let why = said
            .lines()
            .find(|line| line.starts_with("baseline: "))
            .or_else(|| said.lines().find(|l| !l.is_empty()));
        Err(Error::Request(format!(
            "{name}: {}: {}: {}",
            of_sizes(case),
            output.status,
            why.unwrap_or_default()
        )))
    }
}

/// Where the programs are.
fn folder(args: &BenchArgs) -> PathBuf {
    if let Some(folder) = args.baselines.clone().or_else(|| std::env::var_os(FOLDER).map(PathBuf::from)) {
        return folder;
    }
    // target/release/veriep: target/baselines.
    let target = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.to_owned()));
    target.unwrap_or_default().join("baselines")
}

/// Puts the inputs of all ranks into a folder of their own, which ends with the value returned.
fn write_inputs(case: &Case) -> Result<TempDir, Error> {
    let parent = Path::new(MEMORY_FOLDER);
    let parent = if parent.is_dir() { parent.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::Builder::new()
        .prefix("veriep-bench-")
        .tempdir_in(&parent)
        .map_err(|e| Error::io(&parent, "write to", &e))?;
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).map_err(|e| Error::io(&path, "write", &e))
    };
    for (rank, tensors) in case.ranks.iter().enumerate() {
        let ids = bytes_of(&tensors.expert_ids, i32::to_ne_bytes);
        let weights = bytes_of(&tensors.expert_scales, f32::to_ne_bytes);
        write(&format!("rank{rank}.in"), &[&tensors.x[..], &ids, &weights].concat())?;
    }
    write("gains", &bytes_of(&case.expert_gain, f32::to_ne_bytes))?;
    Ok(folder)
}

/// Whether every rank has put out what is expected: counts, rows, scales, results, one behind the other.
fn compare(case: &Case, expected: &Expected<'_>, folder: &Path, when: &str) -> Result<(), String> {
    for rank in (0..case.ranks.len() as u32).map(RankId) {
        let path = folder.join(format!("rank{rank}.{when}"));
        let seen = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut rest = seen.as_slice();
        for tensor in [Tensor::EpRecvCounts, Tensor::ExpandX, Tensor::DynamicScales, Tensor::XOut] {
            let must = expected.output(rank, tensor);
            let (mine, others) = rest.split_at(must.len().min(rest.len()));
            if mine != must {
                let byte = mine.iter().zip(must).position(|(a, b)| a != b).unwrap_or(mine.len());
                return Err(format!("{when} timing: rank{rank}.{} differs at byte {byte}", tensor.name()));
            }
            rest = others;
        }
        if !rest.is_empty() {
            return Err(format!("{when} timing: rank{rank} has {} bytes too many", rest.len()));
        }
    }
    Ok(())
}
