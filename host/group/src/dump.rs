//! Writes the memory of a group that runs into a dump folder, when it ends and when a signal asks for it.

use crate::interrupt;
use core::time::Duration;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use veriep_case::atomic_file::remove_file;
use veriep_case::case::Case;
use veriep_case::config::FILE_NAME;
use veriep_case::dump::{OPTIONS_NAME, Options, REGIONS, file, make};
use veriep_case::error::Error;
use veriep_case::global_rank;
use veriep_case::stderr::{complain, note};
use veriep_core::units::RankId;

/// How long a request for a dump may stay unnoticed.
const LOOK: Duration = Duration::from_millis(20);

/// Where the regions of a rank are mapped in this process: address and length, by [`REGIONS`].
pub type Mapped = [(usize, u64); REGIONS.len()];

/// What a live group writes, and where.
pub struct Dump<'a> {
    folder: &'a Path,
    case: &'a Case,
    options: Options,
    /// By the numbers that files have.
    mapped: Vec<Mapped>,
    /// The file that is mapped, and where, if other processes write there.
    file: Option<(&'a fs::File, usize)>,
    /// Whether this process writes the files of a rank; another one does otherwise.
    writes: Box<dyn Fn(RankId) -> bool + Sync + 'a>,
}

impl<'a> Dump<'a> {
    pub fn new(folder: &'a Path, case: &'a Case, options: Options, mapped: Vec<Mapped>) -> Self {
        Self { folder, case, options, mapped, file: None, writes: Box::new(|_| true) }
    }

    /// Other processes write the files of other ranks.
    #[cfg(target_os = "linux")]
    pub fn of_ranks(self, writes: impl Fn(RankId) -> bool + Sync + 'a) -> Self {
        Self { writes: Box::new(writes), ..self }
    }

    /// The memory is that of a file which is mapped at that address, and other processes write there.
    #[cfg(target_os = "linux")]
    pub fn of_file(self, file: &'a fs::File, address: usize) -> Self {
        Self { file: Some((file, address)), ..self }
    }

    /// Runs a group, writes what it has when it ends, however it does, and whenever a signal asks for it.
    ///
    /// # Errors
    /// Those of the group; else a file that cannot be written.
    pub fn around<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        // Dropped when the group ends, even by a panic. The thread below then ends, too.
        let (running, ended) = channel::<()>();
        let ran = thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    if interrupt::take_dump() {
                        match self.write() {
                            Ok(()) => note(&format!("note: {}: dumped", self.folder.display())),
                            Err(error) => complain(&error.to_string()),
                        }
                    }
                }
            });
            let _running = running;
            run()
        });
        match (ran, self.write()) {
            (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(of_dump)) => {
                complain(&of_dump.to_string());
                Err(error)
            }
            (ran, Ok(())) => ran,
        }
    }

    /// Writes all files, the configuration last: a folder without it is incomplete.
    fn write(&self) -> Result<(), Error> {
        let folder = self.folder;
        make(folder)?;
        let config = folder.join(FILE_NAME);
        remove_file(&config)?;
        for member in global_rank::all(&self.case.shape).filter(|&member| (self.writes)(member)) {
            let number = self.case.name(member).0;
            let mapped = self.mapped.get(number as usize).into_iter().flatten();
            for (region, &(address, len)) in REGIONS.into_iter().zip(mapped).filter(|(_, (_, len))| *len > 0)
            {
                let path = file(folder, number, region);
                let copied = match self.file {
                    Some((file, start)) => copy_of_file(file, (address - start) as u64, len, &path),
                    None => copy(address, len, &path),
                };
                copied.map_err(|e| Error::io(&path, "write", &e))?;
            }
        }
        let options = toml::to_string(&self.options).map_err(|e| Error::Request(e.to_string()))?;
        let written =
            |path: &Path, text: &str| fs::write(path, text).map_err(|e| Error::io(path, "write", &e));
        written(&folder.join(OPTIONS_NAME), &options)?;
        written(&config, &self.case.config.to_toml()?)
    }
}

/// Copies memory of this process into a file, with holes for pages that hold zeros. The system reads it: other threads may
/// write there meanwhile.
#[cfg(target_os = "linux")]
fn copy(address: usize, len: u64, path: &Path) -> std::io::Result<()> {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Pages that are looked up at once.
    const PAGES: usize = 4096;
    /// What the system says of a page: it is in memory, or swapped out.
    const THERE: u64 = 3 << 62;

    let page = rustix::param::page_size() as u64;
    let (memory, table) = (File::open("/proc/self/mem")?, File::open("/proc/self/pagemap")?);
    let out = File::create(path)?;
    out.set_len(len)?;
    let (mut entries, mut bytes) = (vec![0; 8 * PAGES], vec![0; page as usize]);
    let mut at = 0;
    while at < len {
        // Where pages are large, a region may begin within one.
        let first = address as u64 + at;
        let pages = (first % page + len - at).div_ceil(page).min(PAGES as u64) as usize;
        let entries = &mut entries[..8 * pages];
        table.read_exact_at(entries, first / page * 8)?;
        for entry in entries.as_chunks::<8>().0 {
            let from = address as u64 + at;
            let now = &mut bytes[..(len - at).min(page - from % page) as usize];
            if u64::from_ne_bytes(*entry) & THERE != 0 {
                memory.read_exact_at(now, from)?;
                if now.iter().any(|&byte| byte != 0) {
                    out.write_all_at(now, at)?;
                }
            }
            at += now.len() as u64;
        }
    }
    Ok(())
}

/// The same of a part of a file: this process may never have looked at pages that others have written.
#[cfg(target_os = "linux")]
fn copy_of_file(file: &fs::File, start: u64, len: u64, path: &Path) -> std::io::Result<()> {
    use rustix::fs::{SeekFrom, seek};
    use rustix::io::Errno;
    use std::os::unix::fs::FileExt;

    let out = fs::File::create(path)?;
    out.set_len(len)?;
    let (mut bytes, mut at, end) = (vec![0; rustix::param::page_size()], start, start + len);
    while at < end {
        at = match seek(file, SeekFrom::Data(at)) {
            Ok(at) if at < end => at,
            // Nothing but holes follows.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let now = &mut bytes[..(end - at).min(rustix::param::page_size() as u64) as usize];
        file.read_exact_at(now, at)?;
        if now.iter().any(|&byte| byte != 0) {
            out.write_all_at(now, at - start)?;
        }
        at += now.len() as u64;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn copy_of_file(_: &fs::File, _: u64, _: u64, _: &Path) -> std::io::Result<()> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "dumps need Linux"))
}

#[cfg(not(target_os = "linux"))]
fn copy(_: usize, _: u64, _: &Path) -> std::io::Result<()> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "dumps need Linux"))
}
