//! Files that appear complete or not at all, even if the process is killed.
//!
//! Until it is complete, a file is called `.veriep-*.tmp`. A process that is killed before leaves that file behind.

use crate::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes a file. A link is followed, whether it leads to a file or not.
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
    /// The place, with all links followed.
    target: PathBuf,
    temporary: NamedTempFile,
}

impl AtomicFile {
    /// Writes what shall become `path`, which is not touched. What is left to do is a rename, which takes no space.
    pub fn written(
        path: &Path,
        fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<Self, Error> {
        let target = target_of(path)?;
        let temporary = temporary_for(path, &target)?;
        let file = temporary.as_file();
        if let Ok(older) = target.metadata() {
            // Keep the old file's permissions; platforms without permissions have nothing to keep.
            let _ = file.set_permissions(older.permissions());
        }
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        fill(&mut writer).and_then(|()| writer.flush()).map_err(|e| cannot(path, &e))?;
        drop(writer);
        Ok(Self { path: path.to_owned(), target, temporary })
    }

    /// Removes what is in its place.
    pub fn clear(&self) -> Result<(), Error> {
        remove(&self.target).map_err(|e| cannot_replace(&self.path, &e))
    }

    /// Puts it in its place.
    ///
    /// # Errors
    /// The place keeps what it has.
    pub fn put(self) -> Result<(), Error> {
        self.temporary.persist(&self.target).map(drop).map_err(|e| cannot(&self.path, &e.error))
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes a file that is not to be replaced by another; a link itself.
pub fn remove_file(path: &Path) -> Result<(), Error> {
    remove(path).map_err(|e| cannot_replace(path, &e))
}

/// Whether [`write_atomically`] can begin, found out without leaving a trace.
pub fn check_writable(path: &Path) -> Result<(), Error> {
    temporary_for(path, &target_of(path)?).map(drop)
}

/// In the system's words, without the name of a temporary file.
fn cannot(path: &Path, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(_) => Error::file(path, format_args!("cannot write: {error}")),
        None => Error::file(path, format_args!("cannot write: {}", error.kind())),
    }
}

fn cannot_replace(path: &Path, error: &io::Error) -> Error {
    Error::file(path, format_args!("cannot replace: {error}"))
}

/// The path that links lead to, even if nothing is there yet.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    match path.metadata() {
        // Links that lead to themselves, a name that is too long, or one that this user may not see.
        Err(e) if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Err(e),
        _ => {}
    }
    let mut file = path.to_owned();
    while let Ok(next) = std::fs::read_link(&file) {
        file = file.parent().unwrap_or(Path::new("")).join(next);
    }
    Ok(file)
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
        let file = behind_links(path).ok()?;
        Some(folder_of(&file).canonicalize().ok()?.join(file.file_name()?))
    };
    whole().unwrap_or_else(|| path.to_owned())
}

/// The file that `path` names, with all links followed: a rename would replace a link itself.
fn target_of(path: &Path) -> Result<PathBuf, Error> {
    let refused = |what: &str| Err(Error::file(path, format_args!("cannot write: {what}")));
    if path.is_dir() {
        return refused("a folder: must be a file");
    }
    if path.exists() && !path.is_file() {
        return refused("not a regular file");
    }
    let file = behind_links(path).map_err(|e| cannot(path, &e))?;
    // `file_name` takes no notice of a slash or a dot at the end.
    let last = file.as_os_str().as_encoded_bytes().rsplit(|&byte| byte == b'/').next();
    if file.file_name().is_none() || matches!(last, Some(b"" | b".")) {
        return refused("the name of a folder: must be that of a file");
    }
    let folder = folder_of(&file);
    if !folder.is_dir() {
        let what = if folder.exists() { "is not a folder" } else { "missing: must be a folder" };
        return refused(&format!("{} {what}", folder.display()));
    }
    Ok(file)
}

/// A file beside `target` that shall become it; `path` names it in the error.
fn temporary_for(path: &Path, target: &Path) -> Result<NamedTempFile, Error> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".veriep-").suffix(".tmp");
    #[cfg(unix)]
    {
        // Readable like any other file: the default of temporary files is the owner alone.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let folder = folder_of(target);
    builder.tempfile_in(&folder).map_err(|e| {
        let (folder, why) = (folder.display(), e.kind());
        Error::file(path, format_args!("cannot make a file in folder {folder}: {why}"))
    })
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

    #[test]
    fn a_file_that_fails_half_way_leaves_the_old_one() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("result");
        std::fs::write(&path, "old").unwrap();
        let full = |file: &mut BufWriter<&File>| {
            file.write_all(&[7; 4 << 20])?;
            Err(ErrorKind::StorageFull.into())
        };
        let line = write_atomically(&path, full).unwrap_err().lines().remove(0);
        assert!(line.ends_with("result: cannot write: no storage space"), "{line}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(folder.path()), ["result"]);
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
        assert!(line.contains("round: cannot write: Too many levels of symbolic links"), "{line}");
        assert_eq!(resolved(&at("round")), at("round"));
    }
}
