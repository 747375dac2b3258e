//! What carries chunks between processes.

use crate::parallel::lock;
use core::fmt::Debug;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// One process's end of a network. Chunks of one process to another arrive whole, once, and in their order.
pub trait Wire: Debug + Send {
    /// Sends a chunk. It need not have arrived, nor have left, when this returns.
    ///
    /// # Errors
    /// The network has failed.
    fn send(&mut self, to: usize, chunk: Vec<u8>) -> Result<(), String>;

    /// The next chunk that has arrived from anybody, and from whom. Never blocks.
    ///
    /// # Errors
    /// The network has failed.
    fn receive(&mut self) -> Result<Option<(usize, &[u8])>, String>;

    /// Leaves the network once all that was sent has left: the last call.
    ///
    /// # Errors
    /// Something has not.
    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Ends all processes of the network, where it can.
    fn abort(&mut self, _status: u8) {}
}

type Links = Vec<Mutex<VecDeque<Vec<u8>>>>;

/// A network inside one process, which delays chunks as a seed says: of two that come from different processes either may be
/// the first.
#[derive(Debug)]
pub struct MemoryWire {
    me: usize,
    processes: usize,
    /// By sender, then receiver.
    links: Arc<Links>,
    dice: ChaCha8Rng,
    came: Vec<u8>,
}

impl MemoryWire {
    /// The ends of a network of so many processes.
    #[must_use]
    pub fn network(processes: usize, seed: u64) -> Vec<Self> {
        let links: Arc<Links> = Arc::new((0..processes * processes).map(|_| Mutex::default()).collect());
        let end = |me| Self {
            me,
            processes,
            links: Arc::clone(&links),
            dice: ChaCha8Rng::seed_from_u64(seed ^ (me as u64) << 32),
            came: Vec::new(),
        };
        (0..processes).map(end).collect()
    }

    fn link(&self, from: usize, to: usize) -> std::sync::MutexGuard<'_, VecDeque<Vec<u8>>> {
        lock(&self.links[from * self.processes + to])
    }
}

impl Wire for MemoryWire {
    fn send(&mut self, to: usize, chunk: Vec<u8>) -> Result<(), String> {
        self.link(self.me, to).push_back(chunk);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(usize, &[u8])>, String> {
        let from = self.dice.random_range(0..self.processes);
        let Some(chunk) = self.link(from, self.me).pop_front() else { return Ok(None) };
        self.came = chunk;
        Ok(Some((from, &self.came)))
    }
}
