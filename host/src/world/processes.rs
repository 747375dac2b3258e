//! Ranks as processes of one machine: a parent maps the group's memory, starts copies of its own program and gives each a
//! seat. The memory is a file without a name, so nothing is left when the last of them is gone.

use super::board::{Board, OfGroup, OfProcess};
use super::twin::Duty;
use super::watch::{self, Watched, how};
use super::{How, World};
use crate::backend::row_copy;
use crate::parallel;
use core::sync::atomic::Ordering;
use core::time::Duration;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::sync::join::{come, has_come};

/// Tells a process that it is one of a group: its number, how many there are, workers of each, the parent's number in the
/// system, what must be the same, and which group it is.
const SEAT: &str = "VERIEP_SEAT";
/// How often a process says that it runs.
const BEAT: Duration = Duration::from_millis(20);
/// The group's memory begins on a page behind the board.
const PAGE: u64 = 4096;

/// Memory of a group that all its processes map.
#[derive(Debug)]
pub struct GroupMemory {
    file: File,
    map: Arc<MmapRaw>,
}

impl GroupMemory {
    /// Zeroed memory for the board of such a world and `bytes` bytes more.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new(processes: usize, workers: usize, bytes: u64) -> io::Result<Self> {
        let file = memfd_create("veriep", MemfdFlags::CLOEXEC)?;
        Self::sized(file.into(), processes, workers, bytes)
    }

    /// The same in a file, whose length is set.
    pub(super) fn sized(file: File, processes: usize, workers: usize, bytes: u64) -> io::Result<Self> {
        let whole = Self::start(processes, workers).checked_add(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        ftruncate(&file, whole)?;
        Self::of(file)
    }

    /// The same in a process that has been given the file.
    ///
    /// # Errors
    /// The system refuses to map it.
    pub fn of(file: File) -> io::Result<Self> {
        let map = Arc::new(MmapOptions::new().map_raw(&file)?);
        Ok(Self { file, map })
    }

    /// Where it begins, behind the board.
    #[must_use]
    pub const fn start(processes: usize, workers: usize) -> u64 {
        Board::bytes(processes, workers).next_multiple_of(PAGE)
    }

    /// The file.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// The mapping.
    #[must_use]
    pub const fn map(&self) -> &Arc<MmapRaw> {
        &self.map
    }
}

/// The place of a process in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its number.
    pub process: usize,
    /// How many there are.
    pub processes: usize,
    /// Worker threads of each.
    pub workers: usize,
    /// Of what all must have alike.
    pub fingerprint: u64,
    /// Which of several groups of the same arguments it is.
    pub group: u64,
}

/// Whether a parent has started this process for a group.
#[must_use]
pub fn is_seated() -> bool {
    std::env::var_os(SEAT).is_some()
}

impl Seat {
    /// The seat that a parent has given this process, if any, and the group's memory. From now on this process dies with its
    /// parent.
    ///
    /// # Errors
    /// It is no seat, there is no memory, or the parent is gone already.
    pub fn taken() -> io::Result<Option<(Self, GroupMemory)>> {
        let Ok(text) = std::env::var(SEAT) else { return Ok(None) };
        let malformed = || io::Error::other(format!("{SEAT}={text}: no seat of a group"));
        let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
        let Ok([process, processes, workers, parent, fingerprint, group]) = numbers.as_deref() else {
            return Err(malformed());
        };
        if !Duty::DieWithParent.is_left_out() {
            set_parent_process_death_signal(Some(Signal::KILL))?;
        }
        // Also if it died before that.
        if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != u32::try_from(*parent).ok() {
            return Err(io::Error::other("the parent is gone"));
        }
        // What `ps` and `top` show. Advice only.
        if let Ok(name) = CString::new(format!("veriep-{process}")) {
            let _ = rustix::thread::set_name(&name);
        }
        // The parent has left it there, where no number can be mistaken.
        let file = rustix::io::dup(rustix::stdio::stdin())?;
        let number = |n: &u64| usize::try_from(*n).map_err(|_| malformed());
        let seat = Self {
            process: number(process)?,
            processes: number(processes)?,
            workers: number(workers)?,
            fingerprint: *fingerprint,
            group: *group,
        };
        if seat.process >= seat.processes {
            return Err(malformed());
        }
        Ok(Some((seat, GroupMemory::of(File::from(file))?)))
    }

    /// This process's view of its group of so many ranks. From now on it says that it runs.
    #[must_use]
    pub fn world(&self, memory: &GroupMemory, ranks: u32) -> Arc<World> {
        let world = World::seated(memory, (self.process, self.processes), self.workers, ranks);
        let beating = world.clone();
        let beat = move || {
            loop {
                beating.beat();
                thread::sleep(BEAT);
            }
        };
        // Without it the group believes that this process is silent as soon as nobody moves for the deadline.
        if Duty::Beat.is_left_out() {
            return world;
        }
        let _ = thread::Builder::new().name("beat".to_owned()).spawn(beat);
        world
    }
}

/// A process that this one has started.
#[derive(Debug)]
struct Member {
    child: Child,
    /// Lines that it says, until it closes its output.
    said: Receiver<Vec<u8>>,
    /// How it ended.
    end: Option<ExitStatus>,
}

/// All processes that this one has started; none of them outlives this value.
#[derive(Debug)]
pub struct Members {
    all: Vec<Member>,
}

