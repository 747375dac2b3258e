//! What a folder of a record says, whoever has written it and however they ended.

use super::End;
use super::layout::{self, About, ENTRY, Head, LIMITS, MAGIC, NAMES, PAGE, PLACE, Parts, Read, Words};
use super::notes::{How, started, system};
use crate::error::Error;
use crate::events::{Doing, Event};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use veriep_core::fabric::Wait;
use veriep_core::sim::Actor;
use veriep_core::sim::chooser::AGENT;

/// Largest file that is read.
const FILE_MAX: u64 = 1 << 30;

/// What has become of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has ended by itself, or its parent has ended it.
    Ended(End),
    /// It is gone, and has said nothing of an end.
    Gone,
    /// It runs.
    Runs,
    /// Only the machine that it ran on could tell.
    Unknown,
}

/// What a core waited for last.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub actor: Actor,
    pub doing: Doing,
    pub wait: Wait,
    /// Since when, in ns of the record.
    pub since: u64,
}

/// The record of a process.
#[derive(Clone, Debug)]
pub struct Process {
    pub about: About,
    /// The process's number in the system; 0 if it was never started.
    pub pid: u32,
    pub state: State,
    /// When somebody saw that it was gone, in microseconds since 1970.
    pub died_at_us: Option<u64>,
    pub how: Option<How>,
    /// Whether nobody was left to note its end: it is gone, and so is the process that started it.
    pub is_orphan: bool,
    /// By time.
    pub events: Vec<Event>,
    /// By rank and core.
    pub waits: Vec<Waiting>,
}

/// The record of a group, as much of it as one folder has.
#[derive(Clone, Debug)]
pub struct Record {
    /// By number.
    pub processes: Vec<Process>,
}

impl Record {
    /// Reads a folder.
    ///
    /// # Errors
    /// It has no record, or something that is none, or of several groups.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let entries = fs::read_dir(folder).map_err(|e| Error::io(folder, "read", &e))?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| Error::io(folder, "read", &e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let number = name.strip_prefix("process-").and_then(|name| name.strip_suffix(".record"));
            if let Some(number) = number.and_then(|number| number.parse::<usize>().ok()) {
                files.push((number, path));
            }
        }
        files.sort();
        let mut processes = Vec::new();
        for (number, path) in &files {
            let process = Process::read(path)?;
            if process.about.process != *number {
                let other = process.about.process;
                return Err(Error::file(path, format_args!("is of process {other}: must be of {number}")));
            }
            processes.push(process);
        }
        let [first, others @ ..] = &processes[..] else {
            return Err(Error::file(folder, "has no process-N.record: no folder of a record"));
        };
        let of =
            |process: &Process| (process.about.processes, process.about.parent, process.about.events.clone());
        for (other, (_, path)) in others.iter().zip(&files[1..]) {
            if of(other) != of(first) {
                let first = first.about.process;
                return Err(Error::file(
                    path,
                    format_args!("is of another group than process-{first}.record"),
                ));
            }
        }
        Ok(Self { processes })
    }

    /// All events by time, in ns since the record was begun: as far as the clocks of several machines agree.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let begun = self.processes.iter().map(|process| process.about.clock.0).min().unwrap_or(0);
        let of = |process: &Process| {
            let (clock_us, clock_ns) = process.about.clock;
            let ahead = (clock_us - begun).saturating_mul(1000);
            let time = move |ns: u64| ns.saturating_sub(clock_ns).saturating_add(ahead);
            process.events.clone().into_iter().map(move |event| Event { time: time(event.time), ..event })
        };
        let mut all: Vec<_> = self.processes.iter().flat_map(of).collect();
        all.sort_by_key(|event| event.time);
        all
    }

    /// Those who are gone.
    pub fn gone(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.state == State::Gone)
    }

    /// Those of them who were gone first, as far as anybody has seen it: several, if nobody saw one before the others.
    #[must_use]
    pub fn first(&self) -> Vec<&Process> {
        // Whoever is gone without a note was there after the last look of who writes them.
        let time = |process: &&Process| process.died_at_us.unwrap_or(u64::MAX);
        let Some(first) = self.gone().map(|process| time(&process)).min() else { return Vec::new() };
        self.gone().filter(|process| time(process) - first <= ALIKE_US).collect()
    }
}

/// Deaths so near to each other were seen one after the other, which tells nothing of their order.
const ALIKE_US: u64 = 20_000;

/// The bytes of a file.
struct Bytes<'p> {
    path: &'p Path,
    bytes: Vec<u8>,
}

impl Bytes<'_> {
    fn word(&self, offset: usize) -> u64 {
        let word = self.bytes.get(offset..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| u64::from_ne_bytes(*word))
    }

    fn words(&self, offset: usize) -> Words {
        [0, 8, 16, 24].map(|word| self.word(offset + word))
    }

    fn refuse(&self, what: impl core::fmt::Display) -> Error {
        Error::file(self.path, format_args!("{what}: no record of this version"))
    }
}

