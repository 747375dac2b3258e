//! One measurement: what is asked, in which order the systems take their turns, and the report.

use crate::against::Programs;
use crate::arguments::{BenchArgs, LiveArg};
use crate::blocks::Block;
use crate::entry::{Entry, Subject, System};
use crate::history::{Beside, Earlier};
use crate::live::{Counts, Group};
use crate::load::Counters;
use crate::machine::{Machine, Ticks, Versions};
use crate::mpi::Job;
#[cfg(target_os = "linux")]
use crate::processes::Processes;
use core::cell::Cell;
use core::time::Duration;
use serde::{Deserialize, Serialize};
use veriep::cli::{ConfigArgs, RowCopyArg};
use veriep::command::quantiles::Quantiles;
use veriep::command::source::{Source, inputs, keep_apart, resolve};
use veriep::report::{Report, progress};
use veriep_case::atomic_file::check_writable;
use veriep_case::case::{Case, support};
use veriep_case::config::{Bs, Config};
use veriep_case::error::Error;
use veriep_case::experts::Experts;
use veriep_case::generate::{Options, generate};
use veriep_case::hints;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::layout::direct;
use veriep_core::protocol::Receive;
use veriep_core::shape::{Given, Limits, Shape};
use veriep_core::vector::Any;
use veriep_group::backend::Pages;
use veriep_group::interrupt;
#[cfg(target_os = "linux")]
use veriep_group::world::Invited;

/// What is asked when nothing is: the yardstick of the documents.
const EP: [i64; 2] = [2, 8];
const BS: [i64; 3] = [16, 64, 128];

#[derive(Serialize)]
pub(crate) struct Bench {
    ok: bool,
    pub(crate) machine: Machine,
    versions: Versions,
    pub(crate) source: String,
    pub(crate) set: Vec<String>,
    pub(crate) routing: String,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    /// What works on rows.
    pub(crate) vector: &'static str,
    /// Of each system at each point.
    pub(crate) blocks: u32,
    /// Of each block.
    pub(crate) warm_up: u32,
    pub(crate) iterations: u32,
    interrupted: bool,
    pub(crate) results: Vec<Entry>,
    /// What has changed since an earlier report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compared: Option<Beside>,
}

/// Times by iteration.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Samples {
    pub(crate) dispatch: Vec<Duration>,
    pub(crate) combine: Vec<Duration>,
}

impl Samples {
    pub(crate) fn is_empty(&self) -> bool {
        self.dispatch.is_empty()
    }

    /// Of dispatch and combine, in milliseconds.
    pub(crate) fn medians(&self) -> [f64; 2] {
        [&self.dispatch, &self.combine].map(|times| Quantiles::of(times).map_or(0.0, |q| q.median))
    }
}

/// What a system took.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Of all blocks.
    pub(crate) single: Samples,
    pub(crate) blocks: Vec<Block>,
    /// Messages of a round and their bytes.
    pub(crate) sent: Option<[u64; 2]>,
    /// Of the machines, if that is asked.
    pub(crate) counts: Option<Counts>,
    /// What was going on in the turns of the machines.
    pub(crate) counters: Counters,
}

pub(crate) fn run(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    if let Some(invited) = Invited::of_parent().map_err(|e| Error::Request(e.to_string()))? {
        crate::processes::take_part(args, &invited);
    }
    if !args.backend.contains(&LiveArg::Mpi) {
        return measure(args, report, None);
    }
    let job = Job::start(args, report.format())?;
    measure(args, report, Some(&job))?;
    job.leave();
    Ok(())
}

/// Measures all that is asked for, perhaps in a job of an MPI, and reports.
fn measure(args: &BenchArgs, report: &mut Report, job: Option<&Job>) -> Result<(), Error> {
    let asked = asked(args, job);
    let asked = match job {
        Some(job) => job.of_first(asked)?,
        None => asked?,
    };
    let Asked { earlier, source, grid, ways, programs, vector, turns } = asked;
    let routing = args.routing.unwrap_or(source.routing);
    let options = Options { routing, seed: args.seed, ..Options::default() };
    let all = turns as u64 * u64::from(args.blocks);
    let bar = job.is_none_or(Job::is_first).then(|| progress(all, "blocks measured"));
    let measured = Cell::new(0);
    let tick = || {
        measured.set(measured.get() + 1);
        bar.iter().for_each(|bar| bar.inc(1));
    };
    let mut results = Vec::new();
    for (nth, point) in grid.into_iter().enumerate() {
        let generate = |config| generate(config, options, &source.name);
        let cases: Vec<Case> = point.into_iter().map(generate).collect::<Result<_, _>>()?;
        let first = nth * cases.len();
        results.extend(at_point(args, (&cases, first, &ways), (&programs, job), vector, &tick)?);
        if interrupt::is_asked() {
            break;
        }
    }
    let measured = measured.get();
    drop(bar);
    if job.is_some_and(|job| !job.is_first()) {
        return Ok(());
    }
    let mut bench = Bench {
        ok: true,
        machine: Machine::here(),
        versions: Versions::new(programs.mpi_version.clone()),
        source: source.name,
        set: args.config.set.clone(),
        routing: routing.name().to_owned(),
        seed: args.seed,
        threads: crate::live::threads(args),
        vector: vector.name(),
        blocks: args.blocks,
        warm_up: args.warm_up,
        iterations: args.iters,
        interrupted: measured < all,
        results,
        compared: None,
    };
    // What is kept is what was measured here.
    if let Some(path) = &args.out {
        crate::history::export(path, &report.json(&bench)?)?;
    }
    bench.compared = earlier.map(|earlier| earlier.beside(&bench)).transpose()?;
    let ended_early = || Error::Interrupted(format!("after {measured} of {all} blocks"));
    report.conclude(&bench, crate::table::table, if bench.interrupted { Err(ended_early()) } else { Ok(()) })
}

