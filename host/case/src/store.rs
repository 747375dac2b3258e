//! Files of tensors: safetensors, read tensor by tensor, and what NumPy writes; written as safetensors, whole or not at all.

mod numpy;

use crate::atomic_file::AtomicFile;
use crate::error::{Error, shown};
use crate::memory::has_room;
use core::fmt;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Deserializer, de};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Largest header read. All tensors of the largest group have names in a third of it; the format's own limit is 12
/// times as large, and a header of that size made of empty tensors takes half a minute.
const HEADER_BYTES_MAX: u64 = 8 << 20;
/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;

/// An open file of tensors whose header agrees with its length, or what one would hold.
///
/// Tensors are read one at a time, so that a case is in memory once.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    content: Content,
    metadata: Metadata,
}

/// Where the bytes of tensors are.
#[derive(Debug)]
enum Content {
    /// In a file, from that byte on.
    File(File, u64),
    /// One tensor after the other.
    Memory(Vec<u8>),
}

impl TensorFile {
    /// Opens a file and checks its header. What it is its first bytes tell, not its name.
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
        if let Some(form) = numpy::Form::of(length) {
            return numpy::open(path, form, file);
        }
        let header_len = u64::from_le_bytes(length);
        let present = file_len - LENGTH_BYTES;
        if header_len > present
            && length.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
        {
            let text = String::from_utf8_lossy(&length);
            return Err(fail(&format_args!(
                "it begins with the text {text:?}: must be the length of a header"
            )));
        }
        if header_len > present {
            return Err(fail(&format_args!("a header of {header_len} bytes, of which {present} are there")));
        }
        if header_len > HEADER_BYTES_MAX {
            return Err(fail(&format_args!("a header of {header_len} bytes: at most {HEADER_BYTES_MAX}")));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).map_err(read)?;
        // The format's own library lets the last of several tensors of one name win.
        if let Distinct(Some(name)) = serde_json::from_slice(&header).map_err(|e| fail(&e))? {
            return Err(fail(&format_args!("duplicate name {name:?} in the header")));
        }
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|e| fail(&wrong_tensor(&header).unwrap_or(e.to_string())))?;
        let data_start = LENGTH_BYTES + header_len;
        let (declared, present) = (metadata.data_len() as u64, file_len - data_start);
        if declared != present {
            return Err(fail(&format_args!("{present} bytes of data: the header declares {declared}")));
        }
        Ok(Self { path: path.to_owned(), content: Content::File(file, data_start), metadata })
    }

    /// What a file with these tensors would hold; `name` stands for it in errors.
    ///
    /// # Errors
    /// A tensor is not as long as its shape says, or two have one name.
    pub fn of_tensors(name: &str, mut tensors: Vec<Tensor<'_>>) -> Result<Self, Error> {
        let path = PathBuf::from(name);
        let mut names = HashSet::new();
        if let Some(tensor) = tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            return Err(Error::file(&path, format_args!("duplicate name {:?}", tensor.name)));
        }
        let metadata = laid_out(&path, &mut tensors)?;
        let bytes = tensors.iter().flat_map(|tensor| tensor.data.iter().copied()).collect();
        Ok(Self { path, content: Content::Memory(bytes), metadata })
    }

    /// The same tensors under other names.
    ///
    /// # Errors
    /// Two of them get one name.
    pub fn renamed(self, name: impl Fn(&str) -> String) -> Result<Self, Error> {
        let (mut infos, mut names) = (Vec::new(), HashSet::new());
        for old in self.metadata.offset_keys() {
            let new = name(&old);
            if !names.insert(new.clone()) {
                return Err(Error::file(
                    &self.path,
                    format_args!("has {new} and {old}, which would be the same"),
                ));
            }
            infos.extend(self.metadata.info(&old).map(|info| (new, info.clone())));
        }
        let metadata = Metadata::new(None, infos).map_err(|e| Error::file(&self.path, e))?;
        Ok(Self { metadata, ..self })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensor names, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.metadata.offset_keys();
        names.sort_unstable();
        names
    }

    /// Type, shape and place of a tensor.
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
        let len = end - start;
        if !has_room(len) {
            let what = format_args!("{name}: {len} bytes do not fit the memory");
            return Err(Error::file(&self.path, what));
        }
        match &mut self.content {
            Content::Memory(all) => Ok(all[start..end].to_vec()),
            Content::File(file, data_start) => {
                let mut bytes = vec![0; len];
                file.seek(SeekFrom::Start(*data_start + start as u64))
                    .and_then(|_| file.read_exact(&mut bytes))
                    .map_err(|e| Error::io(&self.path, "read", &e))?;
                Ok(bytes)
            }
        }
    }
}

