//! Joining over the network of a launcher: the processes of a group tell each other who they are and what they were asked for, and
//! those that can map the same memory open that of the first of them.

use super::eventcount::{WAIT_MAX, WAIT_MAX_FAR};
use super::join::{Joined, MemberTable, MemoryAt};
use super::memory::{GroupMemory, GroupSize, unnamed_file};
use super::peers::Peers;
use super::procfs::system;
use super::{Links, World, watch};
use crate::backend::far::Wire;
use core::time::Duration;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use veriep_case::parallel;

/// How long all may take to say who they are.
const MEETS: Duration = Duration::from_secs(60);
/// Between two looks whether those live who have.
const LOOK: Duration = Duration::from_millis(20);

/// What a process says of itself before the group begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Its number in the system, and its file for the memory of a node.
    #[serde(flatten)]
    at: MemoryAt,
    /// Its machine.
    pub host: String,
    /// What all of its machine have alike, and that it shares memory with no process.
    machine: String,
    alone: bool,
    /// Processors that it may use, and how many of them at a time.
    processors: BTreeSet<usize>,
    at_a_time: usize,
    /// Workers that it was asked for.
    workers: Option<usize>,
    /// Of what all must have alike.
    fingerprint: u64,
    /// Why it cannot begin: exit status and line.
    pub error: Option<(u8, String)>,
}

/// A wire, and what has come on it too early.
#[derive(Debug)]
pub struct Introduced<W> {
    wire: W,
    early: VecDeque<(usize, Vec<u8>)>,
    came: Vec<u8>,
    /// What each process has said.
    pub hellos: Vec<Hello>,
    file: File,
}

impl<W: Wire> Wire for Introduced<W> {
    fn send(&mut self, to: usize, chunk: Vec<u8>) -> Result<(), String> {
        self.wire.send(to, chunk)
    }

    fn receive(&mut self) -> Result<Option<(usize, &[u8])>, String> {
        let Some((from, chunk)) = self.early.pop_front() else { return self.wire.receive() };
        self.came = chunk;
        Ok(Some((from, &self.came)))
    }

    fn finish(&mut self) -> Result<(), String> {
        self.wire.finish()
    }

    fn abort(&mut self, status: u8) {
        self.wire.abort(status);
    }
}

/// Tells all processes who this one is, what it was asked for and perhaps why it cannot begin, and waits until they have told the
/// same. With `alone` it shares memory with no process.
///
/// # Errors
/// The wire has failed, or a process says nothing.
pub fn introduce<W: Wire>(
    mut wire: W,
    (me, processes): (usize, usize),
    alone: bool,
    asked: Result<(u64, Option<usize>), (u8, String)>,
) -> Result<Introduced<W>, String> {
    let of_system = |e: io::Error| format!("memory of the group: {e}");
    let file = unnamed_file().map_err(of_system)?;
    let allowed = sched_getaffinity(None).map_err(|e| of_system(e.into()))?;
    let host = watch::host();
    let (fingerprint, workers, error) = match asked {
        Ok((fingerprint, workers)) => (fingerprint, workers, None),
        Err(error) => (0, None, Some(error)),
    };
    let hello = Hello {
        at: MemoryAt::own(&file),
        machine: format!("{host} {}", system()),
        alone,
        host,
        processors: (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect(),
        at_a_time: parallel::processors(),
        workers,
        fingerprint,
        error,
    };
    let said = serde_json::to_vec(&hello).map_err(|e| e.to_string())?;
    for process in (0..processes).filter(|&process| process != me) {
        wire.send(process, said.clone())?;
    }
    let mut hellos: Vec<Option<Hello>> = vec![None; processes];
    hellos[me] = Some(hello);
    let (mut early, since, mut looked) = (VecDeque::new(), Instant::now(), Instant::now());
    while let Some(missing) = hellos.iter().position(Option::is_none) {
        let Some((from, chunk)) = wire.receive()? else {
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                if let Some((process, Hello { at, host, .. })) = dead(&hellos) {
                    let pid = at.by.pid;
                    return Err(format!(
                        "process {process} (pid {pid}, host {host}) is gone, before all have met"
                    ));
                }
            }
            if since.elapsed() > MEETS {
                return Err(format!("process {missing} has not said who it is for {} s", MEETS.as_secs()));
            }
            thread::yield_now();
            continue;
        };
        match hellos.get_mut(from) {
            Some(hello @ None) => {
                let read = serde_json::from_slice(chunk);
                *hello = Some(read.map_err(|e| format!("process {from} has not said who it is: {e}"))?);
            }
            // It has heard all, and has begun.
            Some(_) => early.push_back((from, chunk.to_vec())),
            None => return Err(format!("process {from} is none of {processes}")),
        }
    }
    let hellos = hellos.into_iter().flatten().collect();
    Ok(Introduced { wire, early, came: Vec::new(), hellos, file })
}

/// A process of this machine that has said who it is, and runs no more.
fn dead(hellos: &[Option<Hello>]) -> Option<(usize, &Hello)> {
    let here = format!("{} {}", watch::host(), system());
    let said = hellos.iter().enumerate().filter_map(|(process, hello)| Some((process, hello.as_ref()?)));
    said.filter(|(_, hello)| hello.machine == here).find(|(_, hello)| !hello.at.by.runs())
}

