//! One live group that runs round after round, and what it has to say.

use crate::backend::{Backend, Members};
use crate::compare;
use crate::driver::schedule::Schedule;
use crate::driver::threads::{self, Times, Workers};
use crate::driver::{self, Failure, Options, RankState, Unit};
use crate::world::{Phase, World};
use core::time::Duration;
use serde::{Deserialize, Serialize};
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::error::{Error, Missing};
use veriep_case::global_rank;
use veriep_core::fabric::{Detail, ProtocolError, Wait};
use veriep_core::protocol::{Gates, Operator};
use veriep_core::shape::Shape;
use veriep_core::sim::cluster::{Planned, refused_by};
use veriep_core::units::RankId;

#[derive(Clone, Debug)]
pub struct Plan {
    /// The operators between two checks.
    pub unit: Schedule,
    pub units: usize,
    /// A shorter unit after them.
    pub last: Option<Schedule>,
    /// Choices that do not change results.
    pub options: Options,
    /// Whether every round is compared with the reference, and on how many threads.
    pub check: Option<usize>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Costs {
    /// Rounds that were run: all, unless the caller asked for the end.
    pub rounds: usize,
    /// One entry per round.
    pub dispatch: Vec<Duration>,
    /// One entry per round.
    pub combine: Vec<Duration>,
    /// Steps of all machines, all rounds.
    pub steps: u64,
    /// By source rank, summed over the cores that waited, all rounds.
    pub waited_for: Vec<Duration>,
    /// Tasks that all agents posted, all rounds; 0 without agents.
    pub tasks: u64,
}

impl<'a> From<&'a Case> for Members<'a> {
    fn from(case: &'a Case) -> Self {
        Self { shape: &case.shape, left: case.elastic.as_ref().map(|elastic| &elastic.left) }
    }
}

impl Plan {
    /// Rounds in all.
    pub fn rounds(&self) -> usize {
        self.units * self.unit.batches() + self.last.as_ref().map_or(0, Schedule::batches)
    }

    /// Rounds of the last unit.
    pub fn last_rounds(&self) -> usize {
        self.last.as_ref().unwrap_or(&self.unit).batches()
    }

    /// How often a unit takes a loop; none of an order whose batches end in it.
    pub fn chain(&self) -> Option<usize> {
        self.unit.is_loop().then(|| self.unit.times())
    }

    /// A unit by its number, and its first round; that of the last one for any greater number.
    pub fn unit(&self, number: usize) -> (usize, &Schedule) {
        let all = self.units + usize::from(self.last.is_some());
        let nth = number.min(all.saturating_sub(1));
        let last = self.last.as_ref().filter(|_| nth == self.units);
        (nth * self.unit.batches(), last.unwrap_or(&self.unit))
    }

    /// Operators of all units before that one.
    pub fn operators_before(&self, number: usize) -> usize {
        let last = self.last.as_ref().filter(|_| number > self.units);
        number.min(self.units) * self.unit.operators().len() + last.map_or(0, |last| last.operators().len())
    }

    /// The first operator that the gates of a rank refuse, with its round, if all ranks keep to the plan.
    #[must_use]
    pub fn refused(&self, shape: &Shape) -> Option<(Planned, ProtocolError)> {
        let mut gates = Gates::new(shape, &self.options.choices);
        let mut begun_with = Vec::new();
        let mut first_round = 0;
        for unit in self.schedules() {
            let is_last = self.last.as_ref() == Some(unit);
            // From there on it would go as it has gone before.
            if is_last || !begun_with.contains(&gates) {
                begun_with.push(gates.clone());
                if let Some((place, error)) = refused_by(&mut gates, unit.operators()) {
                    let planned = unit.operators()[place];
                    return Some((Planned { round: first_round + planned.round, ..planned }, error));
                }
            }
            first_round += unit.batches();
        }
        None
    }

    fn schedules(&self) -> impl Iterator<Item = &Schedule> {
        core::iter::repeat_n(&self.unit, self.units).chain(&self.last)
    }
}

