//! Arrays as NumPy writes them: one in a `.npy` file, several in an archive of such files, `.npz`.

use super::{Content, Tensor, TensorFile};
use crate::config::pieces;
use crate::error::Error;
use crate::memory::has_room;
use core::fmt;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use zip::ZipArchive;

/// How a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One array.
    Array,
    /// An archive of arrays.
    Archive,
    /// Objects of Python, which only Python can read, by running what they say.
    Pickle,
}

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Largest header of an array, in bytes; those of arrays without fields have some hundred.
const HEADER_BYTES_MAX: u32 = 1 << 16;
/// The end of a member's name in an archive.
const MEMBER_END: &str = ".npy";

impl Form {
    /// Returns the form of a file that begins so; none of another one.
    pub(super) fn of(start: [u8; 8]) -> Option<Self> {
        match start {
            _ if start.starts_with(MAGIC) => Some(Self::Array),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Archive),
            // A header of safetensors is never as long as these bytes would say.
            [0x80, 2..=5, ..] if u64::from_le_bytes(start) > super::HEADER_BYTES_MAX => Some(Self::Pickle),
            _ => None,
        }
    }
}

/// Opens a file of that form from its start on.
pub(super) fn open(path: &Path, form: Form, mut file: File) -> Result<TensorFile, Error> {
    file.seek(SeekFrom::Start(0)).map_err(|e| Error::io(path, "read", &e))?;
    match form {
        Form::Array => array(path, file),
        Form::Archive => archive(path, file),
        Form::Pickle => Err(Error::file(path, pickled("it"))),
    }
}

fn pickled(what: &str) -> String {
    format!(
        "{what} holds pickled objects of Python, which are not read: save tensors with safetensors.torch.save_file or numpy.savez"
    )
}

/// A file of one array, whose name is that of the file.
fn array(path: &Path, file: File) -> Result<TensorFile, Error> {
    let fail = |what: String| Error::file(path, format_args!("not an array that is read here: {what}"));
    let mut reader = BufReader::new(&file);
    let Header { dtype, shape, bytes } = Header::read(&mut reader).map_err(fail)?;
    let start = reader.stream_position().map_err(|e| Error::io(path, "read", &e))?;
    let file_len = file.metadata().map_err(|e| Error::io(path, "read", &e))?.len();
    let (present, declared) = (file_len - start, bytes as u64);
    if present != declared {
        return Err(fail(format!("{present} bytes of data: the header declares {declared}")));
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let info = TensorInfo { dtype, shape, data_offsets: (0, bytes) };
    let metadata = Metadata::new(None, vec![(name, info)]).map_err(|e| fail(e.to_string()))?;
    Ok(TensorFile { path: path.to_owned(), content: Content::File(file, start), metadata })
}

/// An archive, each member of which is an array of the member's name.
fn archive(path: &Path, file: File) -> Result<TensorFile, Error> {
    let fail = |what: &dyn fmt::Display| Error::file(path, format_args!("not an archive of arrays: {what}"));
    let listed = members_listed(&file).map_err(|e| Error::io(path, "read", &e))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| fail(&e))?;
    // Of two members with one name the archive keeps one.
    if listed.is_some_and(|listed| listed != archive.len()) {
        return Err(fail(&"two of its members have one name"));
    }
    let mut tensors = Vec::new();
    for number in 0..archive.len() {
        let mut member = archive.by_index(number).map_err(|e| fail(&e))?;
        let name = member.name().map_err(|e| fail(&e))?.into_owned();
        if name.ends_with(".pkl") {
            return Err(Error::file(path, pickled(&name)));
        }
        let tensor = name.strip_suffix(MEMBER_END);
        let tensor =
            tensor.ok_or_else(|| fail(&format_args!("{name}: must end in {MEMBER_END}")))?.to_owned();
        let wrong = |what: String| fail(&format_args!("{tensor}: {what}"));
        let Header { dtype, shape, bytes } = Header::read(&mut member).map_err(wrong)?;
        if bytes as u64 > member.size() {
            return Err(wrong(format!("{} bytes: the header declares {bytes} of data", member.size())));
        }
        if !has_room(bytes) {
            return Err(wrong(format!("{bytes} bytes do not fit the memory")));
        }
        let mut data = Vec::new();
        let more = member.take(bytes as u64 + 1).read_to_end(&mut data);
        more.map_err(|e| wrong(e.to_string()))?;
        if data.len() != bytes {
            return Err(wrong(format!("other bytes of data than the {bytes} that the header declares")));
        }
        tensors.push(Tensor { name: tensor, dtype, shape, data: data.into() });
    }
    TensorFile::of_tensors(&path.display().to_string(), tensors)
}

