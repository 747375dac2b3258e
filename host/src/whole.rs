//! Files that appear complete or not at all, also if the process is killed.
//!
//! On Linux a file is written without a name and gets one when it is complete, so that nothing is left behind by
//! whoever dies over it. Elsewhere, and on file systems that cannot do it, it is a temporary one in the same folder
//! that is renamed; killed in between, `.veriep-*.tmp` stays.

use crate::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// As many links behind each other as Linux follows.
const LINKS_MAX: u32 = 40;

/// Writes a file. A link is followed, whether there is something behind it or not.
///
/// # Errors
/// The file cannot be written, or `path` is something other than a regular file; nothing is left behind.
pub fn write_whole(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), Error> {
    let fail = |e: io::Error| cannot(path, &e);
    let Target { file, folder } = Target::of(path)?;
    let temporary = Temporary::in_folder(path, &folder)?;
    let mut writer = BufWriter::with_capacity(1 << 20, temporary.file());
    fill(&mut writer).and_then(|()| writer.flush()).map_err(fail)?;
    drop(writer);
    temporary.become_file(&file, &folder).map_err(fail)
}

/// Whether [`write_whole`] can begin, found out without leaving a trace.
///
/// # Errors
/// As [`write_whole`].
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

/// What a path names behind links.
struct Target {
    file: PathBuf,
    folder: PathBuf,
}

impl Target {
    fn of(path: &Path) -> Result<Self, Error> {
        if is_own_output(path) {
            return Err(Error::file(path, "cannot write: is where this program's own words go"));
        }
        let mut file = path.to_owned();
        let mut links = 0;
        // A rename would replace the link itself.
        while let Ok(next) = std::fs::read_link(&file) {
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::file(path, format_args!("cannot write: more than {LINKS_MAX} links")));
            }
            file = file.parent().unwrap_or(Path::new("")).join(next);
        }
        // Or a device.
        if file.exists() && !file.is_file() {
            let what = if file.is_dir() { "a folder: must be a file" } else { "not a regular file" };
            return Err(Error::file(path, format_args!("cannot write: {what}")));
        }
        if file.file_name().is_none() {
            return Err(Error::file(path, "cannot write: not the name of a file"));
        }
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        if !folder.is_dir() {
            let what = if folder.exists() { "is not a folder" } else { "missing: must be a folder" };
            return Err(Error::file(path, format_args!("cannot write: {} {what}", folder.display())));
        }
        Ok(Self { file, folder })
    }
}

/// A file that is not there yet.
enum Temporary {
    #[cfg(target_os = "linux")]
    Nameless(File),
    Named(tempfile::NamedTempFile),
}

impl Temporary {
    /// What shall become `path`.
    fn in_folder(path: &Path, folder: &Path) -> Result<Self, Error> {
        #[cfg(target_os = "linux")]
        if let Some(file) = nameless::open(folder) {
            return Ok(Self::Nameless(file));
        }
        builder().tempfile_in(folder).map(Self::Named).map_err(|e| {
            let (folder, why) = (folder.display(), e.kind());
            Error::file(path, format_args!("cannot write: folder {folder} takes no file: {why}"))
        })
    }

    fn file(&self) -> &File {
        match self {
            #[cfg(target_os = "linux")]
            Self::Nameless(file) => file,
            Self::Named(file) => file.as_file(),
        }
    }

    fn become_file(self, target: &Path, folder: &Path) -> io::Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Nameless(file) => match nameless::link(&file, target) {
                // Only a rename replaces: a name of its own first, for as long as that takes.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    let named = builder().make_in(folder, |path| nameless::link(&file, path))?;
                    named.persist(target).map_err(|e| e.error)
                }
                linked => linked,
            },
            Self::Named(file) => file.persist(target).map(drop).map_err(|e| e.error),
        }
    }
}

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".veriep-").suffix(".tmp");
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
            write_whole(&path, |file| {
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

    #[test]
    fn a_file_that_fails_half_way_leaves_the_old_one() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("result");
        std::fs::write(&path, "old").unwrap();
        let full = |file: &mut BufWriter<&File>| {
            file.write_all(&[7; 4 << 20])?;
            Err(io::ErrorKind::StorageFull.into())
        };
        let line = write_whole(&path, full).unwrap_err().lines().remove(0);
        assert!(line.ends_with("result: cannot write: no storage space"), "{line}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(folder.path()), ["result"]);
    }

    #[test]
    fn a_named_temporary_does_the_same_where_there_is_no_other() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("result");
        std::fs::write(&path, "old").unwrap();
        let temporary = Temporary::Named(builder().tempfile_in(folder.path()).unwrap());
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
            write_whole(&at("nearer"), |file| file.write_all(content.as_bytes())).unwrap();
            assert!(at("near").is_symlink() && at("nearer").is_symlink());
            assert_eq!(std::fs::read_to_string(at("far/file")).unwrap(), content);
        }
        let plain = at("plain");
        File::create(&plain).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&at("far/file")), mode(&plain), "as any other file");
        symlink("round", at("round")).unwrap();
        let line = check_writable(&at("round")).unwrap_err().lines().remove(0);
        assert!(line.ends_with("round: cannot write: more than 40 links"), "{line}");
    }
}
