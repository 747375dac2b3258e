//! Safetensors files: read tensor by tensor, written whole or not at all.

use crate::error::Error;
use core::fmt;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Deserializer, de};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Largest header read, the limit of the format's own library.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;

/// An open safetensors file whose header agrees with its length.
///
/// Tensors are read one at a time, so that a case is in memory once.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl TensorFile {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// Missing, not a regular file, truncated, or a header that disagrees with itself or the length.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let fail =
            |what: &dyn fmt::Display| Error::file(path, format_args!("not a safetensors file: {what}"));
        let read = |e: std::io::Error| Error::io(path, "read", &e);
        let about = std::fs::metadata(path).map_err(read)?;
        if !about.is_file() {
            return Err(Error::file(path, "not a regular file"));
        }
        let mut file = File::open(path).map_err(|e| Error::io(path, "open", &e))?;
        let file_len = about.len();
        if file_len < LENGTH_BYTES {
            return Err(fail(&format_args!("{file_len} bytes, shorter than a header")));
        }
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut length).map_err(read)?;
        let header_len = u64::from_le_bytes(length);
        let header_max = HEADER_BYTES_MAX.min(file_len - LENGTH_BYTES);
        if header_len > header_max {
            return Err(fail(&format_args!("header of {header_len} bytes: at most {header_max}")));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).map_err(read)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| fail(&e))?;
        // The format's own library lets the last of several tensors of one name win.
        if let Distinct(Some(name)) = serde_json::from_slice(&header).map_err(|e| fail(&e))? {
            return Err(fail(&format_args!("duplicate name {name:?} in the header")));
        }
        let data_start = LENGTH_BYTES + header_len;
        let (declared, present) = (metadata.data_len() as u64, file_len - data_start);
        if declared != present {
            return Err(fail(&format_args!("{present} bytes of data: the header declares {declared}")));
        }
        Ok(Self { path: path.to_owned(), file, metadata, data_start })
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensor names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names = self.metadata.offset_keys();
        names.sort_unstable();
        names
    }

    /// Type, shape and place of a tensor.
    #[must_use]
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// The tensor is missing or the file cannot be read.
    pub fn read(&mut self, name: &str) -> Result<Vec<u8>, Error> {
        let info = self
            .metadata
            .info(name)
            .ok_or_else(|| Error::file(&self.path, format_args!("{name}: missing")))?;
        let (start, end) = info.data_offsets;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(end - start).map_err(|_| {
            Error::file(&self.path, format_args!("{name}: {} bytes do not fit the memory", end - start))
        })?;
        bytes.resize(end - start, 0);
        self.file
            .seek(SeekFrom::Start(self.data_start + start as u64))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|e| Error::io(&self.path, "read", &e))?;
        Ok(bytes)
    }
}

/// The first key of an object that occurs twice.
struct Distinct(Option<String>);

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> de::Visitor<'de> for Keys {
            type Value = Distinct;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Distinct, A::Error> {
                let (mut names, mut twice) = (HashSet::new(), None);
                while let Some((name, _)) = map.next_entry::<String, de::IgnoredAny>()? {
                    if let (None, Some(name)) = (&twice, names.replace(name)) {
                        twice = Some(name);
                    }
                }
                Ok(Distinct(twice))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Its name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Little-endian bytes.
    pub data: Cow<'a, [u8]>,
}

/// Writes `tensors` to `path`. The file appears complete or not at all.
///
/// # Errors
/// The file cannot be written; nothing is left behind.
pub fn write_tensors(path: &Path, mut tensors: Vec<Tensor<'_>>) -> Result<(), Error> {
    // Wide types first, as the format asks: every tensor then lies aligned.
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.data.len();
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let inconsistent = |e: &dyn fmt::Display| Error::file(path, format_args!("cannot write: {e}"));
    let metadata = Metadata::new(None, infos.collect()).map_err(|e| inconsistent(&e))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| inconsistent(&e))?;
    header.resize(header.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    write_whole(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        tensors.iter().try_for_each(|tensor| file.write_all(&tensor.data))
    })
}

/// Writes a file through a temporary one in the same folder, renamed when complete.
///
/// # Errors
/// The file cannot be written, or `path` is something other than a regular file.
pub fn write_whole(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<()>,
) -> Result<(), Error> {
    let fail = |e: &std::io::Error| Error::file(path, format_args!("cannot write: {e}"));
    let (target, folder) = target(path)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".veriep-").suffix(".tmp");
    #[cfg(unix)]
    {
        // Readable like any other file: the default of temporary files is the owner alone.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let temporary = builder.tempfile_in(&folder).map_err(|e| fail(&e))?;
    let mut writer = BufWriter::with_capacity(1 << 20, temporary.as_file());
    fill(&mut writer).and_then(|()| writer.flush()).map_err(|e| fail(&e))?;
    drop(writer);
    temporary.persist(&target).map_err(|e| fail(&e.error))?;
    Ok(())
}

/// Whether [`write_whole`] can begin, found out without leaving a trace.
///
/// # Errors
/// As [`write_whole`].
pub fn check_writable(path: &Path) -> Result<(), Error> {
    let (_, folder) = target(path)?;
    // Without a name: nothing is left behind, whatever happens to this process.
    tempfile::tempfile_in(folder).map_err(|e| Error::file(path, format_args!("cannot write: {e}"))).map(drop)
}

/// The file that `path` names behind links, and its folder.
fn target(path: &Path) -> Result<(PathBuf, PathBuf), Error> {
    // A rename would replace a device or a symbolic link by a file.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.exists() && !target.is_file() {
        return Err(Error::file(path, "cannot write: not a regular file"));
    }
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    if !folder.is_dir() {
        return Err(Error::file(path, format_args!("cannot write: folder {} missing", folder.display())));
    }
    Ok((target, folder))
}

/// 32-bit numbers as little-endian bytes.
pub fn bytes_of<const N: usize, T: Copy>(values: &[T], to_le: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to_le(value)).collect()
}

/// Little-endian bytes as numbers; a tail shorter than a number is left out.
pub fn numbers_of<const N: usize, T>(bytes: &[u8], from_le: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&chunk| from_le(chunk)).collect()
}
