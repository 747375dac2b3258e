//! The cluster that a simulation runs on: links and costs, from a TOML file. Times are kept in picoseconds.

use crate::error::Error;
use serde::Deserialize;
use std::path::Path;

/// Picoseconds.
pub type Ps = u64;

/// The clusters that are built in, by name.
pub const PRESETS: [(&str, &str); 2] = [("a2", include_str!("a2.toml")), ("a3", include_str!("a3.toml"))];

/// The largest number that a file may have: none of the sums that a run makes of them overflows.
const LARGEST: f64 = 1e9;

/// In which order a port sends what waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Egress {
    /// First come, first served.
    #[default]
    Fifo,
    /// By turns over destinations, a chunk each.
    Fair,
}

/// A cluster file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Between the ranks.
    pub links: Links,
    /// On a core and on an agent.
    pub costs: Costs,
}

/// What lies between the ranks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// Where the numbers come from.
    pub source: String,
    /// Ports of a rank, which share its traffic evenly.
    pub ports: u32,
    /// Gigabytes a second of a port, in each direction.
    pub port_gbs: f64,
    /// From a rank to another by ports, in nanoseconds.
    pub port_ns: f64,
    /// Gigabytes a second from a rank to another one of its server.
    pub near_gbs: f64,
    /// From a rank to another one of its server, in nanoseconds.
    pub near_ns: f64,
    /// In which order a port sends.
    pub egress: Egress,
    /// Bytes that a port sends in one piece.
    pub chunk: u32,
}

/// What a step costs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Where the numbers come from.
    pub source: String,
    /// A step of a core, in nanoseconds.
    pub step_ns: f64,
    /// A word that a core reads.
    pub word_ns: f64,
    /// An effect that a core has.
    pub effect_ns: f64,
    /// Gigabytes a second that a core reads or writes.
    pub copy_gbs: f64,
    /// A word that an agent reads.
    pub agent_word_ns: f64,
    /// A task that an agent posts.
    pub agent_task_ns: f64,
    /// From a word's change until the core that waits for it takes a step.
    pub poll_ns: f64,
    /// The same of an agent.
    pub agent_poll_ns: f64,
}

/// A duration in nanoseconds as picoseconds.
pub fn ps(ns: f64) -> Ps {
    (ns * 1e3).round() as Ps
}

/// How long so many bytes take at a rate in megabytes a second; no time at a rate of 0.
pub fn transfer(bytes: u64, mbs: u64) -> Ps {
    bytes.saturating_mul(1_000_000).checked_div(mbs).unwrap_or(0)
}

/// A rate in gigabytes a second as megabytes a second.
pub fn mbs(gbs: f64) -> u64 {
    (gbs * 1e3).round() as u64
}

impl Cluster {
    /// Reads a built-in cluster or a file; `links` and `costs` are `KEY=VALUE` that override its keys.
    ///
    /// # Errors
    /// The file is missing or no cluster, a key is unknown, a number is out of range.
    pub fn read(name: &str, links: &[String], costs: &[String]) -> Result<Self, Error> {
        let built_in = PRESETS.iter().find(|(preset, _)| *preset == name).map(|(_, text)| (*text).to_owned());
        let text = match built_in {
            Some(text) => text,
            None => std::fs::read_to_string(name).map_err(|error| {
                Error::file(Path::new(name), format!("cannot read: {error}; clusters built in: a2, a3"))
            })?,
        };
        let fail = |what: &str| Error::file(Path::new(name), what.trim_end().replace('\n', ", "));
        let mut table: toml::Table = toml::from_str(&text).map_err(|error| fail(error.message()))?;
        for (section, option, given) in [("links", "--link", links), ("costs", "--cost", costs)] {
            for assignment in given {
                let fail = |what: &str| Error::Request(format!("{option} {assignment}: {what}"));
                let (key, value) =
                    assignment.split_once('=').ok_or_else(|| fail("missing '=': must be KEY=VALUE"))?;
                let known = table
                    .get_mut(section)
                    .and_then(toml::Value::as_table_mut)
                    .and_then(|keys| keys.get_mut(key));
                let known = known.filter(|_| key != "source").ok_or_else(|| fail("unknown key"))?;
                *known = match known {
                    toml::Value::Integer(_) => value.parse().map(toml::Value::Integer).ok(),
                    toml::Value::Float(_) => value.parse().map(toml::Value::Float).ok(),
                    _ => Some(toml::Value::String(value.to_owned())),
                }
                .ok_or_else(|| fail("must be a number"))?;
            }
        }
        let cluster = Self::deserialize(table).map_err(|error| fail(error.message()))?;
        cluster.check().map_err(|what| fail(&what))?;
        Ok(cluster)
    }

    /// The same without latencies and costs: bandwidth alone.
    #[must_use]
    pub fn free(&self) -> Self {
        let links = Links { port_ns: 0.0, near_ns: 0.0, ..self.links.clone() };
        let costs = Costs {
            source: self.costs.source.clone(),
            step_ns: 0.0,
            word_ns: 0.0,
            effect_ns: 0.0,
            copy_gbs: 0.0,
            agent_word_ns: 0.0,
            agent_task_ns: 0.0,
            poll_ns: 0.0,
            agent_poll_ns: 0.0,
        };
        Self { links, costs }
    }

    fn check(&self) -> Result<(), String> {
        let Self { links, costs } = self;
        for (key, value) in
            [("port_gbs", links.port_gbs), ("near_gbs", links.near_gbs), ("copy_gbs", costs.copy_gbs)]
        {
            if !(0.001..=LARGEST).contains(&value) {
                return Err(format!("{key} = {value}: must be in [0.001, {LARGEST}]"));
            }
        }
        for (key, value) in [
            ("port_ns", links.port_ns),
            ("near_ns", links.near_ns),
            ("step_ns", costs.step_ns),
            ("word_ns", costs.word_ns),
            ("effect_ns", costs.effect_ns),
            ("agent_word_ns", costs.agent_word_ns),
            ("agent_task_ns", costs.agent_task_ns),
            ("poll_ns", costs.poll_ns),
            ("agent_poll_ns", costs.agent_poll_ns),
        ] {
            if !(0.0..=LARGEST).contains(&value) {
                return Err(format!("{key} = {value}: must be in [0, {LARGEST}]"));
            }
        }
        if !(1..=64).contains(&links.ports) {
            return Err(format!("ports = {}: must be in [1, 64]", links.ports));
        }
        if !(64..=16 << 20).contains(&links.chunk) {
            return Err(format!("chunk = {}: must be in [64, {}]", links.chunk, 16 << 20));
        }
        Ok(())
    }
}