impl<W> Introduced<W> {
    /// The wire itself.
    pub const fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Joins the group: `ranks` of all its processes, and so many bytes of memory behind the board of a node.
    ///
    /// # Errors
    /// The system refuses memory.
    pub(super) fn join(&self, me: usize, ranks: u32, bytes: u64) -> io::Result<Joined> {
        let size = GroupSize { processes: self.hellos.len(), workers: self.workers(), ranks };
        // The first that comes sets the size; for all others the file has it already.
        let memory = GroupMemory::sized(self.memory_of_node(me)?, size, bytes)?;
        let near: Vec<_> = (0..size.processes).map(|process| self.are_near(me, process)).collect();
        let wait_max = if near.contains(&false) { WAIT_MAX_FAR } else { WAIT_MAX };
        let board = memory.board().with_near(near);
        for (process, hello) in self.hellos.iter().enumerate() {
            // All that share a board write the same.
            MemberTable(&board).enter(process, hello.at.by);
        }
        let crowded = self.beside(me).count() * size.workers > self.processors(me);
        let hosts = self.hellos.iter().map(|hello| hello.host.clone()).collect();
        let links = Links { wait_max, hosts, ..Links::default() };
        let world = Arc::new(World { crowded, links, ..World::of(board, me, ranks) });
        let peers = Peers::of(&world, self.beside(me).map(|(process, hello)| (process, hello.at.by)))?;
        Ok(Joined { memory, world, peers })
    }

    fn memory_of_node(&self, me: usize) -> io::Result<File> {
        let lead = self.lead(me);
        if lead == me {
            return self.file.try_clone();
        }
        let opened = self.hellos[lead].at.open();
        let opened = opened.map_err(|e| io::Error::other(format!("{e}; --all-far does without it")))?;
        opened.ok_or_else(|| io::Error::other(format!("memory of process {lead}: is gone")))
    }

    /// Whether a process maps the same memory as another one.
    pub(super) fn are_near(&self, a: usize, b: usize) -> bool {
        let (first, second) = (&self.hellos[a], &self.hellos[b]);
        a == b || first.machine == second.machine && !first.alone && !second.alone
    }

    /// The first process that maps the same memory as `process`.
    fn lead(&self, process: usize) -> usize {
        (0..process).find(|&other| self.are_near(process, other)).unwrap_or(process)
    }

    /// How many memories there are.
    #[must_use]
    pub fn nodes(&self) -> usize {
        (0..self.hellos.len()).filter(|&process| self.lead(process) == process).count()
    }

    /// The processes of the same machine, with their numbers.
    fn beside(&self, process: usize) -> impl Iterator<Item = (usize, &Hello)> {
        self.hellos.iter().enumerate().filter(move |(_, hello)| hello.machine == self.hellos[process].machine)
    }

    /// Processors of a process's machine, as far as the group may use them.
    fn processors(&self, process: usize) -> usize {
        let all: BTreeSet<_> = self.beside(process).flat_map(|(_, hello)| &hello.processors).collect();
        let Hello { at_a_time, processors, .. } = &self.hellos[process];
        if *at_a_time < processors.len() { *at_a_time } else { all.len() }
    }

    /// The first process that was asked for something else than process 0.
    #[must_use]
    pub fn differs(&self) -> Option<usize> {
        let of = |hello: &Hello| (hello.fingerprint, hello.workers);
        self.hellos.iter().position(|hello| of(hello) != of(&self.hellos[0]))
    }

    /// Workers of each process: as many as all nodes have processors for, if no number was asked for.
    #[must_use]
    pub fn workers(&self) -> usize {
        let share = |process| self.processors(process) / self.beside(process).count();
        let shares = (0..self.hellos.len()).map(share).min();
        self.hellos[0].workers.or(shares).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::far::MemoryWire;
    use crate::world::join::Identity;

    #[test]
    fn who_was_asked_for_something_else_is_named() {
        let wires = MemoryWire::network(2, 1).into_iter().enumerate();
        let introduced = wires.map(|(me, wire)| {
            thread::spawn(move || introduce(wire, (me, 2), false, Ok((me as u64, None))).unwrap().differs())
        });
        let differs: Vec<_> =
            introduced.collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(differs, [Some(1), Some(1)]);
    }

    #[test]
    fn who_dies_before_all_have_met_is_named_at_once() {
        let alone = MemoryWire::network(1, 4).remove(0);
        let mut hello = introduce(alone, (0, 1), false, Ok((7, None))).unwrap().hellos.remove(0);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        hello.at.by = Identity::of_pid(child.id().into());
        // The second process says who it is; the third says nothing.
        let mut wires = MemoryWire::network(3, 4);
        wires[1].send(0, serde_json::to_vec(&hello).unwrap()).unwrap();
        let first = wires.remove(0);
        let waits = thread::spawn(move || introduce(first, (0, 3), false, Ok((7, None))).unwrap_err());
        thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        child.kill().unwrap();
        child.wait().unwrap();
        let since = Instant::now();
        let line = waits.join().unwrap();
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
        let (pid, host) = (hello.at.by.pid, hello.host);
        assert_eq!(line, format!("process 1 (pid {pid}, host {host}) is gone, before all have met"));
    }
}
