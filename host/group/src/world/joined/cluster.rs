//! A group whose processes a launcher has started, perhaps on several machines: the memory that those of one node share, and
//! how each sees the others.

use super::join::Joined;
use super::network::Introduced;
use super::peers::Peers;
use super::transport::{DIED, FarTransport, GROUP, OUTPUT, ROW, SAID, STATUS, bytes, words};
use super::watch::Watched;
use super::{GroupMemory, How, Phase, World};
use crate::backend::far::{FarMemory, Processes, Wire};
use crate::backend::shared::SharedMemory;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;
use veriep_case::global_rank;
use veriep_case::parallel::lock;
use veriep_core::place::Tensor;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// The exit status of who misses something, or was stopped because others do.
const STOPPED: u8 = 3;
/// Bytes of a part of something long.
const PART: usize = 32 << 10;

/// What others have sent to this process beside memory.
#[derive(Debug, Default)]
struct Inbox {
    /// By process, what it says at its end, and its status once it has said all.
    said: Vec<(Vec<u8>, Option<u8>)>,
    /// By rank and tensor.
    outputs: BTreeMap<(u32, u32), Vec<u8>>,
}

/// A group as one of its processes sees it.
#[derive(Debug)]
pub struct Cluster<W> {
    /// Who is in it.
    pub world: Arc<World>,
    /// What carries between nodes, and is its memory where they are several.
    pub far: Arc<FarMemory<SharedMemory, Introduced<W>>>,
    /// The memory of this node.
    pub memory: GroupMemory,
    transport: Arc<FarTransport<SharedMemory, Introduced<W>>>,
    /// The other processes of this machine.
    peers: Mutex<Peers>,
    me: usize,
    inbox: Arc<Mutex<Inbox>>,
}

