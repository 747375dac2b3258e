//! `--inject`: who misbehaves, and how.

use super::BackendArg;
use super::RunArgs;
use crate::backend::inject::{Lost, Silent, Stray};
use crate::case::Case;
use crate::cli::FlagsArg;
use crate::error::Error;
use crate::global_rank;
use clap::ValueEnum;
use core::time::Duration;
use veriep_core::layout::relay;
use veriep_core::shape::{Protocol, Shape};
use veriep_core::units::RankId;

impl RunArgs {
    /// Who is silent; ranks are named as files name them.
    ///
    /// # Errors
    /// No such fault or rank.
    pub fn silent(&self, case: &Case) -> Result<Option<Silent>, Error> {
        let Some(fault) = &self.inject else { return Ok(None) };
        if self.stray(case)?.is_some() || self.killed(case)?.is_some() || self.slow(case)?.is_some() {
            return Ok(None);
        }
        let given = fault.strip_prefix("silent=").unwrap_or_default();
        let (rank, what) = given.split_once(':').map_or((given, None), |(rank, what)| (rank, Some(what)));
        let rank = rank.parse().ok();
        let only = what.map(|what| Lost::from_str(what, false)).transpose().map_err(|_| {
            let names: Vec<_> = Lost::value_variants()
                .iter()
                .filter_map(|lost| Some(lost.to_possible_value()?.get_name().to_owned()))
                .collect();
            Error::Request(format!("--inject {fault}: what is lost must be one of {}", names.join(", ")))
        })?;
        if only.is_some_and(|lost| !self.sends(&case.shape, lost)) {
            return Err(Error::Request(format!(
                "--inject {fault}: this run has no separate words of this kind"
            )));
        }
        match global_rank::all(&case.shape).find(|&member| Some(case.name(member).0) == rank) {
            Some(rank) => Ok(Some(Silent { rank, only })),
            None => Err(Error::Request(format!(
                "--inject {fault}: must be silent=RANK with RANK in [0, {}]{}",
                global_rank::count(case.whole()) - 1,
                if case.elastic.is_some() { ", not one that is gone" } else { "" }
            ))),
        }
    }

    /// Whether words of that kind are sent, and known by their places.
    fn sends(&self, shape: &Shape, lost: Lost) -> bool {
        let direct = self.mode.receive.is_direct();
        match shape.protocol() {
            Protocol::Fullmesh => lost == Lost::Ends,
            Protocol::Hierarchy => lost == Lost::Ends && self.mode.stage == Some(2),
            _ => match lost {
                Lost::Counts | Lost::Rows => true,
                Lost::Tokens => direct || matches!(self.mode.flags, Some(FlagsArg::Separate)),
                Lost::Grants => direct,
                Lost::Blocks => shape.protocol() == Protocol::FullmeshV2,
                Lost::Tp => shape.tp_world_size() > 1,
                Lost::Ends => false,
            },
        }
    }

    /// Whose process dies, and in place of which of its writes.
    ///
    /// # Errors
    /// No such rank, or no process of its own.
    pub fn killed(&self, case: &Case) -> Result<Option<(RankId, u64)>, Error> {
        let given = self.inject.as_deref().and_then(|fault| fault.strip_prefix("killed="));
        let Some(given) = given else { return Ok(None) };
        let refuse = |why: &str| Err(Error::Request(format!("--inject killed={given}: {why}")));
        if !matches!(self.backend, BackendArg::Processes | BackendArg::Mpi) {
            return refuse("only --backend processes and mpi have it");
        }
        let numbers = |(rank, at): (&str, &str)| rank.parse::<u32>().ok().zip(at.parse::<u64>().ok());
        let Some((rank, at)) = given.split_once(':').and_then(numbers) else {
            return refuse("must be killed=RANK:N with N writes before it dies");
        };
        match global_rank::all(&case.shape).find(|&member| case.name(member).0 == rank) {
            Some(rank) => Ok(Some((rank, at))),
            None => refuse("must be a rank of the group"),
        }
    }

    /// Whose experts take how long more.
    ///
    /// # Errors
    /// No such rank or time, or time is not real.
    pub fn slow(&self, case: &Case) -> Result<Option<(RankId, Duration)>, Error> {
        let given = self.inject.as_deref().and_then(|fault| fault.strip_prefix("slow="));
        let Some(given) = given else { return Ok(None) };
        let refuse = |why: &str| Err(Error::Request(format!("--inject slow={given}: {why}")));
        if !self.backend.is_timed() {
            return refuse("only --backend threads and processes have it");
        }
        let numbers =
            |(rank, s): (&str, &str)| rank.parse::<u32>().ok().zip(super::number(0.001..=1e6)(s).ok());
        let Some((rank, seconds)) = given.split_once(':').and_then(numbers) else {
            return refuse("must be slow=RANK:SECONDS with SECONDS in [0.001, 1000000]");
        };
        match global_rank::all(&case.shape).find(|&member| case.name(member).0 == rank) {
            Some(rank) => Ok(Some((rank, Duration::from_secs_f64(seconds)))),
            None => refuse("must be a rank of the group"),
        }
    }

    /// Who sends what nobody asked for.
    ///
    /// # Errors
    /// No such rank, or no hierarchy in which others would be near.
    pub fn stray(&self, case: &Case) -> Result<Option<Stray>, Error> {
        let Some((what, rank)) = self.inject.as_deref().and_then(|fault| fault.split_once('=')) else {
            return Ok(None);
        };
        if !["twice", "astray"].contains(&what) {
            return Ok(None);
        }
        let (shape, fault) = (&case.shape, format!("--inject {what}={rank}"));
        if shape.protocol() != Protocol::Hierarchy {
            return Err(Error::Request(format!("{fault}: only comm_alg = hierarchy has relays")));
        }
        let rank = rank.parse().ok().filter(|&rank| rank < shape.ep_world_size()).map(RankId);
        let Some(rank) = rank else {
            let last = shape.ep_world_size() - 1;
            return Err(Error::Request(format!("{fault}: must be a rank in [0, {last}]")));
        };
        if what == "twice" {
            return Ok(Some(Stray::Twice(rank)));
        }
        let (server, number) = shape.server_of(rank);
        let to = shape.rank_on(server, (number + 1) % shape.server_ranks());
        // The last of all: only a source that sends that expert its whole batch uses it.
        let last = (shape.local_expert_num() - 1, RankId(shape.ep_world_size() - 1), shape.bs_max() - 1);
        let slot = relay::dispatch_slot(shape, last.0, last.1, last.2);
        Ok(Some(Stray::Astray { rank, to, at: relay::behind(slot, relay::ROW) }))
    }
}
