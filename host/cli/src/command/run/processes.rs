//! `--backend processes`: the parent starts a process for each part of the ranks, watches them and reports for all; a
//! process drives its ranks and tells the parent what they cost, or what went wrong.

use super::{Job, Ran, layers, output, traffic};
use crate::cli::RunArgs;
use core::hash::{Hash, Hasher};
use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::hash::DefaultHasher;
use std::io::Write;
use std::sync::Arc;
use veriep_case::error::{Error, Gone};
use veriep_case::global_rank;
use veriep_core::fabric::{Flag, Wait};
use veriep_core::protocol::Fingerprints;
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer};
use veriep_group::driver::threads::Workers;
use veriep_group::driver::{self, Failure, Hang, Missing, Unit};
use veriep_group::group::{self, Costs, Plan};
use veriep_group::roofline;
use veriep_group::world::join::{Alike, GroupSpec, Joined};
use veriep_group::world::{
    At, Children, Departed, GroupMemory, GroupSize, Invited, Outcome, Phase, Task, World, watch,
};

/// What a process tells its parent at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Told {
    costs: Option<Costs>,
    /// Rows that each of its ranks received in the last batch.
    pub(super) rows: Vec<(u32, usize)>,
    /// Exit status and line, if it failed by itself.
    pub(super) error: Option<(u8, String)>,
    /// What its cores miss: in which unit, and each.
    unit: usize,
    missing: Vec<(u32, u32, usize, u32, u32, [u32; 3])>,
}

impl Told {
    pub(super) fn read(said: &[u8]) -> Option<Self> {
        serde_json::from_slice(said).ok()
    }

    /// Whether it has ended all rounds of the request.
    pub(super) fn ran_all(&self, job: &Job<'_>) -> bool {
        self.costs.as_ref().is_some_and(|costs| costs.rounds == job.plan.rounds())
    }

    fn add(&mut self, hang: &Hang) {
        let number = |&Missing { rank, core, operator, wait }: &Missing| {
            (rank.0, core.0, operator, wait.flag as u32, wait.rank.0, wait.index)
        };
        self.missing = hang.missing.iter().map(number).collect();
    }

    fn missing(&self) -> impl Iterator<Item = Missing> {
        self.missing.iter().filter_map(|&(rank, core, operator, flag, owes, index)| {
            let flag = Flag::ALL.into_iter().find(|&known| known as u32 == flag)?;
            let wait = Wait::new(flag, RankId(owes), &index);
            Some(Missing { rank: RankId(rank), core: CoreId(core), operator, wait })
        })
    }
}

/// What all processes must have alike.
pub(super) fn fingerprint(job: &Job<'_>) -> u64 {
    let RunArgs { rounds, schedule, chain, seed, .. } = job.args;
    let mut all = DefaultHasher::new();
    Fingerprints::new(&job.case.shape, job.plan.options.choices).whole().hash(&mut all);
    (rounds, schedule, chain, seed).hash(&mut all);
    // Two cases of one shape differ in who sends what to whom.
    for rank in &job.case.ranks {
        rank.expert_ids.hash(&mut all);
        rank.expert_scales.iter().for_each(|scale| scale.to_bits().hash(&mut all));
    }
    all.finish()
}

/// A process of a group: drives its ranks, says what they cost and ends.
pub(super) fn take_part(args: &RunArgs, invited: &Invited) -> ! {
    let mut told = Told::default();
    let drove = drive(args, invited, &mut told);
    let status = match &drove {
        Ok(_) => 0,
        Err(error) => {
            told.error = Some((error.status(), error.lines().join("; ")));
            error.status()
        }
    };
    let said = serde_json::to_vec(&told).unwrap_or_default();
    // A process that ends without a word, or before it has left the group, counts as gone.
    if std::io::stdout().lock().write_all(&said).is_ok()
        && let Ok(world) = drove
    {
        world.enter(Phase::Ended);
    }
    std::process::exit(status.into())
}

/// Joins and drives. The group, which this process has still to leave.
fn drive(args: &RunArgs, invited: &Invited, told: &mut Told) -> Result<Arc<World>, Error> {
    let (job, _) = super::job(args, None)?;
    // The parent's share of the processors, which may have changed since.
    let GroupSize { processes, workers: count, .. } = invited.size();
    let job = Job { workers: Workers { count, ..job.workers }, processes, ..job };
    let joined = invited.join(spec(&job)?);
    let Joined { memory, world, peers } =
        joined.map_err(|e| Error::Request(format!("{}: {e}", job.source)))?;
    let _watch = peers.watch(&world).map_err(|e| Error::Request(format!("peers of the group: {e}")))?;
    let shared = shared(&memory, &job)?.with_row_copy(invited.task.row_copy());
    rounds(&job, &world, shared, told)?;
    Ok(world)
}

