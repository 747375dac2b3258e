//! A process's own file, while the process runs.
#![allow(unsafe_code)]

use super::clock::Clock;
use super::layout::{self, About, ENTRY, Head, LIMITS, NAMES, PAGE, PLACE, Parts, Words};
use crate::backend::Told;
use crate::events::recorder::Book;
use crate::events::{Kind, What};
use crate::parallel::lock;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use veriep_core::fabric::Wait;
use veriep_core::place::{Place, Region};
use veriep_core::sim::Actor;
use veriep_core::sim::cluster::Planned;
use veriep_core::units::CoreId;

/// Words that a ring remembers to have seen last.
const SEEN: usize = 256;

/// Records what the ranks of this process do.
#[derive(Debug)]
pub struct Writer {
    map: MmapRaw,
    parts: Parts,
    about: About,
    /// By rank of the group: which of this process's it is.
    nth: Vec<u32>,
    /// By place: the worker.
    workers: Vec<u16>,
    /// By place: the number of waits that were told, times 2, and 1 more while it waits.
    waits: Vec<AtomicU64>,
    rings: Vec<Ring>,
    /// The round of batch 0.
    first: AtomicUsize,
    clock: Clock,
}

/// What a worker keeps beside its ring. It alone writes there, so nothing here is ever waited for.
#[derive(Debug)]
struct Ring {
    names: Mutex<Vec<&'static str>>,
    /// By place in memory, about: a mixture of the place, the wait of who looks and the word that it has seen last.
    seen: Box<[AtomicU64]>,
}

impl Writer {
    /// Takes the file that was made for this process. `worker_of` tells which worker polls a core of the
    /// `nth` rank, or with `None` its agent.
    ///
    /// # Errors
    /// The file cannot be mapped, or is not what was made.
    pub fn new(file: &File, worker_of: impl Fn(usize, Option<CoreId>) -> usize) -> io::Result<Self> {
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        let mut word = [0; 8];
        file.read_exact_at(&mut word, Head::Text.offset() as u64)?;
        let text = usize::try_from(u64::from_ne_bytes(word)).ok().filter(|&text| text <= LIMITS.0);
        let mut text = vec![0; text.ok_or_else(malformed)?];
        file.read_exact_at(&mut text, PAGE as u64)?;
        let about: About = serde_json::from_slice(&text)?;
        let parts = Parts::new(text.len(), &about);
        let map = MmapOptions::new().map_raw(file)?;
        if map.len() != parts.len || !about.entries.is_power_of_two() || about.workers == 0 {
            return Err(malformed());
        }
        let mut nth = Vec::new();
        for (number, &rank) in (0..).zip(&about.ranks) {
            nth.resize(nth.len().max(rank as usize + 1), u32::MAX);
            nth[rank as usize] = number;
        }
        let all = 0..about.ranks.len();
        let cores = all.clone().flat_map(|nth| (0..about.cores).map(move |core| (nth, Some(CoreId(core)))));
        let actors = cores.chain(all.map(|nth| (nth, None)));
        let workers = actors.map(|(nth, core)| worker_of(nth, core).min(about.workers - 1) as u16).collect();
        let ring = |_| Ring { names: Mutex::default(), seen: (0..SEEN).map(|_| AtomicU64::new(0)).collect() };
        let waits = (0..about.places()).map(|_| AtomicU64::new(0)).collect();
        let rings = (0..about.workers).map(ring).collect();
        Ok(Self {
            map,
            parts,
            about,
            nth,
            workers,
            waits,
            rings,
            first: AtomicUsize::new(0),
            clock: Clock::new(),
        })
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.parts.len);
        // SAFETY: callers pass multiples of 8 inside of parts whose end `new` has compared with the length of the mapping: a place
        // below `places()`, a worker below `workers`, an entry by the bits of its number below `entries`. The mapping begins on a
        // page, is as long as its file, which has blocks for all of it, and stays as long as `self`. These bytes are reached as
        // atomic words alone, by this process and by whoever else maps the file.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().wrapping_add(offset).cast()) }
    }

    /// The place of an actor, by its number and where it lies; nothing of a rank of others.
    #[inline]
    fn place(&self, actor: Actor) -> Option<(usize, usize)> {
        let nth = *self.nth.get(actor.member.index())? as usize;
        let place = self.about.place(nth, actor.core);
        (nth < self.about.ranks.len()).then(|| (place, self.parts.places + place * PLACE))
    }

    #[inline]
    fn set(&self, offset: usize, words: Words) {
        for (at, word) in (offset..).step_by(8).zip(words) {
            self.word(at).store(word, Ordering::Relaxed);
        }
    }

    /// Adds an entry. Until it is counted, a reader takes it for what it overwrites, and leaves that out.
    #[inline]
    fn push(&self, worker: usize, words: Words) {
        let count = self.word(self.parts.ring(worker));
        let n = count.load(Ordering::Relaxed);
        // Who sees a word of this entry sees that the one before is counted: there is never more than one half.
        fence(Ordering::Release);
        self.set(self.parts.entry(worker, n), words);
        count.store(n.wrapping_add(1), Ordering::Release);
    }

    /// Changes a place. Who finds it in the midst of that knows by the odd number.
    fn change(&self, at: usize, change: impl FnOnce()) {
        let changes = self.word(at);
        let n = changes.load(Ordering::Relaxed);
        changes.store(n.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        changes.store(n.wrapping_add(2), Ordering::Release);
    }

    /// The number of a phase in a ring.
    fn phase(&self, worker: usize, name: &'static str) -> u8 {
        if name.is_empty() {
            return 0;
        }
        let mut names = lock(&self.rings[worker].names);
        if let Some(known) = names.iter().position(|known| *known == name) {
            return known as u8 + 1;
        }
        let (first, bytes, most) = NAMES;
        let nth = names.len();
        if nth == most {
            return 0;
        }
        let mut padded = [0; ENTRY];
        name.bytes().zip(&mut padded).for_each(|(byte, to)| *to = byte);
        let words = [0, 8, 16, 24].map(|at| u64::from_ne_bytes(core::array::from_fn(|i| padded[at + i])));
        let ring = self.parts.ring(worker);
        self.set(ring + first + nth * bytes, words);
        self.word(ring + 8).store(nth as u64 + 1, Ordering::Release);
        names.push(name);
        nth as u8 + 1
    }

    fn begins(&self, actor: Actor, planned: Planned, phase: u8) {
        let Some((place, at)) = self.place(actor) else { return };
        let worker = usize::from(self.workers[place]);
        let words = layout::begin(self.clock.now(), actor, planned, phase);
        self.push(worker, words);
        self.change(at, || {
            self.word(at + 8).store(worker as u64, Ordering::Relaxed);
            self.set(at + 32, words);
            self.set(at + 64, [0; 4]);
        });
    }

    fn waits(&self, actor: Actor, wait: &Wait, phase: &'static str) {
        let Some((place, at)) = self.place(actor) else { return };
        let worker = usize::from(self.workers[place]);
        let phase = self.phase(worker, phase);
        let begun = [0, 8, 16, 24].map(|word| self.word(at + 32 + word).load(Ordering::Relaxed));
        if let Some(begun) = layout::read(begun)
            && begun.phase != phase
            && let Some(planned) = begun.event.doing.planned
        {
            self.begins(actor, planned, phase);
        }
        let told = self.waits[place].load(Ordering::Relaxed);
        self.waits[place].store((told | 1) + 2, Ordering::Relaxed);
        let words = layout::awaits(self.clock.now(), actor, wait);
        self.push(worker, words);
        self.change(at, || self.set(at + 64, words));
    }

    fn waits_no_more(&self, actor: Actor) {
        if let Some((place, at)) = self.place(actor) {
            self.waits[place].fetch_and(!1, Ordering::Relaxed);
            self.change(at, || self.word(at + 72).store(0, Ordering::Relaxed));
        }
    }
}

