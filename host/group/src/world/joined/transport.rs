//! Carries between processes that do not map each other's memory: their lines of the board, words of the whole group, and what
//! they say at their end. All of it goes in the stream of far memory, in its order.

use super::board::{OfGroup, OfProcess, OfWorker};
use super::{How, World};
use crate::backend::Backend;
use crate::backend::far::{FarMemory, Wire};
use core::fmt::Debug;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Instant;
use veriep_case::parallel::lock;
use veriep_core::sync::join::{come, has_come};

/// Lines of the sender.
pub(super) const ROW: u32 = 0;
/// Words of the group.
pub(super) const GROUP: u32 = 1;
/// A process that has died, and how.
pub(super) const DIED: u32 = 2;
/// A part of what the sender says at its end.
pub(super) const SAID: u32 = 3;
/// It has said all, and ends with this status.
pub(super) const STATUS: u32 = 4;
/// A part of an output: of which rank, which tensor.
pub(super) const OUTPUT: u32 = 5;

/// Between two looks of the process's own thread, while its workers do something else.
const TICK: Duration = Duration::from_millis(1);
/// How often a process says that it runs, and all that no process waits for.
const BEAT: Duration = Duration::from_millis(10);
/// So long it may take to carry once.
const DEAF: Duration = Duration::from_millis(250);
/// The words of the group that any process may set: from then on they are set everywhere.
const OF_GROUP: [OfGroup; 3] = [OfGroup::Stop, OfGroup::Asked, OfGroup::Over];
/// So many words of [`OfProcess::ROW`] are waited for by others.
const URGENT: usize = 6;

/// A way to processes that do not map this one's board.
pub(super) trait Transport: Send + Sync + Debug {
    /// Sends what others wait for, and takes what has come. Whether something has.
    fn carry(&self) -> bool;

    /// Whether the network has not let this process send or take anything for a while: then the state of the others is unknown.
    fn is_deaf(&self) -> bool;
}

/// A word that a process writes on the board.
#[derive(Clone, Copy, Debug)]
enum Word {
    OfProcess(OfProcess),
    OfWorker(usize, OfWorker),
}

/// All such words in the order in which they are read to be sent: what was written before a meeting is at least as new as that.
fn words_of_row(workers: usize) -> impl DoubleEndedIterator<Item = Word> {
    let of_workers = (0..workers)
        .flat_map(|worker| OfWorker::ROW.into_iter().map(move |word| Word::OfWorker(worker, word)));
    OfProcess::ROW.into_iter().map(Word::OfProcess).chain(of_workers)
}

/// The same with the values that have come, in the order in which they are written: the meetings last, since they speak for all
/// others.
fn in_order_of_writing(workers: usize, row: &[u64]) -> impl Iterator<Item = (Word, u64)> {
    let mut written: Vec<_> = words_of_row(workers).zip(row.iter().copied()).collect();
    written.reverse();
    written.into_iter()
}

/// What has been sent last.
#[derive(Debug, Default)]
struct Sent {
    /// By process, how it has died.
    died: Vec<Option<How>>,
    urgent: [u64; URGENT],
    group: [u64; OF_GROUP.len()],
}

/// The transport over far memory.
#[derive(Debug)]
pub(super) struct FarTransport<B, W> {
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

impl<B: Backend + Send + Debug + 'static, W: Wire + 'static> FarTransport<B, W> {
    pub(super) fn new(far: Arc<FarMemory<B, W>>, world: Arc<World>, to: Vec<usize>) -> Self {
        Self { far, world, to, sent: Mutex::default(), last: Mutex::new(Instant::now()) }
    }

    /// Begins to carry when no other thread does, and to say that this process runs.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let transport = self.clone();
        let work = move || {
            let mut said = Instant::now();
            while !transport.far.is_closed() {
                if said.elapsed() >= BEAT {
                    said = Instant::now();
                    let row = bytes(&transport.world.row());
                    transport.tell(ROW, &row);
                    transport.send_losses(&mut lock(&transport.sent));
                }
                transport.carry();
                *lock(&transport.last) = Instant::now();
                thread::sleep(if transport.to.is_empty() { BEAT } else { TICK });
            }
        };
        thread::Builder::new().name("transport".to_owned()).spawn(work).map(drop)
    }

    /// Sends a note to all processes elsewhere.
    fn tell(&self, tag: u32, note: &[u8]) {
        self.to.iter().for_each(|&process| self.far.note(process, tag, note));
    }

    /// Sends all that is to be sent, also if another thread is about to.
    pub(super) fn flush(&self) {
        self.send_news(&mut lock(&self.sent));
        self.far.poll();
    }

    fn send_losses(&self, sent: &mut Sent) {
        sent.died.resize(self.world.processes(), None);
        for (process, sent) in sent.died.iter_mut().enumerate() {
            let died = self.world.how_died(process);
            if let Some(how) = died.filter(|_| died != *sent) {
                *sent = died;
                self.tell(DIED, &bytes(&[process as u64, how.word()]));
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

impl<B: Backend + Send + Debug + 'static, W: Wire + 'static> Transport for FarTransport<B, W> {
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
        words_of_row(self.board.workers())
            .map(|word| self.word(self.me, word).load(Ordering::Acquire))
            .collect()
    }

    /// The lines of a process elsewhere, as it has sent them.
    pub(super) fn take_row(&self, process: usize, note: &[u8]) -> Result<(), String> {
        let workers = self.board.workers();
        let row = words(note, words_of_row(workers).count())?;
        for (word, value) in in_order_of_writing(workers, &row) {
            self.word(process, word).store(value, Ordering::Release);
        }
        Ok(())
    }

    fn word(&self, process: usize, word: Word) -> &AtomicU64 {
        match word {
            Word::OfProcess(word) => self.board.of(process, word),
            Word::OfWorker(worker, word) => self.board.worker(process, worker, word),
        }
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

    /// The group has ended well, and no process is needed any more.
    pub fn set_over(&self) {
        come(self.board.group(OfGroup::Over), 1);
    }

    /// Whether it has.
    #[must_use]
    pub fn is_over(&self) -> bool {
        has_come(self.board.group(OfGroup::Over), 1)
    }

    /// Whether nothing can be heard of a process, and that is not its fault.
    pub(in crate::world) fn is_deaf_to(&self, process: usize) -> bool {
        !self.board.is_near(process) && self.is_deaf()
    }

    /// The same of anybody elsewhere.
    pub(super) fn is_deaf(&self) -> bool {
        self.links.transport.get().and_then(Weak::upgrade).is_some_and(|transport| transport.is_deaf())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has come to a meeting is seen to have done what it did before: its meetings are read first and written last.
    #[test]
    fn the_meetings_of_a_far_process_are_read_first_and_written_last() {
        let workers = 2;
        let is_met = |word: Word| matches!(word, Word::OfProcess(OfProcess::Met));
        let places = |mut words: Box<dyn Iterator<Item = Word>>| words.position(is_met);
        let row: Vec<u64> = (0..).take(words_of_row(workers).count()).collect();
        let written: Vec<_> = in_order_of_writing(workers, &row).collect();
        assert_eq!(places(Box::new(words_of_row(workers))), Some(0));
        assert!(written.iter().all(|&(word, value)| is_met(word) == (value == 0)), "{written:?}");
        assert_eq!((written.len(), written.last().map(|&(word, _)| is_met(word))), (row.len(), Some(true)));
        // Of the words behind, what the first process has decided is as old as the meeting or newer.
        assert!(matches!(written[row.len() - 2].0, Word::OfProcess(OfProcess::Last)), "{written:?}");
    }
}
