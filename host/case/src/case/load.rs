//! Reading a case: every tensor's presence, type, shape and values; all problems are reported.

use super::collect::Collected;
use super::{
    Case, Elastic, ExpertMap, NO_EXPERT, OwnedMask, RankTensors, TENSORS_NAME, Weights, all_have_rows,
    check_expert_map, expert_rows, returned_file, survivors, tensors_file,
};
use crate::config::{self, Config, FILE_NAME};
use crate::error::{Error, Problem};
use crate::global_rank;
use crate::hints;
use crate::result::element;
use crate::store::{TensorFile, convert_to, numbers_of};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use veriep_core::inputs::Mask;
use veriep_core::shape::{Elastic as Left, Given, Limits, Op, RANKS_MAX, Shape};
use veriep_core::units::RankId;

/// A case whose configuration and header are read, not yet checked.
#[derive(Debug)]
pub struct Opened {
    /// `config.toml`.
    pub config: Config,
    /// The optional tensors that the header names.
    in_header: Given,
    /// `elastic_info` that is switched on, not checked.
    pub elastic_info: Option<Vec<i32>>,
    file: TensorFile,
    /// Whether `x` may be absent where combine does not read it.
    is_of_combine: bool,
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
    let place = folder.join(FILE_NAME);
    let (text, seen) = config::text(&place)?;
    let config = Config::of_text(&place, &text)?;
    let file = TensorFile::open(&tensors_file(folder, TENSORS_NAME)?)?;
    // A process that makes the case again takes the configuration away first and puts the new one in its place last.
    let now = config::text(&place)?.1;
    if !is_same(&seen, &now) {
        return Err(Error::file(&place, "has changed meanwhile: another case is being made here"));
    }
    Opened::of(config, file)
}

/// Whether these are one file, not two of the same text: both are open, so neither's number is another's.
#[cfg(unix)]
fn is_same(a: &File, b: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = |file: &File| file.metadata().map(|about| (about.dev(), about.ino())).ok();
    number(a) == number(b)
}

#[cfg(not(unix))]
fn is_same(a: &File, b: &File) -> bool {
    let made = |file: &File| file.metadata().and_then(|about| about.modified()).ok();
    made(a) == made(b)
}

/// Returns whether two paths lead to one file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    File::open(a).ok().zip(File::open(b).ok()).is_some_and(|(a, b)| is_same(&a, &b))
}

/// Loads a case folder, checked.
///
/// # Errors
/// A file is missing or malformed, the configuration breaks a rule, a tensor is missing or wrong.
pub fn load(folder: &Path) -> Result<Case, Error> {
    open(folder)?.load(folder)
}

impl Opened {
    /// The case that these tensors are of that configuration.
    ///
    /// # Errors
    /// `elastic_info` cannot be read.
    pub fn of(config: Config, mut file: TensorFile) -> Result<Self, Error> {
        let elastic_info = elastic_info(&mut file)?;
        let mut in_header = given_by(&file);
        in_header.set(Given::ELASTIC_INFO, elastic_info.is_some());
        Ok(Self { config, in_header, elastic_info, file, is_of_combine: false })
    }

    /// The optional inputs: those that the header names, and the masks that ids of no expert are where the configuration allows
    /// them.
    ///
    /// # Errors
    /// The ids cannot be read.
    pub fn given(&mut self) -> Result<Given, Error> {
        let mut given = self.in_header;
        if self.config.ids.is_none() {
            return Ok(given);
        }
        for name in self.file.names().into_iter().filter(|name| of_a_rank(name) == Some("expert_ids")) {
            let Some(&TensorInfo { dtype: Dtype::I32, ref shape, .. }) = self.file.info(&name) else {
                continue;
            };
            let &[bs, k] = shape.as_slice() else { continue };
            let ids = numbers_of(&self.file.read(&name)?, i32::from_le_bytes);
            // Masks of the file are in its header.
            given |= OwnedMask::without_no_expert(Mask::None, &ids, bs, k.max(1)).given();
        }
        Ok(given)
    }

