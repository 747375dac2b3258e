//! `veriep simulate`

use super::record::{self, Subject};
use super::source::{inputs, keep_apart, open_case};
use crate::cli::{RowsArg, SimulateArgs};
use crate::report::{Report, note};
use core::ops::RangeInclusive;
use indicatif::BinaryBytes;
use std::path::PathBuf;
use veriep_case::case::{Case, round_bytes};
use veriep_case::error::Error;
use veriep_case::memory::{memory_bytes, peak_bytes};
use veriep_case::parallel;
use veriep_core::shape::Product;
use veriep_core::sim::chooser::Dice;
use veriep_core::sim::order::Order;
use veriep_core::sim::storage::group_sizes;
use veriep_group::interrupt;
use veriep_sim::costs::{Cluster, Ps};
use veriep_sim::timed::{Paces, WHOLE};
use veriep_sim::{Outcome, Plan, Wakes, baseline};
use veriep_trace::events::Unit;

mod grid;
mod report;

use report::{Against, against, slowest};

/// Bytes of rows up to which they are kept unless the request says otherwise.
const REAL_MAX: u64 = 1 << 30;

struct Request {
    source: String,
    plan: Plan,
    cluster: Cluster,
    rows: bool,
}

impl Request {
    /// Returns the request that the arguments make with this seed. Rows are made if they take at most `real_max` bytes.
    fn new(args: &SimulateArgs, seed: u64, real_max: u64) -> Result<Self, Error> {
        let mut cluster = Cluster::read(&args.cluster, &args.link, &args.cost)?;
        if args.free {
            cluster = cluster.free();
        }
        let (case, source) = open_case(&args.config, &args.tensors, seed, (args.mode.port_offset, real_max))?;
        let shape = &case.shape;
        if let Some(line) = refused(&case, args) {
            return Err(Error::Request(line));
        }
        let batches = args.schedule.matches('D').count();
        let choices = args.mode.mode().ordered(shape, batches, args.order)?;
        let rows = round_bytes(shape) <= real_max;
        let ranks = shape.ep_world_size();
        let jitter = (args.jitter * 10.0).round() as u64;
        let paces = Paces { begins: begins(args, seed, ranks)?, slow: slow(args, ranks)?, jitter, seed };
        let plan = Plan {
            case,
            choices,
            schedule: args.schedule.clone(),
            rounds: args.rounds as usize,
            paces,
            split: args.shared,
            wakes: Wakes::default(),
            events_max: args.limit,
        };
        Ok(Self { source, plan, cluster, rows })
    }

    /// Returns the bytes of the memory of its group.
    fn bytes(&self) -> u64 {
        group_sizes(&self.plan.case.shape).flatten().sum()
    }

    /// Runs it on a cluster for its times alone.
    fn times_on(&self, cluster: &Cluster) -> Result<Outcome, Error> {
        veriep_sim::run(&self.plan, cluster, false, None)
    }

    /// Runs it on its own cluster and writes the record of events that is asked for.
    fn recorded(&self, args: &SimulateArgs) -> Result<Outcome, Error> {
        let Plan { case, choices, schedule, rounds, .. } = &self.plan;
        // A record counts dispatches, and here a round is a whole schedule.
        let dispatches = Order::parse(schedule).map_err(Error::Request)?.batches();
        let subject = Subject::of(case, Unit::Ps, *choices, (schedule, dispatches * *rounds));
        let log = record::begin(&args.record, &subject)?;
        let outcome = veriep_sim::run(&self.plan, &self.cluster, self.rows, log.clone())?;
        record::end(&args.record, log, |timeline| {
            timeline.links.clone_from(&outcome.busy);
            (outcome.path.clone(), report::about(args, self, &outcome))
        })?;
        Ok(outcome)
    }
}

/// What a run is held against: another cluster, or else the baseline.
struct Other(Option<Cluster>);

impl Other {
    /// What `--against` names.
    fn read(args: &SimulateArgs, name: &str) -> Result<Self, Error> {
        let own = || Cluster::read(&args.cluster, &args.link, &args.cost);
        Ok(Self(match name {
            "baseline" => None,
            "free" => Some(own()?.free()),
            _ => Some(Cluster::read(name, &[], &[])?),
        }))
    }

