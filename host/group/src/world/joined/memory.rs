//! Memory that the processes of a group on one machine share.

use super::board::Board;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// The group's memory begins on a page behind the board.
const PAGE: u64 = 4096;

/// The size of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSize {
    /// Its processes.
    pub processes: usize,
    /// Worker threads of each.
    pub workers: usize,
    /// Ranks of all processes.
    pub ranks: u32,
}

impl GroupSize {
    /// A group whose processes have one worker and one rank each.
    #[must_use]
    pub const fn of_single_ranks(processes: usize) -> Self {
        Self { processes, workers: 1, ranks: processes as u32 }
    }
}

/// Memory of a group that all its processes map: the board, and the regions of all ranks behind it. It is a file without a name,
/// which is gone with the last process that has it.
#[derive(Debug)]
pub struct GroupMemory {
    file: File,
    map: Arc<MmapRaw>,
    size: GroupSize,
}

/// Makes the file, still empty.
pub(super) fn unnamed_file() -> io::Result<File> {
    Ok(memfd_create("veriep", MemfdFlags::CLOEXEC)?.into())
}

impl GroupMemory {
    /// Zeroed memory for the board of such a group and `bytes` bytes more.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new(size: GroupSize, bytes: u64) -> io::Result<Self> {
        Self::sized(unnamed_file()?, size, bytes)
    }

    /// The same in a file, whose length is set.
    pub(super) fn sized(file: File, size: GroupSize, bytes: u64) -> io::Result<Self> {
        ftruncate(&file, Self::bytes(size, bytes)?)?;
        Self::of(file, size)
    }

    /// The same in a process that has been given the file.
    pub(super) fn of(file: File, size: GroupSize) -> io::Result<Self> {
        let map = Arc::new(MmapOptions::new().map_raw(&file)?);
        Ok(Self { file, map, size })
    }

    /// Bytes of the file, board included.
    pub(super) fn bytes(size: GroupSize, bytes: u64) -> io::Result<u64> {
        Ok(start(size).checked_add(bytes).ok_or(io::ErrorKind::OutOfMemory)?)
    }

    /// Where the regions begin, behind the board.
    #[must_use]
    pub const fn start(&self) -> u64 {
        start(self.size)
    }

    /// The size of the group.
    #[must_use]
    pub const fn size(&self) -> GroupSize {
        self.size
    }

    /// The file.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// The mapping.
    #[must_use]
    pub const fn map(&self) -> &Arc<MmapRaw> {
        &self.map
    }

    pub(super) fn board(&self) -> Board {
        Board::mapped(self.map.clone(), self.size.processes, self.size.workers)
    }
}

const fn start(size: GroupSize) -> u64 {
    Board::bytes(size.processes, size.workers).next_multiple_of(PAGE)
}
