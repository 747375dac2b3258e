//! Reading a case: every tensor's presence, type, shape and values; all problems are reported.

use super::{
    Case, Elastic, OwnedMask, RankTensors, TENSORS_NAME, all_have_rows, elastic, expert_rows, rank_count,
    support,
};
use crate::config::{Config, FILE_NAME};
use crate::error::{Error, Problem};
use crate::store::{TensorFile, numbers_of};
use kernel_core::shape::{Dtype as Element, Elastic as Left, Given, Limits, Shape};
use kernel_core::units::RankId;
use safetensors::Dtype;
use std::collections::BTreeSet;
use std::path::Path;

/// A case whose configuration and header are read, not yet checked.
#[derive(Debug)]
pub struct Opened {
    /// `config.toml`.
    pub config: Config,
    /// The optional tensors that the header names.
    pub given: Given,
    file: TensorFile,
}

/// Opens a case folder.
///
/// # Errors
/// A file is missing or malformed.
pub fn open(folder: &Path) -> Result<Opened, Error> {
    if !folder.is_dir() {
        let what = if folder.exists() { "not a folder: a case is a folder" } else { "missing" };
        return Err(Error::file(folder, what));
    }
    let config = Config::read(&folder.join(FILE_NAME))?;
    let mut file = TensorFile::open(&folder.join(TENSORS_NAME))?;
    let given = given_by(&mut file)?;
    Ok(Opened { config, given, file })
}

/// Loads a case folder, checked.
///
/// # Errors
/// A file is missing or malformed, the configuration breaks a rule, a tensor is missing or wrong.
pub fn load(folder: &Path) -> Result<Case, Error> {
    open(folder)?.load(folder)
}

impl Opened {
    /// Judges the configuration, then reads as [`Self::read`].
    ///
    /// # Errors
    /// The configuration breaks a rule, a tensor is missing or wrong.
    pub fn load(self, folder: &Path) -> Result<Case, Error> {
        let shape = Shape::new(&self.config.as_core(self.given), Limits::Product)
            .map_err(|violations| Error::violations(folder.join(FILE_NAME).display(), &violations))?;
        self.read(shape)
    }

    /// Reads all tensors of a valid configuration and checks their values.
    ///
    /// # Errors
    /// All that is wrong with the tensors.
    pub fn read(self, whole: Shape) -> Result<Case, Error> {
        support::readable(&whole, self.given)?;
        let mut reader =
            Reader { unread: self.file.names().into_iter().collect(), file: self.file, problems: Vec::new() };
        let (shape, elastic) = reader.survivors(whole)?;
        let name = |rank| elastic.as_ref().map_or(rank, |elastic| elastic.name(rank));
        let ranks = (0..rank_count(&shape))
            .map(|rank| reader.rank(&shape, rank, name(RankId(rank))))
            .collect::<Result<_, _>>()?;
        let rows = expert_rows(&shape);
        let scales = reader.floats_if_given("scales", &[rows, shape.h() as usize])?;
        let gain = reader.floats_if_given("expert_gain", &[rows])?;
        let gain = gain.unwrap_or_else(|| vec![1.0; if all_have_rows(&shape) { rows } else { 0 }]);
        let place = reader.file.path().display().to_string();
        let mut problems = reader.end(&shape, elastic.as_ref());
        let case = Case { config: self.config, shape, ranks, scales, expert_gain: gain, elastic };
        // Values can only be judged when every tensor has its length.
        if problems.is_empty() {
            problems = case.problems();
        }
        if problems.is_empty() { Ok(case) } else { Err(Error::Invalid { place, problems }) }
    }
}

/// The optional inputs by their names and number of dimensions; `elastic_info` by its first word.
fn given_by(file: &mut TensorFile) -> Result<Given, Error> {
    let mut given = Given::empty();
    for name in file.names() {
        let dimensions = file.info(&name).map_or(0, |info| info.shape.len());
        given |= match (of_a_rank(&name), name.as_str()) {
            (None, "scales") => Given::SCALES,
            (None, "elastic_info") if switches_on(file)? => Given::ELASTIC_INFO,
            (Some("shared_expert_x"), _) => Given::SHARED_EXPERT_X,
            (Some("x_active_mask"), _) if dimensions == 1 => Given::MASK_1D,
            (Some("x_active_mask"), _) if dimensions == 2 => Given::MASK_2D,
            _ => Given::empty(),
        };
    }
    Ok(given)
}

/// Whether `elastic_info` is one that is switched on; what is wrong with it is found when it is read.
fn switches_on(file: &mut TensorFile) -> Result<bool, Error> {
    let is_i32 = file.info("elastic_info").is_some_and(|info| info.dtype == Dtype::I32);
    Ok(is_i32 && Left::is_on(&numbers_of(&file.read("elastic_info")?, i32::from_le_bytes)))
}

/// What follows `rank{r}.` in a name.
fn of_a_rank(name: &str) -> Option<&str> {
    let (rank, tensor) = name.strip_prefix("rank")?.split_once('.')?;
    rank.bytes().all(|c| c.is_ascii_digit()).then_some(tensor)
}