/// The group of a request.
fn spec(job: &Job<'_>) -> Result<GroupSpec, Error> {
    let Job { case, plan, .. } = job;
    let bytes = SharedMemory::bytes(case, plan.unit.batches()).map_err(Error::of_memory)?;
    let ranks = global_rank::count(&case.shape);
    let size = GroupSize { processes: job.processes, workers: job.workers.count, ranks };
    let layers = vec![Fingerprints::new(&case.shape, plan.options.choices)];
    let alike = Alike { layers, others: vec![("the request".to_owned(), fingerprint(job))] };
    Ok(GroupSpec { size, bytes, alike })
}

/// Drives the ranks of a process to the end of all rounds, on a memory.
pub(super) fn rounds<B: Backend>(
    job: &Job<'_>,
    world: &World,
    memory: B,
    told: &mut Told,
) -> Result<(), Error> {
    let backend = layers(job, memory);
    let mut units = 0;
    let drive = |unit: &Unit<'_, _>| {
        told.unit = units;
        units += 1;
        let ran = driver::threads::run(unit, &job.workers);
        if let Err(Failure::Hang(hang)) = &ran {
            told.add(hang);
        }
        ran
    };
    let (costs, ranks) =
        group::run(&job.case.shape, &job.plan, traffic(job), (world, &backend), drive, &|| ())?;
    let rows = super::rows(job, &ranks);
    told.rows = world.ranks().map(|rank| (rank.0, rows[rank.index()])).collect();
    told.costs = Some(costs);
    Ok(())
}

/// The group's memory behind its board.
pub(super) fn shared(memory: &GroupMemory, job: &Job<'_>) -> Result<SharedMemory, Error> {
    let batches = job.plan.unit.batches();
    let shared =
        SharedMemory::within(memory.map(), memory.start(), &job.case, batches).map_err(Error::of_memory)?;
    Ok(shared.with_row_copy(super::unmeasured(job)))
}

/// Starts a group, waits for its end and reports for all.
pub(super) fn run(job: &Job<'_>, tick: &(dyn Fn() + Sync)) -> Result<Ran, Error> {
    let (processes, workers) = (job.processes, job.workers);
    let founded = Arc::new(spec(job)?.found().map_err(Error::of_memory)?);
    let memory = &founded.memory;
    let world = World::observer(memory);
    let view = super::prepared(job, shared(memory, job)?, processes * workers.count)?;
    let _ = job.row_copy.set(view.row_copy());
    let task = Task::new(0, view.row_copy());
    let of_start = |e| Error::Request(format!("cannot start a process: {e}: --processes decides how many"));
    let mut children = Children::start(founded.clone(), world.clone(), task).map_err(of_start)?;
    let mut told: Vec<Option<Told>> = (0..processes).map(|_| None).collect();
    let mut ticked = 0;
    let mut have_ended = |children: &mut Children| {
        let checked = world.checked();
        (ticked..checked).for_each(|_| tick());
        ticked = checked;
        children.have_ended()
    };
    let has_told = |process: usize, children: &mut Children| {
        told[process] = told[process].take().or_else(|| Told::read(&children.said(process)));
        told[process].is_some()
    };
    let start = memory.map().as_ptr() as usize;
    let watched = || Ok(watch(&world, &mut children, workers.deadline, has_told, &mut have_ended));
    let outcome = match super::dump(job, view.mapped()) {
        Some(dump) => dump.of_file(memory.file(), start).around(watched),
        None => watched(),
    }?;
    for (process, told) in told.iter_mut().enumerate() {
        *told = told.take().or_else(|| Told::read(&children.said(process)));
    }
    let told: Vec<Told> = told.into_iter().map(Option::unwrap_or_default).collect();
    match outcome {
        Outcome::Well => ended(job, view, processes * workers.count, &told),
        Outcome::Failed => Err(failed(&told)),
        Outcome::Stuck(after) => Err(stuck(job, &told, after)),
        Outcome::Gone(departed) => Err(gone(job, &world, &told, &departed)),
    }
}