    fn compared(&self, name: &str, request: &Request, outcome: &Outcome) -> Result<Against, Error> {
        let here = &outcome.took;
        Ok(match &self.0 {
            Some(other) => against(name, here, &request.times_on(other)?.took, &Default::default()),
            None => {
                let old = baseline::run(&request.plan.case, &request.cluster, &request.plan.paces);
                against(name, here, &old.took, &old.parts)
            }
        })
    }
}

pub(super) fn run(args: &SimulateArgs, out: &mut Report) -> Result<(), Error> {
    let [events, trace, html] = args.record.files();
    let clusters = [Some(&args.cluster), args.against.as_ref()].into_iter().flatten().map(PathBuf::from);
    let read: Vec<_> = inputs(&args.config).into_iter().chain(clusters).collect();
    keep_apart(&read, &[("--csv", args.csv.as_deref()), events, trace, html])?;
    let points = grid::points(args)?;
    let against = args.against.as_deref().map(|name| Other::read(args, name)).transpose()?;
    let real_max = match args.rows {
        Some(RowsArg::Real) => memory_bytes("MemAvailable").unwrap_or(u64::MAX),
        Some(RowsArg::Timing) => 0,
        None => REAL_MAX,
    };
    let request = Request::new(&points[0].args, args.seed, real_max)?;
    if args.rows == Some(RowsArg::Real) && !request.rows {
        let rows = BinaryBytes(round_bytes(&request.plan.case.shape));
        let must = "must fit the memory that is free; hint: --rows timing";
        return Err(Error::Request(format!("--rows real: {rows} of {}: {must}", BinaryBytes(real_max))));
    }
    let mut csv = grid::Csv::create(args.csv.as_deref())?;
    if !request.rows {
        note("note: timing only: rows are not kept, so no output was compared with the reference");
    }
    let outcome = request.recorded(args)?;
    let cores = (!request.plan.case.config.origin.has("aiv_num")).then(|| request.plan.case.shape.aiv_num());
    csv.add(&points[0], args.seed, &outcome);
    let free = match args.free || outcome.cut {
        true => None,
        false => Some(request.times_on(&request.cluster.free())?).filter(|free| !free.cut),
    };
    let mut simulated = report::simulated(args, &request, &outcome, free.as_ref());
    let (mut done, all) = (usize::from(!outcome.cut), points.len() * args.seeds as usize);
    if let (Some(other), false) = (&against, outcome.cut) {
        let name = args.against.as_deref().unwrap_or("");
        simulated.against = Some(other.compared(name, &request, &outcome)?);
    }
    if points.len() > 1 || args.seeds > 1 {
        let mut took = vec![Vec::new(); points.len()];
        if !outcome.cut {
            took[0].push(slowest(&outcome.took));
        }
        let first = request.bytes();
        drop(request);
        run_rest(args, &points, first, |number, seed, outcome| {
            csv.add(&points[number], seed, outcome);
            if !outcome.cut {
                took[number].push(slowest(&outcome.took));
                done += 1;
            }
        })?;
        simulated.grid =
            points.iter().zip(&took).flat_map(|(point, took)| report::grid_rows(point, took)).collect();
    }
    csv.finish()?;
    if let Some(cores) = cores {
        note(&format!(
            "note: aiv_num is not stated: times are those of {cores} cores a rank; an A3 die has 48 at most"
        ));
    }
    let cut = || Error::Interrupted(format!("after {done} of {all} simulations"));
    let verdict = if done < all && interrupt::is_asked() { Err(cut()) } else { Ok(()) };
    out.conclude(&simulated, report::table, verdict)
}

