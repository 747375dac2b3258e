//! Baselines: programs of their own on the same inputs, started by mpirun. Their sources are in `host/bench/baselines`.

use crate::arguments::{Baseline, BenchArgs};
use crate::blocks::System;
use crate::child::Started;
use crate::live::{deadline, of_sizes};
use crate::measure::Samples;
use core::time::Duration;
use serde::Deserialize;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use veriep::cli::name_of;
use veriep_case::case::Case;
use veriep_case::config::{Bs, Config};
use veriep_case::error::{Error, Problem};
use veriep_case::global_rank::all;
use veriep_case::store::bytes_of;
use veriep_core::place::Tensor;
use veriep_core::units::RankId;
use veriep_group::expected::Expected;
use veriep_group::traffic::Bytes;

/// Names a folder of built baselines.
const FOLDER: &str = "VERIEP_BASELINES";
/// Memory, so that no disk is measured.
const MEMORY_FOLDER: &str = "/dev/shm";
/// What a program puts out, one behind the other.
const OUTPUTS: [Tensor; 4] = [Tensor::EpRecvCounts, Tensor::ExpandX, Tensor::DynamicScales, Tensor::XOut];
/// What to do if one is missing.
const BUILD: &str =
    "make -C host/bench/baselines builds it (needs OpenMPI), --baselines FOLDER says where it is";

#[derive(Debug)]
pub(crate) struct Programs {
    folder: PathBuf,
    asked: Vec<Baseline>,
    /// The version that `mpirun` reports.
    pub(crate) mpi_version: Option<String>,
}

/// What a baseline prints: nanoseconds by iteration, or of a round of a chain.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Printed {
    dispatch_ns: Vec<u64>,
    combine_ns: Vec<u64>,
    round_ns: Vec<u64>,
}

/// What a baseline copies in dispatch and combine.
pub(crate) fn moved(baseline: Baseline, bytes: &Bytes) -> (u64, u64) {
    // Permuted, transferred, permuted; or straight to the final place and read there.
    let copies = if baseline == Baseline::MpiAlltoallv { 3 } else { 1 };
    if baseline == Baseline::MpiIsend {
        return (bytes.payload, bytes.results);
    }
    // Taken before they are read.
    let taken = if baseline == Baseline::MpiPut { 2 } else { copies };
    (copies * bytes.payload, taken * bytes.results + bytes.written)
}

impl Programs {
    /// Looks for the programs and for mpirun; not in a job of an MPI of that version, where the processes themselves do it.
    pub(crate) fn find(args: &BenchArgs, job: Option<&str>) -> Result<Self, Error> {
        let asked = args.against.clone();
        let folder = folder(args);
        let in_job = |baseline: &&Baseline| matches!(baseline, Baseline::MpiAlltoallv | Baseline::MpiIsend);
        let only = |baseline: &Baseline, which: &str| {
            Error::Request(format!("--against {}: {which} --backend mpi", name_of(*baseline)))
        };
        if let Some(version) = job {
            return match asked.iter().find(|baseline| !in_job(baseline)) {
                Some(baseline) => Err(only(baseline, "a program of its own: not with")),
                None => Ok(Self { folder, asked, mpi_version: Some(version.to_owned()) }),
            };
        }
        if let Some(baseline) = asked.iter().find(|&&baseline| baseline == Baseline::MpiIsend) {
            return Err(only(baseline, "only with"));
        }
        if asked.is_empty() {
            return Ok(Self { folder, asked, mpi_version: None });
        }
        for baseline in &asked {
            let program = folder.join(name_of(*baseline));
            let refuse = |why: &str| {
                let (name, program) = (name_of(*baseline), program.display());
                Err(Error::Request(format!("--against {name}: {program}: {why}: {BUILD}")))
            };
            match program.metadata() {
                Ok(about) if about.is_file() && about.permissions().mode() & 0o111 == 0 => {
                    return refuse("not executable");
                }
                Ok(about) if about.is_file() => {}
                _ => return refuse("missing"),
            }
        }
        let (name, limit) = (name_of(asked[0]), deadline(args));
        let mut mpirun = Started::new(Command::new("mpirun").arg("--version")).map_err(|e| {
            Error::Request(format!("--against {name}: cannot start mpirun: {e}: must be OpenMPI's"))
        })?;
        let mpi_version = match mpirun.line(limit) {
            Err(RecvTimeoutError::Timeout) => {
                let limit = limit.as_secs_f64();
                let line = format!("--against {name}: mpirun --version: not done after {limit} s");
                return Err(Error::NoProgress { line, missing: Vec::new() });
            }
            line => line.ok(),
        };
        Ok(Self { folder, asked, mpi_version })
    }

