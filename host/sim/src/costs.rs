//! The cluster that a simulation runs on: links and costs, from a TOML file. Times are kept in picoseconds.

use serde::Deserialize;
use std::path::Path;
use veriep_case::config::keys;
use veriep_case::error::Error;
use veriep_spread::port::PORTS;

/// Picoseconds.
pub type Ps = u64;

/// The clusters that are built in, by name.
pub const PRESETS: [(&str, &str); 2] = [("a2", include_str!("a2.toml")), ("a3", include_str!("a3.toml"))];

/// The largest number that a file may have: none of the sums that a run makes of them overflows.
const LARGEST: f64 = 1e9;

/// The keys of `[links]` and of `[costs]` that a result hangs on.
const LINKS: [&str; 9] =
    ["ports", "port_gbs", "port_ns", "near_gbs", "near_ns", "egress", "chunk", "buffer", "port_by"];
const COSTS: [&str; 16] = [
    "start_ns",
    "step_ns",
    "word_ns",
    "effect_ns",
    "copy_gbs",
    "copies",
    "agent_word_ns",
    "agent_task_ns",
    "poll_ns",
    "agent_poll_ns",
    "pair_ns",
    "quant_gbs",
    "vector_gbs",
    "launch_ns",
    "peer_ns",
    "sync_ns",
];

/// The keys of all tables.
const TABLES: [(&str, &[&str], &[&str]); 3] = [
    ("links", &LINKS, &["source", "measured", "derived", "fitted_to"]),
    ("costs", &COSTS, &["source", "measured", "derived", "fitted"]),
    ("tier", &["ranks", "ns", "oversubscription", "port_gbs"], &["source"]),
];

/// How a core copies a row from one place to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Copies {
    /// It writes one part while it reads the next.
    #[default]
    Pipelined,
    /// It reads all of it and then writes all of it.
    Serial,
}

impl Copies {
    /// How often its bytes take time, one after the other.
    pub const fn passes(self) -> u64 {
        match self {
            Self::Pipelined => 1,
            Self::Serial => 2,
        }
    }
}

/// In which order a port sends what waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Egress {
    /// First come, first served.
    #[default]
    Fifo,
    /// Alternating over destinations, a chunk each.
    Fair,
}

/// By which of its ports a rank sends a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortBy {
    /// All ports share the traffic as if they were one.
    #[default]
    Even,
    /// Each packet of 512 bytes by a hash of its address.
    Packet,
    /// A whole write by a hash of the address that it begins at.
    Write,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Between the ranks.
    pub links: Links,
    /// On a core and on an agent.
    pub costs: Costs,
    /// Links that groups of ranks share, the smallest groups first; none where all ranks are at one switch.
    #[serde(default)]
    pub tier: Vec<Tier>,
}

/// Links from groups of ranks to each other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Where the numbers come from.
    pub source: String,
    /// Ranks of a group.
    pub ranks: u32,
    /// Nanoseconds that a link of this tier adds, out of a group and into another.
    pub ns: f64,
    /// How many times faster the ports of a group are, all together, than its link.
    pub oversubscription: f64,
    /// Gigabytes a second of a port, for what leaves or enters a group; 0 for those of all links.
    #[serde(default)]
    pub port_gbs: f64,
}

