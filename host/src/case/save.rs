//! Writing a case.

use super::{Case, EXPECTED_NAME, Elastic, ExpertMap, OwnedMask, RankTensors, TENSORS_NAME, expert_rows};
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
    folder.join(FILE_NAME).is_file() && folder.join(TENSORS_NAME).is_file()
}

impl Case {
    /// Writes the case into `folder`, made if it is not there.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        self.save_with(folder, None)
    }

    /// Writes the case into `folder`, made if it is not there, and beside it the oracle's result, if it is given; the one of
    /// an older case goes. An older case stays as it is until all of the new one is written. While files change places there
    /// is no configuration: whoever looks then, or finds what a process left that was killed then, is refused.
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
        // What wants time or room comes first, names too: then nothing is left but to rename.
        let inputs = written_tensors(&folder.join(TENSORS_NAME), self.tensors())?;
        let expected = expected.map(|tensors| written_tensors(&beside, tensors)).transpose()?;
        let config = AtomicFile::written(&folder.join(FILE_NAME), |file| file.write_all(text.as_bytes()))?;
        let (inputs, config) = (inputs.named()?, config.named()?);
        let expected = expected.map(AtomicFile::named).transpose()?;
        config.clear()?;
        match expected {
            Some(expected) => expected.put()?,
            None => remove_file(&beside)?,
        }
        inputs.put()?;
        config.put()
    }

    fn tensors(&self) -> Vec<Tensor<'_>> {
        let (rows, h) = (expert_rows(&self.shape), self.shape.h() as usize);
        let floats = |name: &str, shape: Vec<usize>, values: &[f32]| Tensor {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape,
            data: bytes_of(values, f32::to_le_bytes).into(),
        };
        let mut tensors = Vec::new();
        if !self.expert_gain.is_empty() {
            tensors.push(floats("expert_gain", vec![self.expert_gain.len()], &self.expert_gain));
        }
        if let Some(Elastic { info, .. }) = &self.elastic {
            let (name, data) = ("elastic_info".to_owned(), bytes_of(info, i32::to_le_bytes).into());
            tensors.push(Tensor { name, dtype: Dtype::I32, shape: vec![info.len()], data });
        }
        if let Some(ExpertMap { words, rows }) = &self.expert_map {
            let (name, data) = ("expert_map".to_owned(), bytes_of(words, i32::to_le_bytes).into());
            let shape = vec![*rows, words.len() / rows];
            tensors.push(Tensor { name, dtype: Dtype::I32, shape, data });
        }
        if let Some(scales) = &self.scales {
            tensors.push(floats("scales", vec![rows, h], scales));
        }
        let element = element(&self.shape);
        for (name, dims, data) in self.weights.tensors(&self.shape) {
            if !data.is_empty() {
                tensors.push(Tensor {
                    name: name.to_owned(),
                    dtype: element,
                    shape: dims,
                    data: data.into(),
                });
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
    push("expert_ids", Dtype::I32, vec![bs, k], bytes_of(&of_rank.expert_ids, i32::to_le_bytes).into());
    push("expert_scales", Dtype::F32, vec![bs, k], bytes_of(&of_rank.expert_scales, f32::to_le_bytes).into());
    let flags = |mask: &[bool]| mask.iter().map(|&flag| u8::from(flag)).collect::<Vec<_>>().into();
    match &of_rank.mask {
        OwnedMask::None => {}
        OwnedMask::Tokens(mask) => push("x_active_mask", Dtype::BOOL, vec![bs], flags(mask)),
        OwnedMask::Pairs(mask) => push("x_active_mask", Dtype::BOOL, vec![bs, k], flags(mask)),
    }
}