/// Runs `plan` on `backend` in a world, or as much of it as there is time for before the caller asks for the end; each round
/// with what `traffic` gives for its number. `drive` takes a unit to its end; `progress` is told of every rank checked.
/// Returns the costs and the host's state of the ranks, for code that looks at the last unit. Of both only what concerns
/// ranks of this process says anything.
///
/// # Errors
/// A failure of the group, or a result that the reference does not confirm.
pub fn run<'c, B: Backend>(
    shape: &Shape,
    plan: &Plan,
    traffic: impl Fn(usize) -> Batch<'c>,
    (world, backend): (&World, &B),
    mut drive: impl FnMut(&Unit<'_, B>) -> Result<Times, Failure>,
    progress: &(dyn Fn() + Sync),
) -> Result<(Costs, Vec<RankState>), Error> {
    let mut ranks: Vec<_> = global_rank::all(shape).map(|_| RankState::new(plan.unit.batches())).collect();
    let mut costs = Costs { waited_for: vec![Duration::ZERO; ranks.len()], ..Costs::default() };
    let mut first = 0;
    for unit in plan.schedules() {
        world.propose();
        driver::meet(world).map_err(|failure| of_failure(first, unit, &failure))?;
        if !world.goes_on() {
            break;
        }
        let batches: Vec<_> = (first..first + unit.batches()).map(&traffic).collect();
        ranks.iter_mut().for_each(|rank| rank.reset(unit.operators().len()));
        let operators = unit.operators();
        let times = drive(&Unit {
            shape,
            options: plan.options,
            backend,
            first_round: first,
            batches: &batches,
            ranks: &ranks,
            operators,
            world,
        })
        .map_err(|failure| of_failure(first, unit, &failure.renamed(&|rank| batches[0].name(rank))))?;
        costs.add(&times, operators);
        if let Some(threads) = plan.check {
            for (number, batch) in batches.iter().enumerate() {
                world.checks(number);
                let tick = || {
                    world.count_checked();
                    progress();
                };
                compare::check((world, backend), shape, batch, number, threads, &tick)
                    .map_err(|mismatch| Error::Wrong(format!("round {}: {mismatch}", first + number)))?;
            }
        }
        first += unit.batches();
        costs.rounds = first;
        world.end_unit(operators.len());
    }
    world.enter(Phase::Idle);
    costs.tasks = ranks.iter().map(RankState::tasks).sum();
    Ok((costs, ranks))
}