/// What is between the ranks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// Where the numbers come from.
    pub source: String,
    /// The keys whose numbers a source has measured.
    pub measured: Vec<String>,
    /// The keys whose numbers follow from those that sources name. What is in neither list is assumed.
    pub derived: Vec<String>,
    /// The communication of which a measured time was used to find a number here, `a2 fullmesh` for one; empty if there is none.
    /// Its times are calibrated, all others predicted.
    pub fitted_to: String,
    /// Ports of a rank.
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
    /// Bytes that may be at a port of a receiver or on their way to it, while senders of more stop; 0 for any number.
    pub buffer: u64,
    /// By which port a write goes.
    pub port_by: PortBy,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Where the numbers come from.
    pub source: String,
    /// The keys whose numbers a source has measured.
    pub measured: Vec<String>,
    /// The keys whose numbers follow from those that sources name.
    pub derived: Vec<String>,
    /// The keys whose numbers were chosen so that measured times come out. What is in none of the lists is assumed.
    #[serde(default)]
    pub fitted: Vec<String>,
    /// What an operator takes besides its steps: to begin on all cores, to find its windows, and to end.
    pub start_ns: f64,
    /// A step of a core, in nanoseconds.
    pub step_ns: f64,
    /// A word that a core reads.
    pub word_ns: f64,
    pub effect_ns: f64,
    /// Gigabytes a second that a core reads or writes.
    pub copy_gbs: f64,
    /// How it copies rows.
    pub copies: Copies,
    pub agent_word_ns: f64,
    pub agent_task_ns: f64,
    /// From a word's change until the core that waits for it takes a step.
    pub poll_ns: f64,
    pub agent_poll_ns: f64,
    /// What a core's plan of dispatch takes for each token and expert of it: 5 accesses by a walk, 2 by a table (910C guide).
    pub pair_ns: f64,
    /// Gigabytes a second of rows, as they are sent, that a vector unit quantises; 0 for no time.
    pub quant_gbs: f64,
    /// Gigabytes a second of rows that a vector unit sums; 0 for no time.
    pub vector_gbs: f64,
    /// A launch by the host, which the operators do not need, but what they took the place of does.
    pub launch_ns: f64,
    /// What a launch takes longer for each peer.
    pub peer_ns: f64,
    /// From the end of what the host waits for until it goes on.
    pub sync_ns: f64,
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

/// Returns what is wrong with the first key of a file that no table has.
fn unknown_key(file: &toml::Table) -> Option<String> {
    file.iter().find_map(|(name, value)| {
        let Some((_, keys, more)) = TABLES.iter().find(|(table, ..)| table == name) else {
            return Some(keys::unknown(name, &TABLES.map(|(table, ..)| table)));
        };
        let all = [*keys, *more].concat();
        let tables = value.as_array().map_or(core::slice::from_ref(value), Vec::as_slice);
        let mut given = tables.iter().filter_map(toml::Value::as_table).flat_map(toml::Table::keys);
        given
            .find(|key| !all.contains(&key.as_str()))
            .map(|key| format!("{name}: {}", keys::unknown(key, &all)))
    })
}

/// Gives a file of version 0.1.0 the keys that it did not know: operators began at once, and one rate was that of all vector work.
fn complete(file: &mut toml::Table) {
    let Some(costs) = file.get_mut("costs").and_then(toml::Value::as_table_mut) else { return };
    costs.entry("start_ns").or_insert(toml::Value::Float(0.0));
    if let Some(vector) = costs.get("vector_gbs").cloned() {
        costs.entry("quant_gbs").or_insert(vector);
    }
}

