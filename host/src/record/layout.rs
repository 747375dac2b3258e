//! What lies where in the file of a process, in words of 8 bytes of the machine that wrote it.
//!
//! ```text
//!   head       4096 bytes: words by the numbers of `Head`
//!   text       JSON, `Head::Text` bytes: what the file is of (`About`), padded to 4096
//!   places     128 bytes for each core, then for each agent, of the process's ranks in their order
//!   rings      for each worker: 4096 bytes of head, then `entries` entries of 32 bytes
//! ```
//!
//! A place: its number of changes (odd while it changes), the worker, then at 32 the entry with which the core has begun what it
//! is in, and at 64 the one that says what it waits for, or 0. The head of a ring: the number of entries ever
//! written, at 8 that of names of phases, and from 64 on those names, 32 bytes each. Entry `n` lies at `n` modulo `entries`.
//!
//! An entry, from the lowest bits of its four words on:
//!
//! | word | bits | |
//! |---|---|---|
//! | 0 | 64 | the time in ns of the machine's monotonic clock |
//! | 1 | 8, 8, 16, 16, 8, 8 | kind from 1, core (255: agent), rank, peer (65535: none), region (0: none), a number |
//! | 2 | 40, 24 | offset, length (0: none) |
//! | 3 | 64 | the word; the number says whether there is one |
//!
//! A `begin` has its phase as that number, the batch in word 2 and the operator in word 3 (1 dispatch, 2 combine). An `await` has
//! there the kind of word that is missing, and in words 2 and 3 its other details, 32 bits each.

use crate::dump::REGIONS;
use crate::events::{Doing, Event, Kind, What};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use veriep_core::fabric::{Flag, Wait};
use veriep_core::place::{Place, Region, Tensor};
use veriep_core::protocol::Operator;
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::{CoreId, RankId};

/// The first word of a file, with the version of all that stands here.
pub const MAGIC: u64 = u64::from_le_bytes(*b"VERIEPF1");
/// Bytes of a page, with which every part begins.
pub const PAGE: usize = 4096;
/// Bytes of a place.
pub const PLACE: usize = 128;
/// Bytes of an entry.
pub const ENTRY: usize = 32;
/// Where the names of phases begin in the head of a ring, bytes of each, and how many there are.
pub const NAMES: (usize, usize, usize) = (64, 32, 126);
/// Longest text, most workers and most entries of a ring that a reader believes.
pub(super) const LIMITS: (usize, usize, usize) = (1 << 22, 1024, 1 << 20);

const NO_CORE: u64 = 0xff;
const NO_PEER: u64 = 0xffff;

/// Words of the head of a file.
#[derive(Clone, Copy, Debug)]
pub enum Head {
    /// [`MAGIC`].
    Magic,
    /// Bytes of the text.
    Text,
    /// The process's number in the system; 0 before it was started.
    Pid,
    /// When it was started, in ticks since the machine was.
    Started,
    /// How it ended by itself: 0 it did not, then as [`End`](super::End).
    End,
    /// Microseconds since 1970 at which somebody saw that it was gone, or 0.
    DiedAt,
    /// How it left, written before `DiedAt`: 0 not known, else the kind (1 signal, 2 exit, 3 silent), and 32 bits above it
    /// the number.
    How,
}

impl Head {
    /// Where the word lies.
    #[must_use]
    pub const fn offset(self) -> usize {
        self as usize * 8
    }
}

/// What a file is of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// The header of the record of events ([`lines`](crate::events::lines)).
    pub events: Value,
    /// The number of the process in its group.
    pub process: usize,
    /// How many there are.
    pub processes: usize,
    /// Who has started it, in the system; 0 if nobody of the group has.
    pub parent: u32,
    /// When that one was started, as [`Head::Started`].
    pub parent_started: u64,
    pub host: String,
    /// Who knows the process by that number: this start of the machine, and a space of numbers.
    pub system: String,
    pub ranks: Vec<u32>,
    /// Cores of each.
    pub cores: u32,
    pub workers: usize,
    /// Entries of each ring, a power of two.
    pub entries: usize,
    /// Microseconds since 1970 and nanoseconds of the entries' clock, at one time.
    pub clock: (u64, u64),
}