impl<W: Wire + 'static> Cluster<W> {
    /// Begins, after all have introduced each other without an error. `bytes` are those of all regions, which `map` finds in the
    /// memory of a node behind a board for so many workers of each process; `members` are the members of `shape` by the number of
    /// their rank in the group.
    ///
    /// # Errors
    /// The system refuses memory.
    pub fn begin(
        introduced: Introduced<W>,
        me: usize,
        bytes: u64,
        map: impl Fn(&GroupMemory) -> io::Result<SharedMemory>,
        (shape, members): (&Shape, &[Option<RankId>]),
    ) -> io::Result<Self> {
        let Joined { memory, world, peers } = introduced.join(me, global_rank::count(shape), bytes)?;
        let processes = world.processes();
        let near: Vec<_> = (0..processes).map(|process| world.board.is_near(process)).collect();
        let to = (0..processes).filter(|&process| !near[process]).collect();
        let inbox = Inbox { said: vec![(Vec::new(), None); processes], ..Inbox::default() };
        let inbox = Arc::new(Mutex::new(inbox));
        let of = members.iter().map(|rank| rank.map_or(me, |rank| world.process_of(rank))).collect();
        let hear = Box::new(hear(world.clone(), inbox.clone()));
        let far = FarMemory::new(map(&memory)?, shape, Processes { me, of, near }, introduced, hear);
        let far = Arc::new(far);
        let transport = Arc::new(FarTransport::new(far.clone(), world.clone(), to));
        if !transport.to.is_empty() {
            // The first and only one.
            let weak = Arc::downgrade(&transport);
            let _ = world.links.transport.set(weak);
        }
        transport.start()?;
        Ok(Self { world, far, memory, transport, peers: Mutex::new(peers), me, inbox })
    }

    /// Whether all processes map the same memory.
    #[must_use]
    pub fn is_one_node(&self) -> bool {
        self.transport.to.is_empty()
    }

    /// Workers of each process.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.world.board.workers()
    }

    /// Tells all that the group has ended well, and leaves the network when all do, but for no longer than `limit`.
    ///
    /// # Errors
    /// A process does not leave, or something does not go out.
    pub fn leave(&self, limit: Duration) -> Result<(), String> {
        self.world.set_over();
        self.transport.flush();
        self.far.close(limit)
    }

    /// Whether it is this process that dumps what a rank has: its own, or the first that lives of those that share memory with it.
    #[must_use]
    pub fn dumps(&self, rank: RankId) -> bool {
        let owner = self.world.process_of(rank);
        let lives = |process: &usize| self.world.how_died(*process).is_none();
        owner == self.me
            || !lives(&owner)
                && self.world.board.is_near(owner)
                && (0..self.world.processes()).filter(|&other| self.world.board.is_near(other)).find(lives)
                    == Some(self.me)
    }

    /// Waits until those who live have dumped, but for no longer than `limit`: they say so by their phase.
    pub fn wait_for_dumps(&self, limit: Duration) {
        let since = Instant::now();
        let has = |process| {
            self.world.how_died(process).is_some() || self.world.phase_of(process) == Phase::GivenUp
        };
        while since.elapsed() < limit && !(0..self.world.processes()).all(has) {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends this process's output of a rank to the first one.
    pub fn send_output(&self, rank: RankId, tensor: Tensor, bytes: &[u8]) {
        let head = [u64::from(rank.0), tensor as u64].map(u64::to_le_bytes).concat();
        for part in bytes.chunks(PART) {
            self.far.note(0, OUTPUT, &[&head, part].concat());
        }
    }

    /// An output that another process has sent.
    #[must_use]
    pub fn output(&self, rank: RankId, tensor: Tensor) -> Vec<u8> {
        lock(&self.inbox).outputs.remove(&(rank.0, tensor as u32)).unwrap_or_default()
    }

    /// Says to those processes what this one has come to, and with which status it ends.
    pub fn say(&self, to: impl Iterator<Item = usize>, what: &[u8], status: u8) {
        for process in to {
            if process == self.me {
                lock(&self.inbox).said[process] = (what.to_vec(), Some(status));
                continue;
            }
            what.chunks(PART).for_each(|part| self.far.note(process, SAID, part));
            self.far.note(process, STATUS, &bytes(&[status.into()]));
        }
    }

    /// What a process has said, if it has said all.
    #[must_use]
    pub fn said(&self, process: usize) -> Option<Vec<u8>> {
        let inbox = lock(&self.inbox);
        let (said, status) = &inbox.said[process];
        status.map(|_| said.clone())
    }

    fn status(&self, process: usize) -> Option<u8> {
        lock(&self.inbox).said[process].1
    }
}

/// What is done with notes of other processes. Whatever they say is foreign.
fn hear(
    world: Arc<World>,
    inbox: Arc<Mutex<Inbox>>,
) -> impl FnMut(usize, u32, &[u8]) -> Result<(), String> + Send {
    move |from, tag, note| {
        match tag {
            ROW => world.take_row(from, note)?,
            GROUP => world.take_group(note)?,
            DIED => {
                let words = words(note, 2)?;
                let process = usize::try_from(words[0]).ok().filter(|&process| process < world.processes());
                let process = process.ok_or_else(|| format!("that process {} is gone", words[0]))?;
                let how = How::of_word(words[1])
                    .ok_or_else(|| format!("that process {process} is gone by {}", words[1]))?;
                world.note_death(process, how);
            }
            SAID => lock(&inbox).said[from].0.extend_from_slice(note),
            STATUS => lock(&inbox).said[from].1 = Some(words(note, 1)?[0] as u8),
            OUTPUT => {
                let Some((head, part)) = note.split_at_checked(16) else {
                    return Err(format!("{} bytes of an output", note.len()));
                };
                let head = words(head, 2)?;
                let key = (head[0] as u32, head[1] as u32);
                lock(&inbox).outputs.entry(key).or_default().extend_from_slice(part);
            }
            _ => return Err(format!("a note {tag}: no such kind")),
        }
        Ok(())
    }
}

impl<W: Wire + 'static> Watched for &Cluster<W> {
    fn reap(&mut self) {
        // Here, since this thread never waits for the network.
        self.world.beat();
        lock(&self.peers).look(|process, how| {
            // Else it has ended as all may.
            let is_due = self.world.is_over() || self.status(process).is_some_and(|status| status > 0);
            if !is_due {
                self.world.died(process, how);
            }
        });
    }

    fn left(&self, process: usize) -> Option<How> {
        // Who was stopped has not failed by itself.
        let failed = self.status(process).filter(|status| (1..STOPPED).contains(status));
        failed.map(|status| How::Exit(status.into())).or_else(|| self.world.how_died(process))
    }

    fn has_ended(&self, process: usize) -> bool {
        self.status(process).is_some() || self.world.how_died(process).is_some()
    }

    /// They end by themselves once they are stopped, or with the first of them that lives.
    fn kill(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::backend::far::MemoryWire;
    use crate::conformance::shape;
    use crate::world::introduce;
    use veriep_core::fabric::Fabric;
    use veriep_core::place::Place;
    use veriep_core::units::CoreId;

    type Clusters = Vec<Cluster<MemoryWire>>;

    /// Three processes, all of them this one: 0 and 1 share memory, 2 shares it with none.
    fn clusters() -> Clusters {
        let begin = |(me, wire)| {
            thread::spawn(move || {
                let shape = shape();
                let introduced = introduce(wire, (me, 3), me == 2, Ok((7, Some(1)))).unwrap();
                assert_eq!((introduced.nodes(), introduced.workers(), introduced.differs()), (2, 1, None));
                let members: Vec<_> = global_rank::all(&shape).map(Some).collect();
                let map =
                    |memory: &GroupMemory| SharedMemory::within(memory.map(), memory.start(), &shape, 1);
                let bytes = SharedMemory::bytes(&shape, 1).unwrap();
                Cluster::begin(introduced, me, bytes, map, (&shape, &members)).unwrap()
            })
        };
        let wires = MemoryWire::network(3, 5).into_iter().enumerate();
        let all: Vec<_> = wires.map(begin).collect();
        all.into_iter().map(|process| process.join().unwrap()).collect()
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < Duration::from_secs(20), "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn boards_of_two_nodes_are_the_same_a_little_later() {
        let all = clusters();
        assert_eq!(all.iter().map(|cluster| cluster.world.ranks().count()).sum::<usize>(), 3);
        all[2].world.enter(Phase::Drives);
        all[0].world.enter(Phase::Checks);
        all[2].world.count_move(0);
        until("phases and moves", || {
            all[0].world.phase_of(2) == Phase::Drives
                && all[2].world.phase_of(0) == Phase::Checks
                && all.iter().all(|cluster| cluster.world.progress() == 1)
        });
        let nth: Vec<_> = all[..2].iter().map(|cluster| cluster.world.arrive()).collect();
        thread::sleep(Duration::from_millis(30));
        assert!(!all[2].world.all_have_come(nth[0]) && !all[0].world.all_have_come(nth[0]));
        all[2].world.arrive();
        until("all have come", || all.iter().all(|cluster| cluster.world.all_have_come(nth[0])));
        // A process that stops the group stops all.
        all[2].world.stop();
        until("all are stopped", || all.iter().all(|cluster| cluster.world.is_stopped()));
    }

    #[test]
    fn memory_of_another_node_is_reached_and_what_is_said_comes() {
        let all = clusters();
        let word = |rank| all[rank as usize].far.fabric(RankId(rank), CoreId(0), 0).observe(Place::state(64));
        all[1].far.fabric(RankId(1), CoreId(0), 0).publish(RankId(0), Place::state(64), 5).unwrap();
        assert_eq!(word(0).unwrap(), 5, "the same memory");
        all[2].far.fabric(RankId(2), CoreId(0), 0).publish(RankId(1), Place::state(64), 6).unwrap();
        until("the word comes", || word(1).unwrap() == 6);
        let long = vec![3; 3 * PART + 1];
        all[2].send_output(RankId(2), Tensor::XOut, &long);
        all[2].say([0].into_iter(), &long, 0);
        until("all is said", || all[0].said(2).is_some());
        assert_eq!((all[0].said(2), all[0].said(1)), (Some(long.clone()), None));
        assert_eq!(all[0].output(RankId(2), Tensor::XOut), long);
        // A process that died, as process 1 has seen it.
        all[1].world.note_death(0, How::Signal(9));
        until("all have heard of it", || {
            all.iter().all(|cluster| Watched::left(&cluster, 0) == Some(How::Signal(9)))
        });
    }

    #[test]
    fn a_note_that_lies_is_refused() {
        let all = clusters();
        let mut hear = hear(all[0].world.clone(), all[0].inbox.clone());
        assert!(hear(2, ROW, &[1, 2, 3]).unwrap_err().contains("must be words"));
        assert_eq!(hear(2, DIED, &bytes(&[9, 1])).unwrap_err(), "that process 9 is gone");
        assert_eq!(hear(2, 77, &[]).unwrap_err(), "a note 77: no such kind");
        assert!(hear(2, OUTPUT, &[0; 7]).is_err());
    }
}
