//! Transport of chunks between processes.

use core::fmt::Debug;

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