/// A checked request.
struct Asked {
    earlier: Option<Earlier>,
    source: Source,
    grid: Vec<Vec<Config>>,
    ways: Vec<Receive>,
    programs: Programs,
    vector: Any,
    /// Of all systems in a block, at all points.
    turns: usize,
}

/// Whatever is wrong with the request is said before the first measurement.
fn asked(args: &BenchArgs, job: Option<&Job>) -> Result<Asked, Error> {
    once(args)?;
    if job.is_none() && args.all_far {
        return Err(Error::Request("--all-far: only --backend mpi has it".to_owned()));
    }
    if job.is_none_or(Job::is_first) {
        keep_apart(&inputs(&args.config), &[("--out", args.out.as_deref())])?;
        args.out.iter().try_for_each(|path| check_writable(path))?;
    }
    let earlier = args.compare.as_deref().map(Earlier::read).transpose()?;
    let source = source(&args.config)?;
    let (grid, ways) = (grid(args, &source), ways(args)?);
    let (programs, vector) = (Programs::find(args, job.map(Job::version))?, args.vector.find()?);
    let mut turns = 0;
    for config in grid.iter().flatten() {
        let shape = hints::shape(config, Given::empty(), Limits::Product, &source.name)?;
        ways.iter().try_for_each(|&receive| support::receives(&shape, receive))?;
        programs.comparable(config)?;
        job.map_or(Ok(()), |job| job.fits(config))?;
        turns += ways.len() * args.row_copy.len() * args.backend.len() + programs.fitting(config).count();
    }
    Ok(Asked { earlier, source, grid, ways, programs, vector, turns })
}

/// Refuses a value that is named twice: two systems of one name could not be told apart.
fn once(args: &BenchArgs) -> Result<(), Error> {
    fn of<T: PartialEq>(option: &str, values: &[T]) -> Result<(), Error> {
        let twice = (1..values.len()).any(|i| values[..i].contains(&values[i]));
        if twice { Err(Error::Request(format!("{option}: each value may be named once"))) } else { Ok(()) }
    }
    of("--ep", &args.ep)?;
    of("--bs", &args.bs)?;
    of("--receive", &args.receive)?;
    of("--experts", &args.experts)?;
    of("--backend", &args.backend)?;
    if cfg!(not(target_os = "linux")) && args.backend.iter().any(|&backend| backend != LiveArg::Threads) {
        return Err(Error::Request("--backend processes, mpi: only Linux has them".to_owned()));
    }
    of("--row-copy", &args.row_copy)?;
    of("--quant-mode", &args.quant_mode)?;
    of("--aiv-num", &args.aiv_num)?;
    of("--against", &args.against)
}

/// The ways to receive, those with direct placement with all experts that are named.
pub(crate) fn ways(args: &BenchArgs) -> Result<Vec<Receive>, Error> {
    let is_placed = args.receive.iter().any(|receive| receive.is_direct());
    let all = args.receive.iter().flat_map(|&receive| {
        // Beside direct placement experts of the other ways are apart; alone they are refused.
        let apart = is_placed && !receive.is_direct();
        let experts = if apart { &[Experts::Apart][..] } else { &args.experts };
        experts.iter().map(move |experts| experts.of(receive))
    });
    all.collect()
}