/// Where the parts begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    pub places: usize,
    pub rings: usize,
    /// Entries of a ring.
    pub entries: usize,
    /// Bytes of the file.
    pub len: usize,
}

impl Parts {
    /// Those of a file.
    #[must_use]
    pub fn new(text: usize, about: &About) -> Self {
        let places = PAGE + text.next_multiple_of(PAGE);
        let rings = places + (about.places() * PLACE).next_multiple_of(PAGE);
        let parts = Self { places, rings, entries: about.entries, len: 0 };
        Self { len: parts.ring(about.workers), ..parts }
    }

    /// The head of a worker's ring.
    #[must_use]
    pub const fn ring(&self, worker: usize) -> usize {
        self.rings + worker * (PAGE + self.entries * ENTRY)
    }

    /// An entry of it.
    #[must_use]
    pub const fn entry(&self, worker: usize, n: u64) -> usize {
        self.ring(worker) + PAGE + (n as usize & (self.entries - 1)) * ENTRY
    }
}

impl About {
    /// How many cores and agents have a place.
    #[must_use]
    pub fn places(&self) -> usize {
        self.ranks.len() * (self.cores as usize + 1)
    }

    /// The place of a core or agent of the `nth` rank.
    #[must_use]
    pub const fn place(&self, nth: usize, core: CoreId) -> usize {
        let cores = self.cores as usize;
        if core.0 < self.cores { nth * cores + core.0 as usize } else { self.ranks.len() * cores + nth }
    }
}

/// The four words of an entry.
pub type Words = [u64; 4];

const fn who(actor: Actor, kind: Kind) -> u64 {
    let core = if actor.core.0 == AGENT.0 { NO_CORE } else { actor.core.0 as u64 & 0xff };
    (kind as u64 + 1) | core << 8 | (actor.member.0 as u64 & 0xffff) << 16
}

const fn of_region(region: Region) -> u64 {
    match region {
        Region::State => 1,
        Region::Window => 2,
        Region::WindowOut => 3,
        Region::TpState => 4,
        Region::TpWindow => 5,
        Region::Output(tensor) => 6 + tensor as u64,
    }
}

fn region(number: u64) -> Option<Region> {
    let nth = (number as usize).checked_sub(1)?;
    let tensor = || Tensor::ALL.get(nth - REGIONS.len()).map(|&tensor| Region::Output(tensor));
    REGIONS.get(nth).copied().or_else(tensor)
}

/// The entry of what was done.
#[inline]
#[must_use]
pub fn entry(time: u64, actor: Actor, kind: Kind, what: &What) -> Words {
    let peer = what.peer.map_or(NO_PEER, |peer| u64::from(peer.0) & 0xffff);
    let (place, offset) = what.at.map_or((0, 0), |at| (of_region(at.region), at.offset & ((1 << 40) - 1)));
    let length = what.length.unwrap_or(0).min((1 << 24) - 1);
    let has_word = u64::from(what.word.is_some());
    let who = who(actor, kind) | peer << 32 | place << 48 | has_word << 56;
    [time, who, offset | length << 40, what.word.unwrap_or(0)]
}

/// The entry with which a core begins an operator, or the phase of that number.
#[must_use]
pub fn begin(time: u64, actor: Actor, planned: Planned, phase: u8) -> Words {
    let operator = if planned.is_dispatch() { 1 } else { 2 };
    let who = who(actor, Kind::Begin) | NO_PEER << 32 | u64::from(phase) << 56;
    [time, who, planned.round as u64, operator]
}

/// The entry of a wait.
#[must_use]
pub fn awaits(time: u64, actor: Actor, wait: &Wait) -> Words {
    let [a, b, c] = wait.index.map(u64::from);
    let peer = u64::from(wait.rank.0) & 0xffff;
    [time, who(actor, Kind::Await) | peer << 32 | (wait.flag as u64) << 56, a | b << 32, c]
}

/// An entry that has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The event, but for the name of its phase.
    pub event: Event,
    /// The number of that.
    pub phase: u8,
    /// What a core waits for.
    pub wait: Option<Wait>,
}