/// The first tensor of a header that is wrong by itself, and how: the format's own library does not always name it.
fn wrong_tensor(header: &[u8]) -> Option<String> {
    let tensors: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    tensors.into_iter().filter(|(name, _)| name != "__metadata__").find_map(|(name, value)| {
        let TensorInfo { dtype, shape, data_offsets: (start, end) } = match serde_json::from_value(value) {
            Ok(info) => info,
            Err(e) => return Some(format!("{}: {e}", shown(&name))),
        };
        let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &n| bits.checked_mul(n));
        let (bytes, offsets) = (bits.map(|bits| bits / 8), end.checked_sub(start));
        (bytes.is_none() || bytes != offsets).then(|| {
            let takes = bytes.map_or("more than 2^64".to_owned(), |bytes| bytes.to_string());
            let name = shown(&name);
            format!("{name}: {dtype} {shape:?} takes {takes} bytes: must be those of data_offsets [{start}, {end}]")
        })
    })
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

#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    pub name: String,
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
pub fn write_tensors(path: &Path, tensors: Vec<Tensor<'_>>) -> Result<(), Error> {
    written_tensors(path, tensors)?.put()
}

/// Writes what shall become `path`, which is not touched.
pub fn written_tensors(path: &Path, mut tensors: Vec<Tensor<'_>>) -> Result<AtomicFile, Error> {
    let metadata = laid_out(path, &mut tensors)?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| inconsistent(path, &e))?;
    header.resize(header.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    AtomicFile::written(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        tensors.iter().try_for_each(|tensor| file.write_all(&tensor.data))
    })
}

fn inconsistent(path: &Path, what: &dyn fmt::Display) -> Error {
    Error::file(path, format_args!("cannot write: {what}"))
}

/// Brings tensors into the order of a file: wide types first, as the format asks, so that every tensor lies aligned. Their
/// places there.
fn laid_out(path: &Path, tensors: &mut [Tensor<'_>]) -> Result<Metadata, Error> {
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.data.len();
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    Metadata::new(None, infos.collect()).map_err(|e| inconsistent(path, &e))
}

/// The types of tensors, by the names that NumPy and PyTorch give them.
const TYPES: [(&str, Dtype); 7] = [
    ("bfloat16", Dtype::BF16),
    ("float16", Dtype::F16),
    ("float32", Dtype::F32),
    ("int8", Dtype::I8),
    ("int32", Dtype::I32),
    ("int64", Dtype::I64),
    ("bool", Dtype::BOOL),
];

/// The type of that name.
pub fn type_named(name: &str) -> Option<Dtype> {
    TYPES.into_iter().find(|&(of, _)| of == name).map(|(_, dtype)| dtype)
}

/// Refuses a name under which a reader would look for an archive or an array of NumPy.
///
/// # Errors
/// The name ends in `.npz` or `.npy`.
pub fn refuse_numpy_name(path: &Path) -> Result<(), Error> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("npz" | "npy") => {
            Err(Error::file(path, "is written as safetensors: must have another name; hint: .safetensors"))
        }
        _ => Ok(()),
    }
}

/// The call that makes a tensor of type `dtype` out of one of type `seen`. Integers of two bytes are taken for a bfloat16's bits.
pub fn convert_to(seen: Dtype, dtype: Dtype) -> Option<String> {
    if dtype == Dtype::BF16 && [Dtype::I16, Dtype::U16].contains(&seen) {
        return Some(".view(torch.bfloat16), or in a file of NumPy .view(numpy.uint16)".to_owned());
    }
    TYPES.into_iter().find(|&(_, of)| of == dtype).map(|(name, _)| format!(".to(torch.{name})"))
}

/// 32-bit numbers as little-endian bytes.
pub fn bytes_of<const N: usize, T: Copy>(values: &[T], to_le: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to_le(value)).collect()
}

/// Little-endian bytes as numbers; a tail shorter than a number is left out.
pub fn numbers_of<const N: usize, T>(bytes: &[u8], from_le: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&chunk| from_le(chunk)).collect()
}
