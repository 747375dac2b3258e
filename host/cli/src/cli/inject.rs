//! `--inject`: who misbehaves, and how.

use super::{BackendArg, RunArgs, number};
use core::time::Duration;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_core::protocol::Flags;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::inject::{Lost, Silent};
use veriep_group::driver::{Stopped, Who};

/// The faults that `--inject` asks for. At most one is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub silent: Option<Silent>,
    /// The rank that sends messages twice.
    pub twice: Option<RankId>,
    /// The rank whose process dies, and how many writes it makes before.
    pub killed: Option<(RankId, u64)>,
    /// The rank whose experts take longer, and how much longer.
    pub slow: Option<(RankId, Duration)>,
    /// The rank that leaves out a round, and which.
    pub skips: Option<(RankId, usize)>,
    /// The rank that begins each operator later, and how much later.
    pub late: Option<(RankId, Duration)>,
    /// The rank that gives combine another batch than its dispatch had, and in which round.
    pub wrong_batch: Option<(RankId, usize)>,
    /// The core that never comes.
    pub absent_core: Option<Stopped>,
}

impl RunArgs {
    /// Returns the faults that are asked for. Ranks go by their names in files.
    ///
    /// # Errors
    /// No such fault, rank or time; none of this backend or protocol.
    pub fn faults(&self, case: &Case) -> Result<Faults, Error> {
        let Some(fault) = &self.inject else { return Ok(Faults::default()) };
        let mut faults = Faults::default();
        let found = match fault.split_once('=') {
            Some(("killed", given)) => self.killed(given, case).map(|killed| faults.killed = Some(killed)),
            Some(("slow", given)) => self.delay("slow", given, case).map(|slow| faults.slow = Some(slow)),
            Some(("late", given)) => self.delay("late", given, case).map(|late| faults.late = Some(late)),
            Some(("skips", given)) => self.round("skips", given, case).map(|at| faults.skips = Some(at)),
            Some(("wrong-batch", given)) => {
                self.round("wrong-batch", given, case).map(|at| faults.wrong_batch = Some(at))
            }
            Some(("absent-core", given)) => {
                absent_core(given, case).map(|stopped| faults.absent_core = Some(stopped))
            }
            Some(("twice", rank)) => twice(&case.shape, rank).map(|rank| faults.twice = Some(rank)),
            Some(("silent", given)) => self.silent(given, case).map(|silent| faults.silent = Some(silent)),
            _ => Err(
                "must be silent=RANK, silent=RANK:WHAT, killed=RANK:N, skips=RANK:N, wrong-batch=RANK:N, \
                 absent-core=RANK:CORE, slow=RANK:SECONDS, late=RANK:SECONDS or twice=RANK"
                    .to_owned(),
            ),
        };
        found.map(|()| faults).map_err(|why| Error::Request(format!("--inject {fault}: {why}")))
    }

    fn silent(&self, given: &str, case: &Case) -> Result<Silent, String> {
        let (rank, what) = given.split_once(':').map_or((given, None), |(rank, what)| (rank, Some(what)));
        let only = what.map(lost).transpose()?;
        if only.is_some_and(|lost| !self.sends(&case.shape, lost)) {
            return Err("this run has no separate words of this kind".to_owned());
        }
        let rank = rank.parse().ok().and_then(|rank| member(case, rank)).ok_or_else(|| {
            let last = global_rank::count(case.whole()) - 1;
            let gone = if case.elastic.is_some() { ", not one that is gone" } else { "" };
            format!("must be silent=RANK with RANK in [0, {last}]{gone}")
        })?;
        Ok(Silent { rank, only })
    }

    /// Whether words of that kind are sent, and known by their places.
    fn sends(&self, shape: &Shape, lost: Lost) -> bool {
        let direct = self.mode.receive.is_direct();
        match shape.protocol() {
            Protocol::Fullmesh => lost == Lost::Ends,
            Protocol::Hierarchy => lost == Lost::Ends && self.mode.stage == Some(2),
            _ => match lost {
                Lost::Counts | Lost::Rows => true,
                Lost::Tokens => direct || matches!(self.mode.flags, Some(Flags::Separate)),
                Lost::Grants => direct,
                Lost::Blocks => shape.protocol() == Protocol::FullmeshV2,
                Lost::Tp => shape.tp_world_size() > 1,
                Lost::Ends => false,
            },
        }
    }

    fn killed(&self, given: &str, case: &Case) -> Result<(RankId, u64), String> {
        if !matches!(self.backend, BackendArg::Processes | BackendArg::Mpi) {
            return Err("only --backend processes and mpi have it".to_owned());
        }
        let must = "must be killed=RANK:N with N writes before it dies";
        of_rank(case, given, must, |writes| writes.parse().ok())
    }

    fn round(&self, fault: &str, given: &str, case: &Case) -> Result<(RankId, usize), String> {
        let must = format!("must be {fault}=RANK:N with a round N in [0, {})", self.rounds);
        of_rank(case, given, &must, |round| round.parse().ok().filter(|round| *round < self.rounds as usize))
    }

    fn delay(&self, fault: &str, given: &str, case: &Case) -> Result<(RankId, Duration), String> {
        if !self.backend.is_timed() {
            return Err("only --backend threads and processes have it".to_owned());
        }
        let must = format!("must be {fault}=RANK:SECONDS with SECONDS in [0.001, 1000000]");
        of_rank(case, given, &must, |seconds| number(0.001..=1e6)(seconds).ok().map(Duration::from_secs_f64))
    }
}

fn absent_core(given: &str, case: &Case) -> Result<Stopped, String> {
    let cores = case.shape.aiv_num();
    let must = format!("must be absent-core=RANK:CORE with CORE in [0, {cores})");
    let (rank, core) =
        of_rank(case, given, &must, |core| core.parse().ok().filter(|core| *core < cores).map(CoreId))?;
    Ok(Stopped { rank, who: Who::Core(core), after: 0 })
}

fn lost(what: &str) -> Result<Lost, String> {
    Lost::ALL
        .into_iter()
        .find(|lost| lost.name() == what)
        .ok_or_else(|| format!("what is lost must be one of {}", Lost::ALL.map(Lost::name).join(", ")))
}

/// Returns the rank that has this name in files.
fn member(case: &Case, name: u32) -> Option<RankId> {
    global_rank::all(&case.shape).find(|&member| case.name(member).0 == name)
}

/// Parses `RANK:VALUE`. `must` is the message for a text of another form.
fn of_rank<T>(
    case: &Case,
    given: &str,
    must: &str,
    value: impl FnOnce(&str) -> Option<T>,
) -> Result<(RankId, T), String> {
    let parts = given.split_once(':').and_then(|(rank, text)| rank.parse().ok().zip(value(text)));
    let (rank, value) = parts.ok_or(must)?;
    let rank = member(case, rank).ok_or("must be a rank of the group")?;
    Ok((rank, value))
}

fn twice(shape: &Shape, rank: &str) -> Result<RankId, String> {
    if shape.protocol() != Protocol::Hierarchy {
        return Err("only comm_alg = hierarchy has relays".to_owned());
    }
    let last = shape.ep_world_size() - 1;
    let rank = rank.parse().ok().filter(|&rank| rank <= last).map(RankId);
    rank.ok_or_else(|| format!("must be a rank in [0, {last}]"))
}
