//! The folder of a group's record: its files are made before the processes start, and whoever watches them writes down who died.

use super::layout::{About, Head, MAGIC, PAGE, Parts};
use super::wall_us;
use core::fmt;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How a process has left its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Killed by that signal.
    Signal(i32),
    /// Ended by itself with that status, without a word.
    Exit(i32),
    /// It does not run.
    Silent,
    /// By itself, before the others could go on without it.
    Left,
    /// It runs no more; how that came nobody has told.
    Ended,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Exit(status) => write!(f, "exit {status}"),
            Self::Silent => f.write_str("silent"),
            Self::Left => f.write_str("left"),
            Self::Ended => f.write_str("ended"),
        }
    }
}

impl How {
    pub(crate) const fn word(self) -> u64 {
        let (kind, number) = match self {
            Self::Signal(signal) => (1, signal),
            Self::Exit(status) => (2, status),
            Self::Silent => (3, 0),
            Self::Left => (4, 0),
            Self::Ended => (5, 0),
        };
        kind | (number.cast_unsigned() as u64) << 32
    }

    pub(crate) const fn of_word(word: u64) -> Option<Self> {
        let number = ((word >> 32) as u32).cast_signed();
        match word as u32 {
            1 => Some(Self::Signal(number)),
            2 => Some(Self::Exit(number)),
            3 => Some(Self::Silent),
            4 => Some(Self::Left),
            5 => Some(Self::Ended),
            _ => None,
        }
    }
}

/// How a process ends that is not gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Well = 1,
    /// With an error, which it has told.
    Failed = 2,
    /// Its parent has ended it, since the group had failed.
    Stopped = 3,
}

/// The folder that a group records in.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Nobody has named it, so it goes when all is well.
    is_own: bool,
    /// Those that were made here, by process.
    notes: Vec<(usize, Notes)>,
}

/// Where the file of a process lies.
#[must_use]
pub fn file_name(process: usize) -> String {
    format!("process-{process}.record")
}

impl Folder {
    /// Makes `path`, or a folder of its own among the temporary files, and in it a file for each process, with blocks for all
    /// that will ever be written: a mapping of a file without them kills who writes when the disk is full.
    ///
    /// # Errors
    /// The system refuses it, and nothing is left; of kind `AlreadyExists` if the folder has a record already.
    pub fn make(path: Option<&Path>, all: &[About]) -> io::Result<Self> {
        let is_own = path.is_none();
        let path = match path {
            Some(path) => fs::create_dir_all(path).map(|()| path.to_owned())?,
            // That is on this machine, and who may read the record is its owner. A home may be neither there nor near.
            None => tempfile::Builder::new().prefix("veriep-record-").tempdir()?.keep(),
        };
        Self { path, is_own, notes: Vec::new() }.with(all)
    }

