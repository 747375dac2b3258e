//! Joining a group. Its processes meet at a file, in a store that they share otherwise, by the invitation of a common parent, or
//! over the network of a launcher. One of them makes the group's memory and says where it is found; all enter
//! themselves in the table of members there, and nothing is left behind when all have come.

mod file;
mod members;
#[cfg(test)]
mod tests;

pub(super) use members::{Identity, MemberTable};

use super::World;
use super::board::{Board, OfGroup};
use super::memory::{GroupMemory, GroupSize, unnamed_file};
use super::peers::Peers;
use core::hash::{BuildHasher, Hash, Hasher};
use core::sync::atomic::Ordering;
use core::time::Duration;
use file::RendezvousFile;
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
const SCHEMA: &str = "veriep.group/3";
/// Where they are in a store.
const KEY: &str = "veriep/group";
/// Between two looks at the table of members, and between two looks at a file or store.
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
    /// At a file that is there only as long as a process waits for others.
    File(&'a Path),
    /// In a store. Process 0 says there where the memory is.
    Store(&'a dyn Store),
    /// By the invitation of the parent of all, which has made the memory and enters its children in the table.
    Parent(&'a Invitation),
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

/// A group as all its processes must know it.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// Its size.
    pub size: GroupSize,
    /// Bytes of the group's memory behind its board.
    pub bytes: u64,
    /// What all must have alike.
    pub alike: Alike,
}

/// A process's wish to join a group.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// The number of this process.
    pub process: usize,
    /// The group.
    pub group: GroupSpec,
    /// How long others are waited for.
    pub patience: Duration,
}

/// A process that has joined.
#[derive(Debug)]
pub struct Joined {
    /// The group's memory.
    pub memory: GroupMemory,
    /// What the process knows about the others.
    pub world: Arc<World>,
    /// Those of them that live.
    pub peers: Peers,
}

/// Why a process could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A file or memory.
    #[error("{0}: {1}")]
    System(String, io::Error),
    /// The store.
    #[error("rendezvous: {0}")]
    Store(String),
    /// What is there, or who is there, cannot be joined.
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

/// The place of a group's memory: a file that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemoryAt {
    #[serde(flatten)]
    pub(super) by: Identity,
    fd: i32,
}

impl MemoryAt {
    /// A file of this process.
    pub(super) fn own(file: &File) -> Self {
        Self { by: Identity::own(), fd: file.as_raw_fd() }
    }

    /// The file, if it is still there.
    pub(super) fn open(self) -> Result<Option<File>, JoinError> {
        let path = PathBuf::from(format!("/proc/{}/fd/{}", self.by.pid, self.fd));
        // Else it is another file by now, or of another process.
        let is_memory = |to: PathBuf| to.to_string_lossy().starts_with("/memfd:veriep");
        if !self.by.runs() || !std::fs::read_link(&path).is_ok_and(is_memory) {
            return Ok(None);
        }
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(JoinError::System(path.display().to_string(), e)),
        }
    }
}

/// What the process that has made a group's memory tells the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Invitation {
    schema: String,
    #[serde(flatten)]
    pub(super) size: GroupSize,
    /// Not like that of any other group.
    nonce: u64,
    /// By whom; none if it is the parent of all.
    process: Option<usize>,
    #[serde(flatten)]
    pub(super) at: MemoryAt,
    layers: Vec<Vec<u64>>,
    others: Vec<(String, u64)>,
}

/// A group before all have come.
struct OpenGroup {
    memory: GroupMemory,
    board: Board,
    nonce: u64,
}

impl OpenGroup {
    const fn table(&self) -> MemberTable<'_> {
        MemberTable(&self.board)
    }
}

/// A group that this process has founded for its children.
#[derive(Debug)]
pub struct Founded {
    /// Its memory.
    pub memory: GroupMemory,
    invitation: Invitation,
}

impl Founded {
    pub(super) fn invitation(&self) -> Invitation {
        self.invitation.clone()
    }
}

