//! Writing a case.

use super::{
    Case, EXPECTED_NAME, Elastic, ExpertMap, OwnedMask, RETURNED_NAME, RankTensors, TENSORS_NAME,
    expert_rows, npz_of,
};
use crate::atomic_file::{AtomicFile, remove_file};
use crate::config::FILE_NAME;
use crate::error::Error;
use crate::result::element;
use crate::store::{Tensor, bytes_of, written_tensors};
use safetensors::Dtype;
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;
use veriep_core::shape::Shape;
use veriep_core::units::RankId;

/// Whether `folder` holds both files of a case.
pub fn is_case(folder: &Path) -> bool {
    let tensors = folder.join(TENSORS_NAME);
    folder.join(FILE_NAME).is_file() && (tensors.is_file() || npz_of(&tensors).is_file())
}

impl Case {
    /// Writes the case into `folder`, made if it is not there.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        self.save_with(folder, None)
    }

    /// Writes the case into `folder`, made if it is not there, and beside it the reference's result, if it is given; the one of
    /// an older case goes, and what experts returned of it. An older case stays as it is until all of the new one is written. While files change places there
    /// is no configuration: a process that reads it then, or after a kill at that time, is refused.
    ///
    /// # Errors
    /// The folder or a file cannot be written; nothing new stays behind.
    pub fn save_with(&self, folder: &Path, expected: Option<Vec<Tensor<'_>>>) -> Result<(), Error> {
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made: Vec<_> = folder.ancestors().take_while(missing).collect();
        let saved = std::fs::create_dir_all(folder)
            .map_err(|e| Error::file(folder, format_args!("cannot make the folder: {e}")))
            .and_then(|()| self.save_files(folder, expected));
        if saved.is_err() {
            // Nothing half made stays behind; what stopped the writing is the error to report.
            let mut made = made.into_iter();
            made.next().into_iter().for_each(|folder| _ = std::fs::remove_dir_all(folder));
            made.for_each(|parent| _ = std::fs::remove_dir(parent));
        }
        saved
    }

    fn save_files(&self, folder: &Path, expected: Option<Vec<Tensor<'_>>>) -> Result<(), Error> {
        let text = self.config.to_toml()?;
        let beside = folder.join(EXPECTED_NAME);
        if beside.is_dir() {
            return Err(Error::file(&beside, "cannot replace: a folder: must be a file"));
        }
        // What takes time or space comes first: then nothing is left but to rename.
        let inputs = written_tensors(&folder.join(TENSORS_NAME), self.tensors())?;
        let expected = expected.map(|tensors| written_tensors(&beside, tensors)).transpose()?;
        let config = AtomicFile::written(&folder.join(FILE_NAME), |file| file.write_all(text.as_bytes()))?;
        config.clear()?;
        match expected {
            Some(expected) => expected.put()?,
            None => remove_file(&beside)?,
        }
        let returned = folder.join(RETURNED_NAME);
        let of_older = [npz_of(&folder.join(TENSORS_NAME)), npz_of(&returned), returned];
        of_older.iter().try_for_each(|file| remove_file(file))?;
        inputs.put()?;
        config.put()
    }

    fn tensors(&self) -> Vec<Tensor<'_>> {
        let mut tensors = Vec::new();
        let mut push = |name: &str, dtype, shape, data| {
            tensors.push(Tensor { name: name.to_owned(), dtype, shape, data });
        };
        if !self.expert_gain.is_empty() {
            push("expert_gain", Dtype::F32, vec![self.expert_gain.len()], floats(&self.expert_gain));
        }
        if let Some(Elastic { info, .. }) = &self.elastic {
            push("elastic_info", Dtype::I32, vec![info.len()], ints(info));
        }
        if let Some(ExpertMap { words, rows }) = &self.expert_map {
            push("expert_map", Dtype::I32, vec![*rows, words.len() / rows], ints(words));
        }
        if let Some(scales) = &self.scales {
            let dims = vec![expert_rows(&self.shape), self.shape.h() as usize];
            push("scales", Dtype::F32, dims, floats(scales));
        }
        for (name, dims, data) in self.weights.tensors(&self.shape, self.config.operator()) {
            if !data.is_empty() {
                push(name, element(&self.shape), dims, data.into());
            }
        }
        for (rank, of_rank) in (0..).map(RankId).zip(&self.ranks) {
            rank_tensors(&self.shape, self.name(rank), of_rank, &mut tensors);
        }
        tensors
    }
}

fn rank_tensors<'a>(shape: &Shape, rank: RankId, of_rank: &'a RankTensors, tensors: &mut Vec<Tensor<'a>>) {
    let (k, h) = (shape.k() as usize, shape.h() as usize);
    let bs = of_rank.expert_ids.len().checked_div(k).unwrap_or_default();
    let element = element(shape);
    let mut push = |name: &str, dtype, shape, data: Cow<'a, [u8]>| {
        tensors.push(Tensor { name: format!("rank{rank}.{name}"), dtype, shape, data });
    };
    push("x", element, vec![bs, h], Cow::Borrowed(&of_rank.x));
    if let Some(shared) = &of_rank.shared_expert_x {
        push("shared_expert_x", element, vec![bs, h], Cow::Borrowed(shared));
    }
    if !of_rank.residual_x.is_empty() {
        push("residual_x", element, vec![bs, h], Cow::Borrowed(&of_rank.residual_x));
    }
    push("expert_ids", Dtype::I32, vec![bs, k], ints(&of_rank.expert_ids));
    if !of_rank.replicas.is_empty() {
        push("replicas", Dtype::I32, vec![of_rank.replicas.len()], ints(&of_rank.replicas));
    }
    push("expert_scales", Dtype::F32, vec![bs, k], floats(&of_rank.expert_scales));
    let flags = |mask: &[bool]| mask.iter().map(|&flag| u8::from(flag)).collect::<Vec<_>>().into();
    match &of_rank.mask {
        OwnedMask::None => {}
        OwnedMask::Abstains => push("x_active_mask", Dtype::BOOL, vec![bs], flags(&vec![false; bs])),
        OwnedMask::Tokens(mask) => push("x_active_mask", Dtype::BOOL, vec![bs], flags(mask)),
        OwnedMask::Pairs(mask) => push("x_active_mask", Dtype::BOOL, vec![bs, k], flags(mask)),
    }
}

fn floats(values: &[f32]) -> Cow<'static, [u8]> {
    bytes_of(values, f32::to_le_bytes).into()
}

fn ints(values: &[i32]) -> Cow<'static, [u8]> {
    bytes_of(values, i32::to_le_bytes).into()
}