/// What the words of an entry say; nothing if they are none.
#[must_use]
pub fn read(words: Words) -> Option<Read> {
    let [time, who, two, three] = words;
    let bits = |from: u32, len: u32| who >> from & ((1 << len) - 1);
    let kind = Kind::ALL.get((bits(0, 8) as usize).checked_sub(1)?).copied()?;
    let core = match bits(8, 8) {
        NO_CORE => AGENT,
        core => CoreId(core as u32),
    };
    let actor = Actor { member: RankId(bits(16, 16) as u32), core };
    let number = bits(56, 8) as u8;
    let mut read = Read {
        event: Event { time, actor, doing: Doing::default(), kind, what: What::default() },
        phase: 0,
        wait: None,
    };
    let peer = Some(bits(32, 16)).filter(|&peer| peer != NO_PEER).map(|peer| RankId(peer as u32));
    match kind {
        Kind::Begin => {
            let operator = match three {
                1 => Operator::Dispatch,
                2 => Operator::Combine,
                _ => return None,
            };
            let round = usize::try_from(two).ok()?;
            read.event.doing.planned = Some(Planned { operator, round });
            read.phase = number;
        }
        Kind::Await => {
            let flag = Flag::ALL.into_iter().find(|&flag| flag as u32 == u32::from(number))?;
            let wait = Wait::new(flag, peer?, &[two as u32, (two >> 32) as u32, u32::try_from(three).ok()?]);
            let what = What { peer: wait.source(), awaited: Some(flag.name()), ..What::default() };
            (read.wait, read.event.what) = (Some(wait), what);
        }
        _ => {
            let at = match bits(48, 8) {
                0 => None,
                number => Some(Place { region: region(number)?, offset: two & ((1 << 40) - 1) }),
            };
            let length = Some(two >> 40).filter(|&length| length > 0);
            let word = (number == 1).then_some(three);
            read.event.what = What { peer, at, length, word, ..What::default() };
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTOR: Actor = Actor { member: RankId(287), core: CoreId(47) };
    const AN_AGENT: Actor = Actor { member: RankId(3), core: AGENT };

    #[test]
    fn what_was_done_is_read_as_it_was() {
        let at = |region, offset| Some(Place { region, offset });
        let full = What {
            peer: Some(RankId(12)),
            at: at(Region::State, 393_216),
            length: Some(8),
            word: Some(u64::MAX),
            ..What::default()
        };
        let all = [
            (ACTOR, Kind::Publish, full),
            (
                AN_AGENT,
                Kind::Post,
                What { word: None, length: Some(1 << 20), at: at(Region::Window, (1 << 40) - 8), ..full },
            ),
            (
                ACTOR,
                Kind::Store,
                What { peer: None, word: Some(0), at: at(Region::Output(Tensor::ExpandScales), 4), ..full },
            ),
            (ACTOR, Kind::Quiet, What::default()),
            (ACTOR, Kind::End, What::default()),
        ];
        for (actor, kind, what) in all {
            let seen = read(entry(7, actor, kind, &what)).unwrap();
            assert_eq!(seen.event, Event { time: 7, actor, doing: Doing::default(), kind, what });
        }
    }

    #[test]
    fn begins_and_waits_are_read_as_they_were() {
        let planned = Planned { operator: Operator::Combine, round: 123_456 };
        let seen = read(begin(9, ACTOR, planned, 17)).unwrap();
        assert_eq!((seen.event.doing.planned, seen.phase), (Some(planned), 17));
        for flag in Flag::ALL {
            let wait = Wait::new(flag, RankId(5), &[1, u32::MAX, 3]);
            let seen = read(awaits(9, ACTOR, &wait)).unwrap();
            assert_eq!((seen.wait, seen.event.what.awaited), (Some(wait), Some(flag.name())));
        }
    }

    #[test]
    fn kinds_are_numbered_as_they_are_listed() {
        for (nth, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, nth);
        }
    }

    #[test]
    fn words_that_are_no_entry_are_refused() {
        let good = begin(9, ACTOR, Planned { operator: Operator::Dispatch, round: 0 }, 0);
        for bad in [
            [0; 4],
            [9, good[1] | 0xff, 0, 1],
            [9, good[1], 0, 3],
            [9, awaits(0, ACTOR, &Wait::QUIET)[1] | 0xff << 56, 0, 0],
            [9, entry(0, ACTOR, Kind::Put, &What::default())[1] | 0x7f << 48, 0, 0],
        ] {
            assert_eq!(read(bad), None, "{bad:x?}");
        }
    }
}
