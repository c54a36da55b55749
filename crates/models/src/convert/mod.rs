//! Converts official checkpoints into weir's format, one kind of source a file. Each reader of the table turns a source into a
//! configuration and its tensors, under weir's names. [`pickle`] reads pickles and executes nothing.

mod added_tokens;
mod blt;
mod bpe;
pub(crate) mod converted;
mod dynamic_pooling;
mod gpt2;
mod hnet;
mod lslm;
pub mod pickle;
mod pyramidions;
mod sentencepiece;
mod t5;
mod torch;
mod torchscale;

use crate::{
    checkpoint::{
        CONFIG_FILE, Config, FileDtype, TensorSpec, Weights, Writer, WrittenCheckpoint,
        files::{self, check_inside},
        hugging_face::{self, GENERATION_FILE},
        writer::check_vacant,
    },
    convert::converted::{Converted, read_config},
    family::families::blueprint,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use std::{collections::HashMap, path::Path};
use weir_kernels::error::{Error, Result};

/// A source of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The official Dynamic Token Pooling code.
    DynamicPooling,
    /// Hugging Face's GPT-2.
    Gpt2,
    /// Latent Segment Language Models, in the layout of Hugging Face's T5; their baseline, GPT-2, as well.
    Lslm,
    /// H-Net's official code.
    Hnet,
    /// torchscale's decoder, LeX's fork included.
    Torchscale,
    /// The official code of Trainable Representation Pooling, a fork of fairseq.
    Pyramidions,
    /// T5, flan-T5, mT5, ByT5 and LongT5 of Hugging Face.
    T5,
    /// MrT5 of Hugging Face.
    MrT5,
    /// The Byte Latent Transformer of Hugging Face.
    Blt,
}

/// Reads a source, and reports bytes read and bytes to read.
type SourceReader = fn(&Path, &mut dyn FnMut(u64, u64)) -> Result<Converted>;

const SOURCES: &[(Source, &str, SourceReader)] = &[
    (Source::DynamicPooling, "dynamic-pooling", dynamic_pooling::read),
    (Source::Gpt2, "gpt2", gpt2::read),
    (Source::Lslm, "lslm", lslm::read),
    (Source::Hnet, "hnet", hnet::read),
    (Source::Torchscale, "torchscale", torchscale::read),
    (Source::Pyramidions, "pyramidions", pyramidions::read),
    (Source::T5, "t5", |dir, progress| t5::read(dir, t5::T5_TYPES, progress)),
    (Source::MrT5, "mrt5", |dir, progress| t5::read(dir, t5::MRT5_TYPES, progress)),
    (Source::Blt, "blt", blt::read),
];

impl Source {
    /// The names of all sources.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SOURCES.iter().map(|(_, name, _)| *name)
    }

    /// The source of that name.
    pub fn parse(name: &str) -> Option<Self> {
        SOURCES.iter().find(|(_, known, _)| *known == name).map(|(source, ..)| *source)
    }

    /// The source of a Hugging Face folder that must be converted; `None` if weir reads it as it is, or not at all.
    pub fn of_folder(dir: &Path) -> Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Keys {
            format: Option<IgnoredAny>,
            model_type: Option<Box<RawValue>>,
        }
        let file = dir.join(CONFIG_FILE);
        let keys: Keys = files::parse(&read_config(&file)?, &file, "")?;
        let kind = keys.model_type.filter(|_| keys.format.is_none()).and_then(|name| hugging_face::conversion(&name));
        Ok(kind.and_then(Self::parse))
    }

    fn reader(self) -> Result<SourceReader> {
        let found = SOURCES.iter().find(|(source, ..)| *source == self).map(|(.., reader)| *reader);
        found.ok_or_else(|| Error::Internal(format!("{self:?} is not in the table of sources")))
    }
}

/// Reads the checkpoint at `from` and writes it to the folder `dest`. Fails if the source is invalid, or if the destination is
/// the source or not empty, unless it holds a checkpoint and `overwrite` is set.
pub fn convert(source: Source, from: &Path, dest: &Path, overwrite: bool) -> Result<WrittenCheckpoint> {
    convert_with_progress(source, from, dest, FileDtype::F32, overwrite, &mut |_, _| {})
}