/// Returns how many members the end of an archive lists; `None` where it has no such number: archives of 65535 and more have
/// it elsewhere.
fn members_listed(mut file: &File) -> std::io::Result<Option<usize>> {
    const END: &[u8; 4] = b"PK\x05\x06";
    const END_BYTES: u64 = 22;
    const COMMENT_MAX: u64 = u16::MAX as u64;
    let len = file.metadata()?.len();
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(len.saturating_sub(END_BYTES + COMMENT_MAX)))?;
    file.read_to_end(&mut tail)?;
    file.seek(SeekFrom::Start(0))?;
    let at = tail.windows(END.len()).rposition(|window| window == END);
    let count = at.and_then(|at| tail.get(at + 10..at + 12)).and_then(|count| count.try_into().ok());
    Ok(count.map(u16::from_le_bytes).filter(|count| *count < u16::MAX).map(usize::from))
}

/// The header of an array, before its data: a dictionary as Python prints it.
struct Header {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Of the data.
    bytes: usize,
}

impl Header {
    fn read(file: &mut impl Read) -> Result<Self, String> {
        let mut start = [0; 8];
        file.read_exact(&mut start).map_err(|e| e.to_string())?;
        let [.., major, _] = start;
        if !start.starts_with(MAGIC) || !(1..=3).contains(&major) {
            return Err("must begin with the header of NumPy's format 1, 2 or 3".to_owned());
        }
        let mut length = [0; 4];
        let digits = if major == 1 { 2 } else { 4 };
        file.read_exact(&mut length[..digits]).map_err(|e| e.to_string())?;
        let length = u32::from_le_bytes(length);
        if length > HEADER_BYTES_MAX {
            return Err(format!("a header of {length} bytes: at most {HEADER_BYTES_MAX}"));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(|e| e.to_string())?;
        Self::of_text(&String::from_utf8_lossy(&text))
    }

    /// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
    fn of_text(text: &str) -> Result<Self, String> {
        let start = text.find('{').map_or(0, |open| open + 1);
        let pieces = pieces(text, start).unwrap_or_default();
        let value = |key: &str| {
            let of_key =
                |piece: &&str| piece.split_once(':').is_some_and(|(word, _)| quoted(word) == Some(key));
            let piece = pieces.iter().map(|(_, piece)| *piece).find(of_key);
            let value = piece.and_then(|piece| piece.split_once(':')).map(|(_, value)| value.trim());
            value.ok_or_else(|| format!("the header has no {key}"))
        };
        let dtype = dtype(value("descr")?)?;
        let shape = shape(value("shape")?).ok_or("the header has no shape that can be read")?;
        let is_flat = shape.iter().filter(|extent| **extent != 1).count() < 2;
        if value("fortran_order")? != "False" && !is_flat {
            return Err("in Fortran order: must be in C order; hint: numpy.ascontiguousarray".to_owned());
        }
        let bytes = shape.iter().try_fold(dtype.bitsize() / 8, |bytes, &extent| bytes.checked_mul(extent));
        let bytes = bytes.ok_or_else(|| format!("shape {shape:?}: more bytes than there can be"))?;
        Ok(Self { dtype, shape, bytes })
    }
}

/// The text between single or double quotes.
fn quoted(text: &str) -> Option<&str> {
    let text = text.trim();
    let open = text.chars().next().filter(|open| ['\'', '"'].contains(open))?;
    text.strip_prefix(open)?.strip_suffix(open)
}

/// The type of elements. NumPy has no name for bfloat16: `ml_dtypes` leaves two bytes without a type, and a view of them is uint16.
fn dtype(descr: &str) -> Result<Dtype, String> {
    let Some(name) = quoted(descr) else { return Err("an array of records: must be of numbers".to_owned()) };
    let (order, kind) = name.split_at_checked(1).unwrap_or_default();
    if kind.starts_with('O') {
        return Err(pickled("it"));
    }
    let dtype = match kind {
        "b1" => Dtype::BOOL,
        "i1" => Dtype::I8,
        "u1" => Dtype::U8,
        "i2" => Dtype::I16,
        "i4" => Dtype::I32,
        "i8" => Dtype::I64,
        "u2" | "V2" => Dtype::BF16,
        "u4" => Dtype::U32,
        "u8" => Dtype::U64,
        "f2" => Dtype::F16,
        "f4" => Dtype::F32,
        "f8" => Dtype::F64,
        _ => return Err(format!("type {name}: must be a type of numbers")),
    };
    match order {
        "<" | "|" | "=" => Ok(dtype),
        _ => Err(format!("type {name}: must be little-endian")),
    }
}

/// Reads `()`, `(3,)` or `(3, 4)`.
fn shape(text: &str) -> Option<Vec<usize>> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    inner
        .split(',')
        .map(str::trim)
        .filter(|extent| !extent.is_empty())
        .map(|extent| extent.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;
    use tempfile::{TempDir, tempdir};
    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    fn array_of(text: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = [MAGIC, &[1, 0][..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
        bytes.extend(data);
        bytes
    }

    fn header(descr: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}   \n")
    }

    fn saved(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
        let folder = tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn zipped(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
        let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, bytes) in members {
            zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    #[test]
    fn an_array_is_a_tensor_of_the_name_of_its_file() {
        for (descr, dtype) in
            [("<V2", Dtype::BF16), ("|V2", Dtype::BF16), ("<u2", Dtype::BF16), ("<f2", Dtype::F16)]
        {
            let bytes = array_of(&header(descr, "(2, 1)"), &[1, 2, 3, 4]);
            let (_folder, path) = saved("rank0.x_out.npy", &bytes);
            let mut file = TensorFile::open(&path).unwrap();
            assert_eq!(file.names(), ["rank0.x_out"]);
            let info = file.info("rank0.x_out").unwrap();
            assert_eq!((info.dtype, &info.shape[..]), (dtype, &[2, 1][..]));
            assert_eq!(file.read("rank0.x_out").unwrap(), [1, 2, 3, 4]);
        }
    }

    #[test]
    fn members_of_an_archive_are_tensors_deflated_or_not() {
        let ids = array_of(&header("<i4", "(2,)"), &[7, 0, 0, 0, 9, 0, 0, 0]);
        let one = array_of(&header("|b1", "()"), &[1]);
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let bytes = zipped(&[("rank1.expert_ids.npy", &ids), ("one.npy", &one)], method);
            let (_folder, path) = saved("any.npz", &bytes);
            let mut file = TensorFile::open(&path).unwrap();
            assert_eq!(file.names(), ["one", "rank1.expert_ids"]);
            assert_eq!(file.read("rank1.expert_ids").unwrap(), [7, 0, 0, 0, 9, 0, 0, 0]);
            assert_eq!(file.info("one").unwrap().shape, [0usize; 0]);
        }
    }

    #[test]
    fn what_is_not_read_is_told_in_one_line() {
        let array = |descr: &str, shape: &str, data: &[u8]| array_of(&header(descr, shape), data);
        let good = array("<f4", "(1,)", &[0; 4]);
        let stored = |members: &[(&str, &[u8])]| zipped(members, CompressionMethod::Stored);
        let mut cut = stored(&[("a.npy", &good)]);
        cut.truncate(cut.len() - 9);
        let fortran = header("<f4", "(2, 2)").replace("False", "True");
        for (bytes, told) in [
            (array("|O", "(1,)", b"\x80\x04K\x01."), "pickled objects of Python, which are not read"),
            (array(">f4", "(1,)", &[0; 4]), "type >f4: must be little-endian"),
            (array("<U3", "(1,)", &[0; 12]), "type <U3: must be a type of numbers"),
            (array("<f4", "(2,)", &[0; 4]), "4 bytes of data: the header declares 8"),
            (array("<f4", "(1,)", &[0; 5]), "5 bytes of data: the header declares 4"),
            (array("<f4", "(9999999999, 9999999999)", &[]), "more bytes than there can be"),
            (array("<f4", "(-1,)", &[]), "no shape that can be read"),
            (array_of(&fortran, &[0; 16]), "in Fortran order: must be in C order"),
            (
                array_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", &[0; 4]),
                "an array of records",
            ),
            (array_of("{'shape': (1,)}", &[]), "the header has no descr"),
            (array_of("", &[]), "the header has no descr"),
            ([MAGIC, &[9, 0][..], &[0; 9]].concat(), "NumPy's format 1, 2 or 3"),
            ([MAGIC, &[2, 0, 0xFF, 0xFF, 0xFF, 0xFF][..]].concat(), "a header of 4294967295 bytes"),
            (b"\x80\x04\x95\xAB\x42\x00\x00\x00\x00\x00\x00}".to_vec(), "pickled objects of Python"),
            (b"\x80\x02\x8A\x0Al\xFC\x9C\x46\xF9".to_vec(), "pickled objects of Python"),
            (b"\x80\x04\x00\x00\x00\x00\x00\x00{}".to_vec(), "a header of 1152 bytes, of which 2 are there"),
            (b"\x80\x04\x95\x19\x00\x00\x00\x01pickle".to_vec(), "pickled objects of Python"),
            (
                stored(&[("archive/data.pkl", b"\x80\x02")]),
                "archive/data.pkl holds pickled objects of Python",
            ),
            (stored(&[("a.txt", b"text")]), "a.txt: must end in .npy"),
            (stored(&[("a.npy", &array("<f4", "(9,)", &[0; 4]))]), "a: "),
            (stored(&[("a.npy", &array("|O", "(1,)", b"\x80\x04"))]), "pickled objects of Python"),
            (cut, "not an archive of arrays: "),
        ] {
            let (_folder, path) = saved("some", &bytes);
            let error = TensorFile::open(&path).unwrap_err();
            assert_eq!(error.status(), 2);
            let lines = error.lines();
            assert!(lines.len() == 1 && lines[0].contains(told), "{told}: {lines:?}");
        }
    }

    #[test]
    fn members_of_one_name_are_refused() {
        let array = array_of(&header("<f4", "(1,)"), &[0; 4]);
        let members = [("rank0.a.npy", &array[..]), ("rank0.b.npy", &array)];
        let mut bytes = zipped(&members, CompressionMethod::Stored);
        for at in 0..bytes.len() - 7 {
            if bytes[at..].starts_with(b"rank0.b") {
                bytes[at + 6] = b'a';
            }
        }
        let (_folder, path) = saved("twice.npz", &bytes);
        let refused = TensorFile::open(&path).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.ends_with("not an archive of arrays: two of its members have one name"), "{refused}");
    }
}
