//! Processes that join without a common parent: they meet at a file, or in a store that they share otherwise. Whoever comes
//! first maps the group's memory and says where it is found; nothing is left behind when all have come.

mod meeting;
mod seats;
#[cfg(test)]
mod tests;

pub(super) use seats::{Identity, Seats};

use super::board::{Board, OfGroup};
use super::processes::GroupMemory;
use super::{Peers, World};
use core::hash::{BuildHasher, Hash, Hasher};
use core::sync::atomic::Ordering;
use core::time::Duration;
use meeting::Meeting;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::hash::{DefaultHasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use veriep_core::protocol::Fingerprints;
use veriep_core::sync::join::{come, has_come};

/// Of the words below; counts up when processes of two builds would not understand each other.
const SCHEMA: &str = "veriep.group/2";
/// Where they stand in a store.
const KEY: &str = "veriep/group";
/// Between two looks at seats, and between two looks at a file or store.
const TICK: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_millis(50);

/// Something in which processes leave words for each other, such as a store of `torch.distributed`.
pub trait Store {
    /// Leaves a value.
    ///
    /// # Errors
    /// What the store says.
    fn set(&self, key: &str, value: &str) -> Result<(), String>;

    /// Takes a value, once there is one. It may wait for it, but not for long.
    ///
    /// # Errors
    /// What the store says.
    fn get(&self, key: &str) -> Result<Option<String>, String>;
}

/// Where processes meet.
#[derive(Clone, Copy)]
pub enum Rendezvous<'a> {
    /// At a file that is there only as long as somebody waits for others.
    File(&'a Path),
    /// In a store. Process 0 says there where the memory is.
    Store(&'a dyn Store),
}

/// What all processes of a group must have been given alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alike {
    /// Of each layer that shares the group's memory.
    pub layers: Vec<Fingerprints>,
    /// Other properties by name, each with a number that differs where they do.
    pub others: Vec<(String, u64)>,
}

impl Alike {
    /// The first property that another process has different.
    fn first_difference(&self, other: &Self) -> Option<String> {
        if self.layers.len() != other.layers.len() {
            return Some("the number of layers".to_owned());
        }
        let of_layer = |(number, (own, other)): (usize, (&Fingerprints, &Fingerprints))| {
            let name = own.first_difference(other)?;
            Some(if self.layers.len() > 1 { format!("{name} of layer {number}") } else { name.to_owned() })
        };
        let differs = |(own, other): (&(String, u64), &(String, u64))| (own != other).then(|| own.0.clone());
        let mut layers = self.layers.iter().zip(&other.layers).enumerate();
        layers.find_map(of_layer).or_else(|| self.others.iter().zip(&other.others).find_map(differs))
    }

    /// One number for all of it.
    #[must_use]
    pub fn whole(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.layers.iter().for_each(|layer| layer.0.hash(&mut hasher));
        self.others.hash(&mut hasher);
        hasher.finish()
    }
}

/// Who joins what.
#[derive(Clone, Debug)]
pub struct Joins {
    /// The number of this process, and how many there are.
    pub process: usize,
    /// The number of processes, each with one rank of the group.
    pub processes: usize,
    /// Bytes of the group's memory behind its board.
    pub bytes: u64,
    /// What all must have alike.
    pub alike: Alike,
    /// How long others are waited for.
    pub patience: Duration,
}

/// A process that has joined.
#[derive(Debug)]
pub struct Joined {
    /// The group's memory; it begins at [`GroupMemory::start`].
    pub memory: GroupMemory,
    /// What the process knows about the others.
    pub world: Arc<World>,
    /// Watches them.
    pub peers: Peers,
}

/// Why a process could not join.
#[derive(Debug, thiserror::Error)]
pub enum NotJoined {
    /// A file or memory.
    #[error("{0}: {1}")]
    System(String, io::Error),
    /// The store.
    #[error("rendezvous: {0}")]
    Store(String),
    /// What stands there, or who is there, cannot be joined.
    #[error("{0}")]
    Refused(String),
    /// Some have not come.
    #[error("of {of} processes {} did not join within {} s", listed(.processes), .after.as_secs_f64())]
    Missing {
        /// The numbers of the processes that have not joined.
        processes: Vec<usize>,
        /// The number of processes in the group.
        of: usize,
        /// The time after which this process gave up.
        after: Duration,
    },
    /// The caller has had enough.
    #[error("interrupted")]
    Interrupted,
}

fn listed(processes: &[usize]) -> String {
    processes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// What the first comer tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Invitation {
    schema: String,
    processes: usize,
    /// Not like that of any other group.
    nonce: u64,
    /// By whom.
    process: usize,
    #[serde(flatten)]
    by: Identity,
    /// The memory, a file without a name.
    fd: i32,
    layers: Vec<Vec<u64>>,
    others: Vec<(String, u64)>,
}

/// The group that a process sits in before all have come.
struct Table {
    memory: GroupMemory,
    board: Board,
    nonce: u64,
}

impl Joins {
    /// Joins the group, and waits for the others; now and then `goes_on` is asked whether that is still wanted.
    ///
    /// # Errors
    /// Not all came in time, somebody was given something else, or the system refuses.
    pub fn join(
        &self,
        rendezvous: Rendezvous<'_>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Joined, NotJoined> {
        let until = Instant::now() + self.patience;
        let table = match rendezvous {
            Rendezvous::File(path) => self.at_file(path, until, goes_on)?,
            Rendezvous::Store(store) => self.in_store(store, until, goes_on)?,
        };
        let world = World::seated(&table.memory, (self.process, self.processes), 1, self.processes as u32);
        let peers = Peers::watch(&world).map_err(|e| NotJoined::System("watching peers".to_owned(), e))?;
        Ok(Joined { memory: table.memory, world, peers })
    }

    /// A new group of which this process is the first.
    fn found(&self) -> Result<Table, NotJoined> {
        let memory = GroupMemory::new(self.processes, 1, self.bytes)
            .map_err(|e| NotJoined::System("memory of the group".to_owned(), e))?;
        let board = Board::mapped(memory.map().clone(), self.processes, 1);
        let nonce = RandomState::new().build_hasher().finish() | 1;
        board.group(OfGroup::Nonce).store(nonce, Ordering::Release);
        // Nobody else knows it.
        let _ = Seats(&board).take(self.process, |_| false);
        Ok(Table { memory, board, nonce })
    }

    fn invite(&self, table: &Table) -> String {
        let invitation = Invitation {
            schema: SCHEMA.to_owned(),
            processes: self.processes,
            nonce: table.nonce,
            process: self.process,
            by: Identity::own(),
            fd: table.memory.file().as_raw_fd(),
            layers: self.alike.layers.iter().map(|layer| layer.0.to_vec()).collect(),
            others: self.alike.others.clone(),
        };
        serde_json::to_string(&invitation).unwrap_or_default()
    }

    /// The group that an invitation leads to; nothing if it is of one that is no more.
    fn accept(&self, invitation: &Invitation) -> Result<Option<Table>, NotJoined> {
        let Some(file) = invitation.open()? else { return Ok(None) };
        let by = invitation.process;
        let differs = |name: &str| {
            Err(NotJoined::Refused(format!(
                "process {}: {name}: must be the same as on process {by}",
                self.process
            )))
        };
        if invitation.processes != self.processes {
            return differs("the number of processes");
        }
        let layer = |words: &Vec<u64>| words.as_slice().try_into().ok().map(Fingerprints);
        let layers = invitation.layers.iter().map(layer).collect::<Option<Vec<_>>>();
        let Some(layers) = layers else { return differs("layout") };
        let theirs = Alike { layers, others: invitation.others.clone() };
        if let Some(name) = theirs.first_difference(&self.alike) {
            return differs(&name);
        }
        let start = GroupMemory::start(self.processes, 1);
        if file.metadata().is_ok_and(|found| found.len() != start + self.bytes) {
            return differs("the size of its memory");
        }
        let memory =
            GroupMemory::of(file).map_err(|e| NotJoined::System(format!("memory of process {by}"), e))?;
        let board = Board::mapped(memory.map().clone(), self.processes, 1);
        let nonce = board.group(OfGroup::Nonce).load(Ordering::Acquire);
        Ok((nonce == invitation.nonce).then_some(Table { memory, board, nonce }))
    }

    fn at_file(
        &self,
        path: &Path,
        until: Instant,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Table, NotJoined> {
        let file = Meeting(path);
        loop {
            let mut lock = file.lock(until)?;
            let found = file.invitation(&mut lock)?;
            let table = match found.as_ref().map(|found| self.accept(found)).transpose()?.flatten() {
                Some(table) => {
                    let taken = Seats(&table.board).take(self.process, Identity::runs);
                    taken.map_err(|other| self.taken(other))?;
                    table
                }
                None => {
                    let table = self.found()?;
                    file.write(&mut lock, &self.invite(&table))?;
                    table
                }
            };
            if Seats(&table.board).empty().is_empty() {
                come(table.board.group(OfGroup::Complete), 1);
                file.remove(&lock)?;
                return Ok(table);
            }
            drop(lock);
            if self.wait_at(&file, &table, until, goes_on)? {
                return Ok(table);
            }
        }
    }

    /// Waits at a file. `false` if the group is one that others have given up.
    fn wait_at(
        &self,
        file: &Meeting<'_>,
        table: &Table,
        until: Instant,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, NotJoined> {
        let seats = Seats(&table.board);
        // Also if somebody has died since.
        let is_complete = || has_come(table.board.group(OfGroup::Complete), 1);
        let mut looked = Instant::now();
        loop {
            if is_complete() {
                return Ok(true);
            }
            let wanted = goes_on();
            let is_late = Instant::now() >= until;
            if wanted && !is_late && looked.elapsed() < LOOK {
                thread::sleep(TICK);
                continue;
            }
            looked = Instant::now();
            // A moment more, to leave in order.
            let mut lock = file.lock(until.max(looked + LOOK))?;
            let found = file.invitation(&mut lock)?;
            let is_ours = found.as_ref().is_some_and(|found| found.nonce == table.nonce);
            if is_complete() {
                return Ok(true);
            }
            if !wanted || is_late {
                let missing = seats.empty();
                seats.leave(self.process);
                if is_ours && seats.empty().len() == self.processes {
                    file.remove(&lock)?;
                }
                return Err(if wanted { self.missing(missing) } else { NotJoined::Interrupted });
            }
            match found.filter(|_| is_ours) {
                None => return Ok(false),
                // Whoever has the memory can say where it is.
                Some(found) if seats.of(found.process) != Some(found.by) || !found.by.runs() => {
                    file.write(&mut lock, &self.invite(table))?;
                }
                Some(_) => {}
            }
        }
    }

    fn in_store(
        &self,
        store: &dyn Store,
        until: Instant,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Table, NotJoined> {
        let mut seen = None;
        let table = if self.process == 0 {
            let table = self.found()?;
            store.set(KEY, &self.invite(&table)).map_err(NotJoined::Store)?;
            table
        } else {
            loop {
                if let Some(text) = store.get(KEY).map_err(NotJoined::Store)?
                    && let Some(table) = self.accept(&Invitation::read(&text).map_err(NotJoined::Store)?)?
                {
                    // A group that has met before has all its seats taken.
                    match Seats(&table.board).take(self.process, |_| true) {
                        Ok(()) => break table,
                        Err(other) => seen = Some(other),
                    }
                }
                if !goes_on() {
                    return Err(NotJoined::Interrupted);
                }
                if Instant::now() >= until {
                    return Err(seen.map_or_else(|| self.missing(vec![0]), |other| self.taken(other)));
                }
                thread::sleep(TICK);
            }
        };
        let seats = Seats(&table.board);
        while !seats.are_taken() {
            let wanted = goes_on();
            if !wanted || Instant::now() >= until {
                let missing = seats.empty();
                seats.leave(self.process);
                return Err(if wanted { self.missing(missing) } else { NotJoined::Interrupted });
            }
            thread::sleep(TICK);
        }
        Ok(table)
    }

    fn taken(&self, other: Identity) -> NotJoined {
        let (process, pid) = (self.process, other.pid);
        NotJoined::Refused(format!("process {process}: pid {pid} has joined as process {process} already"))
    }

    fn missing(&self, processes: Vec<usize>) -> NotJoined {
        NotJoined::Missing { processes, of: self.processes, after: self.patience }
    }
}

impl Invitation {
    fn read(text: &str) -> Result<Self, String> {
        let seen = || text.chars().take(40).collect::<String>();
        let parsed: Self =
            serde_json::from_str(text).map_err(|_| format!("{:?}: is no invitation to a group", seen()))?;
        if parsed.schema != SCHEMA {
            return Err(format!("{}: written by another version, this one has {SCHEMA}", parsed.schema));
        }
        Ok(parsed)
    }

    /// The memory, if it is still there.
    fn open(&self) -> Result<Option<File>, NotJoined> {
        let path = PathBuf::from(format!("/proc/{}/fd/{}", self.by.pid, self.fd));
        // Else it is another file by now, or of another process.
        let is_memory = |to: PathBuf| to.to_string_lossy().starts_with("/memfd:veriep");
        if !self.by.runs() || !std::fs::read_link(&path).is_ok_and(is_memory) {
            return Ok(None);
        }
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(NotJoined::System(path.display().to_string(), e)),
        }
    }
}