/// All ended well: what they cost together, and the result.
fn ended(job: &Job<'_>, view: SharedMemory, threads: usize, told: &[Told]) -> Result<Ran, Error> {
    let Job { args, case, plan, .. } = job;
    let (ran, rows) = together(job, told);
    // The last round's result is the case's, and its rows are what bare copies copy.
    if ran.costs.rounds < plan.rounds() {
        return Ok(ran);
    }
    let backend = RankRemap::of(case).over(view);
    if let Some(path) = &args.out {
        output::write(path, case, &backend, &rows, plan.last_rounds() - 1)?;
    }
    let roofline = roofline::measure(&backend, (case, plan.options.choices), threads)?;
    Ok(Ran { roofline: Some(roofline), ..ran })
}

/// What all processes have cost together, and the rows of each rank.
pub(super) fn together(job: &Job<'_>, told: &[Told]) -> (Ran, Vec<usize>) {
    let all = told.iter().filter_map(|told| told.costs.clone());
    let costs = all.reduce(Costs::beside).unwrap_or_default();
    let ran = Ran { costs, roofline: None };
    let mut rows = vec![0; global_rank::count(&job.case.shape) as usize];
    told.iter().flat_map(|told| &told.rows).for_each(|&(rank, n)| rows[rank as usize] = n);
    (ran, rows)
}

/// The error of the lowest process that has one of its own.
pub(super) fn failed(told: &[Told]) -> Error {
    let mut errors = told.iter().filter_map(|told| told.error.clone());
    match errors.find(|&(status, _)| status < 3) {
        Some((1, line)) => Error::Wrong(line),
        Some((_, line)) => Error::Request(line),
        None => Error::NoProgress { line: Failure::Stopped.to_string(), missing: Vec::new() },
    }
}

/// No process moves, and none died: reported as for threads.
pub(super) fn stuck(job: &Job<'_>, told: &[Told], after: Duration) -> Error {
    let missing = told.iter().flat_map(Told::missing).collect();
    let hang = Failure::Hang(Hang { after, missing }).renamed(&|rank| job.case.name(rank));
    let unit = told.iter().filter(|told| !told.missing.is_empty()).map(|told| told.unit).max();
    let (first, unit) = job.plan.unit(unit.unwrap_or(0));
    group::of_failure(first, unit, &hang)
}

/// A process died: which, where, and which cores wait for it. What the others miss of each other follows from that.
pub(super) fn gone(job: &Job<'_>, world: &World, told: &[Told], departed: &[Departed]) -> Error {
    let Job { case, plan, .. } = job;
    let name = |rank| case.name(rank);
    let gone: Vec<_> = departed.iter().map(|one| one.told(world, &name, place(plan, one.at))).collect();
    let is_gone = |rank: RankId| departed.iter().any(|departed| world.process_of(rank) == departed.process);
    let unit = told.iter().filter(|told| !told.missing.is_empty()).map(|told| told.unit).max().unwrap_or(0);
    let of_dead = |missing: &Missing| missing.wait.source().is_some_and(is_gone);
    let named = |missing: Missing| missing.renamed(&name);
    let missing = told.iter().flat_map(Told::missing).filter(of_dead).map(named).collect();
    let hang = Hang { after: Duration::ZERO, missing };
    let mut line = gone.first().map(Gone::place).unwrap_or_default();
    line += &gone.iter().map(Gone::line).collect::<Vec<_>>().join("; ");
    line += &hang.waits();
    let left = (0..world.processes()).filter(|&process| departed.iter().all(|gone| gone.process != process));
    let waiting =
        left.filter(|&process| matches!(world.phase_of(process), Phase::Meets | Phase::Drives)).count();
    if hang.missing.is_empty() && waiting > 0 {
        line += &format!("; waiting for it: {waiting} process{}", if waiting == 1 { "" } else { "es" });
    }
    let (first, unit) = plan.unit(unit);
    let missing = hang.roots().into_iter().map(|missing| group::of_missing(first, unit, missing)).collect();
    Error::Gone { line, gone, missing }
}

/// The round and what a process did in it.
fn place(plan: &Plan, at: At) -> (Option<usize>, Option<&'static str>) {
    let (first, unit) = plan.unit(at.unit);
    match at.phase {
        Phase::Checks => (Some(first + at.batch), Some("check")),
        Phase::Drives => {
            let before = plan.operators_before(at.unit);
            let Some(planned) = unit.operators().get(at.operators.saturating_sub(before)) else {
                return (Some(first + unit.batches() - 1), None);
            };
            (Some(first + planned.round), Some(if at.experts { "experts" } else { planned.operator.name() }))
        }
        Phase::Starts | Phase::Meets | Phase::Idle | Phase::Ended | Phase::GivenUp => {
            ((at.unit > 0).then_some(first), None)
        }
    }
}