impl Book for Writer {
    const ALL: bool = false;

    #[inline]
    fn record(&self, actor: Actor, kind: Kind, what: What) {
        if let Some((place, _)) = self.place(actor) {
            self.push(self.workers[place].into(), layout::entry(self.clock.now(), actor, kind, &what));
        }
    }

    /// It counts if the actor waits, when time to write is no loss, and if it is not 0 and not what was seen there last in this
    /// wait. Two places may share a memory, so it may count twice.
    #[inline]
    fn observes(&self, actor: Actor, at: Place, word: u64) {
        if word == 0 {
            return;
        }
        let Some((place, _)) = self.place(actor) else { return };
        let wait = self.waits[place].load(Ordering::Relaxed);
        if wait & 1 == 0 {
            return;
        }
        let worker = usize::from(self.workers[place]);
        let ring = &self.rings[worker];
        let of_tp = u64::from(at.region != Region::State);
        let key = (at.offset << 1 | of_tp) ^ (place as u64) << 44;
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let seen = &ring.seen[(mixed >> 56) as usize % SEEN];
        let now_seen = mixed ^ word.rotate_left(17) ^ wait << 20;
        if seen.load(Ordering::Relaxed) != now_seen {
            seen.store(now_seen, Ordering::Relaxed);
            let what = What { at: Some(at), word: Some(word), ..What::default() };
            self.push(worker, layout::entry(self.clock.now(), actor, Kind::Observe, &what));
        }
    }

    fn begins_unit(&self, first_round: usize) {
        self.clock.look();
        self.first.store(first_round, Ordering::Relaxed);
    }

    fn hears(&self, actor: Actor, told: Told) {
        match told {
            Told::Begins(planned) => {
                let round = self.first.load(Ordering::Relaxed) + planned.round;
                self.begins(actor, Planned { round, ..planned }, 0);
            }
            Told::Waits(wait, phase) => self.waits(actor, &wait, phase),
            Told::Moves => self.waits_no_more(actor),
            Told::Ends => self.record(actor, Kind::End, What::default()),
            Told::Experts => self.record(actor, Kind::Experts, What::default()),
            Told::Steps(..) => {}
        }
    }
}