/// Takes tensors out of a file and notes what is wrong with them; a wrong one is read as empty.
struct Reader {
    file: TensorFile,
    unread: BTreeSet<String>,
    problems: Vec<Problem>,
}

impl Reader {
    /// What `elastic_info` leaves of the domain. Without it, if it is wrong, there is no telling what the tensors
    /// must be.
    fn survivors(&mut self, whole: Shape) -> Result<(Shape, Option<Elastic>), Error> {
        let name = "elastic_info";
        let mut info = None;
        if self.file.info(name).is_some() {
            let words = 4 + 2 * whole.ep_world_size() as usize;
            info = Some(numbers_of(&self.take(name, Dtype::I32, &[&[words]])?, i32::from_le_bytes));
        }
        let place = || self.file.path().display().to_string();
        if !self.problems.is_empty() {
            return Err(Error::Invalid { place: place(), problems: core::mem::take(&mut self.problems) });
        }
        elastic::survivors(whole, info).map_err(|violations| Error::violations(place(), &violations))
    }

    fn rank(&mut self, shape: &Shape, rank: u32, name: RankId) -> Result<RankTensors, Error> {
        let bs = shape.bs(RankId(rank / shape.tp_world_size())) as usize;
        let (k, h) = (shape.k() as usize, shape.h() as usize);
        let element = match shape.dtype() {
            Element::Bf16 => Dtype::BF16,
            Element::F16 => Dtype::F16,
        };
        let ids = self.must(&format!("rank{name}.expert_ids"), Dtype::I32, &[bs, k])?;
        let weights = self.must(&format!("rank{name}.expert_scales"), Dtype::F32, &[bs, k])?;
        Ok(RankTensors {
            x: self.must(&format!("rank{name}.x"), element, &[bs, h])?,
            expert_ids: numbers_of(&ids, i32::from_le_bytes),
            expert_scales: numbers_of(&weights, f32::from_le_bytes),
            mask: self.mask(&format!("rank{name}.x_active_mask"), bs, k)?,
        })
    }

    /// A tensor that must be there.
    fn must(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Vec<u8>, Error> {
        if self.file.info(name).is_none() {
            let rule = format!("must be {dtype} {shape:?}");
            self.problems.push(Problem::new(name, ": missing", rule));
            return Ok(Vec::new());
        }
        self.take(name, dtype, &[shape])
    }

    fn floats_if_given(&mut self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, Error> {
        if self.file.info(name).is_none() {
            return Ok(None);
        }
        let bytes = self.take(name, Dtype::F32, &[shape])?;
        Ok(Some(numbers_of(&bytes, f32::from_le_bytes)))
    }

    fn mask(&mut self, name: &str, bs: usize, k: usize) -> Result<OwnedMask, Error> {
        let Some(dimensions) = self.file.info(name).map(|info| info.shape.len()) else {
            return Ok(OwnedMask::None);
        };
        let bytes = self.take(name, Dtype::BOOL, &[&[bs], &[bs, k]])?;
        if let Some((i, byte)) = bytes.iter().enumerate().find(|(_, byte)| **byte > 1) {
            let at = if dimensions == 2 { format!("{}, {}", i / k, i % k) } else { i.to_string() };
            self.problems.push(Problem::new(name, &format!("[{at}] = {byte}"), "a BOOL byte must be 0 or 1"));
        }
        let flags = bytes.iter().map(|&byte| byte != 0).collect();
        Ok(if dimensions == 2 { OwnedMask::Pairs(flags) } else { OwnedMask::Tokens(flags) })
    }

    /// The bytes of a tensor that is there; empty, with a problem noted, if type or shape is wrong.
    fn take(&mut self, name: &str, dtype: Dtype, shapes: &[&[usize]]) -> Result<Vec<u8>, Error> {
        self.unread.remove(name);
        let Some(info) = self.file.info(name) else {
            return Ok(Vec::new());
        };
        let mut sound = true;
        if info.dtype != dtype {
            let seen = format!(": dtype {}", info.dtype);
            self.problems.push(Problem::new(name, &seen, format!("must be {dtype}")));
            sound = false;
        }
        if !shapes.contains(&info.shape.as_slice()) {
            let legal: Vec<_> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
            let seen = format!(": shape {:?}", info.shape);
            self.problems.push(Problem::new(name, &seen, format!("must be {}", legal.join(" or "))));
            sound = false;
        }
        if sound { self.file.read(name) } else { Ok(Vec::new()) }
    }

    /// All problems, with the tensors that nobody read.
    fn end(mut self, shape: &Shape, elastic: Option<&Elastic>) -> Vec<Problem> {
        for name in self.unread {
            let rule = match elastic {
                Some(_) => format!("must be absent (ranks left by elastic_info = {})", rank_count(shape)),
                None => format!("must be absent (ranks = {})", rank_count(shape)),
            };
            self.problems.push(Problem::new(name, ": a tensor that nobody reads", rule));
        }
        self.problems
    }
}