    /// Makes the file of one process in a folder that it shares with those of its machine: the one of that name, which is
    /// kept, or one among the temporary files that `own` makes unique.
    ///
    /// # Errors
    /// As of [`make`](Self::make).
    pub fn join(path: Option<&Path>, own: &str, about: &About) -> io::Result<Self> {
        let is_own = path.is_none();
        let path =
            path.map_or_else(|| std::env::temp_dir().join(format!("veriep-record-{own}")), Path::to_owned);
        if is_own {
            // Whoever comes first makes it, for its owner alone; and nobody else may have.
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let found = fs::symlink_metadata(&path)?;
            if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
                return Err(io::Error::other("is somebody else's"));
            }
        } else {
            fs::create_dir_all(&path)?;
        }
        Self { path, is_own, notes: Vec::new() }.with(core::slice::from_ref(about))
    }

    fn with(mut self, all: &[About]) -> io::Result<Self> {
        for about in all {
            match self.file(about) {
                Ok(notes) => self.notes.push((about.process, notes)),
                Err(error) => {
                    self.remove();
                    return Err(error);
                }
            }
        }
        Ok(self)
    }

    fn file(&self, about: &About) -> io::Result<Notes> {
        let path = self.path.join(file_name(about.process));
        let text = serde_json::to_vec(about)?;
        let parts = Parts::new(text.len(), about);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        let fill = || -> io::Result<()> {
            fallocate(&file, FallocateFlags::empty(), 0, parts.len as u64)?;
            file.write_all_at(&text, PAGE as u64)?;
            file.write_all_at(&(text.len() as u64).to_ne_bytes(), Head::Text.offset() as u64)?;
            file.write_all_at(&MAGIC.to_ne_bytes(), Head::Magic.offset() as u64)
        };
        match fill() {
            Ok(()) => Ok(Notes { file }),
            Err(error) => {
                // It was made just now.
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Of a process.
    #[must_use]
    pub fn notes(&self, process: usize) -> Option<&Notes> {
        self.notes.iter().find(|(of, _)| *of == process).map(|(_, notes)| notes)
    }

    /// All is well: removes what nobody has asked for by name.
    pub fn is_needed_no_more(&self) {
        if self.is_own {
            self.remove();
        }
    }

    /// What cannot be removed stays.
    fn remove(&self) {
        for (process, _) in &self.notes {
            let _ = fs::remove_file(self.path.join(file_name(*process)));
        }
        if self.is_own {
            // If others have files there, the last of them does.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// What others write into the file of a process. It has blocks already, so an error would be no full disk, and nothing that a
/// run should end for.
#[derive(Debug)]
pub struct Notes {
    file: File,
}

impl Notes {
    /// Those of a process of a group that records in that folder.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(folder: &Path, process: usize) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(folder.join(file_name(process)))?;
        Ok(Self { file })
    }

    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    fn set(&self, word: Head, value: u64) {
        let _ = self.file.write_all_at(&value.to_ne_bytes(), word.offset() as u64);
    }

    fn get(&self, word: Head) -> u64 {
        let mut bytes = [0; 8];
        // What cannot be read is not known.
        let read = self.file.read_exact_at(&mut bytes, word.offset() as u64);
        read.map_or(0, |()| u64::from_ne_bytes(bytes))
    }

    /// The process was started and has that number in the system.
    pub fn started(&self, pid: u32) {
        self.set(Head::Started, started(pid).unwrap_or(0));
        self.set(Head::Pid, pid.into());
    }

    /// It is gone, and has not said why; seen at that time in microseconds since 1970. Only the first note of it counts.
    pub fn died(&self, how: How, at_us: u64) {
        if self.is_open() {
            self.set(Head::How, how.word());
            self.set(Head::DiedAt, at_us);
        }
    }

    /// It ends, or is ended.
    pub fn ended(&self, end: End) {
        if self.is_open() {
            self.set(Head::End, end as u64);
        }
    }

    fn is_open(&self) -> bool {
        self.get(Head::End) == 0 && self.get(Head::DiedAt) == 0
    }
}

/// When a process was started, in ticks since the machine was; nothing of one that has ended.
pub(super) fn started(pid: u32) -> Option<u64> {
    state(pid.into()).filter(|state| !state.is_dead).map(|state| state.began)
}

/// The state of a process, as the system reports it.
pub(crate) struct State {
    /// It has ended. It is still listed until its parent has waited for it.
    pub(crate) is_dead: bool,
    /// In ticks since the machine was started.
    pub(crate) began: u64,
    pub(crate) exit_code: Option<i32>,
}

pub(crate) fn state(pid: u64) -> Option<State> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A name may have brackets of its own. Behind it are numbers, of which the manual counts the first as the third.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    Some(State {
        is_dead: matches!(fields.first(), Some(&("Z" | "X"))),
        began: fields.get(22 - 3)?.parse().ok()?,
        exit_code: fields.get(52 - 3).and_then(|code| code.parse().ok()),
    })
}

/// Who knows processes by their numbers: this start of the machine, and a space of numbers.
pub(crate) fn system() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), space.display())
}

impl About {
    /// Of the processes of a group on this machine, started by this one if they are other processes: `events` is the header of
    /// their events.
    #[must_use]
    pub fn here(events: serde_json::Value, is_parent: bool) -> Self {
        let pid = std::process::id();
        let parent = if is_parent { pid } else { 0 };
        Self {
            events,
            process: 0,
            processes: 1,
            parent,
            parent_started: if is_parent { started(pid).unwrap_or(0) } else { 0 },
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            system: system(),
            ranks: Vec::new(),
            cores: 0,
            workers: 1,
            entries: super::ENTRIES,
            clock: (wall_us(), super::now()),
        }
    }
}