/// Runs all simulations of a grid but the first, and calls `ended` with the number of the point, the seed and the outcome of
/// each, in order.
///
/// As many run at once as there are processors and as fit into free memory. A simulation is taken to need as much, for each byte
/// of its group's memory, as the first one did, whose group had `first` bytes.
fn run_rest(
    args: &SimulateArgs,
    points: &[grid::Point],
    first: u64,
    mut ended: impl FnMut(usize, u64, &Outcome),
) -> Result<(), Error> {
    let peak = peak_bytes().map_or(1, u128::from).max(1);
    let mut runs = grid::runs(points, args).skip(1).peekable();
    while runs.peek().is_some() && !interrupt::is_asked() {
        let free = memory_bytes("MemAvailable").map_or(u128::from(u64::MAX), u128::from);
        let (mut together, mut room) = (Vec::new(), free * u128::from(first) / peak);
        while together.len() < parallel::processors()
            && let Some(&(number, seed)) = runs.peek()
        {
            // Their rows are not kept.
            let request = Request::new(&points[number].args, seed, 0);
            let bytes = request.as_ref().map_or(0, Request::bytes).into();
            if !together.is_empty() && bytes > room {
                break;
            }
            room = room.saturating_sub(bytes);
            let is_refused = request.is_err();
            together.push(((number, seed), Some(request), None));
            runs.next();
            if is_refused {
                break;
            }
        }
        parallel::each(&mut together, |_, (_, request, outcome)| {
            let request = request.take().filter(|_| !interrupt::is_asked());
            *outcome = request.map(|request| request.and_then(|request| request.times_on(&request.cluster)));
        });
        for ((number, seed), _, outcome) in together {
            if let Some(outcome) = outcome.transpose()? {
                ended(number, seed, &outcome);
            }
        }
    }
    Ok(())
}

/// What a simulation does not do, in one line.
fn refused(case: &Case, args: &SimulateArgs) -> Option<String> {
    if case.shape.tp_world_size() > 1 {
        return Some("tp_world_size = 2: links of a TP domain are not simulated: must be 0 or 1".to_owned());
    }
    if case.elastic.is_some() {
        return Some("an elastic domain is not simulated: must be whole".to_owned());
    }
    if args.cluster == "a2" && case.shape.product() == Product::A3
        || args.cluster == "a3" && case.shape.product() == Product::A2
    {
        return Some(format!("--cluster {}: the configuration is of the other product", args.cluster));
    }
    (!matches!(args.schedule.as_str(), "DC" | "DDCC"))
        .then(|| format!("--schedule {}: must be DC or DDCC", args.schedule))
}

fn begins(args: &SimulateArgs, seed: u64, ranks: u32) -> Result<Vec<Ps>, Error> {
    let mut dice = Dice(seed);
    let skew = (args.skew * 1e6) as usize;
    let mut begins: Vec<Ps> =
        (0..ranks).map(|_| if skew == 0 { 0 } else { dice.below(skew) as Ps }).collect();
    for given in &args.straggler {
        let (rank, late) = of_rank(("--straggler", given), ranks, ("US", 0.0..=1e6))?;
        begins[rank] += (late * 1e6) as Ps;
    }
    Ok(begins)
}

/// What the costs of each rank are multiplied by, in thousandths.
fn slow(args: &SimulateArgs, ranks: u32) -> Result<Vec<u64>, Error> {
    let mut slow = vec![WHOLE; ranks as usize];
    for given in &args.slow {
        let (rank, factor) = of_rank(("--slow", given), ranks, ("FACTOR", 0.001..=1000.0))?;
        slow[rank] = (factor * WHOLE as f64).round() as u64;
    }
    Ok(slow)
}

/// Parses the `RANK:NUMBER` of an option. Messages call the number `name`; it must be in `range`.
fn of_rank(
    (option, given): (&str, &str),
    ranks: u32,
    (name, range): (&str, RangeInclusive<f64>),
) -> Result<(usize, f64), Error> {
    let read = || {
        let (rank, number) = given.split_once(':')?;
        let rank = rank.parse().ok().filter(|&rank| rank < ranks as usize)?;
        Some((rank, number.parse().ok().filter(|number| range.contains(number))?))
    };
    read().ok_or_else(|| {
        let (last, least, most) = (ranks - 1, range.start(), range.end());
        Error::Request(format!(
            "{option} {given}: must be RANK:{name} with RANK in [0, {last}] and {name} in [{least}, {most}]"
        ))
    })
}