/// Returns the message for the first rate or time, of links and then of costs, that is out of range.
fn out_of_range(file: &toml::Table) -> Option<String> {
    let links = LINKS.iter().map(|&key| (key, &file["links"][key]));
    let costs = COSTS.iter().map(|&key| (key, &file["costs"][key]));
    links.chain(costs).find_map(|(key, value)| {
        let least = match key.rsplit_once('_')? {
            // A vector unit that takes no time has a rate of 0.
            (_, "ns") | ("quant" | "vector", "gbs") => 0.0,
            (_, "gbs") => 0.001,
            _ => return None,
        };
        let value = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))?;
        let is_in = (least..=LARGEST).contains(&value);
        (!is_in).then(|| format!("{key} = {value}: must be in [{least}, {LARGEST}]"))
    })
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
        unknown_key(&table).map_or(Ok(()), |what| Err(fail(&what)))?;
        complete(&mut table);
        for (section, option, given) in [("links", "--link", links), ("costs", "--cost", costs)] {
            for assignment in given {
                let fail = |what: &str| Error::Request(format!("{option} {assignment}: {what}"));
                let (key, value) =
                    assignment.split_once('=').ok_or_else(|| fail("missing '=': must be KEY=VALUE"))?;
                let known = table
                    .get_mut(section)
                    .and_then(toml::Value::as_table_mut)
                    .and_then(|keys| keys.get_mut(key));
                let keys: &[&str] = if section == "links" { &LINKS } else { &COSTS };
                let known = known.filter(|_| keys.contains(&key));
                let known = known.ok_or_else(|| fail(&keys::unknown(key, keys)))?;
                *known = match known {
                    toml::Value::Integer(_) => value.parse().map(toml::Value::Integer).ok(),
                    toml::Value::Float(_) => value.parse().map(toml::Value::Float).ok(),
                    _ => Some(toml::Value::String(value.to_owned())),
                }
                .ok_or_else(|| fail("must be a number"))?;
            }
        }
        let cluster = Self::deserialize(table.clone()).map_err(|error| fail(error.message()))?;
        out_of_range(&table).map_or_else(|| cluster.check(), Err).map_err(|what| fail(&what))?;
        Ok(cluster)
    }

    /// The table that has a key: links or costs.
    pub fn section(&self, key: &str) -> Option<&'static str> {
        LINKS.contains(&key).then_some("links").or_else(|| COSTS.contains(&key).then_some("costs"))
    }

    /// Where the number of each key comes from.
    pub fn marks(&self) -> Vec<(String, &'static str)> {
        let Self { links, costs, .. } = self;
        let none = Vec::new();
        let of = |keys: &[&str], [measured, derived, fitted]: [&Vec<String>; 3]| {
            let lists = [("measured", measured), ("derived", derived), ("fitted", fitted)];
            let mark = |key: &str| {
                let has = lists.iter().find(|(_, list)| list.iter().any(|named| named == key));
                has.map_or("assumed", |&(mark, _)| mark)
            };
            keys.iter().map(|&key| (key.to_owned(), mark(key))).collect::<Vec<_>>()
        };
        let mut marks = of(&LINKS, [&links.measured, &links.derived, &none]);
        marks.extend(of(&COSTS, [&costs.measured, &costs.derived, &costs.fitted]));
        marks
    }

    /// The same without latencies and costs: bandwidth alone.
    pub fn free(&self) -> Self {
        let links = Links { port_ns: 0.0, near_ns: 0.0, ..self.links.clone() };
        let costs = Costs {
            source: "all costs and latencies are 0".to_owned(),
            copies: self.costs.copies,
            ..Costs::default()
        };
        let tier = self.tier.iter().map(|tier| Tier { ns: 0.0, ..tier.clone() }).collect();
        Self { links, costs, tier }
    }

    fn check(&self) -> Result<(), String> {
        let Self { links, costs, tier } = self;
        if !(1..=64).contains(&links.ports) {
            return Err(format!("ports = {}: must be in [1, 64]", links.ports));
        }
        if !(64..=16 << 20).contains(&links.chunk) {
            return Err(format!("chunk = {}: must be in [64, {}]", links.chunk, 16 << 20));
        }
        if links.buffer != 0 && links.buffer < links.chunk.into() {
            return Err(format!("buffer = {}: must be 0 or at least chunk = {}", links.buffer, links.chunk));
        }
        if links.port_by != PortBy::Even && links.ports as usize != PORTS {
            return Err(format!(
                "ports = {}: must be {PORTS}, the ways of the hash by which port_by chooses",
                links.ports
            ));
        }
        let of_links = links.measured.iter().chain(&links.derived);
        let of_costs = costs.measured.iter().chain(&costs.derived).chain(&costs.fitted);
        let lists: [(&[&str], Vec<_>); 2] = [(&LINKS, of_links.collect()), (&COSTS, of_costs.collect())];
        for (keys, named) in lists {
            if let Some(key) = named.into_iter().find(|key| !keys.contains(&key.as_str())) {
                return Err(format!("measured, derived, fitted: {key}: must be one of {}", keys.join(", ")));
            }
        }
        for Tier { ranks, ns, oversubscription, port_gbs, .. } in tier {
            if *ranks == 0 {
                return Err("tier.ranks = 0: must be at least 1".to_owned());
            }
            if !(0.0..=LARGEST).contains(ns) {
                return Err(format!("tier.ns = {ns}: must be in [0, {LARGEST}]"));
            }
            if !(0.001..=1000.0).contains(oversubscription) {
                return Err(format!("tier.oversubscription = {oversubscription}: must be in [0.001, 1000]"));
            }
            if *port_gbs != 0.0 && !(0.001..=LARGEST).contains(port_gbs) {
                return Err(format!("tier.port_gbs = {port_gbs}: must be in [0.001, {LARGEST}], or 0"));
            }
        }
        Ok(())
    }
}
