//! Carries between processes that do not map each other's memory: their lines of the board, words of the whole group, and what
//! they say at their end. All of it goes in the stream of far memory, in its order.

use super::World;
use super::board::{OfGroup, OfProcess, OfWorker};
use crate::backend::Backend;
use crate::backend::far::{FarMemory, Wire};
use crate::parallel::lock;
use core::fmt::Debug;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Instant;
use veriep_core::sync::join::{come, has_come};

/// Lines of the sender.
pub(super) const ROW: u32 = 0;
/// Words of the group.
pub(super) const GROUP: u32 = 1;
/// A process that is gone, and how.
pub(super) const LEFT: u32 = 2;
/// A part of what the sender says at its end.
pub(super) const SAID: u32 = 3;
/// It has said all, and ends with this status.
pub(super) const STATUS: u32 = 4;
/// A part of an output: of which rank, which tensor.
pub(super) const OUTPUT: u32 = 5;

/// Between two looks of the process's own thread, while its workers do something else.
const TICK: Duration = Duration::from_millis(1);
/// How often a process says that it runs, and all that nobody waits for.
const BEAT: Duration = Duration::from_millis(10);
/// So long it may take to carry once.
const DEAF: Duration = Duration::from_millis(250);
/// The words of the group that somebody may set: from then on they are set everywhere.
const OF_GROUP: [OfGroup; 3] = [OfGroup::Stop, OfGroup::Asked, OfGroup::Over];
/// So many words of [`OfProcess::ROW`] are waited for by others.
const URGENT: usize = 6;

/// Somebody who carries.
pub(super) trait Post: Send + Sync + Debug {
    /// Sends what others wait for, and takes what has come. Whether something has.
    fn carry(&self) -> bool;

    /// Whether the network has not let this process send or take anything for a while: nobody knows then how others are.
    fn is_deaf(&self) -> bool;
}

/// What has been sent last.
#[derive(Debug, Default)]
struct Sent {
    /// By process: that it is gone, and how.
    left: Vec<u64>,
    urgent: [u64; URGENT],
    group: [u64; OF_GROUP.len()],
}

/// The post of a process.
#[derive(Debug)]
pub(super) struct FarPost<B, W> {
    pub(super) far: Arc<FarMemory<B, W>>,
    pub(super) world: Arc<World>,
    /// Processes that do not map this one's board.
    pub(super) to: Vec<usize>,
    sent: Mutex<Sent>,
    /// When it has carried by itself the last time.
    last: Mutex<Instant>,
}

/// Words as bytes of a note.
pub(super) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The words of a note, `N` of them or more.
pub(super) fn words(note: &[u8], least: usize) -> Result<Vec<u64>, String> {
    let (words, rest) = note.as_chunks();
    if words.len() < least || !rest.is_empty() {
        return Err(format!("a note of {} bytes: must be words, at least {least}", note.len()));
    }
    Ok(words.iter().map(|&word| u64::from_le_bytes(word)).collect())
}

impl<B: Backend + Send + Debug + 'static, W: Wire + 'static> FarPost<B, W> {
    pub(super) fn new(far: Arc<FarMemory<B, W>>, world: Arc<World>, to: Vec<usize>) -> Self {
        Self { far, world, to, sent: Mutex::default(), last: Mutex::new(Instant::now()) }
    }

    /// Begins to carry when nobody else does, and to say that this process runs.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let post = self.clone();
        let work = move || {
            let mut said = Instant::now();
            while !post.far.is_closed() {
                if said.elapsed() >= BEAT {
                    said = Instant::now();
                    let row = bytes(&post.world.row());
                    post.tell(ROW, &row);
                    post.send_losses(&mut lock(&post.sent));
                }
                post.carry();
                *lock(&post.last) = Instant::now();
                thread::sleep(if post.to.is_empty() { BEAT } else { TICK });
            }
        };
        thread::Builder::new().name("post".to_owned()).spawn(work).map(drop)
    }

    /// Sends a note to all processes elsewhere.
    fn tell(&self, tag: u32, note: &[u8]) {
        self.to.iter().for_each(|&process| self.far.note(process, tag, note));
    }

    /// Sends all that is to be sent, also if somebody else is about to.
    pub(super) fn flush(&self) {
        self.send_news(&mut lock(&self.sent));
        self.far.poll();
    }

    fn send_losses(&self, sent: &mut Sent) {
        sent.left.resize(self.world.processes(), 0);
        for (process, sent) in sent.left.iter_mut().enumerate() {
            let left = self.world.how_left(process);
            if left != *sent {
                *sent = left;
                self.tell(LEFT, &bytes(&[process as u64, left]));
            }
        }
    }

    fn send_news(&self, sent: &mut Sent) {
        let urgent = self.world.urgent();
        if urgent != sent.urgent {
            sent.urgent = urgent;
            self.tell(ROW, &bytes(&self.world.row()));
        }
        let group = self.world.of_group();
        if group != sent.group {
            sent.group = group;
            self.tell(GROUP, &bytes(&group));
        }
    }
}