impl GroupSpec {
    /// A new group for children of this process.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub fn found(&self) -> io::Result<Founded> {
        let open = self.open()?;
        let invitation = self.invitation(&open, None);
        Ok(Founded { memory: open.memory, invitation })
    }

    /// A new group without members.
    fn open(&self) -> io::Result<OpenGroup> {
        let memory = GroupMemory::sized(unnamed_file()?, self.size, self.bytes)?;
        let board = memory.board();
        let nonce = RandomState::new().build_hasher().finish() | 1;
        board.group(OfGroup::Nonce).store(nonce, Ordering::Release);
        Ok(OpenGroup { memory, board, nonce })
    }

    fn invitation(&self, open: &OpenGroup, process: Option<usize>) -> Invitation {
        Invitation {
            schema: SCHEMA.to_owned(),
            size: self.size,
            nonce: open.nonce,
            process,
            at: MemoryAt::own(open.memory.file()),
            layers: self.alike.layers.iter().map(|layer| layer.0.to_vec()).collect(),
            others: self.alike.others.clone(),
        }
    }

    /// What an invitation says of another group than this one.
    fn first_difference(&self, invitation: &Invitation) -> Option<String> {
        let Invitation { size, layers, others, .. } = invitation;
        for (name, own, seen) in [
            ("processes", self.size.processes, size.processes),
            ("workers", self.size.workers, size.workers),
            ("ranks", self.size.ranks as usize, size.ranks as usize),
        ] {
            if own != seen {
                return Some(format!("the number of {name}"));
            }
        }
        let layer = |words: &Vec<u64>| words.as_slice().try_into().ok().map(Fingerprints);
        let Some(layers) = layers.iter().map(layer).collect() else { return Some("layout".to_owned()) };
        Alike { layers, others: others.clone() }.first_difference(&self.alike)
    }
}

impl JoinRequest {
    /// Joins the group, and waits for the others; now and then `goes_on` is asked whether that is still wanted.
    ///
    /// # Errors
    /// Not all came in time, a process was given something else, or the system refuses.
    pub fn join(
        &self,
        rendezvous: Rendezvous<'_>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Joined, JoinError> {
        let until = Instant::now() + self.patience;
        let open = match rendezvous {
            Rendezvous::File(path) => self.at_file(path, until, goes_on)?,
            Rendezvous::Store(store) => self.in_store(store, until, goes_on)?,
            Rendezvous::Parent(invitation) => {
                let gone = || JoinError::Refused("the parent is gone".to_owned());
                let open = self.accept(invitation)?.ok_or_else(gone)?;
                self.wait_for_all(open, until, goes_on)?
            }
        };
        let world = World::member(&open.memory, self.process);
        let peers = Peers::of(&world, open.table().members())
            .map_err(|e| JoinError::System("watching peers".to_owned(), e))?;
        Ok(Joined { memory: open.memory, world, peers })
    }

    /// A new group of which this process is the first.
    fn found(&self) -> Result<OpenGroup, JoinError> {
        let open = self.group.open().map_err(|e| JoinError::System("memory of the group".to_owned(), e))?;
        // No other process knows it.
        let _ = open.table().take(self.process, |_| false);
        Ok(open)
    }

    fn invite(&self, open: &OpenGroup) -> String {
        serde_json::to_string(&self.group.invitation(open, Some(self.process))).unwrap_or_default()
    }

    /// The group that an invitation leads to; nothing if it is of one that is no more.
    fn accept(&self, invitation: &Invitation) -> Result<Option<OpenGroup>, JoinError> {
        let Some(file) = invitation.at.open()? else { return Ok(None) };
        let by = match invitation.process {
            Some(process) => format!("process {process}"),
            None => "the parent".to_owned(),
        };
        let differs = |name: &str| {
            Err(JoinError::Refused(format!("process {}: {name}: must be the same as on {by}", self.process)))
        };
        if let Some(name) = self.group.first_difference(invitation) {
            return differs(&name);
        }
        let GroupSpec { size, bytes, .. } = self.group;
        let of_memory = |e| JoinError::System(format!("memory of {by}"), e);
        let whole = GroupMemory::bytes(size, bytes).map_err(of_memory)?;
        if file.metadata().is_ok_and(|found| found.len() != whole) {
            return differs("the size of its memory");
        }
        let memory = GroupMemory::of(file, size).map_err(of_memory)?;
        let board = memory.board();
        let nonce = board.group(OfGroup::Nonce).load(Ordering::Acquire);
        Ok((nonce == invitation.nonce).then_some(OpenGroup { memory, board, nonce }))
    }

