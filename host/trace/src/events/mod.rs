//! One record of what happens in a group: who did what, when, and to whom. It is written as JSON lines
//! ([`lines`]), as Chrome's trace-event JSON ([`chrome`]) and as a page to look at ([`page`]); the last two draw what
//! [`timeline`] has made of it.

pub mod chrome;
pub mod lines;
pub mod log;
pub mod page;
pub mod recorder;
pub mod timeline;

use lines::Lines;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use timeline::Timeline;
use veriep_core::place::Place;
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::RankId;

/// The name and version of the record.
pub const SCHEMA: &str = "veriep.events/2";

/// The version before, which has whole operators only.
pub const FORMER_SCHEMA: &str = "veriep.events/1";

/// What counts as time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Picoseconds of virtual time.
    Ps,
    /// Nanoseconds of a machine's clock.
    Ns,
    /// The events before: where a scheduler has no clock.
    Events,
}

impl Unit {
    /// Microseconds of a trace: where there is no clock, one for each event.
    pub fn us(self, time: u64) -> f64 {
        match self {
            Self::Ps => time as f64 / 1e6,
            Self::Ns => time as f64 / 1e3,
            Self::Events => time as f64,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A row and what goes beside it were put into a peer's memory.
    Put,
    /// A word was published in a peer's memory.
    Publish,
    /// A word was stored in its own memory.
    Store,
    /// Bytes were written into its own memory.
    Write,
    /// Bytes of its own memory, or of a peer's, were copied into an output, or read for one.
    Deliver,
    /// A message was sent to another server.
    Send,
    /// An agent posted a task.
    Post,
    /// Something that this core or agent issued has landed at the peer.
    Land,
    /// A word has changed since this core or agent looked at it last.
    Observe,
    /// All effects of the core have landed, and it has asked.
    Quiet,
    /// The core begins an operator, or another phase of it.
    Begin,
    /// The core has sent everything of an operator, and sets it aside.
    Sent,
    /// The core goes on with an operator that it has set aside.
    Resume,
    /// The core ends an operator.
    End,
    /// The core or agent has nothing to do from now on until its next event.
    Await,
}

/// Which operator, of which batch, and in which phase of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doing {
    /// The operator; none of an agent, and before the first one.
    pub planned: Option<Planned>,
    pub phase: &'static str,
}

/// Where, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What {
    /// The other rank: whose memory is written, or who is waited for.
    pub peer: Option<RankId>,
    /// The place that is written or read.
    pub at: Option<Place>,
    /// Bytes.
    pub length: Option<u64>,
    /// Where in WindowsOut of its rank an agent's task is read, in bytes.
    pub from: Option<u64>,
    /// The word that is written or seen.
    pub word: Option<u64>,
    /// The kind of word that is waited for.
    pub awaited: Option<&'static str>,
}

/// An entry of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in units of the record.
    pub time: u64,
    /// Who: a core, or an agent.
    pub actor: Actor,
    pub doing: Doing,
    pub kind: Kind,
    pub what: What,
}

/// The core of an actor; none of an agent.
pub fn core_of(actor: Actor) -> Option<u32> {
    (actor.core != AGENT).then_some(actor.core.0)
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { time, actor, doing, kind, what } = *self;
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("time", &time)?;
        line.serialize_entry("rank", &actor.member.0)?;
        line.serialize_entry("core", &core_of(actor))?;
        if let Some(Planned { operator, round, .. }) = doing.planned {
            line.serialize_entry("batch", &round)?;
            line.serialize_entry("operator", operator.name())?;
        }
        if !doing.phase.is_empty() {
            line.serialize_entry("phase", doing.phase)?;
        }
        line.serialize_entry("kind", &kind)?;
        if let Some(peer) = what.peer {
            line.serialize_entry("peer", &peer.0)?;
        }
        if let Some(Place { region, offset }) = what.at {
            line.serialize_entry("region", region.name())?;
            line.serialize_entry("offset", &offset)?;
        }
        for (name, number) in [("length", what.length), ("from", what.from)] {
            if let Some(number) = number {
                line.serialize_entry(name, &number)?;
            }
        }
        if let Some(word) = what.word {
            // Larger than what all readers of JSON take for a number.
            line.serialize_entry("word", &format!("{word:#x}"))?;
        }
        if let Some(awaited) = what.awaited {
            line.serialize_entry("awaited", awaited)?;
        }
        line.end()
    }
}

/// Who is told of events, in the order of their times.
#[derive(Debug, Default)]
pub struct Sinks {
    pub lines: Option<Lines>,
    pub timeline: Option<Timeline>,
}

impl Sinks {
    pub fn event(&mut self, event: &Event) {
        self.lines.iter_mut().for_each(|lines| lines.event(event));
        self.timeline.iter_mut().for_each(|timeline| timeline.event(event));
    }
}