    /// Whether the programs can do what `config` asks.
    ///
    /// # Errors
    /// Each parameter whose value they do not have.
    pub(crate) fn comparable(&self, config: &Config) -> Result<(), Error> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, parameter: &str, seen: String, value: &str| {
            if !holds {
                problems.push(Problem::new(parameter, &format!(" = {seen}"), format!("must be {value}")));
            }
        };
        let numbers = [
            ("shared_expert_rank_num", config.shared_expert_rank_num, 0),
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
        if self.fitting(config).next().is_none() {
            must(
                config.quant_mode == 0,
                "quant_mode",
                config.quant_mode.to_string(),
                "0 (only c-shared-window and c-shared-window-ahead have int8)",
            );
        }
        if self.asked.is_empty() || problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid { place: "--against".to_owned(), problems })
    }

    /// Those that know how rows travel in `config`, in the order in which they were asked for.
    pub(crate) fn fitting<'p>(&'p self, config: &'p Config) -> impl Iterator<Item = Baseline> + 'p {
        self.asked
            .iter()
            .copied()
            .filter(|b| b.quantises() && config.quant_mode == 2 || config.quant_mode == 0)
    }

    /// Starts a program on `case`. It sleeps until it is told to do something.
    ///
    /// # Errors
    /// There is no room for its inputs, or no mpirun.
    pub(crate) fn start<'c>(
        &self,
        baseline: Baseline,
        args: &BenchArgs,
        case: &'c Case,
    ) -> Result<Program<'c>, Error> {
        let name = name_of(baseline);
        let shape = &case.shape;
        let expected = Expected::of(case);
        let exchange = Exchange::new(case, &expected)?;
        let mut command = Command::new("mpirun");
        // Ranks choose their processors themselves. Shared memory is all that one machine needs.
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]);
        command.args(["-n", &shape.ep_world_size().to_string()]);
        command.arg(self.folder.join(&name)).arg(exchange.path());
        let quantised = u32::from(shape.row_format().scale.is_some());
        let sizes = [shape.moe_expert_num(), shape.k(), shape.h(), shape.bs_max(), quantised];
        command.args(sizes.map(|size| size.to_string())).arg(exchange.slot.to_string());
        let mpirun = Started::new(&mut command)
            .map_err(|e| Error::Request(format!("{name}: cannot start mpirun: {e}")))?;
        Ok(Program { name, case, expected, mpirun, exchange, limit: deadline(args) })
    }
}

/// A baseline that runs.
pub(crate) struct Program<'c> {
    name: String,
    case: &'c Case,
    expected: Expected<'c>,
    mpirun: Started,
    exchange: Exchange,
    limit: Duration,
}

impl Program<'_> {
    /// Has it carry out an order.
    fn order(&mut self, order: &str) -> Result<Printed, Error> {
        if self.mpirun.tell(order).is_err() {
            return Err(self.ended());
        }
        let line = match self.mpirun.line(self.limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(self.late(&format!("{order}: not done after {} s", self.limit.as_secs_f64())));
            }
        };
        serde_json::from_str(&line)
            .map_err(|e| Error::Request(self.line(&format!("{order}: printed no times: {e}"))))
    }

    /// Has it carry out an order that takes so many times of each kind.
    fn timed<const N: usize>(
        &mut self,
        order: &str,
        count: usize,
        kinds: impl Fn(Printed) -> [(&'static str, Vec<u64>); N],
    ) -> Result<[Vec<Duration>; N], Error> {
        let kinds = kinds(self.order(order)?);
        if let Some((name, times)) = kinds.iter().find(|(_, times)| times.len() != count) {
            let seen = times.len();
            return Err(Error::Request(
                self.line(&format!("{order}: {name} has {seen} times: must be {count}")),
            ));
        }
        Ok(kinds.map(|(_, times)| times.into_iter().map(Duration::from_nanos).collect()))
    }

    /// What is wrong, behind whose it is.
    fn line(&self, what: &str) -> String {
        format!("{}: {}: {what}", self.name, of_sizes(self.case))
    }

    fn late(&self, what: &str) -> Error {
        Error::NoProgress { line: self.line(what), missing: Vec::new() }
    }

    /// Why it is gone.
    fn ended(&mut self) -> Error {
        let Some((status, said)) = self.mpirun.ended(self.limit) else {
            let limit = self.limit.as_secs_f64();
            return self.late(&format!("takes no orders and does not end within {limit} s"));
        };
        let why = said.iter().find(|line| line.starts_with("baseline: "));
        // mpirun's own words are between rulers.
        let why = why.or_else(|| said.iter().find(|line| line.contains(char::is_alphabetic)));
        let why = why.map_or("printed nothing that can be read", String::as_str);
        Error::Request(self.line(&format!("{status}: {why}")))
    }
}

impl System for Program<'_> {
    fn check(&mut self, name: &str) -> Result<(), Error> {
        self.exchange.empty(self.case).map_err(|e| Error::io(Path::new(&self.name), "exchange with", &e))?;
        self.order("check")?;
        compare(self.case, &self.expected, &self.exchange, name)
            .map_err(|line| Error::Wrong(self.line(&line)))
    }

    fn single(&mut self, warm_up: u32, iterations: u32) -> Result<Samples, Error> {
        let order = format!("single {warm_up} {iterations}");
        let kinds = |p: Printed| [("dispatch_ns", p.dispatch_ns), ("combine_ns", p.combine_ns)];
        let [dispatch, combine] = self.timed(&order, iterations as usize, kinds)?;
        Ok(Samples { dispatch, combine })
    }

    fn chain(&mut self, rounds: u32) -> Result<Duration, Error> {
        let [round] = self.timed(&format!("chain {rounds}"), 1, |p| [("round_ns", p.round_ns)])?;
        Ok(round.first().copied().unwrap_or_default())
    }
}

