//! Files that appear complete or not at all, also if the process is killed.
//!
//! On Linux a file is written without a name and gets one when it is complete, so that a process that is killed leaves
//! nothing behind. To replace an older file, the new one is called `.veriep-*.tmp` for the instant between two system
//! calls: a process that is killed in that instant leaves that file, complete, and the next one that replaces a file in
//! the folder removes it. Elsewhere, and on file systems without nameless files, a file is called `.veriep-*.tmp` for as
//! long as it is written, and stays if the process is killed meanwhile.

use crate::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Linux's limit on nested symbolic links (`MAXSYMLINKS`).
const LINKS_MAX: u32 = 40;

/// Writes a file. A link is followed, whether there is something behind it or not.
///
/// # Errors
/// The file cannot be written, or `path` is something other than a regular file; nothing is left behind.
pub fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), Error> {
    AtomicFile::written(path, fill)?.put()
}

/// A file that is complete, and not in its place yet. Dropped, nothing of it is left.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    target: Target,
    temporary: Temporary,
}

impl AtomicFile {
    /// Writes what shall become `path`, which is not touched.
    pub fn written(
        path: &Path,
        fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<Self, Error> {
        let target = Target::of(path)?;
        let temporary = Temporary::in_folder(path, &target.folder)?;
        if let Ok(older) = target.file.metadata() {
            // Keep the old file's permissions; platforms without permissions have nothing to keep.
            let _ = temporary.file().set_permissions(older.permissions());
        }
        let mut writer = BufWriter::with_capacity(1 << 20, temporary.file());
        fill(&mut writer).and_then(|()| writer.flush()).map_err(|e| cannot(path, &e))?;
        drop(writer);
        Ok(Self { path: path.to_owned(), target, temporary })
    }

    /// Gives it a name beside its place: what is left to do is a rename, which takes no room.
    pub fn named(self) -> Result<Self, Error> {
        let Self { path, target, temporary } = self;
        let temporary = temporary.named(&target.folder).map_err(|e| cannot(&path, &e))?;
        Ok(Self { path, target, temporary })
    }

    /// Removes what is in its place.
    pub fn clear(&self) -> Result<(), Error> {
        remove(&self.target.file).map_err(|e| cannot_replace(&self.path, &e))
    }

    /// Puts it in its place.
    ///
    /// # Errors
    /// The place keeps what it has.
    pub fn put(self) -> Result<(), Error> {
        let Self { path, target, temporary } = self;
        temporary.become_file(&target.file, &target.folder).map_err(|e| cannot(&path, &e))
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes a file that is not to be replaced by another; a link itself.
pub fn remove_file(path: &Path) -> Result<(), Error> {
    remove(path).map_err(|e| cannot_replace(path, &e))
}

/// Whether [`write_atomically`] can begin, found out without leaving a trace.
pub fn check_writable(path: &Path) -> Result<(), Error> {
    let Target { folder, .. } = Target::of(path)?;
    Temporary::in_folder(path, &folder).map(drop)
}

/// In the system's words, without the name of a temporary file.
fn cannot(path: &Path, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(_) => Error::file(path, format_args!("cannot write: {error}")),
        None => Error::file(path, format_args!("cannot write: {}", error.kind())),
    }
}

/// Whether `path` is what standard output or error goes to: the report would be lost.
#[cfg(unix)]
fn is_own_output(path: &Path) -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let Ok(there) = path.metadata() else { return false };
    let same = |own: std::os::fd::BorrowedFd<'_>| {
        let own = own.try_clone_to_owned().and_then(|own| File::from(own).metadata());
        own.is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
    };
    same(io::stdout().as_fd()) || same(io::stderr().as_fd())
}

#[cfg(not(unix))]
fn is_own_output(_path: &Path) -> bool {
    false
}

fn cannot_replace(path: &Path, error: &io::Error) -> Error {
    Error::file(path, format_args!("cannot replace: {error}"))
}