/// What an entry may be of.
fn is_of(about: &About, actor: Actor) -> bool {
    about.ranks.contains(&actor.member.0) && (actor.core == AGENT || actor.core.0 < about.cores)
}

impl Process {
    /// A time of the record in microseconds since 1970.
    #[must_use]
    pub const fn us(&self, ns: u64) -> u64 {
        let (clock_us, clock_ns) = self.about.clock;
        clock_us.saturating_add(ns.saturating_sub(clock_ns) / 1000)
    }

    fn read(path: &Path) -> Result<Self, Error> {
        let io = |e| Error::io(path, "read", &e);
        // Before it is opened: a pipe would wait for somebody who writes.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(Error::file(path, "is no file"));
        }
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let len = metadata.len();
        if len > FILE_MAX {
            return Err(Error::file(path, format_args!("{len} bytes: must be at most {FILE_MAX}")));
        }
        let mut file_bytes = vec![0; len as usize];
        file.read_exact_at(&mut file_bytes, 0).map_err(io)?;
        let bytes = Bytes { path, bytes: file_bytes };
        let about = about(&bytes)?;
        let parts = Parts::new(bytes.word(Head::Text.offset()) as usize, &about);
        if parts.len as u64 != len {
            return Err(bytes.refuse(format_args!("{len} bytes: must be {}", parts.len)));
        }
        let end = match bytes.word(Head::End.offset()) {
            0 => None,
            1 => Some(End::Well),
            2 => Some(End::Failed),
            3 => Some(End::Stopped),
            other => return Err(bytes.refuse(format_args!("end {other}: must be at most 3"))),
        };
        let pid = bytes.word(Head::Pid.offset());
        let pid = u32::try_from(pid).map_err(|_| bytes.refuse(format_args!("pid {pid}")))?;
        let died_at_us = Some(bytes.word(Head::DiedAt.offset())).filter(|&at| at > 0);
        let how = died_at_us.and_then(|_| How::of_word(bytes.word(Head::How.offset())));
        let is_here = about.system == system();
        let state = match (end, died_at_us) {
            (Some(end), _) => State::Ended(end),
            (None, Some(_)) => State::Gone,
            (None, None) if !is_here => State::Unknown,
            (None, None) if pid == 0 => State::Gone,
            (None, None) if started(pid) == Some(bytes.word(Head::Started.offset())) => State::Runs,
            (None, None) => State::Gone,
        };
        let is_alone = || about.parent > 0 && started(about.parent) != Some(about.parent_started);
        let is_orphan = is_here && state == State::Gone && died_at_us.is_none() && is_alone();
        let mut read =
            Self { about, pid, state, died_at_us, how, is_orphan, events: Vec::new(), waits: Vec::new() };
        let names = (0..read.about.workers).map(|worker| names(&bytes, parts.ring(worker)));
        let names: Vec<_> = names.collect::<Result<_, _>>()?;
        let begun = read.read_places((&bytes, &file), &parts, &names)?;
        for (worker, names) in names.iter().enumerate() {
            read.read_ring(&bytes, &file, (&parts, worker), names, &begun)?;
        }
        read.events.sort_by_key(|event| event.time);
        Ok(read)
    }

    /// What each core is in and waits for. Returns the entries with which they began that.
    fn read_places(
        &mut self,
        (bytes, file): (&Bytes<'_>, &File),
        parts: &Parts,
        names: &[Vec<&'static str>],
    ) -> Result<HashMap<Actor, (u64, Doing)>, Error> {
        let mut begun = HashMap::new();
        for place in 0..self.about.places() {
            let at = parts.places + place * PLACE;
            // Half of it was written when its process was killed, or it has changed while it was copied.
            let mut now = [0; 8];
            file.read_exact_at(&mut now, at as u64).map_err(|e| Error::io(bytes.path, "read", &e))?;
            let changes = bytes.word(at);
            if !changes.is_multiple_of(2) || u64::from_ne_bytes(now) != changes {
                continue;
            }
            let worker = bytes.word(at + 8) as usize;
            let read = |offset: usize| -> Result<Option<Read>, Error> {
                let words = bytes.words(at + offset);
                if words[1] == 0 {
                    return Ok(None);
                }
                let entry = layout::read(words).filter(|read| is_of(&self.about, read.event.actor));
                entry
                    .map(Some)
                    .ok_or_else(|| bytes.refuse(format_args!("place {place}: {words:x?} is no entry")))
            };
            let Some(begin) = read(32)? else { continue };
            let doing = doing(&begin, names.get(worker).map_or(&[], Vec::as_slice));
            begun.insert(begin.event.actor, (begin.event.time, doing));
            if let Some((event, wait)) = read(64)?.and_then(|read| read.wait.map(|wait| (read.event, wait))) {
                self.waits.push(Waiting { actor: event.actor, doing, wait, since: event.time });
            }
        }
        self.waits.sort_by_key(|waiting| waiting.actor);
        Ok(begun)
    }

    fn read_ring(
        &mut self,
        bytes: &Bytes<'_>,
        file: &File,
        (parts, worker): (&Parts, usize),
        names: &[&'static str],
        begun: &HashMap<Actor, (u64, Doing)>,
    ) -> Result<(), Error> {
        let entries = parts.entries as u64;
        let count = bytes.word(parts.ring(worker));
        // A process that runs has written more while this one copied; the entry behind the last overwrites the oldest.
        let mut now = [0; 8];
        let io = |e| Error::io(bytes.path, "read", &e);
        file.read_exact_at(&mut now, parts.ring(worker) as u64).map_err(io)?;
        let oldest = (u64::from_ne_bytes(now).max(count).saturating_add(1)).saturating_sub(entries);
        let mut all: HashMap<Actor, Doing> = HashMap::new();
        let mut is_first = true;
        for n in oldest..count {
            let words = bytes.words(parts.entry(worker, n));
            let entry = layout::read(words).filter(|read| is_of(&self.about, read.event.actor));
            let Some(read) = entry else {
                return Err(bytes.refuse(format_args!("worker {worker}, entry {n}: {words:x?} is no entry")));
            };
            let mut event = read.event;
            if is_first {
                // Who began before the oldest entry is in that still.
                let before = begun.iter().filter(|(_, (time, _))| *time < event.time);
                all.extend(before.map(|(&actor, &(_, doing))| (actor, doing)));
                is_first = false;
            }
            if event.doing.planned.is_some() {
                all.insert(event.actor, doing(&read, names));
            }
            event.doing = all.get(&event.actor).copied().unwrap_or_default();
            self.events.push(event);
        }
        Ok(())
    }
}

fn doing(begin: &Read, names: &[&'static str]) -> Doing {
    let phase = usize::from(begin.phase).checked_sub(1).and_then(|nth| names.get(nth));
    Doing { planned: begin.event.doing.planned, phase: phase.copied().unwrap_or_default() }
}

fn about(bytes: &Bytes<'_>) -> Result<About, Error> {
    let magic = bytes.word(Head::Magic.offset());
    if magic != MAGIC {
        let (seen, known) = (magic.to_ne_bytes(), MAGIC.to_ne_bytes());
        let (seen, known) = (seen.escape_ascii(), known.escape_ascii());
        return Err(bytes.refuse(format_args!("begins with \"{seen}\": must be \"{known}\"")));
    }
    let (text_max, workers_max, entries_max) = LIMITS;
    let text = bytes.word(Head::Text.offset());
    let text = usize::try_from(text)
        .ok()
        .filter(|&text| text <= text_max)
        .ok_or_else(|| bytes.refuse(format_args!("text of {text} bytes: must be at most {text_max}")))?;
    let text = bytes.bytes.get(PAGE..PAGE + text).ok_or_else(|| bytes.refuse("ends within its text"))?;
    let about: About = serde_json::from_slice(text).map_err(|e| bytes.refuse(format_args!("text: {e}")))?;
    let About { ref ranks, cores, workers, entries, .. } = about;
    for (name, seen, most) in [
        ("ranks", ranks.len(), 1 << 16),
        ("cores", cores as usize, 0xff),
        ("workers", workers, workers_max),
        ("entries", entries, entries_max),
    ] {
        if !(1..=most).contains(&seen) {
            return Err(bytes.refuse(format_args!("{name}: {seen}: must be in [1, {most}]")));
        }
    }
    if !entries.is_power_of_two() {
        return Err(bytes.refuse(format_args!("entries: {entries}: must be a power of two")));
    }
    Ok(about)
}

/// The names of phases in the head of a ring.
fn names(bytes: &Bytes<'_>, ring: usize) -> Result<Vec<&'static str>, Error> {
    let (first, len, most) = NAMES;
    let count = bytes.word(ring + 8);
    if count > most as u64 {
        return Err(bytes.refuse(format_args!("{count} phases: must be at most {most}")));
    }
    let name = |nth: usize| {
        let at = ring + first + nth * len;
        let padded = bytes.bytes.get(at..at + ENTRY).unwrap_or_default();
        let name: Vec<u8> = padded.iter().copied().take_while(|&byte| byte != 0).collect();
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_');
        match String::from_utf8(name) {
            // At most as many as a file has room for, and it is read once.
            Ok(name) if name.bytes().all(|byte| is_name(&byte)) => Ok(&*name.leak()),
            _ => Err(bytes.refuse(format_args!("phase {nth}: {}: is no name", padded.escape_ascii()))),
        }
    };
    (0..count as usize).map(name).collect()
}