fn folder(args: &BenchArgs) -> PathBuf {
    if let Some(folder) = args.baselines.clone().or_else(|| std::env::var_os(FOLDER).map(PathBuf::from)) {
        return folder;
    }
    // target/release/veriep: target/baselines.
    let target = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.to_owned()));
    target.unwrap_or_default().join("baselines")
}

/// A file in memory that a program reads or writes. It has no name, so a process that is killed leaves nothing.
/// The gains, then x, ids and weights of each rank, then for each a slot: how many bytes follow, as 64 bits, and those.
#[derive(Debug)]
struct Exchange {
    file: File,
    slots_at: u64,
    slot: u64,
}

impl Exchange {
    fn new(case: &Case, expected: &Expected<'_>) -> Result<Self, Error> {
        let parent = Path::new(MEMORY_FOLDER);
        let parent = if parent.is_dir() { parent.to_owned() } else { std::env::temp_dir() };
        let mut inputs = bytes_of(&case.expert_gain, f32::to_ne_bytes);
        for tensors in &case.ranks {
            inputs.extend_from_slice(&tensors.x);
            inputs.extend(bytes_of(tensors.inputs().expert_ids, i32::to_ne_bytes));
            inputs.extend(bytes_of(&tensors.expert_scales, f32::to_ne_bytes));
        }
        let slots_at = inputs.len() as u64;
        let outputs = |rank| OUTPUTS.map(|tensor| expected.output(rank, tensor).len()).iter().sum::<usize>();
        let largest = all(&case.shape).map(outputs).max().unwrap_or_default() as u64;
        let file = tempfile::tempfile_in(&parent).and_then(|mut file| {
            file.write_all(&inputs)?;
            Ok(file)
        });
        let file = file.map_err(|e| Error::io(&parent, "write to", &e))?;
        Ok(Self { file, slots_at, slot: size_of::<u64>() as u64 + largest })
    }

    /// What the file is called as long as this process lives.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Takes out what was put out before.
    fn empty(&self, case: &Case) -> std::io::Result<()> {
        let nothing = 0_u64.to_ne_bytes();
        all(&case.shape).try_for_each(|rank| {
            self.file.write_all_at(&nothing, self.slots_at + u64::from(rank.0) * self.slot)
        })
    }

    /// What `rank` has put out.
    fn read(&self, rank: RankId) -> std::io::Result<Vec<u8>> {
        let at = self.slots_at + u64::from(rank.0) * self.slot;
        let mut len = [0; size_of::<u64>()];
        self.file.read_exact_at(&mut len, at)?;
        let mut seen = vec![0; u64::from_ne_bytes(len).min(self.slot - len.len() as u64) as usize];
        self.file.read_exact_at(&mut seen, at + len.len() as u64)?;
        Ok(seen)
    }
}

/// Whether every rank has put out what is expected.
fn compare(case: &Case, expected: &Expected<'_>, exchange: &Exchange, when: &str) -> Result<(), String> {
    for rank in all(&case.shape) {
        let seen = exchange.read(rank).map_err(|e| format!("{when} timing: rank{rank}: {e}"))?;
        let mut rest = seen.as_slice();
        for tensor in OUTPUTS {
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