    fn at_file(
        &self,
        path: &Path,
        until: Instant,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<OpenGroup, JoinError> {
        let file = RendezvousFile(path);
        loop {
            let mut lock = file.lock(until)?;
            let found = file.invitation(&mut lock)?;
            let open = match found.as_ref().map(|found| self.accept(found)).transpose()?.flatten() {
                Some(open) => {
                    open.table().take(self.process, Identity::runs).map_err(|other| self.taken(other))?;
                    open
                }
                None => {
                    let open = self.found()?;
                    file.write(&mut lock, &self.invite(&open))?;
                    open
                }
            };
            if open.table().missing().is_empty() {
                come(open.board.group(OfGroup::Complete), 1);
                file.remove(&lock)?;
                return Ok(open);
            }
            drop(lock);
            if self.wait_at(&file, &open, until, goes_on)? {
                return Ok(open);
            }
        }
    }

    /// Waits at a file. `false` if the group is one that others have given up.
    fn wait_at(
        &self,
        file: &RendezvousFile<'_>,
        open: &OpenGroup,
        until: Instant,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, JoinError> {
        let table = open.table();
        // Also if a process has died since.
        let is_complete = || has_come(open.board.group(OfGroup::Complete), 1);
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
            let is_ours = found.as_ref().is_some_and(|found| found.nonce == open.nonce);
            if is_complete() {
                return Ok(true);
            }
            if !wanted || is_late {
                let missing = table.missing();
                table.leave(self.process);
                if is_ours && table.missing().len() == self.group.size.processes {
                    file.remove(&lock)?;
                }
                return Err(if wanted { self.missing(missing) } else { JoinError::Interrupted });
            }
            match found.filter(|_| is_ours) {
                None => return Ok(false),
                // The process that has the memory can say where it is.
                Some(Invitation { process, at, .. })
                    if process.and_then(|process| table.of(process)) != Some(at.by) || !at.by.runs() =>
                {
                    file.write(&mut lock, &self.invite(open))?;
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
    ) -> Result<OpenGroup, JoinError> {
        let open = if self.process == 0 {
            let open = self.found()?;
            store.set(KEY, &self.invite(&open)).map_err(JoinError::Store)?;
            open
        } else {
            self.found_in_store(store, until, goes_on)?
        };
        self.wait_for_all(open, until, goes_on)
    }

    /// Waits for the group that process 0 founds.
    fn found_in_store(
        &self,
        store: &dyn Store,
        until: Instant,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<OpenGroup, JoinError> {
        let mut seen = None;
        loop {
            if let Some(text) = store.get(KEY).map_err(JoinError::Store)?
                && let Some(open) = self.accept(&Invitation::read(&text).map_err(JoinError::Store)?)?
            {
                // A group that has met before has a member of every number.
                match open.table().take(self.process, |_| true) {
                    Ok(()) => return Ok(open),
                    Err(other) => seen = Some(other),
                }
            }
            if !goes_on() {
                return Err(JoinError::Interrupted);
            }
            if Instant::now() >= until {
                return Err(seen.map_or_else(|| self.missing(vec![0]), |other| self.taken(other)));
            }
            thread::sleep(TICK);
        }
    }

    /// Waits until all have entered themselves.
    fn wait_for_all(
        &self,
        open: OpenGroup,
        until: Instant,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<OpenGroup, JoinError> {
        let table = open.table();
        while !table.is_full() {
            let wanted = goes_on();
            if !wanted || Instant::now() >= until {
                let missing = table.missing();
                table.leave(self.process);
                return Err(if wanted { self.missing(missing) } else { JoinError::Interrupted });
            }
            thread::sleep(TICK);
        }
        Ok(open)
    }

    fn taken(&self, other: Identity) -> JoinError {
        let (process, pid) = (self.process, other.pid);
        JoinError::Refused(format!("process {process}: pid {pid} has joined as process {process} already"))
    }

    fn missing(&self, processes: Vec<usize>) -> JoinError {
        JoinError::Missing { processes, of: self.group.size.processes, after: self.patience }
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
}
