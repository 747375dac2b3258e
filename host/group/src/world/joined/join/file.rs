//! The file at which processes meet.

use super::{Invitation, JoinError, TICK};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Instant;

/// The file at which processes meet. A process that reads or changes it holds its lock, which the system takes back when a process dies.
pub(super) struct RendezvousFile<'a>(pub(super) &'a Path);

/// The lock of the file that has its name.
pub(super) struct Lock(File);

impl RendezvousFile<'_> {
    fn error(&self, e: io::Error) -> JoinError {
        JoinError::System(format!("rendezvous {}", self.0.display()), e)
    }

    fn refused(&self, why: &str) -> JoinError {
        JoinError::Refused(format!("rendezvous {}: {why}", self.0.display()))
    }

    /// Makes the file if it is not there.
    pub(super) fn lock(&self, until: Instant) -> Result<Lock, JoinError> {
        loop {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(self.0);
            let file = file.map_err(|e| self.error(e))?;
            match file.try_lock() {
                // Else it has been removed, and perhaps made anew, while it was waited for.
                Ok(()) if self.has(&file).map_err(|e| self.error(e))? => return Ok(Lock(file)),
                Ok(()) => {}
                Err(TryLockError::Error(e)) => return Err(self.error(e)),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                    return Err(self.refused("another process keeps it locked"));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(TICK),
            }
        }
    }

    /// Whether the name is that of this file.
    fn has(&self, file: &File) -> io::Result<bool> {
        let locked = file.metadata()?;
        match std::fs::metadata(self.0) {
            Ok(named) => Ok((named.dev(), named.ino()) == (locked.dev(), locked.ino())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What is there; nothing in a new file.
    pub(super) fn invitation(&self, lock: &mut Lock) -> Result<Option<Invitation>, JoinError> {
        let mut text = String::new();
        let read = lock.0.rewind().and_then(|()| lock.0.read_to_string(&mut text));
        read.map_err(|e| self.error(e))?;
        // What is behind the line was left by a process that died while it wrote.
        let Some(line) = text.lines().next() else { return Ok(None) };
        Invitation::read(line).map(Some).map_err(|why| self.refused(&why))
    }

    pub(super) fn write(&self, lock: &mut Lock, line: &str) -> Result<(), JoinError> {
        let text = format!("{line}\n");
        let written = lock.0.rewind().and_then(|()| lock.0.write_all(text.as_bytes()));
        written.and_then(|()| lock.0.set_len(text.len() as u64)).map_err(|e| self.error(e))
    }

    pub(super) fn remove(&self, _lock: &Lock) -> Result<(), JoinError> {
        std::fs::remove_file(self.0).map_err(|e| self.error(e))
    }
}