/// What a path names behind links, whether there is something or not; none if there are too many.
fn behind_links(path: &Path) -> Option<PathBuf> {
    let mut file = path.to_owned();
    for _ in 0..=LINKS_MAX {
        let Ok(next) = std::fs::read_link(&file) else { return Some(file) };
        file = file.parent().unwrap_or(Path::new("")).join(next);
    }
    None
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The one path of a file that may have several names and need not be there yet; the path itself if its folder is missing.
pub fn resolved(path: &Path) -> PathBuf {
    let whole = || {
        let file = behind_links(path)?;
        Some(folder_of(&file).canonicalize().ok()?.join(file.file_name()?))
    };
    whole().unwrap_or_else(|| path.to_owned())
}

/// What a path names behind links.
#[derive(Debug)]
struct Target {
    file: PathBuf,
    folder: PathBuf,
}

impl Target {
    fn of(path: &Path) -> Result<Self, Error> {
        if is_own_output(path) {
            return Err(Error::file(path, "cannot write: is this program's own stdout or stderr"));
        }
        // A rename would replace the link itself.
        let file = behind_links(path)
            .ok_or_else(|| Error::file(path, format_args!("cannot write: more than {LINKS_MAX} links")))?;
        // Or a device.
        if file.exists() && !file.is_file() {
            let what = if file.is_dir() { "a folder: must be a file" } else { "not a regular file" };
            return Err(Error::file(path, format_args!("cannot write: {what}")));
        }
        // Which `file_name` does not tell: it takes no notice of what a path ends with.
        let last = file.as_os_str().as_encoded_bytes().rsplit(|&byte| byte == b'/').next();
        if file.file_name().is_none() || matches!(last, Some(b"" | b".")) {
            return Err(Error::file(path, "cannot write: the name of a folder: must be that of a file"));
        }
        let folder = folder_of(&file);
        if !folder.is_dir() {
            let what = if folder.exists() { "is not a folder" } else { "missing: must be a folder" };
            return Err(Error::file(path, format_args!("cannot write: {} {what}", folder.display())));
        }
        match file.symlink_metadata() {
            // Too long, or not to be seen.
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(cannot(path, &e)),
            _ => Ok(Self { file, folder }),
        }
    }
}

/// A file that is not there yet.
#[derive(Debug)]
enum Temporary {
    #[cfg(target_os = "linux")]
    Nameless(File),
    Named(File, tempfile::TempPath),
}

impl Temporary {
    /// What shall become `path`.
    fn in_folder(path: &Path, folder: &Path) -> Result<Self, Error> {
        #[cfg(target_os = "linux")]
        if let Some(file) = nameless::open(folder) {
            return Ok(Self::Nameless(file));
        }
        let named = builder().tempfile_in(folder).map(tempfile::NamedTempFile::into_parts);
        named.map(|(file, path)| Self::Named(file, path)).map_err(|e| {
            let (folder, why) = (folder.display(), e.kind());
            Error::file(path, format_args!("cannot make a file in folder {folder}: {why}"))
        })
    }

    fn file(&self) -> &File {
        match self {
            #[cfg(target_os = "linux")]
            Self::Nameless(file) => file,
            Self::Named(file, _) => file,
        }
    }

    fn named(self, folder: &Path) -> io::Result<Self> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Nameless(file) => {
                nameless::remove_abandoned(folder);
                // Locked before it has a name: a locked file is not abandoned.
                let _ = file.try_lock();
                let ((), path) = builder().make_in(folder, |path| nameless::link(&file, path))?.into_parts();
                Ok(Self::Named(file, path))
            }
            named @ Self::Named(..) => Ok(named),
        }
    }

    fn become_file(self, target: &Path, folder: &Path) -> io::Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Nameless(file) => match nameless::link(&file, target) {
                // Only a rename replaces.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    Self::Nameless(file).named(folder)?.become_file(target, folder)
                }
                linked => linked,
            },
            Self::Named(_, path) => path.persist(target).map_err(|e| e.error),
        }
    }
}

const PREFIX: &str = ".veriep-";
const SUFFIX: &str = ".tmp";

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    {
        // Readable like any other file: the default of temporary files is the owner alone.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder
}