impl<B: Backend + Send + Debug + 'static, W: Wire + 'static> Post for FarPost<B, W> {
    fn carry(&self) -> bool {
        // Who holds it does just that.
        if !self.to.is_empty()
            && let Ok(mut sent) = self.sent.try_lock()
        {
            self.send_news(&mut sent);
        }
        self.far.poll()
    }

    fn is_deaf(&self) -> bool {
        lock(&self.last).elapsed() > DEAF
    }
}

impl World {
    fn urgent(&self) -> [u64; URGENT] {
        core::array::from_fn(|nth| self.own(OfProcess::ROW[nth]).load(Ordering::Acquire))
    }

    /// What this process has written on the board.
    fn row(&self) -> Vec<u64> {
        let own = OfProcess::ROW.into_iter().map(|word| self.own(word).load(Ordering::Acquire));
        let of_worker = |worker| {
            let of = move |word| self.board.worker(self.me, worker, word).load(Ordering::Acquire);
            OfWorker::ROW.into_iter().map(of)
        };
        own.chain((0..self.board.workers()).flat_map(of_worker)).collect()
    }

    /// The lines of a process elsewhere, as it has sent them.
    pub(super) fn take_row(&self, process: usize, note: &[u8]) -> Result<(), String> {
        let of_workers = OfWorker::ROW.len() * self.board.workers();
        let row = words(note, OfProcess::ROW.len() + of_workers)?;
        let (own, workers) = row.split_at(OfProcess::ROW.len());
        for (worker, row) in workers.chunks_exact(OfWorker::ROW.len()).take(self.board.workers()).enumerate()
        {
            for (word, &value) in OfWorker::ROW.into_iter().zip(row) {
                self.board.worker(process, worker, word).store(value, Ordering::Release);
            }
        }
        // The first one, its meetings, last: it speaks for all others.
        for (word, &value) in OfProcess::ROW.into_iter().zip(own).rev() {
            self.board.of(process, word).store(value, Ordering::Release);
        }
        Ok(())
    }

    fn of_group(&self) -> [u64; OF_GROUP.len()] {
        OF_GROUP.map(|word| self.board.group(word).load(Ordering::Acquire))
    }

    pub(super) fn take_group(&self, note: &[u8]) -> Result<(), String> {
        for (word, value) in OF_GROUP.into_iter().zip(words(note, OF_GROUP.len())?) {
            self.board.group(word).fetch_max(value, Ordering::Release);
        }
        Ok(())
    }

    /// The group has ended well, and nobody is needed any more.
    pub fn set_over(&self) {
        come(self.board.group(OfGroup::Over), 1);
    }

    /// Whether it has.
    #[must_use]
    pub fn is_over(&self) -> bool {
        has_come(self.board.group(OfGroup::Over), 1)
    }

    /// A process is gone: as a word of the board, 0 if it is not.
    pub(super) fn how_left(&self, process: usize) -> u64 {
        self.board.of(process, OfProcess::Died).load(Ordering::Acquire)
    }

    pub(super) fn set_left(&self, process: usize, how: u64) {
        self.board.of(process, OfProcess::Died).fetch_max(how, Ordering::AcqRel);
    }

    /// Whether nothing can be heard of a process, and that is not its fault.
    pub(super) fn is_deaf_to(&self, process: usize) -> bool {
        !self.board.is_near(process) && self.is_deaf()
    }

    /// The same of anybody elsewhere.
    pub(super) fn is_deaf(&self) -> bool {
        self.post.get().and_then(Weak::upgrade).is_some_and(|post| post.is_deaf())
    }
}