/// Converts as [`convert`] does, with `matrices` of that type, and reports bytes read and bytes to read to `progress`. Fails as
/// [`convert`] does.
pub fn convert_with_progress(
    source: Source,
    from: &Path,
    dest: &Path,
    matrices: FileDtype,
    overwrite: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<WrittenCheckpoint> {
    // also through links
    if let (Ok(source), Ok(target)) = (from.canonicalize(), dest.canonicalize())
        && source == target
    {
        let dest = dest.display();
        return Err(Error::Setting(format!("{dest}: the destination is the source itself; give another folder")));
    }
    check_vacant(dest, overwrite)?;
    let Converted { config, mut weights } = source.reader()?(from, progress)?;
    let blueprint = blueprint(&config, from)?;
    let specs = blueprint.tensors();
    let in_files = specs.iter().filter(|spec| spec.stays_in_file);
    let tables =
        in_files.map(|spec| Ok((&*spec.name, weights.take_table(&spec.name)?))).collect::<Result<HashMap<_, _>>>()?;
    let dtypes = tables.iter().map(|(name, table)| (*name, table.dtype())).collect();
    let mut writer = Writer::create_with_tables(dest, &config, &specs, matrices, &dtypes, overwrite)?;
    for spec in &specs {
        match tables.get(&*spec.name) {
            Some(table) => writer.table(&spec.name, table)?,
            None => writer.tensor(&spec.name, &weights.take(&spec.name)?)?,
        }
    }
    let parameters = specs.iter().filter(|spec| spec.trained).map(TensorSpec::numbers).sum();
    Ok(WrittenCheckpoint { shape: blueprint.shape(), parameters, sha256: writer.finish()? })
}

/// A folder that is read without conversion.
pub(crate) struct InPlace<'a> {
    dir: &'a Path,
    kind: InPlaceKind,
}

/// The family of a folder that is read without conversion.
enum InPlaceKind {
    /// T5, with the values of `model_type` that its reader takes.
    T5(&'static [&'static str]),
    Blt,
}

impl<'a> InPlace<'a> {
    /// Returns the folder if its `model_type` is of the T5 family, or the Byte Latent Transformer.
    pub(crate) fn find(dir: &'a Path) -> Option<Self> {
        let file = dir.join(CONFIG_FILE);
        // The reader of the configuration reports what is wrong with it.
        if !file.is_file() || check_inside(dir, &file).is_err() {
            return None;
        }
        let Ok(Some(kind)) = Source::of_folder(dir) else { return None };
        let kind = match kind {
            Source::T5 => InPlaceKind::T5(t5::T5_TYPES),
            Source::MrT5 => InPlaceKind::T5(t5::MRT5_TYPES),
            Source::Blt => InPlaceKind::Blt,
            _ => return None,
        };
        Some(Self { dir, kind })
    }

    pub(crate) fn config(&self) -> Result<Config> {
        for name in [CONFIG_FILE, GENERATION_FILE].into_iter().chain(t5::TOKENIZER_FILES) {
            files::present(self.dir, name)?;
        }
        match self.kind {
            InPlaceKind::T5(types) => t5::config_in_place(self.dir, types),
            InPlaceKind::Blt => blt::config_in_place(self.dir),
        }
    }

    /// Reads the weights under weir's names and their SHA-256. Reports bytes read and bytes to read to `progress`.
    pub(crate) fn weights(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(Weights, String)> {
        match self.kind {
            InPlaceKind::T5(types) => t5::weights_in_place(self.dir, types, progress),
            InPlaceKind::Blt => blt::weights_in_place(self.dir, progress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Source;

    #[test]
    fn conversions_that_errors_name_exist() {
        for (model_type, kind) in hugging_face::CONVERTED {
            assert!(Source::parse(kind).is_some(), "{model_type}: {kind}");
        }
    }
}