#[cfg(target_os = "linux")]
mod nameless {
    use rustix::fs::{AtFlags, CWD, OFlags, linkat};
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};

    /// A file without a name that can be given one; `None` if that cannot be had in this folder.
    pub(super) fn open(folder: &Path) -> Option<File> {
        let flags = OFlags::TMPFILE.bits() as i32;
        let file = OpenOptions::new().write(true).custom_flags(flags).mode(0o666).open(folder).ok()?;
        name(&file).exists().then_some(file)
    }

    /// Gives it a name that is free.
    pub(super) fn link(file: &File, path: &Path) -> io::Result<()> {
        Ok(linkat(CWD, name(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Removes files whose writer was killed before they replaced another. What cannot be removed stays.
    pub(super) fn remove_abandoned(folder: &Path) {
        for entry in folder.read_dir().into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_ours = |name: &str| name.starts_with(super::PREFIX) && name.ends_with(super::SUFFIX);
            if name.to_str().is_some_and(is_ours)
                && entry.file_type().is_ok_and(|kind| kind.is_file())
                && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
            {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn name(file: &File) -> PathBuf {
        format!("/proc/self/fd/{}", file.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn while_a_file_is_written_there_is_nothing_to_leave_behind() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("result");
        for content in ["first", "second"] {
            let before = names(folder.path());
            write_atomically(&path, |file| {
                file.write_all(content.as_bytes())?;
                file.flush()?;
                assert_eq!(names(folder.path()), before);
                Ok(())
            })
            .unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            assert_eq!(names(folder.path()), ["result"]);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_killed_writer_left_goes_with_the_next_and_what_is_being_written_stays() {
        let folder = tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in [".veriep-dead.tmp", ".veriep-alive.tmp", ".veriep-mine", "result"] {
            std::fs::write(at(name), name).unwrap();
        }
        let alive = File::open(at(".veriep-alive.tmp")).unwrap();
        alive.try_lock().unwrap();
        write_atomically(&at("result"), |file| file.write_all(b"new")).unwrap();
        assert_eq!(names(folder.path()), [".veriep-alive.tmp", ".veriep-mine", "result"]);
        // A file that waits for its place is locked too.
        let waits =
            AtomicFile::written(&at("other"), |file| file.write_all(b"whole")).unwrap().named().unwrap();
        write_atomically(&at("result"), |file| file.write_all(b"newer")).unwrap();
        waits.put().unwrap();
        drop(alive);
        write_atomically(&at("result"), |file| file.write_all(b"newest")).unwrap();
        assert_eq!(names(folder.path()), [".veriep-mine", "other", "result"]);
    }

    #[test]
    fn a_file_that_fails_half_way_leaves_the_old_one() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("result");
        std::fs::write(&path, "old").unwrap();
        let full = |file: &mut BufWriter<&File>| {
            file.write_all(&[7; 4 << 20])?;
            Err(io::ErrorKind::StorageFull.into())
        };
        let line = write_atomically(&path, full).unwrap_err().lines().remove(0);
        assert!(line.ends_with("result: cannot write: no storage space"), "{line}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(folder.path()), ["result"]);
    }

    #[test]
    fn a_named_temporary_does_the_same_where_there_is_no_other() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("result");
        std::fs::write(&path, "old").unwrap();
        let (file, name) = builder().tempfile_in(folder.path()).unwrap().into_parts();
        let temporary = Temporary::Named(file, name);
        temporary.file().write_all(b"new").unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        temporary.become_file(&path, folder.path()).unwrap();
        assert_eq!(
            (std::fs::read_to_string(&path).unwrap().as_str(), names(folder.path()).len()),
            ("new", 1)
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed_and_stays_a_link() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("far")).unwrap();
        symlink("far/file", at("near")).unwrap();
        symlink("near", at("nearer")).unwrap();
        // Dangling at first.
        for content in ["first", "second"] {
            write_atomically(&at("nearer"), |file| file.write_all(content.as_bytes())).unwrap();
            assert!(at("near").is_symlink() && at("nearer").is_symlink());
            assert_eq!(std::fs::read_to_string(at("far/file")).unwrap(), content);
        }
        let plain = at("plain");
        File::create(&plain).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&at("far/file")), mode(&plain), "as any other file");
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o600)).unwrap();
        write_atomically(&plain, |file| file.write_all(b"mine alone")).unwrap();
        assert_eq!(mode(&plain) & 0o777, 0o600, "who could not read the old one cannot read the new one");
        symlink("round", at("round")).unwrap();
        let line = check_writable(&at("round")).unwrap_err().lines().remove(0);
        assert!(line.ends_with("round: cannot write: more than 40 links"), "{line}");
    }
}