/// Measures alternately all that is to be compared: the cases of a point, received in every way, and the baselines.
fn at_point(
    args: &BenchArgs,
    (cases, first, ways): (&[Case], usize, &[Receive]),
    (programs, job): (&Programs, Option<&Job>),
    vector: Any,
    tick: &dyn Fn(),
) -> Result<Vec<Entry>, Error> {
    let ways = || ways.iter().flat_map(|&receive| args.row_copy.iter().map(move |&copy| (receive, copy)));
    let pages =
        crate::live::pages(cases.iter().flat_map(|case| ways().map(move |(receive, _)| (case, receive))));
    let mut contenders = Vec::new();
    if let (Some(job), [case], Some(way)) = (job, cases, ways().next()) {
        contenders = job.contenders(args, (case, first), (way, vector, pages), programs)?;
    }
    for (case, number) in cases.iter().zip(first..).filter(|_| job.is_none()) {
        for (nth, (receive, copy)) in ways().enumerate() {
            let group = number * ways().count() + nth;
            let on = [LiveArg::Threads, LiveArg::Processes].into_iter();
            for on in on.filter(|on| args.backend.contains(on)) {
                let (group, row_copy) = machines(on, args, (case, group), (receive, copy, vector), pages)?;
                let system = System::Machines(on, receive, copy);
                contenders.push((Subject { case, system, row_copy: Some(row_copy) }, group));
            }
        }
        // How many cores a rank has is nothing to them.
        if case.config.aiv_num != cases[0].config.aiv_num {
            continue;
        }
        for baseline in programs.fitting(&case.config) {
            let subject = Subject { case, system: System::Baseline(baseline), row_copy: None };
            contenders.push((subject, Box::new(programs.start(baseline, args, case)?)));
        }
    }
    let (subjects, mut systems): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
    let before = Ticks::now();
    let measured = crate::blocks::measure(&mut systems, args, tick)?;
    let stolen = Ticks::stolen_since(before);
    Ok(crate::entry::entries(&subjects, &measured, crate::live::threads(args), stolen))
}

/// What is measured, and what measures it.
pub(crate) type Contender<'c> = (Subject<'c>, Box<dyn crate::blocks::System + 'c>);

/// The machines of group number `group`, as [`crate::processes::take_part`] counts them, in this process or in others that it starts;
/// and how they copy rows.
pub(crate) fn machines<'c>(
    on: LiveArg,
    args: &BenchArgs,
    (case, group): (&'c Case, usize),
    (receive, copy, vector): (Receive, RowCopyArg, Any),
    pages: Pages,
) -> Result<(Box<dyn crate::blocks::System + 'c>, RowCopy), Error> {
    #[cfg(target_os = "linux")]
    if on == LiveArg::Processes {
        let group = Processes::new(case, args, (receive, copy), group)?;
        let row_copy = group.row_copy;
        return Ok((Box::new(group), row_copy));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (on, group);
    let group = Group::new(case, args, (receive, copy, vector), pages)?;
    let row_copy = group.row_copy();
    Ok((Box::new(group), row_copy))
}

const fn is_named(args: &ConfigArgs) -> bool {
    args.path.is_some() || args.preset.is_some() || args.config.is_some()
}

/// The configuration that is named, else that of the yardstick.
pub(crate) fn source(args: &ConfigArgs) -> Result<Source, Error> {
    if is_named(args) {
        return resolve(args);
    }
    let mut config = Config::default();
    args.set.iter().try_for_each(|assignment| config.set(assignment))?;
    Ok(Source { config, routing: Default::default(), name: "defaults".to_owned() })
}

/// Every size asked for, with a window that suffices. What differs in nothing but quantisation and cores is one point:
/// it is measured alternately.
pub(crate) fn grid(args: &BenchArgs, source: &Source) -> Vec<Vec<Config>> {
    let is_set = |key: &str| args.config.set.iter().any(|set| Config::key_of(set) == Some(key));
    let is_named = is_named(&args.config);
    let base = &source.config;
    let ep: Vec<i64> = match args.ep.as_slice() {
        [] if is_named || is_set("ep_world_size") => vec![base.ep_world_size],
        [] => EP.to_vec(),
        given => given.iter().map(|&ranks| ranks.into()).collect(),
    };
    let bs: Vec<Bs> = match args.bs.as_slice() {
        [] if is_named || is_set("bs") => vec![base.bs.clone()],
        [] => BS.map(Bs::Uniform).to_vec(),
        given => given.iter().map(|&bs| Bs::Uniform(bs.into())).collect(),
    };
    let or = |given: &[u32], value: i64| match given {
        [] => vec![value],
        given => given.iter().map(|&given| given.into()).collect(),
    };
    let modes: Vec<i64> = or(&args.quant_mode, base.quant_mode);
    let cores: Vec<i64> = or(&args.aiv_num, base.aiv_num);
    let with = |mut config: Config| {
        if !is_set("hccl_buffsize_mb") {
            config.raise_buffer();
            // What is wrong with it is said later.
            if args.receive.iter().any(|receive| receive.is_direct())
                && let Ok(shape) = Shape::new(&config.as_core(Given::empty()), Limits::Product)
            {
                let overwritten = !args.experts.contains(&Experts::Apart);
                let required = direct::required_bytes(&shape, 1, overwritten).div_ceil(1 << 20);
                config.hccl_buffsize_mb = config.hccl_buffsize_mb.max(required.cast_signed());
            }
        }
        config
    };
    let sizes = ep.iter().flat_map(|&ep_world_size| bs.iter().map(move |bs| (ep_world_size, bs.clone())));
    let point = |(ep_world_size, bs): (i64, Bs)| {
        let kinds = modes.iter().flat_map(|&quant_mode| cores.iter().map(move |&cores| (quant_mode, cores)));
        let config = |(quant_mode, aiv_num)| Config {
            ep_world_size,
            bs: bs.clone(),
            quant_mode,
            aiv_num,
            ..base.clone()
        };
        kinds.map(config).map(with).collect()
    };
    sizes.map(point).collect()
}
