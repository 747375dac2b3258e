//! The memory that this machine still has.

use memmap2::MmapOptions;

/// Whether the system would grant so many bytes: to be asked of what a file or a request may make as large as it likes.
pub(crate) fn has_room(bytes: usize) -> bool {
    MmapOptions::new().len(bytes.max(1)).map_anon().is_ok()
}