impl Members {
    /// Starts a copy of this program for every process of a world, with the same arguments.
    ///
    /// # Errors
    /// The system does not start one.
    pub fn start(memory: &GroupMemory, world: &World, (fingerprint, group): (u64, u64)) -> io::Result<Self> {
        let mut members = Self { all: Vec::new() };
        let arguments: Vec<_> = std::env::args_os().collect();
        let (processes, workers) = (world.processes(), world.board.workers());
        let parent = getpid().as_raw_nonzero();
        for process in 0..processes {
            // The file that runs, also if another one has taken its name meanwhile.
            let mut command = Command::new("/proc/self/exe");
            command.args(arguments.iter().skip(1));
            if let Some(name) = arguments.first() {
                command.arg0(name);
            }
            command.env(SEAT, format!("{process},{processes},{workers},{parent},{fingerprint},{group}"));
            command.stdin(memory.file.try_clone()?).stdout(Stdio::piped());
            let mut child = command.spawn()?;
            let output = child.stdout.take();
            let (say, said) = channel();
            members.all.push(Member { child, said, end: None });
            let listen = move || {
                // What has come until an error is what there is.
                let lines = output.into_iter().flat_map(|output| BufReader::new(output).split(b'\n'));
                lines.map_while(Result::ok).try_for_each(|line| say.send(line))
            };
            thread::Builder::new().spawn(listen)?;
        }
        Ok(members)
    }

    /// The next line that a process says, or an empty one when it will say no more.
    pub fn said(&mut self, process: usize) -> Vec<u8> {
        self.all[process].said.recv().unwrap_or_default()
    }

    /// The same if it has come already.
    pub fn has_said(&mut self, process: usize) -> Option<Vec<u8>> {
        self.all[process].said.try_recv().ok()
    }

    /// Whether all have ended.
    #[must_use]
    pub fn have_ended(&self) -> bool {
        self.all.iter().all(|member| member.end.is_some())
    }
}

impl Watched for Members {
    fn reap(&mut self) {
        if Duty::Look.is_left_out() {
            return;
        }
        for member in self.all.iter_mut().filter(|member| member.end.is_none()) {
            // An error would come again.
            member.end = member.child.try_wait().ok().flatten();
        }
    }

    fn left(&self, process: usize) -> Option<How> {
        self.all[process].end.filter(|end| !end.success()).map(how)
    }

    fn has_ended(&self, process: usize) -> bool {
        self.all[process].end.is_some()
    }

    fn name(&self, process: usize) -> (u32, String) {
        (self.all[process].child.id(), watch::host())
    }

    fn kill(&mut self) {
        self.reap();
        for member in self.all.iter_mut().filter(|member| member.end.is_none()) {
            let _ = member.child.kill();
            member.end = member.child.wait().ok();
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.kill();
    }
}

impl World {
    /// Returns the view that process `me` has of its group. Somebody else must say that the process runs.
    pub(crate) fn seated(
        memory: &GroupMemory,
        (me, processes): (usize, usize),
        workers: usize,
        ranks: u32,
    ) -> Arc<Self> {
        let board = Board::mapped(memory.map.clone(), processes, workers);
        let crowded = processes > 1 && processes * workers > parallel::processors();
        Arc::new(Self { crowded, ..Self::of(board, me, ranks) })
    }

    /// Says that this process runs.
    pub(super) fn beat(&self) {
        self.own(OfProcess::Beat).fetch_add(1, Ordering::Relaxed);
    }

    /// A view of a group of which this process drives no rank.
    #[must_use]
    pub fn watched(memory: &GroupMemory, processes: usize, workers: usize, ranks: u32) -> Self {
        Self::of(Board::mapped(memory.map.clone(), processes, workers), processes, ranks)
    }

    /// Ends the group now.
    pub fn stop(&self) {
        self.board.group(OfGroup::Stop).store(1, Ordering::Relaxed);
        self.notify();
    }

    /// Tells all processes to do something: what, and two numbers. Only one process does.
    pub fn order(&self, order: [u64; 3]) {
        for (word, value) in [OfGroup::What, OfGroup::First, OfGroup::Second].into_iter().zip(order) {
            self.board.group(word).store(value, Ordering::Relaxed);
        }
        let orders = self.board.group(OfGroup::Orders);
        come(orders, orders.load(Ordering::Relaxed) + 1);
        self.notify();
    }

    /// Waits for the order number `nth`, from 1 on; the next one comes when all have answered.
    #[must_use]
    pub fn ordered(&self, nth: u64) -> [u64; 3] {
        let mut seen = self.register_waiter();
        while !has_come(self.board.group(OfGroup::Orders), nth) {
            seen = self.wait(seen);
        }
        self.unregister_waiter();
        let word = |word| self.board.group(word).load(Ordering::Relaxed);
        [OfGroup::What, OfGroup::First, OfGroup::Second].map(word)
    }

    /// Tells all processes, before they start, how rows are copied.
    pub fn copy_rows(&self, way: RowCopy) {
        let number = row_copy::ALL.iter().position(|&one| one == way).map_or(0, |at| at as u64 + 1);
        self.board.group(OfGroup::RowCopy).store(number, Ordering::Relaxed);
    }

    /// How rows are copied, if who started this process has said so.
    #[must_use]
    pub fn copies_rows(&self) -> Option<RowCopy> {
        let number = self.board.group(OfGroup::RowCopy).load(Ordering::Relaxed);
        row_copy::ALL.get((number as usize).checked_sub(1)?).copied()
    }

    /// Asks the group to end between two units.
    pub fn ask_for_the_end(&self) {
        self.board.group(OfGroup::Asked).store(1, Ordering::Relaxed);
    }

    /// Ranks that have been compared with the oracle.
    #[must_use]
    pub fn checked(&self) -> u64 {
        self.sum(OfProcess::Checked)
    }
}