    /// Lets `x` be absent if the folder holds what experts returned, for callers that ask about combine alone then.
    #[must_use]
    pub fn for_oracle(mut self, folder: &Path) -> Self {
        // Reading them reports that there are two.
        self.is_of_combine = returned_file(folder).is_ok_and(|file| file.is_some());
        self
    }

    /// Judges the configuration, then reads as [`Self::read`].
    ///
    /// # Errors
    /// The configuration breaks a rule, a tensor is missing or wrong.
    pub fn load(mut self, folder: &Path) -> Result<Case, Error> {
        let place = folder.join(FILE_NAME);
        let given = self.given()?;
        let shape = hints::shape(&self.config, given, Limits::Product, place.display())?;
        self.read(shape)
    }

    /// Reads all tensors of a valid configuration and checks their values.
    ///
    /// # Errors
    /// All that is wrong with the tensors, of each a few values; or what this version does not read yet.
    pub fn read(self, whole: Shape) -> Result<Case, Error> {
        let mut reader = Reader {
            unread: self.file.names().into_iter().collect(),
            file: self.file,
            problems: Collected::default(),
            is_of_combine: self.is_of_combine,
            allows_no_expert: self.config.ids.is_some(),
            op: self.config.operator(),
        };
        let (shape, elastic) = reader.survivors(whole)?;
        let name = |rank| elastic.as_ref().map_or(rank, |elastic| elastic.name(rank));
        let expert_map = reader.expert_map(&shape)?;
        let mut ranks = (0..global_rank::count(&shape))
            .map(|rank| reader.rank(&shape, rank, name(RankId(rank)), expert_map.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(map) = &expert_map {
            map.translate(&shape, &mut ranks);
        }
        let rows = expert_rows(&shape);
        let scales = reader.floats_if_given("scales", &[rows, shape.h() as usize])?;
        let gain = reader.floats_if_given("expert_gain", &[rows])?;
        let gain = gain.unwrap_or_else(|| vec![1.0; if all_have_rows(&shape) { rows } else { 0 }]);
        let weights = reader.weights(&shape)?;
        let place = reader.file.path().display().to_string();
        let mut problems = reader.end(&shape, elastic.as_ref());
        let case = Case {
            config: self.config,
            shape,
            ranks,
            scales,
            weights,
            expert_gain: gain,
            elastic,
            expert_map,
        };
        case.judge(&mut problems);
        let problems = problems.end();
        if problems.is_empty() { Ok(case) } else { Err(Error::Invalid { place, problems }) }
    }
}

/// The optional inputs by their names and number of dimensions; but for `elastic_info`, which may be switched off.
fn given_by(file: &TensorFile) -> Given {
    let mut given = Given::empty();
    for name in file.names() {
        let dimensions = file.info(&name).map_or(0, |info| info.shape.len());
        given |= match (of_a_rank(&name), name.as_str()) {
            (None, "scales") => Given::SCALES,
            (None, "expert_map") => Given::EXPERT_MAP,
            (Some("shared_expert_x"), _) => Given::SHARED_EXPERT_X,
            (Some("x_active_mask"), _) if dimensions == 1 => Given::MASK_1D,
            (Some("x_active_mask"), _) if dimensions == 2 => Given::MASK_2D,
            _ => Given::empty(),
        };
    }
    given
}

/// `elastic_info` if it is switched on; what is wrong with it is found when the tensors are read. One that is longer
/// than any domain's is left unread.
fn elastic_info(file: &mut TensorFile) -> Result<Option<Vec<i32>>, Error> {
    const LONGEST: usize = 4 + 2 * RANKS_MAX;
    let readable =
        |info: &TensorInfo| info.dtype == Dtype::I32 && info.shape.iter().product::<usize>() <= LONGEST;
    if !file.info("elastic_info").is_some_and(readable) {
        return Ok(None);
    }
    let info = numbers_of(&file.read("elastic_info")?, i32::from_le_bytes);
    Ok(Left::is_on(&info).then_some(info))
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
    problems: Collected,
    is_of_combine: bool,
    allows_no_expert: bool,
    op: Op,
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
        survivors(whole, info, self.sound_so_far()?)
    }

    /// `expert_map`. If it is wrong, there is no telling what ids mean.
    fn expert_map(&mut self, shape: &Shape) -> Result<Option<ExpertMap>, Error> {
        let name = "expert_map";
        let Some(dims) = self.file.info(name).map(|info| info.shape.clone()) else { return Ok(None) };
        if dims.len() != 2 {
            self.wrong(name, &format!(": shape {dims:?}"), "must be [logical experts, most replicas of one]");
        }
        let words = numbers_of(&self.take(name, Dtype::I32, &[&dims])?, i32::from_le_bytes);
        let place = self.sound_so_far()?;
        let map = ExpertMap { words, rows: dims[0] };
        check_expert_map(shape, &map, place).map(|()| Some(map))
    }

    /// The name of the file, if nothing is wrong with it yet.
    fn sound_so_far(&mut self) -> Result<String, Error> {
        let place = self.file.path().display().to_string();
        let problems = core::mem::take(&mut self.problems).end();
        if problems.is_empty() { Ok(place) } else { Err(Error::Invalid { place, problems }) }
    }

    /// The replicas that a rank chooses itself, one of the map's for each logical expert.
    fn replicas(&mut self, name: &str, map: Option<&ExpertMap>) -> Result<Vec<i32>, Error> {
        let Some(map) = map else {
            if self.file.info(name).is_some() {
                self.unread.remove(name);
                self.wrong(name, " is given", "must be absent without expert_map");
            }
            return Ok(Vec::new());
        };
        let bytes = self.if_given(name, Dtype::I32, &[map.rows])?;
        let chosen = bytes.map_or_else(Vec::new, |bytes| numbers_of(&bytes, i32::from_le_bytes));
        for (expert, &physical) in chosen.iter().enumerate() {
            if !map.replicas(expert).any(|replica| replica == physical) {
                let replicas: Vec<_> = map.replicas(expert).collect();
                let rule = format!("must be one of the replicas that expert_map has, {replicas:?}");
                self.wrong(name, &format!("[{expert}] = {physical}"), rule);
            }
        }
        Ok(chosen)
    }

    fn rank(
        &mut self,
        shape: &Shape,
        rank: u32,
        name: RankId,
        map: Option<&ExpertMap>,
    ) -> Result<RankTensors, Error> {
        let bs = shape.bs(global_rank::ep_rank(shape, RankId(rank))) as usize;
        let (k, h) = (shape.k() as usize, shape.h() as usize);
        let element = element(shape);
        let ids = self.must(&format!("rank{name}.expert_ids"), Dtype::I32, &[bs, k])?;
        let weights = self.must(&format!("rank{name}.expert_scales"), Dtype::F32, &[bs, k])?;
        let expert_ids = numbers_of(&ids, i32::from_le_bytes);
        let mut expert_scales = numbers_of(&weights, f32::from_le_bytes);
        let mut mask = self.mask(&format!("rank{name}.x_active_mask"), bs, k)?;
        if self.allows_no_expert && expert_ids.len() == bs * k {
            mask = OwnedMask::without_no_expert(mask.by_reference(), &expert_ids, bs, k);
            // Weights must be numbers also where there is no expert.
            for (weight, _) in expert_scales.iter_mut().zip(&expert_ids).filter(|(_, id)| **id == NO_EXPERT) {
                *weight = 0.0;
            }
        }
        Ok(RankTensors {
            x: self.tokens(shape, &format!("rank{name}.x"), &[bs, h])?,
            expert_ids,
            physical_ids: Vec::new(),
            replicas: self.replicas(&format!("rank{name}.replicas"), map)?,
            expert_scales,
            mask,
            shared_expert_x: self.if_given(&format!("rank{name}.shared_expert_x"), element, &[bs, h])?,
            residual_x: match self.op {
                Op::Combine => Vec::new(),
                Op::CombineAddRmsNorm => self.must(&format!("rank{name}.residual_x"), element, &[bs, h])?,
            },
        })
    }

    /// `x` of a rank; zeros where it is absent and nothing of what is asked depends on it.
    fn tokens(&mut self, shape: &Shape, name: &str, dims: &[usize; 2]) -> Result<Vec<u8>, Error> {
        let is_read = shape.copy_expert_num() > 0 || shape.const_expert_num() > 0;
        if self.is_of_combine && !is_read && self.file.info(name).is_none() {
            return Ok(vec![0; dims[0] * shape.row_bytes() as usize]);
        }
        self.must(name, element(shape), dims)
    }

    /// What const experts and AddRmsNorm have.
    fn weights(&mut self, shape: &Shape) -> Result<Weights, Error> {
        let element = element(shape);
        let [alphas, rows, gamma] = Weights::shapes(shape, self.op);
        let mut read = |name, dims: &[usize]| match dims {
            // The shape has none: if the file does, it is not read.
            [0, ..] => Ok(Vec::new()),
            _ => self.must(name, element, dims),
        };
        Ok(Weights {
            const_expert_alpha_1: read("const_expert_alpha_1", &alphas)?,
            const_expert_alpha_2: read("const_expert_alpha_2", &alphas)?,
            const_expert_v: read("const_expert_v", &rows)?,
            gamma: read("gamma", &gamma)?,
        })
    }

    fn must(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Vec<u8>, Error> {
        if self.file.info(name).is_none() {
            self.wrong(name, ": missing", format!("must be {dtype} {shape:?}"));
            return Ok(Vec::new());
        }
        self.take(name, dtype, &[shape])
    }

    fn floats_if_given(&mut self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, Error> {
        let bytes = self.if_given(name, Dtype::F32, shape)?;
        Ok(bytes.map(|bytes| numbers_of(&bytes, f32::from_le_bytes)))
    }

    fn if_given(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Option<Vec<u8>>, Error> {
        match self.file.info(name) {
            None => Ok(None),
            Some(_) => self.take(name, dtype, &[shape]).map(Some),
        }
    }

    fn mask(&mut self, name: &str, bs: usize, k: usize) -> Result<OwnedMask, Error> {
        let Some(dimensions) = self.file.info(name).map(|info| info.shape.len()) else {
            return Ok(OwnedMask::None);
        };
        let bytes = self.take(name, Dtype::BOOL, &[&[bs], &[bs, k]])?;
        for (i, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte > 1) {
            let at = if dimensions == 2 { format!("{}, {}", i / k, i % k) } else { i.to_string() };
            self.wrong(name, &format!("[{at}] = {byte}"), "a BOOL byte must be 0 or 1");
        }
        let flags = bytes.iter().map(|&byte| byte != 0).collect();
        Ok(if dimensions == 2 { OwnedMask::Pairs(flags) } else { OwnedMask::Tokens(flags) })
    }

    /// The bytes of a tensor that is there; empty, with a problem noted, if type or shape is wrong.
    fn take(&mut self, name: &str, dtype: Dtype, shapes: &[&[usize]]) -> Result<Vec<u8>, Error> {
        self.unread.remove(name);
        let Some(info) = self.file.info(name).cloned() else {
            return Ok(Vec::new());
        };
        let mut sound = true;
        if info.dtype != dtype {
            let seen = format!(": dtype {}", info.dtype);
            let hint = convert_to(info.dtype, dtype);
            self.problems
                .add(name, |name| Problem { hint, ..Problem::new(name, &seen, format!("must be {dtype}")) });
            sound = false;
        }
        if !shapes.contains(&info.shape.as_slice()) {
            let legal: Vec<_> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
            let seen = format!(": shape {:?}", info.shape);
            self.wrong(name, &seen, format!("must be {}", legal.join(" or ")));
            sound = false;
        }
        if sound { self.file.read(name) } else { Ok(Vec::new()) }
    }

    fn wrong(&mut self, name: &str, seen: &str, rule: impl Into<String>) {
        self.problems.add(name, |name| Problem::new(name, seen, rule));
    }

    /// All problems, with the tensors that were not read.
    fn end(mut self, shape: &Shape, elastic: Option<&Elastic>) -> Collected {
        let ranks = if elastic.is_some() { "ranks left by elastic_info" } else { "ranks" };
        let rule = format!("must be absent ({ranks} = {})", global_rank::count(shape));
        for name in core::mem::take(&mut self.unread) {
            self.wrong(&name, ": unknown tensor", &*rule);
        }
        self.problems
    }
}