/// Runs so many rounds of a dispatch and its combine on one batch, by threads. Returns the operators and their times.
///
/// # Errors
/// A failure of the group.
pub fn repeat<B: Backend>(
    backend: &B,
    (shape, batch, options): (&Shape, &Batch<'_>, Options),
    ranks: &mut [RankState],
    (world, workers): (&World, &Workers),
    rounds: usize,
) -> Result<(Schedule, Times), Error> {
    let unit = Schedule::parse("DC")?.again(rounds);
    let operators = unit.operators();
    ranks.iter_mut().for_each(|rank| rank.reset(operators.len()));
    let batches = core::slice::from_ref(batch);
    let of = Unit { shape, options, backend, first_round: 0, batches, ranks, operators, world };
    let times = threads::run(&of, workers).map_err(|failure| of_failure(0, &unit, &failure))?;
    world.end_unit(operators.len());
    Ok((unit, times))
}

/// A failure of the unit whose first round that is.
pub fn of_failure(first_round: usize, unit: &Schedule, failure: &Failure) -> Error {
    match failure {
        Failure::Thread(_) => Error::Request(format!("{failure}: --threads decides how many")),
        Failure::Refused(_) => Error::Request(failure.to_string()),
        Failure::Stopped | Failure::Polls { .. } => {
            Error::NoProgress { line: failure.to_string(), missing: Vec::new() }
        }
        Failure::Batch { rank, round, .. } => Error::Refused {
            what: format!("rank {rank} gives combine of round {round} another batch than its dispatch had"),
            line: failure.to_string(),
        },
        Failure::Protocol { .. } | Failure::Agent { .. } | Failure::Traffic(_) => {
            let last = first_round + unit.batches() - 1;
            let rounds = if first_round == last {
                format!("round {first_round}")
            } else {
                format!("rounds {first_round} to {last}")
            };
            Error::Wrong(format!("{rounds}: {failure}"))
        }
        Failure::Hang(hang) => {
            let roots = hang.roots().into_iter();
            let missing: Vec<_> = roots.map(|missing| of_missing(first_round, unit, missing)).collect();
            // All of them are stuck in the same operator.
            let at = missing.first().map(|m| format!("{} of round {}: ", m.operator, m.round));
            Error::NoProgress { line: format!("{}{failure}", at.unwrap_or_default()), missing }
        }
    }
}

/// What a core misses in the unit whose first round that is.
pub fn of_missing(first_round: usize, unit: &Schedule, missing: driver::Missing) -> Missing {
    let planned = unit.operators().get(missing.operator);
    let (operator, batch) = planned.map_or((Operator::Dispatch, 0), |it| (it.operator, it.round));
    Missing {
        rank: missing.rank.0,
        core: missing.core.0,
        round: first_round + batch,
        operator: operator.name(),
        ..of_wait(missing.wait)
    }
}

/// What is missing, without who misses it.
pub(crate) fn of_wait(wait: Wait) -> Missing {
    let mut told = Missing { what: wait.flag.name(), ..Missing::default() };
    for (detail, value) in wait.details() {
        *match detail {
            Detail::Rank => &mut told.source_rank,
            Detail::Core => &mut told.source_core,
            Detail::LocalExpert => &mut told.local_expert,
            Detail::Record => &mut told.record,
            Detail::Block => &mut told.block,
            Detail::Token => &mut told.token,
            Detail::K => &mut told.k,
            _ => continue,
        } = Some(value);
    }
    told
}

impl Costs {
    fn add(&mut self, times: &Times, operators: &[Planned]) {
        self.dispatch.extend(times.of(operators, true));
        self.combine.extend(times.of(operators, false));
        self.steps += times.steps;
        for (sum, &time) in self.waited_for.iter_mut().zip(&times.waited_for) {
            *sum += time;
        }
    }

    /// The same with what another process of the group cost at the same time.
    #[must_use]
    pub fn beside(mut self, other: Self) -> Self {
        let longest = |all: &mut Vec<Duration>, other: &[Duration]| {
            all.iter_mut().zip(other).for_each(|(time, &other)| *time = other.max(*time));
        };
        longest(&mut self.dispatch, &other.dispatch);
        longest(&mut self.combine, &other.combine);
        self.waited_for.iter_mut().zip(other.waited_for).for_each(|(sum, time)| *sum += time);
        self.steps += other.steps;
        self.tasks += other.tasks;
        self
    }

    /// Ranks by how long others waited for them, longest first.
    pub fn waited_for(&self) -> Vec<(RankId, Duration)> {
        let mut ranks: Vec<_> = (0..).map(RankId).zip(self.waited_for.iter().copied()).collect();
        ranks.sort_by_key(|&(rank, time)| (core::cmp::Reverse(time), rank));
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use veriep_core::fabric::Flag;
    use veriep_core::units::CoreId;

    #[test]
    fn a_unit_is_found_without_counting_those_before_it() {
        let of = |text| Schedule::parse(text).unwrap();
        for last in [None, Some(of("DC"))] {
            let plan = Plan { unit: of("DDCC"), units: 3, last, options: Options::default(), check: None };
            let units: Vec<_> = plan.schedules().collect();
            for number in 0..units.len() + 2 {
                let nth = number.min(units.len() - 1);
                let before: usize = units[..nth].iter().map(|unit| unit.batches()).sum();
                assert_eq!(plan.unit(number), (before, units[nth]), "{number}");
                let operators: usize = units.iter().take(number).map(|unit| unit.operators().len()).sum();
                assert_eq!(plan.operators_before(number), operators, "{number}");
            }
            assert_eq!(plan.rounds(), units.iter().map(|unit| unit.batches()).sum::<usize>());
        }
    }

    /// What no injected silence brings about; the others are seen through the command line.
    #[test]
    fn waits_that_are_no_other_ranks_silence_have_names_too() {
        let unit = Schedule::parse("DDCC").unwrap();
        let of = |operator, wait| {
            let missing = driver::Missing { rank: RankId(3), core: CoreId(2), operator, wait };
            of_missing(10, &unit, missing)
        };
        let seen = of(1, Wait::QUIET);
        assert_eq!((seen.rank, seen.core, seen.round, seen.operator), (3, 2, 11, "dispatch"));
        assert_eq!((seen.what, seen.source_rank), ("own_writes", None));
        let seen = of(2, Wait::new(Flag::Nic, RankId(5), &[]));
        assert_eq!(
            (seen.what, seen.source_rank, seen.round, seen.operator),
            ("agent_nic", Some(5), 10, "combine")
        );
        assert_eq!(of(0, Wait::IDLE).what, "agent_idle");
        // Seen only if no other core complains, and others do.
        let seen = of(0, Wait::barrier(CoreId(4)));
        assert_eq!((seen.what, seen.source_core, seen.source_rank), ("core_barrier", Some(4), None));
    }
}
