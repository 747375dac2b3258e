//! The dumped memory of one rank.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use veriep_case::dump::{REGIONS, file};
use veriep_case::error::Error;
use veriep_core::place::{Place, Region};

/// The regions of a rank that have a file.
#[derive(Debug, Default)]
pub(super) struct Memory {
    regions: [Option<Bytes>; REGIONS.len()],
}

#[derive(Debug)]
enum Bytes {
    /// State regions are read whole.
    Whole(Vec<u8>),
    /// Of windows little is looked at.
    File(File),
}

impl Memory {
    /// Opens the files of a rank, whose regions have these sizes; a region of size 0 has no file.
    ///
    /// # Errors
    /// A file cannot be read, or has another size.
    pub(super) fn open(folder: &Path, rank: u32, sizes: &[u64]) -> Result<Self, Error> {
        let mut memory = Self::default();
        for ((bytes, region), &size) in memory.regions.iter_mut().zip(REGIONS).zip(sizes) {
            if size > 0 {
                *bytes = open(&file(folder, rank, region), region, size)?;
            }
        }
        Ok(memory)
    }

    /// Whether there is a file for that region.
    pub(super) fn has(&self, region: Region) -> bool {
        self.of(region).is_some()
    }

    fn of(&self, region: Region) -> Option<&Bytes> {
        REGIONS.iter().zip(&self.regions).find(|(of, _)| **of == region)?.1.as_ref()
    }

    pub(super) fn whole(&self, region: Region) -> &[u8] {
        match self.of(region) {
            Some(Bytes::Whole(bytes)) => bytes,
            _ => &[],
        }
    }

    /// Fills `bytes` with what is at `at`; whether that is known.
    pub(super) fn read(&self, at: Place, bytes: &mut [u8]) -> bool {
        let (start, len) = (at.offset, bytes.len());
        match self.of(at.region) {
            None => false,
            Some(Bytes::Whole(whole)) => {
                let found = whole.get(start as usize..).and_then(|rest| rest.get(..len));
                found.map(|found| bytes.copy_from_slice(found)).is_some()
            }
            Some(Bytes::File(file)) => {
                let mut file = file;
                file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(bytes)).is_ok()
            }
        }
    }

    /// The aligned word at `at`, if it is known.
    pub(super) fn word(&self, at: Place) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}

fn open(path: &Path, region: Region, size: u64) -> Result<Option<Bytes>, Error> {
    let about = match std::fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        about => about.map_err(|e| Error::io(path, "open", &e))?,
    };
    if !about.is_file() {
        return Err(Error::file(path, "not a regular file"));
    }
    if about.len() != size {
        return Err(Error::file(path, format_args!("has {} bytes: must have {size}", about.len())));
    }
    let mut file = File::open(path).map_err(|e| Error::io(path, "open", &e))?;
    if matches!(region, Region::Window | Region::WindowOut | Region::TpWindow) {
        return Ok(Some(Bytes::File(file)));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| Error::io(path, "read", &e))?;
    Ok(Some(Bytes::Whole(bytes)))
}
